"""The files of one datastore beside those of another one that they move to.

A version is recognised by the id in its metadata, whatever its number is at the destination.
"""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Container, Iterator
from functools import lru_cache
from typing import NamedTuple

from swampstore.errors import ContentDamagedError, YamlError
from swampstore.files import disk_errors, read_file
from swampstore.files.signature import Signature, signature, signature_of
from swampstore.index.path_kinds import is_marker
from swampstore.index.path_map import Names
from swampstore.layout import DEFERRED, METADATA, RAW, is_temp, parse_version
from swampstore.relocate.destinations import Destination
from swampstore.sync.complete import check_saved, is_content_here, is_saved_at_a_glance
from swampstore.sync.hashing import hash_file
from swampstore.yaml_dialect import load_mapping

_SEGMENTS_OF_A_VERSION = 5
_PIECE = 1 << 20
# Versions of a name are looked at together, here and at their destination.
_REMEMBERED = 1024


class Directory(NamedTuple):
    """A directory of the source, with the names of what is in it, sorted."""

    rel: str
    subdirs: list[str]
    files: list[str]

    @property
    def is_version(self) -> bool:
        """Whether it holds the files of a version."""
        segments = self.rel.split("/")
        return (
            not self.subdirs
            and segments[0] == "data"
            and len(segments) >= _SEGMENTS_OF_A_VERSION
            and parse_version(segments[-1]) is not None
        )

    @property
    def is_finished(self) -> bool:
        """Whether that version was committed."""
        return METADATA in self.files and DEFERRED not in self.files


class Look(NamedTuple):
    """What moves of a directory, and how those files look that are linked to their destination."""

    directory: Directory
    rels: list[str]
    linked: dict[str, Signature]

    @property
    def is_linked(self) -> bool:
        """Whether that is so of all of them."""
        return bool(self.rels) and len(self.linked) == len(self.rels)


class Pairs:
    """What is in `source`, and what the destination has of it."""

    def __init__(self, source: str, destination: Destination) -> None:
        self.to = destination
        self._source = source
        self._here = Names(source, "", destination.names.routing)
        self._ids: tuple[str, dict[str, list[str]]] = ("", {})
        self._own_ids: tuple[str, dict[str, list[str]]] = ("", {})

    @property
    def here(self) -> Names:
        """The names of the source."""
        return self._here

    def path(self, rel: str) -> str:
        """Return the file of a path at the source."""
        return f"{self._source}/{rel}"

    def walk(self, subdir: str) -> Iterator[Directory]:
        """Yield every directory after those below it. What comes now may see what is there now."""
        self._ids = self._own_ids = ("", {})
        with disk_errors(self.path(subdir)):
            yield from self._below(subdir)

    def _below(self, rel: str) -> Iterator[Directory]:
        subdirs, files = [], []
        try:
            entries = os.scandir(self.path(rel))
        except FileNotFoundError:
            return
        # Any other error is one: what is below must not be taken for nothing.
        with entries:
            for entry in entries:
                # A link to a directory is, as a marker, a file to us.
                if not entry.is_dir(follow_symlinks=False):
                    files.append(entry.name)
                elif not is_temp(entry.name):
                    subdirs.append(entry.name)
        subdirs.sort()
        files.sort()
        for name in subdirs:
            yield from self._below(f"{rel}/{name}")
        yield Directory(rel, subdirs, files)

    def look(self, directory: Directory) -> Look:
        """Return the files of a directory that move: no links, of versions whole ones only.

        A file with one link that is seen in both places is in a directory that is mounted twice.
        """
        linked, others = {}, []
        for name in directory.files:
            rel = f"{directory.rel}/{name}"
            if self.to.names.why_not(rel):
                continue
            found = self.one_file(rel)
            if found is None:
                others.append(rel)
            else:
                linked[rel] = found
        if directory.is_version and not self._is_whole(directory, linked):
            return Look(directory, [], {})
        rels = [*linked, *(rel for rel in others if self._may_move(rel))]
        return Look(directory, rels, linked)

    def _is_whole(self, directory: Directory, linked: Container[str]) -> bool:
        raw = f"{directory.rel}/{RAW}"
        return directory.is_finished and (raw in linked or self.has_content(directory.rel))

    def has_content(self, version_rel: str) -> bool:
        """Whether the content of a version is at the source."""
        return is_content_here(self._here, version_rel)

    def _may_move(self, rel: str) -> bool:
        return is_marker(rel) or signature(self.path(rel)) is not None

    def one_file(self, rel: str) -> Signature | None:
        """Return how a file looks that is linked to its destination, else None."""
        try:
            ours = os.lstat(self.path(rel))
            if ours.st_nlink == 1 or not stat.S_ISREG(ours.st_mode):
                return None
            is_one = os.path.samestat(ours, os.lstat(self.to.names.local(rel)))
        except OSError:
            return None
        return signature_of(ours) if is_one else None

    def twin(self, version_rel: str) -> str | None:
        """Return the version at the destination that has the id of ours.

        Of several, which were appended to apart from each other, it is the one that goes on ours.
        """
        name_rel = version_rel.rpartition("/")[0]
        if self._ids[0] != name_rel:
            self._ids = (name_rel, _ids_in(self.to.names.local(name_rel)))
        if not self._ids[1]:
            return None
        numbers = self._ids[1].get(_version_id(self.path(version_rel)), [])
        twins = [f"{name_rel}/{number}" for number in numbers]
        if len(twins) < 2:
            if twins and self._may_be_apart(version_rel, twins[0]):
                self._has_fetched(twins[0])
            return twins[0] if twins else None
        ours = self.path(f"{version_rel}/{RAW}")
        raws = {twin: self.to.names.local(f"{twin}/{RAW}") for twin in twins}
        fetched = filter(self._has_fetched, twins)
        return next((twin for twin in fetched if begins_with(raws[twin], ours)), twins[-1])

    def _may_be_apart(self, version_rel: str, twin: str) -> bool:
        """Whether nothing but its content tells if the twin goes on ours, or has another end.

        Where both have one number, the next push compares those that are no longer there than here.
        """
        path = self.path(version_rel)
        if not _told_by(path).is_streaming:
            return False
        is_longer = _size(f"{path}/{RAW}") < _told_by(self.to.names.local(twin)).size < math.inf
        return is_longer or twin != version_rel or len(self._with_id_of(path, version_rel)) > 1

    def _has_fetched(self, version_rel: str) -> bool:
        """Whether the destination has content here, after it was fetched if it never came."""
        if not is_content_here(self.to.names, version_rel):
            self.to.fetch(f"{version_rel}/{RAW}")
        return is_content_here(self.to.names, version_rel)

    def is_there(self, version_rel: str, twin: str) -> bool:
        """Whether the twin is still there: it may have made room for another version of ours."""
        return _version_id(self.to.names.local(twin)) == _version_id(self.path(version_rel))

    def is_outgrown(self, version_rel: str, twin: str) -> bool:
        """Whether the destination has the content of ours, and others appended to it there."""
        return _goes_on(self.to.names.local(twin), self.path(version_rel))

    def outgrows(self, version_rel: str, twin: str) -> bool:
        """Whether ours has what the destination has of that version, and was appended to since."""
        return _goes_on(self.path(version_rel), self.to.names.local(twin))

    def held_at(self, rel: str) -> set[str]:
        """Return our versions of which the destination has content at a place, whatever is ours.

        Not those that were appended to apart from that; but all of them if that content is lost.
        """
        there = self.to.names.local(rel)
        ours = self._with_id_of(there, rel)
        if ours and not self._has_fetched(rel):
            return {*ours}
        now = f"{there}/{RAW}"
        before = {one: self.path(f"{one}/{RAW}") for one in ours}
        return {
            one for one, raw in before.items() if begins_with(now, raw) or begins_with(raw, now)
        }

    def _with_id_of(self, path: str, rel: str) -> list[str]:
        """Return our versions of the data name of a path that have the id of what is there."""
        name_rel = rel.rpartition("/")[0]
        if self._own_ids[0] != name_rel:
            self._own_ids = (name_rel, _ids_in(self.path(name_rel)))
        numbers = self._own_ids[1].get(_version_id(path), [])
        return [f"{name_rel}/{number}" for number in numbers]

    def contents(self, version_rel: str, twin: str) -> tuple[str, str]:
        """Return the content of a version, and that of its twin."""
        return self.path(f"{version_rel}/{RAW}"), self.to.names.local(f"{twin}/{RAW}")


def names_in(path: str) -> list[str]:
    """Return what is in a directory, sorted; nothing if there is none."""
    with disk_errors(path):
        try:
            return sorted(os.listdir(path))
        except FileNotFoundError:
            return []


def is_damaged(names: Names, version_rel: str) -> bool:
    """Whether the content of a version is not what was saved."""
    if is_saved_at_a_glance(names, version_rel):
        return False
    raw = f"{version_rel}/{RAW}"
    sha256, found = hash_file(names.local(raw))
    try:
        check_saved(names, raw, sha256, found.size)
    except ContentDamagedError:
        return True
    return False


def _ids_in(name_path: str) -> dict[str, list[str]]:
    """Return the numbers of the versions of a data name by their ids, the lowest first."""
    numbers = [name for name in names_in(name_path) if parse_version(name)]
    ids: dict[str, list[str]] = {}
    for number in sorted(numbers, key=int):
        if found := _version_id(f"{name_path}/{number}"):
            ids.setdefault(found, []).append(number)
    return ids


def _size(path: str) -> int:
    found = signature(path)
    return found.size if found else -1


def _goes_on(longer: str, shorter: str) -> bool:
    """Whether the version in a directory is the one in another, and was appended to since.

    Where the content of both is one file, metadata tells on which side that was.
    """
    now, before = f"{longer}/{RAW}", f"{shorter}/{RAW}"
    if not begins_with(now, before):
        return False
    size = _size(now)
    return _size(before) < size or _told_by(shorter).size < size == _told_by(longer).size


def begins_with(path: str, beginning: str) -> bool:
    """Whether a file holds what another one holds, and perhaps more after it."""
    if not 0 <= _size(beginning) <= _size(path):
        return False
    with disk_errors(path), open(path, "rb") as longer, open(beginning, "rb") as shorter:
        if os.path.sameopenfile(longer.fileno(), shorter.fileno()):
            return True
        while piece := shorter.read(_PIECE):
            if longer.read(len(piece)) != piece:
                return False
    return True


class _Told(NamedTuple):
    """What metadata says of a version; without any, nothing is of that id, and all is shorter."""

    id: str = ""
    size: float = math.inf
    is_streaming: bool = False


def _version_id(path: str) -> str:
    """Return the id of the version in a directory, an empty text if there is none."""
    return _told_by(path).id


def _told_by(path: str) -> _Told:
    with disk_errors(path):
        data = read_file(f"{path}/{METADATA}") or b""
    return _told_in(data) if data else _Told()


@lru_cache(maxsize=_REMEMBERED)
def _told_in(metadata: bytes) -> _Told:
    try:
        found = load_mapping(metadata, what=METADATA)
    except YamlError:
        return _Told(metadata.decode("utf-8", "replace"))
    size = found.get("size")
    is_streaming = found.get("streaming") is True
    return _Told(str(found.get("id")), size if type(size) is int else math.inf, is_streaming)
