"""`swampstore data hydrate`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from swampstore.cli.command import command, pass_session
from swampstore.cli.options import complete_model, timeout_option
from swampstore.cli.rendering import counted, printable, size_text
from swampstore.cli.session import Session

if TYPE_CHECKING:
    from swampstore.sync.hydration import Hydrated

_NAMED = 20


@command(
    examples="""
    swampstore data hydrate
    swampstore data hydrate 'tags.env == "prod" && size < 1000000'
    swampstore data hydrate --model aws/ec2/i-0abc --all-versions
    swampstore data hydrate --dry-run --json
    """
)
@click.argument("predicate", required=False, help="What must hold, in CEL.  [default: everything]")
@click.option(
    "--model",
    metavar="MODEL",
    shell_complete=complete_model,
    help="Only of this model, TYPE/ID or its name.",
)
@click.option("--all-versions", is_flag=True, help="Not only of the latest versions.")
@click.option("--dry-run", is_flag=True, help="Only show how much would be fetched.")
@timeout_option
@pass_session
def hydrate(
    session: Session,
    predicate: str | None,
    model: str | None,
    all_versions: bool,
    dry_run: bool,
    timeout: int | None,
) -> None:
    """Fetch content that is only on the remote, much of it at once.

    What is here already costs nothing. If it is interrupted, run it again: it goes on from there.
    """
    from swampstore.cli.progress import progress_shown

    with session.open_repo() as repo, progress_shown() as tell:
        hydrated = repo.hydrate(
            predicate,
            model=model,
            all_versions=all_versions,
            dry_run=dry_run,
            deadline=timeout,
            progress=tell,
        )
    document: dict[str, Any] = {"dryRun": True} if dry_run else {}
    document |= {
        "files": hydrated.files,
        "bytes": hydrated.bytes,
        "missing": list(hydrated.missing),
    }
    session.show(document, lambda: _text(hydrated, dry_run=dry_run))


def _text(hydrated: Hydrated, *, dry_run: bool) -> str:
    verb = "Would fetch" if dry_run else "Fetched"
    lines = [f"{verb} {counted(hydrated.files, 'file')}, {size_text(hydrated.bytes)}."]
    lines += [
        f"missing: {printable(rel)}: the remote does not have it"
        for rel in hydrated.missing[:_NAMED]
    ]
    if len(hydrated.missing) > _NAMED:
        lines.append(f"missing: ... and {len(hydrated.missing) - _NAMED} more")
    return "\n".join(lines)
