"""The examples of bulk commands: they run in this process, because Spark takes long to start."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from swampstore.cli.app import pipeline
from tests.support.examples import SHOWN_HOME, agrees
from tests.support.machines import Machine
from tests.support.markdown_pages import ROOT, Page, steps

if TYPE_CHECKING:
    import pytest
    from pyspark.sql import SparkSession

PAGE = Page(ROOT / "docs/reference/json-pipeline.md")


def test_the_json_document_of_every_bulk_command_is_what_the_reference_says(
    spark: SparkSession, ana: Machine, bucket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del spark  # commands use the session that is there
    ana.use(bucket)
    for model in ("i-1", "i-2"):
        for content in ("old", "new"):
            ana.put(f"aws/ec2/{model}", "state", f"{content} of {model}")
    assert ana("sync").status == 0
    home = ana.repo_dir.parent
    (home / "backup").mkdir()
    monkeypatch.chdir(ana.repo_dir)
    shown = {str(ana.repo_dir): f"{SHOWN_HOME}/inventory", str(home): SHOWN_HOME}
    seen = []
    for block in PAGE.blocks:
        for step in steps(block):
            line = step.command.replace(SHOWN_HOME, str(home))
            _, *args = shlex.split(line)
            outcome = ana(*args)
            assert outcome.status == 0, outcome.err
            printed = outcome.out
            for real, instead in shown.items():
                printed = printed.replace(real, instead)
            assert agrees("\n".join(step.output), printed), f"{step.command}\n{printed}"
            seen.append(args[1])
    assert sorted(seen) == sorted(pipeline.entries)


def test_the_reference_of_the_other_documents_leads_here() -> None:
    text = Page(ROOT / "docs/reference/json.md").text
    assert re.search(r"\(json-pipeline\.md\)", text)
