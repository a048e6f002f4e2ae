"""Finding out what can be done about damage, and doing it under the lock of the place."""

from __future__ import annotations

import io
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, BinaryIO, TypeVar

from swampstore.clock import system_clock, to_iso
from swampstore.errors import SwampstoreError
from swampstore.index.errors import IndexDamagedError, IndexMovedError
from swampstore.index.format import Entry
from swampstore.index.path_kinds import unit_of, version_file
from swampstore.index.state import View
from swampstore.index.workers import Deadline, in_parallel
from swampstore.layout import RAW
from swampstore.notices import escaped, notice
from swampstore.pipeline.errors import RepairStoppedError
from swampstore.pipeline.gc.sweep import finish_pending_deletes
from swampstore.pipeline.places import Place
from swampstore.pipeline.quarantine import Quarantine, hash_of
from swampstore.pipeline.verify import kinds
from swampstore.pipeline.verify.examination import etag_of
from swampstore.pipeline.verify.mending import (
    Action,
    Mender,
    Wanted,
    wanted_by_file,
    wanted_by_name,
)
from swampstore.pipeline.verify.rules import File, sorted_out
from swampstore.pipeline.verify.sources import Having, Sources, cache_of, digest_of
from swampstore.stores.errors import (
    CorruptObjectError,
    ObjectNotFoundError,
    PreconditionFailedError,
    changed,
)
from swampstore.stores.protocol import ObjectInfo, Store

if TYPE_CHECKING:
    from swampstore.pipeline.index_writer import IndexWriter


_CONCURRENCY = 8
_COMMITS = 5
_REPLACING = frozenset({"restore", "write"})
_LEAVING = frozenset({"quarantine", "forget"})
T = TypeVar("T")


@dataclass
class Progress:
    """How far a repair came: what was done, and what was left as it is and why.

    `replaced` are the files that it began to write, `kept` counts the copies in quarantine, and
    `begun` are all actions that it meant to carry out.
    """

    begun: list[Action] = field(default_factory=list)
    done: list[Action] = field(default_factory=list)
    left: dict[str, str] = field(default_factory=dict)
    replaced: list[str] = field(default_factory=list)
    kept: int = 0

    @property
    def unrestored(self) -> list[str]:
        """The files that were to be restored, and that the index does not name as such yet."""
        done = {*self.done}
        undone = (one for one in self.begun if one.do in _REPLACING and one not in done)
        return sorted(one.rel for one in undone if one.rel not in self.left)


class Applying:
    """Carries actions out, and commits once.

    What somebody changed since it was looked at is left alone, with its whole data name.
    """

    def __init__(
        self,
        writer: IndexWriter,
        files: Mapping[str, File],
        sources: Sources,
        quarantine: Quarantine,
        progress: Progress,
    ) -> None:
        self._writer = writer
        self._store: Store = writer.store
        self._files = files
        self._sources = sources
        self._quarantine = quarantine
        self._progress = progress
        self._left: set[str] = set()  # data names
        self._there: dict[str, ObjectInfo | None] = {}

    def run(self, actions: Iterable[Action]) -> None:
        """Do everything that can be done."""
        every = list(actions)
        self._progress.begun += every
        planned = [one for one in every if one.do != "lost"]
        self._look(planned)
        self._keep(planned)
        upserts = self._put(planned)
        self._commit(planned, upserts)
        self._progress.done += self._still(every)
        self._remove([one.rel for one in self._still(planned) if one.do == "quarantine"])

    def _still(self, actions: Iterable[Action]) -> list[Action]:
        """Return the actions about names that nobody else is changing."""
        return [one for one in actions if _name_of(one) not in self._left]

    def _leave(self, rel: str, why: str) -> None:
        self._left.add(unit_of(rel))
        self._progress.left[rel] = why

    def _each(self, work: Callable[[Action], T], actions: Sequence[Action]) -> Iterator[T | None]:
        """Do something with actions, several at a time; what others interfere with is left.

        When one fails, those that have begun are still waited for: they need the lock.
        """
        failed: list[SwampstoreError] = []

        def unless_failed(action: Action) -> T | None:
            return None if failed else work(action)

        doing = in_parallel(unless_failed, actions, _CONCURRENCY, Deadline())
        for action, result, error in doing:
            if isinstance(error, PreconditionFailedError):
                self._leave(action.rel, error.message)
            elif error is not None:
                failed.append(error)
            yield result
        if failed:
            raise failed[0]

    # Looking -----------------------------------------------------------------------------------

    def _look(self, actions: Sequence[Action]) -> None:
        """See whether objects and entries are what the actions were decided by."""

        def look(action: Action) -> tuple[str, ObjectInfo | None]:
            return action.rel, self._info(action.rel)

        self._there = dict(found for found in self._each(look, actions) if found)
        for rel, info in self._there.items():
            seen = self._files[rel].etag if rel in self._files else None
            if (info.etag if info else None) != seen:
                self._leave(rel, "somebody else wrote the object")
        self._leave_moved(self._still(actions))

    def _leave_moved(self, actions: Collection[Action]) -> View | None:
        """Leave alone what has another entry now; return how the entries are."""
        if not actions:
            return None
        view = self._writer.view([one.rel for one in actions])
        for action in actions:
            if not self._is_entry_as_seen(view, action.rel):
                self._leave(action.rel, "somebody else committed it")
        return view

    def _info(self, rel: str) -> ObjectInfo | None:
        try:
            return self._store.head(self._key(rel))
        except ObjectNotFoundError:
            return None

    def _is_entry_as_seen(self, view: View, rel: str) -> bool:
        file = self._files.get(rel)
        try:
            entry = view.entry(rel)
        except IndexDamagedError:
            return file is not None and file.problem is not None
        if file is None or not file.is_named or entry is None:
            return entry is None and (file is None or not file.is_named)
        return (entry.size, entry.sha256) == (file.size, file.sha256)

    def _key(self, rel: str) -> str:
        return self._writer.names.remote(rel)

    # Quarantine, then places -------------------------------------------------------------------

    def _keep(self, actions: Sequence[Action]) -> None:
        """Put copies of all that will be replaced or removed into quarantine."""

        def keep(action: Action) -> bool:
            file = self._files[action.rel]
            assert file.hash is not None  # what nobody could read is not touched
            if not self._quarantine.keep(action.rel, file.hash):
                raise PreconditionFailedError(f"{action.rel} is gone")
            return True

        chosen = [
            one
            for one in self._still(actions)
            if one.do in _REPLACING | {"quarantine"} and self._there[one.rel] is not None
        ]
        for is_kept in self._each(keep, chosen):
            self._progress.kept += bool(is_kept)

    def _put(self, actions: Sequence[Action]) -> dict[str, Entry]:
        """Put content in place; return all entries that are new."""
        chosen = [one for one in self._still(actions) if one.do not in _LEAVING]
        # All of these are in quarantine by now, and some are being replaced.
        touched = {self._key(one.rel) for one in self._still(actions) if one.do != "adopt"}

        def put(action: Action) -> tuple[str, Entry]:
            if action.do == "adopt":
                return action.rel, self._adopted(action.rel)
            if action.do == "write":
                return action.rel, self._placed(action.rel, io.BytesIO(action.value.encode()))
            wanted = Wanted(action.rel, action.value)
            with tempfile.TemporaryFile() as file:
                if not self._sources.fetch(wanted, file, touched):
                    raise PreconditionFailedError(f"{action.value} is not to be had any more")
                return action.rel, self._placed(action.rel, file)

        return dict(found for found in self._each(put, chosen) if found)

    def _adopted(self, rel: str) -> Entry:
        info = self._there[rel]
        assert info is not None
        return Entry(info.size, to_iso(info.last_modified), self._files[rel].hash)

    def _placed(self, rel: str, body: BinaryIO) -> Entry:
        """Put content in place of what was looked at, and read it back."""
        key, there = self._key(rel), self._there[rel]
        sha256 = digest_of(body)
        size = body.seek(0, io.SEEK_END)
        body.seek(0)
        self._progress.replaced.append(rel)
        _replace(self._store, key, body, there)
        if hash_of(self._store, key, size) != sha256:
            raise CorruptObjectError(
                f"{key} is not what was just written there",
                hint="The store changes what it is given. Nothing more was changed.",
            )
        return Entry(size, to_iso(system_clock()), sha256)

    # The index, then what leaves ---------------------------------------------------------------

    def _commit(self, actions: Sequence[Action], upserts: Mapping[str, Entry]) -> None:
        for attempt in range(1, _COMMITS + 1):
            view = self._leave_moved(self._still(actions))
            chosen = self._still(actions)
            gone = [one.rel for one in chosen if one.do in _LEAVING and self._is_named(one.rel)]
            new = {one.rel: upserts[one.rel] for one in chosen if one.rel in upserts}
            try:
                self._writer.commit(new, gone, view=view, is_loss=bool(gone))
            except IndexMovedError:
                if attempt == _COMMITS:
                    raise
            else:
                return

    def _is_named(self, rel: str) -> bool:
        return rel in self._files and self._files[rel].is_named

    def _remove(self, rels: Sequence[str]) -> None:
        """Remove the originals of what is in quarantine, if they are still that."""
        unnamed = [rel for rel in rels if not self._is_named(rel)]
        if unnamed:
            self._writer.renew(unnamed)
        self._writer.check()
        for rel in rels:
            there = self._there[rel]
            if there is not None:
                try:
                    _remove(self._store, there)
                except PreconditionFailedError as error:
                    self._leave(rel, error.message)


def _name_of(action: Action) -> str:
    """Return the data name (or file) of an action; what is lost is told of whole versions."""
    version = version_file(f"{action.rel}/{RAW}") if action.do == "lost" else None
    return version.name_rel if version else unit_of(action.rel)


def _replace(store: Store, key: str, body: BinaryIO, there: ObjectInfo | None) -> None:
    """Write an object in place of another one (None: of none); raise PreconditionFailedError."""
    able = store.capabilities
    if there is None and able.conditional_create:
        store.put_if_absent(key, body)
    elif there is not None and there.token is not None and able.conditional_update:
        store.put_if_match(key, body, there.token)
    else:
        _check(store, key, there)
        store.put(key, body)


def _remove(store: Store, there: ObjectInfo) -> None:
    """Remove an object if it is still this one; raise PreconditionFailedError if not."""
    if store.capabilities.conditional_delete and there.token is not None:
        store.delete_if_match(there.key, there.token)
        return
    _check(store, there.key, there)
    store.delete(there.key)


def _check(store: Store, key: str, expected: ObjectInfo | None) -> None:
    if etag_of(store, key) != (expected.etag if expected else None):
        raise changed(key, store.identity)


_UNITS = 5_000  # that are mended with one commit
_NAMED = 3

Units = Iterable[tuple[str, list[File]]]
"""Data names, and single other files, that may want mending, with their files."""


@dataclass
class Mended:
    """What was done, or would be: how often, what is lost, and where copies are.

    `left` tells why something was not done.
    """

    done: Counter[str] = field(default_factory=Counter)
    lost: list[tuple[str, str]] = field(default_factory=list)
    left: dict[str, str] = field(default_factory=dict)
    quarantine: str | None = None

    def note(self, actions: Iterable[Action]) -> None:
        """Count actions."""
        for action in actions:
            self.done[action.do] += 1
            if action.do == "lost":
                self.lost.append((action.rel, action.value))


class Repair:
    """Mends the files of one place; without a writer it only says what would be done.

    `units` come from an examination, and `having` knows which objects it has read. Unless it
    `gives_up`, what cannot be made whole stays.
    """

    def __init__(
        self,
        place: Place,
        units: Units,
        having: Having,
        writer: IndexWriter | None,
        *,
        gives_up: bool,
    ) -> None:
        self._place = place
        self._units = units
        self._having = having
        self._writer = writer
        self._gives_up = gives_up
        self._progress = Progress()

    def run(self) -> Mended:
        """Mend all that was found.

        Raises RepairStoppedError if that was not possible: it tells how far the repair came.
        """
        mended = Mended()
        with ExitStack() as stack:
            store = self._writer.store if self._writer else stack.enter_context(self._place.open())
            quarantine = Quarantine(store, self._place.names())
            names = self._place.names(cache_of(self._place.target) or "/nonexistent")
            sources = Sources(store, names, self._having, quarantine)
            try:
                for actions in self._batches(sources, quarantine):
                    mended.note(actions)
                if self._writer is not None:
                    mended.done += Counter(remove=self._removed(self._writer))
            except SwampstoreError as error:
                raise self._stopped(error, quarantine) from error
            except KeyboardInterrupt:
                notice("%s", self._how_far(quarantine))
                raise
        mended.left = self._progress.left
        mended.quarantine = quarantine.rel if self._progress.kept else None
        return mended

    def _batches(self, sources: Sources, quarantine: Quarantine) -> Iterator[list[Action]]:
        """Yield what was done, or would be."""
        units = ((unit, _without_leftovers(files)) for unit, files in self._units)
        while batch := list(islice(units, _UNITS)):
            actions = self._planned(batch, sources)
            if self._writer is None:
                yield actions
                continue
            known = {file.rel: file for _, files in batch for file in files}
            before = len(self._progress.done)
            Applying(self._writer, known, sources, quarantine, self._progress).run(actions)
            yield self._progress.done[before:]

    def _planned(self, batch: Units, sources: Sources) -> list[Action]:
        names = {name: sorted_out(name, files) for name, files in batch}
        sources.look_for(self._wanted(batch))
        routing = self._place.routing
        mender = Mender(sources.find, gives_up=self._gives_up, routing=routing)
        actions = [
            action
            for name, found in names.items()
            if found.versions or found.latest
            for action in mender.mend_name(name, found.versions, found.latest)
        ]
        others = (file for found in names.values() for file in found.others)
        return actions + [action for file in others for action in mender.mend_file(file)]

    @staticmethod
    def _wanted(batch: Units) -> Iterator[Wanted]:
        for name, files in batch:
            versions, _, others = sorted_out(name, files)
            yield from wanted_by_name(name, versions)
            for file in others:
                yield from wanted_by_file(file)

    @staticmethod
    def _removed(writer: IndexWriter) -> int:
        """Remove what deletions have left behind; return how many objects that were."""
        count, failures = finish_pending_deletes(writer)
        for failure in failures:
            notice("what a deletion has left stays for now: %s", failure)
        return count

    def _stopped(self, error: SwampstoreError, quarantine: Quarantine) -> RepairStoppedError:
        stopped = RepairStoppedError(
            f"the repair of {self._place} stopped: {error.message}. {self._how_far(quarantine)}",
            hint=f"Run it again: it goes on from what is there. {error.hint or ''}".rstrip(),
        )
        stopped.exit_status = error.exit_status
        return stopped

    def _how_far(self, quarantine: Quarantine) -> str:
        replaced, unrestored = self._progress.replaced, self._progress.unrestored
        waiting = f" Not restored yet: {', '.join(map(escaped, unrestored))}." if unrestored else ""
        if not replaced:
            return f"Nothing was replaced.{waiting}"
        named = ", ".join(replaced[:_NAMED]) + (", ..." if len(replaced) > _NAMED else "")
        return (
            f"It had begun to write {len(replaced)} files ({named}); all that was there before is"
            f" there, or one of {self._progress.kept} copies in {quarantine.rel}.{waiting}"
        )


def _without_leftovers(files: list[File]) -> list[File]:
    """Return the files that are to stay: what is left of a deletion is not mended."""
    return [file for file in files if file.kind != kinds.UNREMOVED]
