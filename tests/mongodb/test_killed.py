"""Whoever is killed between any two writes of a commit loses nothing, and others hear of it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from swampstore.stores import store_config
from swampstore.stores.mongodb_client import Connection
from tests.support.mongodb import MongoRemote
from tests.support.sync_harness import Machine

RELS = [f"outputs/aws/ec2/run/{number}.yaml" for number in range(3)]
# More than a push of that size ever makes.
MOST = 60


class Killed(BaseException):
    """The process is gone."""


class Trap:
    """Ends the process at its n-th command that may change something: before it, or after it."""

    def __init__(self) -> None:
        self.left: int | None = None
        self.is_after = False

    def __call__(self, name: str, send: Any) -> Any:
        if self.left is None or name not in CHANGES:
            return send()
        self.left -= 1
        if self.left > 0:
            return send()
        self.left = 1  # the dead do nothing more
        if self.is_after and not self.is_sprung:
            self.is_sprung = True
            send()
        raise Killed

    is_sprung = False


CHANGES = frozenset(
    {"update_one", "update_many", "bulk_write", "insert_one", "delete_one", "delete_many"}
    | {"replace_one"}
)


class Watched:
    """A collection whose changes go through the trap."""

    def __init__(self, inner: Any, trap: Trap) -> None:
        self._inner = inner
        self._trap = trap

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name not in CHANGES:
            return found
        return lambda *args, **options: self._trap(name, lambda: found(*args, **options))


class WatchedDatabase:
    def __init__(self, inner: Any, trap: Trap) -> None:
        self._inner = inner
        self._trap = trap

    def __getitem__(self, name: str) -> Watched:
        return Watched(self._inner[name], self._trap)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


@contextlib.contextmanager
def machine(cache: Path, remote: MongoRemote) -> Iterator[Machine]:
    store = store_config(remote.url, environ={}).open()
    with Machine(cache, store) as made:
        yield made


@pytest.mark.parametrize("is_after", [False, True], ids=["before", "after"])
def test_a_push_that_is_killed_at_any_write_is_made_up_for(
    tmp_path: Path,
    mongodb_remote: MongoRemote,
    monkeypatch: pytest.MonkeyPatch,
    is_after: bool,
) -> None:
    trap = Trap()
    inner = Connection.database.fget  # type: ignore[attr-defined]
    monkeypatch.setattr(
        Connection, "database", property(lambda self: WatchedDatabase(inner(self), trap))
    )
    with (
        machine(tmp_path / "ana", mongodb_remote) as ana,
        machine(tmp_path / "ben", mongodb_remote) as ben,
    ):
        for rel in RELS:
            ana.write(rel, b"before")
        ana.push()
        ben.pull()
    is_through = False
    for number in range(1, MOST):
        content = b"content %d" % number
        with machine(tmp_path / "ana", mongodb_remote) as ana:
            ana.write(RELS[0], content)
            ana.write(f"outputs/aws/ec2/new/{number}.yaml", content)
            ana.delete(RELS[1]) if number % 2 else ana.write(RELS[1], content)
            trap.left, trap.is_after, trap.is_sprung = number, is_after, False
            try:
                ana.push()
                is_through = True
            except Killed:
                pass
            trap.left = None
        with machine(tmp_path / "ana", mongodb_remote) as ana:
            ana.push()
            with machine(tmp_path / "ben", mongodb_remote) as ben:
                ben.pull()
                assert ben.files() == ana.files(), number
        if is_through:
            break
    assert is_through
