"""What exports did, run by run: Parquet files in a directory, to which each run adds its own.

A run that is killed before it has changed the table may have added a file. What is in it is told
again by the next run, with the id of that one: who reads the files takes the last word on a key.
"""

from __future__ import annotations

import os

import pyarrow.compute as pc
from pyarrow import parquet

from swampstore.files import disk_errors, replacing
from swampstore.pipeline.export.rows import CHANGE, CHANGES, MOVE, Spool
from swampstore.pipeline.schemas import run_id


class ChangeLog:
    """The files of one directory, which is made."""

    def __init__(self, directory: str) -> None:
        self._directory = os.path.abspath(directory)
        self._count = 0
        with disk_errors(self._directory):
            os.makedirs(self._directory, exist_ok=True)

    def add(self, changes: Spool) -> None:
        """Add a file of what is about to be done to a table; nothing if that is nothing."""
        if not changes.count:
            return
        name = f"{run_id().replace(':', '')}-{self._count:05}.parquet"
        path = os.path.join(self._directory, name)
        with (
            disk_errors(path),
            replacing(path, durable=True) as temp,
            parquet.ParquetWriter(temp, CHANGES, compression="zstd") as writer,
        ):
            for day in changes.days():
                table = changes.read(day)
                writer.write_table(table.filter(pc.not_equal(table[CHANGE], MOVE)))
        self._count += 1
