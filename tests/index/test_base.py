"""The base: what it remembers, and that it heals, shares and commits without ever mixing states."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swampstore.errors import DiskError
from swampstore.files.signature import Signature
from swampstore.index import base as module
from swampstore.index.base import Base, Known
from swampstore.index.base_file import BaseFile
from swampstore.index.partitions import partition_of
from tests.artifacts.test_many_processes import run_all

MODIFIED = "2026-05-14T20:19:51.042Z"


def known(rel: str, size: int = 3) -> Known:
    held = Signature(size, 1_778_760_000_123_456_789, 1_778_760_000_987_654_321, 42)
    return Known(rel, size, "a" * 64, MODIFIED, '"etag"', held, 1_778_760_009_000_000_000)


def file_of(cache: Path) -> Path:
    return cache / "_catalog.db-base"


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def base(cache: Path) -> Iterator[Base]:
    base = Base(str(cache), "s3://bucket")
    yield base
    base.close()


@pytest.fixture(scope="module")
def shared_base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Base]:
    """One for all examples of a property: making a base costs more than using it."""
    base = Base(str(tmp_path_factory.mktemp("shared")), "x")
    yield base
    base.close()


# What it remembers -------------------------------------------------------------------------


def test_what_was_applied_is_known_field_by_field(base: Base) -> None:
    rows = [
        known("data/t/m/state/1/raw"),
        Known("data/t/m/state/2/raw", 7, None, MODIFIED, None, None),
        Known("", 0, "b" * 64, "", None, Signature(0, -5, 0, 0)),
    ]
    base.apply(known=iter(rows))
    assert [base.get(row.rel) for row in rows] == rows
    assert base.get_many(row.rel for row in rows) == {row.rel: row for row in rows}
    assert base.get("data/t/m/state") is None
    assert base.get_many([]) == {}


def test_a_base_is_still_there_when_opened_again(cache: Path, base: Base) -> None:
    base.apply(known=[known("a")], facts={"meta": "{}"}, shards={("p", ""): "1"})
    base.close()
    again = Base(str(cache), "s3://bucket")
    assert again.get("a") == known("a") == base.get("a")
    assert again.fact("meta") == "{}"
    assert again.shard_etags() == {"p": "1"}
    again.close()


def test_more_paths_than_sqlite_takes_parameters_are_looked_up(base: Base) -> None:
    rows = [known(f"data/t/m/n{number}/1/raw") for number in range(1201)]
    base.apply(known=rows)
    assert base.get_many(row.rel for row in rows) == {row.rel: row for row in rows}


def test_later_knowledge_replaces_earlier_and_forgotten_paths_go(base: Base) -> None:
    base.apply(known=[known("a", 1), known("b", 1)])
    base.apply(known=[known("a", 2)], forgotten=["b", "never there"])
    assert base.get("a") == known("a", 2)
    assert base.get("b") is None


def test_numbers_about_everything(base: Base) -> None:
    assert (base.count(), base.total_bytes(), base.not_held()) == (0, 0, 0)
    base.apply(known=[known("a", 5), known("b", 6)._replace(held=None)])
    assert (base.count(), base.total_bytes(), base.not_held()) == (2, 11, 1)


def test_whether_there_is_anything_and_whether_something_is_absent(base: Base) -> None:
    assert base.is_empty()
    assert not base.lacks_content()
    base.apply(known=[known("a")])
    assert not base.is_empty()
    assert not base.lacks_content()
    base.apply(known=[known("b")._replace(held=None)])
    assert base.lacks_content()
    base.apply(known=[known("b")])
    assert not base.lacks_content()
    base.clear(keep=[known("c")._replace(held=None)])
    assert base.lacks_content()


def test_whether_something_is_absent_costs_the_same_among_many(base: Base) -> None:
    steps: list[int] = []

    def count() -> int:
        steps.append(1)
        return 0

    def cost() -> int:
        steps.clear()
        base._file.read(lambda db: db.set_progress_handler(count, 10))
        assert not base.is_empty()
        assert not base.lacks_content()
        base._file.read(lambda db: db.set_progress_handler(None, 0))
        return len(steps)

    base.apply(known=[known("a")])
    base.lacks_content()
    few = cost()
    base.apply(known=[known(f"data/{number}") for number in range(3_000)])
    assert cost() <= few + 3


def test_numbers_that_no_honest_file_has_do_no_harm(base: Base) -> None:
    odd = Signature(1 << 70, 1 << 64, 1 << 65, 1 << 63)
    base.apply(known=[known("a")._replace(size=1 << 70, held=odd), known("b", 1 << 62)])
    assert base.get("b") == known("b", 1 << 62)
    assert base.total_bytes() > 1 << 63
    found = base.get("a")
    assert found is not None
    assert found.held is not None
    assert found.held != odd


ODD = [
    *("a", "a-b", "a.b", "a/b", "a/b/c", "a/b-c", "a0", "a0/b", "a!b", "aa", "A/b", "b", "a%/x"),
    *("ä", "ä/b", "a/ü", "日本/語", "a/\U0001f600", "a/\uffff", "\U0010ffff/x", "a_b/c", "a/ b"),
]


@pytest.mark.parametrize(
    "prefix", ["a", "a/b", "a-b", "ä", "日本", "a%", "a_b", "", "c", "a/b/c/d"]
)
def test_below_finds_a_path_and_its_descendants_whatever_the_neighbours_are_called(
    base: Base, monkeypatch: pytest.MonkeyPatch, prefix: str
) -> None:
    monkeypatch.setattr(module, "_PAGE", 3)
    base.apply(known=map(known, ODD))
    expected = {rel for rel in ODD if rel == prefix or f"{rel}/".startswith(f"{prefix}/")}
    found = [one.rel for one in base.below(prefix)]
    assert set(found) == (expected if prefix else set(ODD))
    assert len(found) == len(set(found))


@settings(max_examples=40, deadline=None)
@given(
    st.sets(st.text("ab/-.0é\0", max_size=6), max_size=12),
    st.text("ab/-.0é\0", min_size=1, max_size=3),
)
def test_below_agrees_with_the_definition(shared_base: Base, rels: set[str], prefix: str) -> None:
    base = shared_base
    base.apply(known=map(known, rels), forgotten=[rel for rel in base.rels() if rel not in rels])
    expected = {rel for rel in rels if rel == prefix or rel.startswith(f"{prefix}/")} - {
        f"{prefix}/"  # no path ends with a slash
    }
    assert {one.rel for one in base.below(prefix)} == expected
    assert list(base.rels()) == sorted(rels - {""}, key=str.encode)


def test_all_paths_come_sorted_and_page_by_page(
    base: Base, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PAGE", 4)
    base.apply(known=map(known, ODD))
    assert list(base.rels()) == sorted(ODD, key=str.encode)


def test_a_base_may_be_changed_while_it_is_iterated(
    base: Base, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PAGE", 5)
    rels = [f"d/{number:02}" for number in range(23)]
    base.apply(known=map(known, rels))
    seen = []
    for one in base.below("d"):
        seen.append(one.rel)
        base.apply(known=[one._replace(size=99)], forgotten=[one.rel])
    assert seen == rels
    assert base.count() == 0


def test_held_content_is_found_below_the_directory_it_is_in_and_nowhere_else(base: Base) -> None:
    base.apply(known=[known("a/b/c"), known("d/e")._replace(held=None), known("f-g/h")])
    assert base.is_held_below(["a"])
    assert base.is_held_below(["x", "a/b"])
    assert not base.is_held_below(["d", "f", "a/b/c", "b"])
    assert not base.is_held_below([])


def test_a_partition_has_exactly_the_paths_that_belong_to_it(base: Base) -> None:
    rels = [
        f"data/t/m{model}/n{name}/{leaf}"
        for model in range(3)
        for name in range(4)
        for leaf in ("1/raw", "1/metadata.yaml", "latest")
    ]
    rels += ["README", "odd/path", "workflow-runs/w/1.yaml", "outputs/t/x/1.yaml"]
    base.apply(known=map(known, rels))
    for partition in {partition_of(rel) for rel in rels}:
        expected = {rel: known(rel) for rel in rels if partition_of(rel) == partition}
        assert base.in_partition(partition) == expected
    assert base.in_partition("data--t--nothing") == {}


def test_shards_are_remembered_by_scope(base: Base) -> None:
    base.apply(shards={("p", ""): "1", ("q", ""): "2", ("p", "scope"): "3"})
    assert base.shard_etags() == {"p": "1", "q": "2"}
    assert base.shard_etags("scope") == {"p": "3"}
    base.apply(shards={("p", ""): "4"})
    assert base.shard_etags() == {"p": "4", "q": "2"}
    base.drop_shards(["p"])
    assert base.shard_etags() == {"q": "2"}
    assert base.shard_etags("scope") == {}
    base.drop_shards()
    assert base.shard_etags() == {}


def test_facts_are_set_and_removed(base: Base) -> None:
    base.apply(facts={"meta": '{"version":1}', "meta_etag": "1"})
    base.apply(facts={"meta_etag": None, "monolith_etag": ""})
    assert base.fact("meta") == '{"version":1}'
    assert base.fact("meta_etag") is None
    assert base.fact("monolith_etag") == ""
    assert base.facts("monolith_etag", "meta_etag", "meta") == ["", None, '{"version":1}']


def statements(base: Base, work: Callable[[], object]) -> list[str]:
    """What SQLite is asked for by a piece of work."""
    seen: list[str] = []
    db = base._file._connection()
    db.set_trace_callback(seen.append)
    work()
    db.set_trace_callback(None)
    return seen


def test_a_fact_is_read_once_as_long_as_nobody_writes(base: Base) -> None:
    base.apply(facts={"a": "1", "b": "2"})
    assert base.facts("a", "b", "c") == ["1", "2", None]
    base.apply(known=[known("x")])  # of ours, and no fact
    assert len(statements(base, lambda: base.fact("a"))) == 1  # whether others wrote
    assert len(statements(base, lambda: base.facts("c", "a"))) == 1
    base.apply(facts={"a": "3", "c": "4"})
    assert base.facts("a", "b", "c") == ["3", "2", "4"]


def test_a_fact_that_was_just_written_is_neither_read_nor_written_again(
    cache: Path, base: Base
) -> None:
    base.apply(facts={"a": "1", "b": "2"})
    base.facts("a", "b")
    base.apply(facts={"a": "3", "b": None})
    assert len(statements(base, lambda: base.facts("a", "b"))) == 1  # whether others wrote
    written = statements(base, lambda: base.apply(facts={"a": "3", "c": "4"}))
    inserted = [one for one in written if one.startswith("INSERT")]
    assert len(inserted) == 1
    assert "INTO facts VALUES ('c', '4')" in inserted[0]
    other = Base(str(cache), "s3://bucket")
    other.apply(facts={"a": "5"})
    base.apply(facts={"a": "3"})
    assert (base.fact("a"), other.fact("a")) == ("3", "3")
    other.close()


def test_a_long_fact_is_written_over_where_it_is(cache: Path, base: Base) -> None:
    log = f"{file_of(cache)}-wal"
    base.apply(facts={"long": "1" * 100_000})
    before = os.path.getsize(log)
    base.apply(facts={"long": "1" * 50_000 + "2" + "1" * 49_999})
    assert os.path.getsize(log) - before < 25_000
    assert base.fact("long") == "1" * 50_000 + "2" + "1" * 49_999


def test_a_fact_that_could_not_be_written_is_what_it_was(base: Base) -> None:
    base.apply(facts={"a": "1"})
    assert base.fact("a") == "1"
    with pytest.raises(sqlite3.Error):
        base.apply(facts={"a": "2"}, shards={("p", ""): object()})  # type: ignore[dict-item]
    assert base.fact("a") == "1"


def test_a_fact_that_others_change_is_read_again(cache: Path, base: Base) -> None:
    base.apply(facts={"a": "1"})
    assert base.fact("a") == "1"
    other = Base(str(cache), "s3://bucket")
    other.apply(facts={"a": "2"})
    assert base.fact("a") == "2"
    other.clear()
    assert base.fact("a") is None
    other.apply(facts={"a": "5"})
    other.close()
    assert base.fact("a") == "5"
    foreign = Base(str(cache), "s3://other-bucket")
    assert foreign.fact("a") is None
    foreign.close()
    assert base.fact("a") is None


def test_a_fact_of_a_file_that_is_gone_is_gone(cache: Path, base: Base) -> None:
    base.apply(facts={"a": "1"})
    assert base.fact("a") == "1"
    shutil.rmtree(cache)
    assert base.fact("a") is None


def test_uploads_are_noted_until_they_are_known_or_forgotten(base: Base) -> None:
    notes = {rel: (f"sha {rel}", f"etag {rel}") for rel in ("a", "b", "c")}
    base.note_uploads(notes)
    base.note_uploads({"c": ("sha again", "etag again")})
    assert base.noted_uploads(["a", "b", "x"]) == {"a": notes["a"], "b": notes["b"]}
    base.apply(known=[known("a")], forgotten=["b"])
    assert base.noted_uploads("abc") == {"c": ("sha again", "etag again")}


def test_pending_deletes_stay_until_the_objects_are_removed(base: Base) -> None:
    base.add_pending_deletes(["b", "a"])
    base.add_pending_deletes(["b", "c"])
    base.drop_pending_deletes(["a", "x"])
    assert base.pending_deletes() == ["b", "c"]


def test_clearing_forgets_everything(base: Base) -> None:
    fill(base)
    base.clear()
    assert_empty(base)


def test_nothing_is_opened_before_it_is_needed(cache: Path) -> None:
    base = Base(str(cache), "x")
    base.close()
    assert not cache.exists()


def test_the_base_is_cheap_to_import() -> None:
    code = "import swampstore.index.base, sys; sys.exit('msgspec' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# Healing -----------------------------------------------------------------------------------


def fill(base: Base) -> None:
    base.apply(
        known=[known(f"data/t/m/n{number}/1/raw") for number in range(200)],
        facts={"meta": "{}"},
        shards={("p", ""): "1"},
    )
    base.note_uploads({"u": ("sha", "etag")})
    base.add_pending_deletes(["d"])


def assert_empty(base: Base) -> None:
    assert base.count() == 0
    assert list(base.rels()) == []
    assert base.fact("meta") is None
    assert base.shard_etags() == {}
    assert base.noted_uploads(["u"]) == {}
    assert base.pending_deletes() == []


def assert_works(base: Base) -> None:
    base.apply(known=[known("works")])
    assert base.get("works") == known("works")
    assert base.count() == 1


def _as_directory(file: Path) -> None:
    file.unlink()
    file.mkdir()
    (file / "somebody's").write_text("file")


def _as_other_database(file: Path) -> None:
    file.unlink()
    db = sqlite3.connect(file)
    db.executescript(
        'CREATE TABLE known (x); CREATE TABLE "a ""b" (y); CREATE VIEW v AS SELECT 1;'
        "CREATE TABLE n (id INTEGER PRIMARY KEY AUTOINCREMENT); INSERT INTO n DEFAULT VALUES"
    )
    db.close()


def _as_altered_tables(file: Path) -> None:
    db = sqlite3.connect(file)
    db.executescript("DROP TABLE known; CREATE TABLE known (rel TEXT)")
    db.close()


def _as_text_that_is_none(file: Path) -> None:
    db = sqlite3.connect(file)
    db.execute("UPDATE known SET modified = CAST(x'ff' AS TEXT)")
    db.commit()
    db.close()


def _with_random_pages(file: Path) -> None:
    data = file.read_bytes()
    file.write_bytes(data[:4096] + random.Random(1).randbytes(len(data) - 4096))


GARBAGE: dict[str, Callable[[Path], object]] = {
    "missing": Path.unlink,
    "empty": lambda file: file.write_bytes(b""),
    "text": lambda file: file.write_text("no database at all\n" * 999),
    "zeros": lambda file: file.write_bytes(bytes(9000)),
    "a directory": _as_directory,
    "another database": _as_other_database,
}
DAMAGE: dict[str, Callable[[Path], object]] = {
    "half of it": lambda file: os.truncate(file, file.stat().st_size // 2),
    "only the first page": lambda file: os.truncate(file, 4096),
    "random pages": _with_random_pages,
    "altered tables": _as_altered_tables,
}


@pytest.mark.parametrize("garbage", GARBAGE)
def test_garbage_is_an_empty_base(cache: Path, base: Base, garbage: str) -> None:
    fill(base)
    base.close()
    GARBAGE[garbage](file_of(cache))
    assert_empty(base)
    assert_works(base)


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_healed_wherever_it_is_met(cache: Path, base: Base, damage: str) -> None:
    fill(base)
    base.close()
    DAMAGE[damage](file_of(cache))
    touch_everything(base)
    base.clear()
    assert_empty(base)
    assert_works(base)


def touch_everything(base: Base) -> None:
    """Read and write all that there may be left, so that the damage is met."""
    for one in base.rels():
        base.get(one)
    base.in_partition("data--t--m")
    base.apply(known=[known(f"data/t/m/n{number}/2/raw") for number in range(50)])
    base.total_bytes()


def test_a_row_that_cannot_be_decoded_empties_the_base(cache: Path, base: Base) -> None:
    fill(base)
    base.close()
    _as_text_that_is_none(file_of(cache))
    assert base.get("data/t/m/n1/1/raw") is None
    assert_empty(base)
    assert_works(base)


@pytest.mark.parametrize("suffix", ["-wal", "-shm", "-lock", "-damaged"])
def test_garbage_beside_the_file_is_no_obstacle(cache: Path, base: Base, suffix: str) -> None:
    fill(base)
    base.close()
    Path(f"{file_of(cache)}{suffix}").write_bytes(b"garbage" * 9999)
    assert base.count() == 200
    base.apply(forgotten=list(base.rels()))
    assert_works(base)


def test_a_cache_that_is_deleted_under_an_open_base_leaves_an_empty_one(
    cache: Path, base: Base
) -> None:
    fill(base)
    shutil.rmtree(cache)
    assert_empty(base)
    assert_works(base)


def test_a_log_that_is_deleted_under_an_open_base_is_no_obstacle(cache: Path, base: Base) -> None:
    fill(base)
    Path(f"{file_of(cache)}-wal").unlink()
    base.apply(forgotten=list(base.rels()))
    assert_works(base)
    other = Base(str(cache), "s3://bucket")
    assert other.get("works") == known("works")
    other.close()


@pytest.mark.parametrize("is_replaced", [False, True])
def test_damage_under_several_open_bases_is_healed_for_all(
    cache: Path, base: Base, is_replaced: bool
) -> None:
    fill(base)
    others = [Base(str(cache), "s3://bucket") for _ in range(3)]
    assert [one.count() for one in others] == [200] * 3
    db = sqlite3.connect(file_of(cache))
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()
    if is_replaced:
        file_of(cache).unlink()
    file_of(cache).write_bytes(b"garbage" * 9999)
    assert_works(base)
    for one in others:
        assert one.count() < 2
        one.close()
    base.apply(known=[known("after all")])
    assert others[0].get("after all") == known("after all")
    others[0].close()


def test_tables_of_another_schema_are_replaced_even_while_in_use(cache: Path, base: Base) -> None:
    schema = ("CREATE TABLE known (rel TEXT, other TEXT)",)
    newer = BaseFile(str(file_of(cache)), schema, "s3://bucket")
    newer.write(lambda db: db.execute("INSERT INTO known VALUES ('a', 'b')"))
    assert_empty(base)
    assert_works(base)
    assert newer.read(lambda db: db.execute("SELECT * FROM known").fetchall()) == []
    assert_empty(base)
    newer.close()


def test_a_disk_that_refuses_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    base = Base(str(tmp_path / "file" / "cache"), "x")
    with pytest.raises(DiskError, match="file") as told:
        base.count()
    assert told.value.hint


def test_h74_a_base_of_another_remote_is_empty(cache: Path, base: Base) -> None:
    fill(base)
    base.close()
    other = Base(str(cache), "s3://other-bucket")
    assert_empty(other)
    assert_works(other)
    other.close()
    assert_empty(base)


def test_h74_two_remotes_at_once_never_see_each_others_rows(cache: Path, base: Base) -> None:
    other = Base(str(cache), "s3://other-bucket")
    for turn in range(3):
        base.apply(known=[known(f"ours {turn}")], facts={"meta": "ours"})
        assert list(base.rels()) == [f"ours {turn}"]
        assert other.get(f"ours {turn}") is None
        assert other.fact("meta") is None
        other.apply(known=[known(f"theirs {turn}")])
        assert list(other.rels()) == [f"theirs {turn}"]
    other.close()


# Sharing -----------------------------------------------------------------------------------


def test_processes_write_at_once_and_nothing_is_lost(cache: Path) -> None:
    def work(number: int) -> None:
        base = Base(str(cache), "x")
        for turn in range(25):
            rows = [known(f"data/t/m{number}/n{turn}/{version}/raw") for version in range(10)]
            base.apply(known=rows, facts={f"turn {number}": str(turn)})
            assert base.get_many(row.rel for row in rows) == {row.rel: row for row in rows}
        base.close()

    run_all(4, work)
    base = Base(str(cache), "x")
    assert base.count() == 4 * 25 * 10
    assert [base.fact(f"turn {number}") for number in range(4)] == ["24"] * 4
    assert len(base.in_partition(partition_of("data/t/m2/n0/0/raw"))) == 250
    base.close()


def test_h74_processes_of_two_remotes_fight_without_mixing(cache: Path) -> None:
    def work(number: int) -> None:
        base = Base(str(cache), f"remote {number % 2}")
        for turn in range(30):
            base.apply(known=[known(f"{number % 2}/{turn}")])
            assert all(rel.startswith(f"{number % 2}/") for rel in base.rels())
        base.close()

    run_all(4, work)


def test_processes_that_find_garbage_at_once_all_get_a_base(cache: Path) -> None:
    cache.mkdir()
    file_of(cache).write_bytes(b"garbage" * 999)

    def work(number: int) -> None:
        base = Base(str(cache), "x")
        base.apply(known=[known(f"n{number}")])
        base.close()

    run_all(6, work)
    base = Base(str(cache), "x")
    assert base.count() == 6
    base.close()


def test_a_forked_child_opens_its_own_connection(cache: Path, base: Base) -> None:
    base.apply(known=[known("parent")])

    def work(number: int) -> None:
        assert base.get("parent") == known("parent")
        base.apply(known=[known(f"child {number}")])
        base.close()

    run_all(2, work)
    base.apply(known=[known("parent again")])
    assert set(base.rels()) == {"parent", "parent again", "child 0", "child 1"}


def test_threads_share_one_base(base: Base) -> None:
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for turn in range(20):
                base.apply(known=[known(f"{number}/{turn}")])
                assert base.get(f"{number}/{turn}") is not None
                assert len(list(base.below(f"{number}"))) == turn + 1
        except BaseException as error:  # noqa: BLE001 - reported below
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert base.count() == 100


# Whole or not at all -----------------------------------------------------------------------


def test_what_fails_half_way_leaves_everything_as_it_was(base: Base) -> None:
    fill(base)
    with pytest.raises(UnicodeEncodeError):
        base.apply(known=[known("good"), known("not \udcff UTF-8")], facts={"meta": "new"})
    assert base.get("good") is None
    assert base.fact("meta") == "{}"
    assert base.count() == 200


def test_a_kill_in_the_middle_leaves_the_state_before_or_after(cache: Path, base: Base) -> None:
    rng = random.Random(5)
    last = kills = 0
    while kills < 12 or (last < 12 and kills < 200):  # a busy machine may not get far each time
        kills += 1
        child = os.fork()
        if child == 0:
            try:
                count_up(cache, last)
            finally:
                os._exit(1)
        time.sleep(rng.uniform(0.01, 0.06))
        os.kill(child, signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        turn = int(base.fact("turn") or 0)
        assert turn >= last
        last = turn
        assert {one.size for one in base.below("d")} <= {turn}
        assert base.count() == (100 if turn else 0)
        assert base.shard_etags() == ({"p": str(turn)} if turn else {})
    assert last >= 12


def count_up(cache: Path, start: int) -> None:
    """Apply one state after the other, each of which agrees with itself."""
    base = Base(str(cache), "s3://bucket")
    turn = start
    while True:
        turn += 1
        base.apply(
            known=[known(f"d/{turn % 2}/{number}", turn) for number in range(100)],
            forgotten=[f"d/{(turn - 1) % 2}/{number}" for number in range(100)],
            facts={"turn": str(turn)},
            shards={("p", ""): str(turn)},
        )
