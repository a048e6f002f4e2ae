"""`swampstore pipeline catalog`: catalogs of namespaces as Parquet, and the local one."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from swampstore.catalog.rebuild import forget
from swampstore.cli.catalog import RebuildProgress, rebuilt_text
from swampstore.cli.command import command, pass_session
from swampstore.cli.options import engine_option
from swampstore.cli.pipeline import Bulk, pipeline_options
from swampstore.cli.progress import progress_shown
from swampstore.cli.rendering import counted, printable
from swampstore.cli.session import Session
from swampstore.pipeline.catalog import finding, rebuild
from swampstore.pipeline.schemas import write_few_findings

if TYPE_CHECKING:
    from swampstore.catalog.rebuild import Noted
    from swampstore.pipeline.catalog import Rebuilt
    from swampstore.pipeline.catalog_export import Exported
    from swampstore.pipeline.settings import Engine
    from swampstore.pipeline.snapshots.refresh import Refreshed


@command(
    examples="""
    swampstore pipeline catalog --engine spark
    swampstore pipeline catalog --findings left-out.json
    swampstore pipeline catalog --namespace '*' --output catalogs
    swampstore pipeline catalog s3://bucket/prefix --output catalogs --json
    swampstore pipeline catalog s3://bucket/prefix --refresh
    """
)
@pipeline_options
@click.option("--output", metavar="DIR", help="Write the catalogs there, as one Parquet table.")
@click.option(
    "--refresh",
    is_flag=True,
    help="Make the snapshot, which tables are read from, what the index is now.",
)
@click.option(
    "--keep",
    type=click.IntRange(0, 3650),
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
    refresh: bool,
    keep: int,
    sqlite: bool | None,
    engine: Engine | None,
) -> None:
    """Make catalogs anew: of any namespaces as Parquet, as snapshots, and the local one."""
    is_local = sqlite if sqlite is not None else not (bulk.target or bulk.namespaces or refresh)
    if not is_local and output is None and not refresh:
        raise click.UsageError("say where the catalogs should go, --output DIR, or --refresh")
    if bulk.target is not None and is_local:
        raise click.UsageError("--sqlite is about the repository here, not about a target")
    with ExitStack() as stack:
        refreshed = _refreshed(session, bulk, engine, keep) if refresh else []
        exported = None
        found: list[dict[str, Any]] = []
        if output is not None:
            from swampstore.pipeline.catalog_export import export

            spark = stack.enter_context(bulk.spark(session))
            with progress_shown() as progress:
                exported = export(
                    spark,
                    bulk.places(session),
                    output,
                    findings=bulk.findings is not None,
                    dry_run=bulk.dry_run,
                    progress=progress,
                )
            if exported.findings is not None:
                found += (row.asDict() for row in exported.findings.collect())
        # Within the same session, if one was started.
        rebuilt = _rebuilt(session, bulk, engine, found) if is_local else None
    if bulk.findings is not None:
        write_few_findings(found, bulk.findings)
    document = {
        "job": "catalog",
        "dryRun": bulk.dry_run,
        "parquet": exported and exported.to_json(),
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
        amount = counted(sum(exported.rows.values()), "version")
        of = counted(len(exported.rows), "namespace")
        verb = "Would write" if dry_run else "Wrote"
        lines.append(f"{verb} {amount} of {of} to {printable(exported.output)}.")
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
