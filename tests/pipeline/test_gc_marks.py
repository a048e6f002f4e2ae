"""Marks are kept in pages: what is in memory, and what whoever is stopped in between leaves."""

from __future__ import annotations

import json
import os
import signal
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from swampstore.clock import to_iso
from swampstore.index.path_map import Names
from swampstore.pipeline.gc import marks as marking
from swampstore.pipeline.gc.candidates import Candidate
from swampstore.pipeline.gc.marks import MARKS, PAGES, Mark, Marked, MarkPages, beside, without
from swampstore.retention.rules import Removal
from swampstore.routing import Routing
from swampstore.stores.directory import DirectoryStore
from swampstore.stores.errors import PreconditionFailedError
from swampstore.stores.memory import MemoryStore
from swampstore.stores.wrapper import CountingStore
from tests.support.forked import in_child
from tests.support.garbage import DAY, MODEL, Clock, data_in, kinds, listing, save, version
from tests.support.machines import Machine

NAMES = Names("/nowhere", "", Routing())
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def marked(*names: str, versions: int = 1, since: datetime = NOW) -> list[Marked]:
    marks = {number: Mark("seen", since) for number in range(1, versions + 1)}
    return [Marked(f"data/a/b/{name}", marks) for name in names]


def candidate(name: str) -> Candidate:
    return Candidate(Removal("a", "b", name, ()), {1: "seen"})


def pages_in(store: MemoryStore) -> set[str]:
    return {info.key.removeprefix(PAGES) for info in store.list(PAGES)}


@pytest.fixture(autouse=True)
def _small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marking, "_MOST", 4)
    monkeypatch.setattr(marking, "_NAMES", 10**12)


# Pages -------------------------------------------------------------------------------------------


def test_marks_are_cut_into_pages_and_come_back_in_order() -> None:
    store = MemoryStore()
    many = [*marked("a", "b", "c", versions=2), *marked("d", versions=9), *marked("e")]
    written = MarkPages(store, NAMES).replace(MarkPages(store, NAMES).listed(), many)

    assert written is not None
    assert len(written.pages) == 4  # a name is never cut in two
    again = MarkPages(store, NAMES)
    assert again.listed() == written
    assert list(again.marks(written)) == many


def test_one_page_is_read_at_a_time() -> None:
    store = CountingStore(MemoryStore())
    pages = MarkPages(store, NAMES)
    written = pages.replace(pages.listed(), marked(*"abcdefghijklmnop"))
    assert written is not None
    assert len(written.pages) == 4
    store.reset()

    marks = pages.marks(written)
    assert next(marks).name == "data/a/b/a"
    assert store.tally().requests["get"] == 1
    list(marks)
    assert store.tally().requests["get"] == 4


def test_pages_that_stay_the_same_are_not_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marking, "_NAMES", 8)  # one of so many names begins a page
    monkeypatch.setattr(marking, "_MOST", 10**6)
    store = CountingStore(MemoryStore())
    pages = MarkPages(store, NAMES)
    many = marked(*(f"n{number:03}" for number in range(200)))
    before = pages.replace(pages.listed(), many)
    assert before is not None
    assert len(before.pages) > 10
    store.reset()

    assert pages.replace(before, many) == before
    assert not store.tally().requests
    after = pages.replace(before, [one for one in many if one.name != "data/a/b/n100"])
    assert after is not None
    assert len(set(after.pages) - set(before.pages)) == 1
    assert store.tally().requests["put"] == 2  # a page, and what lists them
    assert {f"{page.key}" for page in after.pages} == pages_in(store.inner)  # type: ignore[arg-type]


def test_garbage_meets_its_marks_and_what_is_no_garbage_comes_alone() -> None:
    found = list(beside(map(candidate, "bde"), marked(*"abcf")))
    assert [(one and one.removal.name, len(marks)) for one, marks in found] == [
        (None, 1),
        ("b", 1),
        (None, 1),
        ("d", 0),
        ("e", 0),
        (None, 1),
    ]


def test_marks_of_what_was_swept_go_in_whatever_parts_it_went() -> None:
    kept = without(marked(*"abc", versions=3), [("data/a/b/b", {3}), ("data/a/b/b", {1, 2})])
    assert [one.name for one in kept] == ["data/a/b/a", "data/a/b/c"]
    kept = without(marked(*"abc", versions=3), [("data/a/b/c", {2})])
    assert [(one.name[-1], [*one.marks]) for one in kept][-1] == ("c", [1, 3])


# Who is stopped, and who comes later -------------------------------------------------------------


@pytest.fixture
def six(ana: Machine, bucket: Path) -> Clock:
    """Return a place in which six versions are garbage: two pages, which are not there yet."""
    for name in "abc":
        save(ana, name, "1", "2", "3", garbage_collection=1)
    return Clock(bucket)


GARBAGE = [f"{name}/{number}" for name in "abc" for number in (1, 2)]


def pages_of(bucket: Path) -> set[str]:
    return {rel for rel in listing(bucket) if rel.startswith(PAGES)}


def listed_in(bucket: Path) -> set[str]:
    return {f"{PAGES}{page['page']}" for page in json.loads((bucket / MARKS).read_text())["pages"]}


def die_at(monkeypatch: pytest.MonkeyPatch, method: str, after: int, part: str) -> None:
    """Let this process die in the so many-th request of this kind to such a key."""
    real: Any = getattr(DirectoryStore, method)
    left = iter(range(after))

    def dying(self: DirectoryStore, key: str, *args: Any) -> Any:
        if key.startswith(part) and next(left, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(self, key, *args)

    monkeypatch.setattr(DirectoryStore, method, dying)


@pytest.mark.parametrize(
    ("method", "after", "part"),
    [
        ("put", 0, PAGES),
        ("put", 1, PAGES),
        ("put_if_absent", 0, MARKS),
    ],
)
def test_a_collection_that_dies_between_its_pages_marks_nothing_and_harms_nothing(
    six: Clock, bucket: Path, monkeypatch: pytest.MonkeyPatch, method: str, after: int, part: str
) -> None:
    def collect() -> None:
        die_at(monkeypatch, method, after, part)
        six.collect()

    assert in_child(collect)
    assert not (bucket / MARKS).exists()
    assert kinds(six.collect(after=DAY)) == dict.fromkeys(GARBAGE, "marked")
    assert kinds(six.collect(after=DAY)) == dict.fromkeys(GARBAGE, "swept")
    assert data_in(bucket) == {
        rel for name in "abc" for rel in (*version(name, 3), f"{name}/latest")
    }


def test_a_collection_that_dies_before_new_marks_are_listed_leaves_the_old_ones(
    ana: Machine, six: Clock, bucket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    six.collect()
    before = listing(bucket)
    save(ana, "d", "1", "2", garbage_collection=1)

    def collect() -> None:
        die_at(monkeypatch, "put_if_match", 0, MARKS)
        six.collect(after=DAY / 2)

    assert in_child(collect)
    assert (bucket / MARKS).read_bytes() == before[MARKS]
    assert kinds(six.collect(after=DAY)) == dict.fromkeys(GARBAGE, "swept") | {"d/1": "marked"}


def test_pages_that_a_dead_collection_left_are_removed_a_day_later(
    ana: Machine, six: Clock, bucket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def collect() -> None:
        die_at(monkeypatch, "put_if_absent", 0, MARKS)
        six.collect()

    assert in_child(collect)
    left = pages_of(bucket)
    assert len(left) == 2
    six.collect()
    assert left < pages_of(bucket)  # it could be at work still
    long_ago = (datetime.now(UTC) - timedelta(days=2)).timestamp()
    for rel in left:
        os.utime(bucket / rel, (long_ago, long_ago))
    save(ana, "d", "1", "2", garbage_collection=1)
    six.collect()
    assert pages_of(bucket) == listed_in(bucket)


def test_a_collection_that_dies_before_it_removed_old_pages_loses_no_mark(
    ana: Machine, six: Clock, bucket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    six.collect()
    save(ana, "0", "1", "2", garbage_collection=1)  # comes first, so that all pages change

    def collect() -> None:
        die_at(monkeypatch, "delete", 0, PAGES)
        six.collect(after=DAY / 2)

    assert in_child(collect)
    assert listed_in(bucket) < pages_of(bucket)
    assert kinds(six.collect(after=DAY)) == dict.fromkeys(GARBAGE, "swept") | {"0/1": "waiting"}


def test_a_collection_that_dies_after_it_swept_leaves_marks_that_the_next_one_drops(
    six: Clock, bucket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    six.collect()

    def collect() -> None:
        die_at(monkeypatch, "put_if_match", 0, MARKS)
        six.collect(after=DAY)

    assert in_child(collect)
    six.now += DAY
    assert data_in(bucket) == {
        rel for name in "abc" for rel in (*version(name, 3), f"{name}/latest")
    }
    again = six.collect()
    assert (kinds(again), again.unmarked) == ({}, len(GARBAGE))
    assert pages_of(bucket) == listed_in(bucket) == set()


def test_a_page_that_is_lost_or_damaged_begins_anew_and_the_others_do_not(
    six: Clock, bucket: Path
) -> None:
    for damage in (os.unlink, lambda path: path.write_text("[]"), lambda path: path.write_text("")):
        six.collect()
        first = min(listed_in(bucket), key=lambda rel: (bucket / rel).read_text())
        damage(bucket / first)
        again = six.collect(after=DAY / 2)
        assert "its marks are new" in "".join(again.warnings)
        assert sorted(kinds(again).values()) == ["marked"] * 4 + ["waiting"] * 2
        assert not six.collect(after=-DAY).warnings


def test_marks_of_an_older_release_count_from_when_it_made_them(six: Clock, bucket: Path) -> None:
    made = six.collect()
    old = [
        {
            "name": f"data/{MODEL}/{one.ref.rel.rpartition('/')[2]}",
            "version": number,
            "entries": seen,
            "since": to_iso(six.now),
        }
        for one in made._candidates
        for number, seen in one.fingerprints.items()
    ]
    for rel in pages_of(bucket):
        os.unlink(bucket / rel)
    document = {"version": 1, "write": "x", "marks": old[::-1]}
    (bucket / MARKS).write_text(json.dumps(document))

    assert kinds(six.collect(after=DAY / 2)) == dict.fromkeys(GARBAGE, "waiting")
    assert pages_of(bucket) == listed_in(bucket)
    assert kinds(six.collect(after=DAY / 2)) == dict.fromkeys(GARBAGE, "swept")


def test_what_lists_pages_cannot_name_anything_else(bucket: Path, six: Clock) -> None:
    six.collect()
    document = json.loads((bucket / MARKS).read_text())
    document["pages"][0]["page"] = "../../data/aws/ec2/i-1/a/3/raw"
    (bucket / MARKS).write_text(json.dumps(document))
    again = six.collect(after=DAY)
    assert "all marks are new" in again.warnings[0]
    assert version("a", 3) < data_in(bucket)


def test_of_two_collections_at_once_the_later_one_leaves_no_page_behind(
    six: Clock, bucket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = MarkPages.listed

    def after_another(pages: MarkPages) -> Any:
        found = real(pages)
        monkeypatch.setattr(MarkPages, "listed", real)
        six.collect()
        return found

    monkeypatch.setattr(MarkPages, "listed", after_another)
    late = six.collect()
    assert late.warnings == ["another collection marked at the same time; its marks stand"]
    assert pages_of(bucket) == listed_in(bucket)
    assert kinds(six.collect(after=DAY)) == dict.fromkeys(GARBAGE, "swept")


def test_marks_whose_answer_got_lost_are_known_to_be_there(
    six: Clock, bucket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = DirectoryStore.put_if_absent

    def lost(self: DirectoryStore, key: str, body: Any) -> Any:
        written = real(self, key, body)
        if key == MARKS:
            raise PreconditionFailedError(f"{key} is there")
        return written

    monkeypatch.setattr(DirectoryStore, "put_if_absent", lost)
    assert six.collect().warnings == []
    assert len(pages_of(bucket)) == 2
    assert pages_of(bucket) == listed_in(bucket)
    assert kinds(six.collect(after=DAY)) == dict.fromkeys(GARBAGE, "swept")
