"""What a verification tells: its findings, and the result document."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from swampstore.pipeline.metrics import NO_METRICS, Metrics
from swampstore.pipeline.verify import kinds

NAMED = 50


class Finding(NamedTuple):
    """One thing that was found. `rel` is the path in its namespace, `key` the object."""

    store: str
    namespace: str
    kind: str
    rel: str
    key: str | None
    detail: str
    severity: str
    repaired: bool


@dataclass(frozen=True, slots=True)
class Verified:
    """What a verification found, and what a repair did about it.

    `kinds` counts the findings of each kind, `open` those that are wrong and were not repaired.
    `actions` counts what a repair did, or with `dry_run` would do. `first` are the first findings
    that are wrong, `findings` all of them: a table, or a list if this process has
    verified. `quarantine` are the directories with copies of all that a repair replaced or
    removed. `metrics` tell what was asked of the stores.
    """

    places: int
    objects: int
    bytes: int
    kinds: Mapping[str, int]
    open: int
    repaired: int
    lost: int
    actions: Mapping[str, int]
    first: tuple[Finding, ...]
    dry_run: bool
    seconds: float
    findings: Any = field(repr=False, compare=False)  # pyspark is not typed here
    quarantine: tuple[str, ...] = ()
    metrics: Metrics = NO_METRICS

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong, or not any more, and nothing was lost."""
        return not self.open and not self.lost

    def to_json(self) -> dict[str, Any]:
        """Return the members of the result document."""
        return {
            "ok": self.ok,
            "dryRun": self.dry_run,
            "places": self.places,
            "objects": self.objects,
            "bytes": self.bytes,
            "findings": dict(self.kinds),
            "open": self.open,
            "repaired": self.repaired,
            "lost": self.lost,
            "actions": dict(self.actions),
            "quarantine": list(self.quarantine),
            "first": [one._asdict() for one in self.first],
            "metrics": self.metrics.to_json(),
            "seconds": round(self.seconds, 3),
        }


def is_wrong(kind: str) -> bool:
    """Whether a finding of this kind is damage."""
    return kinds.KINDS[kind].severity != "info"
