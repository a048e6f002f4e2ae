"""Sync keeps its promises with an index that is a collection of paths."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from swampstore.testing.sync import NewMachine, Plant, SyncConformance, SyncMachine
from tests.support.mongodb import MongoRemote
from tests.sync.test_conformance import RestartingMachine


class TestPaths(SyncConformance):
    @pytest.fixture
    def new_machine(self, mongodb_remote: MongoRemote, tmp_path: Path) -> Iterator[NewMachine]:
        machines: list[RestartingMachine] = []

        def new(namespace: str = "") -> RestartingMachine:
            place = tmp_path / f"machine-{len(machines)}"
            machines.append(RestartingMachine(place, mongodb_remote, namespace))
            return machines[-1]

        yield new
        for machine in machines:
            machine.close()

    @pytest.fixture
    def plant(self, mongodb_remote: MongoRemote) -> Plant:
        def planted(machine: SyncMachine, files: Mapping[str, bytes]) -> None:
            mongodb_remote.plant(machine.namespace, files)

        return planted


class TestPathsInNamespace(TestPaths):
    namespace = "team"
