"""A data name that is a number, such as a year, is a data name and no version."""

from __future__ import annotations

import json

import pytest

from swampstore.index.path_kinds import is_marker, unit_of, version_file
from tests.support.machines import Machine

MODEL = "aws/ec2/i-1"
NUMBER = "2024"
HOME = f"data/{MODEL}/{NUMBER}"


def versions(machine: Machine) -> dict[int, str]:
    with machine.open() as repo:
        return {found.version: found.text() for found in repo.versions(MODEL, NUMBER)}


def test_versions_that_two_machines_saved_under_a_number_follow_each_other(
    ana: Machine, bob: Machine
) -> None:
    ana.put(MODEL, NUMBER, "first")
    assert ana("sync").status == 0
    assert bob("sync").status == 0
    ana.put(MODEL, NUMBER, "of ana")
    bob.put(MODEL, NUMBER, "of bob")
    for machine in (ana, bob, ana):
        assert machine("sync").status == 0
    assert versions(ana) == versions(bob) == {1: "first", 2: "of ana", 3: "of bob"}
    found = ana("pipeline", "verify", "--engine", "local", "--grace", "0", "--json")
    assert (found.status, json.loads(found.out)["findings"]) == (0, {})


@pytest.mark.parametrize("name", [NUMBER, "1", "state"])
def test_a_marker_belongs_to_its_own_data_name(name: str) -> None:
    marker = f"data/{MODEL}/{name}/latest"
    assert is_marker(marker)
    assert version_file(marker) is None
    assert unit_of(marker) == unit_of(f"data/{MODEL}/{name}/1/raw") == f"data/{MODEL}/{name}"
