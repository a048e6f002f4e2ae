"""Noticing that the remote changed, for one small request when it did not.

Every commit, of any client, rewrites `_meta.json`, except those of old clients that know nothing
but the monolith of a version 1 remote. Asking for both each time would double the price of every
sync that has nothing to do. So the monolith is asked for as well only where such a client (or one
that stopped half-way) was ever seen, and otherwise at most once a minute: a first commit of an
old client goes unnoticed for that long. On version 2 the monolith is frozen and proves nothing.
"""

from __future__ import annotations

from datetime import timedelta
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from swampstore.clock import Clock, asleep_too, from_iso, to_iso
from swampstore.index.base import Base
from swampstore.index.changes import index_moved, is_all_known, new_write_id, next_origin
from swampstore.index.documents import Documents
from swampstore.index.errors import IndexDamagedError
from swampstore.index.format import Document
from swampstore.index.meta import Meta, MetaText, decode_meta, encode_meta
from swampstore.index.origins import later_origin, note_origin
from swampstore.index.partitions import Scope
from swampstore.index.repair import Recovery
from swampstore.index.state import (
    COMMIT_SEQ,
    FOREIGN_WRITER,
    INDEX_VERSION,
    MADE_ANEW,
    META_ETAG,
    META_TOKEN,
    MONOLITH_CHECKED,
    ORIGIN,
    ORIGIN_BEFORE,
    Agreements,
    Fingerprint,
    LastSeen,
    MetaSnapshot,
    View,
    last_seen,
    meta_facts,
    origin_facts,
    others_write,
    same,
)
from swampstore.index.versions import version_of
from swampstore.stores.errors import ObjectNotFoundError, PreconditionFailedError
from swampstore.stores.paths import PathCursor
from swampstore.stores.protocol import Fetched, ObjectInfo

_MONOLITH_EVERY = timedelta(seconds=60)
# Seconds for which an answer may be built on, if a condition goes with what is built.
_MOMENT = 10


class _Before(NamedTuple):
    """What the base remembered of the index when a question was asked; see `State.is_another`.

    Readers do not hold the cache: by the time of the answer, a sync may have committed, and an
    answer that is older than that does not say that the numbers went back.
    """

    version: str | None = None
    commit_seq: str | None = None
    origin: str | None = None


class _Answer(msgspec.Struct, frozen=True):
    """What the store said about `_meta.json`: its content, nothing new, or that there is none."""

    before: _Before
    fetched: Fetched | None = None
    is_unchanged: bool = False


class Watch:
    """Looks at `_meta.json` (and, if need be, at the monolith) of one remote."""

    def __init__(self, documents: Documents, recovery: Recovery, base: Base, clock: Clock) -> None:
        self._documents = documents
        self._recovery = recovery
        self._base = base
        self._clock = clock
        self._agreements = Agreements(base)
        # What a probe was told, for the look that follows it.
        self._answer: _Answer | None = None
        self._monolith: ObjectInfo | None = None
        # When the `_meta.json` that the base remembers was last said to be the current one.
        self._confirmed: tuple[str, float] | None = None
        # The base has just started over, and has learnt nothing since: neither from a pull nor by a
        # commit.
        self.is_fresh = False
        # The last one that was understood, or written here: to read a long list again and again
        # would be most of what a put takes.
        self._last: tuple[MetaText, Meta] | None = None
        # The origin for which the base had to start over, where `_meta.json` does not tell it.
        self._later: str | None = None

    @property
    def is_another(self) -> bool:
        """Whether any look found that the remote is not the one that the base is of."""
        return self._base.fact(MADE_ANEW) is not None

    def is_outdated(self, view: View) -> bool:
        """Whether others have committed since `_meta.json` was seen that a view is made of.

        What it misses was dropped then, not lost: whoever removes the last entry of a shard writes
        that first. Asks only where it matters.
        """
        if view.snapshot.is_recalled:
            return not view.is_as_told
        return view.begins_anew and not self.is_same(view.snapshot)

    def must_start_over(self, view: View) -> bool:
        """Whether the base has to start over before a commit writes what a view has guessed.

        What is missing in a guess was not deleted, and whoever commits it gives the remote another
        origin. By that, this cache would take it for another remote later on, and what others
        have deleted until then for something that they miss.
        """
        if not view.begins_anew or self.is_fresh or self._base.is_empty():
            return False
        self._base.apply(facts={MADE_ANEW: "1"})
        return True

    # Nothing to do? ----------------------------------------------------------------------------

    def is_unchanged(self, scope: Scope | None) -> bool:
        """Whether the remote still is what the base agrees with, in the scope."""
        self._answer = self._monolith = None
        seen = self._base.fact(META_ETAG)
        agreed = next((one for one in self.agreed(scope) if one.meta == seen), None)
        if agreed is None:
            return False
        answer = self._ask(seen)
        if seen is not None and not answer.is_unchanged:
            self._answer = answer
            return False
        if seen is None and answer.fetched is not None:
            self._answer = answer
            return False
        if version_of(agreed.version).is_unchanged(self, agreed):
            if seen is not None:
                self._confirmed = seen, asleep_too()
            return True
        self._answer = answer
        return False

    def agreed(self, scope: Scope | None) -> list[Fingerprint]:
        """Return the states of the remote that the base agrees with, in the scope or at all."""
        found = (self._agreements.of(one) for one in ((None, scope) if scope else (None,)))
        return [one for one in found if one is not None]

    def is_monolith_unchanged(self, agreed: Fingerprint) -> bool:
        """Whether the monolith is the one agreed with, or it is not yet time to ask again."""
        if agreed.meta is not None and not self.is_check_due():
            return True
        self._monolith = self._documents.monolith_info()
        if self._monolith is None or not same(self._monolith.etag, agreed.monolith):
            return False
        self._base.apply(facts={MONOLITH_CHECKED: to_iso(self._clock())})
        return True

    def are_paths_known(self, agreed: Fingerprint, since: PathCursor) -> bool:
        """Whether no path changed since then, or it is not yet time to ask again.

        A clock that is behind dates a change before what was seen last, and what others change of
        ours keeps the number of our commit.
        """
        if agreed.meta is not None and not self.is_check_due():
            return True
        paths, root = self._documents.paths, self._documents.root
        if paths.newest_path(root) is None:
            return False
        since = since._replace(is_shared=others_write(self._base))
        if not is_all_known(self._documents, self._base, paths.changed_paths(root, since)):
            return False
        self._base.apply(facts={MONOLITH_CHECKED: to_iso(self._clock())})
        return True

    def is_check_due(self) -> bool:
        """Whether it is time to look for those who do not write `_meta.json`."""
        checked, foreign = self._base.facts(MONOLITH_CHECKED, FOREIGN_WRITER)
        if checked is None or foreign is not None:
            return True
        age = self._clock() - from_iso(checked)
        return not timedelta(0) <= age < _MONOLITH_EVERY

    def monolith_info(self) -> ObjectInfo | None:
        """Describe the monolith, as a probe just saw it or as it is now."""
        info, self._monolith = self._monolith, None
        return info or self._documents.monolith_info()

    # Looking -----------------------------------------------------------------------------------

    def look(self) -> MetaSnapshot:
        """Find out what the remote is, from what a probe just saw or by asking."""
        answer, self._answer = self._answer, None
        answer = answer or self._ask(self._base.fact(META_ETAG))
        if answer.is_unchanged:
            seen = last_seen(self._base)
            meta = self._recalled(seen)
            if meta is not None:
                return MetaSnapshot(meta.version, meta, seen.text, seen.etag, seen.token)
            answer = self._ask(None)
        return self._interpret(answer)

    def recall(self) -> MetaSnapshot | None:
        """Return what the remote was a moment ago, None if nobody has just looked; only once.

        For whoever is going to replace what was seen on the condition that it is still there.
        """
        confirmed, self._confirmed = self._confirmed, None
        if confirmed is None or asleep_too() - confirmed[1] > _MOMENT:
            return None
        seen = last_seen(self._base)
        meta = self._recalled(seen)
        if meta is None or seen.etag != confirmed[0]:
            return None
        told = meta.version, meta, seen.text, seen.etag, seen.token
        return MetaSnapshot(*told, is_recalled=True)

    def wrote(self, meta: Meta, text: MetaText) -> None:
        """Note what a commit wrote, which the next look need not understand again."""
        self._last = text, meta

    def _recalled(self, seen: LastSeen) -> Meta | None:
        """Read a `_meta.json` that the base remembers, None if it is damaged."""
        if self._last is not None and self._last[0] == seen.text:
            return self._last[1]
        try:
            meta = seen.meta()
        except IndexDamagedError:
            return None
        self._last = seen.text, meta
        return meta

    def origin(self, meta: Meta | None, monolith: str | None = None) -> str | None:
        """Return the origin for the `_meta.json` that comes after this one.

        Where another client left it out, the `monolith` tells it, or whoever knows it.
        """
        return next_origin(meta, monolith, self._base.fact(ORIGIN))

    def hear(self, snapshot: MetaSnapshot, monolith: Document) -> None:
        """Note the origin that a monolith tells where another client left it out of `_meta.json`.

        The index may have been lost and made anew before that client came.
        """
        if snapshot.meta is not None and snapshot.meta.origin is None and monolith.origin:
            self._base.apply(facts=origin_facts(self._base, monolith.origin))

    def begin_anew(self, snapshot: MetaSnapshot) -> MetaSnapshot:
        """Give the remote another origin, before an index that had to be guessed is written.

        By that, everybody knows that what is missing from now on was not deleted. Raises
        IndexMovedError if somebody else wrote `_meta.json`.
        """
        meta = replace(
            snapshot.meta or Meta(snapshot.version, ()), origin=new_write_id(), monolith=None
        )
        data = encode_meta(meta, new_write_id())
        try:
            written = self._documents.put_meta(data, snapshot.token, commits=True)
        except PreconditionFailedError:
            raise index_moved("somebody else is healing the index", ()) from None
        if self.is_fresh:
            self._base.apply(facts={ORIGIN: meta.origin})  # it is of this remote from the start
        self.tell_of_origin(meta, snapshot.meta)
        text = MetaText.of(data, meta)
        return replace(snapshot, meta=meta, text=text, etag=written.etag, token=written.token)

    def tell_of_origin(self, meta: Meta, before: Meta | None = None) -> None:
        """List the origin of a `_meta.json` that was just written, if nothing else tells it.

        After the one that the index had, which may be lost with the last `_meta.json`.
        """
        if not version_of(meta.version).counts(None):
            last = (before and before.origin) or self._base.fact(ORIGIN_BEFORE)
            note_origin(self._documents, meta.origin, last)

    def _with_origin(self, meta: Meta) -> Meta:
        """Return a `_meta.json` with its origin, where another client has left that out.

        Only if it is another one than the base is of: else the base tells it.
        """
        if meta.origin is not None or version_of(meta.version).counts(None):
            return meta
        known = self._base.fact(ORIGIN)
        if known is not None:
            self._later = later_origin(self._documents, known)
        elif not self.is_fresh:
            return meta
        return replace(meta, origin=self._later)

    def look_again(self) -> MetaSnapshot:
        """Find out what the remote is now, after somebody else was faster."""
        self._answer = self._monolith = None
        return self._interpret(self._ask(None))

    def is_same(self, snapshot: MetaSnapshot) -> bool:
        """Whether `_meta.json` still is the one that was seen."""
        answer = self._ask(snapshot.etag)
        return answer.is_unchanged if snapshot.etag else answer.fetched is None

    def _ask(self, etag: str | None) -> _Answer:
        # A monolith that was seen before this question may be replaced by now, like the rest.
        self._confirmed = self._monolith = None
        before = _Before(*self._base.facts(INDEX_VERSION, COMMIT_SEQ, ORIGIN))
        if etag is None:
            return _Answer(before, self._documents.meta())
        try:
            fetched = self._documents.meta_unless(etag)
        except ObjectNotFoundError:
            return _Answer(before)
        return _Answer(before, fetched, is_unchanged=fetched is None)

    def _interpret(self, answer: _Answer) -> MetaSnapshot:
        if answer.fetched is None:
            return self._without_meta(None, None, answer.before)
        info, data = answer.fetched
        try:
            meta = decode_meta(data)
        except IndexDamagedError:
            return self._without_meta(info.etag, info.token, answer.before)
        text = MetaText.of(data, meta)
        self._last = text, meta
        meta = self._with_origin(meta)
        snapshot = MetaSnapshot(meta.version, meta, text, info.etag, info.token)
        stale = version_of(meta.version).stale_facts
        facts = meta_facts(self._base, meta, text, info.etag, info.token, stale)
        self._base.apply(facts=facts | self._anew(snapshot, answer.before))
        return snapshot

    def _without_meta(self, etag: str | None, token: str | None, before: _Before) -> MetaSnapshot:
        """Forget that the last `_meta.json` is there, but not what it said; see what else is."""
        if self._base.fact(META_ETAG) is not None:
            self._base.apply(facts=dict.fromkeys((META_ETAG, META_TOKEN)))
        snapshot = self._recovery.without_meta(etag, token)
        self._base.apply(facts=self._anew(snapshot, before))
        if snapshot.exists and self._base.fact(INDEX_VERSION) != str(snapshot.version):
            self._base.apply(facts={INDEX_VERSION: str(snapshot.version)})
        if snapshot.exists:
            self._base.apply(facts=origin_facts(self._base, snapshot.origin))
        return snapshot

    def _anew(self, snapshot: MetaSnapshot, before: _Before) -> dict[str, str | None]:
        """Return the fact that the remote is not the one it was, if that is so.

        It is remembered together with what was seen: by that alone nobody could tell any more.
        """
        # A base that has just started over knows nothing but what was deleted here. One that knew
        # no index when the question was asked may have heard of the first one since.
        had_one = before.version is not None and not self.is_fresh
        is_gone = had_one and not snapshot.exists
        is_another = is_gone or snapshot.state.is_another(*before)
        return {MADE_ANEW: "1"} if is_another and not self._base.is_empty() else {}
