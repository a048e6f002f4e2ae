"""`swampstore sync`: pull, push, and tell what that did and what it cost."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from swampstore.cli.arguments import complete_model, engine_option, timeout_option
from swampstore.cli.command import command, pass_session
from swampstore.cli.rendering import counted, printable, size_text
from swampstore.cli.session import Session
from swampstore.errors import EXIT_NOT_PUSHED

if TYPE_CHECKING:
    from swampstore.layout import ModelRef
    from swampstore.pipeline.engines import EngineCarrier
    from swampstore.pipeline.settings import Engine
    from swampstore.repo import Repo
    from swampstore.stores.counting import Tally
    from swampstore.sync.report import Conflict, Preview, Pulled, Pushed, Skipped

_NAMED = 20


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
@click.option(
    "--model",
    "models",
    multiple=True,
    metavar="MODEL",
    shell_complete=complete_model,
    help="Only what belongs to a model, TYPE/ID or its name; may be repeated.",
)
@click.option("--full", is_flag=True, help="Compare every file, not only what is said to change.")
@click.option("--metadata-only", is_flag=True, help="Leave content on the remote until it is read.")
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
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
        if dry_run:
            found = repo.sync.preview(scope, metadata_only=_is_lazy(repo, metadata_only), full=full)
            _show_preview(session, found, pull=pull, push=push)
            return
        run = _Run(session, repo, scope, full=full, metadata_only=metadata_only, timeout=timeout)
        done = run.go(engine, pull=not push, push=not pull)
        session.show(done.to_json(), lambda: _text(done))


def _is_lazy(repo: Repo, metadata_only: bool) -> bool:
    remote = repo.config.remote
    return metadata_only or (remote is not None and remote.hydration == "lazy")


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


class _Run:
    def __init__(
        self,
        session: Session,
        repo: Repo,
        scope: Sequence[ModelRef] | None,
        *,
        full: bool,
        metadata_only: bool,
        timeout: int | None,
    ) -> None:
        connection, remote = repo.connection, repo.config.remote
        assert remote is not None
        self._session = session
        self._repo = repo
        self._service = connection.service
        self._counting = connection.counting
        self._scope = scope
        self._full = full
        self._metadata_only = _is_lazy(repo, metadata_only)
        self._deadline = timeout or remote.sync_timeout

    def go(self, engine: Engine | None, *, pull: bool, push: bool) -> _Done:
        """Pull, push, and pull again if the push made room for something of others."""
        from swampstore.cli.progress import progress_shown
        from swampstore.pipeline.engines import carrying
        from swampstore.sync.errors import IncompleteSyncError

        started = time.monotonic()
        pulled: Pulled | None = None
        pushed: Pushed | None = None
        failed: IncompleteSyncError | None = None
        with progress_shown() as tell, carrying(self._repo, engine, tell=tell) as carrier:
            try:
                pulled = self._pull(carrier) if pull else None
            except IncompleteSyncError as error:
                failed = error  # what others did to a file is no reason to keep our work from them
            if push:
                pushed = self._push(pulled, carrier)
            if pulled and pushed and pushed.conflicts:
                pulled = _added(pulled, self._pull(carrier))
        if failed:
            raise failed
        seconds = round(time.monotonic() - started, 3)
        return _Done(pulled, pushed, self._counting.tally(), seconds)

    def _pull(self, carrier: EngineCarrier) -> Pulled:
        from swampstore.sync.report import Step

        carrier.tell(Step("pull", 0, 0, 0, 0))
        return self._service.pull(
            self._scope,
            metadata_only=self._metadata_only,
            full=self._full,
            deadline=self._deadline,
            progress=carrier.tell,
            carrier=carrier,
        )

    def _push(self, pulled: Pulled | None, carrier: EngineCarrier) -> Pushed:
        from swampstore.sync.errors import NotPushedError
        from swampstore.sync.report import Step

        carrier.tell(Step("push", 0, 0, 0, 0))
        self._repo.export_catalog()
        try:
            with saying_what_stays():
                return self._service.push(
                    self._scope,
                    full=self._full,
                    deadline=self._deadline,
                    progress=carrier.tell,
                    carrier=carrier,
                )
        except NotPushedError:
            if pulled and not self._session.json:
                self._session.note(_pulled_text(pulled))
            raise


@contextmanager
def saying_what_stays() -> Iterator[None]:
    """Raise what keeps a push from its end as NotPushedError: nothing is lost by that."""
    from swampstore.pipeline.errors import FilesNotSeenError, SparkJobError
    from swampstore.stores.errors import StoreError
    from swampstore.sync.errors import NotPushedError, SyncError

    try:
        yield
    except (FilesNotSeenError, SparkJobError, StoreError, SyncError) as error:
        if error.exit_status == EXIT_NOT_PUSHED:
            raise
        raise NotPushedError(
            f"the data is safe here, but not all of it is on the remote: {error.message}",
            hint=error.hint,
        ) from error


def _added(first: Pulled, second: Pulled) -> Pulled:
    from swampstore.sync.report import Pulled

    return Pulled(
        first.files + second.files,
        first.bytes + second.bytes,
        first.deleted + second.deleted,
        second.conflicts,
        first.skipped + second.skipped,
    )


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


def named_lines(what: str, found: Sequence[tuple[str, str]]) -> list[str]:
    """Return one line per path with what is said of it; many are counted instead."""
    lines = [f"{what}: {printable(rel)}: {printable(said)}" for rel, said in found[:_NAMED]]
    if len(found) > _NAMED:
        lines.append(f"{what}: ... and {len(found) - _NAMED} more")
    return lines


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
        lines += _path_lines("pull", preview.pull)
        lines += _path_lines("delete here", preview.delete_local)
    if not pull:
        lines += _path_lines("push", preview.push)
        lines += _path_lines("delete on the remote", preview.delete_remote)
    lines += _path_lines("settle", preview.conflicts)
    if not push:
        amount = counted(len(preview.pull), "file")
        lines.append(f"Would pull {amount}, {size_text(preview.pull_bytes)}.")
    if not pull:
        amount = counted(len(preview.push), "file")
        lines.append(f"Would push {amount}, {size_text(preview.push_bytes)}.")
    return "\n".join(lines)


def _path_lines(what: str, rels: Iterable[str]) -> list[str]:
    paths = list(rels)
    lines = [f"{what}: {printable(rel)}" for rel in paths[:_NAMED]]
    if len(paths) > _NAMED:
        lines.append(f"{what}: ... and {len(paths) - _NAMED} more")
    return lines
