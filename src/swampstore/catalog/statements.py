"""What the catalog asks of its file."""

from __future__ import annotations

from swampstore.catalog.schema import COLUMNS

OF_NAME = "namespace = ? AND type_normalized = ? AND model_id = ? AND data_name = ?"
_MODEL = "namespace = ? AND type_normalized = ? AND model_id = ?"
_LATEST_MODEL = "is_latest = 1 AND type_normalized = ? AND model_id = ?"
LATEST_BY_ADDRESS = (
    f"SELECT {COLUMNS} FROM catalog WHERE {_LATEST_MODEL} AND data_name = ? AND namespace = ?"
    " ORDER BY version DESC LIMIT 1"
)
VERSION_BY_ADDRESS = f"SELECT {COLUMNS} FROM catalog WHERE {OF_NAME} AND version = ?"
VERSIONS_BY_ADDRESS = f"SELECT {COLUMNS} FROM catalog WHERE {OF_NAME} ORDER BY version DESC LIMIT ?"
ROWS_OF_NAME = f"SELECT {COLUMNS} FROM catalog WHERE {OF_NAME} ORDER BY version DESC"
VERSION_NUMBERS = f"SELECT version FROM catalog WHERE {OF_NAME} ORDER BY version"
NUMBERS_FROM = (
    f"SELECT data_name, version, is_latest FROM catalog WHERE {_MODEL} AND data_name >= ?"
    " ORDER BY data_name, version LIMIT ?"
)
DEFERRED_NUMBERS = f"SELECT version FROM catalog WHERE {OF_NAME} AND deferred = 1"
NAMES_OF_MODEL = (
    f"SELECT DISTINCT data_name FROM catalog WHERE {_LATEST_MODEL} AND namespace = ?"
    " ORDER BY data_name"
)
LATEST_OF_MODEL = (
    f"SELECT {COLUMNS} FROM catalog WHERE {_LATEST_MODEL} AND namespace = ?"
    " ORDER BY data_name, version DESC"
)
MODELS_BY_NAME = (
    "SELECT DISTINCT type_normalized, model_id FROM catalog"
    " WHERE is_latest = 1 AND model_name = ? AND model_name != '' AND namespace = ?"
)
# Deferred versions are not there yet, as far as anybody else is concerned.
MODEL_TOTALS = (
    "SELECT type_normalized, model_id,"
    " coalesce(max(CASE WHEN is_latest = 1 THEN model_name END), ''),"
    " count(DISTINCT data_name), count(*), sum(size), max(created_at) FROM catalog"
    " WHERE namespace = ? AND deferred = 0 GROUP BY 1, 2 ORDER BY 1, 2"
)
MODEL_EXISTS = f"SELECT 1 FROM catalog WHERE {_MODEL} LIMIT 1"
NAME_EXISTS = f"SELECT 1 FROM catalog WHERE {OF_NAME} LIMIT 1"
NAMES_PAGE = (
    "SELECT type_normalized, model_id, data_name, max(version) FROM catalog"
    " WHERE namespace = ? AND (type_normalized, model_id, data_name) > (?, ?, ?)"
    " GROUP BY 1, 2, 3 ORDER BY 1, 2, 3 LIMIT ?"
)
VERSIONS_PAGE = (
    f"SELECT {COLUMNS} FROM catalog"
    " WHERE namespace = ? AND (type_normalized, model_id, data_name, version) > (?, ?, ?, ?)"
    " ORDER BY type_normalized, model_id, data_name, version LIMIT ?"
)
PENDING = "SELECT path, action FROM intent"
POINT_LOOKUPS = {
    "latest": LATEST_BY_ADDRESS,
    "version": VERSION_BY_ADDRESS,
    "versions": VERSIONS_BY_ADDRESS,
    "version numbers": VERSION_NUMBERS,
    "deferred versions": DEFERRED_NUMBERS,
    "names of a model": NAMES_OF_MODEL,
    "latest of a model": LATEST_OF_MODEL,
    "models by name": MODELS_BY_NAME,
    "model exists": MODEL_EXISTS,
}
COUNT_UP_TO = "SELECT count(*) FROM (SELECT 1 FROM catalog WHERE namespace = ? LIMIT ?)"
