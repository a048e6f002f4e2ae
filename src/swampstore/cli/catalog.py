"""`swampstore catalog status`, `rebuild` and `compact`."""

from __future__ import annotations

import os
import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import click

from swampstore.catalog.database import compact as compact_catalog
from swampstore.cli.command import command, pass_session
from swampstore.cli.options import engine_option
from swampstore.cli.rendering import counted, fields, size_text
from swampstore.cli.session import Session
from swampstore.repo.open import CATALOG

if TYPE_CHECKING:
    from collections.abc import Callable

    from swampstore.pipeline.catalog import Rebuilt
    from swampstore.pipeline.settings import Engine

_SECONDS_BETWEEN_LINES = 5.0
_SECONDS_BETWEEN_UPDATES = 0.1


@command(
    examples="""
    swampstore catalog status
    swampstore catalog status --json
    """
)
@pass_session
def status(session: Session) -> None:
    """Show the state of the catalog."""
    with session.open_repo() as repo:
        path = f"{repo.config.local_dir}/{CATALOG}"
        document: dict[str, Any] = {
            "path": path,
            "populated": repo.catalog.is_populated,
            **repo.catalog.counts(),
            "fileBytes": _size(path),
            "walBytes": _size(f"{path}-wal"),
        }
    session.show(
        document,
        lambda: fields(
            {
                **document,
                "populated": "yes" if document["populated"] else "no, the next query fills it",
                "fileBytes": size_text(document["fileBytes"]),
                "walBytes": size_text(document["walBytes"]),
            }
        ),
    )


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


@command(
    examples="""
    swampstore catalog rebuild
    swampstore catalog rebuild --json
    """
)
@engine_option
@pass_session
def rebuild(session: Session, *, engine: Engine | None) -> None:
    """Make the catalog equal to what is on disk."""
    from swampstore.pipeline.catalog import rebuild as rebuild_catalog

    with session.open_repo() as repo, RebuildProgress(session) as progress:
        rebuilt = rebuild_catalog(repo, engine=engine, progress=progress)
    session.show(rebuilt.to_json(), lambda: rebuilt_text(rebuilt))


def rebuilt_text(rebuilt: Rebuilt) -> str:
    """Return in a sentence what a rebuild did."""
    return (
        f"{counted(rebuilt.names, 'data name')}, {counted(rebuilt.versions, 'version')};"
        f" {rebuilt.removed} removed, {rebuilt.unreadable} unreadable; {rebuilt.seconds} s."
    )


class RebuildProgress:
    """Tells how far a rebuild is: one line that changes on a terminal, a few lines elsewhere."""

    def __init__(self, session: Session, clock: Callable[[], float] = time.monotonic) -> None:
        self._note = session.note
        self._clock = clock
        self._updates = sys.stderr.isatty()
        self._pause = _SECONDS_BETWEEN_UPDATES if self._updates else _SECONDS_BETWEEN_LINES
        self._told = clock()
        self._open_line = False

    def __call__(self, names: int, versions: int) -> None:
        """Tell the names and versions so far, unless something was told just now."""
        now = self._clock()
        if now - self._told < self._pause:
            return
        self._told = now
        line = f"{names} names, {versions} versions"
        if self._updates:
            click.echo(f"\r\x1b[K{line}", nl=False, err=True)
            self._open_line = True
        else:
            self._note(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()

    def end(self) -> None:
        """Clear the line that changes."""
        if self._open_line:
            click.echo("\r\x1b[K", nl=False, err=True)


@command(
    examples="""
    swampstore catalog compact
    swampstore catalog compact --json
    """
)
@pass_session
def compact(session: Session) -> None:
    """Give the unused space of the catalog back."""
    with session.open_repo() as repo:
        compacted = compact_catalog(repo.catalog.rows)
    session.show(
        {
            "walPagesTotal": compacted.wal_pages_total,
            "walPagesCheckpointed": compacted.wal_pages_checkpointed,
            "dbBytesReclaimed": compacted.bytes_reclaimed,
            "vacuumSkipped": compacted.vacuum_skipped,
        },
        lambda: (
            "The catalog is in use; only its log was written back."
            if compacted.vacuum_skipped
            else f"Gave {size_text(compacted.bytes_reclaimed)} back."
        ),
    )
