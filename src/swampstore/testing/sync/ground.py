"""What the tests of sync services stand on: machines, and files to sync."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from swampstore.layout import DataRef, ModelRef
from swampstore.testing.sync.host import Host
from swampstore.testing.sync.machine import NewMachine, Plant

STATE = DataRef(ModelRef("aws/ec2", "i-1"), "state")
PLAIN = "files/notes.txt"
EVERYWHERE = (
    PLAIN,
    "files/größe/日本語 (1) 50%.txt",
    "files/a+b&c=d#e~",
    "audit/2026/january.jsonl",
    "outputs/aws/ec2/start/run-1.yaml",
    "definitions-evaluated/single/name.yaml",
    "workflow-runs/w-1/workflow-run-r-1.yaml",
    "workflows-evaluated/w-1.yaml",
    "data/x/.locked.yaml",
)


class Ground:
    """The fixtures of the suite."""

    namespace = ""

    @pytest.fixture
    def new_machine(self) -> NewMachine:
        """What makes machines on one remote; override this."""
        raise NotImplementedError

    @pytest.fixture
    def plant(self) -> Plant:
        """What gets files into the remote and its index as a hostile client would; override it."""
        pytest.skip("nobody said how a hostile client gets in")

    @pytest.fixture
    def here(self, new_machine: NewMachine) -> Host:
        """One machine."""
        return Host(new_machine(self.namespace))

    @pytest.fixture
    def there(self, new_machine: NewMachine) -> Host:
        """Another machine."""
        return Host(new_machine(self.namespace))

    @pytest.fixture
    def third(self, new_machine: NewMachine) -> Host:
        """One more machine."""
        return Host(new_machine(self.namespace))


def needs(host: Host, *abilities: str) -> None:
    """Skip the test if the service says that it cannot do these."""
    for ability in abilities:
        if not getattr(host.service.capabilities(), ability):
            pytest.skip(f"the service has no {ability}")


def share(here: Host, there: Host, files: Mapping[str, bytes]) -> None:
    """Have both machines hold these files, and nothing waiting."""
    for rel, content in files.items():
        here.write(rel, content)
    here.push()
    there.pull()
    there.push()
    assert there.files() == here.files()


def settle(*hosts: Host) -> None:
    """Sync until nobody has anything left to tell, and check that all agree."""
    for _ in range(2):
        for host in hosts:
            host.pull()
            host.push()
    for host in hosts:
        host.pull()
        assert host.files() == hosts[0].files()
