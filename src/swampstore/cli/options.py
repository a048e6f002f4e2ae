"""Arguments and options that several commands take."""

from __future__ import annotations

import math
import reprlib
from typing import TYPE_CHECKING, Any

import click

from swampstore.cli.row_formats import FORMATS
from swampstore.cli.session import Session
from swampstore.clock import from_iso, to_iso
from swampstore.errors import ValidationError
from swampstore.formats import LARGEST_NUMBER
from swampstore.layout import LARGEST_VERSION, ModelRef

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from swampstore.repo import Repo

_OFFERED = 1000


class TagParam(click.ParamType[tuple[str, str]]):
    """A tag, or something like it, written as key=value; becomes a pair."""

    name = "key=value"

    def __init__(self, what: str = "tag") -> None:
        self._what = what

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        """Split at the first equals sign."""
        if isinstance(value, tuple):
            return value
        key, equals, text = value.partition("=")
        if not equals or not key:
            self.fail(f"{value!r} is not a {self._what}, write key=value", param, ctx)
        return key, text


class Whole(click.ParamType[int]):
    """A whole number between two others, both included."""

    name = "number"

    def __init__(self, least: int, most: int) -> None:
        self._least = least
        self._most = most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Read the number."""
        try:
            number = int(value)
        except ValueError:
            self.fail(f"{reprlib.repr(value)} is not a whole number.", param, ctx)
        if number < self._least:
            self.fail(f"{number} is too small, the least is {self._least}.", param, ctx)
        if number > self._most:
            self.fail(f"{number} is too large, the most is {self._most}.", param, ctx)
        return number


class Seconds(click.ParamType[float]):
    """A length of time: more than nothing, or at least so many seconds."""

    name = "seconds"

    def __init__(self, least: float | None = None) -> None:
        self._least = least

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Read the number."""
        try:
            seconds = float(value)
        except ValueError:
            seconds = math.nan
        if math.isnan(seconds):
            self.fail(f"{reprlib.repr(value)} is not a number of seconds.", param, ctx)
        if self._least is not None and seconds < self._least:
            self.fail(f"{seconds:g} is too small, the least is {self._least:g}.", param, ctx)
        if seconds <= 0:
            self.fail(f"{seconds:g} is too small, it must be more than 0.", param, ctx)
        if seconds > LARGEST_NUMBER:
            self.fail(
                f"{seconds:g} is too large, the most is {LARGEST_NUMBER} seconds.", param, ctx
            )
        return seconds


def moment(repo: Repo, option: str, text: str) -> str:
    """Return the moment that an age or a time stands for, as files and the catalog write it."""
    from swampstore.retention.lifetimes import parse_duration

    try:
        return to_iso(from_iso(text))
    except (ValueError, OverflowError):
        pass
    try:
        return to_iso(repo.clock() - parse_duration(text))
    except (ValidationError, OverflowError):
        raise ValidationError(
            f"{option} {text!r} is neither an age nor a time",
            hint="Write an age such as 90m, 12h, 7d or 6mo, or a time such as 2026-05-14T08:00Z.",
        ) from None


def complete_model(context: click.Context, _param: click.Parameter, start: str) -> list[str]:
    """Return the models, by address and by name, that begin with `start`."""

    def candidates(repo: Repo) -> Iterable[str]:
        yield from map(str, repo.catalog.models(_OFFERED, like=start.rpartition("/")[0]))
        yield from repo.catalog.known_model_names(_OFFERED)

    return _complete(context, start, candidates)


def complete_name(context: click.Context, _param: click.Parameter, start: str) -> list[str]:
    """Return the data names of the model given before that begin with `start`."""
    model = context.params["model"]

    def candidates(repo: Repo) -> Iterable[str]:
        # Not `repo.model`, which would fill a catalog that is not complete yet.
        known = repo.catalog.models_named(model) or [ModelRef.parse(model)]
        return repo.catalog.names(known[0])

    return _complete(context, start, candidates)


def _complete(
    context: click.Context, start: str, candidates: Callable[[Repo], Iterable[str]]
) -> list[str]:
    """Return the candidates that begin with `start`; whoever presses Tab wants no errors."""
    session = context.find_root().ensure_object(Session)
    try:
        with session.open_repo() as repo:
            return [found for found in candidates(repo) if found.startswith(start)]
    except Exception:  # noqa: BLE001 - see above
        return []


def complete_vault(context: click.Context, _param: click.Parameter, start: str) -> list[str]:
    """Return the names of vaults that begin with `start`."""

    def candidates(repo: Repo) -> Iterable[str]:
        from swampstore.vaults import Vaults

        return (vault.name for vault in Vaults(repo).all()[0])

    return _complete(context, start, candidates)


model_argument = click.argument(
    "model", shell_complete=complete_model, help="TYPE/ID, or the name of a model."
)
vault_argument = click.argument("vault", shell_complete=complete_vault, help="The name of a vault.")
name_argument = click.argument("name", shell_complete=complete_name, help="A data name.")
optional_name_argument = click.argument(
    "name", required=False, shell_complete=complete_name, help="A data name."
)
version_option = click.option(
    "--version",
    type=Whole(1, LARGEST_VERSION),
    metavar="N",
    help="This version, not the latest.",
)
limit_option = click.option(
    "--limit", type=Whole(0, LARGEST_NUMBER), metavar="N", help="Show at most this many."
)
tag_option = click.option(
    "--tag", "tags", type=TagParam(), multiple=True, help="A tag; may be repeated."
)
timeout_option = click.option(
    "--timeout",
    type=Whole(1, 21600),
    metavar="S",
    help="Give each direction so many seconds.  [default: as configured, else 300]",
)
engine_option = click.option(
    "--engine",
    type=click.Choice(["auto", "local", "spark"]),
    help="Who does the work: threads of this process, or Spark; auto chooses by the amount."
    "  [default: as configured, else auto]",
)
dry_run_option = click.option("--dry-run", is_flag=True, help="Only show what would be done.")
dry_deletion_option = click.option(
    "--dry-run", is_flag=True, help="Only show what would be deleted."
)
since_option = click.option(
    "--since", metavar="AGE|TIME", help="Not older than 7d, or since 2026-05-14T08:00Z."
)
models_option = click.option(
    "--model",
    "models",
    multiple=True,
    metavar="MODEL",
    shell_complete=complete_model,
    help="Only what belongs to a model, TYPE/ID or its name; may be repeated.",
)
yes_option = click.option("-y", "--yes", "-f", "--force", "yes", is_flag=True, help="Do not ask.")


def _remember_rows(context: click.Context, option: click.Parameter, value: Any) -> None:
    """Hand an option about rows to the session."""
    if value not in (None, False):
        session = context.find_root().ensure_object(Session)
        setattr(session.rows, str(option.name), value)
        if value == "json":
            session.json = True


class RowOption(click.Option):
    """An option of every command that lists rows; the session knows about it."""

    def __init__(self, *args: Any, **details: Any) -> None:
        super().__init__(*args, expose_value=False, callback=_remember_rows, **details)


def rows_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add what every command takes that lists rows."""
    add = [
        click.option(
            "--format",
            type=click.Choice(FORMATS),
            cls=RowOption,
            help="How rows are written.  [default: table, into a pipe tsv]",
        ),
        click.option(
            "--fields",
            metavar="A,B,C",
            cls=RowOption,
            help="Only these fields, in this order.",
        ),
        click.option(
            "--wide",
            is_flag=True,
            cls=RowOption,
            help="Show every column in full, however wide the terminal is.",
        ),
    ]
    for option in reversed(add):
        function = option(function)
    return function
