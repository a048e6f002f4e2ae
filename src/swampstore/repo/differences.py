"""How two versions differ: JSON by members, text by lines, Parquet by schema and rows.

Anything else, and what is too large to be looked into, is compared by size and hash. `compare` is
what `repo.diff` calls.
"""

from __future__ import annotations

import difflib
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from swampstore.artifact import Artifact, html_table
from swampstore.artifacts.content import parse_content
from swampstore.artifacts.frames import PARQUET
from swampstore.artifacts.metadata import is_json, is_text
from swampstore.errors import MissingExtraError, ValidationError

Kind = Literal["binary", "json", "table", "text"]
_CONTEXT = 3
# Beyond so many lines or items that are not equal at either end, they are not aligned any more.
_MANY = 5000
_EXAMPLES = 10
_SHOWN = 100
_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z_0-9]*")


class Change(NamedTuple):
    """One member, or column, that differs; `path` is what `jq` takes, such as `.disks[0].size`."""

    path: str
    change: Literal["added", "changed", "removed"]
    before: Any
    after: Any

    def record(self) -> dict[str, Any]:
        """Return the members of a document; what is not there on a side is left out."""
        found = {"path": self.path, "change": self.change}
        if self.change != "added":
            found["before"] = self.before
        if self.change != "removed":
            found["after"] = self.after
        return found

    def __str__(self) -> str:
        match self.change:
            case "added":
                return f"+ {self.path}: {_json(self.after)}"
            case "removed":
                return f"- {self.path}: {_json(self.before)}"
        return f"~ {self.path}: {_json(self.before)} -> {_json(self.after)}"


class Rows(NamedTuple):
    """How many rows two tables have, and how many of them only one of them has.

    Rows are compared by the columns that both tables have. The examples are the first few.
    """

    before: int
    after: int
    added: int
    removed: int
    examples_added: tuple[dict[str, Any], ...]
    examples_removed: tuple[dict[str, Any], ...]


@dataclass(frozen=True)
class Difference:
    """How `after` differs from `before`.

    `kind` says how they were compared: `changes` are the members of JSON or the columns of tables
    that differ, `lines` is a unified diff of texts, `rows` counts the rows of tables. `note` says
    why they were not looked into as much as they could be, if so.
    """

    before: Artifact
    after: Artifact
    kind: Kind
    is_same: bool
    changes: tuple[Change, ...] = ()
    lines: tuple[str, ...] = ()
    rows: Rows | None = None
    note: str = ""

    def record(self) -> dict[str, Any]:
        """Return the difference as a document, as `data diff --json` prints it."""
        found: dict[str, Any] = {
            "before": _described(self.before),
            "after": _described(self.after),
            "kind": self.kind,
            "same": self.is_same,
        }
        if self.kind in ("json", "table"):
            found["changes"] = [change.record() for change in self.changes]
        if self.kind == "text":
            found["lines"] = list(self.lines)
        if self.rows is not None:
            found["rows"] = {
                "before": self.rows.before,
                "after": self.rows.after,
                "added": self.rows.added,
                "removed": self.rows.removed,
                "examplesAdded": list(self.rows.examples_added),
                "examplesRemoved": list(self.rows.examples_removed),
            }
        return found | ({"note": self.note} if self.note else {})

    def text(self) -> Iterator[str]:
        """Yield the lines that people read: `+` is only in `after`, `-` only in `before`."""
        yield f"--- {_title(self.before)}"
        yield f"+++ {_title(self.after)}"
        if self.is_same:
            yield "The content is the same."
            return
        yield from self.lines
        yield from map(str, self.changes)
        if self.rows is not None:
            rows = self.rows
            yield f"rows: {rows.before} -> {rows.after}, {rows.added} added, {rows.removed} removed"
            yield from (f"- {_json(row)}" for row in rows.examples_removed)
            yield from (f"+ {_json(row)}" for row in rows.examples_added)
        if self.kind == "binary":
            yield f"~ size: {self.before.size} -> {self.after.size} bytes"
        if self.note:
            yield self.note

    def __str__(self) -> str:
        return "\n".join(self.text())

    def __repr__(self) -> str:
        return f"<Difference {_title(self.before)} -> {_title(self.after)}: {self._summary()}>"

    def _summary(self) -> str:
        if self.is_same:
            return "the same"
        match self.kind:
            case "json":
                return f"{len(self.changes)} member(s)"
            case "text":
                signs = Counter(line[:1] for line in self.lines)
                return f"{signs['+']} line(s) added, {signs['-']} removed"
            case "table":
                rows = self.rows
                moved = f", {rows.added} row(s) added, {rows.removed} removed" if rows else ""
                return f"{len(self.changes)} column(s){moved}"
        return f"{self.before.size} -> {self.after.size} bytes"

    def _repr_html_(self) -> str:
        note = f"{_title(self.before)} -> {_title(self.after)}: {self._summary()}"
        if self.kind == "json":
            shown = [
                [
                    one.path,
                    one.change,
                    _side(one, "added", one.before),
                    _side(one, "removed", one.after),
                ]
                for one in self.changes[:_SHOWN]
            ]
            return html_table(["path", "change", "before", "after"], shown, note)
        return html_table(["difference"], [[line] for line in list(self.text())[2:_SHOWN]], note)


def compare(before: Artifact, after: Artifact) -> Difference:
    """Return how two versions differ; content that is only on the remote is fetched."""
    for one in (before, after):
        if one.is_deleted:
            raise ValidationError(
                f"{one.ref} version {one.version} says that the data was deleted or renamed,"
                " and has no content",
                hint=f"Choose another one: `swampstore data versions {one.ref}`.",
            )
    kind = _kind(before, after)
    if before.checksum and before.checksum == after.checksum:
        return Difference(before, after, kind, is_same=True)
    too_large = next((one for one in (before, after) if one.is_too_large_to_parse), None)
    if too_large is not None:
        note = f"Version {too_large.version} is too large to be looked into."
        return Difference(before, after, "binary", is_same=False, note=note)
    contents = before.bytes(), after.bytes()
    if contents[0] == contents[1]:
        return Difference(before, after, kind, is_same=True)
    return _COMPARED[kind](before, after, *contents)


def _compare_json(before: Artifact, after: Artifact, *contents: bytes) -> Difference:
    documents = [parse_content(before.content_type, one)[1] for one in contents]
    try:
        changes = tuple(_changes("", *documents))
    except RecursionError:  # as deep as nobody reads it
        return _compare_text(before, after, *contents)
    return Difference(before, after, "json", is_same=not changes, changes=changes)


def _compare_text(before: Artifact, after: Artifact, *contents: bytes) -> Difference:
    try:
        texts = [one.decode().splitlines() for one in contents]
    except UnicodeDecodeError:
        return _compare_bytes(before, after)
    lines, note = _lines(*texts)
    return Difference(before, after, "text", is_same=False, lines=lines, note=note)


def _compare_bytes(before: Artifact, after: Artifact, *_: bytes) -> Difference:
    return Difference(before, after, "binary", is_same=False)


def _kind(before: Artifact, after: Artifact) -> Kind:
    types = before.content_type, after.content_type
    if all(map(is_json, types)):
        return "json"
    if all(map(is_text, types)):
        return "text"
    return "table" if types == (PARQUET, PARQUET) else "binary"


# JSON ---------------------------------------------------------------------------------------------


def _changes(path: str, before: Any, after: Any) -> Iterator[Change]:
    if isinstance(before, dict) and isinstance(after, dict):
        for key in [*before, *(key for key in after if key not in before)]:
            below = _below(path, key)
            if key not in after:
                yield Change(below, "removed", before[key], None)
            elif key not in before:
                yield Change(below, "added", None, after[key])
            else:
                yield from _changes(below, before[key], after[key])
    elif isinstance(before, list) and isinstance(after, list):
        yield from _item_changes(path, before, after)
    elif _json(before) != _json(after) and not _are_one_number(before, after):
        yield Change(path or ".", "changed", before, after)


def _item_changes(path: str, before: list[Any], after: list[Any]) -> Iterator[Change]:
    """Compare items: those that stand alike are followed, where others came or went."""
    for tag, start, end, other, other_end in _aligned(
        list(map(_json, before)), list(map(_json, after))
    ):
        if tag == "equal":
            continue
        common = min(end - start, other_end - other)
        for offset in range(common):
            below = f"{path or '.'}[{other + offset}]"
            yield from _changes(below, before[start + offset], after[other + offset])
        for place in range(start + common, end):
            yield Change(f"{path or '.'}[{place}]", "removed", before[place], None)
        for place in range(other + common, other_end):
            yield Change(f"{path or '.'}[{place}]", "added", None, after[place])


def _are_one_number(before: Any, after: Any) -> bool:
    """Whether two values are the same number, which JSON may write as 1 and as 1.0."""
    kinds = {type(before), type(after)}
    return kinds == {int, float} and before == after


def _below(path: str, key: str) -> str:
    return f"{path}.{key}" if _PLAIN_KEY.fullmatch(key) else f"{path or '.'}[{_json(key)}]"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True, default=str)


# Lines --------------------------------------------------------------------------------------------

_Piece = tuple[str, int, int, int, int]


def _aligned(before: Sequence[str], after: Sequence[str]) -> list[_Piece]:
    """Return which pieces are equal, and which take the place of which, as difflib says it.

    What is equal at both ends is found first, which is nearly everything. Where very much is left
    it all takes the place of all of the other: to align it would take minutes.
    """
    start = 0
    least = min(len(before), len(after))
    while start < least and before[start] == after[start]:
        start += 1
    end = 0
    while end < least - start and before[-1 - end] == after[-1 - end]:
        end += 1
    ends = len(before) - end, len(after) - end
    if max(ends) - start > _MANY:
        middle: list[_Piece] = [("replace", start, ends[0], start, ends[1])]
    else:
        matcher = difflib.SequenceMatcher(
            None, before[start : ends[0]], after[start : ends[1]], autojunk=False
        )
        middle = [
            (tag, first + start, last + start, new + start, newest + start)
            for tag, first, last, new, newest in matcher.get_opcodes()
        ]
    pieces: list[_Piece] = [("equal", 0, start, 0, start), *middle]
    return [*pieces, ("equal", ends[0], len(before), ends[1], len(after))]


def _lines(before: Sequence[str], after: Sequence[str]) -> tuple[tuple[str, ...], str]:
    """Return a unified diff, and a note if that was too much work."""
    if before == after:
        return (), "Only the ends of lines differ."
    pieces = _aligned(before, after)
    if any(
        tag == "replace" and max(end - start, stop - other) > _MANY
        for tag, start, end, other, stop in pieces
    ):
        came, went = Counter(after), Counter(before)
        added, removed = (came - went).total(), (went - came).total()
        return (), f"{added} lines added, {removed} removed; too many to be shown side by side."
    found: list[str] = []
    for group in _grouped(pieces):
        _, start, _, other, _ = group[0]
        _, _, end, _, stop = group[-1]
        found.append(f"@@ -{_range(start, end)} +{_range(other, stop)} @@")
        for tag, first, last, new, newest in group:
            if tag == "equal":
                found += (f" {line}" for line in before[first:last])
                continue
            found += (f"-{line}" for line in before[first:last])
            found += (f"+{line}" for line in after[new:newest])
    return tuple(found), ""


def _grouped(pieces: Sequence[_Piece]) -> Iterator[list[_Piece]]:
    """Yield the pieces that differ with a few lines around, those close together in one group."""
    group: list[_Piece] = []
    for place, (tag, start, end, other, stop) in enumerate(pieces):
        if tag != "equal":
            group.append((tag, start, end, other, stop))
            continue
        is_last = place == len(pieces) - 1
        if group and (end - start > 2 * _CONTEXT or is_last):
            length = min(_CONTEXT, end - start)
            yield [*group, (tag, start, start + length, other, other + length)]
            group = []
        if not group and not is_last:
            length = min(_CONTEXT, end - start)
            group = [(tag, end - length, end, stop - length, stop)]
        elif group:
            group.append((tag, start, end, other, stop))


def _range(start: int, end: int) -> str:
    """Write a range of lines as `diff -u` does."""
    if end - start == 1:
        return str(start + 1)
    return f"{start + 1 if end > start else start},{end - start}"


# Tables -------------------------------------------------------------------------------------------


def _compare_tables(before: Artifact, after: Artifact, *_: bytes) -> Difference:
    try:
        old, new = before.to_arrow(), after.to_arrow()
    except MissingExtraError as error:
        return Difference(
            before, after, "binary", is_same=False, note=f"{error.hint}, to compare rows."
        )
    types = [{field.name: str(field.type) for field in one.schema} for one in (old, new)]
    changes = tuple(_changes("", *types))
    shared = [name for name in types[0] if name in types[1]]
    rows = _compare_rows(old.select(shared), new.select(shared))
    is_same = not changes and not rows.added and not rows.removed
    return Difference(before, after, "table", is_same=is_same, changes=changes, rows=rows)


def _compare_rows(old: Any, new: Any) -> Rows:
    came, went = Counter(_keys(new)), Counter(_keys(old))
    added, removed = came - went, went - came
    return Rows(
        old.num_rows,
        new.num_rows,
        added.total(),
        removed.total(),
        tuple(_examples(new, added)),
        tuple(_examples(old, removed)),
    )


def _rows(table: Any) -> Iterator[dict[str, Any]]:
    for batch in table.to_batches():
        yield from batch.to_pylist()


def _keys(table: Any) -> Iterator[bytes]:
    """Yield a hash of each row: there may be millions."""
    from hashlib import blake2b

    for row in _rows(table):
        yield blake2b(repr(list(row.values())).encode(), digest_size=16).digest()


def _examples(table: Any, wanted: Counter[bytes]) -> Iterator[dict[str, Any]]:
    left = min(wanted.total(), _EXAMPLES)
    rows = zip(_rows(table), _keys(table), strict=True) if left else ()
    for row, key in rows:
        if key in wanted:
            yield {name: _plain(value) for name, value in row.items()}
            left -= 1
        if not left:
            return


def _plain(value: Any) -> Any:
    """Return a value that JSON can write."""
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _described(artifact: Artifact) -> dict[str, Any]:
    return {
        "model": str(artifact.model),
        "name": artifact.name,
        "version": artifact.version,
        "contentType": artifact.content_type,
        "size": artifact.size,
        "checksum": artifact.checksum,
        "createdAt": artifact.row.created_at,
    }


def _title(artifact: Artifact) -> str:
    return f"{artifact.model_name or artifact.model} {artifact.name} v{artifact.version}"


def _side(change: Change, absent: str, value: Any) -> str:
    return "" if change.change == absent else _json(value)


_COMPARED = {
    "binary": _compare_bytes,
    "json": _compare_json,
    "table": _compare_tables,
    "text": _compare_text,
}
