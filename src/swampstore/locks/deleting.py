"""Whether a lock that is given back may be deleted, or has to stay as a record that says "free".

A deletion may come late, or twice. Only if the store keeps to its condition can it never hit the
lock of a successor, and some servers ignore conditions. So a server is tried once, before the
first lock is taken, and what was seen is remembered on this machine.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Protocol

from swampstore.errors import DiskError
from swampstore.stores.errors import StoreUnreachableError
from swampstore.stores.protocol import Store

_FACT = "conditional_delete"
_PROVEN, _REFUTED = "proven", "refuted"


class Memory(Protocol):
    """Where facts about one store are kept on this machine."""

    def fact(self, name: str) -> str | None:
        """Return a fact, None if it is not known."""

    def apply(self, *, facts: Mapping[str, str | None]) -> None:
        """Keep facts."""


class Deletions:
    """What is known about conditional deletions of one store; without `memory`, for as long."""

    def __init__(self, store: Store, memory: Memory | None = None) -> None:
        self._store = store
        self._memory = memory
        self._known: bool | None = None

    def are_proven(self) -> bool:
        """Whether locks may be deleted. Tries the store (6 small requests) if nobody ever has.

        If the store does not answer, nothing is proven, and somebody tries again later.
        """
        if not self._has_to_be_tried:
            return self._store.capabilities.conditional_delete
        if not self.is_known:
            from swampstore.stores.probe import proves_conditional_delete

            try:
                self.learn(proven=proves_conditional_delete(self._store))
            except StoreUnreachableError:
                return False
        return self._known is True

    @property
    def is_known(self) -> bool:
        """Whether the store was tried, or need not be: then `are_proven` asks nobody."""
        if not self._has_to_be_tried:
            return True
        if self._known is None:
            self._known = self._remembered()
        return self._known is not None

    def learn(self, *, proven: bool) -> None:
        """Remember what a trial of the store has shown."""
        self._known = proven
        if self._memory is not None and self._has_to_be_tried:
            # Who cannot write it down tries the store once more.
            with contextlib.suppress(DiskError):
                self._memory.apply(facts={_FACT: _PROVEN if proven else _REFUTED})

    @property
    def _has_to_be_tried(self) -> bool:
        capabilities = self._store.capabilities
        return capabilities.conditional_delete and not capabilities.own_conditions

    def _remembered(self) -> bool | None:
        said = self._memory.fact(_FACT) if self._memory is not None else None
        return {_PROVEN: True, _REFUTED: False}.get(said or "")
