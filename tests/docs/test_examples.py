"""The example repositories do what their pages say."""

from __future__ import annotations

import runpy
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from swampstore import open_repo
from swampstore.runs.definitions import Definitions
from tests.docs.tour import short_home
from tests.support.examples import REPO, PageRun
from tests.support.markdown_pages import ROOT, Page

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXAMPLES = ROOT / "examples"
NAMES = sorted(path.name for path in EXAMPLES.iterdir() if path.is_dir())


@pytest.fixture
def home() -> Iterator[Path]:
    with short_home() as directory:
        yield directory


def follow(name: str, home: Path) -> Path:
    """Do what the page of an example says, in a copy of it; return the copy."""
    run = PageRun(Page(EXAMPLES / name / "README.md"), home)
    shutil.copytree(EXAMPLES / name, home / REPO, dirs_exist_ok=True)
    run.run()
    return home / REPO


def test_there_are_three_and_one_page_names_them() -> None:
    assert NAMES == ["host-inventory", "nightly-dump", "orders-etl"]
    overview = Page(EXAMPLES / "README.md")
    assert {f"{name}/README.md" for name in NAMES} <= {*overview.links}


@pytest.mark.parametrize("name", NAMES[:2])
def test_an_example_does_what_its_page_says(name: str, home: Path) -> None:
    place = follow(name, home)
    with open_repo(place) as repo:
        known, broken = Definitions(repo).all()
    assert known
    assert not broken


def test_spark_reads_what_the_etl_has_left(
    home: Path,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(follow("orders-etl", home))
    runpy.run_path("totals.py")
    shown = Page(EXAMPLES / "orders-etl/README.md").blocks[-1].text
    assert capsys.readouterr().out.strip() == shown[shown.index("+--") :].strip()
    spark.catalog.dropTempView("artifacts")


@pytest.mark.parametrize("name", NAMES)
def test_no_two_things_of_an_example_have_one_id(name: str) -> None:
    ids = [
        line
        for path in (EXAMPLES / name).rglob("*.yaml")
        for line in path.read_text("utf-8").splitlines()
        if line.startswith("id: ")
    ]
    assert len(ids) == len({*ids})
