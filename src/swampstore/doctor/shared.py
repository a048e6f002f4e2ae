"""The checks of a datastore with a remote: its cache, then the remote, as far as it answers."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from swampstore.doctor import checks
from swampstore.doctor import index as index_checks
from swampstore.doctor import remote as remote_checks
from swampstore.doctor.cache import CacheChecks
from swampstore.doctor.contamination import contamination
from swampstore.doctor.findings import Check, Finding
from swampstore.doctor.index import IndexCheck, ObjectCheck
from swampstore.errors import SwampstoreError
from swampstore.index.base_view import known_shards
from swampstore.index.documents import Documents
from swampstore.stores.config import store_config
from swampstore.stores.probe import examine as answer_of
from swampstore.stores.s3 import unfinished_uploads

if TYPE_CHECKING:
    from swampstore.repo import Repo
    from swampstore.sync.opening import Connection

_CONCURRENCY = 10


def examine_shared(repo: Repo, *, repair: bool, deep: bool) -> list[Finding]:
    """Return the findings about the cache and the remote of a repository.

    A remote that does not answer is one finding, and everything else is looked at all the same.
    """
    findings = (
        CacheChecks(repo, repair=repair).findings() if os.path.isdir(repo.config.base) else []
    )
    try:
        connection = repo.connection
    except SwampstoreError as error:
        return [*findings, remote_checks.unusable(error)]
    answer = answer_of(connection.store)
    findings.append(remote_checks.health(answer))
    if answer.healthy:
        documents = Documents(connection.store, connection.names, _CONCURRENCY)
        examination = _RemoteExamination(repo, connection, documents, repair=repair)
        findings += examination.findings(deep=deep)
    return findings


class _RemoteExamination:
    def __init__(
        self, repo: Repo, connection: Connection, documents: Documents, *, repair: bool
    ) -> None:
        self._repo = repo
        self._store = connection.store
        self._names = connection.names
        self._repair = repair
        self._documents = documents

    def findings(self, *, deep: bool) -> list[Finding]:
        remote = self._repo.config.remote
        assert remote is not None
        permitted = _tried(
            checks.PERMISSIONS,
            lambda: remote_checks.permissions(self._store, self._names, remote.kind),
        )
        findings = [permitted]
        if permitted.passed:
            findings += [
                _tried(checks.CONDITIONS, self._conditions),
                _tried(checks.LOCK_RECORDS, lambda: remote_checks.records(self._repo.locks)),
            ]
        findings += [
            _tried(checks.CLOCK, lambda: remote_checks.clocks(self._store, self._repo.clock)),
            _tried(checks.INDEX, self._index),
            _tried(checks.LOCKS, self._locks),
        ]
        if deep or self._repair:
            findings += self._objects()
        if deep:
            findings += self._unfinished_uploads()
        if self._repo.config.namespace:
            findings.append(_tried(checks.CONTAMINATION, self._contamination))
        return findings

    def _conditions(self) -> Finding:
        return remote_checks.conditions(self._store, self._repo.locks.deletions)

    def _index(self) -> Finding:
        found = self._look_at_index()
        if found.passed or not self._repair:
            return found
        is_healed = index_checks.heal(self._repo) and self._look_at_index().passed
        return replace(found, repaired=is_healed, remedy=None if is_healed else found.remedy)

    def _locks(self) -> Finding:
        return remote_checks.locks(self._repo.locks, repair=self._repair)

    def _look_at_index(self) -> Finding:
        known = known_shards(self._names.cache_dir)
        return IndexCheck(self._documents, self._store.clock(), known).run()

    def _contamination(self) -> Finding:
        return contamination(self._repo, repair=self._repair)

    def _unfinished_uploads(self) -> list[Finding]:
        """Look where a kind of store has them and tells of them."""
        remote = self._repo.config.remote
        assert remote is not None
        uploads = unfinished_uploads(store_config(remote.target, remote.config))
        if uploads is None:
            return []

        def look() -> Finding:
            now = self._store.clock()
            return remote_checks.unfinished_uploads(uploads, now, repair=self._repair)

        return [_tried(checks.UNFINISHED_UPLOADS, look)]

    def _objects(self) -> list[Finding]:
        try:
            missing, orphans = self._look_at_objects()
            if missing.passed or not self._repair:
                return [missing, orphans]
            self._repo.sync.push(full=True)  # uploads what is here and not there
            is_healed = self._look_at_objects()[0].passed
        except SwampstoreError as error:
            return [_not_possible(checks.OBJECTS, error)]
        remedy = None if is_healed else missing.remedy
        return [replace(missing, repaired=is_healed, remedy=remedy), orphans]

    def _look_at_objects(self) -> list[Finding]:
        return ObjectCheck(self._documents, self._names, self._store.clock()).run()


def examine_in_place(repo: Repo, *, repair: bool) -> list[Finding]:
    """Return the findings about a directory that several machines use in place."""
    findings = [_tried(checks.LOCKS, lambda: remote_checks.locks(repo.locks, repair=repair))]
    if repo.config.namespace:
        findings.append(_tried(checks.CONTAMINATION, lambda: contamination(repo, repair=repair)))
    return findings


def _tried(check: Check, look: Callable[[], Finding]) -> Finding:
    """Return what a check found; that it could not look is a finding, too."""
    try:
        return look()
    except SwampstoreError as error:
        return _not_possible(check, error)


def _not_possible(check: Check, error: SwampstoreError) -> Finding:
    message = f"this could not be looked at: {error.message}"
    return Finding(check.name, passed=False, message=message, remedy=error.hint)
