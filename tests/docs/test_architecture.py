"""The map of the house: what it names is there, and a walk is short enough to be walked."""

from __future__ import annotations

import ast
import re

import pytest

from tests.support.markdown_pages import ROOT

PACKAGE = ROOT / "src" / "swampstore"
MAP = (ROOT / "ARCHITECTURE.md").read_text()
FILE = re.compile(r"`([a-z0-9_/]+\.(?:py|toml|md))`")
LONGEST_WALK = 12


def walks() -> dict[str, list[str]]:
    """Return the files of each walk, in order, by its title."""
    section = MAP.split("## Four walks")[1].split("\n## ")[0]
    titled = [part.partition("\n") for part in section.split("\n### ")[1:]]
    return {title: FILE.findall(text) for title, _, text in titled}


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_every_file_that_a_guide_names_is_there(page: str) -> None:
    named = FILE.findall((ROOT / page).read_text())
    assert named
    missing = [one for one in named if not any((at / one).is_file() for at in (PACKAGE, ROOT))]
    assert not missing


def test_there_are_four_walks_of_at_most_a_dozen_files_each() -> None:
    assert len(walks()) == 4
    for files in walks().values():
        assert len(files) == len(set(files)) <= LONGEST_WALK


def test_every_room_is_on_the_map_and_nothing_else() -> None:
    rooms = MAP.split("```")[1]
    named = {
        word for line in rooms.strip().splitlines() for word in re.split(r" {4,}", line)[0].split()
    }
    there = {one.name for one in PACKAGE.iterdir() if (one / "__init__.py").is_file()}
    assert there <= named
    assert all((PACKAGE / one).is_dir() or (PACKAGE / f"{one}.py").is_file() for one in named)


ROOMS = sorted(one.parent.name for one in PACKAGE.glob("*/__init__.py"))


@pytest.mark.parametrize("room", ROOMS)
def test_every_room_says_where_to_start_reading(room: str) -> None:
    told = ast.get_docstring(ast.parse((PACKAGE / room / "__init__.py").read_text())) or ""
    modules = {one.stem for one in (PACKAGE / room).glob("[a-z]*")}
    assert set(re.findall(r"`([a-z_0-9]+)`", told)) & modules or not modules


def test_the_longest_room_is_told_file_by_file() -> None:
    told = ast.get_docstring(ast.parse((PACKAGE / "sync" / "__init__.py").read_text())) or ""
    files = {one.stem for one in (PACKAGE / "sync").glob("*.py")} - {"__init__"}
    assert files == files & set(re.findall(r"`([a-z_]+)`", told))
