"""Telling cheaply whether anybody else has changed the rows of a catalog meanwhile.

Every change of a data name on this machine is a commit to the catalog's file, before and after.
"""

from __future__ import annotations

import sqlite3
from typing import NamedTuple


class Moment(NamedTuple):
    """A moment in the life of a catalog, as one connection sees it.

    Two are equal if, between them, nobody committed anything through another connection.
    """

    connection: sqlite3.Connection
    data_version: int


def moment(db: sqlite3.Connection) -> Moment:
    """Return the present moment."""
    (data_version,) = db.execute("PRAGMA data_version").fetchone()
    return Moment(db, data_version)
