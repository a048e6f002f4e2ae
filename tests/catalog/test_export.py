"""What a namespace publishes about itself: the format, when it is written, and bad input."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, BinaryIO, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swampstore import Owner, Repo, open_repo
from swampstore.catalog import export
from swampstore.catalog.export import (
    EXPORT,
    OWN_MEMBERS,
    SHARED_MEMBERS,
    ExportedRows,
    Published,
    decode_row,
    elements,
    write_rows,
)
from swampstore.catalog.schema import Row
from swampstore.errors import ValidationError
from swampstore.layout import ModelRef
from swampstore.marker import update_marker
from tests.conftest import FakeClock
from tests.support.markdown_pages import ROOT, Page, table_rows

WEB = "aws/ec2/i-1"


@pytest.fixture
def infra(repo_dir: Path, clock: FakeClock, tmp_path: Path) -> Iterator[Repo]:
    """A repository in the namespace `infra` of a shared directory."""
    section = {"type": "filesystem", "path": str(tmp_path / "share"), "namespace": "infra"}
    update_marker(str(repo_dir), {"datastore": section})
    with open_repo(repo_dir, durable=False, clock=clock) as repo:
        yield repo


def exported(repo: Repo) -> Any:
    return json.loads(Path(repo.config.datastore_dir, EXPORT).read_bytes())


def row(**changes: Any) -> Row:
    document = {
        "namespace": "infra",
        "type_normalized": "aws/ec2",
        "model_id": "i-1",
        "data_name": "state",
        "version": 1,
        "created_at": "2026-05-14T20:19:51.042Z",
        **changes,
    }
    return decode_row(document, "infra")


# The format --------------------------------------------------------------------------------


def test_the_file_is_an_array_of_whole_rows_in_the_order_of_the_columns(infra: Repo) -> None:
    infra.artifacts.save(WEB, "state", {"cpus": 4}, tags={"env": "é", "modelName": "web"})
    assert infra.export_catalog()
    text = Path(infra.config.datastore_dir, EXPORT).read_text(encoding="utf-8")
    documents = json.loads(text)
    assert text == json.dumps(documents, indent=2, ensure_ascii=False) + "\n"
    [found] = documents
    assert tuple(found) == SHARED_MEMBERS + OWN_MEMBERS
    assert found["namespace"] == "infra"
    assert (found["type_normalized"], found["model_id"]) == ("aws/ec2", "i-1")
    assert (found["version"], found["is_latest"], found["streaming"]) == (1, 1, 0)
    assert json.loads(found["tags"])["env"] == "é"


def test_a_namespace_without_data_publishes_an_empty_array(infra: Repo) -> None:
    assert infra.export_catalog()
    assert Path(infra.config.datastore_dir, EXPORT).read_bytes() == b"[]\n"


def test_tombstones_and_versions_that_wait_are_not_published(infra: Repo) -> None:
    infra.artifacts.save(WEB, "old", "1")
    infra.artifacts.rename(WEB, "old", "new")
    infra.artifacts.save(WEB, "gone", "1")
    infra.artifacts.mark_deleted(WEB, "gone", method="delete")
    with pytest.raises(RuntimeError), infra.artifacts.deferring() as group:
        from swampstore import Draft

        group.save(infra.ref(WEB, "later"), b"1", Draft())
        infra.export_catalog()
        raise RuntimeError
    found = {(one["data_name"], one["version"], one["is_latest"]) for one in exported(infra)}
    assert found == {("old", 1, 0), ("new", 1, 1), ("gone", 1, 0)}


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


@settings(deadline=None)
@given(
    tags=st.dictionaries(texts, texts, max_size=3),
    step=texts,
    version=st.integers(1, 10**18 - 1),
    size=st.integers(0, 2**63 - 1),
    latest=st.integers(0, 1),
)
def test_what_is_written_is_read_back(
    tags: dict[str, str], step: str, version: int, size: int, latest: int
) -> None:
    before = [
        row(tags=json.dumps(tags), step_name=step, version=version, size=size, is_latest=latest),
        row(data_name="other", checksum="0" * 64),
    ]
    file = io.StringIO()
    assert write_rows(before, file) == 2
    after = ExportedRows(io.BytesIO(file.getvalue().encode()), "infra")
    assert list(after) == before
    assert after.bad == 0


def test_every_member_is_described() -> None:
    section = Page(ROOT / "docs/formats/catalog-export.md").section("Members")
    named = [name for row in table_rows(section) for name in re.findall(r"`(\w+)`", row[0])]
    assert sorted(named) == sorted(SHARED_MEMBERS + OWN_MEMBERS)


# Bad input ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"type_normalized": "AWS::EC2"},
        {"type_normalized": "../../etc"},
        {"type_normalized": ""},
        {"model_id": ".."},
        {"model_id": "a/b"},
        {"data_name": "../x"},
        {"data_name": "a\0b"},
        {"data_name": 7},
        {"version": 0},
        {"version": "1"},
        {"version": 10**30},
        {"version": None},
        {"size": -1},
        {"size": 2**63},
        {"is_latest": 2},
        {"streaming": "yes"},
        {"created_at": "yesterday"},
        {"created_at": ""},
        {"tags": "not json"},
        {"tags": "[]"},
        {"tags": '{"a": 1}'},
        {"tags": '{"a": "\\ud800"}'},
        {"tags": "[" * 100_000},
        {"model_name": "\ud800"},
        {"content_type": None},
        {"namespace": "somebody-else"},
    ],
)
def test_a_row_that_breaks_a_rule_is_left_out_and_counted(changes: dict[str, Any]) -> None:
    good = dict(zip(Row._fields, row(), strict=True))
    bad = {**good, **changes}
    rows = ExportedRows(io.BytesIO(json.dumps([good, bad, 7, None, good]).encode()), "infra")
    assert list(rows) == [row(), row()]
    assert rows.bad == 3


def test_a_row_of_another_client_needs_no_members_but_the_address() -> None:
    found = row(unknown={"x": 1}, checksum="nonsense", tags={"env": "prod"})
    assert found.checksum == ""
    assert found.tags == '{"env":"prod"}'
    assert found.lifecycle == "active"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"null",
        b"[",
        b"[{}",
        b'[{"a": 1} {"b": 2}]',
        b"[{},]",
        b"[\xff]",
        b"[" * 100_000,
        b'["' + b"x" * (10 << 20),
        b"\x1f\x8b\x08 zipped",
    ],
)
def test_what_is_no_array_is_refused(data: bytes) -> None:
    with pytest.raises(ValidationError) as caught:
        list(elements(io.BytesIO(data)))
    assert caught.value.hint


class _Slow(io.BytesIO):
    """A file that is read a few bytes at a time."""

    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(min(size or 0, 3))


@settings(deadline=None)
@given(st.lists(st.recursive(st.none() | st.integers() | st.text(), st.lists, max_leaves=5)))
def test_an_array_is_read_the_same_however_it_is_cut(values: list[Any]) -> None:
    data = json.dumps([{"value": value} for value in values]).encode()
    assert list(elements(_Slow(data))) == [{"value": value} for value in values]


def test_reading_a_large_export_holds_one_piece_of_it() -> None:
    count = 20_000

    class Endless(io.RawIOBase):
        """A file that is made while it is read."""

        def __init__(self) -> None:
            self.left = count

        def read(self, size: int = -1, /) -> bytes:
            if self.left < 0:
                return b""
            self.left -= 100
            start = b"[" if self.left == count - 100 else b","
            if self.left < 0:
                return b"]"
            return start + b",".join([b'{"a": "' + b"x" * 500 + b'"}'] * 100)

    import tracemalloc

    tracemalloc.start()
    try:
        found = 0
        for _ in elements(cast("BinaryIO", Endless())):
            found += 1
        assert found == count
        assert tracemalloc.get_traced_memory()[1] < 3_000_000
    finally:
        tracemalloc.stop()


# When it is written ------------------------------------------------------------------------


def test_it_is_written_again_only_after_something_changed(infra: Repo) -> None:
    infra.artifacts.save(WEB, "state", "1")
    assert infra.export_catalog()
    assert not infra.export_catalog()
    infra.artifacts.save(WEB, "state", "2")
    assert infra.export_catalog()
    infra.artifacts.delete(WEB, "state", version=1)
    assert infra.export_catalog()
    assert [one["version"] for one in exported(infra)] == [2]
    assert not infra.export_catalog()
    assert infra.export_catalog(force=True)


def test_it_is_written_again_if_it_is_gone(infra: Repo) -> None:
    infra.export_catalog()
    Path(infra.config.datastore_dir, EXPORT).unlink()
    assert infra.export_catalog()


def test_a_large_one_is_written_every_ten_minutes_at_most(
    infra: Repo, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "SMALL_ROWS", 1)
    for number in range(2):
        infra.artifacts.save(WEB, f"state-{number}", "1")
    assert infra.export_catalog()
    infra.artifacts.save(WEB, "more", "1")
    clock.advance(minutes=9)
    assert not infra.export_catalog()
    assert len(exported(infra)) == 2
    clock.advance(minutes=1)
    assert infra.export_catalog()
    assert len(exported(infra)) == 3


def test_a_clock_that_was_set_back_does_not_keep_it_from_being_written(
    infra: Repo, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "SMALL_ROWS", 0)
    infra.artifacts.save(WEB, "state", "1")
    infra.export_catalog()
    infra.artifacts.save(WEB, "state", "2")
    clock.advance(days=-1)
    assert infra.export_catalog()


def test_counting_the_rows_of_a_namespace_looks_at_no_more_than_asked(infra: Repo) -> None:
    for number in range(3):
        infra.artifacts.save(WEB, f"state-{number}", "1")
    assert infra.catalog.has_at_most(3)
    assert not infra.catalog.has_at_most(2)


def test_a_repository_without_a_namespace_publishes_nothing(repo: Repo) -> None:
    repo.artifacts.save(WEB, "state", "1")
    assert not repo.export_catalog()
    assert not Path(repo.config.datastore_dir, EXPORT).exists()
    assert repo.catalog.changes == 0
    with pytest.raises(ValidationError, match="no namespace"):
        repo.export_catalog(force=True)


def _refresh(
    repo: Repo, mark: Callable[[str], None], published: Callable[[], Published | None]
) -> bool:
    repo.ready(complete=True)
    return export.refresh_export(
        repo.catalog,
        repo.config.datastore_dir,
        mark=mark,
        now=repo.clock(),
        durable=False,
        published=published,
    )


def test_the_path_is_marked_before_it_changes_and_after(infra: Repo) -> None:
    path = Path(infra.config.datastore_dir, EXPORT)
    seen: list[tuple[str, bool]] = []
    assert _refresh(infra, lambda rel: seen.append((rel, path.exists())), lambda: None)
    assert seen == [(f"infra/{EXPORT}", False), (f"infra/{EXPORT}", True)]


def test_an_export_that_cannot_be_finished_leaves_the_old_one(infra: Repo) -> None:
    infra.export_catalog()
    infra.artifacts.save(WEB, "state", "1")

    def refuse(rel: str) -> None:
        raise RuntimeError(rel)

    with pytest.raises(RuntimeError):
        _refresh(infra, refuse, lambda: None)
    assert exported(infra) == []
    assert [path.name for path in Path(infra.config.datastore_dir).glob(".*.tmp")] == []


# A cache that holds some models only -------------------------------------------------------


def _published(infra: Repo, data: bytes, *, age: timedelta = timedelta()) -> Published:
    def waits(model: ModelRef) -> bool:
        return str(model) == WEB

    return Published(len(data), infra.clock() - age, lambda: io.BytesIO(data), waits, waits)


def test_models_that_are_not_here_keep_the_rows_that_others_published(infra: Repo) -> None:
    infra.artifacts.save(WEB, "state", "1", owner=Owner(ref="i-1"))
    infra.export_catalog()
    theirs = exported(infra)[0] | {"model_id": "i-2"}
    ours = exported(infra)[0] | {"data_name": "deleted here"}
    data = json.dumps([theirs, ours]).encode()
    infra.artifacts.save(WEB, "state", "2")
    assert _refresh(infra, lambda _: None, lambda: _published(infra, data))
    found = [(one["model_id"], one["data_name"], one["version"]) for one in exported(infra)]
    assert found == [("i-1", "state", 1), ("i-1", "state", 2), ("i-2", "state", 1)]


def test_what_others_published_may_be_nonsense(infra: Repo) -> None:
    infra.artifacts.save(WEB, "state", "1")
    infra.artifacts.save("aws/ec2/i-2", "other", "1")
    assert _refresh(infra, lambda _: None, lambda: _published(infra, b"[{}, oops"))
    assert [one["data_name"] for one in exported(infra)] == ["state", "other"]


def test_what_others_published_of_models_that_did_not_change_here_stays(infra: Repo) -> None:
    for model in (WEB, "aws/ec2/i-2", "aws/ec2/i-3"):
        infra.artifacts.save(model, "state", "1", owner=Owner(ref="i-1"))
    infra.export_catalog()
    mine, others, _ = exported(infra)
    data = json.dumps([mine, others | {"version": 2}]).encode()
    infra.artifacts.save(WEB, "state", "2")
    assert _refresh(infra, lambda _: None, lambda: _published(infra, data))
    found = [(one["model_id"], one["version"]) for one in exported(infra)]
    assert found == [("i-1", 1), ("i-1", 2), ("i-2", 2)]


def test_a_large_one_that_others_just_published_is_left_alone(
    infra: Repo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "SMALL_BYTES", 1)
    infra.artifacts.save(WEB, "state", "1")
    young = _published(infra, b"[]", age=timedelta(minutes=9))
    assert not _refresh(infra, lambda _: None, lambda: young)
    old = _published(infra, b"[]", age=timedelta(minutes=11))
    assert _refresh(infra, lambda _: None, lambda: old)
