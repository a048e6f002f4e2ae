"""Which versions of the remote index there are, and which one a remote has."""

from __future__ import annotations

from swampstore.formats import refuse_newer
from swampstore.index.partitions import META_KEY
from swampstore.index.version import IndexVersion
from swampstore.index.version1 import Version1
from swampstore.index.version2 import Version2
from swampstore.index.version3 import Version3

VERSIONS: dict[int, IndexVersion] = {
    one.number: one for one in (Version1(), Version2(), Version3())
}
# What a remote is that tells nothing, and what it is if its store keeps the paths itself.
FIRST = VERSIONS[1]
PATHS_VERSION = VERSIONS[3]


def version_of(number: int) -> IndexVersion:
    """Return the version with this number, as `_meta.json` has it; raise NewerFormatError."""
    if number not in VERSIONS:
        refuse_newer("meta", number, META_KEY)
    return VERSIONS[number]


def known_version(number: str | int | None) -> IndexVersion:
    """Return the version that a base remembers, the first one if it remembers none."""
    return version_of(int(number)) if number else FIRST


def version_named(name: str) -> IndexVersion:
    """Return the version that people call so; raise KeyError."""
    return {one.name: one for one in VERSIONS.values()}[name]
