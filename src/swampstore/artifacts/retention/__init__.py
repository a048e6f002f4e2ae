"""Retention as pure rules: facts in, a plan of removals out; no files, no clock.

A plan is the only source of what a preview shows and of what the real run does, so both always
say the same. Carrying plans out is left to whoever owns the files.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from swampstore.artifacts.retention.durations import (
    normalise_lifetime,
    normalise_policy,
    parse_duration,
)

if TYPE_CHECKING:
    from swampstore.artifacts.retention.plan import (
        ExpiryReason,
        GcPlan,
        NameFacts,
        Removal,
        VersionFacts,
        plan_gc,
    )
    from swampstore.artifacts.retention.prune import (
        CONTROL_PLANE_TYPES,
        DataTotals,
        ModelFacts,
        PrunePlan,
        plan_prune,
    )
    from swampstore.artifacts.retention.runs import (
        DEFAULT_RUN_RETENTION,
        TERMINAL_STATUSES,
        RunFacts,
        RunGcPlan,
        RunKind,
        plan_run_gc,
    )

__all__ = [
    "CONTROL_PLANE_TYPES",
    "DEFAULT_RUN_RETENTION",
    "TERMINAL_STATUSES",
    "DataTotals",
    "ExpiryReason",
    "GcPlan",
    "ModelFacts",
    "NameFacts",
    "PrunePlan",
    "Removal",
    "RunFacts",
    "RunGcPlan",
    "RunKind",
    "VersionFacts",
    "normalise_lifetime",
    "normalise_policy",
    "parse_duration",
    "plan_gc",
    "plan_prune",
    "plan_run_gc",
]

if not TYPE_CHECKING:  # a type checker that saw this would believe in any name at all

    def __getattr__(name: str) -> object:
        # Reading metadata needs the durations only; the planners load when somebody asks for one.
        if name in __all__:
            for part in ("plan", "prune", "runs"):
                module = import_module(f"{__name__}.{part}")
                if name in vars(module):
                    return vars(module)[name]
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
