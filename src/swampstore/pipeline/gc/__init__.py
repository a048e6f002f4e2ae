"""Garbage collection of everything at once: planned on Spark, marked, and swept after a while.

`job` is the way through it: `candidates` finds what is garbage, `marks` writes it down, and what
has been marked for long enough is looked at again (`recheck`) and removed (`sweep`). What is
garbage is decided by `swampstore.retention`, which `planner` runs inside Spark's tasks.
"""

from __future__ import annotations

from swampstore.pipeline.gc.job import (
    GRACE,
    Collected,
    Outcome,
    gc,
    gc_in_place,
    used_in_place,
)

__all__ = ["GRACE", "Collected", "Outcome", "gc", "gc_in_place", "used_in_place"]
