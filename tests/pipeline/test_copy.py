"""Copying between stores: nothing wrong arrives, nothing is overwritten, nothing dangles."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from swampstore.cli.errors import run as cli_run
from swampstore.marker import update_marker
from swampstore.namespaces.manifests import Registry
from swampstore.pipeline.copy import comparison
from swampstore.pipeline.copy.comparison import SAME, Content, is_same
from swampstore.pipeline.copy.outcomes import (
    CONFLICT,
    CORRUPT,
    HELD_BACK,
)
from swampstore.pipeline.places import places_of
from swampstore.stores import probe
from swampstore.stores.directory import DirectoryStore
from tests.support import sync_harness
from tests.support.copying import (
    MODEL,
    Bucket,
    payload,
    save,
)
from tests.support.machines import Machine
from tests.support.remotes import ProxiedRemote
from tests.support.sync_harness import assert_sound, remote_index

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from swampstore.pipeline.copy import Copied


@pytest.fixture
def source(tmp_path: Path) -> Bucket:
    return Bucket(tmp_path / "source")


@pytest.fixture
def target(tmp_path: Path) -> Bucket:
    return Bucket(tmp_path / "target")


def run(spark: SparkSession | None, source: str, target: str, **options: Any) -> Copied:
    from swampstore.pipeline.copy import copy

    return copy(spark, places_of(source), target, **options)


def address(remote: ProxiedRemote, kind: str) -> str:
    return f"{kind}:{json.dumps(dict(remote.config))}"


def content_requests(remote: ProxiedRemote) -> list[tuple[str, str]]:
    """Return which content was asked for, and whatever was written.

    Nobody waits for the last who race when a store is probed: they may come at any time.
    """
    reading = ("GET", "HEAD")
    return [
        (one.kind, one.key)
        for one in remote.proxy.requests
        if not one.key.startswith(f"{probe.PREFIX}/")
        if one.kind not in (*reading, "LIST")
        or (one.kind in reading and one.key.startswith(f"{MODEL}/"))
    ]


@pytest.mark.parametrize("engine", ["spark", "local"])
def test_a_datastore_goes_from_gcs_to_s3_and_the_second_time_nothing_is_read(
    request: pytest.FixtureRequest,
    gcs_remote: ProxiedRemote,
    s3_remote: ProxiedRemote,
    tmp_path: Path,
    engine: str,
) -> None:
    spark = request.getfixturevalue("spark") if engine == "spark" else None
    with sync_harness.Machine(tmp_path / "cache", gcs_remote.open()) as machine:
        for version in (1, 2):
            save(machine, "state", version, b"content %d" % version)
        save(machine, "large", 1, b"0123456789abcdef" * (5 << 16))
        machine.push()
        source, target = address(gcs_remote, "gs"), address(s3_remote, "s3")
        first = run(spark, source, target)
        assert (first.objects, first.present, first.is_complete) == (8, 0, True)
        there = s3_remote.open()
        assert payload(there) == payload(gcs_remote.open())
        assert_sound(there)

        gcs_remote.proxy.reset()
        s3_remote.proxy.reset()
        second = run(spark, source, target)
        assert (second.objects, second.present, second.commits) == (0, 8, 0)
        assert content_requests(gcs_remote) == []
        assert content_requests(s3_remote) == []

        save(machine, "state", 3, b"content 3")
        machine.push()
    gcs_remote.proxy.reset()
    third = run(spark, source, target)
    assert (third.objects, third.present) == (3, 7)
    read = {key for kind, key in content_requests(gcs_remote) if kind == "GET"}
    base = f"{MODEL}/state"
    assert read == {f"{base}/3/raw", f"{base}/3/metadata.yaml", f"{base}/latest"}
    assert payload(there) == payload(gcs_remote.open())
    assert_sound(there)


def test_a_repository_used_in_place_goes_to_a_bucket_that_another_one_can_read(
    spark: SparkSession,
    ana: Machine,
    bob: Machine,
    bucket: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    update_marker(str(ana.repo_dir), {"datastore": None})
    for content in ("one", "two"):
        ana.put("aws/ec2/i-1", "state", content)
    ana.put("aws/ec2/i-1", "unchanged", "same size")
    data = ana.repo_dir / ".swamp/data/aws/ec2/i-1"
    (data / "state/3").mkdir()
    (data / "state/3/raw").write_bytes(b"not finished")
    (ana.repo_dir / ".swamp/secrets").mkdir(exist_ok=True)
    (ana.repo_dir / ".swamp/secrets/key").write_bytes(b"secret")
    long_ago = time.time() - 3600
    for path in data.rglob("*"):
        os.utime(path, (long_ago, long_ago))
    # It comes to the driver in pages, and goes over in parts.
    monkeypatch.setattr(comparison, "_PAGE", 2)
    monkeypatch.setattr(comparison, "_PART_OBJECTS", 3)
    copied = run(spark, str(ana.repo_dir), f"file://{bucket}")
    assert (copied.objects, copied.is_complete) == (8, True)
    assert_sound(DirectoryStore(str(bucket)))
    assert not (bucket / "secrets").exists()
    assert not (bucket / "data/aws/ec2/i-1/state/3").exists()
    assert bob("sync").status == 0
    assert bob.get("aws/ec2/i-1", "state") == "two"
    assert bob.get("aws/ec2/i-1", "state", "--version", "1") == "one"

    # Whoever reads it again would notice.
    unread = data / "unchanged/1/raw"
    unread.write_bytes(b"SAME SIZE")
    os.utime(unread, (long_ago, long_ago))
    again = run(spark, str(ana.repo_dir), f"file://{bucket}")
    assert (again.objects, again.present, again.is_complete) == (0, 8, True)


def test_the_command_tells_what_it_does_not_copy(
    spark: SparkSession, source: Bucket, target: Bucket, tmp_path: Path
) -> None:
    source.save("state", 1, b"one")
    source.save("other", 1, b"other")
    source.damage(f"{MODEL}/state/1/raw", b"oNe")
    target.write("files/notes", b"theirs")
    source.write("files/notes", b"ours")
    plan = run(spark, source.url, target.url, dry_run=True)
    assert (plan.objects, [one.kind for one in plan.findings]) == (6, [CONFLICT])

    findings = tmp_path / "found.json"
    assert command_line("--findings", str(findings), source.url, target.url) == 1
    told = [json.loads(line) for line in findings.read_text().splitlines()]
    assert {one["rel"]: (one["kind"], one["severity"]) for one in told} == {
        "files/notes": (CONFLICT, "error"),
        f"{MODEL}/state/1/raw": (CORRUPT, "error"),
        f"{MODEL}/state/1/metadata.yaml": (HELD_BACK, "warning"),
        f"{MODEL}/state/latest": (HELD_BACK, "warning"),
    }
    there = {rel: data for rel, data in payload(source.store).items() if "/other/" in rel}
    assert payload(target.store) == there | {"files/notes": b"theirs"}
    assert_sound(target.store)


def command_line(*args: str) -> int:
    """Run the command with the session that is there, and leave that alone."""
    from swampstore.cli.pipeline.copy import copy

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("swampstore.pipeline.spark.session.stop", lambda _: None)
        return cli_run(copy, args)


@pytest.mark.parametrize("engine", ["spark", "local"])
def test_all_namespaces_go_at_once(
    request: pytest.FixtureRequest, tmp_path: Path, target: Bucket, engine: str
) -> None:
    spark = request.getfixturevalue("spark") if engine == "spark" else None
    contents = {"infra": b"of infra", "web": b"of web"}
    url = f"file://{tmp_path}/source"
    for slug, content in contents.items():
        bucket = Bucket(tmp_path / "source", slug)
        Registry(bucket.store).register(slug, f"repo-{slug}", "2026-01-01T00:00:00.000Z")
        bucket.save("state", 1, content)
        with bucket.pushing() as machine:
            machine.service.migrate_index()
    copied = run(spark, url, target.url)
    assert (copied.objects, copied.namespaces) == (6, (("infra", "infra"), ("web", "web")))
    for slug, content in contents.items():
        assert payload(target.store, slug)[f"{MODEL}/state/1/raw"] == content
        assert_sound(target.store, slug)
        assert remote_index(target.store, slug).version == 2
    owners = {one.namespace: one.repo_id for one in Registry(target.store).list()}
    assert owners == {"infra": "repo-infra", "web": "repo-web"}


@pytest.mark.parametrize("engine", ["spark", "local"])
def test_a_version_of_which_the_index_tells_only_half_stays_behind(
    request: pytest.FixtureRequest, source: Bucket, target: Bucket, engine: str
) -> None:
    source.save("state", 1, b"one")
    copied = run(None, source.url, target.url)
    assert copied.is_complete
    source.save("state", 2, b"two")
    monolith = source.directory / sync_harness.MONOLITH
    said = json.loads(monolith.read_bytes())
    said["entries"][f"{MODEL}/state/2/raw"]["size"] = -1
    damaged, whole = json.dumps(said), monolith.read_bytes()

    monolith.write_text(damaged)
    spark = request.getfixturevalue("spark") if engine == "spark" else None
    copied = run(spark, source.url, target.url)
    held = {one.rel for one in copied.findings if one.kind == HELD_BACK}
    assert held == {f"{MODEL}/state/2/metadata.yaml", f"{MODEL}/state/latest"}
    assert {*target.entries} == {
        f"{MODEL}/state/{rel}" for rel in ("1/raw", "1/metadata.yaml", "latest")
    }
    assert payload(target.store)[f"{MODEL}/state/latest"] == b"1"

    monolith.write_bytes(whole)
    assert run(spark, source.url, target.url).is_complete
    assert payload(target.store) == payload(source.store)


def test_spark_and_this_process_agree_on_what_is_the_same_content() -> None:
    contents = [
        Content(size, sha256, modified)
        for size in (None, 1, 2)
        for sha256 in (None, "a", "b")
        for modified in ("t", "u")
    ]
    db = sqlite3.connect(":memory:")
    names = "size, sha256, last_modified, there_size, there_sha256, there_modified"
    rule = f"SELECT {SAME} FROM (SELECT {', '.join(f'? AS {name}' for name in names.split(', '))})"
    for one in contents:
        if one.size is None:
            continue  # a damaged entry is in neither list
        for there in (None, *contents):
            told = db.execute(rule, (*one, *(there or (None, None, None)))).fetchone()[0]
            assert is_same(one, there) is bool(told), (one, there)
