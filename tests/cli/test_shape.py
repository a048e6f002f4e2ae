"""What every command has in common: options, help, and the table it is found in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from swampstore.cli.app import root
from swampstore.cli.command import Command, Group
from tests.support.command_line import CommandLine


def _groups(group: Group = root, path: tuple[str, ...] = ()) -> Iterator[tuple[Group, list[str]]]:
    yield group, list(path)
    for name, entry in group.entries.items():
        if entry.place.startswith("app:"):
            found = group.get_command(click.Context(group), name)
            assert isinstance(found, Group)
            yield from _groups(found, (*path, name))


ALL = [
    pytest.param(group, [*path, name], id=" ".join([*path, name]))
    for group, path in _groups()
    for name, entry in group.entries.items()
    if not entry.place.startswith("app:")
]


@pytest.fixture
def cli(
    repo_dir: Path, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> CommandLine:
    return CommandLine(repo_dir, capsysbinary, monkeypatch)


def test_the_commands_are_these() -> None:
    assert [" ".join(case.values[1]) for case in ALL] == [  # type: ignore[arg-type]
        *("init", "ls", "status", "run", "sync", "push", "pull", "cat", "rm", "log"),
        *("doctor", "help", "completion"),
        *(f"data {name}" for name in ("put", "get", "list", "versions", "diff", "tail")),
        *(
            f"data {name}"
            for name in ("query", "search", "hydrate", "delete", "rename", "gc", "prune")
        ),
        *("model list", "model show", "model delete"),
        *("catalog status", "catalog rebuild", "catalog compact"),
        *(f"workflow {name}" for name in ("run", "resume", "approve", "reject", "validate")),
        *("workflow list", "workflow history", "workflow show"),
        *(f"runs {name}" for name in ("list", "show", "cancel", "gc")),
        *("output list", "output show", "output logs", "audit list"),
        *(f"vault {name}" for name in ("create", "put", "get", "list", "inspect", "annotate")),
        *(f"vault {name}" for name in ("delete", "rotate", "migrate", "audit")),
        *("bundles list", "bundles gc"),
        *("datastore setup", "datastore status", "datastore evict", "datastore migrate-index"),
        *("datastore lock status", "datastore lock release"),
        *(f"datastore namespace {name}" for name in ("set", "unset", "list", "migrate")),
        *("datastore catalog pull", "datastore catalog export"),
        *(f"backup {name}" for name in ("create", "list", "verify", "restore")),
        *(f"pipeline {name}" for name in ("verify", "reindex", "copy", "gc", "report")),
        *("pipeline push", "pipeline pull", "pipeline catalog"),
    ]


@pytest.mark.parametrize(("group", "path"), ALL)
def test_a_command_has_help_with_a_summary_and_examples(
    cli: CommandLine, group: Group, path: list[str]
) -> None:
    command = group.get_command(click.Context(group), path[-1])
    assert isinstance(command, Command)
    assert command.name
    assert command.help
    summary = group.entries[path[-1]].summary
    assert command.help.splitlines()[0] == summary
    assert summary.endswith(".")

    out = cli(*path, "--help").out
    assert summary in " ".join(out.split())
    _, _, examples = out.partition("\nExamples:\n")
    # An example may begin with what is piped into the command.
    assert all(f"swampstore {' '.join(path)}" in line for line in examples.splitlines())
    assert examples


@pytest.mark.parametrize(("group", "path"), ALL)
def test_a_command_takes_the_global_options(group: Group, path: list[str]) -> None:
    command = group.get_command(click.Context(group), path[-1])
    assert command is not None
    options = {name for param in command.params for name in param.opts}
    assert {"--json", "--repo", "--datastore"} <= options


@pytest.mark.parametrize(("group", "path"), ALL)
def test_every_option_and_argument_of_a_command_is_explained(group: Group, path: list[str]) -> None:
    command = group.get_command(click.Context(group), path[-1])
    assert command is not None
    for param in command.params:
        assert getattr(param, "help", None), param.name


@pytest.mark.parametrize(("group", "path"), ALL)
def test_every_number_on_the_command_line_has_bounds(group: Group, path: list[str]) -> None:
    command = group.get_command(click.Context(group), path[-1])
    assert command is not None
    for param in command.params:
        kind = param.type
        is_bounded = getattr(kind, "min", None) is not None and getattr(kind, "max", None)
        is_open = isinstance(kind, click.types.IntParamType | click.types.FloatParamType)
        assert is_bounded or not is_open, param.name


@pytest.mark.parametrize(
    "arguments",
    [
        ["--json", "data", "list", "a/b"],
        ["data", "--json", "list", "a/b"],
        ["data", "list", "--json", "a/b"],
        ["data", "list", "a/b", "--json"],
    ],
)
def test_json_may_stand_anywhere(cli: CommandLine, arguments: list[str]) -> None:
    cli("data", "put", "a/b", "x", stdin=b"1")
    assert cli(*arguments).json["total"] == 1


def test_the_repository_may_be_named_before_and_after_the_command(
    cli: CommandLine, tmp_path: Path
) -> None:
    other = str(tmp_path / "other")
    cli("init", other)
    cli("data", "put", "a/b", "x", "--repo", other, stdin=b"1")
    assert cli("--repo", other, "data", "list", "a/b").status == 0
    assert cli("data", "list", "a/b").status == 1
    # The one nearest to the command wins.
    assert cli("--repo", "/nowhere", "data", "list", "a/b", "--repo", other).status == 0


def test_the_datastore_may_be_named_before_and_after_the_command(
    cli: CommandLine, tmp_path: Path
) -> None:
    store = f"filesystem:{tmp_path}/store"
    cli("--datastore", store, "data", "put", "a/b", "x", stdin=b"1")
    assert (tmp_path / "store/data/a/b/x/1/raw").read_bytes() == b"1"
    assert cli("data", "get", "a/b", "x", "--raw", "--datastore", store).stdout == b"1"


def test_a_value_that_looks_like_an_option_is_a_value(cli: CommandLine) -> None:
    outcome = cli("data", "query", "--select", "--json", 'name == "x"')
    assert outcome.err.startswith("error: ")


@pytest.mark.parametrize("path", [[], ["data"], ["catalog"], ["datastore"]])
def test_a_group_without_a_command_shows_its_help(cli: CommandLine, path: list[str]) -> None:
    outcome = cli(*path)
    assert (outcome.status, outcome.err) == (0, "")
    assert "Commands:" in outcome.out
    assert cli(*path, "--json").error["code"] == "usage"
    for asked in (["--help"], ["-h"]):
        assert cli(*path, *asked).out == outcome.out
    assert cli("help", *path).out == outcome.out


def test_the_help_of_a_group_lists_every_command_with_its_summary(cli: CommandLine) -> None:
    for group, path in _groups():
        out = cli(*path, "--help").out
        for name, entry in group.entries.items():
            assert f"\n  {name} " in out
            assert entry.summary in " ".join(out.split())
