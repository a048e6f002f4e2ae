"""A whole run: a script of steps, the world it happens in, and what must hold whenever it rests."""

from __future__ import annotations

import contextlib
import gc
import json
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from swampstore.errors import ContentMissingError, ContentOutdatedError, NotFoundError
from swampstore.index.errors import IncompleteSyncError
from swampstore.index.partitions import MONOLITH_KEY, SHARDS
from swampstore.sync.hydrate import OUTDATED
from tests.fleet import checks, damage, foreign, moving
from tests.fleet.bucket import BUCKETS, Bucket
from tests.fleet.disks import base_of, cache_of, copies_in, noted_in
from tests.fleet.machine import Machine
from tests.fleet.oracle import Found, Oracle
from tests.fleet.places import Place, Places
from tests.fleet.seams import install
from tests.fleet.steps import OPS as WORK
from tests.fleet.steps import Tell
from tests.fleet.world import (
    DISK,
    STORE,
    Fault,
    Outcome,
    Violation,
    World,
    moment_of,
)

SETTLE = "settle"
COMPARE = "compare"
OPS = WORK | moving.OPS
_ROUNDS = 8
_PLACE = Path("/dev/shm") if Path("/dev/shm").is_dir() else Path(tempfile.gettempdir())


@dataclass
class Step:
    """One operation of one machine. `overlaps`: it begins while others are still at work."""

    machine: int
    op: str
    args: dict[str, Any] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    overlaps: bool = False


@dataclass
class Script:
    """Everything that a run depends on."""

    seed: str
    machines: int
    store: str
    epoch: str
    hydration: str
    skews: list[float]
    steps: list[Step]
    # Whose home each machine uses, by number; empty: its own.
    homes: list[int] = field(default_factory=list)
    # Whether who shares a home is another process on the same checkout.
    are_processes: bool = False

    def to_json(self) -> str:
        document = asdict(self)
        for name in ("homes", "are_processes"):
            if not document[name]:
                del document[name]
        lines = [json.dumps(step) for step in document.pop("steps")]
        head = json.dumps(document)[:-1]
        return f'{head}, "steps": [\n' + ",\n".join(lines) + "\n]}\n"

    @classmethod
    def from_json(cls, text: str) -> Script:
        document = json.loads(text)
        steps = [
            Step(**{**step, "faults": [Fault(*fault) for fault in step["faults"]]})
            for step in document.pop("steps")
        ]
        return cls(**document, steps=steps)

    def with_steps(self, steps: list[Step]) -> Script:
        return replace(self, steps=steps)


@dataclass
class Result:
    """What became of a run."""

    violation: Violation | None = None
    steps: int = 0
    kills: int = 0
    damages: int = 0
    rests: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    endings: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    points: dict[str, tuple[int, int]] = field(default_factory=dict)
    trace: list[str] = field(default_factory=list)
    # Of the processor.
    processor: float = 0.0


class Fleet:
    """The machines, the bucket and the oracle of one run."""

    def __init__(self, script: Script, directory: Path, *, trace: bool = False) -> None:
        self.script = script
        self.directory = directory
        epoch: datetime = moment_of(script.epoch)
        self.world = World(script.seed, epoch)
        if trace:
            self.world.trace = []
        self.bucket = Bucket(self.world, "fleet", script.store)
        BUCKETS.clear()
        BUCKETS["fleet"] = self.bucket
        BUCKETS[moving.OTHER] = Bucket(self.world, moving.OTHER, script.store)
        for bucket in BUCKETS.values():
            bucket.on_late = partial(self._note_late, bucket)
            bucket.on_read = partial(self._note_read, bucket)
        foreign.begin()
        self.oracle = Oracle()
        self.places = Places(self.oracle)
        self.oracle.has_index = lambda: bool(
            self.bucket.objects.keys() & {damage.META, damage.MONOLITH}
        )
        self.result = Result(faults=self.world.faults)
        self.machines: list[Machine] = []
        for number, skew in zip(range(script.machines), script.skews, strict=True):
            home = script.homes[number] if script.homes else number
            twin = self.machines[home] if home != number else None
            settings = Place().settings(script.hydration)
            made = Machine(
                *(self.world, number, directory / f"m{number}", settings, skew),
                twin=twin,
                is_process=script.are_processes,
            )
            self.machines.append(made)
        self.peer = foreign.Peer(self.world, script.machines)
        self._fresh = 0
        self.past = checks.Past()

    # Running -----------------------------------------------------------------------------------

    def run(self) -> None:
        for step in self.script.steps:
            if step.op == SETTLE:
                self.settle()
                continue
            self.result.steps += 1
            if step.op == COMPARE:
                self._compare()
            elif step.op in damage.KINDS:
                self.world.drain()
                self._finish()
                if damage.KINDS[step.op](self, step.machine, step.args):
                    self.result.damages += 1
                    self.past.is_damaged, self.past.is_undisturbed = True, False
            else:
                self._begin(step)
        self.settle()

    def _compare(self) -> None:
        """Let checkouts that share a cache look: the second one sees what the first one sees."""
        self.world.drain()
        self._finish()
        twins = [one for one in self.machines if one.home != one.directory / "home"]
        for second in twins:
            first = self.machines[self.script.homes[second.number]]
            # Whoever was killed heals what it left when it looks.
            looks = [self._glance(one) for one in (first, second, first, second)]
            if looks[2] != looks[3]:
                differ = sorted(set(looks[2]) ^ set(looks[3]))
                names = f"{first.name} and {second.name}"
                raise Violation("checkouts", f"{names} share a cache, and differ in {differ}")

    def _glance(self, machine: Machine) -> list[Found]:
        outcome = self._now(machine, partial(machine.look, contents=False))
        if outcome.ending != "done":
            raise Violation("unreadable", f"{machine.name}: {outcome.error}")
        found: list[Found] = outcome.result
        return found

    def _begin(self, step: Step) -> None:
        if not step.overlaps:
            self.world.drain()
        is_foreign = step.op in foreign.OPS
        self.past.has_foreign |= is_foreign
        actor = self.peer.actor if is_foreign else self._machine(step).actor
        self.world.finish(actor)
        self._finish()
        if self.past.has_lost_documents and not step.overlaps:
            damage.note_strays(self)
        op = step.op
        if is_foreign or op == "offline" or op in moving.OPS:
            self.past.is_undisturbed = False
        self.past.may_be_sharded |= is_foreign or op == "migrate_index"
        if not is_foreign and self._machine(step).owes_migration:
            op = "namespace_migrate"  # anything else would be told to wait for it
        self.world.tell(f"--- {actor.name} {op} {step.args}")
        actor.op = op
        if is_foreign:
            actor.start(lambda: foreign.OPS[op](self, step.args), step.faults)
        else:
            machine = self._machine(step)
            machine.was_first = not self.places.oracle(machine.place).has_index()
            machine.do(lambda: OPS[op](Tell(self, machine), step.args), step.faults)
        self._finish()

    def _machine(self, step: Step) -> Machine:
        return self.machines[step.machine % len(self.machines)]

    def _finish(self) -> None:
        """Count what has ended."""
        for actor in self.world.actors:
            outcome = actor.outcome
            if outcome is None or not actor.is_idle:
                continue
            actor.outcome = None
            for machine in self.machines:
                if machine.actor is actor:
                    self._note_end(machine, outcome)
            self._count(actor.op, outcome)
            self.world.tell(f"{actor.name} {actor.op}: {outcome.ending} {outcome.error or ''}")
            requests, changes = self.result.points.get(actor.op, (0, 0))
            self.result.points[actor.op] = (
                max(requests, actor.counts[STORE]),
                max(changes, actor.counts[DISK]),
            )

    def _note_end(self, machine: Machine, outcome: Outcome) -> None:
        if machine.actor.op in moving.OPS:
            place = machine.look_where()
            self.places.end(machine.number, place, owes=machine.owes_migration)
            cache = cache_of(machine.home)
            if machine.owes_migration and base_of(cache).namespace != "":
                held = b"".join(one.metadata or b"" for one in copies_in(cache / "data"))
                self.places.forget_outside(machine.number, place, held)
        if outcome.ending != "done" and machine.actor.sent:
            makers = {one.number for one in self.machines if one.home == machine.home}
            oracle = self.places.oracle(machine.place)
            noted = noted_in(cache_of(machine.home), machine.place)
            oracle.stopped(makers, machine.actor.sent, noted, was_first=machine.was_first)
        damage.note_arrivals(self, machine)

    def _note_late(self, bucket: Bucket, key: str, data: bytes) -> None:
        """Where tokens are made of content, nothing tells such an object from the one before."""
        if not bucket.kind.by_content or not key.endswith("/metadata.yaml"):
            return
        held = {copy.metadata for one in self.machines for copy in copies_in(one.directory)}
        for oracle in self._oracles_of(bucket, key):
            oracle.revived(data, b"".join(one for one in held if one))

    def _note_read(self, bucket: Bucket, key: str, machine: int) -> None:
        """Where there is no index, whoever looks takes for data what others are sending."""
        for oracle in self._oracles_of(bucket, key):
            if key in bucket.objects and not oracle.has_index():
                oracle.read_early(bucket.objects[key].data, machine)

    def _oracles_of(self, bucket: Bucket, key: str) -> list[Oracle]:
        """Return the oracles of the places that an object of a version is in."""
        return [
            oracle
            for place, oracle in self.places.oracles.items()
            if place.target == bucket.name and key.startswith(f"{place.prefix}data/")
        ]

    def _count(self, op: str, outcome: Outcome) -> None:
        self.result.endings[f"{op} {outcome.ending}"] += 1
        if outcome.ending == "killed":
            self.result.kills += 1
        if outcome.ending == "failed":
            self._check_failure(op, outcome)
            self.past.is_rough = True
            self.result.errors[f"{op} {outcome.error.code}"] += 1  # type: ignore[union-attr]
        if isinstance(outcome.error, Violation):
            raise outcome.error
        if outcome.ending == "defect":
            notes = "".join(getattr(outcome.error, "__notes__", []))
            raise Violation("defect", f"{op}: {outcome.error!r}\n{notes}")
        if self.world.hits:
            raise Violation("lock", f"of a living holder removed: {self.world.hits}")

    def _check_failure(self, op: str, outcome: Outcome) -> None:
        """Raise Violation if nothing explains that something was refused."""
        # A name that was given another one is found by readers, and refused to whoever appends.
        is_gone = op in {"append", "rename"} and self._is_of_deleted(outcome.error)
        is_refused = is_gone or type(outcome.error) is NotFoundError
        is_answer = is_refused or _is_outdated(outcome.error)
        if self.past.is_undisturbed and not self.world.faults and not is_answer:
            raise Violation("failed", f"{op}, though nothing befell anybody: {outcome.error}")

    def _is_of_deleted(self, error: BaseException | None) -> bool:
        """Whether content is missing that never came here, or was evicted, and was deleted since.

        Who is told so has not heard of that deletion: after a rest, everybody has.
        """
        return type(error) is ContentMissingError and any(
            f"{one.model} {one.name} version" in error.message
            for oracle in self.places.oracles.values()
            for one in oracle.versions.values()
            if one.deleted_by is not None
        )

    # Resting -----------------------------------------------------------------------------------

    def settle(self) -> None:
        """Let all come to rest, then look whether everything is as it must be."""
        self.world.tell("=== rest")
        self._compare()
        if self.past.has_lost_documents:
            damage.note_strays(self)
        self.world.arrive()
        self.world.advance(self.world.now + 300)
        # Who is only slow, and keeps its locks, leaves nothing lying about.
        self.past.is_rough |= bool(self.world.faults.keys() - {"slow", "slow-after"})
        if self.world.hits:
            raise Violation("lock", f"of a living holder removed: {self.world.hits}")
        for machine in self.machines:
            machine.actor.is_offline = False
        places = {machine.place for machine in self.machines}
        for place in sorted(places | self.places.oracles.keys()):
            self._settle_at(place, [one for one in self.machines if one.place == place])

    def _settle_at(self, place: Place, machines: list[Machine]) -> None:
        oracle = self.places.oracle(place)
        self.places.doubt_owed(place)
        owes = any(machine.owes_migration for machine in machines)
        if place.is_remote:
            self._find_what_lost_its_mark(machines)
            self._sync_until_quiet(machines)
        if owes:
            self.places.doubt_outside(place)
        has_lost = place.is_remote and self.past.has_lost_documents
        if machines and has_lost and not checks.tells_what_is_there(place):
            # Nobody hears of deletions from what is lost, and what was written instead may name
            # objects that are gone. Whoever is told to look at everything writes what is there.
            self._look_at_all(place, machines)
            machines[0].needs_full = True
            self._sync_until_quiet(machines)
        if place.is_remote and not oracle.has_index():
            self._look_at(place, machines)
            oracle.check_nothing()
            return  # nobody has ever committed: some see objects that others know to be uploads
        seen = self._look_at_all(place, machines)
        if not machines:
            return
        checks.check_agreement(seen)
        if place.is_remote:
            checks.excuse_hollow(place, oracle.hollow, self.past)
            checks.check_index(place, seen[0][1], self.past)
            checks.check_verdict(place, self.past)
            # Whoever left some may have forgotten that, or have moved away. Who syncs in full comes
            # across them.
            has_forgotten = oracle.is_index_lost or oracle.forgot or len(self.places.oracles) > 1
            if checks.late_notes(place) or (has_forgotten and checks.notes(place)):
                self._now(machines[0], partial(self._sync_fully, machines[0]))
            checks.check_removals(place)
        checks.check_locks(self.past)
        oracle.resolve(seen[0][1])
        self.result.rests += 1

    def _look_at(self, place: Place, machines: list[Machine]) -> list[tuple[str, list[Found]]]:
        """Return what each machine sees, and one that was never there before, if it sees any."""
        seen = [self._look(machine) for machine in machines]
        oracle = self.places.oracle(place)
        if machines or (place.is_remote and oracle.has_index()):
            afresh = self._look_afresh(place)
            seen = [
                (name, oracle.beside_ghosts(machine.number, found, afresh[1]))
                for machine, (name, found) in zip(machines, seen, strict=True)
            ]
            seen.append(afresh)
        return seen

    def _look_at_all(self, place: Place, machines: list[Machine]) -> list[tuple[str, list[Found]]]:
        """Return what each of them sees; raise Violation if it is not what it must be."""
        seen = self._look_at(place, machines)
        for name, found in seen:
            self.places.oracle(place).check(name, found)
        return seen

    def _find_what_lost_its_mark(self, machines: list[Machine]) -> None:
        """Let somebody look at all files of a cache of which a mark of others was lost."""
        for machine in machines:
            cache = str(cache_of(machine.home))
            if cache in self.world.overwritten:
                outcome = self._now(machine, partial(self._sync_fully, machine))
                if outcome.ending == "done":
                    self.world.overwritten.remove(cache)

    def _sync_until_quiet(self, machines: list[Machine]) -> None:
        """Let one after the other sync until nothing changes, once around."""
        quiet, said = 0, ""
        for turn in range(_ROUNDS * len(machines)):
            machine = machines[turn % len(machines)]
            full = machine.needs_full and turn < len(machines)
            before = _documents_at(machine.place)
            outcome = self._now(machine, partial(self._sync, machine, full=full))
            self.world.tell(f"{machine.name} rests: {outcome.ending} {outcome.error or ''}")
            if outcome.ending == "failed":
                self._check_failure("rest", outcome)
                quiet, said = 0, f"{machine.name}: {outcome.error}"
            elif outcome.result or full:  # a repair may push, and does not say how much
                quiet, said = 0, f"{machine.name} changed {outcome.result}"
            elif _documents_at(machine.place) != before:
                quiet, said = 1, f"{machine.name} wrote what was lost"
            else:
                quiet += 1
            if quiet == len(machines):
                break
        else:
            if machines:
                raise Violation("no rest", f"after {_ROUNDS} rounds: {said}")
        for machine in machines:
            machine.needs_full = False

    def _now(self, machine: Machine, job: Callable[[], Any]) -> Outcome:
        """Do one more operation of a machine, undisturbed."""
        self.result.steps += 1
        outcome: Outcome = machine.now(job)
        machine.actor.outcome = None
        if outcome.ending == "defect":
            self._count("rest", outcome)
        return outcome

    def _sync(self, machine: Machine, *, full: bool) -> int:
        if machine.owes_migration:
            OPS["namespace_migrate"](Tell(self, machine), {})
        if full:
            OPS["repair"](Tell(self, machine), {})
        changes: int = OPS["sync"](Tell(self, machine), {"full": full})
        return changes

    def _sync_fully(self, machine: Machine) -> None:
        OPS["sync"](Tell(self, machine), {"full": True})

    def _look(self, machine: Machine) -> tuple[str, list[Found]]:
        outcome = self._now(machine, lambda: _seen(machine))
        if outcome.ending != "done":
            raise Violation("unreadable", f"{machine.name}: {outcome.error}")
        found, written, rebuilt = outcome.result
        if written != rebuilt:
            differ = set(written) ^ set(rebuilt)
            raise Violation("catalog", f"{machine.name}: {sorted(differ)}")
        oracle = self.places.oracle(machine.place)
        return machine.name, oracle.without_ghosts(machine.number, found)

    def _look_afresh(self, place: Place) -> tuple[str, list[Found]]:
        self._fresh += 1
        directory = self.directory / f"fresh{self._fresh}"
        settings = place.settings(self.script.hydration)
        fresh = Machine(self.world, 90 + self._fresh, directory, settings, 0.0)
        try:
            if place.is_remote:
                outcome = self._now(fresh, lambda: self._sync(fresh, full=False))
            else:
                outcome = Outcome("done")
            if outcome.ending != "done":
                raise Violation("unreadable", f"a fresh machine: {outcome.error}")
            found = self._look(fresh)[1]
            fresh.now(fresh.reopen)
            return f"a fresh machine at {place.address} {place.namespace}".rstrip(), found
        finally:
            fresh.actor.end()
            self.world.actors.remove(fresh.actor)

    def close(self) -> None:
        for machine in self.machines:
            if machine.actor.is_idle:
                machine.now(machine.reopen)
        self.world.end()


def _is_outdated(error: BaseException | None) -> bool:
    """Whether content is refused that is not here, and that others have changed since a pull."""
    if isinstance(error, IncompleteSyncError):
        return all(reason == OUTDATED for reason in error.failures.values())
    return type(error) is ContentOutdatedError


def _documents_at(place: Place) -> dict[str, bytes]:
    """Return the documents of the index of a place."""
    objects = place.objects() if place.is_remote else {}
    return {rel: data for rel, data in objects.items() if rel.startswith((SHARDS, MONOLITH_KEY))}


def _seen(machine: Machine) -> tuple[list[Found], list[Any], list[Any]]:
    found = machine.look()
    catalog = machine.repo.catalog
    written = sorted(row for rows in catalog.by_name() for row in rows)
    machine.repo.rebuild_catalog()
    rebuilt = sorted(row for rows in catalog.by_name() for row in rows)
    return found, written, rebuilt


@contextlib.contextmanager
def _place() -> Iterator[Path]:
    place = Path(tempfile.mkdtemp(prefix="fleet-", dir=_PLACE))
    try:
        yield place
    finally:
        # Ten times as fast as removing thousands of files from here.
        subprocess.run(["rm", "-rf", str(place)], check=False)


def run(script: Script, *, trace: bool = False) -> Result:
    """Let a script happen, and say what became of it."""
    install()
    began = time.process_time()
    gc.disable()
    with _place() as place:
        fleet = Fleet(script, place, trace=trace)
        result = fleet.result
        try:
            fleet.run()
        except Violation as violation:
            result.violation = violation
        finally:
            _abandon(fleet)
    gc.enable()
    result.trace = fleet.world.trace or []
    result.processor = time.process_time() - began
    return result


def _abandon(fleet: Fleet) -> None:
    """End everything, also what a violation left in the middle."""
    for actor in fleet.world.actors:
        if not actor.is_idle:
            actor.is_dead = True
    with contextlib.suppress(Violation):
        fleet.world.drain()
    fleet.close()
