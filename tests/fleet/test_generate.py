"""What happens in scripts: all that a user, another client, a network or a disk may do."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from tests.fleet import damage, foreign, moving
from tests.fleet.fleet import Script, Step
from tests.fleet.many import script_of
from tests.fleet.more import VARIANTS
from tests.fleet.steps import OPS
from tests.fleet.world import OF_CHANGES, OF_REQUESTS, OF_WRITES

SEEDS = 60


def scripts() -> Iterator[Script]:
    for number, variant in itertools.product(range(SEEDS), ("", "n", "c", *VARIANTS)):
        yield script_of(f"any-{number}{variant}")


def work_of(step: Step) -> Iterator[tuple[str, dict[str, object]]]:
    yield step.op, step.args
    for inner in step.args.get("work") or []:
        yield inner.get("op", "save"), inner


def test_everything_that_can_happen_does_in_some_script() -> None:
    ops, options, faults = set[str](), set[str](), set[str]()
    machines, stores, hydration = set[int](), set[str](), set[str]()
    for script in scripts():
        machines.add(script.machines)
        stores.add(script.store)
        hydration.add(script.hydration)
        for step in script.steps:
            faults |= {fault.kind for fault in step.faults}
            for op, args in work_of(step):
                ops.add(op)
                options |= {f"{op} {name}" for name, value in args.items() if value}
    made_by_the_fleet = {"namespace_migrate"}  # in the place of what would have to wait for it
    assert ops >= {*OPS, *moving.OPS, *damage.KINDS, *foreign.OPS} - made_by_the_fleet
    assert options >= {
        *("sync scope", "sync full", "sync lazy", "pull scope", "pull lazy", "push scope"),
        *("damage_base garble", "damage_catalog garble", "damage_sidecar garble"),
        *("damage_journal garble", "setup to", "session all"),
    }
    assert faults >= {*OF_REQUESTS, *OF_WRITES, *OF_CHANGES, "torn"}
    assert machines == {2, 3, 4}
    assert stores == {"s3", "old-s3", "lax-s3", "gcs"}
    assert hydration >= {"full", "lazy"}
