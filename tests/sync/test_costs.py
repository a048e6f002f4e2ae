"""What each operation costs: requests counted in front of a real S3 server, files looked at.

Everything is checked at two sizes; what depends on the size is what differs between them.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from swampstore.index.partitions import partition_of
from swampstore.layout import ModelRef
from tests.conftest import FakeClock
from tests.support.fault_proxy import FaultProxy, Request
from tests.support.remotes import ProxiedRemote, Remote
from tests.support.sync_harness import Machine

SMALL = 50
LARGE = 1000  # more shards than a server lists at once
INDEX = ("_index/", ".datastore-index.json")


def model(number: int) -> ModelRef:
    return ModelRef("probe" if number % 10 == 0 else "aws/ec2", f"m-{number}")


def artifact(ref: ModelRef, name: str, version: int) -> dict[str, bytes]:
    """The files of one saved version."""
    home = f"{ref.rel}/{name}"
    return {
        f"{home}/{version}/raw": f"{ref} {name} {version}".encode(),
        f"{home}/{version}/metadata.yaml": f"name: {name}\nversion: {version}\n".encode(),
        f"{home}/latest": b"%d" % version,
    }


def all_files(models: int) -> dict[str, bytes]:
    """The files of a number of models, of which only the first few have more than one version."""
    files: dict[str, bytes] = {}
    for number in range(models):
        few = number < SMALL
        for name in ("state", "plan", "log") if few else ("state",):
            for version in range(1, 4 if few else 2):
                files |= artifact(model(number), name, version)
    return files


class World(NamedTuple):
    """Two machines that agree with a remote of a number of models."""

    here: Machine
    there: Machine
    proxy: FaultProxy
    models: int
    version: int

    def change(self, machine: Machine, number: int = 0) -> set[str]:
        """Save one more version of an artifact; return the paths."""
        home = f"{model(number).rel}/state"
        latest = int(machine.read(f"{home}/latest"))
        files = artifact(model(number), "state", latest + 1)
        machine.service.mark_dirty(home)
        for rel, data in files.items():
            machine.write_unmarked(rel, data)
        return set(files)

    def requests(self, operation: Callable[[], object]) -> list[Request]:
        """Return what an operation asks of the server."""
        self.proxy.reset()
        operation()
        return list(self.proxy.requests)


def kinds(requests: list[Request]) -> Counter[str]:
    """Count requests as what they are about: the data or one of the index documents."""
    return Counter(f"{one.kind} {_about(one.key)}" for one in requests)


def _about(key: str) -> str:
    if not key.startswith(INDEX):
        return "data"
    if key == ".datastore-index.json":
        return "monolith"
    return "meta" if key == "_index/_meta.json" else "shard"


def reads(counted: Counter[str]) -> int:
    return sum(count for kind, count in counted.items() if not kind.startswith("PUT"))


# What every operation may cost ------------------------------------------------------------------


def check_no_op(world: World) -> None:
    for operation in (world.here.push, world.here.pull):
        requests = world.requests(operation)
        assert len(requests) == 1, kinds(requests)
        assert requests[0].received == 0
        assert requests[0].conditions


def check_push_of_one_artifact(world: World) -> None:
    rels = world.change(world.here)
    requests = world.requests(world.here.push)
    counted = kinds(requests)
    assert counted["PUT data"] == 3
    assert counted["PUT shard"] == len({partition_of(rel) for rel in rels})
    assert counted["PUT meta"] == 1
    assert counted["PUT monolith"] == (1 if world.version == 1 else 0)
    assert counted["GET data"] == counted["HEAD data"] == 0
    # On version 1 a look at each shard, whether a newer release wrote it, comes on top.
    assert reads(counted) <= (5 if world.version == 1 else 3), counted
    world.there.pull()


def check_pull_after_one_change(world: World) -> None:
    rels = world.change(world.there, 1)
    world.there.push()
    requests = world.requests(world.here.pull)
    counted = kinds(requests)
    assert counted["GET data"] == 3
    assert counted["GET shard"] == len({partition_of(rel) for rel in rels})
    assert sum(counted[f"LIST {what}"] for what in ("data", "shard", "meta", "monolith")) <= 1
    small = counted["GET meta"] + counted["HEAD monolith"] + counted["HEAD meta"]
    assert small <= 2, counted
    assert counted["GET monolith"] == 0
    assert all(kind.split()[0] in ("GET", "HEAD", "LIST") for kind in counted)


def check_scoped_pull(world: World) -> None:
    scope = model(2)
    world.change(world.there, 2)
    world.change(world.there, 3)
    world.there.push()
    requests = world.requests(lambda: world.here.pull([scope]))
    counted = kinds(requests)
    fetched = {one.key for one in requests if _about(one.key) == "data" and one.kind == "GET"}
    assert all(key.startswith(f"{scope.rel}/") for key in fetched)
    assert len(fetched) == 3
    assert counted["GET shard"] <= 4, counted  # versions, markers, and what is filed by type
    assert counted["GET monolith"] == counted["LIST data"] == 0
    assert counted["GET meta"] + counted["HEAD monolith"] <= 2
    world.here.pull()


def check_looks_at_dirty_paths_only(world: World, looked: list[str]) -> None:
    rels = world.change(world.here, 4)
    looked.clear()
    world.here.push()
    home = world.here.names.local(f"{model(4).rel}/state")
    payload = [path for path in looked if path.startswith(f"{world.here.cache}/data/")]
    assert payload
    # Directories above are looked at as well: links are not followed, nor other namespaces entered.
    above = [path for path in payload if home.startswith(f"{os.path.dirname(path)}/")]
    below = [path for path in payload if path == home or path.startswith(f"{home}/")]
    assert set(payload) == {*above, *below}
    assert len(set(above)) <= home.count("/")
    assert len(rels) == 3
    world.there.pull()


CHECKS = (
    check_no_op,
    check_push_of_one_artifact,
    check_no_op,
    check_pull_after_one_change,
    check_no_op,
    check_scoped_pull,
)


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths that were stat'ed, opened for listing, or listed."""
    seen: list[str] = []

    def watched(name: str) -> None:
        original = getattr(os, name)

        def watching(path: str = ".", *args: object, **kwargs: object) -> object:
            if isinstance(path, str):
                seen.append(path)
            return original(path, *args, **kwargs)

        monkeypatch.setattr(os, name, watching)

    for name in ("stat", "lstat", "scandir", "listdir"):
        watched(name)
    return seen


def cold_push(world: World) -> None:
    files = all_files(world.models)
    for rel, data in files.items():
        world.here.write_unmarked(rel, data)
    requests = world.requests(world.here.push)
    counted = kinds(requests)
    assert counted["PUT data"] == len(files)
    assert counted["PUT shard"] == len({partition_of(rel) for rel in files})
    assert counted["PUT monolith"] == counted["PUT meta"] == 1
    assert reads(counted) <= 6, counted  # nothing per file beyond its PUT


def cold_pull(world: World) -> None:
    requests = world.requests(world.there.pull)
    assert kinds(requests)["GET data"] == len(world.here.files())
    assert len(requests) <= len(world.here.files()) + 5, kinds(requests)
    assert world.there.files() == world.here.files()


def copy_cache(world: World) -> None:
    """Make the second machine a copy of the first, which is quicker than to pull it all."""
    shutil.rmtree(world.there.cache)
    shutil.copytree(world.here.cache, world.there.cache)


@pytest.fixture
def world(tmp_path: Path, s3_remote: ProxiedRemote, clock: FakeClock) -> Iterator[World]:
    with (
        Machine(tmp_path / "here", s3_remote.open(), clock=clock) as here,
        Machine(tmp_path / "there", s3_remote.open(), clock=clock) as there,
    ):
        yield World(here, there, s3_remote.proxy, SMALL, 1)


def check_everything(world: World, looked: list[str]) -> None:
    for check in CHECKS:
        check(world)
    check_looks_at_dirty_paths_only(world, looked)
    world.there.service.migrate_index()
    sharded = world._replace(version=2)
    for machine in (world.here, world.there):
        machine.pull()
        machine.push()
    for check in CHECKS:
        check(sharded)
    check_looks_at_dirty_paths_only(sharded, looked)


def test_operations_on_1000_files_of_50_models_cost_what_changed(
    world: World, looked: list[str]
) -> None:
    cold_push(world)
    cold_pull(world)
    check_everything(world, looked)


def test_operations_on_4000_files_of_1000_models_cost_what_changed(
    world: World, looked: list[str]
) -> None:
    world = world._replace(models=LARGE)
    cold_push(world)
    copy_cache(world)
    check_everything(world, looked)


def test_a_first_pull_looks_for_no_file_before_it_is_there(world: World, looked: list[str]) -> None:
    cold_push(world)
    looked.clear()
    world.there.pull()
    seen = Counter(path for path in looked if path.startswith(f"{world.there.cache}/data/"))
    content = [str(world.there.cache / rel) for rel in world.here.files() if rel.endswith("/raw")]
    # When it has landed, and to see that what `latest` names is whole.
    assert sum(seen[path] for path in content) <= 2 * len(content)


def test_a_first_push_to_a_sharded_index_asks_for_no_shard(world: World) -> None:
    files = all_files(world.models)
    world.here.service.migrate_index()
    for rel, data in files.items():
        world.here.write_unmarked(rel, data)
    counted = kinds(world.requests(world.here.push))
    assert counted["PUT data"] == len(files)
    assert counted["PUT shard"] == len({partition_of(rel) for rel in files})
    assert (counted["PUT meta"], counted["PUT monolith"]) == (1, 0)
    # On version 1 a look at each shard, whether a newer release wrote it, comes on top.
    assert reads(counted) <= (5 if world.version == 1 else 3), counted


def test_5000_dirty_paths_cost_5000_stats_and_no_walk(
    tmp_path: Path, memory_remote: Remote, looked: list[str]
) -> None:
    """Also beyond the number of paths that the sidecar can hold."""
    rels = [f"files/{number // 100}/{number}.txt" for number in range(5000)]
    with Machine(tmp_path / "here", memory_remote.open()) as here:
        here.push()  # a fresh cache has to be walked once
        for rel in rels:
            here.service.mark_dirty(rel)
            here.write_unmarked(rel, rel.encode())
        for rel in rels[:2500]:
            here.write_unmarked(f"logs/{rel}", b"not marked")
        looked.clear()
        assert here.push().files == 5000
    files = {path for path in looked if path.startswith(f"{here.cache}/files/")}
    directories = {os.path.dirname(f"{here.cache}/{rel}") for rel in rels}
    assert {path for path in files if path.endswith(".txt")} == {
        f"{here.cache}/{rel}" for rel in rels
    }
    assert len(files) <= len(rels) + len(directories) + 1
    assert not [path for path in looked if path.startswith(f"{here.cache}/logs")]


def test_only_meta_grows_with_the_store_when_one_artifact_is_pushed_to_a_sharded_index(
    tmp_path: Path, s3_remote: ProxiedRemote
) -> None:
    sizes = []
    with Machine(tmp_path / "a", s3_remote.open()) as machine:
        world = World(machine, machine, s3_remote.proxy, 0, 2)
        for models in (10, 60):
            for rel, data in all_files(models).items():
                machine.write(rel, data)
            machine.push()
            machine.service.migrate_index()
            machine.pull()
            world.change(machine, models - 1)
            requests = world.requests(machine.push)
            sizes.append({one.key: one.sent for one in requests if one.kind == "PUT"})
    grown = {
        key
        for key in sizes[0].keys() & sizes[1].keys()
        if key.startswith("_index/") and sizes[1][key] > 2 * sizes[0][key]
    }
    assert "_index/_meta.json" in grown
    assert grown <= {"_index/_meta.json", "_index/data--aws--ec2.json"}
