"""Which local paths changed since they were last known to be on the remote.

A path is marked before it changes, and stays marked until a push that began afterwards is
through with it. Marks are kept twice: exactly in our journal, and in the sidecar for the other
clients that may use the same cache. Both change under one lock, which the processes and threads
of this machine share.
"""

from __future__ import annotations

import contextlib
import os
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import NamedTuple

from swampstore.errors import DiskError, LockTimeoutError
from swampstore.files import disk_errors, open_shared
from swampstore.files.hold import lock_until
from swampstore.layout import SIDECAR
from swampstore.notices import notice
from swampstore.sync.journal import (
    EVERYTHING,
    JOURNAL,
    Journal,
    Record,
    is_removal,
    path_of,
    removal,
)
from swampstore.sync.sidecar import Sidecar, SidecarState

LOCK = f"{JOURNAL}-lock"
_TIMEOUT = 60.0


class Snapshot(NamedTuple):
    """What was marked at one moment: `paths` exactly, `bulk` if anything else may have changed.

    `removals` are those paths at or below which absence may be deletion.
    The other fields are for `settle`: the push that began then, and what the sidecar listed.
    Without a push there is nothing to settle.
    """

    paths: tuple[str, ...] = ()
    bulk: bool = False
    push: str | None = None
    chain: str | None = None
    listed: tuple[str, ...] = ()
    removals: frozenset[str] = frozenset()

    @property
    def is_empty(self) -> bool:
        """Whether nothing was marked."""
        return not self.paths and not self.bulk


class DirtyTracker:
    """The marks of one cache directory.

    Any number of these, in any number of processes and threads, may work on one directory.
    `durable=False` leaves out every fsync. `fingerprint_member` is the name under which clients
    of this kind of remote keep the fingerprint of its index. `on_foreign` hears of marks that
    another program has left, before they become ours; "*" stands for everything.
    """

    def __init__(
        self,
        cache_dir: str,
        *,
        durable: bool = True,
        fingerprint_member: str = "remoteIndexETag",
        on_foreign: Callable[[Iterable[str]], None] = lambda _: None,
    ) -> None:
        self._cache_dir = os.path.abspath(cache_dir)
        self._journal = Journal(f"{self._cache_dir}/{JOURNAL}", durable=durable)
        self._sidecar = Sidecar(f"{self._cache_dir}/{SIDECAR}", fingerprint_member)
        self._lock = f"{self._cache_dir}/{LOCK}"
        self._view = _View((), Snapshot())
        self._on_foreign = on_foreign

    # Marking -------------------------------------------------------------------------------

    def mark(self, path: str | None = None) -> None:
        """Remember that a path (or something below it) is about to change; None: anything is.

        What is missing there when it is pushed counts as deleted; `mark_written` is for changes
        that remove nothing. Call it before every change: the mark is on disk when it returns. It
        costs the same however much is marked already, and does not look at the path. Raises
        DiskError, and LockTimeoutError if another process hangs.
        """
        record = self._record(path)
        self._note(removal(record) if isinstance(record, str) else record)

    def mark_written(self, path: str) -> None:
        """Remember that something at or below a path is about to be written, and none removed.

        Whatever is missing there later, nobody deleted it: the cache was emptied by somebody.
        """
        self._note(self._record(path))

    def _note(self, record: Record) -> None:
        with self._locked():
            self._refresh_journal()
            self._journal.note([record])
            self._sidecar.update(lambda state: _marked(self._adopted(state), [record]))

    def _record(self, path: str | None) -> Record:
        """Return the mark for a path; one that is not below the cache stands for everything."""
        inside = os.path.normpath(f"{self._cache_dir}/{path or ''}")
        if not inside.startswith(f"{self._cache_dir}/"):
            return EVERYTHING
        return inside.removeprefix(f"{self._cache_dir}/")

    def _adopted(self, state: SidecarState) -> SidecarState:
        """Exchange marks with a sidecar that another client wrote; ours is up to date already.

        From then on the journal has theirs too, as of now, whatever they do to the sidecar.
        """
        if state.chain is not None:
            return state
        if foreign := state.foreign_marks:
            self._on_foreign(foreign)
        self._journal.note(self._marks_in(state))
        return self._with_journal(state)

    def _with_journal(self, state: SidecarState) -> SidecarState:
        """Return a sidecar with all that is marked in the journal added to it."""
        marks = self._journal.marks
        return _marked(state, [*marks.marked(), *map(removal, marks.removals)])

    def _marks_in(self, state: SidecarState) -> list[Record]:
        found = [self._listed(path, state) for path in state.dirty_paths]
        return [*found, EVERYTHING] if state.must_walk else found

    def _listed(self, path: str, state: SidecarState) -> Record:
        """Return the mark for a path of the sidecar; one that is not ours may mean a removal."""
        record = self._record(path)
        if not isinstance(record, str) or record in self._journal.marks.paths:
            return record
        # Of a journal that was lost; nobody else has written the sidecar since.
        if state.chain is not None and path in state.written:
            return record
        return removal(record)

    # Pushing -------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """Return what is marked at the start of a push; later marks are left to the next one.

        If that start cannot be written down, nothing of it can be settled, and the next push
        looks at all of it again.
        """
        try:
            with self._locked():
                return self._begin_push()
        except DiskError as error:
            seen = self.peek()
            if not seen.is_empty:
                notice("%s; the next push will look at the same paths again", error)
            return seen

    def _begin_push(self) -> Snapshot:
        if self._refresh().is_clean and not self._journal.marks.marked():
            return Snapshot()
        state = self._sidecar.update(self._adopted)
        push = self._journal.begin_push()
        return self._seen(state)._replace(push=push, chain=state.chain, listed=state.dirty_paths)

    def let_others_mark(
        self, snapshot: Snapshot, done: Iterable[str], *, walked: bool = False
    ) -> None:
        """Have other programs mark once more what they change where a push is through.

        What is marked already they leave at that. We know these marks until they are settled:
        whoever is killed in between looks again.
        """
        if snapshot.push is None:
            return
        paths = set(done)

        def let_go() -> None:
            if self._sidecar.read().chain == snapshot.chain:
                self._sidecar.update(
                    lambda state: self._without_done(state, snapshot, paths, walked=walked)
                )

        self._try(let_go, "what others change meanwhile may wait for `sync --full`")

    def settle(
        self, snapshot: Snapshot, done: Iterable[str] | None = None, *, walked: bool = False
    ) -> None:
        """Forget the marks of a snapshot that nobody renewed since, or only the `done` ones.

        `walked`: every file was looked at and is on the remote, so that nothing else from before
        the snapshot can be waiting. If this cannot be written down, the marks stay.
        """
        if snapshot.push is None:
            return
        paths = set(snapshot.paths)
        if done is not None:
            paths.intersection_update(done)

        def forget(push: str) -> None:
            if self._journal.settle(push, paths, everything=walked):
                self._sidecar.update(
                    lambda state: self._settled(state, snapshot, paths, walked=walked)
                )

        self._try(partial(forget, snapshot.push), "what was pushed stays marked")

    def _settled(
        self, state: SidecarState, snapshot: Snapshot, paths: set[str], *, walked: bool
    ) -> SidecarState:
        return self._with_journal(self._without_done(state, snapshot, paths, walked=walked))

    def _without_done(
        self, state: SidecarState, snapshot: Snapshot, paths: set[str], *, walked: bool
    ) -> SidecarState:
        if state.chain != snapshot.chain:
            # Another client wrote it meanwhile, and what it lists may be newer than the push.
            return self._adopted(state)
        done = {path for path in snapshot.listed if self._is_done(path, paths, walked)}
        return state.without(done, walked=walked)

    def _is_done(self, listed: str, paths: set[str], walked: bool) -> bool:
        record = self._record(listed)
        return record in paths if isinstance(record, str) else walked

    def verified(
        self, *, fingerprint: str | None, commit_seq: int | None, lazy: bool | None, at: str
    ) -> None:
        """Record in one step that cache and remote were proven equal, and by what.

        Without a fingerprint or a sequence number the recorded one goes, `lazy=None` keeps what
        is recorded. Marks stay as they are. If this cannot be written down, the next sync is slow.
        """

        def note() -> None:
            self._note_verified(fingerprint, commit_seq, lazy=lazy, at=at)

        self._try(note, "the next sync will compare everything again")

    def announce_absences(self, *, at: str) -> None:
        """Tell other clients on this cache, before it is so, that absence is no deletion here.

        `at` is when the cache was last verified. Raises DiskError, and LockTimeoutError if another
        process hangs: then nothing may be made absent.
        """
        with self._locked():
            self._refresh_journal()
            self._note_verified(None, None, lazy=True, at=at)

    def _note_verified(
        self, fingerprint: str | None, commit_seq: int | None, *, lazy: bool | None, at: str
    ) -> None:
        self._sidecar.update(
            lambda state: self._adopted(state)._replace(
                fingerprint=(fingerprint or "").strip('"'),
                last_verified_at=at,
                commit_seq=commit_seq,
                lazy_pull_active=state.lazy_pull_active if lazy is None else lazy,
            )
        )

    # Looking -------------------------------------------------------------------------------

    def peek(self) -> Snapshot:
        """Return what is marked, without starting a push."""
        with self._locked(writing=False):
            return self._seen(self._refresh())

    def covers(self, path: str, *, by_name: bool = False) -> bool:
        """Whether a path, something above or below it, or everything, is marked right now.

        `by_name` leaves out that everything is.
        """
        with self._locked(writing=False):
            state = self._refresh()
            source = (self._journal.marks, self._journal.marks.count, state)
            if source != self._view.source:
                self._view = _View(source, self._seen(state))
        return self._view.covers(self._record(path), by_name=by_name)

    def state(self) -> SidecarState:
        """Return what the sidecar on disk says right now."""
        return self._sidecar.read()

    def damage(self) -> list[str]:
        """Return the files that cannot be read, so that everything counts as marked."""
        with self._locked(writing=False):
            state = self._refresh()
            found = [JOURNAL] if self._journal.is_damaged else []
        # One of an old client says something; one that nobody understands says nothing.
        if state == SidecarState() and os.path.lexists(f"{self._cache_dir}/{SIDECAR}"):
            found.append(SIDECAR)
        return found

    def _seen(self, state: SidecarState) -> Snapshot:
        found = [*self._journal.marks.marked(), *self._marks_in(state)]
        paths = dict.fromkeys(path for record in found if (path := path_of(record)) is not None)
        listed = {record[1] for record in found if is_removal(record)}
        return Snapshot(
            tuple(paths),
            bulk=EVERYTHING in found,
            removals=frozenset(listed.union(self._journal.marks.removals)),
        )

    def _refresh(self) -> SidecarState:
        self._refresh_journal()
        return self._sidecar.read()

    def _refresh_journal(self) -> None:
        """Take in what others wrote; if somebody removed the journal, the sidecar tells its marks.

        What is written next keeps them, with the removals that they may be: else a later mark of
        the same path would say that nothing was removed there.
        """
        self._journal.refresh()
        state = SidecarState() if self._journal.exists else self._sidecar.read()
        if state.chain is None:
            return
        for record in self._marks_in(state):
            self._journal.marks.add(record)
        if state.has_overflowed:
            self._journal.distrust()

    # Locking -------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _locked(self, *, writing: bool = True) -> Iterator[None]:
        """Hold the lock; whoever only reads goes on without it where it cannot be created."""
        with disk_errors(self._cache_dir):
            try:
                fd = self._open_lock(create=writing)
            except OSError:
                if writing:
                    raise
                yield
                return
            try:
                _wait(fd, self._cache_dir)
                yield
            finally:
                os.close(fd)

    def _open_lock(self, *, create: bool) -> int:
        try:
            return open_shared(self._lock)
        except FileNotFoundError:
            if not create:
                raise
            os.makedirs(self._cache_dir, exist_ok=True)
            return open_shared(self._lock)

    def _try(self, change: Callable[[], None], consequence: str) -> None:
        """Make a change that a sync which is through must not fail for."""
        try:
            with self._locked():
                self._refresh_journal()
                change()
        except (DiskError, LockTimeoutError) as error:
            notice("%s; %s", error, consequence)


def _marked(state: SidecarState, records: list[Record]) -> SidecarState:
    """Return a sidecar with marks added to it."""
    if EVERYTHING in records:
        state = state.invalidated()
    found = (path for record in records if (path := path_of(record)) is not None)
    paths = list(dict.fromkeys(found))
    removed = {record[1] for record in records if is_removal(record)}
    return state.marked(paths, removed) if paths else state


def _wait(fd: int, cache_dir: str) -> None:
    if not lock_until(fd, time.monotonic() + _TIMEOUT):
        raise LockTimeoutError(
            f"another process keeps the marks of {cache_dir} for over {_TIMEOUT:g} s",
            hint=f"Wait for it, or stop it; `fuser {cache_dir}/{LOCK}` tells which it is.",
        )


class _View:
    """What is marked, arranged for questions about single paths."""

    def __init__(self, source: tuple[object, ...], seen: Snapshot) -> None:
        self.source = source
        self._bulk = seen.bulk
        self._paths = set(seen.paths)
        self._sorted = sorted(seen.paths)

    def covers(self, record: Record, *, by_name: bool) -> bool:
        if self._bulk and not by_name:
            return True
        if not isinstance(record, str):
            return bool(self._sorted)
        below = f"{record}/"
        at = bisect_left(self._sorted, below)
        if at < len(self._sorted) and self._sorted[at].startswith(below):
            return True
        return any(above in self._paths for above in _with_parents(record))


def _with_parents(path: str) -> Iterator[str]:
    while path:
        yield path
        path = path.rpartition("/")[0]
