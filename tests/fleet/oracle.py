"""What must be there, and what must not: told by those who did it, checked from outside.

A version is known by its id, which stays when it is given another number, and by the piece of work
in its tags. Its content is the base of that work and whatever was appended, piece by piece. What
returned without an error is certain; what failed or was killed may be there or not, never half.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from swampstore import Artifact, Repo
from swampstore.errors import ContentMissingError
from tests.fleet.world import Violation

MODELS = ("t/m/a", "t/m/b")
NAMES = ("x", "y", "z")
WORK = "work"
PEER = "peer"
_MARK = b"|"


class State(Enum):
    """What is certain of a version."""

    THERE = 1
    GONE = 2
    UNSURE = 3


class Found(NamedTuple):
    """One version as a machine sees it."""

    model: str
    name: str
    version: int
    id: str
    work: str
    is_tombstone: bool
    is_latest: bool
    content: bytes | None


@dataclass
class Version:
    """One version that somebody made, or tried to."""

    id: str
    model: str
    name: str
    work: str
    state: State
    is_tombstone: bool = False
    maker: int = -1
    deleted_by: int | None = None
    # What was appended to it, piece by piece, and by whom.
    appended: dict[bytes, int] = field(default_factory=dict)
    # Who has appended since all were at rest; and whether more than one may have, unseen.
    appenders: set[int] = field(default_factory=set)
    is_contested: bool = False
    # Whether it may be there twice with the same content: so it was at a rest, or two have taken it
    # along to where its number was taken.
    is_doubled: bool = False
    # Whether somebody was stopped who appended to it.
    is_half_appended: bool = False
    # What was appended to it by machines that left before they had pushed that: it is still in the
    # cache that they had here, and is shared when they come back, or by others who use that cache.
    left_behind: set[bytes] = field(default_factory=set)
    # Whether it was deleted, and somebody may have brought it along since, under another number.
    is_brought: bool = False
    # Whether all who had it when it was deleted knew that the index named it: all can be told. And
    # whether a part of the index was lost then, so that others may still have got it after that.
    was_known: bool = False
    was_guessed: bool = False


@dataclass
class Work:
    """What a piece of work may look like."""

    content: bytes
    places: set[tuple[str, str]]
    pieces: set[bytes] = field(default_factory=set)

    def explains(self, content: bytes) -> bool:
        if not content.startswith(self.content):
            return False
        rest = content[len(self.content) :]
        return all(_MARK + piece in self.pieces for piece in rest.split(_MARK)[1:]) and (
            not rest or rest.startswith(_MARK)
        )


@dataclass
class Session:
    """A session that ended well: when it had its locks, what it saw then, and what it made."""

    locked: float
    models: set[str]
    seen: set[str]
    made: set[str]


class Noted(NamedTuple):
    """The metadata of versions in a cache of which it knows that others have them, or were sent."""

    shared: bytes
    sent: bytes


class Oracle:
    """Knows everything that was acknowledged, and by whom it was deleted."""

    def __init__(self) -> None:
        self.works: dict[str, Work] = {}
        self.versions: dict[str, Version] = {}
        self.renames: set[tuple[str, str]] = set()
        self._renaming: list[tuple[str, str, str]] = []
        self._appending: list[tuple[str, str, bytes]] = []
        # Since all were at rest: was an index lost, and who had what by then; who lost its base,
        # and had what; and what was made by somebody who was stopped while it talked to the store.
        self.is_index_lost = False
        self.held: set[tuple[int, str]] = set()
        # And under which names and numbers, on any disk and on the remote.
        self.held_at: dict[str, set[tuple[str, str, int]]] = {}
        self.baseless: dict[int, set[str]] = {}
        self.unnoted: set[str] = set()
        self.adopted: set[str] = set()
        # Among these and those are some that nobody was told of.
        self.has_unnoted_unknown = self.has_adopted_unknown = False
        # What others read of a push to a bucket in which nobody had ever committed.
        self.early: set[str] = set()
        # What was sent by a push that was stopped before it could note that; and of that, what its
        # machine deleted before the next push: nothing tells any more whose objects those are.
        self.sent: set[str] = set()
        self.abandoned: set[str] = set()
        # Who lost its base, also if it has one again, and had what.
        self.forgot: dict[int, set[str]] = {}
        self.sessions: list[Session] = []
        self.ghosts: set[tuple[int, str]] = set()
        # Where on which machine one of them stands.
        self.standing: dict[int, set[tuple[str, str, int]]] = {}
        # Whose content was lost on the remote; and of that, what is nowhere any more since whoever
        # had the last copy deleted it, and has forgotten that it did, or what.
        self.contentless: set[str] = set()
        self.hollow: set[str] = set()
        # What was removed by hand from which machine, until it was repaired at the next rest.
        self.removed: set[tuple[int, str]] = set()
        self.has_index: Callable[[], bool] = lambda: True
        self._numbers = itertools.count(1)

    def share_work(self, other: Oracle) -> None:
        """Know the same pieces of work as the oracle of another place."""
        self.works, self._numbers = other.works, other._numbers

    # What machines tell ----------------------------------------------------------------------

    def new_work(
        self, model: str, name: str, size: int, who: str, *, is_equal: bool = False
    ) -> tuple[str, bytes]:
        """Return the tag and the content of something that is about to be saved.

        If it is to be equal, that is the content of the last one that is as large.
        """
        tag = f"w{next(self._numbers)}{who}"
        content = f"{tag}:".encode() + tag.encode() * (size // len(tag))
        if is_equal:
            made = [one.content for one in self.works.values() if len(one.content) >= size]
            content = made[-1] if made else content
        renamed = {(at, new) for at, old, new in self._renaming if (at, old) == (model, name)}
        pieces = {piece for *place, piece in self._appending if place == [model, name]}
        self.works[tag] = Work(content, {(model, name)} | renamed, pieces)
        return tag, content

    @contextlib.contextmanager
    def renaming(self, model: str, old: str, new: str) -> Iterator[None]:
        """While a name is given another one, what is saved under it may go with it."""
        self._renaming.append((model, old, new))
        try:
            yield
        finally:
            self._renaming.remove((model, old, new))

    def pieces_in(self, content: bytes) -> set[bytes]:
        """Return what was appended, as far as some content has it."""
        return {_MARK + piece for piece in content.split(_MARK)[1:]}

    def piece(self, work: str) -> bytes:
        """Return what is about to be appended."""
        piece = _MARK + f"p{next(self._numbers)}".encode()
        self.works[work].pieces.add(piece)
        return piece

    @contextlib.contextmanager
    def appending_beside(self, model: str, name: str, piece: bytes) -> Iterator[None]:
        """While something is appended, what others save in the same cache may be the latest."""
        one = (model, name, piece)
        for work in self.works.values():
            if (model, name) in work.places:
                work.pieces.add(piece)
        self._appending.append(one)
        try:
            yield
        finally:
            self._appending.remove(one)

    def saved(
        self, id_: str, model: str, name: str, work: str, by: int, *, tombstone: bool = False
    ) -> None:
        self.versions[id_] = Version(id_, model, name, work, State.THERE, tombstone, by)

    def appending(self, id_: str, by: int) -> None:
        for one in self._known([id_]):
            one.appenders.add(by)
            one.is_half_appended, one.was_known = True, False

    def appended(self, id_: str, piece: bytes, by: int) -> None:
        if id_ in self.versions:
            self.versions[id_].appended[piece] = by
            self.versions[id_].is_half_appended = False

    def deleting(
        self,
        ids: Iterable[str],
        by: int,
        known: Container[str] = (),
        *,
        is_guessed: bool = False,
    ) -> None:
        """Note what is about to be deleted: until that is done, nobody can say.

        What is `known` to all who have it is named by the index, and each of them knows that. If
        it `is_guessed`, there is none at the moment but what everybody makes of the objects.
        """
        for one in self._known(ids):
            if one.state is State.GONE and one.deleted_by is not None:
                continue  # it depends on whoever did that already, until this is done, too
            if one.state is not State.GONE:
                one.state = State.UNSURE
            one.deleted_by = by
            one.was_known = one.id in known and not one.is_half_appended
            one.was_guessed = is_guessed

    def deleted(self, ids: Iterable[str], by: int) -> None:
        for one in self._known(ids):
            # Who deletes the one that others had deleted before need not know of the other number.
            is_vain = self._is_vain(one, by) or self._is_under_way(one, by)
            is_doubtful = one.is_brought or (is_vain and not one.was_known)
            one.state = State.UNSURE if is_doubtful else State.GONE
            one.deleted_by = by

    def spared(self, ids: Iterable[str], by: int) -> None:
        """Note that a deletion ended well, and that these, which were there, are not part of it."""
        for one in self._known(ids):
            if one.state is State.UNSURE and one.deleted_by == by:
                one.state, one.deleted_by = State.THERE, None

    def collected(self, due: Mapping[str, set[bytes]], left: Mapping[str, set[bytes]]) -> None:
        """Expect no longer what was appended to copies that were due, and is in no copy left.

        Two that append to one version have two: garbage collection takes the older one of them.
        """
        for id_ in due.keys() & left.keys() & self.versions.keys():
            for piece in due[id_] - left[id_]:
                self.versions[id_].appended.pop(piece, None)

    def _is_vain(self, version: Version, by: int) -> bool:
        """Whether a deletion may be undone, because somebody cannot tell any more.

        Without its base a machine cannot tell that what the remote has is what it deleted, nor that
        what it has is what others deleted. Where an index is made anew, what others had when it was
        lost counts as new, and what they got of the objects until then. Where nobody had ever
        committed, others take the objects of a push that was stopped for data, and whoever sent
        them has not noted that.
        """
        id_ = version.id
        others = {number for number, held in self.held if held == id_} - {by}
        has_forgotten = by in self.baseless or any(id_ in had for had in self.baseless.values())
        return bool(others) or has_forgotten or id_ in self.adopted or version.was_guessed

    def _is_under_way(self, version: Version, by: int) -> bool:
        """Whether somebody deletes what another one is about to push as the first of all.

        As nobody has ever committed, objects count as data before their push is through. That push
        only finds that they are gone, and sends them again.
        """
        is_first = not self.is_index_lost and not self.has_index()
        return is_first and version.maker not in {-1, by}

    def stopped(
        self,
        makers: Container[int],
        sent: Container[str],
        noted: Noted,
        *,
        was_first: bool = False,
    ) -> None:
        """Note that a machine may have committed what is in its cache, without knowing that it has.

        `makers` are those who save there, and what it has `noted` it knows. Only if it was stopped
        after it had begun to write the index; and where nobody had ever committed when it began
        (`was_first`), if it had sent anything at all, which others take for data.
        """
        made = {
            id_
            for id_, one in self.versions.items()
            if one.maker in makers and id_.encode() not in noted.shared
        }
        if "put index" in sent:
            self.unnoted |= made
            self.has_unnoted_unknown = True
        if "put data" in sent and (was_first or not self.has_index()):
            self.adopted |= made
            self.has_adopted_unknown = True
            for one in map(self.versions.__getitem__, made):
                if one.state is State.GONE and one.deleted_by not in {None, one.maker}:
                    one.state = State.UNSURE  # others took it for data, and deleted it, before
        if "put data" in sent and "put index" not in sent:
            self.sent |= {id_ for id_ in made if id_.encode() not in noted.sent}

    def synced(self, machine: int) -> None:
        """Note that a machine has compared everything with the remote, and has a base again."""
        self.baseless.pop(machine, None)

    def ended_well(self, session: Session) -> None:
        """Raise Violation if one of two sessions on a model did not see what the other made.

        Then somebody committed after another one had taken its locks over.
        """
        for other in self.sessions:
            first, second = sorted((other, session), key=lambda one: one.locked)
            missing = {
                id_
                for id_ in first.made - second.seen
                if self.versions[id_].state is State.THERE
                and self.versions[id_].model in second.models
                # Without its content a version is nowhere to be seen in an index that is made anew,
                # until whoever has it comes.
                and not (self.is_index_lost and id_ in self.contentless)
            }
            if missing:
                raise Violation("unseen", f"{second} did not see {missing} of {first}")
        self.sessions.append(session)

    def _known(self, ids: Iterable[str]) -> Iterable[Version]:
        for id_ in ids:
            if id_ not in self.versions:  # the work of somebody who was killed
                self.versions[id_] = Version(id_, "", "", "", State.UNSURE)
                self.adopted |= {id_} if self.has_adopted_unknown else set()
                self.unnoted |= {id_} if self.has_unnoted_unknown else set()
            yield self.versions[id_]

    def removed_from(self, machine: int, *place: str) -> set[str]:
        """Return what a machine had, of all or of a model and a name, until it was removed by hand.

        The remote has it, so it is not lost; but whoever looks at that machine does not see it.
        """
        return {
            id_
            for number, id_ in self.removed
            if number == machine
            and (not place or (self.versions[id_].model, self.versions[id_].name) == place)
        }

    def doubt_deletions(
        self, machine: int | None, certain: Container[str] = (), *, held: Iterable[str] = ()
    ) -> None:
        """After damage, deletions that not everybody has heard of may be undone.

        Those are the ones of this machine, and those of what it still has `held`; None: all of
        them; but none of those that are `certain`.
        """
        held = set(held)
        for one in self.versions.values():
            if one.state is not State.GONE or one.deleted_by is None or one.id in certain:
                continue
            if machine is None or one.deleted_by == machine or one.id in held:
                one.state = State.UNSURE

    def overwritten(self, metadata: bytes, *, is_kept: bool) -> None:
        """A client that lost the index has put another version in the place of this one.

        If `is_kept`, the one that was replaced has to come back, too. If somebody has just deleted
        it, and could not push that before, the deletion finds another version there: whoever has
        the old one gives it another number, and nothing but its id, which went with it, would tell
        that it is the one that was deleted.
        """
        for one in self.versions.values():
            if one.id.encode() not in metadata:
                continue
            is_deleted = one.state is State.GONE and one.deleted_by is not None
            if is_deleted or (one.state is State.THERE and not is_kept):
                one.state = State.UNSURE

    def revived(self, metadata: bytes, held: bytes) -> None:
        """A request that came late has made an object again which somebody had removed.

        Whoever still has that version, of all that is `held`, takes it for one that an index has
        left out.
        """
        for one in self.versions.values():
            if one.state is State.GONE and one.id.encode() in metadata and one.id.encode() in held:
                one.state = State.UNSURE

    def read_early(self, metadata: bytes, by: int) -> None:
        """A machine takes for data what another one has sent, and no index names yet.

        If that one then has to give it another number, it is there under both.
        """
        if not self.is_index_lost:
            made = [one for one in self.versions.values() if one.maker not in {-1, by}]
            self.early |= {one.id for one in made if one.id.encode() in metadata}

    def left_out(self, untold: Iterable[bytes]) -> None:
        """Another client has left out of the index what it saved itself, and nobody else has."""
        found = b"".join(untold)
        for one in self.versions.values():
            if one.work.endswith(PEER) and one.state is State.THERE and one.id.encode() in found:
                one.state = State.UNSURE
                self.abandoned.add(one.id)

    def expect_to_see(self, named: bytes) -> None:
        """Expect of sessions to see only what is named by an index that another client wrote.

        What it left out of others, nobody sees who comes before those.
        """
        for one in self.sessions:
            one.made = {id_ for id_ in one.made if id_.encode() in named}

    def without_ghosts(self, machine: int, found: list[Found]) -> list[Found]:
        """Leave out metadata whose content was deleted elsewhere while its machine knew nothing.

        It stays there and is told of, but never shared again. Until somebody gives it up as that
        says, it is the latest there if it is the highest; what is looked at is the rest. So it is,
        on every machine, where the remote has lost the content, and whoever had it deleted it. And
        so it is where it was taken for data, without content, before the first commit of all, and
        is there under the number that it got then.
        """
        readable = {one.id for one in found if one.content is not None}
        for one in found:
            known = self.versions.get(one.id)
            if one.content is not None or known is None or known.state is State.THERE:
                continue
            if (machine, one.id) in self.held or one.id in self.forgot.get(machine, ()):
                self.ghosts.add((machine, one.id))
            is_doubtful = known.state is State.UNSURE and known.deleted_by is not None
            if one.id in self.contentless and is_doubtful:
                self.hollow.add(one.id)
        ghosts = [
            one
            for one in found
            if one.content is None
            and (
                (machine, one.id) in self.ghosts
                or one.id in self.hollow
                or one.id in self.early & readable
            )
        ]
        self.standing[machine] = {(one.model, one.name, one.version) for one in ghosts}
        left = [one for one in found if one not in ghosts]
        for ghost in (one for one in ghosts if one.is_latest):
            below = [one for one in left if (one.model, one.name) == (ghost.model, ghost.name)]
            if below:
                highest = max(below, key=lambda one: one.version)
                left[left.index(highest)] = highest._replace(is_latest=True)
        return left

    def beside_ghosts(self, machine: int, found: list[Found], afresh: list[Found]) -> list[Found]:
        """Return what a machine sees, and under a name what one sees that was never there before.

        So it is where metadata that nobody can read stands in the way of a version that others have
        saved since under its number.
        """
        names = {
            (one.model, one.name)
            for one in afresh
            if (one.model, one.name, one.version) in self.standing.get(machine, ())
        }
        left = [one for one in found if (one.model, one.name) not in names]
        return left + [one for one in afresh if (one.model, one.name) in names]

    # What must hold ----------------------------------------------------------------------------

    def check_nothing(self) -> None:
        """Raise Violation if there is no index at all, and should be one."""
        there = [one.id for one in self.versions.values() if one.state is State.THERE]
        if there:
            raise Violation("no index", f"that would name {there}")

    def check(self, who: str, found: list[Found]) -> None:
        """Raise Violation if what a machine sees is not what it must see."""
        copies: dict[str, list[Found]] = {}
        for one in found:
            copies.setdefault(one.id, []).append(one)
            self._check_content(who, one)
        for version in self.versions.values():
            self._check_version(who, version, copies.get(version.id, []))
        _check_latest(who, found)

    def _check_content(self, who: str, one: Found) -> None:
        known = self.versions.get(one.id)
        if one.is_tombstone:
            if known is None and (one.model, one.name) not in self.renames:
                raise Violation("from nowhere", f"{who} has {one}")
            return
        work = self.works.get(one.work)
        if work is None or (one.model, one.name) not in work.places:
            raise Violation("from nowhere", f"{who} has {one}")
        if one.content is None:
            raise Violation("no content", f"{who} cannot read {one}")
        if not work.explains(one.content):
            raise Violation("wrong content", f"{who} has {one}, expected {work.content!r}...")

    def _check_version(self, who: str, version: Version, copies: list[Found]) -> None:
        told = f"{version.id} ({version.work} of {version.model} {version.name})"
        if version.state is State.THERE:
            if not copies:
                raise Violation("lost", f"{who} does not have {told}, which was acknowledged")
            if any((one.model, one.name) != (version.model, version.name) for one in copies):
                raise Violation("astray", f"{who} has {told} at {copies}")
            contents = [one.content or b"" for one in copies]
            for piece in version.appended:
                if not any(piece in content for content in contents):
                    raise Violation("lost", f"{who} lacks {piece!r}, appended to {told}")
        # Two that append to one at once have two, each with an end of its own.
        may_be_two = version.is_contested or len(version.appenders) > 1
        may_be_two &= version.is_doubled or len({one.content for one in copies}) == len(copies)
        may_be_two |= self._is_renumbered(version.id, copies)
        may_be_two |= version.id in self.early
        # Two that lost their bases share a deleted one again: who pushes without a pull before that
        # has not seen that the other one did.
        is_forgotten = sum(version.id in had for had in self.forgot.values()) > 1
        may_be_two |= is_forgotten and version.deleted_by is not None
        if len(copies) > 1 and not may_be_two:
            raise Violation("twice", f"{who} has {told} more than once: {copies}")
        may_be_back = self.may_come_back(version) or self._has_come_back(version, copies)
        if version.state is State.GONE and copies and not may_be_back:
            raise Violation("undeleted", f"{who} has {told} again: {copies}")

    def _is_renumbered(self, id_: str, copies: list[Found]) -> bool:
        """Whether numbers that changed make a version look new that somebody had.

        That is where an index was lost when not all had it under one number, or where that number
        was taken when it was made anew.
        """
        before = self.held_at.get(id_, set())
        now = {(one.model, one.name, one.version) for one in copies}
        return len(before) > 1 or (bool(before) and not before & now)

    def _has_come_back(self, version: Version, copies: list[Found]) -> bool:
        """Whether all there is of a version is what somebody had appended to, and left behind.

        Whoever deleted it had not heard of that. Without those bytes, it must not be there again.
        """
        return all(self.pieces_in(one.content or b"") & version.left_behind for one in copies)

    def may_come_back(self, version: Version) -> bool:
        """Whether somebody cannot know that what it has was deleted by others.

        Somebody else appended to it meanwhile; or whoever made it was stopped, perhaps after others
        had got it and before that could be noted. Or its objects are `abandoned`, and count as data
        where the index is lost, before or after that. None of that holds where all who had it knew
        what it was.
        """
        is_abandoned = version.id in self.abandoned or self._is_being_abandoned(version)
        if self.is_index_lost and is_abandoned:
            return True
        if version.was_known:
            return False
        by_others = version.deleted_by not in {None, version.maker}
        is_contested = version.is_contested or bool(version.appenders - {version.deleted_by})
        return is_contested or (by_others and version.id in self.unnoted)

    def _is_being_abandoned(self, version: Version) -> bool:
        """Whether somebody has deleted what it had sent, and does not know that it did."""
        return version.id in self.sent and version.deleted_by == version.maker

    def resolve(self, found: list[Found]) -> None:
        """All agree: what was in doubt is certain now, and the same for ever."""
        seen = {one.id: one for one in found}
        copies = Counter(one.id for one in found)
        contents: dict[str, set[bytes | None]] = {}
        for one in found:
            contents.setdefault(one.id, set()).add(one.content)
        for id_, one in seen.items():
            known = self.versions.get(id_)
            if known is None or known.state is not State.THERE:
                self.versions[id_] = Version(
                    id_, one.model, one.name, one.work, State.THERE, one.is_tombstone
                )
            # Two that appended to one version have two versions since, for ever.
            self.versions[id_].is_contested = copies[id_] > 1
            self.versions[id_].is_doubled = copies[id_] > len(contents[id_])
            self.versions[id_].appended = {
                piece: -1
                for piece in self.versions[id_].appended
                if copies[id_] == 1 and one.content is not None and piece in one.content
            }
        for one in found:
            # Everybody has heard of it.
            self.versions[one.id].left_behind -= self.pieces_in(one.content or b"")
        self.abandoned -= seen.keys()
        # Whoever was never there before has read it, too: its content is on the remote again.
        self.contentless -= {id_ for id_, one in seen.items() if one.content is not None}
        for version in self.versions.values():
            if version.id not in seen:
                version.state = State.GONE
                if self._is_being_abandoned(version):
                    self.abandoned.add(version.id)
            version.deleted_by, version.maker, version.is_brought = None, -1, False
            version.is_half_appended = version.was_known = version.was_guessed = False
            version.appenders.clear()
            if version.state is State.GONE:
                # From elsewhere, it may come again as it was before somebody appended to it here.
                version.is_contested = version.is_doubled = False
                version.appended = {}
        self.renames.clear()
        self.sessions.clear()
        self.unnoted.clear()
        self.adopted.clear()
        self.has_unnoted_unknown = self.has_adopted_unknown = False
        self.early.clear()
        self.sent.clear()
        self.baseless.clear()
        self.forgot.clear()
        self.held.clear()
        self.held_at.clear()
        self.removed.clear()
        self.is_index_lost = False


def _check_latest(who: str, found: list[Found]) -> None:
    highest: dict[tuple[str, str], int] = {}
    for one in found:
        key = one.model, one.name
        highest[key] = max(highest.get(key, 0), one.version)
    for one in found:
        is_highest = highest[one.model, one.name] == one.version
        if one.is_latest != is_highest:
            raise Violation("latest", f"{who}: {one}, the highest is {highest}")


def look(repo: Repo, *, contents: bool) -> list[Found]:
    """Return everything that a repository has."""
    return [
        one
        for model in MODELS
        for name in NAMES
        for one in look_at(repo, model, name, contents=contents)
    ]


def look_at(repo: Repo, model: str, name: str, *, contents: bool) -> list[Found]:
    """Return the versions that a repository has of one name, the oldest first."""
    return [
        Found(
            model,
            name,
            one.version,
            one.id,
            one.tags.get(WORK, ""),
            one.is_deleted,
            one.is_latest,
            _content(one) if contents else None,
        )
        for one in reversed(repo.versions(model, name))
        if not one.row.deferred
    ]


def _content(artifact: Artifact) -> bytes | None:
    try:
        return artifact.bytes()
    except ContentMissingError:
        return None
