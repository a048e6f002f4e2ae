"""The commands that save, show, list, delete and rename artifacts."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from swampstore import Repo, open_repo
from swampstore.artifacts.save import ArtifactStore
from swampstore.errors import DiskError
from swampstore.files import write_all
from tests.support.command_line import CommandLine, run_on_terminal

MODEL = "aws/ec2/i-1"


@pytest.fixture
def cli(
    repo_dir: Path, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> CommandLine:
    return CommandLine(repo_dir, capsysbinary, monkeypatch)


# init ------------------------------------------------------------------------------------------


def test_init_makes_a_directory_a_repository(cli: CommandLine, tmp_path: Path) -> None:
    made = cli("init", str(tmp_path / "new"), "--json").json
    assert made["repoDir"] == str(tmp_path / "new")
    with open_repo(tmp_path / "new") as repo:
        assert repo.config.repo_id == made["repoId"]


def test_init_takes_the_directory_from_the_global_option(cli: CommandLine, tmp_path: Path) -> None:
    outcome = cli("--repo", str(tmp_path / "new"), "init")
    assert outcome.status == 0
    assert (tmp_path / "new" / ".swamp.yaml").is_file()


def test_init_upgrades_the_marker_and_keeps_the_rest(cli: CommandLine, repo_dir: Path) -> None:
    marker = repo_dir / ".swamp.yaml"
    marker.write_text("swampVersion: '20200101.1'  # old\nrepoId: r1\ntools: [x]\n")
    assert cli("init", str(repo_dir), "--upgrade", "--json").json["repoId"] == "r1"
    text = marker.read_text()
    assert "20200101.1" not in text
    assert "upgradedAt: " in text
    assert "# old" in text
    assert "tools: [x]" in text


def test_init_of_a_repository_is_an_error(cli: CommandLine, repo_dir: Path) -> None:
    error = cli("init", str(repo_dir), "--json").error
    assert error["code"] == "already_exists"


# put -------------------------------------------------------------------------------------------


def test_put_saves_a_json_value_and_describes_it(cli: CommandLine, repo: Repo) -> None:
    saved = cli(
        *("data", "put", MODEL, "state", "--json-value", '{"a": [1, "ü"]}'),
        *("--tag", "env=prod", "--tag", "note=a=b", "--spec", "state", "--model-name", "web"),
        *("--lifetime", "30d", "--gc", "5", "--json"),
    ).json
    assert saved["modelId"] == "i-1"
    assert saved["modelType"] == "aws/ec2"
    assert saved["modelName"] == "web"
    assert saved["version"] == 1
    assert saved["contentType"] == "application/json"
    assert saved["lifetime"] == "30d"
    assert saved["garbageCollection"] == 5
    assert saved["contentPath"] == ".swamp/data/aws/ec2/i-1/state/1/raw"
    assert saved["tags"] == {
        "type": "resource",
        "env": "prod",
        "note": "a=b",
        "specName": "state",
        "modelName": "web",
    }
    assert repo.latest(MODEL, "state").json() == {"a": [1, "ü"]}


@pytest.mark.parametrize("value", ["1", '"text"', "null", "[]"])
def test_put_saves_any_json_document(cli: CommandLine, repo: Repo, value: str) -> None:
    assert cli("data", "put", MODEL, "x", "--json-value", value).status == 0
    assert repo.latest(MODEL, "x").json() == json.loads(value)
    assert repo.latest(MODEL, "x").content_type == "application/json"


@pytest.mark.parametrize("value", ["{", "NaN", "[Infinity]", "'a'"])
def test_put_refuses_what_is_not_json(cli: CommandLine, value: str) -> None:
    error = cli("data", "put", MODEL, "x", "--json-value", value, "--json").error
    assert error["code"] == "validation_failed"
    assert "--json-value" in error["error"]


def test_put_saves_a_file_with_the_type_its_name_suggests(
    cli: CommandLine, repo: Repo, tmp_path: Path
) -> None:
    (tmp_path / "notes.txt").write_bytes(b"hello\r\n\xff")
    outcome = cli("data", "put", MODEL, "notes", str(tmp_path / "notes.txt"))
    assert outcome.out == (
        "Saved aws/ec2/i-1 notes version 1 (8 B) at .swamp/data/aws/ec2/i-1/notes/1/raw.\n"
    )
    assert repo.latest(MODEL, "notes").bytes() == b"hello\r\n\xff"
    assert repo.latest(MODEL, "notes").content_type == "text/plain"


@pytest.mark.parametrize("operand", [["-"], []])
def test_put_saves_standard_input(cli: CommandLine, repo: Repo, operand: list[str]) -> None:
    assert cli("data", "put", MODEL, "blob", *operand, stdin=b"\x00\xff").status == 0
    assert repo.latest(MODEL, "blob").bytes() == b"\x00\xff"


def test_put_of_standard_input_guesses_the_type_from_the_data_name(
    cli: CommandLine, repo: Repo
) -> None:
    cli("data", "put", MODEL, "facts.json", stdin=b"{}")
    assert repo.latest(MODEL, "facts.json").content_type == "application/json"


def test_put_wants_one_source(cli: CommandLine, tmp_path: Path) -> None:
    outcome = cli("data", "put", MODEL, "x", "a-file", "--json-value", "1")
    assert outcome.status == 2
    assert "--json-value" in outcome.err


def test_put_without_content_on_a_terminal_is_an_error(repo_dir: Path) -> None:
    outcome = run_on_terminal("data", "put", MODEL, "x", repo=repo_dir)
    assert outcome.status == 2
    assert "standard input" in outcome.out


@pytest.mark.parametrize("tag", ["novalue", "=x", ""])
def test_put_says_how_a_tag_is_written(cli: CommandLine, tag: str) -> None:
    outcome = cli("data", "put", MODEL, "x", "--json-value", "1", "--tag", tag)
    assert outcome.status == 2
    assert "key=value" in outcome.err


def test_put_refuses_ephemeral_data(cli: CommandLine) -> None:
    error = cli(
        "data", "put", MODEL, "x", "--json-value", "1", "--lifetime", "ephemeral", "--json"
    ).error
    assert error["code"] == "validation_failed"
    assert "ephemeral" in error["error"]


@pytest.mark.parametrize("option", [("--lifetime", "soon"), ("--gc", "0"), ("--gc", "few")])
def test_put_checks_retention(cli: CommandLine, option: tuple[str, str]) -> None:
    error = cli("data", "put", MODEL, "x", "--json-value", "1", *option, "--json").error
    assert error["code"] == "validation_failed"


def test_append_adds_to_a_streaming_version(cli: CommandLine, repo: Repo) -> None:
    cli("data", "put", MODEL, "log", "--streaming", stdin=b"one\n")
    appended = cli("data", "put", MODEL, "log", "--append", "--json", stdin=b"two\n").json
    assert (appended["version"], appended["size"]) == (1, 8)
    assert repo.latest(MODEL, "log").bytes() == b"one\ntwo\n"


def test_append_adds_a_file_in_pieces(
    cli: CommandLine, repo: Repo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swampstore.repo.saving._PIECE", 3)
    (tmp_path / "more").write_bytes(b"0123456789")
    cli("data", "put", MODEL, "log", "--streaming", stdin=b"")
    assert cli("data", "put", MODEL, "log", str(tmp_path / "more"), "--append").status == 0
    assert repo.latest(MODEL, "log").bytes() == b"0123456789"


def test_a_large_file_is_appended_as_a_whole_or_not_at_all(
    cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli("data", "put", MODEL, "log", "-", "--streaming", stdin=b"first\n")
    (large := tmp_path / "large").write_bytes(b"x" * (10 << 20))
    written = 0

    def write_until_full(fd: int, data: bytes) -> None:
        nonlocal written
        written += len(data)
        if written > 9 << 20:
            raise OSError(errno.ENOSPC, "No space left on device")
        write_all(fd, data)

    with monkeypatch.context() as patch:
        patch.setattr("swampstore.files.change.write_all", write_until_full)
        outcome = cli("data", "put", MODEL, "log", str(large), "--append")
    assert outcome.status != 0
    assert cli("data", "get", MODEL, "log", "--raw").stdout == b"first\n"
    assert cli("data", "put", MODEL, "log", str(large), "--append").status == 0
    found = cli("data", "get", MODEL, "log", "--raw").stdout
    assert found == b"first\n" + large.read_bytes()


def test_append_to_what_is_not_streaming_is_an_error(cli: CommandLine) -> None:
    cli("data", "put", MODEL, "log", stdin=b"one\n")
    error = cli("data", "put", MODEL, "log", "--append", "--json", stdin=b"x").error
    assert error["code"] == "not_streaming"


def test_append_cannot_change_the_details(cli: CommandLine) -> None:
    outcome = cli("data", "put", MODEL, "log", "--append", "--tag", "a=b", stdin=b"x")
    assert outcome.status == 2


def test_data_put_by_the_name_of_a_model_is_found_by_that_name(
    cli: CommandLine, repo: Repo
) -> None:
    cli("data", "put", MODEL, "state", "--json-value", "1", "--model-name", "web")
    cli("data", "put", "web", "state", "--json-value", "2")
    assert repo.latest("web", "state").json() == 2


def test_put_of_a_missing_file_names_it(cli: CommandLine) -> None:
    error = cli("data", "put", MODEL, "x", "/no/such/file", "--json").error
    assert error["code"] == "not_found"
    assert "/no/such/file" in error["error"]


# get -------------------------------------------------------------------------------------------


def test_get_shows_metadata_and_pretty_json(cli: CommandLine, repo: Repo) -> None:
    repo.artifacts.save(MODEL, "state", b'{"a":{"b":"\xc3\xbc"}}', content_type="application/json")
    out = cli("data", "get", MODEL, "state").out
    block, _, content = out.partition("\n\n")
    assert "version            1 (latest)" in block.splitlines()
    assert "size               16 B" in block.splitlines()
    assert content == '{\n  "a": {\n    "b": "ü"\n  }\n}\n'


def test_get_prints_text_as_it_is_and_ends_the_line(cli: CommandLine, repo: Repo) -> None:
    repo.artifacts.save(MODEL, "log", "one\r\ntwo")
    assert cli("data", "get", MODEL, "log").out.endswith("\n\none\r\ntwo\n")


def test_get_describes_binary_content_only(cli: CommandLine, repo: Repo) -> None:
    repo.artifacts.save(MODEL, "blob", b"\x1b[31m\x00" * 1000)
    outcome = cli("data", "get", MODEL, "blob")
    assert b"\x1b" not in outcome.stdout
    assert "5.9 KB that are not text" in outcome.out


def test_get_without_content_stops_after_the_metadata(cli: CommandLine, repo: Repo) -> None:
    repo.artifacts.save(MODEL, "log", "secret text")
    assert "secret" not in cli("data", "get", MODEL, "log", "--no-content").out
    assert "content" not in cli("data", "get", MODEL, "log", "--no-content", "--json").json


@pytest.mark.parametrize(
    ("content", "content_type", "expected"),
    [
        (b'{"a": 1}', "application/json", {"a": 1}),
        (b"[NaN, 1.5]", "application/json", [None, 1.5]),
        (b'"\\ud800"', "application/json", "\ud800"),
        (b"{broken", "application/json", "{broken"),
        (b"a: 1\n", "application/yaml", "a: 1\n"),
        (b"text \xff", "text/plain", "text \ufffd"),
        (b"\x00\x01", "image/png", None),
    ],
)
def test_get_json_holds_the_content_by_its_type(
    cli: CommandLine, repo: Repo, content: bytes, content_type: str, expected: object
) -> None:
    repo.artifacts.save(MODEL, "x", content, content_type=content_type)
    document = cli("data", "get", MODEL, "x", "--json").json
    assert document["content"] == expected


def test_get_json_holds_all_metadata(cli: CommandLine, repo: Repo) -> None:
    saved = repo.artifacts.save(MODEL, "x", "text", tags={"modelName": "web"})
    document = cli("data", "get", "web", "x", "--json").json
    expected = saved.metadata.to_json() | {
        "modelId": "i-1",
        "modelName": "web",
        "modelType": "aws/ec2",
        "contentPath": ".swamp/data/aws/ec2/i-1/x/1/raw",
        "content": "text",
        "verified": True,
    }
    assert document == expected


def test_the_content_path_is_absolute_outside_of_the_repository(
    cli: CommandLine, tmp_path: Path
) -> None:
    elsewhere = f"filesystem:{tmp_path}/elsewhere"
    saved = cli("--datastore", elsewhere, "data", "put", MODEL, "x", "--json", stdin=b"1").json
    assert saved["contentPath"] == f"{tmp_path}/elsewhere/data/aws/ec2/i-1/x/1/raw"


def test_get_finds_an_older_version(cli: CommandLine, repo: Repo) -> None:
    for text in ("one", "two"):
        repo.artifacts.save(MODEL, "x", text)
    assert cli("data", "get", MODEL, "x", "--version", "1", "--raw").stdout == b"one"
    assert cli("data", "get", MODEL, "x", "--raw").stdout == b"two"


def test_a_missing_version_is_an_error_that_lists_those_there_are(
    cli: CommandLine, repo: Repo
) -> None:
    repo.artifacts.save(MODEL, "x", "one")
    error = cli("data", "get", MODEL, "x", "--version", "7", "--json").error
    assert error["code"] == "not_found"
    assert error["hint"] == "Versions: 1."


def test_raw_writes_exactly_the_bytes(cli: CommandLine, repo: Repo) -> None:
    content = bytes(range(256)) * 9000
    repo.artifacts.save(MODEL, "blob", content)
    outcome = cli("data", "get", MODEL, "blob", "--raw")
    assert outcome.stdout == content
    assert not outcome.stderr


def test_output_writes_the_bytes_to_a_file(cli: CommandLine, repo: Repo, tmp_path: Path) -> None:
    content = bytes(range(256)) * 9000
    repo.artifacts.save(MODEL, "blob", content)
    target = tmp_path / "target"
    target.write_text("old")
    outcome = cli("data", "get", MODEL, "blob", "-o", str(target))
    assert outcome.out == f"Wrote 2.2 MB to {target}.\n"
    assert target.read_bytes() == content
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith(".tmp")] == []


def test_output_goes_where_a_link_points(cli: CommandLine, repo: Repo, tmp_path: Path) -> None:
    repo.artifacts.save(MODEL, "x", "text")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    document = cli("data", "get", MODEL, "x", "-o", str(tmp_path / "link"), "--json").json
    assert document["output"] == str(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_text() == "text"


def test_output_to_a_device_leaves_the_device_alone(cli: CommandLine, repo: Repo) -> None:
    repo.artifacts.save(MODEL, "x", "text")
    assert cli("data", "get", MODEL, "x", "-o", os.devnull).status == 0
    assert not os.path.isfile(os.devnull)


@pytest.mark.parametrize("target", ["no/such/directory/x", "."])
def test_output_to_where_no_file_can_be_is_an_error(
    cli: CommandLine, repo: Repo, tmp_path: Path, target: str
) -> None:
    repo.artifacts.save(MODEL, "x", "text")
    error = cli("data", "get", MODEL, "x", "-o", str(tmp_path / target), "--json").error
    assert error["code"] == "disk_error"
    assert str(tmp_path) in error["error"]


@pytest.mark.parametrize(
    "options", [["--raw", "-o", "x"], ["--raw", "--json"], ["--raw", "--no-content"]]
)
def test_ways_to_show_content_exclude_each_other(cli: CommandLine, options: list[str]) -> None:
    assert cli("data", "get", MODEL, "x", *options).status == 2


def test_escape_sequences_in_tags_are_not_sent_to_the_terminal(
    cli: CommandLine, repo: Repo
) -> None:
    repo.artifacts.save(MODEL, "x", "text", tags={"evil": "\x1b[2J\n"})
    outcome = cli("data", "get", MODEL, "x")
    assert b"\x1b" not in outcome.stdout
    assert r"evil=\x1b[2J\n" in outcome.out


# list and versions -----------------------------------------------------------------------------


def test_list_groups_data_by_type_in_a_fixed_order(cli: CommandLine, repo: Repo) -> None:
    kinds = {"r": "resource", "z": "zebra", "l": "log", "f2": "file", "f1": "file", "a": "alpha"}
    for name, kind in kinds.items():
        repo.artifacts.save(MODEL, name, "x", tags={"type": kind, "modelName": "web"})
    document = cli("data", "list", "web", "--json").json
    assert [
        (group["type"], [item["name"] for item in group["items"]]) for group in document["groups"]
    ] == [
        ("log", ["l"]),
        ("file", ["f1", "f2"]),
        ("resource", ["r"]),
        ("alpha", ["a"]),
        ("zebra", ["z"]),
    ]
    assert document["total"] == 6
    assert document["modelName"] == "web"
    assert "namespace" not in document
    assert set(document["groups"][0]["items"][0]) == {
        *("id", "name", "version", "contentType", "type", "streaming", "size", "createdAt")
    }


def test_list_of_one_type_leaves_the_others_out(cli: CommandLine, repo: Repo) -> None:
    repo.artifacts.save(MODEL, "a", {"x": 1})
    repo.artifacts.save(MODEL, "b", "text")
    document = cli("data", "list", MODEL, "--type", "file", "--json").json
    assert [item["name"] for group in document["groups"] for item in group["items"]] == ["b"]


def test_list_names_the_namespace(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWAMP_NAMESPACE", "infra")
    cli("data", "put", MODEL, "x", stdin=b"1")
    assert cli("data", "list", MODEL, "--json").json["namespace"] == "infra"


def test_list_as_text_is_a_table_that_is_never_cut(cli: CommandLine, repo: Repo) -> None:
    name = "n" * 200
    repo.artifacts.save(MODEL, name, "x")
    repo.artifacts.save(MODEL, "[red]:smile:\x9b", "x")
    outcome = cli("data", "list", MODEL)
    assert name in outcome.out
    assert r"[red]:smile:\x9b" in outcome.out
    assert "\x9b" not in outcome.out
    assert len(outcome.out.splitlines()) == 2
    drawn = cli("data", "list", MODEL, "--format", "table").out
    assert name in drawn
    assert drawn.endswith("\n2 data names\n")


def test_list_of_an_unknown_model_is_an_error(cli: CommandLine) -> None:
    assert cli("data", "list", "no/such", "--json").error["code"] == "model_not_found"
    assert cli("data", "list", "nameless", "--json").error["code"] == "model_not_found"


def test_versions_come_newest_first(cli: CommandLine, repo: Repo) -> None:
    for text in ("one", "three"):
        repo.artifacts.save(MODEL, "x", text, tags={"modelName": "web"})
    document = cli("data", "versions", "web", "x", "--json").json
    checksums = [repo.version(MODEL, "x", number).checksum for number in (2, 1)]
    created = repo.latest(MODEL, "x").row.created_at
    assert document == {
        "dataName": "x",
        "modelId": "i-1",
        "modelName": "web",
        "modelType": "aws/ec2",
        "versions": [
            {
                "version": 2,
                "createdAt": created,
                "size": 5,
                "checksum": checksums[0],
                "isLatest": True,
            },
            {
                "version": 1,
                "createdAt": created,
                "size": 3,
                "checksum": checksums[1],
                "isLatest": False,
            },
        ],
        "total": 2,
    }


def test_a_limit_on_versions_still_counts_all(cli: CommandLine, repo: Repo) -> None:
    for text in ("one", "two", "three"):
        repo.artifacts.save(MODEL, "x", text)
    document = cli("data", "versions", MODEL, "x", "--limit", "1", "--json").json
    assert [version["version"] for version in document["versions"]] == [3]
    assert document["total"] == 3
    assert cli("data", "versions", MODEL, "x", "--limit", "1").err == "1 of 3 versions\n"


def test_versions_of_an_unknown_name_are_an_error(cli: CommandLine, repo: Repo) -> None:
    repo.artifacts.save(MODEL, "x", "one")
    assert cli("data", "versions", MODEL, "y", "--json").error["code"] == "not_found"


# delete ----------------------------------------------------------------------------------------


@pytest.fixture
def three_names(repo: Repo) -> Repo:
    for name in ("tmp-1", "tmp-2", "keep"):
        for text in ("one", "two"):
            repo.artifacts.save(MODEL, name, text, tags={"modelName": "web"})
    return repo


def test_delete_removes_a_name(cli: CommandLine, three_names: Repo) -> None:
    document = cli("data", "delete", "web", "keep", "--json").json
    assert document == {
        "modelId": "i-1",
        "modelName": "web",
        "modelType": "aws/ec2",
        "dataName": "keep",
        "versionsDeleted": 2,
    }
    assert three_names.list_versions(MODEL, "keep") == []


def test_delete_removes_one_version(cli: CommandLine, three_names: Repo) -> None:
    document = cli("data", "delete", "web", "keep", "--version", "2", "--json").json
    assert (document["version"], document["versionsDeleted"]) == (2, 1)
    assert three_names.list_versions(MODEL, "keep") == [1]


def test_delete_of_what_is_not_there_is_an_error(cli: CommandLine, three_names: Repo) -> None:
    assert cli("data", "delete", "web", "nope", "--json").error["code"] == "not_found"
    error = cli("data", "delete", "web", "keep", "--version", "9", "--json").error
    assert error["hint"] == "Versions: 2, 1."


def test_delete_by_prefix_in_json_never_asks(cli: CommandLine, three_names: Repo) -> None:
    document = cli("data", "delete", "web", "--prefix", "tmp-", "--json").json
    assert document == {
        "modelId": "i-1",
        "modelName": "web",
        "modelType": "aws/ec2",
        "totalDeleted": 2,
        "totalVersionsDeleted": 4,
        "failed": [],
        "dryRun": False,
    }
    assert [found.name for found in three_names.list_data(MODEL)] == ["keep"]


def test_a_dry_run_deletes_nothing_and_counts_the_same(cli: CommandLine, three_names: Repo) -> None:
    planned = cli("data", "delete", "web", "--all", "--dry-run", "--json").json
    assert len(three_names.list_data(MODEL)) == 3
    done = cli("data", "delete", "web", "--all", "--json").json
    assert planned == done | {"dryRun": True}
    assert done["totalDeleted"] == 3


def test_a_dry_run_lists_the_names(cli: CommandLine, three_names: Repo) -> None:
    out = cli("data", "delete", "web", "--prefix", "tmp-", "--dry-run").out
    assert out == ("tmp-1: 2 versions\ntmp-2: 2 versions\nWould delete 2 data names, 4 versions.\n")


def test_a_batch_without_anybody_to_ask_needs_a_yes(cli: CommandLine, three_names: Repo) -> None:
    outcome = cli("data", "delete", "web", "--all")
    assert outcome.status == 1
    assert "-y" in outcome.err
    assert len(three_names.list_data(MODEL)) == 3
    assert cli("data", "delete", "web", "--all", "-y").out == "Deleted 3 data names, 6 versions.\n"


@pytest.mark.parametrize(("answer", "left"), [(b"y\n", 1), (b"n\n", 3), (b"\x04", 3)])
def test_a_batch_asks_on_a_terminal(
    three_names: Repo, repo_dir: Path, answer: bytes, left: int
) -> None:
    outcome = run_on_terminal(
        "data", "delete", "web", "--prefix", "tmp-", repo=repo_dir, typed=answer
    )
    assert outcome.status == 0
    assert "Delete 2 data names of aws/ec2/i-1" in outcome.out
    assert ("Cancelled" in outcome.out) == (left == 3)
    assert len(three_names.list_data(MODEL)) == left


def test_a_batch_goes_on_after_a_failure_and_reports_it(
    cli: CommandLine, three_names: Repo, monkeypatch: pytest.MonkeyPatch
) -> None:
    delete = ArtifactStore.delete

    def failing(store: ArtifactStore, ref: object) -> object:
        if str(ref).endswith("tmp-1"):
            raise DiskError("the disk says no")
        return delete(store, ref)  # type: ignore[arg-type]

    monkeypatch.setattr(ArtifactStore, "delete", failing)
    outcome = cli("data", "delete", "web", "--all", "--json")
    document = json.loads(outcome.out)
    assert outcome.status == 1
    assert document["totalDeleted"] == 2
    assert document["failed"] == [
        {"dataName": "tmp-1", "error": "the disk says no", "code": "disk_error"}
    ]


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["keep", "--all"],
        ["keep", "--prefix", "k"],
        ["--all", "--prefix", "k"],
        ["--prefix", ""],
        ["--all", "--version", "1"],
        ["keep", "--dry-run"],
    ],
)
def test_delete_refuses_combinations_that_make_no_sense(
    cli: CommandLine, three_names: Repo, options: list[str]
) -> None:
    assert cli("data", "delete", "web", *options, "-y").status == 2
    assert len(three_names.list_data(MODEL)) == 3


# rename ----------------------------------------------------------------------------------------


def test_rename_says_what_became_of_the_content(cli: CommandLine, three_names: Repo) -> None:
    document = cli("data", "rename", "web", "keep", "kept", "--json").json
    warning = document.pop("warning")
    assert document == {
        "modelId": "i-1",
        "modelName": "web",
        "modelType": "aws/ec2",
        "oldName": "keep",
        "newName": "kept",
        "copiedVersion": 2,
        "newVersion": 1,
    }
    assert "'keep' forwards to 'kept'" in warning
    assert cli("data", "get", "web", "keep", "--raw").stdout == b"two"


def test_rename_as_text_warns_on_standard_error(cli: CommandLine, three_names: Repo) -> None:
    outcome = cli("data", "rename", "web", "keep", "kept")
    assert "version 2 became version 1" in outcome.out
    assert "\nwarning: " in outcome.err


def test_rename_to_a_name_in_use_is_an_error(cli: CommandLine, three_names: Repo) -> None:
    error = cli("data", "rename", "web", "keep", "tmp-1", "--json").error
    assert error["code"] == "already_exists"


# diff and tail ---------------------------------------------------------------------------------


def test_diff_shows_how_the_latest_differs_from_the_version_before(
    cli: CommandLine, repo: Repo
) -> None:
    for number in (1, 2, 3):
        repo.artifacts.save(MODEL, "state", {"n": number, "same": True})
    outcome = cli("data", "diff", MODEL, "state")
    assert outcome.out == f"--- {MODEL} state v2\n+++ {MODEL} state v3\n~ .n: 2 -> 3\n"
    assert cli("data", "diff", MODEL, "state", "1").out.endswith("~ .n: 1 -> 3\n")
    found = cli("data", "diff", MODEL, "state", "3", "1", "--json").json
    assert (found["kind"], found["same"]) == ("json", False)
    assert found["changes"] == [{"path": ".n", "change": "changed", "before": 3, "after": 1}]


def test_diff_compares_two_artifacts(cli: CommandLine, repo: Repo) -> None:
    repo.artifacts.save(MODEL, "state", {"n": 1})
    repo.artifacts.save("aws/ec2/i-2", "state", {"n": 1})
    other = "aws/ec2/i-2/state"
    assert cli("data", "diff", MODEL, "state", "--with", other, "--json").json["same"] is True
    assert cli("data", "diff", MODEL, "state", "1", "1", "--with", other).status == 2
    error = cli("data", "diff", MODEL, "state", "--json").error
    assert error["code"] == "not_found"
    assert "no version before 1" in error["error"]
    assert "--with MODEL/NAME" in error["hint"]


def test_what_a_diff_shows_cannot_command_the_terminal(cli: CommandLine, repo: Repo) -> None:
    for text in ("a\n", "\x1b[31mb\n"):
        repo.artifacts.save(MODEL, "log", text, content_type="text/plain")
    assert "+\\x1b[31mb" in cli("data", "diff", MODEL, "log").out


def test_tail_prints_the_last_lines(cli: CommandLine, repo: Repo) -> None:
    repo.artifacts.save(MODEL, "log", "one\ntwo\nthree\n", content_type="text/plain")
    assert cli("data", "tail", MODEL, "log", "-n", "2").out == "two\nthree\n"
    assert cli("data", "tail", MODEL, "log", "-n", "1", "--json").json == {
        "model": MODEL,
        "name": "log",
        "version": 1,
        "offset": 8,
        "text": "three\n",
    }
    assert "--follow" in cli("data", "tail", MODEL, "log", "--pull", "5").err
    error = cli("data", "tail", "-f", MODEL, "log", "--pull", "5", "--json").error
    assert error["code"] == "sync_not_supported"
