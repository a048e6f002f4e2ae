"""The pages about tables say what the tables are, and the example answers its questions."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

from swampstore.pipeline import schemas
from swampstore.pipeline.snapshots.manifest import SNAPSHOTS
from swampstore.pipeline.source import _TABLES
from tests.support.markdown_pages import ROOT, Page, table_rows
from tests.support.remotes import ProxiedRemote

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLES = Page(ROOT / "docs/reference/tables.md")
HOW_TO = Page(ROOT / "docs/how-to/ask-with-sql.md")
SCHEMAS = {
    **{name: getattr(schemas, name.upper()) for name in _TABLES},
    "artifacts": f"{schemas.ARTIFACTS}, {schemas.CONTENT}, {schemas.ATTRIBUTES}",
    "changes": schemas.CHANGES.removeprefix(f"{schemas.ARTIFACTS}, "),
    "findings": schemas.KEPT_FINDINGS,
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_page_has_the_columns_of_a_table(name: str) -> None:
    documented = [
        f"{row[0].strip('`')} {row[1].strip('`')}" for row in table_rows(TABLES.section(name))
    ]
    assert ", ".join(documented) == SCHEMAS[name]


@pytest.fixture
def example() -> ModuleType:
    path = ROOT / "docs/examples/three_questions.py"
    spec = importlib.util.spec_from_file_location("three_questions", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_asks_the_questions_of_the_example(example: ModuleType) -> None:
    asked = [block.text.strip() for block in HOW_TO.blocks if block.language == "sql"]
    assert asked == [one.strip() for one in (example.NEARLY_FULL, example.KEPT, example.FAILED)]


@pytest.mark.server
def test_the_example_answers_as_the_page_says_and_makes_as_many_requests(
    spark: SparkSession,
    example: ModuleType,
    s3_remote: ProxiedRemote,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    del spark  # whose session the example uses
    places = example.fill(tmp_path, f"s3:{json.dumps(dict(s3_remote.config))}")
    requests = s3_remote.proxy.requests
    counted: list[list[int]] = [[], [], []]
    for _ in ("with the snapshot", "without"):
        for number, (question, answer) in enumerate(example.ask(places).items()):
            requests.clear()
            answer.show(truncate=False)
            counted[number].append(len(requests))
            assert capsys.readouterr().out.strip() in HOW_TO.text, question
        for place in places:
            with place.open() as store:
                for info in [*store.list(place.names().remote(SNAPSHOTS))]:
                    store.delete(info.key)
    rows = table_rows(HOW_TO.section("Ask often"))
    told = [[int(cell) for cell in row[1:]] for row in rows]
    assert counted == told
