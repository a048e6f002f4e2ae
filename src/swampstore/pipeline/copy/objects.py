"""Bringing one object from a store to another, and proving that it is there.

The source is believed only if size and hash are what its index says. The target is written only
where nothing is, or where what is there may make room; then it is read back. All of it can be
done twice, or by two at once: who comes second finds its own content.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from datetime import timedelta
from io import BufferedRandom
from typing import NamedTuple

from swampstore.artifacts.latest import parse_marker, wins
from swampstore.clock import Clock, to_iso
from swampstore.errors import DiskError
from swampstore.files import disk_errors
from swampstore.index.format import Entry
from swampstore.index.path_kinds import is_marker
from swampstore.pipeline.copy.outcomes import (
    CHANGED,
    CONFLICT,
    CORRUPT,
    MISSING,
    NOT_KEPT,
    Left,
    Outcome,
    Placed,
    Refused,
    Wanted,
    entry_there,
    may_replace,
    sealed,
)
from swampstore.pipeline.places import Place
from swampstore.stores.errors import (
    CorruptObjectError,
    ObjectNotFoundError,
    PreconditionFailedError,
)
from swampstore.stores.protocol import ObjectInfo, Store

# How often others may get in between while an object is replaced.
_ATTEMPTS = 3
_LONGEST_MARKER = 64


class Body(NamedTuple):
    """Content on its way: what the source has, in a temporary file."""

    file: BufferedRandom
    size: int
    sha256: str

    def read(self) -> bytes:
        """Return all of it."""
        return _content(self.file)


class _Found(NamedTuple):
    """What the target holds where the object should go."""

    info: ObjectInfo
    sha256: str
    marker: int


class ObjectCopier:
    """Copies single objects between two places; safe to call from many threads."""

    def __init__(
        self, source: Place, source_store: Store, target: Place, target_store: Store, clock: Clock
    ) -> None:
        self._source = source
        self._source_store = source_store
        self._source_names = source.names()
        self._target_store = target_store
        self._target_names = target.names()
        self._clock = clock
        # Some stores tell times in whole seconds.
        self._began = target_store.clock() + timedelta(seconds=1)

    # The source --------------------------------------------------------------------------------

    def fetch(self, wanted: Wanted, file: BufferedRandom) -> Body | Refused:
        """Bring one object into a file; one that is not what was announced is refused."""
        key = self._source_names.remote(wanted.rel)
        try:
            info = self._source_store.download(
                key,
                file.fileno(),
                size=wanted.size if wanted.etag is None else None,
                sha256=wanted.sha256,
            )
        except ObjectNotFoundError:
            return Refused(wanted, MISSING, "there is no such object any more")
        except CorruptObjectError as error:
            return Refused(wanted, CORRUPT, error.message)
        if wanted.etag is None and wanted.sha256 is not None:
            return Body(file, wanted.size, wanted.sha256)
        if wanted.etag not in (None, info.etag):
            return Refused(wanted, CHANGED, "it was written after it was listed")
        sha256, size = _digest(file)
        return Body(file, size, sha256)

    def is_as_listed(self, wanted: Wanted) -> bool:
        """Whether an object that no index tells of is still the one that was listed."""
        if wanted.etag is None:
            return True
        try:
            found = self._source_store.head(self._source_names.remote(wanted.rel))
        except ObjectNotFoundError:
            return False
        return found.etag == wanted.etag

    # The target --------------------------------------------------------------------------------

    def place(self, wanted: Wanted, body: Body) -> Outcome:
        """Put what was fetched in its place; what is in the way of that is told, not touched."""
        there = entry_there(wanted)
        if there is not None and (there.sha256, there.size) == (body.sha256, body.size):
            return Left(wanted)
        return self._place(wanted, body)

    def _place(self, wanted: Wanted, body: Body) -> Outcome:
        key = self._target_names.remote(wanted.rel)
        for _ in range(_ATTEMPTS):
            try:
                if self._may_just_create(wanted):
                    self._target_store.put_if_absent(key, body.file)
                    return self._checked(wanted, body, key)
            except PreconditionFailedError:
                pass
            found = self._look(key)
            if found is not None and found.sha256 == body.sha256:
                return self._placed(wanted, body, found.info)
            if found is not None and not self._makes_room(wanted, body, found):
                return self._refused(wanted, found)
            try:
                self._write(key, body, found)
            except PreconditionFailedError:
                continue
            return self._checked(wanted, body, key)
        return Refused(wanted, CONFLICT, "others keep writing it at the target")

    def _may_just_create(self, wanted: Wanted) -> bool:
        """Whether a single request can tell that nothing is there, and put it there."""
        able = self._target_store.capabilities
        return wanted.there is None and able.conditional_create

    def _makes_room(self, wanted: Wanted, body: Body, found: _Found) -> bool:
        if is_marker(wanted.rel):
            return wins(marker_of(body), found.marker)
        return may_replace(wanted, found.sha256, self._source)

    def _refused(self, wanted: Wanted, found: _Found) -> Outcome:
        if is_marker(wanted.rel):
            return Left(wanted)
        return Refused(wanted, CONFLICT, f"the target has other content: SHA-256 {found.sha256}")

    def _write(self, key: str, body: Body, found: _Found | None) -> None:
        """Write the object, on a condition if the store knows any."""
        able = self._target_store.capabilities
        if found is None and able.conditional_create:
            self._target_store.put_if_absent(key, body.file)
        elif found and found.info.token and able.conditional_update:
            self._target_store.put_if_match(key, body.file, found.info.token)
        else:
            self._target_store.put(key, body.file)

    def _look(self, key: str) -> _Found | None:
        with temporary() as file:
            try:
                info = self._target_store.download(key, file.fileno())
            except ObjectNotFoundError:
                return None
            sha256, size = _digest(file)
            return _Found(info, sha256, marker_of(Body(file, size, sha256)))

    def _checked(self, wanted: Wanted, body: Body, key: str) -> Outcome:
        """Read back what was written: a store that says yes has not proven anything."""
        with open(os.devnull, "wb") as nowhere:
            try:
                info = self._target_store.download(
                    key, nowhere.fileno(), size=body.size, sha256=body.sha256
                )
            except (CorruptObjectError, ObjectNotFoundError) as error:
                return Refused(wanted, NOT_KEPT, f"what was written is not there: {error.message}")
        return self._placed(wanted, body, info)

    def _placed(self, wanted: Wanted, body: Body, info: ObjectInfo) -> Placed:
        # Without an index there is no time of upload, so it is that of this copy.
        uploaded = wanted.last_modified if wanted.raw is not None else to_iso(self._clock())
        entry = Entry(
            size=body.size,
            last_modified=uploaded,
            sha256=body.sha256,
            local_mtime=wanted.local_mtime,
            like=sealed(wanted, body.sha256, self._source),
        )
        return Placed(wanted, entry, info.etag if info.last_modified < self._began else None)


def temporary() -> BufferedRandom:
    """Return a new temporary file, which is gone when it is closed; raise DiskError."""
    try:
        return tempfile.TemporaryFile()
    except OSError as error:
        raise DiskError(
            f"no temporary file can be made: {error.strerror}",
            hint="Make room in the temporary directory, or set TMPDIR to another one.",
        ) from error


def _digest(file: BufferedRandom) -> tuple[str, int]:
    with disk_errors("a temporary file"):
        file.seek(0)
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        return sha256, file.tell()


def _content(file: BufferedRandom) -> bytes:
    with disk_errors("a temporary file"):
        file.seek(0)
        return file.read()


def marker_of(body: Body) -> int:
    """Return the version that the content of a marker names, 0 if it names none."""
    if body.size > _LONGEST_MARKER:
        return 0
    return parse_marker(body.read()) or 0
