"""Copying between stores: nothing wrong arrives, nothing is overwritten, nothing dangles."""

from __future__ import annotations

import json
import os
import re
import time
from io import BufferedRandom
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swampstore import open_repo
from swampstore.cli.running import run as cli_run
from swampstore.config import update_marker
from swampstore.errors import NamespaceTakenError, ValidationError
from swampstore.namespaces.manifests import Registry
from swampstore.pipeline.copying import comparison
from swampstore.pipeline.copying.commits import Commits
from swampstore.pipeline.copying.comparison import MARKER_FILE, VERSION_FILE
from swampstore.pipeline.copying.ends import (
    Border,
    Ends,
    check_namespace,
    check_source,
    claim_namespace,
    ends_of,
)
from swampstore.pipeline.copying.objects import ObjectCopier
from swampstore.pipeline.copying.outcomes import (
    CHANGED,
    CONFLICT,
    CORRUPT,
    HELD_BACK,
    MISSING,
    NOT_KEPT,
    OVERTAKEN,
    Left,
    Placed,
    Refused,
    Wanted,
)
from swampstore.pipeline.editing import committer
from swampstore.pipeline.places import places_of
from swampstore.stores.directory import DirectoryStore
from swampstore.sync.errors import IndexDamagedError
from swampstore.sync.shapes import unit_of
from tests import sync_harness
from tests.copying import (
    MODEL,
    Bucket,
    copy_and_commit,
    copy_here,
    fill,
    lacking,
    payload,
    refused,
    save,
)
from tests.machines import Machine
from tests.remotes import ProxiedRemote
from tests.spark_testing import Driver
from tests.sync_harness import assert_sound, remote_index

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from swampstore.pipeline.copying import Copied


@pytest.fixture
def source(tmp_path: Path) -> Bucket:
    return Bucket(tmp_path / "source")


@pytest.fixture
def target(tmp_path: Path) -> Bucket:
    return Bucket(tmp_path / "target")


# One task, without Spark ---------------------------------------------------------------------


def test_everything_that_an_index_tells_arrives_byte_by_byte(
    source: Bucket, target: Bucket
) -> None:
    fill(source)
    assert refused(copy_and_commit(source, target)) == {}
    assert payload(target.store) == payload(source.store)
    assert_sound(target.store)


def test_an_entry_keeps_its_times_and_members_that_nobody_here_knows(
    source: Bucket, target: Bucket
) -> None:
    source.save("state", 1, b"x")
    monolith = json.loads(source.path(".datastore-index.json").read_bytes())
    monolith["entries"][f"{MODEL}/state/1/raw"]["colour"] = "green"
    source.damage(".datastore-index.json", json.dumps(monolith).encode())
    copy_and_commit(source, target)
    ours, theirs = source.entries[f"{MODEL}/state/1/raw"], target.entries[f"{MODEL}/state/1/raw"]
    assert {name: theirs[name] for name in ours} == ours
    assert theirs["colour"] == "green"


def test_nothing_is_visible_before_it_is_committed(source: Bucket, target: Bucket) -> None:
    source.save("state", 1, b"x")
    with committer(target.place) as editor:
        Commits(editor).begin(source.place)
    copy_here(source, target)
    assert payload(target.store) == payload(source.store)
    assert target.entries == {}
    with target.pushing() as machine:
        machine.pull()
        assert machine.files() == {}


def test_a_new_target_gets_the_kind_of_index_that_the_source_has(
    source: Bucket, target: Bucket
) -> None:
    source.save("state", 1, b"x")
    with source.pushing() as machine:
        machine.service.migrate_index()
    copy_and_commit(source, target)
    assert remote_index(target.store).version == 2
    assert_sound(target.store)


def test_a_task_that_is_done_again_meets_its_own_objects(source: Bucket, target: Bucket) -> None:
    fill(source)
    first = copy_here(source, target)
    second = copy_here(source, target)
    assert refused(second) == {}
    assert {one.wanted.rel for one in first} == {one.wanted.rel for one in second}
    assert all(isinstance(one, Placed) for one in second)


@pytest.mark.parametrize("size", [10, 5 << 20], ids=["small", "large"])
def test_other_content_at_the_target_is_never_overwritten(
    source: Bucket, target: Bucket, size: int
) -> None:
    source.save("state", 1, b"o" * size)
    target.save("state", 1, b"t" * size)
    before = payload(target.store)
    found = refused(copy_here(source, target))
    assert found[f"{MODEL}/state/1/raw"] == CONFLICT
    assert payload(target.store) == before


@pytest.mark.parametrize("size", [10, 5 << 20], ids=["small", "large"])
def test_an_object_that_no_index_names_is_not_overwritten_either(
    source: Bucket, target: Bucket, size: int
) -> None:
    source.save("state", 1, b"o" * size)
    raw = f"{MODEL}/state/1/raw"
    target.store.put(raw, b"t" * size)
    found = refused(copy_here(source, target))
    assert found == {
        raw: CONFLICT,
        f"{MODEL}/state/1/metadata.yaml": HELD_BACK,
        f"{MODEL}/state/latest": HELD_BACK,
    }
    assert payload(target.store) == {raw: b"t" * size}


def test_a_corrupt_object_keeps_its_version_and_the_marker_back_and_nothing_else(
    source: Bucket, target: Bucket
) -> None:
    source.save("state", 1, b"one")
    source.save("state", 2, b"two")
    source.save("other", 1, b"other")
    source.damage(f"{MODEL}/state/2/raw", b"twO")
    assert refused(copy_and_commit(source, target)) == {
        f"{MODEL}/state/2/raw": CORRUPT,
        f"{MODEL}/state/2/metadata.yaml": HELD_BACK,
        f"{MODEL}/state/latest": HELD_BACK,
    }
    assert_sound(target.store)
    assert sorted(target.entries) == [
        f"{MODEL}/other/1/metadata.yaml",
        f"{MODEL}/other/1/raw",
        f"{MODEL}/other/latest",
        f"{MODEL}/state/1/metadata.yaml",
        f"{MODEL}/state/1/raw",
    ]


def test_an_object_of_another_size_is_corrupt_and_one_that_is_gone_is_missing(
    source: Bucket, target: Bucket
) -> None:
    source.write("files/a", b"abc")
    source.write("files/b", b"abc")
    source.damage("files/a", b"a lot more than was announced")
    source.path("files/b").unlink()
    assert refused(copy_here(source, target)) == {"files/a": CORRUPT, "files/b": MISSING}
    assert payload(target.store) == {}


def test_the_higher_latest_stands(source: Bucket, target: Bucket) -> None:
    latest = f"{MODEL}/state/latest"
    source.save("state", 1, b"one")
    copy_and_commit(source, target)
    source.save("state", 2, b"two")
    copy_and_commit(source, target)
    assert target.store.get(latest).data == b"2"
    with target.pushing() as machine:
        machine.pull()
        save(machine, "state", 3, b"three")
    outcomes = copy_and_commit(source, target)
    assert [one.wanted.rel for one in outcomes] == [latest]
    assert isinstance(outcomes[0], Left)
    assert target.store.get(latest).data == b"3"
    assert_sound(target.store)


def test_a_marker_of_a_version_that_is_nowhere_stays_behind(source: Bucket, target: Bucket) -> None:
    source.save("state", 1, b"one")
    source.write(f"{MODEL}/state/latest", b"7")
    source.write(f"{MODEL}/strange/latest", b"the newest")
    assert refused(copy_here(source, target)) == {
        f"{MODEL}/state/latest": HELD_BACK,
        f"{MODEL}/strange/latest": HELD_BACK,
    }


def test_what_was_copied_from_this_source_follows_its_changes(
    source: Bucket, target: Bucket
) -> None:
    source.write("workflow-runs/deploy/1.yaml", b"status: running\n")
    copy_and_commit(source, target)
    source.write("workflow-runs/deploy/1.yaml", b"status: succeeded\n")
    assert refused(copy_and_commit(source, target)) == {}
    assert target.store.get("workflow-runs/deploy/1.yaml").data == b"status: succeeded\n"
    assert_sound(target.store)


def test_what_was_changed_at_the_target_after_it_was_copied_is_a_conflict(
    source: Bucket, target: Bucket
) -> None:
    rel = "workflow-runs/deploy/1.yaml"
    source.write(rel, b"status: running\n")
    copy_and_commit(source, target)
    with target.pushing() as machine:
        machine.pull()
        machine.write(rel, b"status: annotated\n")
    source.write(rel, b"status: succeeded\n")
    assert refused(copy_and_commit(source, target)) == {rel: CONFLICT}
    assert target.store.get(rel).data == b"status: annotated\n"


def test_what_was_copied_from_elsewhere_is_a_conflict(
    source: Bucket, target: Bucket, tmp_path: Path
) -> None:
    rel = "workflow-runs/deploy/1.yaml"
    elsewhere = Bucket(tmp_path / "elsewhere")
    elsewhere.write(rel, b"theirs")
    copy_and_commit(elsewhere, target)
    source.write(rel, b"ours")
    assert refused(copy_and_commit(source, target)) == {rel: CONFLICT}


def test_what_can_be_computed_again_is_replaced(source: Bucket, target: Bucket) -> None:
    rel = "definitions-evaluated/aws/ec2/i-1.yaml"
    source.write(rel, b"ours")
    target.write(rel, b"theirs")
    assert refused(copy_and_commit(source, target)) == {}
    assert target.store.get(rel).data == b"ours"
    assert_sound(target.store)


def test_an_object_that_was_replaced_after_the_plan_is_not_copied_under_the_old_entry(
    source: Bucket, target: Bucket
) -> None:
    source.write("files/a", b"old")
    planned = lacking(source, target)
    source.write("files/a", b"new")
    assert refused(copy_here(source, target, planned)) == {"files/a": CORRUPT}
    assert refused(copy_here(source, target)) == {}
    assert payload(target.store) == {"files/a": b"new"}


def test_a_file_without_an_index_that_changes_after_the_listing_is_not_copied(
    source: Bucket, target: Bucket
) -> None:
    source.write("files/a", b"old")
    [planned] = lacking(source, target)
    listed = planned._replace(raw=None, sha256=None, etag=source.store.head("files/a").etag)
    source.store.put("files/a", b"new")
    assert refused(copy_here(source, target, [listed])) == {"files/a": CHANGED}
    assert payload(target.store) == {}


def test_a_version_without_an_index_that_changes_while_it_is_read_is_not_copied(
    source: Bucket, target: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.save("log", 1, b"line\n")
    planned = [
        one._replace(raw=None, sha256=None, etag=source.store.head(one.rel).etag)
        for one in lacking(source, target)
    ]
    fetch = ObjectCopier.fetch

    def append_meanwhile(self: ObjectCopier, wanted: Wanted, file: BufferedRandom) -> Any:
        if wanted.rel.endswith("metadata.yaml"):
            source.store.put(f"{MODEL}/log/1/raw", b"line\nline\n")
        return fetch(self, wanted, file)

    monkeypatch.setattr(ObjectCopier, "fetch", append_meanwhile)
    assert refused(copy_here(source, target, planned)) == {
        f"{MODEL}/log/1/raw": CHANGED,
        f"{MODEL}/log/1/metadata.yaml": HELD_BACK,
        f"{MODEL}/log/latest": HELD_BACK,
    }
    assert payload(target.store) == {}


def test_a_target_that_does_not_keep_what_it_is_given_is_found_out(
    source: Bucket, target: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.write("files/a", b"abc")
    create = DirectoryStore.put_if_absent
    monkeypatch.setattr(
        DirectoryStore, "put_if_absent", lambda self, key, data: create(self, key, data[:-1])
    )
    [outcome] = copy_here(source, target)
    assert isinstance(outcome, Refused)
    assert outcome.kind == NOT_KEPT


def test_data_without_an_index_is_not_taken_for_nothing(source: Bucket) -> None:
    check_source(source.place)
    source.store.put("files/a", b"abc")
    with pytest.raises(IndexDamagedError, match="no index"):
        check_source(source.place)


def test_a_commit_leaves_out_what_others_committed_meanwhile(
    source: Bucket, target: Bucket
) -> None:
    source.write("files/a", b"ours")
    source.write("files/b", b"ours")
    with committer(target.place) as editor:
        commits = Commits(editor)
        commits.begin(source.place)
        outcomes = [one for one in copy_here(source, target) if isinstance(one, Placed)]
        target.store.delete("files/a")
        target.write("files/a", b"theirs")
        done = {one.wanted.rel: one for one in commits.commit(outcomes)}
    assert isinstance(done["files/b"], Placed)
    assert isinstance(done["files/a"], Refused)
    assert done["files/a"].kind == OVERTAKEN
    assert_sound(target.store)


# What goes where -----------------------------------------------------------------------------


def test_bookkeeping_secrets_bundles_and_other_namespaces_stay(
    source: Bucket, target: Bucket
) -> None:
    Registry(source.store).register("theirs", "repo-2", "2026-01-01T00:00:00.000Z")
    border = Border(Ends(source.place, target.place))
    for rel in (
        *("secrets/a", "bundles/a", "vault-bundles/a", "_control/x", "_index/_meta.json"),
        *(".datastore-index.json", ".locks/a", "data/a/b/.lock", "theirs/data/x", "../x"),
    ):
        assert border.why_not(rel), rel
    for rel in (f"{MODEL}/state/1/raw", ".catalog-export.json", "files/a"):
        assert border.why_not(rel) is None, rel


def test_a_catalog_export_does_not_go_to_another_namespace(source: Bucket, tmp_path: Path) -> None:
    [ends] = ends_of([source.place], f"file://{_directory(tmp_path / 'new')}", "infra", "repo-1")
    assert Border(ends).why_not(".catalog-export.json")


def _directory(path: Path) -> Path:
    path.mkdir()
    return path


def test_a_namespace_of_another_repository_is_refused(source: Bucket, target: Bucket) -> None:
    Registry(target.store).register("infra", "repo-2", "2026-01-01T00:00:00.000Z")
    [ends] = ends_of([source.place], target.url, "infra", "repo-1")
    with pytest.raises(NamespaceTakenError, match="repo-2"):
        check_namespace(ends, target.store)


def test_a_namespace_stays_that_of_the_repository_which_has_it_at_the_source(
    tmp_path: Path, target: Bucket
) -> None:
    source = Bucket(tmp_path / "source", "infra")
    Registry(source.store).register("infra", "repo-1", "2026-01-01T00:00:00.000Z")
    [ends] = ends_of([source.place], target.url, None, None)
    assert not check_namespace(ends, target.store)
    claim_namespace(ends, target.store)
    assert check_namespace(ends, target.store)
    found = Registry(target.store).get("infra")
    assert found is not None
    assert found.repo_id == "repo-1"


def test_whose_a_namespace_will_be_has_to_be_told(source: Bucket, target: Bucket) -> None:
    source.save("state", 1, b"x")
    [ends] = ends_of([source.place], target.url, "infra", None)
    with pytest.raises(ValidationError, match="belongs to"):
        check_namespace(ends, target.store)


def test_a_copy_onto_itself_or_of_several_into_one_is_refused(
    source: Bucket, target: Bucket
) -> None:
    with pytest.raises(ValidationError, match="onto itself"):
        ends_of([source.place], source.url, None, None)
    with pytest.raises(ValidationError, match="cannot all"):
        ends_of([source.place, source.place], target.url, "infra", "repo-1")


def test_a_directory_that_is_used_in_place_is_no_target(source: Bucket, repo_dir: Path) -> None:
    with open_repo(repo_dir) as repo:
        repo.artifacts.save("aws/ec2/i-1", "state", b"x")
    with pytest.raises(ValidationError, match="in place"):
        ends_of([source.place], str(repo_dir), None, None)


_SEGMENTS = st.sampled_from(["a", "1", "12", "01", "latest", "raw", "data", "metadata.yaml"])


@given(st.lists(_SEGMENTS, min_size=1, max_size=8))
def test_the_expressions_of_the_plan_know_the_same_units_as_everybody(rest: list[str]) -> None:
    rel = "/".join(["data", *rest])
    found = re.search(VERSION_FILE, rel) or re.search(MARKER_FILE, rel)
    assert (found[2] if found else rel) == unit_of(rel)


# On Spark --------------------------------------------------------------------------------------


def run(spark: SparkSession, source: str, target: str, **options: Any) -> Copied:
    from swampstore.pipeline.copying import copy

    namespaces = options.pop("namespaces", None)
    return copy(spark, places_of(source, namespaces), target, **options)


def address(remote: ProxiedRemote, kind: str) -> str:
    return f"{kind}:{json.dumps(dict(remote.config))}"


def content_requests(remote: ProxiedRemote) -> list[tuple[str, str]]:
    """Return which content was asked for, and whatever was written."""
    reading = ("GET", "HEAD")
    return [
        (one.kind, one.key)
        for one in remote.proxy.requests
        if one.kind not in (*reading, "LIST")
        or (one.kind in reading and one.key.startswith(f"{MODEL}/"))
    ]


def test_a_datastore_goes_from_gcs_to_s3_and_the_second_time_nothing_is_read(
    spark: SparkSession, gcs_remote: ProxiedRemote, s3_remote: ProxiedRemote, tmp_path: Path
) -> None:
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
    spark: SparkSession, ana: Machine, bob: Machine, bucket: Path, tmp_path: Path
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


def test_what_is_corrupt_is_told_and_comes_after_all_once_it_is_repaired(
    spark: SparkSession, source: Bucket, target: Bucket, tmp_path: Path
) -> None:
    source.save("state", 1, b"one")
    source.save("other", 1, b"other")
    source.damage(f"{MODEL}/state/1/raw", b"oNe")
    target.write("files/notes", b"theirs")
    source.write("files/notes", b"ours")
    plan = run(spark, source.url, target.url, dry_run=True)
    assert (plan.objects, [one.kind for one in plan.findings]) == (6, [CONFLICT])
    copied = run(spark, source.url, target.url)
    assert not copied.is_complete
    assert copied.objects == 3
    assert {one.rel: one.kind for one in copied.findings} == {
        "files/notes": CONFLICT,
        f"{MODEL}/state/1/raw": CORRUPT,
        f"{MODEL}/state/1/metadata.yaml": HELD_BACK,
        f"{MODEL}/state/latest": HELD_BACK,
    }
    assert_sound(target.store)

    source.damage(f"{MODEL}/state/1/raw", b"one")
    outcome = command_line("--findings", str(tmp_path / "f.json"), source.url, target.url)
    assert outcome == 1
    [told] = [json.loads(line) for line in (tmp_path / "f.json").read_text().splitlines()]
    assert (told["kind"], told["rel"], told["severity"]) == (CONFLICT, "files/notes", "error")
    assert target.store.get("files/notes").data == b"theirs"
    assert {**payload(target.store), "files/notes": b"ours"} == payload(source.store)
    assert_sound(target.store)


def command_line(*args: str) -> int:
    """Run the command with the session that is there, and leave that alone."""
    from swampstore.cli.pipeline_copy import copy

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("swampstore.pipeline.starting.stop", lambda _: None)
        return cli_run(copy, args)


def test_what_changes_while_it_is_copied_comes_as_it_is_then(
    spark: SparkSession, source: Bucket, target: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.save("state", 1, b"one")
    source.write("files/changed", b"old")
    source.write("files/deleted", b"x")
    planned = comparison.Comparison.wanted
    rounds: list[int] = []

    def then_change(self: comparison.Comparison, wave: int, waves: int) -> list[Wanted]:
        found = planned(self, wave, waves)
        if not rounds:
            with source.pushing() as machine:
                machine.write("files/changed", b"new")
                machine.delete("files/deleted")
        rounds.append(len(found))
        return found

    monkeypatch.setattr(comparison.Comparison, "wanted", then_change)
    copied = run(spark, source.url, target.url)
    assert rounds == [5, 1]
    assert (copied.objects, copied.findings) == (4, ())
    assert payload(target.store) == payload(source.store)
    assert_sound(target.store)


def test_all_namespaces_go_at_once_and_one_can_become_the_only_one(
    spark: SparkSession, tmp_path: Path, target: Bucket
) -> None:
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

    solo = Bucket(tmp_path / "solo")
    assert run(spark, target.url, solo.url, namespaces=["web"], into="").objects == 3
    assert payload(solo.store) == payload(target.store, "web")
    assert_sound(solo.store)


def copy_in_small_waves(spark: SparkSession, source: str, target: str) -> Copied:
    """Commit after every few objects. Runs in another process."""
    comparison._WAVE_OBJECTS = 25
    comparison._WAVES = 100
    return run(spark, source, target)


def test_a_copy_that_is_killed_leaves_nothing_that_dangles_and_goes_on_where_it_was(
    spark: SparkSession, source: Bucket, target: Bucket
) -> None:
    fill(source, names=30)
    environ = {**os.environ, "SWAMPSTORE_SPARK_MASTER": "local[2]"}
    driver = Driver(copy_in_small_waves, (source.url, target.url), environ)
    deadline = time.monotonic() + 240
    while len(target.entries) < 25:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    driver.kill()
    total = len(source.entries)
    assert_sound(target.store)
    committed = target.entries
    assert len(committed) < total
    for rel in committed:
        if rel.endswith("/latest"):
            version = target.store.get(rel).data.decode()
            assert f"{rel.removesuffix('latest')}{version}/metadata.yaml" in committed
    copied = run(spark, source.url, target.url)
    assert copied.is_complete
    assert copied.present >= 25
    assert payload(target.store) == payload(source.store)
    assert_sound(target.store)
