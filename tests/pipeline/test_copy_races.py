"""Copies that are killed, or that others get in the way of, at the source or at the target."""

from __future__ import annotations

import hashlib
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from swampstore.index.partitions import MONOLITH_KEY
from swampstore.pipeline import copy as job
from swampstore.pipeline.copy import Commits, Copied, copy
from swampstore.pipeline.copy.outcomes import CONFLICT, CORRUPT, HELD_BACK, Placed, Wanted
from swampstore.pipeline.index_writer import editing
from swampstore.pipeline.verify.repair import Repair
from swampstore.stores.directory import DirectoryStore
from swampstore.stores.protocol import Written
from tests.support.copying import (
    MODEL,
    ON_SPARK,
    Bucket,
    copy_and_commit,
    payload,
    save,
    without_spark,
)
from tests.support.forked import in_child
from tests.support.looking import look
from tests.support.sync_harness import assert_sound

Run = Callable[[Bucket, Bucket], Copied]


@pytest.fixture
def source(tmp_path: Path) -> Bucket:
    return Bucket(tmp_path / "source")


@pytest.fixture
def target(tmp_path: Path) -> Bucket:
    return Bucket(tmp_path / "target")


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How much each look at the two indexes has found to be missing."""
    return without_spark(monkeypatch)


@pytest.fixture(params=["here", "tasks"])
def engine(request: pytest.FixtureRequest) -> str:
    """Copies without Spark, and with tasks as Spark runs them, keep the same rules."""
    return str(request.param)


@pytest.fixture
def run(engine: str) -> Run:
    return lambda source, target: copy(
        None if engine == "here" else ON_SPARK, [source.place], target.url
    )


def found(copied: Copied) -> dict[str | None, str]:
    return {one.rel: one.kind for one in copied.findings}


def between_tasks_and_commit(monkeypatch: pytest.MonkeyPatch, happens: Any) -> None:
    """Let something happen once, after objects were brought over and before they are committed."""
    outcomes = job._Copy._outcomes

    def then(self: Any, tasks: Any) -> list[Any]:
        monkeypatch.setattr(job._Copy, "_outcomes", outcomes)
        results = list(outcomes(self, tasks))
        happens()
        return results

    monkeypatch.setattr(job._Copy, "_outcomes", then)


# Killed ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("puts", [1, 5, 12, 20, 33])
def test_a_copy_that_is_killed_leaves_nothing_that_dangles_and_goes_on_where_it_was(
    source: Bucket, target: Bucket, run: Run, monkeypatch: pytest.MonkeyPatch, puts: int
) -> None:
    with source.pushing() as machine:
        for number in range(5):
            save(machine, f"name-{number}", 1, b"first of %d" % number)
        machine.write("outputs/aws/ec2/start/1.yaml", b"status: running\n")
    copy_and_commit(source, target)
    with source.pushing() as machine:
        for number in range(5):
            save(machine, f"name-{number}", 2, b"second of %d" % number)
        machine.write("outputs/aws/ec2/start/1.yaml", b"status: failed\n")
    before = target.entries

    def copy_until_killed() -> None:
        without_spark(monkeypatch, parts=3)
        die_at_put(puts, monkeypatch)
        run(source, target)

    assert in_child(copy_until_killed)
    committed = target.entries
    assert committed.keys() >= before.keys()
    files = payload(target.store)
    for rel in committed:
        # What is being replaced may be ahead of the index.
        if rel not in before:
            assert committed[rel]["sha256"] == hashlib.sha256(files[rel]).hexdigest()
        if rel.endswith("/latest"):
            version = target.store.get(rel).data.decode()
            assert f"{rel.removesuffix('latest')}{version}/metadata.yaml" in committed
        elif rel.endswith("/metadata.yaml"):
            assert f"{rel.removesuffix('metadata.yaml')}raw" in committed

    without_spark(monkeypatch)
    copied = run(source, target)
    assert copied.is_complete
    assert copied.present >= len(committed) - 6
    assert payload(target.store) == payload(source.store)
    assert_sound(target.store)


def die_at_put(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Be killed instead of putting the n-th object."""
    puts: list[str] = []
    write = DirectoryStore._write

    def write_some(self: DirectoryStore, key: str, *args: Any) -> Written:
        puts.append(key)
        if len(puts) >= number:
            os.kill(os.getpid(), signal.SIGKILL)
        return write(self, key, *args)

    monkeypatch.setattr(DirectoryStore, "_write", write_some)


# The source changes ------------------------------------------------------------------------------


def test_what_changes_while_it_is_copied_comes_as_it_is_then(
    source: Bucket, target: Bucket, run: Run, looks: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    source.save("state", 1, b"one")
    source.write("files/changed", b"old")
    source.write("files/deleted", b"x")

    outcomes = job._Copy._outcomes

    def change_first(self: Any, tasks: Any) -> Any:
        if len(looks) == 1:
            with source.pushing() as machine:
                machine.write("files/changed", b"new")
                machine.delete("files/deleted")
        return outcomes(self, tasks)

    monkeypatch.setattr(job._Copy, "_outcomes", change_first)
    copied = run(source, target)
    assert looks == [5, 1]
    assert (copied.objects, copied.findings) == (4, ())
    assert payload(target.store) == payload(source.store)
    assert_sound(target.store)


def test_what_is_corrupt_is_looked_at_once_more_and_comes_when_it_is_repaired(
    source: Bucket, target: Bucket, run: Run, looks: list[int]
) -> None:
    source.save("state", 1, b"one")
    source.save("other", 1, b"other")
    source.damage(f"{MODEL}/state/1/raw", b"oNe")
    assert found(run(source, target)) == {
        f"{MODEL}/state/1/raw": CORRUPT,
        f"{MODEL}/state/1/metadata.yaml": HELD_BACK,
        f"{MODEL}/state/latest": HELD_BACK,
    }
    assert looks == [6, 3]

    source.damage(f"{MODEL}/state/1/raw", b"one")
    assert run(source, target).is_complete
    assert payload(target.store) == payload(source.store)
    assert_sound(target.store)


def test_a_marker_whose_version_was_not_yet_seen_comes_with_the_next_look(
    source: Bucket,
    target: Bucket,
    run: Run,
    looks: list[int],
    monkeypatch: pytest.MonkeyPatch,
    engine: str,
) -> None:
    source.save("state", 1, b"one")
    compared = getattr(job, "ComparisonHere" if engine == "here" else "Comparison")
    wanted = compared.wanted

    def torn(self: Any, totals: Any) -> list[Wanted]:
        """Shards are read one by one: what tells of the version was read before its commit."""
        found = wanted(self, totals)
        return [one for one in found if len(looks) > 1 or one.rel.endswith("/latest")]

    monkeypatch.setattr(compared, "wanted", torn)
    copied = run(source, target)
    assert (copied.objects, copied.findings) == (3, ())
    assert payload(target.store) == payload(source.store)
    assert_sound(target.store)


# The target changes ------------------------------------------------------------------------------


@pytest.mark.usefixtures("looks")
def test_a_marker_never_names_a_version_that_the_index_of_the_target_does_not(
    source: Bucket, target: Bucket, run: Run
) -> None:
    source.save("state", 1, b"one")
    copy_and_commit(source, target)
    source.save("state", 2, b"two")
    # Of a push that was killed before its commit.
    target.store.put(f"{MODEL}/state/2/raw", b"their two")
    target.store.put(f"{MODEL}/state/2/metadata.yaml", b"their metadata")
    assert found(run(source, target)) == {
        f"{MODEL}/state/2/raw": CONFLICT,
        f"{MODEL}/state/2/metadata.yaml": HELD_BACK,
        f"{MODEL}/state/latest": HELD_BACK,
    }
    assert target.store.get(f"{MODEL}/state/latest").data == b"1"
    assert_sound(target.store)


def test_a_marker_waits_for_a_version_that_others_overtook(
    source: Bucket, target: Bucket, run: Run, looks: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    source.save("state", 1, b"one")
    copy_and_commit(source, target)
    source.save("state", 2, b"two")

    def commit_the_same_version() -> None:
        for file in ("raw", "metadata.yaml"):
            target.store.delete(f"{MODEL}/state/2/{file}")
        with target.pushing() as machine:
            machine.pull()
            save(machine, "state", 2, b"their two")

    between_tasks_and_commit(monkeypatch, commit_the_same_version)
    copied = run(source, target)
    assert found(copied) == {
        f"{MODEL}/state/2/raw": CONFLICT,
        f"{MODEL}/state/2/metadata.yaml": CONFLICT,
    }
    assert len(looks) > 1
    assert target.store.get(f"{MODEL}/state/2/raw").data == b"their two"
    assert_sound(target.store)


def test_an_object_that_was_there_and_is_deleted_before_the_commit_comes_again(
    source: Bucket, target: Bucket, run: Run, looks: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    source.write("files/a", b"other")
    copy_and_commit(source, target)
    source.save("state", 1, b"one")
    raw = f"{MODEL}/state/1/raw"
    # What a collection has taken out of the index, and is about to delete.
    target.store.put(raw, b"one")
    between_tasks_and_commit(monkeypatch, lambda: target.store.delete(raw))
    copied = run(source, target)
    assert (copied.objects, copied.findings) == (3, ())
    assert looks == [3, 3]
    assert payload(target.store) == payload(source.store)
    assert_sound(target.store)


def test_what_a_damaged_entry_of_the_target_tells_of_is_not_written_over(
    source: Bucket, target: Bucket
) -> None:
    source.write("files/a", b"ours")
    target.write("files/a", b"theirs")
    index = target.directory / MONOLITH_KEY
    document = json.loads(index.read_bytes())
    document["entries"]["files/a"] = {"size": "none"}
    index.write_text(json.dumps(document))
    assert found(copy(None, [source.place], target.url))["files/a"] == CONFLICT
    assert target.store.get("files/a").data == b"theirs"


@pytest.mark.parametrize("is_new", [True, False])
def test_a_copy_that_takes_longer_than_the_grace_of_a_repair_names_nothing_that_is_gone(
    source: Bucket,
    target: Bucket,
    looks: list[int],
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    is_new: bool,
) -> None:
    source.save("state", 1, b"one")
    if not is_new:
        run(source, target)
    source.write("files/report.txt", b"sent long ago")
    source.write("files/more.txt", b"sent long ago as well")
    source.save("state", 2, b"two")
    repaired: list[int] = []
    commit = Commits.commit

    def late(commits: Commits, placed: list[Placed], *arguments: Any) -> Any:
        if placed and not repaired:
            seen = look(target.place)
            with editing(target.place) as writer:
                repair = Repair(target.place, seen.damaged(), seen.having, writer, gives_up=True)
                repaired.append(repair.run().done["quarantine"])
        # As if each had been put there a while after its task began.
        return commit(commits, [one._replace(is_met=False) for one in placed], *arguments)

    monkeypatch.setattr(Commits, "commit", late)
    copied = run(source, target)
    assert repaired[0]
    assert copied.is_complete
    assert payload(target.store) == payload(source.store)
    assert_sound(target.store)
