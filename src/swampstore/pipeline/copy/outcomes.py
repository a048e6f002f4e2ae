"""What a copy is asked to bring over, what can become of it, and what it did in sum."""

from __future__ import annotations

import hashlib
import pickle
import sqlite3
import weakref
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from swampstore.index.errors import IndexDamagedError
from swampstore.index.format import Entry, decode_entry
from swampstore.index.path_kinds import is_derived, is_marker
from swampstore.pipeline import schemas
from swampstore.pipeline.metrics import NO_METRICS, Metrics
from swampstore.pipeline.places import Place

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


# What findings are called.
CORRUPT = "corrupt-at-source"
MISSING = "missing-at-source"
CHANGED = "changed-at-source"
OVERTAKEN = "changed-at-target"
CONFLICT = "conflict"
HELD_BACK = "held-back"
NOT_KEPT = "not-kept-by-target"
FORBIDDEN = "forbidden"
DAMAGED = "damaged-index"

# Somebody may just have been writing there: another look may show something else.
MAY_PASS = frozenset({CORRUPT, MISSING, CHANGED, OVERTAKEN, HELD_BACK})

# The member of an index entry that tells which content of which place an object was copied from.
SEAL = "copyOf"
SEAL_DIGITS = 24
_members = msgspec.json.Decoder(dict[str, msgspec.Raw])


class Wanted(NamedTuple):
    """An object of the source that the target does not have, or has otherwise.

    `raw` is the entry of the source's index; without an index there is none, and `etag` is what
    the listing saw. `there` is the entry of the target's index, None if it has none.
    """

    rel: str
    size: int
    sha256: str | None
    last_modified: str
    local_mtime: str | None
    raw: bytes | None
    etag: str | None
    there: bytes | None

    @property
    def revision(self) -> tuple[bytes | None, str | None, bytes | None]:
        """What differs as soon as one of the two sides says something else about the object."""
        return self.raw, self.etag, self.there


class Placed(NamedTuple):
    """The target has the object now, with this `etag`, checked; `entry` is not in its index yet.

    It `is_met` if it was there, with this very content, before the task began: others may be about
    to delete it.
    """

    wanted: Wanted
    entry: Entry
    etag: str
    is_met: bool = False


class Left(NamedTuple):
    """There is nothing to do: the target has this content, or a marker that is further on."""

    wanted: Wanted


class Refused(NamedTuple):
    """The object was not copied; nothing at the target was touched."""

    wanted: Wanted
    kind: str
    detail: str


Outcome = Placed | Left | Refused


class Refusals:
    """What was not copied, by path. It may be everything, so it is in a file if it is much."""

    def __init__(self) -> None:
        # A database without a name is in memory until it gets too large for that.
        # Whichever thread collects the garbage closes it.
        self._database = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        weakref.finalize(self, self._database.close)
        self._database.execute("PRAGMA journal_mode = OFF")
        self._database.execute(
            "CREATE TABLE refused (rel TEXT PRIMARY KEY, kind TEXT, refused BLOB) WITHOUT ROWID"
        )

    def note(self, refused: Iterable[Refused]) -> None:
        """Note what was refused; of a path only the last time counts."""
        self._database.executemany(
            "INSERT OR REPLACE INTO refused VALUES (?, ?, ?)",
            ((one.wanted.rel, one.kind, pickle.dumps(one)) for one in refused),
        )

    def of(self, wanted: Wanted) -> Refused | None:
        """Return what was refused of a path, None if nothing was."""
        sql = "SELECT refused FROM refused WHERE rel = ?"
        found = self._database.execute(sql, (wanted.rel,)).fetchone()
        return None if found is None else pickle.loads(found[0])  # noqa: S301 - our own

    @property
    def kinds(self) -> set[str]:
        """What findings about them are called."""
        return {kind for (kind,) in self._database.execute("SELECT DISTINCT kind FROM refused")}

    def __iter__(self) -> Iterator[Refused]:
        for (found,) in self._database.execute("SELECT refused FROM refused ORDER BY rel"):
            yield pickle.loads(found)  # noqa: S301 - our own


def entry_there(wanted: Wanted) -> Entry | None:
    """Return what the target's index says of the path, None if nothing that can be understood."""
    try:
        return None if wanted.there is None else decode_entry(wanted.rel, wanted.there)
    except IndexDamagedError:
        return None


def is_known_conflict(wanted: Wanted, source: Place) -> bool:
    """Whether the two indexes alone show that the target has something else, which stays."""
    there = entry_there(wanted)
    if there is None or may_replace(wanted, there.sha256, source):
        return False
    if wanted.sha256 is not None and there.sha256 is not None:
        return wanted.sha256 != there.sha256
    return wanted.size != there.size


def may_replace(wanted: Wanted, sha256: str | None, source: Place) -> bool:
    """Whether content of the target with this hash may make room for that of the source.

    A marker may, which is for the numbers to decide, and what any machine can compute again. Else
    only what was copied from this very source, and nobody has changed since.
    """
    if is_marker(wanted.rel) or is_derived(wanted.rel):
        return True
    if wanted.there is None or sha256 is None:
        return False
    there = entry_there(wanted)
    if there is None or there.sha256 != sha256:
        return False
    return _members.decode(wanted.there).get(SEAL) == _seal(source, sha256)


def sealed(wanted: Wanted, sha256: str, source: Place) -> bytes:
    """Return the members of the source's entry, with the one that tells where it is from."""
    members = _members.decode(wanted.raw) if wanted.raw is not None else {}
    return msgspec.json.encode(members | {SEAL: _seal(source, sha256)})


def _seal(source: Place, sha256: str) -> msgspec.Raw:
    digest = hashlib.sha256(f"{source}\n{sha256}".encode()).hexdigest()[:SEAL_DIGITS]
    return msgspec.Raw(msgspec.json.encode(digest))


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

    def to_row(self) -> dict[str, Any]:
        """Return it as a row of the table of findings."""
        return {**self._asdict(), "severity": self.severity, "repaired": False}


@dataclass(frozen=True, slots=True)
class Copied:
    """What a copy did; with `dry_run`, what it would do.

    `present` is how many objects the target had already. `findings` tell what was not copied,
    `metrics` what was asked of both stores.
    """

    dry_run: bool
    objects: int = 0
    bytes: int = 0
    present: int = 0
    commits: int = 0
    findings: Collection[Finding] = ()
    namespaces: tuple[tuple[str, str], ...] = ()
    seconds: float = 0.0
    metrics: Metrics = NO_METRICS

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
            "metrics": self.metrics.to_json(),
            "seconds": round(self.seconds, 3),
        }


def findings_table(spark: SparkSession, copied: Copied) -> DataFrame:
    """Return the findings of a copy as a table."""
    rows = [(*finding, finding.severity, False) for finding in copied.findings]
    return spark.createDataFrame(rows, schemas.FINDINGS)
