"""The files that a store holds, whether or not an index names them.

Objects that no index tells of must belong together: metadata, and the content it speaks of. Two
machines that were stopped while they uploaded a version of the same number may have left one half
each. Taken together that is no version: whoever reads it is told that it is damaged.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Container, Iterable, Mapping
from typing import TypeVar

from swampstore.artifacts.metadata import Metadata, decode
from swampstore.clock import to_iso
from swampstore.errors import MetadataError
from swampstore.index.base import Base, Known
from swampstore.index.documents import Documents
from swampstore.index.format import Entry, RawEntries, decode_entry, encode_entry, entry_known
from swampstore.index.path_kinds import is_metadata, is_surely_ours, other_datastores
from swampstore.index.path_map import Names
from swampstore.index.removals import Notes, read_notes
from swampstore.layout import RAW
from swampstore.stores.errors import ObjectNotFoundError
from swampstore.stores.protocol import ObjectInfo

T = TypeVar("T")
# Of larger content only the size is compared: reading all of a remote would take too long.
_READ_AT_MOST = 4 * 1024 * 1024


class StoredFiles:
    """The files of one namespace, told from the objects that the store lists."""

    def __init__(self, documents: Documents, names: Names, base: Base, matching: Matching) -> None:
        self._documents = documents
        self._names = names
        self._base = base
        self._matching = matching

    def listed(self, prefix: str) -> dict[str, ObjectInfo]:
        """Return the objects of this namespace whose path begins with `prefix`."""
        root = self._names.remote("")
        listed = self._documents.store.list(f"{root}{prefix}")
        return {info.key.removeprefix(root): info for info in listed}

    def is_stored(self, rel: str) -> bool:
        """Whether there is an object for a path; costs a request."""
        try:
            self._documents.store.head(self._names.remote(rel))
        except ObjectNotFoundError:
            return False
        return True

    def notes(self) -> Notes:
        """Return what somebody deleted and has not removed yet."""
        return read_notes(self._documents.store, self._names)

    def without_removals(self, listed: Mapping[str, ObjectInfo]) -> dict[str, ObjectInfo]:
        """Return objects without those that are left of a deletion."""
        notes = self.notes()
        known = self._base.get_many(rel for rel in listed if notes.mention(rel))
        return {
            rel: info
            for rel, info in listed.items()
            if not notes.name(rel, info, _sha256_of(info, known.get(rel)))
        }

    def payload(self, listed: Mapping[str, ObjectInfo]) -> dict[str, ObjectInfo]:
        """Return the files of this namespace among objects.

        Other namespaces, and other datastores, may have directories below the root. Uploads of ours
        that no index names yet are about to be committed, and then with their hashes. What is left
        of a deletion does not come back. What is not where a datastore has anything is ours only if
        the base has known it as such.
        """
        notes = self.notes() if listed else Notes()
        doubtful = (rel for rel in listed if notes.mention(rel) or not is_surely_ours(rel))
        known = self._base.get_many(doubtful)
        foreign = tuple(other_datastores(listed))
        noted = self._base.noted_uploads(listed)
        ours = {rel for rel, (_, token) in noted.items() if token}
        half = self._half_uploaded(listed, ours)
        return {
            rel: info
            for rel, info in listed.items()
            if rel not in ours
            and rel not in half
            and not notes.name(rel, info, _sha256_of(info, known.get(rel)))
            and not rel.startswith(foreign)
            and (is_surely_ours(rel) or rel in known)
            and self._names.why_not(rel) is None
        }

    def _half_uploaded(self, listed: Mapping[str, ObjectInfo], ours: Container[str]) -> set[str]:
        """Return metadata whose content is neither there nor here, and what only looks like it.

        It is what a stopped upload left, or the content is lost; whoever still has that pushes
        both, because the index does not name them. Where one of two files is an upload of `ours`,
        the other one is of somebody else, and the two are no version.
        """
        pairs = contents_of(listed).items()
        mixed = {one for pair in pairs for one in pair if any(half in ours for half in pair)}
        contents = {
            rel: raw for rel, raw in pairs if raw not in listed and self._names.why_not(raw) is None
        }
        here = self._held(contents.values())
        return mixed | {rel for rel, raw in contents.items() if raw not in here}

    def _held(self, rels: Iterable[str]) -> dict[str, Known]:
        """Return what the base knows of the paths of which this cache has the content."""
        known = self._base.get_many(rels)
        return {rel: one for rel, one in known.items() if one.held is not None}

    def entries(self, files: Mapping[str, ObjectInfo], told: RawEntries) -> RawEntries:
        """Describe files: as documents have told of them, or as the base and the store know them.

        Without versions whose content is not what their metadata speaks of, and with content that
        was lost and is here.
        """
        known = self._base.get_many(files)
        entries = {
            rel: told.get(rel) or encode_entry(rel, _entry_of(info, known.get(rel)))
            for rel, info in sorted(files.items())
        }
        return self._matching.without_strangers(entries, files) | self._lost_contents(files)

    def _lost_contents(self, files: Mapping[str, ObjectInfo]) -> RawEntries:
        """Return content that was lost and is here: it is uploaded again."""
        lost = self._held({*contents_of(files).values()} - files.keys())
        return {rel: encode_entry(rel, entry_known(one)) for rel, one in sorted(lost.items())}


class Matching:
    """Compares metadata and content of one namespace, each pair of objects once."""

    def __init__(self, documents: Documents, names: Names) -> None:
        self._documents = documents
        self._names = names
        self._seen: dict[tuple[str, str, str], bool] = {}

    def without_strangers(self, entries: RawEntries, files: Mapping[str, ObjectInfo]) -> RawEntries:
        """Leave out versions whose content is not what their metadata speaks of.

        What was hashed when it was committed, both files of it, is not read again. Others cost a
        request for the metadata, and one for content that is not large.
        """
        unsure = {
            rel: raw
            for rel, raw in contents_of(files).items()
            if raw in files and not (_sha256(rel, entries) and _sha256(raw, entries))
        }
        answers = self._documents.each(
            lambda rel: self._belong_together(rel, unsure[rel], entries, files), [*unsure]
        )
        strange = {one for rel, answer in answers if not answer for one in (rel, unsure[rel])}
        return {rel: raw for rel, raw in entries.items() if rel not in strange}

    def _belong_together(
        self, rel: str, raw: str, entries: RawEntries, files: Mapping[str, ObjectInfo]
    ) -> bool:
        pair = (rel, files[rel].etag, files[raw].etag)
        if pair not in self._seen:
            try:
                self._seen[pair] = self._is_meant(rel, raw, entries, files[raw])
            except ObjectNotFoundError:
                return False  # it is being removed
        return self._seen[pair]

    def _is_meant(self, rel: str, raw: str, entries: RawEntries, info: ObjectInfo) -> bool:
        try:
            metadata: Metadata = decode(self._get(rel), rel)
        except MetadataError:
            return True  # it speaks of nothing
        if not metadata.allows(info.size):
            return False
        if not metadata.checksum or info.size > _READ_AT_MOST:
            return True
        if metadata.streaming:
            # Its content may go on before its metadata does.
            content = self._get(raw)[: metadata.size]
            return hashlib.sha256(content).hexdigest() == metadata.checksum
        sha256 = _sha256(raw, entries) or hashlib.sha256(self._get(raw)).hexdigest()
        return sha256 == metadata.checksum

    def _get(self, rel: str) -> bytes:
        return self._documents.store.get(self._names.remote(rel)).data


def contents_of(files: Collection[str]) -> dict[str, str]:
    """Return, for the metadata of versions among these paths, where the content is."""
    return {rel: f"{rel.rpartition('/')[0]}/{RAW}" for rel in files if is_metadata(rel)}


def _sha256(rel: str, entries: RawEntries) -> str | None:
    return decode_entry(rel, entries[rel]).sha256 if rel in entries else None


def versions_among(files: Mapping[str, T]) -> dict[str, T]:
    """Return the files of versions of which both metadata and content are there."""
    pairs = ((rel, raw) for rel, raw in contents_of(files).items() if raw in files)
    return {one: files[one] for pair in pairs for one in pair}


def _sha256_of(info: ObjectInfo, known: Known | None) -> str | None:
    """Return the hash of a listed object, if it is the one that the base knows."""
    return _entry_of(info, known).sha256


def _entry_of(info: ObjectInfo, known: Known | None) -> Entry:
    """Describe a file; with its hash if it is still the very object that the base knows."""
    if known and known.size == info.size and known.etag in (info.etag, info.token or info.etag):
        return Entry(info.size, known.modified, known.sha256)
    return Entry(info.size, to_iso(info.last_modified))
