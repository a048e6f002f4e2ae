"""The three-way decision: the whole table, and two machines that never lose anything by it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swampstore.files.signature import Signature
from swampstore.index.base import Known
from swampstore.index.format import Entry
from swampstore.sync.merge import Decision, Local, decide, remote_changed

OURS, THEIRS, OLD = "a" * 64, "b" * 64, "c" * 64
THEN, LATER = "2026-05-14T20:19:51.042Z", "2026-05-15T20:19:51.042Z"
HELD = Signature(3, 1, 1, 1)

BASES: dict[str, Known | None] = {
    "none": None,
    "held": Known("p", 3, OLD, THEN, None, HELD),
    "lazy": Known("p", 3, OLD, THEN, None, None),
}
REMOTES: dict[str, Entry | None] = {
    "gone": None,
    "as it was": Entry(3, THEN, OLD),
    "news": Entry(3, LATER, THEIRS),
    "as ours": Entry(3, LATER, OURS),
}
TABLE = """
base  remote     SAME          CHANGED   ABSENT   DELETED
none  gone       NOTHING       PUSH      NOTHING  NOTHING
none  as it was  PULL          CONFLICT  PULL     PULL
none  news       PULL          CONFLICT  PULL     PULL
none  as ours    PULL          ADOPT     PULL     PULL
held  gone       DELETE_LOCAL  PUSH      FORGET   FORGET
held  as it was  NOTHING       PUSH      PULL     DELETE_REMOTE
held  news       PULL          CONFLICT  PULL     PULL
held  as ours    PULL          ADOPT     PULL     PULL
lazy  gone       DELETE_LOCAL  PUSH      FORGET   FORGET
lazy  as it was  NOTHING       CONFLICT  NOTHING  DELETE_REMOTE
lazy  news       PULL          CONFLICT  PULL     PULL
lazy  as ours    PULL          ADOPT     PULL     PULL
"""


def table() -> list[tuple[str, str, Local, Decision]]:
    cases = []
    for line in TABLE.strip().splitlines()[1:]:
        base, remote, words = line[:4], line[6:17].strip(), line[17:].split()
        for local, decision in zip(Local, words, strict=True):
            cases.append((base, remote, local, Decision[decision]))
    return cases


def test_the_table_is_complete() -> None:
    combinations = Counter((base, remote, local) for base, remote, local, _ in table())
    assert combinations == Counter((b, r, one) for b in BASES for r in REMOTES for one in Local)


@pytest.mark.parametrize(("base", "remote", "local", "decision"), table())
def test_every_case_has_its_decision(
    base: str, remote: str, local: Local, decision: Decision
) -> None:
    assert decide(local, OURS, BASES[base], REMOTES[remote]) is decision


@pytest.mark.parametrize("remote", ["gone", "as it was", "news"])
@pytest.mark.parametrize("base", ["held", "lazy"])
def test_a_touched_file_with_the_content_of_the_base_is_no_edit(base: str, remote: str) -> None:
    decision = decide(Local.CHANGED, OLD, BASES[base], REMOTES[remote])
    expected = {
        "gone": Decision.DELETE_LOCAL,
        "as it was": Decision.ADOPT,
        "news": Decision.PULL,
    }
    assert decision is expected[remote]


def test_an_edit_of_unknown_content_is_never_adopted_nor_dropped() -> None:
    for base, known in BASES.items():
        for remote, entry in REMOTES.items():
            decision = decide(Local.CHANGED, None, known, entry)
            assert decision in (Decision.PUSH, Decision.CONFLICT), (base, remote)


def test_h9_a_marker_of_the_same_size_is_a_remote_change() -> None:
    known = Known("data/t/m/state/latest", 1, OLD, THEN, None, HELD)
    assert decide(Local.SAME, None, known, Entry(1, THEN, THEIRS)) is Decision.PULL


def test_h6_what_a_cold_cache_never_held_is_not_deleted_remotely() -> None:
    for entry in (REMOTES["as it was"], REMOTES["news"]):
        assert decide(Local.ABSENT, None, BASES["lazy"], entry) is not Decision.DELETE_REMOTE
        assert decide(Local.DELETED, None, None, entry) is Decision.PULL


def test_a_hash_decides_alone_where_both_sides_have_one() -> None:
    known = Known("p", 3, OLD, THEN, None, None)
    assert not remote_changed(known, Entry(3, LATER, OLD))
    assert remote_changed(known, Entry(3, THEN, THEIRS))


def test_without_a_hash_size_and_time_decide() -> None:
    known = Known("p", 3, None, THEN, None, None)
    assert not remote_changed(known, Entry(3, THEN, OLD))
    assert remote_changed(known, Entry(4, THEN, OLD))
    assert remote_changed(known, Entry(3, LATER, OLD))
    assert remote_changed(known._replace(sha256=OLD), Entry(3, LATER))


def test_what_is_on_one_side_only_differs() -> None:
    assert not remote_changed(None, None)
    assert remote_changed(BASES["held"], None)
    assert remote_changed(None, REMOTES["news"])


# Two machines ------------------------------------------------------------------------------


class Stored(NamedTuple):
    entry: Entry
    content: str


@dataclass
class Machine:
    """A cache: its files, its base, and what the files were when they equalled the remote."""

    is_lazy: bool = False
    files: dict[str, str] = field(default_factory=dict)
    base: dict[str, Known] = field(default_factory=dict)
    agreed: dict[str, str] = field(default_factory=dict)
    marks: set[str] = field(default_factory=set)

    def local(self, path: str) -> Local:
        known = self.base.get(path)
        if path in self.files:
            if known and known.held and self.files[path] == self.agreed[path]:
                return Local.SAME
            return Local.CHANGED
        has_evidence = path in self.marks and known is not None and known.held is not None
        return Local.DELETED if has_evidence else Local.ABSENT

    def had(self, path: str) -> str:
        """The content that the base shows this machine to have held."""
        return self.agreed[path] if path in self.base else ""


class World:
    """Two machines and a remote. Contents stand for their own hashes.

    `alive` are the contents that somebody wrote and nobody overwrote or deleted knowingly, that
    is, on a machine that had this content.
    """

    def __init__(self) -> None:
        self.machines = (Machine(), Machine(is_lazy=True))
        self.remote: dict[str, Stored] = {}
        self.alive: set[str] = set()
        self.time = 0
        self.decisions: Counter[Decision] = Counter()

    def fresh(self) -> str:
        self.time += 1
        self.alive.add(f"content {self.time}")
        return f"content {self.time}"

    def store(self, path: str, content: str, sha256: str | None) -> None:
        self.time += 1
        self.remote[path] = Stored(Entry(len(content), str(self.time), sha256), content)

    def act(self, action: str, number: int, path: str = "p") -> None:
        machine = self.machines[number]
        here, there = machine.files.get(path), self.remote.get(path)
        match action:
            case "write" | "write what others write too":
                self.alive.discard(here or machine.had(path))
                machine.marks.add(path)
                machine.files[path] = self.fresh() if action == "write" else "common"
            case "delete" if here:
                self.alive.discard(here)
                machine.marks.add(path)
                del machine.files[path]
            case "lose the file" if here:
                del machine.files[path]
                self.alive &= self.found()
            case "lose the base":
                machine.base.clear()
            case "lose the cache":
                machine.files.clear()
                machine.base.clear()
                self.alive &= self.found()
            case "hydrate" if there and not here:
                known = machine.base.get(path)
                if known and not remote_changed(known, there.entry):
                    self.pulled(machine, path, there)
            case "another client writes":
                self.alive.discard(there.content if there else "")
                self.store(path, self.fresh(), None)
            case "another client deletes" if there:
                self.alive.discard(there.content)
                del self.remote[path]
            case "sync":
                self.sync(machine)

    def found(self) -> set[str]:
        return {one.content for one in self.remote.values()}.union(
            *(machine.files.values() for machine in self.machines)
        )

    def sync(self, machine: Machine) -> None:
        for path in sorted({*machine.files, *machine.base, *self.remote}):
            self.sync_path(machine, path)
        machine.marks.clear()

    def sync_path(self, machine: Machine, path: str) -> None:
        content, stored = machine.files.get(path), self.remote.get(path)
        entry = stored.entry if stored else None
        decision = decide(machine.local(path), content, machine.base.get(path), entry)
        self.decisions[decision] += 1
        match decision:
            case Decision.PUSH:
                assert content
                self.store(path, content, content)
                self.agree(machine, path)
            case Decision.PULL:
                assert stored
                self.pulled(machine, path, stored, lazily=machine.is_lazy and content is None)
            case Decision.ADOPT:
                self.agree(machine, path)
            case Decision.DELETE_REMOTE:
                del self.remote[path]
                del machine.base[path]
            case Decision.DELETE_LOCAL:
                del machine.files[path]
                del machine.base[path]
            case Decision.FORGET:
                del machine.base[path]
            case Decision.CONFLICT:
                assert stored
                assert content
                self.keep_both(machine, path, content, stored)

    def keep_both(self, machine: Machine, path: str, content: str, stored: Stored) -> None:
        if content != stored.content:  # an entry without a hash may hide that both are equal
            kept = f"{path}, kept {self.time}"
            machine.files[kept] = content
            self.store(kept, content, content)
            self.agree(machine, kept)
        self.pulled(machine, path, stored)

    def pulled(self, machine: Machine, path: str, stored: Stored, *, lazily: bool = False) -> None:
        if not lazily:
            machine.files[path] = stored.content
        self.agree(machine, path)

    def agree(self, machine: Machine, path: str) -> None:
        entry = self.remote[path].entry
        is_here = path in machine.files
        known = Known(path, entry.size, entry.sha256, entry.last_modified, None, None)
        machine.base[path] = known._replace(held=HELD) if is_here else known
        machine.agreed[path] = machine.files.get(path, "")


ACTIONS = st.tuples(
    st.sampled_from(
        [
            *("sync", "sync", "sync", "sync", "write", "write", "delete", "hydrate"),
            *("write what others write too", "another client writes", "another client deletes"),
            *("lose the file", "lose the base", "lose the cache"),
        ]
    ),
    st.sampled_from([0, 1]),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(ACTIONS, min_size=20, max_size=40))
def test_two_machines_lose_nothing_and_come_to_agree(actions: list[tuple[str, int]]) -> None:
    world = World()
    for action in actions:
        world.act(*action)
        assert world.alive <= world.found(), f"{world.alive - world.found()} after {action}"
    for _ in range(2):
        for machine in world.machines:
            world.sync(machine)
            assert world.alive <= world.found()
    world.decisions.clear()
    for machine in world.machines:
        world.sync(machine)
    assert set(world.decisions) <= {Decision.NOTHING}
    eager, lazy = world.machines
    contents = {path: stored.content for path, stored in world.remote.items()}
    assert eager.files == contents
    assert lazy.files.items() <= contents.items()
    assert set(lazy.base) == set(contents)


def run(*actions: tuple[str, int]) -> World:
    world = World()
    for action, number in actions:
        world.act(action, number)
    return world


def test_h7_what_others_deleted_is_not_uploaded_again() -> None:
    world = run(("write", 0), ("sync", 0), ("another client deletes", 0), ("sync", 0))
    assert world.remote == {}
    assert world.machines[0].files == {}


def test_h10_an_edit_that_was_not_pushed_survives_a_pull() -> None:
    world = run(("write", 0), ("sync", 0), ("write", 0), ("another client writes", 0))
    mine = world.machines[0].files["p"]
    world.act("sync", 0)
    assert mine in world.machines[0].files.values()
    assert mine in {stored.content for stored in world.remote.values()}


@pytest.mark.parametrize("what", ["lose the file", "lose the base", "lose the cache"])
def test_h4_whatever_is_lost_locally_deletes_nothing_remotely(what: str) -> None:
    world = run(("write", 0), ("sync", 0), (what, 0), ("sync", 0))
    assert world.machines[0].files == {"p": "content 1"}


def test_h75_a_delete_of_what_was_held_reaches_the_remote_from_a_lazy_cache() -> None:
    world = run(("write", 0), ("sync", 0), ("sync", 1), ("hydrate", 1), ("delete", 1), ("sync", 1))
    assert world.remote == {}
