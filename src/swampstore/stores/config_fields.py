"""Reading the members of a store's configuration, with errors that name the member."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from swampstore.errors import ConfigError, ValidationError
from swampstore.redaction import is_secret, without_credentials
from swampstore.stores.keys import trim_prefix

if TYPE_CHECKING:
    from urllib.parse import SplitResult

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


@dataclass(frozen=True, slots=True)
class Limits:
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
            raise ConfigError(f"the store's {name} is missing", hint=f"Set {name}.")
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
        if value and not re.fullmatch(r"https?://[^\s/?#]+(/[^\s?#]*)?", value):
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
        if isinstance(value, str) and value.isascii() and value.isdigit():
            value = int(value)
        low, high = bounds
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self._wrong(name, f"a whole number from {low} to {high}")
        return value

    def limits(self, environ: Mapping[str, str], variable: str) -> Limits:
        """Return the limits; the timeout in the environment variable beats the configured one."""
        timeout = self.whole("requestTimeoutMs", _TIMEOUT_BOUNDS, 30_000)
        override = environ.get(variable, "")
        # Other clients ignore a value out of bounds, so it must not be an error here.
        if override.isascii() and override.isdigit():
            low, high = _TIMEOUT_BOUNDS
            timeout = int(override) if low <= int(override) <= high else timeout
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
