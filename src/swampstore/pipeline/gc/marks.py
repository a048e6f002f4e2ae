"""What was found to be garbage, and since when: one document in the bookkeeping of a place.

Something goes only after it has been garbage, and unchanged, for the grace period. Whoever is
pushing or reading meanwhile has that long to finish.
"""

from __future__ import annotations

import json
import reprlib
import uuid
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from swampstore.clock import from_iso, to_iso
from swampstore.errors import NewerFormatError
from swampstore.formats import NEWEST, refuse_newer
from swampstore.index.path_map import Names
from swampstore.layout import LARGEST_VERSION
from swampstore.pipeline.gc.candidates import Candidate
from swampstore.stores.errors import ObjectNotFoundError, PreconditionFailedError
from swampstore.stores.protocol import Store

MARKS = "_control/gc/marks.json"
_VERSION = NEWEST["gc marks"]
_DAMAGE = (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError)


class Mark(NamedTuple):
    """Something that is to go: what the index said about it, and since when it says that."""

    fingerprint: str
    since: datetime


# By data name and version; the version 0 stands for the name as a whole.
Marks = Mapping[tuple[str, int], Mark]


class Marked(NamedTuple):
    """What a place has marked, and the token of the document that says so (None: there is none).

    `problem` tells why nothing of a document that is there could be used.
    """

    marks: Marks
    token: str | None = None
    problem: str | None = None


def read_marks(store: Store, names: Names) -> Marked:
    """Return the marks of a place; a document that cannot be understood has none.

    Raises NewerFormatError.
    """
    key = names.remote(MARKS)
    try:
        info, data = store.get(key)
    except ObjectNotFoundError:
        return Marked({})
    token = info.token or store.head(key).token
    try:
        return Marked(_decoded(json.loads(data), key), token)
    except NewerFormatError:
        raise
    except _DAMAGE as error:
        why = reprlib.repr(error)
        return Marked({}, token, f"{key} cannot be understood ({why}): all marks are new")


def write_marks(store: Store, names: Names, marks: Marks, before: Marked) -> Marked | None:
    """Replace the marks that were read; None if somebody else has replaced them meanwhile."""
    if marks == before.marks and before.problem is None:
        return before
    key, data = names.remote(MARKS), _encoded(marks)
    try:
        if before.token is None and store.capabilities.conditional_create:
            written = store.put_if_absent(key, data)
        elif before.token is not None and store.capabilities.conditional_update:
            written = store.put_if_match(key, data, before.token)
        else:
            written = store.put(key, data)
    except PreconditionFailedError:
        return None
    return Marked(marks, written.token)


def marks_of(garbage: Iterable[Candidate], before: Marks, now: datetime) -> Marks:
    """Mark what is garbage now; what was marked and has not changed stays marked since then.

    A mark from the future, made by a clock that was wrong, begins anew.
    """
    marks: dict[tuple[str, int], Mark] = {}
    for one in garbage:
        for version, seen in one.fingerprints.items():
            place = (one.ref.rel, version)
            mark = before.get(place)
            is_same = mark is not None and mark.fingerprint == seen and mark.since <= now
            marks[place] = mark if mark is not None and is_same else Mark(seen, now)
    return marks


def due_of(one: Candidate, marks: Marks, now: datetime, grace: timedelta) -> frozenset[int]:
    """Return the versions (0: the name) that have been marked for the grace period."""
    return frozenset(
        version for version in one.fingerprints if now - marks[one.ref.rel, version].since >= grace
    )


def _decoded(document: dict[str, Any], key: str) -> Marks:
    refuse_newer("gc marks", document["version"], key)
    if document["version"] != _VERSION:
        raise ValueError(f"its version is {document['version']}")
    return {
        (str(mark["name"]), _number(mark["version"])): Mark(
            str(mark["entries"]), from_iso(mark["since"]).astimezone(UTC)
        )
        for mark in document["marks"]
    }


def _number(version: object) -> int:
    """Return a version, or 0 for a name as a whole."""
    if type(version) is not int or not 0 <= version <= LARGEST_VERSION:
        raise ValueError(f"{version!r} is no version")
    return version


def _encoded(marks: Marks) -> bytes:
    document = {
        "version": _VERSION,
        # On some stores equal content has an equal token; no two writes are equal.
        "write": uuid.uuid4().hex,
        "marks": [
            {
                "name": name,
                "version": version,
                "entries": mark.fingerprint,
                "since": to_iso(mark.since),
            }
            for (name, version), mark in sorted(marks.items())
        ],
    }
    return json.dumps(document, indent=1).encode()
