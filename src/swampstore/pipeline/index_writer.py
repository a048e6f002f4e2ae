"""Changing the index of a place without a cache: the normal commit, with a base of no duration."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

from swampstore.clock import Clock, system_clock
from swampstore.errors import ValidationError
from swampstore.index.base import Base
from swampstore.index.changes import trust
from swampstore.index.errors import IndexDamagedError
from swampstore.index.format import Entry, decode_entry
from swampstore.index.partitions import partition_of
from swampstore.index.path_map import Names
from swampstore.index.remote_index import RemoteIndex, open_index
from swampstore.index.state import View
from swampstore.index.version import IndexVersion
from swampstore.index.versions import FIRST, version_of
from swampstore.locks.inspection import ProvenStore
from swampstore.locks.manager import LockManager
from swampstore.pipeline.places import Place
from swampstore.pipeline.planning import holds_files
from swampstore.stores.protocol import Store


@dataclass(frozen=True, slots=True)
class IndexWriter:
    """The index of one place, and its locks. Use it from one thread."""

    place: Place
    store: Store
    names: Names
    base: Base
    index: RemoteIndex
    locks: LockManager

    def entries(self) -> dict[str, Entry]:
        """Return what the whole index says now, without damaged entries."""
        found: dict[str, Entry] = {}
        for piece in self.index.changes(everything=True):
            for rel, raw in piece.entries.items():
                with contextlib.suppress(IndexDamagedError):
                    found[rel] = decode_entry(rel, raw)
        return found

    def view(self, rels: Collection[str]) -> View:
        """Look at the entries of these paths, to decide about a commit."""
        return self.index.view({partition_of(rel) for rel in rels})

    def commit(
        self,
        upserts: Mapping[str, Entry],
        removals: Collection[str] = (),
        *,
        view: View | None = None,
        look_again: Callable[[Collection[str]], None] = trust,
        is_loss: bool = False,
    ) -> None:
        """Put entries in and take entries out, in one commit that others see as a whole.

        With `view`, only if the entries of these very paths are still what the view showed. What
        is taken out was deleted, unless it `is_loss`: then caches that have it push it again.
        Raises IndexMovedError if not, LockLostError if somebody took the lock over. For what
        `look_again` does, see `RemoteIndex.commit`.
        """
        rels = {*upserts, *removals}
        if not rels:
            return
        with self.locks.committing() as guard, self.index.guarded(guard):
            seen = view or self.view(rels)
            committed = self.index.commit(
                seen, upserts, removals, look_again=look_again, is_loss=is_loss
            )
            self.base.apply(shards=committed.shards, facts=committed.facts)

    def renew(self, rels: Collection[str]) -> None:
        """Have whoever is about to commit such paths look again at what he has uploaded.

        That comes before the removal of objects that no index names: they may be of a push that
        takes longer than anybody waited.
        """
        with self.locks.committing() as guard, self.index.guarded(guard):
            self.index.renew(self.view(rels))

    def check(self) -> None:
        """Raise LockLostError if a lock was taken over, before something that cannot be undone."""
        self.locks.verify()


@contextlib.contextmanager
def _opened(place: Place, store: Store, clock: Clock) -> Iterator[IndexWriter]:
    with tempfile.TemporaryDirectory(prefix="swampstore-") as directory:
        names, base = place.names(directory), Base(directory, str(place))
        locks = LockManager(
            store, place.namespace, timeout=place.locks.timeout, ttl=place.locks.ttl
        )
        store = ProvenStore(store, locks.deletions)
        index = open_index(store, names, base, clock=clock)
        locks.on_steal = index.fence
        try:
            yield IndexWriter(place, store, names, base, index, locks)
        finally:
            base.close()


@contextlib.contextmanager
def committer(place: Place, *, clock: Clock = system_clock) -> Iterator[IndexWriter]:
    """Yield a writer that takes the global lock for the time of each commit, as a push does."""
    if not place.indexed:
        raise ValidationError(
            f"{place} is used in place and has no index",
            hint="Name a bucket, or a directory as file:///path.",
        )
    with place.open() as store, _opened(place, store, clock) as writer:
        yield writer


@contextlib.contextmanager
def editing(place: Place, *, clock: Clock = system_clock) -> Iterator[IndexWriter]:
    """Yield a writer that works alone: no session of others begins until this one ends."""
    with committer(place, clock=clock) as writer, writer.locks.everything():
        yield writer


def version_without_meta(place: Place, store: Store) -> IndexVersion | None:
    """Return what a cache that knows nothing takes a remote without `_meta.json` for.

    None: for one that is empty. Only documents are read, of files one is looked for: all of them
    are for tasks to look at. Raises NewerFormatError.
    """
    with _opened(place, store, system_clock) as writer:
        try:
            number = writer.index.version_without_meta()
        except IndexDamagedError:
            return FIRST  # a monolith that cannot be read is one that was in use
    if number is not None:
        return version_of(number)
    return FIRST if holds_files(place, store) else None
