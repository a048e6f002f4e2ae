"""What one machine pushes, another one pulls: the shortest way through every kind of remote."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.remotes import Remote
from tests.support.sync_harness import Machine, assert_sound, remote_files, remote_index

ONE = "outputs/aws/ec2/run/1.yaml"
TWO = "outputs/aws/ec2/run/2.yaml"
LOG = "logs/today.txt"


@pytest.mark.parametrize("namespace", ["", "team"])
def test_files_go_from_one_machine_to_the_other_and_back(
    remote: Remote, tmp_path: Path, namespace: str
) -> None:
    with (
        Machine(tmp_path / "a", remote.open(), namespace) as a,
        Machine(tmp_path / "b", remote.open(), namespace) as b,
    ):
        a.write(ONE, b"one")
        a.write(TWO, b"1")
        a.write(LOG, b"hello")
        assert a.push().files == 3
        assert b.pull().files == 3
        assert b.files() == a.files() == {ONE: b"one", TWO: b"1", LOG: b"hello"}
        assert remote_files(b.store, namespace) == a.files()
        assert_sound(b.store, namespace)
        assert set(remote_index(b.store, namespace).entries) == set(a.files())
        b.write(LOG, b"hello, too")
        b.delete(ONE)
        b.delete(TWO)
        b.push()
        a.pull()
        assert a.files() == {LOG: b"hello, too"}
        assert remote_files(a.store, namespace) == a.files()
        assert_sound(a.store, namespace)


def test_a_machine_that_starts_again_goes_on_where_it_was(remote: Remote, tmp_path: Path) -> None:
    with Machine(tmp_path / "a", remote.open()) as a:
        a.write(ONE, b"one")
        a.push()
        a.write(ONE, b"two")
    with Machine(tmp_path / "a", remote.open()) as a:
        assert a.push().files == 1
        assert remote_files(a.store) == {ONE: b"two"}
        a.cost()
        assert a.push().changes == 0
        assert sum(a.cost().requests.values()) <= 2
