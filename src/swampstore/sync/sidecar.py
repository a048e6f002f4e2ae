"""The sidecar: what every client of a cache reads, and may write, about its unpushed changes.

Other clients rewrite the whole file from memory, without a lock, and drop members they do not
know. So nothing here is the only record of our own marks (the journal is), but whatever others
say in it counts, and whatever we say is said in their words.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Callable, Container, Iterable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple, TypeGuard

from swampstore.files import read_file, replace_file
from swampstore.formats import LARGEST_NUMBER, NEWEST, refuse_newer
from swampstore.layout import SIDECAR, SIDECAR_CHAIN

# Other clients stop listing paths here, and walk everything instead.
MAX_PATHS = 200

# Beside bulkInvalidated: it only says that there are more than MAX_PATHS, which are all in our
# journal. The member others have for this makes them delete remote files they never held.
_OVERFLOW = "swampstoreOverflow"
# The same value for as long as only our own writes follow one another.
_CHAIN = SIDECAR_CHAIN
# Listed paths at which nothing was removed. The journal says so as well, as long as it is there.
_WRITTEN = "swampstoreWritten"
_ORDER = (
    "lastVerifiedAt",
    "localDirty",
    "dirtyPaths",
    "bulkInvalidated",
    "lazyPullActive",
    "dirtyPathsOverflowed",
    "lastCatalogHash",
    "dataKeyMigrated",
    "commitSeq",
)


class SidecarState(NamedTuple):
    """What a sidecar says. The defaults are those of one that is missing or unreadable.

    `is_trusted`: it could be read, and lists paths at all. `has_overflowed`: everything is
    invalidated only because of our own marks, which the journal has. `written`: the dirty paths at
    which something was written and nothing removed. `others`: all members that have no field here,
    kept as they are.
    """

    is_trusted: bool = False
    fingerprint: str = ""
    last_verified_at: str = ""
    local_dirty: bool = True
    dirty_paths: tuple[str, ...] = ()
    written: frozenset[str] = frozenset()
    bulk_invalidated: bool = True
    lazy_pull_active: bool = False
    commit_seq: int | None = None
    has_overflowed: bool = False
    chain: str | None = None
    others: Mapping[str, Any] = MappingProxyType({})

    @property
    def must_walk(self) -> bool:
        """Whether it takes a look at every file to find out what it speaks of."""
        if self.bulk_invalidated:
            return not self.has_overflowed
        return self.local_dirty and not self.dirty_paths

    @property
    def foreign_marks(self) -> tuple[str, ...]:
        """What another program has marked, if one wrote this last; "*" stands for everything."""
        if self.chain is not None or self == SidecarState():
            return ()
        return ("*",) if self.must_walk else self.dirty_paths

    @property
    def is_clean(self) -> bool:
        """Whether nothing at all is waiting. What others left behind half-cleared is waiting."""
        return not (self.local_dirty or self.dirty_paths or self.bulk_invalidated)

    def marked(self, paths: Iterable[str], removed: Container[str] = ()) -> SidecarState:
        """Return this with more paths; those beyond the limit turn into an overflow.

        At those of them that are `removed`, something may be missing because it was deleted.
        """
        listed = set(self.dirty_paths)
        new = [path for path in paths if path not in listed]
        room = max(MAX_PATHS - len(self.dirty_paths), 0)
        # An unknown amount of older work stays one, however exact the new marks are.
        bulk = self.bulk_invalidated or self.must_walk or len(new) > room
        return self._replace(
            local_dirty=True,
            dirty_paths=(*self.dirty_paths, *new[:room]),
            written=frozenset(path for path in (*self.written, *new[:room]) if path not in removed),
            bulk_invalidated=bulk,
            has_overflowed=bulk and not self.must_walk,
        )

    def invalidated(self) -> SidecarState:
        """Return this with everything to be looked at."""
        return self._replace(local_dirty=True, bulk_invalidated=True, has_overflowed=False)

    def without(self, paths: Container[str], *, walked: bool) -> SidecarState:
        """Return this without some paths and, after a full walk, without any invalidation."""
        left = tuple(path for path in self.dirty_paths if path not in paths)
        bulk = not walked and (self.bulk_invalidated or self.must_walk)
        others = dict(self.others)
        if walked:
            others.pop("dirtyPathsOverflowed", None)
        return self._replace(
            # A client that finds this false skips its push, even if it was told of a change
            # meanwhile and wrote nothing down because everything was invalidated already.
            local_dirty=bool(left) or bulk,
            dirty_paths=left,
            written=self.written.intersection(left),
            bulk_invalidated=bulk,
            has_overflowed=bulk and self.has_overflowed,
            others=others,
        )


def decode(data: bytes | None, fingerprint_member: str, what: str = SIDECAR) -> SidecarState:
    """Return what a sidecar says; anything but a sound one of the current version is untrusted.

    Raises NewerFormatError.
    """
    members = _members(data)
    refuse_newer("sidecar", members.get("version"), what)
    fingerprint, verified_at = members.pop(fingerprint_member, None), members.get("lastVerifiedAt")
    version, is_dirty = members.pop("version", None), members.get("localDirty")
    if not (isinstance(fingerprint, str) and isinstance(verified_at, str)):
        return SidecarState()
    if isinstance(version, bool) or version not in (1, 2) or not isinstance(is_dirty, bool):
        return SidecarState()
    paths, bulk = members.get("dirtyPaths", []), members.get("bulkInvalidated", False)
    is_sound = isinstance(paths, list) and all(isinstance(path, str) for path in paths)
    is_trusted = version == 2 and is_sound and isinstance(bulk, bool)
    sequence, chain = members.get("commitSeq"), members.pop(_CHAIN, None)
    has_overflowed, written = members.pop(_OVERFLOW, None) is True, members.pop(_WRITTEN, None)
    return SidecarState(
        is_trusted=is_trusted,
        fingerprint=fingerprint,
        last_verified_at=verified_at,
        local_dirty=is_dirty or not is_trusted,
        dirty_paths=tuple(paths) if is_sound else (),
        written=frozenset(paths).intersection(_texts(written)) if is_sound else frozenset(),
        bulk_invalidated=bulk is True or not is_trusted,
        lazy_pull_active=members.get("lazyPullActive") is True,
        commit_seq=sequence if _is_number(sequence) else None,
        has_overflowed=is_trusted and bulk and has_overflowed,
        chain=chain if isinstance(chain, str) and is_trusted else None,
        others={name: value for name, value in members.items() if name not in _FIELDS},
    )


_FIELDS = frozenset(_ORDER) - {"dirtyPathsOverflowed", "lastCatalogHash", "dataKeyMigrated"}


def _texts(value: object) -> list[str]:
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []


def _is_number(value: object) -> TypeGuard[int]:
    return type(value) is int and 0 < value <= LARGEST_NUMBER


def _members(data: bytes | None) -> dict[str, Any]:
    try:
        found = json.loads(data or b"", parse_float=_finite, parse_constant=_finite)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(text)  # it could not be written again
    return number


def encode(state: SidecarState, fingerprint_member: str) -> bytes:
    """Return the file that says what `state` says, in the members and the order others use."""
    members: dict[str, Any] = {
        **state.others,
        "lastVerifiedAt": state.last_verified_at,
        "localDirty": state.local_dirty,
        "dirtyPaths": state.dirty_paths,
        "bulkInvalidated": state.bulk_invalidated,
        "lazyPullActive": state.lazy_pull_active,
    }
    if state.commit_seq is not None:
        members["commitSeq"] = state.commit_seq
    document = {"version": NEWEST["sidecar"], fingerprint_member: state.fingerprint}
    document |= {name: members.pop(name) for name in _ORDER if name in members}
    document |= members
    if state.has_overflowed:
        document[_OVERFLOW] = True
    if state.written:
        document[_WRITTEN] = [path for path in state.dirty_paths if path in state.written]
    document[_CHAIN] = state.chain
    try:
        return json.dumps(document, indent=2, ensure_ascii=False).encode()
    except UnicodeEncodeError:  # a file name that is no UTF-8
        return json.dumps(document, indent=2).encode()


class _OvertakenError(Exception):
    """Somebody else has written the sidecar meanwhile."""


class Sidecar:
    """The sidecar file of one cache. Whoever updates it holds the lock of the marks."""

    def __init__(self, path: str, fingerprint_member: str) -> None:
        self._path = path
        self._member = fingerprint_member
        self._known: tuple[bytes | None, SidecarState] = (None, SidecarState())

    def read(self) -> SidecarState:
        """Return what is on disk right now: the same object as before if nothing changed."""
        try:
            data = read_file(self._path)
        except OSError:
            data = None
        if data != self._known[0]:
            self._known = (data, decode(data, self._member, self._path))
        return self._known[1]

    def update(self, change: Callable[[SidecarState], SidecarState]) -> SidecarState:
        """Replace what is on disk right now by what `change` makes of it, and return that.

        If nothing changes, it is only rewritten when another client wrote it last. Other clients
        do not know our lock: a mark that one of them makes meanwhile is not written over.
        """
        while True:
            state = self.read()
            changed = change(state)
            if changed == state and state.chain is not None:
                return state
            changed = changed._replace(is_trusted=True, chain=state.chain or os.urandom(8).hex())
            data = encode(changed, self._member)
            with contextlib.suppress(_OvertakenError):
                replace_file(self._path, data, durable=False, check=partial(self._check, state))
                self._known = (data, changed)
                return changed

    def _check(self, seen: SidecarState) -> None:
        if self.read() is not seen:
            raise _OvertakenError
