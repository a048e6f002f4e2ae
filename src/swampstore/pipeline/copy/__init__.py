"""Copying a datastore to another store: verified, resumable, incremental, and never over anything.

Nothing is deleted at the target, and nothing there is replaced but what was copied from the same
source before, `latest` markers that are behind, and what can be computed again.
"""

from __future__ import annotations

from swampstore.pipeline.copy.job import copy
from swampstore.pipeline.copy.outcomes import Copied, Finding, findings_table

__all__ = ["Copied", "Finding", "copy", "findings_table"]
