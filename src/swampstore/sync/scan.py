"""What changed in the cache: the marked paths against the base, or everything against it."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Container, Iterable, Iterator
from typing import NamedTuple

import msgspec

from swampstore.errors import ValidationError
from swampstore.files import disk_errors
from swampstore.files.signature import Signature, is_surely_unchanged, signature, signature_of
from swampstore.index.base import Base, Known
from swampstore.index.errors import SyncError
from swampstore.index.partitions import Scope
from swampstore.index.path_kinds import goes_with_any_push, metadata_beside, version_file
from swampstore.index.path_map import BOOKKEEPING, Names, is_safe
from swampstore.index.results import Skipped
from swampstore.layout import (
    CLAIM,
    DATASTORE_SUBDIRS,
    DEFERRED,
    LANDING,
    MANIFEST,
    METADATA,
    RAW,
    is_internal,
    is_temp,
)
from swampstore.sync.context import SyncContext
from swampstore.sync.dirty import Snapshot
from swampstore.sync.hashing import hash_file


class Links:
    """Looks at the directories above files of one cache, at each of them once."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._plain = {""}

    def above(self, rel: str) -> str | None:
        """Return the directory above a path that is a link, None if there is none."""
        directory = rel.rpartition("/")[0]
        if directory in self._plain:
            return None
        if found := self.above(directory):
            return found
        if os.path.islink(f"{self._root}/{directory}"):
            return directory
        self._plain.add(directory)
        return None

    def check(self, rel: str) -> None:
        """Raise ValidationError if a directory above a path is a link."""
        if link := self.above(rel):
            raise ValidationError(
                f"{self._root}/{link} is a symbolic link, so {rel} is not in the cache",
                hint="Remove the link; nothing is read or written through one.",
            )


# Whoever writes a version puts one of these there first: beside metadata alone it is finished.
_BEGUN = frozenset({CLAIM, DEFERRED, LANDING})
_UNSAFE = "its name means another path on other systems"
_BATCH = 500


class Changed(NamedTuple):
    """A file that is not what the base says. `sha256` is known if it had to be looked at."""

    rel: str
    signature: Signature
    known: Known | None
    sha256: str | None


class Touched(NamedTuple):
    """A file with the content that the base says, and another signature."""

    known: Known
    signature: Signature


class Scan(msgspec.Struct):
    """The result of looking: what changed, what is gone for sure, what was left alone.

    `nameless` says of files why nothing on the remote can be called like them.
    `unfinished` is content of versions that are still being written, or were when somebody died.
    `seen` are the files at and below chosen paths, each as it was. `missing` is what the base held
    and a look at everything did not find.
    """

    changed: list[Changed] = msgspec.field(default_factory=list)
    touched: list[Touched] = msgspec.field(default_factory=list)
    deleted: list[Known] = msgspec.field(default_factory=list)
    skipped: list[Skipped] = msgspec.field(default_factory=list)
    nameless: dict[str, str] = msgspec.field(default_factory=dict)
    unfinished: list[str] = msgspec.field(default_factory=list)
    seen: dict[str, Signature] = msgspec.field(default_factory=dict)
    missing: list[Known] = msgspec.field(default_factory=list)
    looked_at: int = 0


class _File(NamedTuple):
    rel: str
    signature: Signature


class LocalScan:
    """Looks at one cache."""

    def __init__(self, names: Names, base: Base) -> None:
        self._names = names
        self._base = base
        self._links = Links(names.root)

    def everything(self, scope: Scope | None = None) -> Scan:
        """Look at every file. Absence proves nothing here, so nothing counts as deleted."""
        scan = Scan()
        seen = self._compare(self._walk("", scan, scope), scan)
        scan.missing = [known for known in self._missing("", seen, scope) if self._is_gone(known)]
        return scan

    def _is_gone(self, known: Known) -> bool:
        """Whether a file that was here is not; what is behind a link may be."""
        is_out_of_sight = known.held is None or self._links.above(known.rel)
        return not is_out_of_sight and not os.path.lexists(self._names.local(known.rel))

    def paths(
        self,
        rels: Iterable[str],
        scope: Scope | None = None,
        removals: Container[str] = frozenset(),
    ) -> Scan:
        """Look at some files and directories only.

        What the base held and is missing at or below one of the `removals` was deleted.
        """
        scan = Scan()
        self._links = Links(self._names.root)
        roots = _roots(rels)
        for rel in roots:
            missing = self._look_at(rel, scan, scope)
            if missing and not self._was_wiped(rel, roots):
                scan.deleted.extend(
                    known
                    for known in missing
                    if is_covered(known.rel, removals) and self._is_deleted(known, rel)
                )
        return scan

    def _look_at(self, rel: str, scan: Scan, scope: Scope | None) -> list[Known]:
        """Compare what is at and below a path; return what the base held there and is missing."""
        if reason := self._why_not_here(rel):
            self._leave_out(rel, reason, scan)
            return []
        path = self._names.local(rel)
        with disk_errors(path):
            try:
                status = os.lstat(path)
            except (FileNotFoundError, NotADirectoryError):
                scan.looked_at += 1
                return self._missing(rel, frozenset(), scope)
        if stat.S_ISDIR(status.st_mode):
            found = list(self._walk(rel, scan, scope))
            scan.seen.update(found)
            seen = self._compare(found, scan)
            return self._missing(rel, seen, scope)
        scan.looked_at += 1
        if reason := self._why_not(rel, status):
            self._leave_out(rel, reason, scan)
        elif is_unfinished(self._names, rel):
            scan.unfinished.append(rel)
        elif scope is None or scope.covers(rel) or goes_with_any_push(rel):
            scan.seen[rel] = signature_of(status)
            self._compare([_File(rel, signature_of(status))], scan)
        return []

    def since(self, before: Scan, rels: Collection[str], scope: Scope | None = None) -> set[str]:
        """Return the files at and below these paths that somebody has changed since a look.

        What the base holds as it is now is none of them: a sync has put it there.
        """
        after = Scan()
        for rel in _roots(rels):
            if not self._why_not_here(rel):
                after.seen.update(self._files(rel, after, scope))
        changed = {rel for rel, now in after.seen.items() if before.seen.get(rel) != now}
        known = self._base.get_many(changed)
        new = {rel for rel in changed if rel not in known or known[rel].held != after.seen[rel]}
        begun = {rel for rel in after.unfinished if rel not in before.unfinished}
        gone = [rel for rel in before.seen if rel not in after.seen and is_covered(rel, rels)]
        held = self._base.get_many(gone)
        return new | begun | {rel for rel in gone if rel in held and held[rel].held is not None}

    def _files(self, rel: str, scan: Scan, scope: Scope | None) -> Iterator[_File]:
        """Yield the files at and below a path that may be shared."""
        path = self._names.local(rel)
        if os.path.isdir(path) and not os.path.islink(path):
            yield from self._walk(rel, scan, scope)
        elif (found := signature(path)) is not None and not self._names.why_not(rel):
            yield _File(rel, found)

    def _why_not_here(self, rel: str) -> str | None:
        if reason := self._names.why_no_name(rel):
            return reason
        top = rel.partition("/")[0]
        if top not in DATASTORE_SUBDIRS and self._is_foreign(top):
            return "it belongs to another namespace"
        link = self._links.above(rel)
        return f"{link} is a symbolic link, and none is followed" if link else None

    def _leave_out(self, rel: str, reason: str, scan: Scan) -> None:
        if self._names.why_no_name(rel):
            path = f"{self._names.root}/{rel}"
            for file in _files_at(path) if "\0" not in path else ():
                scan.nameless[f"{rel}{file.removeprefix(path)}"] = reason
        elif reason != BOOKKEEPING:
            scan.skipped.append(Skipped(rel, reason))

    def _missing(self, rel: str, seen: Container[str], scope: Scope | None) -> list[Known]:
        return [
            known
            for known in self._base.below(rel, other_than=seen)
            if scope is None or scope.covers(known.rel)
        ]

    def _is_deleted(self, known: Known, marked: str) -> bool:
        """Whether absence is deletion: content that never was here is gone with its version."""
        if known.held is not None:
            return self._is_gone(known)
        if self._links.above(known.rel):
            return False
        if known.rel == marked or not was_here(self._base, known):
            return False
        return not os.path.lexists(os.path.dirname(self._names.local(known.rel)))

    def _was_wiped(self, rel: str, marked: Container[str]) -> bool:
        """Whether a path is gone because somebody emptied the cache above it.

        Then things that nobody marked are gone too, and none of it says that data was deleted.
        """
        top = rel
        while "/" in top and not os.path.lexists(self._names.local(top.rpartition("/")[0])):
            top = top.rpartition("/")[0]
        if top == rel:
            return not os.path.lexists(self._names.root)
        return any(
            known.held is not None and not is_covered(known.rel, marked)
            for known in self._base.below(top)
        )

    def _walk(self, rel: str, scan: Scan, scope: Scope | None) -> Iterator[_File]:
        pending = [rel]
        while pending:
            directory = pending.pop()
            prefix = f"{directory}/" if directory else ""
            entries = self._entries(directory)
            names = {entry.name for entry in entries}
            if (
                (RAW in names or DEFERRED in names)
                and (METADATA not in names or not names.isdisjoint(_BEGUN))
                and is_unfinished(self._names, f"{prefix}{RAW}")
            ):
                scan.unfinished.append(f"{prefix}{RAW}")
                continue  # a version that nobody may see before it is committed
            may_cross = self._names.may_all_cross(directory, [*names])
            for entry in entries:
                child = f"{prefix}{entry.name}"
                if entry.is_dir(follow_symlinks=False):
                    if not is_safe(entry.name):
                        self._leave_out(child, _UNSAFE, scan)
                    elif self._may_enter(child, entry.name):
                        pending.append(child)
                    continue
                if scope and not (scope.covers(child) or goes_with_any_push(child)):
                    continue
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                scan.looked_at += 1
                if may_cross and stat.S_ISREG(status.st_mode):
                    yield _File(child, signature_of(status))
                elif reason := self._why_not(child, status):
                    self._leave_out(child, reason, scan)
                else:
                    yield _File(child, signature_of(status))

    def _entries(self, rel: str) -> list[os.DirEntry[str]]:
        path = self._names.local(rel) if rel else self._names.root
        try:
            with os.scandir(path) as found:
                return list(found)
        except FileNotFoundError:
            return []
        except OSError:
            with disk_errors(path):
                raise

    def _may_enter(self, rel: str, name: str) -> bool:
        if is_temp(name):
            return False
        if "/" in rel:
            return True
        # At the top: bookkeeping, what stays local, and the directories of other namespaces.
        if self._names.why_not(f"{rel}/x"):
            return False
        return not self._is_foreign(rel)

    def _is_foreign(self, top: str) -> bool:
        return os.path.lexists(f"{self._names.local(top)}/{MANIFEST}")

    def _why_not(self, rel: str, status: os.stat_result) -> str | None:
        if stat.S_ISREG(status.st_mode):
            return self._names.why_not(rel)
        if stat.S_ISLNK(status.st_mode):
            return "symbolic links are not followed"
        return "it is not a regular file"

    def _compare(self, files: Iterable[_File], scan: Scan) -> set[str]:
        seen: set[str] = set()
        batch: list[_File] = []
        for file in files:
            seen.add(file.rel)
            batch.append(file)
            if len(batch) == _BATCH:
                self._compare_batch(batch, scan)
                batch = []
        self._compare_batch(batch, scan)
        return seen

    def _compare_batch(self, batch: list[_File], scan: Scan) -> None:
        known = self._base.get_many([file.rel for file in batch])
        for rel, now in batch:
            before = known.get(rel)
            if before is None:
                scan.changed.append(Changed(rel, now, None, None))
            elif before.held and is_surely_unchanged(before.held, now, before.recorded_ns):
                continue
            elif before.size != now.size:
                scan.changed.append(Changed(rel, now, before, None))
            else:
                self._compare_content(rel, now, before, scan)

    def _compare_content(self, rel: str, now: Signature, before: Known, scan: Scan) -> None:
        try:
            sha256, now = hash_file(self._names.local(rel))
        except FileNotFoundError:
            return
        except SyncError:
            # It keeps changing: that concerns its upload, and nothing else that is to be pushed.
            scan.changed.append(Changed(rel, now, before, None))
            return
        if sha256 == before.sha256:
            scan.touched.append(Touched(before, now))
        else:
            scan.changed.append(Changed(rel, now, before, sha256))


def _files_at(path: str) -> Iterator[str]:
    """Yield a file, or the files below a directory; nothing if nothing is there."""
    if not os.path.isdir(path) or os.path.islink(path):
        yield from [path] if os.path.lexists(path) else []
        return
    for where, _, files in os.walk(path):
        yield from (f"{where}/{name}" for name in files if not is_internal(f"x/{name}"))


def is_unfinished(names: Names, rel: str) -> bool:
    """Whether a path is a file of a version that is here and was not committed yet.

    What arrived ahead of its metadata is none: a mark says so.
    """
    if version_file(rel) is None or rel.rpartition("/")[2] not in (RAW, METADATA):
        return False
    directory = os.path.dirname(names.local(rel))
    if os.path.lexists(f"{directory}/{METADATA}"):
        return os.path.lexists(f"{directory}/{DEFERRED}")
    return os.path.lexists(directory) and not os.path.lexists(f"{directory}/{LANDING}")


def was_here(base: Base, known: Known) -> bool:
    """Whether this cache had a file, or of content that stayed on the remote the metadata."""
    if known.held is not None:
        return True
    beside = base.get(metadata_beside(known.rel))
    return beside is not None and beside.held is not None


def _roots(rels: Iterable[str]) -> dict[str, None]:
    """Return the paths, sorted, without those that lie below another one of them."""
    chosen = set(rels)
    return {rel: None for rel in sorted(chosen) if not is_covered(rel.rpartition("/")[0], chosen)}


def is_covered(rel: str, chosen: Container[str]) -> bool:
    """Whether a path or one above it is among the chosen."""
    return any(above in chosen for above in with_parents(rel))


def with_parents(rel: str) -> Iterator[str]:
    """Yield a path and every directory above it.

    >>> list(with_parents("a/b/c"))
    ['a/b/c', 'a/b', 'a']
    """
    while rel:
        yield rel
        rel = rel.rpartition("/")[0]


def stored_paths(context: SyncContext) -> frozenset[str]:
    """Return the paths that have an object; costs a listing of everything."""
    root = context.names.remote("")
    return frozenset(info.key.removeprefix(root) for info in context.store.list(root))


def files_without_object(
    context: SyncContext, stored: Container[str], scope: Scope | None
) -> Iterator[Changed]:
    """Yield files that are what the base says, and whose objects are gone. Others are damaged."""
    for known in context.base.below(""):
        if known.held is None or known.rel in stored:
            continue
        if scope is not None and not scope.covers(known.rel):
            continue
        try:
            sha256, now = hash_file(context.names.local(known.rel))
        except (FileNotFoundError, SyncError):
            continue
        if sha256 == known.sha256:
            yield Changed(known.rel, now, known, sha256)


def removed_rels(names: Names, snapshot: Snapshot) -> set[str]:
    """Return the paths below which something was removed, as far as that is marked."""
    return {names.rel_of_mark(mark) or "" for mark in snapshot.removals}


def hashed(context: SyncContext, change: Changed) -> Changed:
    """Return a change with the hash of its file; raise SyncError if that does not hold still."""
    if change.sha256 is not None:
        return change
    path = context.names.local(change.rel)
    try:
        sha256, now = hash_file(path)
    except FileNotFoundError:
        raise removed_meanwhile(path) from None
    return change._replace(sha256=sha256, signature=now)


def removed_meanwhile(path: str) -> SyncError:
    """Return what to tell of a file that was there a moment ago."""
    return SyncError(
        f"{path} was removed while it was looked at", hint="Sync again: it stays marked."
    )
