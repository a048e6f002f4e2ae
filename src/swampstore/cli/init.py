"""`swampstore init` and `swampstore completion`: what is done once, at the start."""

from __future__ import annotations

import os

import click

from swampstore.cli.command import command, pass_session
from swampstore.cli.errors import COMPLETE, PROGRAM
from swampstore.cli.rendering import printable
from swampstore.cli.session import Session
from swampstore.files import disk_errors, replacing
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


# Where each shell looks for completions, and what else is to be done.
_PLACES = {
    "bash": (
        "~/.local/share/bash-completion/completions/swampstore",
        "It works in new shells that load bash-completion.",
    ),
    "zsh": (
        "~/.zfunc/_swampstore",
        "Put this into ~/.zshrc, before compinit: fpath+=~/.zfunc",
    ),
    "fish": ("~/.config/fish/completions/swampstore.fish", "It works in new shells."),
}


@command(
    examples="""
    eval "$(swampstore completion bash)"
    swampstore completion zsh > ~/.zfunc/_swampstore
    swampstore completion install
    swampstore completion install zsh
    """
)
@click.argument(
    "shell",
    type=click.Choice([*_PLACES, "install"]),
    help="The shell whose script is printed, or `install`.",
)
@click.argument(
    "installed",
    metavar="[SHELL]",
    required=False,
    type=click.Choice(list(_PLACES)),
    help="With `install`: the shell.  [default: the one in $SHELL]",
)
@pass_session
def completion(session: Session, shell: str, installed: str | None) -> None:
    """Print the completion script of a shell, or install it."""
    if shell == "install":
        _install_completion(session, installed or _own_shell())
        return
    if installed is not None:
        raise click.UsageError("Only `completion install` takes a second word.")
    script = _completion_script(shell)
    session.show({"shell": shell, "script": script}, lambda: script)


def _own_shell() -> str:
    name = os.path.basename(os.environ.get("SHELL", ""))
    if name not in _PLACES:
        raise click.UsageError(f"$SHELL is {name!r}; name one of {', '.join(_PLACES)}.")
    return name


def _install_completion(session: Session, shell: str) -> None:
    place, then = _PLACES[shell]
    path = os.path.expanduser(place)
    with disk_errors(path):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with replacing(path, durable=False) as temp, open(temp, "x", encoding="utf-8") as file:
            file.write(f"{_completion_script(shell)}\n")
    session.show({"shell": shell, "path": path}, lambda: f"Wrote {printable(path)}. {then}")


def _completion_script(shell: str) -> str:
    from click.shell_completion import get_completion_class

    complete = get_completion_class(shell)
    assert complete is not None
    root = click.get_current_context().find_root().command
    return complete(root, {}, PROGRAM, COMPLETE).source()
