"""The rules that keep data safe, switched off one at a time: the simulation has to notice."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from swampstore.artifacts import claims
from swampstore.locks import lock
from swampstore.locks.lock import StoreLock
from swampstore.sync import conflicts, local_scan
from swampstore.sync.eviction import Eviction
from swampstore.sync.index_format import Document
from swampstore.sync.push import Push
from swampstore.sync.push_plan import Planner
from swampstore.sync.remote import recovery
from swampstore.sync.remote.documents import Found
from swampstore.sync.remote.recovery import Recovery
from swampstore.sync.removals import Notes, Remover
from swampstore.sync.service import SyncService
from swampstore.sync.uploads import Uploader
from tests.fleet.fleet import run
from tests.fleet.generate import LARGE, Mix, generate_mix
from tests.fleet.seams import install

_WAITS = ("stop", "slow", "slow-after")
_SEEDS = 60


class Rule(NamedTuple):
    """A rule: what is put in the place of what, where to look, and the seed that noticed it."""

    patches: dict[tuple[object, str], object]
    mix: Mix
    seed: int = 0


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
    return Found(Document({}), found.etag, found.token, is_dirty=True, is_recovered=True)


def _release(store: Any, key: str, _token: str, _record: Any, **_: Any) -> None:
    store.delete(key)


def _nothing(*_: Any, **__: Any) -> None:
    return None


_PUSHING = {"save": 6, "sync": 8, "push": 4}
_DELETING = {"save": 6, "sync": 8, "push": 3, "delete_all": 3, "delete_one": 2}

RULES: dict[str, Rule] = {
    "large content goes on a condition": Rule(
        {(Uploader, "_place_data"): _place},
        Mix({"save": 6, "push": 8}, _WAITS, sizes=(LARGE,), roughness=0.8),
    ),
    "what is published is complete": Rule(
        {(Planner, "_withhold_incomplete"): _nothing},
        Mix(
            {"save": 6, "pull": 3, "sync": 8, "delete_one": 3, "damage_base": 4, "push": 4},
            hydration="lazy",
        ),
    ),
    "the dead hold nothing up": Rule(
        {(claims, "abandoned"): _nobody_is_dead},
        Mix({"save": 8, "group": 3, "sync": 6}, ("kill", "torn"), roughness=0.6),
    ),
    "a deletion stays": Rule(
        {(conflicts, "was_deleted"): lambda *_: False},
        Mix(_DELETING),
    ),
    "eviction proves": Rule(
        {(Eviction, "_with_proof"): lambda _, candidate: candidate},
        Mix({"save": 6, "sync": 6, "evict": 6, "lose_object": 4}),
    ),
    "releasing a lock never hits a successor": Rule(
        {(lock, "remove"): _release},
        Mix({"save": 4, "session": 8, "sync": 4}, ("stop", "twice", "late", "slow"), roughness=0.8),
    ),
    "an object is deleted only if it is still the one": Rule(
        {(Remover, "_remove_if_older"): _remove, (Remover, "_delete"): _delete},
        Mix(_DELETING, ("kill", "kill-after", "fail", "stop", "slow"), roughness=0.7),
    ),
    "uploads are looked at again": Rule(
        {(Push, "_check"): _nothing},
        Mix(_DELETING, ("kill", "kill-after", "stop", "slow"), roughness=0.7),
    ),
    "a lost document is damage": Rule(
        {(Recovery, "rebuilt"): _empty},
        Mix({**_PUSHING, "migrate_index": 3, "lose_shard": 4}),
    ),
    "a deletion stays through a new index": Rule(
        {(recovery, "read_notes"): lambda *_: Notes()},
        Mix(
            {**_DELETING, "lose_monolith": 3, "lose_meta": 3, "lose_shard": 3},
            ("kill", "kill-after", "fail"),
            roughness=0.6,
        ),
    ),
    "a lock is proved before the commit": Rule(
        {(StoreLock, "verify"): _nothing},
        Mix({"session": 8, "save": 4, "sync": 4}, ("stop", "late", "kill-late"), roughness=0.8),
    ),
    "who takes a lock over shuts its holder out": Rule(
        {(SyncService, "fence"): _nothing},
        Mix({"session": 8, "save": 4, "push": 6}, ("late", "kill-late", "stop"), roughness=0.8),
    ),
    "absence is deletion only with evidence": Rule(
        {
            (local_scan, "is_covered"): lambda *_: True,
            (local_scan.LocalScan, "_was_wiped"): _nothing,
        },
        Mix({**_PUSHING, "lose_version": 5}),
    ),
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


def find(rule: Rule, seeds: int = _SEEDS) -> dict[str, Any]:
    """Look for a violation without a rule; say what was found, in how many steps, and how."""
    install()
    steps = 0
    for seed in itertools.islice(itertools.count(rule.seed), seeds):
        script = generate_mix(str(seed), rule.mix)
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
    """Return for each rule what was found without it."""
    return {name: find(rule) for name, rule in RULES.items()}
