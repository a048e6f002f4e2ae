"""Making what was copied visible in the index of the target."""

from __future__ import annotations

from collections.abc import Sequence

from swampstore.pipeline.copying.outcomes import OVERTAKEN, Placed, Refused, entry_there
from swampstore.pipeline.editing import Editor
from swampstore.pipeline.places import Place
from swampstore.pipeline.source.index import documents, read_meta
from swampstore.sync.errors import IndexDamagedError, IndexMovedError, SyncError
from swampstore.sync.index_format import Entry
from swampstore.sync.remote import View
from swampstore.sync.shapes import unit_of

_ATTEMPTS = 8
_SHARDED = 2
_TOLD = "somebody committed the same path, or one of the same data name, meanwhile"


class Commits:
    """The commits of one copy; `count` is how many there were."""

    def __init__(self, editor: Editor) -> None:
        self._editor = editor
        self.count = 0

    def begin(self, source: Place) -> None:
        """Give a target without an index an empty one, of the same kind as that of the source.

        Without one, whatever is there would be taken for data, also half of a version.
        """
        editor = self._editor
        if documents(editor.place, editor.store):
            return
        editor.index.fence()
        with source.open() as store:
            meta = read_meta(source, store)[0] if source.indexed else None
        if meta is not None and meta.version == _SHARDED:
            with editor.locks.committing() as guard, editor.index.guarded(guard):
                editor.index.migrate()

    def commit(self, placed: Sequence[Placed]) -> list[Placed | Refused]:
        """Put entries into the index in one commit; return what is there then, and what is not.

        What others have changed meanwhile is left out, with all of its unit.
        """
        for _ in range(_ATTEMPTS if placed else 0):
            view = self._editor.view([one.wanted.rel for one in placed])
            moved = {unit_of(one.wanted.rel) for one in placed if _has_moved(view, one)}
            chosen = [one for one in placed if unit_of(one.wanted.rel) not in moved]
            upserts = {one.wanted.rel: one.entry for one in chosen if not _is_done(view, one)}
            try:
                self._editor.commit(upserts, view=view)
            except IndexMovedError:
                continue
            self.count += bool(upserts)
            left_out = [one.wanted for one in placed if unit_of(one.wanted.rel) in moved]
            return [*chosen, *(Refused(one, OVERTAKEN, _TOLD) for one in left_out)]
        if placed:
            raise SyncError(
                f"others keep committing the same paths to {self._editor.place}",
                hint="Copy again in a moment; what was committed so far is kept.",
            )
        return []


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
