"""Keeping a cache within its bound: content that the remote has as well leaves, oldest use first.

What is evicted is as if it had never come: reading it fetches it again. So it must be certain
that nothing is lost. Content may go only if it is what the base says, byte by byte, if the remote
shows right before that it has the same, and nobody has marked it. It goes in this order: a note
that it is leaving; the base forgets that it is here, durably; the file is moved out of sight; if
still nobody has marked it, the file is removed.

Absence while the base says that a file is here could be taken for a deletion, hence the order of
the first three. Whoever changes content marks it before opening it, hence the second look: a
change that we did not see before the move finds no file, and one that did find it is seen after.
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

import msgspec

from swampstore.errors import SwampstoreError
from swampstore.files import disk_errors
from swampstore.files.signature import Signature, is_surely_unchanged, signature, signature_of
from swampstore.index.base import Known
from swampstore.index.errors import SyncError
from swampstore.index.path_kinds import unit_of, version_file
from swampstore.index.workers import Deadline, in_parallel
from swampstore.layout import DEFERRED, LANDING, METADATA
from swampstore.notices import notice
from swampstore.stores.errors import ObjectNotFoundError
from swampstore.sync.access_times import Uses
from swampstore.sync.context import SyncContext
from swampstore.sync.downloads import Staging
from swampstore.sync.hashing import hash_file
from swampstore.sync.merge import remote_content
from swampstore.sync.scan import Links

# Files whose locks are held and whose notes are written together.
_BATCH = 128
# How far below the limit to go, so that not every new file starts an eviction.
_ROOM = 0.9


class Evicted(msgspec.Struct, frozen=True):
    """What an eviction did, or would do; `held` is the size of the content that stays.

    `unproven` is content that stays because the remote does not have it as the index says.
    """

    files: int = 0
    bytes: int = 0
    held: int = 0
    rels: tuple[str, ...] = ()
    unproven: tuple[str, ...] = ()


class _Candidate(NamedTuple):
    """Content that may go; `now` is its file, None if somebody removed it by hand."""

    known: Known
    now: Signature | None


class CacheBound:
    """How much content a cache may hold; a `limit` of None: as much as there is."""

    def __init__(self, context: SyncContext, uses: Uses) -> None:
        self.limit: int | None = None
        self._context = context
        self._uses = uses
        self._held: int | None = None

    @property
    def target(self) -> int | None:
        """How much stays when there was too much."""
        return None if self.limit is None else int(self.limit * _ROOM)

    def grew(self, size: int, keep: Container[str] = frozenset()) -> None:
        """Hear that content of so many bytes came in, and evict, but none of `keep`, if need be.

        The caller holds the cache: nobody else looks at it or evicts from it meanwhile. What
        cannot be evicted now stays; that is no reason for a sync to fail.
        """
        if self.limit is None or self.target is None or size == 0:
            return
        try:
            # Counting costs a look at every row; from then on it is enough to add up.
            self._held = (
                self._context.base.content_bytes() if self._held is None else self._held + size
            )
            if self._held > self.limit:
                evicted = self.evict(self.target, keep)
                self._held = evicted.held
                if evicted.unproven:
                    notice("%s", why_it_stays(evicted.unproven))
        except SwampstoreError as error:
            self._held = None
            notice("the cache holds more than its limit for now: %s", error.message)

    def evict(self, target: int, keep: Container[str] = frozenset()) -> Evicted:
        """Evict until no more than `target` bytes of content are here, or no more can go."""
        return Eviction(self._context, self._uses, keep).run(target)

    def preview(self, target: int) -> Evicted:
        """Say what `evict` would do."""
        return Eviction(self._context, self._uses).plan(target)

    def used(self, rels: Iterable[str]) -> None:
        """Remember that content is being used, if that will ever matter."""
        if self.limit is not None:
            self._uses.note(self._context.names.mark(rel) for rel in rels)

    def close(self) -> None:
        """Release the file with the uses."""
        self._uses.close()


class Eviction:
    """One eviction from one cache, which nobody else syncs meanwhile."""

    def __init__(
        self, context: SyncContext, uses: Uses, keep: Container[str] = frozenset()
    ) -> None:
        self._unproven: list[str] = []
        self._context = context
        self._uses = uses
        self._keep = keep
        self._links = Links(context.names.root)
        self._pending_deletes = frozenset(context.base.pending_deletes())
        # A cache that was never pushed counts as changed all over; then only bytes prove anything.
        self._is_unsure = context.tracker.peek().bulk

    def plan(self, target: int) -> Evicted:
        """Say what would be evicted; nothing is changed."""
        held = self._context.base.content_bytes()
        candidates: list[Known] = []
        for known in self._least_recently_used():
            if held <= target:
                break
            if self._may_go(known.rel) and self._looks_unchanged(known):
                candidates.append(known)
                held -= known.size
        size = sum(known.size for known in candidates)
        return Evicted(len(candidates), size, held, tuple(known.rel for known in candidates))

    def run(self, target: int) -> Evicted:
        """Evict until no more than `target` bytes are held, or nothing else can go."""
        self._take_back_what_stayed()
        held = self._context.base.content_bytes()
        rels: list[str] = []
        size = 0
        order = self._least_recently_used()
        while held > target and (batch := _enough(order, held - target)):
            for known, now in self._evict(batch):
                held -= known.size
                if now is not None:
                    rels.append(known.rel)
                    size += known.size
        return Evicted(len(rels), size, held, tuple(rels), tuple(sorted(self._unproven)))

    # Choosing ----------------------------------------------------------------------------------

    def _least_recently_used(self) -> Iterator[Known]:
        """Yield what is here in the order of its last use; never used: of its arrival."""
        waiting: list[tuple[int, str, Known]] = []
        for page in self._context.base.held_content():
            used = self._uses.last(self._context.names.mark(known.rel) for known in page)
            for known in page:
                at = max(used.get(self._context.names.mark(known.rel), 0), known.recorded_ns)
                heapq.heappush(waiting, (at, known.rel, known))
            # Whatever is on later pages came later, and was used later still.
            while waiting and waiting[0][0] <= page[-1].recorded_ns:
                yield heapq.heappop(waiting)[2]
        while waiting:
            yield heapq.heappop(waiting)[2]

    def _may_go(self, rel: str) -> bool:
        """Whether content is of a version that is whole, shared, and not being changed."""
        names = self._context.names
        if version_file(rel) is None or rel in self._keep or rel in self._pending_deletes:
            return False
        if names.why_not(rel) or self._links.above(rel):
            return False
        directory = os.path.dirname(names.local(rel))
        if not os.path.lexists(f"{directory}/{METADATA}"):
            return False
        if any(os.path.lexists(f"{directory}/{mark}") for mark in (DEFERRED, LANDING)):
            return False
        return not self._is_marked(rel)

    def _is_marked(self, rel: str) -> bool:
        mark = self._context.names.mark(rel)
        return self._context.tracker.covers(mark, by_name=self._is_unsure)

    def _looks_unchanged(self, known: Known) -> bool:
        now = signature(self._context.names.local(known.rel))
        return now is not None and now == known.held

    def _candidate(self, known: Known) -> _Candidate | None:
        """Return content that is what the base says; None if it is not, or nobody can tell."""
        now = signature(self._context.names.local(known.rel))
        if now is None:
            return _Candidate(known, None)
        if known.held is None or now != known.held:
            return None
        is_old = is_surely_unchanged(known.held, now, known.recorded_ns)
        if is_old and not self._is_unsure:
            return _Candidate(known, now)
        # Its times prove nothing; what leaves is worth a closer look.
        is_equal = self._hashed(known.rel) == (known.sha256, known.held)
        return _Candidate(known, now) if is_equal else None

    # Proving -----------------------------------------------------------------------------------

    def _proven(self, candidates: list[_Candidate]) -> list[_Candidate]:
        """Return what may go because the remote shows that it has it; costs a request each."""
        found: dict[str, _Candidate] = {
            one.known.rel: one
            for one in candidates
            if one.now is None  # nothing there to lose
        }
        looks = in_parallel(
            self._with_proof,
            [one for one in candidates if one.now is not None],
            self._context.limits.pull_concurrency,
            Deadline(),
        )
        for task, proven, error in looks:
            if error is not None:
                raise error
            if proven is None:
                self._unproven.append(task.known.rel)
            else:
                found[task.known.rel] = proven
        checked = [(one, found[one.known.rel]) for one in candidates if one.known.rel in found]
        self._context.base.apply(known=[now.known for one, now in checked if now != one])
        return [now for _, now in checked]

    def _with_proof(self, candidate: _Candidate) -> _Candidate | None:
        """Return a candidate, with the object's token, if the object surely holds its content."""
        known = candidate.known
        try:
            found = self._context.store.head(self._context.names.remote(known.rel))
        except ObjectNotFoundError:
            self._let_it_be_sent_again(known)
            return None
        if found.size != known.size:
            return None
        if known.etag is not None and found.token == known.etag:
            return candidate
        # No transfer of this machine has seen that object: only its bytes can tell.
        content = remote_content(self._context, known.rel)
        if content is None or content.sha256 != known.sha256:
            return None
        return candidate._replace(known=known._replace(etag=content.token))

    def _let_it_be_sent_again(self, known: Known) -> None:
        """Let the next push look at content whose object is gone, and see that it must be sent.

        If the index does not name it any more, the next pull or push notices that instead.
        """
        base = self._context.base
        base.apply(known=[known._replace(etag=None, recorded_ns=0)])
        base.note_uploads({known.rel: ("", "")})
        self._context.tracker.mark_written(self._context.names.mark(known.rel))

    # Removing ----------------------------------------------------------------------------------

    def _evict(self, batch: list[Known]) -> list[_Candidate]:
        """Evict what may go of a batch; return what has gone."""
        proven = self._proven(
            [
                found
                for known in batch
                if self._may_go(known.rel) and (found := self._candidate(known)) is not None
            ]
        )
        names: dict[str, list[_Candidate]] = {}
        for one in proven:
            names.setdefault(unit_of(one.known.rel), []).append(one)
        if not names:
            return []
        with self._context.installer.trying_to_hold(list(names)) as is_held:
            if is_held:
                return self._remove(proven)
        gone = []
        for name_rel, candidates in names.items():  # somebody is at one of them
            with self._context.installer.trying_to_hold([name_rel]) as is_held:
                gone += self._remove(candidates) if is_held else []
        return gone

    def _remove(self, candidates: list[_Candidate]) -> list[_Candidate]:
        """Remove what is still as it was proven to be. The locks of its names are held."""
        context = self._context
        rels = [one.known.rel for one in candidates]
        known, unfinished = context.base.get_many(rels), context.base.noted_uploads(rels)
        unchanged = {
            one.known.rel: one
            for one in candidates
            if known.get(one.known.rel) == one.known
            and one.known.rel not in unfinished
            and self._may_go(one.known.rel)
            and signature(context.names.local(one.known.rel)) == one.now
        }
        if not unchanged:
            return []
        self._announce_absences()
        marks = [context.names.mark(rel) for rel in unchanged]
        self._uses.begin_leaving(marks)
        context.base.apply(known=[one.known._replace(held=None) for one in unchanged.values()])
        context.installer.make_durable()
        gone = self._move_out(unchanged)
        context.base.apply(known=[one.known for rel, one in unchanged.items() if rel not in gone])
        self._uses.end_leaving(marks)
        return [unchanged[rel] for rel in gone]

    def _announce_absences(self) -> None:
        """Tell other clients on this cache, before it is so, that absence is no deletion here."""
        tracker = self._context.tracker
        if not tracker.state().lazy_pull_active:
            last = self._context.base.fact("verified_at") or ""
            tracker.announce_absences(at=last)

    def _move_out(self, unchanged: Mapping[str, _Candidate]) -> list[str]:
        with Staging(self._context.names.cache_dir) as staging:
            return [
                rel
                for rel, (_, now) in unchanged.items()
                if now is None or self._is_moved_out(rel, now, staging.new_path())
            ]

    def _is_moved_out(self, rel: str, expected: Signature, aside: str) -> bool:
        path = self._context.names.local(rel)
        with disk_errors(path):
            try:
                os.rename(path, aside)
            except FileNotFoundError:
                return True
            moved = signature_of(os.lstat(aside))
            is_same = moved._replace(ctime_ns=expected.ctime_ns) == expected  # moving it is seen
            if is_same and not self._is_marked(rel):
                return True
            if not os.path.lexists(path):
                os.rename(aside, path)
        return False

    def _take_back_what_stayed(self) -> None:
        """Let the base know again what somebody was about to evict, and was killed."""
        context = self._context
        for mark in self._uses.leaving():
            rel = context.names.rel_of_mark(mark)
            if rel is None:
                continue  # of another namespace, which may be chosen again
            known = context.base.get(rel)
            if known is not None and known.held is None and self._may_go(rel):
                found = self._hashed(rel)
                if found is not None and found[0] == known.sha256:
                    context.base.apply(known=[known._replace(held=found[1])])
            self._uses.end_leaving([mark])

    def _hashed(self, rel: str) -> tuple[str, Signature] | None:
        try:
            return hash_file(self._context.names.local(rel))
        except (FileNotFoundError, SyncError):
            return None


def why_it_stays(unproven: Sequence[str]) -> str:
    """Return what to tell about content that only this machine surely has."""
    more = f" and {len(unproven) - 1} more" if len(unproven) > 1 else ""
    return (
        f"{unproven[0]}{more}: the remote does not have it as its index says, so it stays here;"
        " `swampstore sync` sends what is missing, `swampstore pipeline verify` finds what is wrong"
    )


def _enough(order: Iterator[Known], excess: int) -> list[Known]:
    """Take from the front until that is as much as there is too much, or a batch."""
    batch: list[Known] = []
    for known in islice(order, _BATCH):
        batch.append(known)
        excess -= known.size
        if excess <= 0:
            break
    return batch
