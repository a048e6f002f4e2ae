"""The last look at a data name, under the lock: whether what was marked still has to go.

Everything is decided again from what the index and the objects say at this moment, by the planner
that a single repository uses. Pure: whoever calls has read it all.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from swampstore.artifacts import versions as on_disk
from swampstore.artifacts.latest import latest_of, parse_marker
from swampstore.catalog.disk_rows import row_of
from swampstore.catalog.schema import Row
from swampstore.errors import MetadataError
from swampstore.index.format import Entry
from swampstore.layout import METADATA, DataRef
from swampstore.pipeline.gc.candidates import Candidate, files_of_name, fingerprint
from swampstore.retention.plan import NamePlanner
from swampstore.retention.rules import Removal
from swampstore.stores.protocol import ObjectInfo

CHANGED = "it changed since it was marked"
IN_USE = "its objects are not what the index says: somebody may be pushing it"
WANTED = "it is no garbage any more"

RunExists = Callable[[str, str], bool]


class Due(NamedTuple):
    """What of a name has been marked for long enough; 0 stands for all of it."""

    candidate: Candidate
    versions: frozenset[int]

    @property
    def version_count(self) -> int:
        """How many versions that are."""
        return self.candidate.removal.version_count if 0 in self.versions else len(self.versions)


class NameState(NamedTuple):
    """A data name at this moment.

    `entries` are what the index says about its paths, `objects` what is stored below it, whether
    or not an index names it, and `contents` the marker and what metadata matters among those.
    """

    entries: Mapping[str, Entry]
    objects: Mapping[str, ObjectInfo]
    contents: Mapping[str, bytes]


class Verdict(NamedTuple):
    """The paths that go, by version, and why other versions that were due stay."""

    goes: Mapping[int, Sequence[str]]
    stays: Mapping[int, str]


def judge(
    due: Due, state: NameState, now: datetime, run_exists: RunExists, *, young_since: datetime
) -> Verdict:
    """Decide what goes.

    Objects that no index names and that are younger than `young_since` are taken to be those of
    somebody who is about to commit them.
    """
    unchanged = {one for one in due.versions if _is_unchanged(due.candidate, one, state)}
    stays = dict.fromkeys(due.versions - unchanged, CHANGED)
    if not unchanged:
        return Verdict({}, stays)
    if _is_being_pushed(state):
        return Verdict({}, dict.fromkeys(due.versions, IN_USE))
    removal = removal_of(due.candidate.ref, state, now, run_exists)
    if 0 in unchanged:
        reason = _why_whole_stays(due.candidate, removal, state, young_since)
        return Verdict({} if reason else {0: sorted(state.entries)}, {0: reason} if reason else {})
    # Without a reason to expire, neither the highest version nor the latest one is among these.
    is_surplus = removal is not None and not removal.whole_name
    surplus = {one.version for one in removal.versions} if removal and is_surplus else set()
    stays |= dict.fromkeys(unchanged - surplus, WANTED)
    return Verdict({one: _paths(due, state, one) for one in unchanged & surplus}, stays)


def _paths(due: Due, state: NameState, version: int) -> list[str]:
    name_rel = due.candidate.ref.rel
    return [rel for rel, one in files_of_name(state.entries, name_rel) if one == version]


def _is_unchanged(candidate: Candidate, version: int, state: NameState) -> bool:
    files = files_of_name(state.entries, candidate.ref.rel)
    seen = {rel: state.entries[rel] for rel, one in files if version in (0, one)}
    return fingerprint(seen) == candidate.fingerprints[version]


def _is_being_pushed(state: NameState) -> bool:
    """Whether an object is not what the index says: then a commit is to follow."""
    return any(
        _differs(entry, state.objects.get(rel), state.contents.get(rel))
        for rel, entry in state.entries.items()
    )


def _differs(entry: Entry, found: ObjectInfo | None, content: bytes | None) -> bool:
    if found is not None and found.size != entry.size:
        return True
    if content is None or entry.sha256 is None:
        return False
    return hashlib.sha256(content).hexdigest() != entry.sha256


def _why_whole_stays(
    candidate: Candidate, removal: Removal | None, state: NameState, young_since: datetime
) -> str | None:
    if removal is None or removal.reason != candidate.removal.reason:
        return WANTED
    present = {version for _, version in files_of_name(state.entries, candidate.ref.rel)} - {0}
    if present != {one.version for one in removal.versions}:
        return "it has a version whose metadata cannot be used"
    unnamed = state.objects.keys() - state.entries.keys()
    if any(state.objects[rel].last_modified > young_since for rel in unnamed):
        return IN_USE
    return None


def removal_of(
    ref: DataRef, state: NameState, now: datetime, run_exists: RunExists
) -> Removal | None:
    """Return what goes from a name by all that is known at this moment, None if nothing does."""
    return NamePlanner(now, run_exists).removal(_rows(ref, state))


def _rows(ref: DataRef, state: NameState) -> list[Row]:
    """Return the rows of a name, ascending, as a catalog would have them."""
    marker = parse_marker(state.contents.get(ref.latest_rel, b""))
    versions = {version for _, version in files_of_name(state.entries, ref.rel)}
    rows: list[Row] = []
    for version in sorted(versions - {0}):
        rel = ref.file_rel(version, METADATA)
        if rel not in state.contents:
            continue
        try:
            metadata = on_disk.parse_metadata(state.contents[rel], ref, version, rel)
        except MetadataError:
            continue
        rows.append(row_of("", ref, metadata, deferred=False))
    latest = latest_of((row.version for row in rows), marker=marker)
    return [row._replace(is_latest=int(row.version == latest)) for row in rows]
