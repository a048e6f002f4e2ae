"""Whether objects that no index tells of belong together: metadata, and the content it speaks of.

Two machines that were stopped while they uploaded a version of the same number may have left one
half each. Taken together that is no version: whoever reads it is told that it is damaged.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping

from swampstore.artifacts.metadata import Metadata, decode
from swampstore.errors import MetadataError
from swampstore.index.documents import Documents
from swampstore.index.format import RawEntries, decode_entry
from swampstore.index.path_kinds import is_metadata
from swampstore.index.path_map import Names
from swampstore.layout import RAW
from swampstore.stores.errors import ObjectNotFoundError
from swampstore.stores.protocol import ObjectInfo

# Of larger content only the size is compared: reading all of a remote would take too long.
_READ_AT_MOST = 4 * 1024 * 1024


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
