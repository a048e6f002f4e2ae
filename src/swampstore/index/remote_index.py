"""The remote index as one object: what the rest of sync knows of it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Container, Iterator, Mapping

from msgspec.structs import replace

from swampstore.clock import Clock
from swampstore.index.base import Base
from swampstore.index.changes import Change, attempts, index_moved, trust
from swampstore.index.documents import Documents, StoredDocument
from swampstore.index.errors import IndexDamagedError, IndexMovedError, MadeAnewError
from swampstore.index.fingerprints import is_named
from swampstore.index.format import Entry, RawEntries
from swampstore.index.local_copy import LocalCopy
from swampstore.index.meta import Meta, decode_meta
from swampstore.index.own_shards import OwnShards
from swampstore.index.partitions import Scope
from swampstore.index.path_map import Names
from swampstore.index.repair import Recovery
from swampstore.index.results import Skipped
from swampstore.index.state import (
    GONE,
    LEFT_OUT,
    META_ETAG,
    PARTIAL,
    Agreements,
    Committed,
    Fingerprint,
    MetaSnapshot,
    Migrated,
    Proof,
    Slice,
    State,
    View,
    document,
    grouped,
)
from swampstore.index.stored_files import Matching, StoredFiles
from swampstore.index.version import IndexContext
from swampstore.index.versions import FIRST, version_of
from swampstore.index.watch import Watch
from swampstore.stores.errors import PreconditionFailedError
from swampstore.stores.protocol import Fetched, Store

# How often a view is made again because others have committed since.
_LOOKS = 3


class Reader:
    """One reading of the changes, in one scope; its version reads the documents.

    `seen` is what there is to agree with, once it was read to the end. `leaves_out` says that the
    documents do not name what the base knows, though nobody deleted it.
    """

    def __init__(self, context: IndexContext, scope: Scope | None, *, everything: bool) -> None:
        self.context = context
        self.scope = scope
        self.everything = everything
        self.seen: Fingerprint | None = None
        self.leaves_out = False
        base = context.base
        self._epoch = Agreements(base).epoch
        self._known = base.shard_etags()
        self.scoped = base.shard_etags(scope.key) if scope else {}

    def agreed(self, clock: Clock) -> dict[str, str | None]:
        """Return the facts that say that the base agrees with what was read."""
        if self.seen is None:
            return {}
        facts = Agreements.fact(self.scope, self.seen, self._epoch)
        return facts | version_of(self.seen.version).agreed_facts(self.seen, clock)

    def read(self, snapshot: MetaSnapshot) -> Iterator[Slice]:
        """Yield the slices that the base does not agree with.

        From an index that was made anew no deletion follows.
        """
        self.leaves_out = snapshot.leaves_out
        for piece in self.slices(snapshot):
            is_known = not self.context.watch.is_another
            yield piece if is_known else piece._replace(etag=None, complete=False, removed=None)
        if self.context.watch.is_another:
            self.seen = None

    def slices(self, snapshot: MetaSnapshot) -> Iterator[Slice]:
        """Yield the same, also where the remote became another one while it was read."""
        if snapshot.discovered is not None:
            yield from self.discovered(snapshot)
        elif not snapshot.exists:
            return
        else:
            yield from version_of(snapshot.version).read(self, snapshot)

    def discovered(self, snapshot: MetaSnapshot) -> Iterator[Slice]:
        """Yield what files without an index show; nothing is complete."""
        entries_there = document(snapshot.discovered or StoredDocument()).entries
        for partition, entries in grouped(entries_there).items():
            covered = self.covered(entries)
            if covered:
                yield Slice(partition, covered, None, complete=False)

    # What versions read with --------------------------------------------------------------------

    def etags(self, meta: Meta) -> dict[str, str]:
        """Return the current ETag of each shard; a listing tells what `_meta.json` does not."""
        told = dict(meta.shards.items())
        etags = {one: told[one] for one in meta.partitions if one in told}
        if len(etags) < len(meta.partitions):
            listed = self.context.documents.listed_shards()
            etags |= {
                one: listed[one].etag if one in listed else ""
                for one in meta.partitions
                if one not in etags
            }
        return etags

    def outdated(self, current: Mapping[str, str], also_current: str = "") -> list[str]:
        """Return the partitions that the base does not have as they are now."""
        chosen = sorted(current) if self.scope is None else self.scope.partitions(current)
        if self.everything:
            return chosen
        return [one for one in chosen if not self._has(one, current[one], also_current)]

    def _has(self, partition: str, *etags: str) -> bool:
        recorded = {self._known.get(partition), self.scoped.get(partition)}
        return any(is_named(etag, one) for etag in etags if etag for one in recorded if one)

    def is_cold(self) -> bool:
        """Whether the base has no partition as a whole."""
        return all(etag in (PARTIAL, GONE) for etag in self._known.values())

    def gone(self, current: Collection[str]) -> Iterator[Slice]:
        """Yield the partitions of the base that the remote has no longer."""
        recorded = {
            partition
            for etags in (self._known, self.scoped)
            for partition, etag in etags.items()
            if etag != GONE
        }
        # Single paths may be known without a record of their partition.
        recorded.update(self.context.base.partitions())
        chosen = sorted(recorded) if self.scope is None else self.scope.partitions(recorded)
        for partition in chosen:
            if partition not in current:
                yield Slice(partition, {}, GONE, complete=True)

    def mark_partial(self, partitions: Collection[str]) -> None:
        """Before entries of partitions enter the base, record that it has some of them."""
        self.record(dict.fromkeys(partitions, PARTIAL))

    def record(self, etags: Mapping[str, str]) -> None:
        """Record as which shards the base has partitions."""
        self.context.base.apply(shards={(one, ""): etag for one, etag in etags.items()})

    def covered(self, entries: RawEntries) -> RawEntries:
        """Return the entries of the scope."""
        if self.scope is None:
            return entries
        return {rel: raw for rel, raw in entries.items() if self.scope.covers(rel)}


class RemoteIndex:
    """The index of one namespace of one remote. Use it from one thread at a time.

    Nothing but `commit` and `migrate` writes to the remote. Errors of the store are raised as they
    are: only an object that is not there counts as absent.
    """

    def __init__(self, context: IndexContext) -> None:
        self._context = context
        self._base = context.base
        self._clock = context.clock
        self._documents = context.documents
        self._watch = context.watch
        self._snapshot: MetaSnapshot | None = None
        self._reader: Reader | None = None

    @property
    def damage(self) -> list[Skipped]:
        """What the last `changes` or `view` had to leave out, or to make anew from the files."""
        return self._documents.damage

    @property
    def leaves_out(self) -> bool:
        """Whether the last `changes` found that others left out what nobody deleted."""
        return self._reader is not None and self._reader.leaves_out

    # Reading -----------------------------------------------------------------------------------

    def is_unchanged(self, scope: Scope | None = None) -> bool:
        """Whether the base still agrees with the remote (in the scope): usually one request."""
        self._snapshot = None
        return self._watch.is_unchanged(scope)

    def version_without_meta(self) -> int | None:
        """Return which version the documents show where `_meta.json` is lost, None if none does.

        Costs what the documents cost, never what they name. Raises IndexDamagedError if the
        monolith would have to tell, and cannot be understood.
        """
        return self._context.recovery.version()

    def refresh(self, *, recalling: bool = False) -> State:
        """Look at the remote; the next `changes` or `view` starts from what was found.

        With `recalling`, what was seen a moment ago will do: a `view` of it that is not what is
        there looks again, and a commit that builds on it is refused if others were faster.
        """
        recalled = self._watch.recall() if recalling else None
        snapshot = recalled or self._watch.look()
        if version_of(snapshot.version).is_emptied(self._context):
            snapshot = replace(snapshot, exists=False)
        self._snapshot = snapshot
        return snapshot.state

    def forget_look(self) -> None:
        """Let nothing start from what `refresh` found for somebody who did not need it then."""
        self._snapshot = None

    def changes(self, scope: Scope | None = None, *, everything: bool = False) -> Iterator[Slice]:
        """Yield the partitions that are not what the base agreed with.

        A partition may come twice, if it changed meanwhile; the later slice counts. `everything`
        yields all of them, whatever the base agreed with.
        """
        snapshot = self._look()
        self._watch.is_fresh = False
        reader = Reader(self._context, scope, everything=everything)
        self._reader = reader
        yield from reader.read(snapshot)

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
        snapshot, self._snapshot = self._snapshot, None
        self._documents.damage = []
        return snapshot or self._watch.look()

    # Committing --------------------------------------------------------------------------------

    def view(
        self,
        partitions: Collection[str],
        additions: Collection[str] = (),
        *,
        rels: Collection[str] = (),
    ) -> View:
        """Return the current entries of these partitions, for a push.

        Of `additions`, into which entries are only put, those that the remote does not tell of
        are taken to be empty. If one is not, the commit raises IndexMovedError, and the next view
        has what is there. `rels` are the paths that will be asked for: where the index is no
        document, those are read, and others when they are asked for.
        Raises IndexMovedError if others commit all the time.
        """
        view = self._view(self._look(), partitions, additions, rels)
        for _ in range(_LOOKS):
            if not self._watch.is_outdated(view):
                return view
            self._documents.damage = []
            view = self._view(self._watch.look_again(), partitions, additions, rels)
        raise index_moved("others keep committing", rels)

    def _view(
        self,
        snapshot: MetaSnapshot,
        partitions: Collection[str],
        additions: Collection[str],
        rels: Collection[str],
    ) -> View:
        version = version_of(snapshot.version)
        return version.view(self._context, snapshot, {*partitions}, {*additions}, rels=rels)

    @property
    def is_made_anew(self) -> bool:
        """Whether any look found that the remote is not the one that the base is of."""
        return self._watch.is_another

    def must_start_over(self, view: View) -> bool:
        """Whether the base has to start over before a commit writes what a view has guessed."""
        return self._watch.must_start_over(view)

    def started_over(self) -> None:
        """Note that nothing is concluded from what the base knew, until it is read into it."""
        self._watch.is_fresh = True

    def lost_partitions(self, stored: Container[str]) -> set[str] | None:
        """Return the partitions whose shards are lost, None if no document of the index is.

        `stored` are the paths that have objects. A view of these partitions has what is left of
        them, and a commit writes that.
        """
        snapshot = self._look()
        self._snapshot = snapshot
        if not snapshot.exists:
            return None
        version = version_of(snapshot.version)
        lost = version.lost_partitions(snapshot, stored)
        if lost is not None:
            return lost
        is_proven = self._base.fact(LEFT_OUT) is not None
        self._snapshot = version.with_left_out(self._context, snapshot, is_proven=is_proven)
        return None if self._snapshot is snapshot else set()

    def untold_partitions(
        self, partitions: Collection[str] | None, scope: Scope | None
    ) -> set[str] | None:
        """Return those (None: of all) with commits, perhaps, that `_meta.json` does not tell of.

        Whoever committed was stopped before it could write that, and is not told of it by what is
        in the index; a pull in the `scope` may have read it since. Others do not see it until
        somebody commits. None: there is no such commit.
        """
        snapshot = self._look()
        self._snapshot = snapshot
        if snapshot.is_told_by_monolith:
            return set()
        recorded = [
            self._base.shard_etags(key, partitions) for key in {"", scope.key if scope else ""}
        ]
        untold = version_of(snapshot.version).untold_partitions(snapshot, recorded)
        return (untold if partitions is None else untold & {*partitions}) or None

    @contextlib.contextmanager
    def guarded(self, guard: Callable[[float], None]) -> Iterator[None]:
        """Call `guard` before each write that makes a commit count; it raises to prevent it."""
        before, self._documents.guard = self._documents.guard, guard
        try:
            yield
        finally:
            self._documents.guard = before

    def check_allowed(self) -> None:
        """Raise what the guard raises, before something that no condition protects."""
        self._documents.check_allowed()

    def fence(self) -> None:
        """Make every commit that others have begun fail, and look again."""
        self._snapshot = None
        _fence(self._context, is_new=self._base.is_empty())

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
            view.snapshot = self._watch.begin_anew(view.snapshot)
        rels = {*upserts, *removals}
        change = Change(
            upserts, frozenset(removals) - upserts.keys(), {rel: view.raw(rel) for rel in rels}
        )
        version = version_of(view.version)
        committed = version.commit(self._context, view, change, scope, look_again)
        self._watch.is_fresh = False  # what the base knows by it, others may change from now on
        return committed

    def renew(self, view: View) -> None:
        """Write the documents of a view anew, with the same entries.

        Every commit to them that was begun before finds that out, and looks at its uploads again.
        """
        whole = view.monolith and replace(view.monolith, is_dirty=True)
        parts = {one: replace(doc, is_dirty=True) for one, doc in view.shards.items() if doc.etag}
        if not parts and not (whole and whole.etag):
            self.fence()
            return
        made = View(view.snapshot, monolith=whole, shards=parts, copies=view.copies)
        nothing = Change({}, frozenset(), {})
        version = version_of(view.version)
        committed = version.commit(self._context, made, nothing, None, trust)
        self._base.apply(shards=committed.shards, facts=committed.facts)

    def migrate(self) -> Migrated:
        """Make the remote version 2; on version 2, check and heal it. Costs O(everything).

        Raises MadeAnewError if the base has to start over first.
        """
        self._snapshot = None
        self._documents.damage = []
        for _ in attempts(()):
            snapshot = self._watch.look_again()
            if self.is_made_anew:
                raise MadeAnewError
            migrated = version_of(snapshot.version).migrate(self._context, snapshot)
            if migrated is not None:
                return migrated
        raise AssertionError  # attempts() ends with an error


def open_index(
    store: Store, names: Names, base: Base, *, clock: Clock, concurrency: int = 10
) -> RemoteIndex:
    """Put the parts of an index together; nothing is sent yet."""
    documents = Documents(store, names, concurrency)
    copy = LocalCopy(names.cache_dir, base, documents)
    files = StoredFiles(documents, names, base, Matching(documents, names))
    recovery = Recovery(documents, base, copy, files)
    watch = Watch(documents, recovery, base, clock)
    own_shards = OwnShards(names.cache_dir, documents)
    return RemoteIndex(IndexContext(documents, base, copy, recovery, watch, own_shards, clock))


def _fence(context: IndexContext, *, is_new: bool) -> None:
    """Make every commit that has begun fail, for whoever took over the lock of a paused committer.

    A commit replaces one document on the condition that it is still the one the commit builds on,
    or creates it on the condition that there is none. Writing that document anew, with the same
    entries, makes every commit that has begun before fail there; it then looks at its locks again,
    and finds out.

    Where there is no index, one is made of the files that are there. If there are none, an
    empty one is made if the remote `is_new` to this cache; if the cache has seen it with one,
    somebody has emptied it, which is not for us to settle.
    """
    fetched = context.documents.meta()
    meta = _decoded(fetched)
    # If somebody else writes at this very moment, that does the same.
    with contextlib.suppress(PreconditionFailedError, IndexMovedError):
        if fetched is None or meta is None:
            _fence_without_meta(context, fetched, is_new=is_new)
        else:
            version_of(meta.version).fence(context, meta, fetched, is_new=is_new)


def _fence_without_meta(context: IndexContext, fetched: Fetched | None, *, is_new: bool) -> None:
    # Before anything is written: the time of the monolith may tell what the remote is.
    snapshot = _seen(context, fetched)
    if fetched is not None:
        # What cannot be read is written back as it is, and a blank more.
        context.documents.put_meta(fetched.data + b" ", fetched.info.token, commits=False)
    version = version_of(snapshot.version)
    version.fence_without_meta(context, snapshot, fetched, is_new=is_new)


def _seen(context: IndexContext, fetched: Fetched | None) -> MetaSnapshot:
    info = fetched.info if fetched else None
    try:
        return context.recovery.without_meta(info and info.etag, info and info.token)
    except IndexDamagedError:
        return MetaSnapshot(FIRST.number)


def _decoded(fetched: Fetched | None) -> Meta | None:
    try:
        return decode_meta(fetched.data) if fetched else None
    except IndexDamagedError:
        return None
