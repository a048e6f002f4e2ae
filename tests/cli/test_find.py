"""The commands that find artifacts: query and search."""

from __future__ import annotations

from pathlib import Path

import pytest

from swampstore import Owner, Repo
from swampstore.cli.data.query import values_listing
from swampstore.cli.rendering import size_text
from swampstore.cli.row_formats import RowOptions, write_rows
from tests.conftest import FakeClock
from tests.support.command_line import CommandLine, run_on_terminal


@pytest.fixture
def cli(
    repo_dir: Path, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> CommandLine:
    return CommandLine(repo_dir, capsysbinary, monkeypatch)


@pytest.fixture(autouse=True)
def artifacts(repo: Repo, clock: FakeClock) -> Repo:
    web = {"modelName": "web", "specName": "state", "env": "Prod"}
    repo.artifacts.save("aws/ec2/i-1", "state", {"ip": "10.0.0.1"}, tags=web, lifetime="30d")
    clock.advance(days=1)
    repo.artifacts.save("aws/ec2/i-1", "log", "text", tags={"modelName": "web"}, streaming=True)
    clock.advance(days=1)
    owner = Owner("workflow-step", "w", workflow_id="w-1", workflow_run_id="r-1", workflow_name="n")
    repo.artifacts.save("aws/s3/b-1", "blob", b"\x00" * 2000, owner=owner)
    return repo


# query -----------------------------------------------------------------------------------------


def test_query_json_holds_records_with_their_parsed_content(cli: CommandLine) -> None:
    document = cli("data", "query", 'modelName == "web"', "--order", "name desc", "--json").json
    assert document["predicate"] == 'modelName == "web"'
    assert document["total"] == 2
    assert document["limited"] is False
    state, log = document["results"]
    assert (state["name"], state["content"]) == ("state", {"ip": "10.0.0.1"})
    assert (log["name"], log["content"]) == ("log", "")
    assert "attributes" not in state


def test_query_json_of_a_select_holds_values(cli: CommandLine) -> None:
    document = cli(
        *("data", "query", "size > 0", "--select", "attributes.ip"),
        *("--order", "createdAt", "--json"),
    ).json
    assert document == {
        "results": ["10.0.0.1", None, None],
        "total": 3,
        "limited": False,
        "unhydrated": 0,
    }


def test_a_limit_that_was_reached_is_told(cli: CommandLine) -> None:
    assert cli("data", "query", "size > 0", "--limit", "3", "--json").json["limited"] is True
    assert cli("data", "query", "size > 0", "--limit", "4", "--json").json["limited"] is False
    assert "1 result, limited" in cli("data", "query", "size > 0", "--limit", "1").err


def test_query_as_text_is_a_table(cli: CommandLine) -> None:
    asked = ["data", "query", 'modelName == "web"', "--order", "name", "--format", "table"]
    lines = cli(*asked).out.splitlines()
    assert lines[0].split() == ["model", "name", "v", "size", "age", "type", "content", "spec"]
    assert lines[1].split()[:5] == ["web", "log", "1", "4", "B"]
    assert lines[2].split()[:5] == ["web", "state", "1", "22", "B"]
    assert lines[2].split()[-3:] == ["resource", "json", "state"]
    assert lines[-1] == "2 results"


def test_the_table_names_namespaces_where_there_are_any(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SWAMP_NAMESPACE", "infra")
    cli("data", "put", "a/b", "x", stdin=b"1")
    asked = cli("data", "query", 'name == "x"', "--format", "table")
    assert "namespace" in asked.out.splitlines()[0]


def test_a_query_without_results_says_so(cli: CommandLine) -> None:
    outcome = cli("data", "query", 'name == "nope"')
    assert (outcome.out, outcome.err) == ("", "0 results\n")
    assert cli("data", "query", 'name == "nope"', "--format", "table").out == "0 results\n"


def test_selected_values_stand_alone_on_standard_output(cli: CommandLine) -> None:
    outcome = cli("data", "query", "size > 0", "--select", "name", "--order", "name")
    assert outcome.out == "blob\nlog\nstate\n"
    assert outcome.err == ""


def test_a_query_without_a_predicate_is_an_error_where_nobody_can_be_asked(
    cli: CommandLine,
) -> None:
    assert cli("data", "query").status == 2
    assert cli("data", "query", "--json").error["code"] == "usage"


def test_a_query_without_a_predicate_asks_for_one_on_a_terminal(repo_dir: Path) -> None:
    typed = b'name == "log"\n\nnonsense\nname == "blob"\n\x04'
    outcome = run_on_terminal("data", "query", repo=repo_dir, typed=typed)
    assert outcome.status == 0
    assert outcome.out.count("1 result\n") == 2
    assert "error: Unknown field nonsense" in outcome.out


def test_a_predicate_that_is_not_understood_is_an_error(cli: CommandLine) -> None:
    error = cli("data", "query", "nmae == 'x'", "--json").error
    assert error["code"] == "query_failed"
    assert "name" in error["hint"]


def test_content_that_is_elsewhere_is_told(cli: CommandLine, artifacts: Repo) -> None:
    artifacts.latest("aws/s3/b-1", "blob").path.unlink()
    outcome = cli("data", "query", 'attributes.ip == "10.0.0.1"', "--json")
    assert (outcome.json["total"], outcome.json["unhydrated"]) == (1, 1)
    assert outcome.err == "The content of 1 artifact is not on this machine.\n"


def test_a_result_without_its_content_is_told(cli: CommandLine, artifacts: Repo) -> None:
    artifacts.latest("aws/ec2/i-1", "state").path.unlink()
    outcome = cli("data", "query", 'name == "state"', "--json")
    assert outcome.json["results"][0]["content"] == ""
    assert outcome.err == "The content of 1 artifact is not on this machine.\n"


# search ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ([], ["blob", "log", "state"]),
        (["STATE"], ["state"]),
        (["web"], ["log", "state"]),
        (["env=prod"], ["state"]),
        (["resource"], ["state"]),
        (["lo"], ["blob", "log"]),
        (["lo", "--limit", "1"], ["blob"]),
        (["nothing like it"], []),
        (["--type", "file"], ["blob", "log"]),
        (["--lifetime", "30d"], ["state"]),
        (["--owner-type", "workflow-step"], ["blob"]),
        (["--workflow", "n"], ["blob"]),
        (["--workflow", "w-1"], ["blob"]),
        (["--run", "r-1"], ["blob"]),
        (["--model", "web"], ["log", "state"]),
        (["--model", "AWS::S3/b-1"], ["blob"]),
        (["--model", "nobody"], []),
        (["--content-type", "text/plain"], ["log"]),
        (["--tag", "env=Prod", "--tag", "specName=state"], ["state"]),
        (["--tag", "env=prod"], []),
        (["--streaming"], ["log"]),
        (["--since", "2026-05-15T20:19:51.042Z"], ["blob", "log"]),
        (["--since", "2026-05-16"], ["blob"]),
        (["st", "--model", "web", "--type", "resource"], ["state"]),
        (["--limit", "2"], ["blob", "log"]),
    ],
)
def test_search_finds_by_words_and_filters_newest_first(
    cli: CommandLine, arguments: list[str], names: list[str]
) -> None:
    document = cli("data", "search", *arguments, "--json").json
    assert [result["name"] for result in document["results"]] == names
    assert document["total"] == len(names)
    assert document["limited"] is ("--limit" in arguments)


def test_search_since_an_age_counts_from_now(cli: CommandLine, artifacts: Repo) -> None:
    cli("data", "put", "a/b", "fresh", stdin=b"1")
    found = cli("data", "search", "--since", "1h", "--json").json
    assert [result["name"] for result in found["results"]] == ["fresh"]


@pytest.mark.parametrize("since", ["yesterday", "5x", "999999y", "2026-13-01"])
def test_search_since_something_else_is_an_error(cli: CommandLine, since: str) -> None:
    error = cli("data", "search", "--since", since, "--json").error
    assert error["code"] == "validation_failed"
    assert since in error["error"]


def test_search_of_an_unknown_owner_type_lists_those_there_are(cli: CommandLine) -> None:
    error = cli("data", "search", "--owner-type", "me", "--json").error
    assert "model-method, workflow-step, manual" in error["hint"]


def test_search_as_text_is_a_table_with_a_footer(cli: CommandLine) -> None:
    assert cli("data", "search", "web", "--format", "table").out.endswith("2 results\n")
    assert cli("data", "search", "nope", "--format", "table").out == "0 results\n"


# How values look -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KB"),
        (1536, "1.5 KB"),
        (1024**2 - 1, "1.0 MB"),
        (5 * 1024**2, "5.0 MB"),
        (3 * 1024**3, "3.0 GB"),
        (5000 * 1024**3, "5000.0 GB"),
    ],
)
def test_sizes_have_one_decimal_and_a_unit(size: int, text: str) -> None:
    assert size_text(size) == text


def drawn(values: list[object]) -> str:
    lines: list[str] = []
    write_rows(values_listing(values), RowOptions(), "table", lines.append)
    return "".join(lines)


def test_values_that_are_not_maps_or_lists_are_one_per_line() -> None:
    assert drawn([None, "a", 1, True, {"k": "ü"}]) == '\na\n1\ntrue\n{\n  "k": "ü"\n}\n'


def test_maps_become_a_table_with_the_keys_of_the_first_one() -> None:
    lines = drawn([None, {"b": 1, "a": None}, {"a": "x", "c": 2}]).splitlines()
    assert lines == ["b  a", "", "1", "   x"]


def test_lists_become_a_table_with_numbered_columns() -> None:
    lines = drawn([["a"], ["b", 2, [3]]]).splitlines()
    assert lines == ["1  2  3", "a", "b  2  [3]"]
