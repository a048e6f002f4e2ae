"""Whatever a document says, its decoder gives a value in range or the error it documents."""

from __future__ import annotations

import contextlib
import json
import re
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swampstore import Repo
from swampstore.artifacts import metadata as metadata_format
from swampstore.catalog.database import MemoryDatabase
from swampstore.catalog.disk_rows import row_of
from swampstore.catalog.export import ExportedRows
from swampstore.catalog.schema import INSERT
from swampstore.errors import MetadataError, NewerFormatError, NotFoundError, ValidationError
from swampstore.formats import LARGEST_NUMBER, whole_number
from swampstore.index.errors import IndexDamagedError
from swampstore.index.format import decode_entry, decode_monolith, decode_shard
from swampstore.index.meta import decode_meta
from swampstore.index.path_map import Names
from swampstore.layout import DataRef, ModelRef
from swampstore.locks import record
from swampstore.namespaces.manifests import Manifest
from swampstore.pipeline.gc.marks import MARKS, MarkPages
from swampstore.routing import Routing
from swampstore.stores.memory import MemoryStore
from swampstore.sync import journal, sidecar
from tests.support.machines import Machine

MODEL = "aws/ec2/i-1"
REF = DataRef(ModelRef("aws/ec2", "i-1"), "state")
HUGE = 99999999999999999999

# A number with more digits than Python turns into one; no JSON that Python writes can have it.
ENDLESS = "a number of 5000 digits"

NUMBERS: list[Any] = [
    ENDLESS,
    HUGE,
    -HUGE,
    10**400,
    2**63,
    2**63 - 1,
    2**53,
    0,
    -1,
    1,
    1.5,
    1e308,
    -0.0,
    True,
    False,
]
numbers = st.sampled_from(NUMBERS)
deep: Any = "x"
for _ in range(200):
    deep = [deep]
texts = st.sampled_from(
    ["", "\0", "\x1b[31m", "\ud800", "x" * 100_000, "9" * 5000, "9999-12-31T23:59:59-23:59"]
)
odd = st.one_of(numbers, texts, st.just(deep), st.none(), st.just({"a": {}}), st.just([1]))
cheap = settings(max_examples=30, deadline=None)


def spoilt(document: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Return the document with one or two of its members replaced by something odd."""
    change = st.dictionaries(st.sampled_from([*document]), odd, min_size=1, max_size=2)
    return change.map(lambda changed: document | changed)


def as_json(document: object) -> bytes:
    return json.dumps(document).replace(json.dumps(ENDLESS), "9" * 5000).encode()


METADATA = {
    "id": "6f1c0c3e-5a7e-4b43-9d0e-0d4a3f5d8a11",
    "name": "state",
    "version": 1,
    "contentType": "text/plain",
    "lifetime": "infinite",
    "garbageCollection": 10,
    "streaming": False,
    "tags": {"type": "file"},
    "ownerDefinition": {"ownerType": "manual", "ownerRef": "i-1"},
    "createdAt": "2026-05-14T20:19:51.042Z",
    "size": 1,
    "checksum": "0" * 64,
    "lifecycle": "deleted",
    "renamedTo": "other",
}
ENTRY = {"key": "a", "size": 1, "lastModified": "x", "localMtime": "x", "commitSeq": 1}
META = {"version": 2, "partitions": ["a"], "commitSeq": 1, "swampstore": {"shards": {"a": "x"}}}
SHARD = {"version": 1, "entries": {"a": ENTRY}, "commitSeq": 1}
SIDECAR = {
    "version": 2,
    "remoteIndexETag": "",
    "lastVerifiedAt": "",
    "localDirty": False,
    "dirtyPaths": [],
    "commitSeq": 1,
}
LOCK = {
    "holder": "a",
    "hostname": "b",
    "pid": 1,
    "acquiredAt": "2026-05-14T20:19:51.042Z",
    "ttlMs": 1,
    "nonce": "n",
    "since": "2026-05-14T20:19:51.042Z",
}
ROW = {
    "namespace": "infra",
    "type_normalized": "aws/ec2",
    "model_id": "i-1",
    "data_name": "state",
    "id": "x",
    "version": 1,
    "is_latest": 1,
    "streaming": 0,
    "size": 1,
    "created_at": "2026-05-14T20:19:51.042Z",
    "tags": "{}",
}
MARK = {"name": "data/a/b/c", "version": 1, "entries": "x", "since": "2026-05-14T20:19:51.042Z"}
MANIFEST = {"namespace": "infra", "repoId": "x", "registeredAt": "x"}


@given(spoilt(METADATA))
@cheap
def test_metadata_fits_into_the_catalog_or_is_invalid(document: dict[str, Any]) -> None:
    try:
        found = metadata_format.decode(as_json(document), "x")
    except MetadataError:
        return
    rows = MemoryDatabase()
    row = row_of("", REF, found, deferred=False)
    rows.write(lambda db: db.execute(INSERT, row))
    rows.read(lambda db: db.execute("SELECT sum(size), sum(version) FROM catalog").fetchone())
    rows.close()
    assert found.size is None or 0 <= found.size <= LARGEST_NUMBER
    assert metadata_format.decode(metadata_format.encode(found), "x") == found


@given(spoilt(ENTRY))
@cheap
def test_an_entry_is_in_range_or_damaged(document: dict[str, Any]) -> None:
    with contextlib.suppress(IndexDamagedError):
        entry = decode_entry("a", as_json(document))
        assert 0 <= entry.size <= LARGEST_NUMBER
        assert entry.commit_seq is None or 1 <= entry.commit_seq <= LARGEST_NUMBER


@given(spoilt(META), spoilt(SHARD))
@cheap
def test_documents_of_the_index_are_in_range_damaged_or_newer(
    meta: dict[str, Any], shard: dict[str, Any]
) -> None:
    with contextlib.suppress(IndexDamagedError, NewerFormatError):
        found = decode_meta(as_json(meta))
        assert found.commit_seq is None or 1 <= found.commit_seq <= LARGEST_NUMBER
    for decode in (decode_shard, decode_monolith):
        with contextlib.suppress(IndexDamagedError, NewerFormatError):
            number = decode(as_json(shard)).commit_seq
            assert number is None or 1 <= number <= LARGEST_NUMBER


@given(spoilt(SIDECAR))
@cheap
def test_a_sidecar_is_read_or_newer(document: dict[str, Any]) -> None:
    with contextlib.suppress(NewerFormatError):
        state = sidecar.decode(as_json(document), "remoteIndexETag")
        assert state.commit_seq is None or 1 <= state.commit_seq <= LARGEST_NUMBER
        sidecar.encode(state, "remoteIndexETag")


@given(spoilt(LOCK))
@cheap
def test_a_lock_is_a_record_or_none(document: dict[str, Any]) -> None:
    found = record.decode(as_json(document))
    if found is not None:
        assert 0 < found.ttl_ms <= 24 * 3600 * 1000
        found.renewed(datetime(2026, 1, 1, tzinfo=UTC)).encode()


@given(spoilt(ROW))
@cheap
def test_rows_of_others_fit_into_the_catalog_or_are_left_out(document: dict[str, Any]) -> None:
    exported = ExportedRows(BytesIO(as_json([document])), "infra")
    rows = MemoryDatabase()
    try:
        for row in exported:
            rows.write(lambda db, row=row: db.execute(INSERT, row))  # type: ignore[misc]
    except ValidationError as error:
        assert "no JSON array" in error.message
    rows.close()


@given(spoilt(MARK) | odd)
@cheap
def test_marks_of_garbage_are_read_or_all_new(mark: object) -> None:
    store, names = MemoryStore(), Names("/nowhere", "", Routing())
    store.put(MARKS, as_json({"version": 1, "marks": [mark]}))
    found = MarkPages(store, names).listed()
    assert found.old or found.problem
    assert all(now.since.tzinfo for one in found.old for now in one.marks.values())


@given(spoilt(MANIFEST) | odd)
@cheap
def test_a_manifest_is_read_or_none(document: object) -> None:
    with contextlib.suppress(ValidationError, NewerFormatError):
        Manifest.decode("infra", as_json(document)).encode()


@given(st.lists(odd, max_size=3))
@cheap
def test_a_line_of_the_journal_is_a_record_or_damaged(parts: list[Any]) -> None:
    for document in (parts, parts[:1] and parts[0], ["journal", *parts]):
        journal._decode(journal._encode([document])[:-1])  # type: ignore[list-item]
        journal._version_of(journal._encode([document]))  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("check", "document"),
    [
        (test_metadata_fits_into_the_catalog_or_is_invalid, METADATA),
        (test_an_entry_is_in_range_or_damaged, ENTRY),
        (test_a_sidecar_is_read_or_newer, SIDECAR),
        (test_a_lock_is_a_record_or_none, LOCK),
        (test_rows_of_others_fit_into_the_catalog_or_are_left_out, ROW),
        (test_marks_of_garbage_are_read_or_all_new, MARK),
    ],
    ids=["metadata", "entry", "sidecar", "lock", "export", "mark"],
)
def test_no_number_of_a_format_is_too_much_for_those_who_read_it(
    check: Any, document: dict[str, Any]
) -> None:
    for member in (name for name, value in document.items() if type(value) is int):
        for number in NUMBERS:
            check.hypothesis.inner_test(document | {member: number})


@pytest.mark.parametrize("member", ["version", "commitSeq"])
def test_no_number_of_meta_and_shards_is_too_much_for_those_who_read_it(member: str) -> None:
    check: Any = test_documents_of_the_index_are_in_range_damaged_or_newer
    for number in NUMBERS:
        check.hypothesis.inner_test(META | {member: number}, SHARD | {member: number})


def test_digits_are_a_number_however_many_they_are() -> None:
    assert [whole_number(text) for text in ("0", "7", "007", "0" * 5000 + "7")] == [0, 7, 7, 7]
    for text in ("", "-1", "1.5", "1e3", " 1", "\u00b2", "\u0663"):
        assert whole_number(text) is None
    assert whole_number(str(LARGEST_NUMBER)) == LARGEST_NUMBER
    for digits in (16, 20, 400, 5000):
        assert whole_number("9" * digits) == LARGEST_NUMBER + 1


# Numbers that people give ----------------------------------------------------------------------


def test_a_version_that_no_version_can_have_is_not_found(repo: Repo) -> None:
    repo.artifacts.save(MODEL, "state", "x")
    for version in (HUGE, -HUGE, 2**63, 0):
        with pytest.raises(NotFoundError, match="has no version"):
            repo.version(MODEL, "state", version)
        with pytest.raises(NotFoundError, match="has no version"):
            repo.artifacts.delete(MODEL, "state", version=version)


def test_a_limit_may_be_larger_than_any_number_of_rows(repo: Repo) -> None:
    repo.artifacts.save(MODEL, "state", "x")
    assert len(repo.versions(MODEL, "state", limit=HUGE)) == 1
    assert len(repo.query(limit=HUGE)) == 1
    with pytest.raises(ValidationError):
        repo.artifacts.save(MODEL, "state", "x", garbage_collection=HUGE)


@pytest.mark.parametrize(
    "command",
    [
        ("data", "get", MODEL, "state", "--version", str(HUGE)),
        ("data", "versions", MODEL, "state", "--limit", str(HUGE)),
        ("data", "query", "true", "--limit", str(HUGE)),
        ("data", "search", "x", "--limit", str(HUGE)),
        ("data", "search", "--since", f"{HUGE}d"),
        ("data", "delete", MODEL, "state", "--version", str(HUGE), "--force"),
        ("data", "put", MODEL, "state", "--json-value", "1", "--gc", str(HUGE)),
        ("datastore", "evict", "--to", str(HUGE)),
        ("sync", "--timeout", str(HUGE)),
    ],
    ids=lambda command: " ".join(command[:2]),
)
def test_no_number_on_the_command_line_is_a_defect(command: tuple[str, ...], ana: Machine) -> None:
    assert ana("data", "put", MODEL, "state", "--json-value", "1").status == 0
    done = ana(*command)
    assert "defect" not in done.err
    assert done.status in (0, 1, 2)


# One bad file harms one name -------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [f"size: {HUGE}", f"version: {HUGE}"],
)
def test_one_bad_metadata_of_another_machine_harms_its_own_name_only(
    line: str, ana: Machine, bob: Machine, bucket: Path
) -> None:
    for name in ("good", "bad"):
        assert ana("data", "put", MODEL, name, "--json-value", "1").status == 0
    path = ana.cache / "data/aws/ec2/i-1/bad/1/metadata.yaml"
    member = line.partition(":")[0]
    kept = [one for one in path.read_text().splitlines() if not one.startswith(f"{member}:")]
    path.write_text("\n".join([*kept, line, ""]))
    assert ana("sync", "--push", "--full").status == 0
    for command in (
        ("sync",),
        ("sync", "--full"),
        ("data", "list", MODEL),
        ("data", "get", MODEL, "good"),
        ("data", "query", "true"),
        ("data", "search", "good"),
        ("data", "versions", MODEL, "good"),
        ("data", "put", MODEL, "good", "--json-value", "2"),
        ("data", "rename", MODEL, "good", "better"),
        ("catalog", "rebuild"),
        ("catalog", "status"),
        ("data", "gc"),
        ("datastore", "status"),
        ("data", "delete", MODEL, "better", "--force"),
    ):
        done = bob(*command)
        assert done.status == 0, (command, done)
    done = bob("doctor")
    assert done.status == 1
    assert "bad/1/metadata.yaml" in done.out


def test_a_time_that_no_calendar_has_harms_nobody(ana: Machine, bob: Machine) -> None:
    assert ana("data", "put", MODEL, "state", "--json-value", "1").status == 0
    path = ana.cache / "data/aws/ec2/i-1/state/1/metadata.yaml"
    path.write_text(re.sub(r"(createdAt: '\d{4})-\d\d", r"\1-99", path.read_text()))
    assert ana("sync", "--push", "--full").status == 0
    for command in (
        ("sync",),
        ("data", "get", MODEL, "state"),
        ("data", "list", MODEL),
        ("data", "versions", MODEL, "state"),
        ("data", "search", "state", "--since", "7d"),
        ("data", "gc"),
        ("doctor",),
    ):
        done = bob(*command)
        assert "defect" not in done.err, (command, done)
