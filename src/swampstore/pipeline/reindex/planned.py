"""What an index made anew says about each path.

An entry that can be read is believed and stays as it is, byte for byte. Whether its object is what
it says is a matter of `verify`: an index that described damaged content would make it the truth,
and every machine would fetch it. What no entry tells of is hashed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from swampstore.artifacts.latest import parse_marker
from swampstore.clock import to_iso
from swampstore.index.format import Entry as IndexEntry
from swampstore.index.format import encode_entry
from swampstore.index.partitions import partition_of
from swampstore.index.path_kinds import is_marker, is_metadata, is_surely_ours, unit_of
from swampstore.layout import METADATA, RAW
from swampstore.pipeline.evidence.gathering import Task, as_listed, readable_content
from swampstore.pipeline.evidence.rows import Entry, Path, Seen, TrustRules, believed, paths_in
from swampstore.pipeline.metrics import NO_METRICS, Metrics
from swampstore.pipeline.places import Place
from swampstore.pipeline.planning import each
from swampstore.pipeline.running import packed, unpacked
from swampstore.pipeline.schemas import arrow_schema
from swampstore.pipeline.source.scan import batches
from swampstore.stores.errors import ObjectNotFoundError
from swampstore.stores.protocol import Store

if TYPE_CHECKING:
    import pyarrow as pa


# What becomes of some paths of a partition; the body has each path with its entry, if it gets one,
# and is packed.
PLANNED = "home string, fate string, count bigint, body binary"
# What becomes of a path.
KEPT = "kept"
HASHED = "hashed"
MADE = "made"
ADOPTED = "adopted"
CONTRADICTED = "contradicted"
DROPPED = "dropped"
WAITING = "waiting"
LEAVING = "leaving"
NAMED = (KEPT, HASHED, MADE, ADOPTED, CONTRADICTED)
# What gets an entry that it did not have.
NEW = (HASHED, MADE, ADOPTED)
_TOGETHER = 5_000


NewEntry = tuple[str, bytes | None]
_decode = msgspec.msgpack.Decoder(list[NewEntry]).decode


class Planned(NamedTuple):
    """What becomes of a path. Without `entry` the index does not name it."""

    rel: str
    fate: str
    entry: bytes | None = None


@dataclass(frozen=True, slots=True)
class Assumed:
    """Chooses the paths whose entries nobody can tell, and which therefore have to be hashed."""

    trust: TrustRules

    def __call__(self, rel: str) -> bool:
        """Whether a path is one of them."""
        return self.trust.assumes(partition_of(rel))


@dataclass(frozen=True, slots=True)
class Plan:
    """How one place is planned; it travels to the tasks.

    Entries that are written carry the `commit_seq`. What only one of the `hidden` shards says was
    never visible. An object that nobody names is entered if the plan `adopts` such, if it is where
    a datastore has any, and neither left of a deletion nor of half a version.
    """

    place: Place
    look: int
    trust: TrustRules
    hidden: frozenset[str]
    commit_seq: int | None
    adopts: bool
    rehash: bool

    def task(self) -> Task:
        """Return what a task does with all the evidence about some paths."""
        schema = arrow_schema(PLANNED)

        def work(incoming: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            found = paths_in(incoming, self.look)
            paths = (path for *_, unit in found for path in unit.values())
            with self.place.open() as store:
                yield from batches(self._rows(store, paths), schema)

        return work

    def _rows(self, store: Store, paths: Iterable[Path]) -> Iterator[tuple[Any, ...]]:
        plans = self.planned(store, paths)
        while some := list(islice(plans, _TOGETHER)):
            groups: dict[tuple[str, str], list[NewEntry]] = {}
            for one in some:
                key = partition_of(one.rel), one.fate
                groups.setdefault(key, []).append((one.rel, one.entry))
            for (home, fate), entries in groups.items():
                yield home, fate, len(entries), packed(msgspec.msgpack.encode(entries))

    def planned(self, store: Store, paths: Iterable[Path]) -> Iterator[Planned]:
        """Plan some paths; what has to be hashed, and was not, is read."""
        unread: list[tuple[Path, Entry | None, str]] = []
        for path in paths:
            entry = believed(path, self.trust)
            fate = self._fate(path, entry)
            if fate is None:
                continue
            if fate not in NEW and not (fate == KEPT and self.rehash):
                yield _as_it_is(path, entry, fate)
            elif (content := path.content) is not None and not _is_untold(path, fate):
                yield self._settled(path, entry, fate, content.sha256)
            else:
                unread.append((path, entry, fate))

        def settled(one: tuple[Path, Entry | None, str]) -> Planned:
            path, entry, fate = one
            assert path.seen is not None
            since = self.trust.since if fate == ADOPTED else None
            if _is_untold(path, fate) and not self._is_complete(store, path.rel, since):
                return Planned(path.rel, WAITING)
            content = path.content
            if content is None:
                listed = as_listed(self.place, path.rel, path.seen)
                content = readable_content(store, listed, described=False)
            return self._settled(path, entry, fate, content.sha256 if content else None)

        for _, plan in each(self.place, settled, unread):
            yield plan

    def _is_complete(self, store: Store, rel: str, since: datetime | None) -> bool:
        """Whether what a path tells of is stored as well, and is not younger than `since`.

        Metadata is sent before its content: what a push left that was killed in between must not
        be shown to others as a version, nor the marker that names it.
        """
        key = self.place.names().remote
        if is_marker(rel):
            try:
                number = parse_marker(store.get(key(rel)).data)
            except ObjectNotFoundError:
                return False
            metadata = f"{unit_of(rel)}/{number}/{METADATA}"
            is_whole = _is_stored(store, key(metadata), since)
            return is_whole and self._is_complete(store, metadata, since)
        if not is_metadata(rel):
            return True
        raw = f"{rel.removesuffix(METADATA)}{RAW}"
        return self.trust.keeps_apart(raw) or _is_stored(store, key(raw), since)

    def _fate(self, path: Path, entry: Entry | None) -> str | None:
        """Return what becomes of a path before anything is hashed, None for bookkeeping."""
        seen = None if path.seen is None or path.seen.internal else path.seen
        if entry is not None:
            return self._fate_of_entry(entry, seen)
        if seen is None:
            return None
        if self.trust.removes(path):
            return LEAVING
        is_old = self.adopts and seen.last_modified <= self.trust.since
        return ADOPTED if is_old and is_surely_ours(path.rel) else WAITING

    def _fate_of_entry(self, entry: Entry, seen: Seen | None) -> str:
        claim = entry.claim
        if seen is None:
            is_worthless = claim.problem is not None or claim.partition in self.hidden
            return DROPPED if is_worthless else CONTRADICTED
        if entry.is_assumed or claim.problem is not None:
            return MADE
        if seen.size != claim.size:
            return CONTRADICTED
        return HASHED if claim.sha256 is None else KEPT

    def _settled(self, path: Path, entry: Entry | None, fate: str, sha256: str | None) -> Planned:
        """Return what becomes of a path after it was hashed, or could not be."""
        assert path.seen is not None
        is_unnamed = entry is None or entry.is_assumed
        if is_unnamed and self.trust.removes(path, sha256):
            return Planned(path.rel, LEAVING)
        if fate == KEPT:
            assert entry is not None
            is_right = sha256 is None or sha256 == entry.claim.sha256
            return _as_it_is(path, entry, KEPT if is_right else CONTRADICTED)
        if sha256 is None:
            return _as_it_is(path, entry, CONTRADICTED if fate == HASHED else DROPPED)
        if fate == MADE and (proven := _proven(path, sha256)) is not None:
            return Planned(path.rel, KEPT, proven)
        modified = to_iso(path.seen.last_modified)
        new = IndexEntry(path.seen.size, modified, sha256, commit_seq=self.commit_seq)
        raw = entry.claim.raw if entry else None
        onto = None if raw is None else msgspec.Raw(raw)
        return Planned(path.rel, fate, bytes(encode_entry(path.rel, new, onto=onto)))


def _is_untold(path: Path, fate: str) -> bool:
    """Whether nothing but its object speaks for a path, so that it may be half of a version."""
    return fate == ADOPTED or (fate == MADE and not path.claims)


def _is_stored(store: Store, key: str, since: datetime | None) -> bool:
    """Whether there is an object, which may not be younger."""
    try:
        info = store.head(key)
    except ObjectNotFoundError:
        return False
    return since is None or info.last_modified <= since


def entries_in(body: bytes) -> list[NewEntry]:
    """Return the paths of a planned row, and their entries."""
    return _decode(unpacked(body))


def _as_it_is(path: Path, entry: Entry | None, fate: str) -> Planned:
    is_named = fate in (KEPT, CONTRADICTED)
    return Planned(path.rel, fate, entry.claim.raw if entry and is_named else None)


def _proven(path: Path, sha256: str) -> bytes | None:
    """Return what any document, whether it counts or not, says rightly about a path."""
    assert path.seen is not None
    said = [
        one
        for one in path.claims
        if one.problem is None and one.sha256 == sha256 and one.size == path.seen.size
    ]
    best = max(said, key=lambda one: one.last_modified or "", default=None)
    return best.raw if best else None


def _joined(one: Any, other: Any) -> Any:
    return one + other if isinstance(one, list) else one.unionByName(other)


@dataclass(frozen=True, slots=True)
class Reindexed:
    """What became of the entries, and which documents were written.

    `kept` entries are as they were, `made` and `hashed` ones were hashed, `adopted` are objects
    that no entry named. `contradicted` entries stay, though their object is missing or another
    one: `verify` tells more. `waiting` objects are too young to be anything but a push, are half of
    a version, or of something else. `leaving` are left of deletions, and are removed by whoever
    finishes those.
    `findings` is a table of all but the kept ones, None if there are none; a list if this process
    did it. `metrics` tell what was asked of the stores.
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
    metrics: Metrics = NO_METRICS
    findings: Any = field(default=None, repr=False, compare=False)  # pyspark is not typed here

    def __add__(self, other: Reindexed) -> Reindexed:
        sums = {name: getattr(self, name) + getattr(other, name) for name in _SUMS}
        findings = self.findings
        if other.findings is not None:
            is_first = findings is None
            findings = other.findings if is_first else _joined(findings, other.findings)
        return Reindexed(**sums, dry_run=self.dry_run or other.dry_run, findings=findings)

    @property
    def entries(self) -> int:
        """How many paths the indexes name."""
        return self.kept + self.hashed + self.made + self.adopted + self.contradicted

    def to_json(self) -> dict[str, Any]:
        """Return the members of the result document."""
        members = {name: getattr(self, name) for name in _SUMS}
        seconds = round(self.seconds, 3)
        return {
            "dryRun": self.dry_run,
            **members,
            "entries": self.entries,
            "metrics": self.metrics.to_json(),
            "seconds": seconds,
        }


_OTHERS = ("dry_run", "findings", "metrics")
_SUMS = tuple(one.name for one in fields(Reindexed) if one.name not in _OTHERS)
