"""What a collection did, or would do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

Kind = Literal["marked", "waiting", "due", "swept", "kept"]
KINDS: tuple[Kind, ...] = ("marked", "waiting", "due", "swept", "kept")


class Outcome(NamedTuple):
    """What became of some garbage: one version, or a whole name.

    It was `marked` for the first time (or anew), it is `waiting` for the grace period to end, it
    was `swept`, or `kept` for the reason that `detail` tells; `due` is what would be swept.
    """

    store: str
    namespace: str
    kind: Kind
    rel: str
    detail: str
    versions: int
    size: int

    def to_finding(self) -> dict[str, Any]:
        """Return it as a row of the table of findings."""
        return {
            "store": self.store,
            "namespace": self.namespace,
            "kind": self.kind,
            "rel": self.rel,
            "key": f"{self.namespace}/{self.rel}" if self.namespace else self.rel,
            "detail": self.detail,
            "severity": "warning" if self.kind == "kept" else "info",
            "repaired": self.kind == "swept",
        }


@dataclass(frozen=True, slots=True)
class Collected:
    """What a collection did; with `dry_run`, what it would do.

    `unmarked` counts what an earlier collection marked and what is no garbage any more, or
    changed. `finished` counts objects that a collection which was stopped had left behind,
    `failed` places that could not be collected to the end; the warnings tell why.
    """

    dry_run: bool
    places: int
    outcomes: tuple[Outcome, ...] = ()
    unmarked: int = 0
    finished: int = 0
    failed: int = 0
    warnings: tuple[str, ...] = ()
    seconds: float = 0.0

    def versions(self, kind: Kind) -> int:
        """Return how many versions met this fate."""
        return sum(one.versions for one in self.outcomes if one.kind == kind)

    def size(self, kind: Kind) -> int:
        """Return the bytes of content that met this fate."""
        return sum(one.size for one in self.outcomes if one.kind == kind)

    def to_json(self) -> dict[str, Any]:
        """Return the result document; `warnings` is a member only if there are any."""
        document: dict[str, Any] = {"dryRun": self.dry_run, "places": self.places}
        for kind in KINDS:
            document[kind] = {"versions": self.versions(kind), "bytes": self.size(kind)}
        document |= {
            "unmarked": self.unmarked,
            "finished": self.finished,
            "failed": self.failed,
            "seconds": round(self.seconds, 3),
        }
        return document | ({"warnings": list(self.warnings)} if self.warnings else {})
