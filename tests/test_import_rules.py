"""Parts only import the parts below them, and opening a repository stays light."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
HEAVY = {
    *("pyspark", "pyarrow", "pandas", "polars", "obstore", "cel", "rich", "ruamel", "numpy"),
    *("asyncio", "logging", "swampstore.cli"),
}


def test_the_import_rules_hold() -> None:
    lint = Path(sys.executable).parent / "lint-imports"
    done = subprocess.run(
        [lint, "--no-logo"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


def test_opening_a_repository_and_reading_loads_nothing_heavy(repo_dir: Path) -> None:
    program = f"""
import sys, swampstore
with swampstore.open_repo({str(repo_dir)!r}) as repo:
    assert repo.latest("a/b", "c", default=None) is None
    assert len(repo.query('tags.env == "prod" && name.startsWith("x")')) == 0
print(*sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert HEAVY & set(done.stdout.split()) == set()
