"""Snapshots of the artifact table: always the same rows, at the cost of what changed."""

from __future__ import annotations

import hashlib
import json
import pickle
import shutil
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from swampstore.artifacts.latest import marker_content
from swampstore.catalog.schema import Row
from swampstore.errors import NewerFormatError, NotFoundError, ValidationError
from swampstore.index.documents import Documents
from swampstore.index.results import no_progress
from swampstore.pipeline.index_writer import committer
from swampstore.pipeline.places import Place, places_of
from swampstore.pipeline.running import watched
from swampstore.pipeline.snapshots import refresh as refreshing
from swampstore.pipeline.snapshots.manifest import FILES, MANIFESTS, Manifests
from swampstore.pipeline.snapshots.refresh import Refreshed, refresh
from swampstore.pipeline.source.artifacts import Artifacts
from swampstore.pipeline.source.changes import Changes
from swampstore.pipeline.source.scan import Condition, Wanted
from swampstore.pipeline.tables import Tables
from swampstore.retention.model_deletion import delete_model
from swampstore.stores.errors import StorePermissionError
from swampstore.stores.wrapper import CountingStore
from tests.support.command_line import CommandLine
from tests.support.histories import History
from tests.support.members import Member, bucket_in_a_directory, shared_directory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS = ("store", *Row._fields)
MODELS, NAMES, VERSIONS = 6, 2, 3


class Bucket:
    """A bucket of one version of the index, its snapshots, and what reading it costs."""

    def __init__(self, directory: Path, version: int = 2, namespace: str = "") -> None:
        self.shared = bucket_in_a_directory(directory)
        self.directory = directory / "bucket" / namespace
        self.settings: dict[str, object] = {"namespace": namespace} if namespace else {}
        self.ana = self.member("ana")
        with self.ana.open() as repo:
            repo.sync.push(full=True)
            if version == 2:
                repo.sync.migrate_index()

    def member(self, name: str) -> Member:
        return self.shared.member(name, **self.settings)

    @property
    def place(self) -> Place:
        (found,) = places_of(self.ana.repo_dir, None, self.ana.environ)
        return found

    @property
    def url(self) -> str:
        return str(self.shared.section["url"])

    def fill(self) -> None:
        with self.ana.open() as repo:
            for model in range(MODELS):
                for name in range(NAMES):
                    for version in range(VERSIONS):
                        repo.artifacts.save(f"aws/ec2/i-{model}", f"n{name}", f"{version}")
            repo.sync.push()

    def save(self, model: str = "aws/ec2/i-1", name: str = "n0", content: str = "new") -> None:
        with self.ana.open() as repo:
            repo.artifacts.save(model, name, content)
            repo.sync.push()

    def refresh(self, **options: Any) -> Refreshed:
        [done] = refresh([self.place], engine="local", **options)
        return done

    def read(self, *conditions: Condition, **options: Any) -> tuple[list[tuple[Any, ...]], int]:
        """Return the rows, and how many requests it took the driver and its tasks."""
        table = Artifacts(wanted=Wanted((conditions,)), **options)
        with self.place.open() as opened:
            store = CountingStore(opened)
            pieces = pickle.loads(pickle.dumps(list(table.plan(self.place, store, 4))))
            rows = [row for piece in pieces for row in table.rows(self.place, piece, store)]
            return sorted(rows), sum(store.tally().requests.values())

    def check(self, *conditions: Condition, **options: Any) -> int:
        """Make sure that the snapshot changes nothing but the cost, and return that."""
        expected, _ = self.read(*conditions, snapshot=False, **options)
        wanted = Wanted((conditions,))
        rows, requests = self.read(*conditions, **options)
        exactly = [row for row in rows if wanted.admits(dict(zip(COLUMNS, row, strict=False)))]
        assert exactly == expected
        return requests

    def latest(self, model: str, name: str) -> list[int]:
        rows, _ = self.read(Condition("model_id", "=", model), Condition("data_name", "=", name))
        named = [dict(zip(COLUMNS, row, strict=True)) for row in rows]
        return [row["version"] for row in named if row["is_latest"] and row["data_name"] == name]

    def set_marker(self, model: str, name: str, version: int) -> None:
        """Commit another marker alone, as a repair does."""
        rel = f"data/aws/ec2/{model}/{name}/latest"
        data = marker_content(version)
        (self.directory / rel).write_bytes(data)
        with committer(self.place) as writer:
            entry = writer.entries()[rel]
            sha256 = hashlib.sha256(data).hexdigest()
            writer.commit({rel: replace(entry, size=len(data), sha256=sha256)})

    def files(self, below: str) -> list[Path]:
        return sorted((self.directory / below).glob("*"))


@pytest.fixture(params=[1, 2])
def either(request: pytest.FixtureRequest, tmp_path: Path) -> Bucket:
    bucket = Bucket(tmp_path, request.param, "infra")
    bucket.fill()
    return bucket


@pytest.fixture
def bucket(tmp_path: Path) -> Bucket:
    found = Bucket(tmp_path)
    found.fill()
    return found


# The same rows -----------------------------------------------------------------------------


def test_everything_comes_from_the_snapshot_without_a_request_per_version(either: Bucket) -> None:
    done = either.refresh()

    assert done.rows == MODELS * NAMES * VERSIONS
    assert done.left == 0
    # The manifests, one of them, _meta.json, perhaps the monolith, and the only file.
    assert either.check() <= 5
    assert either.check(Condition("model_id", "=", "i-3"), Condition("version", ">", 1)) <= 5
    assert either.check(Condition("is_latest", "=", operand=True)) <= 5


@pytest.mark.parametrize("seed", range(2))
def test_whatever_happens_the_rows_are_those_of_the_store(either: Bucket, seed: int) -> None:
    with either.ana.open() as repo:
        history = History(repo, seed)
        for steps in (30, 12, 1, 20):
            history.go_on(steps)
            repo.sync.push()
            either.check()
            either.refresh()
            either.check()
    either.check(content=True)


def test_what_changed_since_is_read_from_its_shards_and_costs_as_much(either: Bucket) -> None:
    either.refresh()
    unchanged = either.check()

    either.save("aws/ec2/i-1", "n0")

    # The shard of the model, that of the markers, and the one new version.
    assert either.check() <= unchanged + 3


def test_a_marker_that_changes_alone_is_noticed(bucket: Bucket) -> None:
    bucket.refresh()
    bucket.set_marker("i-2", "n1", 2)
    assert bucket.latest("i-2", "n1") == [2]
    bucket.check()

    done = bucket.refresh()

    assert bucket.latest("i-2", "n1") == [2]
    assert bucket.check() <= 4
    assert done.changed == 1  # the shard of the markers; that of the model is what it was


def test_a_refresh_costs_what_changed(bucket: Bucket) -> None:
    first = bucket.refresh()
    bucket.save("aws/ec2/i-1", "n0")

    done = bucket.refresh()

    assert first.requests["get"] > MODELS * NAMES * VERSIONS
    assert done.changed == 2
    assert done.read <= 3
    # Manifest, _meta.json, both files of the bucket, three documents, the new metadata.
    assert done.requests["get"] <= 8
    assert sum(done.requests.values()) <= 15
    assert bucket.refresh().requests == {"get": 2, "list": 2}


def test_a_refresh_of_a_monolith_fetches_no_metadata_twice(tmp_path: Path) -> None:
    bucket = Bucket(tmp_path, 1)
    bucket.fill()
    bucket.refresh()
    bucket.save("aws/ec2/i-1", "n0")

    done = bucket.refresh()

    assert done.rows == MODELS * NAMES * VERSIONS + 1
    assert done.requests["get"] <= 5
    assert bucket.check() <= 5


def test_rows_of_a_model_that_is_gone_are_gone(either: Bucket) -> None:
    either.refresh()
    with either.ana.open() as repo:
        repo.artifacts.save("gcp/vm/v-1", "n0", "x")
        repo.sync.push()
        either.refresh()
        delete_model(repo, "gcp/vm/v-1")
        repo.sync.push()
    either.check()
    either.refresh()
    either.check()


# Never needed ------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["lost", "garbage"])
def test_a_file_that_is_lost_is_done_without_and_made_anew(either: Bucket, damage: str) -> None:
    either.refresh()
    for path in either.files(FILES):
        path.unlink() if damage == "lost" else path.write_bytes(b"PAR1")

    either.check()
    if damage == "lost":
        either.refresh()
        assert either.check() <= 5


def test_manifests_that_make_no_sense_are_none(bucket: Bucket) -> None:
    bucket.refresh()
    [manifest] = bucket.files(MANIFESTS)
    manifest.write_bytes(b"{")

    bucket.check()
    done = bucket.refresh()

    assert done.number == 2
    assert bucket.check() <= 5


def test_a_snapshot_of_a_newer_release_is_neither_used_nor_replaced(bucket: Bucket) -> None:
    bucket.refresh()
    [path] = bucket.files(MANIFESTS)
    manifest = json.loads(path.read_bytes())
    path.write_text(json.dumps(manifest | {"version": 2}))

    bucket.check()
    with pytest.raises(NewerFormatError):
        bucket.refresh()


def test_an_object_that_is_not_what_the_index_says_stays_out(bucket: Bucket) -> None:
    path = bucket.directory / "data/aws/ec2/i-1/n0/2/metadata.yaml"
    path.write_bytes(path.read_bytes() + b"# changed by hand\n")

    done = bucket.refresh()

    assert done.left == 1
    assert done.rows >= (MODELS - 1) * NAMES * VERSIONS
    bucket.check()


def test_entries_of_clients_that_know_no_hash_stay_out(bucket: Bucket) -> None:
    shard = bucket.directory / "_index/data--aws--ec2--i-1.json"
    document = json.loads(shard.read_bytes())
    for entry in document["entries"].values():
        entry.pop("sha256")
    shard.write_text(json.dumps(document))

    assert bucket.refresh().left == 1
    bucket.check()


def test_another_client_that_commits_leaves_the_snapshot_valid(bucket: Bucket) -> None:
    bucket.refresh()
    bucket.save("aws/ec2/i-4", "n1")
    meta = bucket.directory / "_index/_meta.json"
    document = json.loads(meta.read_bytes())
    document.pop("swampstore")  # it does not know our members
    meta.write_text(json.dumps(document))

    # A listing tells the fingerprints.
    assert bucket.check() <= 8


def test_a_bucket_that_is_emptied_and_filled_again_has_another_snapshot(bucket: Bucket) -> None:
    bucket.refresh()
    kept = bucket.directory.parent / "kept"
    shutil.move(bucket.directory / "_control", kept)
    shutil.rmtree(bucket.directory)
    bucket.directory.mkdir()
    bob = bucket.member("bob")
    with bob.open() as repo:
        repo.artifacts.save("aws/ec2/i-1", "n0", "other")
        repo.sync.push(full=True)
    shutil.rmtree(bucket.directory / "_control", ignore_errors=True)
    shutil.move(kept, bucket.directory / "_control")

    bucket.check()
    assert bucket.refresh().rows == 1
    bucket.check()


def test_who_may_not_look_for_a_snapshot_reads_without_one(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket.refresh()

    def refused(_: Manifests) -> None:
        raise StorePermissionError("not below _control/", hint="Ask for it.")

    monkeypatch.setattr(Manifests, "newest", refused)

    assert bucket.check() > MODELS * NAMES * VERSIONS


def test_a_directory_in_place_has_no_snapshot(tmp_path: Path) -> None:
    member = shared_directory(tmp_path).member("ana")
    member.save("x")

    with pytest.raises(ValidationError, match="no index"):
        refresh(places_of(member.repo_dir, None, member.environ), engine="local")


# Several at once, and killed ones ----------------------------------------------------------


def test_two_refreshes_at_once_leave_a_valid_snapshot(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket.refresh()
    bucket.save("aws/ec2/i-1", "n0")
    add = Manifests.add
    met: list[int] = []

    def somebody_was_faster(self: Manifests, manifest: Any) -> bool:
        if not met:
            met.append(manifest.number)
            monkeypatch.setattr(Manifests, "add", add)
            assert bucket.refresh().number == manifest.number
        return add(self, manifest)

    monkeypatch.setattr(Manifests, "add", somebody_was_faster)

    done = bucket.refresh()

    assert done.number == met[0]  # theirs is what the index is, and nothing was left to do
    assert bucket.check() <= 5


def test_a_commit_in_the_middle_of_a_refresh_is_not_missed(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket.refresh()
    bucket.save("aws/ec2/i-1", "n0")
    add = Manifests.add

    def others_commit(self: Manifests, manifest: Any) -> bool:
        monkeypatch.setattr(Manifests, "add", add)
        bucket.save("aws/ec2/i-1", "n0", "another")
        bucket.save("aws/ec2/i-3", "n1", "another")
        return add(self, manifest)

    monkeypatch.setattr(Manifests, "add", others_commit)

    bucket.refresh()

    bucket.check()
    bucket.refresh()
    assert bucket.check() <= 5


@pytest.mark.parametrize("files", range(3))
def test_a_killed_refresh_leaves_the_last_snapshot(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch, files: int
) -> None:
    bucket.refresh()
    bucket.save("aws/ec2/i-1", "n0")
    written: list[str] = []
    put, create = CountingStore.put, CountingStore.put_if_absent

    def killed(write: Any) -> Any:
        def until(self: CountingStore, key: str, *args: Any) -> Any:
            if len(written) == files:
                raise KeyboardInterrupt
            written.append(key)
            return write(self, key, *args)

        return until

    with monkeypatch.context() as patched:
        patched.setattr(CountingStore, "put", killed(put))
        patched.setattr(CountingStore, "put_if_absent", killed(create))
        with pytest.raises(KeyboardInterrupt):
            bucket.refresh()

    assert len(bucket.files(MANIFESTS)) == 1
    bucket.check()
    bucket.refresh()
    assert bucket.check() <= 5


# Retention ---------------------------------------------------------------------------------


def test_files_stay_for_the_retention_time_and_not_longer(bucket: Bucket) -> None:
    bucket.refresh()
    before = set(bucket.files(FILES))
    bucket.save("aws/ec2/i-1", "n0")
    bucket.refresh()
    assert before < set(bucket.files(FILES))
    assert len(bucket.files(MANIFESTS)) == 2

    bucket.save("aws/ec2/i-1", "n0")
    done = bucket.refresh(retention=timedelta(0))

    assert done.removed > 0
    assert not before & set(bucket.files(FILES))
    assert len(bucket.files(MANIFESTS)) == 1
    assert bucket.check() <= 5


def test_a_dry_run_writes_nothing(bucket: Bucket) -> None:
    done = bucket.refresh(dry_run=True)

    assert done.changed == MODELS + 1
    assert not bucket.files(MANIFESTS)
    assert not bucket.files(FILES)


def test_a_snapshot_is_split_when_it_has_grown(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket.refresh()
    monkeypatch.setattr(refreshing, "_BUCKET_ROWS", 10)

    done = bucket.refresh()

    assert done.written > 2
    assert "get" in done.requests
    assert done.requests["get"] < MODELS * NAMES * VERSIONS
    assert bucket.check() <= 4 + done.written


# The past ----------------------------------------------------------------------------------


def changes(bucket: Bucket, since: str, until: str | None = None) -> list[tuple[Any, ...]]:
    """Return model, name, version and what became of it, sorted."""
    table = Changes(since, until)
    with bucket.place.open() as store:
        pieces = pickle.loads(pickle.dumps(list(table.plan(bucket.place, store, 4))))
        rows = [row for piece in pieces for row in table.rows(bucket.place, piece, store)]
    return sorted((*row[3:6], row[-1]) for row in rows)


def test_the_table_can_be_read_as_it_was(bucket: Bucket) -> None:
    first = bucket.refresh()
    was, _ = bucket.read()
    bucket.save("aws/ec2/i-1", "n0")
    second = bucket.refresh()
    with bucket.ana.open() as repo:
        delete_model(repo, "aws/ec2/i-2")
    bucket.refresh()

    assert bucket.read(as_of=str(first.commit_seq))[0] == was
    assert len(bucket.read(as_of=str(second.commit_seq))[0]) == len(was) + 1
    now, _ = bucket.read()
    assert bucket.read(as_of="2999-01-01")[0] == now
    assert len(now) == len(was) + 1 - NAMES * VERSIONS
    with pytest.raises(NotFoundError, match="no snapshot"):
        bucket.read(as_of="2000-01-01T00:00Z")
    with pytest.raises(ValidationError, match="neither"):
        bucket.read(as_of="yesterday")
    for path in bucket.files(FILES):
        path.unlink()
    with pytest.raises(NotFoundError, match="is gone"):
        bucket.read(as_of=str(first.commit_seq))


def test_the_past_has_an_end_and_without_counted_commits_only_times(tmp_path: Path) -> None:
    bucket = Bucket(tmp_path, 1)
    bucket.fill()
    bucket.refresh()
    was, _ = bucket.read()
    with bucket.ana.open() as repo:
        first = repo.clock().isoformat()
    assert bucket.read(as_of=first)[0] == was
    with pytest.raises(ValidationError, match="does not count its commits") as caught:
        bucket.read(as_of="3")
    assert "Give a time such as 20" in (caught.value.hint or "")
    for _ in range(2):
        bucket.save("aws/ec2/i-1", "n0")
        bucket.refresh(retention=timedelta(0))
    with pytest.raises(NotFoundError, match="no snapshot") as gone:
        bucket.read(as_of=first)
    assert "The oldest one is of 20" in (gone.value.hint or "")
    assert "None" not in (gone.value.hint or "")


def test_the_changes_between_two_snapshots_are_told(bucket: Bucket) -> None:
    first = bucket.refresh()
    bucket.save("aws/ec2/i-1", "n0")
    second = bucket.refresh()
    with bucket.ana.open() as repo:
        delete_model(repo, "aws/ec2/i-2")
    bucket.refresh()

    # The version before is not the latest one any more.
    saved = [("i-1", "n0", 3, "update"), ("i-1", "n0", 4, "insert")]
    names = [f"n{number}" for number in range(NAMES)]
    gone = [("i-2", name, one + 1, "delete") for name in names for one in range(VERSIONS)]
    assert changes(bucket, str(first.commit_seq), str(second.commit_seq)) == saved
    assert changes(bucket, str(second.commit_seq)) == gone
    assert changes(bucket, str(first.commit_seq)) == [*saved, *gone]
    assert changes(bucket, str(first.commit_seq), str(first.commit_seq)) == []


def test_changes_are_told_across_a_migration_of_the_index(tmp_path: Path) -> None:
    bucket = Bucket(tmp_path, 1)
    bucket.fill()
    bucket.refresh()
    before = "2999-01-01"
    with bucket.ana.open() as repo:
        began = repo.clock().isoformat()
        repo.sync.migrate_index()
    bucket.save("aws/ec2/i-1", "n0")
    bucket.refresh()

    assert changes(bucket, began, before) == [
        ("i-1", "n0", 3, "update"),
        ("i-1", "n0", 4, "insert"),
    ]


# On Spark ----------------------------------------------------------------------------------


def test_tasks_make_the_snapshot_and_frames_read_it(spark: SparkSession, bucket: Bucket) -> None:
    [done] = refresh([bucket.place], engine="spark")
    bucket.save("aws/ec2/i-1", "n0")
    frame = Tables(spark, [bucket.place]).artifacts()

    assert done.engine == "spark"
    assert frame.count() == MODELS * NAMES * VERSIONS + 1
    assert frame.filter("model_id = 'i-1' AND is_latest").count() == NAMES
    columns = ["data_name", "version", "created_at", "tags", "size"]
    since = Tables(spark, [bucket.place]).artifacts(as_of=done.commit_seq)
    assert since.count() == MODELS * NAMES * VERSIONS
    refresh([bucket.place], engine="local")
    found = Tables(spark, [bucket.place]).changes(done.commit_seq or 0)
    assert sorted(row["_change_type"] for row in found.collect()) == ["insert", "update"]
    live = spark.read.format("swampstore").option("snapshot", "false").load(bucket.url)
    assert sorted(frame.select(columns).collect()) == sorted(live.select(columns).collect())


def test_jobs_have_names_where_spark_shows_them(spark: SparkSession) -> None:
    context = spark.sparkContext

    with watched(spark, "verify", 1, no_progress):
        assert context.getLocalProperty("spark.job.description") == "swampstore: verify"

    assert context.getLocalProperty("spark.job.description") is None


def test_the_command_refreshes_and_says_what_it_did(
    bucket: Bucket, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    command_line = CommandLine(bucket.ana.repo_dir, capsysbinary, monkeypatch)

    first = command_line("pipeline", "catalog", bucket.url, "--refresh", "--json")
    second = command_line("pipeline", "catalog", bucket.url, "--refresh")

    [snapshot] = first.json["snapshots"]
    assert snapshot["rows"] == MODELS * NAMES * VERSIONS
    assert snapshot["engine"] == "local"
    assert "nothing changed" in second.out


# A commit that does not come to its end ----------------------------------------------------


def delete_and_die(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """Delete a version, and die when its shard is written and `_meta.json` is not."""

    def die(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with bucket.ana.open() as repo, monkeypatch.context() as patch:
        repo.artifacts.delete("aws/ec2/i-1", "n0", version=1)
        patch.setattr(Documents, "put_meta", die)
        with pytest.raises(KeyboardInterrupt):
            repo.sync.push()


@pytest.mark.parametrize("is_remembered", [True, False], ids=["snapshot", "none before"])
def test_versions_that_a_killed_deletion_took_out_of_a_shard_stay_in_the_table_until_it_ends(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch, is_remembered: bool
) -> None:
    before, _ = bucket.read(snapshot=False)
    if is_remembered:
        bucket.refresh()
    delete_and_die(bucket, monkeypatch)
    for _ in range(2):
        assert bucket.read()[0] == bucket.read(snapshot=False)[0] == before
        bucket.refresh()
    with bucket.ana.open() as repo:
        repo.sync.push()
    bucket.check()
    assert len(bucket.read()[0]) == len(before) - 1
    bucket.refresh()
    bucket.check()
    assert len(bucket.read()[0]) == len(before) - 1


def test_a_snapshot_of_a_shard_that_is_being_committed_does_not_outlive_that(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, _ = bucket.read(snapshot=False)
    put_meta = Documents.put_meta

    def slowly(self: Documents, *args: Any, **options: Any) -> Any:
        bucket.refresh()
        return put_meta(self, *args, **options)

    with bucket.ana.open() as repo, monkeypatch.context() as patch:
        repo.artifacts.delete("aws/ec2/i-1", "n0", version=1)
        patch.setattr(Documents, "put_meta", slowly)
        repo.sync.push()
    bucket.check()
    bucket.refresh()
    bucket.check()
    assert len(bucket.read()[0]) == len(before) - 1


def test_whether_deletions_have_ended_is_asked_once_for_many_shards(bucket: Bucket) -> None:
    _, requests = bucket.read(snapshot=False)
    with bucket.ana.open() as repo:
        for model in range(MODELS):
            repo.artifacts.delete(f"aws/ec2/i-{model}", "n0", version=1)
        repo.sync.push()
    _, after = bucket.read(snapshot=False)
    assert after < requests  # there are fewer versions, and one question for each task
