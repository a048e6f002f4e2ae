"""`swampstore audit list`: what was done, when and by whom."""

from __future__ import annotations

import click

from swampstore.cli.command import command, pass_session
from swampstore.cli.options import complete_model, limit_option, moment
from swampstore.cli.rendering import counted, printable, table
from swampstore.cli.session import Session


@command(
    examples="""
    swampstore audit list
    swampstore audit list --since 7d --kind data --limit 20
    swampstore audit list --model aws/ec2/i-123 --actor ana
    swampstore audit list --since 2026-05-14T08:00Z --until 2026-05-15 --json
    """
)
@click.option("--since", metavar="AGE|TIME", help="Not older than 7d, or since 2026-05-14T08:00Z.")
@click.option("--until", metavar="AGE|TIME", help="Not younger than 7d, or before a time.")
@click.option("--actor", metavar="USER[@HOST]", help="Only what this user did, on any host or one.")
@click.option(
    "--model",
    metavar="MODEL",
    shell_complete=complete_model,
    help="Only what concerns this model: TYPE/ID, or its name.",
)
@click.option("--kind", metavar="KIND", help="Only data, run, workflow, vault and so on.")
@limit_option
@pass_session
def list_(
    session: Session,
    /,
    since: str | None,
    until: str | None,
    actor: str | None,
    model: str | None,
    kind: str | None,
    limit: int | None,
) -> None:
    """Show what was done, when and by whom; the newest last."""
    from swampstore.audit import events

    with session.open_repo() as repo:
        found = list(
            events(
                repo,
                since=moment(repo, "--since", since) if since is not None else None,
                until=moment(repo, "--until", until) if until is not None else None,
                actor=actor,
                model=str(repo.model(model)) if model is not None else None,
                kind=kind,
            )
        )
    total = len(found)
    if limit is not None:
        found = found[max(0, total - limit) :]
    rows = [
        [one.timestamp, one.kind, printable(one.command), one.actor, _result(one.members)]
        for one in found
    ]
    count = counted(total, "event")
    session.show(
        {"events": [one.to_json() for one in found], "total": total},
        lambda: (
            f"{table(['time', 'kind', 'command', 'actor', 'result'], rows)}\n{count}"
            if rows
            else count
        ),
    )


def _result(members: object) -> str:
    """Return how it ended, as far as the line says."""
    if not isinstance(members, dict):
        return ""
    told = members.get("error") or members.get("status")
    if told:
        return printable(told)
    code = members.get("exitCode")
    return "" if code is None else "ok" if code == 0 else f"exit {code}"
