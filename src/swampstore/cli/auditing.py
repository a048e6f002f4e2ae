"""What the audit says about a command: its name, the names it was given, and how it ended.

Every command writes one event when it ends, unless it is known to change nothing that others could
miss, or what it called wrote a better one. So a command that somebody adds is in the audit without
anybody remembering to. Values are never told: neither those of options nor any other argument.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from swampstore.errors import (
    AlreadyExistsError,
    ConfigError,
    LockTimeoutError,
    NewerFormatError,
    NotFoundError,
    SwampstoreError,
    ValidationError,
)

if TYPE_CHECKING:
    import click

    from swampstore.cli.session import Session

# They look, or touch only what this machine can make anew; a sync carries what was told before.
UNTOLD = frozenset(
    {
        "init",
        "completion",
        "sync",
        *(f"data {name}" for name in ("get", "list", "versions", "query", "search", "hydrate")),
        *(f"catalog {name}" for name in ("status", "rebuild", "compact")),
        *(f"model {name}" for name in ("list", "show")),
        *(f"vault {name}" for name in ("get", "list", "inspect", "audit")),
        *(f"bundles {name}" for name in ("list", "gc")),
        *(f"backup {name}" for name in ("create", "list", "verify")),
        *(f"runs {name}" for name in ("list", "show")),
        *(f"workflow {name}" for name in ("validate", "list", "history", "show")),
        *(f"workflow {name}" for name in ("validate", "list", "history", "show")),
        *(f"output {name}" for name in ("list", "show", "logs")),
        "audit list",
        *(f"backup {name}" for name in ("list", "verify", "restore")),
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
        error=None if error is None else _code(error),
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


def _code(error: BaseException) -> str:
    return error.code if isinstance(error, SwampstoreError) else type(error).__name__
