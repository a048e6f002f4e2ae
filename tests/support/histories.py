"""Repositories with a past: everything that can happen to artifacts, chosen at random."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from swampstore import Repo
from swampstore.artifacts.metadata import Draft, Owner
from swampstore.layout import DataRef, ModelRef

MODELS = ("aws/ec2/i-1", "aws/ec2/i-2", "aws/i-1", "t/a--b", "t/a/b", "@acme/probe/p 1")
NAMES = ("state", "log", "7", "näme", "b")
POLICIES: tuple[int | str, ...] = (3, "10d")
STEPS = ("", "measure", "check")


class History:
    """Makes a repository live through a number of events."""

    def __init__(self, repo: Repo, seed: int) -> None:
        self._repo = repo
        self._random = random.Random(seed)
        self._model = ""
        self._name = ""
        self._renames = 0

    def go_on(self, events: int) -> None:
        usual = [self._save] * 8
        rare: list[Callable[[], None]] = [
            *(self._delete_version, self._delete, self._mark_deleted, self._rename),
            *(self._move_marker, self._lose_marker, self._damage, self._append),
        ]
        for _ in range(events):
            self._model = self._random.choice(MODELS)
            self._name = self._random.choice(NAMES)
            self._random.choice(usual + rare)()

    @property
    def _ref(self) -> DataRef:
        return DataRef(ModelRef.parse(self._model), self._name)

    @property
    def _versions(self) -> list[int]:
        directory = Path(self._repo.tree.path(self._ref.rel))
        return (
            sorted(int(one.name) for one in directory.glob("[1-9]*")) if directory.is_dir() else []
        )

    def _save(self) -> None:
        number = self._random.randrange(100)
        contents: list[Any] = [{"number": number, "unit": "%"}, f"text {number}", bytes([number])]
        owner = Owner(
            step_name=self._random.choice(STEPS),
            workflow_name="nightly",
            workflow_run_id=str(number),
        )
        self._repo.artifacts.save(
            self._model,
            self._name,
            self._random.choice(contents),
            tags={"modelName": f"m-{self._model[-1]}", "number": str(number), "specName": "s"},
            lifetime=self._random.choice(["infinite", "30d"]),
            garbage_collection=self._random.choice(POLICIES),
            owner=owner,
        )

    def _append(self) -> None:
        self._repo.artifacts.save("aws/ec2/i-1", "stream", "one\n", streaming=True)
        self._repo.artifacts.append("aws/ec2/i-1", "stream", "two\n")

    def _delete_version(self) -> None:
        if versions := self._sound:
            self._repo.artifacts.delete(self._model, self._name, version=versions[-1])

    @property
    def _sound(self) -> list[int]:
        latest = self._repo.latest(self._model, self._name, default=None)
        return [] if latest is None else self._repo.list_versions(self._model, self._name)

    def _delete(self) -> None:
        if self._sound:
            self._repo.artifacts.delete(self._model, self._name)

    def _mark_deleted(self) -> None:
        if self._sound and not self._repo.latest(self._model, self._name).is_deleted:
            self._repo.artifacts.mark_deleted(self._model, self._name, method="destroy")

    def _rename(self) -> None:
        latest = self._repo.latest(self._model, self._name, default=None)
        if latest is not None and latest.name == self._name and not latest.is_deleted:
            self._renames += 1
            self._repo.artifacts.rename(self._model, self._name, f"new {self._renames}")

    def _move_marker(self) -> None:
        """Point the marker at an older version, or at one that never was."""
        if versions := self._versions:
            self._write(self._ref.latest_rel, str(self._random.choice([*versions, 99])).encode())

    def _lose_marker(self) -> None:
        path = self._repo.tree.path(self._ref.latest_rel)
        if os.path.lexists(path):
            os.unlink(path)
            self._forget()

    def _damage(self) -> None:
        """Make the metadata of a version unreadable, or that of another one."""
        if versions := self._versions:
            rel = self._ref.file_rel(self._random.choice(versions), "metadata.yaml")
            self._write(rel, self._random.choice([b"id: [", b"- no mapping\n", b"\xff\xfe"]))

    def defer(self) -> None:
        """Write a version that nobody commits."""
        deferral = self._repo.artifacts.deferring()
        deferral.save(DataRef(ModelRef.parse(MODELS[0]), NAMES[0]), b"later", Draft())

    def _write(self, rel: str, data: bytes) -> None:
        Path(self._repo.tree.path(rel)).write_bytes(data)
        self._forget()

    def _forget(self) -> None:
        """What was changed behind the back of the repository must be found out again."""
        if self._repo.config.remote is not None:
            self._repo.sync.mark_dirty()
        self._repo.refresh(self._ref)
