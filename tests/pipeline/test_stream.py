"""Following commits: what `spark.readStream.format("swampstore")` delivers, and when."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from swampstore import Repo, init_repo
from swampstore.catalog.export import EXPORT
from swampstore.errors import ValidationError
from swampstore.index.errors import IndexDamagedError
from swampstore.index.partitions import META_KEY, shard_key
from swampstore.pipeline.errors import NotFollowableError, StreamPositionError
from swampstore.pipeline.places import Place, places_of
from swampstore.stores.directory import DirectoryStore
from swampstore.stores.protocol import Store
from swampstore.stores.wrapper import CountingStore
from tests.pipeline.test_write import Job, row
from tests.support.machines import Machine
from tests.support.markdown_pages import ROOT, Page
from tests.support.old_client import OldPeer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from swampstore.pipeline.source.stream import CommitStream, Offset
    from tests.support.remotes import ProxiedRemote

ONE = "aws/ec2/i-1"
TWO = "aws/ec2/i-2"


@pytest.fixture
def repo(ana: Machine) -> Iterator[Repo]:
    """A repository of a sharded remote, at commit 1, with nothing in it."""
    assert ana("datastore", "migrate-index").status == 0
    with ana.open() as repo:
        yield repo


def save(repo: Repo, model: str, name: str, content: str = "x") -> int:
    """Save one version in a session of its own; return the commit."""
    with repo.session([model]):
        repo.artifacts.save(model, name, content)
    return repo.sync.status().commit_seq or 0


def files(model: str, name: str, version: int) -> set[str]:
    """The paths that a new version brings."""
    below = f"data/{model}/{name}"
    return {f"{below}/{version}/raw", f"{below}/{version}/metadata.yaml", f"{below}/latest"}


class Follower:
    """A stream as Spark drives it, without Spark: batch after batch, from where the last ended."""

    def __init__(
        self, target: Path | str, namespaces: Sequence[str] | None = None, **options: str
    ) -> None:
        from swampstore.pipeline.source.stream import Following

        url = f"file://{target}" if isinstance(target, Path) else target
        self._places = places_of(url, namespaces)
        self._following = Following.of({name.lower(): value for name, value in options.items()})
        self.stream = self.restart()
        self.offset: Offset = self.stream.initialOffset()

    def restart(self) -> CommitStream:
        """Forget everything but the offset."""
        from pyspark.sql.types import StructType

        from swampstore.pipeline.source.index import Index
        from swampstore.pipeline.source.stream import CommitStream

        self.stream = CommitStream(Index(), self._places, self._following, 4, StructType([]))
        return self.stream

    def end(self) -> Offset:
        return self.stream.latestOffset(self.offset, self.stream.getDefaultReadLimit())

    def rows(self, start: Offset, end: Offset) -> list[str]:
        from swampstore.pipeline.source.stream import entries_of

        found = []
        for partition in self.stream.partitions(start, end):
            with partition.value.place.open() as store:
                found += [entry.rel for entry in entries_of(partition.value, store)]
        return sorted(found)

    def batch(self) -> list[str]:
        """Return the paths that the next batch delivers, and take it as done."""
        end = self.end()
        found = self.rows(self.offset, end)
        self.stream.commit(end)
        self.offset = end
        return found


# What is delivered ---------------------------------------------------------------------------


def test_each_batch_delivers_what_was_committed_since_the_last(repo: Repo, bucket: Path) -> None:
    follower = Follower(bucket)
    save(repo, ONE, "state")
    assert set(follower.batch()) >= files(ONE, "state", 1)
    save(repo, TWO, "state")
    save(repo, TWO, "log")
    assert follower.batch() == sorted(files(TWO, "state", 1) | files(TWO, "log", 1))
    assert follower.batch() == []


def test_an_entry_is_delivered_again_when_it_is_committed_again(repo: Repo, bucket: Path) -> None:
    save(repo, ONE, "state")
    follower = Follower(bucket, startingCommit="latest")
    save(repo, ONE, "state")
    assert follower.batch() == sorted(files(ONE, "state", 2))


def test_a_restarted_stream_goes_on_where_its_checkpoint_is(repo: Repo, bucket: Path) -> None:
    follower = Follower(bucket)
    save(repo, ONE, "state")
    follower.batch()
    save(repo, TWO, "state")
    follower.restart()
    assert follower.batch() == sorted(files(TWO, "state", 1))
    follower.restart()
    assert follower.batch() == []


def test_a_batch_that_was_begun_delivers_the_same_after_a_restart(repo: Repo, bucket: Path) -> None:
    follower = Follower(bucket, startingCommit="latest")
    save(repo, ONE, "state")
    start, end = follower.offset, follower.end()
    first = follower.rows(start, end)
    save(repo, TWO, "state")
    follower.restart()
    assert follower.rows(start, end) == first == sorted(files(ONE, "state", 1))
    follower.offset = end
    assert follower.batch() == sorted(files(TWO, "state", 1))


@pytest.mark.parametrize("with_state", [False, True])
def test_a_stream_that_stops_in_its_first_batch_goes_on_behind_it(
    repo: Repo, bucket: Path, tmp_path: Path, with_state: bool
) -> None:
    options = {"stateDir": str(tmp_path / "state")} if with_state else {}
    first = Follower(bucket, startingCommit="latest", **options)
    save(repo, ONE, "state")
    end = first.end()
    save(repo, TWO, "state")
    again = Follower(bucket, startingCommit="latest", **options)  # Spark asks for the start again
    assert again.rows(again.offset, end) == []
    again.offset = end
    assert again.batch() == sorted(files(TWO, "state", 1))


def test_a_stream_may_start_with_any_commit(repo: Repo, bucket: Path) -> None:
    first = save(repo, ONE, "state")
    save(repo, TWO, "state")
    assert Follower(bucket, startingCommit=str(first)).batch() == sorted(files(TWO, "state", 1))
    assert Follower(bucket, startingCommit="LATEST").batch() == []
    assert len(Follower(bucket).batch()) >= 6


def test_a_batch_has_no_more_commits_than_allowed(repo: Repo, bucket: Path) -> None:
    follower = Follower(bucket, startingCommit="latest", maxCommitsPerBatch="2")
    for name in ("a", "b", "c"):
        save(repo, ONE, name)
    assert follower.batch() == sorted(files(ONE, "a", 1) | files(ONE, "b", 1))
    assert follower.batch() == sorted(files(ONE, "c", 1))


def test_a_stream_with_an_end_does_not_go_beyond_it(repo: Repo, bucket: Path) -> None:
    follower = Follower(bucket, startingCommit="latest")
    save(repo, ONE, "state")
    follower.stream.prepareForTriggerAvailableNow()
    save(repo, TWO, "state")
    assert follower.batch() == sorted(files(ONE, "state", 1))
    assert follower.batch() == []


def test_every_namespace_has_commits_of_its_own(ana: Machine, bob: Machine, bucket: Path) -> None:
    for machine, namespace in ((ana, "infra"), (bob, "web")):
        machine.use(bucket, namespace=namespace)
        assert machine("datastore", "migrate-index").status == 0
        with machine.open() as repo:
            save(repo, ONE, namespace)
    follower = Follower(bucket, ["infra", "web"])
    both = files(ONE, "infra", 1) | files(ONE, "web", 1)
    assert both <= set(follower.batch())
    with bob.open() as repo:
        save(repo, TWO, "state")
    told = follower.batch()
    # What a namespace publishes of its catalog goes with any push that has something to do.
    assert [rel for rel in told if rel != EXPORT] == sorted(files(TWO, "state", 1))


@pytest.mark.parametrize("with_state", [False, True])
def test_commits_that_overtake_each_other_are_told_apart(
    bob: Machine, repo: Repo, bucket: Path, tmp_path: Path, with_state: bool
) -> None:
    save(repo, ONE, "old")
    follower = Follower(bucket, **({"stateDir": str(tmp_path / "state")} if with_state else {}))
    follower.batch()
    repo.artifacts.save(ONE, "slow", "x")
    prepared = repo.sync.prepare_push()
    with bob.open() as other:
        save(other, TWO, "fast")  # its marker is in the same shard
    assert follower.batch() == sorted(files(TWO, "fast", 1))
    repo.sync.commit_push(prepared)
    assert follower.batch() == sorted(files(ONE, "slow", 1))


def test_etags_that_prove_nothing_lose_nothing(
    repo: Repo, bucket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swampstore.index.state._MULTIPART", re.compile(".*"))
    follower = Follower(bucket, startingCommit="latest")
    for name in ("one", "two"):
        save(repo, ONE, name)
        assert follower.batch() == sorted(files(ONE, name, 1))


# What it costs -------------------------------------------------------------------------------


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts the requests of every place that is opened."""
    counted: Counter[str] = Counter()

    class Counted(CountingStore):
        def _count(self, kind: str, sent: int = 0) -> None:
            counted[kind] += 1

    def open_counting(place: Place) -> Store:
        return Counted(place.config.open())

    monkeypatch.setattr(Place, "open", open_counting)
    return counted


@pytest.mark.parametrize("with_state", [False, True])
def test_a_batch_reads_meta_and_the_shards_that_changed(
    repo: Repo, bucket: Path, tmp_path: Path, requests: Counter[str], with_state: bool
) -> None:
    for number in range(12):
        save(repo, f"aws/ec2/m-{number}", "state")
    follower = Follower(bucket, **({"stateDir": str(tmp_path / "state")} if with_state else {}))
    follower.batch()
    save(repo, ONE, "state")
    requests.clear()
    assert follower.batch() == sorted(files(ONE, "state", 1))
    # _meta.json, and the shards of the versions and of the markers.
    assert requests == {"get": 3}
    requests.clear()
    assert follower.batch() == []
    assert requests == {"get": 1}


# Commits that are not done -------------------------------------------------------------------


def stop_before_meta(monkeypatch: pytest.MonkeyPatch, work: Callable[[], Any]) -> None:
    """Do something, and die after the shards were written."""
    from swampstore.index.documents import Documents

    def die(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Documents, "put_meta", die)
        with pytest.raises(KeyboardInterrupt):
            work()


@pytest.mark.parametrize("with_state", [False, True])
@pytest.mark.parametrize("others_commit", [0, 1, 3])
def test_a_commit_that_stopped_is_delivered_once_when_somebody_finishes_it(
    ana: Machine,
    bob: Machine,
    repo: Repo,
    bucket: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    others_commit: int,
    with_state: bool,
) -> None:
    monkeypatch.setenv("SWAMPSTORE_LOCK_TTL_MS", "1000")
    options = {"stateDir": str(tmp_path / "state")} if with_state else {}
    save(repo, ONE, "old")
    follower, latecomer = Follower(bucket, **options), None
    follower.batch()
    with ana.open() as dying:
        dying.artifacts.save(ONE, "state", "x")
        stop_before_meta(monkeypatch, dying.sync.push)
    follower.restart()
    assert follower.batch() == []
    with bob.open() as other:
        for number in range(others_commit):
            save(other, f"gcp/vm/m-{number}", "state")
    follower.restart()  # so that it reads all shards, the unfinished one too
    delivered = follower.batch()
    latecomer = Follower(bucket)
    assert not files(ONE, "state", 1) & {*delivered, *latecomer.batch()}
    with ana.open() as again:
        again.sync.push()
        save(again, TWO, "state")
    delivered += follower.batch()
    assert files(ONE, "state", 1) <= set(delivered)
    assert len(delivered) == len(set(delivered))
    assert files(ONE, "state", 1) <= set(latecomer.batch())


def test_deleting_something_meanwhile_loses_nothing(
    ana: Machine, repo: Repo, bucket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(repo, ONE, "old")
    follower = Follower(bucket, startingCommit="latest")
    save(repo, ONE, "state")
    end = follower.end()
    with ana.open() as dying:
        dying.artifacts.delete(ONE, "old")
        stop_before_meta(monkeypatch, dying.sync.push)
    assert follower.rows(follower.offset, end) == sorted(files(ONE, "state", 1))


@pytest.mark.parametrize("with_state", [False, True])
def test_a_commit_that_stopped_after_another_client_s_is_delivered_once(
    ana: Machine,
    bob: Machine,
    repo: Repo,
    bucket: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    with_state: bool,
) -> None:
    monkeypatch.setenv("SWAMPSTORE_LOCK_TTL_MS", "1000")
    save(repo, ONE, "old")
    save(repo, "gcp/vm/m-1", "gone")
    follower = Follower(bucket, **({"stateDir": str(tmp_path / "state")} if with_state else {}))
    follower.batch()
    peer(bucket).push_v2({"data/gcp/vm/m-1/gone/1/raw": None})  # drops the ETags of the shards
    with ana.open() as dying:
        dying.artifacts.save(ONE, "state", "x")
        stop_before_meta(monkeypatch, dying.sync.push)
    assert follower.batch() == []
    with bob.open() as other:
        save(other, "gcp/vm/m-2", "state")
    expected = files(ONE, "state", 1) | files("gcp/vm/m-2", "state", 1)
    assert follower.batch() == sorted(expected)


# Entries of other clients --------------------------------------------------------------------


def peer(bucket: Path) -> OldPeer:
    return OldPeer(DirectoryStore(str(bucket)))


# In the same shard as the versions of that model, and nothing that our own client would mend.
THEIRS = {f"data/{TWO}/facts/1/one": b"1", f"data/{TWO}/facts/1/two": b"2"}


def test_entries_of_other_clients_need_a_state(repo: Repo, bucket: Path) -> None:
    save(repo, ONE, "state")
    follower = Follower(bucket)
    follower.batch()
    peer(bucket).push_v2(THEIRS)
    with pytest.raises(StreamPositionError, match=f"{TWO}/facts/1/.* another client") as caught:
        follower.batch()
    assert "stateDir" in (caught.value.hint or "")


@pytest.mark.parametrize("start", ["earliest", "latest", "1"])
def test_with_a_state_entries_of_other_clients_are_delivered_once(
    repo: Repo, bucket: Path, tmp_path: Path, start: str
) -> None:
    save(repo, TWO, "state")
    peer(bucket).push_v2({f"data/{TWO}/facts/1/zero": b"before"})
    follower = Follower(bucket, stateDir=str(tmp_path / "state"), startingCommit=start)
    before = follower.batch()
    assert (f"data/{TWO}/facts/1/zero" in before) == (start == "earliest")
    peer(bucket).push_v2(THEIRS)
    follower.restart()
    assert follower.batch() == sorted(THEIRS)
    save(repo, TWO, "state")  # rewrites the same shard
    assert follower.batch() == sorted(files(TWO, "state", 2))
    peer(bucket).push_v2({f"data/{TWO}/facts/1/one": b"other"})
    follower.restart()
    assert follower.batch() == [f"data/{TWO}/facts/1/one"]


def test_a_dropped_number_is_no_commit(repo: Repo, bucket: Path, tmp_path: Path) -> None:
    save(repo, ONE, "state")
    follower = Follower(bucket, stateDir=str(tmp_path / "state"))
    follower.batch()
    client = peer(bucket)
    for name in client.read(META_KEY)["partitions"]:
        shard = client.read(shard_key(name))
        for entry in shard["entries"].values():
            entry.pop("commitSeq", None)
        client.write(shard_key(name), {"version": 1, "entries": shard["entries"]})
    client.push_v2(THEIRS)
    assert follower.batch() == sorted(THEIRS)


def test_with_a_state_a_batch_is_the_same_whatever_happened_since(
    repo: Repo, bucket: Path, tmp_path: Path
) -> None:
    follower = Follower(bucket, stateDir=str(tmp_path / "state"), startingCommit="latest")
    save(repo, ONE, "state")
    start, end = follower.offset, follower.end()
    first = follower.rows(start, end)
    save(repo, ONE, "state")
    with repo.session([ONE]):
        repo.artifacts.delete(ONE, "state", version=1)
    follower.restart()
    assert follower.rows(start, end) == first == sorted(files(ONE, "state", 1))


def test_the_state_does_not_grow(repo: Repo, bucket: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    follower = Follower(bucket, stateDir=str(state))
    for _ in range(3):
        save(repo, ONE, "state")
        follower.batch()
        shards = len(peer(bucket).read(META_KEY)["partitions"])
        assert len(list(state.iterdir())) == shards + 1


@pytest.mark.parametrize(
    ("lost", "told"),
    [("*", "does not tell what was delivered up to commit"), ("*.shard.json", "is gone")],
)
def test_a_lost_state_is_an_error(
    repo: Repo, bucket: Path, tmp_path: Path, lost: str, told: str
) -> None:
    follower = Follower(bucket, stateDir=str(tmp_path / "state"))
    save(repo, ONE, "state")
    follower.batch()
    for file in (tmp_path / "state").glob(lost):
        file.unlink()
    save(repo, ONE, "state")
    with pytest.raises(StreamPositionError, match=told):
        follower.batch()


# What cannot be followed ---------------------------------------------------------------------


def test_a_remote_of_version_1_is_refused(ana: Machine, bucket: Path) -> None:
    with ana.open() as repo:
        save(repo, ONE, "state")
    with pytest.raises(NotFollowableError, match="version 1") as caught:
        Follower(bucket).batch()
    assert "migrate-index" in "".join(caught.value.__notes__)


def test_a_directory_in_place_is_refused(tmp_path: Path) -> None:
    with init_repo(tmp_path / "place") as repo:
        repo.artifacts.save(ONE, "state", "x")
    with pytest.raises(NotFollowableError, match="in place"):
        Follower(str(tmp_path / "place"))


def test_an_emptied_remote_ends_the_stream(repo: Repo, bucket: Path) -> None:
    save(repo, ONE, "state")
    follower = Follower(bucket)
    follower.batch()
    empty(bucket)
    with pytest.raises(StreamPositionError, match="emptied"):
        follower.batch()


def empty(bucket: Path) -> None:
    for file in bucket.rglob("*"):
        if file.is_file():
            file.unlink()


def test_a_remote_that_was_filled_anew_ends_the_stream(
    bob: Machine, repo: Repo, bucket: Path
) -> None:
    save(repo, ONE, "state")
    follower = Follower(bucket)
    follower.batch()
    empty(bucket)
    assert bob("datastore", "migrate-index").status == 0
    with bob.open() as other:
        for name in ("more", "commits", "than", "before"):
            save(other, TWO, name)
    follower.restart()
    with pytest.raises(StreamPositionError, match="replaced by another one"):
        follower.batch()


def test_a_batch_that_was_begun_is_not_delivered_in_part(
    repo: Repo, bucket: Path, tmp_path: Path
) -> None:
    follower = Follower(bucket, startingCommit="latest")
    shutil.copytree(bucket, tmp_path / "backup")
    save(repo, ONE, "state")
    start, end = follower.offset, follower.end()
    shutil.rmtree(bucket)
    shutil.copytree(tmp_path / "backup", bucket)
    follower.restart()
    with pytest.raises(StreamPositionError, match="emptied"):
        follower.rows(start, end)


def test_a_damaged_shard_ends_the_stream(repo: Repo, bucket: Path) -> None:
    save(repo, ONE, "state")
    (bucket / shard_key("data--aws--ec2")).write_text("{")
    with pytest.raises(IndexDamagedError, match=r"data--aws--ec2\.json"):
        Follower(bucket).batch()


@pytest.mark.parametrize(
    ("option", "value"),
    [("startingCommit", "soon"), ("startingCommit", "99"), ("maxCommitsPerBatch", "0")],
)
def test_wrong_options_are_named(repo: Repo, bucket: Path, option: str, value: str) -> None:
    with pytest.raises(ValidationError, match=f"{option}.*{value}"):
        Follower(bucket, **{option: value})


# On a real object store ----------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["s3", "gs"])
def test_what_a_job_saves_in_a_bucket_is_followed(
    kind: str, ana: Machine, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    remote: ProxiedRemote = request.getfixturevalue("s3_remote" if kind == "s3" else "gcs_remote")
    target = f"{kind}:{json.dumps(dict(remote.config))}"
    ana.use_remote(kind, remote.config)
    assert ana("datastore", "migrate-index").status == 0
    followers = [Follower(target), Follower(target, stateDir=str(tmp_path / "state"))]
    for follower in followers:
        follower.batch()
    for version in (1, 2):
        Job(target).run([row("state", "one", ONE), row("state", "two", TWO)])
        expected = sorted(files(ONE, "state", version) | files(TWO, "state", version))
        assert [follower.batch() for follower in followers] == [expected, expected]
    remote.proxy.requests.clear()
    assert [follower.batch() for follower in followers] == [[], []]
    assert len(remote.proxy.requests) == 2
    with remote.open() as store:
        assert not list(store.list("_control/staging/"))


# On Spark ------------------------------------------------------------------------------------


class Query:
    """A stream of Spark into files, which a checkpoint makes exactly once."""

    def __init__(self, spark: SparkSession, bucket: Path, directory: Path, **options: str) -> None:
        from swampstore.pipeline import register

        register(spark)
        self._spark = spark
        self._bucket = bucket
        self._directory = directory
        self._options = options

    def run(self) -> int:
        """Deliver what there is, from where the last run ended; return the number of batches."""
        rows = self._spark.readStream.format("swampstore").options(**self._options)
        query = (
            rows.load(f"file://{self._bucket}")
            .writeStream.format("json")
            .option("checkpointLocation", str(self._directory / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(self._directory / "rows"))
        )
        query.awaitTermination()
        return len([one for one in query.recentProgress if one.numInputRows])

    def delivered(self, *columns: str) -> list[tuple[Any, ...]]:
        parts = (self._directory / "rows").glob("part-*.json")
        rows = [json.loads(line) for part in parts for line in part.read_text().splitlines()]
        return sorted(tuple(row[column] for column in columns) for row in rows)


def test_spark_delivers_every_entry_once_over_restarts(
    spark: SparkSession, repo: Repo, bucket: Path, tmp_path: Path
) -> None:
    first = save(repo, TWO, "state")
    query = Query(
        spark,
        bucket,
        tmp_path / "query",
        table="index",
        startingCommit=str(first),
        maxCommitsPerBatch="2",
        stateDir=str(tmp_path / "state"),
    )
    for name in ("a", "b", "c"):
        save(repo, ONE, name)
    assert query.run() == 2
    save(repo, ONE, "d")
    peer(bucket).push_v2(THEIRS)
    assert query.run() == 1
    expected = {*THEIRS}.union(*(files(ONE, name, 1) for name in "abcd"))
    assert query.delivered("rel") == [(rel,) for rel in sorted(expected)]


def test_spark_delivers_artifacts_as_they_are_committed(
    spark: SparkSession, repo: Repo, bucket: Path, tmp_path: Path
) -> None:
    first = save(repo, ONE, "a", "one")
    options = {"table": "artifacts", "content": "true", "startingCommit": str(first)}
    query = Query(spark, bucket, tmp_path / "query", **options)
    save(repo, ONE, "a", "two")
    save(repo, TWO, "b", "three")
    assert query.run() == 1
    assert query.delivered("data_name", "version", "content") == [
        ("a", 2, "dHdv"),
        ("b", 1, "dGhyZWU="),
    ]


def test_spark_shows_what_to_do_about_a_remote_of_version_1(
    spark: SparkSession, ana: Machine, bucket: Path, tmp_path: Path
) -> None:
    from pyspark.errors import StreamingQueryException

    with ana.open() as repo:
        save(repo, ONE, "state")
    with pytest.raises(StreamingQueryException, match="migrate-index"):
        Query(spark, bucket, tmp_path / "query", table="index").run()


def test_the_page_about_streams_is_true(
    spark: SparkSession, repo: Repo, bucket: Path, tmp_path: Path
) -> None:
    save(repo, ONE, "state")
    names = {"spark": spark}
    for block in Page(ROOT / "docs/how-to/stream-commits.md").blocks:
        if block.language == "py":
            text = block.text.replace("s3://bucket/prefix", f"file://{bucket}")
            exec(text.replace("/srv/lake", str(tmp_path / "lake")), names)
    assert spark.read.parquet(str(tmp_path / "lake/artifacts")).count() == 1
