"""Copies of other namespaces inside our own, which an early client made, and how they are removed.

Such a copy is the directory of a namespace where none belongs: `ours/theirs/...`. Nobody reads it,
but it is listed, pulled and paid for. A file of it is removed only if the namespace it comes from
has the very same bytes; anything else is reported and stays. The index loses the entries in a
commit like any other, so a sharded one stays sharded.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from swampstore.doctor import checks
from swampstore.doctor.findings import Finding, Problems
from swampstore.errors import ValidationError
from swampstore.files import disk_errors
from swampstore.index.workers import Deadline, in_parallel
from swampstore.layout import MANIFEST, is_internal
from swampstore.namespaces.manifests import CATALOG_EXPORT, check_new_namespace
from swampstore.repo import Repo
from swampstore.stores import Store
from swampstore.stores.directory import DirectoryStore
from swampstore.stores.errors import ObjectNotFoundError
from swampstore.stores.protocol import folders, hash_object

_CONCURRENCY = 8
_PIECE = 1 << 20


@dataclass(frozen=True, slots=True)
class Contamination:
    """Files of another namespace inside ours. `place` is `remote`, `cache` or `directory`."""

    place: str
    namespace: str
    files: int
    bytes: int


@dataclass(slots=True)
class Repaired:
    """What became of one finding; `differing` are the files that stay, by their keys."""

    finding: Contamination
    removed: int = 0
    differing: list[str] = field(default_factory=list)


class _Copy(NamedTuple):
    """A file of another namespace inside ours: its path there, and its size."""

    rest: str
    size: int


class _Side(NamedTuple):
    """One place that may hold copies, where their originals are, and how copies are removed."""

    place: str
    copies: Store
    originals: Store
    remove: Callable[[Mapping[str, str | None]], None]


def find_contamination(repo: Repo) -> list[Contamination]:
    """Return which other namespaces have files inside the repository's own, and where.

    Without a namespace there is nothing to look for. Costs one or two requests if all is well.
    """
    with _sides(repo) as sides:
        return [finding for side in sides for finding, _ in _found(side, repo.config.namespace)]


def repair_contamination(repo: Repo) -> list[Repaired]:
    """Remove every such file that its own namespace has too, byte by byte; report the others.

    What a finding has of bookkeeping goes when none of its data is left.
    """
    own = repo.config.namespace
    if not own:
        return []
    with repo.locks.everything(), _sides(repo) as sides:
        return [
            _repair(side, own, finding, copies)
            for side in sides
            for finding, copies in _found(side, own)
        ]


@contextlib.contextmanager
def _sides(repo: Repo) -> Iterator[list[_Side]]:
    config = repo.config
    if not config.namespace:
        yield []
        return

    def remove_files(rels: Iterable[str]) -> None:
        for rel in rels:
            _remove_file(config.datastore_dir, rel)

    if config.remote is None:
        with _directory(config.base) as base:
            yield [_Side("directory", base, base, remove_files)] if base else []
        return
    remote = repo.connection.store
    with _directory(config.base) as cache:
        found = [_Side("remote", remote, remote, repo.sync.remove)]
        yield [*found, _Side("cache", cache, remote, remove_files)] if cache else found


@contextlib.contextmanager
def _directory(path: str) -> Iterator[Store | None]:
    if not os.path.isdir(path):
        yield None
        return
    with DirectoryStore(path, durable=False) as store:
        yield store


def _found(side: _Side, own: str) -> Iterator[tuple[Contamination, list[_Copy]]]:
    for name in folders(side.copies, f"{own}/"):
        if not _is_foreign(side, own, name):
            continue
        prefix = f"{own}/{name}/"
        copies = [
            _Copy(info.key.removeprefix(prefix), info.size) for info in side.copies.list(prefix)
        ]
        if copies:
            size = sum(copy.size for copy in copies)
            yield Contamination(side.place, name, len(copies), size), copies


def _is_foreign(side: _Side, own: str, name: str) -> bool:
    """Whether a directory in our namespace is that of another one."""
    try:
        check_new_namespace(name)
    except ValidationError:
        return False
    if name == own:
        return False
    marks = ((side.copies, f"{own}/{name}/{MANIFEST}"), (side.originals, f"{name}/{MANIFEST}"))
    return any(_size(store, key) is not None for store, key in marks)


def _repair(side: _Side, own: str, finding: Contamination, copies: list[_Copy]) -> Repaired:
    repaired = Repaired(finding)
    own_files = f"{finding.namespace}/"
    payload = [copy for copy in copies if not _is_bookkeeping(copy.rest)]
    bookkeeping = [copy.rest for copy in copies if _is_bookkeeping(copy.rest)]
    compared = in_parallel(
        lambda copy: _token_if_same(side, own, finding.namespace, copy),
        payload,
        _CONCURRENCY,
        Deadline(),
    )
    same: dict[str, str | None] = {}
    for copy, token, error in compared:
        if error is not None:
            raise error
        if token is not None:
            same[copy.rest] = token
        else:
            repaired.differing.append(f"{own}/{finding.namespace}/{copy.rest}")
    if not repaired.differing:
        same |= dict.fromkeys(bookkeeping)
    side.remove({f"{own_files}{rest}": same[rest] for rest in sorted(same)})
    repaired.removed = len(same)
    repaired.differing.sort()
    return repaired


def _token_if_same(side: _Side, own: str, foreign: str, copy: _Copy) -> str | None:
    """Return the token of a copy that is equal to its original, None if it is not."""
    original = f"{foreign}/{copy.rest}"
    if _size(side.originals, original) != copy.size:
        return None
    with contextlib.suppress(ObjectNotFoundError):
        ours, info = hash_object(side.copies, f"{own}/{foreign}/{copy.rest}")
        return info.token if ours == hash_object(side.originals, original)[0] else None
    return None


def _is_bookkeeping(rest: str) -> bool:
    """Whether a file only describes others, so that nothing is lost with an old copy of it."""
    return is_internal(rest) or rest == CATALOG_EXPORT


def _size(store: Store, key: str) -> int | None:
    try:
        return store.head(key).size
    except ObjectNotFoundError:
        return None


def _remove_file(root: str, rel: str) -> None:
    """Remove a file, and the directories that hold nothing any more."""
    with disk_errors(f"{root}/{rel}"):
        os.unlink(f"{root}/{rel}")
    above = os.path.dirname(rel)
    while above:
        try:
            os.rmdir(f"{root}/{above}")
        except OSError:
            return
        above = os.path.dirname(above)


def contamination(repo: Repo, *, repair: bool) -> Finding:
    """Look for files of other namespaces; those that their own namespace has are not needed."""
    problems = Problems(checks.CONTAMINATION)
    findings = find_contamination(repo)
    if not repair:
        for found in findings:
            problems.add(f"{found.namespace} ({found.place})", count=found.files)
        return problems.finding()
    for done in repair_contamination(repo) if findings else ():
        if done.removed:
            where = f"{done.finding.namespace} ({done.finding.place})"
            problems.add(where, count=done.removed, repaired=True)
        for key in done.differing:
            problems.add(f"{key} is not what its own namespace has, and stays")
    return problems.finding(repair=True)
