"""Backing up a datastore that is a directory.

Everything is read and sent while others go on working. Then every data name of this machine is
held for as long as it takes to look at all files once more, and what has changed meanwhile is read
again: that moment is what the backup shows. A directory that other machines use too is locked for
it.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import os
import stat
import tempfile
import time
from collections.abc import Container, Iterator
from typing import BinaryIO, NamedTuple

from swampstore.artifacts.latest import marker_content
from swampstore.artifacts.versions import marker_at
from swampstore.errors import SwampstoreError
from swampstore.files import disk_errors, read_file, write_all
from swampstore.files.signature import Signature, is_surely_unchanged, signature_of
from swampstore.index.path_kinds import is_marker
from swampstore.index.results import Progress, Step
from swampstore.index.workers import Deadline, in_parallel
from swampstore.layout import (
    DATASTORE_SUBDIRS,
    DEFERRED,
    METADATA,
    RAW,
    is_always_local,
    is_temp,
)
from swampstore.relocate.backup.format import FileEntry, LeftOut, Manifest, Origin, belongs
from swampstore.relocate.backup.place import Uploads
from swampstore.relocate.backup.units import (
    KEPT_APART,
    Collected,
    SourceDamagedError,
    check_complete,
    check_version,
    is_version,
    unit_rel,
)
from swampstore.sync.opening import OpenRepo

_CONCURRENCY = 8
_PIECE = 1 << 20
# What is larger is never in memory as a whole.
_IN_MEMORY = 1 << 20


class _Known(NamedTuple):
    """A file that was read, and a time before it was looked at."""

    entry: FileEntry
    looked_at_ns: int


class _Walk:
    """All files of a datastore, by what they are backed up with."""

    def __init__(self, repo: OpenRepo) -> None:
        self._tree = repo.tree
        self._may_be_elsewhere = repo.config.may_be_elsewhere
        self.units: dict[str, dict[str, Signature]] = {}
        self.left_out: list[LeftOut] = []
        self.skipped: list[LeftOut] = []
        self._unfinished: set[str] = set()
        for subdir in DATASTORE_SUBDIRS:
            if not is_always_local(subdir):
                for tier in dict.fromkeys((self._tree.base, self._tree.local)):
                    self._look(tier, subdir)
        self._drop_unfinished()

    def _look(self, tier: str, subdir: str) -> None:
        walk = os.walk(f"{tier}/{subdir}", onerror=self._unreadable)
        for where, subdirs, files in walk:
            rel = where.removeprefix(f"{tier}/")
            links = [name for name in subdirs if os.path.islink(f"{where}/{name}")]
            subdirs[:] = sorted(one for one in subdirs if one not in links and not is_temp(one))
            if DEFERRED in files:
                self._unfinished.add(rel)
            for name in (*files, *links):
                path = f"{rel}/{name}"
                if belongs(path) and self._tree.path(path) == f"{where}/{name}":
                    self._add(path, f"{where}/{name}")

    def _unreadable(self, error: OSError) -> None:
        """What is below must not be taken for nothing."""
        if not isinstance(error, FileNotFoundError):
            path = str(error.filename).removeprefix(f"{self._tree.base}/")
            self.left_out.append(LeftOut(path, error.strerror or str(error)))

    def _add(self, rel: str, path: str) -> None:
        try:
            found = os.lstat(path)
        except FileNotFoundError:
            return
        is_old_marker = stat.S_ISLNK(found.st_mode) and is_marker(rel)
        if stat.S_ISREG(found.st_mode) or is_old_marker:
            self.units.setdefault(unit_rel(rel), {})[rel] = signature_of(found)
        else:
            kind = "a link" if stat.S_ISLNK(found.st_mode) else "no regular file"
            self.skipped.append(LeftOut(rel, f"{kind}, which no datastore shares"))

    def _drop_unfinished(self) -> None:
        for unit, files in list(self.units.items()):
            is_begun = is_version(unit, files) and f"{unit}/{METADATA}" not in files
            if is_begun or unit in self._unfinished:
                del self.units[unit]
                self.skipped.append(LeftOut(unit, "never finished, or being written right now"))
            elif is_version(unit, files) and self._is_kept_apart(f"{unit}/{RAW}", files):
                del self.units[unit]
                self.skipped.append(LeftOut(unit, KEPT_APART))

    def _is_kept_apart(self, raw: str, files: Container[str]) -> bool:
        """Whether content is on another machine, which uses the directory as well."""
        return raw not in files and self._may_be_elsewhere(raw)


class LocalSource:
    """The files of a datastore that is used in place."""

    def __init__(
        self, repo: OpenRepo, previous: Manifest | None, uploads: Uploads, progress: Progress
    ) -> None:
        self._repo = repo
        self._tree = repo.tree
        self._uploads = uploads
        self._progress = progress
        self._files = self._bytes = 0
        self._known: dict[str, _Known] = {}
        if previous is not None:
            looked_at = previous.origin.looked_at_ns
            self._known = {file.path: _Known(file, looked_at) for file in previous.files}

    def collect(self) -> Collected:
        """Bring everything to the place; return what there was at one moment."""
        self._repo.ready()
        begun = self._now_ns()
        self._take(_Walk(self._repo), begun)
        with contextlib.ExitStack() as stack:
            if self._repo.config.is_shared_in_place:
                stack.enter_context(self._repo.locks.everything())
            stack.enter_context(self._repo.mutations.quiet())
            return self._take(_Walk(self._repo), begun)

    def _now_ns(self) -> int:
        """Return a time that whatever changes from now on is younger than, by any clock."""
        now = time.time_ns()
        if self._repo.config.is_shared_in_place:
            now = min(now, int(self._repo.locks.store.clock().timestamp() * 1e9))
        return now

    def _take(self, walk: _Walk, begun: int) -> Collected:
        config = self._repo.config
        collected = Collected(Origin(config.datastore_dir, looked_at_ns=begun))
        collected.left_out, collected.skipped = walk.left_out, walk.skipped
        self._files = self._bytes = 0
        changed: list[tuple[str, dict[str, Signature]]] = []
        for unit, files in walk.units.items():
            if entries := self._unchanged(files):
                self._count(entries)
                collected.files += entries
            else:
                changed.append((unit, files))
        taken = in_parallel(self._read_unit, changed, _CONCURRENCY, Deadline())
        for (unit, _), read, error in taken:
            entries = collected.settle(unit, read, error)
            self._known |= {one.path: _Known(one, begun) for one in entries}
            self._count(entries)
        return collected

    def _count(self, entries: list[FileEntry]) -> None:
        self._files += len(entries)
        self._bytes += sum(entry.size for entry in entries)
        self._progress(Step("backup", self._files, self._files, self._bytes, self._bytes))

    def _unchanged(self, files: dict[str, Signature]) -> list[FileEntry]:
        """Return the entries of a unit if all of it is known and there; none otherwise."""
        entries = []
        for rel, now in files.items():
            known = self._known.get(rel)
            held = known.entry.signature if known else None
            if known is None or held is None:
                return []
            if not is_surely_unchanged(held, now, known.looked_at_ns):
                return []
            if not self._uploads.has(known.entry.sha256, known.entry.size):
                return []
            entries.append(known.entry)
        return entries

    def _read_unit(self, task: tuple[str, dict[str, Signature]]) -> list[FileEntry]:
        """Read a unit and send it; nothing if it has vanished. Raises SourceDamagedError."""
        unit, files = task
        is_a_version = is_version(unit, files)
        try:
            if is_a_version:
                check_complete(unit, files)
            entries = [self._read(rel) for rel in files]
            if is_a_version:
                self._check(unit, entries)
        except FileNotFoundError:
            return []
        return entries

    def _check(self, unit: str, entries: list[FileEntry]) -> None:
        raw = next(entry for entry in entries if entry.path == f"{unit}/{RAW}")
        metadata = read_file(self._tree.path(f"{unit}/{METADATA}")) or b""
        check_version(unit, metadata, raw.sha256, raw.size)

    def _read(self, rel: str) -> FileEntry:
        path = self._tree.path(rel)
        if os.path.islink(path):
            named = marker_at(path)
            if named is None:
                raise SourceDamagedError("it is a link that names no version")
            return self._sent(rel, marker_content(named), signature_of(os.lstat(path)))
        fd = _opened(path)
        try:
            with _reading(path):
                before = signature_of(os.fstat(fd))
                if before.size <= _IN_MEMORY:
                    with os.fdopen(os.dup(fd), "rb") as file:
                        return self._sent(rel, file.read(), before)
                sha256 = _hash_to(fd, before.size, None)
                if not self._uploads.has(sha256, before.size):
                    sha256 = self._send_copy(fd, before.size)
            return FileEntry(rel, before.size, sha256, *before[1:])
        finally:
            os.close(fd)

    def _sent(self, rel: str, content: bytes, seen: Signature) -> FileEntry:
        sha256 = hashlib.sha256(content).hexdigest()
        self._uploads.put(sha256, len(content), content)
        return FileEntry(rel, len(content), sha256, *seen[1:])

    def _send_copy(self, fd: int, size: int) -> str:
        """Send what a large file holds now: others may add to it while it is sent."""
        with _temporary(self._repo.config.local_dir) as copy:
            sha256 = _hash_to(fd, size, copy)
            self._uploads.put(sha256, size, copy)
        return sha256


@contextlib.contextmanager
def _reading(path: str) -> Iterator[None]:
    """Tell what the disk says about a file of the source from what the place says."""
    try:
        yield
    except FileNotFoundError:
        raise
    except SwampstoreError:
        raise
    except OSError as error:
        raise SourceDamagedError(f"{path} cannot be read: {error.strerror or error}") from error


def _opened(path: str) -> int:
    # Without O_NONBLOCK, opening a FIFO would wait for somebody to write into it.
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        return os.open(path, flags)
    except NotADirectoryError as error:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from error
    except FileNotFoundError:
        raise
    except OSError as error:
        raise SourceDamagedError(f"{path} cannot be read: {error.strerror}") from error


def _temporary(directory: str) -> io.BufferedRandom:
    """Return a file without a name, which is gone when we are."""
    with disk_errors(directory):
        return tempfile.TemporaryFile(dir=directory)


def _hash_to(fd: int, size: int, copy: BinaryIO | None) -> str:
    """Return the hash of the first bytes of a file, and copy them if asked to."""
    digest, left = hashlib.sha256(), size
    os.lseek(fd, 0, os.SEEK_SET)
    while left and (piece := os.read(fd, min(left, _PIECE))):
        digest.update(piece)
        left -= len(piece)
        if copy is not None:
            # That a disk of ours is full says nothing about the source.
            with disk_errors("the copy of a large file in the repository"):
                write_all(copy.fileno(), piece)
    if left:
        raise SourceDamagedError(f"a file became shorter while it was read: {left} bytes less")
    return digest.hexdigest()
