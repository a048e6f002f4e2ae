"""Which keys a store may hold, and how prefixes are written."""

from __future__ import annotations

import re

from swampstore.errors import ValidationError
from swampstore.layout import is_plain

# What S3, GCS and Azure agree on, in bytes of UTF-8.
LONGEST_KEY = 1024
_CONTROL = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")


def is_plain_key(key: str) -> bool:
    """Whether `check_key` surely has nothing against a key, told at a glance."""
    return (
        len(key) <= LONGEST_KEY  # of ASCII, characters are bytes
        and key.isascii()
        and key.isprintable()
        and is_plain(key)
    )


def check_key(key: str) -> str:
    """Return the key; raise ValidationError if it could mean something else than a plain path."""
    if is_plain_key(key):
        return key
    if not key:
        raise ValidationError("an object key is empty", hint="Give a path such as data/a/1/raw.")
    if key[0] == "/" or any(part in {"", ".", ".."} for part in key.split("/")):
        raise ValidationError(
            f"the object key {key!r} has an empty, '.' or '..' segment",
            hint="Keys are relative paths with single forward slashes.",
        )
    if _CONTROL.search(key):
        raise ValidationError(
            f"the object key {key!r} holds a control character", hint="Rename the data."
        )
    if len(key.encode()) > LONGEST_KEY:
        raise ValidationError(
            f"the object key {key[:80]!r}... has more than {LONGEST_KEY} bytes",
            hint="Use a shorter type, model id or data name.",
        )
    return key


def trim_prefix(prefix: str) -> str:
    """Return a configured prefix without slashes around it, checked like a key."""
    trimmed = prefix.strip("/")
    return check_key(trimmed) if trimmed else ""


def parent_of(prefix: str) -> str:
    """Return the whole segments of a listing prefix: `data/ab` is below `data`.

    Raises ValidationError if they are no key; the segment that is only begun may be anything.
    """
    parent, slash, _ = prefix.rpartition("/")
    return check_key(parent) if slash else ""
