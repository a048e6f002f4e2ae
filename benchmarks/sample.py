"""Artifacts of a made-up organisation: the same ones for the same shape, in path order."""

from __future__ import annotations

import hashlib
import os
import random
import uuid
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from swampstore import DataRef, Metadata, ModelRef, Owner
from swampstore.artifacts.metadata import encode
from swampstore.clock import to_iso
from swampstore.files import Tree
from swampstore.layout import METADATA, RAW

TYPES = sorted(
    f"{vendor}/{service}/{kind}"
    for vendor in ("@acme", "aws", "gcp", "kubernetes")
    for service in ("compute", "database", "network", "storage", "identity")
    for kind in ("group", "instance")
)
_STEMS = (
    *("backup", "config", "cost", "deployment", "disk", "endpoints", "events", "facts"),
    *("health", "instance", "inventory", "log", "metrics", "network", "policy", "report"),
    *("result", "state", "summary", "volumes"),
)
SPECS = tuple(f"{stem}-spec" for stem in _STEMS)
DATA_TYPES = ("resource", "file", "log", "report")
CONTENT_TYPES = dict(
    zip(DATA_TYPES, ("application/json", "text/plain", "text/plain", "text/html"), strict=True)
)
ENVIRONMENTS = ("prod", "staging", "dev", "canary")
REGIONS = ("eu-central-1", "eu-west-1", "us-east-1", "us-west-2")
BEGINNING = datetime(2024, 6, 1, tzinfo=UTC)
DAYS = 730
ROWS_PER_RUN = 50
ROWS_PER_TICKET = 50
_TICKETED = 0.05
_BY_WORKFLOW = 0.6


class Shape(NamedTuple):
    """How many there are: every `every`-th name has `versions` versions, the others have one."""

    models: int
    names: int
    versions: int = 1
    every: int = 1

    @property
    def artifacts(self) -> int:
        """The number of data names."""
        return self.models * self.names

    @property
    def runs(self) -> int:
        """The number of workflow runs, each of which wrote some fifty artifacts."""
        return max(1, int(self.artifacts * _BY_WORKFLOW) // ROWS_PER_RUN)

    @property
    def tickets(self) -> int:
        """The number of values of the tag `ticket`, each on some fifty artifacts."""
        return max(1, int(self.artifacts * _TICKETED) // ROWS_PER_TICKET)


def model_ref(shape: Shape, model: int) -> ModelRef:
    """Return the address of the n-th model; in the order of their numbers they are sorted."""
    ending = (model * 0x9E3779B97F4A) % (1 << 48)
    return ModelRef(
        TYPES[model * len(TYPES) // shape.models], f"{model:08x}-7c1e-4b6a-9d52-{ending:012x}"
    )


def model_name(model: int) -> str:
    """Return the name of the n-th model."""
    return f"{_STEMS[model % len(_STEMS)]}-service-{model:05}"


def run_id(run: int) -> str:
    """Return the id of the n-th workflow run."""
    return str(uuid.UUID(int=(run + 1) * 0x9E3779B97F4A7C15F39CC0605CEDC835 % (1 << 128)))


def moment(day: float) -> str:
    """Return a moment so many days after the beginning."""
    return to_iso(BEGINNING + timedelta(days=day))


def names(shape: Shape) -> list[str]:
    """Return the data names that every model has, sorted."""
    return sorted(f"{_STEMS[n % len(_STEMS)]}-{n // len(_STEMS):03}" for n in range(shape.names))


def artifacts(shape: Shape) -> Iterator[tuple[DataRef, list[Metadata]]]:
    """Yield every data name with the metadata of its versions, ascending."""
    writer = _Writer(shape)
    data_names = names(shape)
    for model in range(shape.models):
        ref = model_ref(shape, model)
        for number, name in enumerate(data_names):
            count = shape.versions if number % shape.every == 0 else 1
            yield DataRef(ref, name), writer.versions(model, name, count)


class _Writer:
    """Makes metadata up."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._chance = random.Random(20260814)

    def versions(self, model: int, name: str, count: int) -> list[Metadata]:
        """Return the versions of one name, all by the same writer, if in different runs."""
        spec = f"{name.partition('-')[0]}-spec"
        by_workflow = self._chance.random() < _BY_WORKFLOW
        return [
            self._metadata(
                name,
                version,
                self._tags(model, spec),
                self._step(model, spec) if by_workflow else Owner("model-method", f"{model:08x}"),
            )
            for version in range(1, count + 1)
        ]

    def _metadata(self, name: str, version: int, tags: dict[str, str], owner: Owner) -> Metadata:
        chance = self._chance
        return Metadata(
            id=str(uuid.UUID(int=chance.getrandbits(128))),
            name=name,
            version=version,
            content_type=CONTENT_TYPES[tags["type"]],
            lifetime="infinite" if chance.random() < 0.8 else "30d",
            garbage_collection=10,
            streaming=tags["type"] == "log",
            tags=tags,
            owner=owner,
            created_at=moment(chance.random() * DAYS),
            size=int(chance.lognormvariate(8, 2)),
            checksum=f"{chance.getrandbits(256):064x}",
        )

    def _tags(self, model: int, spec: str) -> dict[str, str]:
        chance = self._chance
        tags = {
            "type": chance.choices(DATA_TYPES, cum_weights=(70, 90, 99, 100))[0],
            "modelName": model_name(model),
            "specName": spec,
            "env": chance.choices(ENVIRONMENTS, cum_weights=(50, 75, 99.5, 100))[0],
            "region": chance.choice(REGIONS),
        }
        if chance.random() < _TICKETED:
            tags["ticket"] = f"OPS-{chance.randrange(self._shape.tickets)}"
        return tags

    def _step(self, model: int, spec: str) -> Owner:
        run = self._chance.randrange(self._shape.runs)
        return Owner(
            "workflow-step",
            f"{model:08x}",
            workflow_id=f"workflow-{run % 200:03}",
            workflow_run_id=run_id(run),
            workflow_name=f"nightly-{run % 200:03}",
            job_name="collect",
            step_name=f"collect-{spec}",
        )


def write_files(tree: Tree, shape: Shape, contents: Iterator[bytes]) -> int:
    """Write every artifact below a tree as fast as it goes; return the number of versions.

    Plain writes without locks, fsyncs or catalog; every version takes the next of the contents.
    """
    count = 0
    made: set[str] = set()
    for ref, versions in artifacts(shape):
        directory = tree.path(ref.rel)
        if ref.model.rel not in made:
            os.makedirs(tree.path(ref.model.rel))
            made.add(ref.model.rel)
        os.mkdir(directory)
        for metadata, content in zip(versions, contents, strict=False):
            os.mkdir(f"{directory}/{metadata.version}")
            _write(f"{directory}/{metadata.version}/{RAW}", content)
            _write(f"{directory}/{metadata.version}/{METADATA}", encode(_of(metadata, content)))
        _write(tree.path(ref.latest_rel), b"%d" % versions[-1].version)
        count += len(versions)
    return count


def _of(metadata: Metadata, content: bytes) -> Metadata:
    checksum = hashlib.sha256(content).hexdigest()
    return replace(metadata, size=len(content), checksum=checksum)


def small_contents(smallest: int = 300, largest: int = 3000) -> Iterator[bytes]:
    """Yield as many contents as anybody wants, the same ones each time."""
    chance = random.Random(20260815)
    while True:
        yield chance.randbytes(chance.randint(smallest, largest))


def _write(path: str, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    os.write(fd, data)
    os.close(fd)
