"""The doctor looks at a shared datastore: its cache, its remote, and whether they agree."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tracemalloc
import urllib.request
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from swampstore import Repo, init_repo, open_repo
from swampstore.artifacts.recovery import sweep
from swampstore.cli import main
from swampstore.datastore_address import Address
from swampstore.doctor import Finding, Report, examine
from swampstore.doctor import remote as remote_checks
from swampstore.doctor.catalog import ReadOnlyRows
from swampstore.doctor.index import ObjectCheck
from swampstore.doctor.remote import permissions
from swampstore.errors import DiskError
from swampstore.files import sqlite_file
from swampstore.index.base import BASE
from swampstore.index.base_view import BaseView
from swampstore.index.documents import Documents, StoredDocument
from swampstore.index.format import Document
from swampstore.index.meta import Meta, encode_meta
from swampstore.index.path_map import Names
from swampstore.layout import EXCHANGE, ModelRef
from swampstore.locks.inspection import new_entry, register
from swampstore.locks.process import new_record
from swampstore.locks.record import gate_key, global_key, model_key
from swampstore.marker import update_marker
from swampstore.relocate.setup import set_up_datastore
from swampstore.routing import Routing
from swampstore.stores import Fetched, ObjectInfo, store_config
from swampstore.stores.directory import DirectoryStore
from swampstore.stores.errors import StorePermissionError, StoreUnreachableError
from swampstore.stores.memory import MemoryBucket, MemoryStore
from swampstore.stores.s3 import S3Config
from swampstore.stores.s3_signing import signed_url
from swampstore.sync.journal import JOURNAL
from swampstore.sync.push import Push
from tests.support.machines import Machine
from tests.support.remotes import ProxiedRemote

MODEL = "aws/ec2/i-1"
STATE = "data/aws/ec2/i-1/state"
SHARED = [
    "cache",
    "cache_completeness",
    "cache_leftovers",
    "unpushed",
    "conflict_copies",
    "remote_health",
    "remote_permissions",
    "conditional_writes",
    "lock_records",
    "clock",
    "remote_index",
    "locks",
]


@pytest.fixture
def bucket(tmp_path: Path) -> Path:
    (tmp_path / "bucket").mkdir()
    return tmp_path / "bucket"


@pytest.fixture
def reopen(tmp_path: Path, bucket: Path) -> Callable[..., Repo]:
    """Open a repository with a remote, with other settings if some are given."""
    init_repo(tmp_path / "repo").close()
    environ = {"SWAMP_HOME": str(tmp_path / "home"), "SWAMPSTORE_FSYNC": "off"}

    def reopened(**settings: object) -> Repo:
        section = {"type": "file", "url": f"file://{bucket}", **settings}
        update_marker(str(tmp_path / "repo"), {"datastore": section})
        return open_repo(tmp_path / "repo", environ=environ)

    return reopened


@pytest.fixture
def repo(reopen: Callable[..., Repo]) -> Iterator[Repo]:
    """A repository with two versions, all of which is on its remote."""
    with reopen() as repo:
        for number in (1, 2):
            repo.artifacts.save(MODEL, "state", {"n": number})
        repo.sync.push()
        repo.ready(complete=True)
        yield repo


@pytest.fixture
def cache(repo: Repo) -> Path:
    return Path(repo.config.base)


def finding(report: Report, check: str) -> Finding:
    (found,) = [finding for finding in report.findings if finding.check == check]
    return found


def failures(report: Report) -> set[str]:
    return {found.check for found in report.findings if not found.ok}


def warnings(report: Report) -> set[str]:
    return {found.check for found in report.findings if found.warning}


def make_old(path: Path, **age: float) -> None:
    moment = (datetime.now(UTC) - timedelta(**age)).timestamp()
    os.utime(path, (moment, moment))


def files(directory: Path) -> dict[str, bytes]:
    found = (path for path in directory.rglob("*") if path.is_file())
    return {str(path): path.read_bytes() for path in found if "-locks/" not in str(path)}


# All is well ----------------------------------------------------------------------------------


def test_a_sound_datastore_passes_every_check_and_nothing_is_left_on_it(
    repo: Repo, bucket: Path
) -> None:
    before = files(bucket)
    report = examine(repo)
    assert (failures(report), warnings(report)) == (set(), set())
    assert [found.check for found in report.findings][-len(SHARED) :] == SHARED
    assert "ms" in finding(report, "remote_health").message
    assert files(bucket) == before


def test_a_remote_that_nobody_pushed_to_is_sound(reopen: Callable[..., Repo]) -> None:
    with reopen() as repo:
        repo.sync.pull()
        assert failures(examine(repo, deep=True)) == set()


def test_a_cache_that_is_not_there_yet_leaves_the_remote_to_be_looked_at(
    reopen: Callable[..., Repo],
) -> None:
    with reopen() as repo:
        report = examine(repo)
    assert failures(report) == {"datastore"}
    assert finding(report, "remote_health").passed


def test_without_a_remote_nothing_of_sync_is_imported(repo_dir: Path) -> None:
    code = (
        "import sys, swampstore, swampstore.doctor\n"
        f"with swampstore.open_repo({str(repo_dir)!r}) as repo:\n"
        "    assert swampstore.doctor.examine(repo).ok\n"
        "rooms = ('swampstore.sync', 'swampstore.stores', 'swampstore.locks')\n"
        "found = {name for name in sys.modules if name.startswith(rooms)}\n"
        "sys.exit(', '.join(found) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# The remote does not answer -------------------------------------------------------------------


def test_a_remote_that_is_not_there_is_one_finding(repo: Repo, bucket: Path) -> None:
    config, clock = repo.config, repo.clock
    repo.close()
    bucket.rename(bucket.with_name("unmounted"))
    with Repo(config, clock=clock) as offline:
        report = examine(offline, deep=True)
    assert failures(report) == {"remote_health"}
    assert str(bucket) in finding(report, "remote_health").message
    assert finding(report, "remote_health").remedy
    assert [found.check for found in report.findings][-1] == "remote_health"
    assert report.completeness is not None


def test_a_remote_that_cannot_be_reached_is_one_finding(
    repo: Repo, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*_arguments: object) -> Iterator[Any]:
        raise StoreUnreachableError("no route to host", hint="Check the network.")

    monkeypatch.setattr("swampstore.stores.retry.RetryingStore.list", unreachable)
    report = examine(repo)
    assert failures(report) == {"remote_health"}
    assert "no route to host" in finding(report, "remote_health").message
    assert finding(report, "remote_health").remedy == "Check the network."


def test_a_remote_that_stops_answering_while_it_is_looked_at_ends_nothing(
    repo: Repo, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*_arguments: object) -> datetime:
        raise StoreUnreachableError("the connection was reset", hint="Try again.")

    monkeypatch.setattr("swampstore.stores.retry.RetryingStore.clock", unreachable)
    report = examine(repo)
    assert failures(report) == {"clock", "remote_index"}
    assert "could not be looked at" in finding(report, "clock").message
    assert finding(report, "locks").passed


# What the remote permits and does -------------------------------------------------------------


@pytest.mark.parametrize(
    ("refused", "named", "granted"),
    [
        ("list", "list", "s3:ListBucket"),
        ("get", "read", "s3:GetObject"),
        ("put", "write", "s3:PutObject"),
        ("put_if_absent", "create", "If-None-Match"),
        ("put_if_match", "update", "If-Match"),
        ("delete", "delete", "s3:DeleteObject"),
    ],
)
def test_a_missing_permission_is_named_with_what_to_grant(
    refused: str, named: str, granted: str
) -> None:
    class Guarded(MemoryStore):
        """A store that does not permit one thing."""

    def refuse(self: MemoryStore, key: str, *arguments: object) -> Any:
        raise StorePermissionError(f"{refused} {key} is forbidden", hint="Ask the owner.")

    setattr(Guarded, refused, refuse)
    bucket = MemoryBucket()
    store, names = Guarded("remote", bucket), Names("/cache", "infra", Routing())
    found = permissions(store, names, "@swamp/s3-datastore")
    assert not found.passed
    assert found.message.endswith(f": {named}")
    assert granted in (found.remedy or "")
    assert any("infra/_control/doctor/" in detail for detail in found.details)
    allowed = MemoryStore("remote", bucket)
    assert [info.key for info in allowed.list()] == [] or refused == "delete"


def test_a_remote_that_permits_too_little_is_not_asked_for_more(
    repo: Repo, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: DirectoryStore, key: str, *arguments: object) -> Any:
        raise StorePermissionError("read-only", hint="Ask the owner.")

    monkeypatch.setattr(DirectoryStore, "put", refuse)
    report = examine(repo)
    assert failures(report) == {"remote_permissions"}
    assert "conditional_writes" not in {found.check for found in report.findings}
    assert "the right to write objects" in (finding(report, "remote_permissions").remedy or "")


def test_a_remote_that_ignores_conditions_is_found(
    repo: Repo, monkeypatch: pytest.MonkeyPatch
) -> None:
    def careless(self: DirectoryStore, key: str, data: bytes) -> object:
        return self.put(key, data)

    monkeypatch.setattr(DirectoryStore, "put_if_absent", careless)
    report = examine(repo)
    assert failures(report) == {"conditional_writes"}
    assert "conditional create" in finding(report, "conditional_writes").details[0]


def test_a_remote_that_ignores_the_condition_of_a_deletion_leaves_records_and_that_is_told(
    repo: Repo, bucket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def careless(self: DirectoryStore, key: str, token: str) -> None:
        del token
        self.delete(key)

    served = DirectoryStore.capabilities._replace(own_conditions=False)
    monkeypatch.setattr(DirectoryStore, "capabilities", served)
    repo.locks.deletions.learn(proven=True)
    monkeypatch.setattr(DirectoryStore, "delete_if_match", careless)
    report = examine(repo)
    assert report.ok
    assert warnings(report) == {"lock_records"}
    assert "other clients take it for a stale lock" in finding(report, "lock_records").message
    with repo.locks.committing():
        pass
    assert (bucket / ".datastore.lock").exists()
    monkeypatch.undo()
    assert "lock_records" not in warnings(examine(repo))


@pytest.mark.parametrize(("skew", "told"), [(95, "95 s ahead of"), (-95, "95 s behind")])
def test_clocks_that_do_not_agree_are_a_warning(
    repo: Repo, monkeypatch: pytest.MonkeyPatch, skew: float, told: str
) -> None:
    monkeypatch.setattr(repo, "clock", lambda: datetime.now(UTC) + timedelta(seconds=skew))
    report = examine(repo)
    assert report.ok
    assert warnings(report) == {"clock"}
    assert told in finding(report, "clock").details[0]
    assert "Locks are judged by the remote's clock" in (finding(report, "clock").remedy or "")
    assert finding(report, "clock").to_json()["warning"] is True


# The index ------------------------------------------------------------------------------------


def test_a_lost_shard_of_a_sharded_index_is_found_and_healed(repo: Repo, bucket: Path) -> None:
    repo.sync.migrate_index()
    lost = bucket / "_index/data--aws--ec2--i-1.json"
    lost.unlink()
    report = examine(repo)
    assert failures(report) == {"remote_index"}
    assert "data--aws--ec2--i-1" in finding(report, "remote_index").details[0]
    assert not lost.exists()
    assert examine(repo, repair=True).ok
    assert lost.exists()
    assert (failures(examine(repo, deep=True)), warnings(examine(repo))) == (set(), set())


def test_a_lost_shard_is_only_a_copy_where_there_is_a_monolith(repo: Repo, bucket: Path) -> None:
    (bucket / "_index/data--aws--ec2--i-1.json").unlink()
    report = examine(repo)
    assert (failures(report), warnings(report)) == (set(), {"remote_index"})


def test_documents_that_do_not_agree_are_a_warning_once_no_commit_can_be_under_way(
    repo: Repo, bucket: Path
) -> None:
    monolith = bucket / ".datastore-index.json"
    monolith.write_bytes(monolith.read_bytes() + b"\n")
    assert warnings(examine(repo)) == set()
    make_old(monolith, minutes=5)
    assert warnings(examine(repo)) == {"remote_index"}


@pytest.mark.parametrize("name", ["_index/_meta.json", ".datastore-index.json"])
def test_a_damaged_or_missing_document_is_found(repo: Repo, bucket: Path, name: str) -> None:
    if name.startswith("_index"):
        (bucket / name).write_text("{")
    else:
        (bucket / name).unlink()
    report = examine(repo)
    assert failures(report) == {"remote_index"}
    assert name in finding(report, "remote_index").details[0]


def test_an_index_that_nobody_understands_is_made_anew_once_it_is_removed_as_the_doctor_says(
    repo: Repo, bucket: Path
) -> None:
    (bucket / ".datastore-index.json").write_text("{")
    report = examine(repo, repair=True)
    assert "has to be removed" in (finding(report, "remote_index").remedy or "")
    (bucket / ".datastore-index.json").unlink()
    repo.artifacts.save(MODEL, "another", b"x")
    repo.sync.push()
    assert examine(repo).ok


def test_a_lost_meta_of_a_sharded_index_is_found_and_healed(repo: Repo, bucket: Path) -> None:
    repo.sync.migrate_index()
    (bucket / "_index/_meta.json").unlink()
    report = examine(repo)
    assert failures(report) == {"remote_index"}
    assert "_index/_meta.json is missing" in finding(report, "remote_index").details[0]
    assert examine(repo, repair=True).ok
    assert failures(examine(repo)) == set()


@pytest.mark.parametrize("is_frozen", [True, False])
def test_shards_without_their_meta_are_compared_with_the_objects_all_the_same(
    repo: Repo, bucket: Path, is_frozen: bool
) -> None:
    monolith = bucket / ".datastore-index.json"
    before = monolith.read_bytes()
    repo.sync.migrate_index()
    if not is_frozen:
        monolith.write_bytes(before)  # other clients leave it as it was
    repo.artifacts.save(MODEL, "state", {"n": 3})
    repo.sync.push()
    (bucket / "_index/_meta.json").unlink()
    for path in (bucket / "data").rglob("*.*"):
        make_old(path, minutes=90)
    report = examine(repo, deep=True)
    assert (failures(report), warnings(report)) == ({"remote_index"}, set())


def test_a_lost_meta_is_a_warning_where_there_is_a_monolith(repo: Repo, bucket: Path) -> None:
    (bucket / "_index/_meta.json").unlink()
    report = examine(repo)
    assert (failures(report), warnings(report)) == (set(), {"remote_index"})


# Objects --------------------------------------------------------------------------------------


def test_uploads_that_were_never_finished_are_told_of_by_a_deep_look(
    ana: Machine, s3_remote: ProxiedRemote, monkeypatch: pytest.MonkeyPatch
) -> None:
    ana.use_remote("s3", s3_remote.config)
    assert ana("data", "put", "aws/ec2/i-1", "state", stdin=b"one").status == 0
    settings = store_config("s3", s3_remote.config)
    assert isinstance(settings, S3Config)
    key = f"{settings.prefix}/data/aws/ec2/i-1/large/1/raw"
    url = signed_url(settings, "POST", key, {"uploads": ""}, datetime.now(UTC))
    urllib.request.urlopen(urllib.request.Request(url, b"", method="POST"), timeout=10).close()
    assert "large/1/raw" not in ana("doctor", "--deep").out  # somebody may be at it
    monkeypatch.setattr(remote_checks, "ABANDONED", timedelta(minutes=-1))
    assert "large/1/raw" not in ana("doctor").out
    assert "large/1/raw" in ana("doctor", "--deep").out
    assert ana("doctor", "--deep", "--repair").status == 0
    assert "large/1/raw" not in ana("doctor", "--deep").out


def test_objects_are_only_listed_if_that_is_asked_for(repo: Repo, bucket: Path) -> None:
    (bucket / f"{STATE}/2/raw").unlink()
    assert failures(examine(repo)) == set()
    assert failures(examine(repo, deep=True)) == {"remote_objects"}


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("namespace", [None, "infra"])
def test_objects_and_entries_without_each_other_are_found(
    reopen: Callable[..., Repo], bucket: Path, sharded: bool, namespace: str | None
) -> None:
    with reopen(namespace=namespace) as repo:
        repo.artifacts.save(MODEL, "state", {"n": 1})
        repo.sync.push()
        repo.ready(complete=True)
        if sharded:
            repo.sync.migrate_index()
        root = bucket / (namespace or "")
        (root / f"{STATE}/1/raw").unlink()
        for name in ("abandoned", "just begun"):
            (root / f"{STATE}/{name}").write_text(name)
        (root / f"{STATE}/.lock").write_text("not data")
        make_old(root / f"{STATE}/abandoned", hours=2)
        make_old(root / f"{STATE}/.lock", hours=2)
        report = examine(repo, deep=True)
        repaired = examine(repo, repair=True)
    assert failures(report) == {"remote_objects"}
    assert failures(repaired) == set()  # the file is still here
    assert finding(repaired, "remote_objects").repaired
    assert json.loads((root / f"{STATE}/1/raw").read_bytes()) == {"n": 1}
    assert finding(report, "remote_objects").details == (f"{STATE}/1/raw",)
    assert warnings(report) == {"remote_orphans"}
    prefix = f"{namespace}/" if namespace else ""
    assert finding(report, "remote_orphans").details == (f"{prefix}{STATE}/abandoned",)
    assert (root / f"{STATE}/abandoned").exists()


def test_an_entry_that_went_with_its_object_meanwhile_is_not_missed(
    repo: Repo, bucket: Path
) -> None:
    names = Names("/cache", "", Routing())

    class Late(DirectoryStore):
        """A store from which somebody deletes an artifact before it is listed."""

        def list(self, prefix: str = "") -> Iterator[Any]:
            repo.artifacts.delete(MODEL, "state", version=1)
            repo.sync.push()
            return super().list(prefix)

    with Late(str(bucket), durable=False) as store:
        found = ObjectCheck(
            Documents(store, names, 2), lambda: None, names, datetime.now(UTC)
        ).run()
    assert [one.passed for one in found] == [True, True]


class ManyObjects:
    """A sharded index, and as many objects as it has entries, made while they are read."""

    def __init__(self, partitions: int) -> None:
        self.partitions = partitions
        self.store = self

    def meta(self) -> Fetched:
        names = tuple(f"data--t--m{number}" for number in range(self.partitions))
        return Fetched(self._info("_meta.json"), encode_meta(Meta(2, names, 1), "write"))

    def shards(self, partitions: list[str]) -> Iterator[tuple[str, StoredDocument]]:
        for partition in partitions:
            rels = self._rels(partition.rpartition("m")[2])
            yield partition, StoredDocument(Document(dict.fromkeys(rels, msgspec.Raw(b"{}"))))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        for number in range(self.partitions):
            yield from map(self._info, self._rels(str(number)))

    @staticmethod
    def _rels(model: str) -> Iterator[str]:
        return (f"data/t/m{model}/name-{number}/1/raw" for number in range(500))

    @staticmethod
    def _info(key: str) -> ObjectInfo:
        return ObjectInfo(key, 1, "etag", None, datetime(2026, 1, 1, tzinfo=UTC))


def test_memory_does_not_grow_with_the_number_of_objects() -> None:
    names = Names("/cache", "", Routing())
    peaks = []
    for partitions in (4, 4, 24):
        documents: Any = ManyObjects(partitions)
        tracemalloc.start()
        found = ObjectCheck(documents, lambda: None, names, datetime.now(UTC)).run()
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert [one.passed for one in found] == [True, True]
    assert peaks[2] < 1.5 * peaks[1]


# Locks ----------------------------------------------------------------------------------------


def test_locks_that_nobody_holds_any_more_are_found_and_released(repo: Repo, bucket: Path) -> None:
    store, model = DirectoryStore(str(bucket), durable=False), ModelRef.parse(MODEL)
    register(store, new_entry(""), [model], new_record(30.0))
    keys = [global_key(""), gate_key(""), model_key("", model)]
    for key in keys:
        store.put(key, new_record(30.0).encode())
        make_old(bucket / key, minutes=10)
    report = examine(repo)
    assert failures(report) == {"locks"}
    assert {detail.partition(":")[0] for detail in finding(report, "locks").details} == set(keys)
    assert str(os.getpid()) in finding(report, "locks").details[0]
    assert all((bucket / key).exists() for key in keys)
    assert examine(repo, repair=True).ok
    assert not any((bucket / key).exists() for key in keys)


def test_a_lock_that_is_held_is_left_alone(repo: Repo, bucket: Path) -> None:
    with repo.locks.everything():
        assert examine(repo, repair=True).ok
        assert (bucket / global_key("")).exists()


def test_locks_of_a_directory_that_is_used_in_place_are_looked_at(
    repo_dir: Path, tmp_path: Path
) -> None:
    update_marker(str(repo_dir), {"datastore": {"type": "filesystem", "path": "../share"}})
    with open_repo(repo_dir, durable=False) as repo:
        repo.artifacts.save(MODEL, "state", {"n": 1})
        repo.ready(complete=True)
        assert finding(examine(repo), "locks").passed
        lock = tmp_path / "share" / model_key("", ModelRef.parse(MODEL))
        lock.write_bytes(new_record(30.0).encode())
        make_old(lock, minutes=10)
        assert failures(examine(repo)) == {"locks"}
        assert examine(repo, repair=True).ok
        assert not lock.exists()


# The cache ------------------------------------------------------------------------------------


def test_unpushed_work_is_a_warning_that_says_how_to_push_it(repo: Repo, cache: Path) -> None:
    repo.artifacts.save(MODEL, "state", {"n": 3})
    repo.artifacts.save(MODEL, "other", {"n": 1})
    make_old(cache / "data/aws/ec2/i-1/other", days=3)
    report = examine(repo)
    assert report.ok
    found = finding(report, "unpushed")
    assert found.warning
    assert found.message.startswith("2 path(s) changed here and not pushed yet; the oldest since ")
    assert (datetime.now(UTC) - timedelta(days=3)).date().isoformat() in found.message
    assert found.remedy == "Run `swampstore sync --push`."
    assert set(found.details) == {STATE, "data/aws/ec2/i-1/other"}
    repo.sync.push()
    assert not finding(examine(repo), "unpushed").warning


def test_copies_from_conflicts_are_a_warning(repo: Repo, cache: Path) -> None:
    copy = cache / "files/conflicts/outputs/aws/run.yaml.0123456789ab"
    copy.parent.mkdir(parents=True)
    copy.write_text("ours")
    found = finding(examine(repo), "conflict_copies")
    assert (found.warning, found.details) == (True, (str(copy),))


def test_copies_of_what_is_computed_again_are_removed_for_everybody(
    repo: Repo, cache: Path
) -> None:
    copies = cache / "files/conflicts"
    copies.mkdir(parents=True)
    (copies / ".catalog-export.json.0123456789ab").write_text("[]")
    (copies / "notes.txt.0123456789ab").write_text("ours")
    repo.sync.push(full=True)
    examine(repo)
    assert len(list(copies.iterdir())) == 2
    report = examine(repo, repair=True)
    assert report.ok
    assert "1 of them repaired" in finding(report, "conflict_copies").message
    assert [path.name for path in copies.iterdir()] == ["notes.txt.0123456789ab"]
    assert repo.sync.push().deleted == 1


def test_a_damaged_base_is_found_and_started_afresh(repo: Repo, cache: Path) -> None:
    repo.connection.base.close()
    for suffix in ("-wal", "-shm"):
        (cache / f"{BASE}{suffix}").unlink(missing_ok=True)
    (cache / BASE).write_bytes(b"not a database" * 1000)
    before = files(cache)
    report = examine(repo)
    assert failures(report) == {"cache"}
    assert BASE in finding(report, "cache").details[0]
    assert (cache / BASE).read_bytes() == before[str(cache / BASE)]
    assert examine(repo, repair=True).ok
    assert not repo.sync.pull().conflicts
    assert not repo.sync.push().changes  # all was looked at, since nothing told what is new
    assert (failures(examine(repo)), warnings(examine(repo))) == (set(), set())


@pytest.mark.parametrize(
    ("place", "view"),
    [
        (lambda repo: repo.config.base + f"/{BASE}", BaseView),
        (lambda repo: repo.config.local_dir + "/swampstore.db", ReadOnlyRows),
    ],
    ids=["base", "catalog"],
)
def test_what_others_are_at_for_long_is_not_damaged(
    reopen: Callable[..., Repo],
    repo: Repo,
    monkeypatch: pytest.MonkeyPatch,
    place: Callable[[Repo], str],
    view: type[Any],
) -> None:
    assert examine(repo).ok
    known, rows = repo.connection.base.count(), repo.catalog.counts()
    path = place(repo)
    repo.close()
    monkeypatch.setattr(sqlite_file, "_BUSY_SECONDS", 0.01)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("PRAGMA locking_mode = EXCLUSIVE")
    other.execute("BEGIN EXCLUSIVE")
    close = view.close

    def late(self: Any) -> None:
        close(self)
        other.close()  # when it was looked at, they are done

    monkeypatch.setattr(view, "close", late)
    with reopen() as again:
        report = examine(again, repair=True)
        assert any(
            "is locked" in text for one in report.findings for text in (one.message, *one.details)
        )
        assert again.connection.base.count() == known
        assert again.catalog.counts() == rows
    assert not list(Path(path).parent.glob("*damaged*"))


@pytest.mark.parametrize("name", [JOURNAL, ".datastore-sync-state.json"])
def test_marks_that_cannot_be_read_are_found_and_count_as_everything(
    repo: Repo, cache: Path, name: str
) -> None:
    repo.artifacts.save(MODEL, "state", {"n": 3})
    with (cache / name).open("ab") as file:
        file.write(b"{torn")
    report = examine(repo)
    assert failures(report) == {"cache"}
    assert name in finding(report, "cache").details[0]
    assert examine(repo, repair=True).ok
    assert repo.sync.status().needs_full_walk
    assert finding(examine(repo), "cache").passed


def test_files_that_somebody_removed_from_the_cache_are_missed(repo: Repo, cache: Path) -> None:
    shutil.rmtree(cache / f"{STATE}/1")
    report = examine(repo)
    assert failures(report) == {"cache_completeness", "catalog_completeness"}
    found = finding(report, "cache_completeness")
    assert found.details == (str(cache / f"{STATE}/1/metadata.yaml"),)
    repo.sync.pull(full=True)
    assert failures(examine(repo)) == set()


def test_what_is_left_of_a_version_is_no_leftover_and_comes_back_from_the_remote(
    repo: Repo, cache: Path, bucket: Path
) -> None:
    left = cache / f"{STATE}/1"
    (left / "metadata.yaml").unlink()
    for path in (left / "raw", left):
        make_old(path, days=3)
    assert failures(examine(repo)) == {"cache_completeness", "catalog_completeness"}
    assert sweep(repo.store).leftovers == ()
    assert examine(repo, repair=True).ok
    assert (left / "metadata.yaml").exists()
    repo.sync.push(full=True)
    assert (bucket / f"{STATE}/1/raw").exists()
    assert (failures(examine(repo)), warnings(examine(repo))) == (set(), set())


def test_a_version_of_which_an_empty_directory_is_left_comes_back_from_the_remote(
    repo: Repo, cache: Path
) -> None:
    left = cache / f"{STATE}/1"
    for name in ("metadata.yaml", "raw"):
        (left / name).unlink()
    assert examine(repo, repair=True).ok
    assert (left / "metadata.yaml").exists()
    assert failures(examine(repo)) == set()


@pytest.mark.parametrize("damage", ["missing", "another content"])
def test_a_repair_keeps_content_that_the_remote_does_not_have(
    repo: Repo, cache: Path, bucket: Path, damage: str
) -> None:
    left, remote = cache / f"{STATE}/1", bucket / f"{STATE}/1/raw"
    content = (left / "raw").read_bytes()
    (left / "metadata.yaml").unlink()
    remote.unlink()
    if damage != "missing":
        remote.write_bytes(b"?" * len(content))
    examine(repo, repair=True)
    assert (left / "raw").read_bytes() == content


def test_what_was_deleted_and_not_pushed_yet_is_not_missed(repo: Repo) -> None:
    repo.artifacts.delete(MODEL, "state", version=1)
    report = examine(repo)
    assert (failures(report), warnings(report)) == (set(), {"unpushed"})


def test_content_that_stays_on_the_remote_is_not_missed(
    repo: Repo, reopen: Callable[..., Repo], cache: Path
) -> None:
    repo.close()
    for path in cache.iterdir():
        if path.is_file():
            path.unlink()
    shutil.rmtree(cache / "data")
    with reopen(hydrationStrategy="lazy") as lazy:
        lazy.sync.pull(metadata_only=True)
        lazy.rebuild_catalog()
        report = examine(lazy)
    assert failures(report) == set()
    assert "2 file(s) stay there" in finding(report, "cache_completeness").message


def test_a_base_of_another_remote_says_nothing(
    repo: Repo, reopen: Callable[..., Repo], cache: Path, tmp_path: Path
) -> None:
    repo.close()
    shutil.rmtree(cache / STATE)
    (tmp_path / "other").mkdir()
    with reopen(url=f"file://{tmp_path}/other") as moved:
        assert finding(examine(moved), "cache_completeness").passed
        assert finding(examine(moved), "cache").passed


def test_what_interrupted_syncs_left_is_found_and_removed(repo: Repo, cache: Path) -> None:
    old = cache / ".0b1f2f34-6b7e-4a6e-9d52-3f5a0c1e2d3b.tmp"
    old.mkdir()
    assert examine(repo).ok
    make_old(old, days=2)
    report = examine(repo)
    assert failures(report) == {"cache_leftovers"}
    assert finding(report, "cache_leftovers").details == (str(old),)
    assert examine(repo, repair=True).ok
    assert not old.exists()


# Interrupted setups ---------------------------------------------------------------------------


def stop(*_arguments: object, **_options: object) -> Any:
    raise KeyboardInterrupt


def open_with_data(tmp_path: Path) -> Callable[[], Repo]:
    """Make a repository with data of its own; return what opens it."""
    environ = {"SWAMP_HOME": str(tmp_path / "home"), "SWAMPSTORE_FSYNC": "off"}
    with init_repo(tmp_path / "own") as repo:
        repo.artifacts.save(MODEL, "state", {"n": 1})
    return lambda: open_repo(tmp_path / "own", environ=environ)


def set_up(opened: Callable[[], Repo], bucket: Path) -> None:
    with opened() as repo:
        environ = {"SWAMP_HOME": f"{bucket.parent}/home"}
        set_up_datastore(repo, Address(f"file://{bucket}"), environ=environ)


def test_directories_that_a_setup_could_not_rename_into_the_cache_are_told_of_until_they_are(
    tmp_path: Path, bucket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, real = open_with_data(tmp_path), os.rename
    data = tmp_path / "own/.swamp/data"

    def read_only(source: str, target: str, **options: int) -> None:
        if source == str(data):
            raise OSError(errno.EROFS, "Read-only file system", target)
        real(source, target, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", read_only)
        with pytest.raises(DiskError, match="read-only"):
            set_up(opened, bucket)
        with opened() as repo:
            found = finding(examine(repo, repair=True), "cache_leftovers")
        assert data.exists(), "nothing of it is lost"
    assert not found.ok
    announcement = tmp_path / "own/.swamp" / EXCHANGE
    assert found.details == (f"{announcement}: a setup was not finished",)
    assert "running it again" in (found.remedy or "")
    with opened() as repo:
        assert repo.latest(MODEL, "state").json() == {"n": 1}
        assert finding(examine(repo), "cache_leftovers").ok
    assert not announcement.exists()


def test_a_cache_that_a_setup_was_interrupted_at_is_told_of_until_it_is_in_its_place(
    tmp_path: Path, bucket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, second = open_with_data(tmp_path), tmp_path / "second"
    second.mkdir()
    set_up(opened, bucket)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Push, "commit", stop)
        set_up(opened, second)
    with opened() as repo:
        found = finding(examine(repo, repair=True), "cache_leftovers")
        (staged,) = Path(repo.config.base).parent.glob("*.setup")
    assert not found.ok
    assert found.details == (f"{staged}: a setup was not finished",)
    set_up(opened, second)
    with opened() as repo:
        assert finding(examine(repo), "cache_leftovers").ok


# Namespaces -----------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [None, "../share"])
def test_data_from_before_the_namespace_is_found(
    repo_dir: Path, tmp_path: Path, path: str | None
) -> None:
    update_marker(str(repo_dir), {"datastore": {"type": "filesystem", "path": path}})
    with open_repo(repo_dir, durable=False) as repo:
        repo.artifacts.save(MODEL, "state", {"n": 1})
        outside = Path(repo.config.base, "data")
    update_marker(str(repo_dir), {"datastore": {"namespace": "infra"}})
    with open_repo(repo_dir, durable=False) as repo:
        report = examine(repo)
    assert "namespace_migration" in failures(report)
    found = finding(report, "namespace_migration")
    assert found.details == (str(outside),)
    assert "namespace migrate" in (found.remedy or "")


def test_files_of_another_namespace_inside_ours_are_found_and_removed(
    reopen: Callable[..., Repo], bucket: Path
) -> None:
    with reopen(namespace="infra") as repo:
        repo.artifacts.save(MODEL, "state", {"n": 1})
        repo.sync.push()
        repo.ready(complete=True)
        assert finding(examine(repo), "namespace_contamination").passed
        for top in ("web", "infra/web"):
            (bucket / top / "data").mkdir(parents=True)
            (bucket / top / ".namespace.json").write_text('{"namespace": "web"}')
            (bucket / top / "data/file").write_text("of web")
        report = examine(repo)
        assert failures(report) == {"namespace_contamination"}
        assert finding(report, "namespace_contamination").details == ("web (remote)",)
        assert examine(repo, repair=True).ok
    assert not (bucket / "infra/web/data/file").exists()
    assert (bucket / "web/data/file").exists()


# On the command line --------------------------------------------------------------------------


def test_warnings_are_shown_with_what_to_do_and_fail_nothing(
    repo: Repo,
    cache: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    repo.artifacts.save(MODEL, "state", {"n": 3})
    monkeypatch.setenv("SWAMP_HOME", str(cache.parent.parent))
    monkeypatch.setenv("SWAMP_REPO_DIR", repo.config.repo_dir)
    assert main(["doctor", "--deep"]) == 0
    out = capsys.readouterr().out
    assert "warning  1 path(s) changed here and not pushed yet; the oldest since" in out
    assert "  -> Run `swampstore sync --push`." in out
    assert "remote_orphans" in out
    assert out.endswith("All is well.\n")
