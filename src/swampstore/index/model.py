"""What the remote index tells its callers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from swampstore.index.format import Meta

if TYPE_CHECKING:
    import msgspec


class State(NamedTuple):
    """What kind of index the remote has.

    `exists` is False for a remote that holds nothing at all. `discovered` says that there are
    files and no index: entries come from a listing of them, and no deletion follows from it.
    """

    version: int
    meta: Meta | None
    commit_seq: int | None
    exists: bool
    discovered: bool = False


class Slice(NamedTuple):
    """The entries of one partition, as far as the scope that was asked for covers them.

    `complete` says that there are no others: what the base has of this partition (in the scope)
    beyond `entries` was deleted remotely. Without it nothing may be concluded from an absence.
    A complete slice has an `etag`, to be recorded for the partition (and the scope's key) once
    all of it is applied; the next `changes` then leaves the partition out while it stays as it is.
    """

    partition: str
    entries: Mapping[str, msgspec.Raw]
    etag: str | None
    complete: bool


class Committed(NamedTuple):
    """A commit that is done, and what the base must remember with it; see `Base.apply`."""

    commit_seq: int | None
    facts: dict[str, str | None]
    shards: dict[tuple[str, str], str]


class Migrated(NamedTuple):
    """What `migrate` did; `already` means that the remote was of version 2 before."""

    version: int
    partitions: int
    entries: int
    commit_seq: int
    already: bool


class Proof(NamedTuple):
    """What other clients on this cache may take as proof that it is equal to the remote.

    `fingerprint` is how the store calls the monolith, `commit_seq` the number of the last commit;
    None if there is no such proof. Its time must not be before `not_before`.
    """

    fingerprint: str | None = None
    commit_seq: int | None = None
    not_before: str = ""
