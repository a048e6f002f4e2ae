"""`swampstore datastore setup`, `status`, `evict` and `migrate-index`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from swampstore.cli.command import command, pass_session
from swampstore.cli.options import timeout_option
from swampstore.cli.progress import progress_shown
from swampstore.cli.rendering import (
    counted,
    fields,
    named_lines,
    printable,
    size_text,
)
from swampstore.cli.row_formats import table
from swampstore.cli.session import Session
from swampstore.config import parse_size
from swampstore.datastore_address import FILESYSTEM, Address, read_members, without_secrets
from swampstore.redaction import without_credentials

if TYPE_CHECKING:
    from swampstore.config import Config, Hydration
    from swampstore.index.results import SyncStatus
    from swampstore.relocate.report import SetupReport
    from swampstore.relocate.setup import IndexKind
    from swampstore.repo import Repo
    from swampstore.stores.probe import Health, ProbeReport
    from swampstore.sync.evict import Evicted


@command(
    examples="""
    swampstore datastore setup s3://bucket/prefix
    swampstore datastore setup @swamp/gcs-datastore --config '{"bucket": "b"}' --namespace infra
    swampstore datastore setup file:///mnt/bucket --index sharded
    swampstore datastore setup filesystem
    """
)
@click.argument(
    "target",
    metavar="DATASTORE",
    help="A URL, the name of a type, filesystem, or filesystem:/path.",
)
@click.option("--config", metavar="JSON", help="The members that belong to the name of a type.")
@click.option(
    "--index",
    type=click.Choice(["v1", "sharded"]),
    help="The index of a new remote. Older clients only read v1.  [default: as it is, else v1]",
)
@click.option("--namespace", metavar="NAME", help="One more directory level.  [default: as it is]")
@click.option(
    "--hydration-strategy",
    "hydration",
    type=click.Choice(["lazy", "full"]),
    help="Fetch content when it is read, or with every pull.  [default: as it is, else lazy]",
)
@click.option("--skip-migration", is_flag=True, help="Leave the data where it is.")
@timeout_option
@pass_session
def setup(
    session: Session,
    target: str,
    config: str | None,
    index: IndexKind | None,
    namespace: str | None,
    hydration: Hydration | None,
    skip_migration: bool,
    timeout: int | None,
) -> None:
    """Give the repository another datastore.

    The data is taken along: copied, brought to the remote, and removed here once it is there.
    Nothing else should write to the repository meanwhile. If it is interrupted, run it again.
    """
    from swampstore.relocate.setup import set_up_datastore

    address = _address(target, config)
    with session.open_repo() as repo, progress_shown() as progress:
        report = set_up_datastore(
            repo,
            address,
            namespace=namespace,
            hydration=hydration,
            migrate=not skip_migration,
            index=index,
            timeout=timeout,
            progress=progress,
        )
    if os.environ.get("SWAMP_DATASTORE"):
        report.warnings.append("SWAMPSTORE_DATASTORE is set, and wins over what was written")
    session.show(report.to_json(), lambda: _setup_text(report))


def _address(target: str, config: str | None) -> Address:
    if ":" in target:
        if config is not None:
            raise click.UsageError("--config goes with the name of a type, not with a place")
        return Address.parse(target, "DATASTORE")
    if target == FILESYSTEM:
        return Address(FILESYSTEM)
    return Address(target, read_members(config or "{}", "--config"))


def _setup_text(report: SetupReport) -> str:
    lines = [f"The datastore is {report.type} now, at {printable(report.location)}."]
    lines.append(
        f"Copied {counted(report.files_copied, 'file')}, {size_text(report.bytes_copied)};"
        f" pushed {report.files_pushed}, pulled {report.files_pulled},"
        f" removed {report.files_removed} where they were."
    )
    lines += [f"warning: {printable(warning)}" for warning in report.warnings]
    return "\n".join(lines)


@command(
    examples="""
    swampstore datastore status
    swampstore datastore status --check --json
    """
)
@click.option("--check", is_flag=True, help="Ask the remote whether it answers and can be trusted.")
@pass_session
def status(session: Session, check: bool) -> None:
    """Show which datastore is used, and its state."""
    with session.open_repo() as repo:
        document = _settings(repo.config)
        if repo.config.remote is not None:
            document |= _remote_state(repo, check=check)
    session.show(document, lambda: _status_text(document))


def _settings(config: Config) -> dict[str, Any]:
    settings: dict[str, Any] = {"type": config.datastore_type, "namespace": config.namespace}
    if config.remote is None:
        settings["path"] = config.base
    else:
        settings |= {
            "target": without_credentials(config.remote.target),
            "config": {
                name: without_credentials(value) if isinstance(value, str) else value
                for name, value in without_secrets(config.remote.config).items()
            },
            "hydration": config.remote.hydration,
            "syncTimeout": config.remote.sync_timeout,
            "cacheDir": config.base,
            "maxBytes": config.remote.cache_limit,
        }
    return settings | {
        "directories": list(config.routing.subdirs),
        "exclude": list(config.routing.exclude),
    }


def _remote_state(repo: Repo, *, check: bool) -> dict[str, Any]:
    from swampstore.stores.directory import DirectoryStore
    from swampstore.stores.errors import StoreNotMountedError

    state = _sync_state(repo.sync.status())
    store = repo.connection.counting.inner
    try:
        if isinstance(store, DirectoryStore):
            store.reach()
    except StoreNotMountedError as error:
        return state | {"check": {"healthy": False, "message": error.message, "proofs": []}}
    if check:
        from swampstore.stores.probe import examine, probe

        health = examine(repo.connection.store)
        report = probe(repo.connection.store) if health.healthy else None
        if report is not None:
            repo.locks.deletions.learn(proven=report.proves_conditional_delete)
        state["check"] = _check(health, report)
    return state


def _sync_state(found: SyncStatus) -> dict[str, Any]:
    return {
        "identity": found.identity,
        "files": found.files,
        "bytes": found.bytes,
        "notHydrated": found.not_hydrated,
        "contentBytes": found.content_bytes,
        "dirtyPaths": list(found.dirty_paths),
        "needsFullWalk": found.needs_full_walk,
        "indexVersion": found.index_version,
        "commitSeq": found.commit_seq,
        "lastVerified": found.last_verified,
    }


def _check(health: Health, report: ProbeReport | None) -> dict[str, Any]:
    proofs = report.findings if report else ()
    return {
        "healthy": health.healthy and bool(report and report.ok),
        "message": health.error.message if health.error else "ok",
        "latencyMs": round(health.latency * 1000),
        "proofs": [{"name": one.name, "ok": one.ok, "problem": one.problem} for one in proofs],
    }


def _status_text(document: dict[str, Any]) -> str:
    shown = dict(document)
    check, dirty = shown.pop("check", None), shown.pop("dirtyPaths", [])
    for name in ("config", "directories", "exclude"):
        value = shown.pop(name, None)
        if value:
            members = value.items() if isinstance(value, dict) else []
            shown[name] = ", ".join([f"{key}={item}" for key, item in members] or value)
    if shown.get("maxBytes"):
        shown["maxBytes"] = size_text(shown["maxBytes"])
    if "syncTimeout" in shown:
        shown["syncTimeout"] = f"{shown['syncTimeout']:g} s"
    if "bytes" in shown:
        shown["bytes"] = size_text(shown["bytes"])
        shown["contentBytes"] = size_text(shown["contentBytes"])
        shown["needsFullWalk"] = "yes" if shown["needsFullWalk"] else "no"
        shown["dirtyPaths"] = len(dirty)
    blocks = [fields(shown)]
    if dirty:
        blocks.append("\n".join(named_lines("dirty", dirty)))
    if check:
        rows = [["answer", check["message"]]]
        if "latencyMs" in check:
            rows.append(["latency", f"{check['latencyMs']} ms"])
        rows += [[one["name"], one["problem"] or "ok"] for one in check["proofs"]]
        blocks.append(table(["check", "result"], rows))
    return "\n\n".join(blocks)


@command(
    examples="""
    swampstore datastore migrate-index
    swampstore datastore migrate-index --json
    """
)
@pass_session
def migrate_index(session: Session) -> None:
    """Make the index of the remote the sharded one."""
    with session.open_repo() as repo, repo.locks.everything():
        migrated = repo.sync.migrate_index()
    session.show(
        {
            "version": migrated.version,
            "partitions": migrated.partitions,
            "commitSeq": migrated.commit_seq,
        },
        lambda: (
            f"The index has version {migrated.version} and"
            f" {counted(migrated.partitions, 'partition')}; commit {migrated.commit_seq}."
        ),
    )


class SizeParam(click.ParamType[int]):
    """A number of bytes, with a unit or without."""

    name = "bytes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Read a number and its unit."""
        size = parse_size(str(value))
        if size is None:
            self.fail(f"{value!r} is no size, write for example 512mb or 20GB", param, ctx)
        return size


@command(
    examples="""
    swampstore datastore evict --to 5GB
    swampstore datastore evict --to 0 --dry-run
    swampstore datastore evict --json
    """
)
@click.option(
    "--to",
    "target",
    type=SizeParam(),
    metavar="BYTES",
    help="Leave so much here, such as 512mb.  [default: 90 % of datastore.cache.maxBytes]",
)
@click.option("--dry-run", is_flag=True, help="Only show what would go.")
@pass_session
def evict(session: Session, target: int | None, dry_run: bool) -> None:
    """Give up content here that the remote has as well.

    What was not used for the longest time goes first. Reading it again fetches it again. The remote
    is asked about each file right before; what it does not surely have always stays.
    """
    with session.open_repo() as repo:
        service, remote = repo.sync, repo.config.remote
        if target is None and remote is not None and remote.cache_limit is None:
            raise click.UsageError("Say how much to leave, with --to: the cache has no limit.")
        evicted = service.evict(target, dry_run=dry_run)
    document: dict[str, Any] = {"dryRun": True, "paths": list(evicted.rels)} if dry_run else {}
    document |= {
        "files": evicted.files,
        "bytes": evicted.bytes,
        "contentBytes": evicted.held,
        "unproven": list(evicted.unproven),
    }
    session.show(document, lambda: _evicted_text(evicted, dry_run=dry_run))


def _evicted_text(evicted: Evicted, *, dry_run: bool) -> str:
    lines: list[str] = []
    if dry_run:
        lines += named_lines("evict", evicted.rels)
    verb = "Would evict" if dry_run else "Evicted"
    amount = f"{counted(evicted.files, 'file')}, {size_text(evicted.bytes)}"
    lines.append(f"{verb} {amount}; {size_text(evicted.held)} of content stay here.")
    if evicted.unproven:
        from swampstore.sync.evict import why_it_stays

        lines.append(printable(why_it_stays(evicted.unproven)))
    return "\n".join(lines)
