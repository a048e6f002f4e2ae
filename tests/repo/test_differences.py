"""How versions differ, and following what is appended to one."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swampstore import Repo, open_repo
from swampstore.errors import NotFoundError, ValidationError
from swampstore.repo.differences import _changes, _lines

MODEL = "aws/ec2/i-1"
LINES = st.lists(st.sampled_from("abcd"), max_size=40)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(0, 3) | st.sampled_from(["", "x", "x y"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["a", "b", "x y"]), inner, max_size=3)
    ),
    max_leaves=12,
)


def applied(before: list[str], lines: tuple[str, ...]) -> list[str]:
    """Return what a unified diff makes of some lines, every one of which it must find."""
    found: list[str] = []
    at = 0
    for line in lines:
        if hunk := re.fullmatch(r"@@ -(\d+)(?:,(\d+))? \+\d+(?:,\d+)? @@", line):
            start = int(hunk[1]) - (0 if hunk[2] == "0" else 1)
            found += before[at:start]
            at = start
            continue
        if line[0] != "+":
            assert before[at] == line[1:]
            at += 1
        if line[0] != "-":
            found.append(line[1:])
    return found + before[at:]


@given(LINES, LINES)
def test_the_lines_of_a_difference_make_one_text_of_the_other(
    before: list[str], after: list[str]
) -> None:
    assert applied(before, _lines(before, after)[0]) == after


@given(VALUES, VALUES)
def test_there_are_changes_exactly_where_json_differs(before: Any, after: Any) -> None:
    def written(value: Any) -> str:
        return json.dumps(value, sort_keys=True)

    assert bool(list(_changes("", before, after))) == (written(before) != written(after))


def test_json_is_compared_by_members(repo: Repo) -> None:
    old = {"n": 1, "gone": True, "disks": [{"size": 1}, {"size": 2}], "same": 1.0, "a b": 0}
    new = {"n": 2, "came": None, "disks": [{"size": 2}], "same": 1, "a b": False}
    before, after = (repo.save(MODEL, "state", one) for one in (old, new))
    found = repo.diff(before, after)
    assert [str(change) for change in found.changes] == [
        "~ .n: 1 -> 2",
        "- .gone: true",
        '- .disks[0]: {"size": 1}',
        '~ .["a b"]: 0 -> false',
        "+ .came: null",
    ]
    assert repr(found) == f"<Difference {MODEL} state v1 -> {MODEL} state v2: 5 member(s)>"
    assert "<td>.n</td><td>changed</td><td>1</td><td>2</td>" in found._repr_html_()
    assert repo.diff(f"{MODEL}/state@1", f"{MODEL}/state").record() == found.record()
    assert found.record()["changes"][4] == {"path": ".came", "change": "added", "after": None}


def test_text_is_compared_by_lines_and_what_is_equal_is_told_so(repo: Repo) -> None:
    before = repo.save(MODEL, "log", "one\ntwo\nthree\n", content_type="text/plain")
    after = repo.save(MODEL, "log", "one\n2\nthree\n", content_type="text/plain")
    found = repo.diff(before, after)
    assert found.lines == ("@@ -1,3 +1,3 @@", " one", "-two", "+2", " three")
    assert not found.is_same
    assert "1 line(s) added, 1 removed" in repr(found)
    again = repo.save(MODEL, "log", "one\n2\nthree\n", content_type="text/plain")
    assert repo.diff(after, again).is_same
    assert str(repo.diff(after, again)).endswith("The content is the same.")
    ends = repo.save(MODEL, "log", "one\r\n2\nthree", content_type="text/plain")
    assert repo.diff(after, ends).note == "Only the ends of lines differ."


def test_very_different_texts_are_counted_and_not_aligned(repo: Repo) -> None:
    texts = ("\n".join(f"{word} {n}" for n in range(6000)) for word in ("old", "new"))
    before, after = (repo.save(MODEL, "log", one, content_type="text/plain") for one in texts)
    found = repo.diff(before, after)
    assert found.lines == ()
    assert found.note.startswith("6000 lines added, 6000 removed")


def test_anything_else_is_compared_by_size(repo: Repo) -> None:
    contents = (b"\x00" * 5, b"\x01" * 9)
    before, after = (repo.save(MODEL, "image", one, content_type="image/png") for one in contents)
    found = repo.diff(before, after)
    assert (found.kind, str(found).splitlines()[-1]) == ("binary", "~ size: 5 -> 9 bytes")
    state = repo.save(MODEL, "state", {"n": 1})
    assert repo.diff(state, after).kind == "binary"


def test_parquet_is_compared_by_schema_and_rows(repo: Repo) -> None:
    arrow = pytest.importorskip("pyarrow")
    old = arrow.table({"n": [1, 2, 2, 3], "gone": ["a"] * 4})
    new = arrow.table({"n": [2, 3, 4], "came": [0.5] * 3})
    before, after = (repo.save(MODEL, "metrics", one) for one in (old, new))
    found = repo.diff(before, after)
    assert [str(change) for change in found.changes] == ['- .gone: "string"', '+ .came: "double"']
    assert found.rows is not None
    assert found.rows[:4] == (4, 3, 1, 2)
    assert found.rows.examples_added == ({"n": 4},)
    assert found.rows.examples_removed == ({"n": 1}, {"n": 2})
    assert "rows: 4 -> 3, 1 added, 2 removed" in str(found)
    # The same rows in other bytes.
    turned = repo.save(MODEL, "metrics", arrow.table({"n": [4, 3, 2], "came": [0.5] * 3}))
    assert repo.diff(after, turned).is_same


def test_what_cannot_be_compared_says_why(repo: Repo) -> None:
    first = repo.save(MODEL, "state", {"n": 1})
    tombstone = repo.artifacts.mark_deleted(MODEL, "state", method="delete")
    with pytest.raises(ValidationError, match="has no content"):
        repo.diff(first, tombstone)
    with pytest.raises(ValidationError, match="does not name data of a model"):
        repo.at("state")
    with pytest.raises(NotFoundError):
        repo.at(f"{MODEL}/state@{10**20}")


# Following -----------------------------------------------------------------------------------


def test_the_last_lines_are_found_without_reading_all(repo: Repo) -> None:
    text = "".join(f"line {n} {'x' * 100}\n" for n in range(2000))
    repo.save(MODEL, "log", text, content_type="text/plain", streaming=True)
    for lines in (1, 3, 700, 2000, 5000):
        found = b"".join(one.data for one in repo.watch(MODEL, "log", lines=lines, follow=False))
        assert found.decode() == "".join(text.splitlines(keepends=True)[-lines:])
    assert list(repo.watch(MODEL, "log", lines=0, follow=False)) == []


def test_what_is_appended_comes_and_then_the_next_version(repo: Repo) -> None:
    repo.save(MODEL, "log", b"one\n", content_type="text/plain", streaming=True)
    with open_repo(repo.config.repo_dir, durable=False) as other:
        pieces = repo.watch(MODEL, "log", pause=0.01)
        assert next(pieces)[1:] == (0, b"one\n")
        other.artifacts.append(MODEL, "log", b"two\n")
        assert next(pieces)[1:] == (4, b"two\n")
        # Both happen between two looks: nothing is left out.
        other.artifacts.append(MODEL, "log", b"three\n")
        other.save(MODEL, "log", b"new\n", content_type="text/plain", streaming=True)
        piece = next(pieces)
        assert (piece.artifact.version, piece.offset, piece.data) == (1, 8, b"three\n")
        piece = next(pieces)
        assert (piece.artifact.version, piece.offset, piece.data) == (2, 0, b"new\n")


def test_watching_a_name_that_is_not_there_says_what_exists(repo: Repo) -> None:
    repo.save(MODEL, "log", b"one\n")
    with pytest.raises(NotFoundError, match="lgo"):
        next(iter(repo.watch(MODEL, "lgo")))
