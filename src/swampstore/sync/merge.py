"""The three-way decision for one path: this cache, the base both sides agreed on, the remote.

Pure rules. They never let content disappear that only one side has: an edit beats a delete,
and two different edits are a conflict, which the caller settles by keeping both.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from swampstore.index.base import Known
    from swampstore.index.format import Entry


class Local(Enum):
    """How the local file stands to the base.

    A file without a base is CHANGED. DELETED is a claim that needs evidence: the path was
    marked and the base shows that this cache held it; a file that is merely not there, or never
    was hydrated, is ABSENT.
    """

    SAME = auto()
    CHANGED = auto()
    ABSENT = auto()
    DELETED = auto()


class Decision(Enum):
    """What has to be done about one path."""

    NOTHING = auto()
    PUSH = auto()
    PULL = auto()
    DELETE_REMOTE = auto()
    DELETE_LOCAL = auto()
    ADOPT = auto()
    """Both sides have the same content already; only the base has to learn it."""
    FORGET = auto()
    """Neither side has it any more; only the base has to learn it."""
    CONFLICT = auto()


_NOWHERE_ELSE = {
    Local.SAME: Decision.NOTHING,
    Local.CHANGED: Decision.PUSH,
    Local.ABSENT: Decision.NOTHING,
    Local.DELETED: Decision.NOTHING,
}
_GONE_FROM_REMOTE = {
    Local.SAME: Decision.DELETE_LOCAL,
    Local.CHANGED: Decision.PUSH,
    Local.ABSENT: Decision.FORGET,
    Local.DELETED: Decision.FORGET,
}
_NEW_ON_REMOTE = {
    Local.SAME: Decision.PULL,
    Local.CHANGED: Decision.CONFLICT,
    Local.ABSENT: Decision.PULL,
    Local.DELETED: Decision.PULL,
}
_AS_IT_WAS_ON_REMOTE = {
    Local.SAME: Decision.NOTHING,
    Local.CHANGED: Decision.PUSH,
    Local.ABSENT: Decision.PULL,
    Local.DELETED: Decision.DELETE_REMOTE,
}
# A file at a path whose content never came here was not made from that content.
_NEVER_HYDRATED = _AS_IT_WAS_ON_REMOTE | {
    Local.CHANGED: Decision.CONFLICT,
    Local.ABSENT: Decision.NOTHING,
}


def remote_changed(known: Known | None, entry: Entry | None) -> bool:
    """Say whether the remote is not what the base knows.

    Where both have a SHA-256 it decides alone, otherwise size and time of modification do.
    """
    if known is None or entry is None:
        return (known is None) != (entry is None)
    if known.sha256 and entry.sha256:
        return known.sha256 != entry.sha256
    return (known.size, known.modified) != (entry.size, entry.last_modified)


def decide(
    local: Local, local_sha256: str | None, known: Known | None, entry: Entry | None
) -> Decision:
    """Decide what to do about one path. `local_sha256` is needed when the file is CHANGED."""
    if local is Local.CHANGED and local_sha256 is not None:
        if entry is not None and local_sha256 == entry.sha256:
            return Decision.ADOPT
        if known is not None and local_sha256 == known.sha256:
            local = Local.SAME
    return _rules(known, entry)[local]


def _rules(known: Known | None, entry: Entry | None) -> dict[Local, Decision]:
    if entry is None:
        return _NOWHERE_ELSE if known is None else _GONE_FROM_REMOTE
    if known is None or remote_changed(known, entry):
        return _NEW_ON_REMOTE
    return _NEVER_HYDRATED if known.held is None else _AS_IT_WAS_ON_REMOTE
