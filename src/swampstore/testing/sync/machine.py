"""What a sync service and the machine it runs on look like from outside."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from swampstore.layout import ModelRef


class SyncReport(Protocol):
    """What a push or a pull did."""

    @property
    def changes(self) -> int:
        """How many files were written or removed on the side that it changes."""


class SyncPreview(Protocol):
    """What a sync would do, by path (without the namespace)."""

    @property
    def push(self) -> Sequence[str]:
        """Files that would be sent."""

    @property
    def delete_remote(self) -> Sequence[str]:
        """Files that would be removed from the remote."""

    @property
    def pull(self) -> Sequence[str]:
        """Files that would be fetched."""

    @property
    def delete_local(self) -> Sequence[str]:
        """Files that would be removed from the cache."""


class SyncAbilities(Protocol):
    """What a service says it can do; tests of what it denies are skipped."""

    @property
    def scoped_sync(self) -> bool:
        """Whether `models` limits a sync."""

    @property
    def lazy_hydration(self) -> bool:
        """Whether `metadata_only` and `hydrate` work."""

    @property
    def namespaced_sync(self) -> bool:
        """Whether several namespaces may share a remote."""

    @property
    def two_phase_sync(self) -> bool:
        """Whether `prepare_push` and `commit_push` work."""


class CacheSync(Protocol):
    """The service under test: it keeps one cache and its remote equal."""

    def capabilities(self) -> SyncAbilities:
        """Say what it can do."""

    def mark_dirty(self, path: str | None = None) -> None:
        """Hear that a path, relative to the cache, is about to change; None: anything is."""

    def push(self, models: Iterable[ModelRef] | None = None) -> SyncReport:
        """Bring what changed here to the remote."""

    def prepare_push(self, models: Iterable[ModelRef] | None = None) -> Any:
        """Do all of a push that others cannot see."""

    def commit_push(self, prepared: Any) -> SyncReport:
        """Make visible what was prepared."""

    def pull(
        self, models: Iterable[ModelRef] | None = None, *, metadata_only: bool = False
    ) -> SyncReport:
        """Bring what changed elsewhere here."""

    def hydrate(self, path: str) -> bool:
        """Fetch the content of one path; False if the remote has none."""

    def preview(self, models: Iterable[ModelRef] | None = None) -> SyncPreview:
        """Say what a sync would do."""


class SyncMachine(Protocol):
    """One machine: a cache directory, and a service that syncs it with the shared remote."""

    @property
    def cache_dir(self) -> Path:
        """The cache; with a namespace, the files are in a directory of that name below it.

        The directory it is in belongs to this machine alone.
        """

    @property
    def namespace(self) -> str:
        """The namespace that it works in, empty for none."""

    @property
    def service(self) -> CacheSync:
        """The service."""

    def restart(self) -> None:
        """Go on with a new service on the same cache, as a new process would."""

    def offline(self) -> AbstractContextManager[None]:
        """Let no request reach the remote while the block runs."""


class NewMachine(Protocol):
    """Makes machines with empty caches, all of them on one remote."""

    def __call__(self, namespace: str = "") -> SyncMachine:
        """Return one more."""


class Plant(Protocol):
    """Puts files into the remote, and entries of them into its index, unchecked."""

    def __call__(self, machine: SyncMachine, files: Mapping[str, bytes]) -> None:
        """Do it, in the namespace of a machine; keys that the store refuses get an entry only."""
