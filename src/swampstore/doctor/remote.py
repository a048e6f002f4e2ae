"""The remote itself: does it answer, can it be trusted, and what the dead left there."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from swampstore.clock import Clock, to_iso
from swampstore.doctor import checks
from swampstore.doctor.findings import Finding, Problems
from swampstore.index.path_map import Names
from swampstore.locks.inspection import Deletions, LockState
from swampstore.locks.record import gate_key, global_key
from swampstore.stores import Store
from swampstore.stores.config import ALIASES
from swampstore.stores.errors import (
    ObjectNotFoundError,
    PreconditionFailedError,
    StoreCredentialsError,
    StoreError,
    StorePermissionError,
)
from swampstore.stores.probe import Health, probe
from swampstore.stores.s3 import UnfinishedUploads

if TYPE_CHECKING:
    from swampstore.locks.manager import LockManager


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
