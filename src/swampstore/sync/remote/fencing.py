"""Shutting out a committer that was paused for so long that its lock was taken over.

A commit replaces one document on the condition that it is still the one the commit builds on, or
creates it on the condition that there is none. Writing that document anew, with the same entries,
makes every commit that has begun before fail there; it then looks at its locks again, and finds
out.
"""

from __future__ import annotations

from dataclasses import replace

from swampstore.clock import Clock, to_iso
from swampstore.stores.errors import PreconditionFailedError
from swampstore.stores.protocol import Fetched
from swampstore.sync.errors import IndexDamagedError
from swampstore.sync.index_format import (
    Document,
    Meta,
    RawEntries,
    decode_meta,
    decode_monolith,
    encode_meta,
    encode_monolith,
)
from swampstore.sync.remote.documents import Documents
from swampstore.sync.remote.merging import new_write_id
from swampstore.sync.remote.recovery import Recovery
from swampstore.sync.remote.sighting import Sighting


class Fence:
    """Writes anew what commits to one remote build on."""

    def __init__(self, documents: Documents, recovery: Recovery, clock: Clock) -> None:
        self._documents = documents
        self._recovery = recovery
        self._clock = clock

    def raise_up(self, *, is_new: bool) -> None:
        """Make every commit that has begun fail.

        Where there is no index, one is made if the remote `is_new` to this cache. If the cache
        has seen it with one, somebody has emptied it, which is not for us to settle.
        """
        fetched = self._documents.meta()
        meta = _decoded(fetched)
        try:
            if fetched is not None and (meta is None or meta.version == 2):
                # What cannot be read is written back as it is, and a blank more.
                data = encode_meta(meta, new_write_id()) if meta else fetched.data + b" "
                self._documents.put_meta(data, fetched.info.token, commits=False)
            if meta is None or meta.version == 1:
                self._rewrite_monolith(fetched, meta, is_new=is_new)
        except PreconditionFailedError:
            # Somebody else has written it at this very moment, which does the same.
            return

    def _rewrite_monolith(
        self, fetched: Fetched | None, meta: Meta | None, *, is_new: bool
    ) -> None:
        found = self._documents.monolith()
        if found is None:
            if fetched is None and is_new:
                self._create_index()
            return
        info, data = found
        try:
            doc = decode_monolith(data)
        except IndexDamagedError:
            return  # nobody can build on it
        etag = self._put_monolith(doc, info.token)
        if fetched is not None and meta is not None and meta.monolith == info.etag:
            # The shards are those of the new monolith too.
            agreeing = encode_meta(replace(meta, monolith=etag), new_write_id())
            self._documents.put_meta(agreeing, fetched.info.token, commits=False)

    def _create_index(self) -> None:
        """Make an index of what is there, usually nothing.

        `_meta.json` comes first: by its new origin, caches that knew another index here see that
        this is not the same one with everything deleted.
        """
        meta = Meta(version=1, partitions=(), origin=new_write_id())
        self._documents.put_meta(encode_meta(meta, new_write_id()), None, commits=False)
        entries: RawEntries = self._recovery.discover(Sighting(1)).discovered or {}
        self._put_monolith(Document(entries), None)

    def _put_monolith(self, doc: Document, token: str | None) -> str:
        data = encode_monolith(doc, to_iso(self._clock()), new_write_id())
        return self._documents.put_monolith(data, token).etag


def _decoded(fetched: Fetched | None) -> Meta | None:
    try:
        return decode_meta(fetched.data) if fetched else None
    except IndexDamagedError:
        return None
