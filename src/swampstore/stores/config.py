"""Finding a store by URL or by type name, and reading the members of its configuration.

A kind of store is an entry point of the group `swampstore.stores`. Its name is the URL scheme
and the type name; it points at a class of configurations (`StoreConfig`). The built-in ones are
registered in the same way, so a new kind of store is one new file and one entry point.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

from swampstore.errors import ConfigError, ValidationError
from swampstore.formats import whole_number
from swampstore.notices import did_you_mean, sentences, shell_word
from swampstore.redaction import is_secret, without_credentials
from swampstore.stores.protocol import Store, trim_prefix

if TYPE_CHECKING:
    from urllib.parse import SplitResult

GROUP = "swampstore.stores"
# Known without a search through everything that is installed, which takes as long as a request.
# So they cannot be replaced either; other packages bring other kinds, by entry points.
BUILT_IN = {
    "az": "swampstore.stores.azure:AzureConfig",
    "file": "swampstore.stores.directory:DirectoryConfig",
    "gs": "swampstore.stores.gcs:GcsConfig",
    "memory": "swampstore.stores.memory:MemoryConfig",
    "s3": "swampstore.stores.s3:S3Config",
}
# What configurations of other clients call them.
ALIASES = {
    "@swamp/s3-datastore": "s3",
    "@swamp/gcs-datastore": "gs",
    "@swamp/mongodb-datastore": "mongodb",
    "gcs": "gs",
    "azure": "az",
}
_URL = re.compile(r"([a-z][a-z0-9+.\-]*)://", re.IGNORECASE)
_TRUE, _FALSE = frozenset({"true", "1", "yes"}), frozenset({"false", "0", "no"})
# What a URL may say about any bucket, beside what its cloud knows.
_PARAMETERS = frozenset(
    {
        *("requestTimeoutMs", "pullConcurrency", "pushConcurrency"),
        *("namespace", "hydrationStrategy", "syncTimeoutMs"),
    }
)
_TIMEOUT_BOUNDS = (1000, 600_000)
_CONCURRENCY_BOUNDS = (1, 1000)


class Limits(NamedTuple):
    """How hard a store is driven: transfers at once, and seconds to wait for an answer."""

    pull_concurrency: int = 50
    push_concurrency: int = 25
    request_timeout: float = 30.0


class Fields:
    """The members of one configuration, which came from YAML or from a URL's query.

    Members that nobody asks for are ignored, as other clients do.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = config

    def text(self, name: str, default: str = "") -> str:
        """Return a string member; None and absent mean the default."""
        value = self._config.get(name)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self._wrong(name, "text")
        return value

    def required_text(self, name: str) -> str:
        """Return a string member that must be there."""
        value = self.text(name)
        if not value:
            example = (
                "az://BUCKET/PREFIX?account=NAME" if name == "account" else "s3://BUCKET/PREFIX"
            )
            raise ConfigError(
                f"the store's {name} is missing",
                hint=f"Give it in the address, as in `swampstore datastore setup {example}`,"
                f' or as a member: --config \'{{"{name}": "..."}}\'.',
            )
        return value

    def matching(self, name: str, pattern: re.Pattern[str], expected: str) -> str:
        """Return a string member that must be there and match."""
        value = self.required_text(name)
        if not pattern.fullmatch(value):
            raise self._wrong(name, expected)
        return value

    def url(self, name: str) -> str:
        """Return an http(s) URL without a slash at its end, or an empty string."""
        value = self.text(name)
        if "@" in value:
            # Nobody would use them, and the identity of the store, which is shown, has the host.
            raise ConfigError(
                f"the store's {name} must not hold a user name or a password",
                hint=f"Give the host alone as {name}, and credentials through the environment or"
                " a credentials file.",
            )
        is_url = re.fullmatch(r"https?://[^\s/?#]+(/[^\s?#]*)?", value)
        if value and not (is_url and _names_a_host(value)):
            raise self._wrong(name, "a URL such as https://host:9000")
        return value.rstrip("/")

    def prefix(self) -> str:
        """Return the prefix without slashes around it: `a/` and `a` are one place."""
        try:
            return trim_prefix(self.text("prefix"))
        except ValidationError as error:
            raise ConfigError(f"the store's prefix: {error.message}", hint=error.hint) from None

    def flag(self, name: str, *, default: bool) -> bool:
        """Return a boolean member."""
        value = self._config.get(name)
        if value is None:
            return default
        if isinstance(value, bool):
            return value
        text = str(value).lower()
        if text not in _TRUE | _FALSE:
            raise self._wrong(name, "true or false")
        return text in _TRUE

    def whole(self, name: str, bounds: tuple[int, int], default: int) -> int:
        """Return a whole number within bounds."""
        value = self._config.get(name)
        if value is None:
            return default
        if isinstance(value, str):
            value = whole_number(value)
        low, high = bounds
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self._wrong(name, f"a whole number from {low} to {high}")
        return value

    def limits(self, environ: Mapping[str, str], variable: str) -> Limits:
        """Return the limits; the timeout in the environment variable beats the configured one."""
        timeout = self.whole("requestTimeoutMs", _TIMEOUT_BOUNDS, 30_000)
        override = whole_number(environ.get(variable, ""))
        low, high = _TIMEOUT_BOUNDS
        # Other clients ignore a value out of bounds, so it must not be an error here.
        if override is not None and low <= override <= high:
            timeout = override
        return Limits(
            self.whole("pullConcurrency", _CONCURRENCY_BOUNDS, 50),
            self.whole("pushConcurrency", _CONCURRENCY_BOUNDS, 25),
            timeout / 1000,
        )

    def _wrong(self, name: str, expected: str) -> ConfigError:
        found = "something else" if is_secret(name) else repr(self._config[name])
        return ConfigError(
            f"the store's {name} is {without_credentials(found)}, expected {expected}",
            hint=f"Correct {name} in the datastore's configuration or URL.",
        )


def mapping_from_url(url: str, parameters: Iterable[str]) -> dict[str, str]:
    """Read `scheme://bucket/prefix?member=value` as the mapping that it stands for.

    Raises ConfigError for a parameter that is none of these, nor one that all clouds know:
    whoever misspells one must not find out by where the data went.
    """
    from urllib.parse import parse_qsl, unquote

    parts = split_url(url)
    members = dict(parse_qsl(parts.query, keep_blank_values=True))
    # URLs end up in logs, in shell histories and in the output of `ps`.
    if parts.username or parts.password or any(is_secret(name) for name in members):
        raise ConfigError(
            "a store URL must not hold credentials",
            hint="Give them through the environment or a credentials file.",
        )
    known = _PARAMETERS.union(parameters)
    unknown = sorted(members.keys() - known)
    if unknown:
        raise ConfigError(
            f"a URL of this kind of store has no parameter {unknown[0]!r}",
            hint=f"There are {', '.join(sorted(known))}. A question mark in a prefix is %3F.",
        )
    return {
        **{name: value for name, value in members.items() if value},
        "bucket": parts.netloc,
        "prefix": unquote(parts.path),
    }


def _names_a_host(url: str) -> bool:
    """Whether the brackets around an address and the number of a port make sense."""
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(url)
        return bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def split_url(url: str) -> SplitResult:
    """Return the parts of a store's URL; raise ConfigError if it is none."""
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise ConfigError(f"a store URL cannot be read: {error}", hint="Correct it.") from None
    if "#" in url:
        raise ConfigError("a store URL has no part after a `#`", hint="In a path, write it as %23.")
    return parts


class StoreConfig(Protocol):
    """A checked configuration, from which stores can be opened in any process.

    An entry point names a class of them.
    """

    @property
    def limits(self) -> Limits:
        """How hard the store may be driven."""

    @classmethod
    def from_url(cls, url: str, environ: Mapping[str, str]) -> Self:
        """Read a URL of this kind; raise ConfigError naming what is wrong."""

    @classmethod
    def from_mapping(cls, config: Mapping[str, Any], environ: Mapping[str, str]) -> Self:
        """Read a configuration of this kind; raise ConfigError naming what is wrong."""

    def open(self) -> Store:
        """Return a new store. Its operations are single requests; the caller adds retries."""


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
    from swampstore.stores.retry import RetryingStore

    return RetryingStore(store_config(target, config, environ=environ).open())


def _store_type(name: str) -> type[StoreConfig]:
    if name in BUILT_IN:
        from importlib import import_module

        module, _, attribute = BUILT_IN[name].partition(":")
        built_in: type[StoreConfig] = getattr(import_module(module), attribute)
        return built_in
    from importlib.metadata import entry_points

    found = entry_points(group=GROUP)
    for entry in found:
        if entry.name == name:
            store_type: type[StoreConfig] = entry.load()
            return store_type
    known = ", ".join(sorted({entry.name for entry in found}))
    if name.startswith(("/", "~", ".")):
        path = os.path.abspath(os.path.expanduser(name))
        raise ConfigError(
            f"{name} is a path, and says not how it is to be used",
            hint=f"Run `swampstore datastore setup {shell_word(f'filesystem:{path}')}` to keep the"
            f" data there, or `swampstore datastore setup {shell_word(f'file://{path}')}` to"
            " sync with a directory that is mounted there.",
        )
    if name in ("http", "https"):
        raise ConfigError(
            f"there is no kind of store called {name!r}",
            hint="Name the bucket, and the server as its endpoint:"
            f" s3://BUCKET/PREFIX?endpoint={name}://HOST:PORT",
        )
    raise ConfigError(
        sentences(
            f"there is no kind of store called {name!r}.", did_you_mean(name, known.split(", "))
        ),
        hint=f"Installed are: {known or 'none'}. Install the package that brings {name!r}.",
    )
