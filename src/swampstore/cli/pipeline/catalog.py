"""`swampstore pipeline catalog`: catalogs of namespaces for other engines, and the local one."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from swampstore.catalog.rebuild import forget
from swampstore.cli.catalog import RebuildProgress, rebuilt_text
from swampstore.cli.command import command, pass_session
from swampstore.cli.options import Whole, engine_option
from swampstore.cli.pipeline import Bulk, pipeline_options
from swampstore.cli.progress import progress_shown
from swampstore.cli.rendering import counted, printable
from swampstore.cli.session import Session
from swampstore.pipeline.catalog import finding, rebuild
from swampstore.pipeline.schemas import run_id, write_few_findings

if TYPE_CHECKING:
    from swampstore.catalog.rebuild import Noted
    from swampstore.pipeline.catalog import Rebuilt
    from swampstore.pipeline.export import Exported, Format
    from swampstore.pipeline.settings import Engine
    from swampstore.pipeline.snapshots.refresh import Refreshed


@command(
    examples="""
    swampstore pipeline catalog --engine spark
    swampstore pipeline catalog --findings left-out.json
    swampstore pipeline catalog --namespace '*' --output catalogs
    swampstore pipeline catalog s3://bucket/prefix --output s3://lake/artifacts --format delta
    swampstore pipeline catalog s3://bucket/prefix --refresh
    """
)
@pipeline_options
@click.option(
    "--output",
    metavar="URL",
    help="Make the table there, at a path or a URL, what the catalogs are; write what changed.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["delta", "parquet"]),
    default="parquet",
    show_default=True,
    help="What the table is: a Delta table, or Parquet files by namespace and day.",
)
@click.option(
    "--changes",
    metavar="DIRECTORY",
    help="Add what is inserted, updated and deleted to the Parquet files there, with a run id.",
)
@click.option(
    "--refresh",
    is_flag=True,
    help="Make the snapshot, which tables are read from, what the index is now.",
)
@click.option(
    "--keep",
    type=Whole(0, 3650),
    default=7,
    show_default=True,
    metavar="DAYS",
    help="How long a snapshot can be read that was replaced.",
)
@click.option(
    "--sqlite/--no-sqlite",
    default=None,
    help="Rebuild the local catalog from the files."
    "  [default: if neither a target, a namespace nor --refresh is given]",
)
@engine_option
@pass_session
def catalog(
    session: Session,
    *,
    bulk: Bulk,
    output: str | None,
    form: Format,
    changes: str | None,
    refresh: bool,
    keep: int,
    sqlite: bool | None,
    engine: Engine | None,
) -> None:
    """Make catalogs anew: for other engines, as snapshots, and the local one."""
    is_local = sqlite if sqlite is not None else not (bulk.target or bulk.namespaces or refresh)
    if not is_local and output is None and not refresh:
        raise click.UsageError("say where the catalogs should go, --output URL, or --refresh")
    if changes is not None and output is None:
        raise click.UsageError("--changes is about a table: say which one, --output URL")
    if bulk.target is not None and is_local:
        raise click.UsageError("--sqlite is about the repository here, not about a target")
    with ExitStack() as stack:
        refreshed = _refreshed(session, bulk, engine, keep) if refresh else []
        exported = None
        found: list[dict[str, Any]] = []
        if output is not None:
            exported = _exported(session, bulk, engine, keep, output, form, changes)
            if bulk.findings is not None:
                from swampstore.pipeline.tables import lacking_versions

                spark = stack.enter_context(bulk.spark(session))
                lacking = lacking_versions(spark, bulk.places(session))
                found += (row.asDict() for row in lacking.collect())
        # Within the same session, if one was started.
        rebuilt = _rebuilt(session, bulk, engine, found) if is_local else None
    if bulk.findings is not None:
        write_few_findings(found, bulk.findings)
    document = {
        "job": "catalog",
        "dryRun": bulk.dry_run,
        "runId": run_id(),
        "export": exported and exported.to_json(),
        "sqlite": rebuilt and rebuilt.to_json(),
        "snapshots": [one.to_json() for one in refreshed],
    }
    session.show(document, lambda: _text(refreshed, exported, rebuilt, dry_run=bulk.dry_run))


def _refreshed(session: Session, bulk: Bulk, engine: Engine | None, keep: int) -> list[Refreshed]:
    from swampstore.pipeline.snapshots.refresh import refresh

    with progress_shown() as progress:
        return refresh(
            bulk.places(session),
            engine=engine,
            settings=bulk.settings(session),
            retention=timedelta(days=keep),
            dry_run=bulk.dry_run,
            progress=progress,
        )


def _exported(
    session: Session,
    bulk: Bulk,
    engine: Engine | None,
    keep: int,
    output: str,
    form: Format,
    changes: str | None,
) -> Exported:
    from swampstore.pipeline.export import export

    with progress_shown() as progress:
        return export(
            bulk.places(session),
            output,
            form=form,
            engine=engine,
            settings=bulk.settings(session),
            retention=timedelta(days=keep),
            changes=changes,
            dry_run=bulk.dry_run,
            progress=progress,
        )


def _rebuilt(
    session: Session, bulk: Bulk, engine: Engine | None, found: list[dict[str, Any]]
) -> Rebuilt:
    """Rebuild the local catalog; add what is noteworthy to what was found."""
    settings = bulk.settings(session)
    with session.open_repo() as repo, RebuildProgress(session) as progress:
        store, namespace = f"file://{repo.tree.base}", repo.config.namespace

        def keep(noted: Noted) -> None:
            found.append(finding(noted, store, namespace))

        return rebuild(
            repo,
            engine=engine,
            settings=settings,
            progress=progress,
            note=keep if bulk.findings else forget,
            dry_run=bulk.dry_run,
        )


def _text(
    refreshed: Sequence[Refreshed],
    exported: Exported | None,
    rebuilt: Rebuilt | None,
    *,
    dry_run: bool,
) -> str:
    lines = [_snapshot_text(one) for one in refreshed]
    if exported:
        lines.append(_export_text(exported, dry_run=dry_run))
    if rebuilt:
        verb = "Would read" if dry_run else "Read"
        by = "by Spark" if rebuilt.engine == "spark" else "by this process"
        lines.append(f"{verb} the files {by}: {rebuilt_text(rebuilt)}")
    return "\n".join(lines)


def _snapshot_text(one: Refreshed) -> str:
    where = printable(f"{one.store}#{one.namespace}" if one.namespace else one.store)
    changed = counted(one.changed, "shard")
    if one.dry_run:
        return f"Would read {changed} for the snapshot of {where}."
    if not one.written and not one.read:
        return f"Snapshot {one.number} of {where}: nothing changed since."
    left = f"; {counted(one.left, 'shard')} left out, read live" if one.left else ""
    amount = counted(one.rows, "version")
    return f"Snapshot {one.number} of {where}: {amount}, {changed} changed{left}."


def _export_text(one: Exported, *, dry_run: bool) -> str:
    where = printable(one.output)
    if not (one.inserted or one.updated or one.deleted):
        return f"Nothing changed for {where}."
    done = (f"{one.inserted} inserted", f"{one.updated} updated", f"{one.deleted} deleted")
    told = ", ".join(text for text in done if not text.startswith("0 "))
    if dry_run:
        return f"Would write to {where}: {told}."
    amount = counted(sum(one.rows.values()), "version")
    return f"Wrote to {where}: {told}; it has {amount} now."
