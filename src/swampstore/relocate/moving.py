"""Moving a datastore to another place: copy, and later remove what is surely safe there.

Both can be stopped anywhere and done again. A version is recognised by the id in its metadata,
so one that got another number at its destination is neither copied twice nor left behind. What
is at the destination already is only replaced if it is safe elsewhere, too; a version that others
have appended to there since stays as they made it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from swampstore.artifacts.latest import latest_of, marker_content, wins
from swampstore.artifacts.versions import marker_at
from swampstore.errors import ContentDamagedError, YamlError
from swampstore.files import disk_errors, read_file, replace_file, replacing, temp_beside
from swampstore.files.signature import signature
from swampstore.index.path_kinds import is_marker, is_metadata, version_file
from swampstore.index.path_map import Names
from swampstore.index.results import Progress, Step
from swampstore.index.workers import Deadline, in_parallel
from swampstore.layout import CLAIM, DEFERRED, METADATA, RAW, is_internal, is_temp, parse_version
from swampstore.relocate.destinations import Cache, Destination, Moved
from swampstore.sync.complete import check_saved, is_content_here
from swampstore.sync.hashing import hash_file
from swampstore.yaml_dialect import load_mapping

_SEGMENTS_OF_A_VERSION = 5
_PIECE = 1 << 20
_REMOVERS = 8
# Versions of a name are looked at together, here and at their destination.
_REMEMBERED = 1024


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


class _Directory(NamedTuple):
    rel: str
    subdirs: list[str]
    files: list[str]

    @property
    def is_version(self) -> bool:
        segments = self.rel.split("/")
        return (
            not self.subdirs
            and segments[0] == "data"
            and len(segments) >= _SEGMENTS_OF_A_VERSION
            and parse_version(segments[-1]) is not None
        )

    @property
    def is_finished(self) -> bool:
        return METADATA in self.files and DEFERRED not in self.files


class _Removal(NamedTuple):
    directory: _Directory
    safe: list[str]


class Removed(NamedTuple):
    """How many files were removed, and which are left because they are not safe yet."""

    files: int
    left: list[str]


class Relocation:
    """The files of one datastore, `source`, on their way to another one."""

    def __init__(self, source: str, destination: Destination, subdirs: tuple[str, ...]) -> None:
        self._source = source
        self._to = destination
        self._subdirs = subdirs
        self._ids: tuple[str, dict[str, list[str]]] = ("", {})

    def copy(self, progress: Progress, *, durable: bool = True) -> Copied:
        """Copy everything that may leave; what is there already, unchanged, is skipped."""
        copied = Copied()
        self._ids = ("", {})
        for subdir in self._subdirs:
            before = copied.files
            for directory in self._walk(subdir):
                if not directory.is_version:
                    self._copy_files(directory, copied, progress)
                elif not directory.is_finished:
                    copied.unfinished.append(directory.rel)
                elif not self._has_content(directory.rel):
                    copied.hollow.append(directory.rel)
                elif self._is_damaged(directory.rel):
                    copied.damaged.append(directory.rel)
                else:
                    self._copy_version(directory, copied, progress)
            if copied.files > before:
                copied.directories.append(subdir)
        copied.unfinished.sort()  # directories come in whatever order the disk has them
        copied.hollow.sort()
        copied.damaged.sort()
        if durable:
            os.sync()
        return copied

    def nameless(self) -> Iterator[tuple[str, str]]:
        """Yield the files that the destination can hold nothing like, and why."""
        for subdir in self._subdirs:
            for directory in self._walk(subdir):
                for name in directory.files:
                    rel = f"{directory.rel}/{name}"
                    if not is_internal(rel) and (reason := self._to.names.why_no_name(rel)):
                        yield rel, reason

    def moved(self) -> Iterator[Moved]:
        """Yield every file that should be at the destination now, except markers.

        Those follow from the versions, and others may have moved them on already.
        """
        self._ids = ("", {})
        for subdir in self._subdirs:
            for directory in self._walk(subdir):
                there = directory.rel
                if directory.is_version:
                    there = self._twin(directory.rel) or there
                for rel in self._payload(directory):
                    if is_marker(rel):
                        continue
                    name = rel.rpartition("/")[2]
                    has_changed = name == METADATA and there != directory.rel
                    has_changed |= directory.is_version and self._is_outgrown(directory.rel, there)
                    with contextlib.suppress(FileNotFoundError):
                        sha256 = None if has_changed else hash_file(self._path(rel))[0]
                        yield Moved(rel, f"{there}/{name}", sha256)

    def _payload(self, directory: _Directory) -> list[str]:
        """Return the files of a directory that move: no links, of versions whole ones only."""
        is_whole = directory.is_finished and self._has_content(directory.rel)
        if directory.is_version and not is_whole:
            return []
        rels = (f"{directory.rel}/{name}" for name in directory.files)
        return [rel for rel in rels if not self._to.names.why_not(rel) and self._may_move(rel)]

    def _has_content(self, version_rel: str) -> bool:
        here = Names(self._source, "", self._to.names.routing)
        return is_content_here(here, version_rel)

    def _is_damaged(self, version_rel: str) -> bool:
        """Whether content that is still to go to a remote is not what was saved."""
        if not isinstance(self._to, Cache) or os.path.lexists(self._to.names.local(version_rel)):
            return False
        raw, here = f"{version_rel}/{RAW}", Names(self._source, "", self._to.names.routing)
        try:
            sha256, found = hash_file(self._path(raw))
            check_saved(here, raw, sha256, found.size)
        except ContentDamagedError:
            return True
        return False

    def _may_move(self, rel: str) -> bool:
        return is_marker(rel) or signature(self._path(rel)) is not None

    def remove_safe(self) -> Removed:
        """Remove every file that its destination has."""
        above: list[_Directory] = []
        self._ids = ("", {})
        removed = self._remove(self._versions_or(above), Removed(0, []))
        # Markers go when the versions that they name are gone, directories when they are empty.
        removed = self._remove(above, removed)
        for directory in above:
            self._remove_empty(directory)
        return removed

    def _versions_or(self, above: list[_Directory]) -> Iterator[_Directory]:
        """Yield the directories of versions; the others are added to `above`, lower ones first."""
        for subdir in self._subdirs:
            for directory in self._walk(subdir):
                if directory.is_version:
                    yield directory
                else:
                    above.append(directory)

    def _remove(self, directories: Iterable[_Directory], removed: Removed) -> Removed:
        """Remove what may go from these directories; a disk removes many files at once."""
        left: list[str] = []

        def removals() -> Iterator[_Removal]:
            for directory in directories:
                payload = self._payload(directory)
                safe = self._safe(directory, payload)
                left.extend(sorted(set(payload) - set(safe)))
                yield _Removal(directory, safe)

        done = in_parallel(self._remove_files, removals(), _REMOVERS, Deadline())
        files = sum(len(task.safe) for task, _, _ in done)
        return Removed(removed.files + files, removed.left + left)

    def _remove_files(self, removal: _Removal) -> None:
        directory, safe = removal
        if directory.is_version and safe and CLAIM in directory.files:
            # Its writer was killed after the commit. Left alone, it would keep the number.
            os.unlink(self._path(f"{directory.rel}/{CLAIM}"))
        # With its metadata, a version that we are interrupted at is recognised again.
        for rel in sorted(safe, key=is_metadata):
            os.unlink(self._path(rel))
        self._remove_empty(directory)

    def _remove_empty(self, directory: _Directory) -> None:
        if directory.rel not in self._subdirs:
            with contextlib.suppress(OSError):
                os.rmdir(self._path(directory.rel))

    def _path(self, rel: str) -> str:
        return f"{self._source}/{rel}"

    def _walk(self, subdir: str) -> Iterator[_Directory]:
        """Yield every directory after those below it."""
        top = self._path(subdir)
        with disk_errors(top):
            for where, subdirs, files in os.walk(top, topdown=False, onerror=_raise):
                rel = where.removeprefix(f"{self._source}/")
                if any(map(is_temp, rel.split("/"))):
                    continue
                # A link to a directory is listed as one; as a marker, it is a file to us.
                links = [name for name in subdirs if os.path.islink(f"{where}/{name}")]
                real = [name for name in subdirs if name not in links and not is_temp(name)]
                yield _Directory(rel, sorted(real), sorted([*files, *links]))

    # Copying ---------------------------------------------------------------------------------

    def _copy_files(self, directory: _Directory, copied: Copied, progress: Progress) -> None:
        for name in directory.files:
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

    def _copy_version(self, directory: _Directory, copied: Copied, progress: Progress) -> None:
        rel = directory.rel
        twin = self._twin(rel)
        if twin is not None and (twin != rel or self._is_outgrown(rel, twin)):
            return
        if twin is not None and self._is_apart(rel):
            twin = None  # each side was appended to: the next push gives ours another number
        if twin is None and os.path.lexists(self._to.names.local(rel)):
            if not self._to.release(rel):
                copied.kept.append(rel)
                return
            shutil.rmtree(self._to.names.local(rel))
        if twin is None:
            self._copy_whole(directory, copied, progress)
        else:
            self._copy_files(directory, copied, progress)

    def _copy_whole(self, directory: _Directory, copied: Copied, progress: Progress) -> None:
        """Copy a version so that it appears in one step: half of one could meet half of another."""
        target = self._to.names.local(directory.rel)
        temp = temp_beside(target)
        with disk_errors(target):
            try:
                os.makedirs(temp)
                sizes = [
                    _copy_bytes(self._path(f"{directory.rel}/{name}"), f"{temp}/{name}")
                    for name in directory.files
                    if not self._to.names.why_not(f"{directory.rel}/{name}")
                ]
                os.rename(temp, target)
            except BaseException:
                shutil.rmtree(temp, ignore_errors=True)
                raise
        copied.add(len(sizes), sum(sizes), progress)

    def _twin(self, version_rel: str) -> str | None:
        """Return the version at the destination that has the id of ours.

        Of several, which were appended to apart from each other, it is the one that goes on ours.
        """
        name_rel = version_rel.rpartition("/")[0]
        if self._ids[0] != name_rel:
            self._ids = (name_rel, _ids_in(self._to.names.local(name_rel)))
        numbers = self._ids[1].get(_version_id(self._path(version_rel)), [])
        twins = [f"{name_rel}/{number}" for number in numbers]
        if len(twins) < 2:
            return twins[0] if twins else None
        ours = self._path(f"{version_rel}/{RAW}")
        raws = {twin: self._to.names.local(f"{twin}/{RAW}") for twin in twins}
        return next((twin for twin, raw in raws.items() if _begins_with(raw, ours)), twins[-1])

    def _is_outgrown(self, version_rel: str, twin: str) -> bool:
        """Whether the destination has the content of ours, and others appended to it there."""
        ours, theirs = self._contents(version_rel, twin)
        return _size(theirs) > _size(ours) and _begins_with(theirs, ours)

    def _is_apart(self, version_rel: str) -> bool:
        """Whether content of the same version is there of which neither goes on the other."""
        ours, theirs = self._contents(version_rel, version_rel)
        if not os.path.lexists(theirs) or _is_same(ours, theirs):
            return False
        return not _begins_with(ours, theirs)

    def _contents(self, version_rel: str, twin: str) -> tuple[str, str]:
        return self._path(f"{version_rel}/{RAW}"), self._to.names.local(f"{twin}/{RAW}")

    def _copy_file(self, rel: str, copied: Copied, progress: Progress) -> None:
        source, target = self._path(rel), self._to.names.local(rel)
        if _is_same(source, target):
            return
        is_update = version_file(rel) is not None and self._to.may_update(rel)
        if not is_update and not self._to.release(rel) and not _begins_with(source, target):
            copied.kept.append(rel)
            return
        with disk_errors(target):
            size = _copy(source, target)
        copied.add(1, size, progress)

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
        found = (parse_version(one) for one in _names_in(self._path(name_rel)))
        return latest_of(
            (one for one in found if one),
            lambda one: self._has_content(f"{name_rel}/{one}"),
            marker=named,
        )

    # Removing --------------------------------------------------------------------------------

    def _safe(self, directory: _Directory, payload: list[str]) -> list[str]:
        """Return the files of a directory that may go."""
        if not directory.is_version:
            return [rel for rel in payload if self._is_safe(rel)]
        twin = self._twin(directory.rel)
        if twin is None:
            return []
        is_outgrown = self._is_outgrown(directory.rel, twin)
        contents: dict[str, str | None] = {f"{twin}/{METADATA}": None}
        for rel in payload:
            name = rel.rpartition("/")[2]
            there = f"{twin}/{name}"
            held = self._to.names.local(there) if is_outgrown else self._path(rel)
            if name != METADATA or twin == directory.rel:
                contents[there] = hash_file(held)[0]
        return payload if self._to.has_all(contents) else []

    def _is_safe(self, rel: str) -> bool:
        if is_marker(rel):
            # It says nothing without versions, and those were looked at before.
            name = self._path(os.path.dirname(rel))
            return not any(os.path.lexists(f"{name}/{one}/{METADATA}") for one in _names_in(name))
        return self._to.has_all({rel: hash_file(self._path(rel))[0]})


def _raise(error: OSError) -> None:
    """Stop at a directory that cannot be read: what is below must not be taken for nothing."""
    if isinstance(error, FileNotFoundError):
        return
    raise error


def _names_in(path: str) -> list[str]:
    with disk_errors(path):
        try:
            return sorted(os.listdir(path))
        except FileNotFoundError:
            return []


def _ids_in(name_path: str) -> dict[str, list[str]]:
    """Return the numbers of the versions of a data name by their ids, the lowest first."""
    numbers = [name for name in _names_in(name_path) if parse_version(name)]
    ids: dict[str, list[str]] = {}
    for number in sorted(numbers, key=int):
        if found := _version_id(f"{name_path}/{number}"):
            ids.setdefault(found, []).append(number)
    return ids


def _size(path: str) -> int:
    found = signature(path)
    return found.size if found else -1


def _begins_with(path: str, beginning: str) -> bool:
    """Whether a file holds what another one holds, and perhaps more after it."""
    if not 0 <= _size(beginning) <= _size(path):
        return False
    with disk_errors(path), open(path, "rb") as longer, open(beginning, "rb") as shorter:
        while piece := shorter.read(_PIECE):
            if longer.read(len(piece)) != piece:
                return False
    return True


def _version_id(path: str) -> str:
    """Return the id of the version in a directory, an empty text if there is none."""
    with disk_errors(path):
        data = read_file(f"{path}/{METADATA}") or b""
    return _id_in(data) if data else ""


@lru_cache(maxsize=_REMEMBERED)
def _id_in(metadata: bytes) -> str:
    try:
        return str(load_mapping(metadata, what=METADATA).get("id"))
    except YamlError:
        return metadata.decode("utf-8", "replace")


def _is_same(source: str, target: str) -> bool:
    ours, theirs = signature(source), signature(target)
    if ours is None or theirs is None or ours.size != theirs.size:
        return False
    return ours.mtime_ns == theirs.mtime_ns or hash_file(source)[0] == hash_file(target)[0]


def _copy(source: str, target: str) -> int:
    """Copy a file with its time of change, in one step; return its size."""
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with replacing(target, durable=False) as temp:
        return _copy_bytes(source, temp)


def _copy_bytes(source: str, target: str) -> int:
    """Copy a file to where there is none, with its time of change; return its size."""
    shutil.copyfile(source, target, follow_symlinks=False)
    status = os.stat(source)
    os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))
    return os.stat(target).st_size


def _write(target: str, data: bytes) -> None:
    os.makedirs(os.path.dirname(target), exist_ok=True)
    replace_file(target, data, durable=False)
