"""Steps after which the data of a machine is somewhere else: another remote, another namespace."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from swampstore.datastore_address import FILESYSTEM, Address
from swampstore.relocate.namespace import migrate, set_namespace, unset_namespace
from swampstore.relocate.setup import set_up_datastore
from tests.fleet.bucket import BUCKETS
from tests.fleet.places import HOME, Place
from tests.fleet.steps import Args, Tell

NAMESPACE = "team"
OTHER = "other"
DIRECTORY = "directory"
TARGETS = (HOME, OTHER, DIRECTORY)


def _begin(tell: Tell, target: Place, *, alone: bool = False) -> None:
    machine = tell.machine
    held = [one.id for one in machine.look(contents=False)]
    contents = [path.read_bytes() for path in Path(tell.repo.config.datastore_dir).rglob("raw")]
    tell.fleet.places.begin(machine.number, machine.place, target, held, contents, alone=alone)


def set_up(tell: Tell, args: Args) -> None:
    """Move to another bucket, or to a directory that this machine has for itself."""
    machine, to = tell.machine, args["to"]
    place = machine.place
    target = Place(to if to in BUCKETS else str(machine.directory / to), place.namespace)
    if target == place:
        return
    if place.namespace and not (place.is_remote and target.is_remote):
        return
    _begin(tell, target)
    path = None if target.is_remote else target.target
    address = Address(target.address if target.is_remote else FILESYSTEM, path=path)
    try:
        set_up_datastore(tell.repo, address, environ=machine.environ)
    finally:
        machine.forget()


def enter(tell: Tell, args: Args) -> None:
    """Give the repository a namespace, and take its data along."""
    machine, place = tell.machine, tell.machine.place
    if not place.is_remote or place.namespace:
        return
    # Without anything of its own there, nothing tells that what others have there is ours.
    _begin(tell, place._replace(namespace=NAMESPACE), alone=not machine.has_data)
    try:
        set_namespace(tell.repo, NAMESPACE)
        machine.reopen()
        migrate(machine.repo)
    finally:
        machine.forget()


def leave(tell: Tell, args: Args) -> None:
    """Do without the namespace again, and take the data along."""
    machine, place = tell.machine, tell.machine.place
    if not place.namespace:
        return
    _begin(tell, place._replace(namespace=""))
    try:
        unset_namespace(tell.repo, move=True)
    finally:
        machine.forget()


def finish(tell: Tell, args: Args) -> None:
    """Take along what a namespace was set without, because somebody was stopped."""
    try:
        migrate(tell.repo)
    finally:
        tell.machine.forget()


OPS: dict[str, Callable[[Tell, Args], Any]] = {
    "setup": set_up,
    "namespace_set": enter,
    "namespace_unset": leave,
    "namespace_migrate": finish,
}
