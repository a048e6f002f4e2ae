"""What was done is written down once, wherever it was done, and nothing of it gets lost."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import click
import pytest

from swampstore import Repo, open_repo
from swampstore.audit import events, record, seal
from swampstore.audit.segments import HOME
from swampstore.cli.app import root
from swampstore.cli.audit import ONLY_WITH, UNTOLD, changes_something
from swampstore.cli.command import Group
from swampstore.errors import EXIT_NOT_PUSHED
from swampstore.files import Change
from swampstore.layout import ModelRef
from tests.conftest import FakeClock
from tests.support.command_line import CommandLine
from tests.support.fault_proxy import Status
from tests.support.forked import in_child
from tests.support.machines import Machine
from tests.support.remotes import ProxiedRemote

MODEL, OTHER = "aws/ec2/i-1", "aws/ec2/i-2"


@pytest.fixture
def cli(
    repo_dir: Path, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> CommandLine:
    return CommandLine(repo_dir, capsysbinary, monkeypatch)


def commands_of(repo: Repo) -> list[str]:
    return [event.command for event in events(repo)]


def told(machine: Machine, *options: str) -> list[str]:
    return [one["command"] for one in machine("audit", "list", "--json", *options).json["events"]]


def shared(bucket: Path) -> dict[str, bytes]:
    """What is in the audit of a bucket, by name."""
    return {path.name: path.read_bytes() for path in bucket.glob("audit/*")}


# Commands ---------------------------------------------------------------------------------------


def test_what_changes_something_is_told_and_what_looks_is_not(cli: CommandLine) -> None:
    cli("data", "put", MODEL, "state", stdin=b"one")
    cli("data", "put", MODEL, "plan", stdin=b"one")
    for command in (["get", MODEL, "state"], ["list", MODEL], ["query", "size > 1"], ["search"]):
        assert cli("data", *command).status == 0
    cli("data", "rename", MODEL, "plan", "draft")
    cli("data", "gc", "--dry-run")
    cli("data", "gc", "-y")
    cli("data", "delete", MODEL, "state", "-y")
    cli("data", "delete", MODEL, "nothing", "-y")
    cli("doctor")
    cli("doctor", "--repair")
    found = cli("audit", "list", "--json").json
    assert [one["command"] for one in found["events"]] == [
        f"data put {MODEL} state",
        f"data put {MODEL} plan",
        f"data rename {MODEL} plan draft",
        "data gc",
        f"data delete {MODEL} state",
        "doctor",
    ]
    assert found["total"] == 6
    assert {one["exitCode"] for one in found["events"]} == {0}


def test_every_command_is_told_unless_it_is_said_to_change_nothing() -> None:
    paths: set[str] = set()

    def walk(group: click.Command, path: str) -> None:
        if not isinstance(group, Group):
            paths.add(path)
            return
        context = click.Context(group)
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            assert command is not None
            walk(command, f"{path} {name}".strip())

    walk(root, "")
    assert paths >= UNTOLD
    assert ONLY_WITH.keys() <= paths
    assert changes_something("something new", {})
    assert not changes_something("data gc", {"dry_run": True})


def test_values_are_never_written_down(cli: CommandLine, repo_dir: Path, tmp_path: Path) -> None:
    secret = "geheim" * 3
    file = tmp_path / f"{secret}.txt"
    file.write_text(secret)
    value = json.dumps({"password": secret})
    cli("data", "put", MODEL, "state", "--json-value", value, "--tag", f"who={secret}")
    cli("data", "put", MODEL, "state", str(file), "--content-type", f"text/{secret}")
    cli("data", "delete", MODEL, "--prefix", secret, "-y")
    cli("data", "put", MODEL, "state", "--lifetime", secret, stdin=b"x")
    (written,) = (repo_dir / ".swamp/audit").iterdir()
    assert secret.encode() not in written.read_bytes()
    first = json.loads(written.read_bytes().splitlines()[0])
    assert first["options"] == ["--json-value", "--tag"]
    assert first["models"] == [MODEL]


def test_what_failed_on_the_way_is_told_with_its_code(
    ana: Machine, s3_remote: ProxiedRemote
) -> None:
    ana.use_remote("@swamp/s3-datastore", s3_remote.config)
    s3_remote.proxy.fail(lambda _: True, Status(503), times=None)
    assert ana("data", "put", MODEL, "state", stdin=b"one").status == EXIT_NOT_PUSHED
    (last,) = ana("audit", "list", "--json").json["events"]
    assert (last["exitCode"], last["error"]) == (EXIT_NOT_PUSHED, "not_pushed")


def test_events_are_found_by_time_actor_model_and_kind(
    repo: Repo, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for day, user in enumerate(["ana", "bob", "ana"]):
        monkeypatch.setenv("USER", user)
        with repo.session([MODEL if day else OTHER]):
            pass
        record(repo, "run", command=f"run {day}", model=ModelRef.parse(MODEL))
        clock.advance(days=1)
    host = os.uname().nodename
    assert len(list(events(repo))) == 6
    assert len(list(events(repo, actor="ana"))) == 4
    assert len(list(events(repo, actor=f"bob@{host}"))) == 2
    assert len(list(events(repo, actor="bob@elsewhere"))) == 0
    assert len(list(events(repo, kind="run"))) == 3
    assert len(list(events(repo, model=OTHER))) == 1
    assert len(list(events(repo, since="2026-05-15T00:00:00.000Z"))) == 4
    until = "2026-05-16T20:19:51.042Z"
    assert len(list(events(repo, since="2026-05-15T20:19:51.042Z", until=until))) == 2
    moments = [event.timestamp for event in events(repo)]
    assert moments == sorted(moments)


def test_events_are_found_by_a_predicate(cli: CommandLine) -> None:
    cli("data", "put", MODEL, "state", stdin=b"one")
    cli("run", MODEL, "scan", "--", "true")
    cli("run", OTHER, "scan", "--", "sh", "-c", "exit 3")
    cli("run", OTHER, "probe", "--", "sh", "-c", "exit 4")

    def found(predicate: str, *options: str) -> list[str]:
        events = cli("audit", "list", predicate, *options, "--json").json["events"]
        return [one["command"] for one in events]

    assert found('kind == "run" && status == "failed"') == [
        f"run {OTHER} scan",
        f"run {OTHER} probe",
    ]
    assert found("exitCode > 3") == [f"run {OTHER} probe"]
    assert found('command.matches("^data")') == [f"data put {MODEL} state"]
    assert found(f'model == "{OTHER}"', "--limit", "1") == [f"run {OTHER} probe"]
    assert found('method == "scan"', "--model", MODEL) == [f"run {MODEL} scan"]
    wrong = cli("audit", "list", 'mehtod == "scan"')
    assert wrong.status == 1
    assert "Did you mean 'method'?" in wrong.err


# Programs ---------------------------------------------------------------------------------------


def test_a_session_of_a_program_is_one_event(repo: Repo) -> None:
    with repo.session([MODEL]):
        repo.artifacts.save(MODEL, "state", {"n": 1})
        repo.artifacts.save(MODEL, "plan", {"n": 1})
    with pytest.raises(ZeroDivisionError), repo.session([MODEL, OTHER]):
        raise ZeroDivisionError("with a value in it")
    one, two = events(repo)
    assert (one.kind, one.command, one.models) == ("session", f"session {MODEL}", (MODEL,))
    assert two.models == (MODEL, OTHER)
    assert two.members["error"] == "ZeroDivisionError"


def test_what_was_said_better_is_not_said_again(repo: Repo) -> None:
    with repo.session([MODEL]):
        record(repo, "run", command="run it", model=ModelRef.parse(MODEL))
    assert commands_of(repo) == ["run it"]


def test_other_clients_files_are_read_and_what_is_no_event_is_left_out(repo: Repo) -> None:
    home = Path(repo.tree.path("audit"))
    home.mkdir()
    (home / "commands-2026-05-01.jsonl").write_bytes(
        b'{"timestamp":"2026-05-01T08:00:00.000Z","command":"model run","cwd":"/x"}\n'
        b"null\n5\n[]\n{\n\xff\xfe\n"
        b'{"timestamp":"noon","command":"x"}\n{"timestamp":5,"command":"x"}\n'
        b'{"timestamp":"2026-05-01T07:00:00Z","command":"earlier"}\n{"timestamp":"2026-05-01T09'
    )
    (home / "vault-reads-2026-05-01.jsonl").write_bytes(
        b'{"timestamp":"2026-05-01T07:30:00.000Z","vaultName":"ops","secretKey":"db"}\n'
    )
    (home / "notes.txt").write_text("no audit")
    assert commands_of(repo) == ["earlier", "vault get", "model run"]
    assert [event.kind for event in events(repo)] == ["command", "vault", "command"]


def test_an_event_that_cannot_be_written_stops_nobody(
    repo: Repo, caplog: pytest.LogCaptureFixture
) -> None:
    Path(repo.config.local_dir, HOME).write_text("in the way")
    with repo.session([MODEL]):
        repo.artifacts.save(MODEL, "state", {"n": 1})
    assert repo.latest(MODEL, "state").json() == {"n": 1}
    assert "audit" in caplog.text


def test_who_may_not_write_the_audit_is_told_in_words(
    repo: Repo, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", "/data/audit/lock")

    monkeypatch.setattr(sys.modules["swampstore.audit.events"], "append", refuse)
    record(repo, "run", command="x")
    assert "could not be written: /data/audit/lock: permission denied" in caplog.text


def test_an_event_costs_little(repo_dir: Path) -> None:
    """A millisecond or two of this processor, whatever else the machine does."""
    with open_repo(repo_dir) as repo:
        record(repo, "run", command="the first one")
        began = time.process_time()
        for _ in range(50):
            record(repo, "run", command="run it")
        assert time.process_time() - began < 50 * 0.010


# Segments ---------------------------------------------------------------------------------------


def test_a_put_costs_no_request_more_for_its_event(
    ana: Machine, s3_remote: ProxiedRemote, monkeypatch: pytest.MonkeyPatch
) -> None:
    ana.use_remote("@swamp/s3-datastore", s3_remote.config)
    ana("data", "put", MODEL, "state", stdin=b"one")

    def requests_of_a_put() -> Counter[str]:
        s3_remote.proxy.reset()
        assert ana("data", "put", MODEL, "state", stdin=b"two").status == 0
        return Counter(one.kind for one in s3_remote.proxy.requests)

    with_events = requests_of_a_put()
    assert not [one.key for one in s3_remote.proxy.requests if "audit" in one.key]
    with monkeypatch.context() as patch:
        patch.setattr("swampstore.cli.errors._audit", lambda *_: None)
        patch.setattr(Repo, "seal_audit", lambda *_, **__: None)
        assert requests_of_a_put() == with_events
    assert ana("sync", "--json").json["filesPushed"] == 1
    s3_remote.proxy.reset()
    assert ana("sync", "--json").json["filesPushed"] == 0
    assert len(s3_remote.proxy.requests) == 2  # one in each direction: nothing changed


def test_a_sync_shares_events_in_files_that_never_change_again(
    ana: Machine, bob: Machine, bucket: Path
) -> None:
    seen: dict[str, bytes] = {}
    for number in range(3):
        ana("data", "put", MODEL, f"n{number}", stdin=b"x")
        bob("data", "put", OTHER, f"n{number}", stdin=b"x")
        ana("sync")
        bob("sync")
        now = shared(bucket)
        assert seen.items() <= now.items()
        assert len(now) == 2 * (number + 1)
        seen = now
    ana("sync")
    expected = [f"data put {model} n{n}" for n in range(3) for model in (MODEL, OTHER)]
    assert told(ana) == told(bob) == expected
    assert all(name.startswith("commands-") for name in seen)
    assert told(ana, "--model", OTHER) == expected[1::2]


def test_what_is_of_another_day_or_large_goes_with_any_push(
    ana: Machine, bucket: Path, clock: FakeClock
) -> None:
    with open_repo(ana.repo_dir, environ=ana.environ, durable=False, clock=clock) as repo:
        with repo.session([MODEL]):
            repo.artifacts.save(MODEL, "state", {"n": 1})
        with repo.session([MODEL]):
            repo.artifacts.save(MODEL, "state", {"n": 2})
        assert not shared(bucket)
        clock.advance(days=1)
        with repo.session([OTHER]):
            repo.artifacts.save(OTHER, "state", {"n": 1})
        (name, lines), *others = shared(bucket).items()
        assert name.startswith("commands-2026-05-14-")
        assert (len(lines.splitlines()), others) == (2, [])
        record(repo, "run", command="long " * 20_000)
        with repo.session([MODEL]):
            repo.artifacts.save(MODEL, "state", {"n": 3})
        assert len(shared(bucket)) == 2
        assert len(list(events(repo))) == 5


def test_checkouts_write_files_of_their_own_also_on_one_cache(
    ana: Machine, bucket: Path, tmp_path: Path
) -> None:
    ana("data", "put", MODEL, "one", stdin=b"x")
    copy = tmp_path / "ana" / "copy"
    shutil.copytree(ana.repo_dir, copy)
    with ana.open() as here, open_repo(copy, environ=ana.environ) as there:
        assert here.config.base == there.config.base
        record(here, "run", command="here")
        record(there, "run", command="there")
        for repo in (here, there):
            seal(repo, everything=True)
        names = {path.name for path in Path(here.tree.path("audit")).iterdir()}
        # The copy took the open segment along, too: what both hold is there once.
        assert len(names) == 2
        assert sorted(commands_of(here)) == [f"data put {MODEL} one", "here", "there"]


def test_a_torn_line_takes_no_other_with_it(ana: Machine) -> None:
    with ana.open() as repo:
        record(repo, "run", command="one")
        (segment,) = Path(repo.config.local_dir, HOME).glob("*/*.jsonl")
        with segment.open("ab") as file:
            file.write(b'{"timestamp":"2026-')
        record(repo, "run", command="two")
        assert commands_of(repo) == ["one", "two"]
        seal(repo, everything=True)
        assert commands_of(repo) == ["one", "two"]


@pytest.mark.parametrize("step", ["before", "after"])
def test_a_seal_that_was_interrupted_is_finished_and_doubles_nothing(
    ana: Machine, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from swampstore.audit import segments

    with ana.open() as repo:
        record(repo, "run", command="one")
        share = segments._share

        def stopped(*arguments: object) -> None:
            if step == "after":
                unlink = os.unlink
                monkeypatch.setattr(os, "unlink", lambda *_: None)
                share(*arguments)  # type: ignore[arg-type]
                monkeypatch.setattr(os, "unlink", unlink)
            raise OSError("stopped")

        with monkeypatch.context() as patch:
            patch.setattr(segments, "_share", stopped)
            seal(repo, everything=True)
        assert commands_of(repo) == ["one"]
        record(repo, "run", command="two")
        assert sorted(commands_of(repo)) == ["one", "two"]  # perhaps of one millisecond
        seal(repo, everything=True)
        assert sorted(commands_of(repo)) == ["one", "two"]
        assert not list(Path(repo.config.local_dir, HOME).glob("*/*.jsonl*"))


def test_a_segment_is_shared_though_a_push_came_right_before_a_seal_that_was_killed(
    ana: Machine, bucket: Path
) -> None:
    ana("sync")
    with ana.open() as repo:
        record(repo, "run", command="one")
    write = Change.write

    def write_and_die(change: Change, rel: str, data: bytes) -> None:
        with ana.open() as other:
            other.sync.push()  # of another process: it finds nothing there, and settles the mark
        write(change, rel, data)
        os.kill(os.getpid(), signal.SIGKILL)

    def sealing() -> None:
        with ana.open() as repo, pytest.MonkeyPatch.context() as monkeypatch:
            monkeypatch.setattr(Change, "write", write_and_die)
            seal(repo, everything=True)

    assert in_child(sealing)
    ana("sync")
    assert any(b'"one"' in lines for lines in shared(bucket).values())


_WRITER = """
import sys
from swampstore import open_repo
from swampstore.audit import record, seal
with open_repo(sys.argv[1], durable=False) as repo:
    for number in range(10**6):
        record(repo, "run", command=f"{sys.argv[2]}-{number}")
        sys.stdout.write(f"{sys.argv[2]}-{number}\\n"); sys.stdout.flush()
        if number % 3 == 2:
            seal(repo, everything=True)
"""


def test_killed_at_any_moment_no_acknowledged_event_is_lost_and_none_is_doubled(
    ana: Machine,
) -> None:
    chance = random.Random(7)
    acknowledged: list[str] = []
    for kill in range(4):
        writers = [
            subprocess.Popen(
                [sys.executable, "-c", _WRITER, str(ana.repo_dir), f"w{kill}{number}"],
                stdout=subprocess.PIPE,
                env=ana.environ,
                text=True,
            )
            for number in range(2)
        ]
        for writer in writers:
            assert writer.stdout
            acknowledged.append(writer.stdout.readline().strip())
        time.sleep(chance.uniform(0.01, 0.1))
        for writer in writers:
            writer.send_signal(signal.SIGKILL)
            assert writer.stdout
            rest = writer.stdout.read()
            acknowledged += [line for line in rest.splitlines() if line]
            writer.stdout.close()
            writer.wait()
    with ana.open() as repo:
        found = Counter(commands_of(repo))
        assert max(found.values()) == 1
        assert set(acknowledged) <= found.keys()
        seal(repo, everything=True)
        assert Counter(commands_of(repo)) == found
    assert len(acknowledged) > 8


# Moving and namespaces --------------------------------------------------------------------------


def test_events_come_along_to_another_datastore_and_back(ana: Machine, bucket: Path) -> None:
    ana("data", "put", MODEL, "one", stdin=b"x")
    ana("datastore", "setup", "filesystem")
    ana("data", "put", MODEL, "two", stdin=b"x")
    ana("datastore", "setup", f"file://{bucket}")
    ana("data", "put", MODEL, "three", stdin=b"x")
    assert told(ana) == [
        f"data put {MODEL} one",
        "datastore setup",
        f"data put {MODEL} two",
        "datastore setup",
        f"data put {MODEL} three",
    ]


@pytest.mark.parametrize(
    ("module", "command"),
    [("setup", ("setup", "filesystem")), ("namespace", ("namespace", "set", "infra"))],
)
def test_events_come_along_though_a_move_is_killed_after_the_settings_are_written(
    ana: Machine, module: str, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    ana("data", "put", MODEL, "one", stdin=b"x")

    def die(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def move() -> None:
        ana("datastore", *command)

    with monkeypatch.context() as patched:
        patched.setattr(f"swampstore.relocate.{module}.carry_over", die)
        assert in_child(move)
    assert told(ana) == [f"data put {MODEL} one"]
    ana("data", "put", MODEL, "two", stdin=b"x")
    assert told(ana) == [f"data put {MODEL} {name}" for name in ("one", "two")]


def test_events_come_along_into_a_namespace_and_out_of_it(cli: CommandLine) -> None:
    for _ in range(2):
        cli("data", "put", MODEL, "state", stdin=b"x")
        assert cli("datastore", "namespace", "set", "infra").status == 0
        assert cli("datastore", "namespace", "migrate", "-y").status == 0
        done = cli("datastore", "namespace", "unset", "--migrate", "--confirm")
        assert done.status == 0, done.err
    found = [one["command"] for one in cli("audit", "list", "--json").json["events"]]
    assert found == 2 * [
        f"data put {MODEL} state",
        "datastore namespace set infra",
        "datastore namespace migrate",
        "datastore namespace unset",
    ]


def test_no_namespace_sees_the_events_of_another(ana: Machine, bob: Machine, bucket: Path) -> None:
    for machine, name in ((ana, "infra"), (bob, "web")):
        assert machine("datastore", "namespace", "set", name).status == 0
        machine("data", "put", MODEL, name, stdin=b"x")
        machine("sync")
    for machine in (ana, bob):
        machine("sync", "--pull", "--full")
    for machine, name in ((ana, "infra"), (bob, "web")):
        assert told(machine) == [f"datastore namespace set {name}", f"data put {MODEL} {name}"]
        assert [path.parts[-3] for path in bucket.glob(f"{name}/audit/*")] == [name]
    assert not list(bucket.glob("audit/*"))


@pytest.mark.parametrize("kind", ["directory", "pipe"])
def test_what_is_no_file_keeps_no_events_away(repo: Repo, kind: str) -> None:
    record(repo, "data", command="data put")
    place = Path(repo.tree.path("audit/commands-2026-05-14-other.jsonl"))
    place.mkdir() if kind == "directory" else os.mkfifo(place)
    assert "data put" in commands_of(repo)


def test_a_damaged_note_of_a_move_stops_nobody(repo: Repo) -> None:
    note = Path(repo.config.local_dir, HOME, "moving")
    note.parent.mkdir(parents=True, exist_ok=True)
    note.write_bytes(b"\xff\x00\n\xfe")
    record(repo, "data", command="data put")
    assert seal(repo, everything=True) == 0
    assert commands_of(repo) == ["data put"]
