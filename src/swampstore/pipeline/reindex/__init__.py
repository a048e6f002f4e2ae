"""Making the index of places anew from what is stored there.

Documents that can be read are believed; those that are lost or damaged are made from the objects
that belong to them. Nothing is ever deleted but entries and documents without meaning, and a
document that cannot be understood is kept in quarantine before it is replaced.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from datetime import timedelta
from time import monotonic
from typing import TYPE_CHECKING

from swampstore.index.report import Progress, no_progress
from swampstore.pipeline.index_writer import editing
from swampstore.pipeline.places import Place
from swampstore.pipeline.reindex.planned import Reindexed
from swampstore.pipeline.reindex.rebuilding import Rebuilding

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["GRACE", "Reindexed", "reindex"]

GRACE = timedelta(hours=1)


def reindex(
    spark: SparkSession,
    places: Sequence[Place],
    *,
    rehash: bool = False,
    grace: timedelta = GRACE,
    dry_run: bool = False,
    progress: Progress = no_progress,
) -> Reindexed:
    """Make the indexes of places whole, each under its lock; what is sound stays as it is.

    `rehash` also compares the content of all objects with the entries that are kept. Objects that
    no entry names are adopted when they are older than `grace`. Raises IndexMovedError if
    somebody commits in spite of the lock, LockTimeoutError.
    """
    started = monotonic()
    done = Reindexed(dry_run=dry_run)
    for place in places:
        with ExitStack() as stack:
            writer = None if dry_run else stack.enter_context(editing(place))
            done += Rebuilding(
                spark, place, writer, rehash=rehash, grace=grace, progress=progress
            ).run()
    return done + Reindexed(seconds=monotonic() - started)
