"""The origins that an index of shards has had, in their order, where other clients write nothing.

`_meta.json` has the current one, by which caches know that an index was lost and made anew. Other
clients leave it out when they commit; on version 1 the monolith still tells it. Here a cache finds
out whether the one that it knows is the last.

An origin is listed after the `_meta.json` that has it was written. Whoever is killed in between
leaves it out: then nobody is told anything, as it is where there is no such document.
"""

from __future__ import annotations

import contextlib
import json
from typing import Any, NamedTuple

from swampstore.errors import NewerFormatError
from swampstore.index.documents import Documents
from swampstore.index.errors import IndexDamagedError
from swampstore.index.format import decode_monolith
from swampstore.stores.errors import PreconditionFailedError, StoreError

_ATTEMPTS = 5
_MOST = 100
_ORIGINS = "origins"


class _Listed(NamedTuple):
    """The list, all members of the document, and the condition for replacing it (None: is new)."""

    origins: list[str]
    members: dict[str, Any]
    token: str | None


def note_origin(documents: Documents, origin: str | None, before: str | None = None) -> None:
    """List the origin that an index has from now on as the last one, after the one it had `before`.

    Also one that was listed earlier: who heals an index may have heard of no later one. What fails
    is not tried again: the commit is done, and nothing depends on this.
    """
    if origin is None:
        return
    with contextlib.suppress(StoreError):
        for _ in range(_ATTEMPTS):
            known, members, token = _read(documents)
            if known[-1:] == [origin]:
                return
            first = () if known else (_frozen_origin(documents),)
            every = dict.fromkeys(one for one in (*first, *known, before) if one and one != origin)
            data = json.dumps(members | {_ORIGINS: [*every, origin][-_MOST:]}).encode()
            with contextlib.suppress(PreconditionFailedError):
                documents.put_origins(data, token)
                return


def _frozen_origin(documents: Documents) -> str | None:
    """Return the origin that a monolith of an earlier version still tells.

    A client that made version 2 of it has told nobody, and there are caches that know no other.
    """
    fetched = documents.monolith()
    try:
        return decode_monolith(fetched.data).origin if fetched else None
    except (IndexDamagedError, NewerFormatError):
        return None


def later_origin(documents: Documents, known: str) -> str | None:
    """Return the origin that came last, if it came after the known one, else None.

    Costs a request. Nothing is told of one that is not in the list.
    """
    origins = _read(documents).origins
    return origins[-1] if known in origins[:-1] else None


def _read(documents: Documents) -> _Listed:
    """Return what is listed; of what nobody understands, nothing is."""
    fetched = documents.origins()
    if fetched is None:
        return _Listed([], {}, None)
    token = fetched.info.token
    try:
        members = json.loads(fetched.data)
        origins = [one for one in members[_ORIGINS] if _is_origin(one)]
        return _Listed(origins, dict(members), token)
    except (ValueError, KeyError, TypeError, RecursionError):
        return _Listed([], {}, token)


def _is_origin(one: object) -> bool:
    # What is no text for everybody, half a character for example, can be kept nowhere.
    return isinstance(one, str) and bool(one) and one.isprintable()
