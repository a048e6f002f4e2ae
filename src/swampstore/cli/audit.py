"""`swampstore audit list`, and what the audit says about a command itself.

Every command writes one event when it ends, unless it is known to change nothing that others could
miss, or what it called wrote a better one. So a command that somebody adds is in the audit without
anybody remembering to. Values are never told: neither those of options nor any other argument.
"""

from __future__ import annotations

from typing import Any

import click

from swampstore.cli.command import command, pass_session
from swampstore.cli.options import complete_model, limit_option, moment, rows_options, since_option
from swampstore.cli.rendering import age_text, counted, printable
from swampstore.cli.row_formats import Column, Listing
from swampstore.cli.session import Session
from swampstore.errors import (
    AlreadyExistsError,
    ConfigError,
    LockTimeoutError,
    NewerFormatError,
    NotFoundError,
    ValidationError,
    code_of,
)


@command(
    examples="""
    swampstore audit list
    swampstore audit list --since 7d --kind data --limit 20
    swampstore audit list --model aws/ec2/i-123 --actor ana
    swampstore audit list 'kind == "run" && status == "failed"'
    swampstore audit list --since 2026-05-14T08:00Z --until 2026-05-15 --json
    """
)
@click.argument("predicate", required=False, help="What must hold, in CEL.")
@since_option
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
@rows_options
@pass_session
def list_(
    session: Session,
    /,
    predicate: str | None,
    since: str | None,
    until: str | None,
    actor: str | None,
    model: str | None,
    kind: str | None,
    limit: int | None,
) -> None:
    """Show what was done, when and by whom; the newest last."""
    from swampstore.audit import events
    from swampstore.audit.select import select_events

    with session.open_repo() as repo:
        found = select_events(
            events(
                repo,
                since=moment(repo, "--since", since) if since is not None else None,
                until=moment(repo, "--until", until) if until is not None else None,
                actor=actor,
                model=str(repo.model(model)) if model is not None else None,
                kind=kind,
            ),
            predicate,
        )
    total = len(found)
    if limit is not None:
        found = found[max(0, total - limit) :]
    columns = (
        Column("timestamp", lambda one: one.timestamp, age_text, right=True, heading="age"),
        Column("kind", lambda one: one.kind, rank=2),
        Column("command", lambda one: one.command),
        Column("actor", lambda one: one.actor, rank=1),
        Column("result", lambda one: _result(one.members)),
    )
    listing = Listing(columns, found, lambda one: one.to_json(), lambda: counted(total, "event"))
    session.show_rows(listing, lambda: {"events": [one.to_json() for one in found], "total": total})


def _result(members: object) -> str:
    """Return how it ended, as far as the line says."""
    if not isinstance(members, dict):
        return ""
    told = members.get("error") or members.get("status")
    if told:
        return printable(told)
    code = members.get("exitCode")
    return "" if code is None else "ok" if code == 0 else f"exit {code}"


# They look, or touch only what this machine can make anew; a sync carries what was told before.
UNTOLD = frozenset(
    {
        *("init", "completion", "help", "sync", "push", "pull", "ls", "status", "cat", "log"),
        *(f"data {name}" for name in ("get", "list", "versions", "query", "search", "hydrate")),
        *(f"catalog {name}" for name in ("status", "rebuild", "compact")),
        *(f"model {name}" for name in ("list", "show")),
        *(f"vault {name}" for name in ("get", "list", "inspect", "audit")),
        *(f"bundles {name}" for name in ("list", "gc")),
        *(f"backup {name}" for name in ("create", "list", "verify", "restore")),
        *(f"runs {name}" for name in ("list", "show")),
        *(f"workflow {name}" for name in ("validate", "list", "history", "show")),
        *(f"output {name}" for name in ("list", "show", "logs")),
        "audit list",
        *(f"datastore {name}" for name in ("status", "evict", "lock status", "namespace list")),
        *(f"datastore catalog {name}" for name in ("pull", "export")),
        *(f"pipeline {name}" for name in ("report", "push", "pull", "catalog")),
    }
)
# These change something only if they are told to, by one of these options.
ONLY_WITH = {
    "doctor": ("repair",),
    "pipeline verify": ("repair",),
    "datastore namespace migrate": ("confirm",),
}
# The arguments that name things. What is in others may be anything.
_NAMES = frozenset(
    {"model", "name", "names", "old", "new", "method", "workflow", "run_id", "vault", "slug"}
)
# Whoever is refused has changed nothing.
_REFUSALS = (
    ValidationError,
    NotFoundError,
    AlreadyExistsError,
    ConfigError,
    NewerFormatError,
    LockTimeoutError,
)


def record_command(session: Session, status: int, error: BaseException | None) -> None:
    """Write the event of the command that has just ended, if it is one to be told."""
    context, repo = session.context, session.repo
    if context is None or repo is None or session.is_cancelled or repo.recorded:
        return
    path = " ".join(_path(context))
    if not changes_something(path, context.params) or isinstance(error, _REFUSALS):
        return
    from swampstore.audit import record

    if path.startswith("datastore "):
        repo = session.open_repo()  # it may be somewhere else now, and belongs there
        repo.close()
    models = sorted(set(session.models))
    record(
        repo,
        path.split()[0],
        command=" ".join([path, *_names(context)]),
        models=models or None,
        options=_options(context) or None,
        exitCode=status,
        error=None if error is None else code_of(error),
    )


def changes_something(path: str, params: dict[str, Any]) -> bool:
    """Whether a command, with these parameters, is one that the audit tells of."""
    if path in UNTOLD or params.get("dry_run"):
        return False
    wanted = ONLY_WITH.get(path, ())
    return not wanted or any(params.get(name) for name in wanted)


def _path(context: click.Context) -> list[str]:
    above = _path(context.parent) if context.parent else None
    return [] if above is None else [*above, str(context.info_name)]


def _names(context: click.Context) -> list[str]:
    names: list[str] = []
    for param in context.command.params:
        if param.param_type_name == "argument" and param.name in _NAMES:
            value = context.params.get(param.name)
            names += value if isinstance(value, tuple | list) else [value] if value else []
    return [str(name) for name in names]


def _options(context: click.Context) -> list[str]:
    """Return the names of the options that were given."""
    from click.core import ParameterSource

    return sorted(
        param.opts[0]
        for param in context.command.params
        if param.param_type_name == "option"
        and param.name
        and context.get_parameter_source(param.name) is ParameterSource.COMMANDLINE
    )
