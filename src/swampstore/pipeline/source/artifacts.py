"""The table of artifacts: one row per version, the same that the catalog has, and its content."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from swampstore.artifacts import versions as on_disk
from swampstore.artifacts.latest import LatestOfSteps, latest_of, parse_marker
from swampstore.artifacts.metadata import is_json
from swampstore.catalog.disk_rows import row_of
from swampstore.catalog.schema import Row
from swampstore.clock import from_iso
from swampstore.errors import MetadataError
from swampstore.files import Tree
from swampstore.index.path_kinds import version_file
from swampstore.index.path_map import Names, is_safe
from swampstore.layout import METADATA, RAW, DataRef, ref_of
from swampstore.notices import notice
from swampstore.pipeline import schemas
from swampstore.pipeline.places import Place
from swampstore.pipeline.planning import each
from swampstore.pipeline.schemas import variant_of
from swampstore.pipeline.source.index import (
    File,
    Shards,
    Slice,
    files_of,
    loads,
    slices,
)
from swampstore.pipeline.source.scan import EVERYTHING, Conditions, Wanted, choices
from swampstore.stores.errors import CorruptObjectError, ObjectNotFoundError
from swampstore.stores.protocol import Store

if TYPE_CHECKING:
    from swampstore.pipeline.source.commits import Brought


@dataclass(frozen=True)
class StoredVersions:
    """Versions as objects of a store. What is deferred never gets there."""

    store: Store
    names: Names

    def marker(self, ref: DataRef) -> int | None:
        """Return the version that a name's marker names, None if it is absent or nonsense."""
        data = self._read(ref.latest_rel)
        return None if data is None else parse_marker(data)

    def row(self, ref: DataRef, version: int) -> Row | None:
        """Return a version's row, None if it is gone; raise MetadataError if it is damaged."""
        key = self.names.remote(ref.file_rel(version, METADATA))
        data = self._read(ref.file_rel(version, METADATA))
        if data is None:
            return None
        metadata = on_disk.parse_metadata(data, ref, version, key)
        return row_of(self.names.namespace, ref, metadata, deferred=False)

    def is_deferred(self, ref: DataRef, version: int) -> bool:
        """Whether a version was written to be committed later, and was not yet."""
        del ref, version
        return False

    def _read(self, rel: str) -> bytes | None:
        try:
            return self.store.get(self.names.remote(rel)).data
        except ObjectNotFoundError:
            return None


@dataclass(frozen=True)
class VersionsInPlace:
    """Versions as files of a directory that is used in place, read just as the catalog does."""

    tree: Tree
    namespace: str

    def marker(self, ref: DataRef) -> int | None:
        """See StoredVersions.marker."""
        return on_disk.read_marker(self.tree, ref)

    def row(self, ref: DataRef, version: int) -> Row | None:
        """See StoredVersions.row."""
        metadata = on_disk.read_metadata(self.tree, ref, version)
        if metadata is None:
            return None
        deferred = self.is_deferred(ref, version)
        return row_of(self.namespace, ref, metadata, deferred=deferred)

    def is_deferred(self, ref: DataRef, version: int) -> bool:
        """See StoredVersions.is_deferred."""
        return on_disk.is_deferred(self.tree, ref, version)


Versions = StoredVersions | VersionsInPlace


def versions_of(place: Place, store: Store) -> Versions:
    """Return where the versions of a place are described."""
    if place.indexed or place.root is None:
        return StoredVersions(store, place.names())
    base = os.path.join(place.root, place.namespace).removesuffix("/")
    return VersionsInPlace(Tree.only_read(base), place.namespace)


def look(versions: Versions, name: Name, version: int | None) -> Row | int | None:
    """Return a name's marker (without a version) or a version's row; damage is only reported."""
    if version is None:
        return versions.marker(name.ref)
    try:
        return versions.row(name.ref, version)
    except MetadataError as error:
        notice("%s", error.message)
        return None


class Name:
    """A data name while its marker and its metadata arrive, in any order.

    `stored` has the content of every version there is. `looked_at` are the wanted ones, and the
    newest: it nearly always settles whether older ones are the latest of their step.
    """

    def __init__(
        self, ref: DataRef, stored: Mapping[int, File | None], wanted: Collection[int]
    ) -> None:
        self.ref = ref
        self.stored = stored
        self.looked_at = frozenset(wanted) | {max(stored)}
        self._wanted = frozenset(wanted)
        self._marker: int | None = None
        self._rows: dict[int, Row] = {}
        self._arrived = 0

    def is_complete_with(self, version: int | None, found: Row | int | None) -> bool:
        """Take the marker (without a version) or a row; return whether all has arrived."""
        if isinstance(found, Row):
            self._rows[found.version] = found
        elif version is None:
            self._marker = found
        self._arrived += 1
        return self._arrived == 1 + len(self.looked_at)

    def settled(self, versions: Versions) -> Iterator[tuple[Row, File | None]]:
        """Yield the wanted rows, newest first, with what the catalog says about being latest."""
        steps = LatestOfSteps(self._effective_marker(versions))
        others = sorted(version for version in self.stored if version not in self.looked_at)
        for version in sorted(self._rows, reverse=True):
            row = self._rows[version]
            deferred = bool(row.deferred)
            if steps.counts(version, deferred=deferred):
                while others and others[-1] > version and not steps.knows(row.step_name):
                    self._show(steps, versions, others.pop())
            is_latest = steps.is_latest(version, row.step_name, deferred=deferred)
            if version in self._wanted:
                yield row._replace(is_latest=int(is_latest)), self.stored[version]

    def _effective_marker(self, versions: Versions) -> int:
        if self._marker is not None:
            return self._marker
        return latest_of(self.stored, lambda one: not versions.is_deferred(self.ref, one))

    def _show(self, steps: LatestOfSteps, versions: Versions, version: int) -> None:
        """Let a version that nobody wants be the latest one of its step, if it is."""
        if not steps.counts(version, deferred=False):
            return
        row = look(versions, self, version)
        if isinstance(row, Row):
            steps.is_latest(version, row.step_name, deferred=bool(row.deferred))


LONGEST_CONTENT = 64 << 20
_DATA = "data/"
_PARTITION = "data--"
_COLUMNS = ("store", *Row._fields)
_LARGEST = 2**63 - 1


@dataclass(frozen=True)
class Artifacts:
    """One row per version. Only what is asked for is fetched, and only of rows that are wanted."""

    content: bool = False
    attributes: bool = False
    longest: int = LONGEST_CONTENT
    wanted: Wanted = EVERYTHING

    @property
    def schema(self) -> str:
        """The columns, as SQL writes them."""
        columns = [schemas.ARTIFACTS]
        columns += [schemas.CONTENT] if self.content else []
        columns += [schemas.ATTRIBUTES] if self.attributes else []
        return ", ".join(columns)

    def narrowed(self, wanted: Wanted) -> Artifacts:
        """Return the table that reads only what is needed for some rows."""
        return replace(self, wanted=wanted)

    def plan(self, place: Place, store: Store, tasks: int) -> Iterable[Slice]:
        """Choose the shards, or the directories, that wanted rows can be in."""
        alternatives = self.wanted.alternatives
        return slices(
            place,
            store,
            tasks,
            below=_directories(alternatives),
            may_hold=lambda partition: any(_may_hold(one, partition) for one in alternatives),
        )

    def rows(self, place: Place, piece: Slice, store: Store) -> Iterator[tuple[Any, ...]]:
        """Read the wanted versions of a slice, in no order."""
        yield from self._read(place, piece, store, only=None)

    def brought_rows(
        self, place: Place, entries: Iterable[Brought], store: Store
    ) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of versions whose metadata was committed, as they are by now."""
        rels = {(one.partition, one.rel) for one in entries if one.rel.endswith(f"/{METADATA}")}
        piece = Shards(tuple(sorted({partition for partition, _ in rels})))
        yield from self._read(place, piece, store, only=frozenset(rel for _, rel in rels))

    def _read(
        self, place: Place, piece: Slice, store: Store, *, only: Container[str] | None
    ) -> Iterator[tuple[Any, ...]]:
        groups = files_of(place, piece, store, _is_of_version)
        names = (name for files in groups for name in self._names(place, files, only))
        found = self._found(place, names, versions_of(place, store))
        if not (self.content or self.attributes):
            yield from (columns for columns, _, _ in found)
            return
        names_there = place.names()
        for load in loads(found, lambda one: raw.size if (raw := self._fetched(one)) else 0):
            hydrated = each(place, lambda one: self._hydrated(store, names_there, one), load)
            yield from (one.columns + extra for one, extra in hydrated)

    def _found(self, place: Place, names: Iterable[Name], versions: Versions) -> Iterator[_Found]:
        jobs = ((name, version) for name in names for version in (None, *name.looked_at))
        for (name, version), found in each(place, lambda job: look(versions, *job), jobs):
            if not name.is_complete_with(version, found):
                continue
            for row, raw in name.settled(versions):
                columns = columns_of(place, row)
                if columns and self._is_wanted(columns):
                    yield _Found(columns, row, raw)

    def _names(
        self, place: Place, files: Iterable[File], only: Container[str] | None
    ) -> Iterator[Name]:
        for ref, stored in _by_name(files).items():
            known: dict[str, object] = {
                "store": place.identity,
                "namespace": place.namespace,
                "type_normalized": ref.model.type,
                "model_id": ref.model.id,
                "data_name": ref.name,
            }
            wanted = [
                version
                for version in stored
                if self.wanted.admits(known | {"version": version})
                and (only is None or ref.file_rel(version, METADATA) in only)
            ]
            if wanted:
                yield Name(ref, stored, wanted)

    def _is_wanted(self, columns: tuple[Any, ...]) -> bool:
        if self.wanted.is_everything:
            return True
        return self.wanted.admits(dict(zip(_COLUMNS, columns, strict=True)))

    def _fetched(self, one: _Found) -> File | None:
        """Return the content that is fetched for a row."""
        is_wanted = self.content or is_json(one.row.content_type)
        return one.raw if one.raw and is_wanted and one.raw.size <= self.longest else None

    def _hydrated(self, store: Store, names: Names, one: _Found) -> tuple[Any, ...]:
        raw = self._fetched(one)
        data = _content(store, names.remote(raw.rel), raw.sha256) if raw else None
        extra: tuple[Any, ...] = (data,) if self.content else ()
        if self.attributes:
            document = data if is_json(one.row.content_type) else None
            extra += (None if document is None else variant_of(document),)
        return extra


class _Found(NamedTuple):
    columns: tuple[Any, ...]
    row: Row
    raw: File | None


# Which files -------------------------------------------------------------------------------


def _directories(alternatives: Sequence[Conditions]) -> list[str]:
    """Return the directories that wanted versions can be in, none inside another."""
    found: set[str] = set()
    for conditions in alternatives:
        types = choices(conditions, "type_normalized")
        models = choices(conditions, "model_id")
        if types is None:
            return [_DATA]
        ends = ("",) if models is None else tuple(f"{one}/" for one in models)
        found.update(f"{_DATA}{one}/{end}" for one in types for end in ends)
    safe = sorted(one for one in found if is_safe(one.removesuffix("/")))
    return [one for one in safe if not any(one != it and one.startswith(it) for it in safe)]


def _may_hold(conditions: Conditions, partition: str) -> bool:
    """Whether a partition can name files of versions that fulfil the conditions."""
    if not partition.startswith(_PARTITION):
        return False
    types = choices(conditions, "type_normalized")
    if types is not None and not partition.startswith(tuple(map(_partition_start, types))):
        return False
    models = choices(conditions, "model_id")
    if models is not None and not partition.endswith(tuple(f"--{one}" for one in models)):
        return False
    return all(
        partition.startswith(_partition_start(one.operand).removesuffix("--"))
        for one in conditions
        if one.column == "type_normalized" and one.test == "starts with"
        if isinstance(one.operand, str)
    )


def _partition_start(type_normalized: str) -> str:
    return f"{_PARTITION}{type_normalized.replace('/', '--')}--"


def _is_of_version(rel: str) -> bool:
    return rel.startswith(_DATA) and rel.endswith((f"/{METADATA}", f"/{RAW}"))


def _by_name(files: Iterable[File]) -> dict[DataRef, dict[int, File | None]]:
    """Return the content of every version that has metadata, by data name."""
    stored: dict[str, dict[int, File | None]] = {}
    contents: dict[tuple[str, int], File] = {}
    for file in files:
        found = version_file(file.rel)
        if found is None:
            continue
        if file.rel.endswith(METADATA):
            stored.setdefault(found.name_rel, {})[found.version] = None
        else:
            contents[found] = file
    return {
        ref_of(name): {version: contents.get((name, version)) for version in versions}
        for name, versions in stored.items()
    }


# What is in them -------------------------------------------------------------------------


def _content(store: Store, key: str, sha256: str | None) -> bytes | None:
    try:
        data = store.get(key).data
    except ObjectNotFoundError:
        notice("%s is not in %s: its content is NULL", key, store.identity)
        return None
    if sha256 is not None and hashlib.sha256(data).hexdigest() != sha256:
        raise CorruptObjectError(
            f"{key} of {store.identity} is not what the index says: its SHA-256 is another",
            hint="Somebody may be pushing it: try again. If it stays so, run"
            " `swampstore pipeline verify`.",
        )
    return data


# As columns --------------------------------------------------------------------------------


def columns_of(place: Place, row: Row) -> tuple[Any, ...] | None:
    """Return a row as Spark has it; None, and a notice, if a number is beyond what Spark holds."""
    if row.size > _LARGEST:
        notice("%s version %d claims a size of %d", row.ref, row.version, row.size)
        return None
    typed = row._replace(
        is_latest=bool(row.is_latest),
        deferred=bool(row.deferred),
        streaming=bool(row.streaming),
        created_at=_moment(row.created_at),  # type: ignore[arg-type]  # typed as Spark has it
        tags=list(json.loads(row.tags).items()),  # type: ignore[arg-type]  # the same
    )
    return (place.identity, *typed)


def _moment(text: str) -> datetime | None:
    try:
        return from_iso(text).astimezone(UTC)
    except (ValueError, OverflowError):  # digits in the right places need not be a date
        return None
