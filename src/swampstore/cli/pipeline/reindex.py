"""`swampstore pipeline reindex`: the index of a remote, made anew from what is stored there."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import click

from swampstore.cli.command import command, pass_session
from swampstore.cli.pipeline import Bulk, grace_option, pipeline_options
from swampstore.cli.progress import progress_shown
from swampstore.cli.rendering import counted
from swampstore.cli.session import Session

if TYPE_CHECKING:
    from swampstore.pipeline.reindex import Reindexed


@command(
    examples="""
    swampstore pipeline reindex --dry-run
    swampstore pipeline reindex
    swampstore pipeline reindex s3://bucket/prefix --namespace infra --rehash
    swampstore pipeline reindex --findings changed.json
    """
)
@click.option(
    "--rehash",
    is_flag=True,
    help="Also compare the content of every object with the entry that is there.",
)
@grace_option(
    "Objects that no entry names are entered when they are older: a push may be going on."
)
@pipeline_options
@pass_session
def reindex(session: Session, *, rehash: bool, grace: int, bulk: Bulk) -> None:
    """Make the index of a remote anew from what is stored there."""
    from swampstore.pipeline.findings import write_few_findings, write_findings
    from swampstore.pipeline.reindex import reindex as reindex_places

    places = bulk.places(session)
    with bulk.spark(session) as spark, progress_shown() as tell:
        done = reindex_places(
            spark,
            places,
            rehash=rehash,
            grace=timedelta(minutes=grace),
            dry_run=bulk.dry_run,
            tell=tell,
        )
        if bulk.findings is not None:
            if done.findings is not None:
                write_findings(done.findings, bulk.findings)
            else:
                write_few_findings([], bulk.findings)
    session.show(done.to_json(), lambda: _text(done))


def _text(done: Reindexed) -> str:
    made = done.made + done.hashed
    lines = [
        f"{'Would name' if done.dry_run else 'The index names'} {counted(done.entries, 'file')}:"
        f" {done.kept} as before, {made} hashed, {done.adopted} new."
    ]
    if done.dropped:
        lines.append(f"Entries without meaning: {done.dropped}.")
    if done.leaving:
        lines.append(f"Left of deletions that go on: {counted(done.leaving, 'object')}.")
    if done.waiting:
        lines.append(f"Too young to be anything but a push: {counted(done.waiting, 'object')}.")
    if done.contradicted:
        lines.append(
            f"Entries whose object is missing or another one: {done.contradicted};"
            " run `swampstore pipeline verify`."
        )
    if not done.dry_run:
        lines.append(f"Documents written: {done.documents}.")
    return "\n".join(lines)
