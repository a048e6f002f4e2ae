"""Making what was copied visible in the index of the target."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from swampstore.index import View
from swampstore.index.errors import IndexDamagedError, IndexMovedError, SyncError
from swampstore.index.format import Entry
from swampstore.index.partitions import partition_of
from swampstore.index.path_kinds import unit_of, version_file
from swampstore.layout import METADATA
from swampstore.pipeline.copy.outcomes import OVERTAKEN, Placed, Refused, entry_there
from swampstore.pipeline.copy.units import Unit
from swampstore.pipeline.index_writer import IndexWriter
from swampstore.pipeline.places import Place
from swampstore.pipeline.planning import each
from swampstore.pipeline.source.index import documents, read_meta
from swampstore.stores.errors import ObjectNotFoundError

_ATTEMPTS = 8
_SHARDED = 2
_TOLD = "others changed it, or something of the same data name, meanwhile"


class Commits:
    """The commits of one copy; `count` is how many there were."""

    def __init__(self, editor: IndexWriter) -> None:
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

    def with_versions(self, units: Sequence[Unit]) -> list[Unit]:
        """Return units, those with a marker together with what the index tells of their name."""
        names = {unit.name for unit in units if unit.has_marker}
        view = self._view(f"{name}/1/{METADATA}" for name in names)
        return [
            unit._replace(versions=_versions(view, unit.name)) if unit.name in names else unit
            for unit in units
        ]

    def commit(self, placed: Sequence[Placed]) -> list[Placed | Refused]:
        """Put entries into the index in one commit; return what is there then, and what is not.

        What others have changed meanwhile is left out, with all of its unit.
        """
        if not placed:
            return []
        for _ in range(_ATTEMPTS):
            view = self._view(one.wanted.rel for one in placed)
            try:
                # Whoever deletes objects that are in no index holds the lock for it.
                with self._editor.locks.committing():
                    return self._commit(view, placed)
            except IndexMovedError:
                continue
        raise SyncError(
            f"others keep committing the same paths to {self._editor.place}",
            hint="Copy again in a moment; what was committed so far is kept.",
        )

    def _commit(self, view: View, placed: Sequence[Placed]) -> list[Placed | Refused]:
        moved = [one for one in placed if _has_moved(view, one)] + self._vanished(placed)
        units = {unit_of(one.wanted.rel) for one in moved}
        chosen = [one for one in placed if unit_of(one.wanted.rel) not in units]
        upserts = {one.wanted.rel: one.entry for one in chosen if not _is_done(view, one)}
        self._editor.commit(upserts, view=view)
        self.count += bool(upserts)
        left_out = [one.wanted for one in placed if unit_of(one.wanted.rel) in units]
        return [*chosen, *(Refused(one, OVERTAKEN, _TOLD) for one in left_out)]

    def _vanished(self, placed: Iterable[Placed]) -> list[Placed]:
        """Return those that were there already, and are not any more."""
        met = [one for one in placed if one.met is not None]
        checked = each(self._editor.place, self._is_still_there, met)
        return [one for one, is_there in checked if not is_there]

    def _is_still_there(self, placed: Placed) -> bool:
        try:
            found = self._editor.store.head(self._editor.names.remote(placed.wanted.rel))
        except ObjectNotFoundError:
            return False
        return found.etag == placed.met

    def _view(self, rels: Iterable[str]) -> View:
        """Look at what the index says about paths; nothing is going to be taken out of it."""
        return self._editor.index.view((), additions={partition_of(rel) for rel in rels})


def _versions(view: View, name_rel: str) -> frozenset[int]:
    """Return the versions of a data name that can be read, as the index tells it."""
    files = {rel: version_file(rel) for rel in view.entries_below(name_rel)}
    return frozenset(
        file.version
        for rel, file in files.items()
        if file is not None and file.name_rel == name_rel and rel.endswith(f"/{METADATA}")
    )


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
