"""The collection of one place, once its garbage is known: finish, mark, sweep."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from swampstore.artifacts.retention.plan import Removal
from swampstore.pipeline.collecting.doomed import finish
from swampstore.pipeline.collecting.going import Going
from swampstore.pipeline.collecting.judging import Due
from swampstore.pipeline.collecting.marks import (
    Marked,
    Marks,
    due_of,
    marks_of,
    read_marks,
    write_marks,
)
from swampstore.pipeline.collecting.summary import Kind, Outcome
from swampstore.pipeline.collecting.sweeping import Sweeper, batches
from swampstore.pipeline.editing import Editor, committer
from swampstore.pipeline.places import Place
from swampstore.sync.report import Progress, Step, no_progress


class _Unit(NamedTuple):
    """What is marked and swept at once: a version, or (version 0) a whole name."""

    removal: Removal
    rel: str
    version: int

    def outcome(self, place: Place, kind: Kind, detail: str = "") -> Outcome:
        facts = [one for one in self.removal.versions if self.version in (0, one.version)]
        return Outcome(
            store=place.identity,
            namespace=place.namespace,
            kind=kind,
            rel=f"{self.rel}/{self.version}" if self.version else self.rel,
            detail=detail or self.removal.reason or "old version",
            versions=len(facts),
            size=sum(one.size for one in facts),
        )


class Collection:
    """The collection of one place, whose garbage is known."""

    def __init__(
        self, place: Place, garbage: Sequence[Going], now: datetime, grace: timedelta
    ) -> None:
        self.place = place
        self.outcomes: list[Outcome] = []
        self.warnings: list[str] = []
        self.unmarked = 0
        self.finished = 0
        self.failed = False
        self._garbage = garbage
        self._now = now
        self._grace = grace

    def preview(self) -> None:
        """Find out what `run` would do; change nothing."""
        with self.place.open() as store:
            before = read_marks(store, self.place.names())
        for due in self._mark(before, marks_of(self._garbage, before.marks, self._now)):
            self._tell(due.going, due.versions, "due")

    def run(self, tell: Progress = no_progress) -> None:
        """Finish what was left, mark, and sweep what was marked long enough ago."""
        with committer(self.place) as editor:
            left = finish(editor)
            self.finished = left.objects
            self.warnings += left.failures
            before = read_marks(editor.store, editor.names)
            marks = marks_of(self._garbage, before.marks, self._now)
            due = list(self._mark(before, marks))
            if not write_marks(editor.store, editor.names, marks, before):
                self.warnings.append("another collection marked at the same time; its marks stand")
            self._sweep(editor, due, tell)

    def _mark(self, before: Marked, marks: Marks) -> Iterator[Due]:
        """Tell what is marked, and yield what has been for long enough."""
        self.warnings += [before.problem] if before.problem else []
        self.unmarked = sum(marks.get(place) != mark for place, mark in before.marks.items())
        for one in self._garbage:
            ripe = due_of(one, marks, self._now, self._grace)
            for version in one.fingerprints.keys() - ripe:
                mark = (one.ref.rel, version)
                is_new = before.marks.get(mark) != marks[mark]
                self._tell(one, [version], "marked" if is_new else "waiting")
            if ripe:
                yield Due(one, ripe)

    def _sweep(self, editor: Editor, due: Sequence[Due], tell: Progress) -> None:
        sweeper = Sweeper(editor, self._now, self._grace)
        done = 0
        for batch in batches(due):
            for one in sweeper.sweep(batch):
                self._tell(one.due.going, one.verdict.going, "swept")
                for version, reason in one.verdict.staying.items():
                    self._tell(one.due.going, [version], "kept", reason)
            done += len(batch)
            tell(Step("sweep", done, len(due), 0, 0))
        self.warnings += sweeper.failures

    def _tell(self, one: Going, versions: Iterable[int], kind: Kind, detail: str = "") -> None:
        for version in sorted(versions):
            unit = _Unit(one.removal, one.ref.rel, version)
            self.outcomes.append(unit.outcome(self.place, kind, detail))
