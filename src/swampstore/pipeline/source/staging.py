"""Where tasks leave the content of a job until the driver saves all of it, or none.

Below `_control/`, which takes part in no sync. Every attempt of a task writes under a name of its
own, so that one which is repeated, or runs twice, does no harm: what counts is what the driver is
told of. All of a job is removed by its name at the end.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import NamedTuple

from swampstore.files import disk_errors
from swampstore.pipeline.source.drafting import Drafted
from swampstore.stores.protocol import ObjectInfo, Store

STAGING = "_control/staging/"
# Nobody is going to finish a job that left something this long ago.
ABANDONED = timedelta(days=1)
_CHUNK = 32 << 20


class Chunk(NamedTuple):
    """An object with the content of some rows, one after the other."""

    key: str
    size: int
    sha256: str


class Staged(NamedTuple):
    """A version whose content is a part of a chunk; `row` is where it stood in its partition."""

    drafted: Drafted
    partition: int
    row: int
    key: str
    start: int
    end: int


class Batch(NamedTuple):
    """What one attempt of a task left."""

    rows: tuple[Staged, ...]
    chunks: tuple[Chunk, ...]


def stage(store: Store, job: str, partition: int, rows: Iterable[Drafted]) -> Batch:
    """Write the content of a partition's rows; memory holds about one chunk of it."""
    attempt = f"{STAGING}{job}/{partition}-{uuid.uuid4().hex}"
    staged: list[Staged] = []
    chunks: list[Chunk] = []
    held = bytearray()
    key = f"{attempt}/0"
    for number, drafted in enumerate(rows):
        if held and len(held) + len(drafted.content) > _CHUNK:
            chunks.append(_put(store, key, held))
            held, key = bytearray(), f"{attempt}/{len(chunks)}"
        start = len(held)
        held += drafted.content
        bare = drafted._replace(content=b"")
        staged.append(Staged(bare, partition, number, key, start, len(held)))
    if staged:
        chunks.append(_put(store, key, held))
    return Batch(tuple(staged), tuple(chunks))


def _put(store: Store, key: str, content: bytearray) -> Chunk:
    data = bytes(content)
    # Under a name that only this attempt has, so without a condition.
    store.put(key, data)
    return Chunk(key, len(data), hashlib.sha256(data).hexdigest())


class Contents:
    """The content of staged rows, brought to this machine."""

    def __init__(self, directory: str, files: dict[str, str]) -> None:
        self._directory = directory
        self._files = files

    def of(self, row: Staged) -> bytes:
        """Return the content of one row."""
        with disk_errors(self._directory), open(self._files[row.key], "rb") as file:
            file.seek(row.start)
            return file.read(row.end - row.start)


@contextmanager
def fetched(store: Store, batches: Iterable[Batch]) -> Iterator[Contents]:
    """Bring the content of all batches here, checked, for as long as the block runs."""
    with tempfile.TemporaryDirectory(prefix="swampstore-write-") as directory:
        files: dict[str, str] = {}
        for number, chunk in enumerate(chunk for batch in batches for chunk in batch.chunks):
            files[chunk.key] = os.path.join(directory, str(number))
            with disk_errors(directory), open(files[chunk.key], "wb") as file:
                store.download(chunk.key, file.fileno(), size=chunk.size, sha256=chunk.sha256)
        yield Contents(directory, files)


def sweep(store: Store, job: str) -> None:
    """Remove all that a job left, and what jobs left that are over since long."""
    jobs: dict[str, list[ObjectInfo]] = {}
    for info in store.list(STAGING):
        jobs.setdefault(info.key.removeprefix(STAGING).partition("/")[0], []).append(info)
    doomed = jobs.pop(job, [])
    if jobs:
        before = store.clock() - ABANDONED
        for objects in jobs.values():
            if max(info.last_modified for info in objects) < before:
                doomed += objects
    for info in doomed:
        store.delete(info.key)
