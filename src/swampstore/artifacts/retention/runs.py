"""Which finished workflow runs and method outputs are old enough to go."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal, NamedTuple

RunKind = Literal["workflow-run", "output"]

DEFAULT_RUN_RETENTION = timedelta(days=30)

# A suspended run waits for somebody's approval; it is not over, however old it is.
TERMINAL_STATUSES = frozenset({"succeeded", "failed", "cancelled"})


class RunFacts(NamedTuple):
    """One run record: where it is, how and when the run ended, and the log that belongs to it.

    Times are timezone-aware, sizes are bytes; `log_size` is 0 where there is no log.
    """

    path: str
    kind: RunKind
    status: str
    started_at: datetime
    completed_at: datetime | None
    size: int
    log_file: str | None
    log_size: int

    @property
    def dated_at(self) -> datetime:
        """The time its age counts from: the end of a workflow run, the start of an output."""
        if self.kind == "output":
            return self.started_at
        return self.completed_at or self.started_at


@dataclass(frozen=True, slots=True)
class RunGcPlan:
    """The records that go, each with its log, ordered by kind and path.

    A preview and the real run both report from it. Someone who carries out only a part of it
    reports the part: `RunGcPlan(removals=done)`.
    """

    removals: tuple[RunFacts, ...]

    def count(self, kind: RunKind) -> int:
        """Return how many records of one kind go."""
        return sum(run.kind == kind for run in self.removals)

    def size(self, kind: RunKind) -> int:
        """Return the bytes of the records of one kind, their logs included."""
        return sum(run.size + run.log_size for run in self.removals if run.kind == kind)

    def to_json(self, *, dry_run: bool) -> dict[str, object]:
        """Return the result document of `run gc`."""
        run_bytes, output_bytes = self.size("workflow-run"), self.size("output")
        return {
            "workflowRunsDeleted": self.count("workflow-run"),
            "workflowRunBytesReclaimed": run_bytes,
            "outputsDeleted": self.count("output"),
            "outputBytesReclaimed": output_bytes,
            "totalBytesReclaimed": run_bytes + output_bytes,
            "dryRun": dry_run,
        }


def plan_run_gc(
    runs: Iterable[RunFacts], now: datetime, older_than: timedelta = DEFAULT_RUN_RETENTION
) -> RunGcPlan:
    """Decide which records go at the time `now`: those of ended runs older than `older_than`.

    `runs` is read once and not kept; memory follows what is removed.
    """
    removals = [
        run for run in runs if run.status in TERMINAL_STATUSES and now - run.dated_at > older_than
    ]
    removals.sort(key=lambda run: (run.kind, run.path))
    return RunGcPlan(tuple(removals))
