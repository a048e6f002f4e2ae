"""Making the index of places anew from what is stored there.

Documents that can be read are believed; those that are lost or damaged are made from the objects
that belong to them. Nothing is ever deleted but entries and documents without meaning, and a
document that cannot be understood is kept in quarantine before it is replaced.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, fields
from datetime import timedelta
from time import monotonic
from typing import TYPE_CHECKING, Any

from swampstore.index.report import Progress, no_progress
from swampstore.pipeline.places import Place

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

GRACE = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Reindexed:
    """What became of the entries, and which documents were written.

    `kept` entries are as they were, `made` and `hashed` ones were hashed, `adopted` are objects
    that no entry named. `contradicted` entries stay, though their object is missing or another
    one: `verify` tells more. `waiting` objects are too young to be anything but a push. `leaving`
    are left of deletions, and are removed by whoever finishes those.
    `findings` is a table of all but the kept ones, None if there are none.
    """

    places: int = 0
    kept: int = 0
    hashed: int = 0
    made: int = 0
    adopted: int = 0
    contradicted: int = 0
    dropped: int = 0
    waiting: int = 0
    leaving: int = 0
    documents: int = 0
    seconds: float = 0.0
    dry_run: bool = False
    findings: DataFrame | None = field(default=None, repr=False, compare=False)

    def __add__(self, other: Reindexed) -> Reindexed:
        sums = {name: getattr(self, name) + getattr(other, name) for name in _SUMS}
        findings = self.findings
        if other.findings is not None:
            findings = findings.unionByName(other.findings) if findings else other.findings
        return Reindexed(**sums, dry_run=self.dry_run or other.dry_run, findings=findings)

    @property
    def entries(self) -> int:
        """How many paths the indexes name."""
        return self.kept + self.hashed + self.made + self.adopted + self.contradicted

    def to_json(self) -> dict[str, Any]:
        """Return the members of the result document."""
        members = {name: getattr(self, name) for name in _SUMS}
        seconds = round(self.seconds, 3)
        return {"dryRun": self.dry_run, **members, "entries": self.entries, "seconds": seconds}


_SUMS = tuple(one.name for one in fields(Reindexed) if one.name not in ("dry_run", "findings"))


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
    from swampstore.pipeline.index_writer import editing
    from swampstore.pipeline.reindex.rebuilding import Rebuilding

    started = monotonic()
    done = Reindexed(dry_run=dry_run)
    for place in places:
        with ExitStack() as stack:
            writer = None if dry_run else stack.enter_context(editing(place))
            done += Rebuilding(
                spark, place, writer, rehash=rehash, grace=grace, progress=progress
            ).run()
    return done + Reindexed(seconds=monotonic() - started)
