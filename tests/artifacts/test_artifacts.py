"""Saving, streaming, appending, deferring, renaming and deleting artifacts."""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from swampstore import Draft, Owner, Repo, init_repo, open_repo
from swampstore.artifacts.groups import Deferral
from swampstore.artifacts.metadata import decode
from swampstore.artifacts.name_lock import Mutations, locks_of
from swampstore.artifacts.recovery import sweep
from swampstore.catalog.catalog import Catalog
from swampstore.errors import (
    AlreadyExistsError,
    BudgetError,
    ContentMissingError,
    LockTimeoutError,
    MetadataError,
    NotFoundError,
    NotStreamingError,
    OwnershipError,
    ValidationError,
    WriterClosedError,
)
from swampstore.files import Hold
from swampstore.files import tree as tree_module
from swampstore.layout import CLAIM
from tests.conftest import FakeClock

MODEL = "aws/ec2/i-1"


def name_dir(repo: Repo, name: str) -> Path:
    return Path(repo.config.local_dir) / "data" / MODEL / name


def test_a_saved_version_has_the_files_that_every_client_reads(repo: Repo) -> None:
    saved = repo.artifacts.save(MODEL, "state", {"cpu": 4}, tags={"env": "prod"})
    directory = name_dir(repo, "state")
    raw = (directory / "1" / "raw").read_bytes()
    metadata = decode((directory / "1" / "metadata.yaml").read_bytes(), "metadata.yaml")
    assert (directory / "latest").read_bytes() == b"1"
    assert metadata.checksum == hashlib.sha256(raw).hexdigest()
    assert metadata.size == len(raw)
    assert metadata.created_at == "2026-05-14T20:19:51.042Z"
    assert dict(metadata.tags) == {"type": "resource", "env": "prod"}
    assert sorted(os.listdir(directory)) == ["1", "latest"]
    assert saved.json() == {"cpu": 4}
    assert saved.path == directory / "1" / "raw"


def test_each_save_is_the_next_version_and_the_latest(repo: Repo) -> None:
    for number in range(1, 4):
        assert repo.artifacts.save(MODEL, "state", {"n": number}).version == number
    assert repo.latest(MODEL, "state").json() == {"n": 3}
    assert repo.version(MODEL, "state", 1).json() == {"n": 1}
    assert repo.list_versions(MODEL, "state") == [1, 2, 3]
    assert [found.is_latest for found in repo.versions(MODEL, "state")] == [True, False, False]


@pytest.mark.parametrize(
    ("content", "content_type", "read"),
    [
        (b"\x00\xff", "application/octet-stream", b"\x00\xff"),
        ("grüße", "text/plain", "grüße".encode()),
        ([1, 2], "application/json", b"[\n  1,\n  2\n]"),
        (io.BytesIO(b"stream"), "application/octet-stream", b"stream"),
        (bytearray(b"array"), "application/octet-stream", b"array"),
        (b"", "application/octet-stream", b""),
    ],
)
def test_content_of_every_kind_is_kept_exactly(
    repo: Repo, content: bytes, content_type: str, read: bytes
) -> None:
    saved = repo.artifacts.save(MODEL, "x", content)
    assert saved.content_type == content_type
    assert saved.bytes() == read
    assert saved.size == len(read)
    assert saved.checksum == hashlib.sha256(read).hexdigest()


def test_content_that_is_not_json_is_refused_before_anything_happens(repo: Repo) -> None:
    with pytest.raises(ValidationError, match="JSON"):
        repo.artifacts.save(MODEL, "x", {"when": object()})
    with pytest.raises(ValidationError, match="open as text"):
        repo.artifacts.save(MODEL, "x", io.StringIO("text"))  # type: ignore[arg-type]
    assert not name_dir(repo, "x").exists()


def test_numeric_data_names_are_names_and_not_versions(repo: Repo) -> None:
    repo.artifacts.save(MODEL, "207333", b"a")
    repo.artifacts.save(MODEL, "207333", b"b")
    repo.artifacts.save(MODEL, "7", b"c")
    repo.rebuild_catalog()
    assert [(found.name, found.version) for found in repo.list_data(MODEL)] == [
        ("207333", 2),
        ("7", 1),
    ]


def test_a_model_type_below_another_models_id_keeps_its_data_apart(repo: Repo) -> None:
    repo.artifacts.save("a/b/c", "d", b"short")
    repo.artifacts.save("a/b/c/d", "5", b"long")
    repo.artifacts.save("a/b/c/d", "name", b"long too")
    repo.rebuild_catalog()
    assert [found.name for found in repo.list_data("a/b/c")] == ["d"]
    assert [found.name for found in repo.list_data("a/b/c/d")] == ["5", "name"]


def test_a_version_number_is_never_reused_below_a_higher_one(repo: Repo) -> None:
    for _ in range(3):
        repo.artifacts.save(MODEL, "state", b"x")
    repo.artifacts.delete(MODEL, "state", version=2)
    assert repo.artifacts.save(MODEL, "state", b"x").version == 4
    repo.artifacts.delete(MODEL, "state", version=4)
    assert repo.artifacts.save(MODEL, "state", b"x").version == 4


def test_legacy_symlinks_are_read_as_markers_and_replaced_by_text(repo: Repo) -> None:
    repo.artifacts.save(MODEL, "state", b"one")
    repo.artifacts.save(MODEL, "state", b"two")
    marker = name_dir(repo, "state") / "latest"
    for target in ("1", "1/"):
        marker.unlink()
        marker.symlink_to(target)
        repo.rebuild_catalog()
        assert repo.latest(MODEL, "state").bytes() == b"one"
    assert repo.artifacts.save(MODEL, "state", b"three").version == 3
    assert not marker.is_symlink()
    assert marker.read_text() == "3"


def test_without_a_marker_the_highest_version_is_the_latest(repo: Repo) -> None:
    repo.artifacts.save(MODEL, "state", b"one")
    repo.artifacts.save(MODEL, "state", b"two")
    (name_dir(repo, "state") / "latest").unlink()
    repo.rebuild_catalog()
    assert repo.latest(MODEL, "state").version == 2


class TestStreaming:
    def test_a_streamed_version_is_invisible_until_it_is_finalised(self, repo: Repo) -> None:
        with repo.artifacts.writer(MODEL, "big") as writer:
            writer.write(b"abc")
            assert repo.latest(MODEL, "big", default=None) is None
            repo.rebuild_catalog()
            assert len(repo.query()) == 0
            writer.write(b"def")
        assert repo.latest(MODEL, "big").bytes() == b"abcdef"
        assert repo.latest(MODEL, "big").checksum == hashlib.sha256(b"abcdef").hexdigest()

    def test_an_exception_gives_the_claim_up(self, repo: Repo) -> None:
        with pytest.raises(RuntimeError), repo.artifacts.writer(MODEL, "big") as writer:
            writer.write(b"abc")
            raise RuntimeError
        assert not name_dir(repo, "big").exists()
        assert repo.artifacts.save(MODEL, "big", b"x").version == 1

    def test_a_program_may_write_the_file_itself(self, repo: Repo) -> None:
        with repo.artifacts.writer(MODEL, "big") as writer:
            Path(writer.path).write_bytes(b"written outside")
        found = repo.latest(MODEL, "big")
        assert found.size == 15
        assert found.checksum == hashlib.sha256(b"written outside").hexdigest()

    def test_versions_finalised_out_of_order_never_move_latest_back(self, repo: Repo) -> None:
        first = repo.store.open_writer(repo.ref(MODEL, "x"), Draft())
        second = repo.store.open_writer(repo.ref(MODEL, "x"), Draft())
        second.write(b"second")
        second.finalize()
        first.write(b"first")
        first.finalize()
        assert repo.latest(MODEL, "x").bytes() == b"second"
        assert (name_dir(repo, "x") / "latest").read_text() == "2"
        assert repo.list_versions(MODEL, "x") == [1, 2]

    def test_a_writer_is_finalised_once(self, repo: Repo) -> None:
        with repo.artifacts.writer(MODEL, "x") as writer:
            writer.finalize()
        with pytest.raises(WriterClosedError):
            writer.write(b"late")

    def test_deleting_the_name_meanwhile_makes_finalising_fail(self, repo: Repo) -> None:
        writer = repo.store.open_writer(repo.ref(MODEL, "x"), Draft())
        repo.store.delete(repo.ref(MODEL, "x"))
        with pytest.raises(NotFoundError, match="removed while"):
            writer.finalize()
        assert repo.latest(MODEL, "x", default=None) is None

    def test_memory_does_not_hold_what_is_streamed(self, repo: Repo) -> None:
        chunk = bytes(1 << 20)

        class Endless(io.RawIOBase):
            left = 300

            def read(self, size: int = -1) -> bytes:
                self.left -= 1
                return chunk if self.left >= 0 else b""

        import resource

        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        saved = repo.artifacts.save(MODEL, "big", Endless())  # type: ignore[arg-type]
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert saved.size == 300 << 20
        assert grown < 32 * 1024


class TestAppending:
    def test_appending_extends_the_latest_version_and_drops_its_checksum(self, repo: Repo) -> None:
        repo.artifacts.save(MODEL, "log", "one\n", streaming=True)
        appended = repo.artifacts.append(MODEL, "log", "two\n")
        assert appended.version == 1
        assert appended.text() == "one\ntwo\n"
        assert appended.size == 8
        assert appended.checksum is None
        assert "checksum" not in appended.metadata.to_json()

    def test_only_streaming_versions_can_be_appended_to(self, repo: Repo) -> None:
        repo.artifacts.save(MODEL, "log", "one")
        with pytest.raises(NotStreamingError):
            repo.artifacts.append(MODEL, "log", "two")
        assert repo.latest(MODEL, "log").text() == "one"

    def test_appending_to_nothing_is_an_error(self, repo: Repo) -> None:
        with pytest.raises(NotFoundError):
            repo.artifacts.append(MODEL, "log", "two")
        assert not name_dir(repo, "log").exists()

    def test_appending_to_missing_content_is_an_error(self, repo: Repo) -> None:
        repo.artifacts.save(MODEL, "log", "one", streaming=True).path.unlink()
        with pytest.raises(ContentMissingError):
            repo.artifacts.append(MODEL, "log", "two")


class TestDeferring:
    def test_deferred_versions_become_latest_together(self, repo: Repo) -> None:
        repo.artifacts.save(MODEL, "a", b"old")
        with repo.artifacts.deferring() as group:
            group.save(repo.ref(MODEL, "a"), b"new", Draft(owner=Owner(ref="i-1")))
            with group.open_writer(repo.ref(MODEL, "b"), Draft(owner=Owner(ref="i-1"))) as writer:
                writer.write(b"fresh")
            assert repo.latest(MODEL, "a").bytes() == b"old"
            assert repo.version(MODEL, "a", 2).bytes() == b"new"
            assert repo.latest(MODEL, "b", default=None) is None
        assert repo.latest(MODEL, "a").bytes() == b"new"
        assert repo.latest(MODEL, "b").bytes() == b"fresh"
        assert sorted(os.listdir(name_dir(repo, "a") / "2")) == ["metadata.yaml", "raw"]

    def test_a_failure_rolls_all_of_them_back(self, repo: Repo) -> None:
        repo.artifacts.save(MODEL, "a", b"old")
        with pytest.raises(RuntimeError), repo.artifacts.deferring() as group:
            group.save(repo.ref(MODEL, "a"), b"new", Draft(owner=Owner(ref="i-1")))
            group.save(repo.ref(MODEL, "b"), b"fresh", Draft())
            group.open_writer(repo.ref(MODEL, "c"), Draft())
            raise RuntimeError
        assert repo.list_versions(MODEL, "a") == [1]
        assert not name_dir(repo, "b").exists()
        assert not name_dir(repo, "c").exists()

    def test_a_save_in_between_stays_the_latest(self, repo: Repo) -> None:
        with repo.artifacts.deferring() as group:
            group.save(repo.ref(MODEL, "a"), b"deferred", Draft(owner=Owner(ref="i-1")))
            repo.artifacts.save(MODEL, "a", b"later", owner=Owner(ref="i-1"))
        assert repo.latest(MODEL, "a").bytes() == b"later"
        assert repo.list_versions(MODEL, "a") == [1, 2]

    def test_many_deferred_versions_of_one_name_can_wait(self, repo: Repo) -> None:
        with repo.artifacts.deferring() as group:
            for number in range(120):
                group.save(repo.ref(MODEL, "a"), b"%d" % number, Draft())
        assert repo.latest(MODEL, "a").bytes() == b"119"

    def test_a_group_is_not_committed_by_half_if_one_of_its_versions_is_not_there(
        self, repo: Repo
    ) -> None:
        def unfinished(group: Deferral) -> None:
            group.open_writer(repo.ref(MODEL, "b"), Draft()).write(b"y")

        def deleted(group: Deferral) -> None:
            group.save(repo.ref(MODEL, "b"), b"y", Draft())
            repo.store.delete(repo.ref(MODEL, "b"))

        for spoil in (unfinished, deleted):
            group = repo.artifacts.deferring()
            group.save(repo.ref(MODEL, "a"), b"x", Draft())
            spoil(group)
            with pytest.raises(MetadataError, match="aws/ec2/i-1 b version 1"):
                group.commit()
            assert repo.latest(MODEL, "a", default=None) is None
            group.rollback()
            assert not name_dir(repo, "a").exists()
            assert not name_dir(repo, "b").exists()

    def test_a_commit_that_could_not_begin_can_be_tried_again(self, repo: Repo) -> None:
        ref = repo.ref(MODEL, "a")
        group = repo.artifacts.deferring()
        group.save(ref, b"x", Draft())
        locks = locks_of(repo.config.base, repo.config.local_dir, 0.05, is_cache=False)
        impatient = Mutations(repo.tree, locks, repo.catalog)
        with pytest.MonkeyPatch.context() as monkeypatch:
            monkeypatch.setattr(repo.store, "mutations", impatient)
            with repo.mutations.holding(ref), pytest.raises(LockTimeoutError):
                group.commit()
        group.commit()
        assert repo.latest(MODEL, "a").bytes() == b"x"


class TestWaitingForTheDisk:
    """A power failure finds either all of a group, or nothing that counts."""

    @pytest.fixture
    def events(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """What became durable, and what was noted in the catalog, in that order."""
        events: list[str] = []
        fsync = os.fsync

        def synced(fd: int) -> None:
            events.append(os.readlink(f"/proc/self/fd/{fd}"))
            fsync(fd)

        monkeypatch.setattr(os, "fsync", synced)
        monkeypatch.setattr(tree_module, "sync_filesystem", lambda _: events.append("everything"))
        for name in ("intend", "record"):
            real = getattr(Catalog, name)

            def noted(*args: Any, real: Any = real, name: str = name) -> None:
                events.append(name)
                real(*args)

            monkeypatch.setattr(Catalog, name, noted)
        return events

    def test_a_small_group_is_durable_before_its_commit_is_and_so_is_that_before_it_ends(
        self, tmp_path: Path, events: list[str]
    ) -> None:
        with init_repo(tmp_path / "durable") as repo:
            with repo.artifacts.deferring() as group:
                for name in "ab":
                    group.save(repo.ref(MODEL, name), b"x", Draft())
                assert not [one for one in events if "/" in one and "/data" in one]
                events.clear()
            names = [name_dir(repo, name) for name in "ab"]
        before, after = events[: events.index("intend")], events[events.index("intend") :]
        for path in names:
            way = {str(path.parent), str(path), f"{path}/1", f"{path}/1/raw"}
            assert {*way, f"{path}/1/metadata.yaml"} <= set(before)
            assert {str(path), f"{path}/1", f"{path}/latest"} <= set(after[: after.index("record")])

    def test_a_large_group_waits_for_the_disk_twice(
        self, tmp_path: Path, events: list[str]
    ) -> None:
        with init_repo(tmp_path / "durable") as repo:
            events.clear()
            with repo.artifacts.deferring() as group:
                for number in range(40):
                    group.save(repo.ref(MODEL, f"n-{number}"), b"x", Draft())
        expected = ["intend", "record"] * 40 + ["everything", "intend", "everything", "record"]
        assert [one for one in events if "/data" not in one and "/" not in one] == expected
        assert not [one for one in events if "/data/" in one]

    def test_the_intent_of_each_name_of_a_group_has_the_versions_of_that_name_alone(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # All of them in each would be a square of the number of names.
        intents: list[Mapping[str, str]] = []
        real = Catalog.intend

        def noted(catalog: Catalog, actions: Mapping[str, str]) -> None:
            intents.append(actions)
            real(catalog, actions)

        monkeypatch.setattr(Catalog, "intend", noted)
        with init_repo(tmp_path / "repo") as repo, repo.artifacts.deferring() as group:
            for name in "ab":
                group.save(repo.ref(MODEL, name), b"x", Draft())
        commit = {path: json.loads(action) for path, action in intents[-1].items()}
        assert commit == {
            path: {"op": "commit", "versions": {path: [1]}}
            for path in (repo.ref(MODEL, name).rel for name in "ab")
        }


class Spy:
    """Looks at the repository from outside after every transaction of the catalog."""

    def __init__(self, repo: Repo, look: Callable[[Repo], object]) -> None:
        self.seen: list[object] = []
        repo.ready(complete=True)
        real = repo.catalog.rows.write

        def write(work: Any, *, flush: bool = False) -> Any:
            result = real(work, flush=flush)
            with open_repo(repo.config.repo_dir, durable=False) as other:
                self.seen.append(look(other))
            return result

        repo.catalog.rows.write = write  # type: ignore[method-assign]


class TestSeenFromOutside:
    def test_a_group_becomes_latest_at_once(self, repo: Repo) -> None:
        with repo.artifacts.deferring() as group:
            for name in "abc":
                group.save(repo.ref(MODEL, name), b"x", Draft())
            spy = Spy(repo, lambda other: [found.name for found in other.query(order="name")])
        assert set(map(tuple, spy.seen)) == {(), ("a", "b", "c")}  # type: ignore[arg-type]

    def test_a_rename_is_seen_at_once(self, repo: Repo) -> None:
        repo.artifacts.save(MODEL, "old", b"x")
        spy = Spy(repo, lambda other: [found.name for found in other.query()])
        repo.artifacts.rename(MODEL, "old", "new")
        assert set(map(tuple, spy.seen)) == {("old",), ("new",)}  # type: ignore[arg-type]


class TestRenaming:
    def test_the_old_name_forwards_to_the_new_one(self, repo: Repo) -> None:
        repo.artifacts.save(MODEL, "old", {"n": 1})
        repo.artifacts.save(MODEL, "old", {"n": 2})
        done = repo.artifacts.rename(MODEL, "old", "new")
        assert (done.copied_version, done.new_version) == (2, 1)
        assert repo.latest(MODEL, "old").name == "new"
        assert repo.latest(MODEL, "new").json() == {"n": 2}
        assert repo.version(MODEL, "old", 1).json() == {"n": 1}
        assert repo.version(MODEL, "old", 3).metadata.renamed_to == "new"
        assert [found.name for found in repo.query()] == ["new"]

    def test_forwarding_stops_after_five_hops(self, repo: Repo) -> None:
        repo.artifacts.save(MODEL, "n0", b"x")
        for hop in range(5):
            repo.artifacts.rename(MODEL, f"n{hop}", f"n{hop + 1}")
        assert repo.latest(MODEL, "n0").name == "n5"
        repo.artifacts.rename(MODEL, "n5", "n6")
        assert repo.latest(MODEL, "n0", default=None) is None
        assert repo.latest(MODEL, "n1").name == "n6"

    def test_saving_under_the_old_name_ends_the_forwarding(self, repo: Repo) -> None:
        repo.artifacts.save(MODEL, "old", b"1")
        repo.artifacts.rename(MODEL, "old", "new")
        repo.artifacts.save(MODEL, "old", b"again")
        assert repo.latest(MODEL, "old").bytes() == b"again"

    def test_a_name_in_use_or_missing_is_refused(self, repo: Repo) -> None:
        repo.artifacts.save(MODEL, "a", b"1")
        repo.artifacts.save(MODEL, "b", b"2")
        with pytest.raises(AlreadyExistsError):
            repo.artifacts.rename(MODEL, "a", "b")
        with pytest.raises(NotFoundError):
            repo.artifacts.rename(MODEL, "nope", "c")
        with pytest.raises(ValidationError):
            repo.artifacts.rename(MODEL, "a", "a")
        assert [found.name for found in repo.list_data(MODEL)] == ["a", "b"]
        assert not name_dir(repo, "c").exists()

    def test_missing_content_cannot_be_renamed_and_nothing_changes(self, repo: Repo) -> None:
        repo.artifacts.save(MODEL, "a", b"1").path.unlink()
        with pytest.raises(ContentMissingError):
            repo.artifacts.rename(MODEL, "a", "b")
        assert repo.list_versions(MODEL, "a") == [1]
        assert not name_dir(repo, "b").exists()

    def test_a_deleted_name_may_be_taken_again(self, repo: Repo) -> None:
        repo.artifacts.save(MODEL, "a", b"1")
        repo.artifacts.save(MODEL, "b", b"2")
        repo.artifacts.rename(MODEL, "b", "c")
        repo.artifacts.rename(MODEL, "a", "b")
        assert repo.latest(MODEL, "b").bytes() == b"1"


class TestDeleting:
    def test_deleting_the_latest_version_repoints_the_marker(self, repo: Repo) -> None:
        for number in range(3):
            repo.artifacts.save(MODEL, "a", b"%d" % number)
        assert repo.artifacts.delete(MODEL, "a", version=3).versions == 1
        assert repo.latest(MODEL, "a").version == 2
        assert (name_dir(repo, "a") / "latest").read_text() == "2"

    def test_deleting_the_only_version_deletes_the_name(self, repo: Repo) -> None:
        repo.artifacts.save(MODEL, "a", b"12345")
        done = repo.artifacts.delete(MODEL, "a", version=1)
        assert (done.versions, done.size) == (1, 5)
        assert not name_dir(repo, "a").exists()

    def test_deleting_a_name_removes_every_version(self, repo: Repo) -> None:
        for _ in range(3):
            repo.artifacts.save(MODEL, "a", b"123")
        done = repo.artifacts.delete(MODEL, "a")
        assert (done.versions, done.size) == (3, 9)
        assert repo.latest(MODEL, "a", default=None) is None
        assert len(repo.query()) == 0

    def test_what_does_not_exist_is_named_with_what_does(self, repo: Repo) -> None:
        repo.artifacts.save(MODEL, "a", b"1")
        with pytest.raises(NotFoundError) as missing_version:
            repo.artifacts.delete(MODEL, "a", version=9)
        assert "Versions: 1" in (missing_version.value.hint or "")
        with pytest.raises(NotFoundError) as missing_name:
            repo.artifacts.delete(MODEL, "b")
        assert "Names: a" in (missing_name.value.hint or "")

    def test_a_tombstone_hides_the_name_and_keeps_its_history(self, repo: Repo) -> None:
        repo.artifacts.save(MODEL, "a", {"arn": "x"})
        tombstone = repo.artifacts.mark_deleted(MODEL, "a", method="destroy")
        assert tombstone.json() == {
            "arn": "x",
            "deletedAt": "2026-05-14T20:19:51.042Z",
            "deletedByMethod": "destroy",
        }
        assert repo.latest(MODEL, "a", default=None) is None
        assert len(repo.query()) == 0
        assert repo.list_versions(MODEL, "a") == [1, 2]
        with pytest.raises(NotFoundError, match="was deleted"):
            repo.latest(MODEL, "a")


class TestOwnership:
    def test_another_owner_is_refused(self, repo: Repo) -> None:
        repo.artifacts.save(MODEL, "a", b"1", owner=Owner(type="model-method", ref="m1"))
        with pytest.raises(OwnershipError, match="m1"):
            repo.artifacts.save(MODEL, "a", b"2", owner=Owner(type="manual", ref="me"))
        assert repo.list_versions(MODEL, "a") == [1]

    def test_without_an_owner_the_name_keeps_the_one_it_has(self, repo: Repo) -> None:
        owner = Owner(type="model-method", ref="m1")
        repo.artifacts.save(MODEL, "a", b"1", owner=owner)
        assert repo.artifacts.save(MODEL, "a", b"2").metadata.owner.same_as(owner)


class TestEphemeral:
    def test_ephemeral_data_is_found_but_never_on_disk(self, repo: Repo, repo_dir: Path) -> None:
        repo.artifacts.save(MODEL, "kept", {"n": 1}, tags={"env": "x"})
        repo.artifacts.save(MODEL, "gone", {"n": 2}, tags={"env": "x"}, lifetime="ephemeral")
        assert repo.latest(MODEL, "gone").json() == {"n": 2}
        assert {found.name for found in repo.query('tags.env == "x"')} == {"kept", "gone"}
        assert [found.name for found in repo.query(order="name desc")] == ["kept", "gone"]
        assert [found.name for found in repo.query("attributes.n > 1")] == ["gone"]
        assert [found.name for found in repo.list_data(MODEL)] == ["gone", "kept"]
        assert not name_dir(repo, "gone").exists()
        with pytest.raises(ContentMissingError):
            _ = repo.latest(MODEL, "gone").path
        with open_repo(repo_dir) as other:
            assert other.latest(MODEL, "gone", default=None) is None

    def test_ephemeral_data_has_versions_appends_and_deletes(self, repo: Repo) -> None:
        for _ in range(2):
            repo.artifacts.save(MODEL, "e", "one", lifetime="ephemeral", streaming=True)
        repo.artifacts.append(MODEL, "e", "two")
        assert repo.latest(MODEL, "e").text() == "onetwo"
        assert repo.list_versions(MODEL, "e") == [1, 2]
        assert repo.artifacts.delete(MODEL, "e").versions == 2
        assert repo.latest(MODEL, "e", default=None) is None

    def test_the_budget_is_kept(self, repo_dir: Path) -> None:
        environ = {"SWAMP_EPHEMERAL_BUDGET": "1k"}
        with open_repo(repo_dir, durable=False, environ=environ) as repo:
            repo.artifacts.save(MODEL, "a", bytes(1000), lifetime="ephemeral")
            with pytest.raises(BudgetError, match="24"):
                repo.artifacts.save(MODEL, "b", bytes(25), lifetime="ephemeral")
            repo.artifacts.delete(MODEL, "a")
            repo.artifacts.save(MODEL, "b", bytes(1024), lifetime="ephemeral")


class TestPruningOnWrite:
    @pytest.fixture
    def pruning(self, repo_dir: Path, clock: FakeClock) -> Iterator[Repo]:
        with (repo_dir / ".swamp.yaml").open("a") as marker:
            marker.write("autoGc: true\n")
        with open_repo(repo_dir, durable=False, clock=clock) as repo:
            yield repo

    def test_every_way_of_writing_keeps_the_number_of_versions(self, pruning: Repo) -> None:
        ref = pruning.ref(MODEL, "a")
        for _ in range(4):
            pruning.artifacts.save(MODEL, "a", b"x", garbage_collection=2)
        assert pruning.list_versions(MODEL, "a") == [3, 4]
        with pruning.artifacts.writer(MODEL, "a", Draft(garbage_collection=2)) as writer:
            writer.write(b"streamed")
        assert pruning.list_versions(MODEL, "a") == [4, 5]
        with pruning.artifacts.deferring() as group:
            group.save(ref, b"deferred", Draft(garbage_collection=2))
        assert pruning.list_versions(MODEL, "a") == [5, 6]

    def test_versions_still_being_written_are_nobodys_excess(self, pruning: Repo) -> None:
        ref = pruning.ref(MODEL, "a")
        writer = pruning.store.open_writer(ref, Draft())
        with pruning.artifacts.deferring() as group:
            group.save(ref, b"deferred", Draft(garbage_collection=2))
            for _ in range(4):
                pruning.artifacts.save(MODEL, "a", b"x", garbage_collection=2)
            writer.write(b"slow")
            writer.finalize()
        assert pruning.list_versions(MODEL, "a") == [5, 6]


class TestSweeping:
    def test_a_deferral_committed_late_is_not_swept(self, repo: Repo, clock: FakeClock) -> None:
        clock.now = clock.now.now(clock.now.tzinfo)
        group = repo.artifacts.deferring()
        group.save(repo.ref(MODEL, "a"), b"late", Draft())
        clock.advance(hours=25)
        assert sweep(repo.store).leftovers == ()
        group.commit()
        assert repo.latest(MODEL, "a").bytes() == b"late"

    def test_claims_and_deferrals_of_nobody_knows_whom_go_when_they_are_old(
        self, repo: Repo, clock: FakeClock
    ) -> None:
        clock.now = clock.now.now(clock.now.tzinfo)
        repo.artifacts.save(MODEL, "a", b"1")
        repo.store.open_writer(repo.ref(MODEL, "a"), Draft(owner=Owner(ref="i-1"))).write(b"part")
        repo.store.open_writer(repo.ref(MODEL, "7"), Draft())
        repo.store.save(repo.ref(MODEL, "b"), b"x", Draft(), group=Hold())
        (name_dir(repo, "a") / ".0f0f0f0f-0f0f-4f0f-8f0f-0f0f0f0f0f0f.tmp").write_bytes(b"torn")
        for claim in Path(repo.tree.base).rglob(CLAIM):
            claim.unlink()
        assert sweep(repo.store).leftovers == ()
        clock.advance(hours=25)
        planned = sweep(repo.store, dry_run=True)
        assert name_dir(repo, "7").exists()
        done = sweep(repo.store)
        assert done.leftovers == planned.leftovers
        assert {(found.ref.name, found.deferred) for found in done.leftovers} == {
            ("a", False),
            ("7", False),
            ("b", True),
        }
        assert done.temps == 1
        assert sorted(os.listdir(name_dir(repo, "a"))) == ["1", "latest"]
        assert not name_dir(repo, "7").exists()
        assert not name_dir(repo, "b").exists()
        assert repo.latest(MODEL, "a").bytes() == b"1"

    def test_strange_directories_are_left_alone(self, repo: Repo, clock: FakeClock) -> None:
        clock.now = clock.now.now(clock.now.tzinfo)
        repo.artifacts.save(MODEL, "a", b"1")
        strange = name_dir(repo, "a") / "9"
        strange.mkdir()
        (strange / "notes.txt").write_text("mine")
        clock.advance(days=30)
        assert sweep(repo.store).leftovers == ()
        assert (strange / "notes.txt").exists()
