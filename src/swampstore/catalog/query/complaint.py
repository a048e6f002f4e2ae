"""Errors that point at the place in the query where it went wrong."""

from __future__ import annotations

from swampstore.errors import QueryError

_MARGIN = 48


def complaint(problem: str, source: str, at: int, *, hint: str) -> QueryError:
    """Return an error that shows the line of `source` with a caret under position `at`."""
    start = source.rfind("\n", 0, at) + 1
    end = source.find("\n", at)
    line = source[start : end if end >= 0 else len(source)]
    column = at - start
    left = max(0, column - _MARGIN)
    shown = line[left : column + _MARGIN].replace("\t", " ").replace("\r", " ")
    caret = " " * (column - left) + "^"
    return QueryError(f"{problem}, at position {at + 1}:\n  {shown}\n  {caret}", hint=hint)
