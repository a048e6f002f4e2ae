"""Ways to damage a bucket that is a directory, each with what a verification must find.

A damage is done to a spot of its own: a data name, or for some a model, that no other one touches.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from swampstore.index.partitions import META_KEY, MONOLITH_KEY, partition_of, shard_key
from swampstore.pipeline.verify import kinds

Found = set[tuple[str, str]]


class Spot(NamedTuple):
    """A version of a data name; `twin` is another name of the model with the same content."""

    model: str
    name: str
    version: int

    @property
    def name_rel(self) -> str:
        return f"data/{self.model}/{self.name}"

    def rel(self, file: str) -> str:
        return f"{self.name_rel}/{self.version}/{file}"

    @property
    def shard(self) -> str:
        return shard_key(partition_of(self.rel("raw")))


class Bucket:
    """The files of a bucket, and its index as any program could edit it."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def version(self) -> int:
        return int(self.document(META_KEY)["version"])

    def document(self, rel: str) -> Any:
        return json.loads((self.root / rel).read_bytes())

    def put_document(self, rel: str, document: Any) -> None:
        text = json.dumps(document, separators=(",", ":"), ensure_ascii=False)
        self.put(rel, text.encode())

    def put(self, rel: str, data: bytes) -> None:
        """Write an object as another program does: beside, and then in its place."""
        path = self.root / rel
        path.parent.mkdir(parents=True, exist_ok=True)
        temp = path.with_name(f"{path.name}.new")
        temp.write_bytes(data)
        temp.replace(path)

    def get(self, rel: str) -> bytes:
        return (self.root / rel).read_bytes()

    def remove(self, rel: str) -> None:
        (self.root / rel).unlink()

    def payload(self) -> dict[str, bytes]:
        """Return every file that is data."""
        tops = (path for path in self.root.iterdir() if path.name[0] not in "._")
        files = (path for top in tops for path in top.rglob("*") if path.is_file())
        return {
            str(path.relative_to(self.root)): path.read_bytes()
            for path in files
            if path.name != ".lock"
        }

    def homes(self, rel: str) -> list[str]:
        """Return the documents that have the entry of a path."""
        shard = shard_key(partition_of(rel))
        return [shard] if self.version == 2 else [MONOLITH_KEY, shard]

    def edit(self, rel: str, change: Callable[[dict[str, Any]], None]) -> None:
        """Change the entries of the documents that have the entry of a path."""
        for home in self.homes(rel):
            document = self.document(home)
            change(document["entries"])
            self.put_document(home, document)

    def commit(self, rel: str, data: bytes) -> None:
        """Replace an object and its entry, so that both agree."""

        def change(entries: dict[str, Any]) -> None:
            entries[rel] |= {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}

        self.put(rel, data)
        self.edit(rel, change)

    def forget(self, rel: str) -> None:
        """Remove an object and its entry."""
        self.remove(rel)
        self.edit(rel, lambda entries: entries.pop(rel))

    def unlist(self, partition: str) -> None:
        meta = self.document(META_KEY)
        meta["partitions"].remove(partition)
        self.put_document(META_KEY, meta)


Damage = Callable[[Bucket, Spot, random.Random], Found]


def _flipped(data: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


# Objects ---------------------------------------------------------------------------------------


def missing_object(bucket: Bucket, spot: Spot, chance: random.Random) -> Found:
    rel = spot.rel(chance.choice(["raw", "metadata.yaml"]))
    bucket.remove(rel)
    return {(kinds.MISSING_OBJECT, rel)}


def corrupt_content(bucket: Bucket, spot: Spot, chance: random.Random) -> Found:
    rel = spot.rel("raw")
    bucket.put(rel, _flipped(bucket.get(rel), chance))
    return {(kinds.CORRUPT, rel)}


def corrupt_metadata(bucket: Bucket, spot: Spot, chance: random.Random) -> Found:
    rel = spot.rel("metadata.yaml")
    bucket.put(rel, _flipped(bucket.get(rel), chance))
    return {(kinds.CORRUPT, rel)}


def corrupt_marker(bucket: Bucket, spot: Spot, chance: random.Random) -> Found:
    rel = f"{spot.name_rel}/latest"
    bucket.put(rel, chance.choice([b"1", b"7", b"-"]))
    return {(kinds.CORRUPT, rel)}


def truncated(bucket: Bucket, spot: Spot, chance: random.Random) -> Found:
    rel = spot.rel("raw")
    data = bucket.get(rel)
    bucket.put(rel, data[: chance.randrange(len(data))])
    return {(kinds.TRUNCATED, rel)}


def wrong_size(bucket: Bucket, spot: Spot, chance: random.Random) -> Found:
    rel = spot.rel(chance.choice(["raw", "metadata.yaml"]))
    bucket.put(rel, bucket.get(rel) + b"#")
    return {(kinds.WRONG_SIZE, rel)}


def orphaned_version(bucket: Bucket, spot: Spot, chance: random.Random) -> Found:
    rels = {spot.rel("raw"), spot.rel("metadata.yaml")}
    for rel in rels:
        bucket.edit(rel, lambda entries, rel=rel: entries.pop(rel))  # type: ignore[misc]
    return {(kinds.ORPHAN, rel) for rel in rels}


def orphaned_file(bucket: Bucket, spot: Spot, chance: random.Random) -> Found:
    rel = f"files/stray-{chance.randrange(1000)}.bin"
    bucket.put(rel, b"nobody knows")
    return {(kinds.ORPHAN, rel)}


# Versions --------------------------------------------------------------------------------------


def undecodable_metadata(bucket: Bucket, spot: Spot, chance: random.Random) -> Found:
    rel = spot.rel("metadata.yaml")
    bucket.commit(rel, chance.choice([b"{", b"version: one\n", b"\xff\xfe"]))
    return {(kinds.UNDECODABLE_METADATA, rel)}


def foreign_metadata(bucket: Bucket, spot: Spot, chance: random.Random) -> Found:
    rel = spot.rel("metadata.yaml")
    other = bucket.get(spot._replace(version=spot.version + 1).rel("metadata.yaml"))
    bucket.commit(rel, other)
    return {(kinds.FOREIGN_METADATA, rel)}


def checksum_mismatch(bucket: Bucket, spot: Spot, chance: random.Random) -> Found:
    rel = spot.rel("raw")
    bucket.commit(rel, _flipped(bucket.get(rel), chance))
    return {(kinds.CHECKSUM_MISMATCH, rel)}


def size_mismatch(bucket: Bucket, spot: Spot, chance: random.Random) -> Found:
    rel = spot.rel("raw")
    bucket.commit(rel, bucket.get(rel) + b"more")
    return {(kinds.SIZE_MISMATCH, rel)}


def missing_metadata(bucket: Bucket, spot: Spot, chance: random.Random) -> Found:
    bucket.forget(spot.rel("metadata.yaml"))
    return {(kinds.MISSING_METADATA, spot.rel("raw"))}


def missing_content(bucket: Bucket, spot: Spot, chance: random.Random) -> Found:
    bucket.forget(spot.rel("raw"))
    return {(kinds.MISSING_CONTENT, spot.rel("metadata.yaml"))}


def missing_latest(bucket: Bucket, spot: Spot, chance: random.Random) -> Found:
    bucket.forget(f"{spot.name_rel}/latest")
    return {(kinds.MISSING_LATEST, f"{spot.name_rel}/latest")}


def dangling_latest(bucket: Bucket, spot: Spot, chance: random.Random) -> Found:
    rel = f"{spot.name_rel}/latest"
    bucket.commit(rel, chance.choice([b"9", b"12345"]))
    return {(kinds.DANGLING_LATEST, rel)}


def nonsense_latest(bucket: Bucket, spot: Spot, chance: random.Random) -> Found:
    rel = f"{spot.name_rel}/latest"
    bucket.commit(rel, chance.choice([b"", b"newest", b"\x00"]))
    return {(kinds.DANGLING_LATEST, rel)}


# Entries ---------------------------------------------------------------------------------------


def undecodable_entry(bucket: Bucket, spot: Spot, chance: random.Random) -> Found:
    rel = spot.rel("raw")
    nonsense: list[Any] = [{"size": "large"}, {"key": rel}, 7, None]
    chosen = chance.choice(nonsense)
    bucket.edit(rel, lambda entries: entries.update({rel: chosen}))
    return {(kinds.UNDECODABLE_ENTRY, rel)}


def forbidden_entry(bucket: Bucket, spot: Spot, chance: random.Random) -> Found:
    evil = chance.choice(["../outside", "data/a/../../b", ".datastore.lock", "data/t/.lock"])
    entry = {"key": evil, "size": 3, "lastModified": "2026-06-01T10:00:00.000Z"}
    bucket.edit(spot.rel("raw"), lambda entries: entries.update({evil: entry}))
    return {(kinds.FORBIDDEN_ENTRY, evil)}


def duplicate_entry(bucket: Bucket, spot: Spot, chance: random.Random) -> Found:
    rel = spot.rel("raw")
    _put_astray(bucket, rel, bucket.document(spot.shard)["entries"][rel])
    return {(kinds.DUPLICATE_ENTRY, rel)}


def misplaced_entry(bucket: Bucket, spot: Spot, chance: random.Random) -> Found:
    rel = spot.rel("raw")
    document = bucket.document(spot.shard)
    _put_astray(bucket, rel, document["entries"].pop(rel))
    bucket.put_document(spot.shard, document)
    return {(kinds.MISPLACED_ENTRY, rel)}


def _put_astray(bucket: Bucket, rel: str, entry: Any) -> None:
    """Put an entry into the shard of the markers, where none of a version belongs."""
    shard = shard_key("data--t--u")
    document = bucket.document(shard)
    document["entries"][rel] = entry
    bucket.put_document(shard, document)


# Documents: the spot is the only one of its model ------------------------------------------------


def missing_shard(bucket: Bucket, spot: Spot, chance: random.Random) -> Found:
    bucket.remove(spot.shard)
    return {(kinds.MISSING_SHARD, spot.shard)}


def undecodable_shard(bucket: Bucket, spot: Spot, chance: random.Random) -> Found:
    data = bucket.get(spot.shard)
    bucket.put(spot.shard, chance.choice([b"", b"[]", data[: len(data) // 2]]))
    return {(kinds.UNDECODABLE_SHARD, spot.shard)}


def unlisted_shard(bucket: Bucket, spot: Spot, chance: random.Random) -> Found:
    bucket.unlist(partition_of(spot.rel("raw")))
    return {(kinds.UNLISTED_SHARD, spot.shard)}


def wrong_sequence(bucket: Bucket, spot: Spot, chance: random.Random) -> Found:
    document = bucket.document(spot.shard)
    document["entries"][spot.rel("raw")]["commitSeq"] = 1000 + chance.randrange(1000)
    bucket.put_document(spot.shard, document)
    return {(kinds.WRONG_SEQUENCE, spot.shard)}


def stale_shard(bucket: Bucket, spot: Spot, chance: random.Random) -> Found:
    document = bucket.document(spot.shard)
    del document["entries"][spot.rel(chance.choice(["raw", "metadata.yaml"]))]
    bucket.put_document(spot.shard, document)
    return {(kinds.STALE_SHARD, spot.shard)}


OF_NAMES: tuple[Damage, ...] = (
    missing_object,
    corrupt_content,
    corrupt_metadata,
    corrupt_marker,
    truncated,
    wrong_size,
    orphaned_version,
    orphaned_file,
    undecodable_metadata,
    foreign_metadata,
    checksum_mismatch,
    size_mismatch,
    missing_metadata,
    missing_content,
    missing_latest,
    dangling_latest,
    nonsense_latest,
    undecodable_entry,
    forbidden_entry,
)
OF_SHARDED: tuple[Damage, ...] = (duplicate_entry, misplaced_entry)
OF_MODELS: tuple[Damage, ...] = (missing_shard, undecodable_shard, unlisted_shard)
BY_VERSION: dict[int, tuple[tuple[Damage, ...], tuple[Damage, ...]]] = {
    1: (OF_NAMES, (*OF_MODELS, stale_shard)),
    2: ((*OF_NAMES, *OF_SHARDED), (*OF_MODELS, wrong_sequence)),
}


class Injected(NamedTuple):
    """What must be found, and the data names of which something may be lost."""

    found: Found
    touched: set[str]


def inject(bucket: Bucket, models: list[str], names: list[str], seed: int) -> Injected:
    """Do every kind of damage that the index can have, each at a random spot of its own."""
    chance = random.Random(seed)
    of_names, of_models = BY_VERSION[bucket.version]
    models = chance.sample(models, len(models))
    spots = _spots(models[len(of_models) :], names, chance)
    found: Found = set()
    touched = set()
    for damage, model in zip(of_models, models, strict=False):
        found |= damage(bucket, Spot(model, names[0], chance.choice([1, 2])), chance)
    for damage in chance.sample(of_names, len(of_names)):
        spot = next(spots)
        found |= damage(bucket, spot, chance)
        touched.add(spot.name_rel)
    return Injected(found, touched)


def _spots(models: list[str], names: list[str], chance: random.Random) -> Iterator[Spot]:
    every = [Spot(model, name, chance.choice([1, 2])) for model in models for name in names]
    return iter(chance.sample(every, len(every)))
