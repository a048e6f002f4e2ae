"""What is garbage, found out in this process where little is stored: by the same planner."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

from swampstore.catalog.schema import Row
from swampstore.clock import from_micros, to_micros
from swampstore.index.format import Entry
from swampstore.index.path_kinds import unit_of
from swampstore.layout import WORKFLOW_RUN_REL, WORKFLOW_RUNS, DataRef, ModelRef
from swampstore.pipeline.gc.candidates import Candidate, Candidates, files_of_name, fingerprint
from swampstore.pipeline.gc.planner import NAME, SAID, Routings, decisions, routings_of
from swampstore.pipeline.places import Place
from swampstore.pipeline.source.artifacts import Artifacts
from swampstore.pipeline.source.index import Index
from swampstore.pipeline.spool import Spool
from swampstore.retention.rules import Doubts, Removal, VersionFacts

_COLUMNS = ("store", *Row._fields)


class Decision(NamedTuple):
    """A version that goes, or with `cause` a reason why that cannot be told of some names."""

    store: str
    namespace: str
    model_type: str
    model_id: str
    name: str
    version: int
    created: int
    size: int
    reason: str | None
    cause: str | None
    names: int
    example: str


def plan_here(places: Sequence[Place], now: datetime) -> tuple[Candidates, list[str]]:
    """Return what is garbage at the time `now`, by store and namespace, and what is in doubt."""
    found: Candidates = {}
    told: list[str] = []
    for place in places:
        candidates, warnings = _planned(place, now)
        if candidates:
            found[place.identity, place.namespace] = Spool(candidates)
        told += [f"{place}: {warning}" for warning in warnings]
    return found, told


def _planned(place: Place, now: datetime) -> tuple[list[Candidate], list[str]]:
    with place.open() as store:
        index, table = Index(), Artifacts()
        said = [row for one in index.plan(place, store, 1) for row in index.rows(place, one, store)]
        rows = [row for one in table.plan(place, store, 1) for row in table.rows(place, one, store)]
    entries: dict[str, Entry] = {}
    for _, _, _, _, rel, size, modified, sha256, mtime, commit_seq, _, problem in said:
        if problem is None and rel is not None:
            entries[rel] = Entry(size, modified, sha256, mtime, commit_seq)
    damaged = sum(row[-1] is not None for row in said)
    # A record whose entry is damaged is one too: what belongs to its run stays.
    paths = {row[4] for row in said if row[4] is not None}
    removals = decided((named(row) for row in rows), paths, now, routings_of([place]))
    doubts = Doubts("data name")
    for one in removals:
        if one.cause is not None:
            doubts.add(one.cause, one.example, one.names)
    warnings = list(doubts.warnings())
    if damaged:
        warnings.append(f"{damaged} entries or documents of the index cannot be understood")
    return list(_candidates([one for one in removals if one.cause is None], entries)), warnings


def named(row: tuple[Any, ...]) -> dict[str, Any]:
    """Return a row of the table of artifacts by the names of its columns."""
    return dict(zip(_COLUMNS, row, strict=True))


def decided(
    rows: Iterable[Mapping[str, Any]], paths: Iterable[str], now: datetime, routings: Routings
) -> list[Decision]:
    """Return what is decided about rows of the table of artifacts, if these paths are stored."""
    records = {rel for rel in paths if rel.startswith(f"{WORKFLOW_RUNS}/")}
    known = sorted(_given(rows, records), key=itemgetter(slice(len(NAME) + 1)))
    return [Decision(*row) for row in decisions(known, now, routings)]


def _given(rows: Iterable[Mapping[str, Any]], records: set[str]) -> Iterator[tuple[Any, ...]]:
    """Yield what the planner must know of each version."""
    for row in rows:
        at = row["created_at"]
        created = None if at is None else to_micros(at)
        record = WORKFLOW_RUN_REL.format(row["workflow_id"], row["workflow_run_id"])
        *said, size = (row[name] for name in (*NAME, *SAID))
        yield (*said, size or 0, created, True if record in records else None)


def _candidates(removals: Sequence[Decision], entries: dict[str, Entry]) -> Iterator[Candidate]:
    """Yield what goes of each name, with what the index says of it."""
    by_name: dict[str, list[tuple[str, int]]] = {}
    wanted = {_ref(one).rel for one in removals}
    for rel in entries:
        name_rel = unit_of(rel)
        if name_rel in wanted:
            by_name.setdefault(name_rel, []).extend(files_of_name([rel], name_rel))
    ordered = sorted(removals, key=lambda one: (_ref(one).rel, one.reason or "", one.version))
    for (name_rel, reason), group in groupby(ordered, lambda one: (_ref(one).rel, one.reason)):
        gone = list(group)
        versions = tuple(
            VersionFacts(one.version, from_micros(one.created), one.size) for one in gone
        )
        numbers = {one.version for one in gone}
        units: dict[int, dict[str, Entry]] = {}
        for rel, version in by_name.get(name_rel, ()):
            if reason is not None:
                units.setdefault(0, {})[rel] = entries[rel]
            elif version in numbers:
                units.setdefault(version, {})[rel] = entries[rel]
        if not units:
            continue
        first = gone[0]
        removal = Removal(first.model_type, first.model_id, first.name, versions, reason)
        yield Candidate(removal, {unit: fingerprint(some) for unit, some in units.items()})


def _ref(one: Decision) -> DataRef:
    return DataRef(ModelRef(one.model_type, one.model_id), one.name)
