"""Which data name a path belongs to, as Spark finds it out; `sync.shapes` says the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column

# A file of a version (the name, the number), and the marker of a name.
VERSION_FILE = r"\A(data(?:/[^/]+){3,})/([1-9][0-9]{0,17})/[^/]+\z"
MARKER_FILE = r"\A(data(?:/[^/]+){3,})/latest\z"


def data_name() -> Column:
    """Return the directory of the data name that the path `rel` belongs to, NULL if to none."""
    from pyspark.sql import functions as sql

    found = (sql.regexp_extract("rel", one, 1) for one in (VERSION_FILE, MARKER_FILE))
    return sql.coalesce(*(sql.nullif(one, sql.lit("")) for one in found))


def data_version() -> Column:
    """Return the number of the version that the path `rel` is a file of, NULL if of none."""
    from pyspark.sql import functions as sql

    number = sql.regexp_extract("rel", VERSION_FILE, 2)
    return sql.nullif(number, sql.lit("")).cast("bigint")
