"""`swampstore data rename`."""

from __future__ import annotations

import click

from swampstore.cli.command import command, pass_session
from swampstore.cli.data import model_members
from swampstore.cli.options import complete_name, model_argument
from swampstore.cli.rendering import printable
from swampstore.cli.session import Session


@command(
    examples="""
    swampstore data rename aws/ec2/i-123 state instance-state
    swampstore data rename web-server log access-log --json
    """
)
@model_argument
@click.argument("old", shell_complete=complete_name, help="The data name to give up.")
@click.argument("new", help="The data name to have instead.")
@pass_session
def rename(session: Session, model: str, old: str, new: str) -> None:
    """Give a data name another name."""
    with session.open_repo() as repo:
        ref = repo.ref(model, old)
        with session.working(repo, [ref.model]):
            renamed = repo.artifacts.rename(ref.model, old, new)
            members = model_members(ref.model, [repo.latest(ref.model, new)])
    warning = f"{old!r} forwards to {new!r} until something is saved as {old!r} again."
    session.show(
        {
            **members,
            "oldName": old,
            "newName": new,
            "copiedVersion": renamed.copied_version,
            "newVersion": renamed.new_version,
            "warning": warning,
        },
        lambda: (
            f"Renamed {printable(renamed.old)} to {printable(new)}: version"
            f" {renamed.copied_version} became version {renamed.new_version}."
        ),
    )
    if not session.json:
        session.note(f"warning: {warning}")
