"""The figures of a report of little data, summed up in this process: no JVM is started for them.

They are those of `figures`, by whose words they are called; a test compares both.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from operator import attrgetter
from typing import Any, NamedTuple

from swampstore.catalog.schema import ACTIVE
from swampstore.pipeline.gc.local_engine import Decision, decided, named
from swampstore.pipeline.gc.planner import routings_of
from swampstore.pipeline.places import Place
from swampstore.pipeline.report.figures import (
    DIMENSIONS,
    EXAMPLES,
    GARBAGE_DIMENSIONS,
    HEAD,
    METHODS,
    NAME,
    OLD_VERSIONS,
    Heads,
    SummaryReader,
    Sums,
)
from swampstore.pipeline.report.summary import (
    COLOURED,
    RUN_DAYS,
    Addition,
    Copy,
    Duplicate,
    MethodRuns,
    RunDay,
    Source,
    StoredVersion,
    Summary,
    Usage,
)
from swampstore.pipeline.schemas import OUTPUTS
from swampstore.pipeline.source.artifacts import Artifacts
from swampstore.pipeline.source.index import Index
from swampstore.pipeline.source.objects import Objects
from swampstore.pipeline.source.records import Outputs

_OUTPUT_COLUMNS = [column.split()[0] for column in OUTPUTS.split(", ")]
_REL = {True: 4, False: 2}  # the column of the path in a table of entries, and of objects
_NAME_OF = attrgetter(*NAME)
_COPY_OF = attrgetter(*Copy._fields)
_STORED_OF = attrgetter(*StoredVersion._fields)
_BEFORE_ALL = datetime.min.replace(tzinfo=UTC)


class Version(NamedTuple):
    """What a report needs of a version; `state` is the lifecycle of its whole name."""

    store: str
    namespace: str
    type_normalized: str
    model_id: str
    data_name: str
    version: int
    model_name: str
    is_latest: bool
    lifecycle: str
    content_type: str
    owner_type: str
    owner_ref: str
    workflow_name: str
    size: int
    checksum: str
    created_at: datetime | None
    state: str = ""
    rule: str = ""

    @property
    def day(self) -> date | None:
        """The day, in UTC, on which it was written."""
        return self.created_at.astimezone(UTC).date() if self.created_at else None


class _Last(NamedTuple):
    created_at: datetime
    version: int
    model_name: str


class _Used(NamedTuple):
    """A row of the table `usage`."""

    key: tuple[Any, ...]
    names: int
    versions: int
    bytes: int
    latest_bytes: int
    last: _Last


class Gathered(NamedTuple):
    """What a report is made of: rows by the names of their columns, and the paths of records."""

    artifacts: Sequence[Mapping[str, Any]]
    records: Iterable[tuple[str, str, str]]
    outputs: Iterable[Mapping[str, Any]]


def summary_here(places: Sequence[Place], now: datetime) -> Summary:
    """Return what a report says about some places as of `now`."""
    artifacts: list[Mapping[str, Any]] = []
    records: list[tuple[str, str, str]] = []
    outputs: list[Mapping[str, Any]] = []
    for place in places:
        with place.open() as store:

            def rows(table: Any, place: Place = place, store: Any = store) -> list[tuple[Any, ...]]:
                plan = table.plan(place, store, 1)
                return [row for piece in plan for row in table.rows(place, piece, store)]

            artifacts += map(named, rows(Artifacts()))
            paths = rows(Index() if place.indexed else Objects())
            outputs += [dict(zip(_OUTPUT_COLUMNS, row, strict=True)) for row in rows(Outputs())]
        rel = _REL[place.indexed]
        records += [(row[0], row[1], row[rel]) for row in paths if row[rel] is not None]
    return summed_up(places, Gathered(artifacts, records, outputs), now)


def summed_up(places: Sequence[Place], gathered: Gathered, now: datetime) -> Summary:
    """Return what a report says about rows of places that are in memory."""
    sources = [Source(place.identity, place.namespace) for place in places]
    stored: dict[Source, list[Mapping[str, Any]]] = {source: [] for source in sources}
    for row in gathered.artifacts:
        stored[Source(row["store"], row["namespace"])].append(row)
    records: dict[Source, list[str]] = {source: [] for source in sources}
    for store, namespace, rel in gathered.records:
        records[Source(store, namespace)].append(rel)
    versions: list[Version] = []
    candidates: list[Version] = []
    routings = routings_of(places)
    for source, rows in stored.items():
        found = [_version(row) for row in rows]
        versions += found
        candidates += _candidates(found, decided(rows, records[source], now, routings))
    days, methods = _runs(gathered.outputs, now)
    summary = SummaryHere(versions, candidates).summary(sources, now)
    return replace(summary, run_days=days, methods=methods)


def _version(row: Mapping[str, Any]) -> Version:
    known = {name: row[name] for name in Version._fields[:-2]}
    return Version(**known | {"size": row["size"] or 0})


def _candidates(versions: Iterable[Version], decisions: Iterable[Decision]) -> Iterator[Version]:
    """Yield what garbage collection would remove, with the rule that says so."""
    rules = {
        (one.store, one.namespace, one.model_type, one.model_id, one.name, one.version): one.reason
        for one in decisions
        if one.cause is None
    }
    for one in versions:
        key = (*_NAME_OF(one), one.version)
        if key in rules:
            # As in the table: the newest of what goes is nobody's latest, and has no model's name.
            yield one._replace(rule=rules[key] or OLD_VERSIONS, is_latest=False, model_name="")


class SummaryHere(SummaryReader):
    """Sums versions up, and those that would go."""

    def __init__(self, versions: Iterable[Version], candidates: Iterable[Version]) -> None:
        self._stored = list(_with_state(versions))
        self._usage = _usage(self._stored, DIMENSIONS) | _usage(candidates, GARBAGE_DIMENSIONS)
        self._copies = sorted(
            _duplicates(self._stored), key=lambda one: (-one.wasted_bytes, one.checksum)
        )

    def _heads(self) -> Heads:
        heads: Heads = defaultdict(list)
        for dimension, rows in self._usage.items():
            if dimension != "day":
                heads[dimension] = sorted(rows, key=lambda row: (-row.bytes, row.key))[:HEAD]
        return heads

    def _sums(self) -> dict[str, Sums]:
        found = {name: _together(row[1:5] for row in rows) for name, rows in self._usage.items()}
        copies = ((one.names, one.copies, one.wasted_bytes, one.bytes) for one in self._copies)
        return found | {"copy": _together(copies)}

    def _additions(self, namespaces: Sequence[Usage]) -> list[Addition]:
        largest = {row.key for row in namespaces[:COLOURED]}
        added: dict[tuple[Source | None, date | None], list[int]] = defaultdict(lambda: [0, 0])
        for row in self._usage["day"]:
            *place, day = row.key
            source = Source(*place) if tuple(place) in largest else None
            added[source, day][0] += row.versions
            added[source, day][1] += row.bytes
        return [Addition(*key, *sums) for key, sums in added.items()]

    def _largest(self) -> list[StoredVersion]:
        order = sorted(self._stored, key=lambda one: (-one.size, _NAME_OF(one), one.version))
        return [StoredVersion(*_STORED_OF(one)) for one in order[:HEAD]]

    def _oldest(self) -> list[StoredVersion]:
        found = [one for one in self._stored if one.is_latest and one.lifecycle == ACTIVE]
        dated = [(one.created_at, _NAME_OF(one), one) for one in found if one.created_at]
        return [StoredVersion(*_STORED_OF(one)) for *_, one in sorted(dated)[:HEAD]]

    def _duplicates(self) -> list[Duplicate]:
        return self._copies[:HEAD]


def _together(rows: Iterable[tuple[int, ...]]) -> Sums:
    found = list(rows)
    return Sums._make((*map(sum, zip(*found, strict=True)), len(found))) if found else Sums()


def _with_state(versions: Iterable[Version]) -> Iterator[Version]:
    names: dict[tuple[str, ...], list[Version]] = defaultdict(list)
    for one in versions:
        names[_NAME_OF(one)].append(one)
    for some in names.values():
        newest = max(some, key=lambda one: (one.is_latest, one.version))
        yield from (one._replace(state=newest.lifecycle) for one in some)


def _usage(
    versions: Iterable[Version], dimensions: dict[str, tuple[str, ...]]
) -> dict[str, list[_Used]]:
    """Count every version in all dimensions; where it has no workflow, it counts in none."""
    groups: dict[str, dict[tuple[Any, ...], list[Version]]] = {one: {} for one in dimensions}
    for one in versions:
        for dimension, columns in dimensions.items():
            key = tuple(getattr(one, column) for column in columns)
            if dimension != "workflow" or key[0] != "":
                groups[dimension].setdefault(key, []).append(one)
    return {
        dimension: [_used(key, some) for key, some in found.items()]
        for dimension, found in groups.items()
    }


def _used(key: tuple[Any, ...], versions: Sequence[Version]) -> _Used:
    return _Used(
        key,
        len({_NAME_OF(one) for one in versions}),
        len(versions),
        sum(one.size for one in versions),
        sum(one.size for one in versions if one.is_latest),
        max(_Last(one.created_at or _BEFORE_ALL, one.version, one.model_name) for one in versions),
    )


def _duplicates(versions: Iterable[Version]) -> Iterator[Duplicate]:
    contents: dict[str, list[Version]] = defaultdict(list)
    for one in versions:
        if one.checksum and one.size > 0:
            contents[one.checksum].append(one)
    for checksum, some in contents.items():
        if len(some) > 1:
            some.sort(key=lambda one: (_NAME_OF(one), one.version))
            size = sum(one.size for one in some)
            first = sorted(
                some[:EXAMPLES], key=lambda one: (_NAME_OF(one), one.model_name, one.version)
            )
            yield Duplicate(
                checksum,
                len(some),
                len({_NAME_OF(one) for one in some}),
                size,
                size - max(one.size for one in some),
                tuple(Copy(*_COPY_OF(one)) for one in first),
            )


def _runs(
    outputs: Iterable[Mapping[str, Any]], now: datetime
) -> tuple[tuple[RunDay, ...], tuple[MethodRuns, ...]]:
    """Return the last days with runs, the latest first, and the methods slowest on average."""
    since = now - timedelta(days=RUN_DAYS)
    recent = [one for one in outputs if one["started_at"] and one["started_at"] >= since]
    days: dict[date, list[bool]] = defaultdict(list)
    methods: dict[tuple[str, ...], list[Mapping[str, Any]]] = defaultdict(list)
    for one in recent:
        days[one["started_at"].astimezone(UTC).date()].append(one["status"] == "failed")
        methods[tuple(one[name] for name in MethodRuns._fields[:4])].append(one)
    told = [_method(key, some) for key, some in methods.items()]
    told.sort(key=lambda one: (-one.mean_ms, one[:4]))
    counted = (RunDay(day, len(failed), sum(failed)) for day, failed in days.items())
    return (
        tuple(sorted(counted, key=lambda one: one.day, reverse=True)),
        tuple(told[:METHODS]),
    )


def _method(key: tuple[str, ...], runs: Sequence[Mapping[str, Any]]) -> MethodRuns:
    took = [one["duration_ms"] for one in runs if one["duration_ms"] is not None]
    mean = math.floor(sum(took) / len(took) + 0.5) if took else 0
    failed = sum(one["status"] == "failed" for one in runs)
    return MethodRuns._make((*key, len(runs), failed, mean, max(took, default=0)))
