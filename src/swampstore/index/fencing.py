"""Shutting out a committer that was paused for so long that its lock was taken over.

A commit replaces one document on the condition that it is still the one the commit builds on, or
creates it on the condition that there is none. Writing that document anew, with the same entries,
makes every commit that has begun before fail there; it then looks at its locks again, and finds
out.
"""

from __future__ import annotations

import contextlib

from swampstore.index.errors import IndexDamagedError, IndexMovedError
from swampstore.index.format import Meta, decode_meta
from swampstore.index.state import MetaSnapshot
from swampstore.index.version import IndexContext
from swampstore.index.versions import FIRST, version_of
from swampstore.stores.errors import PreconditionFailedError
from swampstore.stores.protocol import Fetched


def fence(context: IndexContext, *, is_new: bool) -> None:
    """Make every commit that has begun fail.

    Where there is no index, one is made of the files that are there. If there are none, an
    empty one is made if the remote `is_new` to this cache; if the cache has seen it with one,
    somebody has emptied it, which is not for us to settle.
    """
    fetched = context.documents.meta()
    meta = _decoded(fetched)
    # If somebody else writes at this very moment, that does the same.
    with contextlib.suppress(PreconditionFailedError, IndexMovedError):
        if fetched is None or meta is None:
            _without_meta(context, fetched, is_new=is_new)
        else:
            version_of(meta.version).fence(context, meta, fetched, is_new=is_new)


def _without_meta(context: IndexContext, fetched: Fetched | None, *, is_new: bool) -> None:
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
