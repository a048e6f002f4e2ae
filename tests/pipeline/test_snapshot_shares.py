"""Tasks of a refresh share the work, also where one model has most of it."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from swampstore.pipeline.places import Place, places_of
from swampstore.pipeline.snapshots import drafts
from swampstore.pipeline.snapshots.buckets import Drafted, Remade
from swampstore.pipeline.snapshots.manifest import FILES, Manifest, Manifests
from swampstore.pipeline.snapshots.refresh import Refresh, Refreshed, refresh
from swampstore.pipeline.source.artifacts import Artifacts
from tests.support.histories import History
from tests.support.imaginary import register
from tests.support.members import bucket_in_a_directory

TASKS = 8
Meddle = Callable[[int], None]


class Tasks:
    """Runs tasks one after the other, as Spark does elsewhere, and counts what each asks for."""

    def __init__(self, meddle: Meddle = lambda _: None) -> None:
        self.requests: list[list[int]] = []
        self._meddle = meddle

    def refresh(self, place: Place) -> Refreshed:
        return Refresh(place, lambda _: (self._run, TASKS, "spark")).refreshed()

    def _run(self, work: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[Remade | Drafted]:
        counts = []
        for item in items:
            done = list(pickle.loads(pickle.dumps(work))(pickle.loads(pickle.dumps(item))))
            counts.append(sum(one.tally.requests["get"] for one in done))
            yield from done
        self.requests.append(counts)
        self._meddle(len(self.requests))


@pytest.fixture
def imagined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Place]:
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.setattr("sys.path", [*sys.path])
    monkeypatch.setattr(drafts, "_WORTH_A_DRAFT", 1000)
    register(tmp_path / "registered")

    def place(directory: str) -> Place:
        # The first model has nine of ten objects.
        [found] = places_of(f"imaginary://20x4x5?dir={tmp_path}/{directory}&heavy=700")
        return found

    return place


def rows_of(place: Place, **options: Any) -> list[Any]:
    table = Artifacts(**options)
    with place.open() as store:
        pieces = list(table.plan(place, store, 3))
        return sorted(row[1:] for piece in pieces for row in table.rows(place, piece, store))


def newest(place: Place) -> Manifest:
    with place.open() as store:
        found = Manifests(store, place.names()).newest().manifest
    assert found is not None
    return found


def test_tasks_ask_for_about_the_same_number_of_objects(
    imagined: Callable[[str], Place], tmp_path: Path
) -> None:
    place, other = imagined("one"), imagined("other")
    tasks = Tasks()

    done = tasks.refresh(place)

    [expected] = refresh([other], engine="local")
    assert (done.rows, done.left, done.shards) == (expected.rows, 0, expected.shards)
    first, *rest = tasks.requests
    assert sum(first) >= done.rows
    assert max(first) <= 1.3 * sum(first) / TASKS
    # Putting it together takes the documents and the drafts, and no metadata.
    assert sum(map(sum, rest)) < 40 + TASKS
    assert rows_of(place) == rows_of(other)
    files = {path.name for path in (tmp_path / "one" / FILES).iterdir()}
    assert files == newest(place).files
    # And nothing is left to do.
    assert Tasks().refresh(place).changed == 0


@pytest.mark.parametrize("meddling", ["commit", "lose"])
def test_what_happens_between_drafts_and_the_whole_leaves_a_valid_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, meddling: str
) -> None:
    monkeypatch.setattr(drafts, "_WORTH_A_DRAFT", 100)
    member = bucket_in_a_directory(tmp_path).member("ana")
    with member.open() as repo:
        history = History(repo, seed=5)
        history.go_on(60)
        repo.sync.push(full=True)
        repo.sync.migrate_index()
        [place] = places_of(member.repo_dir, None, member.environ)
        for _ in range(3):
            history.go_on(25)
            repo.sync.push()

            def meddle(times: int) -> None:
                if times > 1:
                    return
                if meddling == "commit":
                    history.go_on(5)
                    repo.sync.push()
                    return
                with place.open() as store:
                    manifests = Manifests(store, place.names())
                    manifest = manifests.newest().manifest
                    drafted = manifests.files().keys() - (manifest.files if manifest else set())
                    assert drafted
                    for one in drafted:
                        store.delete(manifests.key_of(one))

            tasks = Tasks(meddle)
            tasks.refresh(place)
            assert len(tasks.requests) > 1
            assert rows_of(place) == rows_of(place, snapshot=False)
        Tasks().refresh(place)
        assert rows_of(place) == rows_of(place, snapshot=False)
