"""Writing the documents of an index that was planned: shards in tasks, `_meta.json` last."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from swampstore.clock import system_clock
from swampstore.index.changes import attempts, index_moved, new_write_id
from swampstore.index.documents import Documents
from swampstore.index.errors import IndexMovedError
from swampstore.index.format import (
    Document,
    RawEntries,
    encode_shard,
    merged,
)
from swampstore.index.partitions import META_KEY, shard_key
from swampstore.index.results import Progress, no_progress
from swampstore.index.version import Rebuild
from swampstore.pipeline.evidence.gathering import Task
from swampstore.pipeline.evidence.index_state import IndexState
from swampstore.pipeline.places import Place
from swampstore.pipeline.planning import tasks_for
from swampstore.pipeline.quarantine import Quarantine
from swampstore.pipeline.reindex.planned import entries_in
from swampstore.pipeline.running import attentively, collected, watched
from swampstore.pipeline.schemas import arrow_schema
from swampstore.stores.errors import PreconditionFailedError
from swampstore.stores.protocol import Store, Written

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

CONCURRENCY = 10
WRITTEN = "partition string, etag string, token string, is_written boolean, error string"


def write_shard(
    place: Place,
    store: Store,
    partition: str,
    wanted: RawEntries,
    expected: str | None,
    commit_seq: int | None = None,
    *,
    dry_run: bool = False,
    adds: bool = False,
) -> tuple[str, str, bool]:
    """Make a shard hold these entries; return its ETag, its token and whether it was written.

    With `dry_run` only find out whether it would be. What else it holds stays if this `adds`.
    `commit_seq` is the commit that writes it, if commits are counted. `expected` is the ETag that
    it had when the entries were settled. Raises IndexMovedError if somebody wrote another one.
    """
    documents = Documents(store, place.names(), CONCURRENCY)
    for _ in attempts(()):
        now = documents.shard_as_it_is(partition)
        if adds and now.doc is not None:
            wanted = now.doc.entries | wanted
        if now.doc is not None and now.doc.entries == wanted:
            assert now.etag is not None
            return now.etag, now.token or "", False
        if now.etag != expected:
            key = place.names().remote(shard_key(partition))
            raise index_moved(f"somebody else wrote {key}", ())
        if dry_run:
            return UNWRITTEN.etag, UNWRITTEN.token, True
        current = now.doc or Document({})
        document = current.holding(merged(current.entries, wanted))
        as_written = (
            document.written_by(commit_seq) if commit_seq else document.written_as(new_write_id())
        )
        try:
            written = documents.put_shard(partition, encode_shard(as_written), now.token)
        except PreconditionFailedError:
            continue  # perhaps a twin of this task, whose shard is as good
        return written.etag, written.token, True
    raise AssertionError  # attempts() ends with an error


def shard_writer(
    place: Place,
    expected: Mapping[str, str],
    commit_seq: int | None,
    *,
    dry_run: bool,
    adds: bool = False,
) -> Task:
    """Return what a task does with planned rows, which come sorted by partition."""
    schema = arrow_schema(WRITTEN)

    def write(incoming: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = (row for batch in incoming for row in zip(*_columns(batch), strict=True))
        with place.open() as store:
            for partition, group in groupby(rows, key=itemgetter(0)):
                wanted = wanted_in(body for _, body in group)
                found = expected.get(partition)
                answer = _answer(
                    place, store, partition, wanted, found, commit_seq, dry_run=dry_run, adds=adds
                )
                yield pa.RecordBatch.from_pylist([answer], schema=schema)

    return write


def wanted_in(bodies: Iterable[bytes]) -> RawEntries:
    """Return the entries of planned rows, sorted."""
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
    *,
    dry_run: bool,
    adds: bool,
) -> dict[str, Any]:
    try:
        etag, token, is_written = write_shard(
            place, store, partition, wanted, expected, commit_seq, dry_run=dry_run, adds=adds
        )
    except IndexMovedError as error:
        return {"partition": partition, "error": error.message}
    return {"partition": partition, "etag": etag, "token": token, "is_written": is_written}


UNWRITTEN = Written("not written", "not written")


class Unwritten(Documents):
    """Documents that are read and never written, to find out what would be."""

    def put_meta(self, data: bytes, token: str | None, *, commits: bool) -> Written:
        """Do nothing."""
        del data, token, commits
        return UNWRITTEN

    def put_monolith(self, data: bytes, token: str | None) -> Written:
        """Do nothing."""
        del data, token
        return UNWRITTEN

    def put_shard(self, partition: str, data: bytes, token: str | None) -> Written:
        """Do nothing."""
        del partition, data, token
        return UNWRITTEN

    def put_origins(self, data: bytes, token: str | None) -> Written:
        """Do nothing."""
        del data, token
        return UNWRITTEN

    def delete_shard(self, partition: str, token: str | None) -> None:
        """Do nothing."""


class Writing:
    """Writes the documents of one place as its rows say."""

    def __init__(
        self,
        state: IndexState,
        documents: Documents,
        rows: DataFrame | None,
        progress: Progress = no_progress,
    ) -> None:
        self._state = state
        self._place = state.place
        self._documents = documents
        self._rows = rows
        self._progress = progress
        self._quarantine = Quarantine(documents.store, state.place.names())

    @property
    def _is_dry(self) -> bool:
        return isinstance(self._documents, Unwritten)

    def run(self) -> int:
        """Write what has to be written; return how many documents that were."""
        if not self._is_dry:
            self._keep_evidence()
        state = self._state
        assert state.version is not None
        return state.version.rebuild(
            Rebuild(
                self._documents,
                state.meta,
                state.token,
                dict(state.shards),
                state.highest,
                self._write_shards,
                self._entries,
                system_clock,
                is_guess=state.has_lost_documents,
            )
        )

    def _keep_evidence(self) -> None:
        damaged = [one.document for one in self._state.summaries if one.problem or one.nonsense]
        if self._state.is_damaged:
            damaged.append(META_KEY)
        for rel in sorted({*damaged}):
            self._quarantine.keep(rel)

    def _entries(self) -> RawEntries:
        assert self._rows is not None
        bodies = self._rows.select("body")
        return wanted_in(attentively(bodies.sparkSession, bodies.toArrow).column(0).to_pylist())

    def _write_shards(self, commit_seq: int | None) -> tuple[dict[str, str], int]:
        """Write all shards in tasks; return their ETags, and how many were not as planned."""
        return self._write_in_tasks(commit_seq, adds=False)

    def _write_in_tasks(self, commit_seq: int | None, *, adds: bool) -> tuple[dict[str, str], int]:
        assert self._rows is not None
        spark = self._rows.sparkSession
        tasks = tasks_for(spark)
        expected = {partition: info.etag for partition, info in self._state.shards}
        write = shard_writer(self._place, expected, commit_seq, dry_run=self._is_dry, adds=adds)
        frame = self._rows.repartition(tasks, "home").sortWithinPartitions("home")
        with watched(spark, "write shards", tasks, self._progress):
            answers = collected(frame.mapInArrow(write, WRITTEN))
        for answer in answers:
            if answer["error"]:
                raise index_moved(answer["error"], ())
        etags = {answer["partition"]: answer["etag"] for answer in answers}
        return etags, sum(answer["is_written"] for answer in answers)


class Adding(Writing):
    """Writes new entries into the shards of a sound index; without rows there are none.

    No entry is ever taken out, and a shard that gets none is not looked at but for its ETag.
    """

    def _write_shards(self, commit_seq: int | None) -> tuple[dict[str, str], int]:
        full = {one.partition for one in self._state.summaries if one.entries}
        etags = {one: info.etag for one, info in self._state.shards if one in full}
        written = dict[str, str](), 0
        if self._rows is not None:
            written = self._write_in_tasks(commit_seq, adds=True)
        for partition, info in self._documents.listed_shards().items():
            known = etags.get(partition)
            if known not in (None, info.etag) and partition not in written[0]:
                raise index_moved(f"somebody else wrote {shard_key(partition)}", ())
        return etags | written[0], written[1]
