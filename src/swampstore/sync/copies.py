"""Having the store copy content that it has already, instead of sending it once more.

Which object has it is told by the base: only objects whose content went through this machine have
a token there, and the copy is made on the condition that the source still is that object and that
there is none at the target. So what the copy has is known without reading it. Whatever goes wrong,
nothing is lost but the attempt: the caller sends the content, and meets the copy if there is one.
"""

from __future__ import annotations

import contextlib

from swampstore.index import base as bases
from swampstore.index.base import Base
from swampstore.index.path_map import Names
from swampstore.stores import Store, Written
from swampstore.stores.errors import StoreError
from swampstore.stores.trials import Trial

_FACT = "conditional_copy"


class Copies:
    """Copies within one remote; safe to use from many threads."""

    def __init__(self, store: Store, names: Names, base: Base) -> None:
        self._store = store
        self._names = names
        self._base = base
        self._trial = Trial(
            store,
            _FACT,
            lambda claimed: claimed.conditional_copy,
            _prove,
            base.fact,
            lambda facts: base.apply(facts=facts),
        )

    def copy_to(self, rel: str, sha256: str, size: int) -> Written | None:
        """Make the object of a path by a copy, if the remote has this content elsewhere.

        Asks the store for nothing unless the base knows where. None: there is no copy, or nobody
        can tell that there is.
        """
        if size < bases.LARGE or not self._store.capabilities.conditional_copy:
            return None
        source = self._base.with_content(sha256, other_than=rel)
        if source is None or source.size != size or source.etag is None:
            return None
        with contextlib.suppress(StoreError):
            if self._trial.are_proven():
                return self._copy(source.rel, rel, size, source.etag)
        return None

    def _copy(self, source: str, target: str, size: int, token: str) -> Written | None:
        key = self._names.remote(target)
        self._store.copy_if_absent(self._names.remote(source), key, token)
        # Some services say that all is well before they know.
        made = self._store.head(key)
        if made.size != size or made.token is None:
            return None
        return Written(made.etag, made.token)


def _prove(store: Store) -> bool:
    from swampstore.stores.probe import proves_conditional_copy

    return proves_conditional_copy(store)
