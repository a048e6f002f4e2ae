"""The shards that this cache wrote last: whoever changes the same model again need not read them.

They are kept in a file of the cache, as they were sent, for as long as `_meta.json` names their
ETags; and in this process as they were understood, because to understand that of a large type again
takes longer than to change it. What is built on one is written on the condition that it is still
there, so nothing depends on it but the cost of a commit. Only those of one commit are kept, and no
large ones.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Mapping

import msgspec

from swampstore.files import replace_file
from swampstore.index.documents import Documents, StoredDocument
from swampstore.index.errors import IndexDamagedError
from swampstore.index.fingerprints import is_named
from swampstore.index.meta import Meta

_FILE = "_catalog.db-own-shards"  # such names stay on their machine
_MOST_BYTES = 4 << 20


class _Kept(msgspec.Struct, array_like=True, frozen=True):
    """How the store calls a shard, and how many bytes of the file it has."""

    partition: str
    etag: str
    token: str
    size: int


_contents = msgspec.json.Decoder(list[_Kept])


class OwnShards:
    """Those of one cache."""

    def __init__(self, cache_dir: str, documents: Documents) -> None:
        self._path = f"{cache_dir}/{_FILE}"
        self._documents = documents
        self._understood: dict[str, StoredDocument] = {}

    def keep(self, written: Mapping[str, tuple[StoredDocument, bytes]]) -> None:
        """Keep these, and what was sent, instead of those before; a disk may refuse."""
        self._understood = {}
        contents: list[_Kept] = []
        texts: list[bytes] = []
        room = _MOST_BYTES
        for partition, (shard, data) in sorted(written.items(), key=lambda one: len(one[1][1])):
            room -= len(data)
            if room >= 0 and data and shard.etag and shard.token:
                contents.append(_Kept(partition, shard.etag, shard.token, len(data)))
                texts.append(data)
                self._understood[partition] = shard
        whole = b"".join((msgspec.json.encode(contents), b"\n", *texts))
        with contextlib.suppress(OSError):
            replace_file(self._path, whole, durable=False)

    def recalled(self, meta: Meta, partitions: Collection[str]) -> dict[str, StoredDocument]:
        """Return those of the shards that are kept, and that `_meta.json` names."""
        if not self._documents.store.capabilities.conditional_update:
            return {}
        found = {
            one: shard
            for one in partitions
            if (shard := self._understood.get(one)) and is_named(meta.shards.get(one), shard.etag)
        }
        missing = {*partitions} - found.keys()
        return found | (self._in_file(meta, missing) if missing else {})

    def _in_file(self, meta: Meta, partitions: Collection[str]) -> dict[str, StoredDocument]:
        found: dict[str, StoredDocument] = {}
        try:
            with open(self._path, "rb") as file:
                contents = _contents.decode(file.readline())
                for one in contents:
                    is_named_now = is_named(meta.shards.get(one.partition), one.etag)
                    if one.partition not in partitions or not is_named_now:
                        file.seek(one.size, os.SEEK_CUR)
                        continue
                    found[one.partition] = self._documents.read_shard(
                        one.partition, file.read(one.size), one.etag, one.token
                    )
        except (OSError, msgspec.MsgspecError, IndexDamagedError):
            pass  # what was found until then is what it is
        return found
