"""Where the data of a machine is, and what must be there after it has moved.

A place is a bucket, or a part of one that is a namespace, or a directory. Each has an oracle of its
own: whoever moves leaves the old place to those who stay, and takes along what was committed there
and whatever only this machine has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from swampstore.stores.protocol import Fetched
from tests.fleet.bucket import BUCKETS
from tests.fleet.documents import index_of
from tests.fleet.oracle import Oracle, State, Version

MEMORY = "memory://"
HOME = "fleet"
# How contents come: as with `lazy`, and no more than so many bytes of them stay.
BOUNDED = "bounded"
_MOST_BYTES = 100


class Place(NamedTuple):
    """The name of a bucket or the path of a directory, and the namespace there."""

    target: str = HOME
    namespace: str = ""

    @property
    def is_remote(self) -> bool:
        return not self.target.startswith("/")

    @property
    def prefix(self) -> str:
        return f"{self.namespace}/" if self.namespace else ""

    @property
    def address(self) -> str:
        return f"{MEMORY}{self.target}" if self.is_remote else self.target

    def settings(self, hydration: str) -> dict[str, Any]:
        """Return what a marker says of it."""
        if not self.is_remote:
            return {"type": "filesystem", "path": self.target}
        settings: dict[str, Any] = {"type": "memory", "url": self.address}
        if hydration == BOUNDED:
            settings["cache"] = {"maxBytes": _MOST_BYTES}
        else:
            settings["hydrationStrategy"] = hydration
        return settings | ({"namespace": self.namespace} if self.namespace else {})

    @classmethod
    def of(cls, section: Mapping[str, Any]) -> Place:
        """Return the place that a marker names."""
        target = section.get("path") or str(section["url"]).removeprefix(MEMORY)
        return cls(target, section.get("namespace") or "")

    def infos(self) -> dict[str, Fetched]:
        """Return the objects that the bucket has below the namespace, by path."""
        if not self.is_remote:
            return {}
        objects = BUCKETS[self.target].objects
        return {
            key.removeprefix(self.prefix): one
            for key, one in objects.items()
            if key.startswith(self.prefix)
        }

    def objects(self) -> dict[str, bytes]:
        """Return what the bucket has below the namespace, by path."""
        return {rel: one.data for rel, one in self.infos().items()}

    def committed(self) -> set[str]:
        """Return the metadata of all versions that the index names, each as text."""
        objects = self.objects()
        return {
            objects[rel].decode("utf-8", "replace")
            for rel in index_of(objects)
            if rel.endswith("/metadata.yaml") and rel in objects
        }


class Move(NamedTuple):
    """A move that was begun: from where to where, what has to come along, and what must not.

    What is rightly there `twice` comes along twice.
    """

    machine: int
    source: Place
    target: Place
    ids: frozenset[str]
    gone: frozenset[str]
    pieces: frozenset[bytes]
    held: frozenset[str]
    twice: frozenset[str]


class Places:
    """The oracles of all places that were ever used."""

    def __init__(self, home: Oracle) -> None:
        self.oracles: dict[Place, Oracle] = {Place(): home}
        self._home = home
        self.moves: dict[int, Move] = {}
        # What machines deleted before they left a place, and nobody there has heard of.
        self._left: dict[tuple[int, Place], set[str]] = {}
        # What they had never pushed there: their cache keeps it, for others who use it. So it is
        # with what a setup had copied right into it when it was stopped.
        self._kept: dict[tuple[int, Place], set[str]] = {}
        # Moves into a namespace that was set before the data could follow.
        self._owed: dict[int, Move] = {}

    def oracle(self, place: Place) -> Oracle:
        if place not in self.oracles:
            made = self.oracles[place] = Oracle()
            made.share_work(self._home)
            made.has_index = lambda: bool(
                place.objects().keys() & {"_index/_meta.json", ".datastore-index.json"}
            )
        return self.oracles[place]

    def begin(
        self,
        machine: int,
        source: Place,
        target: Place,
        held: Iterable[str],
        contents: Iterable[bytes],
        *,
        alone: bool,
    ) -> None:
        """Note what a machine that is about to move has, itself and, unless `alone`, there.

        What others have appended and not pushed yet stays with them.
        """
        here, there = self.oracle(source), self.oracle(target)
        documents = source.committed()
        numbers = Counter(held)
        held = frozenset(numbers)
        if not alone:  # what only others have by now is fetched first
            numbers |= Counter(id_ for text in documents for id_ in here.versions if id_ in text)
        twice = frozenset(
            id_ for id_, one in here.versions.items() if one.is_contested and numbers[id_] > 1
        )
        ids = {
            id_
            for id_, one in here.versions.items()
            if one.state is State.THERE
            and (id_ in held or (not alone and any(id_ in text for text in documents)))
        }
        gone = {
            id_
            for id_, one in here.versions.items()
            if one.state is State.GONE
            and not here.may_come_back(one)
            and (one.deleted_by == machine or not any(id_ in text for text in documents))
        }
        kept = self._kept.get((machine, target), set())
        for id_ in kept & there.versions.keys():
            if there.versions[id_].state is State.GONE:
                there.versions[id_].state = State.UNSURE
        gone -= kept
        # What is there stays there; of what somebody was killed at, that alone tells that it is.
        stored = target.committed()
        gone -= {one for one in gone - there.versions.keys() if any(one in text for text in stored)}
        there_too = [data for rel, data in source.objects().items() if rel.endswith("/raw")]
        pieces = {one for data in [*contents, *there_too] for one in here.pieces_in(data)}
        self.moves[machine] = Move(
            machine,
            source,
            target,
            frozenset(ids),
            frozenset(gone),
            frozenset(pieces),
            held,
            twice,
        )
        for id_ in self._left.get((machine, target), set()):
            there.deleting([id_], machine)  # its cache is still there
        # Others have deleted it and told nobody yet.
        _expect(there, [one for id_, one in here.versions.items() if id_ not in gone])
        _doubt(here, there)

    def doubt_owed(self, place: Place, machine: int | None = None) -> None:
        """Expect nothing of what others deleted before a machine could take it along after all.

        It takes along what is there by then, also what came about after the move was begun.
        """
        for number, move in list(self._owed.items()):
            if move.target != place or machine not in (None, number):
                continue
            here, there = self.oracle(move.source), self.oracle(place)
            for id_ in move.ids:
                if here.versions[id_].state is not State.THERE and (
                    there.versions[id_].state is State.THERE
                ):
                    there.versions[id_].state = State.UNSURE
            _doubt(here, there)
            del self._owed[number]

    def doubt_outside(self, place: Place) -> None:
        """Who was stopped on its way out of a namespace may share outside what it takes back."""
        _doubt(self.oracle(place), self.oracle(place._replace(namespace="")))

    def forget_outside(self, machine: int, place: Place, metadata: bytes) -> None:
        """Doubt deletions outside of a namespace of what waits there to follow into it.

        A machine that was stopped before that has a base of the namespace, and none of what is
        outside: it shares there again what it finds in its cache, and nobody has any more.
        """
        outside = place._replace(namespace="")
        here = self.oracle(outside)
        held = {id_ for id_ in here.versions if id_.encode() in metadata}
        named = outside.committed()
        told = {id_ for id_ in here.versions if not any(id_ in text for text in named)}
        here.doubt_deletions(machine, told - held, held=held)
        here.baseless[machine] = held
        here.forgot.setdefault(machine, set()).update(held)

    def end(self, machine: int, place: Place, *, owes: bool) -> None:
        """Note where a machine is, however its step ended; `owes`: its data is to follow."""
        if place.namespace and not owes:
            self.oracle(place._replace(namespace="")).baseless.pop(machine, None)
        move = self.moves.pop(machine, None)
        if move is None:
            if not owes:
                self.doubt_owed(place, machine)
            return
        here, there = self.oracle(move.source), self.oracle(move.target)
        if place != move.target or move.source == move.target:
            if not move.source.is_remote:
                self._kept.setdefault((machine, move.target), set()).update(move.ids)
            _doubt(here, there)
            return
        self._kept.pop((machine, place), None)
        if owes:
            self._owed[machine] = move
        for id_ in move.ids:
            _bring(here.versions[id_], there, here, move)
        for id_ in move.gone - there.versions.keys():
            there.versions[id_] = _copy(here.versions[id_], State.GONE)
        for id_ in move.twice & there.versions.keys():
            there.versions[id_].is_contested = True
        _doubt(here, there)
        if move.source.target == move.target.target:
            # Before its first sync there, a machine cannot tell what others have put there; and if
            # two of them take a version along to where its number is taken, it is there twice.
            there.baseless[machine] = set(there.versions)
            there.forgot.setdefault(machine, set()).update(there.versions)
            for id_ in there.versions.keys() & here.versions.keys():
                there.versions[id_].is_contested = there.versions[id_].is_doubled = True
        deleted = {one.id for one in here.versions.values() if one.deleted_by == machine}
        self._left.setdefault((machine, move.source), set()).update(deleted)
        documents = move.source.committed()
        # Also what somebody was killed at, and nobody was told of.
        had = move.ids | move.held
        kept = {id_ for id_ in had if not any(id_ in text for text in documents)}
        self._kept.setdefault((machine, move.source), set()).update(kept)
        stored = [data for rel, data in move.source.objects().items() if rel.endswith("/raw")]
        pieces = {one for data in stored for one in here.pieces_in(data)}
        _leave(here, machine, documents, pieces)


def _copy(one: Version, state: State) -> Version:
    made = Version(one.id, one.model, one.name, one.work, state, one.is_tombstone)
    made.is_contested = one.is_contested or bool(one.appenders)
    made.is_doubled = one.is_doubled
    return made


def _doubt(here: Oracle, there: Oracle) -> None:
    """Whatever is on its way may arrive, even if others deleted it there."""
    there.renames |= here.renames
    _expect(there, [one for one in here.versions.values() if one.state is not State.GONE])


def _expect(there: Oracle, versions: list[Version]) -> None:
    for one in versions:
        known = there.versions.get(one.id)
        if known is None:
            there.versions[one.id] = _copy(one, State.UNSURE)
        elif known.state is State.GONE:
            known.state, known.is_brought = State.UNSURE, True


def _bring(one: Version, there: Oracle, here: Oracle, move: Move) -> None:
    """A version has arrived, unless it was deleted meanwhile on one side."""
    known = there.versions.get(one.id)
    if known is None:
        known = there.versions[one.id] = _copy(one, State.UNSURE)
        is_new = True
    else:
        is_new = known.state is State.UNSURE and known.deleted_by is None
    if one.state is State.THERE and is_new:
        known.state, known.maker = State.THERE, move.machine
        # Of what somebody was killed at, who deleted it could not say what it was.
        known.model, known.name, known.work = one.model, one.name, one.work
        known.appended |= {piece: move.machine for piece in one.appended if piece in move.pieces}
    known.is_doubled |= one.is_doubled
    if one.work and here.works[one.work].pieces:
        known.is_contested = True


def _leave(here: Oracle, machine: int, documents: set[str], pieces: set[bytes]) -> None:
    """Expect nothing at the old place of what a machine that left had never pushed.

    The `documents` are the metadata that the index names there, the `pieces` what was appended to
    what is stored there.
    """
    for one in here.versions.values():
        is_committed = any(one.id in text for text in documents)
        if one.maker == machine and one.state is State.THERE and not is_committed:
            one.state = State.UNSURE
        if one.deleted_by == machine and one.state is State.GONE and is_committed:
            one.state = State.UNSURE
        if machine in one.appenders:
            one.is_contested = True
            taken = {piece for piece, by in one.appended.items() if by == machine} - pieces
            one.appended = {piece: by for piece, by in one.appended.items() if piece not in taken}
            one.left_behind |= taken
