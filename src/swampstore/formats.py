"""What holds for all formats: their versions, and how large a number may be.

A higher version was written by a newer release, perhaps by a colleague's on the same bucket. What
it means cannot be known here, so whoever meets one stops: it is neither read, nor repaired, nor
replaced, although the same thing with garbage in it would be.
"""

from __future__ import annotations

from swampstore.errors import NewerFormatError

# Every client can hold numbers up to here, also one that counts in floating point; databases can
# add them up. Whatever has a higher one is damaged.
LARGEST_NUMBER = 2**53 - 1
UPDATE = "Update swampstore on this machine. Nothing was changed."
# A lock that says it lives for longer is none: whoever looks judges it by its own patience.
LONGEST_TTL_MS = 24 * 3600 * 1000
# The version of each format that this release writes.
NEWEST = {
    # Documents of a remote.
    "meta": 2,
    "meta of paths": 3,
    "monolith": 1,
    "shard": 1,
    "manifest": 1,
    "gc marks": 2,
    "removals": 1,
    "snapshot": 1,
    # Documents of an exported table.
    "export": 1,
    # Documents of a place for backups.
    "backup": 1,
    # Files of a cache.
    "sidecar": 2,
    "journal": 1,
    "base": 1,
    "uses": 1,
    # Files of a repository.
    "catalog": 3,
    "secret": 2,
    "run tracker": 4,
    "outputs": 1,
}


def whole_number(text: str) -> int | None:
    """Return the number that a text of digits means, None for any other text.

    Whatever is larger than a number may be is one more than that: nobody can hold it, and Python
    itself fails to read more than some thousand digits.
    """
    if not (text.isascii() and text.isdigit()):
        return None
    digits = text.lstrip("0") or "0"
    return min(int(digits[:20]), LARGEST_NUMBER + 1)


def refuse_newer(kind: str, version: object, what: str) -> None:
    """Raise NewerFormatError if `what`, which is of this kind, has a higher version than we know.

    A version that is no whole number is damage, and for the caller to find.
    """
    if type(version) is int and version > NEWEST[kind]:
        shown = version if version < 10**9 else "far higher"
        raise NewerFormatError(
            f"{what} was written by a newer version of swampstore: its format is {shown},"
            f" this release knows up to {NEWEST[kind]}",
            hint=UPDATE,
        )


def refuse_later(version: object, known: str, what: str) -> None:
    """Raise NewerFormatError if a version such as 20260814.1 is later than the one we know."""
    if isinstance(version, str) and _parts(version) > _parts(known):
        raise NewerFormatError(
            f"{what} was written by a newer version: its format is {version[:40]}, this release"
            f" knows up to {known}",
            hint=UPDATE,
        )


def _parts(version: str) -> list[int]:
    parts = version.split(".")
    is_dated = all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts)
    return [int(part) for part in parts] if is_dated else []
