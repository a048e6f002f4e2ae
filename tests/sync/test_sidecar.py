"""The sidecar: read whoever wrote it, written so that everybody can read it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from swampstore.files import disk
from swampstore.layout import SIDECAR
from swampstore.sync.dirty import DirtyTracker
from swampstore.sync.sidecar import MAX_PATHS, Sidecar, SidecarState, decode, encode
from tests.support.old_client import OldClient

ETAG = "remoteIndexETag"
CLEAN: dict[str, Any] = {
    "version": 2,
    ETAG: "9b2c",
    "lastVerifiedAt": "2026-06-01T10:00:00.001Z",
    "localDirty": False,
    "dirtyPaths": [],
    "bulkInvalidated": False,
    "lazyPullActive": False,
}


def state_of(**members: Any) -> SidecarState:
    return decode(json.dumps({**CLEAN, **members}).encode(), ETAG)


def members_of(state: SidecarState) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(encode(state, ETAG))
    return found


# Reading ------------------------------------------------------------------------------------


def test_a_clean_sidecar_says_that_nothing_is_waiting() -> None:
    state = state_of(commitSeq=42, lazyPullActive=True)
    assert state.is_trusted
    assert state.is_clean
    assert not state.must_walk
    assert (state.fingerprint, state.commit_seq, state.lazy_pull_active) == ("9b2c", 42, True)
    assert state.last_verified_at == "2026-06-01T10:00:00.001Z"


def test_members_that_are_missing_in_version_two_are_empty() -> None:
    data = {"version": 2, ETAG: "", "lastVerifiedAt": "", "localDirty": False}
    assert decode(json.dumps(data).encode(), ETAG).is_clean


@pytest.mark.parametrize(
    "data",
    [
        None,
        b"",
        b"null",
        b"[]",
        b"\xff\xfe",
        b'{"version": 2, "remoteIndexETag": ',
        b"[" * 100_000,
        b'{"a": ' * 100_000,
        b"9" * 10_000,
        b"x" * 1_000_000,
    ],
    ids=lambda data: repr(data)[:30],
)
def test_h52_garbage_means_a_walk_and_never_an_error(data: bytes | None) -> None:
    state = decode(data, ETAG)
    assert state == SidecarState()
    assert state.must_walk


@pytest.mark.parametrize(
    "wrong",
    [
        {"version": 0},
        {"version": "3"},
        {"version": True},
        {"version": None},
        {ETAG: None},
        {ETAG: 7},
        {"lastVerifiedAt": 5},
        {"localDirty": "no"},
        {"localDirty": None},
        {"dirtyPaths": "data/a"},
        {"dirtyPaths": ["data/a", 1]},
        {"dirtyPaths": None},
        {"bulkInvalidated": "false"},
        {"x": float("nan")},
        {"x": float("inf")},
    ],
    ids=repr,
)
def test_h52_members_of_a_wrong_kind_mean_a_walk(wrong: dict[str, Any]) -> None:
    assert state_of().is_trusted
    assert not state_of(**wrong).is_trusted
    assert state_of(**wrong).must_walk


@given(st.binary(max_size=200))
def test_h52_no_bytes_raise(data: bytes) -> None:
    assert decode(data, ETAG).must_walk


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
known = [*CLEAN, "commitSeq", "dirtyPathsOverflowed", "swampstoreOverflow", "swampstoreChain"]


@given(st.dictionaries(st.sampled_from(known), json_values, max_size=5))
def test_h52_no_members_raise_and_what_was_read_can_be_written(members: dict[str, Any]) -> None:
    assume(type(members.get("version")) is not int)
    state = state_of(**members)
    written = decode(encode(state, ETAG), ETAG)
    assert written.must_walk == state.must_walk
    assert written.dirty_paths == state.dirty_paths
    assert written.others == state.others


def test_the_first_version_lists_no_paths_and_so_means_a_walk() -> None:
    data = {"version": 1, ETAG: "9b2c", "lastVerifiedAt": "t", "localDirty": False}
    state = decode(json.dumps(data).encode(), ETAG)
    assert state.must_walk
    assert not state.is_trusted
    assert (state.fingerprint, state.last_verified_at) == ("9b2c", "t")


def test_a_sidecar_of_another_kind_of_remote_means_a_walk() -> None:
    assert decode(json.dumps(CLEAN).encode(), "remoteIndexGeneration").must_walk


def test_dirty_without_a_path_means_a_walk() -> None:
    assert state_of(localDirty=True).must_walk
    assert not state_of(localDirty=True, dirtyPaths=["a"]).must_walk


def test_h12_paths_that_others_left_in_a_clean_sidecar_are_waiting() -> None:
    assert not state_of(dirtyPaths=["data/a"]).is_clean
    assert not state_of(bulkInvalidated=True).is_clean


# Changing -----------------------------------------------------------------------------------


def test_h16_a_mark_does_not_make_an_unknown_amount_of_work_known() -> None:
    for state in (SidecarState(), state_of(localDirty=True), state_of(bulkInvalidated=True)):
        marked = state.marked(["data/a"])
        assert marked.must_walk
        assert marked.dirty_paths == ("data/a",)
        assert members_of(marked)["bulkInvalidated"] is True


def test_h4_more_paths_than_the_limit_never_use_the_member_that_makes_others_delete() -> None:
    paths = [f"data/{number}" for number in range(MAX_PATHS + 1)]
    state = state_of().marked(paths)
    assert not state.must_walk
    assert state.dirty_paths == tuple(paths[:MAX_PATHS])
    written = members_of(state)
    assert written["localDirty"] is written["bulkInvalidated"] is True
    assert written["swampstoreOverflow"] is True
    assert "dirtyPathsOverflowed" not in written
    assert decode(encode(state, ETAG), ETAG).has_overflowed


def test_an_overflow_of_others_is_no_overflow_of_ours() -> None:
    theirs = state_of(localDirty=True, bulkInvalidated=True, dirtyPathsOverflowed=True)
    assert theirs.marked(map(str, range(300))).must_walk
    assert "swampstoreOverflow" not in members_of(theirs.marked(map(str, range(300))))


def test_everything_marked_is_more_than_an_overflow() -> None:
    state = state_of().marked(map(str, range(300))).invalidated()
    assert state.must_walk
    assert state.marked(["another"]).must_walk


def test_without_its_paths_a_sidecar_is_clean() -> None:
    state = state_of().marked(["a", "b"])
    assert state.without({"a"}, walked=False).dirty_paths == ("b",)
    assert state.without({"a"}, walked=False).local_dirty
    assert state.without({"a", "b"}, walked=False).is_clean


def test_only_a_walk_takes_an_invalidation_away() -> None:
    theirs = state_of(localDirty=True, bulkInvalidated=True, dirtyPathsOverflowed=True)
    ours = state_of().marked(map(str, range(300)))
    for state in (theirs, ours, state_of(localDirty=True), SidecarState()):
        kept = state.without(set(state.dirty_paths), walked=False)
        assert kept.bulk_invalidated
        assert kept.local_dirty, "a client that finds this false skips its push"
        assert kept.has_overflowed is state.has_overflowed
        gone = state.without(set(state.dirty_paths), walked=True)
        assert gone.is_clean
        assert "dirtyPathsOverflowed" not in members_of(gone)


# Writing ------------------------------------------------------------------------------------


def test_the_file_is_what_other_clients_write() -> None:
    state = state_of(
        commitSeq=42,
        unknown={"a": [1, 2.5, None]},
        dataKeyMigrated=True,
        lastCatalogHash="00ff",
        dirtyPaths=["data/ä"],
        localDirty=True,
    )
    assert encode(state, ETAG).decode() == (
        """{
  "version": 2,
  "remoteIndexETag": "9b2c",
  "lastVerifiedAt": "2026-06-01T10:00:00.001Z",
  "localDirty": true,
  "dirtyPaths": [
    "data/ä"
  ],
  "bulkInvalidated": false,
  "lazyPullActive": false,
  "lastCatalogHash": "00ff",
  "dataKeyMigrated": true,
  "commitSeq": 42,
  "unknown": {
    "a": [
      1,
      2.5,
      null
    ]
  },
  "swampstoreChain": null
}"""
    )


def test_a_file_name_that_is_no_utf8_can_be_written() -> None:
    state = state_of().marked(["data/\udc80"])
    assert decode(encode(state, ETAG), ETAG).dirty_paths == ("data/\udc80",)


def test_the_fingerprint_has_the_name_that_clients_of_the_remote_use(tmp_path: Path) -> None:
    sidecar = Sidecar(str(tmp_path / SIDECAR), "remoteIndexGeneration")
    sidecar.update(SidecarState.invalidated)
    written = json.loads((tmp_path / SIDECAR).read_text())
    assert list(written)[:2] == ["version", "remoteIndexGeneration"]
    assert ETAG not in written


def test_an_update_starts_from_what_is_on_disk_and_leaves_only_the_sidecar(tmp_path: Path) -> None:
    file = tmp_path / SIDECAR
    mine, other = Sidecar(str(file), ETAG), Sidecar(str(file), ETAG)
    file.write_text(json.dumps(CLEAN))
    mine.update(lambda state: state.marked(["a"]))
    other.update(lambda state: state.marked(["b"]))
    assert mine.read().dirty_paths == ("a", "b")
    assert [path.name for path in tmp_path.iterdir()] == [SIDECAR]


def test_an_update_that_changes_nothing_writes_nothing(tmp_path: Path) -> None:
    file = tmp_path / SIDECAR
    sidecar = Sidecar(str(file), ETAG)
    before = sidecar.update(lambda state: state.marked(["a"]))
    inode = file.stat().st_ino
    assert sidecar.update(lambda state: state.marked(["a"])) is before
    assert file.stat().st_ino == inode


def test_the_chain_of_our_own_writes_breaks_when_others_write(tmp_path: Path) -> None:
    file = tmp_path / SIDECAR
    first, second = Sidecar(str(file), ETAG), Sidecar(str(file), ETAG)
    chain = first.update(lambda state: state.marked(["a"])).chain
    assert chain is not None
    assert second.update(lambda state: state.marked(["b"])).chain == chain
    file.write_text(json.dumps(CLEAN))
    assert first.read().chain is None
    assert first.update(lambda state: state.marked(["c"])).chain not in (None, chain)


@pytest.mark.parametrize("in_the_way", ["directory", "unreadable"])
def test_h52_a_sidecar_that_cannot_be_read_means_a_walk(tmp_path: Path, in_the_way: str) -> None:
    file = tmp_path / SIDECAR
    if in_the_way == "directory":
        file.mkdir()
    else:
        file.symlink_to(file)
    assert Sidecar(str(file), ETAG).read().must_walk


def test_a_mark_that_another_client_makes_while_ours_is_written_is_not_written_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other clients do not know our lock."""
    tracker = DirtyTracker(str(tmp_path), durable=False)
    tracker.mark()
    tracker.settle(tracker.snapshot(), walked=True)
    tracker.mark("data/t/m/ours")
    real, theirs = disk.write_all, ["data/t/m/theirs"]

    def write_slowly(fd: int, data: bytes) -> None:
        if b"dirtyPaths" in data and theirs:
            OldClient(tmp_path).mark(theirs.pop())
        real(fd, data)

    monkeypatch.setattr(disk, "write_all", write_slowly)
    tracker.mark("data/t/m/more")
    assert {"data/t/m/ours", "data/t/m/more", "data/t/m/theirs"} <= set(tracker.peek().paths)
    assert not theirs
