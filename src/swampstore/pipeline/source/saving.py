"""Saving what tasks have staged, on the driver: all of it in one commit, or nothing."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from swampstore.artifacts.versions import read_metadata
from swampstore.datastore_address import is_url
from swampstore.errors import SwampstoreError
from swampstore.layout import METADATA, RAW, DataRef
from swampstore.notices import notice
from swampstore.pipeline.errors import NotSavedError
from swampstore.repo import Repo, init_repo, open_repo
from swampstore.stores.errors import StoreError
from swampstore.sync.errors import IncompleteSyncError, SyncError

if TYPE_CHECKING:
    from swampstore.artifacts.metadata import Metadata
    from swampstore.layout import ModelRef
    from swampstore.pipeline.source.staging import Contents, Staged

_AGAIN = "Nothing has to be undone: run the job again."


def is_remote(target: str) -> bool:
    """Whether a target is a store, written as a URL or as a type with its members."""
    return is_url(target) or ":{" in target


@contextmanager
def opened(target: str, namespace: str) -> Iterator[Repo]:
    """Open the repository at a path; for a store, one that is thrown away afterwards."""
    if not is_remote(target):
        with open_repo(target) as repo:
            yield repo
        return
    with tempfile.TemporaryDirectory(prefix="swampstore-write-") as directory:
        own = {
            "SWAMP_HOME": os.path.join(directory, "home"),
            "SWAMP_DATASTORE": target,
            "SWAMP_NAMESPACE": namespace,
        }
        environ = {**os.environ, **own}
        init_repo(os.path.join(directory, "repo")).close()
        with open_repo(os.path.join(directory, "repo"), environ=environ) as repo:
            yield repo


def in_order(rows: Sequence[Staged]) -> list[Staged]:
    """Return rows in the order in which they become versions: by ordering, then as they stood.

    As in Spark nothing comes first, and what is no number last.
    """

    def position(row: Staged) -> tuple[DataRef, bool, bool, object, int, int]:
        ordering = row.drafted.ordering
        is_nan = ordering != ordering  # noqa: PLR0124 - only that is not equal to itself
        value = None if is_nan else ordering
        return row.drafted.ref, ordering is not None, is_nan, value, row.partition, row.row

    return sorted(rows, key=position)


def save_all(repo: Repo, rows: Sequence[Staged], contents: Contents) -> None:
    """Save every row as the next version of its name and push them, in one session.

    Raises NotSavedError, and what the session raises while nothing was saved yet.
    """
    work = _Work(repo, sorted({row.drafted.ref.model for row in rows}))
    try:
        work.save(rows, contents)
    except SwampstoreError as error:
        if work.is_saved:
            # What the session still had to do concerns others, and is done by the next one.
            notice("%s", error.message)
        elif work.taken_back:
            raise work.failed(error) from error
        else:
            raise


class _Work:
    """The session of one job, and how it is undone.

    `taken_back` are versions that were saved here, and are no longer; perhaps the remote has them.
    """

    def __init__(self, repo: Repo, models: Sequence[ModelRef]) -> None:
        self.is_saved = False
        self.taken_back: list[tuple[DataRef, Metadata]] = []
        self._repo = repo
        self._models = models
        self._is_doubtful = False

    def save(self, rows: Sequence[Staged], contents: Contents) -> None:
        """Save and push; what is saved here and cannot be pushed is removed again."""
        with self._repo.session(self._models) as session:
            if session.is_offline:
                raise NotSavedError(
                    "nothing was saved: the remote cannot be reached, or must not be", hint=_AGAIN
                )
            with self._repo.artifacts.deferring() as group:
                saved: list[tuple[DataRef, Metadata]] = []
                for row in in_order(rows):
                    ref, draft, *_ = row.drafted
                    saved.append((ref, group.save(ref, contents.of(row), draft)))
                self._repo.locks.verify()
            if self._repo.config.remote is not None:
                try:
                    self._push(self._repo.config.remote.sync_timeout)
                except BaseException:
                    self._take_back(saved)
                    raise
            self.is_saved = True

    def _push(self, deadline: float) -> None:
        """Upload, then commit; what could not be uploaded must not be missing from a commit."""
        prepared = self._repo.sync.prepare_push(self._models, deadline=deadline)
        if prepared.failures:
            raise IncompleteSyncError("push", prepared.failures)
        try:
            self._repo.sync.commit_push(prepared, deadline=deadline)
        except (StoreError, SyncError):
            # An answer may have got lost, and the commit have arrived all the same.
            self._is_doubtful = True
            raise

    def _take_back(self, saved: list[tuple[DataRef, Metadata]]) -> None:
        self.taken_back = saved
        versions: dict[DataRef, list[int]] = {}
        for ref, metadata in saved:
            versions.setdefault(ref, []).append(metadata.version)
        for ref, numbers in versions.items():
            self._repo.store.delete_versions(ref, numbers)

    def failed(self, error: SwampstoreError) -> NotSavedError:
        """Remove from the remote what got there, and return what to tell."""
        if self._remove_there() or not self._is_doubtful:
            hint = f"{error.hint} {_AGAIN}" if error.hint else _AGAIN
            return NotSavedError(f"nothing was saved: {error.message}", hint=hint)
        return NotSavedError(
            f"it is not known whether the rows were saved: {error.message}",
            hint="Look at the latest versions before you run the job again: the remote may show"
            " the rows as soon as somebody commits something else.",
        )

    def _remove_there(self) -> bool:
        """Take the versions off the remote, in a session of its own; tell whether that is sure.

        If they arrived, the session brings them back here, and their removal is pushed. If not,
        nobody was told of what did arrive, and it can be removed as it is.
        """
        try:
            with self._repo.session(self._models) as session:
                if session.is_offline:
                    return False
                untold: set[str] = set()
                for ref, metadata in self.taken_back:
                    found = read_metadata(self._repo.tree, ref, metadata.version)
                    if found is None:
                        untold |= self._files(ref, metadata.version)
                    elif found.id == metadata.id:
                        self._repo.store.delete_versions(ref, [metadata.version])
                self._repo.sync.remove(dict.fromkeys(untold))
        except SwampstoreError:
            return False
        return True

    def _files(self, ref: DataRef, version: int) -> set[str]:
        """Return the files of a version; the marker is one if the name has no other."""
        files = {ref.file_rel(version, METADATA), ref.file_rel(version, RAW)}
        is_only = self._repo.tree.size(ref.latest_rel) is None
        return files | {ref.latest_rel} if is_only else files
