"""What we keep in a bucket for ourselves has names that no other client takes for data."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from swampstore.index.path_map import Names
from swampstore.pipeline.quarantine import Quarantine
from swampstore.routing import Routing
from swampstore.stores.directory import DirectoryStore
from tests.support.broken_store import Killed
from tests.support.machines import Machine
from tests.support.old_client import takes_for_data
from tests.support.sync_harness import remote_index

MODEL = "aws/ec2/i-1"


def do(machine: Machine, *command: str) -> None:
    assert machine(*command).status == 0, command


def unnamed(bucket: Path) -> set[str]:
    """Return the objects that no index names."""
    with DirectoryStore(str(bucket)) as store:
        return {info.key for info in store.list()} - remote_index(store).entries.keys()


@pytest.mark.parametrize("version", [1, 2])
def test_whatever_is_done_leaves_nothing_in_a_bucket_that_others_take_for_data(
    ana: Machine, bucket: Path, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    for number in ("1", "2", "3"):
        do(ana, "data", "put", MODEL, "state", "--json-value", number, "--gc", "1")
    do(ana, "data", "put", MODEL, "lost", "--json-value", "1")
    if version == 2:
        do(ana, "datastore", "migrate-index")
    do(ana, "run", MODEL, "greet", "--", "echo", "hello")
    with DirectoryStore(str(bucket)) as store:
        names = Names(str(ana.cache), "", Routing())
        assert Quarantine(store, names).keep(f"data/{MODEL}/lost/1/raw")
    do(ana, "pipeline", "gc", "--engine", "local")
    do(ana, "pipeline", "reindex", "--engine", "local")
    do(ana, "pipeline", "catalog", f"file://{bucket}", "--refresh")
    do(ana, "doctor", "--deep", "--repair")

    seen = set[str]()
    remove = DirectoryStore.delete_if_match

    def watch(store: DirectoryStore, key: str, token: str) -> None:
        seen.update(unnamed(bucket))
        if key.startswith("data/"):
            raise Killed
        remove(store, key, token)

    with (
        monkeypatch.context() as patch,
        contextlib.suppress(Killed),
        ana.open() as repo,
        repo.session([MODEL]),
    ):
        repo.artifacts.delete(MODEL, "state")
        patch.setattr(DirectoryStore, "delete_if_match", watch)
    ours = {key for key in {*seen, *unnamed(bucket)} if not key.startswith("data/")}
    assert {key.split("/")[1] for key in ours if key.startswith("_control/")} >= {
        *("quarantine", "gc", "snapshots", "removals", "locks")
    }
    assert not [key for key in ours if takes_for_data(key)]
