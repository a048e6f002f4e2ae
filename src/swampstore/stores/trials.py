"""What is known of something that a store claims to be able to do, and that has to be tried.

A trial takes some requests, so its outcome is remembered: by this object, and by whoever gives it a
memory, for as long as that knows the store.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

from swampstore.errors import DiskError
from swampstore.stores.errors import StoreUnreachableError
from swampstore.stores.protocol import Capabilities, Store

_PROVEN, _REFUTED = "proven", "refuted"


class Trial:
    """One claim of one store. It may be asked from many threads: one of them tries.

    `recall` returns a fact about the store that this machine knows by its name, and `remember`
    keeps facts. Without them, what is learnt lasts as long as this object.
    """

    def __init__(
        self,
        store: Store,
        fact: str,
        is_claimed: Callable[[Capabilities], bool],
        prove: Callable[[Store], bool],
        recall: Callable[[str], str | None] = lambda _: None,
        remember: Callable[[dict[str, str]], None] = lambda _: None,
    ) -> None:
        self._store = store
        self._fact = fact
        self._is_claimed = is_claimed
        self._prove = prove
        self._recall = recall
        self._remember = remember
        self._known: bool | None = None
        self._trying = threading.Lock()

    def are_proven(self) -> bool:
        """Whether the store can do it. Tries that if nobody ever has.

        If the store does not answer, nothing is proven, and somebody tries again later.
        """
        if not self._has_to_be_tried:
            return self._is_claimed(self._store.capabilities)
        with self._trying:
            if not self.is_known:
                try:
                    self.learn(proven=self._prove(self._store))
                except StoreUnreachableError:
                    return False
        return self._known is True

    @property
    def is_known(self) -> bool:
        """Whether the store was tried, or need not be: then `are_proven` asks nobody."""
        if not self._has_to_be_tried:
            return True
        if self._known is None:
            self._known = {_PROVEN: True, _REFUTED: False}.get(self._recall(self._fact) or "")
        return self._known is not None

    @property
    def are_refuted(self) -> bool:
        """Whether the store is known not to do it; asks nobody."""
        return self.is_known and not self.are_proven()

    def learn(self, *, proven: bool) -> None:
        """Remember what a trial of the store has shown."""
        self._known = proven
        if self._has_to_be_tried:
            # Who cannot write it down tries the store once more.
            with contextlib.suppress(DiskError):
                self._remember({self._fact: _PROVEN if proven else _REFUTED})

    @property
    def _has_to_be_tried(self) -> bool:
        capabilities = self._store.capabilities
        return self._is_claimed(capabilities) and not capabilities.own_conditions
