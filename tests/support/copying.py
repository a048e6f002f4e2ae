"""What tests of copies share: a filled source, what a target lacks, and how both compare."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from swampstore.index.format import decode_entry
from swampstore.pipeline import copy as job
from swampstore.pipeline.copy import Commits
from swampstore.pipeline.copy.comparison import Most, Totals
from swampstore.pipeline.copy.local_engine import ComparisonHere
from swampstore.pipeline.copy.outcomes import Outcome, Placed, Refused, Wanted
from swampstore.pipeline.copy.tasks import CopyTask, copy_units, units_of
from swampstore.pipeline.index_writer import committer
from swampstore.pipeline.places import Place, places_of
from swampstore.stores import Store
from swampstore.stores.directory import DirectoryStore
from tests.support.staging import metadata_of
from tests.support.sync_harness import Machine, remote_index

if TYPE_CHECKING:
    import pytest

MODEL = "data/aws/ec2/i-1"
LARGE = 5 << 20


class Bucket:
    """A directory as a store, and a machine that pushes to it."""

    def __init__(self, directory: Path, namespace: str = "") -> None:
        self.directory = directory
        self.namespace = namespace
        directory.mkdir(exist_ok=True)
        self.url = f"file://{directory}"
        self.store = DirectoryStore(str(directory), durable=False)
        self._cache = directory.with_name(f"{directory.name}-cache-{namespace or 'solo'}")

    @property
    def place(self) -> Place:
        return places_of(self.url, [self.namespace])[0]

    @contextlib.contextmanager
    def pushing(self) -> Iterator[Machine]:
        with Machine(
            self._cache, DirectoryStore(str(self.directory), durable=False), self.namespace
        ) as machine:
            yield machine
            machine.push()

    def save(self, name: str, version: int, content: bytes) -> None:
        """Push a version of a data name, which is the latest then."""
        with self.pushing() as machine:
            save(machine, name, version, content)

    def write(self, rel: str, content: bytes) -> None:
        with self.pushing() as machine:
            machine.write(rel, content)

    def path(self, rel: str) -> Path:
        return self.directory / self.namespace / rel

    def damage(self, rel: str, content: bytes) -> None:
        """Change an object behind the back of the index."""
        self.path(rel).write_bytes(content)

    @property
    def entries(self) -> dict[str, dict[str, Any]]:
        return remote_index(self.store, self.namespace).entries


def save(machine: Machine, name: str, version: int, content: bytes) -> None:
    base = f"{MODEL}/{name}"
    machine.write(f"{base}/{version}/raw", content)
    machine.write(f"{base}/{version}/metadata.yaml", metadata_of(name, version, content))
    machine.write(f"{base}/latest", b"%d" % version)


def fill(bucket: Bucket, names: int = 3) -> None:
    """Push some names with two versions each, a large one, and a record of a run."""
    with bucket.pushing() as machine:
        for number in range(names):
            save(machine, f"name-{number}", 1, b"first of %d" % number)
            save(machine, f"name-{number}", 2, b"second of %d" % number)
        save(machine, "large", 1, b"0123456789abcdef" * (LARGE // 16))
        machine.write("outputs/aws/ec2/start/1.yaml", b"status: succeeded\n")


def lacking(source: Bucket, target: Bucket) -> list[Wanted]:
    """Return what the target lacks, as the indexes tell it."""
    theirs = {rel: json.dumps(entry).encode() for rel, entry in target.entries.items()}
    wanted = []
    for rel, entry in source.entries.items():
        raw = json.dumps(entry).encode()
        ours = decode_entry(rel, raw)
        if rel not in theirs or decode_entry(rel, theirs[rel]).sha256 != ours.sha256:
            wanted.append(
                Wanted(
                    *(rel, ours.size, ours.sha256, ours.last_modified, ours.local_mtime),
                    raw=raw,
                    etag=None,
                    there=theirs.get(rel),
                )
            )
    return wanted


def copy_here(source: Bucket, target: Bucket, wanted: list[Wanted] | None = None) -> list[Outcome]:
    """Do in this process what the tasks of a copy do; nothing is committed."""
    units = units_of(lacking(source, target) if wanted is None else wanted)
    with committer(target.place) as writer:
        told = Commits(writer).with_versions(units)
    return list(copy_units(CopyTask(source.place, target.place, tuple(told))))


def copy_and_commit(source: Bucket, target: Bucket) -> list[Outcome]:
    """Copy in this process, and commit."""
    with committer(target.place) as writer:
        commits = Commits(writer)
        commits.begin(source.place)
        before = commits.look(units_of(lacking(source, target)))
        outcomes = copy_here(source, target)
        commits.commit([one for one in outcomes if isinstance(one, Placed)], before)
    return outcomes


class Compared:
    """What `Comparison` is, of two directories and without Spark."""

    rounds: ClassVar[list[int]] = []

    def __init__(self, source: Bucket, target: Bucket) -> None:
        self._wanted = lacking(source, target)
        self._objects = len(source.entries)
        self.rounds.append(len(self._wanted))

    @classmethod
    def of(cls, _spark: object, source: Place, target: Place) -> Self:
        return cls(bucket_of(source), bucket_of(target))

    def totals(self) -> Totals:
        return Totals(self._objects, 0, len(self._wanted), 0, 0)

    def wanted(self, _totals: Totals) -> list[Wanted]:
        return [one for unit in units_of(self._wanted) for one in unit.wanted]

    def close(self) -> None: ...


def bucket_of(place: Place) -> Bucket:
    assert place.root is not None
    return Bucket(Path(place.root), place.namespace)


def run_here(_spark: object, work: Any, items: list[Any], **_: object) -> Iterator[Any]:
    """Do what `run_tasks` does, in this process."""
    return (result for item in items for result in work(item))


# Whoever copies with it copies as on Spark, once `without_spark` has taken Spark's place.
ON_SPARK: Any = object()


def without_spark(monkeypatch: pytest.MonkeyPatch, parts: int = 1) -> list[int]:
    """Let copies do their work in this process; return how much each of their looks will find.

    Those that were given `ON_SPARK` get tasks as Spark would run them, those without Spark do what
    they always do.
    """
    looks: list[int] = []

    class ComparedHere(ComparisonHere):
        @classmethod
        def of(cls, source: Place, target: Place | None) -> Self:
            found = super().of(source, target)
            looks.append(len(found.missing))
            return found

    monkeypatch.setattr(Compared, "rounds", looks)
    monkeypatch.setattr(
        job, "most_of", lambda totals: Most(-(-totals.missing // parts), sys.maxsize)
    )
    monkeypatch.setattr(job, "Comparison", Compared)
    monkeypatch.setattr(job, "ComparisonHere", ComparedHere)
    monkeypatch.setattr(job, "tasks_for", lambda _: 2)
    monkeypatch.setattr(job, "run_tasks", run_here)
    return looks


def refused(outcomes: list[Outcome]) -> dict[str, str]:
    """Return what was not copied, and what that is called."""
    return {one.wanted.rel: one.kind for one in outcomes if isinstance(one, Refused)}


def payload(store: Store, namespace: str = "") -> dict[str, bytes]:
    """Return the content of what is shared, by path."""
    from tests.support.sync_harness import remote_files

    return remote_files(store, namespace)
