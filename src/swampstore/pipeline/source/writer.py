"""Saving rows as versions: `df.write.format("swampstore").mode("append").save(repo_or_url)`."""

from __future__ import annotations

import hashlib
import os
import tempfile
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceWriter, WriterCommitMessage

from swampstore.artifacts.versions import read_metadata, stored_versions
from swampstore.datastore_address import is_url
from swampstore.errors import SwampstoreError, ValidationError
from swampstore.files import disk_errors
from swampstore.index.errors import IncompleteSyncError, SyncError
from swampstore.layout import METADATA, RAW, DataRef
from swampstore.notices import notice
from swampstore.pipeline.errors import NotSavedError
from swampstore.pipeline.places import Place, places_of
from swampstore.pipeline.source.drafting import Columns, Drafted
from swampstore.pipeline.source.scan import hints
from swampstore.repo import Repo, init_repo, open_repo
from swampstore.stores.errors import StoreError
from swampstore.stores.protocol import ObjectInfo, Store

if TYPE_CHECKING:
    from pyspark.sql import Row
    from pyspark.sql.types import StructType

    from swampstore.artifacts.metadata import Metadata
    from swampstore.layout import ModelRef


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
    abandoned = jobs.pop(job, [])
    if jobs:
        before = store.clock() - ABANDONED
        for objects in jobs.values():
            if max(info.last_modified for info in objects) < before:
                abandoned += objects
    for info in abandoned:
        store.delete(info.key)


_AGAIN = "Nothing has to be undone: run the job again."


def is_remote(target: str) -> bool:
    """Whether a target is a store, written as a URL or as a type with its members."""
    return is_url(target) or ":{" in target


@contextmanager
def opened(target: str, namespace: str) -> Iterator[Repo]:
    """Open the repository at a path; for a store, one that is thrown away afterwards."""
    if not is_remote(target):
        with open_repo(target) as repo:
            yield repo
        return
    with tempfile.TemporaryDirectory(prefix="swampstore-write-") as directory:
        own = {
            "SWAMP_HOME": os.path.join(directory, "home"),
            "SWAMP_DATASTORE": target,
            "SWAMP_NAMESPACE": namespace,
        }
        environ = {**os.environ, **own}
        init_repo(os.path.join(directory, "repo")).close()
        with open_repo(os.path.join(directory, "repo"), environ=environ) as repo:
            yield repo


def in_order(rows: Sequence[Staged]) -> list[Staged]:
    """Return rows in the order in which they become versions: by ordering, then as they stood.

    As in Spark nothing comes first, and what is no number last.
    """

    def position(row: Staged) -> tuple[DataRef, bool, bool, object, int, int]:
        ordering = row.drafted.ordering
        is_nan = ordering != ordering  # noqa: PLR0124 - only that is not equal to itself
        value = None if is_nan else ordering
        return row.drafted.ref, ordering is not None, is_nan, value, row.partition, row.row

    return sorted(rows, key=position)


def save_all(repo: Repo, rows: Sequence[Staged], contents: Contents) -> None:
    """Save every row as the next version of its name and push them, in one session.

    Raises NotSavedError, and what the session raises while nothing was saved yet.
    """
    work = _Work(repo, sorted({row.drafted.ref.model for row in rows}))
    try:
        work.save(rows, contents)
    except SwampstoreError as error:
        if work.is_saved:
            # What the session still had to do concerns others, and is done by the next one.
            notice("%s", error.message)
        elif work.taken_back:
            raise work.failed(error) from error
        else:
            raise


class _Work:
    """The session of one job, and how it is undone.

    `taken_back` are versions that were saved here, and are no longer; perhaps the remote has them.
    Ids tell which they are: a push gives others numbers to those that make room for somebody's.
    """

    def __init__(self, repo: Repo, models: Sequence[ModelRef]) -> None:
        self.is_saved = False
        self.taken_back: dict[DataRef, dict[str, int]] = {}
        self._repo = repo
        self._models = models
        self._is_doubtful = False

    def save(self, rows: Sequence[Staged], contents: Contents) -> None:
        """Save and push; what is saved here and cannot be pushed is removed again."""
        with self._repo.session(self._models) as session:
            if session.is_offline:
                raise NotSavedError(
                    "nothing was saved: the remote cannot be reached, or must not be", hint=_AGAIN
                )
            with self._repo.artifacts.deferring(prunes=False) as group:
                saved: list[tuple[DataRef, Metadata]] = []
                for row in in_order(rows):
                    ref, draft, *_ = row.drafted
                    saved.append((ref, group.save(ref, contents.of(row), draft)))
                self._repo.locks.verify()
            if self._repo.config.remote is not None:
                try:
                    self._push(self._repo.config.remote.sync_timeout)
                except BaseException:
                    self._take_back(saved)
                    raise
            self.is_saved = True
            # Not before: what was taken back would leave nothing where one version is kept.
            for ref, metadata in dict(saved).items():
                self._repo.store.prune_after(ref, metadata)

    def _push(self, deadline: float) -> None:
        """Upload, then commit; what could not be uploaded must not be missing from a commit."""
        prepared = self._repo.sync.prepare_push(self._models, deadline=deadline)
        if prepared.failures:
            raise IncompleteSyncError("push", prepared.failures)
        try:
            self._repo.sync.commit_push(prepared, deadline=deadline)
        except (StoreError, SyncError):
            # An answer may have got lost, and the commit have arrived all the same.
            self._is_doubtful = True
            raise

    def _take_back(self, saved: list[tuple[DataRef, Metadata]]) -> None:
        for ref, metadata in saved:
            self.taken_back.setdefault(ref, {})[metadata.id] = metadata.version
        for ref, numbers in self.taken_back.items():
            numbers.update(self._delete_here(ref, numbers))

    def _delete_here(self, ref: DataRef, numbers: Mapping[str, int]) -> dict[str, int]:
        """Delete the versions with these ids, wherever they are by now; return their numbers."""
        found: dict[str, int] = {}
        for metadata, _ in stored_versions(self._repo.tree, ref):
            if metadata.version < min(numbers.values()):
                break  # nothing gets a lower number
            if metadata.id in numbers:
                found[metadata.id] = metadata.version
        if found:
            self._repo.store.delete_versions(ref, sorted(found.values()))
        return found

    def failed(self, error: SwampstoreError) -> NotSavedError:
        """Remove from the remote what got there, and return what to tell."""
        if self._remove_there() or not self._is_doubtful:
            hint = f"{error.hint} {_AGAIN}" if error.hint else _AGAIN
            return NotSavedError(f"nothing was saved: {error.message}", hint=hint)
        return NotSavedError(
            f"it is not known whether the rows were saved: {error.message}",
            hint="Look at the latest versions before you run the job again: the remote may show"
            " the rows as soon as somebody commits something else.",
        )

    def _remove_there(self) -> bool:
        """Take the versions off the remote, in a session of its own; tell whether that is sure.

        If they arrived, the session brings them back here, and their removal is pushed. If not,
        nobody was told of what did arrive, and it can be removed as it is.
        """
        try:
            with self._repo.session(self._models) as session:
                if session.is_offline:
                    return False
                untold: set[str] = set()
                for ref, numbers in self.taken_back.items():
                    found = self._delete_here(ref, numbers)
                    for one in {*numbers} - {*found}:
                        if read_metadata(self._repo.tree, ref, numbers[one]) is None:
                            untold |= self._files(ref, numbers[one])
                self._repo.sync.remove(dict.fromkeys(untold))
        except SwampstoreError:
            return False
        return True

    def _files(self, ref: DataRef, version: int) -> set[str]:
        """Return the files of a version; the marker is one if the name has no other."""
        files = {ref.file_rel(version, METADATA), ref.file_rel(version, RAW)}
        is_only = self._repo.tree.size(ref.latest_rel) is None
        return files | {ref.latest_rel} if is_only else files


@dataclass(frozen=True)
class Attempt(WriterCommitMessage):  # type: ignore[misc]  # pyspark is not typed here
    """What an attempt of a task tells the driver."""

    batch: Batch


class ArtifactWriter(DataSourceWriter):  # type: ignore[misc]  # pyspark is not typed here
    """One job. It is pickled to the tasks, and to the process that commits."""

    def __init__(self, target: str, place: Place, columns: Columns, job: str) -> None:
        self._target = target
        self._place = place
        self._columns = columns
        self._job = job

    @classmethod
    def of(
        cls, options: Mapping[str, str], schema: StructType, *, overwrite: bool
    ) -> ArtifactWriter:
        """Check everything that can be checked before a task runs; raise ValidationError."""
        with hints():
            if overwrite:
                raise ValidationError(
                    "versions never change, so nothing can be overwritten",
                    hint='Use .mode("append"): rows become the next versions of their names.',
                )
            target = options.get("path")
            if not target:
                raise ValidationError(
                    "the writer needs to know where to save",
                    hint='Write .save("/path/of/a/repository") or .save("s3://bucket/prefix").',
                )
            columns = Columns.of(schema)
            place = _place(target, options.get("namespace"))
            return cls(target, place, columns, uuid.uuid4().hex)

    def write(self, iterator: Iterator[Row]) -> Attempt:
        """Stage the rows of one partition. Runs in a task, perhaps more than once."""
        context = TaskContext.get()
        partition = context.partitionId() if context else 0
        with hints(), self._place.open() as store:
            drafted = map(self._columns.drafted, iterator)
            return Attempt(stage(store, self._job, partition, drafted))

    def commit(self, messages: Sequence[Attempt | None]) -> None:
        """Save everything. Runs on the driver."""
        batches = [message.batch for message in messages if message is not None]
        with hints():
            try:
                self._save(batches)
            finally:
                self._sweep()

    def _save(self, batches: Sequence[Batch]) -> None:
        rows = [row for batch in batches for row in batch.rows]
        if not rows:
            return
        with (
            self._place.open() as store,
            fetched(store, batches) as contents,
            opened(self._target, self._place.namespace) as repo,
        ):
            save_all(repo, rows, contents)

    def abort(self, messages: Sequence[Any]) -> None:
        """Remove what any attempt staged; Spark does not tell of those that were done."""
        del messages
        self._sweep()

    def _sweep(self) -> None:
        try:
            with self._place.open() as store:
                sweep(store, self._job)
        except SwampstoreError as error:
            # The next job does it; what failed before must not be hidden by this.
            notice("what the job staged stays for now: %s", error.message)


def _place(target: str, namespace: str | None) -> Place:
    """Return where rows are to be saved; it is one namespace."""
    if not is_remote(target):
        with opened(target, "") as repo:
            own = repo.config.namespace
            if namespace not in (None, own):
                raise ValidationError(
                    f"the repository {repo.config.repo_dir} has the namespace {own!r}, not"
                    f" {namespace!r}",
                    hint="Leave the option out, or write to a repository of that namespace.",
                )
            if repo.config.remote is None:
                repo.locks.check()  # they need the directory, and make it
        # A namespace need not be there yet: saving makes it.
        return replace(places_of(target, [""])[0], namespace=own)
    places = places_of(target, None if namespace is None else [namespace])
    if len(places) > 1:
        listed = ", ".join(repr(place.namespace) for place in places)
        raise ValidationError(
            f"{target} has several namespaces: {listed}",
            hint="Say with the option `namespace` which one is meant.",
        )
    return places[0]
