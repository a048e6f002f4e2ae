"""A place that a stream follows: what `_meta.json` told, and whether that goes on where it was."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from swampstore.pipeline.errors import StreamPositionError
from swampstore.pipeline.places import Place
from swampstore.pipeline.source.commits import Told, look
from swampstore.sync.remote.documents import Documents

if TYPE_CHECKING:
    from swampstore.stores.protocol import Store


class Position(NamedTuple):
    """The last commit of a place that counts, and the origin that it is counted from.

    Without an origin numbers are all there is to go by.
    """

    commit: int = 0
    origin: str | None = None


START = Position()


class Watched:
    """A place that is followed, and what it told since the last batch that is done."""

    def __init__(self, place: Place) -> None:
        self.documents = documents_of(place, place.open())
        self._place = place
        self._told: list[Told] = []

    def look(self, reached: Position = START) -> Told:
        """Return what is told now; raise StreamPositionError if that is not beyond a position."""
        told = look(self.documents, self._told[-1] if self._told else None)
        is_other = None not in (told.origin, reached.origin) and told.origin != reached.origin
        if is_other or told.commit_seq < reached.commit:
            raise StreamPositionError(
                f"the last commit of {self._place} is {told.commit_seq}, which does not follow"
                f" commit {reached.commit} that this stream has come to: the remote was emptied,"
                " or replaced by another one",
                hint="Start the stream with a new checkpoint.",
            )
        if not self._told or told is not self._told[-1]:
            self._told.append(told)
        return told

    def telling(self, until: Position) -> Told:
        """Return something told after a commit was done."""
        if self._told and self._told[-1].commit_seq >= until.commit:
            return self._told[-1]
        return self.look(until)

    def before(self, commit: int) -> Told | None:
        """Return the last that was told before anything after a commit was done."""
        known = [told for told in self._told if told.commit_seq <= commit]
        return known[-1] if known else None

    def forget_before(self, commit: int) -> None:
        """Forget all that is older than what `before` returns."""
        known = self.before(commit)
        if known is not None:
            self._told = self._told[self._told.index(known) :]


def documents_of(place: Place, store: Store) -> Documents:
    """Return the index documents of a place."""
    return Documents(store, place.names(), place.config.limits.pull_concurrency)
