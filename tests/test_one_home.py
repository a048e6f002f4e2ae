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
    "where evaluated and automatic definitions are": (
        r"\"(?:auto-definitions|definitions-evaluated|workflows-evaluated)",
        "layout.py",
    ),
    "what moments are counted from": (r"datetime\(1970", "clock.py"),
    "how coarse timestamps are": (r"RACY_\w+ = \d", "files/signature.py"),
    "how long a lock is waited for": (r"(?:patience|timeout)\w*(?:: float)? ?= ?60", "config.py"),
    "how long something took, for people": (r"\} min \{", "cli/rendering.py"),
    "what a marker's hash is": (r"sha256\(marker_content", "artifacts/latest.py"),
    "what a moment without a zone means": (r"(\w+) if \1\.tzinfo else", "clock.py"),
    "what is said of an error in place of its message": (
        r"\.code if isinstance\(\w+, SwampstoreError\)",
        "errors.py",
    ),
    "what opening says where no file is": (r"errno\.ENOTDIR, errno\.ELOOP", "files/disk.py"),
    "one process at a time": (r"fd = open_shared\(.*\n\s+try:\n.*LOCK_EX\)", "files/hold.py"),
    "trying to lock a file, and waiting for it": (r"except BlockingIOError", "files/hold.py"),
    "which start of the system this is": (r"boot_id\"", "files/hold.py"),
    "how wide a terminal is": (r"get_terminal_size", "cli/rendering.py"),
    "how a value appears in a name": (r"\(\"key\", \"name\", \"id\"\)", "runs/writing.py"),
    "which digits are a number": (r"\.isascii\(\) and [\w.]+\.isdigit\(\)", "formats.py"),
    "which word was meant": (r"get_close_matches", "notices.py"),
    "whose content a file is": (r"metadata_beside\(\w+\) not in", "index/path_kinds.py"),
    "what shows the directory of a namespace": (r"\(MANIFEST, MONOLITH_KEY", "index/path_kinds.py"),
    "whether a file holds what was sent": (
        r"return hash_file\(.+\)\[0\] == [\w.]+\n\s+except",
        "sync/hashing.py",
    ),
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
