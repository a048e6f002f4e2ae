"""`swampstore sync`: pull, push, and tell what that did and what it cost."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from swampstore.cli.command import command, pass_session
from swampstore.cli.options import (
    dry_run_option,
    engine_option,
    models_option,
    timeout_option,
)
from swampstore.cli.progress import progress_shown
from swampstore.cli.rendering import counted, named_lines, size_text
from swampstore.cli.session import Session
from swampstore.index.errors import NotPushedError
from swampstore.pipeline.engines import engine_transport
from swampstore.sync.run import SyncRun

if TYPE_CHECKING:
    from swampstore.index.results import Conflict, Preview, Pulled, Pushed, Skipped
    from swampstore.pipeline.settings import Engine
    from swampstore.repo import Repo
    from swampstore.stores.wrapper import Tally


@command(
    examples="""
    swampstore sync
    swampstore sync --pull --metadata-only
    swampstore sync --push --model aws/ec2/i-0abc
    swampstore sync --dry-run --json
    """
)
@click.option("--pull", is_flag=True, help="Only bring here what changed on the remote.")
@click.option("--push", is_flag=True, help="Only bring to the remote what changed here.")
@models_option
@click.option("--full", is_flag=True, help="Compare every file, not only what is said to change.")
@click.option("--metadata-only", is_flag=True, help="Leave content on the remote until it is read.")
@dry_run_option
@engine_option
@timeout_option
@pass_session
def sync(
    session: Session,
    *,
    pull: bool,
    push: bool,
    models: tuple[str, ...],
    full: bool,
    metadata_only: bool,
    dry_run: bool,
    engine: Engine | None,
    timeout: int | None,
) -> None:
    """Bring the cache and its remote together."""
    if pull and push:
        raise click.UsageError("--pull and --push exclude each other; without both, both is done")
    if push and metadata_only:
        raise click.UsageError("--metadata-only is about what is pulled, not about --push")
    with session.open_repo() as repo:
        scope = [repo.model(model) for model in models] or None
        lazy = metadata_only or None
        if dry_run:
            found = SyncRun(repo, scope, full=full, metadata_only=lazy).preview()
            _show_preview(session, found, pull=pull, push=push)
            return
        with (
            progress_shown() as progress,
            engine_transport(repo, engine, progress=progress) as transport,
        ):
            run = SyncRun(
                repo,
                scope,
                full=full,
                metadata_only=lazy,
                timeout=timeout,
                progress=transport.progress,
                transport=transport,
                transport_errors=transport.errors,
            )
            done = _run(session, repo, run, pull=not push, push=not pull)
        session.show(done.to_json(), lambda: _text(done))


def _run(session: Session, repo: Repo, run: SyncRun, *, pull: bool, push: bool) -> _Done:
    started = time.monotonic()
    try:
        run.run(pull=pull, push=push)
    except NotPushedError:
        if run.pulled and not session.json:
            session.note(_pulled_text(run.pulled))
        raise
    seconds = round(time.monotonic() - started, 3)
    return _Done(run.pulled, run.pushed, repo.connection.counting.tally(), seconds)


class _Done(NamedTuple):
    """What was done, half by half, and what it cost."""

    pulled: Pulled | None
    pushed: Pushed | None
    tally: Tally
    seconds: float

    @property
    def conflicts(self) -> tuple[Conflict, ...]:
        # A push settles what a pull before it could only find.
        return (self.pushed or self.pulled or _NOTHING).conflicts

    @property
    def skipped(self) -> list[Skipped]:
        both = [*(self.pulled or _NOTHING).skipped, *(self.pushed or _NOTHING).skipped]
        return list(dict.fromkeys(both))

    def to_json(self) -> dict[str, Any]:
        """Return the result document."""
        document: dict[str, Any] = {
            "mode": "full" if self.pulled and self.pushed else "pull" if self.pulled else "push"
        }
        if self.pulled:
            document["filesPulled"] = self.pulled.files
            document["bytesPulled"] = self.pulled.bytes
            document["filesDeletedHere"] = self.pulled.deleted
        if self.pushed:
            document["filesPushed"] = self.pushed.files
            document["bytesPushed"] = self.pushed.bytes
            document["filesDeletedRemotely"] = self.pushed.deleted
        return document | {
            "conflicts": [{"path": rel, "outcome": outcome} for rel, outcome in self.conflicts],
            "skipped": [{"path": rel, "reason": reason} for rel, reason in self.skipped],
            "requests": self.tally.requests,
            "bytesSent": self.tally.bytes_sent,
            "bytesReceived": self.tally.bytes_received,
            "seconds": self.seconds,
        }


class _Nothing(NamedTuple):
    conflicts: tuple[Conflict, ...] = ()
    skipped: tuple[Skipped, ...] = ()


_NOTHING = _Nothing()


# Text ----------------------------------------------------------------------------------------


def _text(done: _Done) -> str:
    lines: list[str] = []
    if done.pulled:
        lines.append(_pulled_text(done.pulled))
    if done.pushed:
        lines.append(
            f"Pushed {counted(done.pushed.files, 'file')}, {size_text(done.pushed.bytes)};"
            f" deleted {done.pushed.deleted} on the remote."
        )
    lines += named_lines("conflict", done.conflicts)
    lines += named_lines("skipped", done.skipped)
    requests = sum(done.tally.requests.values())
    kinds = ", ".join(f"{number} {kind}" for kind, number in sorted(done.tally.requests.items()))
    cost = f"{counted(requests, 'request')} ({kinds})" if requests else "no requests"
    lines.append(f"{cost}, {done.seconds} s.")
    return "\n".join(lines)


def _pulled_text(pulled: Pulled) -> str:
    return (
        f"Pulled {counted(pulled.files, 'file')}, {size_text(pulled.bytes)};"
        f" deleted {pulled.deleted} here."
    )


def _show_preview(session: Session, preview: Preview, *, pull: bool, push: bool) -> None:
    document: dict[str, Any] = {"dryRun": True}
    if not push:
        document |= {"pull": list(preview.pull), "deleteHere": list(preview.delete_local)}
        document["pullBytes"] = preview.pull_bytes
    if not pull:
        document |= {"push": list(preview.push), "deleteRemotely": list(preview.delete_remote)}
        document["pushBytes"] = preview.push_bytes
    document["conflicts"] = list(preview.conflicts)
    session.show(document, lambda: _preview_text(preview, pull=pull, push=push))


def _preview_text(preview: Preview, *, pull: bool, push: bool) -> str:
    lines: list[str] = []
    if not push:
        lines += named_lines("pull", preview.pull)
        lines += named_lines("delete here", preview.delete_local)
    if not pull:
        lines += named_lines("push", preview.push)
        lines += named_lines("delete on the remote", preview.delete_remote)
    lines += named_lines("settle", preview.conflicts)
    if not push:
        amount = counted(len(preview.pull), "file")
        lines.append(f"Would pull {amount}, {size_text(preview.pull_bytes)}.")
    if not pull:
        amount = counted(len(preview.push), "file")
        lines.append(f"Would push {amount}, {size_text(preview.push_bytes)}.")
    return "\n".join(lines)
