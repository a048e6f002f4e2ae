"""A backup holds everything of one moment, and what is restored from it is the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from swampstore import Repo, init_repo, open_repo
from swampstore.doctor import examine
from swampstore.errors import NotFoundError, ValidationError
from swampstore.relocate.backup import create_backup, open_place, verify_backups
from swampstore.relocate.backup.place import BackupPlace
from swampstore.stores.errors import StoreError, StoreNotMountedError
from swampstore.stores.memory import MemoryBucket, MemoryStore
from tests.support.backing_up import MODEL, OTHER, backed_up, fill, held, put, restored
from tests.support.command_line import CommandLine, run_process
from tests.support.fault_proxy import Status
from tests.support.members import shared_directory
from tests.support.remotes import ProxiedRemote


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "place").mkdir()
    return tmp_path / "place"


def test_what_is_restored_is_what_was_backed_up(repo: Repo, place: Path, tmp_path: Path) -> None:
    fill(repo)
    report = backed_up(repo, place)
    assert not report.manifest.left_out
    assert not report.skipped
    assert restored(place, tmp_path / "new") == held(repo.config.base)
    with open_repo(tmp_path / "new") as new:
        assert new.config.repo_id == repo.config.repo_id
        assert new.latest(MODEL, "state").json() == {"n": 2}
        assert new.latest(OTHER, "old name").bytes() == b"text"
        assert new.latest(OTHER, "gone", default=None) is None
        new.artifacts.append(MODEL, "log", b"three\n")
        assert new.latest(MODEL, "log").bytes() == b"one\ntwo\nthree\n"


def test_an_empty_repository_can_be_backed_up(repo: Repo, place: Path, tmp_path: Path) -> None:
    backed_up(repo, place)
    assert restored(place, tmp_path / "new") == {}


def test_secrets_bundles_and_credentials_are_in_no_backup(
    repo: Repo, place: Path, tmp_path: Path
) -> None:
    fill(repo)
    for rel in ("secrets/local_encryption/ops/.key", "bundles/a/b", "vault-bundles/c"):
        path = Path(repo.config.local_dir, rel)
        path.parent.mkdir(parents=True)
        path.write_text("HUSH-in-a-file")
    with Path(repo.config.repo_dir, ".swamp.yaml").open("a") as file:
        file.write("spark:\n  conf:\n    fs.s3a.secret.key: HUSH-of-spark\n    plain: shown\n")
        file.write("x-other: s3://ana:HUSH-of-url@bucket/p?secret_access_key=HUSH-too\n")
    report = backed_up(repo, place)
    every = b"".join(path.read_bytes() for path in place.rglob("*") if path.is_file())
    assert b"HUSH" not in every
    assert report.manifest.settings["spark"] == {"conf": {"plain": "shown"}}
    restored(place, tmp_path / "new")


def test_a_backup_sends_only_what_the_place_has_not(
    repo: Repo, place: Path, tmp_path: Path
) -> None:
    fill(repo)
    first = backed_up(repo, place)
    assert first.objects == len({file.sha256 for file in first.manifest.files})
    assert backed_up(repo, place).objects == 0
    repo.artifacts.save(MODEL, "state", {"n": 3})
    opened = open_place(str(place))
    third = create_backup(repo, opened)
    assert third.objects == 3
    # Which backups there are, the last of them, notes of damage, three objects, the manifest.
    assert dict(opened.counting.tally().requests) == {"list": 2, "get": 1, "put": 4}
    assert restored(place, tmp_path / "new") == held(repo.config.base)
    assert len(restored(place, tmp_path / "old", first.manifest.key.id)) == len(
        first.manifest.files
    )


def test_unchanged_files_are_not_read_again(
    repo: Repo, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from swampstore.relocate.backup import local_source

    fill(repo)
    # Files so young might have been changed without looking different.
    for path in Path(repo.config.base).rglob("*"):
        os.utime(path, (1, 1))
    later = time.time_ns() + 10**10
    monkeypatch.setattr(time, "time_ns", lambda: later)
    backed_up(repo, place)
    read: list[str] = []
    before = local_source.LocalSource._read

    def noted(self: local_source.LocalSource, rel: str) -> object:
        read.append(rel)
        return before(self, rel)

    monkeypatch.setattr(local_source.LocalSource, "_read", noted)
    backed_up(repo, place)
    assert read == []


def test_backups_are_in_order_whatever_the_clock_says(repo: Repo, place: Path) -> None:
    fill(repo)
    ids = []
    for back in (0, 1, 2):
        repo.clock.advance(days=-back)  # type: ignore[attr-defined]
        ids.append(backed_up(repo, place).manifest.key.id)
    assert ids == sorted(ids)
    assert open_place(str(place)).find(None).id == ids[-1]


def test_two_repositories_can_share_a_place(repo: Repo, place: Path, tmp_path: Path) -> None:
    fill(repo)
    ours = backed_up(repo, place)
    with init_repo(tmp_path / "second") as second:
        fill(second)
        theirs = backed_up(second, place)
        assert theirs.objects < ours.objects
        with pytest.raises(NotFoundError, match="may be meant, of 2 repositories"):
            open_place(str(place)).find(None)
        found = restored(place, tmp_path / "new", theirs.manifest.key.id[:24])
        assert found == held(second.config.base)


def test_a_place_that_is_not_there_or_is_the_datastore_is_refused(
    repo: Repo, tmp_path: Path
) -> None:
    with pytest.raises(StoreNotMountedError):
        open_place(str(tmp_path / "not-mounted"))
    inside = Path(repo.config.base, "data/backups")
    inside.mkdir(parents=True)
    with pytest.raises(ValidationError, match="in the datastore itself"):
        backed_up(repo, inside)


def test_a_shared_directory_is_backed_up_with_what_another_repository_saved(
    tmp_path: Path, place: Path
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    for name in ("ana", "bob"):
        init_repo(tmp_path / name).close()
        with open_repo(tmp_path / name, datastore=f"filesystem:{shared}", durable=False) as repo:
            repo.artifacts.save(f"aws/ec2/{name}", "state", name)
    with open_repo(tmp_path / "ana", datastore=f"filesystem:{shared}", durable=False) as repo:
        backed_up(repo, place)
    assert restored(place, tmp_path / "new") == held(shared)


def test_what_the_settings_keep_on_this_machine_is_backed_up_too(
    tmp_path: Path, place: Path
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    init_repo(tmp_path / "ana").close()
    with (tmp_path / "ana/.swamp.yaml").open("a") as file:
        file.write(f"datastore:\n  path: {shared}\n  exclude:\n    - 'data/**/tmp-*'\n")
    with open_repo(tmp_path / "ana", durable=False) as repo:
        repo.artifacts.save(MODEL, "state", "shared")
        repo.artifacts.save(MODEL, "tmp-1", "local")
        backed_up(repo, place)
        wanted = held(shared) | held(repo.config.local_dir)
    assert restored(place, tmp_path / "new") == wanted


def test_an_unfinished_version_is_not_in_a_backup(repo: Repo, place: Path, tmp_path: Path) -> None:
    fill(repo)
    wanted = held(repo.config.base)
    with repo.artifacts.writer(MODEL, "stream") as writer:
        writer.write(b"so far")
        report = backed_up(repo, place)
        assert [one.path for one in report.skipped] == [f"data/{MODEL}/stream/1"]
        writer.write(b"and on")
    assert restored(place, tmp_path / "new") == wanted


# With others at work -------------------------------------------------------------------------

_WRITER = """
import sys
from swampstore import Draft, Owner, open_repo
draft = Draft(content_type="text/plain", owner=Owner(ref="i-1"))
with open_repo(sys.argv[1], durable=False) as repo:
    for n in range(100000):
        print(n, flush=True)
        with repo.artifacts.deferring() as group:
            for name in ("left", "right"):
                group.save(repo.ref("aws/ec2/i-1", name), b"%d" % n, draft)
        repo.artifacts.save("aws/ec2/i-1", "log", b"x", streaming=True)
        repo.artifacts.append("aws/ec2/i-1", "log", b"yz")
        if n % 3 == 2:
            repo.artifacts.delete("aws/ec2/i-1", "log")
"""


def test_what_others_save_meanwhile_is_in_a_backup_whole_or_not_at_all(
    repo: Repo, place: Path, tmp_path: Path
) -> None:
    fill(repo)
    command = [sys.executable, "-c", _WRITER, repo.config.repo_dir]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
        assert writer.stdout
        try:
            reports = [backed_up(repo, place) for _ in range(4) if writer.stdout.readline()]
        finally:
            writer.kill()
    latest = []
    for number, report in enumerate(reports):
        assert not report.manifest.left_out
        restored(place, tmp_path / str(number), report.manifest.key.id)
        with open_repo(tmp_path / str(number), durable=False) as new:
            # The two names of a group are committed together.
            left = new.latest(MODEL, "left", default=None)
            right = new.latest(MODEL, "right", default=None)
            assert (left and left.bytes()) == (right and right.bytes())
            latest.append(left.version if left else 0)
    assert latest == sorted(latest)
    assert latest[-1] > latest[0]


# Other stores ----------------------------------------------------------------------------------


def test_a_bucket_can_hold_backups(s3_remote: ProxiedRemote, repo: Repo, tmp_path: Path) -> None:
    fill(repo)
    repo.artifacts.save(MODEL, "large", b"0123456789" * 50_000)
    place = BackupPlace(s3_remote.open())
    backed_up(repo, place)
    repo.artifacts.save(MODEL, "state", {"n": 3})
    place.counting.reset()
    assert backed_up(repo, place).objects == 3
    assert dict(place.counting.tally().requests) == {"list": 2, "get": 1, "put": 4}
    assert verify_backups(place, deep=True).ok
    assert restored(place, tmp_path / "new") == held(repo.config.base)


def test_a_backup_goes_on_where_the_network_failed(
    s3_remote: ProxiedRemote, repo: Repo, tmp_path: Path
) -> None:
    fill(repo)
    for number in range(30):
        repo.artifacts.save(MODEL, f"name-{number}", f"content {number}")
    place = BackupPlace(s3_remote.open())
    s3_remote.proxy.fail(lambda one: one.kind == "PUT", Status(503), times=None, after=40)
    with pytest.raises(StoreError):
        backed_up(repo, place)
    assert place.keys() == []
    sent = len(place.sizes())
    assert sent >= 30
    s3_remote.proxy.heal()
    report = backed_up(repo, place)
    # Threads of the first one may have come to an end meanwhile.
    assert 0 < report.objects <= len({file.sha256 for file in report.manifest.files}) - sent
    assert restored(place, tmp_path / "new") == held(repo.config.base)


class _Unconditional(MemoryStore):
    capabilities = MemoryStore.capabilities._replace(conditional_create=False)


def test_a_store_without_conditions_can_hold_backups(repo: Repo, tmp_path: Path) -> None:
    fill(repo)
    place = BackupPlace(_Unconditional("place", MemoryBucket()))
    backed_up(repo, place)
    assert restored(place, tmp_path / "new") == held(repo.config.base)


# Large content -----------------------------------------------------------------------------------


_PEAKS = """
import resource, sys
from swampstore.cli import main
place, new = sys.argv[1:]
for args in (["list"], ["create"], ["verify", "--deep"], ["restore", new]):
    assert main(["backup", args[0], place, *args[1:]]) == 0
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)
"""


def test_large_content_is_streamed_in_and_out(repo_dir: Path, place: Path, tmp_path: Path) -> None:
    """The process stays far below the size of what it moves."""
    size, noise = 64 << 20, os.urandom(1 << 20)
    with (
        open_repo(repo_dir, durable=False) as repo,
        repo.artifacts.writer(MODEL, "dump") as writer,
    ):
        for _ in range(size >> 20):
            writer.write(noise)
    done = subprocess.run(
        [sys.executable, "-c", _PEAKS, str(place), str(tmp_path / "new")],
        env=os.environ | {"SWAMP_REPO_DIR": str(repo_dir), "SWAMPSTORE_FSYNC": "off"},
        capture_output=True,
        check=True,
    )
    # Whole lines: where it takes long, progress is told there, too.
    idle, *peaks = [int(line) * 1024 for line in done.stderr.splitlines() if line.isdigit()]
    assert len(peaks) == 3
    assert max(peaks) < idle + size // 2
    name = f"data/{MODEL}/dump/1/raw"
    assert held(repo_dir / ".swamp")[name] == held(tmp_path / "new/.swamp")[name]


# Commands ----------------------------------------------------------------------------------------


def test_the_commands_tell_what_they_did(
    repo: Repo,
    place: Path,
    tmp_path: Path,
    capsysbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fill(repo)
    cli = CommandLine(Path(repo.config.repo_dir), capsysbinary, monkeypatch)
    files = len(held(repo.config.base))
    created = cli("backup", "create", str(place), "--verify", "--json").json
    assert created["files"] == files
    assert (created["leftOut"], created["problems"]) == ([], [])
    assert "Backed up" in cli("backup", "create", str(place)).out
    listed = cli("backup", "list", str(place), "--json").json
    assert listed["backups"][0]["id"] == created["id"]
    assert created["id"] in cli("backup", "list", str(place)).out
    as_table = cli("backup", "list", str(place), "--format", "table")
    assert "2 backups" in as_table.out
    verified = cli("backup", "verify", str(place), "--deep", "--json").json
    assert (verified["ok"], verified["backups"]) == (True, 2)
    new = tmp_path / "new"
    done = cli("backup", "restore", str(place), str(new), "--backup", created["id"], "--json").json
    assert (done["repoDir"], done["filesWritten"]) == (str(new), created["files"])
    assert run_process("doctor", "--deep", repo=new).status == 0
    refused = cli("backup", "restore", str(place), str(new), "--json").error
    assert refused["code"] == "already_exists"


def test_a_restore_says_which_secrets_to_put_again(
    repo: Repo,
    place: Path,
    tmp_path: Path,
    capsysbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("cryptography", reason="the extra `vaults` is not installed")
    cli = CommandLine(Path(repo.config.repo_dir), capsysbinary, monkeypatch)
    assert cli("vault", "create", "local_encryption", "ops").status == 0
    assert cli("vault", "put", "ops", "DB", stdin=b"HUSH").status == 0
    assert "1 secret" in cli("backup", "create", str(place)).out
    done = cli("backup", "restore", str(place), str(tmp_path / "new"))
    assert "swampstore vault put ops DB" in done.out
    every = b"".join(path.read_bytes() for path in place.rglob("*") if path.is_file())
    assert b"HUSH" not in every
    assert b'"DB"' in every


def test_data_can_be_restored_into_a_directory_of_its_own(
    repo: Repo,
    place: Path,
    tmp_path: Path,
    capsysbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fill(repo)
    backed_up(repo, place)
    cli = CommandLine(Path(repo.config.repo_dir), capsysbinary, monkeypatch)
    new, data = tmp_path / "new", tmp_path / "data"
    restoring = ("backup", "restore", str(place), str(new), "--datastore")
    assert "datastore setup" in cli(*restoring, "s3://bucket").err
    monkeypatch.setenv("SWAMP_DATASTORE", f"filesystem:{tmp_path}/of-others")
    assert cli(*restoring, f"filesystem:{data}").status == 0
    assert held(data) == held(repo.config.base)
    assert not (tmp_path / "of-others").exists()
    monkeypatch.delenv("SWAMP_DATASTORE")
    assert run_process("doctor", "--deep", repo=new).status == 0


def test_a_manifest_is_described_by_the_page_about_formats(repo: Repo, place: Path) -> None:
    from tests.support.markdown_pages import ROOT, Page, table_rows

    put(repo, "files/a", "text")
    report = backed_up(repo, place)
    first = (place / report.manifest.key.key).read_bytes().splitlines()[0]
    text = Page(ROOT / "docs/formats/backup.md").section("The first line")
    described = {row[0].strip("`") for row in table_rows(text)}
    assert described == json.loads(first).keys()


def test_content_that_stays_on_another_machine_of_a_shared_directory_is_no_damage(
    place: Path, tmp_path: Path
) -> None:
    share = shared_directory(tmp_path)
    ana, bob = (share.member(one, exclude=["data/**/image/*/raw"]) for one in ("ana", "bob"))
    ana.save("large", name="image")
    ana.save("small")
    with bob.open() as repo:
        report = backed_up(repo, place)
        repo.ready(complete=True)
        assert [one.check for one in examine(repo).findings if not one.ok] == []
    assert not report.manifest.left_out
    assert [one.path for one in report.skipped] == [f"data/{MODEL}/image/1"]
    assert f"data/{MODEL}/state/1/raw" in restored(place, tmp_path / "new")
    with ana.open() as repo:
        assert not backed_up(repo, place).skipped
