"""The simulation proves itself: without a rule that keeps data safe, it finds a violation."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.fleet.rules import RULES, THEMED
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


@pytest.mark.parametrize("rule", THEMED)
def test_without_a_rule_random_work_finds_a_violation(rule: str, found: dict[str, Any]) -> None:
    by_theme = found[f"{rule}, by a theme"]
    assert by_theme["without"], f"nothing in {by_theme['steps']} steps"
    assert by_theme["with"] is None, "and with it, all is well"
