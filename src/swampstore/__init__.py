"""swampstore: versioned artifacts on local disk, with a catalog, a query language and retention.

>>> import swampstore
>>> repo = swampstore.open_repo()            # doctest: +SKIP
>>> repo.latest("aws/ec2/i-123", "state")    # doctest: +SKIP
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from swampstore.errors import SwampstoreError

if TYPE_CHECKING:
    from swampstore.artifact import Artifact
    from swampstore.artifacts.metadata import Draft, Metadata, Owner
    from swampstore.layout import DataRef, ModelRef
    from swampstore.repo import Repo, init_repo, open_repo
    from swampstore.repo.querying import Results
    from swampstore.runs.context import MethodContext
    from swampstore.runs.method_request import MethodResult
    from swampstore.runs.method_run import run
    from swampstore.runs.models import File, Resource, check, method, model
    from swampstore.runs.reports import report

__version__ = "0.1.0"
__all__ = [
    "Artifact",
    "DataRef",
    "Draft",
    "File",
    "Metadata",
    "MethodContext",
    "MethodResult",
    "ModelRef",
    "Owner",
    "Repo",
    "Resource",
    "Results",
    "SwampstoreError",
    "__version__",
    "check",
    "init_repo",
    "method",
    "model",
    "open_repo",
    "report",
    "run",
]
_HOMES = {
    "Artifact": "artifact",
    "DataRef": "layout",
    "Draft": "artifacts.metadata",
    "File": "runs.models",
    "Metadata": "artifacts.metadata",
    "MethodContext": "runs.context",
    "MethodResult": "runs.method_request",
    "ModelRef": "layout",
    "Owner": "artifacts.metadata",
    "Repo": "repo",
    "Resource": "runs.models",
    "Results": "repo.querying",
    "check": "runs.models",
    "init_repo": "repo",
    "method": "runs.models",
    "model": "runs.models",
    "open_repo": "repo",
    "report": "runs.reports",
    "run": "runs.method_run",
}
_MODULES = ("errors", "pipeline", "testing")

if not TYPE_CHECKING:  # a type checker that saw this would believe in any name at all

    def __getattr__(name: str) -> object:
        # Nothing is imported before it is used: a command must not pay for what it leaves alone.
        if name in _MODULES:
            return import_module(f"{__name__}.{name}")
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)

    def __dir__() -> list[str]:
        # Completion knows what was not imported yet, and only what is public.
        return sorted({*__all__, *_MODULES})
