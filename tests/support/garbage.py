"""Finding and collecting garbage without Spark, and looking at what is left."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from swampstore.artifacts.metadata import Owner
from swampstore.index.format import Entry
from swampstore.index.path_kinds import version_file
from swampstore.layout import DataRef, ref_of
from swampstore.pipeline.gc import PlaceCollection
from swampstore.pipeline.gc.candidates import Candidate, files_of_name, fingerprint
from swampstore.pipeline.gc.local_engine import plan_here
from swampstore.pipeline.gc.sweep import NameState, removal_of
from swampstore.pipeline.index_writer import committer
from swampstore.pipeline.places import Place, places_of
from tests.support.machines import Machine

DAY = timedelta(days=1)
AT_ONCE = timedelta()
MODEL = "aws/ec2/i-1"
RUN = Owner(type="workflow-step", ref="deploy", workflow_id="deploy", workflow_run_id="r1")


def place_of(bucket: Path, namespace: str = "") -> Place:
    (place,) = places_of(f"file://{bucket}", [namespace])
    return place


def garbage_of(place: Place, now: datetime) -> list[Candidate]:
    """Return what is garbage, found out without Spark."""
    with committer(place) as writer:
        entries = writer.entries()
        contents = {
            rel: writer.store.get(writer.names.remote(rel)).data
            for rel in entries
            if rel.endswith(("/metadata.yaml", "/latest"))
        }
    refs = {ref_of(file.name_rel) for rel in entries if (file := version_file(rel))}
    names = {ref: dict(files_of_name(entries, ref.rel)) for ref in sorted(refs)}
    found = [candidate_of(ref, mine, entries, contents, now) for ref, mine in names.items()]
    return [one for one in found if one is not None]


def candidate_of(
    ref: DataRef,
    files: Mapping[str, int],
    entries: Mapping[str, Entry],
    contents: Mapping[str, bytes],
    now: datetime,
) -> Candidate | None:
    mine = {rel: entries[rel] for rel in files}
    told = {rel: contents[rel] for rel in files if rel in contents}
    removal = removal_of(ref, NameState(mine, {}, told), now, lambda *_: False)
    if removal is None:
        return None
    units = [0] if removal.whole_name else [one.version for one in removal.versions]
    return Candidate(
        removal,
        {
            unit: fingerprint({rel: mine[rel] for rel in mine if unit in (0, files[rel])})
            for unit in units
        },
    )


class Clock:
    """Collects a place as time goes by."""

    def __init__(self, where: Path | Place) -> None:
        self.place = where if isinstance(where, Place) else place_of(where)
        self.now = datetime.now(UTC) + timedelta(hours=2)

    def collect(
        self, grace: timedelta = DAY, *, dry_run: bool = False, after: timedelta = timedelta()
    ) -> PlaceCollection:
        self.now += after
        garbage = garbage_of(self.place, self.now)
        found, _ = plan_here([self.place], self.now)
        assert [*found.values()] == ([garbage] if garbage else [])
        collection = PlaceCollection(self.place, garbage, self.now, grace)
        if dry_run:
            collection.preview()
        else:
            collection.run()
        return collection


def kinds(collection: PlaceCollection) -> dict[str, str]:
    """Return what became of everything, by path below the model."""
    return {one.rel.removeprefix(f"data/{MODEL}/"): one.kind for one in collection.outcomes}


def save(machine: Machine, name: str, *contents: str, **rules: Any) -> None:
    """Save versions and push them."""
    with machine.open() as repo:
        for content in contents:
            repo.artifacts.save(MODEL, name, content, **rules)
        repo.sync.push()


def listing(bucket: Path) -> dict[str, bytes]:
    """Return everything that is stored."""
    return {
        path.relative_to(bucket).as_posix(): path.read_bytes()
        for path in bucket.rglob("*")
        if path.is_file()
    }


def data_in(bucket: Path) -> set[str]:
    return {
        rel.removeprefix(f"data/{MODEL}/") for rel in listing(bucket) if rel.startswith("data/")
    }


def version(name: str, *numbers: int) -> set[str]:
    return {f"{name}/{number}/{file}" for number in numbers for file in ("metadata.yaml", "raw")}


def healthy(machine: Machine) -> bool:
    """Whether all files are what they should be, and the index agrees with all objects."""
    outcome = machine("doctor", "--deep", "--json")
    return outcome.status == 0
