"""`swampstore pipeline push` and `pull`: everything, whatever is marked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from swampstore.cli.command import command, pass_session
from swampstore.cli.options import Whole, dry_run_option, engine_option
from swampstore.cli.pipeline import findings_option, master_option, settings_at
from swampstore.cli.progress import progress_shown
from swampstore.cli.rendering import counted, named_lines, size_text
from swampstore.cli.session import Session
from swampstore.pipeline import syncing
from swampstore.pipeline.engines import EngineTransport
from swampstore.pipeline.schemas import Kept, write_few_findings
from swampstore.pipeline.syncing import findings
from swampstore.sync.run import raised_as_not_pushed

if TYPE_CHECKING:
    from swampstore.pipeline.settings import Engine
    from swampstore.pipeline.syncing import Synced
    from swampstore.repo import Repo

_timeout_option = click.option(
    "--timeout",
    type=Whole(1, 31_536_000),  # a year
    metavar="S",
    help="Give it so many seconds.  [default: as long as it takes]",
)


@command(
    examples="""
    swampstore pipeline push
    swampstore pipeline push --dry-run --json
    swampstore pipeline push --engine spark --master spark://host:7077
    """
)
@dry_run_option
@findings_option
@engine_option
@master_option
@_timeout_option
@pass_session
def push(
    session: Session,
    *,
    dry_run: bool,
    findings: Kept | None,
    engine: Engine | None,
    master: str | None,
    timeout: int | None,
) -> None:
    """Compare every file of the cache, and bring to the remote what it does not have."""
    not_pushed = raised_as_not_pushed(*EngineTransport.errors)
    with session.open_repo() as repo, progress_shown() as progress, not_pushed:
        synced = syncing.push(
            repo,
            engine=engine,
            settings=settings_at(repo.config, master),
            dry_run=dry_run,
            deadline=timeout,
            progress=progress,
        )
        _keep_findings(repo, synced, findings)
    _show(session, synced)


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
@_timeout_option
@pass_session
def pull(
    session: Session,
    *,
    metadata_only: bool,
    dry_run: bool,
    findings: Kept | None,
    engine: Engine | None,
    master: str | None,
    timeout: int | None,
) -> None:
    """Compare everything that the remote has with the cache, and bring here what is missing."""
    with session.open_repo() as repo, progress_shown() as progress:
        synced = syncing.pull(
            repo,
            engine=engine,
            settings=settings_at(repo.config, master),
            metadata_only=metadata_only or None,
            dry_run=dry_run,
            deadline=timeout,
            progress=progress,
        )
        _keep_findings(repo, synced, findings)
    _show(session, synced)


def _keep_findings(repo: Repo, synced: Synced, kept: Kept | None) -> None:
    """Write what was found on the way to a file, if one is named."""
    if kept is not None:
        identity = repo.connection.store.identity
        write_few_findings(findings(synced, identity, repo.config.namespace), kept)


def _show(session: Session, synced: Synced) -> None:
    """Print what was carried, or would be."""
    session.show(synced.to_json(), lambda: _text(synced))


def _text(synced: Synced) -> str:
    did = {"push": ("Pushed", "on the remote"), "pull": ("Pulled", "here")}
    verb, where = did[synced.job]
    amount = f"{counted(synced.files, 'file')}, {size_text(synced.bytes)}"
    by = "by Spark" if synced.engine == "spark" else "by threads"
    if synced.dry_run:
        line = f"Would {synced.job} {amount}, {by}; would delete {synced.deleted} {where}."
    else:
        line = f"{verb} {amount}, {by}; deleted {synced.deleted} {where}."
    return "\n".join(
        [
            line,
            *named_lines("conflict", synced.conflicts),
            *named_lines("skipped", synced.skipped),
            f"{counted(synced.requests, 'request')}, {synced.seconds} s.",
        ]
    )
