"""`swampstore pipeline report`: what is stored, as a page, as tables, as a summary."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import click

from swampstore.cli.command import command, pass_session
from swampstore.cli.options import dry_run_option, engine_option
from swampstore.cli.pipeline import Bulk, spark_options
from swampstore.cli.progress import progress_shown
from swampstore.cli.rendering import counted, fields, size_text
from swampstore.cli.session import Session
from swampstore.clock import system_clock

if TYPE_CHECKING:
    from swampstore.pipeline.report import Reported
    from swampstore.pipeline.settings import Engine


@command(
    examples="""
    swampstore pipeline report
    swampstore pipeline report s3://bucket/prefix --namespace '*' --output usage.html
    swampstore pipeline report --tables usage --json
    """
)
@click.option(
    "--output",
    default="report.html",
    show_default=True,
    metavar="FILE",
    help="Where the page goes; an older one is replaced.",
)
@click.option(
    "--tables",
    metavar="DIR",
    help="Also write every table that the page is made of, as Parquet, below this directory.",
)
@dry_run_option
@engine_option
@spark_options
@pass_session
def report(
    session: Session, *, bulk: Bulk, output: str, tables: str | None, engine: Engine | None
) -> None:
    """Write a page about what is stored: who uses how much, growth, duplicates, garbage.

    The page is a single file that needs nothing but a browser. Nothing in the datastore is
    changed.
    """
    from swampstore.pipeline.evidence.local_engine import is_little
    from swampstore.pipeline.report import report as report_places

    places, settings = bulk.places(session), bulk.settings(session)
    chosen = bulk.engine_of(engine, settings)
    tables_dir = None if bulk.dry_run else tables
    needs_spark = tables_dir is not None and chosen != "local"
    with ExitStack() as stack:
        spark = None
        if needs_spark or not is_little(places, chosen, settings, "report"):
            spark = stack.enter_context(bulk.spark(session))
        progress = stack.enter_context(progress_shown())
        reported = report_places(
            spark,
            places,
            now=system_clock(),
            output=None if bulk.dry_run else output,
            tables_dir=tables_dir,
            progress=progress,
        )
    session.show(reported.to_json(), lambda: _text(reported))


def _text(reported: Reported) -> str:
    totals = reported.summary.totals
    names = f"{counted(totals.versions, 'version')} of {counted(totals.names, 'name')}"
    stored = {
        "stored": f"{size_text(totals.bytes)} in {names}",
        "latest": f"{size_text(totals.latest_bytes)} in latest versions",
        "duplicates": f"{size_text(totals.duplicate_bytes)} in copies beyond the first",
        "garbage": f"{size_text(totals.freed_bytes)} in {counted(totals.freed_versions, 'version')}"
        " that gc would remove",
        "deleted": f"{size_text(totals.deleted_bytes)} in {counted(totals.deleted_names, 'name')}",
    }
    nothing = {"stored": "nothing yet"}
    where = {"report": reported.output, "tables": reported.tables_dir}
    return fields({**(stored if totals.versions else nothing), **where})
