"""What `_meta.json` tells of each shard on version 2: short fingerprints of their ETags.

They come in the order of the partitions, in one text, with a digest of the names that they belong
to. Whoever changes the list and does not know them leaves a digest behind that is not that of the
list: then they tell nothing, which only costs a listing.

A fingerprint serves to notice that a shard is another one. Two ETags in a million million have the
same; then a reader takes a shard for unchanged until its next change. Nothing is written on the
strength of one: commits go by the token of the very shard that they replace.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import re
from collections.abc import ItemsView, Iterator, KeysView, Mapping, Sequence
from functools import cached_property
from typing import Any

from swampstore.index.partition_list import PartitionList

_MARK = "~"  # no ETag begins with it
_BYTES = 5
_DIGITS = 2 * _BYTES
_UNTOLD = "0" * _DIGITS
_UNTOLD_BYTES = bytes(_BYTES)
_LIKE_UNTOLD = "0" * (_DIGITS - 1) + "1"
_FINGERPRINT = re.compile(rf"{_MARK}[0-9a-f]{{{_DIGITS}}}")
# What nearly all S3 servers call an object: its MD5, of which any part is as good as a hash.
_MD5 = re.compile(r"[0-9a-f]{32}")
_MD5_BYTES = 16


def fingerprint(etag: str) -> str:
    """Return the fingerprint of an ETag; of a fingerprint, itself."""
    if is_fingerprint(etag):
        return etag
    digits = etag[:_DIGITS]
    if not _MD5.fullmatch(etag):
        digits = hashlib.sha256(etag.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGITS]
    return _MARK + (digits if digits != _UNTOLD else _LIKE_UNTOLD)


def is_fingerprint(etag: str) -> bool:
    """Whether it is a fingerprint already."""
    return etag.startswith(_MARK) and bool(_FINGERPRINT.fullmatch(etag))


def is_named(told: str | None, etag: str | None) -> bool:
    """Whether what `_meta.json` tells of a shard, an ETag or its fingerprint, means this one."""
    if told is None or etag is None or told == etag:
        return told == etag
    if is_fingerprint(told) or is_fingerprint(etag):
        return fingerprint(told) == fingerprint(etag)
    return False


class Fingerprints(Mapping[str, str]):
    """One fingerprint for each of some partitions, kept in a row; a few are had without the rest.

    Whoever wants all of them asks for `items`.
    """

    def __init__(self, partitions: PartitionList, in_a_row: bytes) -> None:
        self.partitions = partitions
        self.in_a_row = in_a_row

    @classmethod
    def of(cls, partitions: PartitionList, etags: Mapping[str, str]) -> Mapping[str, str]:
        """Return those of these ETags; by name if some of the partitions have none."""
        if partitions and all(map(etags.__contains__, partitions)):
            return cls(partitions, _in_order(partitions, etags))
        return {one: fingerprint(etags[one]) for one in partitions if one in etags}

    def __getitem__(self, name: str) -> str:
        position = self.partitions.position(name)
        if position is None:
            raise KeyError(name)
        at = _BYTES * position
        return _MARK + self.in_a_row[at : at + _BYTES].hex()

    def __contains__(self, name: object) -> bool:
        return name in self.partitions

    def __iter__(self) -> Iterator[str]:
        return iter(self.partitions)

    def __len__(self) -> int:
        return len(self.partitions)

    def keys(self) -> KeysView[str]:
        """Return all partitions."""
        return self._by_name.keys()

    def items(self) -> ItemsView[str, str]:
        """Return all fingerprints with their partitions."""
        return self._by_name.items()

    @cached_property
    def _by_name(self) -> dict[str, str]:
        # One by one in Python, this would be most of what it takes to read a large document.
        marked = _MARK + self.in_a_row.hex(" ", -_BYTES).replace(" ", f" {_MARK}")
        return dict(zip(self.partitions, marked.split(" "), strict=True))

    def but(self, etags: Mapping[str, str]) -> Fingerprints:
        """Return the same with those of these ETags, at the price of these."""
        row = bytearray(self.in_a_row)
        for name, etag in etags.items():
            position = self.partitions.position(name)
            assert position is not None
            at = _BYTES * position
            row[at : at + _BYTES] = bytes.fromhex(fingerprint(etag).removeprefix(_MARK))
        return Fingerprints(self.partitions, bytes(row))


def packed(partitions: PartitionList, etags: Mapping[str, str]) -> dict[str, Any]:
    """Return the members that tell of these partitions, in their order."""
    if not etags:
        return {}
    if isinstance(etags, Fingerprints) and etags.partitions is partitions:
        text = base64.b64encode(etags.in_a_row).decode()
    else:
        text = base64.b64encode(_in_order(partitions, etags)).decode()
    return {"fingerprints": text, "of": partitions.digest}


def _in_order(partitions: Sequence[str], etags: Mapping[str, str]) -> bytes:
    """Return all fingerprints in a row, quickly if there is one of each partition already."""
    with contextlib.suppress(KeyError, ValueError):
        text = "".join(map(etags.__getitem__, partitions))
        if text.count(_MARK) == len(partitions) and len(text) == len(partitions) * (1 + _DIGITS):
            return bytes.fromhex(text.replace(_MARK, ""))
    digits = [fingerprint(etags[one])[1:] if one in etags else _UNTOLD for one in partitions]
    return bytes.fromhex("".join(digits))


def unpacked(partitions: PartitionList, text: str | None, of: str | None) -> Mapping[str, str]:
    """Return the fingerprints by partition; nothing if they are not those of these partitions."""
    if text is None or of != partitions.digest:
        return {}
    data = _bytes(text)
    if not data or len(data) != _BYTES * len(partitions):
        return {}
    found = Fingerprints(partitions, data)
    if _UNTOLD_BYTES in data:
        return {name: one for name, one in found.items() if one[1:] != _UNTOLD}
    return found


def unpacked_etags(
    partitions: PartitionList, etags: str | list[str | None] | None, of: str | None
) -> dict[str, str]:
    """Return the whole ETags that the release before wrote in their place."""
    if etags is None or of != partitions.digest:
        return {}
    found: Sequence[str | None] = etags if isinstance(etags, list) else _md5s(_bytes(etags))
    if len(found) != len(partitions):
        return {}
    told = zip(partitions, found, strict=True)
    return {name: etag for name, etag in told if etag and not etag.startswith(_MARK)}


def _md5s(data: bytes) -> list[str]:
    if len(data) % _MD5_BYTES:
        return []
    return [data[at : at + _MD5_BYTES].hex() for at in range(0, len(data), _MD5_BYTES)]


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return b""
