"""The kinds of findings: what they are called, how bad they are, and what they mean."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from swampstore.index import rules

Severity = Literal["error", "warning", "info"]


class Kind(NamedTuple):
    """One kind of finding. What is only worth knowing (`info`) fails nothing."""

    severity: Severity
    meaning: str


# Index documents.
MISSING_META = rules.MISSING_META
UNDECODABLE_META = rules.UNDECODABLE_META
MISSING_MONOLITH = rules.MISSING_MONOLITH
UNDECODABLE_MONOLITH = rules.UNDECODABLE_MONOLITH
MISSING_SHARD = rules.MISSING_SHARD
UNDECODABLE_SHARD = rules.UNDECODABLE_SHARD
UNLISTED_SHARD = rules.UNLISTED_SHARD
STALE_SHARD = "stale-shard"
WRONG_SEQUENCE = rules.WRONG_SEQUENCE
# Entries of the index.
DUPLICATE_ENTRY = "duplicate-entry"
MISPLACED_ENTRY = "misplaced-entry"
UNDECODABLE_ENTRY = "undecodable-entry"
FORBIDDEN_ENTRY = "forbidden-entry"
WRONG_ENTRY = "wrong-entry"
# Objects.
MISSING_OBJECT = rules.MISSING_OBJECT
ORPHAN = rules.ORPHAN
CORRUPT = "corrupt"
TRUNCATED = "truncated"
WRONG_SIZE = "wrong-size"
UNREADABLE = "unreadable"
UNREMOVED = "unremoved"
# Versions.
UNDECODABLE_METADATA = "undecodable-metadata"
FOREIGN_METADATA = "foreign-metadata"
CHECKSUM_MISMATCH = "checksum-mismatch"
SIZE_MISMATCH = "size-mismatch"
MISSING_METADATA = "missing-metadata"
MISSING_CONTENT = "missing-content"
MISSING_LATEST = "missing-latest"
DANGLING_LATEST = "dangling-latest"
# What is no damage.
IN_FLIGHT = rules.IN_FLIGHT
STRANGER = "stranger"
BEHIND_LATEST = "behind-latest"
# What a repair could not save.
LOST = "lost"

KINDS: Mapping[str, Kind] = {
    MISSING_META: Kind("error", "there are shards, and no _meta.json that tells of them"),
    UNDECODABLE_META: Kind("error", "_meta.json cannot be understood"),
    MISSING_MONOLITH: Kind("error", "the index of a version 1 remote is missing"),
    UNDECODABLE_MONOLITH: Kind("error", "the index of a version 1 remote cannot be understood"),
    MISSING_SHARD: Kind("error", "_meta.json lists a shard that is not there"),
    UNDECODABLE_SHARD: Kind("error", "a shard cannot be understood"),
    UNLISTED_SHARD: Kind("error", "a shard has entries, and _meta.json does not list it"),
    STALE_SHARD: Kind("warning", "a shard of a version 1 remote is not what the monolith says"),
    WRONG_SEQUENCE: Kind("error", "entries are of commits that _meta.json does not tell of"),
    DUPLICATE_ENTRY: Kind("error", "a path has an entry in more than one shard"),
    MISPLACED_ENTRY: Kind("error", "an entry is in a shard where nobody looks for it"),
    UNDECODABLE_ENTRY: Kind("error", "an entry cannot be understood"),
    FORBIDDEN_ENTRY: Kind("error", "an entry leads out of the cache, or names bookkeeping"),
    WRONG_ENTRY: Kind("error", "an entry has a wrong size; the content is right"),
    MISSING_OBJECT: Kind("error", "the index names an object that is not there"),
    ORPHAN: Kind("warning", "the index does not name an object that is there"),
    CORRUPT: Kind("error", "the content is not what the index says"),
    TRUNCATED: Kind("error", "the object is shorter than the index says"),
    WRONG_SIZE: Kind("error", "the object is longer than the index says"),
    UNREADABLE: Kind("error", "the object cannot be read"),
    UNREMOVED: Kind("warning", "an object is left of a deletion that was not finished"),
    UNDECODABLE_METADATA: Kind("error", "the metadata of a version cannot be understood"),
    FOREIGN_METADATA: Kind("error", "metadata describes another name or version"),
    CHECKSUM_MISMATCH: Kind("error", "the content is not what its metadata says"),
    SIZE_MISMATCH: Kind("error", "the content has not the size that its metadata says"),
    MISSING_METADATA: Kind("warning", "there is content, and no metadata for it"),
    MISSING_CONTENT: Kind("error", "there is metadata, and no content for it"),
    MISSING_LATEST: Kind("warning", "a data name has versions, and no `latest`"),
    DANGLING_LATEST: Kind("error", "`latest` names no version that is there"),
    IN_FLIGHT: Kind("info", "written so recently that it may belong to a push that is going on"),
    STRANGER: Kind("info", "an object of something else: it is not where a datastore has any"),
    BEHIND_LATEST: Kind("info", "`latest` is not the highest version; the next pull settles it"),
    LOST: Kind("error", "could not be restored from anywhere; what was left is in quarantine"),
}

# What is put right by writing the documents of the index anew.
OF_DOCUMENTS = frozenset(
    {
        MISSING_META,
        UNDECODABLE_META,
        MISSING_MONOLITH,
        UNDECODABLE_MONOLITH,
        MISSING_SHARD,
        UNDECODABLE_SHARD,
        UNLISTED_SHARD,
        STALE_SHARD,
        WRONG_SEQUENCE,
        DUPLICATE_ENTRY,
        MISPLACED_ENTRY,
        UNDECODABLE_ENTRY,
        FORBIDDEN_ENTRY,
    }
)
