"""What was seen of a remote: which version it is, and the `_meta.json` to build on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from swampstore.index.documents import Found
from swampstore.index.facts import Fingerprint, same
from swampstore.index.format import Meta
from swampstore.index.model import State
from swampstore.stores.protocol import ObjectInfo


@dataclass(frozen=True, slots=True)
class Sighting:
    """One look at a remote.

    `etag` and `token` are those of the `_meta.json` object (None: there is none), also of one that
    is damaged. `meta` is what it says; on version 2 it may instead be put together from the shards
    that are there (`is_healed`), for the next commit to write. That `is_exact` if it surely is what
    was lost; otherwise nobody may conclude anything from what is missing in it, and `versions` are
    the files of those that are stored, by partition: what no shard names was not deleted.
    `discovered` is a monolith made from a listing of the files, where none can be believed.
    """

    version: int
    meta: Meta | None = None
    text: str | None = None
    etag: str | None = None
    token: str | None = None
    is_healed: bool = False
    exists: bool = True
    discovered: Found | None = None
    is_exact: bool = False
    versions: Mapping[str, Mapping[str, ObjectInfo]] = field(default_factory=dict)

    @property
    def state(self) -> State:
        """What callers are told."""
        seq = self.meta.commit_seq if self.meta else None
        return State(self.version, self.meta, seq, self.exists, self.discovered is not None)

    @property
    def is_sound(self) -> bool:
        """Whether a base can agree with what was seen, that is, whether it can be seen again."""
        is_damaged = self.etag is not None and self.text is None
        return self.exists and not is_damaged and not self.is_healed and self.discovered is None

    def tells_of(self, partition: str, found: Found) -> bool:
        """Whether, on version 2, the commit that wrote a shard came to its end."""
        if self.meta is None or self.is_healed:
            return True  # nobody knows
        if partition not in self.meta.partitions:
            return True  # and took the last entry out
        if partition in self.meta.shards:
            return self.meta.shards[partition] == found.etag
        # Another client committed last. If its number is that of the shard, ours did not count.
        written = (found.doc.commit_seq if found.doc else None) or 0
        return written < (self.meta.commit_seq or 0)

    def agrees_with(self, monolith_etag: str | None) -> bool:
        """Whether, on version 1, the shards are those of this monolith."""
        return self.meta is not None and same(self.meta.monolith, monolith_etag)

    def fingerprint(self, monolith_etag: str | None) -> Fingerprint:
        """Return what identifies this state of the remote."""
        return Fingerprint(self.version, self.etag, monolith_etag if self.version == 1 else None)
