"""What the tasks of a copy do: nothing wrong arrives, nothing is overwritten."""

from __future__ import annotations

import json
from io import BufferedRandom
from pathlib import Path
from typing import Any

import pytest

from swampstore import open_repo
from swampstore.errors import NamespaceTakenError, ValidationError
from swampstore.index.errors import IndexDamagedError
from swampstore.namespaces.manifests import Registry
from swampstore.pipeline.copy import Commits, copy
from swampstore.pipeline.copy.comparison import (
    Border,
    Ends,
    check_namespace,
    check_source,
    claim_namespace,
    ends_of,
)
from swampstore.pipeline.copy.outcomes import (
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
from swampstore.pipeline.copy.tasks import ObjectCopier, units_of
from swampstore.pipeline.index_writer import committer
from swampstore.pipeline.places import places_of
from swampstore.stores.directory import DirectoryStore
from swampstore.stores.protocol import payload as payload_of
from tests.support.copying import (
    MODEL,
    Bucket,
    copy_and_commit,
    copy_here,
    fill,
    lacking,
    payload,
    refused,
    save,
    without_spark,
)
from tests.support.sync_harness import assert_sound, remote_index


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
    with committer(target.place) as writer:
        Commits(writer).begin(source.place)
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
        DirectoryStore,
        "put_if_absent",
        lambda self, key, body: create(self, key, bytes(payload_of(body))[:-1]),
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
    with committer(target.place) as writer:
        commits = Commits(writer)
        commits.begin(source.place)
        before = commits.look(units_of(lacking(source, target)))
        outcomes = [one for one in copy_here(source, target) if isinstance(one, Placed)]
        target.store.delete("files/a")
        target.write("files/a", b"theirs")
        done = {one.wanted.rel: one for one in commits.commit(outcomes, before)}
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


def test_a_namespace_can_become_the_only_one(
    tmp_path: Path, target: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_spark(monkeypatch)
    web = Bucket(tmp_path / "source", "web")
    web.save("state", 1, b"of web")
    copied = copy(None, [web.place], target.url, into="")
    assert (copied.objects, copied.namespaces) == (3, (("web", ""),))
    assert payload(target.store) == payload(web.store, "web")
    assert_sound(target.store)


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


def test_a_directory_that_no_repository_named_may_be_copied_as_it_is(
    target: Bucket, tmp_path: Path
) -> None:
    (tmp_path / "share/data").mkdir(parents=True)
    [source] = places_of(f"filesystem:{tmp_path / 'share'}")
    [ends] = ends_of([source], target.url, None, None)
    border = Border(ends)
    assert border.why_not(f"{MODEL}/state/1/raw") is None
    assert border.why_not("secrets/local/key") is not None
