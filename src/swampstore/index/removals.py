"""Removing objects from a store: never another one than was meant, and never half forgotten.

What a commit takes out of the index is written down first, in a note below `_control/removals/`:
each object with its hash, its size and its token. The note goes when the objects are gone. Until
then everybody can tell what is left of a deletion from what belongs to the datastore: whoever
comes across the note finishes it, and whoever makes an index anew leaves these objects out.

An object is the one that was meant if it has the token that was noted, or else the hash, and was
there before the note. The store's own clock says so, for both. Where tokens repeat, as ETags do
that are computed from the content, the time is asked for as well: somebody may have put the very
same content there again.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, NamedTuple

import msgspec

from swampstore.errors import SwampstoreError
from swampstore.formats import LARGEST_NUMBER, NEWEST, refuse_newer
from swampstore.index.base import Known
from swampstore.index.errors import IndexDamagedError, IndexMovedError
from swampstore.index.format import Entry
from swampstore.index.partitions import partition_of
from swampstore.index.path_kinds import is_marker
from swampstore.index.path_map import Names
from swampstore.index.workers import Deadline, in_parallel
from swampstore.notices import notice
from swampstore.stores.errors import ObjectNotFoundError, PreconditionFailedError, StoreError
from swampstore.stores.protocol import ObjectInfo, Store, hash_object

if TYPE_CHECKING:
    from swampstore.index.remote_index import RemoteIndex

REMOVALS = "_control/removals/"
# After so long, what is as old as its note, to the second, is not the upload of a push any more.
_SURELY_OLD = timedelta(days=1)


class Removal(msgspec.Struct, frozen=True):
    """An object that is to be removed: this very one, and none that takes its place."""

    rel: str
    size: Annotated[int, msgspec.Meta(ge=0, le=LARGEST_NUMBER)]
    sha256: str | None = None
    token: str | None = None


class _Version(msgspec.Struct):
    version: int


class _Document(msgspec.Struct):
    version: int
    objects: list[Removal]


_encode = msgspec.json.Encoder().encode
_version = msgspec.json.Decoder(_Version)
_document = msgspec.json.Decoder(_Document)


class Note(NamedTuple):
    """What is to be removed; `written` tells since when, by the clock of the store."""

    rel: str
    objects: tuple[Removal, ...]
    written: datetime


class Removed(NamedTuple):
    """How many objects were removed, why others could not be, and whether the note is settled."""

    objects: int = 0
    failures: tuple[SwampstoreError, ...] = ()
    is_settled: bool = True


class Notes(msgspec.Struct, frozen=True):
    """All notes of a namespace, to ask whether an object is left of a deletion."""

    notes: tuple[Note, ...] = ()
    _by_rel: Mapping[str, list[tuple[Removal, datetime]]] = msgspec.field(default_factory=dict)

    @classmethod
    def of(cls, notes: Iterable[Note]) -> Notes:
        """Return these notes, sorted by what they name."""
        chosen = tuple(notes)
        by_rel: dict[str, list[tuple[Removal, datetime]]] = {}
        for note in chosen:
            for one in note.objects:
                by_rel.setdefault(one.rel, []).append((one, note.written))
        return cls(chosen, by_rel)

    def name(self, rel: str, info: ObjectInfo, sha256: str | None = None) -> bool:
        """Whether an object is one that somebody is removing. The index must not name it.

        `sha256` is that of its content, if somebody has read it.
        """
        return any(
            is_as_old(info, written)
            and one.size == info.size
            and (
                (one.token is not None and one.token in (info.token, info.etag))
                or (one.sha256 is not None and one.sha256 == sha256)
            )
            for one, written in self._by_rel.get(rel, ())
        )

    def tell_of(self, known: Known) -> bool:
        """Whether somebody is removing what the base knows, by its content."""
        removals = (one for one, _ in self._by_rel.get(known.rel, ()))
        return known.sha256 is not None and any(one.sha256 == known.sha256 for one in removals)

    def mention(self, rel: str) -> bool:
        """Whether a note names this path at all."""
        return rel in self._by_rel


def is_as_old(info: ObjectInfo, written: datetime) -> bool:
    """Whether an object may have been there before a note; answers differ in their fractions."""
    return _seconds(info.last_modified) <= _seconds(written)


def removal_of(known: Known) -> Removal:
    """Return what the base knows as something to be removed."""
    return Removal(known.rel, known.size, known.sha256, known.etag)


def removal_of_entry(rel: str, entry: Entry) -> Removal:
    """Return what the index names as something to be removed."""
    return Removal(rel, entry.size, entry.sha256)


def new_note() -> str:
    """Return the path of a note that is still to be written."""
    return f"{REMOVALS}{uuid.uuid4()}.json"


def read_note(store: Store, names: Names, rel: str) -> Note | None:
    """Return a note, None if it is gone.

    Raises IndexDamagedError if it cannot be understood, and NewerFormatError.
    """
    try:
        info, data = store.get(names.remote(rel))
    except ObjectNotFoundError:
        return None
    try:
        refuse_newer("removals", _version.decode(data).version, rel)
        found = _document.decode(data).objects
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise IndexDamagedError(
            f"{rel} cannot be understood: {error}",
            hint="It tells which objects were being removed. Look at it, then delete it.",
        ) from None
    # A note could say anything; nothing but data is ever removed for one.
    chosen = tuple(one for one in found if names.why_not(one.rel) is None)
    return Note(rel, chosen, info.last_modified)


def read_notes(store: Store, names: Names, *, strict: bool = False) -> Notes:
    """Return all notes of a namespace; costs a listing, and a read for each.

    One that cannot be understood is told of and left out: it must not keep everybody from syncing,
    and without it what was being removed may at worst be shared again. With `strict`, raises
    IndexDamagedError instead. Raises NewerFormatError.
    """
    root = names.remote("")
    listed = [info.key.removeprefix(root) for info in store.list(names.remote(REMOVALS))]
    found: list[Note] = []
    for rel in sorted(listed):
        try:
            note = read_note(store, names, rel)
        except IndexDamagedError as error:
            if strict:
                raise
            notice("%s; what was deleted then may come back. %s", error.message, error.hint)
            continue
        found += [note] if note is not None else []
    return Notes.of(found)


class Remover:
    """Removes objects of one namespace. Whoever uses it holds the lock of commits.

    `check` is called before each deletion, and raises if somebody else may have the lock by now.
    """

    def __init__(
        self,
        store: Store,
        names: Names,
        concurrency: int,
        deadline: Deadline | None = None,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self._store = store
        self._names = names
        self._concurrency = concurrency
        self._deadline = deadline or Deadline()
        self._check = check

    # Noting --------------------------------------------------------------------------------------

    def note(self, rel: str, wanted: Collection[Removal]) -> Note:
        """Write down what the commit that follows takes out of the index.

        What has no token yet is looked at; if that is not what was meant, it is left out.
        """
        objects: list[Removal] = []
        looks = in_parallel(self._with_token, wanted, self._concurrency, self._deadline)
        for _, found, error in looks:
            if error is not None:
                raise error
            objects += [found] if found is not None else []
        objects.sort(key=lambda one: one.rel)
        note = {"version": NEWEST["removals"], "objects": objects}
        self._store.put(self._names.remote(rel), _encode(note))
        # Nobody asks how old this one is: what it names was there before, and the lock is held.
        return Note(rel, tuple(objects), datetime.max.replace(tzinfo=UTC))

    def _with_token(self, wanted: Removal) -> Removal | None:
        if wanted.token is not None:
            return wanted
        try:
            info = self._store.head(self._names.remote(wanted.rel))
        except ObjectNotFoundError:
            return None
        if info.size != wanted.size:
            return None  # somebody put it there, and is about to commit
        return msgspec.structs.replace(wanted, token=info.token)

    def drop(self, note: Note) -> None:
        """Remove a note whose commit did not happen, or whose objects are gone."""
        self._store.delete(self._names.remote(note.rel))

    # Removing ------------------------------------------------------------------------------------

    def carry_out(self, note: Note, index: RemoteIndex) -> Removed:
        """Remove what a commit has just taken out of the index, then the note.

        The lock was held without a break since the note was written. With failures the note stays.
        """
        return self._remove(note, note.objects, self._remove_noted, index)

    def finish(self, note: Note, index: RemoteIndex) -> Removed:
        """Finish what somebody was stopped at: remove what no index names, then the note.

        The request that wrote the note may have come twice, the second time after all was done, so
        that uploads since then look older than it. Whoever made these is about to commit them, on
        documents that were seen before: those are written anew first, so that they are looked at
        again. Nothing is done as long as the index itself is damaged.
        """
        view = index.view({partition_of(one.rel) for one in note.objects})
        if view.is_made_anew:
            return Removed(is_settled=False)
        unnamed = [one for one in note.objects if view.raw(one.rel) is None]
        there = self._there(unnamed)
        if not there:
            return self._remove(note, (), self._remove_noted, index)
        now = self._store.clock()
        index.renew(view)

        def remove(one: Removal) -> bool | None:
            return self._remove_if_older(one, note.written, now)

        return self._remove(note, there, remove, index)

    def _there(self, wanted: Collection[Removal]) -> list[Removal]:
        """Return those that have an object, whatever it is."""
        found: list[Removal] = []
        looks = in_parallel(self._has_object, wanted, self._concurrency, self._deadline)
        for one, is_there, error in looks:
            if error is not None and not isinstance(error, StoreError):
                raise error
            if is_there or error is not None:
                found.append(one)
        return found

    def _has_object(self, wanted: Removal) -> bool:
        try:
            self._store.head(self._names.remote(wanted.rel))
        except ObjectNotFoundError:
            return False
        return True

    def _remove(
        self,
        note: Note,
        objects: Collection[Removal],
        work: Callable[[Removal], bool | None],
        index: RemoteIndex,
    ) -> Removed:
        """Remove objects; what `work` cannot tell yet (None) is left, and the note with it.

        Markers go first. Whoever saves a name anew may find one that says just what his own would
        say, and leave it at that; but not while the versions that it tells of are in his way.

        Where deletions take no condition, one may hit what somebody has put there in the moment
        since it was looked at. Whoever did is about to commit that, and has to look at it again.
        """
        count, is_settled, failures = 0, True, []
        for is_first in (True, False):
            chosen = [one for one in objects if is_marker(one.rel) is is_first]
            for _, is_removed, error in in_parallel(
                work, chosen, self._concurrency, self._deadline
            ):
                count += bool(is_removed)
                if isinstance(error, StoreError):
                    failures.append(error)
                elif error is not None:
                    raise error
                elif is_removed is None:
                    is_settled = False
            if failures:
                return Removed(count, tuple(failures), is_settled=False)
        if is_settled:
            try:
                if not self._store.capabilities.conditional_delete:
                    index.renew(index.view({partition_of(one.rel) for one in note.objects}))
                self.drop(note)
            except (StoreError, IndexMovedError) as error:
                return Removed(count, (error,), is_settled=False)
        return Removed(count, (), is_settled)

    def _remove_noted(self, wanted: Removal) -> bool:
        """Remove an object that was there, under the lock, when its note was written."""
        key = self._names.remote(wanted.rel)
        if wanted.token is not None and self._store.capabilities.conditional_delete:
            self._check()
            with contextlib.suppress(PreconditionFailedError):
                self._store.delete_if_match(key, wanted.token)
                return True
        try:
            info = self._store.head(key)
        except ObjectNotFoundError:
            return False
        if info.token != wanted.token and not self._has_content(key, info, wanted):
            return False  # somebody put it there, and is about to commit
        return self._delete(key, info)

    def _remove_if_older(self, wanted: Removal, written: datetime, now: datetime) -> bool | None:
        """Remove an object if it surely was there before its note; None: it cannot be told."""
        key = self._names.remote(wanted.rel)
        try:
            info = self._store.head(key)
        except ObjectNotFoundError:
            return False
        if info.token == wanted.token and not self._store.capabilities.repeats_tokens:
            return self._delete(key, info)
        if not is_as_old(info, written):
            return False
        if info.token != wanted.token and not self._has_content(key, info, wanted):
            return False
        is_same_second = _seconds(info.last_modified) == _seconds(written)
        if is_same_second and now - written < _SURELY_OLD:
            return None
        return self._delete(key, info)

    def _has_content(self, key: str, info: ObjectInfo, wanted: Removal) -> bool:
        """Whether an object has the content that was noted; reads it."""
        if wanted.sha256 is None or info.size != wanted.size:
            return False
        try:
            sha256, seen = hash_object(self._store, key)
        except ObjectNotFoundError:
            return False
        return seen.etag == info.etag and sha256 == wanted.sha256

    def _delete(self, key: str, info: ObjectInfo) -> bool:
        self._check()
        if not self._store.capabilities.conditional_delete or info.token is None:
            self._store.delete(key)
            return True
        try:
            self._store.delete_if_match(key, info.token)
        except PreconditionFailedError:
            return False
        return True


def _seconds(moment: datetime) -> datetime:
    return moment.replace(microsecond=0)
