"""`swampstore pipeline verify` and `reindex`: what is stored, and what the index says of it."""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from swampstore.cli.command import command, pass_session
from swampstore.cli.options import engine_option
from swampstore.cli.pipeline import Bulk, grace_option, pipeline_options
from swampstore.cli.progress import progress_shown
from swampstore.cli.rendering import counted, printable, size_text
from swampstore.cli.row_formats import table
from swampstore.cli.session import Session
from swampstore.errors import EXIT_ERROR
from swampstore.formats import LARGEST_NUMBER, whole_number
from swampstore.pipeline.schemas import write_few_findings, write_findings

if TYPE_CHECKING:
    from swampstore.pipeline.reindex import Reindexed
    from swampstore.pipeline.settings import Engine
    from swampstore.pipeline.verify import Verified

_SHOWN = 20


class _Slice(click.ParamType[tuple[int, int]]):
    name = "k/n"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int]:
        """Read `k/n`."""
        if isinstance(value, tuple):
            return value
        number, _, count = map(whole_number, str(value).partition("/"))
        if not number or count is None or not number <= count <= LARGEST_NUMBER:
            shown = reprlib.repr(value)
            self.fail(f"{shown} is not k/n with k from 1 to n, such as 2/7", param, ctx)
        return number, count


@command(
    examples="""
    swampstore pipeline verify
    swampstore pipeline verify s3://bucket/prefix --shard 2/7 --findings damage.json
    swampstore pipeline verify --repair --dry-run
    swampstore pipeline verify --repair
    """
)
@click.option(
    "--shard",
    type=_Slice(),
    metavar="K/N",
    help="Only the Kth of N slices, so that N runs cover everything; a model is in one slice.",
)
@click.option(
    "--sample",
    type=click.FloatRange(0, 1, min_open=True),
    metavar="SHARE",
    help="Read this share of the content, such as 0.1; of the rest, compare names and sizes.",
)
@grace_option("What is younger may belong to a push that is going on, and is no failure.")
@click.option(
    "--work",
    metavar="DIR",
    help="Keep what was read here until all is done, so that a run that is stopped can go on;"
    " all executors must see it.  [default: below the repository, if Spark is on this machine]",
)
@click.option(
    "--repair",
    is_flag=True,
    help="Mend what can be mended; what is beyond that is set aside, and told.",
)
@engine_option
@pipeline_options
@pass_session
def verify(
    session: Session,
    *,
    shard: tuple[int, int] | None,
    sample: float | None,
    grace: int,
    work: str | None,
    repair: bool,
    engine: Engine | None,
    bulk: Bulk,
) -> None:
    """Hash everything and compare it with the index; the exit status is 1 if something is wrong."""
    from swampstore.pipeline.verify import verify as verify_places
    from swampstore.pipeline.verify.local_engine import verify_little

    if bulk.dry_run and not repair:
        raise click.UsageError("--dry-run is about --repair; without it, nothing is changed")
    places, settings = bulk.places(session), bulk.settings(session)
    chosen: dict[str, Any] = {
        "shard": shard,
        "sample": sample,
        "repair": repair,
        "dry_run": bulk.dry_run,
        "grace": timedelta(minutes=grace),
    }
    with progress_shown() as progress:
        little = verify_little(places, bulk.engine_of(engine, settings), settings, **chosen)
        if little is not None:
            verified = little
            _keep(verified, bulk)
        else:
            with bulk.spark(session) as spark:
                verified = verify_places(spark, places, work_dir=work, progress=progress, **chosen)
                _keep(verified, bulk)
    session.show(verified.to_json(), lambda: _text(verified))
    if not verified.ok:
        click.get_current_context().exit(EXIT_ERROR)


def _keep(verified: Verified, bulk: Bulk) -> None:
    if bulk.findings is None:
        return
    if isinstance(verified.findings, Sequence):
        write_few_findings([one._asdict() for one in verified.findings], bulk.findings)
    else:
        write_findings(verified.findings, bulk.findings)


def _text(verified: Verified) -> str:
    blocks = []
    if verified.first:
        rows = [
            [one.kind, "repaired" if one.repaired else "WRONG", printable(one.rel), one.detail]
            for one in verified.first[:_SHOWN]
        ]
        blocks.append(table(["kind", "result", "path", "detail"], rows))
        more = verified.open + verified.repaired + verified.lost - len(rows)
        if more > 0:
            blocks.append(f"... and {more} more; --findings PATH keeps them all")
    blocks += _repair_text(verified)
    blocks.append(_summary(verified))
    return "\n".join(blocks)


def _repair_text(verified: Verified) -> list[str]:
    words = {
        "document": "index documents written anew",
        "restore": "files restored from copies",
        "adopt": "files entered into the index",
        "write": "markers written",
        "quarantine": "objects moved to quarantine",
        "remove": "objects of deletions removed",
        "forget": "entries without an object taken out",
    }
    done = [
        f"{verified.actions[key]} {text}"
        for key, text in words.items()
        if verified.actions.get(key)
    ]
    told = []
    if done:
        told.append(f"{'Would be done' if verified.dry_run else 'Done'}: {', '.join(done)}.")
    if verified.quarantine:
        where = ", ".join(map(printable, verified.quarantine))
        told.append(f"Copies of all that was replaced or moved are in {where}.")
    return told


def _summary(verified: Verified) -> str:
    text = (
        f"Verified {counted(verified.objects, 'object')}, {size_text(verified.bytes)}:"
        f" {verified.open} wrong, {verified.repaired} repaired."
    )
    if verified.lost:
        verb = "WOULD BE LOST" if verified.dry_run else "LOST FOR GOOD"
        text += f" {verb}: {verified.lost}."
    return text if verified.open or verified.repaired or verified.lost else f"{text} All is well."


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
@engine_option
@pipeline_options
@pass_session
def reindex(
    session: Session, *, rehash: bool, grace: int, engine: Engine | None, bulk: Bulk
) -> None:
    """Make the index of a remote anew from what is stored there."""
    from swampstore.pipeline.reindex import reindex as reindex_places
    from swampstore.pipeline.reindex.local_engine import reindex_little

    places, settings = bulk.places(session), bulk.settings(session)
    chosen: dict[str, Any] = {
        "rehash": rehash,
        "grace": timedelta(minutes=grace),
        "dry_run": bulk.dry_run,
    }
    with progress_shown() as progress:
        little = reindex_little(places, bulk.engine_of(engine, settings), settings, **chosen)
        if little is not None:
            done = little
            _keep_reindexed(done, bulk)
        else:
            with bulk.spark(session) as spark:
                done = reindex_places(spark, places, progress=progress, **chosen)
                _keep_reindexed(done, bulk)
    session.show(done.to_json(), lambda: _reindexed_text(done))


def _keep_reindexed(done: Reindexed, bulk: Bulk) -> None:
    if bulk.findings is None:
        return
    if done.findings is None or isinstance(done.findings, list):
        write_few_findings(done.findings or [], bulk.findings)
    else:
        write_findings(done.findings, bulk.findings)


def _reindexed_text(done: Reindexed) -> str:
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
        lines.append(
            f"Left out, as young, half of a version, or of something else: {done.waiting}."
        )
    if done.contradicted:
        lines.append(
            f"Entries whose object is missing or another one: {done.contradicted};"
            " run `swampstore pipeline verify`."
        )
    verb = "that would be written" if done.dry_run else "written"
    lines.append(f"Documents {verb}: {done.documents}.")
    return "\n".join(lines)
