"""Rows on a terminal of any width, in a pipe, and for programs."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from swampstore import Repo
from swampstore.cli.rendering import age_text, type_text
from swampstore.cli.row_formats import Column, Listing, RowOptions, table, width_of, write_rows
from tests.support.command_line import CommandLine, run_on_terminal

LONG = "google/compute/instances/my-very-long-project-name-4711/vm-xyz-0123456789"


@pytest.fixture
def cli(
    repo: Repo,
    repo_dir: Path,
    capsysbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> CommandLine:
    repo.artifacts.save("aws/ec2/i-1", "state", {"ip": 1}, tags={"modelName": "web", "env": "prod"})
    repo.artifacts.save(LONG, "backup-archive-of-the-whole-thing.tar.gz", b"x" * 5000)
    return CommandLine(repo_dir, capsysbinary, monkeypatch)


LISTS = [
    ["ls"],
    ["ls", "web"],
    ["data", "list", "web"],
    ["data", "versions", "web", "state"],
    ["data", "query", "true"],
    ["data", "search", "a"],
    ["model", "list"],
    ["runs", "list"],
    ["output", "list"],
    ["audit", "list"],
    ["workflow", "list"],
    ["workflow", "history"],
    ["datastore", "lock", "status"],
]


@pytest.mark.slow
@pytest.mark.parametrize("columns", [100, 80, 60])
@pytest.mark.parametrize("command", [["ls"], ["data", "query", "true"]], ids=" ".join)
def test_nothing_wraps_on_a_terminal(
    cli: CommandLine,
    repo_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: list[str],
    columns: int,
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    shown = run_on_terminal(*command, repo=repo_dir, no_color=True).out
    assert max(map(len, shown.splitlines())) <= columns
    assert shown.splitlines()[0].split()[0] == "model"
    assert "age" in shown.splitlines()[0].split()
    wide = run_on_terminal(*command, "--wide", repo=repo_dir, no_color=True).out
    assert LONG in wide


@pytest.mark.parametrize("command", LISTS, ids=" ".join)
def test_every_list_has_every_format(cli: CommandLine, command: list[str]) -> None:
    piped = cli(*command)
    assert piped.status == 0
    assert cli(*command, "--format", "tsv").out == piped.out
    assert cli(*command, "--format", "json").out == cli(*command, "--json").out
    rows = list(csv.reader(io.StringIO(cli(*command, "--format", "csv").out)))
    lines = cli(*command, "--format", "jsonl").out.splitlines()
    assert len(lines) == len(rows) - 1 == len(piped.out.splitlines())
    assert all(isinstance(json.loads(line), dict) for line in lines)
    field = rows[0][0]
    chosen = cli(*command, "--fields", field, "--format", "jsonl").out.splitlines()
    assert [list(json.loads(line)) for line in chosen] == [[field]] * len(lines)


def test_programs_get_bytes_and_times_in_full(cli: CommandLine) -> None:
    (row,) = cli("data", "list", LONG).out.splitlines()
    kind, model, name, version, size, created, content_type = row.split("\t")
    assert (kind, model, version, size) == ("file", LONG, "1", "5000")
    assert name == "backup-archive-of-the-whole-thing.tar.gz"
    assert created.endswith("Z")
    assert content_type == "application/octet-stream"


def test_fields_may_be_members_of_the_document(cli: CommandLine) -> None:
    asked = ["data", "query", "true", "--fields", "name,tags.env,size", "--order", "name desc"]
    assert cli(*asked, "--json").json[0] == {"name": "state", "tags.env": "prod", "size": 13}
    assert cli(*asked).out.splitlines()[0] == "state\tprod\t13"


def test_an_unknown_field_is_told_with_those_there_are(cli: CommandLine) -> None:
    outcome = cli("data", "query", "true", "--fields", "nme")
    assert outcome.status == 2
    assert "Did you mean 'name'" in outcome.err
    assert "Fields: model, name, version" in outcome.err


def test_every_list_of_artifacts_shows_the_model_and_its_age(cli: CommandLine) -> None:
    for command in LISTS[:7]:
        heading = cli(*command, "--format", "table").out.splitlines()[0].split()
        assert {"model", "age"} <= set(heading), command


def test_ls_of_nothing_says_how_to_begin(
    repo_dir: Path, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    cli = CommandLine(repo_dir, capsysbinary, monkeypatch)
    assert "swampstore data put TYPE/ID NAME FILE" in cli("ls", "--format", "table").out


def test_nothing_in_a_row_can_end_it(cli: CommandLine, repo: Repo) -> None:
    repo.artifacts.save("a/b", "x", "1", tags={"note": "one\ttwo\nthree"})
    row = cli("data", "query", 'name == "x"', "--fields", "name,tags.note").out
    assert row == "x\tone\\ttwo\\nthree\n"


def test_a_document_of_many_rows_is_the_same_document(cli: CommandLine, repo: Repo) -> None:
    for number in range(230):
        repo.artifacts.save("many/one", f"n-{number:03}", {"n": number})
    document = cli("data", "query", 'modelType == "many"', "--json").json
    assert list(document) == ["predicate", "results", "total", "limited", "unhydrated"]
    assert [one["content"] for one in document["results"]] == [{"n": n} for n in range(230)]
    assert document["total"] == 230
    few = cli("data", "query", 'modelType == "many"', "--limit", "1", "--json").out
    many = cli("data", "query", 'modelType == "many"', "--json").out
    assert many.splitlines()[:20] == few.splitlines()[:20]  # indented alike


# Shape ---------------------------------------------------------------------------------------


def _drawn(items: list[str], wide: bool = False) -> list[str]:
    options = RowOptions()
    options.wide = wide
    lines: list[str] = []
    columns = [Column("name", lambda one: one), Column("size", len, right=True, rank=1)]
    write_rows(Listing(columns, items, lambda one: {"name": one}), options, "table", lines.append)
    return "".join(lines).splitlines()


def test_wide_characters_take_two_columns() -> None:
    assert width_of("日本") == 4
    assert width_of("e\u0301") == 1
    assert _drawn(["日本", "ab"]) == ["name  size", "日本     2", "ab       2"]


def test_a_long_sentence_goes_over_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swampstore.cli.row_formats.terminal_width", lambda: 30)
    drawn = table(["check", "finding"], [["names", "every name can be shared with others"]])
    assert drawn.splitlines() == [
        "check  finding",
        "names  every name can be",
        "       shared with others",
    ]


@pytest.mark.parametrize(
    ("content_type", "text"),
    [
        ("application/json", "json"),
        ("application/vnd.apache.parquet", "parquet"),
        ("application/octet-stream", "bytes"),
        ("text/plain; charset=utf-8", "text"),
        ("image/png", "png"),
    ],
)
def test_content_types_are_short(content_type: str, text: str) -> None:
    assert type_text(content_type) == text


def test_an_age_of_the_future_is_none() -> None:
    assert age_text("2999-01-01T00:00:00Z") == "0s"
