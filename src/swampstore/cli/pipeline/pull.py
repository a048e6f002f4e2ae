"""`swampstore pipeline pull`: bring everything here that the remote has."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from swampstore.cli.command import command, pass_session
from swampstore.cli.options import engine_option
from swampstore.cli.pipeline import dry_run_option, findings_option, master_option, settings_at
from swampstore.cli.pipeline.push import keep_findings, patience_option, show_synced
from swampstore.cli.session import Session

if TYPE_CHECKING:
    from swampstore.pipeline.settings import Engine


@command(
    examples="""
    swampstore pipeline pull
    swampstore pipeline pull --dry-run --json
    swampstore pipeline pull --engine spark --master spark://host:7077
    """
)
@click.option("--metadata-only", is_flag=True, help="Leave content on the remote until it is read.")
@dry_run_option
@findings_option
@engine_option
@master_option
@patience_option
@pass_session
def pull(
    session: Session,
    *,
    metadata_only: bool,
    dry_run: bool,
    findings: str | None,
    engine: Engine | None,
    master: str | None,
    timeout: int | None,
) -> None:
    """Compare everything that the remote has with the cache, and bring here what is missing."""
    from swampstore.cli.progress import progress_shown
    from swampstore.pipeline import syncing

    with session.open_repo() as repo, progress_shown() as tell:
        synced = syncing.pull(
            repo,
            engine=engine,
            settings=settings_at(repo.config, master),
            metadata_only=metadata_only or None,
            dry_run=dry_run,
            deadline=timeout,
            tell=tell,
        )
        keep_findings(repo, synced, findings)
    show_synced(session, synced)
