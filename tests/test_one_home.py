"""A rule has one home: what only that home may spell, so that no copy of it can differ.

A line here is a rule that was found in several places once. Put what the copies had in common, as
a pattern, and the files that may say it.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "swampstore"
RULES = {
    "where the records of runs are": (r"\"(?:workflow-runs|outputs)/|\"workflow-run-", "layout.py"),
    "what moments are counted from": (r"datetime\(1970", "clock.py"),
    "which word was meant": (r"get_close_matches", "notices.py"),
    "what the base knows, as an entry": (
        r"Entry\((\w+)\.size, \1\.modified, \1\.sha256\)",
        "index/format.py",
    ),
}
# Examples for people who test a sync service of their own: paths as they are, spelled out.
EXAMPLES = "testing/"


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_is_spelled_in_its_home_only(rule: str) -> None:
    pattern, home = RULES[rule]
    found = {
        str(path.relative_to(SOURCE))
        for path in sorted(SOURCE.rglob("*.py"))
        if re.search(pattern, path.read_text())
    }
    assert {one for one in found if not one.startswith(EXAMPLES)} == {home}
