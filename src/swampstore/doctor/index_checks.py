"""The documents of the remote index: are they all there, and do they fit together.

Only `_meta.json` is read, and what nobody here has read yet; of the others the store tells whether
and which they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from swampstore.doctor import checks
from swampstore.doctor.findings import Finding, Problems
from swampstore.errors import SwampstoreError
from swampstore.notices import notice
from swampstore.sync.errors import IndexDamagedError
from swampstore.sync.index_format import Meta, decode_meta
from swampstore.sync.partitions import META_KEY, MONOLITH_KEY, shard_key
from swampstore.sync.remote.documents import Documents

if TYPE_CHECKING:
    from swampstore.repo import Repo
    from swampstore.stores import ObjectInfo

# Documents that were written so recently may belong to a commit that is going on.
_IN_FLIGHT = timedelta(minutes=1)


class IndexCheck:
    """Looks at the index documents of one remote; `now` is the time by the remote's clock.

    `known` are the ETags of the shards that this machine has read. Raises NewerFormatError.
    """

    def __init__(self, documents: Documents, now: datetime, known: Mapping[str, str]) -> None:
        self._documents = documents
        self._known = known
        self._since = now - _IN_FLIGHT
        self._broken = Problems(checks.INDEX)
        self._behind = Problems(checks.INDEX_BEHIND)

    def run(self) -> Finding:
        """Return what was found; what breaks nothing is a warning."""
        fetched = self._documents.meta()
        monolith = self._documents.monolith_info()
        if fetched is None and monolith is None:
            return Finding(checks.INDEX.name, passed=True, message="nothing was pushed yet")
        if fetched is not None:
            try:
                self._compare(decode_meta(fetched.data), monolith)
            except IndexDamagedError as error:
                self._broken.add(error.message)
        else:
            self._read_monolith()
        return (self._broken if self._broken.count else self._behind).finding()

    def _compare(self, meta: Meta, monolith: ObjectInfo | None) -> None:
        listed = self._documents.listed_shards()
        unread = [one for one, info in listed.items() if self._known.get(one) != info.etag]
        self._documents.refuse_newer(dict.fromkeys(unread))
        lost = [one for one in meta.partitions if one not in listed]
        # On version 1 the shards only repeat what the monolith says.
        problems = self._broken if meta.version == 2 else self._behind
        for partition in lost:
            problems.add(f"{shard_key(partition)} is missing")
        for partition in self._unlike(meta, listed):
            self._behind.add(f"{shard_key(partition)} is not the one that {META_KEY} tells of")
        if meta.version == 2:
            return
        if monolith is None:
            self._broken.add(f"{MONOLITH_KEY} is missing")
        elif meta.monolith != monolith.etag:
            self._read_monolith()
            if meta.monolith is not None and self._is_settled(monolith):
                self._behind.add(f"{MONOLITH_KEY} is not the one that {META_KEY} tells of")

    def _read_monolith(self) -> None:
        """Raise NewerFormatError or IndexDamagedError if it cannot be understood."""
        found = self._documents.monolith()
        if found is not None:
            self._documents.parse_monolith(found.data, found.info.etag, found.info.token)

    def _unlike(self, meta: Meta, listed: dict[str, ObjectInfo]) -> Iterator[str]:
        for partition, info in sorted(listed.items()):
            is_told = partition in meta.partitions
            etag = meta.shards.get(partition, info.etag)
            if (not is_told or etag != info.etag) and self._is_settled(info):
                yield partition

    def _is_settled(self, info: ObjectInfo) -> bool:
        return info.last_modified < self._since


def heal(repo: Repo) -> bool:
    """Make missing documents of a sharded index anew; return whether that could be done."""
    try:
        if repo.sync.status().index_version != 2:
            return False
        repo.sync.migrate_index()
    except SwampstoreError as error:
        notice("the index stays as it is: %s", error.message)
        return False
    return True
