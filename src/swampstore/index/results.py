"""What a sync did, or would do, in numbers and names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec


class Conflict(NamedTuple):
    """Two sides changed one thing; `outcome` says in one sentence how both were kept."""

    rel: str
    outcome: str


class Skipped(NamedTuple):
    """Something of the remote that was left alone, and why."""

    rel: str
    reason: str


class _Transferred(msgspec.Struct, frozen=True):
    files: int = 0
    bytes: int = 0
    deleted: int = 0
    conflicts: tuple[Conflict, ...] = ()
    skipped: tuple[Skipped, ...] = ()

    @property
    def changes(self) -> int:
        """Files written and removed."""
        return self.files + self.deleted


class Pushed(_Transferred, frozen=True):
    """What a push did to the remote."""


class Pulled(_Transferred, frozen=True):
    """What a pull did to the cache; `left` are paths that somebody changed here meanwhile."""

    left: int = 0

    @property
    def is_partial(self) -> bool:
        """Whether something of others is not here before ours makes room for it."""
        return bool(self.conflicts) or self.left > 0


class Preview(msgspec.Struct, frozen=True):
    """What a sync would do, by path; `conflicts` would be settled without loss."""

    push: tuple[str, ...] = ()
    delete_remote: tuple[str, ...] = ()
    pull: tuple[str, ...] = ()
    delete_local: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()
    push_bytes: int = 0
    pull_bytes: int = 0


class SyncCapabilities(msgspec.Struct, frozen=True):
    """What a sync service can do; hosts ask before they rely on it."""

    scoped_sync: bool = True
    lazy_hydration: bool = True
    namespaced_sync: bool = True
    two_phase_sync: bool = True
    control_plane: bool = False


class Step(NamedTuple):
    """How far a long operation is. `total` numbers are what is known so far.

    `files` counts what `unit` says; parts of a job that say nothing to people are `tasks`.
    """

    phase: str
    files: int
    total_files: int
    bytes: int
    total_bytes: int
    unit: str = "objects"


Progress = Callable[[Step], None]


def no_progress(step: Step) -> None:
    """Tell nobody."""


class SyncStatus(msgspec.Struct, frozen=True):
    """How a cache stands to its remote, without asking the remote anything.

    `content_bytes` is the size of the content that is here and could be fetched again.
    """

    identity: str
    namespace: str
    cache_dir: str
    files: int
    bytes: int
    not_hydrated: int
    content_bytes: int
    dirty_paths: tuple[str, ...]
    needs_full_walk: bool
    index_version: int | None
    commit_seq: int | None
    last_verified: str | None
    extra: Mapping[str, str] = msgspec.field(default_factory=dict)
