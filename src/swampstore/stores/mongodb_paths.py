"""The paths of one namespace in a MongoDB database: reading them, and committing changes.

A path is a document that all clients understand: `{_id: path, hash, size, updatedAt, deletedAt}`.
What is deleted stays for a while as a document with `deletedAt`. Ours have `commitSeq` too, the
number of the commit; members that we do not know stay as they are.

Where the deployment has transactions, a commit is one: the paths and `_meta.json`. Elsewhere, and
where it is too large for that, the paths come first, each on the condition that it is what was
expected: content before what speaks of it, and what is taken away after all that is put in; then
`_meta.json`. Whoever is killed in between has changed paths that are true, and that others have not
heard of. The next commit tells them: its number is higher than that of any path.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from swampstore.clock import EPOCH, to_iso, to_ms
from swampstore.stores.errors import not_found
from swampstore.stores.mongodb_blobs import BATCH, INLINE, Blobs
from swampstore.stores.mongodb_client import TRANSIENT, Connection, whole
from swampstore.stores.mongodb_keys import MORE, PATHS, below, is_shared
from swampstore.stores.paths import (
    PathChange,
    PathCursor,
    PathsCommit,
    PathsMovedError,
    SeenPath,
    StoredPath,
)
from swampstore.stores.protocol import Fetched, ObjectInfo, Written

if TYPE_CHECKING:
    from pymongo.client_session import ClientSession

    from swampstore.stores.mongodb_objects import Objects

# Made from the paths whenever somebody asks for it: what reads a whole index at once wants that.
MONOLITH = ".datastore-index.json"
_ENTRY_BYTES = 256
# So far clocks of other clients may be behind, and primaries that follow one another.
OVERLAP = timedelta(minutes=10)
# MongoDB ends a transaction after a minute; a commit of more paths than that is in order only.
LARGEST_TRANSACTION = 10_000
_PAUSES = (0.02, 0.1, 0.5, 1.0)
# Directories asked for in one query.
_ROOTS = 100
_ASKED = 5000


class Paths:
    """The index of one namespace. `collection` names its collections by their kind."""

    def __init__(
        self, connection: Connection, names: dict[str, str], objects: Objects, blobs: Blobs
    ) -> None:
        self._connection = connection
        self._names = names
        self._objects = objects
        self._blobs = blobs

    def documents(self, kind: str) -> Any:
        """Return the collection of shared paths, or of more."""
        return self._connection.database[self._names[kind]]

    # Reading -------------------------------------------------------------------------------------

    def find(self, rel: str) -> dict[str, Any] | None:
        """Return the document of a shared file that the index names."""
        found = self.record(rel)
        is_live = found is not None and found.get("deletedAt") is None
        return found if found and is_live and isinstance(found.get("hash"), str) else None

    def record(self, rel: str) -> dict[str, Any] | None:
        """Return the document of a shared file, deleted or not."""
        with self._connection.errors():
            found: dict[str, Any] | None = self.documents(PATHS).find_one({"_id": rel})
        return found

    def is_there(self, rel: str) -> bool:
        """Whether the index names a shared file, and its content is there."""
        found = self.find(rel)
        return found is not None and bool(self._blobs.sizes([found["hash"]]))

    def changed(self, since: PathCursor | None, prefixes: Sequence[str]) -> Iterator[StoredPath]:
        """See KeepsPaths.changed_paths."""
        condition = _since(since) if since else {}
        if prefixes:
            ranges = [{"_id": below(prefix)} for prefix in prefixes]
            condition = {"$and": [condition, {"$or": ranges}]} if condition else {"$or": ranges}
        for kind in (PATHS, MORE):
            yield from self._found(kind, condition)

    def known(self, rels: Collection[str], directories: Collection[str]) -> Iterator[StoredPath]:
        """See KeepsPaths.known_paths."""
        for kind in (PATHS, MORE):
            is_kind = is_shared if kind == PATHS else lambda rel: not is_shared(rel)
            exact = [rel for rel in rels if is_kind(rel)]
            for start in range(0, len(exact), _ASKED):
                yield from self._found(kind, {"_id": {"$in": exact[start : start + _ASKED]}})
            roots = [one for one in directories if is_kind(f"{one}/")]
            for start in range(0, len(roots), _ROOTS):
                chosen = roots[start : start + _ROOTS]
                ranges = [{"_id": below(f"{root}/")} for root in chosen]
                yield from self._found(kind, {"$or": ranges} if len(ranges) > 1 else ranges[0])

    def between(self, start: str, end: str | None) -> Iterator[StoredPath]:
        """See KeepsPaths.paths_between."""
        bounds = {"$gte": start} | ({} if end is None else {"$lt": end})
        for kind in (PATHS, MORE):
            yield from self._found(kind, {"_id": bounds})

    def _found(self, kind: str, condition: dict[str, Any]) -> Iterator[StoredPath]:
        for page in self._connection.pages(self._names[kind], condition, size=_ASKED):
            yield from map(stored_path, page)

    def newest(self) -> datetime | None:
        """See KeepsPaths.newest_path."""
        found = [self._last(kind, "updatedAt") for kind in (PATHS, MORE)]
        moments = [one for one in found if isinstance(one, datetime)]
        return max(moments, default=None)

    def last_commit(self) -> int:
        """See KeepsPaths.last_path_commit."""
        found = [self._last(kind, "commitSeq") for kind in (PATHS, MORE)]
        return max((one for one in found if isinstance(one, int)), default=0)

    def _last(self, kind: str, member: str) -> datetime | int | None:
        with self._connection.errors():
            chosen = {member: {"$ne": None}}
            found = self.documents(kind).find(chosen, {member: 1}).sort(member, -1).limit(1)
            value = next((one.get(member) for one in found), None)
        return value if isinstance(value, datetime | int) else None

    # The whole index at once ---------------------------------------------------------------------

    def monolith(self, key: str) -> Fetched:
        """Make the document of all paths that version 1 of the index has."""
        entries = {one.rel: _entry(one) for one in self.changed(None, ()) if not one.is_deleted}
        info = self.monolith_info(key)
        document = {"version": 1, "lastPulled": to_iso(info.last_modified), "entries": entries}
        data = json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()
        return Fetched(info._replace(size=len(data)), data)

    def monolith_info(self, key: str) -> ObjectInfo:
        """Say of `monolith` what can be told without reading all paths: its size is about that."""
        newest = self.newest()
        if newest is None:
            raise not_found(key, self._connection.identity)
        with self._connection.errors():
            count = self.documents(PATHS).estimated_document_count()
        etag = f"{to_ms(newest)}-{count}-{self.last_commit()}-paths"
        return ObjectInfo(key, count * _ENTRY_BYTES, etag, None, newest)

    # Committing ----------------------------------------------------------------------------------

    def commit(self, commit: PathsCommit) -> Written:
        """See KeepsPaths.commit_paths."""
        self._check_content(commit.changes)
        is_small = len(commit.changes) <= LARGEST_TRANSACTION
        if is_small and self._connection.deployment().has_transactions:
            written = self._in_transaction(commit)
        else:
            self._change(commit, None)
            written = self._write_meta(commit, None)
        self._objects.unstage({one.rel: one.sha256 for one in commit.changes if one.sha256})
        return written

    def _check_content(self, changes: Iterable[PathChange]) -> None:
        """Make the content of what is committed as good as new, and see that it is there."""
        wanted = {one.sha256 for one in changes if one.sha256 and is_shared(one.rel)}
        if self._blobs.refresh(wanted) == len(wanted):
            # Of content in pieces only the head was counted.
            wanted &= {one.sha256 for one in changes if one.sha256 and one.size > INLINE}
        there = self._blobs.sizes(wanted)
        lost = {one.rel for one in changes if one.sha256 in wanted and one.sha256 not in there}
        if lost:
            self._objects.forget_staged(lost)
            raise _moved("their content was swept away meanwhile", lost, lost)

    def _in_transaction(self, commit: PathsCommit) -> Written:
        """Commit as one, again if the server says that nothing was done and to try it again.

        Whether it was done is unknown when nobody answers; the driver asks once more, and whoever
        repeats this afterwards finds his own `_meta.json`.
        """
        from pymongo.errors import OperationFailure

        with self._connection.errors(), self._connection.client.start_session() as session:
            for longest in _PAUSES:
                try:
                    return self._try_transaction(commit, session)
                except OperationFailure as error:
                    if not error.has_error_label(TRANSIENT):
                        raise
                    time.sleep(random.uniform(0, longest))  # noqa: S311 - spreads load
            return self._try_transaction(commit, session)

    def _try_transaction(self, commit: PathsCommit, session: ClientSession) -> Written:
        from pymongo import WriteConcern
        from pymongo.read_concern import ReadConcern

        with session.start_transaction(ReadConcern("snapshot"), WriteConcern("majority")):
            written = self._write_meta(commit, session)
            if not written.is_met:  # ours, and all that belongs to it
                self._change(commit, session)
        return written

    def _write_meta(self, commit: PathsCommit, session: ClientSession | None) -> Written:
        return self._objects.replace(commit.meta_key, commit.meta, commit.token, session)

    def _change(self, commit: PathsCommit, session: ClientSession | None) -> None:
        for kind in (PATHS, MORE):
            chosen = [one for one in commit.changes if is_shared(one.rel) is (kind == PATHS)]
            chosen.sort(key=_order)
            for start in range(0, len(chosen), BATCH):
                batch = chosen[start : start + BATCH]
                if not self._write(kind, batch, commit.commit_seq, session):
                    self._check_written(kind, batch, commit.commit_seq, session)

    def _write(
        self, kind: str, batch: list[PathChange], seq: int, session: ClientSession | None
    ) -> bool:
        """Write a batch; return whether all of it was surely done just now."""
        from pymongo.errors import BulkWriteError

        operations = [_operation(one, seq) for one in batch]
        with self._connection.errors(session):
            try:
                done = self.documents(kind).bulk_write(operations, ordered=True, session=session)
            except (BulkWriteError, KeyError) as error:
                # KeyError: a server that does not say what it did of a batch with a failure.
                if session is not None:  # which is over now
                    rels = {one.rel for one in batch}
                    raise _moved("others changed them as well", rels) from error
                return False
        return bool(done.matched_count + done.upserted_count == len(batch))

    def _renumber(
        self, kind: str, found: list[StoredPath], seq: int, session: ClientSession | None
    ) -> None:
        """Give paths that are as they should be this number, unless others change them now.

        They have one of a commit of ours that was not finished. Others may have finished one of
        the same number meanwhile, and readers of that will not look for it again.
        """
        from pymongo import UpdateOne

        change = {"$set": {"commitSeq": seq}, "$currentDate": {"updatedAt": True}}
        operations = [UpdateOne({"_id": one.rel, **_still(one.seen)}, change) for one in found]
        if operations:
            with self._connection.errors(session):
                self.documents(kind).bulk_write(operations, session=session)

    def _check_written(
        self, kind: str, batch: list[PathChange], seq: int, session: ClientSession | None
    ) -> None:
        """Look at what became of a batch; write what a failure before it has kept from that."""
        for _ in batch:
            rels = [one.rel for one in batch]
            with self._connection.errors(session):
                found = self.documents(kind).find({"_id": {"$in": rels}}, session=session)
                there = {one["_id"]: stored_path(one) for one in found}
            left = [one for one in batch if not _is_done(one, there.get(one.rel))]
            done = [there[one.rel] for one in batch if one.rel in there and one not in left]
            before = [one for one in done if (one.commit_seq or 0) < seq]
            self._renumber(kind, before, seq, session)
            if not left:
                return
            moved = {one.rel for one in left if not _is_expected(one, there.get(one.rel))}
            if moved:
                raise _moved("others changed them as well", moved)
            if self._write(kind, left, seq, session):
                return
            batch = left
        raise _moved("others keep changing them", {one.rel for one in batch})

    def ensure_indexes(self) -> None:
        """Make the indexes that queries go by; they may be there."""
        with self._connection.errors():
            for kind in (PATHS, MORE):
                self.documents(kind).create_index("updatedAt")
                self.documents(kind).create_index("commitSeq")


def stored_path(found: dict[str, Any]) -> StoredPath:
    """Read the document of a path."""
    rel, size, sha256 = found["_id"], whole(found.get("size")), found.get("hash")
    modified, seq = found.get("updatedAt"), whole(found.get("commitSeq"))
    problem = ""
    if not isinstance(rel, str):
        rel, problem = str(rel), "its _id is no text"
    elif size is None or size < 0:
        size, problem = 0, f"its size is {found.get('size')!r}"
    elif not isinstance(sha256, str):
        problem = "it has no hash"
    elif not isinstance(modified, datetime):
        problem = "it has no updatedAt"
    return StoredPath(
        rel,
        size or 0,
        sha256 if isinstance(sha256, str) else None,
        modified if isinstance(modified, datetime) else None,
        found.get("deletedAt") is not None,
        seq,
        problem,
    )


def _entry(one: StoredPath) -> dict[str, Any]:
    entry: dict[str, Any] = {"key": one.rel, "size": one.size}
    entry["lastModified"] = to_iso(one.modified or EPOCH)
    if one.sha256:
        entry["sha256"] = one.sha256
    if one.commit_seq:
        entry["commitSeq"] = one.commit_seq
    return entry


def _since(cursor: PathCursor) -> dict[str, Any]:
    """Return the condition for what may have changed since a moment.

    What we commit has a number, and what others write has a time. Theirs is by their own clocks;
    and a document of ours that they change keeps its number.
    """
    if cursor.is_shared:
        recent: dict[str, Any] = {"updatedAt": {"$gte": cursor.modified - OVERLAP}}
        return {"$or": [{"commitSeq": {"$gt": cursor.commit_seq}}, recent]}
    unnumbered = {
        "commitSeq": {"$exists": False},
        "updatedAt": {"$gte": cursor.modified - OVERLAP},
    }
    return {
        "$or": [
            {"commitSeq": {"$gt": cursor.commit_seq}},
            {"updatedAt": {"$gt": cursor.modified}},
            unnumbered,
        ]
    }


def _still(seen: SeenPath) -> dict[str, Any]:
    """Return the condition that a record is the one that was seen.

    There are servers that keep more digits of a time than they tell.
    """
    moment: Any = seen.modified
    if moment is not None:
        moment = {"$gte": moment, "$lt": moment + timedelta(milliseconds=1)}
    return {"updatedAt": moment, "hash": seen.sha256}


def _operation(change: PathChange, seq: int) -> Any:
    from pymongo import UpdateOne

    seen = change.expected
    condition: dict[str, Any] = {"_id": change.rel}
    if seen is not None:
        condition |= {**_still(seen), "deletedAt": None}
    if change.sha256 is None:
        assert seen is not None
        return UpdateOne(
            condition,
            {"$set": {"commitSeq": seq}, "$currentDate": {"updatedAt": True, "deletedAt": True}},
        )
    fields = {"hash": change.sha256, "size": change.size, "deletedAt": None, "commitSeq": seq}
    update = {"$set": fields, "$currentDate": {"updatedAt": True}}
    if seen is None:
        # If there is a document that is not deleted, the server refuses to make a second one.
        return UpdateOne({**condition, "deletedAt": {"$ne": None}}, update, upsert=True)
    return UpdateOne(condition, update)


def _is_done(change: PathChange, there: StoredPath | None) -> bool:
    if change.sha256 is None:
        return there is None or there.is_deleted
    return (
        there is not None
        and not there.is_deleted
        and (there.sha256, there.size) == (change.sha256, change.size)
    )


def _is_expected(change: PathChange, there: StoredPath | None) -> bool:
    if there is None or there.is_deleted:
        return change.expected is None
    return change.expected == there.seen


def _order(change: PathChange) -> tuple[int, str]:
    """Put content before what speaks of it, and take away in the end, the other way round.

    Whoever renames something and is killed leaves both names, and never none.
    """
    rank = 2 if change.rel.endswith("/latest") else 1 if change.rel.endswith(".yaml") else 0
    return (rank if change.sha256 else 5 - rank, change.rel)


def _moved(reason: str, rels: Collection[str], lost: Collection[str] = ()) -> PathsMovedError:
    named = ", ".join(sorted(rels)[:3]) + (" and more" if len(rels) > 3 else "")
    return PathsMovedError(
        f"the changes of {named} were not made: {reason}",
        rels,
        lost,
        hint="Sync again: what others did is looked at first. Nothing is lost.",
    )
