"""`swampstore pipeline gc`: expired data and superfluous versions of everything, after a grace."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import timedelta
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from swampstore.cli.command import command, pass_session
from swampstore.cli.options import engine_option
from swampstore.cli.pipeline import Bulk, pipeline_options
from swampstore.cli.progress import progress_shown
from swampstore.cli.rendering import counted, printable, size_text
from swampstore.cli.row_formats import table
from swampstore.cli.session import Session
from swampstore.errors import EXIT_ERROR, ValidationError
from swampstore.pipeline.schemas import write_few_findings
from swampstore.repo import open_repo
from swampstore.retention.lifetimes import parse_duration

if TYPE_CHECKING:
    from swampstore.pipeline.gc import Collected, Kind
    from swampstore.pipeline.places import Place
    from swampstore.pipeline.settings import Engine

_SHOWN = 20
_WORDS: dict[Kind, str] = {
    "swept": "Deleted",
    "due": "Would delete",
    "marked": "Marked",
    "waiting": "Marked earlier, and not for long enough:",
    "kept": "Kept, though they were due:",
}


class _Grace(click.ParamType[timedelta]):
    name = "duration"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> timedelta:
        """Read a duration; 0 needs no unit."""
        if isinstance(value, timedelta):
            return value
        try:
            return timedelta() if value == "0" else parse_duration(value)
        except ValidationError as error:
            self.fail(f"{error.message}: {error.hint}", param, ctx)


@command(
    examples="""
    swampstore pipeline gc --dry-run
    swampstore pipeline gc s3://bucket/prefix --namespace '*'
    swampstore pipeline gc --grace 0 --findings swept.json
    """
)
@click.option(
    "--grace",
    type=_Grace(),
    default="24h",
    show_default=True,
    metavar="DURATION",
    help="Delete what was marked so long ago and has not changed; 0 marks and deletes at once.",
)
@engine_option
@pipeline_options
@pass_session
def gc(session: Session, *, grace: timedelta, engine: Engine | None, bulk: Bulk) -> None:
    """Delete expired data and versions beyond their policy, after a grace period.

    What is found for the first time is only marked. Run it again after the grace period, every
    night for example: what was marked, and is garbage still, is deleted then. So nobody who is
    pushing or reading at the time is harmed.
    """
    places = bulk.places(session)
    if all(place.indexed for place in places):
        collected = _collect(session, bulk, places, grace, engine)
    else:
        collected = _collect_in_place(bulk, places)
    if bulk.findings:
        write_few_findings((one.to_finding() for one in collected.outcomes), bulk.findings)
    session.show(collected.to_json(), lambda: _text(collected))
    if not session.json:
        for warning in collected.warnings:
            session.note(f"warning: {printable(warning)}")
    if collected.failed:
        click.get_current_context().exit(EXIT_ERROR)


def _collect(
    session: Session,
    bulk: Bulk,
    places: Sequence[Place],
    grace: timedelta,
    engine: Engine | None,
) -> Collected:
    from swampstore.pipeline.evidence.local_engine import is_little
    from swampstore.pipeline.gc import gc as collect

    settings = bulk.settings(session)
    with ExitStack() as stack:
        spark = None
        if not is_little(places, bulk.engine_of(engine, settings), settings, "gc"):
            spark = stack.enter_context(bulk.spark(session))
        progress = stack.enter_context(progress_shown())
        return collect(spark, places, grace=grace, dry_run=bulk.dry_run, progress=progress)


def _collect_in_place(bulk: Bulk, places: Sequence[Place]) -> Collected:
    """Let the repository collect the directory that it uses; nothing of others in there."""
    from swampstore.pipeline.gc import gc_in_place, used_in_place

    target = places[0].target
    if not os.path.isdir(target):  # it was named by a URL, not found by its repository
        raise used_in_place(places[0])
    with open_repo(target) as repo:
        for place in places:
            if place.namespace != repo.config.namespace:
                raise used_in_place(place)
        return gc_in_place(repo, dry_run=bulk.dry_run)


def _text(collected: Collected) -> str:
    lines = []
    shown = (one for one in collected.outcomes if one.kind != "waiting")
    rows = [
        [one.namespace, one.rel, one.kind, one.detail, one.versions, size_text(one.size)]
        for one in islice(shown, _SHOWN)
    ]
    if rows:
        columns = ["namespace", "path", "what", "why", "versions", "size"]
        lines.append(table(columns, rows, right=("versions", "size")))
    if more := sum(1 for _ in shown):
        lines.append(f"... and {more} more; --findings keeps all of them.")
    sums = collected.sums()
    for kind, words in _WORDS.items():
        versions, size = sums[kind]
        if versions or kind == ("due" if collected.dry_run else "swept"):
            lines.append(f"{words} {counted(versions, 'version')}, {size_text(size)}.")
    if collected.finished:
        left = counted(collected.finished, "object")
        lines.append(f"Deleted {left} that an interrupted collection had left.")
    return "\n".join(lines)
