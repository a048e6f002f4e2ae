"""What somebody would write without Spark: the same jobs as plain loops over the files."""

from __future__ import annotations

import glob
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping

from swampstore import open_repo
from swampstore.artifacts.metadata import decode
from swampstore.index.format import Entry, encode_entry
from swampstore.index.partitions import partition_of


def verify(bucket: str) -> Callable[[], None]:
    """Return a loop that compares every file with what the shards say of it."""

    def loop() -> None:
        index: dict[str, tuple[int, str]] = {}
        for shard in os.scandir(f"{bucket}/_index"):
            with open(shard.path, "rb") as file:
                document = json.load(file)
            for rel, entry in document.get("entries", {}).items():
                index[rel] = entry["size"], entry["sha256"]
        for rel, data in _files(bucket):
            if rel.endswith("/metadata.yaml"):
                decode(data, rel)
            found = len(data), hashlib.sha256(data).hexdigest()
            assert index.pop(rel) == found
        assert not index

    return loop


def reindex(bucket: str) -> Callable[[], None]:
    """Return a loop that hashes every file and puts the entries of each shard together."""

    def loop() -> None:
        shards: dict[str, dict[str, bytes]] = {}
        for rel, data in _files(bucket):
            entry = Entry(len(data), "2026-01-01T00:00:00.000Z", hashlib.sha256(data).hexdigest())
            shards.setdefault(partition_of(rel), {})[rel] = encode_entry(rel, entry)
        assert shards

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
    "catalog": catalog,
}
