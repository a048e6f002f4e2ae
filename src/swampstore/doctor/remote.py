"""The checks of a datastore that others see too: its cache, then the remote, as far as it answers.

Does the remote answer, can it be trusted, and what did the dead leave there? What is in its index
is for `index` to say, and what is in the cache for `cache`.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from swampstore.clock import Clock, to_iso
from swampstore.doctor import checks
from swampstore.doctor import index as index_checks
from swampstore.doctor.cache import CacheChecks
from swampstore.doctor.contamination import contamination
from swampstore.doctor.findings import Check, Finding, Problems
from swampstore.doctor.index import IndexCheck, ObjectCheck
from swampstore.errors import SwampstoreError
from swampstore.index.base_view import known_shards
from swampstore.index.documents import Documents
from swampstore.index.path_map import Names
from swampstore.locks.inspection import Deletions, LockState
from swampstore.locks.record import gate_key, global_key
from swampstore.stores import Store
from swampstore.stores.config import ALIASES, store_config
from swampstore.stores.errors import (
    ObjectNotFoundError,
    PreconditionFailedError,
    StoreCredentialsError,
    StoreError,
    StorePermissionError,
)
from swampstore.stores.probe import Health, probe
from swampstore.stores.probe import examine as answer_of
from swampstore.stores.protocol import admitted_limits
from swampstore.stores.s3 import UnfinishedUploads
from swampstore.stores.s3 import unfinished_uploads as uploads_of

if TYPE_CHECKING:
    from swampstore.locks.manager import LockManager
    from swampstore.repo import Repo
    from swampstore.sync.opening import Connection

_CONCURRENCY = 10


def examine_remote(repo: Repo, *, repair: bool, deep: bool) -> list[Finding]:
    """Return the findings about the cache and the remote of a repository.

    A remote that does not answer is one finding, and everything else is looked at all the same.
    """
    findings = (
        CacheChecks(repo, repair=repair).findings() if os.path.isdir(repo.config.base) else []
    )
    try:
        connection = repo.connection
    except SwampstoreError as error:
        return [*findings, unusable(error)]
    answer = answer_of(connection.store)
    findings.append(health(answer))
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
        self._unversioned = connection.service.version_without_meta
        self._repair = repair
        self._documents = documents

    def findings(self, *, deep: bool) -> list[Finding]:
        remote = self._repo.config.remote
        assert remote is not None
        permitted = _tried(
            checks.PERMISSIONS,
            lambda: permissions(self._store, self._names, remote.kind),
        )
        findings = [permitted]
        if permitted.passed:
            findings += [
                _tried(checks.CONDITIONS, self._conditions),
                _tried(checks.LOCK_RECORDS, lambda: records(self._repo.locks)),
            ]
        if self._store.capabilities.keeps_paths:
            findings.append(_tried(checks.TRANSACTIONS, lambda: promises(self._store)))
        findings += [
            _tried(checks.CLOCK, lambda: clocks(self._store, self._repo.clock)),
            _tried(checks.INDEX, self._index),
            _tried(checks.LOCKS, self._locks),
        ]
        if deep or self._repair:
            findings += self._objects()
        if deep:
            findings += self._unfinished_uploads()
            findings += self._unused_content()
        if self._repo.config.namespace:
            findings.append(_tried(checks.CONTAMINATION, self._contamination))
        return findings

    def _conditions(self) -> Finding:
        return conditions(self._store, self._repo.locks.deletions)

    def _index(self) -> Finding:
        found = self._look_at_index()
        if found.passed or not self._repair:
            return found
        is_healed = index_checks.heal(self._repo) and self._look_at_index().passed
        return replace(found, repaired=is_healed, remedy=None if is_healed else found.remedy)

    def _locks(self) -> Finding:
        return locks(self._repo.locks, repair=self._repair)

    def _look_at_index(self) -> Finding:
        known = known_shards(self._names.cache_dir)
        return IndexCheck(self._documents, self._unversioned, self._store.clock(), known).run()

    def _contamination(self) -> Finding:
        return contamination(self._repo, repair=self._repair)

    def _unfinished_uploads(self) -> list[Finding]:
        """Look where a kind of store has them and tells of them."""
        remote = self._repo.config.remote
        assert remote is not None
        uploads = uploads_of(store_config(remote.target, remote.config))
        if uploads is None:
            return []

        def look() -> Finding:
            now = self._store.clock()
            return unfinished_uploads(uploads, now, repair=self._repair)

        return [_tried(checks.UNFINISHED_UPLOADS, look)]

    def _unused_content(self) -> list[Finding]:
        """Look where content is kept by its hash, apart from what names it."""
        if not self._store.capabilities.keeps_paths:
            return []
        return [_tried(checks.UNUSED_CONTENT, self._sweep)]

    def _sweep(self) -> Finding:
        from swampstore.stores.mongodb_store import database_of

        problems = Problems(checks.UNUSED_CONTENT)
        database = database_of(self._store)
        if database is None:
            return problems.finding()
        namespace = self._names.namespace
        if self._repair:
            with self._repo.locks.everything():
                found = database.sweep(namespace, remove=True, check=self._repo.locks.verify)
        else:
            found = database.sweep(namespace, remove=False)
        if found.unused:
            problems.count, problems.repaired = found.unused, found.removed
            problems.details.append(f"{found.bytes} bytes")
        return problems.finding(repair=self._repair)

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
        return ObjectCheck(
            self._documents, self._unversioned, self._names, self._store.clock()
        ).run()


def examine_in_place(repo: Repo, *, repair: bool) -> list[Finding]:
    """Return the findings about a directory that several machines use in place."""
    findings = [_tried(checks.LOCKS, lambda: locks(repo.locks, repair=repair))]
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


def locks(manager: LockManager, *, repair: bool) -> Finding:
    """Look at every lock of a namespace; with `repair`, remove those that nobody holds any more."""
    problems = Problems(checks.LOCKS)
    for state in _all_locks(manager):
        if state.is_stale:
            is_gone = repair and manager.force_release(state.key, state.nonce)
            problems.add(
                f"{state.key}: {state.holder}, last refreshed {state.age:.0f} s ago",
                repaired=is_gone,
            )
    return problems.finding(repair=repair)


def records(manager: LockManager) -> Finding:
    """Tell whether locks that are given back leave something that other clients stumble over."""
    problems = Problems(checks.LOCK_RECORDS)
    if not manager.deletions.are_proven():
        problems.add(manager.store.identity)
    return problems.finding()


def _all_locks(manager: LockManager) -> list[LockState]:
    single = [manager.inspect(key(manager.namespace)) for key in (global_key, gate_key)]
    of_models = [state for _, state in manager.registered_models()]
    return [*(state for state in single if state is not None), *of_models]


# Nobody takes that long for one object.
ABANDONED = timedelta(days=1)


def unfinished_uploads(uploads: UnfinishedUploads, now: datetime, *, repair: bool) -> Finding:
    """Name the uploads that nobody will finish any more; a repair aborts them."""
    problems = Problems(checks.UNFINISHED_UPLOADS)
    for one in uploads.list():
        if one.begun < now - ABANDONED:
            if repair:
                uploads.abort(one)
            problems.add(f"{one.key}, begun {to_iso(one.begun)}", repaired=repair)
    return problems.finding(repair=repair)


# Seconds by which clocks may differ: stores date to a second, and answers take their time.
TOLERANCE = 30.0
# Fewer than a setup lets race: whether conditions are ignored shows with these, too.
_RACERS = 8
_SCRATCH = "_control/doctor"

# What the owner of a bucket has to grant, by kind of store.
_GRANTS: Mapping[str, Mapping[str, str]] = {
    "s3": {
        "list": "s3:ListBucket on the bucket",
        "write": "s3:PutObject",
        "read": "s3:GetObject",
        "create": "s3:PutObject, also with If-None-Match",
        "update": "s3:PutObject, also with If-Match",
        "delete": "s3:DeleteObject",
    },
    "gs": {
        "list": "storage.objects.list",
        "write": "storage.objects.create and storage.objects.delete",
        "read": "storage.objects.get",
        "create": "storage.objects.create",
        "update": "storage.objects.create and storage.objects.delete",
        "delete": "storage.objects.delete",
    },
    "az": dict.fromkeys(
        ("list", "write", "read", "create", "update", "delete"),
        "the role Storage Blob Data Contributor on the container",
    ),
}


def health(found: Health) -> Finding:
    """Say whether the remote answered, and how fast."""
    if found.error is not None:
        return unusable(found.error)
    message = f"{found.identity} answers in {found.latency * 1000:.0f} ms"
    return Finding(checks.HEALTH.name, passed=True, message=message)


def unusable(error: StoreError | Exception) -> Finding:
    """Say why the remote cannot be used at all."""
    message = f"{checks.HEALTH.wrong}: {getattr(error, 'message', error)}"
    remedy = getattr(error, "hint", None) or checks.HEALTH.remedy
    return Finding(checks.HEALTH.name, passed=False, message=message, remedy=remedy)


def permissions(store: Store, names: Names, kind: str) -> Finding:
    """Try everything that a sync does, one by one, on an object that is removed again."""
    problems = Problems(checks.PERMISSIONS)
    trial = _Trial(store, names.remote(f"{_SCRATCH}/{uuid.uuid4()}"))
    missing = []
    for name, attempt in trial.attempts.items():
        try:
            attempt()
        except (ObjectNotFoundError, PreconditionFailedError):
            continue  # an answer to the question is no refusal to answer it
        except (StorePermissionError, StoreCredentialsError) as error:
            missing.append(name)
            problems.add(f"{name}: {error.message}")
        except StoreError as error:
            problems.add(f"{name} was not possible: {error.message}")
    trial.clean_up()
    found = problems.finding()
    if not missing:
        return found
    grants = _GRANTS.get(ALIASES.get(kind, kind), {})
    needed = dict.fromkeys(grants.get(name, f"the right to {name} objects") for name in missing)
    return replace(
        found,
        message=f"{found.message}: {', '.join(missing)}",
        remedy=f"Grant the credentials in use: {'; '.join(needed)}.",
    )


class _Trial:
    def __init__(self, store: Store, key: str) -> None:
        self._store = store
        self._key = key
        self._token = ""
        self.attempts: dict[str, Callable[[], object]] = {
            "list": lambda: next(store.list(f"{key}/"), None),
            "write": self._write,
            "read": lambda: store.get(key),
            "update": lambda: store.put_if_match(key, b"doctor, again", self._token),
            "create": lambda: store.put_if_absent(f"{key}-new", b"doctor"),
            "delete": self._delete,
        }

    def _write(self) -> None:
        self._token = self._store.put(self._key, b"doctor").token

    def _delete(self) -> None:
        for key in (self._key, f"{self._key}-new"):
            self._store.delete(key)

    def clean_up(self) -> None:
        with contextlib.suppress(StoreError):
            self._delete()


def conditions(store: Store, deletions: Deletions) -> Finding:
    """Let writers race for one object: exactly one of them may win.

    What is seen of deletions on the way is remembered for locks.
    """
    problems = Problems(checks.CONDITIONS)
    report = probe(store, racers=_RACERS)
    deletions.learn(proven=report.proves_conditional_delete)
    for proof in report.findings:
        if proof.is_required and not proof.ok:
            problems.add(f"{proof.name}: {proof.problem}")
    return problems.finding()


def promises(store: Store) -> Finding:
    """Tell what the server of a database says that it does not promise."""
    problems = Problems(checks.TRANSACTIONS)
    for limit in admitted_limits(store):
        problems.add(f"{limit.name}: {limit.problem}")
    return problems.finding()


def clocks(store: Store, ours: Clock) -> Finding:
    """Compare the remote's clock with ours."""
    before = ours()
    theirs = store.clock()
    after = ours()
    skew = (before + (after - before) / 2 - theirs).total_seconds()
    if abs(skew) <= TOLERANCE:
        return Finding(checks.CLOCK.name, passed=True, message=checks.CLOCK.sound)
    problems = Problems(checks.CLOCK)
    problems.add(
        f"the clock of this machine is {abs(skew):.0f} s"
        f" {'ahead of' if skew > 0 else 'behind'} that of {store.identity}"
    )
    return problems.finding()
