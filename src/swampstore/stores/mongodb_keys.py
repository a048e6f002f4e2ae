"""Where in a MongoDB database an object is kept: pure rules.

A tenant of a database is what a bucket and a prefix are elsewhere, and each namespace of it has
collections of its own, named as other clients name them:

- `t_{tenant}_r_{namespace}_paths`: what the index names, a document for each path;
- `t_{tenant}_r_{namespace}_blobs`: content by its SHA-256;
- `t_{tenant}_r_{namespace}_locks`: locks.

Two more are ours: `..._objects` has everything that is no file of the datastore, and files that
are uploaded and that the index does not name yet; `..._more` has what the index names beside the
directories that all clients know. Other clients take what they do not find below those for
deleted, so it is kept out of their sight.
See docs/decisions/0055-mongodb-keeps-paths-not-documents.md.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import NamedTuple

from swampstore.layout import DATASTORE_SUBDIRS, NEVER_SHARED, is_internal

# The directories whose files all clients of such a database share.
SHARED = frozenset(DATASTORE_SUBDIRS) - NEVER_SHARED
GLOBAL_LOCK = "__global__"
_GLOBAL_KEY = ".datastore.lock"
_NAMESPACE = re.compile(r"[a-z0-9]([a-z0-9-]{0,62}[a-z0-9])?")
_GLOBAL_OF_NAMESPACE = re.compile(rf"\.locks/({_NAMESPACE.pattern})\.lock")
_LOCK = "/.lock"
_CONTROL_LOCKS = "_control/locks/"
PATHS, MORE, BLOBS, LOCKS, OBJECTS, CONTENTS = (
    *("paths", "more", "blobs", "locks", "objects", "contents"),
)
KINDS = (PATHS, MORE, BLOBS, LOCKS, OBJECTS, CONTENTS)


class Kind(Enum):
    """What a key stands for: a shared file, a lock, or anything else."""

    FILE = "file"
    LOCK = "lock"
    OBJECT = "object"


class Spot(NamedTuple):
    """Where the object of a key is; an empty namespace is that of the store itself."""

    namespace: str
    rel: str
    kind: Kind


def spot_of(key: str) -> Spot:
    """Return where an object is, told from its key alone.

    >>> spot_of("team/data/t/m/n/1/raw")
    Spot(namespace='team', rel='data/t/m/n/1/raw', kind=<Kind.FILE: 'file'>)
    """
    if key == _GLOBAL_KEY:
        return Spot("", GLOBAL_LOCK, Kind.LOCK)
    if found := _GLOBAL_OF_NAMESPACE.fullmatch(key):
        return Spot(found[1], GLOBAL_LOCK, Kind.LOCK)
    namespace, rel = split(key)
    return Spot(namespace, rel, _kind(rel))


def split(key: str) -> tuple[str, str]:
    """Return the namespace that a key, or the prefix of keys, is in, and the rest of it."""
    first, slash, rest = key.partition("/")
    if slash and first not in DATASTORE_SUBDIRS and _NAMESPACE.fullmatch(first):
        return first, rest
    return "", key


def is_namespace(name: str) -> bool:
    """Whether keys that begin with this segment are in a namespace of that name."""
    return split(f"{name}/x") == (name, "x")


def key_of(namespace: str, rel: str) -> str:
    """Return the key of an object; see `spot_of`."""
    if rel == GLOBAL_LOCK:
        return f".locks/{namespace}.lock" if namespace else _GLOBAL_KEY
    return f"{namespace}/{rel}" if namespace else rel


def is_shared(rel: str) -> bool:
    """Whether a path is below a directory that all clients share."""
    return rel.partition("/")[0] in SHARED and "/" in rel


def _kind(rel: str) -> Kind:
    if rel.endswith(_LOCK) or (rel.startswith(_CONTROL_LOCKS) and rel.endswith(".lock")):
        return Kind.LOCK
    return Kind.FILE if is_shared(rel) and not is_internal(rel) else Kind.OBJECT


def after(prefix: str) -> str:
    """Return the first string behind all that begin with a prefix, which is not empty."""
    last = ord(prefix[-1]) + 1
    if 0xD800 <= last <= 0xDFFF:
        last = 0xE000  # surrogates are no characters
    return prefix[:-1] + chr(last)


def below(prefix: str) -> dict[str, str]:
    """Return the condition on `_id` for everything that begins with a prefix.

    What the database has named itself, because nobody did, is no text and never among it.
    """
    return {"$gte": prefix, "$lt": after(prefix)} if prefix else {"$gte": ""}
