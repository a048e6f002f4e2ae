"""Verifying in this process, where little is stored: the same evidence, and the same rules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from swampstore.errors import ValidationError
from swampstore.pipeline.evidence.gathering import Claims, Places
from swampstore.pipeline.evidence.index_state import IndexState, survey
from swampstore.pipeline.evidence.local_engine import (
    TooMuchError,
    check_affordable,
    done_here,
    gathered_here,
    is_little,
    listing_here,
)
from swampstore.pipeline.evidence.rows import Total
from swampstore.pipeline.metrics import Meter, metered
from swampstore.pipeline.places import Place
from swampstore.pipeline.reindex import GRACE
from swampstore.pipeline.verify import kinds
from swampstore.pipeline.verify.examination import (
    FOUND,
    Selection,
    comparer,
    documents_found,
    has_settled,
    judge,
    readable_copies,
    stale_counts,
)
from swampstore.pipeline.verify.outcome import NAMED, Finding, Verified, is_wrong
from swampstore.pipeline.verify.selection import checked

if TYPE_CHECKING:
    from collections.abc import Mapping

    from swampstore.pipeline.settings import Engine, SparkSettings

_COLUMNS = len(FOUND.split(", "))
_Found = tuple[Any, ...]


class _Look(NamedTuple):
    """What was found in some places, as rows of findings."""

    states: Mapping[int, IndexState]
    total: Total
    found: list[_Found]


def verify_little(
    places: Sequence[Place],
    engine: Engine,
    settings: SparkSettings,
    *,
    shard: tuple[int, int] | None = None,
    sample: float | None = None,
    grace: timedelta = GRACE,
    repair: bool = False,
    dry_run: bool = False,
) -> Verified | None:
    """Verify in this process if there is little to verify; None: Spark has to do it.

    Where there is something to `repair`, Spark has to, too. Raises ValidationError if that is
    asked of the engine `local`.
    """
    checked(places, shard, sample, grace, repair=repair)
    if not is_little(places, engine, settings, "verify"):
        return None
    try:
        found = verify_here(
            places, shard=shard, sample=sample, grace=grace, is_bounded=engine == "auto"
        )
    except TooMuchError:
        return None
    if not repair or found.ok:
        return replace(found, dry_run=repair and dry_run)
    if engine == "local":
        raise ValidationError(
            f"{found.open} things are wrong, and repairs are made by Spark",
            hint="Leave out --engine local.",
        )
    return None


def verify_here(
    places: Sequence[Place],
    *,
    shard: tuple[int, int] | None = None,
    sample: float | None = None,
    grace: timedelta = GRACE,
    is_bounded: bool = False,
) -> Verified:
    """Compare everything as `verify` does, without Spark and without Java; nothing is repaired.

    Raises TooMuchError if it `is_bounded` and there is much content.
    """
    started, meter = monotonic(), Meter()
    places = metered(places, meter)
    selection = checked(places, shard, sample, grace, repair=False)
    numbered = dict(enumerate(places))
    seen = _examined(numbered, selection, is_bounded=is_bounded)
    found = seen.found
    if any(is_wrong(row[2]) for row in found) and not has_settled(seen.states, _orphans(seen)):
        # Others committed or deleted during the first look: only what is found twice counts.
        again = {row[:4] for row in _examined(numbered, selection).found}
        found = [row for row in found if row[:4] in again]
    verified = _verified(seen, found, monotonic() - started)
    return replace(verified, metrics=meter.read())


def _examined(places: Places, selection: Selection, *, is_bounded: bool = False) -> _Look:
    claims = gathered_here(Claims(selection.has), places)
    states = survey(places, claims.sums)
    if is_bounded:
        check_affordable(selection.part_of(one.expected) for one in states.values())
    table = listing_here(selection.has, selection.reads)
    listed = gathered_here(table, places)
    trusts = {number: one.trust_rules(selection.grace) for number, one in states.items()}
    judged = done_here(judge(places, trusts, table.look), claims.evidence, listed.evidence)
    copies = readable_copies(states)
    compared = done_here(comparer(copies), claims.evidence) if any(copies.values()) else ()
    stale = stale_counts(compared)
    totals = listed.totals
    documents = documents_found(states, totals, stale, selection)
    found = [*(row[:_COLUMNS] for row in judged), *documents]
    return _Look(states, sum(totals.values(), Total()), found)


def _orphans(seen: _Look) -> Iterator[tuple[Place, str]]:
    places = {(one.place.identity, one.place.namespace): one.place for one in seen.states.values()}
    for store, namespace, kind, _, key, _ in seen.found:
        if kind in (kinds.ORPHAN, kinds.UNREMOVED):
            yield places[store, namespace], key


def _finding(row: _Found) -> Finding:
    store, namespace, kind, rel, key, detail = row
    severity = kinds.KINDS[kind].severity
    return Finding(store, namespace, kind, rel, key, detail, severity, repaired=False)


def _verified(seen: _Look, found: Sequence[_Found], seconds: float) -> Verified:
    findings = sorted(
        (_finding(row) for row in found),
        key=lambda one: (one.store, one.namespace, one.rel, one.kind),
    )
    wrong = [one for one in findings if is_wrong(one.kind)]
    return Verified(
        places=len(seen.states),
        objects=seen.total.objects,
        bytes=seen.total.bytes,
        kinds=dict(sorted(Counter(one.kind for one in findings).items())),
        open=len(wrong),
        repaired=0,
        lost=0,
        actions={},
        first=tuple(wrong[:NAMED]),
        dry_run=False,
        seconds=seconds,
        findings=findings,
    )
