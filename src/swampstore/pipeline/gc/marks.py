"""What was found to be garbage, and since when: pages in the bookkeeping of a place.

Something goes only after it has been garbage, and unchanged, for the grace period. Whoever is
pushing or reading meanwhile has that long to finish.

Marks are in the order of their data names, in pages that nobody changes. One document lists the
pages, and is replaced once new pages are there. So one page is in memory at a time, and whoever
is stopped in between leaves the old marks. To lose a page is to begin its grace periods anew.
"""

from __future__ import annotations

import hashlib
import json
import reprlib
import uuid
import zlib
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Any, NamedTuple

from swampstore.clock import from_iso, to_iso
from swampstore.errors import NewerFormatError
from swampstore.formats import NEWEST, refuse_newer
from swampstore.index.path_map import Names
from swampstore.layout import LARGEST_VERSION
from swampstore.pipeline.gc.candidates import Candidate
from swampstore.stores.errors import ObjectNotFoundError, PreconditionFailedError
from swampstore.stores.protocol import Store

_GC = "_control/gc/"
MARKS = f"{_GC}marks.json"
PAGES = f"{_GC}marks/"
_VERSION = NEWEST["gc marks"]
_WITHOUT_PAGES = 1  # the version that has the marks themselves
_DAMAGE = (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError)
# One name of so many begins a page, always the same ones: a change in one page moves no other.
_NAMES = 1024
_MOST = 50_000
# What no document lists for so long is of a collection that was stopped.
_ABANDONED = timedelta(days=1)


class Mark(NamedTuple):
    """Something that is to go: what the index said about it, and since when it says that."""

    fingerprint: str
    since: datetime


Marks = Mapping[int, Mark]
"""Those of one data name, by version; the version 0 stands for the name as a whole."""


class Marked(NamedTuple):
    """A data name of which something is marked."""

    name: str
    marks: Marks


class Page(NamedTuple):
    """Where some marks are, and the hash of what is there."""

    key: str
    sha256: str


class Listed(NamedTuple):
    """Which pages a place has, and the token of the document that says so (None: there is none).

    `old` are the marks of a document without pages. `problem` tells why nothing of a document that
    is there could be used.
    """

    pages: tuple[Page, ...] = ()
    token: str | None = None
    problem: str | None = None
    old: tuple[Marked, ...] = ()


class MarkPages:
    """The marks of one place; `problems` tell which of them could not be read."""

    def __init__(self, store: Store, names: Names) -> None:
        self.problems: list[str] = []
        self._store = store
        self._names = names
        self._lost: set[Page] = set()

    def listed(self) -> Listed:
        """Return which pages there are; a document that cannot be understood has none.

        Raises NewerFormatError.
        """
        key = self._names.remote(MARKS)
        try:
            info, data = self._store.get(key)
        except ObjectNotFoundError:
            return Listed()
        token = info.token or self._store.head(key).token
        try:
            return _listed(json.loads(data), key, token)
        except NewerFormatError:
            raise
        except _DAMAGE as error:
            problem = _cannot_be_understood(key, error, "all marks are new")
            self.problems.append(problem)
            return Listed((), token, problem)

    def marks(self, listed: Listed) -> Iterator[Marked]:
        """Yield the names with marks, in their order, reading page by page."""
        yield from listed.old
        for page in listed.pages:
            yield from self._read(page)

    def _read(self, page: Page) -> list[Marked]:
        """Return a page; one that is gone or cannot be understood has no marks."""
        key = self._names.remote(PAGES + page.key)
        try:
            data = self._store.get(key).data
            if hashlib.sha256(data).hexdigest() != page.sha256:
                raise ValueError("it is not what was written")
            return _decoded(json.loads(data)["marks"])
        except (ObjectNotFoundError, *_DAMAGE) as error:
            self.problems.append(_cannot_be_understood(key, error, "its marks are new"))
            self._lost.add(page)
            return []

    def replace(self, before: Listed, marks: Iterable[Marked]) -> Listed | None:
        """Replace the marks that were listed; None if somebody else has replaced them meanwhile.

        They come in the order of their names. Pages that stay the same are not written again.
        """
        there = {page.sha256: page for page in before.pages if page not in self._lost}
        write = uuid.uuid4().hex
        pages: list[Page] = []
        new: list[Page] = []
        for number, some in enumerate(_cut(marks)):
            data = _encoded(some)
            sha256 = hashlib.sha256(data).hexdigest()
            page = there.get(sha256)
            if page is None:
                page = Page(f"{write}-{number}.json", sha256)
                self._store.put(self._names.remote(PAGES + page.key), data)
                new.append(page)
            pages.append(page)
        if not self._is_other(before, pages):
            return before
        token = self._put(_document(write, pages), before.token)
        if token is None:
            self._remove(new)
            return None
        self._remove(set(before.pages) - set(pages))
        self._remove_abandoned(pages)
        return Listed(tuple(pages), token)

    def _is_other(self, before: Listed, pages: list[Page]) -> bool:
        if before.problem or before.old or self.problems:
            return True
        return tuple(pages) != before.pages

    def _put(self, data: bytes, token: str | None) -> str | None:
        """Put the document where the one with this token is; None if it is another one by now."""
        store, key = self._store, self._names.remote(MARKS)
        try:
            if token is None and store.capabilities.conditional_create:
                written = store.put_if_absent(key, data)
            elif token is not None and store.capabilities.conditional_update:
                written = store.put_if_match(key, data, token)
            else:
                written = store.put(key, data)
        except PreconditionFailedError:
            return self._token_of(data)
        return written.token

    def _token_of(self, data: bytes) -> str | None:
        """Return the token of the document if it is this one: the answer may have got lost."""
        store, key = self._store, self._names.remote(MARKS)
        try:
            info, found = store.get(key)
            return (info.token or store.head(key).token) if found == data else None
        except ObjectNotFoundError:
            return None

    def _remove(self, pages: Iterable[Page]) -> None:
        for page in pages:
            self._store.delete(self._names.remote(PAGES + page.key))

    def _remove_abandoned(self, pages: Iterable[Page]) -> None:
        """Remove the pages of collections that were stopped before they listed them.

        One that is at work lists its pages within minutes.
        """
        listed = {self._names.remote(PAGES + page.key) for page in pages}
        found = {one.key: one.last_modified for one in self._store.list(self._names.remote(_GC))}
        now = found.pop(self._names.remote(MARKS), None)  # it was just written
        for key in found.keys() - listed:
            if now is not None and now - found[key] >= _ABANDONED:
                self._store.delete(key)


# Rules -------------------------------------------------------------------------------------------


def beside(
    garbage: Iterable[Candidate], before: Iterable[Marked]
) -> Iterator[tuple[Candidate | None, Marks]]:
    """Yield what is garbage, each with what was marked of it before.

    Both come in the order of their names. What was marked and is no garbage comes without any.
    """
    marked = iter(before)
    last = next(marked, None)
    for one in garbage:
        name = one.ref.rel
        while last is not None and last.name < name:
            yield None, last.marks
            last = next(marked, None)
        if last is not None and last.name == name:
            yield one, last.marks
            last = next(marked, None)
        else:
            yield one, {}
    while last is not None:
        yield None, last.marks
        last = next(marked, None)


def marks_of(one: Candidate, before: Marks, now: datetime) -> Marks:
    """Mark what is garbage now; what was marked and has not changed stays marked since then.

    A mark from the future, made by a clock that was wrong, begins anew.
    """
    marks: dict[int, Mark] = {}
    for version, seen in one.fingerprints.items():
        mark = before.get(version)
        is_same = mark is not None and mark.fingerprint == seen and mark.since <= now
        marks[version] = mark if mark is not None and is_same else Mark(seen, now)
    return marks


def due_of(marks: Marks, now: datetime, grace: timedelta) -> frozenset[int]:
    """Return the versions (0: the name) that have been marked for the grace period."""
    return frozenset(version for version, mark in marks.items() if now - mark.since >= grace)


def without(
    marked: Iterable[Marked], swept: Iterable[tuple[str, Iterable[int]]]
) -> Iterator[Marked]:
    """Yield marks without those of what was swept; both come in the order of their names."""
    gone = groupby(swept, lambda one: one[0])
    name, of_name = next(gone, (None, ()))
    for one in marked:
        left = one.marks
        if name == one.name:
            versions = {version for _, some in of_name for version in some}
            left = {version: mark for version, mark in left.items() if version not in versions}
            name, of_name = next(gone, (None, ()))
        if left:
            yield Marked(one.name, left)


# Documents ---------------------------------------------------------------------------------------


def _cut(marks: Iterable[Marked]) -> Iterator[list[Marked]]:
    """Cut marks into pages; those of a name are in one."""
    page: list[Marked] = []
    count = 0
    for one in marks:
        begins = zlib.crc32(one.name.encode(errors="surrogatepass")) % _NAMES == 0
        if page and (begins or count + len(one.marks) > _MOST):
            yield page
            page, count = [], 0
        page.append(one)
        count += len(one.marks)
    if page:
        yield page


def _listed(document: dict[str, Any], key: str, token: str | None) -> Listed:
    refuse_newer("gc marks", document["version"], key)
    if document["version"] == _WITHOUT_PAGES:
        return Listed((), token, old=tuple(_decoded(document["marks"])))
    if document["version"] != _VERSION:
        raise ValueError(f"its version is {document['version']}")
    pages = [Page(_name(page["page"]), str(page["sha256"])) for page in document["pages"]]
    return Listed(tuple(pages), token)


def _name(page: object) -> str:
    """Return the name of a page, which must not be the way to anything else."""
    if not isinstance(page, str) or not page or "/" in page:
        raise ValueError(f"{page!r} is no page")
    return page


def _document(write: str, pages: Iterable[Page]) -> bytes:
    listed = [{"page": page.key, "sha256": page.sha256} for page in pages]
    # On some stores equal content has an equal token; no two writes are equal.
    return json.dumps({"version": _VERSION, "write": write, "pages": listed}, indent=1).encode()


def _decoded(marks: list[dict[str, Any]]) -> list[Marked]:
    found: dict[str, dict[int, Mark]] = {}
    for mark in marks:
        since = from_iso(mark["since"]).astimezone(UTC)
        of_name = found.setdefault(str(mark["name"]), {})
        of_name[_number(mark["version"])] = Mark(str(mark["entries"]), since)
    return [Marked(*one) for one in sorted(found.items())]


def _number(version: object) -> int:
    """Return a version, or 0 for a name as a whole."""
    if type(version) is not int or not 0 <= version <= LARGEST_VERSION:
        raise ValueError(f"{version!r} is no version")
    return version


def _encoded(page: Iterable[Marked]) -> bytes:
    marks = [
        {
            "name": one.name,
            "version": version,
            "entries": mark.fingerprint,
            "since": to_iso(mark.since),
        }
        for one in page
        for version, mark in sorted(one.marks.items())
    ]
    return json.dumps({"marks": marks}, indent=0).encode()


def _cannot_be_understood(key: str, error: Exception, so: str) -> str:
    return f"{key} cannot be understood ({reprlib.repr(error)}): {so}"
