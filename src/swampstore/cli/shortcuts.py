"""Familiar words for what other commands do: `push`, `pull`, `cat`, `rm`, `log`, `help`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from swampstore.cli.command import command, pass_session
from swampstore.cli.options import (
    dry_run_option,
    limit_option,
    model_argument,
    models_option,
    name_argument,
    rows_options,
    timeout_option,
    version_option,
)
from swampstore.cli.session import Session

if TYPE_CHECKING:
    from swampstore.cli.command import Command

_F = TypeVar("_F", bound=Callable[..., Any])


def _options_of_sync(function: _F) -> _F:
    """Add what both directions of a sync can be told."""
    return models_option(dry_run_option(timeout_option(function)))


def _sync(**values: Any) -> None:
    from swampstore.cli.sync import sync

    _run(sync, **values)


def _run(other: Command, **values: Any) -> None:
    click.get_current_context().invoke(other, **values)


@command(
    examples="""
    swampstore push
    swampstore push --model aws/ec2/i-0abc
    """
)
@_options_of_sync
def push(**told: Any) -> None:
    """Bring to the remote what changed here: `sync --push`."""
    _sync(push=True, **told)


@command(
    examples="""
    swampstore pull
    swampstore pull --model aws/ec2/i-0abc
    """
)
@_options_of_sync
def pull(**told: Any) -> None:
    """Bring here what changed on the remote: `sync --pull`."""
    _sync(pull=True, **told)


@command(
    examples="""
    swampstore cat web-server log | grep ERROR
    swampstore cat web-server state --version 2
    """
)
@model_argument
@name_argument
@version_option
@pass_session
def cat(session: Session, model: str, name: str, version: int | None) -> None:
    """Print exactly the bytes of an artifact: `data get --raw`."""
    del session
    from swampstore.cli.data.get import get

    _run(get, model=model, name=name, version=version, raw=True)


@command(
    examples="""
    swampstore rm web-server state
    swampstore rm web-server state --version 3
    """
)
@model_argument
@name_argument
@version_option
@pass_session
def rm(session: Session, model: str, name: str, version: int | None) -> None:
    """Delete a data name, or one version of it: `data delete`."""
    del session
    from swampstore.cli.data.delete import delete

    _run(delete, model=model, name=name, version=version)


@command(
    examples="""
    swampstore log web-server state
    swampstore log web-server state --limit 5
    """
)
@model_argument
@name_argument
@limit_option
@rows_options
@pass_session
def log(session: Session, model: str, name: str, limit: int | None) -> None:
    """List the versions of a data name: `data versions`."""
    del session
    from swampstore.cli.data.list import versions

    _run(versions, model=model, name=name, limit=limit)


@command(
    examples="""
    swampstore help
    swampstore help data put
    """
)
@click.argument("words", nargs=-1, metavar="[COMMAND]...", help="The words of a command.")
def help_(words: tuple[str, ...]) -> None:
    """Print the help of a command."""
    from swampstore.cli.app import root

    found: click.Command = root
    context = click.get_current_context().find_root()
    for word in words:
        if not isinstance(found, click.Group):
            raise click.UsageError(f"{context.command_path} has no commands below it.")
        name, below, _ = found.resolve_command(context, [word])
        assert below is not None
        context = click.Context(below, info_name=name, parent=context)
        found = below
    click.echo(found.get_help(context))
