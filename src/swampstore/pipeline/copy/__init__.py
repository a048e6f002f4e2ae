"""Copying a datastore to another store: verified, resumable, incremental, and never over anything.

Nothing is deleted at the target, and nothing there is replaced but what was copied from the same
source before, `latest` markers that are behind, and what can be computed again.

Start reading with `copy`: it compares, copies in waves, commits each, and looks again at what
changed meanwhile. See docs/decisions/0033-a-copy-keeps-its-base-in-the-entries.md.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from swampstore.index.changes import index_moved
from swampstore.index.errors import IndexDamagedError, IndexMovedError, SyncError
from swampstore.index.format import Entry
from swampstore.index.partitions import partition_of
from swampstore.index.path_kinds import VersionFile, is_metadata, unit_of, version_file
from swampstore.index.results import Progress, no_progress
from swampstore.index.state import View
from swampstore.index.versions import FIRST, version_of
from swampstore.layout import METADATA
from swampstore.pipeline.copy.comparison import (
    Border,
    Comparison,
    Ends,
    Trouble,
    check_namespace,
    check_new_target,
    check_source,
    claim_namespace,
    ends_of,
    most_of,
    parts_of,
)
from swampstore.pipeline.copy.local_engine import ComparisonHere
from swampstore.pipeline.copy.outcomes import (
    CONFLICT,
    DAMAGED,
    FORBIDDEN,
    HELD_BACK,
    MAY_PASS,
    NOT_KEPT,
    OVERTAKEN,
    Copied,
    Finding,
    Placed,
    Refusals,
    Refused,
    Wanted,
    entry_there,
    findings_table,
    is_known_conflict,
)
from swampstore.pipeline.copy.tasks import CopyTask, Unit, copy_units, stages_of, units_of
from swampstore.pipeline.index_writer import IndexWriter, committer
from swampstore.pipeline.metrics import Meter, metered
from swampstore.pipeline.places import Place
from swampstore.pipeline.planning import bins, each, tasks_for
from swampstore.pipeline.running import run_tasks
from swampstore.pipeline.source.index import documents, read_meta
from swampstore.pipeline.spool import Spool
from swampstore.stores.errors import ObjectNotFoundError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ATTEMPTS = 8
_TOLD = "others changed it, or something of the same data name, meanwhile"


class Commits:
    """The commits of one copy; `count` is how many there were."""

    def __init__(self, writer: IndexWriter) -> None:
        self._writer = writer
        self.count = 0

    def begin(self, source: Place) -> None:
        """Give a target without an index an empty one, of the same kind as that of the source.

        Without one, whatever is there would be taken for data, also half of a version.
        """
        writer = self._writer
        if documents(writer.place, writer.store):
            return
        writer.index.fence()
        with source.open() as store:
            meta = read_meta(source, store)[0] if source.indexed else None
        if meta is not None and version_of(meta.version) is not FIRST:
            with writer.locks.committing() as guard, writer.index.guarded(guard):
                writer.index.migrate()

    def with_versions(self, units: Sequence[Unit]) -> list[Unit]:
        """Return units, those with a marker together with what the index tells of their name."""
        names = {unit.name for unit in units if unit.has_marker}
        view = self._view(f"{name}/1/{METADATA}" for name in names)
        return [
            unit._replace(versions=_versions(view, unit.name)) if unit.name in names else unit
            for unit in units
        ]

    def look(self, units: Sequence[Unit]) -> View:
        """Look at the index before objects of these units are put in their places."""
        return self._view(one.rel for unit in units for one in unit.wanted)

    def commit(self, placed: Sequence[Placed], before: View) -> list[Placed | Refused]:
        """Put entries into the index in one commit; return what is there then, and what is not.

        What others have changed meanwhile is left out, with all of its unit. If nobody has written
        a document of these paths since it was as `before`, nobody has removed an object that we put
        there either.
        """
        if not placed:
            return []
        view, is_trusted = before, True
        for _ in range(_ATTEMPTS):
            try:
                # Whoever deletes objects that are in no index holds the lock for it.
                with self._writer.locks.committing():
                    return self._commit(view, placed, is_trusted=is_trusted)
            except IndexMovedError:
                view, is_trusted = self._view(one.wanted.rel for one in placed), False
        raise SyncError(
            f"others keep committing the same paths to {self._writer.place}",
            hint="Copy again in a moment; what was committed so far is kept.",
        )

    def _commit(
        self, view: View, placed: Sequence[Placed], *, is_trusted: bool
    ) -> list[Placed | Refused]:
        checked = [one for one in placed if one.is_met or not is_trusted]
        moved = [one for one in placed if _has_moved(view, one)] + self._vanished(checked)
        units = {unit_of(one.wanted.rel) for one in moved}
        chosen = [one for one in placed if unit_of(one.wanted.rel) not in units]
        upserts = {one.wanted.rel: one.entry for one in chosen if not _is_done(view, one)}
        self._writer.commit(upserts, view=view, look_again=_must_be_checked)
        self.count += bool(upserts)
        left_out = [one.wanted for one in placed if unit_of(one.wanted.rel) in units]
        return [*chosen, *(Refused(one, OVERTAKEN, _TOLD) for one in left_out)]

    def _vanished(self, placed: Iterable[Placed]) -> list[Placed]:
        """Return those whose object is not there any more."""
        looks = each(self._writer.place, self._is_still_there, placed)
        return [one for one, is_there in looks if not is_there]

    def _is_still_there(self, placed: Placed) -> bool:
        try:
            found = self._writer.store.head(self._writer.names.remote(placed.wanted.rel))
        except ObjectNotFoundError:
            return False
        return found.etag == placed.etag

    def _view(self, rels: Iterable[str]) -> View:
        """Look at what the index says about paths; nothing is going to be taken out of it."""
        return self._writer.index.view((), additions={partition_of(rel) for rel in rels})


def _versions(view: View, name_rel: str) -> frozenset[int]:
    """Return the versions of a data name that can be read, as the index tells it."""
    files = {rel: version_file(rel) for rel in view.entries_below(name_rel)}
    return frozenset(
        file.version
        for rel, file in files.items()
        if file is not None and file.name_rel == name_rel and is_metadata(rel)
    )


def _must_be_checked(rels: Collection[str]) -> None:
    """Raise IndexMovedError: whoever was faster may have removed what was put there."""
    if rels:
        raise index_moved("others committed meanwhile", rels)


def _has_moved(view: View, placed: Placed) -> bool:
    """Whether the index says something else than when it was decided what to copy."""
    found, expected = _entry(view, placed), entry_there(placed.wanted)
    return _told(found) != _told(expected) and not _is_done(view, placed)


def _is_done(view: View, placed: Placed) -> bool:
    """Whether the index tells of this very content: a task of a copy that was interrupted."""
    found = _entry(view, placed)
    return found is not None and _told(found)[:2] == _told(placed.entry)[:2]


def _entry(view: View, placed: Placed) -> Entry | None:
    try:
        return view.entry(placed.wanted.rel)
    except IndexDamagedError:
        return None


def _told(entry: Entry | None) -> tuple[str | None, int, str]:
    """Return what differs between two contents, however their entries are written."""
    return (entry.sha256, entry.size, entry.last_modified) if entry else (None, -1, "")


# How often what was just being written is looked at once more.
_ROUNDS = 4
_AT_TARGET = frozenset({CONFLICT, NOT_KEPT, OVERTAKEN})


def copy(
    spark: SparkSession | None,
    sources: Sequence[Place],
    target: str,
    *,
    into: str | None = None,
    owner: str | None = None,
    dry_run: bool = False,
    progress: Progress = no_progress,
) -> Copied:
    """Copy places to the store at `target`, each to its own namespace or all of one `into`.

    Without Spark threads of this process copy; then all sources must have an index.
    `owner` is the id of the repository that a new namespace will belong to, where nothing at the
    source tells it. What could not be copied is in the result; it can be done again at any time.
    Raises NamespaceTakenError, ValidationError, StoreError, and IndexDamagedError for a source
    without an index or a target with a damaged one.
    """
    began, meter = time.monotonic(), Meter(spark)
    parts = [
        _Copy(spark, _metered(ends, meter), progress).run(dry_run=dry_run)
        for ends in ends_of(sources, target, into, owner)
    ]
    return Copied(
        dry_run=dry_run,
        objects=sum(part.objects for part in parts),
        bytes=sum(part.bytes for part in parts),
        present=sum(part.present for part in parts),
        commits=sum(part.commits for part in parts),
        findings=Spool(finding for part in parts for finding in part.findings),
        namespaces=tuple(pair for part in parts for pair in part.namespaces),
        seconds=time.monotonic() - began,
        metrics=meter.read(),
    )


def _metered(ends: Ends, meter: Meter) -> Ends:
    source, target = metered((ends.source, ends.target), meter)
    return replace(ends, source=source, target=target)


class _Copy:
    """One source on its way to one target."""

    def __init__(self, spark: SparkSession | None, ends: Ends, progress: Progress) -> None:
        self._spark = spark
        self._ends = ends
        self._progress = progress
        self._border = Border(ends)
        self._objects = self._bytes = self._commits = 0
        self._present: int | None = None
        # What was not copied, by path, as of the last look.
        self._refused = Refusals()
        self._findings: Spool[Finding] = Spool()
        # The versions of which the source's index tells something that cannot be understood.
        self._half_told: set[VersionFile] = set()

    def run(self, *, dry_run: bool) -> Copied:
        check_source(self._ends.source)
        with self._ends.target.open() as store:
            is_there = check_namespace(self._ends, store)
            if not dry_run:
                check_new_target(self._ends.target, store)
                claim_namespace(self._ends, store)
        if dry_run:
            self._preview(self._ends.target if is_there else None)
        else:
            self._copy()
        refused = map(self._finding, self._refused)
        return Copied(
            dry_run,
            *(self._objects, self._bytes, self._present or 0, self._commits),
            findings=Spool(chain(self._findings, refused)),
            namespaces=((self._ends.source.namespace, self._ends.target.namespace),),
        )

    def _preview(self, target: Place | None) -> None:
        for units in self._waves(target):
            for one in (one for unit in units for one in unit.wanted):
                if is_known_conflict(one, self._ends.source):
                    self._refused.note(
                        [Refused(one, CONFLICT, "the target's index tells otherwise")]
                    )
                else:
                    self._objects += 1
                    self._bytes += one.size

    def _copy(self) -> None:
        with committer(self._ends.target) as writer:
            commits = Commits(writer)
            commits.begin(self._ends.source)
            for _ in range(_ROUNDS):
                if not self._round(commits):
                    break
            self._commits = commits.count

    # One round ---------------------------------------------------------------------------------

    def _round(self, commits: Commits) -> bool:
        """Copy what there is to copy; return whether another look may show something else."""
        is_anything_new = False
        for units in self._waves(self._ends.target):
            is_anything_new = is_anything_new or bool(units)
            for stage in stages_of(units):
                self._run(stage, commits)
        return is_anything_new and not MAY_PASS.isdisjoint(self._refused.kinds)

    def _waves(self, target: Place | None) -> Iterator[list[Unit]]:
        """Yield what is to be copied, as the two indexes are now, wave by wave."""
        comparison = self._compared(target)
        before, self._refused, self._findings = self._refused, Refusals(), Spool()
        self._half_told = set()
        try:
            totals = comparison.totals()
            self._note_troubles(comparison.troubles() if totals.troubles else ())
            if self._present is None:
                self._present = totals.objects - totals.missing
            wanted = comparison.wanted(totals) if totals.missing else ()
            for part in parts_of(wanted, most_of(totals)):
                yield self._fresh(units_of(self._allowed(part)), before)
        finally:
            comparison.close()

    def _compared(self, target: Place | None) -> Comparison | ComparisonHere:
        if self._spark is None:
            return ComparisonHere.of(self._ends.source, target)
        return Comparison.of(self._spark, self._ends.source, target)

    def _allowed(self, wanted: Iterable[Wanted]) -> list[Wanted]:
        allowed = []
        for one in wanted:
            if reason := self._border.why_not(one.rel):
                self._refused.note([Refused(one, FORBIDDEN, reason)])
            elif version_file(one.rel) in self._half_told:
                reason = "the index entry of another file of its version cannot be understood"
                self._refused.note([Refused(one, HELD_BACK, reason)])
            else:
                allowed.append(one)
        return allowed

    def _fresh(self, units: Iterable[Unit], before: Refusals) -> list[Unit]:
        """Return the units that may fare better than the last time; note the others again."""
        fresh = []
        for unit in units:
            known = [found for one in unit.wanted if (found := before.of(one)) is not None]
            is_overtaken = any(one.kind == OVERTAKEN for one in known)
            told = [one.wanted.revision for one in known]
            if is_overtaken or told != [one.revision for one in unit.wanted]:
                fresh.append(unit)
            else:
                self._refused.note(known)
        return fresh

    def _run(self, units: Sequence[Unit], commits: Commits) -> None:
        before = commits.look(units)
        told = commits.with_versions(units)
        packed = bins(told, lambda unit: unit.weight, tasks_for(self._spark) if self._spark else 1)
        tasks = [CopyTask(self._ends.source, self._ends.target, tuple(one)) for one in packed]
        placed: list[Placed] = []
        try:
            for outcome in self._outcomes(tasks):
                if isinstance(outcome, Refused):
                    self._refused.note([outcome])
                elif isinstance(outcome, Placed):
                    placed.append(outcome)
        finally:
            # Also if a task failed: what came over before need not come again.
            self._settle(commits.commit(placed, before))

    def _outcomes(self, tasks: Sequence[CopyTask]) -> Iterator[Any]:
        if self._spark is None:
            return (outcome for task in tasks for outcome in copy_units(task))
        return run_tasks(self._spark, copy_units, tasks, label="copy", progress=self._progress)

    def _settle(self, outcomes: Iterable[Placed | Refused]) -> None:
        for one in outcomes:
            if isinstance(one, Refused):
                self._refused.note([one])
            else:
                self._objects += 1
                self._bytes += one.entry.size

    # Findings ----------------------------------------------------------------------------------

    def _note_troubles(self, troubles: Iterable[Trouble]) -> None:
        """Tell of damage of the source's index; stop at that of the target's."""
        source, target = self._ends.source, self._ends.target
        for trouble in troubles:
            if trouble.side == "source":
                rel = trouble.rel or trouble.document
                if version := version_file(rel):
                    self._half_told.add(version)
                key = source.names().remote(trouble.document)
                self._findings.append(
                    Finding(source.identity, source.namespace, DAMAGED, rel, key, trouble.problem)
                )
            elif trouble.rel is None:
                raise IndexDamagedError(
                    f"{trouble.document} of {target} cannot be used: {trouble.problem}",
                    hint="Heal it first: `swampstore pipeline reindex` with that store.",
                )

    def _finding(self, refused: Refused) -> Finding:
        place = self._ends.target if refused.kind in _AT_TARGET else self._ends.source
        rel = refused.wanted.rel
        key = place.names().remote(rel)
        return Finding(place.identity, place.namespace, refused.kind, rel, key, refused.detail)


__all__ = ["Copied", "Finding", "copy", "findings_table"]
