"""Making do without parts of the index: what was lost is found again by listing the store.

Nothing here writes. What was put together is shown to readers, and the next commit writes it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator, Mapping
from functools import cache

from msgspec.structs import replace

from swampstore.index.base import Base, Known
from swampstore.index.documents import Documents, StoredDocument
from swampstore.index.errors import IndexDamagedError
from swampstore.index.fingerprints import is_named
from swampstore.index.format import Document, RawEntries, decode_entry, encode_entry, entry_known
from swampstore.index.local_copy import LocalCopy
from swampstore.index.meta import Meta
from swampstore.index.partition_list import PartitionList
from swampstore.index.partitions import MONOLITH_KEY, ROOT, partition_of, shard_key
from swampstore.index.path_kinds import is_marker, unit_of
from swampstore.index.state import (
    COMMIT_SEQ,
    INDEX_VERSION,
    MetaSnapshot,
    document,
    grouped,
    last_seen,
    with_uncommitted,
)
from swampstore.index.stored_files import StoredFiles, contents_of, versions_among
from swampstore.index.unversioned import (
    count_commits,
    entry_or_none,
    not_before,
    numbers_in,
    was_there,
    went_on,
)
from swampstore.index.versions import PATHS_VERSION, known_version
from swampstore.stores.protocol import ObjectInfo


class Recovery:
    """Finds out what a damaged remote is, and what it holds."""

    def __init__(
        self, documents: Documents, base: Base, copy: LocalCopy, files: StoredFiles
    ) -> None:
        self._documents = documents
        self._base = base
        self._copy = copy
        self._files = files
        self._under_way: Mapping[str, tuple[str, str | None]] = {}

    @contextlib.contextmanager
    def during(self, commit: Mapping[str, tuple[str, str | None]]) -> Iterator[None]:
        """Look past the shards that a commit of ours has just written: nobody else did.

        They are given by their ETags, each with that of the one before, None if there was none.
        """
        self._under_way = commit
        try:
            yield
        finally:
            self._under_way = {}

    # A lost or damaged _meta.json --------------------------------------------------------------

    def without_meta(self, etag: str | None, token: str | None) -> MetaSnapshot:
        """Find out what a remote is whose `_meta.json` is missing, or damaged with this token.

        Nothing that anybody committed is left out, whichever of its documents was the truth.
        """
        if self._documents.keeps_paths:
            return PATHS_VERSION.recovered(self, etag, token)
        return known_version(self._base.fact(INDEX_VERSION)).recovered(self, etag, token)

    def paths(self, version: int, etag: str | None, token: str | None) -> MetaSnapshot:
        """Return a remote whose store keeps the paths itself: there is one if there are any."""
        newest = self._documents.paths.newest_path(self._documents.root)
        return MetaSnapshot(
            version, etag=etag, token=token, exists=newest is not None or etag is not None
        )

    def sharded(self, etag: str | None, token: str | None) -> MetaSnapshot:
        """Return a version 2 remote as its shards show it."""
        return self._sharded(self._documents.listed_shards(), etag, token)

    def told_by_documents(self, etag: str | None, token: str | None) -> MetaSnapshot:
        """Find out from its documents whether a remote has version 1 or 2, and what it holds."""
        listed = self._files.listed("")
        shards = self._documents.shards_among(listed.values())
        found = dict(self._documents.shards(shards))
        if count_commits(found.values()):
            return self._sharded(shards, etag, token)
        snapshot = MetaSnapshot(1, etag=etag, token=token)
        monolith = self._copy.monolith() if MONOLITH_KEY in listed else StoredDocument()
        if monolith.doc is None:
            return self.discover(snapshot)
        written = listed[MONOLITH_KEY].last_modified
        younger = {one: found[one] for one in not_before(written, shards)}
        kept = cache(lambda: self._files.without_removals(listed))
        if went_on(written, monolith.doc, shards, younger.items(), lambda rel: rel in kept()):
            return self._sharded(shards, etag, token)
        return self._believed(snapshot, monolith, listed, found)

    def version(self) -> int | None:
        """Return which version its documents show a remote without `_meta.json` to have.

        None: there is neither a monolith nor a shard that counts commits. Files are not looked at,
        and shards one after the other: there may be any number of both. Raises IndexDamagedError
        if the monolith cannot be understood and no shard tells.
        """
        if self._documents.keeps_paths:
            state = self.paths(PATHS_VERSION.number, None, None)
            return state.version if state.exists else None
        shards = self._documents.listed_shards()
        if count_commits(shard for _, shard in self._documents.shards(shards)):
            return 2
        info = self._documents.monolith_info()
        monolith = self._copy.monolith() if info else StoredDocument()
        if info is None or monolith.doc is None:
            return None
        written = info.last_modified
        younger = self._documents.shards(not_before(written, shards))
        is_past = went_on(written, monolith.doc, shards, younger, self._files.is_stored)
        return 2 if is_past else 1

    def _believed(
        self,
        snapshot: MetaSnapshot,
        monolith: StoredDocument,
        listed: Mapping[str, ObjectInfo],
        shards: Mapping[str, StoredDocument],
    ) -> MetaSnapshot:
        """Return a version 1 remote as its monolith shows it, if that names all versions there are.

        Otherwise it may be one that others made version 2, and whose shards are lost: what has
        objects counts then.
        """
        files = self._files.payload(listed)
        dated = replace(monolith, written=listed[MONOLITH_KEY].last_modified)
        if not self._unnamed(versions_among(files), dated):
            return replace(snapshot, origin=document(monolith).origin)
        entries = self._files.entries(files, self._told(files, listed, shards, monolith))
        made = _made_of(entries, monolith)
        unnamed = {rel: one for rel, one in files.items() if rel not in document(monolith).entries}
        return replace(snapshot, discovered=made, leaves_out=self._has_known(unnamed))

    def _has_known(self, files: Mapping[str, ObjectInfo]) -> bool:
        """Whether any of these versions is one that the base knows the remote to have had."""
        known = self._base.get_many(versions_among(files))
        return any(not _is_another(one, files[rel]) for rel, one in known.items())

    def discover(self, snapshot: MetaSnapshot) -> MetaSnapshot:
        """Return what a remote of version 1 without a monolith holds: its files, or nothing.

        The files there are, each as its shard tells of it if that can be believed.
        """
        listed = self._files.listed("")
        files = self._files.payload(listed)
        found = dict(self._documents.shards(self._documents.shards_among(listed.values())))
        entries = self._files.entries(files, self._told(files, listed, found))
        is_exact = _are_all_there(snapshot.meta, found)
        if is_exact:
            # What the index named stays named, also where the object is lost too.
            for partition in snapshot.meta.partitions if snapshot.meta else ():
                entries = {**document(found[partition]).entries, **entries}
        if not entries and snapshot.meta is None:
            return replace(snapshot, exists=False, discovered=None)
        # Where there was an index it is lost, also if nothing is left that it could name.
        made = _made_of(entries, StoredDocument(), is_exact=is_exact)
        return replace(snapshot, exists=True, discovered=made)

    def with_stored(self, snapshot: MetaSnapshot) -> MetaSnapshot:
        """Return a version 2 remote with all versions that are stored, whether named or not."""
        stored = versions_among(self._files.payload(self._files.listed("")))
        return replace(snapshot, versions=_by_partition(stored))

    def with_left_out(
        self, snapshot: MetaSnapshot, monolith: StoredDocument, *, is_proven: bool
    ) -> MetaSnapshot:
        """Return a version 1 remote with the versions that a monolith leaves out, and shards name.

        Whatever is in a shard was in a monolith before. If it is not any more, it was deleted, and
        its objects are gone or noted; or the monolith was lost, and a client that takes that for an
        empty one has written it with its own entries alone. If that `is_proven`, what is stored
        counts as well: such a client writes shards, too.
        """
        listed = self._files.listed("")
        files = self._files.payload(listed)
        shards = dict(self._documents.shards(self._documents.shards_among(listed.values())))
        named = document(monolith).entries
        told = self._told(files, listed, shards)
        if is_proven:
            told = self._files.entries(files, told)
        left = {rel: raw for rel, raw in told.items() if rel not in named}
        whole = versions_among(left)
        names = {unit_of(rel) for rel in whole}
        markers = {rel for rel in left if is_marker(rel) and unit_of(rel) in names}
        if not whole:
            return snapshot
        found = {rel: raw for rel, raw in left.items() if rel in whole or rel in markers}
        return replace(snapshot, discovered=_made_of({**named, **found}, monolith))

    def _sharded(
        self, shards: Mapping[str, ObjectInfo], etag: str | None, token: str | None
    ) -> MetaSnapshot:
        """Return a version 2 remote as its shards show it; it never becomes version 1 again."""
        listed = self._files.listed("")
        files = self._files.payload(listed)
        stored = versions_among(files)
        last = self._last_meta()
        before = self._before_commit(shards)
        is_last = (
            last is not None
            and last.shards.keys() == before.keys()
            and all(is_named(last.shards[one], etag) for one, etag in before.items())
        )
        if last is not None and is_last and self._are_named(stored, last):
            return MetaSnapshot(2, last, etag=etag, token=token, is_healed=True, is_exact=True)
        # With it, shards may have been lost.
        partitions = {*shards, *(partition_of(rel) for rel in files)}
        # A monolith of before shows that there was an index, and would be in the way of a new one.
        if not partitions and etag is None and MONOLITH_KEY not in listed:
            return MetaSnapshot(1, exists=False)
        known_seq = self._base.fact(COMMIT_SEQ)
        meta = Meta(
            version=2,
            partitions=tuple(sorted(partitions)),
            commit_seq=int(known_seq) if known_seq else None,
            shards={partition: info.etag for partition, info in shards.items()},
        )
        healed = MetaSnapshot(2, meta, etag=etag, token=token, is_healed=True)
        return replace(healed, versions=_by_partition(stored))

    def _before_commit(self, shards: Mapping[str, ObjectInfo]) -> dict[str, str]:
        """Return the ETags that shards had before the commit that is under way wrote some."""
        etags: dict[str, str] = {}
        for partition, info in shards.items():
            written, before = self._under_way.get(partition, (None, None))
            etag = before if written == info.etag else info.etag
            if etag is not None:
                etags[partition] = etag
        return etags

    def _are_named(self, stored: Mapping[str, ObjectInfo], meta: Meta) -> bool:
        """Whether the shards that `_meta.json` named last name all versions that are stored.

        If not, others have committed since: to a shard that is lost as well, or to a monolith,
        because without `_meta.json` they took the remote for one of version 1. Then they may also
        have put versions of theirs in the place of some.
        """
        recorded = self._base.shard_etags()
        known = self._base.get_many(stored)
        if any(_is_another(one, stored[rel]) for rel, one in known.items()):
            return False
        partitions = {one for one, told in meta.shards.items() if is_named(told, recorded.get(one))}
        unsure = {rel for rel in stored if rel not in known or partition_of(rel) not in partitions}
        unread = {partition_of(rel) for rel in unsure}
        if not unread <= meta.shards.keys():
            return False
        found = dict(self._documents.shards(unread))
        return all(_tells_of(rel, found[partition_of(rel)], stored[rel], None) for rel in unsure)

    def completed(
        self, partition: str, found: StoredDocument, snapshot: MetaSnapshot
    ) -> StoredDocument:
        """Return a shard with the versions that have objects, where `_meta.json` is lost."""
        doc = document(found)
        unnamed = self._unnamed(snapshot.versions.get(partition, {}), found)
        if not unnamed:
            return found
        whole = replace(doc, entries={**doc.entries, **unnamed})
        return replace(found, doc=whole, is_dirty=True, is_recovered=True)

    def were_left_out(self, partition: str, found: StoredDocument, snapshot: MetaSnapshot) -> bool:
        """Whether a shard does not name what the base knows, and is stored as it was."""
        stored = snapshot.versions.get(partition, {})
        named = document(found).entries
        return self._has_known({rel: one for rel, one in stored.items() if rel not in named})

    def _unnamed(self, versions: Mapping[str, ObjectInfo], found: StoredDocument) -> RawEntries:
        """Return entries of versions that a document does not name, or not as they are by now."""
        known = self._base.get_many(versions)

        def is_named(rel: str) -> bool:
            return _tells_of(rel, found, versions[rel], known.get(rel))

        names = contents_of(versions).items()
        chosen = {one for pair in names if not all(map(is_named, pair)) for one in pair}
        return self._files.entries({rel: versions[rel] for rel in chosen}, {})

    def _last_meta(self) -> Meta | None:
        """Return the last `_meta.json` that this cache has seen, if it tells of all shards."""
        try:
            meta = last_seen(self._base).meta()
        except IndexDamagedError:
            return None
        return meta if meta.version == 2 and {*meta.partitions} == meta.shards.keys() else None

    def last_commit_seq(self, meta: Meta) -> int:
        """Return the highest commit number that is known or that is in any shard."""
        found = (document(shard) for _, shard in self._documents.shards(meta.partitions))
        return max([meta.commit_seq or 0, *(max(numbers_in(doc)) for doc in found)])

    # A lost or damaged shard -------------------------------------------------------------------

    def shards(
        self,
        partitions: Collection[str],
        snapshot: MetaSnapshot,
        moved: Collection[str] = frozenset(),
    ) -> dict[str, StoredDocument]:
        """Return shards of a version 2 remote as a commit has to write them.

        One that should be there and is lost or damaged is made anew. Without `_meta.json` all come
        that may lack a version: the commit writes that document again, and nobody looks any more.
        What is in those that entries were `moved` to was told of where it came from.
        """
        assert snapshot.meta is not None
        chosen = {*partitions, *snapshot.versions}
        found = self._documents.all(self._documents.shard, chosen)
        told = PartitionList.of(snapshot.meta.partitions)
        for one in found:
            if one not in told and one not in moved:
                found[one] = self._without_gone(found[one])
        return {one: self._healed(one, shard, snapshot) for one, shard in found.items()}

    def _healed(
        self, partition: str, found: StoredDocument, snapshot: MetaSnapshot
    ) -> StoredDocument:
        assert snapshot.meta is not None
        is_lost = found.etag is not None or partition in snapshot.meta.partitions
        if found.doc is None and is_lost:
            return self.rebuilt(partition, found, snapshot.meta)
        return with_uncommitted(partition, self.completed(partition, found, snapshot), snapshot)

    def _without_gone(self, found: StoredDocument) -> StoredDocument:
        """Return a shard that nobody tells of without entries whose objects are not there.

        Whoever was stopped before its commit came to its end had uploaded all of them. But a
        request that made a shard may arrive a second time, after the last of its entries was
        removed and the shard with it.
        """
        doc = document(found)
        if not doc.entries:
            return found
        directories = {os.path.dirname(rel) for rel in doc.entries}
        listed = self._files.listed(os.path.commonpath(directories))
        notes = self._files.notes()

        def is_there(rel: str, raw: bytes) -> bool:
            entry, info = entry_or_none(rel, raw), listed.get(rel)
            if entry is None or info is None:
                return entry is None  # what cannot be understood is for others to tell
            return entry.size == info.size and not notes.name(rel, info, entry.sha256)

        there = {rel: raw for rel, raw in doc.entries.items() if is_there(rel, raw)}
        if len(there) == len(doc.entries):
            return found
        # If somebody tells of it by now, these entries were committed: the commit looks again.
        return replace(found, doc=replace(doc, entries=there), is_dirty=True, is_recovered=True)

    def rebuilt(self, partition: str, found: StoredDocument, meta: Meta | None) -> StoredDocument:
        """Return the entries of a lost or damaged shard: as the base has them, if it followed.

        Otherwise as far as the files show them, which `is_guess`.
        """
        fault = "is missing" if found.etag is None else "cannot be understood"
        told = meta.shards.get(partition) if meta else None
        if told is not None and is_named(told, self._base.shard_etags().get(partition)):
            self._documents.report(
                shard_key(partition), f"it {fault}; its entries are those that this cache knows"
            )
            entries = {
                rel: encode_entry(rel, entry_known(known))
                for rel, known in sorted(self._base.in_partition(partition).items())
            }
            return StoredDocument(
                Document(entries), found.etag, found.token, is_dirty=True, is_recovered=True
            )
        self._documents.report(
            shard_key(partition), f"it {fault}; its entries were made anew from the files there are"
        )
        listed = self._files.listed(_listing_prefix(partition))
        files = {
            rel: info
            for rel, info in self._files.payload(listed).items()
            if partition_of(rel) == partition
        }
        return StoredDocument(
            Document(self._files.entries(files, {})),
            found.etag,
            found.token,
            is_dirty=True,
            is_recovered=True,
            is_guess=True,
        )

    def _told(
        self,
        files: Mapping[str, ObjectInfo],
        listed: Mapping[str, ObjectInfo],
        shards: Mapping[str, StoredDocument],
        monolith: StoredDocument | None = None,
    ) -> RawEntries:
        """Return what documents tell of files that were not written after them.

        Where two tell of different contents, nobody knows which of them is there.
        """
        tellers = [
            (listed[shard_key(one)].last_modified, grouped(document(found).entries).get(one, {}))
            for one, found in shards.items()
        ]
        if monolith is not None:
            tellers.append((listed[MONOLITH_KEY].last_modified, document(monolith).entries))
        told: RawEntries = {}
        disputed: set[str] = set()
        for written, entries in tellers:
            for rel, raw in entries.items():
                info, entry = files.get(rel), entry_or_none(rel, raw)
                if info is None or entry is None or entry.size != info.size:
                    continue
                if info.last_modified <= written:
                    if rel in told and decode_entry(rel, told[rel]).sha256 != entry.sha256:
                        disputed.add(rel)
                    told[rel] = encode_entry(rel, replace(entry, commit_seq=None), onto=raw)
        return {rel: raw for rel, raw in told.items() if rel not in disputed}


def _are_all_there(meta: Meta | None, found: Mapping[str, StoredDocument]) -> bool:
    """Whether all shards are those that agreed with the monolith that was there."""
    if meta is None or meta.monolith is None:
        return False
    return all(
        partition in found
        and found[partition].doc is not None
        and is_named(meta.shards.get(partition), found[partition].etag)
        for partition in meta.partitions
    )


def _made_of(
    entries: RawEntries, onto: StoredDocument, *, is_exact: bool = False
) -> StoredDocument:
    """Return a monolith of these entries, to be written in the place of the one that is there."""
    extra = onto.doc.extra if onto.doc else {}
    return StoredDocument(
        Document(entries, extra),
        onto.etag,
        onto.token,
        is_dirty=True,
        is_recovered=True,
        is_guess=not is_exact,
    )


def _tells_of(rel: str, found: StoredDocument, info: ObjectInfo, known: Known | None) -> bool:
    """Whether a document names this object: of its size, and put there before the document was.

    One that tells of the object that the base knows does not name another that came after that.
    """
    doc = document(found)
    entry = entry_or_none(rel, doc.entries[rel]) if rel in doc.entries else None
    if entry is None or entry.size != info.size:
        return False
    if known is not None and entry.sha256 == known.sha256 and _is_another(known, info):
        return False
    return found.written is None or was_there(info, found.written)


def _is_another(known: Known, info: ObjectInfo) -> bool:
    """Whether an object is not the one that the base knows, as far as a listing tells."""
    if known.size != info.size:
        return True
    is_told = known.etag is not None and info.token is not None
    return is_told and known.etag not in (info.etag, info.token)


def _by_partition(files: Mapping[str, ObjectInfo]) -> dict[str, dict[str, ObjectInfo]]:
    groups: dict[str, dict[str, ObjectInfo]] = {}
    for rel, info in files.items():
        groups.setdefault(partition_of(rel), {})[rel] = info
    return groups


def _listing_prefix(partition: str) -> str:
    """Return what all paths of a partition begin with; `--` may also be part of a name."""
    if partition == ROOT:
        return ""
    first, *rest = partition.split("--")
    return f"{first}/{rest[0] if rest else ''}"
