"""`swampstore init` and `swampstore completion`: what is done once, at the start."""

from __future__ import annotations

import os

import click

from swampstore.cli.command import command, pass_session
from swampstore.cli.rendering import printable
from swampstore.cli.running import COMPLETE, PROGRAM
from swampstore.cli.session import Session
from swampstore.repo import init_repo, upgrade_repo


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


@command(
    examples="""
    eval "$(swampstore completion bash)"
    swampstore completion zsh > ~/.zfunc/_swampstore
    swampstore completion fish > ~/.config/fish/completions/swampstore.fish
    """
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]), help="The shell.")
@pass_session
def completion(session: Session, shell: str) -> None:
    """Print the completion script of a shell."""
    from click.shell_completion import get_completion_class

    complete = get_completion_class(shell)
    assert complete is not None
    root = click.get_current_context().find_root().command
    script = complete(root, {}, PROGRAM, COMPLETE).source()
    session.show({"shell": shell, "script": script}, lambda: script)
