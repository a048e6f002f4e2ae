"""What a version of the remote index decides: one interface, and one object for each version.

Version 1 keeps everything in one document, the monolith, and copies of its parts in shards. Version
2 keeps everything in the shards. Whoever works with an index asks the object of its version, which
`versions` chooses, and never compares numbers. A new version is one new file, a line in `versions`
and its number in `formats`. See docs/decisions/0047-a-version-of-the-index-is-one-object.md.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar

import msgspec
from msgspec.structs import replace

from swampstore.clock import Clock
from swampstore.index.base import Base
from swampstore.index.changes import Change, index_moved, new_write_id, next_origin
from swampstore.index.documents import Documents
from swampstore.index.format import RawEntries
from swampstore.index.meta import Meta, encode_meta
from swampstore.index.partitions import META_KEY, Scope
from swampstore.index.state import (
    Committed,
    Fingerprint,
    MetaSnapshot,
    Migrated,
    Proof,
    Slice,
    View,
)
from swampstore.stores.errors import PreconditionFailedError
from swampstore.stores.protocol import Fetched, ObjectInfo

if TYPE_CHECKING:
    from swampstore.index.local_copy import LocalCopy
    from swampstore.index.own_shards import OwnShards
    from swampstore.index.remote_index import Reader
    from swampstore.index.repair import Recovery
    from swampstore.index.watch import Watch


class IndexContext(msgspec.Struct, frozen=True):
    """What every version works with: the index of one remote, and what this cache knows of it.

    `doubtful` are shards that may be there though nobody tells of them.
    """

    documents: Documents
    base: Base
    copy: LocalCopy
    recovery: Recovery
    watch: Watch
    own_shards: OwnShards
    clock: Clock
    doubtful: set[str] = msgspec.field(default_factory=set)


class Rebuild(msgspec.Struct, frozen=True):
    """An index that is made anew as a whole, from entries that somebody has settled.

    `meta` is the last one that could be read, `token` the condition for replacing it, `shards` are
    those that are there, `highest` is the highest commit number. `is_guess` says that a document
    is lost which counts: what is missing in the new one was not deleted by anybody. `write_shards`
    writes all shards, as this commit, and returns their ETags and how many had to be written.
    `entries` are all.
    """

    documents: Documents
    meta: Meta | None
    token: str | None
    shards: Mapping[str, ObjectInfo]
    highest: int
    write_shards: Callable[[int | None], tuple[dict[str, str], int]]
    entries: Callable[[], RawEntries]
    clock: Clock
    is_guess: bool = False

    def begun(self) -> Rebuild:
        """Give a guess another origin before any of it can be seen; return what goes on from there.

        Without `_meta.json` nobody concludes anything from what is missing, and it comes last.
        Raises IndexMovedError if somebody else wrote it.
        """
        if not self.is_guess or self.meta is None:
            return self
        meta = replace(self.meta, origin=new_write_id(), monolith=None)
        try:
            data = encode_meta(meta, new_write_id())
            written = self.documents.put_meta(data, self.token, commits=True)
        except PreconditionFailedError:
            raise index_moved(f"somebody else wrote {META_KEY}", ()) from None
        return replace(self, meta=meta, token=written.token, is_guess=False)

    def origin(self, monolith: str | None = None) -> str | None:
        """Return the origin of the new index; the `monolith` may tell that of the one before."""
        return new_write_id() if self.is_guess else next_origin(self.meta, monolith)


class IndexVersion(ABC):
    """The rules of one version. It has no state of its own: there is one object for all remotes.

    `number` is what `_meta.json` says, `name` what people call it. `counts_commits` tells whether
    entries carry the number of their commit. A migration leads to the version `successor`; where
    there is none, it checks the index and heals it. `stale_facts` are those of the base that mean
    nothing any more once a remote has this version.
    """

    number: ClassVar[int]
    name: ClassVar[str]
    counts_commits: ClassVar[bool]
    successor: ClassVar[int | None] = None
    stale_facts: ClassVar[tuple[str, ...]] = ()

    # Which documents count -----------------------------------------------------------------------

    @abstractmethod
    def counts(self, partition: str | None) -> bool:
        """Whether the shard of a partition (None: the monolith) is the truth, and no copy of it."""

    @abstractmethod
    def documents(self, partitions: Iterable[str]) -> list[str]:
        """Return the paths of the documents that are the truth, if these are all partitions."""

    @abstractmethod
    def entries(self, documents: Documents, partitions: Collection[str]) -> Iterator[RawEntries]:
        """Yield the entries that count, at least those of these partitions, as they are now."""

    @abstractmethod
    def lost_partitions(self, snapshot: MetaSnapshot, stored: Container[str]) -> set[str] | None:
        """Return the partitions whose documents are lost, None if none is; `stored` have objects.

        An empty set: something is lost that is no shard.
        """

    def untold_partitions(
        self, snapshot: MetaSnapshot, recorded: Iterable[Mapping[str, str]]
    ) -> set[str]:
        """Return those of which `_meta.json` does not say whether all of them was committed.

        Or says otherwise than is `recorded`: as which shards the base has partitions.
        """
        del snapshot, recorded
        return set()

    def with_left_out(
        self, context: IndexContext, snapshot: MetaSnapshot, *, is_proven: bool
    ) -> MetaSnapshot:
        """Return what was seen, with entries that somebody has left out of a lost document.

        If it `is_proven` that somebody has, all versions that are stored count. Where there are
        none, or nobody can tell, that is what was seen. Costs a listing.
        """
        del context, is_proven
        return snapshot

    def is_emptied(self, context: IndexContext) -> bool:
        """Whether all entries are gone though nobody deleted them; where that can happen."""
        del context
        return False

    # Noticing changes ----------------------------------------------------------------------------

    @abstractmethod
    def is_unchanged(self, watch: Watch, agreed: Fingerprint) -> bool:
        """Whether, besides `_meta.json`, all is as it was when the base agreed with it."""

    @abstractmethod
    def proof(self, context: IndexContext, agreed: Fingerprint) -> Proof:
        """Return what proves to other clients that the base agrees with this state."""

    @abstractmethod
    def agreed_facts(self, state: Fingerprint, clock: Clock) -> dict[str, str | None]:
        """Return what the base remembers besides, when it agrees with a state as a whole."""

    # Reading -------------------------------------------------------------------------------------

    @abstractmethod
    def recovered(self, recovery: Recovery, etag: str | None, token: str | None) -> MetaSnapshot:
        """Return what a remote is that had this version, and whose `_meta.json` is lost."""

    @abstractmethod
    def read(self, reader: Reader, snapshot: MetaSnapshot) -> Iterator[Slice]:
        """Yield the slices that the base does not agree with."""

    @abstractmethod
    def view(
        self,
        context: IndexContext,
        snapshot: MetaSnapshot,
        partitions: set[str],
        additions: set[str],
        *,
        rels: Collection[str] = (),
    ) -> View:
        """Return the entries of partitions for a commit; see `RemoteIndex.view`."""

    # Writing -------------------------------------------------------------------------------------

    @abstractmethod
    def commit(
        self,
        context: IndexContext,
        view: View,
        change: Change,
        scope: Scope | None,
        look_again: Callable[[Collection[str]], None],
    ) -> Committed:
        """Put a change into the index; see `RemoteIndex.commit`."""

    @abstractmethod
    def fence(self, context: IndexContext, meta: Meta, fetched: Fetched, *, is_new: bool) -> None:
        """Write anew what commits build on, with the same entries."""

    @abstractmethod
    def fence_without_meta(
        self,
        context: IndexContext,
        snapshot: MetaSnapshot,
        fetched: Fetched | None,
        *,
        is_new: bool,
    ) -> None:
        """Do the same where there is no `_meta.json`, or (`fetched`) none that can be read."""

    @abstractmethod
    def migrate(self, context: IndexContext, snapshot: MetaSnapshot) -> Migrated | None:
        """Make the remote its successor, or heal it; None if somebody committed meanwhile."""

    @abstractmethod
    def rebuild(self, work: Rebuild) -> int:
        """Write all documents anew; return how many that were."""
