"""`swampstore completion`."""

from __future__ import annotations

import click

from swampstore.cli.command import command, pass_session
from swampstore.cli.running import COMPLETE, PROGRAM
from swampstore.cli.session import Session


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
