"""What must hold of a place at rest, beyond what the oracle knows of its versions."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from swampstore.index.partitions import META_KEY, MONOLITH_KEY
from swampstore.index.path_kinds import metadata_beside, unit_of
from swampstore.index.removals import REMOVALS
from swampstore.pipeline.verify.kinds import (
    DANGLING_LATEST,
    MISSING_CONTENT,
    MISSING_LATEST,
    MISSING_META,
    MISSING_METADATA,
    MISSING_MONOLITH,
    MISSING_OBJECT,
    MISSING_SHARD,
    STALE_SHARD,
    UNLISTED_SHARD,
    WRONG_SEQUENCE,
)
from swampstore.pipeline.verify.rules import Problem
from tests.fleet import verdict
from tests.fleet.bucket import BUCKETS
from tests.fleet.disks import is_whole
from tests.fleet.documents import index_of
from tests.fleet.oracle import Found
from tests.fleet.places import Place
from tests.fleet.world import Violation

# What verify says of an index of which documents are lost. None of it is about what they say.
_OF_A_LOSS = frozenset(
    {MISSING_META, MISSING_MONOLITH, MISSING_SHARD, UNLISTED_SHARD, STALE_SHARD, WRONG_SEQUENCE}
)


class Named(NamedTuple):
    """What an entry of the index says of a path."""

    rel: str
    size: int
    sha256: str | None


def named_in(objects: Mapping[str, bytes]) -> set[Named]:
    """Return what the index says; raise Violation if it is not whole."""
    return {
        Named(rel, entry["size"], entry.get("sha256")) for rel, entry in index_of(objects).items()
    }


@dataclass
class Past:
    """What has happened in a run that explains what is left lying about.

    `is_rough` says that something failed or was killed, `is_undisturbed` that nothing ever befell
    anybody, nobody moved, and no other client was there; `may_be_sharded` that somebody migrated
    an index, or another client was there, after which times may mislead.

    `named` is what the index said before documents of it were lost; `revived` are entries without
    an object of an index of long ago, which is what was left: a monolith that another client had
    made version 2 of, or what it wrote because it took that for the current one. Nobody can tell
    whether somebody still has their content, so they stay, and verify tells of them. `has_origin`
    says that the index told by its origin which one it is, before documents of it were lost. They
    are lost, and what another client wrote is stale, until somebody commits; that an index was ever
    made of what is stored (`was_guessed`) can be seen for ever by entries without a hash.
    """

    is_rough: bool = False
    is_undisturbed: bool = True
    may_be_sharded: bool = False
    is_damaged: bool = False
    has_lost_documents: bool = False
    was_guessed: bool = False
    has_foreign: bool = False
    has_origin: bool = False
    named: set[Named] = field(default_factory=set)
    revived: set[Named] = field(default_factory=set)
    lost_objects: set[str] = field(default_factory=set)

    def note_revived(self, objects: Mapping[str, bytes]) -> None:
        """Note entries without an object that the index did not have before documents were lost."""
        with contextlib.suppress(Violation):  # readers do not believe it
            gone = {one for one in named_in(objects) - self.named if one.rel not in objects}
            self.revived |= {one for one in gone if one.rel not in self.lost_objects}


def check_agreement(seen: list[tuple[str, list[Found]]]) -> None:
    """All see the same."""
    first, expected = seen[0]
    for name, found in seen[1:]:
        if set(found) != set(expected):
            differ = sorted(set(found) ^ set(expected))
            raise Violation("disagreement", f"{first} and {name} differ in {differ}")


def tells_what_is_there(place: Place) -> bool:
    """Whether no document of the index is lost, and each object that it names is there."""
    objects = place.objects()
    return is_whole(objects) and all(one.rel in objects for one in named_in(objects))


def excuse_hollow(place: Place, ids: Collection[str], past: Past) -> None:
    """Excuse entries of content that is nowhere any more, beside metadata with one of these ids."""
    objects = place.objects()
    for one in named_in(objects) if ids else ():
        metadata = objects.get(metadata_beside(one.rel), b"")
        if one.rel in past.lost_objects and any(id_.encode() in metadata for id_ in ids):
            past.revived.add(one)


def check_index(place: Place, found: list[Found], past: Past) -> None:
    """The index names each object once, with its size and hash, and nothing that is not there."""
    objects = place.objects()
    entries = index_of(objects)
    if json.loads(objects.get(META_KEY, b"{}")).get("version") == 2 and not past.may_be_sharded:
        raise Violation("version", "an index became sharded, and nobody had migrated it")
    for rel, entry in entries.items():
        data = objects.get(rel)
        if data is None and Named(rel, entry["size"], entry.get("sha256")) in past.revived:
            continue
        if data is None:
            raise Violation("dangling", f"{rel} is named, and not there")
        digest = entry.get("sha256")
        # Where nobody has ever committed, what a push that was stopped had sent is all there is.
        if digest is None and not (past.was_guessed or past.is_rough):
            raise Violation("wrong entry", f"{rel} has no hash, and nobody had to guess: {entry}")
        if entry["size"] != len(data) or digest not in {None, hashlib.sha256(data).hexdigest()}:
            raise Violation("wrong entry", f"{rel} is not what {entry} says")
    for one in found:
        where = f"data/{one.model}/{one.name}/{one.version}"
        for rel in (f"{where}/raw", f"{where}/metadata.yaml"):
            if rel not in entries:
                raise Violation("unnamed", f"{rel} is in no index")
    # Somebody sent them again, or they were deleted: whoever names them later revives them.
    past.lost_objects &= entries.keys() - objects.keys()


def check_verdict(place: Place, past: Past) -> None:
    """The rules that look at whole stores agree: each object is named, or somebody has left it."""
    is_littered = past.is_rough or past.is_damaged
    serious = {"error"} if is_littered else {"error", "warning"}
    excused: set[str] = set()
    if past.has_lost_documents:
        excused |= _OF_A_LOSS  # whoever commits next makes them; readers can do without
    if past.is_rough and _is_told_by_monolith(place):
        # Nobody reads such copies there, and whoever commits next writes or lists them.
        excused |= {UNLISTED_SHARD, MISSING_SHARD}
    if past.is_rough and _is_begun(place):
        # There is nothing to be named, and whoever commits first writes what is missing.
        excused.add(MISSING_MONOLITH)
    if past.has_foreign:
        excused.add(STALE_SHARD)
    found = verdict.findings(BUCKETS[place.target], place.namespace)
    told = _told_of_revived(place, past, found)
    bad = [
        f"{one.kind} {one.rel} {one.detail}".rstrip()
        for one in found
        if verdict.severity(one) in serious and one.kind not in excused and one not in told
    ]
    if bad:
        raise Violation("verify", "; ".join(bad))
    kinds = {one.kind for one in found}
    past.has_foreign &= STALE_SHARD in kinds
    # Without `_meta.json` verify may find nothing to say, and documents are still lost.
    past.has_lost_documents &= bool(kinds & _OF_A_LOSS) or META_KEY not in place.objects()


def _told_of_revived(place: Place, past: Past, found: list[Problem]) -> list[Problem]:
    """Return what is said of entries that another client has revived; each of them must be told.

    A version of which an entry is all there is has no metadata either, or content, or `latest`.
    """
    objects = place.objects()
    dangling = {one.rel for one in named_in(objects) & past.revived if one.rel not in objects}
    told = [one for one in found if one.kind == MISSING_OBJECT and one.rel in dangling]
    if missing := dangling - {one.rel for one in told}:
        raise Violation("verify", f"says nothing of {sorted(missing)}")
    units = {unit_of(rel) for rel in dangling}
    follows = {MISSING_METADATA, MISSING_CONTENT, MISSING_LATEST, DANGLING_LATEST}
    return [*told, *(one for one in found if one.kind in follows and unit_of(one.rel) in units)]


def _is_told_by_monolith(place: Place) -> bool:
    objects = place.objects()
    meta = json.loads(objects.get(META_KEY, b"{}"))
    return MONOLITH_KEY in objects and meta.get("version") != 2


def _is_begun(place: Place) -> bool:
    """Whether somebody was stopped who made the first index of a place that never held anything."""
    objects = place.objects()
    meta = json.loads(objects.get(META_KEY, b"{}"))
    has_files = any(rel.startswith("data/") and not rel.endswith(".lock") for rel in objects)
    return meta.get("version") == 1 and not meta["partitions"] and not has_files


def late_notes(place: Place) -> set[str]:
    """Return the notes of removals whose objects are gone, or not those that were meant.

    The request that writes a note may come twice, the second time after everything was done. Nobody
    looks for such a note until somebody syncs in full.
    """
    objects, entries = place.infos(), index_of(place.objects())
    late = set()
    for rel in objects:
        if not rel.startswith(REMOVALS):
            continue
        named = json.loads(objects[rel].data)["objects"]
        if all(one["rel"] not in objects or one["rel"] in entries for one in named):
            late.add(rel)
    return late


def notes(place: Place) -> list[str]:
    """Return all notes of removals that are left."""
    return sorted(rel for rel in place.infos() if rel.startswith(REMOVALS))


def check_removals(place: Place) -> None:
    """Whoever deleted has removed what that left, or nobody can tell it from an upload."""
    objects = place.infos()
    for rel in notes(place):
        written, data = objects[rel].info.last_modified, objects[rel].data
        by_content = BUCKETS[place.target].kind.by_content
        for one in json.loads(data)["objects"]:
            there = objects.get(one["rel"])
            if there is None or _second(there.info.last_modified) != _second(written):
                continue
            # Its content is that of the one that was meant, and all else is as with an upload.
            if by_content or there.info.token != one.get("token"):
                break
        else:
            raise Violation("removals", f"{rel} is left: {data.decode()}")


def _second(moment: datetime) -> datetime:
    return moment.replace(microsecond=0)


def check_locks(past: Past) -> None:
    """Where locks are deleted, nobody who is done has left one behind."""
    left = [
        key
        for bucket in BUCKETS.values()
        for key in bucket.objects
        if key.endswith((".lock", ".lock.json")) or "_control/locks/" in key
        if bucket.kind.conditional_delete and not past.is_rough
    ]
    if left:
        raise Violation("lock", f"left behind: {left}")
