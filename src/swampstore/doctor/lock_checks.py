"""Locks of a datastore whose holders are gone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swampstore.doctor import checks
from swampstore.doctor.findings import Finding, Problems
from swampstore.locks.inspection import LockState
from swampstore.locks.record import gate_key, global_key

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
