"""The origins that an index of shards has had, in their order, where other clients write nothing.

`_meta.json` has the current one, by which caches know that an index was lost and made anew. Other
clients leave it out when they commit; on version 1 the monolith still tells it. Here a cache finds
out whether the one that it knows is the last.

An origin is added after the `_meta.json` that has it was written. Whoever is killed in between
leaves it out: then nobody is told anything, as it is where there is no such document.
"""

from __future__ import annotations

import contextlib
import json

from swampstore.index.documents import Documents
from swampstore.stores.errors import PreconditionFailedError, StoreError

_ATTEMPTS = 5
_MOST = 100


def note_origin(documents: Documents, origin: str | None, before: str | None = None) -> None:
    """Add the origin that an index has from now on, after the one it had `before`.

    What fails is not tried again: the commit is done, and nothing depends on this.
    """
    if origin is None:
        return
    with contextlib.suppress(StoreError):
        for _ in range(_ATTEMPTS):
            known, token = _read(documents)
            if origin in known:
                return
            every = dict.fromkeys([*known, before or origin, origin])
            with contextlib.suppress(PreconditionFailedError):
                documents.put_origins(_encoded(list(every)[-_MOST:]), token)
                return


def _encoded(origins: list[str]) -> bytes:
    return json.dumps({"origins": origins}).encode()


def later_origin(documents: Documents, known: str) -> str | None:
    """Return the origin that came last, if it came after the known one, else None.

    Costs a request. Nothing is told of one that is not in the list.
    """
    origins, _ = _read(documents)
    return origins[-1] if known in origins[:-1] else None


def _read(documents: Documents) -> tuple[list[str], str | None]:
    """Return what is listed, and the condition for replacing the list (None: there is none)."""
    fetched = documents.origins()
    if fetched is None:
        return [], None
    try:
        found = json.loads(fetched.data)["origins"]
        return [one for one in found if isinstance(one, str)], fetched.info.token
    except (ValueError, KeyError, TypeError, RecursionError):
        return [], fetched.info.token
