"""`swampstore datastore evict`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from swampstore.cli.command import command, pass_session
from swampstore.cli.rendering import counted, printable, size_text
from swampstore.cli.session import Session

if TYPE_CHECKING:
    from swampstore.sync.eviction import Evicted

_NAMED = 20


class SizeParam(click.ParamType[int]):
    """A number of bytes, with a unit or without."""

    name = "bytes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Read a number and its unit."""
        from swampstore.config import parse_size

        size = parse_size(str(value))
        if size is None:
            self.fail(f"{value!r} is no size, write for example 512mb or 20GB", param, ctx)
        return size


@command(
    examples="""
    swampstore datastore evict --to 5GB
    swampstore datastore evict --to 0 --dry-run
    swampstore datastore evict --json
    """
)
@click.option(
    "--to",
    "target",
    type=SizeParam(),
    metavar="BYTES",
    help="Leave so much here, such as 512mb.  [default: 90 % of datastore.cache.maxBytes]",
)
@click.option("--dry-run", is_flag=True, help="Only show what would go.")
@pass_session
def evict(session: Session, target: int | None, dry_run: bool) -> None:
    """Give up content here that the remote has as well.

    What was not used for the longest time goes first. Reading it again fetches it again. The remote
    is asked about each file right before; what it does not surely have always stays.
    """
    with session.open_repo() as repo:
        service, remote = repo.sync, repo.config.remote
        if target is None and remote is not None and remote.cache_limit is None:
            raise click.UsageError("Say how much to leave, with --to: the cache has no limit.")
        evicted = service.evict(target, dry_run=dry_run)
    document: dict[str, Any] = {"dryRun": True, "paths": list(evicted.rels)} if dry_run else {}
    document |= {
        "files": evicted.files,
        "bytes": evicted.bytes,
        "contentBytes": evicted.held,
        "unproven": list(evicted.unproven),
    }
    session.show(document, lambda: _text(evicted, dry_run=dry_run))


def _text(evicted: Evicted, *, dry_run: bool) -> str:
    lines: list[str] = []
    if dry_run:
        lines += [f"evict: {printable(rel)}" for rel in evicted.rels[:_NAMED]]
        if len(evicted.rels) > _NAMED:
            lines.append(f"evict: ... and {len(evicted.rels) - _NAMED} more")
    verb = "Would evict" if dry_run else "Evicted"
    amount = f"{counted(evicted.files, 'file')}, {size_text(evicted.bytes)}"
    lines.append(f"{verb} {amount}; {size_text(evicted.held)} of content stay here.")
    if evicted.unproven:
        from swampstore.sync.eviction import why_it_stays

        lines.append(printable(why_it_stays(evicted.unproven)))
    return "\n".join(lines)
