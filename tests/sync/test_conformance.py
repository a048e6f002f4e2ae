"""Our own sync service keeps the promise, on every kind of remote and with both kinds of index."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from swampstore import Repo
from swampstore.config import Config, RemoteSettings
from swampstore.errors import ValidationError
from swampstore.layout import LOCAL_DIR
from swampstore.stores import Store
from swampstore.stores.directory import DirectoryStore
from swampstore.sync.service import SyncService
from swampstore.testing.sync import NewMachine, Plant, SyncConformance, SyncMachine
from tests.support.broken_store import BrokenStore
from tests.support.remotes import Remote
from tests.support.sync_harness import META, MONOLITH, Machine

# Servers take their time, so each sees two of the four combinations, and every choice once.
LOCAL = ["memory", "directory"]


class RestartingMachine:
    """A machine that can lose its network, and start again."""

    def __init__(self, directory: Path, remote: Remote, namespace: str) -> None:
        self.cache_dir = directory / "cache"
        self.namespace = namespace
        self._remote = remote
        self._open()

    def _open(self) -> None:
        self.store = BrokenStore(self._remote.open())
        self._machine = Machine(self.cache_dir, self.store, self.namespace)

    @property
    def service(self) -> SyncService:
        return self._machine.service

    def restart(self) -> None:
        self.close()
        self._open()

    def offline(self) -> AbstractContextManager[None]:
        return self.store.offline()

    def close(self) -> None:
        self._machine.close()


class OurSync(SyncConformance):
    is_sharded = False

    @pytest.fixture
    def new_machine(self, remote: Remote, tmp_path: Path) -> Iterator[NewMachine]:
        machines: list[RestartingMachine] = []

        def new(namespace: str = "") -> RestartingMachine:
            machine = RestartingMachine(tmp_path / f"machine-{len(machines)}", remote, namespace)
            if self.is_sharded and all(one.namespace != namespace for one in machines):
                machine.service.migrate_index()
            machines.append(machine)
            return machine

        yield new
        for machine in machines:
            machine.close()

    @pytest.fixture
    def plant(self, remote: Remote) -> Plant:
        shard = "_index/files.json" if self.is_sharded else MONOLITH
        return partial(planted, remote.open(), shard)


def planted(store: Store, document: str, machine: SyncMachine, files: Mapping[str, bytes]) -> None:
    """Put files and their entries where a client without any scruples puts them."""
    prefix = f"{machine.namespace}/" if machine.namespace else ""
    index = json.loads(store.get(prefix + document).data)
    for rel, content in files.items():
        index["entries"][rel] = entry(rel, content)
        if rel not in (MONOLITH, META):
            with contextlib.suppress(ValidationError):
                store.put(prefix + rel, content)
    store.put(prefix + document, json.dumps(index).encode())


def entry(rel: str, content: bytes) -> dict[str, Any]:
    return {
        "key": rel,
        "size": len(content),
        "lastModified": "2026-01-01T00:00:00.000Z",
        "sha256": hashlib.sha256(content).hexdigest(),
    }


class TestMonolith(OurSync):
    pass


@pytest.mark.parametrize("remote", LOCAL, indirect=True)
class TestMonolithInNamespace(OurSync):
    namespace = "team"


@pytest.mark.parametrize("remote", LOCAL, indirect=True)
class TestShards(OurSync):
    is_sharded = True


class TestShardsInNamespace(OurSync):
    namespace = "team"
    is_sharded = True


class RepoMachine:
    """A repository, with its locks and its catalog, whose datastore is a directory elsewhere."""

    def __init__(self, directory: Path, bucket: Path, namespace: str) -> None:
        self.cache_dir = directory / "cache"
        self.namespace = namespace
        self._config = Config(
            repo_dir=str(directory),
            repo_id="test",
            base=str(self.cache_dir),
            namespace=namespace,
            durable=False,
            remote=RemoteSettings(f"file://{bucket}"),
        )
        self._repo = Repo(self._config)

    @property
    def service(self) -> SyncService:
        return self._repo.sync

    def restart(self) -> None:
        self.close()
        self._repo = Repo(self._config)

    @contextlib.contextmanager
    def offline(self) -> Iterator[None]:
        counting = self._repo.connection.counting
        counting.inner = store = BrokenStore(counting.inner)
        with store.offline():
            yield

    def close(self) -> None:
        self._repo.close()


class TestRepository(SyncConformance):
    @pytest.fixture
    def plant(self, tmp_path: Path) -> Plant:
        return partial(planted, DirectoryStore(str(tmp_path / "bucket")), MONOLITH)

    @pytest.fixture
    def new_machine(self, tmp_path: Path) -> Iterator[NewMachine]:
        machines: list[RepoMachine] = []
        (tmp_path / "bucket").mkdir()

        def new(namespace: str = "") -> RepoMachine:
            place = tmp_path / f"machine-{len(machines)}"
            (place / LOCAL_DIR).mkdir(parents=True)
            machines.append(RepoMachine(place, tmp_path / "bucket", namespace))
            return machines[-1]

        yield new
        for machine in machines:
            machine.close()
