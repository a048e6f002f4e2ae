"""The pieces of evidence that tasks exchange: what documents, listings and content say of a path.

Where a document is lost or damaged, the listing tells what belongs to it, as it does for every
reader. So the loss of a document is one thing that is wrong, and not one for each of its files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from swampstore.index.partitions import partition_of
from swampstore.index.path_kinds import is_surely_ours, unit_of
from swampstore.index.path_map import is_safe
from swampstore.index.removals import Notes
from swampstore.index.version import IndexVersion
from swampstore.index.versions import FIRST
from swampstore.layout import is_internal, is_plain
from swampstore.pipeline.running import packed, unpacked
from swampstore.pipeline.source.objects import Content
from swampstore.routing import Routing, keeps_apart
from swampstore.stores.protocol import ObjectInfo

if TYPE_CHECKING:
    import pyarrow as pa

# A row has some of the evidence about a unit: a data name, or a single other file. Its paths have
# much in common, so it is packed. A row without a unit sums up what a task has gathered.
ROWS = "place int, unit string, body binary"
# Of rows that a later run may find; one that does not know them reads anew.
ROWS_FORMAT = "packed"
# So much evidence is put together before it becomes rows.
_TOGETHER = 5_000


class Claim(msgspec.Struct, frozen=True, array_like=True, tag="c", gc=False):
    """An entry of a document; the monolith is the one without `partition`.

    `problem` says why the entry cannot be understood. `raw` is the entry as it is, if that was
    asked for.
    """

    partition: str | None
    size: int | None = None
    sha256: str | None = None
    last_modified: str | None = None
    commit_seq: int | None = None
    problem: str | None = None
    raw: bytes | None = None

    @property
    def content(self) -> tuple[object, ...]:
        """What two entries have in common that say the same."""
        return self.size, self.sha256, self.last_modified, self.problem


class Seen(msgspec.Struct, frozen=True, array_like=True, tag="s", gc=False):
    """An object in a listing, with its content if somebody has read it.

    `look` tells listings apart. The objects of an earlier one may be gone; their content is still
    good for objects of the same ETag.
    """

    look: int
    size: int
    etag: str
    last_modified: datetime
    internal: bool = False
    content: Content | None = None


class Summary(msgspec.Struct, frozen=True, array_like=True, tag="d", gc=False):
    """A document as a whole. `problem` says why nothing is known of its entries.

    `bytes` are those of all objects that it names, `highest` is the highest commit number of its
    entries, `written` that of the commit that wrote it. `nonsense` counts the entries that cannot
    be understood, `misplaced`, where that was asked for, those that no index may have there.
    """

    document: str
    partition: str | None
    entries: int = 0
    bytes: int = 0
    highest: int = 0
    written: int = 0
    problem: str | None = None
    nonsense: int = 0
    misplaced: int = 0

    def __add__(self, other: Summary) -> Summary:
        """Return the summary of two parts of a document."""
        return Summary(
            self.document,
            self.partition,
            self.entries + other.entries,
            self.bytes + other.bytes,
            max(self.highest, other.highest),
            max(self.written, other.written),
            self.problem or other.problem,
            self.nonsense + other.nonsense,
            self.misplaced + other.misplaced,
        )


class Total(msgspec.Struct, frozen=True, array_like=True, tag="t", gc=False):
    """How much was listed that is no bookkeeping, and how many of that were left to be read.

    `oldest` also counts what was not chosen.
    """

    objects: int = 0
    bytes: int = 0
    unread: int = 0
    oldest: datetime | None = None

    def __add__(self, other: Total) -> Total:
        times = [one for one in (self.oldest, other.oldest) if one is not None]
        return Total(
            self.objects + other.objects,
            self.bytes + other.bytes,
            self.unread + other.unread,
            min(times, default=None),
        )


class Compared(msgspec.Struct, frozen=True, array_like=True, tag="a", gc=False):
    """What a folder had in common with the shards of its paths.

    `homes` are those shards, with the number of their entries that belong into the folder. Of these
    the `agreeing` ones are what is there. `differing` are the paths that a plan is needed for, and
    the bytes of those which nobody has read. `moved` says why a shard could not be relied on.
    """

    folder: str
    is_deep: bool
    homes: dict[str, int]
    agreeing: int
    differing: Total
    moved: str | None = None


Item = tuple[str, Claim | Seen]
"""A path, and one thing that is said about it."""
Row = tuple[int, str | None, bytes]
_encode = msgspec.msgpack.Encoder().encode
_decode_items = msgspec.msgpack.Decoder(list[Item]).decode
_decode_sum = msgspec.msgpack.Decoder(Summary | Total | Compared).decode


def rows_of(place: int, items: Iterable[Item]) -> Iterator[Row]:
    """Yield the rows of some evidence; what is about one unit and comes together is one row.

    Spark takes as long for a row with one thing in it as for one with a hundred.
    """
    every = iter(items)
    while some := list(islice(every, _TOGETHER)):
        units: dict[str, list[Item]] = {}
        for item in some:
            units.setdefault(unit_of(item[0]), []).append(item)
        for unit, found in units.items():
            yield place, unit, packed(_encode(found))


def lone_row(place: int, *items: Item) -> Row:
    """Return a row about one path that stands for it alone, and not for its unit."""
    return place, items[0][0], packed(_encode(items))


def sum_row(place: int, body: Summary | Total | Compared) -> Row:
    """Return the row that sums up what one task has gathered."""
    return place, None, _encode(body)


def decoded_sum(data: bytes) -> Any:
    """Return what sums up the work of a task."""
    return _decode_sum(data)


class Path:
    """All the evidence about one path."""

    __slots__ = ("claims", "contents", "rel", "seen")

    def __init__(self, rel: str) -> None:
        self.rel = rel
        self.claims: list[Claim] = []
        self.seen: Seen | None = None
        self.contents: dict[str, Content] = {}

    def add(self, body: Claim | Seen, look: int) -> None:
        """Take a piece of evidence in; what is there is what the last look has seen."""
        if isinstance(body, Claim):
            self.claims.append(body)
            return
        if body.look == look:
            self.seen = body
        if body.content is not None:
            self.contents[body.etag] = body.content

    @property
    def content(self) -> Content | None:
        """What the object that is there holds, if somebody has read it."""
        return self.contents.get(self.seen.etag) if self.seen else None


def rows_in(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, str, list[Item]]]:
    """Yield the evidence that a task is given: place, unit, and what is said."""
    for batch in batches:
        columns = [column.to_pylist() for column in batch.columns]
        for place, unit, body in zip(*columns, strict=True):
            yield place, unit, _decode_items(unpacked(body))


def paths_in(
    batches: Iterable[pa.RecordBatch], look: int
) -> Iterator[tuple[int, str, dict[str, Path]]]:
    """Yield the evidence that a task is given: place, unit, and what is said of each path.

    All of it is in memory, but packed: only one unit is spread out at a time.
    """
    bodies: dict[tuple[int, str], list[bytes]] = {}
    for batch in batches:
        columns = [column.to_pylist() for column in batch.columns]
        for place, unit, body in zip(*columns, strict=True):
            bodies.setdefault((place, unit), []).append(body)
    while bodies:
        (place, unit), some = bodies.popitem()
        paths: dict[str, Path] = {}
        for body in some:
            for rel, one in _decode_items(unpacked(body)):
                path = paths.get(rel)
                if path is None:
                    path = paths[rel] = Path(rel)
                path.add(one, look)
        yield place, unit, paths


class TrustRules(NamedTuple):
    """How the evidence of a place is to be understood, as far as a task must know.

    `version` is that of the index, None without one. Whatever is there belongs to the place if it
    `is_assumed`, else what is of one of the `damaged` partitions, and with `shards` all that is of
    no such partition. What was written after `since` may belong to a push that is going on. `notes`
    tell what is left of deletions, `routing` what stays on its machine, as far as that is known.
    """

    version: IndexVersion | None
    is_assumed: bool
    damaged: frozenset[str]
    shards: frozenset[str] | None
    since: datetime
    notes: Notes = Notes()
    routing: Routing | None = None

    def truth(self, claims: Iterable[Claim]) -> list[Claim]:
        """Return the entries of the documents that count.

        Among them are shards that `_meta.json` does not tell of.
        """
        counts = (self.version or FIRST).counts
        return [one for one in claims if counts(one.partition)]

    def assumes(self, home: str) -> bool:
        """Whether an object of a partition belongs to the place, though no entry may tell."""
        if self.is_assumed or home in self.damaged:
            return True
        return self.shards is not None and home not in self.shards

    def keeps_apart(self, rel: str) -> bool:
        """Whether a path is not to be there: the settings keep it on its machine."""
        return keeps_apart(self.routing, rel)

    def removes(self, path: Path, sha256: str | None = None) -> bool:
        """Whether the object of a path, which no entry names, is left of a deletion.

        `sha256` is that of its content, if somebody has read it since.
        """
        seen = path.seen
        if seen is None or not self.notes.mention(path.rel):
            return False
        info = ObjectInfo(path.rel, seen.size, seen.etag, None, seen.last_modified)
        known = path.content.sha256 if path.content else None
        return self.notes.name(path.rel, info, sha256 or known)


class Entry(NamedTuple):
    """The entry of a path that is believed, and the shards that should not have one."""

    claim: Claim
    strays: tuple[str, ...] = ()
    is_assumed: bool = False

    @property
    def is_misplaced(self) -> bool:
        """Whether no shard has an entry but such that should not."""
        return self.claim.partition in self.strays


def believed(path: Path, trust: TrustRules) -> Entry | None:
    """Return the entry of a path, None if it has none; entries that may not be are not believed.

    If it belongs to a document which nobody can read, the entry is made up from the listing.
    """
    claims = trust.truth(path.claims)
    home = partition_of(path.rel)
    if claims and why_forbidden(path.rel) is None:
        if len(claims) == 1 and claims[0].partition in (None, home):
            return Entry(claims[0])  # as it nearly always is
        claims.sort(key=lambda one: one.partition or "")
        strays = tuple(one.partition for one in claims if one.partition not in (None, home))
        best = next((one for one in claims if one.partition in (None, home)), claims[0])
        return Entry(best, strays)
    seen = path.seen
    is_data = seen is not None and not seen.internal
    is_data = is_data and (bool(path.claims) or is_surely_ours(path.rel))
    if seen is not None and is_data and trust.assumes(home) and not trust.removes(path):
        return Entry(Claim(None, seen.size), is_assumed=True)
    return None


def why_forbidden(rel: str) -> str | None:
    """Return why no index may name a path, None if one may."""
    if is_plain(rel):
        return None
    if is_internal(rel):
        return "it names bookkeeping"
    return None if is_safe(rel) else "it leads out of the cache"
