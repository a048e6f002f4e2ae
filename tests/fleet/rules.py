"""The rules that keep data safe, switched off one at a time: the simulation has to notice."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

from swampstore.artifacts import claims
from swampstore.index import stored_files
from swampstore.index.documents import StoredDocument
from swampstore.index.format import Document
from swampstore.index.remote_index import RemoteIndex
from swampstore.index.removals import Notes, Remover
from swampstore.index.repair import Recovery
from swampstore.locks import lock
from swampstore.locks.lock import StoreLock
from swampstore.sync import merge, scan
from swampstore.sync.evict import Eviction
from swampstore.sync.pull_plan import PullPlanner
from swampstore.sync.push import Push
from swampstore.sync.push_plan import Planner
from swampstore.sync.service import SyncService
from swampstore.sync.uploads import Uploader
from tests.fleet.fleet import Script, run
from tests.fleet.generate import (
    LARGE,
    THEMES,
    Act,
    Mix,
    generate_mix,
    generate_narrow,
    generate_plot,
)
from tests.fleet.seams import install

_SEEDS = 60


class Rule(NamedTuple):
    """A rule: what is put in the place of what, where to look, and the seed that noticed it."""

    patches: dict[tuple[object, str], object]
    mix: Mix | tuple[Act, ...]
    seed: int = 0
    store: str = ""
    hydration: str = ""

    def script(self, seed: int) -> Script:
        if isinstance(self.mix, Mix):
            return generate_mix(str(seed), self.mix)
        return generate_plot(str(seed), self.mix, self.store, self.hydration)


def _place(self: Any, upload: Any, key: str, sha256: str, data: Any) -> Any:
    if isinstance(data, bytes):
        return _real_place(self, upload, key, sha256, data)
    return self._store.put(key, data)


_real_place: Callable[..., Any] = Uploader._place_data


@contextlib.contextmanager
def _nobody_is_dead(*_: Any, **__: Any) -> Iterator[bool]:
    yield False


def _delete(self: Any, key: str, _info: Any) -> bool:
    self._store.delete(key)
    return True


def _remove(self: Any, wanted: Any, *_: Any) -> bool:
    self._store.delete(self._names.remote(wanted.rel))
    return True


def _empty(_self: Any, _partition: str, found: Any, _meta: Any) -> Any:
    return StoredDocument(Document({}), found.etag, found.token, is_dirty=True, is_recovered=True)


def _release(store: Any, key: str, _token: str, _record: Any, **_: Any) -> None:
    store.delete(key)


def _nothing(*_: Any, **__: Any) -> None:
    return None


_SAVE = (("work", ({"op": "save", "model": "t/m/a", "name": "x", "size": 10},)), ("all", False))
_PUSHING = {"save": 6, "sync": 8, "push": 4}
_SMALL = (("size", 10),)
_BIG = (("size", LARGE),)
_PLAIN = (("scope", None), ("full", False), ("lazy", False))
# One deletes, and cannot remove the objects; the other one uploads the name again meanwhile.
_REMOVED_LATER = (
    Act(0, "save", args=_SMALL),
    Act(-1, "settle"),
    Act(0, "delete_all"),
    Act(0, "push", ("fail",), (14, 18), args=_PLAIN, times=3),
    Act(1, "pull", args=_PLAIN),
    Act(1, "save", args=_SMALL),
    Act(1, "push", ("slow",), (5, 12), (20.0,), args=_PLAIN),
    Act(0, "sync", overlaps=True, args=_PLAIN),
)
# One is killed after its commit, before it could note that; the other one deletes what that
# brought, and removes the objects while the first one finds its uploads and will commit them.
_UPLOADED_BEFORE = (
    Act(0, "save", args=_SMALL),
    Act(-1, "settle"),
    Act(1, "save", args=_SMALL),
    Act(1, "push", ("kill-after",), (16, 17), args=_PLAIN),
    Act(1, "idle", args=(("seconds", 40.0),)),
    Act(0, "pull", args=_PLAIN),
    Act(0, "save", args=(*_SMALL, ("name", "y"))),
    Act(0, "push", args=_PLAIN),
    Act(0, "delete_one", args=(("pick", 0.99),)),
    Act(0, "push", ("slow",), (8, 12), (5.0,), args=_PLAIN),
    Act(1, "push", overlaps=True, args=_PLAIN),
)

RULES: dict[str, Rule] = {
    "large content goes on a condition": Rule(
        {(Uploader, "_place_data"): _place},
        (
            Act(0, "save", args=_SMALL),
            Act(-1, "settle"),
            Act(0, "save", args=_BIG),
            Act(1, "save", args=_BIG),
            Act(0, "push", ("stop", "slow"), (4, 12), args=_PLAIN),
            Act(1, "push", overlaps=True, args=_PLAIN),
        ),
    ),
    "what is published is complete": Rule(
        {(Planner, "_withhold_incomplete"): _nothing},
        (
            Act(0, "save", args=_SMALL),
            Act(0, "save", args=_SMALL),
            Act(0, "push", args=_PLAIN),
            Act(1, "pull", args=(("scope", None), ("full", False), ("lazy", True))),
            Act(0, "delete_one", args=(("pick", 0.0),)),
            Act(0, "push", args=_PLAIN),
            Act(1, "damage_base"),
            Act(1, "push", args=_PLAIN),
        ),
        hydration="lazy",
    ),
    "the dead hold nothing up": Rule(
        {(claims, "abandoned"): _nobody_is_dead},
        Mix({"save": 8, "group": 3, "sync": 6}, ("kill", "torn"), roughness=0.6),
    ),
    "a deletion stays": Rule(
        {(merge, "was_deleted"): lambda *_: False},
        (
            Act(0, "save", args=_SMALL),
            Act(-1, "settle"),
            Act(0, "delete_all"),
            Act(0, "save", args=_SMALL),
            Act(0, "sync", args=_PLAIN),
        ),
    ),
    "eviction proves": Rule(
        {(Eviction, "_with_proof"): lambda _, candidate: candidate},
        (
            Act(0, "save", args=_SMALL),
            Act(0, "push", args=_PLAIN),
            Act(0, "lose_object"),
            Act(0, "evict"),
        ),
    ),
    "releasing a lock never hits a successor": Rule(
        {(lock, "remove"): _release},
        (
            Act(0, "session", args=_SAVE),
            Act(0, "session", ("twice",), (20, 40), (0.1, 0.2, 0.3, 0.5), args=_SAVE),
            Act(1, "session", args=_SAVE),
        ),
        seed=91,
        store="gcs",
    ),
    "an object is deleted only if it is still the one": Rule(
        {
            (Remover, "_remove_if_older"): _remove,
            (Remover, "_delete"): _delete,
            # Without this, whoever uploaded something else would look again, and send it anew.
            (RemoteIndex, "renew"): _nothing,
        },
        _REMOVED_LATER,
    ),
    "earlier uploads are looked at again": Rule(
        {(Push, "_check"): _nothing}, _UPLOADED_BEFORE, store="gcs"
    ),
    "a lost document is damage": Rule(
        {
            (Recovery, "rebuilt"): _empty,
            (PullPlanner, "_spare_what_nobody_deleted"): _nothing,
        },
        (
            Act(0, "save", args=_SMALL),
            Act(0, "migrate_index"),
            Act(0, "push", args=_PLAIN),
            Act(1, "pull", args=_PLAIN),
            Act(0, "save", args=_SMALL),
            Act(0, "lose_shard"),
            Act(0, "push", args=_PLAIN),
            Act(1, "sync", args=_PLAIN),
            Act(0, "sync", args=_PLAIN),
        ),
    ),
    "a deletion stays through a new index": Rule(
        {(stored_files, "read_notes"): lambda *_: Notes()},
        (
            Act(0, "save", args=_SMALL),
            Act(-1, "settle"),
            Act(0, "delete_all"),
            Act(0, "push", ("fail",), (13, 17), args=_PLAIN, times=3),
            Act(1, "pull", args=_PLAIN),
            Act(0, "lose_index"),
        ),
    ),
    "a lock is proved before the commit": Rule(
        {(StoreLock, "verify"): _nothing, (StoreLock, "check"): _nothing},
        (
            Act(0, "session", ("stop",), (8, 24), (45.0,), args=_SAVE),
            Act(1, "session", overlaps=True, args=_SAVE),
        ),
    ),
    "who takes a lock over shuts its holder out": Rule(
        {(SyncService, "fence"): _nothing},
        (
            Act(0, "session", args=_SAVE),
            Act(0, "session", ("stop",), (15, 18), (45.0,), args=_SAVE),
            Act(1, "session", ("slow",), (46, 76), (45.0, 20.0), overlaps=True, args=_SAVE),
        ),
        seed=2,
    ),
    "absence is deletion only with evidence": Rule(
        {
            (scan, "is_covered"): lambda *_: True,
            (scan.LocalScan, "_was_wiped"): _nothing,
        },
        Mix({**_PUSHING, "lose_version": 5}),
    ),
}


# Rules whose absence is noticed without a plot, by scripts that only have a theme: which one, and
# the seed that noticed it.
THEMED: dict[str, tuple[int, int]] = {
    "large content goes on a condition": (5, 1),
    "the dead hold nothing up": (4, 22),
    "a deletion stays": (1, 4),
    "releasing a lock never hits a successor": (0, 2),
    "a lost document is damage": (2, 0),
    "a lock is proved before the commit": (0, 4),
    "absence is deletion only with evidence": (3, 0),
    "eviction proves": (6, 1),
    "a deletion stays through a new index": (7, 51),
    "who takes a lock over shuts its holder out": (8, 3),
    "what is published is complete": (9, 15),
}


@contextlib.contextmanager
def without(rule: Rule) -> Iterator[None]:
    """Switch a rule off."""
    before = {place: getattr(*place) for place in rule.patches}
    try:
        for (owner, name), value in rule.patches.items():
            setattr(owner, name, value)
        yield
    finally:
        for (owner, name), value in before.items():
            setattr(owner, name, value)


def find(
    rule: Rule, script_of: Callable[[int], Script], first: int, seeds: int = _SEEDS
) -> dict[str, Any]:
    """Look for a violation without a rule; say what was found, in how many steps, and how."""
    install()
    steps = 0
    for seed in itertools.islice(itertools.count(first), seeds):
        script = script_of(seed)
        with without(rule):
            result = run(script)
        steps += result.steps
        if result.violation is not None:
            well = run(script).violation
            return {
                "seed": seed,
                "steps": steps,
                "without": str(result.violation),
                "with": str(well) if well else None,
            }
    return {"seed": None, "steps": steps, "without": None, "with": None}


def find_all() -> dict[str, Any]:
    """Return for each rule what was found without it, by a plot or a mix, and by a theme."""
    found = {name: find(rule, rule.script, rule.seed) for name, rule in RULES.items()}
    for name, (theme, seed) in THEMED.items():
        found[f"{name}, by a theme"] = find(RULES[name], partial(themed, theme), seed)
    return found


def themed(theme: int, seed: int) -> Script:
    """Return the script of a seed about a theme."""
    return generate_narrow(f"t{seed}", THEMES[theme])
