"""Version 3 of the index: a store that is a database keeps a record for each path.

There are no documents. `_meta.json` counts the commits, so that one small request tells whether
anything changed; what did is asked for with a cursor: the last commit that is known, and a time of
the server. What was deleted has a record that says so, for a while: nothing is ever concluded from
a path that is not there.

Other clients of such a database change paths without `_meta.json`. They are looked for like those
that write only the monolith of version 1: once a minute, or each time where one was ever seen.
See docs/decisions/0055-mongodb-keeps-paths-not-documents.md.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING

from swampstore.clock import EPOCH, Clock, to_iso
from swampstore.index.changes import Change, new_write_id
from swampstore.index.documents import Documents
from swampstore.index.format import RawEntries
from swampstore.index.meta import Meta, encode_meta
from swampstore.index.partitions import MONOLITH_KEY, Scope, partition_of
from swampstore.index.state import (
    FOREIGN_WRITER,
    MONOLITH_CHECKED,
    MONOLITH_ETAG,
    Agreements,
    Committed,
    Fingerprint,
    MetaSnapshot,
    Migrated,
    Proof,
    Slice,
    View,
    others_write,
)
from swampstore.index.version import IndexContext, IndexVersion, Rebuild
from swampstore.index.version3_commit import (
    PathsView,
    commit,
    cursor_of,
    mark_of,
    raw_of,
    rebuilt,
)
from swampstore.stores.paths import PathCursor, StoredPath
from swampstore.stores.protocol import Fetched

if TYPE_CHECKING:
    from swampstore.index.remote_index import Reader
    from swampstore.index.repair import Recovery
    from swampstore.index.watch import Watch

# Stands for the ETag of a partition: what changed in it is told by the cursor.
FOLLOWED = "paths: followed by a cursor"
_EMPTIED = "paths_emptied"


class Version3(IndexVersion):
    """The paths count."""

    number = 3
    name = "paths"
    counts_commits = True
    stale_facts = (MONOLITH_ETAG,)

    # Which documents count -----------------------------------------------------------------------

    def counts(self, partition: str | None) -> bool:
        """Whether it is the monolith: the store makes one from the paths for whoever reads it."""
        return partition is None

    def documents(self, partitions: Iterable[str]) -> list[str]:
        """Return the monolith, whatever partitions there are."""
        del partitions
        return [MONOLITH_KEY]

    def entries(self, documents: Documents, partitions: Collection[str]) -> Iterator[RawEntries]:
        """Yield all entries there are."""
        del partitions
        found = documents.paths.changed_paths(documents.root, None)
        yield documents.scrubbed({one.rel: raw_of(one) for one in found if not one.is_deleted})

    def lost_partitions(self, snapshot: MetaSnapshot, stored: Container[str]) -> set[str] | None:
        """There are no documents that could be lost."""
        del snapshot, stored
        return None

    def is_emptied(self, context: IndexContext) -> bool:
        """Whether a reading found no path at all, not even a deleted one, and there still is none.

        What this cache has is new then, as it is to a remote that was emptied.
        """
        return context.base.fact(_EMPTIED) is not None and _has_lost_all(context)

    # Noticing changes ----------------------------------------------------------------------------

    def is_unchanged(self, watch: Watch, agreed: Fingerprint) -> bool:
        """Whether no other client has changed a path, as far as it is time to ask."""
        return watch.are_paths_known(agreed, cursor_of(agreed))

    def proof(self, context: IndexContext, agreed: Fingerprint) -> Proof:
        """There is nothing that other clients would believe."""
        del context, agreed
        return Proof()

    def agreed_facts(self, state: Fingerprint, clock: Clock) -> dict[str, str | None]:
        """Return when it was looked for changes of other clients."""
        del state
        return {MONOLITH_CHECKED: to_iso(clock())}

    # Reading -------------------------------------------------------------------------------------

    def recovered(self, recovery: Recovery, etag: str | None, token: str | None) -> MetaSnapshot:
        """Return what the paths show; without `_meta.json` nothing is lost but a number."""
        return recovery.paths(self.number, etag, token)

    def read(self, reader: Reader, snapshot: MetaSnapshot) -> Iterator[Slice]:
        """Read what changed since the base agreed, or everything."""
        context = reader.context
        since = None if reader.everything else _agreed(reader)
        scope = reader.scope
        store, root = context.documents.paths, context.documents.root
        groups: dict[str, tuple[RawEntries, set[str]]] = {}
        latest = since.modified if since else EPOCH
        theirs = EPOCH
        is_shared = since is not None and since.is_shared
        for one in store.changed_paths(root, since, scope.prefixes if scope else ()):
            entries, removed = groups.setdefault(partition_of(one.rel), ({}, set()))
            if one.is_deleted:
                removed.add(one.rel)
            else:
                entries[one.rel] = raw_of(one)
            if _is_of_others(one, since):
                is_shared = True
                theirs = max(theirs, one.modified or theirs)
            else:
                latest = max(latest, one.modified or latest)
        if not groups and _has_lost_all(context):
            reason = "the collection is empty, though it was not; the next push fills it again"
            context.documents.report("paths", reason)
            context.base.apply(facts={_EMPTIED: "1"})
            Agreements(context.base).revoke()
            return
        if is_shared and snapshot.meta is not None:
            context.base.apply(facts={FOREIGN_WRITER: "1"})
        if reader.everything and scope is None:
            _forget_lost(context, groups.values())
        reader.mark_partial(groups)
        for partition, (entries, removed) in sorted(groups.items()):
            kept = context.documents.scrubbed(reader.covered(entries))
            yield Slice(partition, kept, FOLLOWED, complete=False, removed=frozenset(removed))
        if snapshot.is_sound or snapshot.etag is None:
            seq = (snapshot.meta.commit_seq if snapshot.meta else None) or 0
            reader.seen = snapshot.fingerprint(mark_of(seq, _not_ahead(context, latest, theirs)))

    def view(
        self,
        context: IndexContext,
        snapshot: MetaSnapshot,
        partitions: set[str],
        additions: set[str],
        *,
        rels: Collection[str] = (),
    ) -> View:
        """Return a view that reads the paths that are asked for."""
        del partitions, additions
        return PathsView(snapshot, context.documents, rels)

    # Writing -------------------------------------------------------------------------------------

    def commit(
        self,
        context: IndexContext,
        view: View,
        change: Change,
        scope: Scope | None,
        look_again: Callable[[Collection[str]], None],
    ) -> Committed:
        """Change the paths and `_meta.json`, as one if the server can."""
        del look_again  # content cannot be taken away from under a commit
        assert isinstance(view, PathsView)
        return commit(context, view, change, scope, self.number)

    def fence(self, context: IndexContext, meta: Meta, fetched: Fetched, *, is_new: bool) -> None:
        """Write `_meta.json` anew: every commit replaces the one that it has read."""
        del is_new
        data = encode_meta(meta, new_write_id())
        context.documents.put_meta(data, fetched.info.token, commits=False)

    def fence_without_meta(
        self,
        context: IndexContext,
        snapshot: MetaSnapshot,
        fetched: Fetched | None,
        *,
        is_new: bool,
    ) -> None:
        """Make a `_meta.json`, unless there is a damaged one, or nothing that it could tell of."""
        if fetched is None and (is_new or snapshot.exists):
            last = context.documents.paths.last_path_commit(context.documents.root)
            made = Meta(self.number, (), last or None, origin=context.watch.origin(None))
            context.documents.put_meta(encode_meta(made, new_write_id()), None, commits=False)

    def migrate(self, context: IndexContext, snapshot: MetaSnapshot) -> Migrated | None:
        """There is nothing to migrate to; tell others of what an interrupted commit has left."""
        documents = context.documents
        found = documents.paths.changed_paths(documents.root, None)
        entries = sum(not one.is_deleted for one in found)
        seq = (snapshot.meta.commit_seq if snapshot.meta else None) or 0
        last = documents.paths.last_path_commit(documents.root)
        if last > seq:
            view = PathsView(snapshot, documents, (), is_unfinished=True)
            done = commit(context, view, Change({}, frozenset(), {}), None, self.number)
            seq = done.commit_seq or seq
        return Migrated(self.number, 0, entries, seq, already=True)

    def rebuild(self, work: Rebuild) -> int:
        """Make the paths those that somebody has settled."""
        return rebuilt(work, self.number)


def _agreed(reader: Reader) -> PathCursor | None:
    """Return up to where the base knows all changes, in the scope."""
    context = reader.context
    known = [one for one in context.watch.agreed(reader.scope) if one.version == Version3.number]
    if not known or context.watch.is_another:
        return None
    return max(cursor_of(one) for one in known)._replace(is_shared=others_write(context.base))


def _is_of_others(one: StoredPath, since: PathCursor | None) -> bool:
    """Whether another client has written a path, for all that can be told."""
    if one.commit_seq is None:
        return True
    return (
        since is not None
        and one.commit_seq <= since.commit_seq
        and (one.modified is not None and one.modified > since.modified)
    )


def _not_ahead(context: IndexContext, ours: datetime, theirs: datetime) -> datetime:
    """Return the time of the last change, but none that is still to come.

    Other clients write the time of their own clocks. If one that is ahead moved the cursor, nobody
    would look for what the others change until then.
    """
    latest = max(ours, theirs)
    if theirs > ours:
        return min(latest, context.documents.store.clock())
    return latest


def _forget_lost(
    context: IndexContext, found: Iterable[tuple[RawEntries, Collection[str]]]
) -> None:
    """Forget the paths of which the database has no record, not even that they were deleted.

    Somebody dropped a collection, or restored an older one. What this cache has of them is new
    then, and a push that looks at everything brings it back.
    """
    there: set[str] = set()
    for entries, removed in found:
        there.update(entries, removed)
    lost = [rel for rel in context.base.rels() if rel not in there]
    if lost:
        reason = f"of {len(lost)} paths there is no record any more; the next full push makes it"
        context.documents.report("paths", reason)
        context.base.apply(forgotten=lost)


def _has_lost_all(context: IndexContext) -> bool:
    """Whether the database has lost all paths, which deleted ones would not be."""
    documents = context.documents
    return bool(context.base.count()) and documents.paths.newest_path(documents.root) is None
