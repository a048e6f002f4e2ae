"""Where a datastore is, as `.swamp.yaml`, the environment or the command line write it.

Only the form is checked here. What the members of a remote mean is the business of its store,
and stores are not even looked for before something is synced.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from swampstore.errors import ConfigError
from swampstore.layout import MARKER
from swampstore.redaction import is_secret, without_credentials

FILESYSTEM = "filesystem"
# What their paths say is no part of a key.
_WITHOUT_PREFIX = frozenset({"file", "mongodb", "mongodb+srv"})
_URL = re.compile(r"([a-z][a-z0-9+.\-]*)://.", re.IGNORECASE)
_TYPE = re.compile(r"@?[\w.+\-]+(/[\w.+\-]+)*")
# The settings that other clients once wrote beside `type: s3`.
FLAT_S3_MEMBERS = ("bucket", "prefix", "region", "endpoint", "forcePathStyle")
_FORMS = (
    "Write filesystem:/path, a URL such as s3://bucket/prefix, or a type and its members as in"
    ' @swamp/s3-datastore:{"bucket": "b"}.'
)


@dataclass(frozen=True, slots=True)
class Address:
    """A path on this machine if `target` is `filesystem`, else a remote.

    The target of a remote is a URL, or the name of a type that `members` belong to.
    """

    target: str
    members: Mapping[str, Any] = field(default_factory=dict, repr=False)  # may hold credentials
    path: str | None = None

    @property
    def is_remote(self) -> bool:
        """Whether there is a cache, and a store to sync it with."""
        return self.target != FILESYSTEM

    @classmethod
    def parse(cls, text: str, source: str) -> Address:
        """Read what a variable or an option, `source`, says; raise ConfigError naming it."""
        if is_url(text):
            return cls(_checked_url(text, source))
        kind, _, rest = text.partition(":")
        if kind == FILESYSTEM:
            if not rest:
                raise ConfigError(f"{source}: the path is missing", hint="Write filesystem:/path.")
            return cls(FILESYSTEM, path=rest)
        if rest.startswith("{"):
            return cls(_checked_type(kind, source), read_members(rest, source))
        if kind == "s3" and rest:
            bucket, _, prefix = rest.partition("/")
            return cls(kind, {"bucket": bucket, "prefix": prefix})
        raise ConfigError(f"{source}: {kind!r} does not say where the datastore is", hint=_FORMS)

    @classmethod
    def of_section(cls, section: Mapping[str, Any]) -> Address:
        """Read the `datastore` of a marker; raise ConfigError naming the member."""
        kind, url, members = section.get("type"), section.get("url"), section.get("config")
        if members is not None and not isinstance(members, dict):
            raise wrong_setting("datastore.config", members, "a mapping")
        if url is not None:
            return cls(_url_of_section(url, kind, members))
        if kind is None or kind == FILESYSTEM:
            return cls(FILESYSTEM, path=_path_of_section(section.get("path")))
        if not isinstance(kind, str):
            raise wrong_setting("datastore.type", kind, "the name of a type, or a URL")
        if is_url(kind):
            return cls(_url_of_section(kind, None, members))
        if members is None:
            members = _flat_members(kind, section)
        return cls(_checked_type(kind, f"datastore.type in {MARKER}"), members)


def is_url(text: str) -> bool:
    """Whether a text is a URL, such as `s3://bucket/prefix`."""
    return _URL.match(text) is not None


def scheme_of(url: str) -> str:
    """Return the scheme of a URL in lower case; the name itself of anything else."""
    return url.partition("://")[0].lower() if is_url(url) else url


def prefix_of(target: str, members: Mapping[str, Any]) -> str:
    """Return what comes before every key of a store, without slashes around it; not checked."""
    if scheme_of(target) in _WITHOUT_PREFIX:
        return ""
    from urllib.parse import unquote, urlsplit

    told = unquote(urlsplit(target).path) if is_url(target) else members.get("prefix", "")
    return str(told).strip("/")


def read_members(text: str, source: str) -> dict[str, Any]:
    """Read the members of a store, written as a JSON object; raise ConfigError naming `source`."""
    import json

    try:
        members = json.loads(text)
    except (ValueError, RecursionError) as error:
        # The text itself may hold credentials, so it is not repeated.
        raise ConfigError(f"{source}: no JSON: {error}", hint=_FORMS) from None
    if not isinstance(members, dict):
        raise ConfigError(f"{source}: the JSON is no object", hint=_FORMS)
    return members


def without_secrets(members: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members that may be shown and written to files."""
    return {name: value for name, value in members.items() if not is_secret(name)}


def wrong_setting(key: str, value: object, expected: str) -> ConfigError:
    """Return the error for a setting of the marker that cannot be used."""
    found = without_credentials(repr(value))
    return ConfigError(f"{key} in {MARKER} is {found}, expected {expected}", hint=f"Edit {MARKER}.")


def _checked_url(url: str, source: str) -> str:
    if not url.isprintable():
        # Whoever takes URLs apart drops some of them without a word.
        raise ConfigError(
            f"{source}: {without_credentials(url)!r} holds a control character",
            hint="Write it in percent notation, such as %0A, if it belongs there.",
        )
    if scheme_of(url) == FILESYSTEM:
        raise ConfigError(
            f"{source}: {FILESYSTEM} has no URL",
            hint=f"Write {FILESYSTEM}:/path to use a directory in place, or file:///path to sync"
            " with one as if it were a bucket.",
        )
    return url


def _checked_type(kind: str, source: str) -> str:
    if not _TYPE.fullmatch(kind):
        raise ConfigError(f"{source}: {kind!r} is not the name of a datastore type", hint=_FORMS)
    return kind


def _url_of_section(url: object, kind: object, members: dict[str, Any] | None) -> str:
    if not isinstance(url, str) or not is_url(url):
        raise wrong_setting("datastore.url", url, "a URL such as s3://bucket/prefix")
    if kind is not None and kind != scheme_of(url):
        raise ConfigError(
            f"datastore.type in {MARKER} is {kind!r}, but datastore.url is"
            f" {without_credentials(url)}",
            hint="Remove one of them.",
        )
    if members:
        raise ConfigError(
            f"datastore.config in {MARKER} goes with the name of a type, not with a URL",
            hint="Write its members into the URL: s3://bucket/prefix?region=eu-central-1.",
        )
    return _checked_url(url, f"datastore in {MARKER}")


def _path_of_section(path: object) -> str | None:
    if path is None or path == "":
        return None
    if not isinstance(path, str):
        raise wrong_setting("datastore.path", path, "a path")
    return path


def _flat_members(kind: str, section: Mapping[str, Any]) -> dict[str, Any]:
    if kind == "s3":
        return {name: section[name] for name in FLAT_S3_MEMBERS if name in section}
    if section.get("path") is not None:
        # Most likely `filesystem`, misspelled: the data must not go elsewhere without a word.
        raise ConfigError(
            f"datastore.path in {MARKER} goes with the type {FILESYSTEM!r}, but the type is"
            f" {kind!r}",
            hint=f"Write `type: {FILESYSTEM}`, or put the members of {kind!r} into"
            " `datastore.config`.",
        )
    return {}
