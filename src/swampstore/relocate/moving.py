"""Moving a datastore to another place: copy, and later remove what is surely safe there.

Both can be stopped anywhere and done again. A version is recognised by the id in its metadata,
so one that got another number at its destination is neither copied twice nor left behind. What
is at the destination already is only replaced if it is safe elsewhere, too; a version that others
have appended to there since stays as they made it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from swampstore.artifacts.latest import latest_of, marker_content, wins
from swampstore.artifacts.metadata import decode, encode
from swampstore.artifacts.versions import marker_at
from swampstore.files import (
    disk_errors,
    read_file,
    replace_file,
    replacing,
    sync_filesystem,
    temp_beside,
)
from swampstore.files.signature import signature
from swampstore.index.path_kinds import is_marker, is_metadata, version_file
from swampstore.index.results import Progress, Step
from swampstore.layout import METADATA, is_internal, parse_version
from swampstore.relocate.destinations import Cache, Destination, Moved
from swampstore.relocate.pairs import Directory, Look, Pairs, begins_with, is_damaged, names_in
from swampstore.relocate.removing import Removed, remove_safe
from swampstore.sync.hashing import hash_file

# Other disks, file systems without links, and files of others.
_NO_LINKS = frozenset(
    {errno.EXDEV, errno.EPERM, errno.EACCES, errno.EMLINK, errno.ENOTSUP, errno.ENOSYS}
)


@dataclass(slots=True)
class Copied:
    """What a copy did; `kept` could not go where something else is, `unfinished` must not go.

    Neither must versions that are `hollow`, their content is not here, or `damaged`.
    """

    files: int = 0
    bytes: int = 0
    directories: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    unfinished: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    special: list[str] = field(default_factory=list)
    hollow: list[str] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)

    def add(self, files: int, size: int, progress: Progress) -> None:
        """Count files that were copied."""
        self.files += files
        self.bytes += size
        progress(Step("copy", self.files, self.files, self.bytes, self.bytes))


class Relocation:
    """The files of one datastore, `source`, on their way to another one.

    With `may_link` they are given up afterwards, and are linked where the file system can.
    """

    def __init__(
        self,
        source: str,
        destination: Destination,
        subdirs: tuple[str, ...],
        *,
        may_link: bool = False,
    ) -> None:
        self._pairs = Pairs(source, destination)
        self._path = self._pairs.path
        self._to = destination
        self._subdirs = subdirs
        self._may_link = may_link
        # Versions that the destination has: what made room for others comes back with a pull.
        self._to_come_back: set[str] = set()

    def copy(self, progress: Progress, *, durable: bool = True) -> Copied:
        """Copy everything that may leave; what is there already, unchanged, is skipped."""
        copied = Copied()
        for subdir in self._subdirs:
            before = copied.files
            for directory in self._pairs.walk(subdir):
                if not directory.is_version:
                    self._copy_files(directory, copied, progress)
                elif not directory.is_finished:
                    copied.unfinished.append(directory.rel)
                elif not self._pairs.has_content(directory.rel):
                    copied.hollow.append(directory.rel)
                elif self._is_damaged(directory.rel):
                    copied.damaged.append(directory.rel)
                else:
                    self._copy_version(directory, copied, progress)
            if copied.files > before:
                copied.directories.append(subdir)
        if durable and os.path.isdir(self._to.names.root):
            with disk_errors(self._to.names.root):
                sync_filesystem(self._to.names.root)
        return copied

    def renew(self, progress: Progress) -> None:
        """Bring what was appended since to versions that the destination has, and nothing new."""
        copied = Copied()
        for directory in self._pairs.walk("data"):
            if directory.is_version and directory.is_finished:
                twin = self._pairs.twin(directory.rel)
                if twin is not None and self._pairs.has_content(directory.rel):
                    self._bring_end(directory, twin, copied, progress)

    @property
    def has_made_room(self) -> bool:
        """Whether versions that the destination has too were left out, until a pull has come."""
        return bool(self._to_come_back)

    def is_empty(self) -> bool:
        """Whether there are no files at all."""
        walks = (self._pairs.walk(subdir) for subdir in self._subdirs)
        return not any(directory.files for walk in walks for directory in walk)

    def nameless(self) -> Iterator[tuple[str, str]]:
        """Yield the files that the destination can hold nothing like, and why."""
        for subdir in self._subdirs:
            for directory in self._pairs.walk(subdir):
                for name in directory.files:
                    rel = f"{directory.rel}/{name}"
                    if not is_internal(rel) and (reason := self._to.names.why_no_name(rel)):
                        yield rel, reason

    def moved(self) -> Iterator[Moved]:
        """Yield every file that should be at the destination now, except markers.

        Those follow from the versions, and others may have moved them on already.
        """
        for subdir in self._subdirs:
            for directory in self._pairs.walk(subdir):
                look = self._pairs.look(directory)
                there = directory.rel
                if directory.is_version and look.rels and not look.is_linked:
                    there = self._pairs.twin(directory.rel) or there
                for rel in look.rels:
                    if not is_marker(rel):
                        with contextlib.suppress(FileNotFoundError):
                            yield self._moved(look, rel, there)

    def _moved(self, look: Look, rel: str, there: str) -> Moved:
        directory = look.directory
        if rel in look.linked and there == directory.rel:
            return Moved(rel, rel, None, is_linked=True)
        name = rel.rpartition("/")[2]
        has_changed = name == METADATA and there != directory.rel
        has_changed |= directory.is_version and self._pairs.is_outgrown(directory.rel, there)
        return Moved(rel, f"{there}/{name}", None if has_changed else hash_file(self._path(rel))[0])

    def remove_safe(self) -> Removed:
        """Remove every file that its destination has."""
        return remove_safe(self._pairs, self._subdirs)

    def _is_damaged(self, version_rel: str) -> bool:
        """Whether content that is still to go to a remote is not what was saved."""
        if not isinstance(self._to, Cache) or os.path.lexists(self._to.names.local(version_rel)):
            return False
        return is_damaged(self._pairs.here, version_rel)

    # Copying ---------------------------------------------------------------------------------

    def _copy_files(self, directory: Directory, copied: Copied, progress: Progress) -> None:
        # Content before what speaks of it, as who appends does.
        for name in sorted(directory.files, key=METADATA.__eq__):
            rel = f"{directory.rel}/{name}"
            if self._to.names.why_not(rel):
                continue
            if is_marker(rel):
                self._copy_marker(rel, copied, progress)
            elif os.path.islink(self._path(rel)):
                copied.links.append(rel)
            elif signature(self._path(rel)) is None:
                copied.special.append(rel)
            else:
                self._copy_file(rel, copied, progress)

    def _copy_version(self, directory: Directory, copied: Copied, progress: Progress) -> None:
        rel = directory.rel
        if rel in self._to_come_back:
            return
        twin = self._pairs.twin(rel)
        if twin is not None and self._bring_end(directory, twin, copied, progress):
            return
        # If each side was appended to, the next push gives ours another number.
        if os.path.lexists(self._to.names.local(rel)):
            held = self._pairs.held_at(rel)
            if not self._to.release(rel):
                copied.kept.append(rel)
                return
            self._to_come_back |= held
            shutil.rmtree(self._to.names.local(rel))
        self._copy_whole(directory, copied, progress)

    def _bring_end(
        self, directory: Directory, twin: str, copied: Copied, progress: Progress
    ) -> bool:
        """Let the destination have what was appended to a version; False if it has another end."""
        rel = directory.rel
        if not self._pairs.is_there(rel, twin):
            return False
        if self._pairs.is_outgrown(rel, twin):
            return True
        if self._is_apart(rel, twin):
            return False
        if twin == rel:
            self._copy_files(directory, copied, progress)
        elif self._pairs.outgrows(rel, twin):
            self._copy_numbered(rel, twin, copied, progress)
        return True

    def _copy_numbered(self, rel: str, twin: str, copied: Copied, progress: Progress) -> None:
        """Bring content, then metadata, to where the version has another number."""
        source, target = self._pairs.contents(rel, twin)
        with disk_errors(target):
            if not _is_same(source, target):
                with replacing(target, durable=False) as temp:
                    copied.add(1, self._bring(source, temp), progress)
            path = self._path(f"{rel}/{METADATA}")
            metadata = replace(decode(read_file(path) or b"", path), version=_number(twin))
            data = encode(metadata)
            _write(self._to.names.local(f"{twin}/{METADATA}"), data)
        copied.add(1, len(data), progress)

    def _copy_whole(self, directory: Directory, copied: Copied, progress: Progress) -> None:
        """Copy a version so that it appears in one step: half of one could meet half of another."""
        target = self._to.names.local(directory.rel)
        temp = temp_beside(target)
        with disk_errors(target):
            try:
                os.makedirs(temp)
                sizes = [
                    self._bring(self._path(f"{directory.rel}/{name}"), f"{temp}/{name}")
                    for name in directory.files
                    if not self._to.names.why_not(f"{directory.rel}/{name}")
                ]
                os.rename(temp, target)
            except BaseException:
                shutil.rmtree(temp, ignore_errors=True)
                raise
        copied.add(len(sizes), sum(sizes), progress)

    def _is_apart(self, version_rel: str, twin: str) -> bool:
        """Whether content of the same version is there that ours does not go on."""
        ours, theirs = self._pairs.contents(version_rel, twin)
        if not os.path.lexists(theirs) or _is_same(ours, theirs):
            return False
        return not begins_with(ours, theirs)

    def _bring(self, source: str, target: str) -> int:
        """Link or copy a file to where there is none, with its time; return its size.

        What is linked elsewhere already may be somebody's copy, which must not change with ours.
        """
        status = os.lstat(source)
        if self._may_link and stat.S_ISREG(status.st_mode) and status.st_nlink == 1:
            try:
                os.link(source, target, follow_symlinks=False)
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
            else:
                return status.st_size
        return _copy_bytes(source, target)

    def _copy_file(self, rel: str, copied: Copied, progress: Progress) -> None:
        source, target = self._path(rel), self._to.names.local(rel)
        if _is_same(source, target) and not self._must_part(rel):
            return
        is_update = version_file(rel) is not None and self._may_update(rel)
        if not is_update and not self._to.release(rel) and not begins_with(source, target):
            copied.kept.append(rel)
            return
        with disk_errors(target):
            os.makedirs(os.path.dirname(target), exist_ok=True)
            with replacing(target, durable=False) as temp:
                size = self._bring(source, temp)
        copied.add(1, size, progress)

    def _may_update(self, rel: str) -> bool:
        """Whether the destination may have a file of the same version as it is here."""
        if self._to.may_update(rel):
            return True
        version_rel = rel.rpartition("/")[0]
        return is_metadata(rel) and self._pairs.outgrows(version_rel, version_rel)

    def _must_part(self, rel: str) -> bool:
        """Whether a file is the same one here and there, and stays in both places.

        A setup that was stopped has linked it. What is appended to one must not change the other.
        """
        return not self._may_link and self._pairs.one_file(rel) is not None

    def _copy_marker(self, rel: str, copied: Copied, progress: Progress) -> None:
        """Let the higher marker stand: that version was copied, or is there already."""
        target = self._to.names.local(rel)
        with disk_errors(target):
            ours, theirs = self._latest(rel), marker_at(target) or 0
            if not wins(ours, theirs):
                return
            content = marker_content(ours)
            _write(target, content)
        copied.add(1, len(content), progress)

    def _latest(self, rel: str) -> int:
        """Return what a marker says; if that version stays behind, the highest below it."""
        named = marker_at(self._path(rel)) or 0
        name_rel = rel.rpartition("/")[0]
        if not os.path.lexists(self._path(f"{name_rel}/{named}")):
            return named
        found = (parse_version(one) for one in names_in(self._path(name_rel)))
        return latest_of(
            (one for one in found if one),
            lambda one: self._pairs.has_content(f"{name_rel}/{one}"),
            marker=named,
        )


def _is_same(source: str, target: str) -> bool:
    ours, theirs = signature(source), signature(target)
    if ours is None or theirs is None or ours.size != theirs.size:
        return False
    return ours.mtime_ns == theirs.mtime_ns or hash_file(source)[0] == hash_file(target)[0]


def _copy_bytes(source: str, target: str) -> int:
    """Copy a file to where there is none, with its time of change; return its size."""
    shutil.copyfile(source, target, follow_symlinks=False)
    status = os.stat(source)
    os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))
    return os.stat(target).st_size


def _number(version_rel: str) -> int:
    return int(version_rel.rpartition("/")[2])


def _write(target: str, data: bytes) -> None:
    os.makedirs(os.path.dirname(target), exist_ok=True)
    replace_file(target, data, durable=False)
