"""Markers by what a test asks for, so that nobody has to remember them: server, spark, slow."""

from __future__ import annotations

from pathlib import Path

import pytest

_SERVERS = frozenset({"s3_server", "gcs_server", "azure_server"})
_KINDS = frozenset({"s3", "gcs", "azure"})
_ROOT = Path(__file__).parents[1]
# They run processes, kill them, search for long, or follow whole pages.
_SLOW = frozenset({"fleet", "docs"})


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test."""
    for item in items:
        asked = set(getattr(item, "fixturenames", ()))
        callspec = getattr(item, "callspec", None)
        given = (
            {value for value in callspec.params.values() if isinstance(value, str)}
            if callspec
            else set()
        )
        if asked & _SERVERS or given & _KINDS:
            item.add_marker(pytest.mark.server)
        room = item.path.relative_to(_ROOT).parts[0]
        if room == "pipeline" or "spark" in asked:
            item.add_marker(pytest.mark.spark)
        if room in _SLOW:
            item.add_marker(pytest.mark.slow)
