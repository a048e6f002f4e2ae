"""Parts get what they work with; only the places that put parts together make them."""

from __future__ import annotations

import ast
from pathlib import Path

import swampstore

SOURCE = Path(swampstore.__file__).parent
OF_AN_INDEX = {"index/remote_index.py"}
OF_A_SYNC = {"sync/opening.py"}
OF_A_JOB = {"pipeline/index_writer.py"}
OF_A_BACKUP = {"relocate/backup/remote_source.py"}  # a base that lasts for one reading
OF_A_REPOSITORY = {"repo/open.py"}
OF_A_HANDOVER = {"sync/handover.py"}  # no remote is needed to finish what a setup was stopped at
# Who makes which part.
MAKERS = {
    "RemoteIndex": OF_AN_INDEX,
    "IndexContext": OF_AN_INDEX,
    "Recovery": OF_AN_INDEX,
    "StoredFiles": OF_AN_INDEX,
    "Matching": OF_AN_INDEX,
    "LocalCopy": OF_AN_INDEX,
    "Watch": OF_AN_INDEX,
    "SyncService": OF_A_SYNC,
    "SyncContext": OF_A_SYNC,
    "CacheLock": OF_A_SYNC,
    "CacheBound": OF_A_SYNC,
    "Base": OF_A_SYNC | OF_A_JOB | OF_A_BACKUP | OF_A_HANDOVER,
    "IndexWriter": OF_A_JOB,
    "LockManager": OF_A_SYNC | OF_A_JOB | OF_A_REPOSITORY,
    "Uses": OF_A_SYNC | OF_A_REPOSITORY,
    "DirtyTracker": OF_A_REPOSITORY,
    "Mutations": OF_A_REPOSITORY,
}


def test_each_part_is_made_where_parts_are_put_together() -> None:
    found: dict[str, set[str]] = {name: set() for name in MAKERS}
    for path in SOURCE.rglob("*.py"):
        text = path.read_text()
        if not any(f"{name}(" in text for name in MAKERS):
            continue  # reading the names is cheap, and understanding the code is not
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
                name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
                if name in found:
                    found[name].add(str(path.relative_to(SOURCE)))
    assert found == MAKERS
