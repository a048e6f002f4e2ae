"""What an examination found: one finding per check, and how complete the catalog is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from swampstore.datastore_address import FILESYSTEM

LISTED = 20


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of one check.

    `details` names the first few things that are wrong. `repaired` is None unless a repair was
    asked for and there was something to repair. A `warning` is worth knowing, and fails nothing.
    """

    check: str
    passed: bool
    message: str
    remedy: str | None = None
    details: tuple[str, ...] = ()
    repaired: bool | None = None
    warning: bool = False

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong, or not any more."""
        return self.passed or bool(self.repaired)

    def to_json(self) -> dict[str, Any]:
        """Return the members that say something."""
        members: dict[str, Any] = {
            "check": self.check,
            "passed": self.passed,
            "warning": self.warning or None,
            "message": self.message,
            "remedy": self.remedy,
            "details": list(self.details) or None,
            "repaired": self.repaired,
        }
        return {key: value for key, value in members.items() if value is not None}


class Check(NamedTuple):
    """One thing to look for: what to say if all is well, if not (`{}`: how many), what to do.

    What an advisory check finds is a warning, no failure.
    """

    name: str
    sound: str
    wrong: str
    remedy: str
    advisory: bool = False


@dataclass(slots=True)
class Problems:
    """What was found for one check: all are counted, the first few are named."""

    check: Check
    count: int = 0
    repaired: int = 0
    details: list[str] = field(default_factory=list)

    def add(self, detail: str, *, count: int = 1, repaired: bool = False) -> None:
        """Note one more, or several of a kind."""
        self.count += count
        self.repaired += count * repaired
        if len(self.details) < LISTED:
            self.details.append(detail)

    def finding(self, *, repair: bool = False) -> Finding:
        """Return the outcome; `repair` says that a repair was tried."""
        name, sound, wrong, remedy, advisory = self.check
        if not self.count:
            return Finding(name, passed=True, message=sound)
        done = self.repaired == self.count
        message = wrong.format(self.count)
        if repair and self.repaired:
            message += "; repaired" if done else f"; {self.repaired} of them repaired"
        return Finding(
            name,
            passed=advisory,
            message=message,
            remedy=None if repair and done else remedy,
            details=tuple(self.details),
            repaired=done if repair else None,
            warning=advisory,
        )


@dataclass(slots=True)
class TypeTally:
    """The data names of one type: on disk, in the catalog, and how the two differ."""

    disk: int = 0
    catalog: int = 0
    missing: int = 0
    excess: int = 0
    outdated: int = 0

    @property
    def differences(self) -> int:
        """How many names are missing, superfluous or out of date in the catalog."""
        return self.missing + self.excess + self.outdated


@dataclass(slots=True)
class Completeness:
    """The catalog compared with the disk. Memory follows the number of types, not of names."""

    types: dict[str, TypeTally] = field(default_factory=dict)

    def of(self, type_normalized: str) -> TypeTally:
        """Return the tally of one type."""
        return self.types.setdefault(type_normalized, TypeTally())

    def total(self, member: str) -> int:
        """Return the sum of one member over all types."""
        return sum(getattr(tally, member) for tally in self.types.values())

    def to_json(self) -> dict[str, Any]:
        """Return the finding as a document of its own."""
        return {
            "diskRecords": self.total("disk"),
            "catalogRecords": self.total("catalog"),
            "shortfalls": self._types("missing"),
            "excess": self._types("excess"),
            "outdated": self._types("outdated"),
        }

    def _types(self, member: str) -> list[dict[str, Any]]:
        return [
            {"typeNormalized": name, "diskRecords": tally.disk, "catalogRecords": tally.catalog}
            for name, tally in sorted(self.types.items())
            if getattr(tally, member)
        ]


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that was found; `completeness` is None if the data could not be looked at."""

    findings: tuple[Finding, ...]
    completeness: Completeness | None = None
    datastore_type: str = FILESYSTEM

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong, or not any more."""
        return all(finding.ok for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        """Return the result document of `doctor`."""
        compared = self.completeness
        return {
            "overallStatus": "pass" if self.ok else "fail",
            "datastoreType": self.datastore_type,
            "healthFindings": [finding.to_json() for finding in self.findings],
            "catalogCompletenessFinding": None if compared is None else compared.to_json(),
        }
