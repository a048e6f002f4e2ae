"""Finding among many: what leads to the rows, and that searching for a word finds all of them."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from swampstore import Repo, open_repo
from swampstore.catalog.catalog import Catalog
from swampstore.catalog.database import Database, MemoryDatabase
from swampstore.catalog.schema import INSERT, Row
from swampstore.catalog.select import Query
from swampstore.catalog.words import mentions
from swampstore.repo.querying import run_query

MODEL = "aws/ec2/i-1"
TAG_OF_1 = "CREATE TABLE tag (key TEXT NOT NULL, value TEXT NOT NULL, row INTEGER NOT NULL)"


def row(number: int, **columns: Any) -> Row:
    values: dict[str, Any] = {
        name: 0 if name in ("deferred", "streaming", "size") else "" for name in Row._fields
    }
    values |= {
        "type_normalized": "a/b",
        "model_id": "m",
        "data_name": f"name-{number:06}",
        "version": 1,
        "is_latest": 1,
        "lifecycle": "active",
        "created_at": f"2026-01-01T{number // 3600 % 24:02}:{number // 60 % 60:02}:00.000Z",
        "tags": "{}",
    }
    return Row(**values | columns)


def filled(rows: list[Row]) -> MemoryDatabase:
    memory = MemoryDatabase()
    memory.write(lambda db: db.executemany(INSERT, rows))
    return memory


def steps(memory: MemoryDatabase, query: Query) -> int:
    """Return how many hundred steps SQLite takes for the answer."""
    count = 0

    def step() -> int:
        nonlocal count
        count += 1
        return 0

    memory.read(lambda db: db.set_progress_handler(step, 100))
    query.run(memory, lambda _: (None, None))
    memory.read(lambda db: db.set_progress_handler(None, 0))
    return count


def tagged(count: int) -> MemoryDatabase:
    return filled(
        [
            row(number, tags='{"env":"canary"}', type_normalized=f"type/{number % 3}")
            for number in range(count)
        ]
    )


@pytest.mark.parametrize(
    "query",
    [
        lambda: Query('tags.env == "canary"', order="createdAt desc", limit=50),
        lambda: Query(
            'tags.env == "canary" && modelType == "type/1"', order="createdAt desc", limit=20
        ),
        lambda: Query('tags.env == "canary" && modelType == "type/1"', limit=20),
    ],
)
def test_the_first_rows_with_a_tag_cost_little_more_among_many(query: Callable[[], Query]) -> None:
    few, many = (steps(tagged(count), query()) for count in (1_000, 8_000))
    # Beside the rows themselves, SQLite counts how many have the tag: two steps each.
    assert many - few < 7_000 * 15 / 100


@pytest.mark.parametrize("order", [None, "createdAt desc", "name"])
@pytest.mark.parametrize("field", ["modelType", "specName", "dataType"])
def test_a_tag_with_another_condition_finds_what_reading_every_row_finds(
    field: str, order: str | None
) -> None:
    rows = [
        row(
            number,
            tags=f'{{"env":"{"xy"[number % 2]}","all":"1"}}',
            # Many were made at the same moment, some nobody knows when.
            created_at=["", "2026-01-01T00:00:00.000Z", "2026-01-02T00:00:00.000Z"][number % 3],
            lifecycle="deleted" if number % 11 == 0 else "active",
            is_latest=int(number % 7 > 0),
            **dict.fromkeys(("type_normalized", "spec_name", "data_type"), f"value-{number % 5}"),
        )
        for number in range(420)
    ]
    predicate = f'tags.env == "y" && tags.all == "1" && {field} == "value-3"'
    found = Query(predicate, order=order).run(filled(rows), _nothing)
    assert sorted(one.data_name for one in found) == [
        f"name-{number:06}"
        for number in range(420)
        if number % 2 and number % 5 == 3 and number % 11 and number % 7
    ]
    times = [one.created_at for one in found]
    assert order != "createdAt desc" or times == sorted(times, reverse=True)


def test_a_condition_that_fewer_rows_meet_leads_instead_of_the_tag() -> None:
    rows = [row(n, tags='{"env":"x"}', model_name=f"m{n % 100}") for n in range(1000)]
    memory = filled(rows)
    sql, _ = memory.read(Query('tags.env == "x" && modelName == "m7"').statement)
    assert " tag t " not in sql
    assert len(Query('tags.env == "x" && modelName == "m7"').run(memory, _nothing)) == 10


def _nothing(_row: Row) -> tuple[None, None]:
    return None, None


def test_a_word_is_found_without_looking_at_every_row() -> None:
    rows = [row(n, data_name=f"n{n % 20}", model_id=f"m{n}") for n in range(4_000)]
    few = filled([*rows[:400], row(9_999, data_name="needle")])
    many = filled([*rows, row(9_999, data_name="needle")])
    query = Query(word="NEED", order="createdAt desc", limit=50)
    assert [found.data_name for found in query.run(many, _nothing)] == ["needle"]
    assert steps(many, query) <= steps(few, query) + 5


def test_a_word_that_most_rows_have_is_found_newest_first() -> None:
    memory = filled([row(n, data_name=f"state-{n}") for n in range(7_000)])
    found = Query(word="state", order="createdAt desc", limit=3).run(memory, _nothing)
    assert len(found) == 3
    assert found[0].created_at == max(
        f"{n // 3600:02}:{n // 60 % 60:02}" for n in range(7_000)
    ).join(("2026-01-01T", ":00.000Z"))


ALPHABET = "aAbBß=\u017fKk-İi\x00é"
TEXTS = st.text(st.sampled_from(ALPHABET), min_size=1, max_size=4)


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(TEXTS, TEXTS, TEXTS, TEXTS), max_size=6), TEXTS)
def test_a_search_finds_what_reading_every_row_finds(
    texts: list[tuple[str, str, str, str]], word: str
) -> None:
    import json

    rows = [
        row(
            number,
            data_name=name,
            model_id=str(number),
            model_name=model,
            tags=json.dumps({key.replace("\x00", ""): value.replace("\x00", "")}),
        )
        for number, (name, model, key, value) in enumerate(texts)
    ]
    found = Query(word=word).run(filled(rows), _nothing)
    assert {one.model_id for one in found} == {one.model_id for one in rows if mentions(one, word)}


def words(catalog: Catalog) -> set[Any]:
    return set(catalog.rows.read(lambda db: db.execute("SELECT * FROM word").fetchall()))


def test_a_word_that_nothing_has_any_more_leads_nowhere_and_goes_with_a_rebuild(
    repo: Repo,
) -> None:
    repo.artifacts.save(MODEL, "old-name", b"1", tags={"env": "canary"})
    repo.artifacts.save(MODEL, "other", b"1")
    repo.artifacts.delete(MODEL, "old-name")
    assert not run_query(repo, None, word="canary")
    assert not run_query(repo, None, word="old-name")
    repo.rebuild_catalog()
    rebuilt = words(repo.catalog)
    assert ("tag", "env", "canary") not in rebuilt
    assert ("name", "", "old-name") not in rebuilt
    assert ("name", "", "other") in rebuilt


def to_schema_2(path: Path) -> None:
    """Make a catalog what the release before left: no rows by type and time."""
    with sqlite3.connect(path) as db:
        db.execute("DROP INDEX latest_type")
        db.execute("PRAGMA user_version = 2")
    db.close()


def to_schema_1(path: Path) -> None:
    """Make a catalog what the first release left: tags without times, no words."""
    to_schema_2(path)
    with sqlite3.connect(path) as db:
        for name in ("tag_added", "tag_gained", "tag_lost", "tag_removed"):
            db.execute(f"DROP TRIGGER {name}")
            db.execute(f"CREATE TRIGGER {name} AFTER INSERT ON intent BEGIN SELECT 1; END")
        db.execute("DROP TABLE tag")
        db.execute("DROP TABLE word")
        db.execute(TAG_OF_1)
        db.execute("PRAGMA user_version = 1")
    db.close()


@pytest.mark.parametrize("make_older", [to_schema_1, to_schema_2])
def test_a_catalog_of_an_older_release_keeps_its_rows_and_what_was_begun(
    repo: Repo, make_older: Callable[[Path], None]
) -> None:
    repo.artifacts.save(MODEL, "a", b"1", tags={"env": "prod", "modelName": "web"})
    repo.artifacts.save(MODEL, "b", b"1", tags={"env": "dev"})
    assert len(repo.query()) == 2
    before = words(repo.catalog)
    repo.close()
    path = Path(f"{repo.config.local_dir}/swampstore.db")
    make_older(path)
    with sqlite3.connect(path) as db:
        db.execute("UPDATE catalog SET size = 77")  # what no rebuild would say
        db.execute("INSERT INTO intent VALUES ('data/a/b/m/x', '{}')")
    db.close()
    old = Database(str(path))
    assert Catalog(old).pending() == [("data/a/b/m/x", "{}")]
    Catalog(old).settle(["data/a/b/m/x"])
    old.close()
    with open_repo(repo.config.repo_dir) as fresh:
        assert [found.row.size for found in fresh.query('tags.env == "prod"')] == [77]
        typed = f'tags.env == "prod" && modelType == "{repo.ref(MODEL, "a").model.type}"'
        assert [found.row.size for found in fresh.query(typed)] == [77]
        assert [found.name for found in run_query(fresh, None, word="WEB")] == ["a"]
        assert words(fresh.catalog) == before
        fresh.artifacts.save(MODEL, "c", b"1", tags={"env": "prod"})
        assert [found.name for found in fresh.query('tags.env == "prod"', order="name")] == [*"ac"]
    assert not list(path.parent.glob(f"{path.name}.schema-*"))
