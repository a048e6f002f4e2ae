"""`swampstore sync`: two machines, one bucket, and everything that is told about it."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from swampstore.cli import progress as showing
from swampstore.cli.progress import Events, MovingLine, Sentences
from swampstore.cli.rendering import named_lines
from swampstore.index.results import Pulled, Step
from swampstore.stores.directory import DirectoryStore
from swampstore.stores.errors import StorePermissionError
from swampstore.sync.service import SyncService
from tests.support.command_line import CommandLine
from tests.support.machines import Machine, contents

MODEL = "aws/ec2/i-1"
OTHER = "aws/ec2/i-2"


# What it does -----------------------------------------------------------------------------------


def test_what_one_machine_saves_the_other_reads(ana: Machine, bob: Machine) -> None:
    ana.put(MODEL, "state", "one")
    assert ana("sync").status == 0
    assert bob("sync").status == 0
    assert bob.get(MODEL, "state") == "one"
    bob.put(MODEL, "state", "two")
    bob("sync")
    ana("sync")
    assert ana.get(MODEL, "state") == "two"
    assert ana.get(MODEL, "state", "--version", "1") == "one"


def test_what_one_machine_deletes_is_gone_on_the_other(ana: Machine, bob: Machine) -> None:
    ana.put(MODEL, "state", "one")
    ana("sync")
    bob("sync")
    with ana.open() as repo:
        repo.artifacts.delete(MODEL, "state")
    assert ana("sync", "--json").json["filesDeletedRemotely"] == 3
    assert bob("sync", "--json").json["filesDeletedHere"] == 3
    assert bob("data", "get", MODEL, "state").status == 1


@pytest.mark.parametrize(("versions", "left"), [("1", "two"), ("2", "one"), ("", "")])
def test_a_marker_that_is_a_link_does_not_hold_up_a_deletion_elsewhere(
    ana: Machine, bob: Machine, versions: str, left: str
) -> None:
    for content in ("one", "two"):
        ana.put(MODEL, "state", content)
    ana("sync")
    bob("sync")
    marker = bob.cache / "data" / MODEL / "state/latest"
    marker.unlink()
    marker.symlink_to("2")
    options = ["--version", versions] if versions else []
    assert ana("data", "delete", MODEL, "state", *options).status == 0
    for _ in range(2):
        outcome = bob("sync")
        assert outcome.status == 0, outcome.err
    ana("sync")
    for machine in (ana, bob):
        if left:
            assert machine.get(MODEL, "state") == left
        else:
            assert machine("data", "get", MODEL, "state").status == 1


def test_the_document_tells_what_was_done_and_what_it_cost(ana: Machine, bob: Machine) -> None:
    ana.put(MODEL, "state", "one")
    document = ana("sync", "--json").json
    assert document.pop("seconds") >= 0
    assert document.pop("bytesSent") > document["bytesPushed"] > 3
    assert document.pop("bytesReceived") >= 0
    assert document.pop("requests")["put"] >= 3
    assert document == {
        "mode": "full",
        "filesPulled": 0,
        "bytesPulled": 0,
        "filesDeletedHere": 0,
        "filesPushed": 3,
        "bytesPushed": document["bytesPushed"],
        "filesDeletedRemotely": 0,
        "conflicts": [],
        "skipped": [],
    }
    pulled = bob("sync", "--pull", "--json").json
    assert (pulled["mode"], pulled["filesPulled"]) == ("pull", 3)
    assert pulled["bytesPulled"] == document["bytesPushed"]
    assert "filesPushed" not in pulled
    assert set(bob("sync", "--push", "--json").json) == set(document) - {
        *("filesPulled", "bytesPulled", "filesDeletedHere")
    } | {"seconds", "requests", "bytesSent", "bytesReceived"}


def test_the_text_tells_the_same(ana: Machine) -> None:
    ana.put(MODEL, "state", "one")
    out = ana("sync").out.splitlines()
    assert out[0] == "Pulled 0 files, 0 B; deleted 0 here."
    assert out[1].startswith("Pushed 3 files, ")
    assert out[1].endswith("; deleted 0 on the remote.")
    assert "put" in out[2]
    assert out[2].endswith(" s.")


def test_a_second_sync_has_nothing_to_do_and_hardly_asks(ana: Machine) -> None:
    ana.put(MODEL, "state", "one")
    ana("sync")
    document = ana("sync", "--json").json
    assert document["filesPushed"] == document["filesPulled"] == 0
    assert sum(document["requests"].values()) <= 2


def test_either_half_can_be_done_alone(ana: Machine, bob: Machine) -> None:
    ana.put(MODEL, "state", "one")
    ana("sync", "--pull")
    assert bob("sync", "--pull", "--json").json["filesPulled"] == 0
    ana("sync", "--push")
    bob("sync", "--push")
    assert bob("data", "get", MODEL, "state").status == 1
    bob("sync", "--pull")
    assert bob.get(MODEL, "state") == "one"


def test_a_sync_can_be_limited_to_models(ana: Machine, bob: Machine) -> None:
    ana.put(MODEL, "state", "one")
    ana.put(OTHER, "state", "two")
    assert ana("sync", "--model", MODEL, "--json").json["filesPushed"] == 3
    assert bob("sync", "--json").json["filesPulled"] == 3
    ana("sync")
    bob("sync", "--model", OTHER, "--model", MODEL)
    assert bob.get(OTHER, "state") == "two"


def test_content_can_be_left_on_the_remote(ana: Machine, bob: Machine) -> None:
    ana.put(MODEL, "state", "one")
    ana("sync")
    bob("sync", "--metadata-only")
    assert not (bob.cache / "data/aws/ec2/i-1/state/1/raw").exists()
    assert bob("data", "versions", MODEL, "state", "--json").json["total"] == 1
    bob("sync")
    assert bob.get(MODEL, "state") == "one"


def test_a_lazy_datastore_leaves_content_on_the_remote(
    ana: Machine, bob: Machine, bucket: Path
) -> None:
    ana.put(MODEL, "state", "one")
    ana("sync")
    bob.use(bucket, hydrationStrategy="lazy")
    assert bob("sync", "--json").json["filesPulled"] == 2


def test_a_full_sync_finds_what_nobody_marked(ana: Machine, bucket: Path) -> None:
    ana.put(MODEL, "state", "one")
    ana("sync")
    (ana.cache / "files").mkdir()
    (ana.cache / "files/note.txt").write_text("by hand")
    assert ana("sync", "--json").json["filesPushed"] == 0
    assert ana("sync", "--full", "--json").json["filesPushed"] == 1
    assert (bucket / "files/note.txt").read_text() == "by hand"


def test_versions_that_both_machines_wrote_are_all_kept_and_named(
    ana: Machine, bob: Machine
) -> None:
    ana.put(MODEL, "state", "of ana")
    bob.put(MODEL, "state", "of bob")
    ana("sync")
    outcome = bob("sync")
    assert outcome.status == 0
    assert "conflict: data/aws/ec2/i-1/state: " in outcome.out
    ana("sync")
    for machine in (ana, bob):
        with machine.open() as repo:
            assert contents(repo, MODEL, "state") == ["of ana", "of bob"]
        assert machine("sync", "--json").json["conflicts"] == []


def test_a_dry_run_names_what_would_be_done_and_does_nothing(
    ana: Machine, bob: Machine, bucket: Path
) -> None:
    ana.put(MODEL, "state", "one")
    document = ana("sync", "--dry-run", "--json").json
    assert document["dryRun"] is True
    assert document["push"] == [
        *(f"data/aws/ec2/i-1/state/1/{name}" for name in ("metadata.yaml", "raw")),
        "data/aws/ec2/i-1/state/latest",
    ]
    assert document["pull"] == document["deleteHere"] == document["deleteRemotely"] == []
    assert document["pushBytes"] > 3
    assert list(bucket.rglob("raw")) == []
    ana("sync")
    out = bob("sync", "--pull", "--dry-run").out
    assert "pull: data/aws/ec2/i-1/state/1/raw\n" in out
    assert "Would pull 3 files, " in out
    assert "push" not in out
    assert bob("data", "get", MODEL, "state").status == 1


def test_many_things_are_counted_instead_of_named() -> None:
    found = [(f"data/{number}\x1b", "why") for number in range(25)]
    lines = named_lines("skipped", found)
    assert len(lines) == 21
    assert lines[0] == r"skipped: data/0\x1b: why"
    assert lines[-1] == "skipped: ... and 5 more"


# What goes wrong --------------------------------------------------------------------------------


def test_a_push_that_fails_has_an_exit_status_of_its_own_and_loses_nothing(
    ana: Machine, bob: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    ana.put(MODEL, "state", "one")
    with monkeypatch.context() as patch:

        def refuse(*args: object, **kwargs: object) -> None:
            raise StorePermissionError("the bucket is read-only", hint="Ask its owner.")

        for method in ("put", "put_if_absent", "put_if_match"):
            patch.setattr(DirectoryStore, method, refuse)
        outcome = ana("sync", "--json")
        assert outcome.status == 74
        assert outcome.error["code"] == "not_pushed"
        assert "the bucket is read-only" in outcome.error["error"]
        assert outcome.error["hint"]
        text = ana("sync")
        assert text.err.splitlines()[0].startswith("Pulled 0 files")
        assert text.err.splitlines()[1].startswith("error: the data is safe here")
        assert ana.get(MODEL, "state") == "one"
    assert ana("sync", "--json").json["filesPushed"] == 3
    bob("sync")
    assert bob.get(MODEL, "state") == "one"


def test_a_bucket_that_is_not_there_is_an_ordinary_error(ana: Machine, bucket: Path) -> None:
    ana.put(MODEL, "state", "one")
    bucket.rename(bucket.with_name("unmounted"))
    outcome = ana("sync", "--json")
    assert (outcome.status, outcome.error["code"]) == (1, "store_not_mounted")
    assert ana.get(MODEL, "state") == "one"


def test_a_datastore_that_is_used_in_place_has_nothing_to_sync(
    repo_dir: Path, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    cli = CommandLine(repo_dir, capsysbinary, monkeypatch)
    for arguments in (["sync"], ["sync", "--dry-run"], ["datastore", "migrate-index"]):
        assert cli(*arguments, "--json").error["code"] == "sync_not_supported"


@pytest.mark.parametrize(
    "options",
    [
        ["--pull", "--push"],
        ["--push", "--metadata-only"],
        ["--timeout", "0"],
        ["--timeout", "21601"],
    ],
)
def test_options_that_make_no_sense_together_are_refused(ana: Machine, options: list[str]) -> None:
    assert ana("sync", *options).status == 2


def test_the_time_of_each_half_is_limited(
    ana: Machine, bucket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[object] = []

    def pull(self: SyncService, *args: object, **options: object) -> Pulled:
        limits.append(options["deadline"])
        return Pulled()

    monkeypatch.setattr(SyncService, "pull", pull)
    ana("sync", "--pull")
    ana.use(bucket, syncTimeoutMs=5000)
    ana("sync", "--pull")
    monkeypatch.setenv("SWAMP_DATASTORE_SYNC_TIMEOUT_MS", "7000")
    ana("sync", "--pull")
    ana("sync", "--pull", "--timeout", "2")
    assert limits == [300, 5, 7, 2]


SLOW_SYNC = """
import sys, time
from swampstore.stores.directory import DirectoryStore
write = DirectoryStore._write
def slowly(self, key, *rest):
    if key.endswith("b/1/raw"):
        print("waiting", flush=True)
        time.sleep(60)
    return write(self, key, *rest)
DirectoryStore._write = slowly
from swampstore.cli import main
sys.exit(main(["sync"]))
"""


def test_an_interrupted_sync_leaves_everything_to_the_next_one(ana: Machine, bob: Machine) -> None:
    ana.put("t/a", "x", "one")
    ana.put("t/b", "b", "two")
    with subprocess.Popen(
        [sys.executable, "-c", SLOW_SYNC],
        env=ana.environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"waiting\n"
        process.send_signal(signal.SIGINT)
        complaints = process.stderr.read()
        process.wait()
    assert (process.returncode, complaints) == (130, b"error: interrupted\n")
    assert (ana.get("t/a", "x"), ana.get("t/b", "b")) == ("one", "two")
    ana("sync")
    bob("sync")
    assert (bob.get("t/a", "x"), bob.get("t/b", "b")) == ("one", "two")


# Progress ---------------------------------------------------------------------------------------


def progress_in_time(shown_by: type[Any], files: dict[float, int]) -> None:
    """Tell at each moment that so many files are done."""
    now = [0.0]
    told = shown_by(lambda: now[0])
    for moment, number in files.items():
        now[0] = moment
        told(Step("push", number, 9, number * 10, 90))
    told.end()


def test_progress_is_a_line_of_json_per_second_and_one_at_the_end(
    capsys: pytest.CaptureFixture[str],
) -> None:
    progress_in_time(Events, {8.0: 0, 8.5: 1, 9.1: 2, 9.2: 3, 10.3: 4, 10.4: 5})
    told = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [document["files"] for document in told] == [2, 4, 5]
    assert told[0] == {
        "phase": "push",
        "files": 2,
        "totalFiles": 9,
        "bytes": 20,
        "totalBytes": 90,
    }


@pytest.mark.parametrize("shown_by", [Events, Sentences, MovingLine])
def test_what_takes_less_than_a_second_is_not_worth_a_word(
    capsys: pytest.CaptureFixture[str], shown_by: type[Any]
) -> None:
    progress_in_time(shown_by, {8.1: 1, 8.9: 2})
    assert capsys.readouterr().err == ""


def test_progress_on_a_terminal_is_one_line_that_moves(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr(showing, "PATIENCE", 0.0)
    with showing.progress_shown() as progress:
        progress(Step("push", 3, 9, 3 << 20, 9 << 20))
    shown = capsys.readouterr().err
    assert shown == "\r\x1b[Kpush: 3 of 9 objects, 3.0 MB of 9.0 MB\r\x1b[K"


def test_a_log_is_told_a_sentence_every_ten_seconds_and_none_twice(
    capsys: pytest.CaptureFixture[str],
) -> None:
    moments = [0.0, 0.5, 1.5, 5.0, 11.0, 12.0, 22.0, 33.0, 44.0]
    progress_in_time(Sentences, {at: min(place, 6) for place, at in enumerate(moments)})
    assert capsys.readouterr().err.splitlines() == [
        "push: 2 of 9 objects, 20 B of 90 B, 13 B/s, 5 s left",
        "push: 5 of 9 objects, 50 B of 90 B, 4 B/s, 10 s left",
        "push: 6 of 9 objects, 60 B of 90 B, 2 B/s, 11 s left",
        "push: 6 of 9 objects, 60 B of 90 B, 1 B/s, 16 s left",
        "push: 6 of 9 objects, 60 B of 90 B, 1 B/s, 22 s left",
    ]


def test_what_spark_does_is_told_as_a_share_and_phases_by_their_name() -> None:
    assert showing.step_text(Step("read", 3, 8, 0, 0, "tasks"), 60.0) == "read: 37 %, 2 min left"
    assert showing.step_text(Step("copy", 0, 0, 0, 0), 0.0) == "copy"
    assert showing.step_text(Step("copy", 1200, 1200, 0, 0), 10.0) == (
        "copy: 1,200 objects, 120 objects/s"
    )


def test_a_sync_that_takes_its_time_tells_how_far_it_is(
    ana: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(showing, "PATIENCE", 0.0)
    ana.put(MODEL, "state", "one")
    started = time.monotonic()
    lines = [json.loads(line) for line in ana("sync", "--json").err.splitlines()]
    assert time.monotonic() - started < 30
    assert [line["files"] for line in lines if line["phase"] == "push"] == [0, 1, 2, 3]
    assert lines[-1]["bytes"] == lines[-1]["totalBytes"]


def test_a_save_into_an_emptied_cache_deletes_nothing_on_the_remote(
    ana: Machine, bob: Machine
) -> None:
    for number in (1, 2, 3):
        ana.put("aws/ec2/i-1", "state", f"{number}")
    assert ana("sync").status == 0
    shutil.rmtree(ana.cache / "data")
    ana.put("aws/ec2/i-1", "state", "4")
    outcome = ana("sync", "--json")
    assert json.loads(outcome.out)["filesDeletedRemotely"] == 0
    assert bob("sync").status == 0
    with bob.open() as repo:
        assert contents(repo, "aws/ec2/i-1", "state") == ["1", "2", "3", "4"]


def test_versions_that_are_deleted_here_are_deleted_there(ana: Machine, bob: Machine) -> None:
    for number in (1, 2, 3):
        ana.put("aws/ec2/i-1", "state", f"{number}")
    assert ana("sync").status == bob("sync").status == 0
    assert ana("data", "delete", "aws/ec2/i-1", "state", "--version", "2", "-y").status == 0
    assert json.loads(ana("sync", "--json").out)["filesDeletedRemotely"] == 0
    assert bob("sync").status == 0
    with bob.open() as repo:
        assert contents(repo, "aws/ec2/i-1", "state") == ["1", "3"]
    assert bob("data", "delete", "aws/ec2/i-1", "state", "-y").status == 0
    assert ana("sync").status == 0
    assert not (ana.cache / "data/aws/ec2/i-1/state").exists()


def test_content_that_stayed_on_the_remote_is_fetched_when_it_is_read(
    ana: Machine, bob: Machine
) -> None:
    ana.put(MODEL, "state", "content")
    assert ana("sync").status == 0
    assert bob("sync", "--metadata-only").status == 0
    raw = bob.cache / f"data/{MODEL}/state/1/raw"
    assert not raw.exists()
    assert bob("doctor").status == 0
    assert bob("data", "query", f'modelId == "{MODEL.rpartition("/")[2]}"').status == 0
    assert not raw.exists()
    assert bob.get(MODEL, "state") == "content"
    assert raw.read_text() == "content"
    assert bob("sync", "--json").status == 0


def test_content_that_is_nowhere_is_told_to_be_so(ana: Machine, bob: Machine, bucket: Path) -> None:
    ana.put(MODEL, "state", "content")
    assert ana("sync").status == 0
    assert bob("sync", "--metadata-only").status == 0
    (bucket / f"data/{MODEL}/state/1/raw").unlink()
    outcome = bob("data", "get", MODEL, "state", "--raw")
    assert outcome.status == 1
    assert "neither on this disk nor on the remote" in outcome.err


def test_a_push_in_the_middle_of_a_save_does_not_lose_its_mark(ana: Machine, bob: Machine) -> None:
    with ana.open() as repo, ana.open() as other:
        repo.artifacts.save(MODEL, "state", b"1")
        other.sync.push()
        with repo.tree.changing(f"data/{MODEL}/state"):
            other.sync.push()  # sees what is there now, and is through with the mark
            assert other.dirty.peek().is_empty
        assert not other.dirty.peek().is_empty
        repo.artifacts.save(MODEL, "state", b"2")
        assert other.sync.push().files == 3
    assert bob("sync").status == 0


def test_what_comes_from_standard_input_is_numbered_past_what_others_saved(
    ana: Machine, bob: Machine
) -> None:
    for machine in (ana, bob):
        assert machine("sync").status == 0
    assert ana("data", "put", "aws/ec2/i-1", "log", "--json-value", "1").status == 0
    saved = bob("data", "put", "aws/ec2/i-1", "log", "-", "--json", stdin=b"late").json
    assert saved["version"] == 2
    with bob.open() as repo:
        assert repo.dirty.peek().is_empty
    assert ana("sync").status == 0
    assert ana.get("aws/ec2/i-1", "log") == "late"


@pytest.mark.parametrize(
    "command",
    [
        ("sync", "--full"),
        ("pipeline", "push", "--engine", "local"),
        ("doctor", "--repair"),
        ("datastore", "evict", "--to", "0"),
    ],
    ids=" ".join,
)
def test_an_object_that_the_remote_lost_is_sent_again_by_whoever_has_the_content(
    command: tuple[str, ...], ana: Machine, bob: Machine, bucket: Path
) -> None:
    assert ana("data", "put", MODEL, "state", stdin=b"one").status == 0
    lost = bucket / f"data/{MODEL}/state/1/raw"
    lost.unlink()
    assert ana(*command).status == 0
    if command[1] == "evict":  # which only notices
        assert (ana.cache / f"data/{MODEL}/state/1/raw").read_bytes() == b"one"
        assert ana("sync").status == 0
    assert lost.read_bytes() == b"one"
    assert bob("sync").status == 0
    assert bob.get(MODEL, "state") == "one"


@pytest.mark.parametrize("is_joined", [True, False])
def test_a_push_tells_of_a_part_of_the_index_that_it_makes_anew(
    ana: Machine, bob: Machine, bucket: Path, *, is_joined: bool
) -> None:
    for name in ("state", "other"):
        assert ana("data", "put", MODEL, name, stdin=b"one").status == 0
    assert ana("datastore", "migrate-index").status == 0
    if is_joined:
        assert bob("sync").status == 0
    shard = "_index/data--aws--ec2--i-1.json"
    (bucket / shard).unlink()
    bob.put(MODEL, "third", "three")
    done = bob("push")
    assert done.status == 0
    assert f"skipped: {shard}: it is missing" in done.out
    assert shard not in bob("push").out
    assert ana("sync", "--json").json["filesDeletedHere"] == 0
    assert ana.get(MODEL, "other") == "one"
