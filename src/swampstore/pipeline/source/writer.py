"""Saving rows as versions: `df.write.format("swampstore").mode("append").save(repo_or_url)`.

Tasks stage the content of their rows. When all are done, the driver saves every row in one session
with locks, and pushes; nothing is visible before, and nothing is left if something fails.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceWriter, WriterCommitMessage

from swampstore.errors import SwampstoreError, ValidationError
from swampstore.notices import notice
from swampstore.pipeline.places import Place, places_of
from swampstore.pipeline.source.drafting import Columns
from swampstore.pipeline.source.saving import (
    Batch,
    fetched,
    is_remote,
    opened,
    save_all,
    stage,
    sweep,
)
from swampstore.pipeline.source.scan import hints

if TYPE_CHECKING:
    from pyspark.sql import Row
    from pyspark.sql.types import StructType


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
        from pyspark import TaskContext

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
