"""The models of the lock protocol: what `make model` checks, and the page that tells of it.

All of it takes minutes, so only the smallest models are checked here, where spin is installed.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.markdown_pages import ROOT, Page, table_rows

MODEL = ROOT / "model"
DECISION = "docs/decisions/0027-a-holder-that-lost-its-lock-cannot-commit.md"
# They say what a model looks at; all other flags drop a rule of the protocol.
_SETTINGS = {
    *("FORCED", "TIMELY", "LIVENESS", "SLOW_SESSIONS", "ENDLESS_SESSIONS", "VERIFY_GATE"),
    *("FOREIGN", "PUNCTUAL", "BESIDE"),
}


@pytest.fixture(scope="module")
def models() -> Iterator[ModuleType]:
    """The script behind `make model`."""
    spec = importlib.util.spec_from_file_location("check_models", MODEL / "check.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["check_models"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules["check_models"]


@pytest.fixture(scope="module")
def tools(models: ModuleType) -> tuple[str, str]:
    spin = models.installed_spin()
    if spin is None:
        pytest.skip("spin is not installed; `make model` fetches it")
    try:
        return spin, models.find_gcc()
    except models.ToolMissingError as error:
        pytest.skip(str(error))


def test_the_smallest_model_holds(models: ModuleType, tools: tuple[str, str]) -> None:
    variant = models.Variant("commit", ("TIMELY",))
    outcome = models.check(variant, *tools)
    assert outcome.result == models.HOLDS
    assert outcome.states > 10_000


def test_it_fails_when_a_rule_is_dropped(models: ModuleType, tools: tuple[str, str]) -> None:
    variant = models.Variant("commit", ("NO_FENCE",), models.LOST)
    assert models.check(variant, *tools).result == models.LOST


def test_a_model_that_is_no_promela_is_an_error(models: ModuleType, tools: tuple[str, str]) -> None:
    with pytest.raises(models.CheckError):
        models.check(models.Variant("no_such_model"), *tools)


def _flags_in_the_models() -> set[str]:
    text = "".join(path.read_text(encoding="utf-8") for path in MODEL.glob("*.pml"))
    conditions = re.findall(r"^#(?:ifdef|ifndef|if|elif) (.+)$", text, re.MULTILINE)
    return {flag for one in conditions for flag in re.findall(r"[A-Z][A-Z_]+", one)}


def test_every_variant_that_the_models_know_is_checked(models: ModuleType) -> None:
    assert {flag for one in models.VARIANTS for flag in one.flags} == _flags_in_the_models()


def test_the_decision_names_each_rule_and_what_happens_without_it(models: ModuleType) -> None:
    told = {row[1].strip("`"): row[2] for row in table_rows(Page(ROOT / DECISION).text)}
    expected = {
        flag: one.expected
        for one in models.VARIANTS
        if one.expected != models.HOLDS
        for flag in one.flags
        if flag not in _SETTINGS
    }
    assert {flag: told.get(flag) for flag in expected} == expected


@pytest.mark.parametrize(
    ("said", "result"),
    [
        ("depth reached 9, errors: 0\n  12 states, stored", "holds"),
        (
            "error: max search depth too small\ndepth reached 9, errors: 0\n 12 states, stored",
            "not every state was tried",
        ),
        (
            "Warning: Search not completed\ndepth reached 9, errors: 0\n 12 states, stored",
            "not every state was tried",
        ),
        (
            "pan:1: invalid end state (at depth 3)\ndepth reached 9, errors: 1\n 12 states, stored",
            "deadlock",
        ),
    ],
)
def test_a_search_counts_only_if_it_was_complete(
    said: str, result: str, models: ModuleType
) -> None:
    assert models.outcome_of(said, 1.0) == models.Outcome(result, 12, 9, 1.0)


def test_a_missing_compiler_is_told(
    models: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(models.ToolMissingError, match="gcc is missing"):
        models.find_gcc()


def test_a_missing_spin_that_cannot_be_fetched_is_told(
    models: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(models.ToolMissingError, match="spin is missing"):
        models.find_spin()
