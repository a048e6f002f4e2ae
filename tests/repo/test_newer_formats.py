"""What a newer release wrote is refused by every command, and not one byte of it changes."""

from __future__ import annotations

import json
import sqlite3
import traceback
import zlib
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from swampstore.errors import NewerFormatError
from swampstore.formats import NEWEST, refuse_newer
from swampstore.index.documents import Documents
from swampstore.index.format import decode_shard
from swampstore.index.path_map import Names
from swampstore.index.removals import REMOVALS, read_notes
from swampstore.marker import FORMAT_VERSION, update_marker
from swampstore.namespaces.manifests import Manifest
from swampstore.pipeline.gc.marks import MARKS, Mark, Marked, MarkPages
from swampstore.pipeline.running import spark_errors
from swampstore.repo import upgrade_repo
from swampstore.routing import Routing
from swampstore.stores.memory import MemoryStore
from tests.support.machines import Machine

MODEL = "aws/ec2/i-1"
SHARD = "_index/data--aws--ec2--i-1.json"
NEWER = "was written by a newer version of swampstore"


class Place:
    """A machine with one artifact on its remote, and where its files are."""

    def __init__(self, machine: Machine, bucket: Path, index_version: int) -> None:
        self.run = machine
        self.bucket = bucket
        self.cache = machine.cache
        self.catalog = machine.repo_dir / ".swamp/swampstore.db"
        assert machine("data", "put", MODEL, "state", "--json-value", "1").status == 0
        if index_version == 2:
            assert machine("datastore", "migrate-index").status == 0

    def remote(self) -> dict[str, bytes]:
        return contents(self.bucket)

    def newer(self, kind: str) -> bytes:
        """Return the document or file that a newer release wrote."""
        files = {
            "meta": self.bucket / "_index/_meta.json",
            "monolith": self.bucket / ".datastore-index.json",
            "shard": self.bucket / SHARD,
            "sidecar": self.cache / ".datastore-sync-state.json",
            "journal": self.cache / "_catalog.db-dirty",
            "base": self.cache / "_catalog.db-base",
            "catalog": self.catalog,
        }
        return next(path for name, path in files.items() if name in kind).read_bytes()


def contents(directory: Path) -> dict[str, bytes]:
    """Return all files but locks and the logs of databases, which reading makes."""
    return {
        str(path): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
        and "lock" not in str(path.relative_to(directory))
        and not path.name.endswith(("-wal", "-shm"))
    }


def raise_json(path: Path, version: int) -> None:
    document = json.loads(path.read_bytes())
    path.write_text(json.dumps(document | {"version": version}))


def raise_sqlite(path: Path, version: int) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute(f"PRAGMA user_version = {version}")
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def newer_meta(place: Place) -> None:
    raise_json(place.bucket / "_index/_meta.json", 3)


def newer_monolith(place: Place) -> None:
    raise_json(place.bucket / ".datastore-index.json", 7)
    commit(place)


def newer_shard(place: Place) -> None:
    """Commit a shard, as a newer release does that leaves everything else as it is."""
    raise_json(place.bucket / SHARD, 7)
    commit(place)


def commit(place: Place) -> None:
    path = place.bucket / "_index/_meta.json"
    document = json.loads(path.read_bytes())
    document.pop("swampstore", None)
    if document["version"] == 2:
        document["commitSeq"] += 1
    path.write_text(json.dumps(document))


def newer_sidecar(place: Place) -> None:
    raise_json(place.cache / ".datastore-sync-state.json", 3)


def newer_journal(place: Place) -> None:
    text = json.dumps(["journal", "0123456789abcdef", "2"]).encode()
    line = b"%08x %b\n" % (zlib.crc32(text), text)
    (place.cache / "_catalog.db-dirty").write_bytes(line + b"something else\n")


def newer_base(place: Place) -> None:
    raise_sqlite(place.cache / "_catalog.db-base", 2)


def newer_catalog(place: Place) -> None:
    raise_sqlite(place.catalog, 4)


KINDS: dict[str, tuple[Callable[[Place], None], int]] = {
    "meta": (newer_meta, 2),
    "meta of version 1": (newer_meta, 1),
    "monolith": (newer_monolith, 1),
    "shard": (newer_shard, 2),
    "copied shard": (newer_shard, 1),
    "sidecar": (newer_sidecar, 1),
    "journal": (newer_journal, 1),
    "base": (newer_base, 1),
    "catalog": (newer_catalog, 1),
}
PUT = ("data", "put", MODEL, "state", "--json-value", "2")
COMMANDS = (
    PUT,
    ("sync",),
    ("sync", "--pull", "--full"),
    ("sync", "--push", "--full"),
    ("doctor",),
    ("doctor", "--repair"),
    ("data", "gc"),
    ("data", "delete", MODEL, "state", "--force"),
    ("datastore", "migrate-index"),
)
# These do not come across it: there is nothing to do, or nothing to do with it.
UNSEEN = {
    "copied shard": {"sync", "sync --pull --full", "sync --push --full", "data gc"},
    "shard": {"sync --push --full"},
    "monolith": {"sync --push --full"},
    "catalog": {"sync", "sync --pull --full", "sync --push --full", "datastore migrate-index"},
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_every_command_refuses_what_a_newer_release_wrote_and_changes_nothing(
    kind: str, ana: Machine, tmp_path: Path
) -> None:
    make_newer, index_version = KINDS[kind]
    place = Place(ana, tmp_path / "bucket", index_version)
    make_newer(place)
    remote, newer = place.remote(), place.newer(kind)
    for command in COMMANDS:
        done = place.run(*command)
        told = f"{done.out}{done.err}"
        if " ".join(command) not in UNSEEN.get(kind, ()):
            assert done.status in (1, 74), told
            assert NEWER in told
            assert "Update swampstore" in told
            assert "--repair" not in told
            assert place.remote() == remote, told
        assert place.newer(kind) == newer, told
        remote = place.remote()


# Whether or not they come across it, they leave it as it is.
OTHER_COMMANDS = (
    *(("data", "get", MODEL, "state"), ("data", "list", MODEL), ("data", "query", "true"), ("ls",)),
    *(("catalog", "status"), ("catalog", "rebuild"), ("catalog", "compact")),
    *(("datastore", "status", "--check"), ("datastore", "evict", "--to", "0")),
    *(("data", "hydrate"), ("data", "rename", MODEL, "state", "other"), ("data", "prune", "--yes")),
    ("doctor", "--deep", "--repair"),
    *(("pipeline", job, "--engine", "local") for job in ("verify", "reindex", "gc", "catalog")),
    *(("pipeline", job, "--engine", "local") for job in ("push", "pull")),
    *(("datastore", "lock", "release", "--force"), ("model", "delete", MODEL, "--yes")),
    *(("run", MODEL, "greet", "--", "echo", "hello"), ("datastore", "setup", "filesystem")),
)


def test_whatever_else_is_done_what_a_newer_release_wrote_stays_as_it_is(
    kind: str, ana: Machine, tmp_path: Path
) -> None:
    make_newer, index_version = KINDS[kind]
    place = Place(ana, tmp_path / "bucket", index_version)
    make_newer(place)
    newer = place.newer(kind)
    for command in OTHER_COMMANDS:
        done = place.run(*command)
        assert "defect" not in done.err, command
        assert place.newer(kind) == newer, command


def test_rows_of_others_of_a_newer_release_are_refused_and_stay(
    ana: Machine, bob: Machine, bucket: Path
) -> None:
    ana.use(bucket, namespace="infra")
    bob.use(bucket, namespace="app")
    assert ana(*PUT).status == 0
    assert ana("datastore", "catalog", "export").status == 0
    assert ana("sync").status == 0
    assert bob(*PUT).status == 0
    assert bob("datastore", "catalog", "pull").status == 0
    path = bob.repo_dir / ".swamp/swampstore.foreign.db"
    raise_sqlite(path, 9)
    before = path.read_bytes()
    for command in (
        ("data", "query", "true"),
        ("data", "get", f"infra:{MODEL}", "state"),
        ("datastore", "catalog", "pull"),
    ):
        refused = bob(*command)
        assert (refused.status, NEWER in refused.err) == (1, True), command
    assert bob("data", "get", MODEL, "state").status == 0
    assert bob("doctor", "--repair").status == 0
    assert bob("sync").status == 0
    assert bob(*PUT).status == 0
    assert path.read_bytes() == before


# Formats that are not in `KINDS`, and who shows that a higher version is refused.
ELSEWHERE = {
    "meta of paths": "mongodb/test_documents.py",
    "manifest": "repo/test_newer_formats.py",
    "gc marks": "repo/test_newer_formats.py",
    "removals": "index/test_removals.py",
    "snapshot": "pipeline/test_snapshots.py",
    "export": "pipeline/test_export.py",
    "backup": "relocate/test_backup_damage.py",
    "uses": "repo/test_newer_formats.py",
    "outputs": "repo/test_newer_formats.py",
    "secret": "vaults/test_vaults.py",
    "run tracker": "runs/test_tracker.py",
}


def test_each_format_is_refused_somewhere_if_it_is_newer() -> None:
    assert not NEWEST.keys() - {*ELSEWHERE, *KINDS}
    tests = Path(__file__).parents[1]
    for name in {*ELSEWHERE.values()}:
        assert "pytest.raises(NewerFormatError" in (tests / name).read_text(), name


@pytest.mark.parametrize("kind", ["sidecar", "journal", "base", "catalog"])
def test_setup_does_not_leave_a_newer_file_behind(kind: str, ana: Machine, tmp_path: Path) -> None:
    make_newer, index_version = KINDS[kind]
    place = Place(ana, tmp_path / "bucket", index_version)
    make_newer(place)
    newer = place.newer(kind)
    (tmp_path / "other").mkdir()
    done = place.run("datastore", "setup", f"file://{tmp_path}/other")
    assert done.status == 1
    assert NEWER in done.err
    assert place.newer(kind) == newer
    assert not any((tmp_path / "other").rglob("*.yaml"))


def test_a_summary_of_outputs_of_a_newer_release_is_refused_and_stays(ana: Machine) -> None:
    assert ana("run", MODEL, "greet", "--", "echo", "hello").status == 0
    assert ana("output", "list").status == 0
    path = ana.repo_dir / ".swamp/swampstore.outputs.db"
    raise_sqlite(path, 9)
    before = path.read_bytes()
    refused = ana("output", "list")
    assert (refused.status, NEWER in refused.err) == (1, True)
    assert ana("run", MODEL, "greet", "--", "echo", "hello").status == 0
    assert path.read_bytes() == before


def test_uses_of_content_that_a_newer_release_noted_are_refused_and_stay(ana: Machine) -> None:
    assert ana("data", "put", MODEL, "state", "--json-value", "1").status == 0
    assert ana("datastore", "evict", "--to", "0").status == 0
    path = ana.cache / "_catalog.db-uses"
    raise_sqlite(path, 9)
    before = path.read_bytes()
    assert ana.get(MODEL, "state") == "1"
    refused = ana("datastore", "evict", "--to", "0")
    assert (refused.status, NEWER in refused.err) == (1, True)
    assert ana("sync").status == 0
    assert path.read_bytes() == before


def test_setup_does_not_join_a_remote_of_a_newer_release(
    ana: Machine, bob: Machine, tmp_path: Path
) -> None:
    place = Place(ana, tmp_path / "bucket", 2)
    newer_meta(place)
    before = place.remote()
    update_marker(str(bob.repo_dir), {"datastore": None})
    assert bob("data", "put", MODEL, "other", "--json-value", "1").status == 0
    done = bob("datastore", "setup", f"file://{place.bucket}")
    assert done.status == 1
    assert NEWER in done.err
    assert place.remote() == before


def test_an_upgrade_never_lowers_the_version_of_a_repository(repo_dir: Path) -> None:
    marker = repo_dir / ".swamp.yaml"
    update_marker(str(repo_dir), {"swampVersion": "20991231.1"})
    before = marker.read_bytes()
    with pytest.raises(NewerFormatError, match=r"\.swamp\.yaml"):
        upgrade_repo(repo_dir)
    assert marker.read_bytes() == before
    update_marker(str(repo_dir), {"swampVersion": "20240101.9"})
    upgrade_repo(repo_dir).close()
    assert FORMAT_VERSION in marker.read_text()


def test_a_version_that_is_no_whole_number_is_damage_and_nothing_newer() -> None:
    for version in (True, "7", 7.0, None, [7], 0, -1):
        refuse_newer("shard", version, "x")
    for version in (NEWEST["shard"] + 1, 10**400):
        with pytest.raises(NewerFormatError, match=NEWER):
            refuse_newer("shard", version, "x")


def test_marks_of_garbage_of_a_newer_release_stay() -> None:
    store, names = MemoryStore(), Names("/nowhere", "", Routing())
    marks, pages = {1: Mark("x", datetime(2026, 1, 1, tzinfo=UTC))}, MarkPages(store, names)
    pages.replace(pages.listed(), [Marked("data/a/b/c", marks)])
    document = json.loads(store.get(MARKS).data)
    store.put(MARKS, json.dumps(document | {"version": NEWEST["gc marks"] + 1}).encode())
    with pytest.raises(NewerFormatError, match=MARKS):
        pages.listed()


def test_a_task_of_spark_that_meets_a_newer_release_says_so() -> None:
    from pyspark.errors import PythonException

    trace = f"Traceback (most recent call last):\n  File x\n{_task_error()}"
    newer = pytest.raises(NewerFormatError, match=r"_index/a\.json was written by a newer version")
    with newer, spark_errors():
        raise PythonException(trace)


def _task_error() -> str:
    try:
        decode_shard(b'{"version":7,"entries":{}}', "a")
    except NewerFormatError as error:
        return "".join(traceback.format_exception_only(error))
    raise AssertionError


def test_a_note_of_a_newer_release_about_removals_is_left_to_it() -> None:
    store, names = MemoryStore(), Names("/nowhere", "", Routing())
    store.put(f"{REMOVALS}a.json", b'{"version": 2, "objects": "elsewhere"}')
    with pytest.raises(NewerFormatError, match=REMOVALS):
        read_notes(store, names)


def test_a_shard_of_a_newer_release_is_not_planned_anew() -> None:
    store, names = MemoryStore(), Names("/nowhere", "", Routing())
    store.put("_index/_root.json", b'{"version":7,"entries":{}}')
    with pytest.raises(NewerFormatError):
        Documents(store, names, 1).shard_as_it_is("_root")


def test_a_manifest_of_a_newer_release_is_nobodys_to_take() -> None:
    with pytest.raises(NewerFormatError, match=r"infra/\.namespace\.json"):
        Manifest.decode("infra", b'{"version": 2, "namespace": "infra", "repoId": "x"}')
