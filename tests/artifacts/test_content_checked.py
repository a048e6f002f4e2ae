"""What is read is what was saved: content is compared with its hash on the way."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from swampstore import Repo
from swampstore.doctor import examine
from swampstore.errors import ContentDamagedError
from swampstore.marker import update_marker
from tests.support.machines import Machine

MODEL = "aws/ec2/i-1"


def flip(path: Path) -> None:
    """Change one byte of a file, as a disk may do it: its times stay."""
    status = path.stat()
    data = bytearray(path.read_bytes())
    data[0] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def raw(repo: Repo, name: str, version: int = 1) -> Path:
    return Path(repo.tree.path(f"data/{MODEL}/{name}/{version}/raw"))


class TestReading:
    @pytest.mark.parametrize("size", [5, 3_000_000])
    def test_one_flipped_byte_is_told(self, repo: Repo, size: int) -> None:
        saved = repo.artifacts.save(MODEL, "blob", b"x" * size)
        assert saved.bytes() == b"x" * size
        flip(raw(repo, "blob"))
        for read in (saved.bytes, saved.text, repo.latest(MODEL, "blob").bytes):
            with pytest.raises(ContentDamagedError, match=r"blob version 1 is damaged"):
                read()

    def test_a_stream_tells_at_its_end(self, repo: Repo) -> None:
        saved = repo.artifacts.save(MODEL, "blob", b"x" * 100_000)
        with saved.open() as file:
            assert len(file.read(100_000)) == 100_000
            assert file.read(1) == b""
            assert file.verified  # type: ignore[attr-defined]
            file.seek(0)
            assert file.read(3) == b"xxx"
        flip(raw(repo, "blob"))
        with saved.open() as file:
            assert len(file.read(100_000)) == 100_000
            with pytest.raises(ContentDamagedError):
                file.read(1)

    def test_whoever_looks_around_in_it_is_not_bothered(self, repo: Repo) -> None:
        saved = repo.artifacts.save(MODEL, "blob", b"0123456789" * 10_000)
        with saved.open() as file:
            file.seek(99_990)
            assert file.read() == b"0123456789"
            assert file.verified is None  # type: ignore[attr-defined]

    def test_nothing_is_added_to_content_that_is_damaged(self, repo: Repo) -> None:
        repo.artifacts.save(MODEL, "log", b"one\n", streaming=True)
        flip(raw(repo, "log"))
        with pytest.raises(ContentDamagedError, match=r"log version 1 is damaged"):
            repo.artifacts.append(MODEL, "log", b"two\n")
        assert len(raw(repo, "log").read_bytes()) == 4
        with pytest.raises(ContentDamagedError):
            repo.latest(MODEL, "log").bytes()

    def test_content_that_is_longer_than_told_can_be_added_to(self, repo: Repo) -> None:
        repo.artifacts.save(MODEL, "log", b"one\n", streaming=True)
        with raw(repo, "log").open("ab") as file:
            file.write(b"by another program\n")
        appended = repo.artifacts.append(MODEL, "log", b"two\n")
        assert appended.bytes() == b"one\nby another program\ntwo\n"

    def test_appended_content_has_nothing_to_be_compared_with(self, repo: Repo) -> None:
        before = repo.artifacts.save(MODEL, "log", b"one\n", streaming=True)
        repo.artifacts.append(MODEL, "log", b"two\n")
        for artifact in (before, repo.latest(MODEL, "log")):
            with artifact.open() as file:
                assert file.read() == b"one\ntwo\n"
                assert file.verified is False  # type: ignore[attr-defined]

    def test_what_nothing_vouches_for_is_told_of(self, ana: Machine) -> None:
        update_marker(str(ana.repo_dir), {"datastore": None})
        text = ("--streaming", "--content-type", "text/plain")
        assert ana("data", "put", MODEL, "log", *text, stdin=b"one\n").status == 0
        assert ana("data", "get", MODEL, "log", "--json").json["verified"] is True
        assert ana("data", "put", MODEL, "log", "--append", stdin=b"two\n").status == 0
        assert ana("data", "get", MODEL, "log", "--json").json["verified"] is False
        assert "1 version(s) have nothing to compare with" in ana("doctor", "--deep").out

    def test_appended_content_is_compared_with_what_the_index_says_of_it(
        self, ana: Machine
    ) -> None:
        text = ("--content-type", "text/plain")
        assert ana("data", "put", MODEL, "log", "--streaming", *text, stdin=b"one\n").status == 0
        assert ana("data", "put", MODEL, "log", "--append", stdin=b"two\n").status == 0
        assert ana("data", "get", MODEL, "log", "--json").json["verified"] is True
        with ana.open() as repo:
            damaged = raw(repo, "log")
        flip(damaged)
        assert ana("data", "get", MODEL, "log", "--json").error["code"] == "content_damaged"
        assert ana("doctor", "--deep").status == 1
        assert ana("doctor", "--deep", "--repair").status == 0
        assert damaged.read_bytes() == b"one\ntwo\n"

    def test_queries_do_not_look_into_damaged_content(
        self, repo: Repo, caplog: pytest.LogCaptureFixture
    ) -> None:
        repo.artifacts.save(MODEL, "state", {"a": 1})
        flip(raw(repo, "state"))
        assert list(repo.query("attributes.a == 1")) == []
        assert "is damaged" in caplog.text

    def test_a_rename_does_not_make_damage_look_well(self, repo: Repo) -> None:
        repo.artifacts.save(MODEL, "state", {"a": 1})
        flip(raw(repo, "state"))
        with pytest.raises(ContentDamagedError):
            repo.artifacts.rename(MODEL, "state", "status")
        assert repo.list_versions(MODEL, "status") == []


class TestDoctor:
    def test_only_a_deep_look_finds_one_flipped_byte(self, repo: Repo) -> None:
        repo.artifacts.save(MODEL, "state", {"a": 1})
        repo.artifacts.save(MODEL, "log", b"one", streaming=True)
        repo.artifacts.append(MODEL, "log", b"two")
        repo.ready(complete=True)
        assert examine(repo, deep=True).ok
        flip(raw(repo, "state"))
        assert examine(repo).ok
        report = examine(repo, deep=True, repair=True)
        wrong = [finding for finding in report.findings if not finding.passed]
        assert [finding.check for finding in wrong] == ["content_hash"]
        assert "No good copy is known" in wrong[0].details[0]

    def test_a_repair_fetches_what_the_remote_has(self, ana: Machine) -> None:
        ana("data", "put", MODEL, "state", "--content-type", "text/plain", stdin=b"right")
        with ana.open() as repo:
            damaged = raw(repo, "state")
            flip(damaged)
        told = ana("data", "get", MODEL, "state", "--json").error
        assert told["code"] == "content_damaged"
        assert "doctor --deep --repair" in told["hint"]
        assert ana("doctor", "--deep").status == 1
        assert ana("doctor", "--deep", "--repair").status == 0
        assert ana("data", "get", MODEL, "state", "--json").json["verified"] is True
        assert ana.get(MODEL, "state") == "right"
        assert (damaged.parent / "_catalog.db-damaged").read_bytes() != b"right"
        ana("sync")  # the events of what was done
        assert ana("sync", "--full", "--json").json["filesPushed"] == 0


class TestPushing:
    def test_damage_is_not_shared_and_the_rest_is(self, ana: Machine, bob: Machine) -> None:
        for number in (1, 2, 3):
            ana.put(MODEL, "state", f"state {number}")
        ana.put(MODEL, "other", "fine")
        with ana.open() as repo:
            flip(raw(repo, "state", 2))
        done = ana("sync")
        assert done.status == 74
        assert "state version 2 is damaged" in done.err
        assert bob("sync").status == 0
        assert bob.get(MODEL, "other") == "fine"
        with bob.open() as repo:
            assert repo.list_versions(MODEL, "state") == [1, 3]
        assert bob.get(MODEL, "state") == "state 3"

    def test_damage_does_not_replace_what_was_pushed(self, ana: Machine, bob: Machine) -> None:
        ana("data", "put", MODEL, "state", "--content-type", "text/plain", stdin=b"right")
        with ana.open() as repo:
            damaged = raw(repo, "state")
        damaged.write_bytes(b"wrong")
        assert ana("sync", "--full").status == 74
        assert bob("sync").status == 0
        assert bob.get(MODEL, "state") == "right"

    def test_a_latest_version_that_is_damaged_is_not_named(
        self, ana: Machine, bob: Machine
    ) -> None:
        for number in (1, 2):
            ana.put(MODEL, "state", f"state {number}")
        with ana.open() as repo:
            flip(raw(repo, "state", 2))
        assert ana("sync").status == 74
        assert bob("sync").status == 0
        assert bob.get(MODEL, "state") == "state 1"

    @pytest.mark.parametrize("way_out", ["delete", "restore"])
    def test_setup_leaves_everything_where_it_is_if_something_is_damaged(
        self, ana: Machine, bucket: Path, way_out: str
    ) -> None:
        update_marker(str(ana.repo_dir), {"datastore": None})
        for name in ("state", "other"):
            assert ana("data", "put", MODEL, name, stdin=b"right").status == 0
        with ana.open() as repo:
            damaged = raw(repo, "state")
        flip(damaged)
        done = ana("datastore", "setup", f"file://{bucket}")
        assert done.status == 1
        assert f"data/{MODEL}/state/1" in done.err
        assert not list(bucket.rglob("raw"))
        assert ana.get(MODEL, "other") == "right"
        if way_out == "restore":
            damaged.write_bytes(b"right")
        else:
            assert ana("data", "delete", MODEL, "state", "--yes").status == 0
        assert ana("datastore", "setup", f"file://{bucket}").status == 0
        assert (bucket / f"data/{MODEL}/other/1/raw").read_bytes() == b"right"
        assert (bucket / f"data/{MODEL}/state/1/raw").exists() == (way_out == "restore")
