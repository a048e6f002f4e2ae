"""Retention over a repository: facts from its catalog and files, plans, and carrying them out.

What may go is decided by the pure rules of `swampstore.artifacts.retention`. Each of `DataGc`,
`DataPrune` and `RunGc` plans when it is made and then offers `preview()` and `run()`, which tell
of the same plan; `gc`, `prune` and `run_gc` do both steps in one call.
"""

from __future__ import annotations

from swampstore.retention.data_gc import DataGc, GcReport, auto_gc_model, gc
from swampstore.retention.data_prune import DataPrune, PruneReport, prune
from swampstore.retention.run_gc import RunGc, RunGcReport, run_gc

__all__ = [
    "DataGc",
    "DataPrune",
    "GcReport",
    "PruneReport",
    "RunGc",
    "RunGcReport",
    "auto_gc_model",
    "gc",
    "prune",
    "run_gc",
]
