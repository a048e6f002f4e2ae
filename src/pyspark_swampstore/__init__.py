"""What makes `format("swampstore")` known to Spark: it looks for modules with this kind of name.

Every session finds the source by itself where swampstore is installed; see
docs/reference/tables.md. There is nothing else here.
"""

from __future__ import annotations

from contextlib import suppress

# Spark imports this for the sources of others too: a missing extra of ours must not break those.
with suppress(ImportError):
    from swampstore.pipeline.source import SwampstoreSource as DefaultSource

__all__ = ["DefaultSource"]
