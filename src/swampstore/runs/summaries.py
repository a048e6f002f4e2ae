"""A local index of output records and of runs, so that thousands are listed at once.

    OutputIndex(repo).find('status == "failed" && durationMs > 1000', limit=50)

Records may be large, and are many. What lists need of each is in a SQLite file of this machine,
which can be thrown away: a record that changed since is read again, and nothing else is.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from swampstore.catalog.query.plan import fields, selection
from swampstore.catalog.records import columns, matching, values_of
from swampstore.errors import DiskError, SwampstoreError
from swampstore.files.signature import Signature, signature_of
from swampstore.index.base_file import BaseFile
from swampstore.layout import OUTPUTS, is_temp, output_of
from swampstore.notices import notice
from swampstore.retention.runs import members_of

if TYPE_CHECKING:
    import tempfile

    from swampstore.repo import Repo
    from swampstore.runs.tracker import Run

# Field of the language, column, type. What a record does not say is empty, or 0.
OUTPUT_FIELDS = fields(
    id=("id", "string"),
    modelType=("model_type", "string"),
    modelId=("model_id", "string"),
    modelName=("model_name", "string"),
    method=("method", "string"),
    status=("status", "string"),
    startedAt=("started_at", "string"),
    completedAt=("completed_at", "string"),
    durationMs=("duration_ms", "int"),
    retryCount=("retry_count", "int"),
    triggeredBy=("triggered_by", "string"),
    workflowId=("workflow_id", "string"),
    workflowRunId=("workflow_run_id", "string"),
    stepName=("step_name", "string"),
    initiatedBy=("initiated_by", "string"),
    host=("host", "string"),
    error=("error", "string"),
    artifacts=("artifacts", "int"),
)
RUN_FIELDS = fields(
    id=("id", "string"),
    kind=("kind", "string"),
    status=("status", "string"),
    model=("model", "string"),
    method=("method", "string"),
    workflow=("workflow", "string"),
    machine=("machine", "string"),
    isHere=("is_here", "bool"),
    startedAt=("started_at", "string"),
    heartbeatAt=("heartbeat_at", "string"),
    completedAt=("completed_at", "string"),
    durationMs=("duration_ms", "int"),
    cancelReason=("cancel_reason", "string"),
    initiatedBy=("initiated_by", "string"),
)
_FILE = "swampstore.outputs.db"
_WANTED = frozenset(
    {
        *(b"id", b"definitionId", b"modelName", b"methodName", b"status", b"startedAt"),
        *(b"completedAt", b"durationMs", b"retryCount", b"provenance", b"error", b"host"),
    }
)
_ORIGIN = {
    "triggeredBy": "triggeredBy",
    "workflowId": "workflowId",
    "workflowRunId": "workflowRunId",
    "stepName": "stepName",
    "initiatedBy": "initiatedBy",
}


_SCHEMA = (
    "CREATE TABLE output (rel TEXT PRIMARY KEY, size INTEGER NOT NULL, mtime_ns INTEGER"
    " NOT NULL, ctime_ns INTEGER NOT NULL, inode INTEGER NOT NULL,"
    f" {columns(OUTPUT_FIELDS)}) WITHOUT ROWID",
    "CREATE INDEX output_by_start ON output (started_at)",
)


class Summary(NamedTuple):
    """What is known of one output without its record: its path, and the values of its fields."""

    rel: str
    values: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Return the fields that say something."""
        kept = {name: value for name, value in self.values.items() if value not in ("", 0)}
        return {**kept, "durationMs": self.values["durationMs"], "path": self.rel}


class OutputIndex:
    """The outputs of one repository."""

    def __init__(self, repo: Repo) -> None:
        self._tree = repo.tree
        self._datastore = repo.config.datastore_dir
        self._elsewhere: tempfile.TemporaryDirectory[str] | None = None
        self._file = self._open(repo.config.local_dir)

    def _open(self, directory: str) -> BaseFile:
        return BaseFile(f"{directory}/{_FILE}", _SCHEMA, self._datastore, kind="outputs")

    def find(
        self, predicate: str | None = None, *, limit: int | None = None, **equal: str | None
    ) -> tuple[list[Summary], int]:
        """Return the outputs for which a predicate holds, and how many there are without a limit.

        `equal` are columns that must have a value; `since` the earliest start. Those that began
        last come first.
        """
        chosen = selection(predicate, OUTPUT_FIELDS)
        try:
            self.refresh()
        except DiskError:
            # To look is possible where nothing can be written: read-only, or full.
            self._go_elsewhere()
            self.refresh()
        since = equal.pop("since", None)
        conditions = {f"{name} = ?": value for name, value in equal.items() if value is not None}
        if since is not None:
            conditions["started_at >= ?"] = since
        where = " AND ".join([chosen.where, *conditions])
        columns = ", ".join(f"c.{one.column}" for one in OUTPUT_FIELDS.values())
        sql = f"SELECT c.rel, {columns} FROM output c WHERE {where} ORDER BY started_at DESC, rel"
        params = [*chosen.params, *conditions.values()]
        rows = self._file.read(lambda db: db.execute(sql, params).fetchall())
        found = [Summary(row[0], dict(zip(OUTPUT_FIELDS, row[1:], strict=True))) for row in rows]
        if chosen.matches is not None:
            found = [one for one in found if chosen.matches(one.values)]
        return (found if limit is None else found[:limit]), len(found)

    def refresh(self) -> int:
        """Read the records that are new or changed; return how many."""
        # Records are replaced as a whole: another one has another inode, however soon it comes.
        sql = f"SELECT rel, {', '.join(Signature._fields)} FROM output"
        found = self._file.read(lambda db: db.execute(sql).fetchall())
        known = {rel: Signature(*looks) for rel, *looks in found}
        there = dict(self._files())
        gone = [(rel,) for rel in known.keys() - there.keys()]
        due = [rel for rel, seen in there.items() if known.get(rel) != seen]
        rows = [row for rel in due if (row := self._row(rel, there[rel])) is not None]
        if rows or gone:
            marks = ", ".join("?" * (1 + len(Signature._fields) + len(OUTPUT_FIELDS)))

            def work(db: sqlite3.Connection) -> None:
                db.executemany("DELETE FROM output WHERE rel = ?", gone)
                db.executemany(f"INSERT OR REPLACE INTO output VALUES ({marks})", rows)

            self._file.write(work)
        return len(rows)

    def _files(self) -> Iterator[tuple[str, Signature]]:
        for place in self._tree.places(OUTPUTS):
            for path, status in _walk(place):
                rel = f"{OUTPUTS}{path.removeprefix(place)}"
                if output_of(rel) and self._tree.path(rel) == path:
                    yield rel, signature_of(status)

    def _row(self, rel: str, seen: Signature) -> tuple[Any, ...] | None:
        try:
            members = members_of(self._tree.path(rel), seen.size, _WANTED)
        except FileNotFoundError:
            return None
        except (SwampstoreError, OSError) as error:
            notice("left out: %s: %s", rel, error)
            return None
        values = _values(rel, members)
        if not values["id"] or not values["startedAt"]:
            return None
        return (rel, *seen, *values.values())

    def _go_elsewhere(self) -> None:
        """Keep the index where temporary files are, for as long as it is open."""
        import tempfile

        self._file.close()
        self._elsewhere = tempfile.TemporaryDirectory(prefix="swampstore-")
        self._file = self._open(self._elsewhere.name)

    def close(self) -> None:
        """Release the file."""
        self._file.close()
        if self._elsewhere is not None:
            self._elsewhere.cleanup()


def _walk(directory: str) -> Iterator[tuple[str, os.stat_result]]:
    try:
        with os.scandir(directory) as entries:
            found = list(entries)
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in found:
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(entry.path)
        elif entry.name.endswith(".yaml") and not is_temp(entry.name):
            try:
                yield entry.path, entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue


def _values(rel: str, members: Mapping[str, Any]) -> dict[str, Any]:
    model_type, method = output_of(rel) or ("", "")
    origin = members.get("provenance")
    error = members.get("error")
    artifacts = members.get("artifacts")
    written = artifacts.get("dataArtifacts") if isinstance(artifacts, dict) else None
    values = {
        **members,
        "modelType": model_type,
        "modelId": members.get("definitionId"),
        "method": members.get("methodName") or method,
        **({key: origin.get(key) for key in _ORIGIN} if isinstance(origin, dict) else {}),
        "error": error.get("message") if isinstance(error, dict) else error,
        "artifacts": len(written) if isinstance(written, list) else 0,
    }
    return values_of(values, OUTPUT_FIELDS)


def select_runs(runs: Iterable[Run], predicate: str | None) -> list[Run]:
    """Return the runs for which a predicate holds, in their order; raise QueryError."""
    known = list({run.id: run for run in runs}.values())
    records = [values_of(run.to_json(), RUN_FIELDS) for run in known]
    return [known[place] for place in matching(records, predicate, RUN_FIELDS)]
