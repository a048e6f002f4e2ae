"""Finding a store by URL or by type name, among all that are installed.

A kind of store is an entry point of the group `swampstore.stores`. Its name is the URL scheme
and the type name; it points at a `StoreType`. The built-in ones are registered in the same way.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any, Protocol

from swampstore.errors import ConfigError
from swampstore.stores.config_fields import Limits
from swampstore.stores.protocol import Store
from swampstore.stores.retry import RetryingStore

GROUP = "swampstore.stores"
# What configurations of other clients call them.
ALIASES = {
    "@swamp/s3-datastore": "s3",
    "@swamp/gcs-datastore": "gs",
    "gcs": "gs",
    "azure": "az",
}
_URL = re.compile(r"([a-z][a-z0-9+.\-]*)://", re.IGNORECASE)


class StoreConfig(Protocol):
    """A checked configuration, from which stores can be opened in any process."""

    @property
    def limits(self) -> Limits:
        """How hard the store may be driven."""

    def open(self) -> Store:
        """Return a new store. Its operations are single requests; the caller adds retries."""


class StoreType(Protocol):
    """What an entry point provides, usually a class of configurations."""

    def from_url(self, url: str, environ: Mapping[str, str]) -> StoreConfig:
        """Read a URL of this kind; raise ConfigError naming what is wrong."""

    def from_mapping(self, config: Mapping[str, Any], environ: Mapping[str, str]) -> StoreConfig:
        """Read a configuration of this kind; raise ConfigError naming what is wrong."""


def store_config(
    target: str,
    config: Mapping[str, Any] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
) -> StoreConfig:
    """Return the configuration that a URL, or a type name with its members, stands for.

    Raises ConfigError for an unknown kind or a wrong member. Nothing is sent anywhere.
    """
    environ = os.environ if environ is None else environ
    url = _URL.match(target)
    if url:
        return _store_type(url[1].lower()).from_url(target, environ)
    return _store_type(ALIASES.get(target, target)).from_mapping(config or {}, environ)


def open_store(
    target: str,
    config: Mapping[str, Any] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
) -> Store:
    """Open a store by URL, or by type name and configuration, with retries around it."""
    return RetryingStore(store_config(target, config, environ=environ).open())


def _store_type(name: str) -> StoreType:
    from importlib.metadata import entry_points

    found = entry_points(group=GROUP)
    for entry in found:
        if entry.name == name:
            store_type: StoreType = entry.load()
            return store_type
    known = ", ".join(sorted({entry.name for entry in found}))
    raise ConfigError(
        f"there is no kind of store called {name!r}",
        hint=f"Installed are: {known or 'none'}. Install the package that brings {name!r}.",
    )
