"""What else happens in some scripts: data moves, and others work in the same cache.

It is put into the script that a seed has without it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tests.fleet.fleet import COMPARE, Script, Step
from tests.fleet.generate import OPS as GENERATED
from tests.fleet.moving import DIRECTORY, OTHER, TARGETS
from tests.fleet.oracle import MODELS, NAMES
from tests.fleet.places import BOUNDED, HOME
from tests.fleet.world import DISK, STORE, Fault

# How often what is put in, and by how many requests and changes of the disk it takes at most.
_MOVES: dict[str, tuple[int, int, int]] = {
    "setup": (6, 120, 160),
    "namespace_set": (3, 40, 80),
    "namespace_unset": (3, 40, 80),
    "prune": (2, 0, 40),
}
_REQUESTS = ("fail", "lost", "late", "twice", "kill", "kill", "kill-after", "stop", "slow")
_CHANGES = ("kill", "kill", "kill", "torn", "slow", "full")
_SPARED = ("damage", "lose", "foreign", "migrate_index")
_SHARE = 0.2
_SHARE_OF_BOUNDED = 0.4


def with_moves(script: Script) -> Script:
    """Return a script in which machines move to other places as well."""
    chance = random.Random(f"{script.seed} moves")
    roughness = chance.choice([0.0, 0.3, 0.6])
    weights = {op: weight * chance.choice([0, 1, 2]) for op, (weight, _, _) in _MOVES.items()}
    if not any(weights.values()):
        weights["setup"] = 1
    targets = chance.choice([TARGETS, (HOME, OTHER), (HOME, DIRECTORY)])
    steps: list[Step] = []
    for step in script.steps:
        if step.op.startswith(_SPARED):
            continue
        steps.append(step)
        if chance.random() < _SHARE:
            op = chance.choices(list(weights), list(weights.values()))[0]
            made = Step(chance.randrange(script.machines), op, _args(chance, op, targets))
            made.overlaps = chance.random() < 0.4
            if chance.random() < roughness:
                made.faults = _faults(chance, _MOVES[op])
            steps.append(made)
    return script.with_steps(steps)


def _args(chance: random.Random, op: str, targets: tuple[str, ...]) -> dict[str, Any]:
    if op == "setup":
        return {"to": chance.choice(targets)}
    if op == "prune":
        return {"model": chance.choice(MODELS)}
    return {}


def _faults(chance: random.Random, most: tuple[int, int, int]) -> list[Fault]:
    _, requests, changes = most
    faults = []
    for _ in range(chance.choice([1, 1, 2])):
        at_store = requests and chance.random() < 0.5
        where, limit = (STORE, requests) if at_store else (DISK, changes)
        kind = chance.choice(_REQUESTS if at_store else _CHANGES)
        number = int(limit * chance.random() ** 1.5)
        faults.append(Fault(where, number, kind, chance.choice([0.1, 1.0, 5.0, 45.0])))
    return faults


def with_twins(script: Script) -> Script:
    """Return a script in which checkouts share a cache, with each other and other programs."""
    chance = random.Random(f"{script.seed} twins")
    is_foreign = chance.random() < 0.6
    homes = list(range(script.machines))
    if chance.random() < 0.8:
        homes[-1] = 0
    steps: list[Step] = []
    for step in script.steps:
        if step.op.startswith(_SPARED):
            continue
        steps.append(step)
        if chance.random() < _SHARE:
            steps.append(Step(-1, COMPARE))
        if is_foreign and chance.random() < _SHARE:
            steps.append(_foreign(chance, script.machines))
    skews = [script.skews[home] for home in homes]
    return replace(script, steps=steps, homes=homes, skews=skews)


def _foreign(chance: random.Random, machines: int) -> Step:
    args: dict[str, Any] = {
        "machine": chance.randrange(machines),
        "model": MODELS[0],
        "name": chance.choice(NAMES[:2]),
        "size": chance.choice([10, 10, 400]),
    }
    made = Step(-1, "foreign_cache", args, overlaps=chance.random() < 0.4)
    if chance.random() < 0.3:
        made.faults = [Fault(DISK, chance.randrange(12), "kill")]
    return made


def with_processes(script: Script) -> Script:
    """Return a script in which two processes work on one checkout, each while the other waits."""
    chance = random.Random(f"{script.seed} processes")
    made = with_twins(script)
    pair = (0, script.machines - 1)
    homes = [*range(script.machines - 1), 0]
    share = chance.choice([0.3, 0.6, 0.9])
    steps: list[Step] = []
    for step in made.steps:
        if step.op == COMPARE:
            continue  # they have one catalog
        steps.append(step)
        if step.op in GENERATED and step.machine in pair and chance.random() < share:
            step.overlaps = True
            step.faults += _waits(chance, step)
        if chance.random() < _SHARE:
            place = {"model": MODELS[0], "name": chance.choice(NAMES[:2])}
            op = chance.choice(("read", "read", "hydrate", "evict"))
            steps.append(Step(chance.choice(pair), op, place, overlaps=True))
            steps[-1].faults = _waits(chance, steps[-1])
    made = replace(made, steps=steps, homes=homes, are_processes=True)
    made.skews = [script.skews[home] for home in homes]
    if chance.random() < _SHARE_OF_BOUNDED:
        made.hydration = BOUNDED
    return made


def _waits(chance: random.Random, step: Step) -> list[Fault]:
    """Let a process be slow at some points, so that another one comes to work in between."""
    _, requests, changes = GENERATED[step.op]
    points = [(STORE, int(requests * chance.random() ** 1.5)) for _ in range(3) if requests]
    points += [(DISK, int(changes * chance.random() ** 1.5)) for _ in range(3) if changes]
    taken = {(one.where, one.number) for one in step.faults}
    seconds = chance.choice([0.01, 0.1, 1.0])
    return [Fault(*one, "slow", seconds) for one in points if one not in taken]


# By the last letter of a seed.
VARIANTS: dict[str, Callable[[Script], Script]] = {
    "m": with_moves,
    "t": with_twins,
    "p": with_processes,
}
