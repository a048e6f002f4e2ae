"""What `metadata.yaml` says about its content, told at a glance.

Whoever compares millions of versions with their metadata needs five members of each. Files that
are written as all clients write them are understood with one regular expression, in a third of the
time that reading all of it takes. Whatever looks otherwise is left to `metadata.decode`.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from swampstore.errors import SwampstoreError
from swampstore.retention.lifetimes import normalise_lifetime

# A value that YAML takes for text, whoever reads it: no keyword, no number, nothing in quotes.
_KEYWORD = rb"(?:[tT]rue|TRUE|[fF]alse|FALSE|[nN]ull|NULL)"
_WORD = rb"[!\"$-9;-~]*"
_UUID = rb"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_TEXT = rb"(?:%b|(?!%b\n)[A-Za-z_/$]%b(?:[ :][!\"$-9;-~]%b)*|[0-9]+[a-df-np-wyz]%b)" % (
    _UUID,
    _KEYWORD,
    _WORD,
    _WORD,
    _WORD,
)
_QUOTED = rb"'[ -&(-~]+'"
_MEMBERS = rb"((?:\n  (?!%b:)[A-Za-z_$][A-Za-z0-9_./$-]{0,99}: (?:%b|%b))+)" % (
    _KEYWORD,
    _TEXT,
    _QUOTED,
)
_TIME = rb"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,9})?Z"
_USUAL = re.compile(
    rb"id: %(text)b\n"
    rb"name: (%(text)b)\n"
    rb"version: ([1-9][0-9]{0,14})\n"
    rb"contentType: %(text)b\n"
    rb"lifetime: (%(text)b)\n"
    rb"garbageCollection: (?:[1-9][0-9]{0,8}|[1-9][0-9]{0,3}(?:m|h|d|w|mo|y))\n"
    rb"streaming: (true|false)\n"
    rb"tags:%(members)b\n"
    rb"ownerDefinition:%(members)b\n"
    rb"createdAt: (?:'%(time)b'|\"%(time)b\"|%(time)b)\n"
    rb"(?:size: (0|[1-9][0-9]{0,14})\n)?"
    rb"(?:checksum: ([0-9a-f]{64})\n)?" % {b"text": _TEXT, b"members": _MEMBERS, b"time": _TIME}
)
_KEYS = re.compile(rb"\n  ([^:]+):")
_IS_NUMBER = re.compile(rb"[0-9]+(?:e[0-9]+)?")


class Glance(NamedTuple):
    """The members of metadata that speak of its content, as `decode` would return them."""

    name: str
    version: int
    streaming: bool
    size: int | None
    checksum: str | None


def glance(data: bytes) -> Glance | None:
    """Return what metadata says, None if that takes a closer look; a glance is never wrong."""
    found = _USUAL.fullmatch(data)
    if found is None:
        return None
    name, version, lifetime, streaming, tags, owner, size, checksum = found.groups()
    tag_keys, owner_keys = _KEYS.findall(tags), _KEYS.findall(owner)
    if b"type" not in tag_keys or b"ownerType" not in owner_keys:
        return None
    if len({*tag_keys}) != len(tag_keys) or len({*owner_keys}) != len(owner_keys):
        return None
    if checksum is not None and _IS_NUMBER.fullmatch(checksum):
        return None
    try:
        normalise_lifetime(lifetime.decode())
    except SwampstoreError:
        return None
    return Glance(
        name.decode(),
        int(version),
        streaming == b"true",
        None if size is None else int(size),
        None if checksum is None else checksum.decode(),
    )
