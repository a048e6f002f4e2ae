"""`swampstore init`."""

from __future__ import annotations

import os

import click

from swampstore.cli.command import command, pass_session
from swampstore.cli.rendering import printable
from swampstore.cli.session import Session


@command(
    examples="""
    swampstore init
    swampstore init ~/inventory --json
    swampstore init --upgrade
    """
)
@click.argument(
    "directory", required=False, metavar="[DIR]", help="Default: --repo, else this directory."
)
@click.option(
    "--upgrade", is_flag=True, help="Bring the marker of a repository to the current format."
)
@pass_session
def init(session: Session, directory: str | None, *, upgrade: bool) -> None:
    """Make a directory a repository."""
    from swampstore.repo import init_repo, upgrade_repo

    where = directory or session.repo_dir or os.environ.get("SWAMP_REPO_DIR") or "."
    with upgrade_repo(where) if upgrade else init_repo(where) as repo:
        config = repo.config
        told = (
            f"Upgraded {printable(config.repo_dir)}."
            if upgrade
            else f"Made {printable(config.repo_dir)} a repository; its id is {config.repo_id}."
        )
        session.show(
            {"repoDir": config.repo_dir, "repoId": config.repo_id, "datastore": config.base},
            lambda: told,
        )
