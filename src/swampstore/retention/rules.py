"""Which data names and versions garbage collection removes, decided without touching anything.

Two rules, in this order:

1. *Expiry* takes a name with all its versions. A duration counts from the creation of the latest
   version. `workflow` and `job` data goes once the record of the run that made it is gone.
2. The *version policy* thins out the names that stay: a number keeps that many of the highest
   versions, a duration keeps what is younger. The highest version always stays, and so does the
   one that `latest` points at, which may lag behind while a writer is at work.

A deletion marker records that something is gone and never expires, but the versions beneath it
follow the version policy like any others. Whatever cannot be decided is kept and ends up in
`GcPlan.warnings`. Times in the future, from a clock that was wrong, are never old.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Literal, NamedTuple

from swampstore.errors import ValidationError
from swampstore.retention.lifetimes import (
    beyond_count,
    normalise_lifetime,
    normalise_policy,
    parse_duration,
)

ExpiryReason = Literal["duration-expired", "workflow-deleted", "job-deleted"]
RunExists = Callable[[str, str], bool]

# Names of one run lie close together, so a few remembered answers spare most look-ups.
_REMEMBERED_RUNS = 4096


class Doubts:
    """Cases grouped by cause: a million names with one problem are one warning, not a million.

    `cases` has, for each cause, how many there are and an example.
    """

    def __init__(self, thing: str) -> None:
        self._thing = thing
        self.cases: dict[str, tuple[int, str]] = {}

    def add(self, cause: str, example: str, count: int = 1) -> None:
        """Count more things that were kept because of `cause`; one of them is the example."""
        before, first = self.cases.get(cause, (0, example))
        self.cases[cause] = (before + count, min(first, example))

    def warnings(self) -> tuple[str, ...]:
        """Return one sentence per cause, the same whatever the order in which the cases came."""
        return tuple(
            f"kept {count} {self._thing}{'' if count == 1 else 's'}: {cause} ({example}"
            f"{'' if count == 1 else ' and others'})"
            for cause, (count, example) in sorted(self.cases.items())
        )


class VersionFacts(NamedTuple):
    """One version: its number, when it was written (timezone-aware) and its bytes of content."""

    version: int
    created_at: datetime
    size: int


class NameFacts(NamedTuple):
    """One data name; everything but `versions` is what the metadata of its latest version says.

    `versions` is ascending; another order costs a sort, never the wrong version. `latest` is the
    version the marker names, `deleted` whether that version is a deletion marker.
    """

    model_type: str
    model_id: str
    name: str
    lifetime: str
    garbage_collection: int | str
    deleted: bool
    workflow_id: str | None
    workflow_run_id: str | None
    versions: Sequence[VersionFacts]
    latest: int


class Removal(NamedTuple):
    """What goes from one data name: everything if there is a `reason`, else just `versions`."""

    model_type: str
    model_id: str
    name: str
    versions: tuple[VersionFacts, ...]
    reason: ExpiryReason | None = None

    @property
    def whole_name(self) -> bool:
        """Whether the name itself goes, rather than some of its older versions."""
        return self.reason is not None

    @property
    def version_count(self) -> int:
        """How many versions go."""
        return len(self.versions)

    @property
    def size(self) -> int:
        """The bytes of content that go."""
        return sum(version.size for version in self.versions)


@dataclass(frozen=True, slots=True)
class GcPlan:
    """Removals ordered by type, model and name. A preview and the real run both report from it.

    Someone who carries out only a part of it reports the part: `GcPlan(removals=done)`.
    """

    removals: tuple[Removal, ...]
    warnings: tuple[str, ...] = ()

    @property
    def expired(self) -> tuple[Removal, ...]:
        """The removals that take a whole name."""
        return tuple(removal for removal in self.removals if removal.whole_name)

    @property
    def version_count(self) -> int:
        """How many versions go, those of expired names included."""
        return sum(removal.version_count for removal in self.removals)

    @property
    def size(self) -> int:
        """The bytes of content that go, those of expired names included."""
        return sum(removal.size for removal in self.removals)

    def to_json(
        self, *, dry_run: bool, wal_pages_total: int = 0, wal_pages_checkpointed: int = 0
    ) -> dict[str, object]:
        """Return the result document of `data gc`; the page counts come from the checkpoint."""
        expired = self.expired
        return {
            "dataEntriesExpired": len(expired),
            "versionsDeleted": self.version_count,
            "bytesReclaimed": self.size,
            "dryRun": dry_run,
            "expiredEntries": [
                {
                    "type": removal.model_type,
                    "modelId": removal.model_id,
                    "dataName": removal.name,
                    "reason": removal.reason,
                    "versionCount": removal.version_count,
                }
                for removal in expired
            ],
            "walPagesTotal": wal_pages_total,
            "walPagesCheckpointed": wal_pages_checkpointed,
        }


def plan_gc(names: Iterable[NameFacts], now: datetime, run_exists: RunExists) -> GcPlan:
    """Decide what garbage collection removes at the time `now`.

    `run_exists(workflow_id, workflow_run_id)` says whether that run record is still there; if it
    raises, the name stays. `names` is read once and not kept: memory follows what is removed.
    """
    rules = GcRules(now, run_exists)
    removals = [removal for name in names if (removal := rules.removal(name)) is not None]
    removals.sort(key=lambda removal: removal[:3])
    return GcPlan(tuple(removals), rules.doubts.warnings())


class GcRules:
    """Applies both rules to one name after the other; `doubts` tell what stayed undecided."""

    def __init__(self, now: datetime, run_exists: RunExists) -> None:
        self.doubts = Doubts("data name")
        self._now = now
        self._run_exists = lru_cache(maxsize=_REMEMBERED_RUNS)(run_exists)

    def removal(self, name: NameFacts) -> Removal | None:
        """Return what goes of a name, None if nothing does."""
        if not name.versions:
            return None
        reason = None if name.deleted else self._expiry(name)
        versions = tuple(name.versions) if reason else self._surplus(name)
        if not versions:
            return None
        return Removal(name.model_type, name.model_id, name.name, versions, reason)

    def _expiry(self, name: NameFacts) -> ExpiryReason | None:
        try:
            lifetime = normalise_lifetime(name.lifetime)
        except ValidationError as problem:
            self._doubt(name, "the lifetime cannot be understood", problem)
            return None
        if lifetime in ("infinite", "ephemeral"):
            return None
        if lifetime == "workflow":
            return "workflow-deleted" if self._run_is_gone(name) else None
        if lifetime == "job":
            return "job-deleted" if self._run_is_gone(name) else None
        return "duration-expired" if self._is_outlived(name, lifetime) else None

    def _run_is_gone(self, name: NameFacts) -> bool:
        if not name.workflow_id or not name.workflow_run_id:
            self._doubt(name, "it lives as long as a workflow run, but names none")
            return False
        try:
            return not self._run_exists(name.workflow_id, name.workflow_run_id)
        except Exception as problem:  # noqa: BLE001 - whatever it was: unknown is not gone
            self._doubt(name, "its workflow run could not be looked up", problem)
            return False

    def _is_outlived(self, name: NameFacts, lifetime: str) -> bool:
        for version in reversed(name.versions):
            if version.version == name.latest:
                # Ages are compared, not dates: a date far enough away would overflow.
                return self._now - version.created_at > parse_duration(lifetime)
        self._doubt(name, "the version that latest points at is missing")
        return False

    def _surplus(self, name: NameFacts) -> tuple[VersionFacts, ...]:
        if len(name.versions) <= 1:
            return ()
        try:
            policy = normalise_policy(name.garbage_collection)
        except ValidationError as problem:
            self._doubt(name, "the garbageCollection policy cannot be understood", problem)
            return ()
        if isinstance(policy, int):
            candidates = beyond_count(sorted(name.versions), policy)
        else:
            limit = parse_duration(policy)
            candidates = [
                version
                for version in sorted(name.versions)[:-1]
                if self._now - version.created_at > limit
            ]
        return tuple(version for version in candidates if version.version != name.latest)

    def _doubt(self, name: NameFacts, cause: str, problem: Exception | None = None) -> None:
        where = f"{name.model_type} {name.model_id} {name.name}"
        self.doubts.add(cause, where if problem is None else f"{where}: {problem}")
