"""Retention: how long data lives, which versions are too many, and removing what is over.

Start with `rules` (what garbage collection keeps, without touching anything) and `lifetimes` (the
words that metadata says it in). `plan` applies the rules to rows from anywhere, `apply` removes
what a plan says, after another look under the lock of each name. The commands are in `data_gc`,
`data_prune`, `model_deletion` and `runs`: each of `DataGc`, `DataPrune`, `ModelDeletion` and
`RunGc` plans when it is made and offers `preview()` and `run()`, which tell of the same plan; `gc`,
`prune`, `delete_model` and `run_gc` do both at once.

It may import `repo` and what is below it. Of it, artifacts import `lifetimes`
only, because saving checks the words; so the rest is loaded when somebody asks for it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from swampstore.retention.data_gc import DataGc, GcReport, auto_gc_model, gc
    from swampstore.retention.data_prune import DataPrune, PruneReport, prune
    from swampstore.retention.model_deletion import (
        ModelDeletion,
        ModelDeletionReport,
        delete_model,
    )
    from swampstore.retention.runs import RunGc, RunGcReport, run_gc

__all__ = [
    "DataGc",
    "DataPrune",
    "GcReport",
    "ModelDeletion",
    "ModelDeletionReport",
    "PruneReport",
    "RunGc",
    "RunGcReport",
    "auto_gc_model",
    "delete_model",
    "gc",
    "prune",
    "run_gc",
]

if not TYPE_CHECKING:  # a type checker that saw this would believe in any name at all

    def __getattr__(name: str) -> object:
        if name in __all__:
            for part in ("data_gc", "data_prune", "model_deletion", "runs"):
                module = import_module(f"{__name__}.{part}")
                if name in vars(module):
                    return vars(module)[name]
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
