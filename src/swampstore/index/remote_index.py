"""The remote index as one object: what the rest of sync knows of it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Container, Iterator, Mapping

from swampstore.clock import Clock
from swampstore.index import base_update as remembering
from swampstore.index.base import Base
from swampstore.index.changes import Change, trust
from swampstore.index.documents import Documents, Found
from swampstore.index.errors import IndexMovedError
from swampstore.index.fencing import Fence
from swampstore.index.format import Document, Entry
from swampstore.index.local_copy import LocalCopy
from swampstore.index.migration import Migration
from swampstore.index.partitions import MONOLITH_KEY, Scope, shard_key
from swampstore.index.path_map import Names
from swampstore.index.reading import Reader
from swampstore.index.repair import Recovery
from swampstore.index.report import Skipped
from swampstore.index.state import (
    COMMIT_SEQ,
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
from swampstore.index.version1_commit import MonolithCommit
from swampstore.index.version2_commit import ShardCommit
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
        self._base = base
        self._clock = clock
        self._documents = Documents(store, names, concurrency)
        self._copy = LocalCopy(names.cache_dir, base, self._documents)
        self._recovery = Recovery(self._documents, names, base, self._copy)
        self._watch = Watch(self._documents, self._recovery, base, clock)
        self._sighting: MetaSnapshot | None = None
        self._reader: Reader | None = None
        # Shards that may be there though nobody tells of them.
        self._doubtful: set[str] = set()

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
        reader = Reader(
            self._documents,
            self._copy,
            self._recovery,
            self._watch,
            self._base,
            scope,
            everything=everything,
        )
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
        seen, seq = self._base.facts(META_ETAG, COMMIT_SEQ)
        if agreed is None or agreed.meta != seen:
            return Proof()
        if agreed.version == 2:
            return Proof(commit_seq=int(seq)) if seq else Proof()
        return self._copy.proof(agreed.monolith)

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
        if sighting.version == 2:
            return View(sighting, shards=self._shards(sighting, {*partitions}, {*additions}))
        if sighting.exists and sighting.discovered is None:
            monolith = self._copy.monolith()
            if monolith.doc is not None:
                self._refuse_newer_copies(sighting, {*partitions, *additions})
                return View(sighting, monolith=monolith)
            sighting = self._recovery.discover(sighting)
        return View(sighting, monolith=sighting.discovered or Found(Document({})))

    def _refuse_newer_copies(self, sighting: MetaSnapshot, partitions: set[str]) -> None:
        """Raise NewerFormatError if a newer release wrote a shard that a commit would replace."""
        if sighting.meta is None:
            return  # whoever writes shards then reads all of them
        known = self._base.shard_etags()
        seen = {one: etag for one, etag in sighting.meta.shards.items() if known.get(one) == etag}
        there = partitions.intersection(sighting.meta.partitions)
        self._documents.refuse_newer({one: seen.get(one) for one in there})

    def _shards(
        self, sighting: MetaSnapshot, partitions: set[str], additions: set[str]
    ) -> dict[str, Found]:
        assert sighting.meta is not None
        assumed: set[str] = set()
        if self._documents.store.capabilities.conditional_create:
            assumed = additions - partitions - self._doubtful - {*sighting.meta.partitions}
        shards = self._recovery.shards((partitions | additions) - assumed, sighting)
        return shards | dict.fromkeys(assumed, Found(is_assumed=True))

    def lost_partitions(self, stored: Container[str]) -> set[str] | None:
        """Return the partitions whose shards are lost, None if no document of the index is.

        `stored` are the paths that have objects. A view of these partitions has what is left of
        them, and a commit writes that.
        """
        sighting = self._look()
        self._sighting = sighting
        if not sighting.exists:
            return None
        if sighting.version != 2:
            return None if MONOLITH_KEY in stored else set()
        lost = {
            partition
            for partition in (sighting.meta.partitions if sighting.meta else ())
            if shard_key(partition) not in stored
        }
        return lost if lost or sighting.is_healed else None

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
        fence = Fence(self._documents, self._recovery, self._watch, self._clock)
        fence.raise_up(is_new=not self._base.count())

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
        if view.version == 2:
            commit = ShardCommit(self._documents, self._recovery, self._watch, look_again)
            try:
                committed = commit.commit(view, change)
            except IndexMovedError:
                # Among the shards that `_meta.json` does not tell of are now some of this commit.
                self._doubtful |= view.shards.keys()
                raise
            return remembering.after_shards(self._base, committed, scope)
        done = MonolithCommit(
            self._documents, self._copy, self._watch, self._clock, look_again
        ).commit(view, change)
        return remembering.after_monolith(self._base, done, scope, self._clock)

    def migrate(self) -> Migrated:
        """Make the remote version 2; on version 2, check and heal it. Costs O(everything)."""
        self._sighting = None
        self._documents.damage = []
        return Migration(
            self._documents, self._copy, self._recovery, self._watch, self._base, self._clock
        ).run()
