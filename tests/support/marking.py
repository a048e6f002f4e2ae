"""Markers by what a test asks for, so that nobody has to remember them: server, spark, slow."""

from __future__ import annotations

from pathlib import Path

import pytest

_SERVERS = frozenset({"s3_server", "gcs_server", "azure_server", "mongodb_server"})
_KINDS = frozenset({"s3", "gcs", "azure", "mongodb"})
_ROOT = Path(__file__).parents[1]
# They run processes, kill them, search for long, or follow whole pages: rooms, and single files.
# A single test of another file says `@pytest.mark.slow` itself.
_SLOW = frozenset(
    {
        "fleet",
        "docs",
        "artifacts/test_dead_writers.py",
        "artifacts/test_killed.py",
        "artifacts/test_many_processes.py",
        "artifacts/test_shareable_names.py",
        "audit/test_audit.py",
        "catalog/test_catalog.py",
        "catalog/test_query_equivalence.py",
        "cli/test_datastore.py",
        "cli/test_start.py",
        "cli/test_vault.py",
        "index/test_commit.py",
        "index/test_hazards_index.py",
        "index/test_path_map.py",
        "locks/test_foreign.py",
        "locks/test_model.py",
        "locks/test_processes.py",
        "pipeline/test_interrupted.py",
        "relocate/test_backup.py",
        "relocate/test_backup_killed.py",
        "relocate/test_backup_remote.py",
        "relocate/test_namespaces_migrating.py",
        "repo/test_newer_formats.py",
        "repo/test_sessions.py",
        "runs/test_cancelled_workflows.py",
        "runs/test_ending_runs.py",
        "runs/test_odd_names.py",
        "runs/test_workflow_killed.py",
        "runs/test_workflow_runs.py",
        "runs/test_workflow_shared.py",
        "retention/test_model_deletion.py",
        "runs/test_summaries.py",
        "runs/test_tracker.py",
        "stores/test_equivalence.py",
        "sync/test_bad_input.py",
        "sync/test_cache_bound.py",
        "sync/test_conformance.py",
        "sync/test_costs.py",
        "sync/test_stateful.py",
        "test_stress.py",
        "test_yaml_dialect.py",
        "vaults/test_killed.py",
        "vaults/test_redaction.py",
    }
)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out files of which every test would be left out: loading them takes long as well."""
    asked = config.getoption("markexpr")
    terms = [] if "(" in asked or " or " in asked else asked.split(" and ")
    path = collection_path.relative_to(_ROOT) if collection_path.is_relative_to(_ROOT) else Path()
    return (
        (_is_slow(path) and "not slow" in terms)
        or (path.parts[:1] == ("pipeline",) and "not spark" in terms)
        or None
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test."""
    for item in items:
        asked = set(getattr(item, "fixturenames", ()))
        path = item.path.relative_to(_ROOT)
        if asked & _SERVERS or _given(item) & _KINDS:
            item.add_marker(pytest.mark.server)
        if path.parts[0] == "pipeline" or "spark" in asked:
            item.add_marker(pytest.mark.spark)
        if _is_slow(path):
            item.add_marker(pytest.mark.slow)


def _is_slow(path: Path) -> bool:
    return path.as_posix() in _SLOW or any(part in _SLOW for part in path.parts[:1])


def _given(item: pytest.Item) -> set[str]:
    """Return the words that a test was parametrised with, those within tuples among them."""
    callspec = getattr(item, "callspec", None)
    values = callspec.params.values() if callspec else ()
    words = [one for value in values for one in (value if isinstance(value, tuple) else (value,))]
    return {word for word in words if isinstance(word, str)}
