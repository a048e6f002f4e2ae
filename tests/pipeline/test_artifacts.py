"""The table of artifacts says what the catalog says, wherever the data is."""

from __future__ import annotations

import json
import pickle
import shutil
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from swampstore import Repo
from swampstore.artifacts.metadata import decode, encode
from swampstore.catalog.schema import Row
from swampstore.clock import from_iso
from swampstore.errors import ValidationError
from swampstore.index.errors import IndexDamagedError
from swampstore.index.partitions import META_KEY
from swampstore.pipeline.places import Place, places_of
from swampstore.pipeline.source import slices as committed
from swampstore.pipeline.source import table_of
from swampstore.pipeline.source.artifacts import Artifacts
from swampstore.pipeline.source.commits import Brought
from swampstore.pipeline.source.objects import Chosen, Contents
from swampstore.pipeline.source.slices import Shards
from swampstore.stores.errors import CorruptObjectError
from swampstore.stores.protocol import Store
from swampstore.stores.wrapper import CountingStore
from tests.support.histories import History
from tests.support.members import (
    Member,
    bucket_in_a_directory,
    bucket_on_a_server,
    shared_directory,
)
from tests.support.remotes import ProxiedRemote

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MODEL = "aws/ec2/i-1"
COLUMNS = ("store", *Row._fields)


class Datastore:
    """A place with a repository that fills it."""

    def __init__(self, kind: str, directory: Path) -> None:
        self.kind = kind
        self._directory = directory
        self.namespace = "infra" if "namespace" in kind else ""
        shared = shared_directory if kind == "in place" else bucket_in_a_directory
        self.shared = shared(directory)
        self.ana = self.member("ana")
        self.is_remote = self.shared.is_remote
        if "version 2" in kind:
            with self.ana.open() as repo:
                repo.sync.push(full=True)
                repo.sync.migrate_index()

    def member(self, name: str) -> Member:
        settings: dict[str, object] = {"namespace": self.namespace} if self.namespace else {}
        return self.shared.member(name, **settings)

    @property
    def directory(self) -> Path:
        return self._directory / ("bucket" if self.is_remote else "share")

    @property
    def place(self) -> Place:
        (found,) = places_of(self.ana.repo_dir, None, self.ana.environ)
        return found

    def commit(self, repo: Repo) -> None:
        if self.is_remote:
            repo.sync.push(full=True)

    def catalog(self) -> list[tuple[Any, ...]]:
        """The rows of a catalog that is made from the very files of the place."""
        if not self.is_remote:
            return self._rebuilt(self.ana)
        copy = shared_directory(self._directory)
        shutil.copytree(self.directory, copy.directory / "share", dirs_exist_ok=True)
        mirror = copy.member("mirror", **({"namespace": "infra"} if self.namespace else {}))
        return self._rebuilt(mirror)

    def _rebuilt(self, member: Member) -> list[tuple[Any, ...]]:
        with member.open() as repo:
            repo.rebuild_catalog()
            rows = [row for rows in repo.catalog.by_name() for row in rows]
        return sorted(self._typed(row) for row in rows)

    def _typed(self, row: Row) -> tuple[Any, ...]:
        values: dict[str, Any] = row._asdict()
        values |= {name: bool(values[name]) for name in ("is_latest", "deferred", "streaming")}
        values["tags"] = list(json.loads(row.tags).items())
        values["created_at"] = from_iso(row.created_at)
        return (self.place.identity, *values.values())


KINDS = ["in place", "version 1", "version 2", "namespace"]


@pytest.fixture(params=KINDS)
def datastore(request: pytest.FixtureRequest, tmp_path: Path) -> Datastore:
    return Datastore(request.param, tmp_path)


@pytest.fixture
def bucket(tmp_path: Path) -> Datastore:
    return Datastore("version 2", tmp_path)


def read(
    table: Artifacts, place: Place, store: Store | None = None, tasks: int = 3
) -> list[tuple[Any, ...]]:
    """Do what the driver and its tasks do."""
    if store is None:
        with place.open() as opened:
            return read(table, place, opened, tasks)
    pieces = pickle.loads(pickle.dumps(list(table.plan(place, store, tasks))))
    return sorted(row for piece in pieces for row in table.rows(place, piece, store))


def save(datastore: Datastore, *contents: Any, name: str = "state", **details: Any) -> None:
    with datastore.ana.open() as repo:
        for content in contents:
            repo.artifacts.save(MODEL, name, content, **details)
        datastore.commit(repo)


def named(rows: list[tuple[Any, ...]], *columns: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row[COLUMNS.index(name)] for name in columns) for row in rows)


# The catalog's rows ------------------------------------------------------------------------


# The cheapest kind tells most stories; what the others add is where the versions are.
STORIES = [*zip(KINDS, range(4), strict=True), ("in place", 4), ("in place", 5)]


@pytest.mark.parametrize(("kind", "seed"), STORIES)
def test_every_version_has_the_row_that_the_catalog_has(
    tmp_path: Path, kind: str, seed: int
) -> None:
    datastore = Datastore(kind, tmp_path)
    with datastore.ana.open() as repo:
        history = History(repo, seed)
        history.go_on(40)
        history.defer()
        datastore.commit(repo)
        history.go_on(30)
        datastore.commit(repo)

    rows = read(Artifacts(), datastore.place)

    assert rows == datastore.catalog()
    assert len(rows) > 20
    latest = COLUMNS.index("is_latest")
    assert {row[latest] for row in rows} == {True, False}


def test_a_deferred_version_of_a_directory_in_place_is_there_and_not_latest(tmp_path: Path) -> None:
    datastore = Datastore("in place", tmp_path)
    save(datastore, "one")
    with datastore.ana.open() as repo:
        History(repo, 0).defer()

    rows = read(Artifacts(), datastore.place)

    assert named(rows, "version", "is_latest", "deferred") == [(1, True, False), (2, False, True)]


def test_a_marker_of_old_that_is_a_link_counts(tmp_path: Path) -> None:
    datastore = Datastore("in place", tmp_path)
    save(datastore, "one", "two")
    marker = datastore.directory / "data" / MODEL / "state/latest"
    marker.unlink()
    marker.symlink_to("1/")

    rows = read(Artifacts(), datastore.place)

    assert named(rows, "version", "is_latest") == [(1, True), (2, False)]
    assert rows == datastore.catalog()


def test_many_requests_at_once_find_the_same_rows(bucket: Datastore) -> None:
    with bucket.ana.open() as repo:
        History(repo, 7).go_on(60)
        bucket.commit(repo)
    far_away = replace(bucket.place, root=None)

    rows = read(Artifacts(content=True), far_away)

    assert rows == read(Artifacts(content=True), bucket.place)
    assert [row[:-1] for row in rows] == bucket.catalog()


def test_portions_of_a_large_monolith_make_up_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    datastore = Datastore("version 1", tmp_path)
    with datastore.ana.open() as repo:
        History(repo, 3).go_on(60)
        datastore.commit(repo)
    monkeypatch.setattr("swampstore.pipeline.source.slices._PORTION_BYTES", 2000)

    with datastore.place.open() as store:
        assert len(list(Artifacts().plan(datastore.place, store, 5))) == 5
    assert read(Artifacts(), datastore.place, tasks=5) == datastore.catalog()


def test_versions_that_were_uploaded_and_not_committed_have_no_row(bucket: Datastore) -> None:
    save(bucket, "one")
    version = bucket.directory / "data" / MODEL / "state"
    shutil.copytree(version / "1", version / "2")

    assert named(read(Artifacts(), bucket.place), "version") == [(1,)]


def test_a_bucket_without_an_index_is_read_by_its_objects(bucket: Datastore) -> None:
    save(bucket, "one", "two")
    expected = read(Artifacts(content=True), bucket.place)
    shutil.rmtree(bucket.directory / "_index")
    (bucket.directory / ".datastore-index.json").unlink(missing_ok=True)

    assert read(Artifacts(content=True), bucket.place) == expected
    assert len(expected) == 2


def test_a_monolith_of_old_is_not_believed_where_meta_is_lost(tmp_path: Path) -> None:
    datastore = Datastore("version 1", tmp_path)
    save(datastore, "one")
    with datastore.ana.open() as repo:
        repo.sync.migrate_index()
    save(datastore, "two")
    (datastore.directory / META_KEY).unlink()

    assert named(read(Artifacts(), datastore.place), "version") == [(1,), (2,)]


def test_a_damaged_shard_is_an_error_that_names_it(bucket: Datastore) -> None:
    save(bucket, "one")
    shard = bucket.directory / "_index/data--aws--ec2--i-1.json"
    shard.write_bytes(b"{")

    with pytest.raises(IndexDamagedError, match="data--aws--ec2--i-1"):
        read(Artifacts(), bucket.place)

    shard.unlink()
    with pytest.raises(IndexDamagedError, match=r"data--aws--ec2--i-1.*missing"):
        read(Artifacts(), bucket.place)


def test_a_shard_that_goes_while_it_is_being_read_has_no_rows(bucket: Datastore) -> None:
    save(bucket, "one")

    with bucket.place.open() as store:
        assert list(Artifacts().rows(bucket.place, Shards(("data--t--gone",)), store)) == []


def test_entries_that_cannot_be_are_left_out(bucket: Datastore) -> None:
    save(bucket, "one")
    path = bucket.directory / "_index/data--aws--ec2--i-1.json"
    shard = json.loads(path.read_bytes())
    entry = shard["entries"][f"data/{MODEL}/state/1/metadata.yaml"]
    for rel in (
        "data/aws/ec2/i-1/../2/metadata.yaml",  # leads elsewhere
        "data/aws/ec2/i-2/state/1/metadata.yaml",  # belongs into another shard
        "data/aws/ec2/i-1/gone/1/metadata.yaml",  # has no object
        "data/aws/ec2/i-1/state/x/metadata.yaml",  # is no version
    ):
        shard["entries"][rel] = entry
    shard["entries"]["data/aws/ec2/i-1/bad/1/metadata.yaml"] = {"size": "many"}
    path.write_text(json.dumps(shard))

    assert named(read(Artifacts(), bucket.place), "data_name", "version") == [("state", 1)]


def test_what_is_no_date_is_null_and_what_is_no_size_has_no_row(tmp_path: Path) -> None:
    datastore = Datastore("in place", tmp_path)
    save(datastore, "one", "two", "three")
    versions = datastore.directory / "data" / MODEL / "state"
    for number, change in (
        (1, {"created_at": "2026-13-45T25:61:61Z"}),
        (2, {"created_at": "0001-01-01T00:00:00+14:00"}),
        (3, {"size": 2**70}),
    ):
        path = versions / str(number) / "metadata.yaml"
        path.write_bytes(encode(replace(decode(path.read_bytes(), "it"), **change)))

    assert named(read(Artifacts(), datastore.place), "version", "created_at") == [
        (1, None),
        (2, None),
    ]


# Commits -----------------------------------------------------------------------------------


def test_the_rows_of_a_commit_are_those_of_the_versions_it_brought(bucket: Datastore) -> None:
    save(bucket, "one", "two", "three")
    rows = read(Artifacts(content=True), bucket.place)
    brought = [
        Brought("data--aws--ec2--i-1", f"data/{MODEL}/state/{rel}", b"")
        for rel in ("2/metadata.yaml", "2/raw", "3/raw")
    ]

    with bucket.place.open() as store:
        found = list(Artifacts(content=True).brought_rows(bucket.place, brought, store))

    assert found == [row for row in rows if row[COLUMNS.index("version")] == 2]
    assert named([row[:-1] for row in found], "is_latest") == [(False,)]


# Content -----------------------------------------------------------------------------------


def test_content_comes_from_the_remote_whatever_the_cache_holds(bucket: Datastore) -> None:
    save(bucket, b"\x00\xff", "text")
    bob = bucket.member("bob")
    with bob.open() as repo:
        repo.sync.pull(metadata_only=True)
        cached = list(Path(repo.config.base).rglob("raw"))
        (place,) = places_of(repo, environ=bob.environ)

    rows = read(Artifacts(content=True), place)

    assert [row[-1] for row in rows] == [b"\x00\xff", b"text"]
    assert cached == []


def test_content_that_is_not_what_the_index_says_is_an_error_that_names_it(
    bucket: Datastore,
) -> None:
    save(bucket, "one")
    (bucket.directory / "data" / MODEL / "state/1/raw").write_text("two")

    with pytest.raises(CorruptObjectError, match=f"data/{MODEL}/state/1/raw"):
        read(Artifacts(content=True), bucket.place)
    assert len(read(Artifacts(), bucket.place)) == 1


def test_content_that_is_long_or_gone_is_null(datastore: Datastore) -> None:
    save(datastore, "short", "much longer", "gone")
    root = datastore.directory / datastore.namespace
    (root / "data" / MODEL / "state/3/raw").unlink()

    rows = read(Artifacts(content=True, longest=10), datastore.place)

    assert [row[-1] for row in rows] == [b"short", None, None]


def test_attributes_are_the_documents(datastore: Datastore) -> None:
    from pyspark.sql.types import VariantVal

    documents = [{"a": [1, 2.5, None, {"é": True}]}, [1, "x"]]
    save(datastore, *documents)
    save(datastore, "text", name="text")

    rows = read(Artifacts(attributes=True), datastore.place)

    found = [
        row[-1] and VariantVal(row[-1]["value"], row[-1]["metadata"]).toPython() for row in rows
    ]
    assert found == [*documents, None]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "nope",
        '"\\ud800"',
        "[" * 100_000,
        '{"a": ' * 3000,
        "1" * 5000,
        '"\xff"',
        "1e999999999",
    ],
)
def test_what_cannot_be_a_document_never_fails_a_query(tmp_path: Path, text: str) -> None:
    datastore = Datastore("in place", tmp_path)
    save(datastore, text.encode("latin-1"), content_type="application/json")

    (row,) = read(Artifacts(content=True, attributes=True), datastore.place)

    assert row[-2] == text.encode("latin-1")
    assert row[-1] is None or text == "1e999999999"


def test_nothing_is_fetched_that_was_not_asked_for(bucket: Datastore) -> None:
    save(bucket, "text", {"a": 1}, "more text")
    place = bucket.place

    def gets(table: Artifacts) -> int:
        with place.open() as store:
            counting = CountingStore(store)
            read(table, place, counting)
            return counting.tally().requests["get"]

    documents = 1 + 2  # _meta.json, and the shards of versions and of markers
    described = documents + 1 + 3  # the marker, and the metadata of three versions
    assert gets(Artifacts()) == described
    assert gets(Artifacts(attributes=True)) == described + 1
    assert gets(Artifacts(content=True)) == described + 3
    assert gets(Artifacts(content=True, attributes=True)) == described + 3


def test_content_is_fetched_in_loads_that_memory_can_hold(
    bucket: Datastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committed, "_LOAD_BYTES", 10)
    monkeypatch.setattr(committed, "_LOAD", 3)

    sizes = [4, 6, 1, 11, 10, 1, 1, 1, 1]
    assert list(committed.loads(sizes, lambda size: size)) == [
        [4, 6],
        [1],
        [11],
        [10],
        [1, 1, 1],
        [1],
    ]
    save(bucket, *(f"{number}" * 4 for number in range(8)))
    rows = read(Artifacts(content=True), replace(bucket.place, root=None))
    assert [row[-1] for row in rows] == [f"{number}".encode() * 4 for number in range(8)]


@pytest.mark.parametrize(
    ("table", "option", "texts"),
    [
        ("artifacts", "maxContentBytes", ["", "-1", "many", "1.5"]),
        ("contents", "shard", ["", "2", "0/3", "4/3", "-1/3", "1/2/3", "x/y"]),
        ("contents", "sample", ["", "0", "1.5", "half", "nan"]),
    ],
)
def test_an_option_that_makes_no_sense_is_an_error_that_names_it(
    table: str, option: str, texts: list[str]
) -> None:
    for text in texts:
        with pytest.raises(ValidationError, match=f"{option} is '{text}'"):
            table_of({"table": table, option.lower(): text})


def test_slices_are_counted_from_one() -> None:
    assert table_of({"table": "contents", "shard": "3/3"}) == Contents(Chosen(2, 3))


# On a server, on Spark ---------------------------------------------------------------------


def test_a_bucket_on_a_server_has_the_rows_of_its_catalog(
    tmp_path: Path, s3_remote: ProxiedRemote
) -> None:
    shared = bucket_on_a_server(tmp_path, s3_remote)
    ana, bob = shared.member("ana"), shared.member("bob")
    with ana.open() as repo:
        for number in range(3):
            repo.artifacts.save(MODEL, "state", {"number": number})
            repo.artifacts.save("t/x", "log", f"line {number}")
        repo.sync.push()
    with bob.open() as repo:
        repo.sync.pull()
        repo.rebuild_catalog()
        known = [row[1:7] for rows in repo.catalog.by_name() for row in rows]
        (place,) = places_of(repo, environ=bob.environ)

    rows = read(Artifacts(content=True), place)

    assert [row[2:8] for row in rows] == known
    assert rows[0][-1] == b'{\n  "number": 0\n}'


@pytest.fixture
def two_namespaces(tmp_path: Path) -> Path:
    shared = bucket_in_a_directory(tmp_path)
    for name in ("infra", "web"):
        with shared.member(name, namespace=name).open() as repo:
            repo.artifacts.save(MODEL, "state", {"team": name, "load": 0.5}, tags={"env": "prod"})
            repo.artifacts.save(MODEL, "state", {"team": name, "load": 0.75}, tags={"env": "prod"})
            repo.artifacts.save("t/x", "log", "a line")
            repo.sync.push()
    return tmp_path / "bucket"


def test_spark_reads_the_table_of_several_namespaces(
    spark: SparkSession, two_namespaces: Path
) -> None:
    from pyspark.errors import PySparkException

    from swampstore.pipeline import register

    register(spark)
    frame = (
        spark.read.format("swampstore")
        .option("table", "artifacts")
        .option("namespace", "infra,web")
        .option("content", "true")
        .option("attributes", "true")
        .load(f"file://{two_namespaces}")
    )

    found = (
        frame.filter("is_latest AND tags['env'] = 'prod'")
        .selectExpr(
            "namespace",
            "version",
            "attributes:load::double",
            "attributes:team::string",
            "length(content)",
            "created_at",
        )
        .orderBy("namespace")
        .collect()
    )

    assert [tuple(row)[:4] for row in found] == [
        ("infra", 2, 0.75, "infra"),
        ("web", 2, 0.75, "web"),
    ]
    assert all(row[4] > 20 for row in found)
    age = datetime.now(UTC) - found[0][5].astimezone(UTC)
    assert timedelta(0) <= age < timedelta(minutes=10)

    (two_namespaces / "web/data" / MODEL / "state/1/raw").write_text("spoiled")
    with pytest.raises(PySparkException, match=f"web/data/{MODEL}/state/1/raw"):
        frame.collect()


def test_sql_reads_the_table_through_a_view(spark: SparkSession, two_namespaces: Path) -> None:
    from swampstore.pipeline import register

    register(spark)
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW artifacts USING swampstore OPTIONS"
        f" (path 'file://{two_namespaces}', namespace 'web', attributes 'true')"
    )

    query = "SELECT namespace, data_name, attributes:load::double FROM artifacts WHERE {}"
    latest = spark.sql(query.format("is_latest ORDER BY data_name")).collect()
    one = spark.sql(query.format("data_name = 'state' AND version = 1")).collect()
    everything = spark.sql("SELECT count(*) FROM artifacts").collect()

    assert [tuple(row) for row in latest] == [("web", "log", None), ("web", "state", 0.75)]
    assert [tuple(row) for row in one] == [("web", "state", 0.5)]
    assert [tuple(row) for row in everything] == [(3,)]
