"""What the base must remember of a commit.

After a commit the base agrees with the remote if it agreed with what the commit was merged onto.
If it did not, because others committed meanwhile, the old agreement stays recorded: it is no
longer that of the remote, so the next pull looks for what it misses.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from swampstore.clock import Clock, to_iso
from swampstore.index.base import Base
from swampstore.index.format import Meta
from swampstore.index.partitions import Scope
from swampstore.index.state import (
    GONE,
    MONOLITH_CHECKED,
    MONOLITH_ETAG,
    PARTIAL,
    Agreements,
    Committed,
    MetaSnapshot,
    from_monolith,
    meta_facts,
    same,
)

if TYPE_CHECKING:
    from swampstore.index.version1_commit import MonolithCommitted
    from swampstore.index.version2_commit import ShardsCommitted

Facts = dict[str, str | None]
Shards = dict[tuple[str, str], str]


def after_shards(base: Base, done: ShardsCommitted, scope: Scope | None) -> Committed:
    """Return what to remember of a commit to a version 2 remote."""
    meta = done.sighting.meta
    assert meta is not None
    if done.sighting is done.onto:
        return Committed(meta.commit_seq, {}, {})
    # The frozen monolith must never again prove anything.
    facts = _seen(base, done.sighting) | dict.fromkeys((MONOLITH_ETAG, MONOLITH_CHECKED))
    agreements = Agreements(base)
    shards: Shards = {}
    for one in _scopes(scope):
        known = base.shard_etags(_key(one))
        followed = {
            partition: etag
            for partition, etag in done.etags.items()
            if known.get(partition, GONE) == (done.etags_before[partition] or GONE)
        }
        shards |= _record(done.etags.keys() - followed.keys(), followed, one)
        if agreements.of(one) == done.onto.fingerprint(None) and followed == done.etags:
            facts |= agreements.fact(one, done.sighting.fingerprint(None), agreements.epoch)
    return Committed(meta.commit_seq, facts, shards)


def after_monolith(
    base: Base, done: MonolithCommitted, scope: Scope | None, clock: Clock
) -> Committed:
    """Return what to remember of a commit to a version 1 remote."""
    if done.sighting is done.onto:
        return Committed(None, {}, {})
    if done.sighting is None or done.sighting.meta is None:
        return Committed(None, {}, _record(done.touched, {}, None))
    facts = _seen(base, done.sighting) | {MONOLITH_CHECKED: to_iso(clock())}
    now = _shards_now(done, done.sighting.meta)
    shards: Shards = {}
    for one in _scopes(scope):
        known = base.shard_etags(_key(one))
        if _held_everything(base, done, one):
            state = done.sighting.fingerprint(done.monolith)
            facts |= Agreements.fact(one, state, Agreements(base).epoch)
            if one is None:
                facts[MONOLITH_ETAG] = done.monolith
            chosen = {part for part in now if one is None or part in done.touched}
        else:
            chosen = _followed(done, known)
        current = {part: now[part] for part in chosen if known.get(part) != (now[part] or GONE)}
        shards |= _record(done.touched - chosen, current, one)
    return Committed(None, facts, shards)


def _shards_now(done: MonolithCommitted, meta: Meta) -> dict[str, str | None]:
    """Return the ETags of all shards, None for touched ones without entries."""
    assert done.monolith is not None
    unsharded = from_monolith(done.monolith)
    return dict.fromkeys(done.touched) | {
        partition: meta.shards.get(partition, unsharded) for partition in meta.partitions
    }


def _held_everything(base: Base, done: MonolithCommitted, scope: Scope | None) -> bool:
    """Whether the base had all that the monolith had before the commit."""
    if done.monolith_before is None:
        return not done.onto.exists and base.count() == 0
    agreed = Agreements(base).of(scope)
    return agreed is not None and same(agreed.monolith, done.monolith_before)


def _followed(done: MonolithCommitted, known: Mapping[str, str]) -> set[str]:
    """Return the touched partitions that the base had before the commit as they were."""
    before = done.onto.meta
    if before is None or not done.onto.agrees_with(done.monolith_before):
        return set()
    return {
        partition
        for partition in done.touched
        if known.get(partition, GONE) == before.shards.get(partition, GONE)
    }


def _record(
    unfollowed: Iterable[str], current: Mapping[str, str | None], scope: Scope | None
) -> Shards:
    """Record the shards that the base has as they are, and that it has some of the others."""
    recorded = {(partition, _key(scope)): etag or GONE for partition, etag in current.items()}
    if scope is None:
        recorded |= {(partition, ""): PARTIAL for partition in unfollowed}
    return recorded


def _scopes(scope: Scope | None) -> list[Scope | None]:
    return [None] if scope is None else [None, scope]


def _key(scope: Scope | None) -> str:
    return scope.key if scope else ""


def _seen(base: Base, sighting: MetaSnapshot) -> Facts:
    assert sighting.meta is not None
    assert sighting.text is not None
    assert sighting.etag is not None
    return meta_facts(base, sighting.meta, sighting.text, sighting.etag, sighting.token)
