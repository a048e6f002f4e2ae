"""Version 1 of the index: the monolith is the truth, and the shards are copies of its parts.

`_meta.json` names the monolith and the shards that agree with each other. Clients that know nothing
but the monolith may write it alone; then whoever reads takes all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Generator, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from msgspec.structs import replace

from swampstore.clock import Clock, to_iso
from swampstore.index.changes import Change, index_moved, new_write_id
from swampstore.index.documents import Documents, StoredDocument
from swampstore.index.errors import IndexDamagedError
from swampstore.index.format import Document, RawEntries, decode_monolith, encode_monolith, merged
from swampstore.index.meta import Meta, encode_meta
from swampstore.index.migration import Migration
from swampstore.index.partitions import META_KEY, MONOLITH_KEY, Scope, shard_key
from swampstore.index.state import (
    FOREIGN_WRITER,
    MONOLITH_CHECKED,
    MONOLITH_ETAG,
    Committed,
    Fingerprint,
    MetaSnapshot,
    Migrated,
    Proof,
    Slice,
    View,
    document,
    from_monolith,
    grouped,
    same,
)
from swampstore.index.version import IndexContext, IndexVersion, Rebuild
from swampstore.index.version1_commit import MonolithCommit, after_monolith, copies
from swampstore.stores.errors import PreconditionFailedError
from swampstore.stores.protocol import Fetched

if TYPE_CHECKING:
    from swampstore.index.remote_index import Reader
    from swampstore.index.repair import Recovery
    from swampstore.index.watch import Watch

# How often shards may change under our hands before we take the monolith, which cannot.
_ROUNDS = 3


class Version1(IndexVersion):
    """The monolith counts."""

    number = 1
    name = "v1"
    counts_commits = False
    successor = 2

    # Which documents count -----------------------------------------------------------------------

    def counts(self, partition: str | None) -> bool:
        """Whether it is the monolith."""
        return partition is None

    def documents(self, partitions: Iterable[str]) -> list[str]:
        """Return the monolith, whatever partitions there are."""
        del partitions
        return [MONOLITH_KEY]

    def entries(self, documents: Documents, partitions: Collection[str]) -> Iterator[RawEntries]:
        """Yield all entries there are."""
        del partitions
        fetched = documents.monolith()
        if fetched is not None:
            info, data = fetched
            yield document(documents.parse_monolith(data, info.etag, info.token)).entries

    def lost_partitions(self, snapshot: MetaSnapshot, stored: Container[str]) -> set[str] | None:
        """Return no partition: what is lost is the monolith, or nothing."""
        del snapshot
        return None if MONOLITH_KEY in stored else set()

    def with_left_out(
        self, context: IndexContext, snapshot: MetaSnapshot, *, is_proven: bool
    ) -> MetaSnapshot:
        """Look into the shards, if they are not those of the monolith: another client wrote it."""
        found = context.copy.monolith() if snapshot.discovered is None else StoredDocument()
        if found.doc is None or (snapshot.agrees_with(found.etag) and not is_proven):
            return snapshot
        return context.recovery.with_left_out(snapshot, found, is_proven=is_proven)

    # Noticing changes ----------------------------------------------------------------------------

    def is_unchanged(self, watch: Watch, agreed: Fingerprint) -> bool:
        """Whether the monolith is the same, as far as it is time to ask for it."""
        return watch.is_monolith_unchanged(agreed)

    def proof(self, context: IndexContext, agreed: Fingerprint) -> Proof:
        """Return how the store calls the monolith that the base agrees with."""
        return context.copy.proof(agreed.monolith)

    def agreed_facts(self, state: Fingerprint, clock: Clock) -> dict[str, str | None]:
        """Return which monolith it was, and when it was looked at."""
        return {MONOLITH_ETAG: state.monolith, MONOLITH_CHECKED: to_iso(clock())}

    # Reading -------------------------------------------------------------------------------------

    def recovered(self, recovery: Recovery, etag: str | None, token: str | None) -> MetaSnapshot:
        """Find out what is there: others may have migrated the remote since."""
        return recovery.told_by_documents(etag, token)

    def read(self, reader: Reader, snapshot: MetaSnapshot) -> Iterator[Slice]:
        """Read the changed shards if they are those of the monolith, otherwise all of that."""
        watch, base = reader.context.watch, reader.context.base
        for _ in range(_ROUNDS):
            info = watch.monolith_info()
            if info is None:
                yield from reader.discovered(reader.context.recovery.discover(snapshot))
                return
            if self._is_agreed(reader, snapshot, info.etag):
                reader.seen = snapshot.fingerprint(info.etag) if snapshot.is_sound else None
                return
            if not snapshot.agrees_with(info.etag):
                base.apply(facts={FOREIGN_WRITER: "1"})
                break
            is_current = yield from self._trusted(reader, snapshot, info.etag)
            if is_current:
                return
            before, snapshot = snapshot, watch.look_again()
            if snapshot.version != self.number:
                yield from reader.slices(snapshot)
                return
            if snapshot.etag == before.etag:
                break
        yield from self._whole(reader, snapshot)

    def _is_agreed(self, reader: Reader, snapshot: MetaSnapshot, monolith: str) -> bool:
        """Whether the base holds what this monolith says, though `_meta.json` changed."""
        if reader.everything:
            return False
        agreed = reader.context.watch.agreed(reader.scope)
        if not any(same(one.monolith, monolith) for one in agreed):
            return False
        if snapshot.meta is not None and snapshot.agrees_with(monolith) and reader.scope is None:
            reader.record(snapshot.meta.shards)
        return True

    def _trusted(
        self, reader: Reader, snapshot: MetaSnapshot, monolith: str
    ) -> Generator[Slice, None, bool]:
        """Read the changed shards of the monolith that they agree with.

        The result of the generator is False if a shard turned out to be another one.
        """
        assert snapshot.meta is not None
        current = reader.etags(snapshot.meta)
        if snapshot.text is not None:
            reader.context.copy.agrees(monolith, snapshot.text.whole)
        if reader.scope is None and (reader.everything or reader.is_cold()):
            yield from self._whole(reader, snapshot, current)
            return True
        outdated = reader.outdated(current, from_monolith(monolith))
        reader.mark_partial(outdated)
        for partition, found in reader.context.documents.shards(outdated):
            if found.doc is None or found.etag != current[partition]:
                return False
            yield Slice(partition, reader.covered(found.doc.entries), found.etag, complete=True)
        yield from reader.gone(current)
        reader.seen = snapshot.fingerprint(monolith)
        return True

    def _whole(
        self, reader: Reader, snapshot: MetaSnapshot, current: Mapping[str, str] | None = None
    ) -> Iterator[Slice]:
        """Read everything from the monolith; `current` are the ETags of shards that agree."""
        context = reader.context
        found = context.copy.monolith()
        if found.doc is None or found.etag is None:
            yield from reader.discovered(context.recovery.discover(snapshot))
            return
        context.watch.hear(snapshot, found.doc)
        if current is None or not snapshot.agrees_with(found.etag):
            current = {}
        elif snapshot.text is not None:
            context.copy.agrees(found.etag, snapshot.text.whole)
        unsharded = from_monolith(found.etag)
        groups = grouped(found.doc.entries)
        etags = {partition: current.get(partition, unsharded) for partition in groups}
        outdated = reader.outdated(etags)
        reader.mark_partial(outdated)
        for partition in outdated:
            covered = reader.covered(groups.pop(partition))
            yield Slice(partition, covered, etags[partition], complete=True)
        yield from reader.gone(etags)
        reader.seen = snapshot.fingerprint(found.etag) if snapshot.is_sound else None

    def view(
        self,
        context: IndexContext,
        snapshot: MetaSnapshot,
        partitions: set[str],
        additions: set[str],
        *,
        rels: Collection[str] = (),
    ) -> View:
        """Return the whole monolith."""
        del rels
        if snapshot.exists and snapshot.discovered is None:
            monolith = context.copy.monolith()
            if monolith.doc is not None:
                context.watch.hear(snapshot, monolith.doc)
                found = copies(context, snapshot, partitions | additions)
                return View(snapshot, monolith=monolith, copies=found)
            snapshot = context.recovery.discover(snapshot)
        return View(snapshot, monolith=snapshot.discovered or StoredDocument(Document({})))

    # Writing -------------------------------------------------------------------------------------

    def commit(
        self,
        context: IndexContext,
        view: View,
        change: Change,
        scope: Scope | None,
        look_again: Callable[[Collection[str]], None],
    ) -> Committed:
        """Commit to the monolith."""
        done = MonolithCommit(context, look_again).commit(view, change)
        return after_monolith(context.base, done, scope, context.clock)

    def fence(self, context: IndexContext, meta: Meta, fetched: Fetched, *, is_new: bool) -> None:
        """Rewrite the monolith and `_meta.json`, by which everybody sees that it was."""
        del is_new
        _rewrite_monolith(context, meta, fetched)

    def fence_without_meta(
        self,
        context: IndexContext,
        snapshot: MetaSnapshot,
        fetched: Fetched | None,
        *,
        is_new: bool,
    ) -> None:
        """Rewrite the monolith. Without one, and without `_meta.json`, make an index."""
        has_files = snapshot.discovered is not None
        has_monolith = _rewrite_monolith(context, None, fetched)
        if not has_monolith and fetched is None and (is_new or has_files):
            _create_index(context)

    def migrate(self, context: IndexContext, snapshot: MetaSnapshot) -> Migrated | None:
        """Put everything into shards."""
        return Migration(context).migrate(snapshot)

    def rebuild(self, work: Rebuild) -> int:
        """Write the monolith, then the shards, then `_meta.json`."""
        work = work.begun()
        etag, is_written, origin = _rebuild_monolith(work)
        etags, written = work.write_shards(None)
        leftovers = sorted(work.shards.keys() - etags.keys())
        for partition in leftovers:
            _delete_shard(work.documents, partition)
        written += is_written + len(leftovers)
        meta = work.meta
        if not written and meta and meta.monolith == etag and {*meta.partitions} == etags.keys():
            return 0
        known = [one for one in (meta.partitions if meta else ()) if one in etags]
        partitions = tuple(dict.fromkeys((*known, *sorted(etags))))
        made = Meta(
            version=self.number,
            partitions=partitions,
            shards={one: etags[one] for one in partitions},
            monolith=etag,
            extra=meta.extra if meta else {},
            origin=origin,
        )
        try:
            work.documents.put_meta(encode_meta(made, new_write_id()), work.token, commits=False)
        except PreconditionFailedError:
            raise index_moved(f"somebody else wrote {META_KEY}", ()) from None
        return written + 1


def _delete_shard(documents: Documents, partition: str) -> None:
    try:
        documents.delete_shard(partition, documents.shard_as_it_is(partition).token)
    except PreconditionFailedError:
        raise index_moved(f"somebody else wrote {shard_key(partition)}", ()) from None


def _rewrite_monolith(context: IndexContext, meta: Meta | None, fetched: Fetched | None) -> bool:
    """Write the monolith anew, with the same entries; return whether there is one."""
    found = context.documents.monolith()
    if found is None:
        return False
    info, data = found
    try:
        doc = decode_monolith(data)
    except IndexDamagedError:
        return True  # nobody can build on it
    etag = _put_monolith(context, doc, info.token)
    if fetched is not None and meta is not None:
        if meta.monolith == info.etag:
            meta = replace(meta, monolith=etag)  # the shards are those of the new one too
        # Else somebody was stopped in between. Until now whoever asks for `_meta.json` alone, as
        # all do for a while, could not tell that there was a commit.
        context.documents.put_meta(
            encode_meta(meta, new_write_id()), fetched.info.token, commits=False
        )
    return True


def _create_index(context: IndexContext) -> None:
    """Make an index of what is there, usually nothing.

    `_meta.json` comes first: by its new origin, caches that knew another index here see that
    this is not the same one with everything deleted.
    """
    origin = new_write_id()
    meta = Meta(version=Version1.number, partitions=(), origin=origin)
    context.documents.put_meta(encode_meta(meta, new_write_id()), None, commits=False)
    found = context.recovery.discover(MetaSnapshot(Version1.number)).discovered
    _put_monolith(context, document(found or StoredDocument()).of_origin(origin), None)


def _put_monolith(context: IndexContext, doc: Document, token: str | None) -> str:
    data = encode_monolith(doc, to_iso(context.clock()), new_write_id())
    return context.documents.put_monolith(data, token).etag


def _rebuild_monolith(work: Rebuild) -> tuple[str, bool, str | None]:
    """Make the monolith hold the entries.

    Return its ETag, whether it had to be written, and the origin of the index.
    """
    fetched = work.documents.monolith()
    token = fetched.info.token if fetched else None
    current = _decoded(fetched.data) if fetched else None
    wanted = work.entries()
    before = current or Document({})
    origin = work.origin(before.origin)
    if fetched is not None and current is not None and current.entries == wanted:
        return fetched.info.etag, False, origin
    doc = Document(merged(before.entries, wanted), before.extra).of_origin(origin)
    data = encode_monolith(doc, to_iso(work.clock()), new_write_id())
    try:
        return work.documents.put_monolith(data, token).etag, True, origin
    except PreconditionFailedError:
        raise index_moved(f"somebody else wrote {MONOLITH_KEY}", ()) from None


def _decoded(data: bytes) -> Document | None:
    try:
        return decode_monolith(data)
    except IndexDamagedError:
        return None
