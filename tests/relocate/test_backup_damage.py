"""Damage, in the source and in the place: found, named, healed where it can be, never restored."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from swampstore import Repo, open_repo
from swampstore.errors import BackupDamagedError, DiskError, NewerFormatError, SwampstoreError
from swampstore.relocate.backup import open_place, restore_backup, verify_backups
from swampstore.relocate.backup.format import object_key
from tests.support.backing_up import MODEL, OTHER, backed_up, fill, held, restored


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "place").mkdir()
    return tmp_path / "place"


# In the source -----------------------------------------------------------------------------------


def _flip(path: Path) -> None:
    path.write_bytes(b"X" * path.stat().st_size)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "other content": lambda version: _flip(version / "raw"),
    "shorter content": lambda version: (version / "raw").write_bytes(b"{"),
    "no content": lambda version: (version / "raw").unlink(),
    "no metadata to read": lambda version: (version / "metadata.yaml").write_text("{ no yaml"),
    "metadata of another": lambda version: (version / "metadata.yaml").write_bytes(
        (version.parent / "1/metadata.yaml").read_bytes()
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_damaged_in_the_source_is_named_and_left_out(
    damage: str, repo: Repo, place: Path, tmp_path: Path
) -> None:
    fill(repo)
    version = Path(repo.tree.path(f"data/{MODEL}/state/2"))
    DAMAGES[damage](version)
    for _ in range(2):
        report = backed_up(repo, place)
        assert [one.path for one in report.manifest.left_out] == [f"data/{MODEL}/state/2"]
    found = restored(place, tmp_path / "new")
    wanted = {
        rel: data
        for rel, data in held(repo.config.base).items()
        if not rel.startswith(f"data/{MODEL}/state/2/")
    }
    assert found == wanted | {f"data/{MODEL}/state/latest": b"1"}


def test_a_directory_that_cannot_be_read_is_not_taken_for_empty(
    repo: Repo, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(repo)
    locked = repo.tree.path(f"data/{OTHER}")
    scandir = os.scandir

    def refused(path: Any = ".") -> Any:
        if path == locked:
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refused)
    report = backed_up(repo, place)
    assert [one.path for one in report.manifest.left_out] == [f"data/{OTHER}"]


@pytest.mark.parametrize("content", [b"7", b"nonsense", None])
def test_a_marker_that_says_nothing_of_use_is_made_anew_in_the_backup(
    content: bytes | None, repo: Repo, place: Path, tmp_path: Path
) -> None:
    fill(repo)
    marker = Path(repo.tree.path(f"data/{MODEL}/state/latest"))
    marker.unlink()
    if content is not None:
        marker.write_bytes(content)
    assert not backed_up(repo, place).manifest.left_out
    assert restored(place, tmp_path / "new")[f"data/{MODEL}/state/latest"] == b"2"


def test_a_full_disk_ends_a_backup_and_is_no_damage(
    repo: Repo, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from swampstore.relocate.backup import local_source

    repo.artifacts.save(MODEL, "large", b"0123456789" * 200_000)

    def full(_fd: int, _data: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(local_source, "write_all", full)
    with pytest.raises(DiskError, match="full"):
        backed_up(repo, place)
    assert open_place(str(place)).keys() == []


# In the place ------------------------------------------------------------------------------------


def _objects(place: Path) -> list[Path]:
    return sorted(path for path in (place / "objects").rglob("*") if path.is_file())


@pytest.mark.parametrize(
    ("damage", "deep"),
    [
        (lambda path: path.unlink(), False),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), False),
        (_flip, True),
    ],
    ids=["missing", "shorter", "other bytes"],
)
def test_damage_in_the_place_is_found_and_sent_again_by_the_next_backup(
    damage: Callable[[Path], None], deep: bool, repo: Repo, place: Path, tmp_path: Path
) -> None:
    fill(repo)
    report = backed_up(repo, place)
    wrong = next(file for file in report.manifest.files if file.path == f"data/{MODEL}/state/1/raw")
    damage(place / object_key(wrong.sha256))
    opened = open_place(str(place))
    if deep:
        assert verify_backups(opened).ok  # a listing cannot tell
    [problem] = verify_backups(opened, deep=deep).problems
    assert problem.sha256 == wrong.sha256
    assert problem.paths == (wrong.path,)
    assert problem.backups == (report.manifest.key.id,)
    with pytest.raises(SwampstoreError):
        restored(place, tmp_path / "broken")
    assert not (tmp_path / "broken/.swamp.yaml").exists()
    assert backed_up(repo, place).objects == 1
    assert verify_backups(opened, deep=True).ok
    assert not list((place / "damaged").rglob("*"))
    assert restored(place, tmp_path / "new") == held(repo.config.base)
    # What was restored half before goes on, now that it can.
    first = report.manifest.key.id
    assert restored(place, tmp_path / "broken", first) == held(repo.config.base)


def test_damaged_content_that_the_source_has_no_longer_stays_noted(repo: Repo, place: Path) -> None:
    fill(repo)
    first = backed_up(repo, place)
    raw = next(file for file in first.manifest.files if file.path == f"data/{MODEL}/state/1/raw")
    repo.artifacts.delete(MODEL, "state", version=1)
    (place / object_key(raw.sha256)).unlink()
    opened = open_place(str(place))
    assert not verify_backups(opened).ok
    assert backed_up(repo, place).objects == 0
    assert [one.backups for one in verify_backups(opened).problems] == [(first.manifest.key.id,)]
    assert opened.known_damage() == {raw.sha256}


def test_a_damaged_manifest_takes_no_other_backup_with_it(
    repo: Repo, place: Path, tmp_path: Path
) -> None:
    fill(repo)
    first, second = backed_up(repo, place), backed_up(repo, place)
    path = place / second.manifest.key.key
    path.write_bytes(path.read_bytes()[:-200])
    opened = open_place(str(place))
    [problem] = verify_backups(opened).problems
    assert problem.backups == (second.manifest.key.id,)
    with pytest.raises(BackupDamagedError):
        opened.read(second.manifest.key)
    repo.artifacts.save(MODEL, "state", {"n": 3})
    assert backed_up(repo, place).objects == 3
    assert restored(place, tmp_path / "new", first.manifest.key.id)


# Manifests of others -----------------------------------------------------------------------------


def _rewritten(path: Path, change: Callable[[list[Any]], None]) -> None:
    """Change the lines of a manifest, and make its hash right again, as somebody hostile would."""
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    change(lines)
    *kept, tail = lines
    body = b"".join(json.dumps(line).encode() + b"\n" for line in kept)
    tail |= {"files": len(kept) - 1, "sha256": hashlib.sha256(body).hexdigest()}
    path.write_bytes(body + json.dumps(tail).encode() + b"\n")


@pytest.mark.parametrize(
    "path",
    [
        "../outside",
        "data/../../outside",
        "/etc/passwd",
        "data/a/../../b",
        "data//a",
        "data/a\\..\\b",
        "data/a\0b",
        "swampstore.db",
        ".swamp.yaml",
        "run_tracker.db",
        "secrets/local_encryption/ops/.key",
        "Secrets/x",
        "bundles/a",
        "data/_catalog.db",
        "data/aws/ec2/i-1/.lock",
        "data",
        "",
    ],
)
def test_a_manifest_with_a_path_that_has_no_place_in_a_backup_is_refused(
    path: str, repo: Repo, place: Path, tmp_path: Path
) -> None:
    repo.artifacts.save(MODEL, "state", "some")
    key = backed_up(repo, place).manifest.key
    _rewritten(place / key.key, lambda lines: lines[1].__setitem__(0, path))
    with pytest.raises(BackupDamagedError):
        restore_backup(open_place(str(place)), key, str(tmp_path / "deep/er/new"))
    assert not (tmp_path / "deep").exists()
    assert not list(tmp_path.rglob("*outside*"))


@pytest.mark.parametrize(
    "change",
    [
        lambda lines: lines[1].__setitem__(1, -1),
        lambda lines: lines[1].__setitem__(1, 10**30),
        lambda lines: lines[1].__setitem__(2, "../../../etc/passwd"),
        lambda lines: lines[1].__setitem__(2, "A" * 64),
        lambda lines: lines.insert(1, lines[1]),
        lambda lines: lines[0].__setitem__("repoId", "another"),
        lambda lines: lines[0].__setitem__("format", "another"),
        lambda lines: lines[0].__setitem__("version", "1"),
        lambda lines: lines.__setitem__(1, {}),
    ],
)
def test_a_manifest_that_says_what_cannot_be_is_refused(
    change: Callable[[list[Any]], None], repo: Repo, place: Path, tmp_path: Path
) -> None:
    repo.artifacts.save(MODEL, "state", "some")
    key = backed_up(repo, place).manifest.key
    _rewritten(place / key.key, change)
    with pytest.raises(BackupDamagedError):
        restore_backup(open_place(str(place)), key, str(tmp_path / "new"))
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    "settings",
    [
        {"datastore": {"directories": ["secrets", "../x"]}},
        {"datastore": {"exclude": "data"}},
        {"datastore": "s3://bucket"},
        {"swampVersion": "29990101.1"},
    ],
)
def test_settings_that_cannot_be_used_are_refused_before_anything_is_written(
    settings: dict[str, Any], repo: Repo, place: Path, tmp_path: Path
) -> None:
    repo.artifacts.save(MODEL, "state", "some")
    key = backed_up(repo, place).manifest.key
    _rewritten(place / key.key, lambda lines: lines[0]["settings"].update(settings))
    with pytest.raises(SwampstoreError):
        restore_backup(open_place(str(place)), key, str(tmp_path / "new"))
    assert not (tmp_path / "new").exists()


def test_a_backup_of_a_newer_release_is_refused_everywhere(
    repo: Repo, place: Path, tmp_path: Path
) -> None:
    repo.artifacts.save(MODEL, "state", "some")
    key = backed_up(repo, place).manifest.key

    def newer(lines: list[Any]) -> None:
        lines[0] |= {"version": 2, "files": "elsewhere"}
        del lines[1:-1]

    _rewritten(place / key.key, newer)
    opened = open_place(str(place))
    for refused in (
        lambda: backed_up(repo, place),
        lambda: verify_backups(opened),
        lambda: restore_backup(opened, key, str(tmp_path / "new")),
    ):
        with pytest.raises(NewerFormatError):
            refused()
    assert not (tmp_path / "new").exists()


# Where a restore goes ---------------------------------------------------------------------------


def test_nothing_is_restored_over_something(repo: Repo, place: Path, tmp_path: Path) -> None:
    repo.artifacts.save(MODEL, "state", "some")
    key = backed_up(repo, place).manifest.key
    for directory in (repo.config.repo_dir, str(tmp_path)):
        with pytest.raises(FileExistsError, match="is not empty"):
            restore_backup(open_place(str(place)), key, directory)
    (tmp_path / "new").mkdir()
    (tmp_path / "data").mkdir()
    (tmp_path / "data/mine").write_text("mine")
    with pytest.raises(FileExistsError):
        restore_backup(
            open_place(str(place)), key, str(tmp_path / "new"), datastore=str(tmp_path / "data")
        )
    assert not list((tmp_path / "new").iterdir())


def test_a_finished_restore_is_never_written_over(repo: Repo, place: Path, tmp_path: Path) -> None:
    """Killed right after its end, and repeated after somebody worked in the new repository."""
    repo.artifacts.save(MODEL, "state", "some")
    key = backed_up(repo, place).manifest.key
    opened, new = open_place(str(place)), tmp_path / "new"
    restore_backup(opened, key, str(new))
    state = json.dumps({"backup": key.id, "datastore": f"{new}/.swamp"})
    (new / ".swamp/restoring.json").write_text(state)
    with open_repo(new, durable=False) as worked:
        worked.artifacts.save(MODEL, "state", {"n": 3})
    assert restore_backup(opened, key, str(new)).written == 0
    with open_repo(new, durable=False) as worked:
        assert worked.latest(MODEL, "state").json() == {"n": 3}
