"""What a copy did, or would do, and what it found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from swampstore.pipeline import schemas
from swampstore.pipeline.copy.outcomes import (
    CHANGED,
    CONFLICT,
    CORRUPT,
    DAMAGED,
    FORBIDDEN,
    HELD_BACK,
    MISSING,
    NOT_KEPT,
    OVERTAKEN,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SEVERITIES: Mapping[str, str] = {
    CORRUPT: "error",
    MISSING: "error",
    CHANGED: "error",
    OVERTAKEN: "error",
    CONFLICT: "error",
    NOT_KEPT: "error",
    DAMAGED: "error",
    HELD_BACK: "warning",
    FORBIDDEN: "info",
}


class Finding(NamedTuple):
    """One thing that was not copied, and where: `store`, `namespace` and `key` say which side."""

    store: str
    namespace: str
    kind: str
    rel: str | None
    key: str | None
    detail: str

    @property
    def severity(self) -> str:
        """How bad it is; what is only worth knowing fails nothing."""
        return SEVERITIES[self.kind]


@dataclass(frozen=True, slots=True)
class Copied:
    """What a copy did; with `dry_run`, what it would do.

    `present` is how many objects the target had already. `findings` tell what was not copied.
    """

    dry_run: bool
    objects: int = 0
    bytes: int = 0
    present: int = 0
    commits: int = 0
    findings: tuple[Finding, ...] = ()
    namespaces: tuple[tuple[str, str], ...] = ()
    seconds: float = 0.0

    @property
    def is_complete(self) -> bool:
        """Whether the target now has everything that the source may share."""
        return all(finding.severity == "info" for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        """Return the result document."""
        kinds = Counter(finding.kind for finding in self.findings)
        return {
            "dryRun": self.dry_run,
            "complete": self.is_complete,
            "namespaces": [{"from": source, "to": target} for source, target in self.namespaces],
            "objects": self.objects,
            "bytes": self.bytes,
            "present": self.present,
            "commits": self.commits,
            "findings": dict(sorted(kinds.items())),
            "seconds": round(self.seconds, 3),
        }


def findings_table(spark: SparkSession, copied: Copied) -> DataFrame:
    """Return the findings of a copy as a table."""
    rows = [(*finding, finding.severity, False) for finding in copied.findings]
    return spark.createDataFrame(rows, schemas.FINDINGS)
