"""`datastore setup` of a repository that has data, beside a first push of the same files."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import sample
from contestants import BUCKET, Machine
from measuring import Line, Setting, say, seconds
from peers import Account
from swampstore import init_repo
from swampstore.datastore_address import Address
from swampstore.relocate.setup import set_up_datastore
from syncing import server

MODELS = 625
RATIO_TO_A_PUSH = 1.5
_NAMES = 6
_ROUNDS = 3


def measure(setting: Setting) -> Iterator[Line]:
    """Push a tree to an empty place, then have a setup bring the same to another one."""
    models = max(10, setting.scaled(MODELS))
    # The first write to a bucket waits for its files to be made.
    with server(setting.directory) as account:
        _push(setting, account, 2, "warm-up")
        rounds = [
            (
                _push(setting, account, models, f"push-{number}"),
                _set_up(setting, account, models, f"set-up-{number}"),
            )
            for number in range(_ROUNDS)
        ]
    push, taken = (min(spent, key=lambda one: one.busy) for spent in zip(*rounds, strict=True))
    yield Line(
        f"setup of {models * 20:,} files, to a first push of them",
        taken.busy / push.busy,
        "x",
        RATIO_TO_A_PUSH,
        f"{taken.busy:.1f} and {push.busy:.1f} s of processor time, {taken.wall:.1f} and"
        f" {push.wall:.1f} s with all waits; the least of {_ROUNDS}, in turns",
    )


class Spent(NamedTuple):
    """Seconds, of the clock and of the processor, all threads of this process together."""

    wall: float
    busy: float


def _spent(work: Callable[[], object]) -> Spent:
    before = time.process_time()
    wall = seconds(work)
    return Spent(wall, time.process_time() - before)


def _url(account: Account, name: str) -> str:
    return f"s3://{BUCKET}/{name}?endpoint={account.url}&region=us-east-1"


def _shape(models: int) -> sample.Shape:
    return sample.Shape(models, _NAMES, versions=2, every=_NAMES)


def _push(setting: Setting, account: Account, models: int, name: str) -> Spent:
    machine = Machine.new(f"{setting.directory}/{name}", _url(account, name))
    with machine.repo as repo:
        say(f"pushing {models * 20:,} files")
        sample.write_files(repo.tree, _shape(models), sample.small_contents())
        repo.sync.status()  # so that everything is imported
        os.sync()
        return _spent(repo.sync.push)


def _set_up(setting: Setting, account: Account, models: int, name: str) -> Spent:
    environ = {**os.environ, "SWAMP_HOME": f"{setting.directory}/home-{name}"}
    with init_repo(f"{setting.directory}/{name}") as repo:
        sample.write_files(repo.tree, _shape(models), sample.small_contents())
        os.sync()
        say(f"setting up a datastore with {models * 20:,} files")
        address = Address.parse(_url(account, name), "benchmark")
        return _spent(lambda: set_up_datastore(repo, address, environ=environ))
