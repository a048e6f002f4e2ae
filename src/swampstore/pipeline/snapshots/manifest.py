"""Which files a snapshot consists of, and which state of the index they were made from.

    _control/snapshots/artifacts/manifests/{number}.json    one for each snapshot, never changed
    _control/snapshots/artifacts/files/{id}.parquet         rows of the versions of some shards
    _control/snapshots/artifacts/files/{id}.markers.json    hashes of the markers of some shards

No client takes anything below `_control/` for data. Whoever creates the manifest with the next
number has committed; files that no manifest names mean nothing.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple

import msgspec

from swampstore.clock import from_iso
from swampstore.formats import NEWEST, refuse_newer, whole_number
from swampstore.index.path_map import Names
from swampstore.notices import notice
from swampstore.stores.errors import ObjectNotFoundError, PreconditionFailedError
from swampstore.stores.protocol import ObjectInfo, Store

SNAPSHOTS = "_control/snapshots/artifacts/"
MANIFESTS = f"{SNAPSHOTS}manifests/"
FILES = f"{SNAPSHOTS}files/"
FORMAT = NEWEST["snapshot"]
# A refresh that has not committed yet has files that no manifest names.
_LONGEST_REFRESH = timedelta(days=1)
_DIGITS = 12


class Bucket(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The part of a snapshot that is about some shards, those with the same number.

    `shards` have all their rows in the file `rows`, and had these ETags; rows of other shards may
    be in the file, and prove nothing about those. The file has `size` bytes, if that is known.
    `markers` is the file with the hashes of markers that the index documents with the ETags
    `marker_shards` gave. Where there is one document for all shards, `digest` stands for what it
    says of these, and `live` are the shards among them that have to be read from there.
    """

    number: int
    rows: str | None = None
    count: int = 0
    shards: dict[str, str] = {}
    markers: str | None = None
    marker_shards: dict[str, str] = {}
    digest: str | None = None
    live: list[str] = []
    size: int = 0

    @property
    def files(self) -> set[str]:
        """The names of its files."""
        return {one for one in (self.rows, self.markers) if one}


class Retired(msgspec.Struct, frozen=True):
    """A file that snapshots had until a time."""

    file: str
    at: str


class Moment(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A snapshot that was made: its number, the last commit it knows of, and when that was."""

    number: int
    created_at: str
    commit_seq: int | None = None


class Manifest(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One snapshot. `spread` is the number of buckets that shards are spread over by name.

    Times are those of the store. `monolith` is the ETag of the one document of the index, where it
    has one and all buckets were made from that. `history` are the snapshots that can still be
    read, oldest first, this one included.
    """

    version: int
    number: int
    created_at: str
    index_version: int
    spread: int
    buckets: list[Bucket]
    commit_seq: int | None = None
    origin: str | None = None
    monolith: str | None = None
    retired: list[Retired] = []
    history: list[Moment] = []

    @property
    def files(self) -> set[str]:
        """The names of all files that it needs."""
        return {file for bucket in self.buckets for file in bucket.files}

    @property
    def count(self) -> int:
        """How many rows there are in it."""
        return sum(bucket.count for bucket in self.buckets)

    @property
    def shards(self) -> dict[str, str]:
        """The fingerprints of all shards whose rows it has."""
        return {p: etag for bucket in self.buckets for p, etag in bucket.shards.items()}

    @property
    def marker_shards(self) -> dict[str, str]:
        """The fingerprints of all shards whose markers it knows."""
        return {p: etag for bucket in self.buckets for p, etag in bucket.marker_shards.items()}


class Kept(NamedTuple):
    """The newest snapshot of a place, if any, and the manifests that are there."""

    manifest: Manifest | None
    listed: Mapping[int, ObjectInfo]

    @property
    def next_number(self) -> int:
        """The number of the next snapshot; also after one that cannot be understood."""
        return max(self.listed, default=0) + 1


def bucket_of(partition: str, spread: int) -> int:
    """Return which of the buckets a shard is in.

    >>> bucket_of("data--aws--ec2--i-1", 8) == bucket_of("data--aws--ec2--i-1", 16) % 8
    True
    """
    return zlib.crc32(partition.encode()) % spread


@dataclass(frozen=True)
class Manifests:
    """The snapshots of one place."""

    store: Store
    names: Names

    def newest(self) -> Kept:
        """Find the newest snapshot: one listing, and one request if there is any.

        One that cannot be understood counts as none. Raises NewerFormatError.
        """
        listed = dict(self._listed())
        for number in sorted(listed, reverse=True)[:2]:  # the highest may just have been removed
            found = self.read(number)
            if found is not None:
                return Kept(found, listed)
        return Kept(None, listed)

    def read(self, number: int) -> Manifest | None:
        """Return a snapshot, None if it is gone or makes no sense."""
        key = self._key(number)
        try:
            return decode(self.store.get(key).data, key)
        except ObjectNotFoundError:
            return None
        except msgspec.MsgspecError as error:
            notice("%s cannot be understood and is not used: %s", key, error)
            return None

    def add(self, manifest: Manifest) -> bool:
        """Commit a snapshot; return False if somebody else has committed that number."""
        key, data = self._key(manifest.number), msgspec.json.encode(manifest)
        if not self.store.capabilities.conditional_create:
            # Then the later one stands. It is as good: it names files of its own making.
            self.store.put(key, data)
            return True
        try:
            self.store.put_if_absent(key, data)
        except PreconditionFailedError:
            return False
        return True

    def files(self) -> dict[str, ObjectInfo]:
        """Return all files that are there, by name, whether a snapshot names them or not."""
        root = self.names.remote(FILES)
        return {info.key.removeprefix(root): info for info in self.store.list(root)}

    def sweep(
        self,
        kept: Manifest,
        listed: Mapping[int, ObjectInfo],
        files: Mapping[str, ObjectInfo],
        expired: Collection[str] = (),
    ) -> int:
        """Delete what nobody can read any more; return how many objects that were.

        `kept` is the newest snapshot, committed after `listed` and `files` were seen. `expired` are
        the files that its predecessors had and that are past their time. What a refresh left
        behind that was killed goes when no refresh can have taken so long.
        """
        readable = {one.number for one in kept.history} | {kept.number}
        outdated = [one.key for number, one in listed.items() if number not in readable]
        in_use = kept.files | {one.file for one in kept.retired}
        now = from_iso(kept.created_at)
        for name, info in files.items():
            is_old = now - info.last_modified > _LONGEST_REFRESH
            if name not in in_use and (is_old or name in expired):
                outdated.append(info.key)
        for key in outdated:
            self.store.delete(key)
        return len(outdated)

    def key_of(self, file: str) -> str:
        """Return the key of a file of a snapshot."""
        return self.names.remote(f"{FILES}{file}")

    def _key(self, number: int) -> str:
        return self.names.remote(f"{MANIFESTS}{number:0{_DIGITS}}.json")

    def _listed(self) -> Iterator[tuple[int, ObjectInfo]]:
        for info in self.store.list(self.names.remote(MANIFESTS)):
            number = whole_number(info.key.rpartition("/")[2].removesuffix(".json"))
            if number is not None:
                yield number, info


def decode(data: bytes, what: str) -> Manifest:
    """Read a manifest; raise MsgspecError, NewerFormatError."""
    members = msgspec.json.decode(data, type=_Versioned)
    refuse_newer("snapshot", members.version, what)
    return msgspec.json.decode(data, type=Manifest)


class _Versioned(msgspec.Struct):
    version: int
