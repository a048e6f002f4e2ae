"""The remote index as one object: what the rest of sync knows of it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Container, Iterator, Mapping

from swampstore.clock import Clock
from swampstore.index.base import Base
from swampstore.index.changes import Change, attempts, trust
from swampstore.index.documents import Documents
from swampstore.index.fencing import fence
from swampstore.index.format import Entry
from swampstore.index.local_copy import LocalCopy
from swampstore.index.partitions import Scope
from swampstore.index.path_map import Names
from swampstore.index.reading import Reader
from swampstore.index.repair import Recovery
from swampstore.index.report import Skipped
from swampstore.index.state import (
    META_ETAG,
    PARTIAL,
    Agreements,
    Committed,
    MetaSnapshot,
    Migrated,
    Proof,
    Slice,
    State,
    View,
)
from swampstore.index.version import IndexContext
from swampstore.index.versions import version_of
from swampstore.index.watch import Watch
from swampstore.stores.protocol import Store


class RemoteIndex:
    """The index of one namespace of one remote. Use it from one thread at a time.

    Nothing but `commit` and `migrate` writes to the remote. Errors of the store are raised as they
    are: only an object that is not there counts as absent.
    """

    def __init__(
        self, store: Store, names: Names, base: Base, *, clock: Clock, concurrency: int = 10
    ) -> None:
        documents = Documents(store, names, concurrency)
        copy = LocalCopy(names.cache_dir, base, documents)
        recovery = Recovery(documents, names, base, copy)
        watch = Watch(documents, recovery, base, clock)
        self._context = IndexContext(documents, base, copy, recovery, watch, clock)
        self._base = base
        self._clock = clock
        self._documents = documents
        self._watch = watch
        self._sighting: MetaSnapshot | None = None
        self._reader: Reader | None = None

    @property
    def damage(self) -> list[Skipped]:
        """What the last `changes` or `view` had to leave out, or to make anew from the files."""
        return self._documents.damage

    # Reading -----------------------------------------------------------------------------------

    def is_unchanged(self, scope: Scope | None = None) -> bool:
        """Whether the base still agrees with the remote (in the scope): usually one request."""
        self._sighting = None
        return self._watch.is_unchanged(scope)

    def refresh(self) -> State:
        """Look at the remote; the next `changes` or `view` starts from what was found."""
        self._sighting = self._watch.look()
        return self._sighting.state

    def changes(self, scope: Scope | None = None, *, everything: bool = False) -> Iterator[Slice]:
        """Yield the partitions that are not what the base agreed with.

        A partition may come twice, if it changed meanwhile; the later slice counts. `everything`
        yields all of them, whatever the base agreed with.
        """
        sighting = self._look()
        reader = Reader(self._context, scope, everything=everything)
        self._reader = reader
        yield from reader.read(sighting)

    def agreed(self) -> dict[str, str | None]:
        """Return the facts to `base.apply` after every slice of the last `changes` was applied.

        Only with them does `is_unchanged` (in the same scope) answer True the next time. There
        are none if the iteration was not finished, or if the index was damaged.
        """
        return self._reader.agreed(self._clock) if self._reader else {}

    def proof(self) -> Proof:
        """Return what proves to other clients that the base agrees with the remote, if it does."""
        agreed = Agreements(self._base).of(None)
        if agreed is None or agreed.meta != self._base.fact(META_ETAG):
            return Proof()
        return version_of(agreed.version).proof(self._context, agreed)

    def read_again(self, partitions: Collection[str]) -> None:
        """Make the next `changes` yield these partitions, whatever the base agreed with.

        For entries that were seen, and not applied to the base.
        """
        self._base.drop_shards(partitions)
        self._base.apply(shards={(partition, ""): PARTIAL for partition in partitions})
        Agreements(self._base).revoke()

    def _look(self) -> MetaSnapshot:
        sighting, self._sighting = self._sighting, None
        self._documents.damage = []
        return sighting or self._watch.look()

    # Committing --------------------------------------------------------------------------------

    def view(self, partitions: Collection[str], additions: Collection[str] = ()) -> View:
        """Return the current entries of these partitions, for a push.

        Of `additions`, into which entries are only put, those that the remote does not tell of
        are taken to be empty. If one is not, the commit raises IndexMovedError, and the next view
        has what is there.
        """
        sighting = self._look()
        version = version_of(sighting.version)
        return version.view(self._context, sighting, {*partitions}, {*additions})

    def lost_partitions(self, stored: Container[str]) -> set[str] | None:
        """Return the partitions whose shards are lost, None if no document of the index is.

        `stored` are the paths that have objects. A view of these partitions has what is left of
        them, and a commit writes that.
        """
        sighting = self._look()
        self._sighting = sighting
        if not sighting.exists:
            return None
        return version_of(sighting.version).lost_partitions(sighting, stored)

    @contextlib.contextmanager
    def guarded(self, guard: Callable[[], None]) -> Iterator[None]:
        """Call `guard` before each write that makes a commit count; it raises to prevent it."""
        before, self._documents.guard = self._documents.guard, guard
        try:
            yield
        finally:
            self._documents.guard = before

    def check_allowed(self) -> None:
        """Raise what the guard raises, before something that no condition protects."""
        self._documents.guard()

    def fence(self) -> None:
        """Make every commit that others have begun fail, and look again."""
        self._sighting = None
        fence(self._context, is_new=not self._base.count())

    def commit(
        self,
        view: View,
        upserts: Mapping[str, Entry],
        removals: Collection[str],
        *,
        scope: Scope | None = None,
        look_again: Callable[[Collection[str]], None] = trust,
        is_loss: bool = False,
    ) -> Committed:
        """Put entries in and take entries out, whatever others commit meanwhile.

        If they did, in the documents of these paths, `look_again` is called with the paths that are
        put in: others may have removed their objects. It raises IndexMovedError if that is so.

        Raises IndexMovedError, with the paths, if others changed entries of these very paths
        since the view was taken (or all paths, if the remote was migrated): look again, decide
        again. With `scope`, what the base has of that scope stays known to be current as well.
        `is_loss` says that what is taken out was lost: caches that have it push it again.
        """
        if is_loss:
            view.sighting = self._watch.begin_anew(view.sighting)
        rels = {*upserts, *removals}
        change = Change(
            upserts, frozenset(removals) - upserts.keys(), {rel: view.raw(rel) for rel in rels}
        )
        return version_of(view.version).commit(self._context, view, change, scope, look_again)

    def migrate(self) -> Migrated:
        """Make the remote version 2; on version 2, check and heal it. Costs O(everything)."""
        self._sighting = None
        self._documents.damage = []
        for _ in attempts(()):
            sighting = self._watch.look_again()
            migrated = version_of(sighting.version).migrate(self._context, sighting)
            if migrated is not None:
                return migrated
        raise AssertionError  # attempts() ends with an error
