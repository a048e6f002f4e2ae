"""What `pipeline verify` would say about the bucket: its own rules, without Spark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

import msgspec

from swampstore.index.path_kinds import unit_of
from swampstore.pipeline.evidence.gathering import Claims, seen_as
from swampstore.pipeline.evidence.index_state import IndexState, look
from swampstore.pipeline.evidence.rows import Claim, Item, Path, Summary, decoded_sum
from swampstore.pipeline.places import Place
from swampstore.pipeline.planning import listed, pieces
from swampstore.pipeline.running import unpacked
from swampstore.pipeline.source.objects import content_of
from swampstore.pipeline.verify.examination import of_documents, readable_shards, stale_in
from swampstore.pipeline.verify.kinds import KINDS
from swampstore.pipeline.verify.rules import Problem, examined
from swampstore.stores.memory import MemoryConfig
from tests.fleet.bucket import Bucket, FleetStore

# Nobody is at work: nothing may be half done.
_GRACE = timedelta(0)
_items = msgspec.msgpack.Decoder(list[Item])


def findings(bucket: Bucket, namespace: str) -> list[Problem]:
    """Return everything that is wrong with what a bucket holds, by the rules for whole stores."""
    place = Place(MemoryConfig(bucket.name), f"memory://{bucket.name}", "", namespace)
    with FleetStore(bucket) as store:
        paths, sums = _claims(place, store)
        state = replace(look(place, store), summaries=tuple(sums))
        found = [one for piece in pieces(place, store, 1) for one in listed(piece, store)]
    for one in found:
        data = bucket.objects[one.info.key].data
        content = None if one.internal else content_of(one.rel, data)
        paths.setdefault(one.rel, Path(one.rel)).add(seen_as(one, 0, content), 0)
    return [*_of_units(paths, state), *of_documents(state, _GRACE, _stale(paths, state))]


def severity(found: Problem) -> str:
    return KINDS[found.kind].severity


def _claims(place: Place, store: FleetStore) -> tuple[dict[str, Path], list[Summary]]:
    table, paths, sums = Claims(), dict[str, Path](), list[Summary]()
    for piece in table.plan(place, store, 1):
        for _, unit, body in table.rows(0, place, piece, store):
            if unit is None:
                sums.append(decoded_sum(body))
                continue
            for rel, claim in _items.decode(unpacked(body)):
                assert isinstance(claim, Claim)
                paths.setdefault(rel, Path(rel)).add(claim, 0)
    return paths, sums


def _of_units(paths: dict[str, Path], state: IndexState) -> Iterator[Problem]:
    units: dict[str, list[Path]] = {}
    for rel, path in sorted(paths.items()):
        units.setdefault(unit_of(rel), []).append(path)
    for unit, some in units.items():
        yield from examined(unit, some, state.trust_rules(_GRACE))[1]


def _stale(paths: dict[str, Path], state: IndexState) -> Counter[str]:
    if not state.has_copies:
        return Counter()
    readable = set(readable_shards(state))
    return Counter(one for path in paths.values() for one in stale_in(path) if one in readable)
