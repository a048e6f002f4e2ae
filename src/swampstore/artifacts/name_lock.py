"""Who may change a data name: the holder of its lock, after an intent says what is about to happen.

Names share a fixed number of lock files, so nothing accumulates and a lock needs no directory
of its data. Checkouts that share a cache share its locks. Whoever holds a name's lock is the only
one on this machine that changes it; a lock nobody holds proves that whatever was left unfinished
under it was left by the dead. What that was tells the intent, which `recovery` finishes or undoes.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from swampstore.artifacts.versions import effective_marker, stored_versions
from swampstore.errors import CatalogError, DiskError, LockTimeoutError, SwampstoreError
from swampstore.files import (
    Change,
    Reception,
    Tree,
    disk_errors,
    make_shared_directory,
    open_shared,
)
from swampstore.files.hold import lock_until, try_lock
from swampstore.layout import DataRef
from swampstore.notices import notice

if TYPE_CHECKING:
    from swampstore.artifacts.versions import StoredVersion


STRIPES = 64
# Files with such names never leave a cache, whichever client syncs it.
NAME_LOCKS = "_catalog.db-locks"
_IN_CACHE = "_catalog.db-"


class NameLocks:
    """Lock files in one directory, whose names begin with `prefix`.

    `timeout` bounds every wait, in seconds.
    """

    def __init__(self, directory: str, timeout: float, prefix: str = "") -> None:
        self._directory = directory
        self._prefix = prefix
        self.timeout = timeout

    @contextlib.contextmanager
    def hold(self, *rels: str, only_reading: bool = False) -> Iterator[None]:
        """Hold the locks of these names; raise LockTimeoutError if they stay taken.

        Whoever is `only_reading` goes on without them on media that cannot be written.
        """
        with self._held({_stripe(rel) for rel in rels}, rels[0], only_reading):
            yield

    @contextlib.contextmanager
    def hold_all(self, *, only_reading: bool = False) -> Iterator[None]:
        """Hold every lock, so that no name changes meanwhile."""
        with self._held(range(STRIPES), "every data name", only_reading):
            yield

    @contextlib.contextmanager
    def try_hold(self, *rels: str) -> Iterator[bool]:
        """Hold the locks of these names if all are free right now; yields whether they are held."""
        fds: list[int] = []
        try:
            yield all(self._try_open(stripe, fds) for stripe in {_stripe(rel) for rel in rels})
        finally:
            for fd in fds:
                os.close(fd)

    def _try_open(self, stripe: int, fds: list[int]) -> bool:
        try:
            fds.append(self._open(stripe))
        except OSError:  # on media that cannot be written there is nothing to lock or to heal
            return False
        return try_lock(fds[-1])

    @contextlib.contextmanager
    def _held(self, stripes: Iterable[int], what: str, only_reading: bool) -> Iterator[None]:
        deadline = time.monotonic() + self.timeout
        fds: list[int] = []
        try:
            # One order for everybody, so that two holders of several locks never wait in a ring.
            for stripe in sorted(stripes):
                try:
                    with disk_errors(self._directory):
                        fds.append(self._open(stripe))
                except DiskError:
                    if only_reading:
                        break
                    raise
                self._wait(fds[-1], deadline, what)
            yield
        finally:
            for fd in reversed(fds):
                os.close(fd)

    def _wait(self, fd: int, deadline: float, what: str) -> None:
        if not lock_until(fd, deadline):
            raise LockTimeoutError(
                f"{what} is being changed by another process for over {self.timeout:g} s",
                hint="Wait for it, or stop it; SWAMP_LOCK_TIMEOUT_MS sets how long to wait.",
            )

    def _open(self, stripe: int) -> int:
        path = f"{self._directory}/{self._prefix}{stripe:02}"
        try:
            return open_shared(path)
        except FileNotFoundError:
            make_shared_directory(self._directory)
            return open_shared(path)


def locks_of(base: str, local_dir: str, timeout: float, *, is_cache: bool) -> NameLocks:
    """Return the locks of a datastore: in its cache, where no client takes them for data."""
    if is_cache:
        return NameLocks(f"{base}/{NAME_LOCKS}", timeout, _IN_CACHE)
    return NameLocks(f"{local_dir}/swampstore.locks", timeout)


def _stripe(rel: str) -> int:
    return zlib.crc32(rel.encode()) % STRIPES


_PAUSE = 0.005


class Outcome(NamedTuple):
    """What a change did to one name: versions stored, versions gone, where its marker is now.

    `marker` is the version that the name's `latest` names, 0 if none does.
    """

    ref: DataRef
    marker: int
    stored: Sequence[StoredVersion] = ()
    removed: Sequence[int] = ()


class Ledger(ABC):
    """What a store needs of a catalog: intents before a change, rows after it."""

    @abstractmethod
    def intend(self, actions: Mapping[str, str]) -> None:
        """Remember durably what is about to be done to which path."""

    @abstractmethod
    def pending(self) -> Sequence[tuple[str, str]]:
        """Return (path, action) of every change that was not finished."""

    @abstractmethod
    def settle(self, paths: Sequence[str]) -> None:
        """Drop the intents of these paths."""

    @abstractmethod
    def record(self, outcomes: Sequence[Outcome]) -> None:
        """Write what changed through, all at once, and drop the intents of those names."""

    @abstractmethod
    def replace(self, ref: DataRef, stored: Iterable[StoredVersion], marker: int) -> None:
        """Make the rows of a name exactly those of `stored` and drop its intent."""


class Mutations:
    """Gives out the right to change data names, one holder per name on this machine."""

    def __init__(self, tree: Tree, locks: NameLocks, ledger: Ledger) -> None:
        self.tree = tree
        self.ledger = ledger
        self._locks = locks
        # By the path of their names, each of which somebody holds.
        self._changes: dict[str, Change] = {}

    @contextlib.contextmanager
    def changing(
        self, ref: DataRef, op: str, *, durable: bool = True, **details: Any
    ) -> Iterator[Change]:
        """Lock and announce one name; the caller records the outcome in the ledger."""
        with self.changing_many([ref], op, durable=durable, **details) as changes:
            yield changes[0]

    @contextlib.contextmanager
    def changing_many(
        self,
        refs: Sequence[DataRef],
        op: str,
        *,
        durable: bool = True,
        versions: Mapping[str, Sequence[int]] | None = None,
        check: Callable[[], None] = lambda: None,
        **details: Any,
    ) -> Iterator[list[Change]]:
        """Lock and announce several names together.

        Without `durable` only the intent is, and the caller has the tree make the rest so.
        The intent of each name has its own `versions`, by its path, and those of no other.
        `check` is called while the names are held, before anything is intended: if it raises,
        nothing was to be done, and there is nothing to finish.
        """
        rels = [ref.rel for ref in refs]
        for rel in rels:
            # An intent that nobody could ever carry out must not be written down.
            self.tree.check_inside(rel)
        with self._intending(rels, op, details, versions, check), contextlib.ExitStack() as stack:
            for rel in rels:
                self._changes[rel] = stack.enter_context(self.tree.changing(rel, durable=durable))
                stack.callback(self._changes.pop, rel)
            yield [self._changes[rel] for rel in rels]

    @contextlib.contextmanager
    def receiving_many(self, refs: Sequence[DataRef], op: str) -> Iterator[list[Reception]]:
        """Lock several names for what comes from the remote, which is not announced.

        Raises ValidationError, and does nothing, if one of them is behind a symbolic link.
        """
        rels = [ref.rel for ref in refs]
        self.tree.check_receivable(*rels)
        with self._intending(rels, op, {}), disk_errors(self.tree.base):
            yield [Reception(self.tree, rel) for rel in rels]

    @contextlib.contextmanager
    def _intending(
        self,
        rels: Sequence[str],
        op: str,
        details: Mapping[str, Any],
        versions: Mapping[str, Sequence[int]] | None = None,
        check: Callable[[], None] = lambda: None,
    ) -> Iterator[None]:
        with self._held_and_healed(rels):
            check()
            if versions:
                own = {rel: {**details, "versions": {rel: versions[rel]}} for rel in rels}
                actions = {rel: json.dumps({"op": op, **own[rel]}) for rel in rels}
            else:
                actions = dict.fromkeys(rels, json.dumps({"op": op, **details}))
            self.ledger.intend(actions)
            try:
                yield
            except BaseException:
                self._try_to_heal(rels, is_dead=False)
                raise

    def decide(self, ref: DataRef, op: str, **details: Any) -> None:
        """Replace the intent of a name that is being changed: from here on, only forward."""
        self.ledger.intend({ref.rel: json.dumps({"op": op, **details})})

    def record(
        self,
        ref: DataRef,
        *,
        stored: Sequence[StoredVersion] = (),
        removed: Sequence[int] = (),
        marker: int,
    ) -> None:
        """Write a finished change of one name through; see `record_all`."""
        self.record_all([Outcome(ref, marker, stored, removed)])

    def record_all(self, outcomes: Sequence[Outcome]) -> None:
        """Write a finished change through, so that readers see all of it or nothing yet.

        The files are what counts: if the catalog cannot be written now, the intent stays and
        the next reader heals the rows, so the change itself has not failed.
        """
        with self._rows_may_follow(outcomes[0].ref):
            for outcome in outcomes:
                self._announce_again(outcome.ref)
            self.ledger.record(outcomes)

    def record_rest(self, ref: DataRef) -> None:
        """Write through what is left of a name, usually nothing, with the same promise."""
        with self._rows_may_follow(ref):
            self._announce_again(ref)
            rest = stored_versions(self.tree, ref)
            self.ledger.replace(ref, rest, effective_marker(self.tree, ref))

    def _announce_again(self, ref: DataRef) -> None:
        """Announce a change once more while its intent is there: whoever is killed now is healed.

        What came from the remote is not announced at all.
        """
        if change := self._changes.get(ref.rel):
            change.announce_again()

    @staticmethod
    @contextlib.contextmanager
    def _rows_may_follow(ref: DataRef) -> Iterator[None]:
        try:
            yield
        except (CatalogError, DiskError) as error:
            notice("%s was changed, its catalog rows follow later: %s", ref, error.message)

    def recover(self) -> None:
        """Finish or undo what dead processes left unfinished, unless somebody is at it already.

        Costs one read of a table that is nearly always empty.
        """
        for path, action in self.ledger.pending():
            rels = [path, *json.loads(action).get("with", ())]
            with self._locks.try_hold(*rels) as held:
                if held:
                    self._try_to_heal(rels)

    def clear(
        self, ref: DataRef, versions: Iterable[int], before: float | None = None
    ) -> list[int]:
        """Remove versions that were begun by somebody who is dead; return which ones.

        See `claims.abandoned` for `before`. Costs next to nothing if nobody is.
        """
        from swampstore.artifacts import claims

        dead = [one for one in versions if claims.is_abandoned(self.tree, ref, one, before)]
        if not dead:
            return []
        with self.receiving_many([ref], "clear") as (reception,):
            gone = [one for one in dead if claims.clear(self.tree, reception, ref, one, before)]
            reception.remove_empty_dir(ref.rel)
            self.record(ref, removed=gone, marker=effective_marker(self.tree, ref))
        return gone

    def _try_to_heal(self, rels: Sequence[str], *, is_dead: bool = True) -> None:
        try:
            self._heal(rels, is_dead=is_dead)
        except DiskError as error:
            notice("%s", error.message)

    def _heal(self, rels: Sequence[str], *, is_dead: bool = True) -> bool:
        """Heal these paths, whose locks are held; return whether nothing is left to heal.

        `is_dead` tells that whoever left it cannot have tidied up anything.
        Raises DiskError, saying why, for a change that cannot be healed as things are.
        """
        for path, action in self.ledger.pending():
            details = json.loads(action)
            if path not in rels:
                continue
            if not set(details.get("with", ())).issubset(rels):
                return False
            from swampstore.artifacts.recovery import recover

            try:
                recover(self.tree, self.ledger, path, details, is_dead=is_dead)
            except (SwampstoreError, OSError) as error:
                raise DiskError(
                    f"an interrupted change of {path} cannot be healed yet: {error}",
                    hint="Repair that and try again; `swampstore doctor` tells more.",
                ) from error
        return True

    @contextlib.contextmanager
    def _held_and_healed(self, rels: Sequence[str]) -> Iterator[None]:
        deadline = time.monotonic() + self._locks.timeout
        while True:
            with self._locks.hold(*rels):
                if self._heal(rels):
                    yield
                    return
            # A change of several names needs all of their locks to be healed.
            self.recover()
            if time.monotonic() > deadline:
                raise DiskError(
                    f"an interrupted change of {rels[0]} could not be healed",
                    hint="Run `swampstore doctor` to see why; nothing was changed.",
                )
            time.sleep(_PAUSE)

    @contextlib.contextmanager
    def holding(self, ref: DataRef) -> Iterator[None]:
        """Hold one name without changing it, so that nobody else does."""
        with self._locks.hold(ref.rel, only_reading=True):
            yield

    @contextlib.contextmanager
    def trying_to_hold(self, refs: Sequence[DataRef]) -> Iterator[bool]:
        """Hold several names without changing them, if nobody does; yields whether that is so."""
        with self._locks.try_hold(*(ref.rel for ref in refs)) as is_held:
            yield is_held

    @contextlib.contextmanager
    def quiet(self) -> Iterator[None]:
        """Hold every name, so that nothing changes meanwhile."""
        with self._locks.hold_all(only_reading=True):
            yield
