"""One pass over the data: each name, its marker and versions, and what does not belong there.

`ContentChecks` compares all content that is on this disk with what was saved.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from swampstore.artifacts import versions as on_disk
from swampstore.artifacts.content import vouch
from swampstore.artifacts.latest import latest_of, marker_problem
from swampstore.artifacts.metadata import Metadata
from swampstore.artifacts.name_lock import Mutations
from swampstore.artifacts.publish import point_latest
from swampstore.artifacts.recovery import leftover_at
from swampstore.doctor import checks
from swampstore.doctor.findings import Check, Finding, Problems
from swampstore.errors import ContentDamagedError, MetadataError, SwampstoreError
from swampstore.files import Tree, disk_errors
from swampstore.layout import (
    DEFERRED,
    LATEST,
    METADATA,
    RAW,
    DataRef,
    is_internal,
    is_temp,
    parse_version,
    ref_of,
)
from swampstore.notices import notice

if TYPE_CHECKING:
    from swampstore.repo import Repo


class NameHealth(NamedTuple):
    """What is on disk of one name, and what is wrong with it.

    `versions` are those that can be read, ascending; `newest` is the highest of them that is
    committed, `latest` the one that the marker means; 0 if there is none.
    """

    versions: list[int]
    newest: int
    latest: int
    problems: list[tuple[Check, str]]


class Walked(NamedTuple):
    """A data name that a walk came by: the numbers in its directory, and which are deferred."""

    ref: DataRef
    numbers: list[int]
    deferred: frozenset[int]


def _nowhere(raw: str) -> bool:
    del raw
    return False


def examine_name(
    tree: Tree,
    ref: DataRef,
    *,
    may_be_elsewhere: Callable[[str], bool] = _nowhere,
    walked: Walked | None = None,
) -> NameHealth:
    """Look at every version of a name; content is measured, not read.

    Content that is not here `may_be_elsewhere`: on a remote, from where it comes when somebody
    reads it, or on the machine that it stays on. What a walk has just seen is not looked at again.
    """
    if walked is None:
        numbers = on_disk.version_numbers(tree, ref)
        deferred = frozenset(one for one in numbers if on_disk.is_deferred(tree, ref, one))
    else:
        _, numbers, deferred = walked
    readable, committed, unreadable = [], [], []
    problems: list[tuple[Check, str]] = []
    for version in numbers:
        try:
            metadata = on_disk.read_metadata(tree, ref, version)
        except MetadataError as error:
            unreadable.append(version)
            problems.append((checks.METADATA, error.message))
            continue
        if metadata is None:
            continue
        readable.append(version)
        if version not in deferred:
            committed.append(version)
        problems += _content_problems(tree, ref, metadata, may_be_elsewhere)
    newest = latest_of(committed)
    marker = on_disk.read_marker(tree, ref)
    complaint = _marker_complaint(marker, newest, {*committed, *unreadable})
    if complaint:
        problems.append((checks.MARKERS, f"{tree.path(ref.latest_rel)} {complaint}"))
    return NameHealth(readable, newest, latest_of(committed, marker=marker), problems)


def _content_problems(
    tree: Tree, ref: DataRef, metadata: Metadata, may_be_elsewhere: Callable[[str], bool]
) -> list[tuple[Check, str]]:
    raw = ref.file_rel(metadata.version, RAW)
    size = tree.size(raw)
    if size is None:
        return [] if may_be_elsewhere(raw) else [(checks.CONTENT, f"{tree.path(raw)} is missing")]
    if metadata.allows(size):
        return []
    return [(checks.SIZES, f"{tree.path(raw)} has {size} bytes, not {metadata.size}")]


def _marker_complaint(marker: int | None, newest: int, existing: set[int]) -> str:
    match marker_problem(marker, existing, newest):
        case "missing":
            return f"is missing or names no version; {newest} is the newest"
        case "dangling":
            return f"names version {marker}, which is not there"
        case "behind":
            return f"names version {marker}; {newest} is newer"
        case None:
            return ""


def repoint(mutations: Mutations, ref: DataRef) -> bool:
    """Make `latest` name the newest version that can be read; False if there is none."""
    tree = mutations.tree
    with mutations.changing(ref, "repoint") as change:
        health = examine_name(tree, ref)
        if health.newest:
            point_latest(change, ref, health.newest)
        mutations.record_rest(ref)
    return health.newest > 0


Complain = Callable[[Check, str], None]
_MAX_DEPTH = 64
_VERSION_FILES = frozenset({METADATA, RAW, DEFERRED})
_EXPECTED = frozenset({METADATA, RAW, LATEST})


class _Listing(NamedTuple):
    directories: list[str]
    files: set[str]


class DataWalk:
    """Walks `data/` in both tiers; memory holds the listings of one path from the top.

    `before` is the time before which an unfinished write of nobody knows whom counts as abandoned.
    """

    def __init__(self, tree: Tree, before: float, complain: Complain) -> None:
        self._tree = tree
        self._before = before
        self._complain = complain
        self._has_tiers = tree.base != tree.local

    def names(self) -> Iterator[Walked]:
        """Yield every data name; what is wrong around them is complained about on the way."""
        yield from self._visit((), self._list("data"))

    def _visit(self, parts: tuple[str, ...], found: _Listing) -> Iterator[Walked]:
        rel = "/".join(("data", *parts))
        numbers, deferred, others = [], set(), []
        for child in found.directories:
            version = parse_version(child) if len(parts) >= 3 else None
            inside = None if version is None else self._list(f"{rel}/{child}")
            # `207333/` may as well be a numeric data name, or a claim.
            if version is None or inside is None or not self._is_version(f"{rel}/{child}", inside):
                others.append((child, inside))
                continue
            numbers.append(version)
            if DEFERRED in inside.files:
                deferred.add(version)
            self._check_version(f"{rel}/{child}", (*parts, child), inside)
        if numbers:
            self._check_name(rel, found)
            claims = (parse_version(child) for child, inside in others if inside is not None)
            every = sorted([*numbers, *(number for number in claims if number is not None)])
            yield Walked(ref_of(rel), every, frozenset(deferred))
        else:
            self._check_branch(rel, parts, found)
        if len(parts) < _MAX_DEPTH:
            for child, inside in others:
                yield from self._visit((*parts, child), inside or self._list(f"{rel}/{child}"))

    def _is_version(self, rel: str, found: _Listing) -> bool:
        return METADATA in found.files or os.path.lexists(self._tree.path(f"{rel}/{METADATA}"))

    def _check_name(self, rel: str, found: _Listing) -> None:
        if LATEST in found.directories:
            self._stranger(f"{rel}/{LATEST}", "is a directory, not a file")
        for name in sorted(found.files - {LATEST}):
            self._stranger(f"{rel}/{name}", "is a file between versions")

    def _check_version(self, rel: str, parts: tuple[str, ...], found: _Listing) -> None:
        for name in found.directories:
            self._stranger(f"{rel}/{name}", "is a directory within a version")
        if DEFERRED in found.files:
            self._check_abandoned(rel, parts)

    def _check_branch(self, rel: str, parts: tuple[str, ...], found: _Listing) -> None:
        """Check a directory that is no data name: only directories belong here, or a claim."""
        files = found.files
        if LATEST in files:
            self._complain(checks.MARKERS, f"{self._tree.path(rel)}/{LATEST} has no version at all")
            files = files - {LATEST}
        if len(parts) >= 4 and parse_version(parts[-1]) is not None:
            self._check_abandoned(rel, parts)
            files = files - _VERSION_FILES
        for name in sorted(files):
            self._stranger(f"{rel}/{name}", "is a file where only directories belong")

    def _check_abandoned(self, rel: str, parts: tuple[str, ...]) -> None:
        if leftover_at(self._tree, parts, self._before):
            self._complain(checks.LEFTOVERS, f"{self._tree.path(rel)} was begun and never finished")

    def _stranger(self, rel: str, why: str) -> None:
        self._complain(checks.STRANGERS, f"{self._tree.path(rel)} {why}")

    def _list(self, rel: str) -> _Listing:
        """Return what is in a directory, in both tiers, except temporary files and links."""
        directories: set[str] = set()
        files: set[str] = set()
        for place in self._tree.places(rel):
            try:
                with os.scandir(place) as entries:
                    for entry in entries:
                        if entry.name in _EXPECTED and entry.is_file(follow_symlinks=False):
                            files.add(entry.name)  # as nearly all are
                            if self._has_tiers:
                                self._check_tier(f"{rel}/{entry.name}", entry.path)
                            continue
                        if self._is_odd(entry):
                            continue
                        if entry.is_dir(follow_symlinks=False):
                            directories.add(entry.name)
                        elif not is_internal(f"{rel}/{entry.name}") or entry.name == DEFERRED:
                            files.add(entry.name)
                            if self._has_tiers:
                                self._check_tier(f"{rel}/{entry.name}", entry.path)
            except FileNotFoundError:
                continue
            except OSError as error:
                self._complain(checks.UNREADABLE, f"{place}: {error.strerror}")
        return _Listing(sorted(directories), files)

    def _is_odd(self, entry: os.DirEntry[str]) -> bool:
        """Whether an entry is a temporary file or a link, which are told apart from all else."""
        if is_temp(entry.name):
            try:
                if entry.stat(follow_symlinks=False).st_mtime <= self._before:
                    self._complain(checks.LEFTOVERS, f"{entry.path} is a temporary file")
            except FileNotFoundError:
                pass
            return True
        # Clients of old made `latest` a link; it is read like the file it should be.
        if entry.is_symlink() and entry.name != LATEST:
            self._complain(checks.LINKS, entry.path)
            return True
        return False

    def _check_tier(self, rel: str, path: str) -> None:
        if self._tree.path(rel) != path:
            self._complain(checks.TIERS, path)


# Is told how many versions, and how many bytes, were compared so far.
ContentProgress = Callable[[int, int], None]
_KEPT = "_catalog.db-damaged"


class ContentChecks:
    """Reads the content of versions; with `repair`, the remote's takes the place of damage."""

    def __init__(self, repo: Repo, *, repair: bool, progress: ContentProgress) -> None:
        self._repo = repo
        self._tree = repo.tree
        self._repair = repair
        self._progress = progress
        self._problems = Problems(checks.HASHES)
        self._versions = self._bytes = self._unverified = 0

    def look_at(self, ref: DataRef, versions: Iterable[int]) -> None:
        """Compare the content of some versions of a name."""
        for version in versions:
            try:
                self._compare(ref, version)
            except ContentDamagedError as error:
                repaired = self._repair and error.is_there and self._bring(ref, version)
                path = self._tree.path(ref.file_rel(version, RAW))
                self._problems.add(f"{path}: {error.hint}", repaired=repaired)
            except SwampstoreError as error:
                self._problems.add(error.message)

    def _compare(self, ref: DataRef, version: int) -> None:
        path = self._tree.check_inside(ref.file_rel(version, RAW))
        with disk_errors(path):
            try:
                with open(path, "rb") as file:
                    digest = hashlib.file_digest(file, "sha256").hexdigest()
                    size = file.tell()
            except FileNotFoundError:
                return  # it is on the remote, or told of already
        self._versions += 1
        self._bytes += size
        self._progress(self._versions, self._bytes)
        if not vouch(self._tree, ref, version, digest, size, self._repo.known_there):
            self._unverified += 1

    def _bring(self, ref: DataRef, version: int) -> bool:
        """Keep a damaged file aside and fetch the remote's; tell whether that is here now."""
        raw, aside = (ref.file_rel(version, name) for name in (RAW, _KEPT))
        try:
            self._move(ref, raw, aside)
            try:
                if self._repo.sync.hydrate(raw):
                    self._compare(ref, version)
                    return True
            except BaseException:
                self._move(ref, aside, raw)
                raise
            self._move(ref, aside, raw)
        except SwampstoreError as error:
            notice("the content of %s version %d stays damaged: %s", ref, version, error.message)
        return False

    def _move(self, ref: DataRef, rel: str, target: str) -> None:
        with self._repo.mutations.receiving_many([ref], "land") as (reception,):
            reception.adopt(target, self._tree.shared_path(rel))
            self._repo.mutations.ledger.settle([ref.rel])

    def finding(self) -> Finding:
        """Return the outcome."""
        found = self._problems.finding(repair=self._repair)
        if not found.passed or not self._unverified:
            return found
        message = f"{found.message}; {self._unverified} version(s) have nothing to compare with"
        return replace(found, message=message)
