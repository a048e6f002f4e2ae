"""The monolith as this cache last saw it, so that an unchanged one is not fetched again.

The file is where every client keeps it, and other clients overwrite it with their own rendering,
so its hash tells whether it is still ours. A copy that a `_meta.json` agreed with is set aside
when one arrives that none agrees with: it shows which shards the next commit has to write again.
All of this is a convenience: whatever is missing or damaged is fetched or written once more.
A process remembers the monolith that it wrote last as it was understood. To read, hash and decode
the copy of a large one again would take longer than to change it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from typing import NamedTuple

from swampstore.errors import DiskError
from swampstore.files import disk_errors, replace_file
from swampstore.index.base import Base
from swampstore.index.documents import Documents, StoredDocument
from swampstore.index.errors import IndexDamagedError
from swampstore.index.format import Document, RawEntries, decode_monolith, iso_ms
from swampstore.index.meta import Meta, decode_meta
from swampstore.index.partitions import MONOLITH_KEY
from swampstore.index.state import Proof, same
from swampstore.notices import notice
from swampstore.stores.errors import ObjectNotFoundError
from swampstore.stores.protocol import Fetched

_ETAG = "copy_etag"
_TOKEN = "copy_token"  # noqa: S105 - the condition of a write, no secret
_SHA256 = "copy_sha256"
_SCRUBBED = "copy_scrubbed"  # the ETag of one that we have written
_META = "copy_meta"
_AGREED_ETAG = "agreed_copy_etag"
_AGREED_SHA256 = "agreed_copy_sha256"
_AGREED_META = "agreed_copy_meta"


class AgreedCopy(NamedTuple):
    """A monolith and the `_meta.json` that agreed with it."""

    entries: RawEntries
    meta: Meta


class LocalCopy:
    """The copy of one cache. Names beginning with `_catalog.db-` stay on their machine."""

    def __init__(self, cache_dir: str, base: Base, documents: Documents) -> None:
        self._path = f"{cache_dir}/{MONOLITH_KEY}"
        self._aside = f"{cache_dir}/_catalog.db-agreed-index"
        self._base = base
        self._documents = documents
        self._written = StoredDocument()

    def monolith(self) -> StoredDocument:
        """Return the monolith of the remote, without `doc` if there is none.

        It comes from the copy if that is the same, or is what this process wrote if nobody has
        written since. What is returned is not to be changed.
        """
        # Of one moment: another process on this cache may keep another one meanwhile.
        etag, token, sha256, scrubbed = self._base.facts(_ETAG, _TOKEN, _SHA256, _SCRUBBED)
        is_at_hand = same(etag, etag) and self._written.etag == etag
        data = _verified(self._path, sha256) if same(etag, etag) and not is_at_hand else None
        if etag is None or not (is_at_hand or data):
            fetched = self._documents.monolith()
            return StoredDocument() if fetched is None else self._received(fetched)
        try:
            changed = self._documents.monolith_unless(etag)
        except ObjectNotFoundError:
            return StoredDocument()
        if changed is not None:
            return self._received(changed)
        if data is None:
            return self._written
        return self._documents.parse_monolith(data, etag, token, is_scrubbed=scrubbed == etag)

    def fetch(self) -> StoredDocument:
        """Return the monolith of the remote without looking at the copy; see `monolith`."""
        fetched = self._documents.monolith()
        return StoredDocument() if fetched is None else self._received(fetched)

    def _received(self, fetched: Fetched) -> StoredDocument:
        info, data = fetched
        found = self._documents.parse_monolith(data, info.etag, info.token)
        self.save(data, info.etag, info.token)
        return found

    def save(
        self, data: bytes, etag: str, token: str | None, written: Document | None = None
    ) -> None:
        """Keep what the remote holds now. A disk that refuses is worth a notice, no more.

        It is `written` if we wrote it ourselves: that it has nothing which must never cross need
        not be found out again, which takes as long as to decode it.
        """
        self._written = StoredDocument(written, etag if written else None, token)
        sha256 = hashlib.sha256(data).hexdigest()
        if self._base.fact(_ETAG) != etag:
            self._base.apply(facts=self._set_aside())
        try:
            with disk_errors(self._path):
                os.makedirs(os.path.dirname(self._path), exist_ok=True)
                replace_file(self._path, data, durable=False)
        except DiskError as error:
            notice("the copy of the index was not kept: %s", error.message)
            self._base.apply(facts=dict.fromkeys((_ETAG, _TOKEN, _SHA256, _META)))
        else:
            facts = {_ETAG: etag, _TOKEN: token, _SHA256: sha256}
            self._base.apply(facts=facts | {_SCRUBBED: etag if written else None})

    def _set_aside(self) -> dict[str, str | None]:
        """Move a copy that was agreed with out of the way of one that is not, yet.

        Whether it is still ours is looked at by whoever needs it: it is long.
        """
        facts: dict[str, str | None] = {_META: None}
        etag, agreeing, sha256 = self._base.facts(_ETAG, _META, _SHA256)
        if agreeing is not None:
            with contextlib.suppress(OSError):
                os.replace(self._path, self._aside)
                facts |= {_AGREED_ETAG: etag, _AGREED_META: agreeing, _AGREED_SHA256: sha256}
        return facts

    def agrees(self, etag: str, meta_text: str) -> None:
        """Note that this `_meta.json` agrees with the monolith of this ETag, if we have that."""
        ours, agreeing = self._base.facts(_ETAG, _META)
        if ours != etag or agreeing == meta_text:
            return
        gone = dict.fromkeys((_AGREED_ETAG, _AGREED_META, _AGREED_SHA256))
        self._base.apply(facts={_META: meta_text, **gone})
        with contextlib.suppress(OSError):
            os.unlink(self._aside)

    def proof(self, etag: str | None) -> Proof:
        """Return what proves to other clients that the copy is the monolith of this ETag."""
        ours, token = self._base.facts(_ETAG, _TOKEN)
        if not same(etag, ours):
            return Proof()
        try:
            mtime_ns = os.stat(self._path).st_mtime_ns
        except OSError:
            return Proof()
        return Proof(token, not_before=iso_ms(mtime_ns + 1_000_000))

    def last_agreed(self) -> AgreedCopy | None:
        """Return the latest monolith we have that a `_meta.json` agreed with."""
        return self._agreed(self._path, _ETAG, _META, _SHA256) or self._agreed(
            self._aside, _AGREED_ETAG, _AGREED_META, _AGREED_SHA256
        )

    def _agreed(self, path: str, *facts: str) -> AgreedCopy | None:
        etag, text, sha256 = self._base.facts(*facts)
        data = None if text is None else _verified(path, sha256)
        if text is None or data is None:
            return None
        try:
            meta = decode_meta(text.encode())
            # Another process on this cache may have kept another one while this was noted.
            if not same(meta.monolith, etag):
                return None
            return AgreedCopy(decode_monolith(data).entries, meta)
        except IndexDamagedError:
            return None


def _verified(path: str, sha256: str | None) -> bytes | None:
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError:
        return None
    return data if hashlib.sha256(data).hexdigest() == sha256 else None
