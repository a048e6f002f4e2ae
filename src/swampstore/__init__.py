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
    from swampstore.repo.results import Results

__version__ = "0.1.0"
__all__ = [
    "Artifact",
    "DataRef",
    "Draft",
    "Metadata",
    "ModelRef",
    "Owner",
    "Repo",
    "Results",
    "SwampstoreError",
    "__version__",
    "init_repo",
    "open_repo",
]
_HOMES = {
    "Artifact": "artifact",
    "DataRef": "layout",
    "Draft": "artifacts.metadata",
    "Metadata": "artifacts.metadata",
    "ModelRef": "layout",
    "Owner": "artifacts.metadata",
    "Repo": "repo",
    "Results": "repo.results",
    "init_repo": "repo",
    "open_repo": "repo",
}

if not TYPE_CHECKING:  # a type checker that saw this would believe in any name at all

    def __getattr__(name: str) -> object:
        # Nothing is imported before it is used: a command must not pay for what it leaves alone.
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
