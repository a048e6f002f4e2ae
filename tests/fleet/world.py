"""Virtual time, and who runs when: one machine at a time, handed on only where a script says so.

Each machine has a thread of its own, because programs keep things by thread. The scheduler lets one
of them run until it waits or is done. Everything that happens is a consequence of the script and of
the seed: there is no other clock, no other chance, and never more than one thread at work.
"""

from __future__ import annotations

import heapq
import itertools
import random
import threading
import traceback
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from threading import get_ident
from typing import Any, NamedTuple

from swampstore.errors import SwampstoreError

# All repositories of a fleet are copies of one.
REPO_ID = "5f1f7a10-0000-4000-8000-000000000001"
STORE = "s"
DISK = "d"
# What may befall a request, a change of the disk, and a write of bytes.
OF_REQUESTS = ("fail", "lost", "kill", "kill-after", "stop", "slow", "slow-after", "twice", "late")
OF_WRITES = ("twice", "late", "kill-late")
OF_CHANGES = ("kill", "stop", "slow", "full")


class Killed(BaseException):
    """The machine is off. Nothing that handles errors may catch it."""


class Violation(Exception):  # noqa: N818 - it is what is looked for
    """Something that must never be. `kind` is what shrinking keeps."""

    def __init__(self, kind: str, details: str) -> None:
        super().__init__(f"{kind}: {details}")
        self.kind = kind


class Fault(NamedTuple):
    """What happens at one point of a step: the `number`th request, or change of the disk."""

    where: str
    number: int
    kind: str
    seconds: float = 0.0


class Outcome(NamedTuple):
    """How a step ended: `done`, `failed` (an error that was told), `killed`, or `defect`."""

    ending: str
    result: Any = None
    error: BaseException | None = None


class World:
    """The time, the machines that wait, and what is still under way to the store."""

    def __init__(self, seed: str, epoch: datetime) -> None:
        self.now = 0.0
        self.epoch = epoch
        self.chance = random.Random(seed)
        self.faults: Counter[str] = Counter()
        self.hits: list[str] = []
        # Caches in which a mark of another program was replaced by a sidecar without it: what it
        # has marked waits until somebody there looks at all files.
        self.overwritten: set[str] = set()
        self.actors: list[Actor] = []
        self.trace: list[str] | None = None
        self._late: list[tuple[float, int, Callable[[], None]]] = []
        self._number = itertools.count()
        self._back = threading.Lock()
        self._back.acquire()

    def moment(self, skew: float = 0.0) -> datetime:
        return self.epoch + timedelta(seconds=self.now + skew)

    def tell(self, what: str) -> None:
        if self.trace is not None:
            self.trace.append(f"{self.now:9.3f} {what}")

    def later(self, seconds: float, what: Callable[[], None]) -> None:
        """Do something at a later time, whatever became of who asked for it."""
        heapq.heappush(self._late, (self.now + seconds, next(self._number), what))

    def advance(self, until: float) -> None:
        """Let time pass, and what was under way arrive."""
        while self._late and self._late[0][0] <= until:
            moment, _, what = heapq.heappop(self._late)
            self.now = max(self.now, moment)
            what()
        self.now = max(self.now, until)

    def arrive(self) -> None:
        """Let everything that is under way arrive."""
        if self._late:
            self.advance(max(moment for moment, _, _ in self._late))

    @property
    def waiting(self) -> list[Actor]:
        return [actor for actor in self.actors if actor.wakes is not None]

    def resume(self, actor: Actor) -> None:
        """Let one machine run until it waits again, or is done."""
        actor.wakes = None
        actor.go.release()
        self._back.acquire()

    def resume_next(self) -> None:
        """Let the machine go on that has waited for the earliest time."""
        actor = min(self.waiting, key=lambda one: (one.wakes, one.number))
        assert actor.wakes is not None
        self.advance(actor.wakes)
        self.resume(actor)

    def finish(self, actor: Actor) -> None:
        """Let one machine finish, and others go on meanwhile."""
        while not actor.is_idle:
            self.resume_next()

    def drain(self) -> None:
        """Let everybody finish."""
        while self.waiting:
            self.resume_next()

    def hand_back(self) -> None:
        self._back.release()

    def end(self) -> None:
        for actor in self.actors:
            actor.end()


class Actor:
    """The thread of one machine: it does one job at a time."""

    def __init__(self, world: World, number: int, name: str) -> None:
        self.world = world
        self.number = number
        self.name = name
        self.go = threading.Lock()
        self.go.acquire()
        self.wakes: float | None = None
        self.is_dead = False
        self.outcome: Outcome | None = None
        self.counts = {STORE: 0, DISK: 0}
        self.is_offline = False
        self.op = ""
        self.skew = 0.0
        self.pid = 1000 * (number + 1)
        self.host = name
        # Which kinds of things the job has put into the store, or tried to.
        self.sent: set[str] = set()
        self.connections: set[Any] = set()
        self.abandoned: set[str] = set()
        self.locked: set[int] = set()
        self.environ: dict[str, str] = {}
        self.faults: dict[tuple[str, int], Fault] = {}
        self.hearts: list[Heart] = []
        self.on_death: Callable[[], None] = lambda: None
        self._job: Callable[[], Any] | None = None
        self._is_beating = False
        # How many requests of which kind there were, if something is to happen to one of a kind.
        self._is_aimed_at = False
        self._aimed_at: Counter[str] = Counter()
        self._thread = threading.Thread(target=self._run, name=f"fleet-{name}", daemon=True)
        self._thread.start()
        world.actors.append(self)
        ACTORS[self._thread.ident or 0] = self

    @property
    def is_idle(self) -> bool:
        return self._job is None

    def start(self, job: Callable[[], Any], faults: list[Fault]) -> None:
        """Begin a job, and let it run until it waits or is done."""
        assert self.is_idle
        self._job, self.outcome = job, None
        self.counts = {STORE: 0, DISK: 0}
        self.sent = set()
        self.faults = {(fault.where, fault.number): fault for fault in faults}
        self._is_aimed_at = any(fault.where not in self.counts for fault in faults)
        self._aimed_at = Counter()
        self.world.resume(self)

    def _run(self) -> None:
        while True:
            self.go.acquire()
            if self._job is None:
                return
            self.outcome = self._try(self._job)
            self._job, self.faults = None, {}
            self.world.hand_back()

    def _try(self, job: Callable[[], Any]) -> Outcome:
        try:
            return Outcome("done", job())
        except Killed as error:
            _let_go(error)
            self.on_death()
            self.hearts.clear()
            return Outcome("killed")
        except SwampstoreError as error:
            found = Outcome("failed", error=error)
            _let_go(error)
            return found
        except Violation as violation:
            return Outcome("defect", error=violation)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is a defect
            error.add_note("".join(traceback.format_exception(error)))
            _let_go(error)
            return Outcome("defect", error=error)

    def end(self) -> None:
        ACTORS.pop(self._thread.ident or 0, None)
        self.go.release()
        self._thread.join()

    # Points ---------------------------------------------------------------------------------

    def alive(self) -> None:
        if self.is_dead:
            raise Killed

    def die(self) -> None:
        self.is_dead = True
        self.world.tell(f"{self.name} is killed")
        raise Killed

    def request(self, what: str) -> Fault | None:
        """Come to a request; return what is to happen to it, if anything."""
        self.alive()
        self.world.advance(self.world.now + 0.02)
        self._beat()
        if what.startswith("put"):
            self.sent.add(aim_of(what))
        return self._fault(STORE, what)

    def change(self, what: str) -> Fault | None:
        """Come to a change of the disk, and wait or die there if that is to be."""
        self.alive()
        fault = self._fault(DISK, what)
        if fault is None:
            return None
        if fault.kind == "kill":
            self.die()
        if fault.kind in {"stop", "slow"}:
            self.wait(fault.seconds, beating=fault.kind == "slow")
        return fault

    def _fault(self, where: str, what: str) -> Fault | None:
        if self._is_beating:
            return None
        number = self.counts[where]
        self.counts[where] = number + 1
        fault = self.faults.get((where, number))
        if where == STORE and self._is_aimed_at:
            aim = aim_of(what)
            fault = fault or self.faults.get((aim, self._aimed_at[aim]))
            self._aimed_at[aim] += 1
        if self.world.trace is not None:
            self.world.tell(f"{self.name} {where}{number} {what} {fault.kind if fault else ''}")
        if fault is not None:
            self.world.faults[fault.kind] += 1
        return fault

    def wait(self, seconds: float, *, beating: bool = True) -> None:
        """Let others go on for some time; while `beating`, the locks are kept fresh."""
        self.alive()
        until = self.world.now + max(seconds, 0.0)
        while True:
            due = min((heart.due for heart in self.hearts), default=until) if beating else until
            self.wakes = max(self.world.now, min(due, until))
            self.world.hand_back()
            self.go.acquire()
            self.alive()
            if self.world.now >= until:
                return
            self._beat()

    def _beat(self) -> None:
        if self._is_beating:
            return
        for heart in list(self.hearts):
            if heart.due <= self.world.now:
                self._is_beating = True
                try:
                    heart.beat()
                finally:
                    self._is_beating = False


class Heart:
    """What takes the place of the thread that keeps locks fresh."""

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._members: list[Any] = []
        self.due = 0.0

    def add(self, member: Any) -> None:
        actor = current()
        if actor is not None and self not in actor.hearts:
            actor.hearts.append(self)
        if actor is not None and not self._members:
            self.due = actor.world.now + self._interval
        self._members.append(member)

    def remove(self, member: Any) -> None:
        if member in self._members:
            self._members.remove(member)
        actor = current()
        if actor is not None and not self._members and self in actor.hearts:
            actor.hearts.remove(self)

    def beat(self) -> None:
        actor = current()
        assert actor is not None
        self.due = actor.world.now + self._interval
        for member in list(self._members):
            if not member._mutex.locked():  # else its own write is under way
                member.beat()


ACTORS: dict[int, Actor] = {}


def current() -> Actor | None:
    """Return the machine that is at work in this thread, None if it is the scheduler."""
    return ACTORS.get(get_ident())


def _let_go(error: BaseException) -> None:
    """Drop what the frames of an error hold, while it can still be told who is at work."""
    seen: set[int] = set()
    todo: list[BaseException | None] = [error]
    while todo:
        one = todo.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        traceback.clear_frames(one.__traceback__)
        one.__traceback__ = None
        todo += [one.__context__, one.__cause__]


def aim_of(what: str) -> str:
    """Return of which kind a request is: what is done, and to what."""
    operation, _, key = what.partition(" ")
    verb = operation.partition("_")[0]
    if key.endswith(".lock") or "_control/locks/" in key:
        thing = "lock"
    elif "_control/" in key:
        thing = "note"
    else:
        thing = "index" if "_index/" in key or key.endswith("-index.json") else "data"
    return f"{verb if verb in {'put', 'delete', 'copy'} else 'read'} {thing}"


def moment_of(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)
