"""Which of two states of a workflow run came after the other one: told by its steps, not by clocks.

A machine that comes back to a remote which it had left brings a record that went on elsewhere
meanwhile. Then theirs is not a change of somebody else's, but where the run was before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from swampstore import yaml_dialect
from swampstore.errors import SwampstoreError

_ENDED = 2
_RANKS = {"pending": 0, "running": 1, "waiting_approval": 1, "succeeded": 2, "failed": 2}
_RANKS["skipped"] = _ENDED
# What a step keeps once it has it.
_KEPT = ("approvalDecision", "childRunId")


def goes_on_from(before: bytes, after: bytes) -> bool:
    """Whether a record says all of what another one says, and more; False if that is not sure."""
    try:
        old = yaml_dialect.load_mapping(before, what="a record")
        new = yaml_dialect.load_mapping(after, what="a record")
        if any(old[key] != new[key] for key in ("id", "workflowId")):
            return False
        return _goes_on(_steps(old), _steps(new))
    except (SwampstoreError, AttributeError, KeyError, TypeError):
        return False


def _steps(record: Mapping[str, Any]) -> dict[tuple[str, str], Mapping[str, Any]]:
    return {
        (job["jobName"], step["stepName"]): step for job in record["jobs"] for step in job["steps"]
    }


def _goes_on(
    old: Mapping[tuple[str, str], Mapping[str, Any]],
    new: Mapping[tuple[str, str], Mapping[str, Any]],
) -> bool:
    has_more = False
    for place, step in old.items():
        now = new.get(place)
        if now is None:
            if step["status"] != "pending":
                return False
            continue  # expanded since
        if not _has_kept(step, now):
            return False
        has_more |= _is_further(step, now)
    return has_more


def _has_kept(step: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether nothing that was known of a step is missing, or another one, later on."""
    if _RANKS[now["status"]] < _RANKS[step["status"]] or not _outputs(step) <= _outputs(now):
        return False
    if _RANKS[step["status"]] == _ENDED and step["status"] != now["status"]:
        return _outputs(step) != _outputs(now)  # it ran again
    return all(step.get(key) in (None, now.get(key)) for key in _KEPT)


def _is_further(step: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    has_moved = _RANKS[now["status"]] > _RANKS[step["status"]]
    return has_moved or _outputs(now) > _outputs(step)


def _outputs(step: Mapping[str, Any]) -> set[str]:
    return set(step.get("outputs") or ())
