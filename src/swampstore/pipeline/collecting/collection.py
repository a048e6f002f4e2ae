"""The collection of one place, once its garbage is known: finish, mark, sweep."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta

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
            self.finished, failures = finish(editor)
            self.warnings += failures
            before = read_marks(editor.store, editor.names)
            marks = marks_of(self._garbage, before.marks, self._now)
            due = list(self._mark(before, marks))
            written = write_marks(editor.store, editor.names, marks, before)
            swept = self._sweep(editor, due, tell)
            left = {place: mark for place, mark in marks.items() if place not in swept}
            if written is None or write_marks(editor.store, editor.names, left, written) is None:
                self.warnings.append("another collection marked at the same time; its marks stand")

    def _mark(self, before: Marked, marks: Marks) -> Iterator[Due]:
        """Tell what is marked, and yield what has been for long enough."""
        self.warnings += [before.problem] if before.problem else []
        self.unmarked = sum(marks.get(place) != mark for place, mark in before.marks.items())
        for one in self._garbage:
            ripe = due_of(one, marks, self._now, self._grace)
            green = {(one.ref.rel, version) for version in one.fingerprints.keys() - ripe}
            known = {mark for mark in green if before.marks.get(mark) == marks[mark]}
            self._tell(one, (version for _, version in green - known), "marked")
            self._tell(one, (version for _, version in known), "waiting")
            if ripe:
                yield Due(one, ripe)

    def _sweep(self, editor: Editor, due: Sequence[Due], tell: Progress) -> set[tuple[str, int]]:
        """Remove what is due; return what of it was."""
        sweeper = Sweeper(editor, self._now, self._grace)
        swept: set[tuple[str, int]] = set()
        parts = list(batches(due))
        for done, batch in enumerate(parts, 1):
            for one in sweeper.sweep(batch):
                going, verdict = one.due.going, one.verdict
                self._tell(going, verdict.going, "swept")
                self._tell(going, verdict.staying, "kept", verdict.staying)
                swept.update((going.ref.rel, version) for version in verdict.going)
            tell(Step("sweep", done, len(parts), 0, 0))
        self.warnings += sweeper.failures
        return swept

    def _tell(
        self,
        one: Going,
        versions: Iterable[int],
        kind: Kind,
        reasons: Mapping[int, str] | None = None,
    ) -> None:
        """Note what became of some versions of a name; 0 stands for all of it."""
        removal, rel = one.removal, one.ref.rel
        sizes = {fact.version: fact.size for fact in removal.versions}
        for version in sorted(versions):
            self.outcomes.append(
                Outcome(
                    store=self.place.identity,
                    namespace=self.place.namespace,
                    kind=kind,
                    rel=f"{rel}/{version}" if version else rel,
                    detail=(reasons or {}).get(version) or removal.reason or "old version",
                    versions=1 if version else len(sizes),
                    size=sizes[version] if version else sum(sizes.values()),
                )
            )
