"""The ETags of all shards in `_meta.json`, without the names that are in it already.

`_meta.json` lists the partitions; the ETags come in the same order, in one text or one list, with a
digest of the names that they belong to. Whoever changes the list and does not know them leaves a
digest behind that is not that of the list: then they tell nothing, which only costs a listing.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

# What nearly all S3 servers call an object: its MD5, which two thirds of the text can tell.
_MD5 = re.compile(r"[0-9a-f]{32}")
_MD5_BYTES = 16


def pack(partitions: Sequence[str], etags: Mapping[str, str]) -> dict[str, Any]:
    """Return the members that tell the ETags of these partitions, in their order."""
    found = [etags.get(one) for one in partitions]
    if not any(found):
        return {}
    packed: str | list[str | None] = found
    if all(one and _MD5.fullmatch(one) for one in found):
        packed = base64.b64encode(bytes.fromhex("".join(one or "" for one in found))).decode()
    return {"etags": packed, "of": _digest(partitions)}


def unpack(
    partitions: Sequence[str], etags: str | list[str | None] | None, of: str | None
) -> dict[str, str]:
    """Return the ETags by partition; nothing if they are not those of these partitions."""
    if etags is None or of != _digest(partitions):
        return {}
    found = _from_md5s(etags) if isinstance(etags, str) else etags
    if len(found) != len(partitions):
        return {}
    return {name: etag for name, etag in zip(partitions, found, strict=True) if etag}


def _from_md5s(text: str) -> list[str | None]:
    try:
        data = base64.b64decode(text, validate=True)
    except binascii.Error:
        return []
    if len(data) % _MD5_BYTES:
        return []
    return [data[at : at + _MD5_BYTES].hex() for at in range(0, len(data), _MD5_BYTES)]


def _digest(partitions: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(partitions).encode("utf-8", "surrogatepass")).hexdigest()[:16]
