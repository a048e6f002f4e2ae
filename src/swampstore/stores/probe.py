"""Proving what a store can do, instead of believing it; and whether it answers at all.

Some servers accept conditional writes and ignore the condition. Nothing about their answers
gives that away until two clients meet and one loses its work, so the probe makes many meet.

`examine` is a quick look before anything depends on a store. It asks once, and it never waits
longer than it was told: a hanging credentials helper or a silent network must not hold up a command
that could have said so after three seconds.
"""

from __future__ import annotations

import contextlib
import math
import queue
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from swampstore.errors import SwampstoreError
from swampstore.stores.errors import (
    ObjectNotFoundError,
    PreconditionFailedError,
    StoreError,
    StoreUnreachableError,
    UntrustworthyStoreError,
)
from swampstore.stores.protocol import Store, admitted_limits

RACERS = 32
_ROUNDS = 5
_COPIERS = 8
_CLEANERS = 8
_PATIENCE = 1.0  # seconds for the slowest of a race
# Below what other clients leave alone, in case the probe is killed.
PREFIX = "_control/probe"
_DELETION = "refusal of a stale deletion"
PREFLIGHT_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was tried, and what went wrong with it (empty: nothing).

    Sharing a store safely needs what `is_required`; the rest only makes it nicer.
    """

    name: str
    problem: str = ""
    is_required: bool = True

    @property
    def ok(self) -> bool:
        """Whether the store did what it must."""
        return not self.problem


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """What a store was seen to do."""

    identity: str
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether the store can be trusted with shared data."""
        return all(finding.ok for finding in self.findings if finding.is_required)

    @property
    def proves_conditional_delete(self) -> bool:
        """Whether the store was seen to refuse a deletion whose condition does not hold."""
        return any(finding.name == _DELETION and finding.ok for finding in self.findings)

    def check(self) -> None:
        """Raise UntrustworthyStoreError, saying what failed, unless all is well."""
        failed = [one for one in self.findings if one.is_required and not one.ok]
        problems = [f"{one.name}: {one.problem}" for one in failed]
        if problems:
            raise UntrustworthyStoreError(
                f"{self.identity} cannot be shared safely: {'; '.join(problems)}",
                hint="Use a server that honours If-Match and If-None-Match on writes.",
            )


class _Wrong(Exception):  # noqa: N818 - never leaves this module
    """What was seen is not what must be."""


def probe(store: Store, *, racers: int = RACERS) -> ProbeReport:
    """Try everything that sync relies on, with objects that are removed afterwards.

    Costs about 150 small requests, some 15 of them in a row. Never raises for what the store does;
    a store that cannot be reached at all is a report too.
    """
    trial = _Trial(store, f"{PREFIX}/{uuid.uuid4()}", racers)
    attempts: list[tuple[str, Callable[[], None]]] = [
        ("round trip", trial.round_trip),
        ("listing after a write", trial.listing),
        ("refusal of a stale update", trial.stale_update),
        ("deletion", trial.deletion),
    ]
    if store.capabilities.conditional_delete:
        attempts.append((_DELETION, trial.stale_deletion))
    with ThreadPoolExecutor(len(attempts)) as pool:
        findings = list(pool.map(_attempt, attempts))
    # Nothing beside a race: SeaweedFS lets writers of one object try again every second, and the
    # more it has to do, the more of them meet.
    races = (("conditional create", trial.creates), ("conditional update", trial.updates))
    findings[2:2] = [_attempt(race) for race in races]
    with contextlib.suppress(StoreError):
        trial.clean_up()
    with contextlib.suppress(StoreError):
        findings += [
            Finding(name, problem, is_required=False) for name, problem in admitted_limits(store)
        ]
    return ProbeReport(store.identity, tuple(findings))


def proves_conditional_delete(store: Store) -> bool:
    """Whether a store is seen to refuse a deletion on the condition of an older state.

    Costs 6 small requests where the store claims it, none elsewhere. Raises
    StoreUnreachableError if the store could not be asked.
    """
    if not store.capabilities.conditional_delete:
        return False
    trial = _Trial(store, f"{PREFIX}/{uuid.uuid4()}", racers=1)
    try:
        trial.stale_deletion()
    except StoreUnreachableError:
        # A listing would be tried again and again, and somebody waits.
        with contextlib.suppress(StoreError):
            trial.clean_up_after_deletion()
        raise
    except (_Wrong, StoreError):
        with contextlib.suppress(StoreError):
            trial.clean_up()
        return False
    return True


def proves_conditional_copy(store: Store) -> bool:
    """Whether a store is seen to refuse copies of another object, and onto one that is there.

    Costs some 20 small requests where the store claims it, none elsewhere. Raises
    StoreUnreachableError if the store could not be asked.
    """
    if not store.capabilities.conditional_copy:
        return False
    trial = _Trial(store, f"{PREFIX}/{uuid.uuid4()}", racers=_COPIERS)
    try:
        trial.stale_copy()
        trial.copies()
    except StoreUnreachableError:
        raise
    except (_Wrong, StoreError):
        return False
    finally:
        with contextlib.suppress(StoreError):
            trial.clean_up()
    return True


def _attempt(named: tuple[str, Callable[[], None]]) -> Finding:
    name, attempt = named
    finding = Finding(name, is_required=name != _DELETION)
    try:
        attempt()
    except _Wrong as wrong:
        return replace(finding, problem=str(wrong))
    except StoreError as error:
        return replace(finding, problem=error.message)
    return finding


class _Trial:
    """What is tried, each with objects of its own: so that they may be tried at once."""

    def __init__(self, store: Store, prefix: str, racers: int) -> None:
        self._store = store
        self._prefix = prefix
        self._racers = racers

    def _key(self, name: str) -> str:
        return f"{self._prefix}/{name}"

    def round_trip(self) -> None:
        content = bytes(range(256))
        self._store.put(self._key("round-trip"), content)
        found = self._store.get(self._key("round-trip"))
        if found.data != content or found.info.size != len(content):
            raise _Wrong("the content read is not the content written")
        if self._store.get_if_changed(self._key("round-trip"), found.info.etag) is not None:
            raise _Wrong("an unchanged object is sent again although its ETag was given")

    def listing(self) -> None:
        self._store.put(self._key("listed/one"), b"1")
        keys = [info.key for info in self._store.list(f"{self._prefix}/listed/")]
        if keys != [self._key("listed/one")]:
            raise _Wrong(f"the listing after a write shows {len(keys)} objects instead of it")

    def creates(self) -> None:
        key = self._key("created")
        self._race(key, lambda data: self._store.put_if_absent(key, data))

    def updates(self) -> None:
        # What only speaks a database's protocol may read and write in two steps: it shows at times.
        for number in range(_ROUNDS if self._store.capabilities.keeps_paths else 1):
            self._update(self._key(f"updated-{number}"))

    def _update(self, key: str) -> None:
        token = self._store.put(key, b"before").token
        self._race(key, lambda data: self._store.put_if_match(key, data, token))

    def stale_update(self) -> None:
        key = self._key("stale")
        stale = self._store.put(key, b"one").token
        self._store.put_if_match(key, b"two", stale)
        with contextlib.suppress(PreconditionFailedError):
            self._store.put_if_match(key, b"three", stale)
            raise _Wrong("an update on the condition of an older state was accepted")
        with contextlib.suppress(PreconditionFailedError):
            self._store.put_if_match(self._key("never-written"), b"x", stale)
            raise _Wrong("an update of an object that does not exist was accepted")

    def deletion(self) -> None:
        key = self._key("removed")
        self._store.put(key, b"1")
        self._store.delete(key)
        self._store.delete(key)
        with contextlib.suppress(ObjectNotFoundError):
            self._store.head(key)
            raise _Wrong("a deleted object is still there")

    def stale_deletion(self) -> None:
        key = self._key("deleted")
        stale = self._store.put(key, b"one").token
        token = self._store.put(key, b"two").token
        with contextlib.suppress(PreconditionFailedError):
            self._store.delete_if_match(key, stale)
            raise _Wrong("a deletion on the condition of an older state was accepted")
        self._store.delete_if_match(key, token)
        with contextlib.suppress(ObjectNotFoundError):
            self._store.head(key)
            raise _Wrong("an object is still there after a deletion on its own condition")

    def stale_copy(self) -> None:
        source, there = self._key("copied"), self._key("there")
        stale = self._store.put(source, b"one").token
        token = self._store.put(source, b"two").token
        self._store.put(there, b"three")
        with contextlib.suppress(PreconditionFailedError):
            self._store.copy_if_absent(source, there, token)
            raise _Wrong("a copy onto an object that is there was accepted")
        with contextlib.suppress(PreconditionFailedError):
            self._store.copy_if_absent(source, self._key("stale-copy"), stale)
            raise _Wrong("a copy on the condition of an older state was accepted")
        if self._store.get(there).data != b"three":
            raise _Wrong("a copy that was refused has replaced an object")

    def copies(self) -> None:
        """Let copies race with writers: they meet where two machines save one version."""
        target = self._key("raced")
        sources: dict[bytes, tuple[str, str]] = {}
        for number in range(self._racers // 2):
            source, data = self._key(f"source-{number}"), f"copied {number}".encode()
            sources[data] = (source, self._store.put(source, data).token)

        def write(data: bytes) -> None:
            if data in sources:
                source, token = sources[data]
                self._store.copy_if_absent(source, target, token)
            else:
                self._store.put_if_absent(target, data)

        others = [f"written {number}".encode() for number in range(self._racers // 2)]
        self._race_of(target, [*sources, *others], write)

    def clean_up_after_deletion(self) -> None:
        self._store.delete(self._key("deleted"))

    def clean_up(self) -> None:
        keys = [info.key for info in self._store.list(f"{self._prefix}/")]
        with ThreadPoolExecutor(_CLEANERS) as pool:
            list(pool.map(self._store.delete, keys))

    def _race(self, key: str, write: Callable[[bytes], object]) -> None:
        contents = [f"racer {number} {uuid.uuid4()}".encode() for number in range(self._racers)]
        self._race_of(key, contents, write, _PATIENCE)

    def _race_of(
        self,
        key: str,
        contents: Sequence[bytes],
        write: Callable[[bytes], object],
        patience: float = math.inf,
    ) -> None:
        def run(data: bytes) -> bytes | None:
            try:
                write(data)
            except PreconditionFailedError:
                return None
            return data

        self._only_winner(key, _outcomes(run, contents, lambda: self._store.delete(key), patience))

    def _only_winner(self, key: str, winners: list[bytes]) -> None:
        if len(winners) != 1:
            raise _Wrong(
                f"{len(winners)} of {self._racers} writers at once were told that they won: "
                "the server ignores conditions"
                if winners
                else f"none of {self._racers} writers at once could write"
            )
        if self._store.get(key).data != winners[0]:
            raise _Wrong("the writer that was told it won is not the one whose content is there")


def _outcomes(
    run: Callable[[bytes], bytes | None],
    contents: Sequence[bytes],
    undo: Callable[[], object],
    patience: float,
) -> list[bytes]:
    """Let all of these run at once, and return those that were told that they won.

    Some servers have a few wait for whole seconds, and refuse them then. Once there is a winner
    and half have heard, others are not waited for past the `patience`; a late winner undoes what
    it did.
    """
    heard: queue.SimpleQueue[bytes | BaseException | None] = queue.SimpleQueue()
    is_over = threading.Event()

    def race(data: bytes) -> None:
        try:
            written = run(data)
        except BaseException as error:  # noqa: BLE001 - raised where the answers are read
            heard.put(error)
            return
        heard.put(written)
        if written is not None and is_over.is_set():
            with contextlib.suppress(StoreError):
                undo()

    for data in contents:
        # Daemons: nobody waits for them when the process ends.
        threading.Thread(target=race, args=(data,), name="probe", daemon=True).start()
    end = time.monotonic() + patience
    winners: list[bytes] = []
    for count in range(len(contents)):
        is_enough = patience < math.inf and winners and count >= len(contents) / 2
        try:
            left = max(0.0, end - time.monotonic()) if is_enough else None
            answer = heard.get(timeout=left)
        except queue.Empty:
            break
        if isinstance(answer, BaseException):
            raise answer
        winners += [] if answer is None else [answer]
    is_over.set()
    return winners


@dataclass(frozen=True, slots=True)
class Health:
    """Whether a store answered a listing, and what was wrong if it did not."""

    identity: str
    latency: float
    error: SwampstoreError | None = None

    @property
    def healthy(self) -> bool:
        """Whether the store may be used."""
        return self.error is None

    def check(self) -> None:
        """Raise what was wrong, if anything was."""
        if self.error is not None:
            raise self.error


def examine(store: Store, *, timeout: float = PREFLIGHT_SECONDS) -> Health:
    """Ask a store for a listing of (next to) nothing. Never raises, never waits past `timeout`."""
    start = time.monotonic()
    failures: list[SwampstoreError] = []

    def ask() -> None:
        try:
            next(store.list(f"{PREFIX}/"), None)
        except SwampstoreError as error:
            failures.append(error)

    # A daemon: a request that never ends must not keep the process from ending either.
    asking = threading.Thread(target=ask, name="store-preflight", daemon=True)
    asking.start()
    asking.join(timeout)
    if asking.is_alive():
        failures.append(
            StoreUnreachableError(
                f"{store.identity} gave no answer within {timeout:g} s",
                hint="Check the network, the endpoint, and that credentials can be fetched.",
            )
        )
    return Health(store.identity, time.monotonic() - start, failures[0] if failures else None)
