"""A quick look whether a store answers, before anything depends on it.

It asks once, and it never waits longer than it was told: a hanging credentials helper or a
silent network must not hold up a command that could have said so after three seconds.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

from swampstore.errors import SwampstoreError
from swampstore.stores.errors import StoreUnreachableError
from swampstore.stores.probe import PREFIX
from swampstore.stores.protocol import Store

PREFLIGHT_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Health:
    """Whether a store answered a listing, and what was wrong if it did not."""

    identity: str
    latency: float
    error: SwampstoreError | None = None

    @property
    def healthy(self) -> bool:
        """Whether the store may be used."""
        return self.error is None

    def check(self) -> None:
        """Raise what was wrong, if anything was."""
        if self.error is not None:
            raise self.error


def examine(store: Store, *, timeout: float = PREFLIGHT_SECONDS) -> Health:
    """Ask a store for a listing of (next to) nothing. Never raises, never waits past `timeout`."""
    start = time.monotonic()
    failures: list[SwampstoreError] = []

    def ask() -> None:
        try:
            next(store.list(f"{PREFIX}/"), None)
        except SwampstoreError as error:
            failures.append(error)

    # A daemon: a request that never ends must not keep the process from ending either.
    asking = threading.Thread(target=ask, name="store-preflight", daemon=True)
    asking.start()
    asking.join(timeout)
    if asking.is_alive():
        failures.append(
            StoreUnreachableError(
                f"{store.identity} gave no answer within {timeout:g} s",
                hint="Check the network, the endpoint, and that credentials can be fetched.",
            )
        )
    return Health(store.identity, time.monotonic() - start, failures[0] if failures else None)
