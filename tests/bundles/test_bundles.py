"""Bundles: addressed by content, bounded, never shared, and whole when they are given out."""

from __future__ import annotations

import hashlib
import io
import os
from pathlib import Path

import pytest

from swampstore import Repo, open_repo
from swampstore.bundles import DEFAULT_LIMIT, Bundles
from swampstore.errors import ConfigError, NotFoundError, ValidationError
from swampstore.marker import update_marker
from tests.conftest import FakeClock
from tests.support.command_line import CommandLine


@pytest.fixture
def home(repo_dir: Path) -> Path:
    return repo_dir / ".swamp/bundles"


def test_content_is_found_by_its_digest(repo: Repo, home: Path) -> None:
    bundles = Bundles(repo)
    digest = bundles.put(b"built")
    assert digest == hashlib.sha256(b"built").hexdigest()
    assert bundles.put(io.BytesIO(b"built")) == digest
    assert bundles.read(digest) == b"built"
    assert (home / f"swampstore/{digest[:2]}/{digest}").read_bytes() == b"built"
    assert [bundle.digest for bundle in bundles.all()] == [digest]


def test_what_is_not_here_is_not_found(repo: Repo) -> None:
    with pytest.raises(NotFoundError):
        Bundles(repo).read("0" * 64)
    for digest in ("", "../x", "0" * 63, "A" * 64):
        with pytest.raises(ValidationError):
            Bundles(repo).read(digest)


def test_a_damaged_bundle_is_given_to_nobody(repo: Repo, home: Path) -> None:
    bundles = Bundles(repo)
    digest = bundles.put(b"built")
    path = home / f"swampstore/{digest[:2]}/{digest}"
    path.write_bytes(b"spoilt")
    with pytest.raises(NotFoundError):
        bundles.read(digest)
    assert not path.exists()
    bundles.put(b"built")
    assert bundles.read(digest) == b"built"


def test_room_is_made_for_what_is_new_at_the_cost_of_what_is_not_used(
    repo: Repo, clock: FakeClock
) -> None:
    bundles = Bundles(repo, limit=100)
    digests = []
    for number in range(4):
        clock.advance(seconds=1)
        digests.append(bundles.put(bytes([number]) * 30))
        clock.advance(seconds=1)
        bundles.read(digests[0])
    left = {bundle.digest for bundle in bundles.all()}
    assert left == {digests[0], digests[2], digests[3]}


def test_what_was_just_put_stays_and_what_is_larger_than_the_cache_is_refused(
    repo: Repo, home: Path
) -> None:
    bundles = Bundles(repo, limit=100)
    bundles.put(b"x" * 60)
    digest = bundles.put(b"y" * 100)
    assert [bundle.digest for bundle in bundles.all()] == [digest]
    with pytest.raises(ValidationError, match="100 bytes"):
        bundles.put(io.BytesIO(b"z" * 101))
    assert [bundle.digest for bundle in bundles.all()] == [digest]
    assert not [*home.rglob("*.tmp")]


def test_bundles_of_other_clients_are_left_alone(repo: Repo, home: Path) -> None:
    home.mkdir()
    other = home / f"{'0' * 64}"
    other.write_bytes(b"theirs")
    bundles = Bundles(repo)
    bundles.put(b"ours")
    assert bundles.gc(0).removed
    assert other.read_bytes() == b"theirs"
    assert bundles.all() == []


def test_what_a_dead_writer_left_is_removed_after_a_day(
    repo: Repo, home: Path, clock: FakeClock
) -> None:
    bundles = Bundles(repo)
    bundles.put(b"built")
    temps = [home / f"swampstore/.{'0' * 8}-0000-4000-8000-{n:012}.tmp" for n in range(2)]
    now = clock().timestamp()
    for temp, age in zip(temps, (10, 100_000), strict=True):
        temp.write_bytes(b"half")
        os.utime(temp, (now - age, now - age))
    bundles.gc()
    assert [temp.exists() for temp in temps] == [True, False]


def test_the_limit_is_configured(repo: Repo, repo_dir: Path) -> None:
    assert Bundles(repo).limit == DEFAULT_LIMIT
    update_marker(str(repo_dir), {"bundles": {"maxBytes": "2kb"}})
    assert Bundles(repo).limit == 2048
    for wrong in ({"maxBytes": 0}, {"maxBytes": "much"}, {"maxBytes": True}, 5):
        update_marker(str(repo_dir), {"bundles": wrong})
        with pytest.raises(ConfigError, match="bundles"):
            Bundles(repo)


def test_bundles_stay_here_wherever_the_datastore_is(repo_dir: Path, tmp_path: Path) -> None:
    section = {"path": str(tmp_path / "share"), "directories": ["bundles", "data"]}
    update_marker(str(repo_dir), {"datastore": section})
    with open_repo(repo_dir) as repo:
        Bundles(repo).put(b"built")
    assert [*(repo_dir / ".swamp/bundles").rglob("*/*")]
    assert not (tmp_path / "share/bundles").exists()


def test_the_command_line_lists_and_collects(
    repo: Repo,
    repo_dir: Path,
    clock: FakeClock,
    capsysbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cli = CommandLine(repo_dir, capsysbinary, monkeypatch)
    assert cli("bundles", "list", "--format", "table").out == "0 bundles, 0 B of at most 1.0 GB\n"
    first = Bundles(repo).put(b"x" * 2000)
    clock.advance(hours=1)
    second = Bundles(repo).put(b"y" * 2000)
    listed = cli("bundles", "list", "--json").json
    assert [one["digest"] for one in listed["bundles"]] == [second, first]
    assert listed["totalBytes"] == 4000
    assert first in cli("bundles", "list").out
    preview = cli("bundles", "gc", "--max-size", "2kb", "--dry-run", "--json").json
    assert preview["removed"] == [first]
    assert (
        "Deleted 1 bundle, 2.0 KB; 1 bundle of 2.0 KB stay."
        in cli("bundles", "gc", "--max-size", "2kb").out
    )
    assert cli("bundles", "gc", "--json").json["removed"] == []
    assert cli("bundles", "gc", "--max-size", "much").status == 2
