"""Garbage collection of any number of places: all are planned at once, each is marked and swept."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from swampstore.errors import SwampstoreError, ValidationError
from swampstore.pipeline.collecting.collection import Collection
from swampstore.pipeline.collecting.in_place import used_in_place
from swampstore.pipeline.collecting.summary import Collected
from swampstore.pipeline.places import Place
from swampstore.sync.report import Progress, no_progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GRACE = timedelta(hours=24)


def gc(
    spark: SparkSession,
    places: Sequence[Place],
    *,
    now: datetime | None = None,
    grace: timedelta = GRACE,
    dry_run: bool = False,
    tell: Progress = no_progress,
) -> Collected:
    """Mark what is garbage; remove what has been, unchanged, since it was marked a grace ago.

    Ages are judged by the clocks of the stores, unless `now` is given. What cannot be decided
    stays and is named in the warnings. Of several places one that fails does not keep the others
    from being collected; see `Collected.failed`. Raises ValidationError for a directory that is
    used in place, and for a single place whatever went wrong, LockTimeoutError for example.
    """
    from swampstore.pipeline.collecting.planning import plan_places

    began = time.monotonic()
    _check(places)
    moments = [now or _clock(place) for place in places]
    # Of several clocks the slowest counts: nothing goes before its time.
    garbage, warnings = plan_places(spark, places, min(moments), tell)
    collections = [
        Collection(place, garbage.get((place.identity, place.namespace), []), moment, grace)
        for place, moment in zip(places, moments, strict=True)
    ]
    for one in collections:
        with _outlived_by_others(one, collections):
            one.preview() if dry_run else one.run(tell)
    told = [f"{one.place}: {warning}" for one in collections for warning in one.warnings]
    return Collected(
        dry_run=dry_run,
        places=len(places),
        outcomes=tuple(outcome for one in collections for outcome in one.outcomes),
        unmarked=sum(one.unmarked for one in collections),
        finished=sum(one.finished for one in collections),
        failed=sum(one.failed for one in collections),
        warnings=(*warnings, *told),
        seconds=time.monotonic() - began,
    )


def _check(places: Sequence[Place]) -> None:
    for place in places:
        if not place.indexed:
            raise used_in_place(place)
    if not places:
        raise ValidationError("there is no place to collect", hint="Name a repository or a URL.")


@contextlib.contextmanager
def _outlived_by_others(one: Collection, collections: Sequence[Collection]) -> Iterator[None]:
    try:
        yield
    except SwampstoreError as error:
        if len(collections) == 1:
            raise
        one.failed = True
        one.warnings.append(f"not collected to the end: {error.message}")


def _clock(place: Place) -> datetime:
    with place.open() as store:
        return store.clock()
