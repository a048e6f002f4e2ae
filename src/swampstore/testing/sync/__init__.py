"""The conformance suite of sync services."""

from __future__ import annotations

from swampstore.testing.sync.disagreements import Borders, Disagreements, Portions
from swampstore.testing.sync.machine import Host, NewMachine, Plant, SyncMachine
from swampstore.testing.sync.transfers import Marks, Transfers

__all__ = ["Host", "NewMachine", "Plant", "SyncConformance", "SyncMachine"]


class SyncConformance(Marks, Transfers, Disagreements, Portions, Borders):
    """What every sync service must do, as tests to inherit.

    Say how machines are made, in a file that pytest collects::

        import pytest
        from swampstore.testing import SyncConformance

        class TestMySync(SyncConformance):
            @pytest.fixture
            def new_machine(self, tmp_path):
                remote = MyRemote(...)
                return lambda namespace="": MyMachine(remote, namespace, ...)

    A machine is a `SyncMachine`. The remote of a test begins empty. Most tests run in the class's
    `namespace`, which is none unless you set it. What the `capabilities` of a service deny is
    skipped. Override `plant` to have your service face hostile indexes too.
    """
