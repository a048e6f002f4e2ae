"""Finding out what can be done about damage, and doing it some thousand data names at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

from swampstore.errors import SwampstoreError
from swampstore.escaping import escaped
from swampstore.notices import notice
from swampstore.pipeline.errors import RepairStoppedError
from swampstore.pipeline.gc.sweep import finish_pending_deletes
from swampstore.pipeline.places import Place
from swampstore.pipeline.quarantine import Quarantine
from swampstore.pipeline.verify import kinds
from swampstore.pipeline.verify.applying import Applying, Progress
from swampstore.pipeline.verify.files import File, sorted_out
from swampstore.pipeline.verify.mending import (
    Action,
    Mender,
    Wanted,
    wanted_by_file,
    wanted_by_name,
)
from swampstore.pipeline.verify.sources import Having, Sources, cache_of

if TYPE_CHECKING:
    from swampstore.pipeline.editing import Editor

_UNITS = 5_000  # that are mended with one commit
_NAMED = 3

Units = Iterable[tuple[str, list[File]]]
"""Data names, and single other files, that may want mending, with their files."""


@dataclass
class Mended:
    """What was done, or would be: how often, what is lost, and where copies are.

    `left` tells why something was not done.
    """

    done: Counter[str] = field(default_factory=Counter)
    lost: list[tuple[str, str]] = field(default_factory=list)
    left: dict[str, str] = field(default_factory=dict)
    quarantine: str | None = None

    def note(self, actions: Iterable[Action]) -> None:
        """Count actions."""
        for action in actions:
            self.done[action.do] += 1
            if action.do == "lost":
                self.lost.append((action.rel, action.value))


class Repair:
    """Mends the files of one place; without an editor it only says what would be done.

    `units` come from an examination, and `having` knows which objects it has read. Unless it
    `gives_up`, what cannot be made whole stays.
    """

    def __init__(
        self, place: Place, units: Units, having: Having, editor: Editor | None, *, gives_up: bool
    ) -> None:
        self._place = place
        self._units = units
        self._having = having
        self._editor = editor
        self._gives_up = gives_up
        self._progress = Progress()

    def run(self) -> Mended:
        """Mend all that was found.

        Raises RepairStoppedError if that was not possible: it tells how far the repair came.
        """
        mended = Mended()
        with ExitStack() as stack:
            store = self._editor.store if self._editor else stack.enter_context(self._place.open())
            quarantine = Quarantine(store, self._place.names())
            names = self._place.names(cache_of(self._place.target) or "/nonexistent")
            sources = Sources(store, names, self._having, quarantine)
            try:
                for actions in self._batches(sources, quarantine):
                    mended.note(actions)
                if self._editor is not None:
                    mended.done += Counter(remove=self._removed(self._editor))
            except SwampstoreError as error:
                raise self._stopped(error, quarantine) from error
            except KeyboardInterrupt:
                notice("%s", self._how_far(quarantine))
                raise
        mended.left = self._progress.left
        mended.quarantine = quarantine.rel if self._progress.kept else None
        return mended

    def _batches(self, sources: Sources, quarantine: Quarantine) -> Iterator[list[Action]]:
        """Yield what was done, or would be."""
        units = ((unit, _without_leftovers(files)) for unit, files in self._units)
        while batch := list(islice(units, _UNITS)):
            actions = self._planned(batch, sources)
            if self._editor is None:
                yield actions
                continue
            known = {file.rel: file for _, files in batch for file in files}
            before = len(self._progress.done)
            Applying(self._editor, known, sources, quarantine, self._progress).run(actions)
            yield self._progress.done[before:]

    def _planned(self, batch: Units, sources: Sources) -> list[Action]:
        names = {name: sorted_out(name, files) for name, files in batch}
        sources.look_for(self._wanted(batch))
        mender = Mender(sources.find, gives_up=self._gives_up)
        actions = [
            action
            for name, found in names.items()
            if found.versions or found.latest
            for action in mender.mend_name(name, found.versions, found.latest)
        ]
        others = (file for found in names.values() for file in found.others)
        return actions + [action for file in others for action in mender.mend_file(file)]

    @staticmethod
    def _wanted(batch: Units) -> Iterator[Wanted]:
        for name, files in batch:
            versions, _, others = sorted_out(name, files)
            yield from wanted_by_name(name, versions)
            for file in others:
                yield from wanted_by_file(file)

    @staticmethod
    def _removed(editor: Editor) -> int:
        """Remove what deletions have left behind; return how many objects that were."""
        count, failures = finish_pending_deletes(editor)
        for failure in failures:
            notice("what a deletion has left stays for now: %s", failure)
        return count

    def _stopped(self, error: SwampstoreError, quarantine: Quarantine) -> RepairStoppedError:
        stopped = RepairStoppedError(
            f"the repair of {self._place} stopped: {error.message}. {self._how_far(quarantine)}",
            hint=f"Run it again: it goes on from what is there. {error.hint or ''}".rstrip(),
        )
        stopped.exit_status = error.exit_status
        return stopped

    def _how_far(self, quarantine: Quarantine) -> str:
        replaced, unrestored = self._progress.replaced, self._progress.unrestored
        waiting = f" Not restored yet: {', '.join(map(escaped, unrestored))}." if unrestored else ""
        if not replaced:
            return f"Nothing was replaced.{waiting}"
        named = ", ".join(replaced[:_NAMED]) + (", ..." if len(replaced) > _NAMED else "")
        return (
            f"It had begun to write {len(replaced)} files ({named}); all that was there before is"
            f" there, or one of {self._progress.kept} copies in {quarantine.rel}.{waiting}"
        )


def _without_leftovers(files: list[File]) -> list[File]:
    """Return the files that are to stay: what is left of a deletion is not mended."""
    return [file for file in files if file.kind != kinds.UNREMOVED]
