"""Which versions of a name count as latest, told from all its rows and its marker alone."""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter

from swampstore.catalog.schema import Row


def settled(rows: Iterable[Row], marker: int) -> list[Row]:
    """Return the rows of a name, newest first, with the latest ones flagged; none may be before.

    Of each step that is the newest committed version no newer than the marker.
    """
    found: list[Row] = []
    steps: set[str] = set()
    for row in sorted(rows, key=attrgetter("version"), reverse=True):
        is_latest = row.version <= marker and not row.deferred and row.step_name not in steps
        if is_latest:
            steps.add(row.step_name)
        found.append(row._replace(is_latest=1) if is_latest else row)
    return found
