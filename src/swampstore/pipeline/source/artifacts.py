"""The table of artifacts: one row per version, the same that the catalog has, and its content."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from swampstore.artifacts.metadata import is_json
from swampstore.catalog.schema import Row
from swampstore.index.path_map import Names, is_safe
from swampstore.layout import METADATA
from swampstore.notices import notice
from swampstore.pipeline import schemas
from swampstore.pipeline.places import Place
from swampstore.pipeline.planning import each
from swampstore.pipeline.schemas import variant_of
from swampstore.pipeline.snapshots.rows_file import SCHEMA, remembered
from swampstore.pipeline.source.lazily import content_of
from swampstore.pipeline.source.remembered import Memory, memories, memories_at, recall
from swampstore.pipeline.source.scan import EVERYTHING, Conditions, Wanted, batches, choices
from swampstore.pipeline.source.slices import (
    File,
    Shards,
    Slice,
    files_of,
    is_of_version,
    loads,
    slices,
)
from swampstore.pipeline.source.versions import (
    Name,
    Versions,
    by_name,
    columns_of,
    look,
    versions_of,
)
from swampstore.stores.protocol import Store

if TYPE_CHECKING:
    from swampstore.pipeline.source.commits import Brought


LONGEST_CONTENT = 64 << 20
_DATA = "data/"
_PARTITION = "data--"
_COLUMNS = ("store", *Row._fields)
_HOW_TO_READ_LESS = (
    "`swampstore pipeline catalog --refresh` makes that cheap, and filters choose what is read of"
    " swampstore.pipeline.load(spark, ...).artifacts()"
)


@dataclass(frozen=True)
class Artifacts:
    """One row per version. Only what is asked for is fetched, and only of rows that are wanted.

    It has the `columns` that are named, in its own order, if any are. With `located` rows say what
    the index knows of their content, for `lazily` to fetch it. With `as_of` they are those of a
    snapshot that is kept. `is_bare` says that filters cannot choose what is read although nobody
    said so: whoever pays for that is told.
    """

    columns: tuple[str, ...] | None = None
    content: bool = False
    attributes: bool = False
    longest: int = LONGEST_CONTENT
    located: bool = False
    snapshot: bool = True
    as_of: str | None = None
    is_bare: bool = False
    wanted: Wanted = EVERYTHING

    @property
    def schema(self) -> str:
        """The columns, as SQL writes them."""
        columns = schemas.ARTIFACTS.split(", ")
        if self.columns is not None:
            columns = [one for one in columns if one.split()[0] in self.columns]
        columns += [schemas.LOCATED] if self.located else []
        columns += [schemas.CONTENT] if self.content else []
        columns += [schemas.ATTRIBUTES] if self.attributes else []
        return ", ".join(columns)

    def narrowed(self, wanted: Wanted) -> Artifacts:
        """Return the table that reads only what is needed for some rows."""
        return replace(self, wanted=wanted)

    def plan(self, place: Place, store: Store, tasks: int) -> Iterable[Slice | Memory]:
        """Choose the parts of a snapshot, the shards, or the directories, that rows can be in."""
        alternatives = self.wanted.alternatives

        def may_hold(partition: str) -> bool:
            return any(_may_hold(one, partition) for one in alternatives)

        if self.as_of is not None:
            return memories_at(place, store, tasks, may_hold, self.as_of)
        if self.snapshot:
            remembered = memories(place, store, tasks, may_hold)
            if remembered is not None:
                return remembered
        if self.is_bare:
            notice("%s is read as a whole, version by version: %s", place, _HOW_TO_READ_LESS)
        return slices(place, store, tasks, below=_directories(alternatives), may_hold=may_hold)

    def rows(self, place: Place, piece: Slice | Memory, store: Store) -> Iterator[tuple[Any, ...]]:
        """Read the wanted versions of a piece, in no order."""
        if not isinstance(piece, Memory):
            yield from self._read(place, piece, store, only=None)
            return
        for one in recall(place, piece, store, self.wanted):
            recalled = self._recalled(place, one.rows)
            names = self._names(place, one.files, None)
            found = chain(recalled, self._found(place, names, one.versions))
            yield from self._with_content(place, store, found)

    def batches(
        self, place: Place, piece: Slice | Memory, store: Store, schema: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        """Read the same as columns: those of a snapshot are never taken apart."""
        if not isinstance(piece, Memory) or self.content or self.attributes:
            yield from batches(self.rows(place, piece, store), schema)
            return
        needed = {name for name in schema.names if name in SCHEMA.names}
        for one in recall(place, piece, store, self.wanted, needed):
            yield from self._as_they_are(place, one.rows, schema)
            found = self._found(place, self._names(place, one.files, None), one.versions)
            yield from batches(self._with_content(place, store, found), schema)

    def _as_they_are(
        self, place: Place, rows: pa.Table, schema: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        of_place = {"store": place.identity, "namespace": place.namespace}
        columns = [
            pa.repeat(of_place[name], rows.num_rows) if name in of_place else rows[name]
            for name in schema.names
        ]
        yield from pa.table(columns, names=schema.names).cast(schema).to_batches()

    def _recalled(self, place: Place, rows: pa.Table) -> Iterator[_Found]:
        for one in remembered(rows, place.namespace):
            columns = columns_of(place, one.row)
            if columns and self._is_wanted(columns):
                yield _Found(columns, one.row, one.raw)

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
        groups = files_of(place, piece, store, is_of_version)
        names = (name for files in groups for name in self._names(place, files, only))
        found = self._found(place, names, versions_of(place, store))
        yield from self._with_content(place, store, found)

    def _with_content(
        self, place: Place, store: Store, found: Iterable[_Found]
    ) -> Iterator[tuple[Any, ...]]:
        if self.located:
            found = (one._replace(columns=one.columns + _location(one.raw)) for one in found)
        if not (self.content or self.attributes):
            yield from (self._chosen(columns) for columns, _, _ in found)
            return
        names_there = place.names()
        for load in loads(found, lambda one: raw.size if (raw := self._fetched(one)) else 0):
            hydrated = each(place, lambda one: self._hydrated(store, names_there, one), load)
            yield from (self._chosen(one.columns + extra) for one, extra in hydrated)

    def _chosen(self, row: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return what a row has of the columns that were asked for."""
        if self.columns is None:
            return row
        asked = (row[number] for number, name in enumerate(_COLUMNS) if name in self.columns)
        return (*asked, *row[len(_COLUMNS) :])

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
        for ref, stored in by_name(files).items():
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
        data = content_of(store, names.remote(raw.rel), raw.sha256) if raw else None
        extra: tuple[Any, ...] = (data,) if self.content else ()
        if self.attributes:
            document = data if is_json(one.row.content_type) else None
            extra += (None if document is None else variant_of(document),)
        return extra


class _Found(NamedTuple):
    columns: tuple[Any, ...]
    row: Row
    raw: File | None


def _location(raw: File | None) -> tuple[int | None, str | None]:
    return (None, None) if raw is None else (raw.size, raw.sha256)


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
