"""Lookups and queries in a catalog of a million artifacts."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sized
from functools import partial
from itertools import islice
from typing import NamedTuple

import sample
from measuring import Line, Setting, median_ms, percentile_ms, say, seconds
from swampstore import Repo, init_repo, open_repo
from swampstore.catalog.disk_rows import row_of
from swampstore.catalog.schema import INSERT, Row
from swampstore.repo.querying import run_query

ARTIFACTS = 1_000_000
LOOKUPS = 10_000
ROWS = 50
QUERY_LIMIT_MS = 5
SEARCH_LIMIT_MS = 30
_NAMES = 100
_BATCH = 10_000
_REPETITIONS = 40
_PASSES = 3
_PATIENCE = 4.0  # seconds for the repetitions of one slow query


class Kind(NamedTuple):
    """A kind of query; `predicate` makes up another one of the kind at every call."""

    what: str
    predicate: Callable[[], str | None]
    order: str | None = None
    word: Callable[[], str] | None = None

    @property
    def limit_ms(self) -> float:
        """How long an answer may take: for a word, all different ones are looked through."""
        return SEARCH_LIMIT_MS if self.word else QUERY_LIMIT_MS


def measure(setting: Setting) -> Iterator[Line]:
    """Fill a catalog without any files, then ask."""
    shape = sample.Shape(setting.scaled(ARTIFACTS // _NAMES), _NAMES, versions=3, every=10)
    place = f"{setting.directory}/repo"
    say(f"filling a catalog with {shape.artifacts:,} artifacts")
    with init_repo(place) as repo:
        took = seconds(_fill, repo, shape)
    say(f"filled in {took:.0f} s")
    with open_repo(place) as repo:
        yield from _lookups(repo, shape, setting.scaled(LOOKUPS))
        yield from _queries(repo, shape)


def _fill(repo: Repo, shape: sample.Shape) -> None:
    rows = (
        row_of("", ref, metadata, deferred=False)._replace(is_latest=int(metadata is versions[-1]))
        for ref, versions in sample.artifacts(shape)
        for metadata in versions
    )
    repo.catalog.rows.read(lambda db: db.execute("PRAGMA cache_size = -400000"))
    while batch := list(islice(rows, _BATCH)):
        _store(repo, batch)
    repo.catalog.mark_populated()


def _store(repo: Repo, batch: list[Row]) -> None:
    repo.catalog.rows.write(lambda db: db.executemany(INSERT, batch))


def _lookups(repo: Repo, shape: sample.Shape, count: int) -> Iterator[Line]:
    chance = random.Random(1)
    names = sample.names(shape)

    def look_up() -> tuple[float, float]:
        model = str(sample.model_ref(shape, chance.randrange(shape.models)))
        name = chance.choice(names)
        before = time.thread_time()
        taken = seconds(repo.latest, model, name)
        return taken, time.thread_time() - before

    for _ in range(count // 5):
        look_up()
    passes = [list(zip(*(look_up() for _ in range(count)), strict=True)) for _ in range(_PASSES)]
    what = f"repo.latest(), one of {shape.artifacts:,} artifacts"
    p50 = min(median_ms(taken) for taken, _ in passes)
    p99 = min(percentile_ms(taken, 99) for taken, _ in passes)
    working = min(percentile_ms(busy, 99) for _, busy in passes)
    note = f"{count:,} random lookups, warm, best of {_PASSES} passes"
    yield Line(f"{what}, p50", p50, "ms", 0.2, note)
    yield Line(f"{what}, p99", p99, "ms", 1.0, f"{working:.3f} ms of processor time")


def _queries(repo: Repo, shape: sample.Shape) -> Iterator[Line]:
    worst = Line("", 0, "ms")
    for kind in _kinds(shape):
        by = f", by {kind.order}" if kind.order else ""
        line = _timed(f"query {kind.what}{by}", partial(_ask, repo, kind), kind.limit_ms)
        if not kind.word:
            worst = max(worst, line, key=lambda line: line.value)
        yield line
    chance = random.Random(3)
    yield _timed(
        "find_by_tag",
        lambda: repo.find_by_tag("ticket", f"OPS-{chance.randrange(shape.tickets)}"),
    )
    yield Line("worst query", worst.value, "ms", QUERY_LIMIT_MS, worst.what.removeprefix("query "))


def _ask(repo: Repo, kind: Kind) -> Sized:
    word = kind.word and kind.word()
    return run_query(repo, kind.predicate(), order=kind.order, limit=ROWS, word=word)


def _timed(what: str, ask: Callable[[], Sized], limit_ms: float = QUERY_LIMIT_MS) -> Line:
    """Return the median processor time of a question that is asked again and again.

    The file is in the page cache, so nothing else is waited for; others may use the processor.
    """
    counts: list[int] = []
    times: list[float] = []
    busy: list[float] = []
    ask()
    while len(times) < _REPETITIONS and (len(times) < 3 or sum(times) < _PATIENCE):
        before = time.thread_time()
        times.append(seconds(lambda: counts.append(len(ask()))))
        busy.append(time.thread_time() - before)
    rows = sorted(counts)[len(counts) // 2]
    note = f"{rows} rows, {median_ms(times):.1f} ms with all waits, slowest {max(times) * 1000:.1f}"
    return Line(what, median_ms(busy), "ms", limit_ms, note)


def _anything() -> None:
    return None


def _kinds(shape: sample.Shape) -> list[Kind]:
    chance = random.Random(2)

    def model() -> int:
        return chance.randrange(shape.models)

    def model_type() -> str:
        return chance.choice(sample.TYPES)

    def a_day() -> str:
        day = chance.random() * (sample.DAYS - 1)
        return f'createdAt >= "{sample.moment(day)}" && createdAt < "{sample.moment(day + 1)}"'

    def two_specs() -> str:
        one, other = chance.sample(sample.SPECS, 2)
        return f'specName in ["{one}", "{other}"]'

    def one_history() -> str:
        ref, name = sample.model_ref(shape, model()), sample.names(shape)[0]
        return (
            f'modelType == "{ref.type}" && modelId == "{ref.id}" && name == "{name}"'
            " && version >= 1"
        )

    def all_history() -> str:
        return f'modelName == "{sample.model_name(model())}" && version >= 1'

    recent = "createdAt desc"
    return [
        Kind("modelName ==", lambda: f'modelName == "{sample.model_name(model())}"'),
        Kind("modelType == (1 of 40)", lambda: f'modelType == "{model_type()}"'),
        Kind(
            "tags.env == (half of all) && modelType ==",
            lambda: f'tags.env == "prod" && modelType == "{model_type()}"',
        ),
        Kind(
            "tags.env == (1 of 200) && modelType ==",
            lambda: f'tags.env == "canary" && modelType == "{model_type()}"',
        ),
        Kind("tags.ticket == (50)", lambda: f'tags.ticket == "OPS-{model() % shape.tickets}"'),
        Kind("name.startsWith (1 of 20)", lambda: 'name.startsWith("disk-")'),
        Kind("name.startsWith (1 of 100)", lambda: f'name.startsWith("state-00{model() % 5}")'),
        Kind("createdAt in a day", a_day, recent),
        Kind("dataType == (7 of 10)", lambda: 'dataType == "resource"'),
        Kind("dataType == (1 of 100)", lambda: 'dataType == "report"'),
        Kind("size > (half of all)", lambda: "size > 3000"),
        Kind("size > (1 of 400)", lambda: "size > 800000"),
        Kind("size > (none)", lambda: "size > 1000000000000"),
        Kind(
            "workflowRunId ==",
            lambda: f'workflowRunId == "{sample.run_id(chance.randrange(shape.runs))}"',
        ),
        Kind("specName in [two]", two_specs),
        Kind("modelType == && modelId == && name == && version >= 1", one_history),
        Kind("modelName == && version >= 1", all_history),
        Kind("everything (data search)", _anything, recent),
        Kind("dataType == (7 of 10)", lambda: 'dataType == "resource"', recent),
        Kind("dataType == (1 of 100)", lambda: 'dataType == "report"', recent),
        Kind("modelName ==", lambda: f'modelName == "{sample.model_name(model())}"', recent),
        Kind("tags.env == (half of all)", lambda: 'tags.env == "prod"', recent),
        Kind("tags.env == (1 of 200)", lambda: 'tags.env == "canary"', recent),
        Kind(
            "tags.env == (1 of 200) && modelType ==",
            lambda: f'tags.env == "canary" && modelType == "{model_type()}"',
            recent,
        ),
        Kind("word (100 rows)", _anything, recent, lambda: f"service-{model():05}"),
        Kind("word (1 of 20)", _anything, recent, lambda: "disk-"),
        Kind("word (half of all)", _anything, recent, lambda: "prod"),
        Kind("word (none)", _anything, recent, lambda: "nothing has this"),
    ]
