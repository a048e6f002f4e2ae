"""Errors that Spark passes on: it shows the traceback, and no attribute of an exception."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from swampstore.errors import SwampstoreError


@contextlib.contextmanager
def hints() -> Iterator[None]:
    """Put the hints of errors where Spark shows them."""
    try:
        yield
    except SwampstoreError as error:
        raise with_hint(error) from error.__cause__


def with_hint(error: SwampstoreError) -> SwampstoreError:
    """Return an error that shows its hint in a traceback."""
    if error.hint and error.hint not in getattr(error, "__notes__", ()):
        error.add_note(error.hint)
    return error
