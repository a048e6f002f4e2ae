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
from swampstore.stores.errors import ObjectNotFoundError, PreconditionFailedError, StoreError

ORIGINS = "_control/origins.json"
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
                _write(documents, list(every)[-_MOST:], token)
                return


def later_origin(documents: Documents, known: str) -> str | None:
    """Return the origin that came last, if it came after the known one, else None.

    Costs a request. Nothing is told of one that is not in the list.
    """
    origins, _ = _read(documents)
    return origins[-1] if known in origins[:-1] else None


def _read(documents: Documents) -> tuple[list[str], str | None]:
    """Return what is listed, and the condition for replacing the list (None: there is none)."""
    key = f"{documents.root}{ORIGINS}"
    try:
        info, data = documents.store.get(key)
        token = info.token or documents.store.head(key).token
    except ObjectNotFoundError:
        return [], None
    try:
        found = json.loads(data)["origins"]
        return [one for one in found if isinstance(one, str)], token
    except (ValueError, KeyError, TypeError, RecursionError):
        return [], token


def _write(documents: Documents, origins: list[str], token: str | None) -> None:
    store, key = documents.store, f"{documents.root}{ORIGINS}"
    data = json.dumps({"origins": origins}).encode()
    if token is None and store.capabilities.conditional_create:
        store.put_if_absent(key, data)
    elif token is not None and store.capabilities.conditional_update:
        store.put_if_match(key, data, token)
    else:
        store.put(key, data)
