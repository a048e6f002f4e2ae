"""Garbage collection of everything at once: planned on Spark, marked, and swept after a while."""

from __future__ import annotations

from swampstore.pipeline.collecting.in_place import gc_in_place, used_in_place
from swampstore.pipeline.collecting.job import GRACE, gc
from swampstore.pipeline.collecting.summary import Collected, Outcome

__all__ = ["GRACE", "Collected", "Outcome", "gc", "gc_in_place", "used_in_place"]
