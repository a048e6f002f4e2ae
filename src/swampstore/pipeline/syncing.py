"""Pushing and pulling everything: the full walk of a cache, and filling an empty one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from swampstore.index.results import Conflict, Skipped, no_progress
from swampstore.pipeline.engines import Chosen, choose, engine_transport
from swampstore.pipeline.settings import settings_of

if TYPE_CHECKING:
    from swampstore.index.results import Preview, Progress, Pulled, Pushed
    from swampstore.pipeline.settings import Engine, SparkSettings
    from swampstore.repo import Repo

Direction = Literal["push", "pull"]
_TO_SETTLE = "both sides changed it; both are kept"


@dataclass(frozen=True, slots=True)
class Synced:
    """What a push or a pull of everything did, or with `dry_run` would do.

    `engine` is who carried the files, and `requests` counts those of everybody who did.
    """

    job: Direction
    engine: Chosen
    files: int
    bytes: int
    deleted: int
    conflicts: tuple[Conflict, ...]
    skipped: tuple[Skipped, ...]
    requests: int
    seconds: float
    dry_run: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the result document."""
        return {
            "job": self.job,
            "engine": self.engine,
            "dryRun": self.dry_run,
            "files": self.files,
            "bytes": self.bytes,
            "deleted": self.deleted,
            "conflicts": [{"path": rel, "outcome": outcome} for rel, outcome in self.conflicts],
            "skipped": [{"path": rel, "reason": reason} for rel, reason in self.skipped],
            "requests": self.requests,
            "seconds": self.seconds,
        }


def push(
    repo: Repo,
    *,
    engine: Engine | None = None,
    settings: SparkSettings | None = None,
    dry_run: bool = False,
    deadline: float | None = None,
    progress: Progress = no_progress,
) -> Synced:
    """Compare every file of a cache with the base, and bring to the remote what it does not have.

    `engine` and `settings` are the repository's if they are None, `deadline` is in seconds. Raises
    what `SyncService.push` raises, and FilesNotSeenError if Spark was asked for and its executors
    do not see the cache. Whatever is not on the remote then stays marked.
    """
    began = time.monotonic()
    settings = settings or settings_of(repo.config)
    service = repo.sync
    if dry_run:
        found = service.preview(full=True)
        chosen = choose(
            engine or settings.engine, files=len(found.push), settings=settings, job="push"
        )
        return _would(repo, "push", chosen, found, began)
    repo.export_catalog()
    with engine_transport(repo, engine, settings=settings, progress=progress) as transport:
        pushed = service.push(
            full=True, deadline=deadline, progress=transport.progress, transport=transport
        )
        return _did(repo, "push", transport.used, pushed, began)


def pull(
    repo: Repo,
    *,
    engine: Engine | None = None,
    settings: SparkSettings | None = None,
    metadata_only: bool | None = None,
    dry_run: bool = False,
    deadline: float | None = None,
    progress: Progress = no_progress,
) -> Synced:
    """Compare the whole index with the files of a cache, and bring here what is missing.

    `metadata_only` is what the repository's hydration strategy says if it is None; see `push` for
    the rest. What was installed when this is stopped is kept.
    """
    began = time.monotonic()
    settings = settings or settings_of(repo.config)
    service = repo.sync
    if dry_run:
        found = service.preview(metadata_only=metadata_only, full=True)
        chosen = choose(
            engine or settings.engine, files=len(found.pull), settings=settings, job="pull"
        )
        return _would(repo, "pull", chosen, found, began)
    with engine_transport(repo, engine, settings=settings, progress=progress) as transport:
        pulled = service.pull(
            metadata_only=metadata_only,
            full=True,
            deadline=deadline,
            progress=transport.progress,
            transport=transport,
        )
        return _did(repo, "pull", transport.used, pulled, began)


def _did(repo: Repo, job: Direction, engine: Chosen, done: Pushed | Pulled, began: float) -> Synced:
    return Synced(
        job=job,
        engine=engine,
        files=done.files,
        bytes=done.bytes,
        deleted=done.deleted,
        conflicts=done.conflicts,
        skipped=done.skipped,
        requests=_requests(repo),
        seconds=round(time.monotonic() - began, 3),
    )


def _would(repo: Repo, job: Direction, engine: Chosen, found: Preview, began: float) -> Synced:
    is_push = job == "push"
    return Synced(
        job=job,
        engine=engine,
        files=len(found.push if is_push else found.pull),
        bytes=found.push_bytes if is_push else found.pull_bytes,
        deleted=len(found.delete_remote if is_push else found.delete_local),
        conflicts=tuple(Conflict(rel, _TO_SETTLE) for rel in found.conflicts),
        skipped=(),
        requests=_requests(repo),
        seconds=round(time.monotonic() - began, 3),
        dry_run=True,
    )


def _requests(repo: Repo) -> int:
    return sum(repo.connection.counting.tally().requests.values())


def findings(synced: Synced, store: str, namespace: str) -> Iterator[dict[str, Any]]:
    """Yield what was found on the way as rows of the table of findings."""
    place = {"store": store, "namespace": namespace}
    for rel, outcome in synced.conflicts:
        yield {**place, "kind": "conflict", "rel": rel, "detail": outcome, "severity": "warning"}
    for rel, reason in synced.skipped:
        yield {**place, "kind": "skipped", "rel": rel, "detail": reason, "severity": "warning"}
