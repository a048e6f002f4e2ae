"""The cache of a remote: its bookkeeping, what is missing from it, what waits in it.

Only a repair asks the remote anything.
"""

from __future__ import annotations

import os
import sqlite3
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from swampstore.clock import to_iso
from swampstore.doctor import checks
from swampstore.doctor.findings import Finding, Problems
from swampstore.errors import SwampstoreError
from swampstore.files import disk_errors
from swampstore.files.sqlite_file import not_its_fault
from swampstore.index.base import BASE
from swampstore.index.base_view import BaseView
from swampstore.index.path_kinds import CONFLICTS, is_copy_of_derived
from swampstore.index.path_map import Names
from swampstore.layout import EXCHANGE, RAW, is_temp
from swampstore.notices import notice
from swampstore.sync.downloads import STAGING_AGE, sweep_staging
from swampstore.sync.hashing import hash_file
from swampstore.sync.scan import is_covered
from swampstore.sync.staged_cache import staged_caches

if TYPE_CHECKING:
    from swampstore.repo import Repo


# Looking at the time of each marked path is only worth while for so many of them.
_DATED = 1000


class CacheChecks:
    """Looks at the cache of a repository."""

    def __init__(self, repo: Repo, *, repair: bool) -> None:
        config = repo.config
        self._repo = repo
        self._repair = repair
        self._cache = config.base
        self._names = Names(config.base, config.namespace, config.routing)
        self._marked = repo.dirty.peek()

    def findings(self) -> list[Finding]:
        """Return the outcome of every check of the cache."""
        bookkeeping = Problems(checks.CACHE)
        absent = Problems(checks.CACHE_COMPLETENESS)
        never_came = 0
        if os.path.lexists(f"{self._cache}/{BASE}"):
            never_came = self._look_at_base(bookkeeping, absent)
        self._look_at_marks(bookkeeping)
        complete = absent.finding(repair=self._repair)
        if never_came and complete.passed:
            message = f"{complete.message}; {never_came} file(s) stay there until they are read"
            complete = replace(complete, message=message)
        return [
            bookkeeping.finding(repair=self._repair),
            complete,
            self._leftovers(),
            self._unpushed(),
            self._conflicts(),
        ]

    # Bookkeeping ---------------------------------------------------------------------------

    def _look_at_base(self, bookkeeping: Problems, absent: Problems) -> int:
        """Look at the base and at what it knows; return how many files never came here."""
        view = None
        try:
            view = BaseView(self._cache)
            complaint = view.complaint()
            if not complaint and not self._is_ours(view):
                return 0  # of another remote: the next sync starts with an empty one
            if not complaint:
                self._look_for_absent(view, absent)
                return view.not_held()
        except sqlite3.Error as error:
            if kept_from := not_its_fault(f"{self._cache}/{BASE}", error):
                bookkeeping.add(kept_from.message)
                return 0
            complaint = str(error)
        finally:
            if view is not None:
                view.close()
        bookkeeping.add(f"{self._cache}/{BASE}: {complaint}", repaired=self._start_base_afresh())
        return 0

    def _is_ours(self, view: BaseView) -> bool:
        try:
            identity = self._repo.connection.store.identity
        except SwampstoreError:
            return True  # the remote is not there; most likely it is still the same
        return view.owner() == f"{identity}#{self._repo.config.namespace}"

    def _look_for_absent(self, view: BaseView, absent: Problems) -> None:
        for rel in self._absent(view):
            absent.add(self._names.local(rel))
            if self._repair:
                self._clear_the_way(rel, view)
        if absent.count and self._repair and self._pull():
            absent.repaired = absent.count - sum(1 for _ in self._absent(view))

    def _clear_the_way(self, rel: str, view: BaseView) -> None:
        """Remove what is left of a version, if the remote has the same: a pull would spare it."""
        version_rel = os.path.dirname(rel)
        raw = f"{version_rel}/{RAW}"
        try:
            left = os.listdir(self._names.local(version_rel))
            if left not in ([], [RAW]):
                return
            sha256 = hash_file(self._names.local(raw))[0] if left else None
            if not sha256 or (sha256 == view.sha256(raw) and self._is_on_remote(raw, sha256)):
                with self._repo.tree.receiving(os.path.dirname(version_rel)) as reception:
                    if left:
                        reception.remove(raw)
                    reception.remove_empty_dir(version_rel)
        except FileNotFoundError:
            return

    def _is_on_remote(self, rel: str, sha256: str) -> bool:
        """Whether the remote has this content; it is read, since ours may be the last that is."""
        try:
            with disk_errors("a temporary file"), tempfile.TemporaryFile() as file:
                key = self._names.remote(rel)
                self._repo.connection.store.download(key, file.fileno(), sha256=sha256)
        except SwampstoreError as error:
            notice("%s stays as it is: %s", self._names.local(rel), error.message)
            return False
        return True

    def _pull(self) -> bool:
        try:
            self._repo.sync.pull(full=True, metadata_only=None)
        except SwampstoreError as error:
            notice("what is missing from the cache stays missing: %s", error.message)
            return False
        return True

    def _absent(self, view: BaseView) -> Iterator[str]:
        """Yield the metadata that was here and is not, though nobody deleted it."""
        removals = {self._names.rel_of_mark(mark) or "" for mark in self._marked.removals}
        for rel in view.metadata():
            if not os.path.lexists(self._names.local(rel)) and not is_covered(rel, removals):
                yield rel

    def _start_base_afresh(self) -> bool:
        if not self._repair:
            return False
        try:
            connection = self._repo.connection
            with connection.service.holding_cache():  # a sync would note what it did without it
                connection.base.clear()
        except SwampstoreError as error:
            notice("the base of the cache stays as it is: %s", error.message)
            return False
        return True

    def _look_at_marks(self, bookkeeping: Problems) -> None:
        damaged = self._repo.dirty.damage()
        if damaged and self._repair:
            self._repo.dirty.mark()  # what they said counted as everything; now they say so
        left = self._repo.dirty.damage() if damaged else []
        for name in damaged:
            bookkeeping.add(
                f"{self._cache}/{name}: everything counts as changed here",
                repaired=name not in left,
            )

    # Leftovers -----------------------------------------------------------------------------

    def _leftovers(self) -> Finding:
        problems = Problems(checks.CACHE_LEFTOVERS)
        now = self._repo.clock().timestamp()
        old = list(self._old_temps(now - STAGING_AGE))
        if old and self._repair:
            sweep_staging(self._names, now)
        for path in old:
            problems.add(path, repaired=self._repair and not os.path.lexists(path))
        announcement = f"{self._repo.config.local_dir}/{EXCHANGE}"
        unfinished = [announcement] if os.path.lexists(announcement) else []
        for path in (*unfinished, *staged_caches(self._cache)):
            problems.add(f"{path}: a setup was not finished")
        return problems.finding(repair=self._repair)

    def _old_temps(self, before: float) -> Iterator[str]:
        with os.scandir(self._cache) as found:
            for entry in found:
                if is_temp(entry.name) and entry.stat(follow_symlinks=False).st_mtime <= before:
                    yield entry.path

    # What waits ----------------------------------------------------------------------------

    def _unpushed(self) -> Finding:
        problems = Problems(checks.UNPUSHED)
        paths = [mark for mark in self._marked.paths if self._names.rel_of_mark(mark) is not None]
        for path in paths:
            problems.add(path)
        if self._marked.bulk:
            problems.add("any file may have changed: the next push compares them all")
        found = problems.finding()
        oldest = self._oldest(paths)
        if oldest is None:
            return found
        return replace(found, message=f"{found.message}; the oldest since {to_iso(oldest)}")

    def _oldest(self, paths: list[str]) -> datetime | None:
        times = []
        for path in paths[:_DATED]:
            try:
                times.append(os.lstat(f"{self._cache}/{path}").st_mtime)
            except OSError:
                continue  # it was deleted, or is about to be written
        return datetime.fromtimestamp(min(times), UTC) if times else None

    def _conflicts(self) -> Finding:
        problems = Problems(checks.CONFLICTS)
        for where, directories, files in os.walk(self._names.local(CONFLICTS)):
            directories.sort()
            for name in sorted(files):
                if not is_temp(name):
                    path = f"{where}/{name}"
                    rel = os.path.relpath(path, self._names.root)
                    problems.add(path, repaired=self._repair and self._is_gone(rel))
        return problems.finding(repair=self._repair and problems.repaired > 0)

    def _is_gone(self, rel: str) -> bool:
        """Remove a copy of what is computed again anyway, for everybody; say whether it was one."""
        if not is_copy_of_derived(rel):
            return False
        with self._repo.tree.changing(rel) as change:
            change.remove(rel)
        return True
