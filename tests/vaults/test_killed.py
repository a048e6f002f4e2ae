"""Whoever is killed while a vault changes loses no secret, and completes it by doing it again."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from swampstore import init_repo, open_repo
from swampstore.vaults import Vaults, local_encryption
from swampstore.vaults.keys import read_key
from swampstore.vaults.local_encryption import decrypt
from swampstore.vaults.migration import migrate
from tests.support.vault_testing import keeping_program, killed_before_change

pytest.importorskip("cryptography", reason="the extra `vaults` is not installed")

SECRETS = {"db": "one", "api": "two\n"}
ENCRYPTED = "secrets/local_encryption/ops"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_encryption, "_ITERATIONS", 10)


@pytest.fixture
def template(tmp_path: Path) -> Path:
    directory = tmp_path / "template"
    init_repo(directory).close()
    with open_repo(directory) as repo:
        vaults = Vaults(repo)
        vaults.create("local_encryption", "ops")
        vault = vaults.open("ops")
        for key, value in SECRETS.items():
            vault.put(key, value)
        vault.annotate("db", notes="about it")
        vault.refresh_by("api", "true", "1y")
    return directory


def every_kill(template: Path, tmp_path: Path, work: Callable[[Vaults], object]) -> Iterator[Path]:
    """Yield the repository that each kill before a change leaves, and at last a whole one."""
    for number in itertools.count(1):
        directory = tmp_path / "killed"
        shutil.copytree(template, directory)

        def operation(directory: Path = directory) -> None:
            with open_repo(directory) as repo:
                work(Vaults(repo))

        was_killed = killed_before_change(number, operation)
        yield directory
        shutil.rmtree(directory)
        if not was_killed:
            assert number > 10, "hardly anything was changed"
            return


def everything(directory: Path) -> dict[str, str]:
    with open_repo(directory) as repo:
        vault = Vaults(repo).open("ops")
        return {key: vault.get(key) for key in vault.keys()}  # noqa: SIM118 - no mapping


def test_a_rotation_that_is_killed_loses_nothing(template: Path, tmp_path: Path) -> None:
    old = read_key(f"{template}/.swamp/{ENCRYPTED}/.key")
    assert old is not None
    was_half_way = False
    for directory in every_kill(template, tmp_path, lambda vaults: vaults.open("ops").rotate()):
        home = directory / ".swamp" / ENCRYPTED
        assert everything(directory) == SECRETS
        sealed = [decrypt(old, path.read_bytes(), "it") for path in home.rglob("*.enc")]
        was_half_way |= len({text is None for text in sealed}) == 2
        with open_repo(directory) as repo:
            Vaults(repo).open("ops").put("new", "four")
            Vaults(repo).open("ops").rotate()
            details = Vaults(repo).open("ops").details("db")
        assert everything(directory) == {**SECRETS, "new": "four"}
        assert details.annotation is not None
        keys = {read_key(str(path)) for path in home.glob(".key*")}
        assert len(keys) == 1
        assert old not in keys
        assert not [*home.glob(".key.*")]
    assert was_half_way


def test_a_put_that_is_killed_leaves_the_old_value_or_the_new_one(
    template: Path, tmp_path: Path
) -> None:
    seen = set()
    for directory in every_kill(
        template, tmp_path, lambda vaults: vaults.open("ops").put("db", "1")
    ):
        now = everything(directory)
        seen.add(now["db"])
        assert now == {**SECRETS, "db": now["db"]}
    assert seen == {"one", "1"}


def test_the_first_put_that_is_killed_leaves_a_vault_that_works(tmp_path: Path) -> None:
    init_repo(tmp_path / "template").close()
    with open_repo(tmp_path / "template") as repo:
        Vaults(repo).create("local_encryption", "ops")
    for directory in every_kill(
        tmp_path / "template", tmp_path, lambda vaults: vaults.open("ops").put("db", "1")
    ):
        assert everything(directory) in ({}, {"db": "1"})
        with open_repo(directory) as repo:
            Vaults(repo).open("ops").put("api", "2")
        assert everything(directory)["api"] == "2"


def test_a_migration_that_is_killed_loses_nothing(template: Path, tmp_path: Path) -> None:
    program = keeping_program(tmp_path)
    types = set()
    for directory in every_kill(
        template, tmp_path, lambda vaults: migrate(vaults, "ops", "command", program)
    ):
        assert everything(directory) == SECRETS
        with open_repo(directory) as repo:
            vaults = Vaults(repo)
            found = vaults.open("ops").config.type
            types.add(found)
            assert vaults.all()[1] == []
            if found == "local_encryption":
                migrate(vaults, "ops", "command", program)
            assert vaults.open("ops").config.type == "command"
            vaults.open("ops").put("db", SECRETS["db"])
            assert len([*directory.glob("vaults/*/*.yaml")]) == 1
        assert everything(directory) == SECRETS
        for file in (tmp_path / "kept").iterdir():
            file.unlink()
    assert types == {"local_encryption", "command"}


def test_a_migration_to_this_machine_that_is_killed_loses_nothing(tmp_path: Path) -> None:
    program = keeping_program(tmp_path)
    init_repo(tmp_path / "template").close()
    with open_repo(tmp_path / "template") as repo:
        Vaults(repo).create("command", "ops", program)
        for key, value in SECRETS.items():
            Vaults(repo).open("ops").put(key, value)
    for directory in every_kill(
        tmp_path / "template",
        tmp_path,
        lambda vaults: migrate(vaults, "ops", "local_encryption"),
    ):
        assert everything(directory) == SECRETS
        with open_repo(directory) as repo:
            vaults = Vaults(repo)
            if vaults.open("ops").config.type == "command":
                migrate(vaults, "ops", "local_encryption")
            vaults.open("ops").put("db", "changed")
        assert everything(directory) == {**SECRETS, "db": "changed"}


def test_a_migration_back_that_is_killed_loses_nothing(template: Path, tmp_path: Path) -> None:
    program = keeping_program(tmp_path)
    with open_repo(template) as repo:
        migrate(Vaults(repo), "ops", "command", program)
    types = set()
    for directory in every_kill(
        template, tmp_path, lambda vaults: migrate(vaults, "ops", "local_encryption")
    ):
        assert everything(directory) == SECRETS
        with open_repo(directory) as repo:
            vaults = Vaults(repo)
            types.add(vaults.open("ops").config.type)
            vaults.open("ops").put("new", "three")
            assert len([*directory.glob("vaults/*/*.yaml")]) == 1
        assert everything(directory) == {**SECRETS, "new": "three"}
        (tmp_path / "kept/new").unlink(missing_ok=True)
    assert types == {"local_encryption", "command"}
