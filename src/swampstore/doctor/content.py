"""Comparing all content that is on this disk with what was saved."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from swampstore.artifacts.content import vouch
from swampstore.doctor import checks
from swampstore.doctor.findings import Finding, Problems
from swampstore.errors import ContentDamagedError, SwampstoreError
from swampstore.files import disk_errors
from swampstore.layout import RAW, DataRef
from swampstore.notices import notice

if TYPE_CHECKING:
    from swampstore.repo import Repo


# Is told how many versions, and how many bytes, were compared so far.
ContentProgress = Callable[[int, int], None]
_KEPT = "_catalog.db-damaged"


class ContentChecks:
    """Reads the content of versions; with `repair`, the remote's takes the place of damage."""

    def __init__(self, repo: Repo, *, repair: bool, progress: ContentProgress) -> None:
        self._repo = repo
        self._tree = repo.tree
        self._repair = repair
        self._progress = progress
        self._problems = Problems(checks.HASHES)
        self._versions = self._bytes = self._unverified = 0

    def look_at(self, ref: DataRef, versions: Iterable[int]) -> None:
        """Compare the content of some versions of a name."""
        for version in versions:
            try:
                self._compare(ref, version)
            except ContentDamagedError as error:
                repaired = self._repair and error.is_there and self._bring(ref, version)
                path = self._tree.path(ref.file_rel(version, RAW))
                self._problems.add(f"{path}: {error.hint}", repaired=repaired)
            except SwampstoreError as error:
                self._problems.add(error.message)

    def _compare(self, ref: DataRef, version: int) -> None:
        path = self._tree.check_inside(ref.file_rel(version, RAW))
        with disk_errors(path):
            try:
                with open(path, "rb") as file:
                    digest = hashlib.file_digest(file, "sha256").hexdigest()
                    size = file.tell()
            except FileNotFoundError:
                return  # it is on the remote, or told of already
        self._versions += 1
        self._bytes += size
        self._progress(self._versions, self._bytes)
        if not vouch(self._tree, ref, version, digest, size, self._repo.known_there):
            self._unverified += 1

    def _bring(self, ref: DataRef, version: int) -> bool:
        """Keep a damaged file aside and fetch the remote's; tell whether that is here now."""
        raw, aside = (ref.file_rel(version, name) for name in (RAW, _KEPT))
        try:
            self._move(ref, raw, aside)
            try:
                if self._repo.sync.hydrate(raw):
                    self._compare(ref, version)
                    return True
            except BaseException:
                self._move(ref, aside, raw)
                raise
            self._move(ref, aside, raw)
        except SwampstoreError as error:
            notice("the content of %s version %d stays damaged: %s", ref, version, error.message)
        return False

    def _move(self, ref: DataRef, rel: str, target: str) -> None:
        with self._repo.mutations.receiving_many([ref], "land") as (reception,):
            reception.adopt(target, self._tree.shared_path(rel))
            self._repo.mutations.ledger.settle([ref.rel])

    def finding(self) -> Finding:
        """Return the outcome."""
        found = self._problems.finding(repair=self._repair)
        if not found.passed or not self._unverified:
            return found
        from dataclasses import replace

        message = f"{found.message}; {self._unverified} version(s) have nothing to compare with"
        return replace(found, message=message)
