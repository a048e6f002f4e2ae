"""The simulation proves itself: without a rule that keeps data safe, it finds a violation."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.fleet.rules import RULES
from tests.fleet.test_fleet import fleet


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    ended = fleet("--rules")
    assert ended.returncode == 0, ended.stderr
    noticed: dict[str, Any] = json.loads(ended.stdout)
    return noticed


@pytest.mark.parametrize("rule", RULES)
def test_without_a_rule_a_violation_is_found(rule: str, found: dict[str, Any]) -> None:
    assert found[rule]["without"], f"nothing in {found[rule]['steps']} steps"
    assert found[rule]["with"] is None, "and with it, all is well"
