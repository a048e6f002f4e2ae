"""The commands of vaults: what goes in and out, and what is never shown."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import pty
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from swampstore.vaults import local_encryption
from tests.support.command_line import CommandLine, environment
from tests.support.fault_proxy import FaultProxy
from tests.support.http_server import Answer, Request
from tests.support.machines import Machine
from tests.support.remotes import BUCKET
from tests.support.servers import S3_KEY, S3Server
from tests.support.vault_testing import keeping_program

pytest.importorskip("cryptography", reason="the extra `vaults` is not installed")


@pytest.fixture
def cli(
    repo_dir: Path, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> CommandLine:
    monkeypatch.setattr(local_encryption, "_ITERATIONS", 10)
    return CommandLine(repo_dir, capsysbinary, monkeypatch)


@pytest.fixture
def ops(cli: CommandLine) -> CommandLine:
    assert cli("vault", "create", "local_encryption", "ops", "--audit-reads").status == 0
    return cli


def test_a_secret_goes_in_by_standard_input_and_comes_out(ops: CommandLine) -> None:
    saved = ops("vault", "put", "ops", "db", stdin=b"hunter2\n")
    assert saved.out == "Saved the secret db of the vault ops.\n"
    assert ops("vault", "get", "ops", "db").stdout == b"hunter2\n"
    assert ops("vault", "get", "ops", "db", "--json").json == {
        "vault": "ops",
        "key": "db",
        "value": "hunter2",
    }
    ops("vault", "put", "ops", "pem", "--keep-newline", stdin=b"a\nb\n")
    assert ops("vault", "get", "ops", "pem", "--json").json["value"] == "a\nb\n"


def test_a_value_is_replaced_only_if_somebody_says_so(ops: CommandLine) -> None:
    ops("vault", "put", "ops", "db", stdin=b"one")
    refused = ops("vault", "put", "ops", "db", stdin=b"two")
    assert refused.status == 1
    assert "-y" in refused.err
    assert ops("vault", "get", "ops", "db").out == "one\n"
    assert ops("vault", "put", "ops", "db", "-y", stdin=b"two").out.startswith("Replaced")
    assert ops("vault", "put", "ops", "db", "--json", stdin=b"three").json["created"] is False
    assert ops("vault", "get", "ops", "db").out == "three\n"


@pytest.mark.parametrize(
    "arguments", [["db", "hunter2"], ["db=hunter2"], ["db", "--", "hunter2"], ["db=hunter2", "x"]]
)
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_value_on_the_command_line_is_refused_and_not_repeated(
    ops: CommandLine, arguments: list[str], options: list[str]
) -> None:
    refused = ops("vault", "put", *options, "ops", *arguments)
    assert refused.status == 2
    assert "never taken from the command line" in refused.err
    assert "hunter2" not in refused.err
    assert ops("vault", "list", "ops", "--json").json["keys"] == []


@pytest.mark.parametrize("value", [b"", b"\n", b"caf\xe9", b"a\0b", b"x" * ((1 << 20) + 1)])
def test_a_value_that_makes_no_sense_is_refused(ops: CommandLine, value: bytes) -> None:
    assert ops("vault", "put", "ops", "db", "--json", stdin=value).error["code"] == (
        "validation_failed"
    )


def converse(repo: Path, *args: str, answers: list[bytes]) -> str:
    """Run a command on a terminal of its own; each answer is typed once it asks for one."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "swampstore.cli", *args],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment(repo) | {"NO_COLOR": "1"},
        start_new_session=True,  # or a prompt would be on the terminal of who runs the tests
    ) as process:
        os.close(theirs)
        watchdog = threading.Timer(60, process.kill)
        watchdog.start()
        shown = b""
        with contextlib.suppress(OSError):  # that is how Linux says that the other side is closed
            while piece := os.read(ours, 65536):
                shown += piece
                if answers and shown.endswith(b": "):
                    os.write(ours, answers.pop(0))
        watchdog.cancel()
        os.close(ours)
    return shown.decode().replace("\r\n", "\n")


def test_a_value_is_asked_for_twice_and_not_shown(cli: CommandLine, repo_dir: Path) -> None:
    cli("vault", "create", "local_encryption", "ops")
    shown = converse(repo_dir, "vault", "put", "ops", "db", answers=[b"hunter2\n"] * 2)
    assert "Saved the secret db" in shown
    assert "hunter2" not in shown
    declined = converse(repo_dir, "vault", "get", "ops", "db", answers=[b"n\n"])
    assert "Cancelled" in declined
    assert "hunter2" not in declined
    assert "hunter2" in converse(repo_dir, "vault", "get", "ops", "db", answers=[b"y\n"])


def test_vaults_and_keys_are_listed(ops: CommandLine, repo_dir: Path) -> None:
    ops("vault", "create", "environment", "ci", "--config", "prefix=CI_")
    ops("vault", "put", "ops", "db", stdin=b"hunter2")
    listed = ops("vault", "list", "--json").json
    assert [(one["name"], one["type"]) for one in listed["vaults"]] == [
        ("ci", "environment"),
        ("ops", "local_encryption"),
    ]
    assert listed["vaults"][0]["config"] == {"prefix": "CI_"}
    assert "local_encryption" in ops("vault", "list").out
    assert ops("vault", "list", "ops").out == "db\n1 secret\n"
    (repo_dir / "vaults/broken.yaml").write_text("{")
    again = ops("vault", "list")
    assert "broken.yaml is left out" in again.err
    assert "local_encryption" in again.out
    assert ops("vault", "list", "--json").json["broken"][0]["code"] == "yaml_invalid"


def test_a_secret_is_annotated_and_inspected_without_its_value(ops: CommandLine) -> None:
    ops("vault", "put", "ops", "db", "--label", "team=data", stdin=b"hunter2")
    ops("vault", "annotate", "ops", "db", "--url", "https://db", "--notes", "by hand")
    shown = ops("vault", "inspect", "ops", "db")
    assert "https://db" in shown.out
    assert "team=data" in shown.out
    assert "hunter2" not in shown.out
    document = ops("vault", "inspect", "ops", "db", "--json").json
    assert document["bytes"] == 7
    assert document["annotation"]["labels"] == {"team": "data"}
    assert document["refresh"] is None
    assert ops("vault", "annotate", "ops", "db").status == 2


def test_a_secret_can_be_refreshed_by_a_command(ops: CommandLine) -> None:
    refresh = ["--refresh-from", "echo new", "--refresh-ttl"]
    ops("vault", "put", "ops", "token", *refresh, "0m", stdin=b"old")
    assert ops("vault", "get", "ops", "token").out == "new\n"
    assert ops("vault", "inspect", "ops", "token", "--json").json["refresh"]["ttl"] == "0m"
    assert ops("vault", "put", "ops", "x", "--refresh-from", "echo", stdin=b"1").status == 2


def test_a_secret_is_kept_as_it_was_if_what_shall_renew_it_is_wrong(ops: CommandLine) -> None:
    ops("vault", "put", "ops", "x", stdin=b"old")
    refresh = ["--refresh-from", "echo new", "--refresh-ttl", "soon"]
    wrong = ops("vault", "put", "ops", "x", *refresh, "--json", stdin=b"1")
    assert wrong.error["code"] == "validation_failed"
    assert ops("vault", "get", "ops", "x").out == "old\n"


def test_only_what_can_be_tried_is_offered_to_be_tried(ops: CommandLine) -> None:
    ops("vault", "put", "ops", "db", stdin=b"one")
    assert ops("vault", "put", "ops", "db", stdin=b"two").err.endswith("Pass -y to go ahead.\n")
    ops("data", "put", "a/b", "x", stdin=b"1")
    assert "--dry-run" in ops("data", "delete", "a/b", "--all").err
    wrong = ops("vault", "create", "environment", "e", "--config", "prefix").err
    assert "'prefix' is not a setting, write key=value" in wrong


def test_a_vault_without_its_id_says_so(ops: CommandLine, repo_dir: Path) -> None:
    (repo_dir / "vaults" / "environment").mkdir()
    (repo_dir / "vaults" / "environment" / "x.yaml").write_text("name: x\ntype: environment\n")
    assert "x.yaml: id is missing" in ops("vault", "list").err


def test_a_secret_is_deleted_if_somebody_says_so(ops: CommandLine) -> None:
    ops("vault", "put", "ops", "db", stdin=b"one")
    assert ops("vault", "delete", "ops", "db").status == 1
    assert ops("vault", "delete", "ops", "db", "-y").out == (
        "Deleted the secret db of the vault ops.\n"
    )
    assert ops("vault", "get", "ops", "db", "--json").error["code"] == "secret_not_found"
    assert ops("vault", "get", "dev", "db", "--json").error["code"] == "vault_not_found"


def test_a_vault_gets_a_new_key(ops: CommandLine) -> None:
    ops("vault", "put", "ops", "db", stdin=b"one")
    assert ops("vault", "rotate", "ops").out == (
        "The vault ops has a new key; 1 secret encrypted with it.\n"
    )
    assert ops("vault", "get", "ops", "db").out == "one\n"


def test_a_vault_is_migrated(ops: CommandLine, tmp_path: Path) -> None:
    ops("vault", "put", "ops", "db", "--label", "a=b", stdin=b"one")
    settings = [
        f"--config={name}={value if isinstance(value, str) else json.dumps(value)}"
        for name, value in keeping_program(tmp_path).items()
    ]
    command = ["vault", "migrate", "ops", "--to-type", "command", *settings]
    assert ops(*command, "--dry-run").out == "Would copy 1 secret of ops to command.\n"
    done = ops(*command)
    assert done.out == "Copied 1 secret of ops to command.\n"
    assert done.err == "warning: 1 annotation could not be copied\n"
    assert (tmp_path / "kept/db").read_text() == "one"
    assert ops("vault", "get", "ops", "db").out == "one\n"


def test_what_was_done_is_shown_with_filters(ops: CommandLine) -> None:
    ops("vault", "put", "ops", "db", stdin=b"hunter2")
    ops("vault", "put", "ops", "api", stdin=b"hunter3")
    ops("vault", "get", "ops", "db")
    everything = ops("vault", "audit", "--json").json
    assert [one["action"] for one in everything["events"]] == ["create", "put", "put", "get"]
    assert everything["events"][0]["callerContext"] == "cli"
    for options, count in (
        (["--key", "db"], 2),
        (["--action", "put"], 2),
        (["--vault", "dev"], 0),
        (["--since", "1h"], 4),
        (["--until", "1h"], 0),
    ):
        assert ops("vault", "audit", *options, "--json").json["total"] == count
    assert len(ops("vault", "audit", "--limit", "1", "--json").json["events"]) == 1
    text = ops("vault", "audit").out
    assert "hunter" not in text
    assert len(text.splitlines()) == 4
    assert ops("vault", "audit", "--since", "noon", "--json").error["code"] == "validation_failed"


# Nothing leaves --------------------------------------------------------------------------------


class RecordingProxy(FaultProxy):
    """Keeps every byte that was sent."""

    def __init__(self, target_url: str) -> None:
        super().__init__(target_url)
        self.sent: list[bytes] = []

    def answer(self, request: Request) -> Answer | None:
        head = f"{request.method} {request.target} {json.dumps(dict(request.headers))}\n"
        self.sent.append(head.encode() + request.body)
        return super().answer(request)


def test_no_byte_of_a_secret_leaves_the_machine(
    s3_server: S3Server,
    tmp_path: Path,
    capsysbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    values = [f"s3cr3t-{number}-{'é' * number}" for number in range(5)]
    machine = Machine(tmp_path / "ana", capsysbinary, monkeypatch)
    with RecordingProxy(s3_server.url) as proxy:
        config = {"bucket": BUCKET, "prefix": "secrets-test", "endpoint": proxy.url, **S3_KEY}
        machine.use_remote("s3", config)
        assert machine("vault", "create", "local_encryption", "ops", "--audit-reads").status == 0
        for number, value in enumerate(values):
            put = machine("vault", "put", "ops", f"key-{number}", stdin=value.encode())
            assert put.status == 0, put.err
        machine("vault", "annotate", "ops", "key-0", "--notes", "about-the-s3cr3t")
        assert machine("vault", "rotate", "ops").status == 0
        assert machine("vault", "get", "ops", "key-0").out == f"{values[0]}\n"
        # Somebody copies them into the cache, where they do not belong either.
        local = machine.repo_dir / ".swamp/secrets"
        copied = [path for path in local.rglob("*") if path.is_file()]
        for path in copied:
            there = machine.cache / "secrets" / path.relative_to(local)
            there.parent.mkdir(parents=True, exist_ok=True)
            there.write_bytes(path.read_bytes())
        assert machine("data", "put", "a/b", "state", stdin=b"plain content").status == 0
        assert machine("sync").status == 0
    sent = b"\n".join(proxy.sent)
    assert b"plain content" in sent
    assert b"vault-audit-" in sent, "the audit travels, without values"
    key = (local / "local_encryption/ops/.key").read_bytes()
    encrypted = [json.loads(path.read_bytes())["data"] for path in local.rglob("*.enc")]
    assert len(encrypted) == len(values) + 1
    for secret in (*(value.encode() for value in values), key, *map(str.encode, encrypted)):
        assert secret not in sent
        assert base64.b64encode(secret)[:-4] not in sent
    assert b"about-the-s3cr3t" not in sent
    assert b"/secrets/" not in sent
