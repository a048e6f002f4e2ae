"""Finding out what can be done about damage: what belongs together, and where copies are."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

from swampstore.pipeline.evidence.reading import Copy, Reading
from swampstore.pipeline.places import Place
from swampstore.pipeline.verify.applying import Applying, Source
from swampstore.pipeline.verify.examination import Examined, etag_of
from swampstore.pipeline.verify.files import sorted_out
from swampstore.pipeline.verify.mending import (
    Action,
    Wanted,
    mend_file,
    mend_name,
    wanted_content,
)

if TYPE_CHECKING:
    from swampstore.pipeline.editing import Editor

_UNITS = 5_000  # that are mended with one commit


@dataclass
class Mended:
    """What was done, or would be: how often, and what is lost."""

    done: Counter[str] = field(default_factory=Counter)
    lost: list[tuple[str, str]] = field(default_factory=list)

    def note(self, actions: Iterable[Action]) -> None:
        """Count actions."""
        for action in actions:
            self.done[action.do] += 1
            if action.do == "lost":
                self.lost.append((action.rel, action.value))


class Repair:
    """Mends the files of one place; without an editor it only says what would be done."""

    def __init__(
        self, place: Place, seen: Examined, reading: Reading, editor: Editor | None
    ) -> None:
        self._place = place
        self._seen = seen
        self._reading = reading
        self._editor = editor
        self._cache = _cache_of(place)
        self.mended = Mended()

    def run(self) -> Mended:
        """Mend all that was found, some thousand data names at a time."""
        units = self._seen.units(self._place)
        while batch := list(islice(units, _UNITS)):
            names = {name: sorted_out(name, files) for name, files in batch}
            others = [file for one in names.values() for file in one.others]
            files = [one for name in names.values() for one in name.versions.values()]
            source = self._source(wanted_content(files, others))
            actions = [
                action
                for name, found in names.items()
                if found.versions or found.latest
                for action in mend_name(name, found.versions, found.latest, source.has)
            ]
            actions += [action for file in others for action in mend_file(file, source.has)]
            if self._editor is not None:
                known = {file.rel: file for _, unit in batch for file in unit}
                Applying(self._editor, known, source).run(actions)
            self.mended.note(actions)
        return self.mended

    def _source(self, wanted: Iterable[Wanted]) -> Source:
        """Find copies of content: other objects of the store, and files of the cache."""
        needed = {*wanted}
        return Source(
            self._copies({one.sha256 for one in needed}),
            {one: path for one in needed if (path := self._cached(one))},
        )

    def _copies(self, hashes: set[str]) -> dict[str, Copy]:
        """Return an object for each content that some object of the store still has."""
        found: dict[str, Copy] = {}
        if hashes:
            with self._place.open() as store:
                for sha256, copy in self._reading.having(hashes, self._place.identity):
                    if sha256 not in found and etag_of(store, copy.key) == copy.etag:
                        found[sha256] = copy
        return found

    def _cached(self, wanted: Wanted) -> str | None:
        if self._cache is None:
            return None
        path = self._place.names(self._cache).local(wanted.rel)
        with contextlib.suppress(OSError), open(path, "rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() == wanted.sha256:
                return path
        return None


def _cache_of(place: Place) -> str | None:
    """Return the cache of the repository that the place was found through."""
    from swampstore import config as configuration

    if not os.path.isdir(place.target):
        return None
    config = configuration.load(place.target, os.environ)
    return config.base if config.remote else None
