"""Publishing the catalog of a namespace, so that other namespaces can see what it holds.

`.catalog-export.json` is an ordinary file of the namespace and travels like any other. It costs
as much as there are rows, and a push must not: a large one is written anew every ten minutes at
most, and none is if no row has changed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from functools import lru_cache
from typing import BinaryIO, NamedTuple

from swampstore.catalog.catalog import Catalog
from swampstore.catalog.export_rows import ExportedRows, write_rows
from swampstore.catalog.schema import Row
from swampstore.clock import from_iso
from swampstore.errors import ValidationError
from swampstore.files import disk_errors, replacing
from swampstore.layout import ModelRef
from swampstore.notices import notice

EXPORT = ".catalog-export.json"
SMALL_ROWS = 5_000
SMALL_BYTES = 8 << 20
PAUSE = timedelta(minutes=10)


class Published(NamedTuple):
    """The export that is on the remote, where the cache does not hold everything it describes."""

    size: int
    modified: datetime
    open: Callable[[], BinaryIO]


def refresh_export(
    catalog: Catalog,
    directory: str,
    *,
    mark: Callable[[str], None],
    now: datetime,
    force: bool = False,
    durable: bool = True,
    published: Callable[[], Published | None] = lambda: None,
) -> bool:
    """Write the export of the catalog's namespace into its directory; say whether it was written.

    Only if it is due: a row changed since the last one, and there are few rows or the last one is
    old enough; with `force`, always. `mark` is told the path, namespace in front, before it
    changes. `published` returns the export to keep the rows of all those models from that this
    catalog knows nothing of, None if it knows everything. Raises DiskError.
    """
    path = f"{directory}/{EXPORT}"
    changes = catalog.changes
    last = catalog.last_export
    is_there = os.path.lexists(path)
    if not catalog.namespace or (
        not force and is_there and last and not _is_due(catalog, changes, last, now)
    ):
        return False
    before = published()
    if before and not force and before.size > SMALL_BYTES and _is_recent(before.modified, now):
        return False
    with disk_errors(path):
        _write(path, _rows(catalog, before), lambda: mark(f"{catalog.namespace}/{EXPORT}"), durable)
    catalog.note_export(changes, now)
    return True


def _is_due(catalog: Catalog, changes: int, last: tuple[int, str], now: datetime) -> bool:
    if last[0] == changes:
        return False
    return catalog.has_at_most(SMALL_ROWS) or not _is_recent(from_iso(last[1]), now)


def _is_recent(moment: datetime, now: datetime) -> bool:
    return timedelta() <= now - moment < PAUSE


def _rows(catalog: Catalog, published: Published | None) -> Iterator[Row]:
    """Yield what others may see: no tombstones, and nothing that waits for its commit."""
    for rows in catalog.by_name():
        yield from (row for row in rows if not row.is_deleted and not row.deferred)
    if published is not None:
        is_ours = lru_cache(maxsize=1024)(catalog.has_model)
        with published.open() as file:
            yield from _elsewhere(file, catalog.namespace, is_ours)


def _elsewhere(
    file: BinaryIO, namespace: str, is_ours: Callable[[ModelRef], bool]
) -> Iterator[Row]:
    """Yield the rows of models that are not ours, as far as the file can be read."""
    try:
        yield from (row for row in ExportedRows(file, namespace) if not is_ours(row.ref.model))
    except ValidationError as error:
        notice("%s", error.message)


def _write(path: str, rows: Iterator[Row], mark: Callable[[], None], durable: bool) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with replacing(path, durable=durable) as temp:
        with open(temp, "x", encoding="utf-8", newline="\n") as file:
            write_rows(rows, file)
        mark()
    mark()  # a push that came in between has seen the old file, and settled the mark
