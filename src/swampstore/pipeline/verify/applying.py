"""Carrying out what can be done about damage, under the lock of the place.

First what is needed is put in place, and copies of what goes are put into quarantine. Then one
commit makes the index say what is there now. Only then do the originals of the copies go. Who is
stopped in between has lost nothing, and the next repair finds the rest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from swampstore.clock import system_clock, to_iso
from swampstore.pipeline.evidence.reading import Copy
from swampstore.pipeline.quarantine import Quarantine
from swampstore.pipeline.verify.files import File
from swampstore.pipeline.verify.mending import Action, Wanted
from swampstore.stores.errors import ObjectNotFoundError
from swampstore.stores.protocol import Store
from swampstore.sync.index_format import Entry
from swampstore.sync.remote.merging import index_moved
from swampstore.sync.workers import Deadline, in_parallel

if TYPE_CHECKING:
    from swampstore.pipeline.editing import Editor

_CONCURRENCY = 8


class Source(NamedTuple):
    """Where content is to be had: objects by hash, files of the cache by what is wanted."""

    copies: Mapping[str, Copy]
    cached: Mapping[Wanted, str]

    def has(self, wanted: Wanted) -> bool:
        """Whether content can be had."""
        return wanted.sha256 in self.copies or wanted in self.cached


class Applying:
    """Carries actions out, and commits once."""

    def __init__(self, editor: Editor, files: Mapping[str, File], source: Source) -> None:
        self._editor = editor
        self._store: Store = editor.store
        self._files = files
        self._source = source
        self._quarantine = Quarantine(editor.store, editor.names)

    def run(self, actions: Iterable[Action]) -> None:
        """Do everything; what somebody changed since it was looked at is left alone."""
        chosen = [one for one in actions if one.do != "lost" and self._is_as_seen(one.rel)]
        upserts: dict[str, Entry] = {}
        steps: dict[str, Callable[[Action], Entry | None]] = {
            "restore": self._restore,
            "write": self._write,
            "adopt": self._adopt,
            "quarantine": self._set_aside,
            "forget": lambda _: None,
        }
        doing = in_parallel(lambda one: steps[one.do](one), chosen, _CONCURRENCY, Deadline())
        for action, entry, error in doing:
            if error is not None:
                raise error
            if entry is not None:
                upserts[action.rel] = entry
        gone = [one.rel for one in chosen if one.do in ("quarantine", "forget")]
        self._editor.commit(upserts, [rel for rel in gone if self._is_named(rel)])
        self._editor.check()
        self._quarantine.move_away([one.rel for one in chosen if one.do == "quarantine"])

    def _is_named(self, rel: str) -> bool:
        return rel in self._files and self._files[rel].is_named

    def _is_as_seen(self, rel: str) -> bool:
        seen = self._files[rel].etag if rel in self._files else None
        try:
            return self._store.head(self._editor.names.remote(rel)).etag == seen
        except ObjectNotFoundError:
            return seen is None

    def _restore(self, action: Action) -> Entry:
        rel, sha256 = action.rel, action.value
        key = self._editor.names.remote(rel)
        self._quarantine.copy(rel)
        path = self._source.cached.get(Wanted(rel, sha256))
        if path is not None:
            with open(path, "rb") as file:
                self._store.put(key, file)
        else:
            copy = self._source.copies[sha256]
            self._store.copy(copy.key, key)
            self._check_copy(copy)
        return Entry(self._store.head(key).size, to_iso(system_clock()), sha256)

    def _check_copy(self, copy: Copy) -> None:
        """Make sure that what was copied is what was read; nobody else should be writing now."""
        if self._store.head(copy.key).etag != copy.etag:
            raise index_moved(f"somebody else wrote {copy.key}", ())

    def _write(self, action: Action) -> Entry:
        data = action.value.encode()
        self._quarantine.copy(action.rel)
        self._store.put(self._editor.names.remote(action.rel), data)
        return Entry(len(data), to_iso(system_clock()), hashlib.sha256(data).hexdigest())

    def _adopt(self, action: Action) -> Entry:
        info = self._store.head(self._editor.names.remote(action.rel))
        return Entry(info.size, to_iso(info.last_modified), self._files[action.rel].hash)

    def _set_aside(self, action: Action) -> None:
        self._quarantine.copy(action.rel)
