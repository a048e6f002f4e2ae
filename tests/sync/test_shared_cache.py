"""One cache, several programs: what others do to its files is seen by whoever looks next."""

from __future__ import annotations

import json
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from swampstore import Repo
from swampstore.artifacts import save
from swampstore.artifacts.name_lock import Mutations
from swampstore.catalog import keeping_up
from swampstore.catalog.keeping_up import EVERYTHING, ChangeLog, Position
from swampstore.errors import LockTimeoutError
from swampstore.files import Tree
from swampstore.index.remote_index import RemoteIndex
from swampstore.layout import DataRef, ModelRef
from swampstore.sync.dirty import DirtyTracker
from swampstore.sync.push import Push
from tests.support.broken_store import Killed
from tests.support.machines import Machine
from tests.support.old_client import SIDECAR

MODEL = "aws/ec2/i-1"
HOME = "data/aws/ec2/i-1/state"
REF = DataRef(ModelRef("aws/ec2", "i-1"), "state")


def synced(machine: Machine, *options: str) -> dict[str, Any]:
    outcome = machine("sync", *options, "--json")
    assert outcome.status == 0, outcome.err
    found: dict[str, Any] = json.loads(outcome.out)
    return found


@pytest.fixture
def twin(ana: Machine, tmp_path: Path, capsysbinary: Any, monkeypatch: Any) -> Machine:
    """Another checkout of ana's repository under the same home; both share one cache."""
    made = Machine(tmp_path / "twin", capsysbinary, monkeypatch)
    shutil.copy(ana.repo_dir / ".swamp.yaml", made.repo_dir / ".swamp.yaml")
    made.home = ana.home
    assert made.cache == ana.cache
    return made


def names(machine: Machine) -> list[str]:
    with machine.open() as repo:
        return sorted(found.name for found in repo.query("version > 0"))


def save_as_another_program(cache: Path, version: int, content: bytes) -> None:
    """Do what other clients do: mark it in the sidecar, then write, metadata before the marker."""
    home = cache / HOME
    sidecar = {
        "version": 2,
        "remoteIndexETag": "",
        "lastVerifiedAt": "",
        "localDirty": True,
        "dirtyPaths": [HOME],
        "bulkInvalidated": False,
    }
    (cache / SIDECAR).write_text(json.dumps(sidecar))
    shutil.copytree(home / str(version - 1), home / str(version))
    (home / str(version) / "raw").write_bytes(content)
    metadata = home / str(version) / "metadata.yaml"
    text = metadata.read_text().splitlines()
    kept = [line for line in text if not line.startswith(("checksum:", "size:", "version:"))]
    metadata.write_text("\n".join([*kept, f"version: {version}", f"size: {len(content)}", ""]))
    (home / "latest").write_text(str(version))


# Two checkouts ---------------------------------------------------------------------------------


def test_a_lookup_sees_what_another_checkout_saved(ana: Machine, twin: Machine) -> None:
    ana.put(MODEL, "state", "one")
    with twin.open() as repo:
        assert repo.latest(MODEL, "state").text() == "one"
        ana.put(MODEL, "state", "two")
        assert repo.latest(MODEL, "state").text() == "two"
        assert repo.list_versions(MODEL, "state") == [1, 2]
        assert repo.version(MODEL, "state", 2).text() == "two"
        twin.put(MODEL, "state", "three")
    with ana.open() as repo:
        assert repo.latest(MODEL, "state").text() == "three"


def test_lists_and_queries_see_what_another_checkout_did(ana: Machine, twin: Machine) -> None:
    for name in ("state", "size"):
        ana.put(MODEL, name, "one")
    with twin.open() as repo:
        assert [found.name for found in repo.list_data(MODEL)] == ["size", "state"]
        with ana.open() as other:
            other.artifacts.delete(MODEL, "size")
            other.artifacts.save(MODEL, "new", "one")
        assert [found.name for found in repo.list_data(MODEL)] == ["new", "state"]
        assert repo.latest(MODEL, "size", default=None) is None
    assert names(twin) == names(ana) == ["new", "state"]


def test_what_another_checkout_appended_is_known(ana: Machine, twin: Machine) -> None:
    with ana.open() as repo, twin.open() as other:
        repo.artifacts.save(MODEL, "log", "one\n", streaming=True)
        assert other.latest(MODEL, "log").size == 4
        repo.artifacts.append(MODEL, "log", "two\n")
        assert other.latest(MODEL, "log").size == 8


def test_what_another_checkout_pulled_is_known(ana: Machine, twin: Machine, bob: Machine) -> None:
    ana.put(MODEL, "state", "one")
    synced(ana)
    synced(bob)
    assert names(twin) == ["state"]
    bob.put(MODEL, "state", "two")
    bob.put(MODEL, "new", "one")
    synced(bob)
    synced(ana)
    assert names(twin) == ["new", "state", "state"]
    assert twin.get(MODEL, "state") == "two"


def test_to_learn_that_nothing_is_new_takes_no_walk(ana: Machine, twin: Machine) -> None:
    ana.put(MODEL, "state", "one")
    with twin.open() as repo, pytest.MonkeyPatch.context() as monkeypatch:
        repo.query("name == 'state'")

        def refuse(*_arguments: object) -> None:
            raise AssertionError

        for name in ("scandir", "listdir", "walk"):
            monkeypatch.setattr(os, name, refuse)
        monkeypatch.setattr(Repo, "refresh", refuse)
        assert repo.latest(MODEL, "state").version == 1
        assert len(repo.query("name == 'state'")) == 1


# Other programs ----------------------------------------------------------------------------------


def test_a_lookup_sees_what_another_program_saved(ana: Machine, bob: Machine) -> None:
    ana.put(MODEL, "state", "one")
    synced(ana)
    save_as_another_program(ana.cache, 2, b"two")
    assert ana.get(MODEL, "state") == "two"
    synced(ana)
    synced(bob)
    assert ana.get(MODEL, "state") == bob.get(MODEL, "state") == "two"


def test_a_query_sees_what_another_program_saved(ana: Machine) -> None:
    ana.put(MODEL, "state", "one")
    synced(ana)
    assert names(ana) == ["state"]
    save_as_another_program(ana.cache, 2, b"two")
    assert names(ana) == ["state", "state"]
    ana.put(MODEL, "other", "one")  # from now on the sidecar is ours again
    shutil.rmtree(ana.cache / HOME / "2")
    (ana.cache / HOME / "latest").write_text("1")
    ana("data", "versions", MODEL, "state")
    assert names(ana) == ["other", "state"]


def test_a_sync_tells_the_catalog_what_it_finds(ana: Machine) -> None:
    ana.put(MODEL, "state", "one")
    synced(ana)
    assert names(ana) == ["state"]
    save_as_another_program(ana.cache, 2, b"two")
    (ana.cache / SIDECAR).unlink()  # all that is left is the file
    synced(ana)
    with ana.open() as repo:
        assert repo.catalog.version_numbers(REF) == [1, 2]


def test_a_pull_tells_the_catalog_what_another_program_brought(ana: Machine, bob: Machine) -> None:
    ana.put(MODEL, "state", "one")
    synced(ana)
    synced(bob)
    assert names(bob) == ["state"]
    ana.put(MODEL, "state", "two")
    synced(ana)
    for rel in ("2/raw", "2/metadata.yaml", "latest"):
        (bob.cache / HOME / rel).parent.mkdir(exist_ok=True)
        shutil.copy(ana.cache / HOME / rel, bob.cache / HOME / rel)
    synced(bob)
    with bob.open() as repo:
        assert repo.catalog.version_numbers(REF) == [1, 2]


@pytest.mark.parametrize("step", [(Push, "_mark_again"), (DirtyTracker, "settle")])
def test_what_another_program_saves_during_a_push_that_is_killed_at_its_end_is_pushed(
    ana: Machine, bob: Machine, monkeypatch: pytest.MonkeyPatch, step: tuple[type, str]
) -> None:
    ana.put(MODEL, "state", "one")
    synced(ana)
    ana.put(MODEL, "state", "two")
    commit = RemoteIndex.commit

    def save_and_commit(*args: Any, **options: Any) -> Any:
        # What it finds marked, it leaves at that.
        sidecar = (ana.cache / SIDECAR).read_bytes()
        save_as_another_program(ana.cache, 3, b"three")
        (ana.cache / SIDECAR).write_bytes(sidecar)
        return commit(*args, **options)

    def die(*_args: object, **_options: object) -> None:
        raise Killed

    with monkeypatch.context() as patched, ana.open() as repo:
        patched.setattr(RemoteIndex, "commit", save_and_commit)
        patched.setattr(*step, die)
        with pytest.raises(Killed):
            repo.sync.push()
    synced(ana)
    synced(bob)
    assert bob.get(MODEL, "state") == "three"


@pytest.mark.parametrize(
    ("change", "first_step", "last_step"),
    [
        ("save", (save, "claim_version"), "record_all"),
        ("delete", (Tree, "drop_dir"), "record_rest"),
    ],
)
def test_a_change_is_pushed_whose_process_is_killed_as_soon_as_nothing_else_tells_of_it(
    ana: Machine,
    twin: Machine,
    bob: Machine,
    monkeypatch: pytest.MonkeyPatch,
    change: str,
    first_step: tuple[Any, str],
    last_step: str,
) -> None:
    ana.put(MODEL, "state", "one")
    synced(ana)
    begin, record = getattr(*first_step), getattr(Mutations, last_step)

    def record_and_die(*arguments: Any) -> None:
        record(*arguments)
        for method in ("mark", "mark_written"):  # nothing happens on the way out
            patch.setattr(DirtyTracker, method, lambda *_: None)
        raise Killed

    def push_and_begin(*arguments: Any) -> Any:
        patch.setattr(*first_step, begin)
        with twin.open() as other:
            other.sync.push()
        return begin(*arguments)

    with monkeypatch.context() as patch, ana.open() as repo, pytest.raises(Killed):
        patch.setattr(*first_step, push_and_begin)
        patch.setattr(Mutations, last_step, record_and_die)
        if change == "save":
            repo.artifacts.save(MODEL, "state", b"two")
        else:
            repo.artifacts.delete(MODEL, "state")
    synced(twin)
    synced(bob)
    with bob.open() as repo:
        assert repo.catalog.version_numbers(REF) == ([1, 2] if change == "save" else [])


# The log -----------------------------------------------------------------------------------------


def test_the_log_tells_what_others_changed_once(tmp_path: Path) -> None:
    log = ChangeLog(str(tmp_path))
    assert log.news("a", Position()) is None
    log.note("a", ["x"])
    log.note("b", ["y", "z\n"])
    news = log.news("a", Position())
    assert news is not None
    assert news.rels == {"y", "z\n"}
    assert log.news("a", news.seen) is None
    log.note("a", ["own"])
    later = log.news("a", news.seen)
    assert later is not None
    assert later.rels == set()


def test_a_log_that_grows_too_large_says_less(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeping_up, "_LARGEST", 400)
    log = ChangeLog(str(tmp_path))
    seen = Position()
    for _ in range(100):
        log.note("b", ["x", "y"])
    news = log.news("a", seen)
    assert news is not None
    assert news.rels == {"x", "y"}
    log.note("b", [f"name {number}" for number in range(100)])
    news = log.news("a", news.seen)
    assert news is not None
    assert news.rels == {EVERYTHING}
    own = log.news("b", seen)
    assert own is not None
    assert own.rels == set()


def test_half_a_line_stands_for_everything(tmp_path: Path) -> None:
    log = ChangeLog(str(tmp_path))
    log.note("b", ["x"])
    with (tmp_path / keeping_up.CHANGE_LOG).open("ab") as file:
        file.write(b'["b", "da')
    news = log.news("a", Position())
    assert news is not None
    assert news.rels == {"x", EVERYTHING}


def test_many_may_write_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping_up, "_LARGEST", 4000)
    log = ChangeLog(str(tmp_path))

    def write(by: str) -> None:
        for number in range(50):
            log.note(by, [f"{by} {number % 10}"])

    threads = [threading.Thread(target=write, args=(by,)) for by in "bcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    news = log.news("a", Position())
    assert news is not None
    assert news.rels == {f"{by} {number}" for by in "bcd" for number in range(10)}


def test_checkouts_that_share_a_cache_do_not_change_a_name_at_once(
    ana: Machine, twin: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    ana.put(MODEL, "state", "one")
    monkeypatch.setenv("SWAMP_LOCK_TIMEOUT_MS", "300")
    with (
        twin.open() as other,
        ana.open() as repo,
        other.mutations.changing(REF, "save"),
        pytest.raises(LockTimeoutError, match="another process"),
    ):
        repo.artifacts.save(MODEL, "state", b"two")
    ana.put(MODEL, "state", "two")
    found = {path.name for path in (ana.cache / "_catalog.db-locks").iterdir()}
    assert all(name.startswith("_catalog.db-") for name in found), "what no client ever pushes"


def test_what_somebody_removed_is_fetched_again_though_the_push_that_missed_it_was_killed(
    ana: Machine, bob: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("state", "other"):
        ana.put(MODEL, name, name)
    synced(ana)
    synced(bob)
    shutil.rmtree(bob.cache / HOME)

    def be_killed(*_: object) -> None:
        raise Killed

    with bob.open() as repo:
        repo.sync.mark_dirty()  # anything may have changed
        with monkeypatch.context() as patch, pytest.raises(Killed):
            patch.setattr(RemoteIndex, "read_again", be_killed)
            repo.sync.push()
    synced(bob)
    assert names(bob) == ["other", "state"]
    assert bob.get(MODEL, "state") == "state"
