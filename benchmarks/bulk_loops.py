"""What somebody would write without Spark: the same jobs as plain loops over the files."""

from __future__ import annotations

import glob
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from swampstore import open_repo
from swampstore.artifacts.metadata import decode
from swampstore.index.partitions import partition_of, shard_key


def verify(bucket: str) -> Callable[[], None]:
    """Return a loop that compares every file with what the shards say of it."""

    def loop() -> None:
        index: dict[str, tuple[int, str]] = {}
        for _, entries in _shards(bucket):
            for rel, entry in entries.items():
                index[rel] = entry["size"], entry["sha256"]
        for rel, data in _files(bucket):
            if rel.endswith("/metadata.yaml"):
                decode(data, rel)
            found = len(data), hashlib.sha256(data).hexdigest()
            assert index.pop(rel) == found
        assert not index

    return loop


def reindex(bucket: str) -> Callable[[], None]:
    """Return a loop that compares every file with its entry and puts all shards together again.

    Like the job itself it leaves entries that are right, and documents that would not change.
    """

    def loop() -> None:
        before, after = dict(_shards(bucket)), dict[str, dict[str, Any]]()
        for rel, data in _files(bucket):
            partition = partition_of(rel)
            sha256 = hashlib.sha256(data).hexdigest()
            entry = before.get(partition, {}).get(rel)
            if entry is None or (entry["size"], entry["sha256"]) != (len(data), sha256):
                entry = {"key": rel, "size": len(data), "sha256": sha256}
            after.setdefault(partition, {})[rel] = entry
        for partition, entries in after.items():
            if entries != before.get(partition):
                with open(f"{bucket}/{shard_key(partition)}", "w") as file:
                    json.dump({"version": 1, "entries": entries}, file)

    return loop


def hashing(bucket: str) -> Callable[[], None]:
    """Return a loop that only reads and hashes every file: less than any job has to do."""

    def loop() -> None:
        for _, data in _files(bucket):
            hashlib.sha256(data).hexdigest()

    return loop


def lose_catalog(repo_dir: str) -> None:
    """Remove a catalog, so that there is something to rebuild."""
    for path in glob.glob(f"{repo_dir}/.swamp/swampstore.db*"):
        os.unlink(path)


def catalog(repo_dir: str) -> Callable[[], None]:
    """Return the rebuild of a catalog by threads of this process."""

    def loop() -> None:
        lose_catalog(repo_dir)
        with open_repo(repo_dir, durable=False) as repo:
            repo.rebuild_catalog()

    return loop


def _shards(bucket: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for shard in os.scandir(f"{bucket}/_index"):
        with open(shard.path, "rb") as file:
            document = json.load(file)
        yield shard.name.removesuffix(".json"), document.get("entries", {})


def _files(bucket: str) -> Iterator[tuple[str, bytes]]:
    skipped = len(bucket) + 1
    for directory, _, names in os.walk(f"{bucket}/data"):
        for name in names:
            path = f"{directory}/{name}"
            with open(path, "rb") as file:
                yield path[skipped:], file.read()


LOOPS: Mapping[str, Callable[[str], Callable[[], None]]] = {
    "verify": verify,
    "reindex": reindex,
    "hashing": hashing,
    "catalog": catalog,
}
