"""Writing shards inside Spark tasks; a task that is tried again finds its own work done."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from swampstore.pipeline.evidence.gathering import Task, arrow_schema
from swampstore.pipeline.places import Place
from swampstore.pipeline.reindex.planned import entries_in
from swampstore.stores.errors import ObjectNotFoundError, PreconditionFailedError
from swampstore.stores.protocol import Store, Written
from swampstore.sync.errors import IndexDamagedError
from swampstore.sync.index_format import Document, RawEntries, decode_shard, encode_shard
from swampstore.sync.partitions import shard_key
from swampstore.sync.remote.merging import attempts, index_moved

if TYPE_CHECKING:
    import pyarrow as pa

WRITTEN = "partition string, etag string, token string, is_written boolean, error string"


class Current(NamedTuple):
    """A shard as it is on the store: without `etag` there is none, without `doc` no whole one."""

    doc: Document | None = None
    etag: str | None = None
    token: str | None = None


def merged(current: RawEntries, wanted: RawEntries) -> RawEntries:
    """Return the wanted entries in the order of the current ones, then the new ones."""
    kept = {rel: wanted[rel] for rel in current if rel in wanted}
    return kept | {rel: raw for rel, raw in sorted(wanted.items()) if rel not in kept}


def read_shard(store: Store, key: str) -> Current:
    """Return a shard with every entry that it has."""
    try:
        info, data = store.get(key)
    except ObjectNotFoundError:
        return Current()
    try:
        return Current(decode_shard(data), info.etag, info.token)
    except IndexDamagedError:
        return Current(None, info.etag, info.token)


def write_shard(
    place: Place,
    store: Store,
    partition: str,
    wanted: RawEntries,
    expected: str | None,
    commit_seq: int | None = None,
) -> tuple[str, str, bool]:
    """Make a shard hold these entries; return its ETag, its token and whether it was written.

    `commit_seq` is the commit that writes it on version 2. `expected` is the ETag that it had when
    the entries were settled. Raises IndexMovedError if somebody wrote another one since.
    """
    key = place.names().remote(shard_key(partition))
    for _ in attempts(()):
        now = read_shard(store, key)
        if now.doc is not None and now.doc.entries == wanted:
            assert now.etag is not None
            return now.etag, now.token or "", False
        if now.etag != expected:
            raise index_moved(f"somebody else wrote {key}", ())
        current = now.doc or Document({})
        document = current.holding(merged(current.entries, wanted))
        data = encode_shard(document.written_by(commit_seq) if commit_seq else document)
        try:
            written = _put(store, key, data, now.token)
        except PreconditionFailedError:
            continue  # perhaps a twin of this task, whose shard is as good
        return written.etag, written.token, True
    raise AssertionError  # attempts() ends with an error


def _put(store: Store, key: str, data: bytes, token: str | None) -> Written:
    able = store.capabilities
    if token is None and able.conditional_create:
        return store.put_if_absent(key, data)
    if token is not None and able.conditional_update:
        return store.put_if_match(key, data, token)
    return store.put(key, data)


def shard_writer(place: Place, expected: Mapping[str, str], commit_seq: int | None) -> Task:
    """Return what a task does with planned rows, which come sorted by partition."""
    schema = arrow_schema(WRITTEN)

    def write(incoming: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        rows = (row for batch in incoming for row in zip(*_columns(batch), strict=True))
        with place.open() as store:
            for partition, group in groupby(rows, key=itemgetter(0)):
                wanted = wanted_in(body for _, body in group)
                found = expected.get(partition)
                answer = _answer(place, store, partition, wanted, found, commit_seq)
                yield pa.RecordBatch.from_pylist([answer], schema=schema)

    return write


def wanted_in(bodies: Iterable[bytes]) -> RawEntries:
    """Return the entries of planned rows, sorted."""
    import msgspec

    pairs = sorted(pair for body in bodies for pair in entries_in(body))
    return {rel: msgspec.Raw(entry) for rel, entry in pairs if entry is not None}


def _columns(batch: pa.RecordBatch) -> list[list[Any]]:
    return [batch.column(name).to_pylist() for name in ("home", "body")]


def _answer(
    place: Place,
    store: Store,
    partition: str,
    wanted: RawEntries,
    expected: str | None,
    commit_seq: int | None,
) -> dict[str, Any]:
    from swampstore.sync.errors import IndexMovedError

    try:
        etag, token, is_written = write_shard(place, store, partition, wanted, expected, commit_seq)
    except IndexMovedError as error:
        return {"partition": partition, "error": error.message}
    return {"partition": partition, "etag": etag, "token": token, "is_written": is_written}
