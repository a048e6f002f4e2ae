"""What commands and groups of commands are made of.

A command is a function with a session first, its summary as docstring, and examples:

    @command(examples="swampstore data versions aws/ec2/i-123 state")
    @model_argument
    @click.option("--limit", type=Whole(0, LARGEST_NUMBER), help="Show at most this many.")
    @pass_session
    def versions(session: Session, model: str, limit: int | None) -> None:
        'List the versions of a data name, newest first.'
        with session.open_repo() as repo:
            ...
            session.show(document, lambda: text)

`--json`, `--repo` and `--datastore` are added to every command and reach the session. Errors are
raised, never printed. Groups find their commands in the tables of `app`; those repeat the
summaries, so that showing them imports nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from swampstore.cli.session import Session

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

pass_session = click.make_pass_decorator(Session, ensure=True)


def _remember(context: click.Context, option: click.Parameter, value: Any) -> None:
    """Hand a global option to the session; given twice, the one nearest to the command wins."""
    if value:
        session = context.find_root().ensure_object(Session)
        setattr(session, str(option.name), value)


class GlobalOption(click.Option):
    """An option that may stand before and after the name of a command."""

    def __init__(self, *declarations: str, **details: Any) -> None:
        super().__init__(
            declarations, expose_value=False, is_eager=True, callback=_remember, **details
        )


def _global_options() -> list[click.Parameter]:
    return [
        GlobalOption("--json", is_flag=True, help="Print one JSON document."),
        GlobalOption(
            "--repo",
            "repo_dir",
            metavar="DIR",
            help="A directory in the repository.  [default: SWAMPSTORE_REPO_DIR, else here]",
        ),
        GlobalOption(
            "--datastore",
            metavar="DATASTORE",
            help="Use this datastore, such as filesystem:/path or s3://bucket/prefix."
            "  [default: SWAMPSTORE_DATASTORE, else as configured]",
        ),
        GlobalOption("-q", "--quiet", is_flag=True, help="Print results and errors, nothing else."),
        GlobalOption(
            "-v", "--verbose", is_flag=True, help="Tell what is used, and what it took; and stacks."
        ),
    ]


# Words of other programs for options of ours.
_FAMILIAR = {"fix": "repair", "sort": "order", "columns": "fields", "label": "tag"}


class Command(click.Command):
    """A command with the global options, and examples at the end of its help."""

    def __init__(self, *args: Any, examples: str = "", **attrs: Any) -> None:
        attrs.setdefault("context_settings", {"help_option_names": ["-h", "--help"]})
        super().__init__(*args, **attrs)
        self.params.extend(_global_options())
        self.examples = [line.strip() for line in examples.strip().splitlines()]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments; of an option that is unknown, tell which one may be meant."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            raise click.UsageError(self._no_such_option(error.option_name), ctx) from None

    def _no_such_option(self, option: str) -> str:
        """Return what to say of an unknown option, with those that are spelled alike or mean it."""
        from swampstore.notices import nearest, sentences

        known = {
            name.lstrip("-"): name
            for param in self.params
            for name in (*param.opts, *param.secondary_opts)
            if name.startswith("--")
        }
        word = option.lstrip("-")
        familiar = _FAMILIAR.get(word)
        found = [familiar] if familiar in known else nearest(word, known)
        meant = " or ".join(repr(known[one]) for one in found)
        return sentences(f"No such option {option!r}.", meant and f"Did you mean {meant}?")

    def invoke(self, ctx: click.Context) -> Any:
        """Run it; the session knows which command it was, for the audit."""
        if not isinstance(self, click.Group):
            ctx.find_root().ensure_object(Session).context = ctx
        return super().invoke(ctx)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the global options after the command's own."""
        own: list[tuple[str, str]] = []
        everywhere: list[tuple[str, str]] = []
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None and not isinstance(param, click.Argument):
                (everywhere if isinstance(param, GlobalOption) else own).append(record)
        for title, records in (("Options", own), ("Global options", everywhere)):
            with formatter.section(title):
                formatter.write_dl(records)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples as they are, whatever the width."""
        del ctx
        if self.examples:
            with formatter.section("Examples"):
                for line in self.examples:
                    formatter.write(f"{'':{formatter.current_indent}}{line}\n")


def command(*, examples: str) -> Callable[[Callable[..., Any]], Command]:
    """Make a function a command; `examples` are command lines, one per line."""
    return click.command(cls=Command, examples=examples)


class Entry(NamedTuple):
    """Where a command is, as `module:attribute` in this package, and its summary."""

    place: str
    summary: str


class Group(Command, click.Group):
    """Commands that are imported when they are run."""

    def __init__(self, name: str, summary: str, entries: Mapping[str, Entry], **attrs: Any) -> None:
        super().__init__(name, help=summary, **attrs)
        self.entries = entries

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of the table."""
        del ctx
        return list(self.entries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command."""
        del ctx
        if cmd_name not in self.entries:
            return None
        module, _, attribute = self.entries[cmd_name].place.partition(":")
        found: click.Command = getattr(import_module(f"swampstore.cli.{module}"), attribute)
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that the arguments name, or suggest those that are spelled alike."""
        name = args[0]
        if name not in self.entries and not name.startswith("-") and not ctx.resilient_parsing:
            raise _no_such_command(name, self, ctx)
        return super().resolve_command(ctx, args)

    def paths_to(self, name: str) -> list[str]:
        """Return the commands below this one that have a name, in full, without importing any."""
        found = []
        for word, entry in self.entries.items():
            if entry.place.startswith("app:"):
                below = self.get_command(click.Context(self), word)
                assert isinstance(below, Group)
                found += [f"{word} {name}"] * (name in below.entries)
                found += [f"{word} {path}" for path in below.paths_to(name)]
        return found

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, then the commands."""
        Command.format_options(self, ctx, formatter)
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.summary) for name, entry in self.entries.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the commands and options that may be meant, without importing any."""
        from click.shell_completion import CompletionItem

        names = [
            CompletionItem(name, help=entry.summary)
            for name, entry in self.entries.items()
            if name.startswith(incomplete)
        ]
        return names + click.Command.shell_complete(self, ctx, incomplete)


def _no_such_command(name: str, group: Group, context: click.Context) -> click.UsageError:
    """Return the error for a word that is no command, with those that may have been meant."""
    from swampstore.notices import nearest

    root = context.find_root()
    assert isinstance(root.command, Group)
    # A command that is called so, if elsewhere, is meant rather than one that is spelled alike.
    meant = [f"{root.command_path} {one}" for one in root.command.paths_to(name)]
    if not meant:
        meant = [f"{context.command_path} {one}" for one in nearest(name, group.entries)]
    question = f" Did you mean `{'` or `'.join(meant[:4])}`?" if meant else ""
    return click.UsageError(f"No such command {name!r}.{question}", ctx=context)
