"""The table of artifacts for other engines: merged by key, valid at any time, and cheap."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import uuid
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from msgspec.structs import replace

from swampstore.errors import NewerFormatError, ValidationError
from swampstore.pipeline import export as exporting
from swampstore.pipeline.errors import ExportFailedError
from swampstore.pipeline.export import Exported, Format, change_log, export
from swampstore.pipeline.export import rows as exported_rows
from swampstore.pipeline.export.delta import DeltaTarget
from swampstore.pipeline.export.parquet import LOCK, STATE
from swampstore.pipeline.export.rows import CHANGE, CHANGES, SCHEMA
from swampstore.pipeline.index_writer import committer
from swampstore.pipeline.places import places_of
from swampstore.pipeline.source.artifacts import Artifacts
from swampstore.retention.model_deletion import delete_model
from swampstore.stores import store_config
from swampstore.stores.errors import StorePermissionError
from tests.pipeline.test_snapshots import COLUMNS, MODELS, NAMES, VERSIONS, Bucket
from tests.support.command_line import CommandLine
from tests.support.histories import History
from tests.support.members import shared_directory
from tests.support.remotes import BUCKET
from tests.support.servers import S3_KEY, S3Server

deltalake = pytest.importorskip("deltalake")
ALL = MODELS * NAMES * VERSIONS


class Lake:
    """A table, and the bucket that it is of."""

    def __init__(self, bucket: Bucket, output: Path, form: Format) -> None:
        self.bucket = bucket
        self.output = output
        self.form: Format = form

    def export(self, **options: Any) -> Exported:
        places = [self.bucket.place]
        return export(places, str(self.output), form=self.form, engine="local", **options)

    def files(self) -> dict[str, tuple[int, int]]:
        """Every file of the table with its inode and time: one that is written has others."""
        found = (path for path in self.output.rglob("*") if path.is_file())
        return {
            str(path.relative_to(self.output)): (path.stat().st_ino, path.stat().st_mtime_ns)
            for path in found
            if LOCK not in path.name and ".swampstore-locks" not in path.parts
        }

    def rows(self) -> list[tuple[Any, ...]]:
        """What another engine finds there."""
        columns = [self.column(name) for name in COLUMNS]
        return sorted(zip(*columns, strict=True), key=repr)

    def column(self, name: str) -> list[Any]:
        """What another engine finds in a column."""
        if self.form == "delta":
            table = deltalake.DeltaTable(str(self.output)).to_pyarrow_table()
        else:
            table = ds.dataset(
                self.output, SCHEMA, format="parquet", partitioning="hive"
            ).to_table()
        found: list[Any] = table.select(SCHEMA.names).cast(SCHEMA, safe=False)[name].to_pylist()
        return found

    def check(self) -> None:
        """Make sure that it has the rows that the bucket has, each once."""
        table, place = Artifacts(snapshot=False), self.bucket.place
        with place.open() as store:
            pieces = list(table.plan(place, store, 4))
            rows = [row for piece in pieces for row in table.rows(place, piece, store)]
        expected = [(row[0], row[1] or None, *row[2:]) for row in rows]
        assert self.rows() == sorted(expected, key=repr)


@pytest.fixture(params=["delta", "parquet"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    bucket = Bucket(tmp_path, 2, "infra")
    bucket.fill()
    return Lake(bucket, tmp_path / "lake", request.param)


def test_runs_add_what_they_changed_to_a_history_and_rows_tell_who_wrote_them(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "history"

    def run(number: int) -> Exported:
        for module in (exporting, exported_rows, change_log):
            monkeypatch.setattr(module, "run_id", lambda: f"run {number}")
        return lake.export(changes=str(kept))

    first = run(1)
    run(2)  # of which nothing is told, for it changed nothing
    lake.bucket.save("aws/ec2/i-1", "n0")
    with lake.bucket.ana.open() as repo:
        delete_model(repo, "aws/ec2/i-2")
    lake.export(changes=str(kept), dry_run=True)
    run(3)

    table = ds.dataset(kept, CHANGES, format="parquet").to_table()
    told = Counter(zip(table["run_id"].to_pylist(), table[CHANGE].to_pylist(), strict=True))
    assert told == {
        ("run 1", "insert"): ALL,
        ("run 3", "insert"): 1,
        ("run 3", "update"): 1,
        ("run 3", "delete"): NAMES * VERSIONS,
    }
    assert Counter(lake.column("run_id")) == {"run 1": ALL - NAMES * VERSIONS - 1, "run 3": 2}
    assert (first.run_id, first.metrics.requests["list"] > 0) == ("run 1", True)
    assert first.to_json()["metrics"]["bytesReceived"] > 0
    lake.check()


def test_a_delta_table_that_was_made_before_runs_had_a_column_gets_one(tmp_path: Path) -> None:
    lake = Lake(Bucket(tmp_path), tmp_path / "lake", "delta")
    lake.bucket.fill()
    lake.export()
    older = deltalake.DeltaTable(str(lake.output)).to_pyarrow_table().drop_columns(["run_id"])
    shutil.rmtree(lake.output)
    deltalake.write_deltalake(str(lake.output), older, partition_by=["namespace", "created_on"])
    lake.bucket.save("aws/ec2/i-1", "n0")

    done = lake.export()

    assert (done.inserted, done.updated, done.deleted) == (1, 1, 0)
    assert Counter(lake.column("run_id")) == {None: ALL - 1, done.run_id: 2}
    lake.check()


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("form", ["delta", "parquet"])
def test_whatever_happens_an_export_makes_the_table_what_the_bucket_is(
    tmp_path: Path, form: Format, version: int
) -> None:
    lake = Lake(Bucket(tmp_path, version), tmp_path / "lake", form)
    with lake.bucket.ana.open() as repo:
        history = History(repo, seed=version)
        for steps in (30, 12, 1, 20):
            history.go_on(steps)
            repo.sync.push()
            lake.export()
            lake.check()


def test_an_export_tells_what_it_did_and_writes_only_that(lake: Lake) -> None:
    first = lake.export()
    assert (first.inserted, first.updated, first.deleted) == (ALL, 0, 0)
    assert first.rows == {"infra": ALL}
    before = lake.files()

    again = lake.export()

    assert (again.inserted, again.updated, again.deleted) == (0, 0, 0)
    assert lake.files() == before

    lake.bucket.save("aws/ec2/i-1", "n0")
    with lake.bucket.ana.open() as repo:
        delete_model(repo, "aws/ec2/i-2")
    dry = lake.export(dry_run=True)
    assert lake.files() == before
    done = lake.export()

    # The version before is not the latest one any more.
    assert (done.inserted, done.updated, done.deleted) == (1, 1, NAMES * VERSIONS)
    assert (dry.inserted, dry.updated, dry.deleted) == (1, 1, NAMES * VERSIONS)
    assert done.rows == {"infra": ALL + 1 - NAMES * VERSIONS}
    lake.check()


def test_only_the_days_that_changed_are_written(lake: Lake) -> None:
    today = datetime.now(UTC).date()
    lake.export()
    # A repair gives a version the date that it should have had.
    rel = "data/aws/ec2/i-3/n0/1/metadata.yaml"
    path = lake.bucket.directory / rel
    data = re.sub(rb"createdAt: .*", b"createdAt: '2026-05-14T08:00:00.000Z'", path.read_bytes())
    path.write_bytes(data)
    with committer(lake.bucket.place) as writer:
        entry = writer.entries()[rel]
        sha256 = hashlib.sha256(data).hexdigest()
        writer.commit({rel: replace(entry, size=len(data), sha256=sha256)})
    done = lake.export()
    assert (done.inserted, done.updated, done.deleted) == (0, 1, 0)
    lake.check()
    old = "namespace=infra/created_on=2026-05-14"
    days = {str(Path(name).parent) for name in lake.files() if name.endswith(".parquet")}
    assert days == {old, f"namespace=infra/created_on={today}"}
    before = lake.files()

    lake.bucket.save("aws/ec2/i-1", "n0")
    lake.export()

    after = lake.files()
    written = {str(Path(name).parent) for name in after if after[name] != before.get(name)}
    assert old not in written
    assert f"namespace=infra/created_on={today}" in written
    lake.check()


def test_what_snapshots_do_not_tell_is_compared_with_the_table(lake: Lake) -> None:
    lake.export()
    for seconds in (0, 0):
        lake.bucket.save("aws/ec2/i-1", "n0")
        lake.bucket.refresh(retention=timedelta(seconds))  # what the table stands for is forgotten
    done = lake.export()
    assert (done.inserted, done.updated, done.deleted) == (2, 1, 0)
    lake.check()
    before = lake.files()
    lake.export()
    assert lake.files() == before


def test_a_delta_table_that_somebody_emptied_has_all_rows_again_and_none_that_are_gone(
    tmp_path: Path,
) -> None:
    bucket = Bucket(tmp_path, 2, "infra")
    bucket.fill()
    lake = Lake(bucket, tmp_path / "lake", "delta")
    lake.export()
    deltalake.DeltaTable(str(lake.output)).delete()
    with bucket.ana.open() as repo:
        delete_model(repo, "aws/ec2/i-2")
    bucket.save("aws/ec2/i-1", "n0")
    lake.export()
    lake.check()


def test_rows_that_no_snapshot_can_vouch_for_are_exported_too(lake: Lake) -> None:
    forget_hashes(lake.bucket, "i-1")
    lake.export()
    lake.check()
    before = lake.files()
    assert lake.export().updated == 0
    assert lake.files() == before
    lake.bucket.save("aws/ec2/i-1", "n0")
    forget_hashes(lake.bucket, "i-1")
    done = lake.export()
    assert (done.inserted, done.updated) == (1, 1)
    lake.check()


def forget_hashes(bucket: Bucket, model: str) -> None:
    """Write a shard as clients do that know no hashes."""
    shard = bucket.directory / f"_index/data--aws--ec2--{model}.json"
    document = json.loads(shard.read_bytes())
    for entry in document["entries"].values():
        entry.pop("sha256", None)
    shard.write_text(json.dumps(document))


def test_who_may_only_read_the_bucket_exports_without_a_snapshot(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any, **__: Any) -> None:
        raise StorePermissionError("not below _control/", hint="Ask for it.")

    monkeypatch.setattr("swampstore.pipeline.export.refresh", refused)
    lake.export()
    lake.check()
    before = lake.files()
    lake.export()
    assert lake.files() == before
    lake.bucket.save("aws/ec2/i-1", "n0")
    assert lake.export().inserted == 1
    lake.check()


@pytest.mark.parametrize("form", ["delta", "parquet"])
def test_directories_in_place_and_several_places_share_a_table(
    tmp_path: Path, form: Format
) -> None:
    output = str(tmp_path / "lake")
    every = []
    for name in ("ana", "bob"):
        (tmp_path / name).mkdir()
        member = shared_directory(tmp_path / name).member(name)
        member.save("x")
        every += places_of(member.repo_dir, None, member.environ)
    assert export(every[:1], output, form=form).inserted == 1
    done = export(every[1:], output, form=form)
    assert (done.inserted, done.rows) == (1, {"": 2})
    again = export(every, output, form=form)
    assert (again.inserted, again.updated, again.deleted) == (0, 0, 0)


# Kills and others ---------------------------------------------------------------------------

KILLED = """
import os, signal, sys
from swampstore.pipeline.export import export
from swampstore.pipeline.places import places_of
from swampstore.stores.directory import DirectoryStore
target, output, form, left = sys.argv[1:]
left = int(left)
put, link = DirectoryStore.put, os.link
def die(*_):
    global left
    left -= 1
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)
def counted(self, key, body):
    if output in self.identity:
        die()
    return put(self, key, body)
DirectoryStore.put = counted
export(places_of(target), output, form=form, engine="local")
"""


@pytest.mark.slow
@pytest.mark.parametrize("puts", [1, 2])
def test_a_killed_export_leaves_a_table_whose_rows_are_old_or_new(
    tmp_path: Path, puts: int
) -> None:
    bucket = Bucket(tmp_path)
    bucket.fill()
    lake = Lake(bucket, tmp_path / "lake", "parquet")
    lake.export()
    was = set(map(repr, lake.rows()))
    bucket.save("aws/ec2/i-1", "n0")
    command = [sys.executable, "-c", KILLED, bucket.url, str(lake.output), "parquet", str(puts)]
    done = subprocess.run(command, capture_output=True, check=False, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    found = [repr(row) for row in lake.rows()]
    assert len(found) == len(set(found)) in (ALL, ALL + 1)
    assert len(set(found) - was) in (0, 2)
    # What it wrote is undone by others before anybody goes on.
    with bucket.ana.open() as repo:
        delete_model(repo, "aws/ec2/i-1")
    (lake.output / LOCK).unlink()  # or a minute later
    lake.export()
    lake.check()


def test_of_two_exports_to_a_delta_table_one_is_refused(tmp_path: Path) -> None:
    bucket = Bucket(tmp_path)
    bucket.fill()
    lake = Lake(bucket, tmp_path / "lake", "delta")
    lake.export()
    bucket.save("aws/ec2/i-1", "n0")
    stop: list[int] = []
    apply = DeltaTarget.apply

    def somebody_was_faster(self: DeltaTarget, *args: Any) -> None:
        if not stop:
            stop.append(1)
            lake.export()
        apply(self, *args)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(DeltaTarget, "apply", somebody_was_faster)
        with pytest.raises(ExportFailedError, match="not written"):
            lake.export()
    lake.check()
    assert lake.export().inserted == 0


def test_a_failed_delta_commit_leaves_the_table_as_it_was(tmp_path: Path) -> None:
    bucket = Bucket(tmp_path)
    bucket.fill()
    lake = Lake(bucket, tmp_path / "lake", "delta")
    lake.export()
    was = lake.rows()
    bucket.save("aws/ec2/i-1", "n0")
    log = lake.output / "_delta_log"
    log.chmod(0o500) if os.getuid() else (log / "00000000000000000001.json").mkdir()
    with pytest.raises(ExportFailedError):
        lake.export()
    if os.getuid():
        log.chmod(0o700)
    else:
        (log / "00000000000000000001.json").rmdir()
    assert lake.rows() == was
    lake.export()
    lake.check()


def test_what_is_something_else_is_not_touched(lake: Lake) -> None:
    lake.output.mkdir()
    foreign = lake.output / "part-0.parquet"
    foreign.write_bytes(b"PAR1")
    if lake.form == "delta":
        foreign.unlink()
        deltalake.write_deltalake(str(lake.output), pa.table({"a": [1]}))
    with pytest.raises(ValidationError, match=r"something else|no exported table"):
        lake.export()
    if lake.form == "parquet":
        foreign.unlink()
        (lake.output / STATE).write_text('{"version": 2}')
        with pytest.raises(NewerFormatError):
            lake.export()
    with pytest.raises(ValidationError, match="directories and to buckets"):
        export([lake.bucket.place], "memory://lake", form="delta")


# Elsewhere ----------------------------------------------------------------------------------


@pytest.mark.server
@pytest.mark.parametrize("form", ["delta", "parquet"])
def test_a_table_may_be_in_a_bucket(s3_server: S3Server, tmp_path: Path, form: Format) -> None:
    bucket = Bucket(tmp_path)
    bucket.fill()
    # Without the proxy of other tests, which is in this process: `deltalake` lets no thread run.
    config = {"bucket": BUCKET, "prefix": f"{uuid.uuid4()}", "endpoint": s3_server.url, **S3_KEY}
    output = f"s3:{json.dumps(config)}"
    assert export([bucket.place], output, form=form).inserted == ALL
    bucket.save("aws/ec2/i-1", "n0")
    assert export([bucket.place], output, form=form).updated == 1
    with store_config("s3", config, environ={}).open() as store:
        before = sorted(info for info in store.list() if info.key != LOCK)
        assert export([bucket.place], output, form=form).rows == {"": ALL + 1}
        assert sorted(info for info in store.list() if info.key != LOCK) == before


def test_the_command_exports_and_says_what_it_did(
    lake: Lake, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    command_line = CommandLine(lake.bucket.ana.repo_dir, capsysbinary, monkeypatch)
    arguments = ["pipeline", "catalog", lake.bucket.url, "--output", str(lake.output)]
    arguments += ["--namespace", "infra", "--format", lake.form]
    told = command_line(*arguments, "--json").json["export"]
    assert (told["format"], told["inserted"], told["rows"]) == (lake.form, ALL, {"infra": ALL})
    assert "Nothing changed" in command_line(*arguments).out
    lake.bucket.save("aws/ec2/i-1", "n0")
    assert "Would write" in command_line(*arguments, "--dry-run").out
    assert f"1 inserted, 1 updated; it has {ALL + 1} versions" in command_line(*arguments).out


def test_polars_and_duckdb_read_both_kinds(lake: Lake) -> None:
    lake.export()
    if lake.form == "delta":
        frame = pl.read_delta(str(lake.output))
        dataset = deltalake.DeltaTable(str(lake.output)).to_pyarrow_dataset()
        [[counted]] = duckdb.sql("SELECT count(*) FROM dataset WHERE is_latest").fetchall()
        del dataset
    else:
        files = f"{lake.output}/**/*.parquet"
        frame = pl.read_parquet(files, hive_partitioning=True)
        query = f"SELECT count(*) FROM read_parquet('{files}', hive_partitioning = true)"
        [[counted]] = duckdb.sql(f"{query} WHERE is_latest AND namespace = 'infra'").fetchall()
    assert frame.filter(pl.col("is_latest")).height == counted == MODELS * NAMES
