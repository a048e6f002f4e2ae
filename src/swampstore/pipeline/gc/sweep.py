"""Carrying a plan out in one place: a few names at a time, each time with one commit.

The last look at a data name happens under the lock. Everything is decided again from what the index
and the objects say at that moment, by the planner that a single repository uses; `judge` is pure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from swampstore.artifacts import versions as on_disk
from swampstore.artifacts.latest import latest_of, parse_marker
from swampstore.catalog.disk_rows import row_of
from swampstore.catalog.schema import Row
from swampstore.errors import MetadataError
from swampstore.index.errors import IndexDamagedError, IndexMovedError
from swampstore.index.format import Entry
from swampstore.index.path_kinds import version_file
from swampstore.index.removals import REMOVALS, Removal, Removed, Remover, new_note, read_note
from swampstore.index.state import View
from swampstore.layout import METADATA, DataRef, workflow_run_rel
from swampstore.pipeline.gc.candidates import Candidate, files_of_name, fingerprint
from swampstore.pipeline.index_writer import IndexWriter
from swampstore.pipeline.planning import each
from swampstore.pipeline.source.index import is_there
from swampstore.retention import rules
from swampstore.retention.plan import NamePlanner, marked, require_shared
from swampstore.stores.errors import ObjectNotFoundError
from swampstore.stores.protocol import ObjectInfo

CHANGED = "it changed since it was marked"
IN_USE = "its objects are not what the index says: somebody may be pushing it"
WANTED = "it is no garbage any more"
LAST = "a newer version lacks an object: `swampstore pipeline verify` tells more"

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
    if _lacks_objects(state, surplus):
        # What is to stay cannot be read, so what was to go may be the last that can.
        return Verdict({}, stays | dict.fromkeys(unchanged & surplus, LAST))
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


def _lacks_objects(state: NameState, surplus: Collection[int]) -> bool:
    """Whether an object is missing that the index names, of a version that is to stay.

    Older ones than all that go are no reason: they were not what is to be left.
    """
    missing = state.entries.keys() - state.objects.keys()
    files = (version_file(rel) for rel in missing)
    stay = (file.version for file in files if file and file.version not in surplus)
    return max(stay, default=0) > min(surplus, default=0)


def _differs(entry: Entry, found: ObjectInfo | None, content: bytes | None) -> bool:
    if found is not None and found.size != entry.size:
        return True
    if content is None or entry.sha256 is None:
        return False
    return hashlib.sha256(content).hexdigest() != entry.sha256


def _why_whole_stays(
    candidate: Candidate, removal: rules.Removal | None, state: NameState, young_since: datetime
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
) -> rules.Removal | None:
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
    return marked(rows, marker)


LOCKED = "somebody has its model locked"
DAMAGED = "the index says nothing about it that can be understood"
# Others wait with their commits while a batch is looked at and removed.
_NAMES, _VERSIONS = 100, 1000


class Swept(NamedTuple):
    """What became of one name that was due."""

    due: Due
    verdict: Verdict


class Sweeper:
    """Removes garbage from one place; `now` is the time by which it is judged.

    `failures` tell which objects could not be removed; the next collection does that.
    """

    def __init__(self, writer: IndexWriter, now: datetime, grace: timedelta) -> None:
        self.failures: list[str] = []
        self._writer = writer
        self._now = now
        self._young_since = now - grace

    def sweep(self, batch: Sequence[Due]) -> list[Swept]:
        """Look at names again, take out of the index what still has to go, then remove it.

        The global lock is held for so long, so nobody commits anything in between.
        """
        with self._writer.locks.committing():
            view = self._writer.view([rel for due in batch for rel in _samples(due)])
            states = self._look(batch, view)
            verdicts = [self._verdict(*one) for one in zip(batch, states, strict=True)]
            paths = {
                rel: state.objects.get(rel)
                for verdict, state in zip(verdicts, states, strict=True)
                if isinstance(state, NameState)
                for rels in verdict.goes.values()
                for rel in rels
            }
            if paths and not self._remove(view, paths):
                verdicts = [_all_stay(due, CHANGED) for due in batch]
        return [Swept(*one) for one in zip(batch, verdicts, strict=True)]

    def _remove(self, view: View, paths: Mapping[str, ObjectInfo | None]) -> bool:
        """Remove paths from the index and their objects; False if the index does not take it."""
        writer, remover = self._writer, remover_of(self._writer)
        objects = [
            one
            for rel, info in paths.items()
            if info is not None and (one := pending_delete(writer, rel, info, view.entry(rel)))
        ]
        note = remover.note(new_note(), objects)
        try:
            writer.commit({}, paths, view=view)
        except IndexMovedError:  # by a client that does not know the lock
            remover.drop(note)
            return False
        writer.check()
        self.failures += [error.message for error in remover.carry_out(note, writer.index).failures]
        return True

    def _verdict(self, due: Due, state: NameState | str) -> Verdict:
        if isinstance(state, str):
            return _all_stay(due, state)
        return judge(due, state, self._now, self._run_exists, young_since=self._young_since)

    def _run_exists(self, workflow_id: str, run_id: str) -> bool:
        """Whether a run has a record, committed or on its way; raise if that cannot be told."""
        place, rel = self._writer.place, workflow_run_rel(workflow_id, run_id)
        if is_there(place, self._writer.store, rel):
            return True
        if place.routing is not None:
            require_shared(place.routing, rel)
        return False

    # Looking -----------------------------------------------------------------------------------

    def _look(self, batch: Sequence[Due], view: View) -> list[NameState | str]:
        """Return each name as it is now, or why it is left alone."""
        writer = self._writer
        # Asked for one by one: other clients tell nobody what they have locked.
        locks = writer.locks.locked_models({due.candidate.ref.model for due in batch})
        locked = {model for model, lock in locks if not lock.is_stale}
        entries: dict[int, Mapping[str, Entry] | str] = {}
        for number, due in enumerate(batch):
            entries[number] = LOCKED if due.candidate.ref.model in locked else _entries(due, view)
        usable = {number: one for number, one in entries.items() if not isinstance(one, str)}
        place = writer.place
        objects = dict(each(place, lambda one: self._objects(batch[one]), usable))
        contents = dict(each(place, lambda one: self._marker(batch[one], usable[one]), usable))
        asked = [
            (number, rel)
            for number, one in usable.items()
            for rel in _decisive_metadata(batch[number], one, contents[number])
        ]
        for (number, _), data in each(place, lambda one: self._content(one[1]), asked):
            contents[number] |= data
        return [
            one if isinstance(one, str) else NameState(one, objects[number], contents[number])
            for number, one in entries.items()
        ]

    def _objects(self, due: Due) -> dict[str, ObjectInfo]:
        writer, name_rel = self._writer, due.candidate.ref.rel
        root = writer.names.remote("")
        listed = writer.store.list(writer.names.remote(f"{name_rel}/"))
        found = {info.key.removeprefix(root): info for info in listed}
        return {rel: found[rel] for rel, _ in files_of_name(found, name_rel)}

    def _marker(self, due: Due, entries: Mapping[str, Entry]) -> dict[str, bytes]:
        rel = due.candidate.ref.latest_rel
        return self._content(rel) if rel in entries else {}

    def _content(self, rel: str) -> dict[str, bytes]:
        """Return the content of a path by its path, nothing if there is none."""
        try:
            return {rel: self._writer.store.get(self._writer.names.remote(rel)).data}
        except ObjectNotFoundError:
            return {}


def batches(due: Iterable[Due]) -> Iterator[list[Due]]:
    """Cut what is due into batches that others can wait for; no name is in one of them twice."""
    batch: list[Due] = []
    versions = 0
    for one in (part for name in due for part in _parts(name)):
        batch.append(one)
        versions += one.version_count
        if len(batch) >= _NAMES or versions >= _VERSIONS:
            yield batch
            batch, versions = [], 0
    if batch:
        yield batch


def _parts(due: Due) -> Iterator[Due]:
    """Cut old versions of one name into parts, the newest first: older ones do not matter then."""
    newest_first = sorted(due.versions, reverse=True)
    for start in range(0, len(newest_first), _VERSIONS):
        yield due._replace(versions=frozenset(newest_first[start : start + _VERSIONS]))


def _samples(due: Due) -> tuple[str, str]:
    """Return paths in the partitions that everything of a name is in."""
    ref = due.candidate.ref
    return ref.latest_rel, ref.file_rel(1, METADATA)


def _entries(due: Due, view: View) -> dict[str, Entry] | str:
    name_rel = due.candidate.ref.rel
    found: dict[str, Entry] = {}
    try:
        for rel, _ in files_of_name(view.entries_below(name_rel), name_rel):
            entry = view.entry(rel)
            if entry is not None:
                found[rel] = entry
    except IndexDamagedError:
        return DAMAGED
    return found or CHANGED


def _decisive_metadata(
    due: Due, entries: Mapping[str, Entry], marker: Mapping[str, bytes]
) -> list[str]:
    """Return the paths of the metadata that decides whether something has to go.

    That is the latest version's, and that of all versions which are not older.
    """
    ref = due.candidate.ref
    named = parse_marker(marker.get(ref.latest_rel, b""))
    versions = {version for _, version in files_of_name(entries, ref.rel)} - {0}
    latest = latest_of(versions, marker=named)
    chosen = {one for one in versions if one >= min(due.versions)} | {latest}
    return [rel for one in sorted(chosen) if (rel := ref.file_rel(one, METADATA)) in entries]


def _all_stay(due: Due, reason: str) -> Verdict:
    return Verdict({}, dict.fromkeys(due.versions, reason))


# Deleting objects --------------------------------------------------------------------------------


def remover_of(writer: IndexWriter) -> Remover:
    """Return what removes objects for as long as the global lock is held."""
    limit = writer.place.config.limits.push_concurrency
    return Remover(writer.store, writer.names, limit, check=writer.locks.check)


def pending_delete(
    writer: IndexWriter, rel: str, info: ObjectInfo, entry: Entry | None
) -> Removal | None:
    """Return an object that was listed as one to be removed, None if it is another one by now."""
    token = info.token
    if token is None:
        try:
            found = writer.store.head(writer.names.remote(rel))
        except ObjectNotFoundError:
            return None
        if found.etag != info.etag:
            return None
        token = found.token
    return Removal(rel, info.size, entry.sha256 if entry else None, token)


def finish_pending_deletes(writer: IndexWriter) -> tuple[int, list[str]]:
    """Finish removals that were stopped, by anybody; return how many objects went, and failures."""
    root = writer.names.remote("")
    count, failures = 0, []
    for info in list(writer.store.list(writer.names.remote(REMOVALS))):
        with writer.locks.committing() as guard:
            # Whoever holds the lock is the only one at work, so the note is of somebody dead.
            guard()
            try:
                done = _finish(writer, info.key.removeprefix(root))
            except IndexDamagedError as error:
                failures.append(error.message)
                continue
        count += done.objects
        failures += [error.message for error in done.failures]
    return count, failures


def _finish(writer: IndexWriter, rel: str) -> Removed:
    note = read_note(writer.store, writer.names, rel)
    return Removed() if note is None else remover_of(writer).finish(note, writer.index)
