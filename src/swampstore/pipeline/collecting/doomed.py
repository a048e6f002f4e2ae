"""Removing objects that no index names any more, also if whoever began it was stopped.

Which objects are to be removed is written down before the index forgets them. So nothing is left
over: the next collection finds the record and finishes it.
"""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Collection, Iterator
from typing import NamedTuple

from swampstore.clock import to_iso
from swampstore.errors import SwampstoreError
from swampstore.formats import NEWEST, refuse_newer
from swampstore.locks.errors import LockLostError
from swampstore.pipeline.editing import Editor
from swampstore.stores.errors import ObjectNotFoundError, PreconditionFailedError
from swampstore.stores.protocol import ObjectInfo, Store
from swampstore.sync.shapes import is_marker
from swampstore.sync.workers import Deadline, in_parallel

DOOMED = "_control/gc/doomed/"


class Doomed(NamedTuple):
    """An object that is to be removed: this very one, and none that takes its place."""

    rel: str
    etag: str
    modified: str


def doomed(rel: str, info: ObjectInfo) -> Doomed:
    """Return an object as it is now as one to be removed."""
    # Listings tell fractions of a second that other answers do not.
    return Doomed(rel, info.etag, to_iso(info.last_modified.replace(microsecond=0)))


class Removed(NamedTuple):
    """How many objects were removed, and why others could not be."""

    objects: int = 0
    failures: tuple[str, ...] = ()


def write_down(editor: Editor, objects: Collection[Doomed]) -> str:
    """Keep what is about to be removed; return the key of the record."""
    key = editor.names.remote(f"{DOOMED}{uuid.uuid4()}.json")
    document = {"version": NEWEST["gc doomed"], "objects": [one._asdict() for one in objects]}
    # Under a name that nobody else writes, so without a condition.
    editor.store.put(key, json.dumps(document, indent=1).encode())
    return key


def remove(editor: Editor, objects: Collection[Doomed], record: str) -> Removed:
    """Remove objects, then the record of them; with failures, the record stays for later.

    The global lock is held. Raises LockLostError, and removes nothing more, if it is not.

    Markers go first. Whoever saves a name anew may find one that says just what his own would say,
    and leave it at that; but not while the versions that it tells of are in his way.
    """
    editor.check()
    count, failures = 0, []
    for is_first in (True, False):
        chosen = [one for one in objects if is_marker(one.rel) is is_first]
        for _, is_removed, error in in_parallel(
            lambda one: _remove(editor, one),
            chosen,
            editor.place.config.limits.push_concurrency,
            Deadline(),
        ):
            if isinstance(error, LockLostError):
                raise error
            count += bool(is_removed)
            failures += [error.message] if error else []
        if failures:
            return Removed(count, tuple(failures))
    editor.store.delete(record)
    return Removed(count)


def _remove(editor: Editor, wanted: Doomed) -> bool:
    store, key = editor.store, editor.names.remote(wanted.rel)
    try:
        found = store.head(key)
    except ObjectNotFoundError:
        return False
    if doomed(wanted.rel, found) != wanted:
        return False  # somebody has put another one in its place
    # Whoever has the lock by now may have made this very object his own.
    editor.locks.check()
    if store.capabilities.conditional_delete and found.token is not None:
        with contextlib.suppress(PreconditionFailedError):
            store.delete_if_match(key, found.token)
            return True
        return False
    store.delete(key)
    return True


def finish(editor: Editor) -> Removed:
    """Finish what collections that were stopped have left: objects that no index names."""
    records = [info.key for info in editor.store.list(editor.names.remote(DOOMED))]
    done = []
    for record in records:
        with editor.locks.committing():
            # Whoever holds the lock is the only one at work, so the record is of somebody dead.
            done.append(_finish(editor, record))
    failures = tuple(failure for one in done for failure in one.failures)
    return Removed(sum(one.objects for one in done), failures)


def _finish(editor: Editor, record: str) -> Removed:
    try:
        objects = [one for one in _read(editor.store, record) if _is_data(editor, one.rel)]
    except ObjectNotFoundError:
        return Removed()
    except SwampstoreError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return Removed(0, (f"{record} cannot be understood: {error!r}",))
    view = editor.view([one.rel for one in objects])
    unnamed = [one for one in objects if view.raw(one.rel) is None]
    return remove(editor, unnamed, record)


def _is_data(editor: Editor, rel: str) -> bool:
    """Whether a path can be one of those that collections remove; a record could say anything."""
    return rel.startswith("data/") and editor.names.why_not(rel) is None


def _read(store: Store, record: str) -> Iterator[Doomed]:
    document = json.loads(store.get(record).data)
    refuse_newer("gc doomed", document["version"], record)
    for one in document["objects"]:
        yield Doomed(one["rel"], one["etag"], one["modified"])
