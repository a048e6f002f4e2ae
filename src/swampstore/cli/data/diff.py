"""`swampstore data diff` and `swampstore data tail`: what changed, and what is being added."""

from __future__ import annotations

import base64
import json
import sys
from typing import TYPE_CHECKING

import click

from swampstore.cli.command import command, pass_session
from swampstore.cli.options import Seconds, Whole, model_argument, name_argument
from swampstore.cli.rendering import printable
from swampstore.cli.row_formats import may_style
from swampstore.cli.session import Session, write_output
from swampstore.errors import NotFoundError
from swampstore.formats import LARGEST_NUMBER
from swampstore.layout import LARGEST_VERSION

if TYPE_CHECKING:
    from swampstore.artifact import Artifact
    from swampstore.repo import Repo
    from swampstore.repo.watching import Piece

_COLOURS = {"+": "green", "-": "red", "~": "yellow", "@": "cyan"}
_VERSION = Whole(1, LARGEST_VERSION)


@command(
    examples="""
    swampstore data diff web-server state
    swampstore data diff web-server state 3 7 --json
    swampstore data diff web-server config --with db-server/config
    """
)
@model_argument
@name_argument
@click.argument(
    "before", required=False, type=_VERSION, help="A version.  [default: the one before]"
)
@click.argument("after", required=False, type=_VERSION, help="A version.  [default: the latest]")
@click.option(
    "--with",
    "other",
    metavar="MODEL/NAME[@N]",
    help="Compare with this artifact, not with another version.",
)
@pass_session
def diff(
    session: Session,
    model: str,
    name: str,
    before: int | None,
    after: int | None,
    other: str | None,
) -> None:
    """Show how two versions of a data name differ, or two artifacts.

    JSON is compared by members, text by lines, Parquet by schema and rows, anything else by size.
    """
    if other is not None and after is not None:
        raise click.UsageError("--with and a second version cannot be used together.")
    with session.open_repo() as repo:
        if other is not None:
            sides = _one(repo, model, name, before), repo.at(other)
        else:
            newer = _one(repo, model, name, after)
            older = repo.version(model, name, before) if before else _before(repo, newer)
            sides = older, newer
        found = repo.diff(*sides)
    session.show(found.record(), lambda: "\n".join(map(_coloured, found.text())))


def _one(repo: Repo, model: str, name: str, version: int | None) -> Artifact:
    return repo.latest(model, name) if version is None else repo.version(model, name, version)


def _before(repo: Repo, artifact: Artifact) -> Artifact:
    namespace = artifact.row.namespace
    qualified = f"{namespace}:{artifact.model}" if namespace else artifact.model
    for one in repo.versions(qualified, artifact.name):
        if one.version < artifact.version and not one.is_deleted:
            return one
    raise NotFoundError(
        f"{artifact.ref} has no version before {artifact.version} to compare with",
        hint=f"Compare with another artifact: swampstore data diff {artifact.ref}"
        " --with MODEL/NAME",
    )


def _coloured(line: str) -> str:
    shown = printable(line)
    colour = _COLOURS.get(shown[:1])
    return click.style(shown, fg=colour) if colour and may_style() else shown


@command(
    examples="""
    swampstore data tail web-server log
    swampstore data tail -f web-server log
    swampstore data tail -f --pull 10 web-server log --json
    """
)
@model_argument
@name_argument
@click.option("-f", "--follow", is_flag=True, help="Go on with what is appended, until Ctrl-C.")
@click.option(
    "-n",
    "--lines",
    type=Whole(0, LARGEST_NUMBER),
    default=10,
    show_default=True,
    metavar="N",
    help="Begin with the last so many lines.",
)
@click.option(
    "--pull",
    "pull_every",
    type=Seconds(1),
    metavar="S",
    help="Pull what others appended every so many seconds.",
)
@pass_session
def tail(
    session: Session, model: str, name: str, follow: bool, lines: int, pull_every: float | None
) -> None:
    """Print the end of the latest version, and follow what is appended.

    When a newer version is saved, that one is gone on with.
    """
    if pull_every is not None and not follow:
        raise click.UsageError("--pull needs --follow.")
    with session.open_repo() as repo:
        if pull_every is not None:
            repo.sync  # noqa: B018 - raises if there is nothing to pull from
        shown: tuple[str, int] | None = None
        for piece in repo.watch(model, name, lines=lines, follow=follow, pull_every=pull_every):
            current = piece.artifact.name, piece.artifact.version
            if shown not in (None, current):
                session.note(f"{piece.artifact.name} version {piece.artifact.version}:")
            shown = current
            write_output(_event(piece) if session.json else piece.data)
            if sys.stdout is not None:  # closed by whoever started us
                sys.stdout.flush()


def _event(piece: Piece) -> str:
    """Return one line of JSON; bytes that are no text are written in base 64."""
    event = {
        "model": str(piece.artifact.model),
        "name": piece.artifact.name,
        "version": piece.artifact.version,
        "offset": piece.offset,
    }
    try:
        event["text"] = piece.data.decode()
    except UnicodeDecodeError:
        event["base64"] = base64.b64encode(piece.data).decode()
    return json.dumps(event, ensure_ascii=False) + "\n"
