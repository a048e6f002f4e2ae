"""The memory that one push takes when the remote has a million files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import chain, groupby

import sample
from contestants import Machine, spent
from measuring import Line, Setting, say, seconds
from swampstore.files.signature import Signature
from swampstore.index.base import Base, Known
from swampstore.index.format import (
    Document,
    Entry,
    RawEntries,
    decode_shard,
    encode_entry,
    encode_monolith,
    encode_shard,
)
from swampstore.index.meta import Meta, decode_meta, encode_meta
from swampstore.index.partitions import META_KEY, MONOLITH_KEY, partition_of, shard_key
from swampstore.layout import METADATA, RAW, DataRef, ModelRef
from swampstore.stores.directory import DirectoryStore
from swampstore.stores.wrapper import Tally

LIMIT_MB = 200
MODELS = 50_000
# Six names for each model, one of which has two versions: twenty files.
_NAMES = 6
_MOMENT = "2026-05-14T08:00:00.000Z"
_HASH = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
_ENTRY = Entry(1500, _MOMENT, _HASH, local_mtime=_MOMENT, commit_seq=1)
_HELD = Signature(1500, 1, 1, 1)


def measure(setting: Setting) -> Iterator[Line]:
    """Make up the index of a remote and a base that agrees with it, then push one artifact."""
    shape = sample.Shape(setting.scaled(MODELS), _NAMES, versions=2, every=_NAMES)
    store = f"{setting.directory}/store"
    os.mkdir(store)
    machine = Machine.new(setting.directory, f"file://{store}")
    with machine.repo as repo:
        say(f"making up the index of {shape.models * 20:,} files")
        took = seconds(make_up, repo.connection.base, DirectoryStore(store, durable=False), shape)
        say(f"made up in {took:.0f} s")
        # Nobody would believe a cache that holds nothing at all.
        os.mkdir(repo.tree.path("data"))
        repo.sync.pull()
        repo.dirty.settle(repo.dirty.snapshot(), walked=True)
    script = f"{os.path.dirname(os.path.abspath(__file__))}/push_once.py"
    model = str(sample.model_ref(shape, shape.models // 2))
    done = subprocess.run(
        [sys.executable, script, f"{setting.directory}/repo", model],
        env=machine.environ,
        check=True,
        stdout=subprocess.PIPE,
    )
    cost = json.loads(done.stdout)
    yield Line(
        f"memory for a push of one artifact among {shape.models * 20:,} files, v2 index",
        cost["peak"] / 1e6,
        "MB",
        LIMIT_MB,
        f"peak RSS of the process, {cost['before'] / 1e6:.0f} MB of it before the push,"
        f" which took {cost['seconds']:.2f} s: {spent(Tally(*cost['tally']))}",
    )


def make_up(base: Base, store: DirectoryStore, shape: sample.Shape) -> None:
    """Write shards, their directory and the base; the files themselves are nowhere."""
    etags: dict[str, str] = {}
    models = (sample.model_ref(shape, model) for model in range(shape.models))
    # The models of one type share a shard, and no others.
    for _, of_a_type in groupby(models, key=lambda model: model.type):
        shards: dict[str, RawEntries] = {}
        known = []
        for rel in chain.from_iterable(_files(shape, model) for model in of_a_type):
            shards.setdefault(partition_of(rel), {})[rel] = encode_entry(rel, _ENTRY)
            known.append(Known(rel, _ENTRY.size, _ENTRY.sha256, _MOMENT, _HASH[:32], _HELD, 1))
        written = {one: _put(store, one, entries) for one, entries in shards.items()}
        base.apply(known=known, shards={(one, ""): etag for one, etag in written.items()})
        etags |= written
    meta = Meta(2, tuple(etags), commit_seq=1, shards=etags)
    store.put(META_KEY, encode_meta(meta, "made-up"))


def as_version_1(store: DirectoryStore) -> None:
    """Make an index of version 1 of a sharded one."""
    meta = decode_meta(store.get(META_KEY).data)
    fetched = {one: store.get(shard_key(one)) for one in meta.partitions}
    entries: RawEntries = {}
    for one in fetched.values():
        entries |= decode_shard(one.data).entries
    data = encode_monolith(Document(entries), _MOMENT, "made-up")
    monolith = store.put(MONOLITH_KEY, data).etag
    etags = {one: found.info.etag for one, found in fetched.items()}
    made = Meta(1, meta.partitions, shards=etags, monolith=monolith)
    store.put(META_KEY, encode_meta(made, "made-up"))


def _files(shape: sample.Shape, model: ModelRef) -> Iterator[str]:
    """Yield the paths of a model's files."""
    for number, name in enumerate(sample.names(shape)):
        ref = DataRef(model, name)
        for version in range(1, (shape.versions if number % shape.every == 0 else 1) + 1):
            yield f"{ref.rel}/{version}/{RAW}"
            yield f"{ref.rel}/{version}/{METADATA}"
        yield ref.latest_rel


def _put(store: DirectoryStore, partition: str, entries: RawEntries) -> str:
    return store.put(shard_key(partition), encode_shard(Document(entries))).etag
