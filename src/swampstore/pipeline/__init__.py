"""Bulk work on Spark: everything that costs as much as there is data.

Importing this package imports neither Spark nor Java; calling one of its functions does.

Start with `places` (where data is) and `tables` (how it looks to Spark, by way of `source`). There
is a file or a folder for each job: `verify`, `reindex`, `copy`, `gc`, `report`, `syncing`,
`catalog`, `export` and `snapshots`. They share `spark` (the session), `running` (functions
as tasks), `planning` (who reads what), `evidence` (what is there, read once) and `index_writer`.
`engines` chooses between threads and Spark, whose `transfers` carry files. It may import
everything but `cli`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from swampstore.pipeline.places import Place, places_of
    from swampstore.pipeline.source import register
    from swampstore.pipeline.spark.session import session, ship
    from swampstore.pipeline.tables import Tables, load

_HOMES = {
    "Place": "places",
    "Tables": "tables",
    "load": "tables",
    "places_of": "places",
    "register": "source",
    "session": "spark.session",
    "ship": "spark.session",
}

__all__ = ["Place", "Tables", "load", "places_of", "register", "session", "ship"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
