"""Which keys a store may hold, and how prefixes are written."""

from __future__ import annotations

from swampstore.errors import ValidationError
from swampstore.layout import MAX_KEY_BYTES, is_plain, why_no_key


def is_plain_key(key: str) -> bool:
    """Whether `check_key` surely has nothing against a key, told at a glance."""
    return (
        len(key) <= MAX_KEY_BYTES  # of ASCII, characters are bytes
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
    if reason := why_no_key(key):
        raise ValidationError(
            f"{key[:80]!r} cannot be an object key: {reason}",
            hint="Use a shorter type, model id or data name, without control characters.",
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
