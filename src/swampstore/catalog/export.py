"""What a namespace publishes of its catalog for others: rows as JSON, and their file."""

from __future__ import annotations

import codecs
import contextlib
import json
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from json.encoder import encode_basestring as _quoted
from typing import Any, BinaryIO, NamedTuple, TextIO

from swampstore.catalog.catalog import Catalog
from swampstore.catalog.foreign import PublishedRows
from swampstore.catalog.schema import ACTIVE, Row, tags_json
from swampstore.clock import from_iso
from swampstore.errors import ValidationError
from swampstore.files import disk_errors, replacing
from swampstore.formats import LARGEST_NUMBER
from swampstore.layout import LARGEST_VERSION, DataRef, ModelRef, check_segment
from swampstore.notices import notice

# Every client writes these, in this order; the others are ours, and readers may ignore them.
SHARED_MEMBERS = (
    *("namespace", "type_normalized", "model_id", "data_name", "id", "version", "is_latest"),
    *("model_name", "spec_name", "data_type", "content_type", "lifetime", "owner_type"),
    *("streaming", "size", "created_at", "tags", "owner_ref"),
    *("workflow_run_id", "workflow_name", "job_name", "step_name", "source"),
)
OWN_MEMBERS = ("garbage_collection", "checksum", "workflow_id")
_MEMBERS = tuple((name, Row._fields.index(name)) for name in SHARED_MEMBERS + OWN_MEMBERS)
_TEXTS = tuple(
    name
    for name in SHARED_MEMBERS + OWN_MEMBERS
    if name not in ("namespace", "version", "is_latest", "streaming", "size", "tags", "checksum")
)
_SHA256 = re.compile(r"[0-9a-f]{64}")
_CHUNK = 1 << 18
# No metadata.yaml of reasonable size makes a larger row.
_LONGEST_ELEMENT = 4 << 20
_SPACE = re.compile(r"[ \t\n\r]*")


def write_rows(rows: Iterable[Row], file: TextIO) -> int:
    """Write rows as a JSON array and return how many; only one is held at a time."""
    count = 0
    for row in rows:
        file.write(",\n  {\n" if count else "[\n  {\n")
        file.write(",\n".join(f'    "{name}": {_literal(row[at])}' for name, at in _MEMBERS))
        file.write("\n  }")
        count += 1
    file.write("\n]\n" if count else "[]\n")
    return count


def _literal(value: str | int) -> str:
    return _quoted(value) if isinstance(value, str) else str(value)


class ExportedRows(PublishedRows):
    """The rows that a namespace published, read once, one at a time.

    `bad` counts what was left out because it is no row of that namespace. Iterating raises
    ValidationError where the file stops to be JSON.
    """

    def __init__(self, file: BinaryIO, namespace: str) -> None:
        self._file = file
        self._namespace = namespace

    def __iter__(self) -> Iterator[Row]:
        """Yield each row."""
        for document in elements(self._file):
            try:
                yield decode_row(document, self._namespace)
            except (ValidationError, ValueError, OverflowError, RecursionError):
                self.bad += 1


def decode_row(document: object, namespace: str) -> Row:
    """Return the row that a document stands for.

    Raises ValidationError, ValueError, OverflowError or RecursionError if it stands for none.

    Members that are missing are empty, members that are unknown are ignored.
    """
    if not isinstance(document, dict):
        raise ValidationError("a row is no object", hint="Export the catalog again.")
    if document.get("namespace", "") not in ("", namespace):
        raise ValidationError("a row of another namespace", hint="Export the catalog again.")
    texts = {name: document.get(name, "") for name in _TEXTS}
    _check_texts(texts.values())
    model = ModelRef.of(texts["type_normalized"], texts["model_id"])
    if model.type != texts["type_normalized"]:
        raise ValidationError("a type is not normalised", hint="Export the catalog again.")
    check_segment("data name", texts["data_name"])
    from_iso(texts["created_at"]).astimezone(UTC)
    checksum = document.get("checksum", "")
    return Row(
        namespace=namespace,
        version=_number(document.get("version"), 1, LARGEST_VERSION),
        is_latest=_number(document.get("is_latest", 0), 0, 1),
        streaming=_number(document.get("streaming", 0), 0, 1),
        size=_number(document.get("size", 0), 0, LARGEST_NUMBER),
        tags=_tags(document.get("tags", "{}")),
        checksum=checksum if isinstance(checksum, str) and _SHA256.fullmatch(checksum) else "",
        deferred=0,
        lifecycle=ACTIVE,
        renamed_to="",
        **texts,
    )


def _check_texts(values: Iterable[Any]) -> None:
    """Raise ValidationError for anything that is no text, or that no file can hold."""
    try:
        "".join(values).encode()
    except (TypeError, UnicodeEncodeError) as error:
        raise ValidationError(f"no text: {error}", hint="Export the catalog again.") from None


def _number(value: object, lowest: int, highest: int) -> int:
    if not isinstance(value, int) or not lowest <= value <= highest:
        raise ValidationError(f"{value!r} is out of range", hint="Export the catalog again.")
    return int(value)


def _tags(value: object) -> str:
    """Return tags, which are themselves a JSON text, in the one spelling that SQLite accepts."""
    tags = json.loads(value) if isinstance(value, str) else value
    if not isinstance(tags, Mapping):
        raise ValidationError("the tags are no object", hint="Export the catalog again.")
    _check_texts(tags)
    _check_texts(tags.values())
    return tags_json(tags)


def elements(file: BinaryIO) -> Iterator[Any]:
    """Yield the elements of a JSON array one after the other, whatever the size of the array.

    Raises ValidationError if it is none, or if one element is unreasonably large.
    """
    source = _Source(file)
    if source.peek() != "[":
        raise _malformed("it does not begin with '['")
    source.skip()
    if source.peek() == "]":
        return
    while True:
        yield source.element()
        separator = source.peek()
        source.skip()
        if separator == "]":
            return
        if separator != ",":
            raise _malformed("it ends in the middle")


class _Source:
    """Text that is read piece by piece, and the place in it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")()
        self._scan = json.JSONDecoder().raw_decode
        self._text = ""
        self._at = 0
        self._ended = False

    def peek(self) -> str:
        """Return the next character that is no white space, empty at the end."""
        while True:
            found = _SPACE.match(self._text, self._at)
            assert found is not None
            self._at = found.end()
            if self._at < len(self._text) or not self._more():
                return self._text[self._at : self._at + 1]

    def skip(self) -> None:
        """Go past the character that was peeked at."""
        self._at += 1

    def element(self) -> Any:
        """Return the next value and go past it."""
        self.peek()
        while True:
            try:
                value, end = self._scan(self._text, self._at)
            except (ValueError, RecursionError) as error:
                # It may be cut off where our piece of the text ends.
                if len(self._text) - self._at > _LONGEST_ELEMENT or not self._more():
                    raise _malformed(str(error)) from None
            else:
                self._at = end
                return value

    def _more(self) -> bool:
        if self._ended:
            return False
        data = self._file.read(_CHUNK)
        self._ended = not data
        try:
            text = self._decoder.decode(data, final=self._ended)
        except UnicodeDecodeError as error:
            raise _malformed(str(error)) from None
        self._text, self._at = self._text[self._at :] + text, 0
        return not self._ended


def _malformed(why: str) -> ValidationError:
    return ValidationError(
        f"the catalog export is no JSON array of rows: {why}",
        hint="Let its namespace export its catalog again: `swampstore datastore catalog export`.",
    )


EXPORT = ".catalog-export.json"
SMALL_ROWS = 5_000
SMALL_BYTES = 8 << 20
PAUSE = timedelta(minutes=10)


class Published(NamedTuple):
    """The export that is on the remote, where the cache does not hold everything it describes.

    `waits` tells whether something of a model is marked as changed and was not pushed yet,
    `may_wait` also where everything is marked, and so this model may be.
    """

    size: int
    modified: datetime
    open: Callable[[], BinaryIO]
    waits: Callable[[ModelRef], bool]
    may_wait: Callable[[ModelRef], bool]


def refresh_export(
    catalog: Catalog,
    directory: str,
    *,
    mark: Callable[[str], None],
    now: datetime,
    force: bool = False,
    durable: bool = True,
    published: Callable[[], Published | None] = lambda: None,
    is_unpushed: Callable[[], bool] = lambda: False,
    waiting: Callable[[], Collection[str]] = tuple,
) -> bool:
    """Write the export of the catalog's namespace into its directory; say whether it was written.

    Only if it is due: a row changed since the last one, and there are few rows or the last one is
    old enough; with `force`, always. Also if the last one `is_unpushed`: it would take the place of
    what others have published since. `mark` is told the path, namespace in front, before it
    changes. `published` returns the export to keep all those rows from that others may know better
    than this catalog, None if it knows everything. `waiting` returns the paths of the namespace
    that are about to be pushed: while exports are put off, they are remembered. Raises DiskError.
    """
    path = f"{directory}/{EXPORT}"
    changes = catalog.changes
    last = catalog.last_export
    is_there = os.path.lexists(path)
    if not catalog.namespace:
        return False
    must_be = force or is_unpushed()
    if not must_be and is_there and last and not _is_due(catalog, changes, last, now):
        if last[0] != changes:
            _put_off(catalog, waiting())
        return False
    before = published()
    if before and not must_be and before.size > SMALL_BYTES and _is_recent(before.modified, now):
        _put_off(catalog, waiting())
        return False
    untold = _untold(catalog, is_unpushed)
    with disk_errors(path):
        rows = _rows(catalog, before, _Below(untold))
        _write(path, rows, lambda: mark(f"{catalog.namespace}/{EXPORT}"), durable)
    if untold or catalog.untold[0]:
        catalog.note_untold(untold, is_told=True)
    catalog.note_export(changes, now)
    return True


def _put_off(catalog: Catalog, waiting: Collection[str]) -> None:
    """Remember what others are not told of now; it will not be waiting any more by then."""
    known, is_told = catalog.untold
    untold = frozenset(waiting) if is_told else known.union(waiting)
    if is_told or untold != known:
        catalog.note_untold(untold, is_told=False)


def _untold(catalog: Catalog, is_unpushed: Callable[[], bool]) -> frozenset[str]:
    """Return the paths that no export has told of which arrived."""
    known, is_told = catalog.untold
    return frozenset() if known and is_told and not is_unpushed() else known


class _Below:
    """Tells which data names are at, above or below some paths."""

    def __init__(self, rels: Collection[str]) -> None:
        self._rels = frozenset(rels)
        self._above = frozenset(above for rel in rels for above in _parents(rel))

    def __contains__(self, ref: DataRef) -> bool:
        rel = ref.rel
        return bool(self._rels) and (
            rel in self._rels or rel in self._above or not self._rels.isdisjoint(_parents(rel))
        )


def _parents(rel: str) -> Iterator[str]:
    while "/" in rel:
        rel = rel.rpartition("/")[0]
        yield rel


def _is_due(catalog: Catalog, changes: int, last: tuple[int, str], now: datetime) -> bool:
    if last[0] == changes:
        return False
    return catalog.has_at_most(SMALL_ROWS) or not _is_recent(from_iso(last[1]), now)


def _is_recent(moment: datetime, now: datetime) -> bool:
    return timedelta() <= now - moment < PAUSE


def _rows(catalog: Catalog, published: Published | None, untold: _Below) -> Iterator[Row]:
    """Yield what others may see: no tombstones, and nothing that waits for its commit."""
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(published.open()) if published else None
        told = _told(file, catalog.namespace, untold) if file else None
        if published is None or file is None or told is None:
            for rows in catalog.by_name():
                yield from _shown(rows)
            return
        ours: set[DataRef] = set()
        known: set[DataRef] = set()
        waits = lru_cache(maxsize=1024)(published.waits)
        may_wait = lru_cache(maxsize=1024)(published.may_wait)
        for rows in catalog.by_name():
            ref = rows[0].ref
            is_told = True
            if ref in untold:
                known.add(ref)
                is_told = _is_told(rows, told.get(ref, {}))
            if (
                not is_told
                or may_wait(ref.model)
                or any(_is_after(row, published.modified) for row in rows)
            ):
                ours.add(ref)
                yield from _shown(rows)
        for row in ExportedRows(file, catalog.namespace):
            is_gone = row.ref in untold and row.ref not in known
            if row.ref not in ours and not is_gone and not waits(row.ref.model):
                yield row


def _shown(rows: Iterable[Row]) -> Iterator[Row]:
    return (row for row in rows if not row.is_deleted and not row.deferred)


def _told(
    file: BinaryIO, namespace: str, chosen: _Below
) -> dict[DataRef, dict[int, tuple[str, int]]] | None:
    """Return id and size of the versions that an export tells of chosen names, by number.

    None if it is nonsense.
    """
    found: dict[DataRef, dict[int, tuple[str, int]]] = {}
    try:
        for row in ExportedRows(file, namespace):
            if row.ref in chosen:
                found.setdefault(row.ref, {})[row.version] = (row.id, row.size)
    except ValidationError as error:
        notice("%s", error.message)
        return None
    file.seek(0)
    return found


def _is_told(rows: Sequence[Row], told: Mapping[int, tuple[str, int]]) -> bool:
    """Whether what an export tells of a name was read after all that was done to it here.

    It has our newest version then, none that we deleted below that, and whatever we appended.
    """
    newest = rows[-1]
    if told.get(newest.version, ("", 0))[0] != newest.id:
        return False
    sizes = {row.version: row.size for row in rows}
    return all(
        version > newest.version or (version in sizes and size >= sizes[version])
        for version, (_, size) in told.items()
    )


def _is_after(row: Row, moment: datetime) -> bool:
    try:
        return from_iso(row.created_at) > moment
    except (ValidationError, ValueError):
        return False


def _write(path: str, rows: Iterator[Row], mark: Callable[[], None], durable: bool) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with replacing(path, durable=durable) as temp:
        with open(temp, "x", encoding="utf-8", newline="\n") as file:
            write_rows(rows, file)
        mark()
    mark()  # a push that came in between has seen the old file, and settled the mark
