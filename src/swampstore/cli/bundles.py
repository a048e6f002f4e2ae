"""`swampstore bundles`: what the cache of built things holds, and making room in it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import click

from swampstore.bundles import Bundles
from swampstore.cli.command import command, pass_session
from swampstore.cli.options import dry_deletion_option, rows_options
from swampstore.cli.rendering import age_text, counted, size_text
from swampstore.cli.row_formats import Column, Listing, item, same
from swampstore.cli.session import Session
from swampstore.clock import to_iso
from swampstore.config import parse_size


class SizeParam(click.ParamType[int]):
    """A number of bytes, such as 500mb."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return how many bytes a text means."""
        size = value if isinstance(value, int) else parse_size(value)
        if size is None:
            self.fail(f"{value!r} is not a size, write 500mb or 2g", param, ctx)
        return size


@command(
    examples="""
    swampstore bundles list
    swampstore bundles list --json
    """
)
@rows_options
@pass_session
def list_(session: Session) -> None:
    """List the bundles of this machine, the one used last first."""
    with session.open_repo() as repo:
        cache = Bundles(repo)
        found = cache.all()
    rows = [
        (one.digest, one.size, to_iso(datetime.fromtimestamp(one.used_at, UTC))) for one in found
    ]
    total = sum(one.size for one in found)
    document: dict[str, Any] = {
        "bundles": [{"digest": digest, "bytes": size, "usedAt": at} for digest, size, at in rows],
        "totalBytes": total,
        "maxBytes": cache.limit,
    }
    summary = (
        f"{counted(len(rows), 'bundle')}, {size_text(total)} of at most {size_text(cache.limit)}"
    )
    columns = (
        Column("digest", item("digest")),
        Column("bytes", item("bytes"), size_text, right=True, heading="size"),
        Column("usedAt", item("usedAt"), age_text, right=True, heading="used"),
    )
    listing = Listing(columns, document["bundles"], same, lambda: summary)
    session.show_rows(listing, lambda: document)


@command(
    examples="""
    swampstore bundles gc
    swampstore bundles gc --max-size 100mb --dry-run
    swampstore bundles gc --max-size 0 --json
    """
)
@click.option(
    "--max-size",
    type=SizeParam(),
    metavar="SIZE",
    help="How much may stay.  [default: as configured, else 1 GB]",
)
@dry_deletion_option
@pass_session
def gc(session: Session, max_size: int | None, dry_run: bool) -> None:
    """Delete the bundles that were not used for the longest time; they can be built again."""
    with session.open_repo() as repo:
        done = Bundles(repo).gc(max_size, dry_run=dry_run)
    verb = "Would delete" if dry_run else "Deleted"
    session.show(
        done.to_json(),
        lambda: (
            f"{verb} {counted(len(done.removed), 'bundle')}, {size_text(done.size)};"
            f" {counted(done.kept, 'bundle')} of {size_text(done.kept_size)} stay."
        ),
    )
