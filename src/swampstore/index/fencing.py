"""Shutting out a committer that was paused for so long that its lock was taken over.

A commit replaces one document on the condition that it is still the one the commit builds on, or
creates it on the condition that there is none. Writing that document anew, with the same entries,
makes every commit that has begun before fail there; it then looks at its locks again, and finds
out.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace

from swampstore.clock import Clock, to_iso
from swampstore.index.changes import NO_CHANGE, new_write_id, trust
from swampstore.index.documents import Documents, Found
from swampstore.index.errors import IndexDamagedError, IndexMovedError
from swampstore.index.format import (
    Document,
    Meta,
    decode_meta,
    decode_monolith,
    encode_meta,
    encode_monolith,
)
from swampstore.index.repair import Recovery
from swampstore.index.state import MetaSnapshot, View, document
from swampstore.index.version2_commit import ShardCommit
from swampstore.index.watch import Watch
from swampstore.stores.errors import PreconditionFailedError
from swampstore.stores.protocol import Fetched


class Fence:
    """Writes anew what commits to one remote build on."""

    def __init__(
        self, documents: Documents, recovery: Recovery, watch: Watch, clock: Clock
    ) -> None:
        self._documents = documents
        self._recovery = recovery
        self._watch = watch
        self._clock = clock

    def raise_up(self, *, is_new: bool) -> None:
        """Make every commit that has begun fail.

        Where there is no index, one is made of the files that are there. If there are none, an
        empty one is made if the remote `is_new` to this cache; if the cache has seen it with one,
        somebody has emptied it, which is not for us to settle.
        """
        fetched = self._documents.meta()
        meta = _decoded(fetched)
        # If somebody else writes at this very moment, that does the same.
        with contextlib.suppress(PreconditionFailedError, IndexMovedError):
            if fetched is None or meta is None:
                self._without_meta(fetched, is_new=is_new)
            elif meta.version == 2:
                self._rewrite_meta(meta, fetched)
            else:
                self._rewrite_monolith(meta, fetched, is_new=is_new)

    def _without_meta(self, fetched: Fetched | None, *, is_new: bool) -> None:
        # Before anything is written: the time of the monolith may tell what the remote is.
        sighting = self._seen(fetched)
        if fetched is not None:
            # What cannot be read is written back as it is, and a blank more.
            self._documents.put_meta(fetched.data + b" ", fetched.info.token, commits=False)
        if sighting.version == 1:
            has_files = sighting.discovered is not None
            self._rewrite_monolith(None, fetched, is_new=is_new or has_files)
        elif fetched is None:
            # What commits create has to be there already.
            ShardCommit(self._documents, self._recovery, self._watch, trust).commit(
                View(sighting, shards=self._recovery.shards((), sighting)), NO_CHANGE
            )

    def _seen(self, fetched: Fetched | None) -> MetaSnapshot:
        info = fetched.info if fetched else None
        try:
            return self._recovery.without_meta(info and info.etag, info and info.token)
        except IndexDamagedError:
            return MetaSnapshot(1)

    def _rewrite_meta(self, meta: Meta, fetched: Fetched) -> None:
        data = encode_meta(meta, new_write_id())
        self._documents.put_meta(data, fetched.info.token, commits=False)

    def _rewrite_monolith(
        self, meta: Meta | None, fetched: Fetched | None, *, is_new: bool
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
            self._rewrite_meta(replace(meta, monolith=etag), fetched)

    def _create_index(self) -> None:
        """Make an index of what is there, usually nothing.

        `_meta.json` comes first: by its new origin, caches that knew another index here see that
        this is not the same one with everything deleted.
        """
        meta = Meta(version=1, partitions=(), origin=new_write_id())
        self._documents.put_meta(encode_meta(meta, new_write_id()), None, commits=False)
        found = self._recovery.discover(MetaSnapshot(1)).discovered
        self._put_monolith(document(found or Found()), None)

    def _put_monolith(self, doc: Document, token: str | None) -> str:
        data = encode_monolith(doc, to_iso(self._clock()), new_write_id())
        return self._documents.put_monolith(data, token).etag


def _decoded(fetched: Fetched | None) -> Meta | None:
    try:
        return decode_meta(fetched.data) if fetched else None
    except IndexDamagedError:
        return None
