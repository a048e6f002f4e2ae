"""Removing objects that no index names any more, also if whoever began it was stopped."""

from __future__ import annotations

from swampstore.pipeline.editing import Editor
from swampstore.stores.errors import ObjectNotFoundError
from swampstore.stores.protocol import ObjectInfo
from swampstore.sync.errors import IndexDamagedError
from swampstore.sync.index_format import Entry
from swampstore.sync.removals import REMOVALS, Removal, Removed, Remover, read_note


def remover_of(editor: Editor) -> Remover:
    """Return what removes objects for as long as the global lock is held."""
    limit = editor.place.config.limits.push_concurrency
    return Remover(editor.store, editor.names, limit, check=editor.locks.check)


def doomed(editor: Editor, rel: str, info: ObjectInfo, entry: Entry | None) -> Removal | None:
    """Return an object that was listed as one to be removed, None if it is another one by now."""
    token = info.token
    if token is None:
        try:
            found = editor.store.head(editor.names.remote(rel))
        except ObjectNotFoundError:
            return None
        if found.etag != info.etag:
            return None
        token = found.token
    return Removal(rel, info.size, entry.sha256 if entry else None, token)


def finish(editor: Editor) -> tuple[int, list[str]]:
    """Finish removals that were stopped, by anybody; return how many objects went, and failures."""
    root = editor.names.remote("")
    count, failures = 0, []
    for info in list(editor.store.list(editor.names.remote(REMOVALS))):
        with editor.locks.committing() as guard:
            # Whoever holds the lock is the only one at work, so the note is of somebody dead.
            guard()
            try:
                done = _finish(editor, info.key.removeprefix(root))
            except IndexDamagedError as error:
                failures.append(error.message)
                continue
        count += done.objects
        failures += [error.message for error in done.failures]
    return count, failures


def _finish(editor: Editor, rel: str) -> Removed:
    note = read_note(editor.store, editor.names, rel)
    return Removed() if note is None else remover_of(editor).finish(note, editor.index)
