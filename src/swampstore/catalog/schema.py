"""The catalog's tables, and a row as the record that people ask about."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import Any, NamedTuple

from swampstore.artifacts.latest import LatestOfSteps
from swampstore.formats import LARGEST_NUMBER, NEWEST
from swampstore.layout import DataRef, ModelRef

SCHEMA_VERSION = NEWEST["catalog"]
ACTIVE = "active"


class Row(NamedTuple):
    """One version of one artifact as the catalog knows it; the field order is the column order."""

    namespace: str
    type_normalized: str
    model_id: str
    data_name: str
    version: int
    id: str
    is_latest: int
    deferred: int
    lifecycle: str
    renamed_to: str
    model_name: str
    spec_name: str
    data_type: str
    content_type: str
    lifetime: str
    garbage_collection: str
    owner_type: str
    streaming: int
    size: int
    checksum: str
    created_at: str
    tags: str
    owner_ref: str
    workflow_id: str
    workflow_run_id: str
    workflow_name: str
    job_name: str
    step_name: str
    source: str

    @property
    def ref(self) -> DataRef:
        """The address of the data name this is a version of."""
        return DataRef(ModelRef(self.type_normalized, self.model_id), self.data_name)

    @property
    def is_deleted(self) -> bool:
        """Whether this version is a tombstone."""
        return self.lifecycle != ACTIVE


COLUMNS = ", ".join(Row._fields)
# Who inserts rolls all of it back if one row cannot be: so SQLite need not keep a journal of each
# statement, which a table with triggers has otherwise, and which takes as long as the row itself.
INSERT = f"INSERT OR FAIL INTO catalog ({COLUMNS}) VALUES ({', '.join('?' * len(Row._fields))})"
_LATEST = Row._fields.index("is_latest")
_INTEGERS = {"version", "is_latest", "deferred", "streaming", "size"}


def sql_limit(limit: int | None) -> int:
    """Return how many rows SQLite is to return at most, all of them if there is no limit."""
    return -1 if limit is None else min(limit, LARGEST_NUMBER)


_encoded = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def tags_json(tags: Mapping[str, Any]) -> str:
    """Return tags as the column of a row has them."""
    return _encoded(tags)


def record_of(row: Row) -> dict[str, Any]:
    """Return a row as the record that predicates and projections see, without its content."""
    return {
        "id": row.id,
        "name": row.data_name,
        "version": row.version,
        "isLatest": bool(row.is_latest),
        "createdAt": row.created_at,
        "namespace": row.namespace,
        "ns": row.namespace,
        "tags": json.loads(row.tags),
        "modelName": row.model_name,
        "modelId": row.model_id,
        "modelType": row.type_normalized,
        "specName": row.spec_name,
        "dataType": row.data_type,
        "contentType": row.content_type,
        "lifetime": row.lifetime,
        "ownerType": row.owner_type,
        "streaming": bool(row.streaming),
        "size": row.size,
        "checksum": row.checksum,
        "ownerRef": row.owner_ref,
        "workflowId": row.workflow_id,
        "workflowRunId": row.workflow_run_id,
        "workflowName": row.workflow_name,
        "jobName": row.job_name,
        "stepName": row.step_name,
        "source": row.source,
    }


def flagged(rows: Iterable[Row], marker: int) -> list[Row]:
    """Return all rows of a name, newest first, with the latest ones flagged; none may be before."""
    steps = LatestOfSteps(marker)
    return [
        Row._make((*row[:_LATEST], 1, *row[_LATEST + 1 :]))
        if steps.is_latest(row.version, row.step_name, deferred=bool(row.deferred))
        else row
        for row in sorted(rows, key=attrgetter("version"), reverse=True)
    ]


def _table() -> str:
    columns = ",\n  ".join(
        f"{name} {'INTEGER' if name in _INTEGERS else 'TEXT'} NOT NULL" for name in Row._fields
    )
    return f"CREATE TABLE catalog (\n  {columns}\n)"


# A version that is the latest one adds its tags and its words, one that was takes its tags away.
_ADD_TAGS = "INSERT INTO tag SELECT key, value, new.created_at, new.rowid FROM json_each(new.tags);"
_DROP_TAGS = (
    "DELETE FROM tag WHERE (key, value, created_at, row) IN"
    " (SELECT key, value, old.created_at, old.rowid FROM json_each(old.tags));"
)
_ADD_WORDS = (
    "INSERT INTO word SELECT * FROM (SELECT 'name' AS kind, '' AS key, new.data_name AS value"
    " UNION ALL SELECT 'model', '', new.model_name UNION ALL SELECT 'spec', '', new.spec_name"
    " UNION ALL SELECT 'tag', key, value FROM json_each(new.tags)) AS its WHERE NOT EXISTS (SELECT"
    " 1 FROM word WHERE kind = its.kind AND key = its.key AND value = its.value);"
)
WORD_COLUMNS = {"name": "data_name", "model": "model_name", "spec": "spec_name"}
# What the latest versions are found by beside their columns. Tags are in the order of time, so
# that the newest artifacts with a tag come first, without a look at the others. Words are what
# people search for parts of: there are few different ones. One that nothing has any more leads
# nowhere, until a rebuild forgets it. An index of their parts (FTS5) would find one faster among
# hundreds of thousands, and add a third to the time that every row takes to be stored.
LATEST_TABLES = (
    "CREATE TABLE tag (key TEXT NOT NULL, value TEXT NOT NULL, created_at TEXT NOT NULL,"
    " row INTEGER NOT NULL, PRIMARY KEY (key, value, created_at, row)) WITHOUT ROWID",
    "CREATE TABLE word (kind TEXT NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL,"
    " PRIMARY KEY (kind, key, value)) WITHOUT ROWID",
    "CREATE TRIGGER tag_added AFTER INSERT ON catalog WHEN new.is_latest = 1"
    f" BEGIN {_ADD_TAGS} {_ADD_WORDS} END",
    "CREATE TRIGGER tag_gained AFTER UPDATE OF is_latest ON catalog"
    f" WHEN new.is_latest = 1 AND old.is_latest = 0 BEGIN {_ADD_TAGS} {_ADD_WORDS} END",
    "CREATE TRIGGER tag_lost AFTER UPDATE OF is_latest ON catalog"
    f" WHEN new.is_latest = 0 AND old.is_latest = 1 BEGIN {_DROP_TAGS} END",
    "CREATE TRIGGER tag_removed AFTER DELETE ON catalog WHEN old.is_latest = 1"
    f" BEGIN {_DROP_TAGS} END",
)
# Whether a row with some tag is of some type, without a look at the row. The condition holds for
# every row: it keeps the index from all who do not ask for it, whose answers come by address.
_LATEST_TYPE = (
    "CREATE INDEX latest_type ON catalog (type_normalized, created_at)"
    " WHERE is_latest = 1 AND created_at >= ''"
)
_FROM_1_TO_2 = (
    "DROP TABLE tag",
    *(f"DROP TRIGGER {name}" for name in ("tag_added", "tag_gained", "tag_lost", "tag_removed")),
    *LATEST_TABLES,
    "INSERT INTO tag SELECT key, value, created_at, c.rowid FROM catalog c, json_each(c.tags)"
    " WHERE is_latest = 1 ORDER BY 1, 2, 3, 4",
    "INSERT INTO word SELECT 'tag', key, value FROM (SELECT DISTINCT key, value FROM tag)",
    *(
        f"INSERT INTO word SELECT DISTINCT '{kind}', '', {column} FROM catalog WHERE is_latest = 1"
        for kind, column in WORD_COLUMNS.items()
    ),
)
# What brings a catalog of an older schema to ours: in the first one tags had no times, and there
# were no words; in the second one no rows by type and time.
UPGRADES = {1: (*_FROM_1_TO_2, _LATEST_TYPE), 2: (_LATEST_TYPE,)}

# Nearly all that a person asks is about the latest versions, so those have the rich set of
# indexes, which grow with the number of names and not of versions; history has few.
DDL = (
    _table(),
    "CREATE UNIQUE INDEX identity ON catalog"
    " (type_normalized, model_id, data_name, version, namespace)",
    "CREATE INDEX latest_address ON catalog"
    " (type_normalized, model_id, data_name, namespace) WHERE is_latest = 1",
    _LATEST_TYPE,
    "CREATE INDEX latest_model_id ON catalog (model_id) WHERE is_latest = 1",
    "CREATE INDEX latest_data_name ON catalog (data_name) WHERE is_latest = 1",
    "CREATE INDEX latest_spec_name ON catalog (spec_name, created_at) WHERE is_latest = 1",
    "CREATE INDEX latest_data_type ON catalog (data_type, created_at) WHERE is_latest = 1",
    "CREATE INDEX latest_created_at ON catalog (created_at) WHERE is_latest = 1",
    "CREATE INDEX latest_size ON catalog (size) WHERE is_latest = 1",
    "CREATE INDEX model_names ON catalog (model_name, is_latest, data_name) WHERE model_name != ''",
    "CREATE INDEX workflow_runs ON catalog (workflow_run_id) WHERE workflow_run_id != ''",
    "CREATE INDEX workflow_names ON catalog (workflow_name) WHERE workflow_name != ''",
    *LATEST_TABLES,
    # What was announced and is not finished: survives a kill, tells the next reader what to heal.
    "CREATE TABLE intent (path TEXT PRIMARY KEY, action TEXT NOT NULL) WITHOUT ROWID",
    "CREATE TABLE catalog_meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
)
