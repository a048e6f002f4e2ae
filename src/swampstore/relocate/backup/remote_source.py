"""Backing up a remote: what its index says at one commit, fetched straight from the store.

The cache is not used, and need not hold any content. On a sharded remote `_meta.json` names every
shard as one commit left it, so shards that are the same as in the previous backup are not even
read. Content of a commit may be replaced while it is fetched; then a later commit is taken instead.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

from swampstore.artifacts.latest import marker_content, marker_sha256
from swampstore.clock import from_iso, to_micros
from swampstore.errors import SwampstoreError
from swampstore.files import disk_errors
from swampstore.index.base import Base
from swampstore.index.documents import Documents
from swampstore.index.errors import IndexDamagedError
from swampstore.index.fingerprints import is_named
from swampstore.index.format import Entry, RawEntries, decode_entry, iso_ms
from swampstore.index.meta import Meta, decode_meta
from swampstore.index.partitions import partition_of
from swampstore.index.path_kinds import is_marker, is_metadata, version_file
from swampstore.index.path_map import Names
from swampstore.index.remote_index import open_index
from swampstore.index.results import Progress, Step
from swampstore.index.state import same
from swampstore.index.version import IndexVersion
from swampstore.index.versions import known_version, version_of
from swampstore.index.workers import Deadline, in_parallel
from swampstore.layout import METADATA, RAW
from swampstore.marker import read_marker
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
from swampstore.stores.errors import CorruptObjectError, ObjectNotFoundError
from swampstore.sync.opening import OpenRepo

_CONCURRENCY = 10
# How often the index may change under our hands before nobody else may commit while we read it.
_LOOKS = 4
# How many commits are tried before what keeps changing is left out.
_COMMITS = 8
_PAUSE = 0.25


class _Commit(NamedTuple):
    """The files that an index names at one point. `shards` are empty where nobody can tell."""

    entries: Mapping[str, Entry]
    commit_seq: int | None
    shards: Mapping[str, str]
    damaged: list[LeftOut]

    @property
    def point(self) -> int:
        """Something that is equal for equal states."""
        return hash(frozenset((rel, one.sha256, one.size) for rel, one in self.entries.items()))


class RemoteSource:
    """The files of one namespace of a remote."""

    def __init__(
        self, repo: OpenRepo, previous: Manifest | None, uploads: Uploads, progress: Progress
    ) -> None:
        self._repo = repo
        self._store = repo.connection.store
        self._names = repo.connection.names
        self._documents = Documents(self._store, self._names, _CONCURRENCY)
        self._uploads = uploads
        self._progress = progress
        self._files = self._bytes = 0
        self._reused: frozenset[str] = frozenset()
        self._previous = previous if previous and self._is_usable(previous) else None

    def _is_usable(self, previous: Manifest) -> bool:
        """Whether a backup has all that the shards of its commit name for us.

        What was left out would not be missed if its shard was not read, nor what the settings of
        that time kept away.
        """
        routing = _routing(read_marker(self._repo.config.repo_dir))
        return (
            previous.origin.location == self._store.identity
            and not previous.left_out
            and _routing(previous.settings) == routing
        )

    def collect(self) -> Collected:
        """Bring everything to the place; return what there was at one commit."""
        last: tuple[int, set[str]] | None = None
        for attempt in range(1, _COMMITS):
            commit = self._commit()
            collected = self._take(commit)
            failed = {one.path for one in collected.left_out}
            if not failed or last == (commit.point, failed):
                return collected
            last = commit.point, failed
            time.sleep(_PAUSE * attempt)
        return self._take(self._commit())

    # The commit ------------------------------------------------------------------------------

    def _commit(self) -> _Commit:
        for _ in range(_LOOKS):
            fetched = self._documents.meta()
            try:
                meta = decode_meta(fetched.data) if fetched else None
                version = version_of(meta.version) if meta else self._version_without_meta()
            except IndexDamagedError:
                break
            if version.counts(None):
                found = self._monolith()
                if found is None:
                    break
                return self._decoded(found, None, {})
            if meta is None or not _names_shards(version, meta):
                break
            if (left := self._sharded(meta)) is not None:
                entries, etags = left
                return self._decoded(entries, meta.commit_seq, etags)
        return self._locked()

    def _version_without_meta(self) -> IndexVersion:
        """Return what the documents show: the one of before a migration may still be there."""
        return known_version(self._repo.connection.service.version_without_meta())

    def _monolith(self) -> RawEntries | None:
        """Return what the one document says that counts; it is a commit by itself."""
        fetched = self._documents.monolith()
        if fetched is None:
            return None
        try:
            doc = self._documents.parse_monolith(fetched.data, fetched.info.etag, None).doc
        except IndexDamagedError:
            return None
        return doc.entries if doc else None

    def _sharded(self, meta: Meta) -> tuple[RawEntries, Mapping[str, str]] | None:
        """Return the entries of one commit and the ETags of its shards.

        None if a shard is not the one that it left.
        """
        etags = self._unchanged(meta)
        self._reused = frozenset(etags)
        entries: RawEntries = {}
        for partition, found in self._documents.shards(set(meta.partitions) - etags.keys()):
            told = meta.shards[partition]
            if found.doc is None or found.etag is None or not is_named(told, found.etag):
                return None
            entries |= found.doc.entries
            etags[partition] = found.etag
        return entries, etags

    def _unchanged(self, meta: Meta) -> dict[str, str]:
        """Return the ETags of the shards that are what they were for the backup before.

        A listing tells them: what `_meta.json` has may be the fingerprint of two.
        """
        known = self._previous.origin.shards if self._previous else {}
        alike = [one for one in meta.partitions if same(known.get(one), meta.shards[one])]
        listed = self._documents.listed_shards() if alike else {}
        return {
            one: known[one] for one in alike if one in listed and known[one] == listed[one].etag
        }

    def _decoded(
        self, raw: RawEntries, commit_seq: int | None, shards: Mapping[str, str]
    ) -> _Commit:
        entries: dict[str, Entry] = {}
        damaged: list[LeftOut] = []
        for rel, one in raw.items():
            try:
                entries[rel] = decode_entry(rel, one)
            except IndexDamagedError as error:
                damaged.append(LeftOut(rel, error.message))
        if self._previous and self._reused:
            for file in self._previous.files:
                if partition_of(file.path) in self._reused:
                    entries[file.path] = Entry(file.size, "", file.sha256, _iso(file.mtime_ns))
        damaged += [LeftOut(one.rel, one.reason) for one in self._documents.damage]
        self._documents.damage = []
        self._reused = frozenset()
        return _Commit(entries, commit_seq, shards, damaged)

    def _locked(self) -> _Commit:
        """Read the index while nobody else may commit, and heal what is damaged in our copy."""
        config = self._repo.config
        with tempfile.TemporaryDirectory(prefix="swampstore-") as directory:
            names = Names(directory, config.namespace, config.routing)
            base = Base(directory, self._store.identity)
            try:
                index = open_index(self._store, names, base, clock=self._repo.clock)
                raw: RawEntries = {}
                with self._repo.locks.committing():
                    seq = index.refresh().commit_seq
                    for piece in index.changes(everything=True):
                        raw |= piece.entries
                self._documents.damage += index.damage
            finally:
                base.close()
        return self._decoded(raw, seq, {})

    # Its files ---------------------------------------------------------------------------------

    def _take(self, commit: _Commit) -> Collected:
        origin = Origin(self._store.identity, commit.commit_seq, commit.shards)
        collected = Collected(origin, left_out=list(commit.damaged))
        self._files = self._bytes = 0
        units: dict[str, dict[str, Entry]] = {}
        for rel, entry in commit.entries.items():
            if belongs(rel) and self._names.why_not(rel) is None:
                units.setdefault(unit_rel(rel), {})[rel] = entry
        todo: list[tuple[str, dict[str, Entry]]] = []
        for unit, entries in units.items():
            if is_version(unit, entries) and f"{unit}/{METADATA}" not in entries:
                collected.skipped.append(LeftOut(unit, "a version without its metadata"))
            elif is_version(unit, entries) and self._is_kept_apart(f"{unit}/{RAW}", entries):
                collected.skipped.append(LeftOut(unit, KEPT_APART))
            elif files := self._there(entries):
                self._count(collected.settle(unit, files, None))
            else:
                todo.append((unit, entries))
        self._fetch_all(todo, commit, collected)
        return collected

    def _is_kept_apart(self, raw: str, entries: Mapping[str, Entry]) -> bool:
        """Whether content is not there because it stays on its machine: it is not lost."""
        return raw not in entries and self._names.routing.is_local(raw)

    def _there(self, entries: Mapping[str, Entry]) -> list[FileEntry]:
        """Return the files of a unit if the place has all of them; none otherwise."""
        files = []
        for rel, entry in entries.items():
            if entry.sha256 is None or not self._uploads.has(entry.sha256, entry.size):
                return []
            files.append(_file(rel, entry, entry.sha256))
        return files

    def _count(self, files: list[FileEntry]) -> None:
        self._files += len(files)
        self._bytes += sum(file.size for file in files)
        self._progress(Step("backup", self._files, self._files, self._bytes, self._bytes))

    def _fetch_all(
        self, todo: list[tuple[str, dict[str, Entry]]], commit: _Commit, collected: Collected
    ) -> None:
        markers = _marker_contents(commit.entries, {unit for unit, _ in todo if is_marker(unit)})

        def fetch(task: tuple[str, dict[str, Entry]]) -> list[FileEntry]:
            return self._fetch_unit(task[0], task[1], markers)

        for (unit, _), files, error in in_parallel(fetch, todo, _CONCURRENCY, Deadline()):
            self._count(collected.settle(unit, files, error))

    def _fetch_unit(
        self, unit: str, entries: Mapping[str, Entry], markers: Mapping[str, bytes]
    ) -> list[FileEntry]:
        if not is_version(unit, entries):
            return [self._fetch(rel, entry, markers.get(rel))[0] for rel, entry in entries.items()]
        check_complete(unit, entries)
        files, metadata = [], b""
        for rel, entry in entries.items():
            file, data = self._fetch(rel, entry, None, keep=is_metadata(rel))
            files.append(file)
            metadata = data or metadata
        raw = next(file for file in files if file.path == f"{unit}/{RAW}")
        check_version(unit, metadata, raw.sha256, raw.size)
        return files

    def _fetch(
        self, rel: str, entry: Entry, content: bytes | None, *, keep: bool = False
    ) -> tuple[FileEntry, bytes]:
        """Bring a file to the place; with `keep`, return its content too."""
        if content is not None and entry.sha256 is not None:
            self._uploads.put(entry.sha256, len(content), content)
            return _file(rel, entry, entry.sha256), b""
        if not keep and entry.sha256 and self._uploads.has(entry.sha256, entry.size):
            return _file(rel, entry, entry.sha256), b""
        with self._downloaded(rel, entry) as body:
            body.seek(0)
            sha256 = entry.sha256 or hashlib.file_digest(body, "sha256").hexdigest()
            self._uploads.put(sha256, entry.size, body)
            body.seek(0)
            return _file(rel, entry, sha256), body.read() if keep else b""

    @contextlib.contextmanager
    def _downloaded(self, rel: str, entry: Entry) -> Iterator[io.BufferedRandom]:
        key = self._names.remote(rel)
        directory = self._repo.config.local_dir
        with contextlib.ExitStack() as stack:
            with disk_errors(directory):
                body = stack.enter_context(tempfile.TemporaryFile(dir=directory))
            try:
                self._store.download(key, body.fileno(), size=entry.size, sha256=entry.sha256)
            except ObjectNotFoundError:
                raise SourceDamagedError("the index names it, and it is not there") from None
            except CorruptObjectError as error:
                raise SourceDamagedError(error.message) from None
            yield body


def _routing(settings: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return what settings say of which files are in the datastore."""
    section = settings.get("datastore")
    found = section if isinstance(section, Mapping) else {}
    return found.get("directories"), found.get("exclude")


def _names_shards(version: IndexVersion, meta: Meta) -> bool:
    """Whether all that counts are shards, and `_meta.json` says how its commit left each."""
    return all(version.counts(one) and one in meta.shards for one in meta.partitions)


def _file(rel: str, entry: Entry, sha256: str) -> FileEntry:
    return FileEntry(rel, entry.size, sha256, _ns(entry.local_mtime))


def _ns(moment: str | None) -> int | None:
    """Return a time in nanoseconds, None if it is none."""
    try:
        return to_micros(from_iso(moment)) * 1000 if moment else None
    except (ValueError, OverflowError, SwampstoreError):
        return None


def _iso(mtime_ns: int | None) -> str | None:
    return None if mtime_ns is None else iso_ms(mtime_ns)


def _marker_contents(entries: Mapping[str, Entry], markers: Collection[str]) -> dict[str, bytes]:
    """Return the content of markers that follows from their hashes: it is one of few numbers.

    A marker is replaced by every save, so the one of this commit may not be on the store any more.
    """
    versions: dict[str, list[int]] = {marker.rpartition("/")[0]: [] for marker in markers}
    for rel in entries if markers else ():
        found = None if is_marker(rel) else version_file(rel)
        if found and found.name_rel in versions and is_metadata(rel):
            versions[found.name_rel].append(found.version)
    contents: dict[str, bytes] = {}
    for marker in markers:
        for version in versions[marker.rpartition("/")[0]]:
            if marker_sha256(version) == entries[marker].sha256:
                contents[marker] = marker_content(version)
    return contents
