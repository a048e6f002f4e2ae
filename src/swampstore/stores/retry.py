"""The one layer that tries again, around any store.

Reads, plain puts, copies and deletions have the same outcome however often they are done, so
they are repeated after a transient failure. A conditional write is not: its answer may have been
lost after the write was done, and repeating it would then report "somebody was faster" about
ourselves. So after a failed conditional write the object is read back: if it holds our bytes we
succeeded; if it is still what the condition asked for, the write can safely be repeated; only
otherwise did somebody else win. A file is compared by its hash while the object streams by. Two
writers of the very same bytes both succeed, so a writer that must be told apart (a lock, a commit)
puts something unique into them.
"""

from __future__ import annotations

import os
import queue
import random
import threading
import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import BinaryIO, NamedTuple, TypeVar

from swampstore.stores.errors import (
    CorruptObjectError,
    ObjectNotFoundError,
    PreconditionFailedError,
    StoreError,
    StoreNotMountedError,
    StoreUnreachableError,
)
from swampstore.stores.protocol import ObjectInfo, Store, Written, sha256_of, size_of
from swampstore.stores.wrapper import Request, StoreWrapper

T = TypeVar("T")

# Somebody who was never heard of is doubted after so many seconds without an answer, and is not
# there if not even a connection is taken in so many more. For a while nobody asks again.
_DOUBT = 0.3
_CONNECT = 1.0
_SILENT_FOR = 5.0
# What may be left alone when nobody waits for the answer any more. Its client has given it up
# before anything else is asked.
_HARMLESS = frozenset({"get", "get_if_changed", "excerpt", "head", "put"})
_SMALL = 64 << 10


class RetryPolicy(NamedTuple):
    """How often to try, and how long to wait in between: 0.5 s, 1.5 s, ... give or take 25 %.

    Before anybody has ever answered it is a third of that: most likely there is no way to the store
    at all, and somebody waits to be told so.
    """

    attempts: int = 3
    first_delay: float = 0.5
    factor: float = 3.0
    jitter: float = 0.25
    sleep: Callable[[float], None] = time.sleep
    uniform: Callable[[float, float], float] = random.uniform

    def pauses(self, *, is_reached: bool = True) -> Iterator[None]:
        """Yield once per attempt, waiting before each one but the first."""
        for attempt in range(self.attempts):
            if attempt:
                delay = self.first_delay * self.factor ** (attempt - 1)
                delay = delay if is_reached else delay / 3
                self.sleep(delay * self.uniform(1 - self.jitter, 1 + self.jitter))
            yield


class RetryingStore(StoreWrapper):
    """A store whose operations survive transient failures of the one inside.

    Where nobody has ever answered, and a request was given up, others are not made for a while, and
    once each after that: a command without a network finds that out once. Where packets vanish on
    their way, a request would wait for seconds: it is given up if nobody takes a connection either.
    """

    def __init__(self, inner: Store, policy: RetryPolicy | None = None) -> None:
        super().__init__(inner)
        self._policy = policy or RetryPolicy()
        self._is_reached = False
        self._is_given_up = False
        self._silent_until = 0.0
        self._failure: StoreUnreachableError | None = None

    def _attempts(self) -> Iterator[None]:
        once = self._is_given_up and not self._is_reached
        for _ in (None,) if once else self._policy.pauses(is_reached=self._is_reached):
            began = time.monotonic()
            yield
            # Whoever says nothing for so long is not asked to do so again.
            if time.monotonic() - began >= _DOUBT + _CONNECT:
                self._be_silent()
            if self._is_silent():
                break
        self._is_given_up = True
        if not self._is_silent() and not self._is_somebody_there():
            self._be_silent()

    def _is_somebody_there(self) -> bool:
        from swampstore.stores.signed_requests import takes_connections

        endpoint = "" if self._is_reached else self.capabilities.endpoint
        return not endpoint or takes_connections(endpoint, _CONNECT)

    def _be_silent(self) -> None:
        """Let nobody ask for a while, where it was found out that a server does not answer."""
        if not self._is_reached and self.capabilities.endpoint:
            self._silent_until = time.monotonic() + _SILENT_FOR

    def _heed_silence(self) -> None:
        """Raise what was found out a moment ago, instead of asking again."""
        if self._is_silent() and self._failure is not None:
            raise self._failure

    def _is_silent(self) -> bool:
        return not self._is_reached and time.monotonic() < self._silent_until

    def _answered(
        self, send: Callable[[], T], *, is_harmless: bool = False, writes: bool = False
    ) -> T:
        """Make a request, and note whether somebody answered."""
        endpoint = "" if self._is_reached else self.capabilities.endpoint
        self._heed_silence()
        try:
            is_doubted = endpoint and is_harmless
            answer = self._heard(send, endpoint, writes=writes) if is_doubted else send()
        except StoreUnreachableError as error:
            self._failure = error
            raise
        except StoreError:
            self._is_reached = True
            raise
        self._is_reached = True
        return answer

    def _heard(self, send: Callable[[], T], endpoint: str, *, writes: bool) -> T:
        """Make a request of somebody who never answered yet; wait for no one who is not there.

        Whoever is interrupted waits for the end of one that writes all the same: what it has
        written must be there for those who then tidy up.
        """
        done: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()
        turn, ended = threading.Lock(), threading.Event()

        def ask() -> None:
            if not turn.acquire(blocking=False):
                return  # whoever asked was interrupted before anything was sent
            try:
                done.put((send(), None))
            except BaseException as error:  # noqa: BLE001 - raised where the answer is waited for
                done.put((None, error))
            finally:
                ended.set()

        try:
            # It may have sent something before `start` returns, or is interrupted.
            threading.Thread(target=ask, name="first request", daemon=True).start()
            answer, error = self._awaited(done, endpoint)
        except StoreUnreachableError:
            raise
        except BaseException:
            if writes and not turn.acquire(blocking=False):
                ended.wait()
            raise
        if error is not None:
            raise error
        return answer  # type: ignore[return-value]  # without an error there is an answer

    def _awaited(self, done: queue.SimpleQueue[T], endpoint: str) -> T:
        """Return what comes; raise StoreUnreachableError if nobody takes a connection either."""
        try:
            return done.get(timeout=_DOUBT)
        except queue.Empty:
            from swampstore.stores.signed_requests import is_silent

            if is_silent(endpoint, _CONNECT) and done.empty():
                self._be_silent()
                raise self._unreachable(endpoint) from None
            return done.get()

    def _unreachable(self, endpoint: str) -> StoreUnreachableError:
        return StoreUnreachableError(
            f"{self.identity} cannot be reached: {endpoint} takes no connection",
            hint="Check the network and the endpoint, then try again; nothing was lost.",
        )

    def around(self, request: Request, send: Callable[[], T]) -> T:
        """Make a request again, unless it is one of the conditional writes below.

        A listing is not made again here: stores repeat failed pages themselves, because only they
        know where they are.

        A conditional deletion whose answer was lost is made again. If the first one was carried
        out, the object is gone or somebody has put another one there since; who deletes cannot
        tell that from having come late, and is told PreconditionFailedError in both cases. The
        object that was meant is gone either way.
        """
        failure: StoreUnreachableError | None = None
        is_harmless = request.operation in _HARMLESS and request.sent <= _SMALL
        for _ in self._attempts():
            try:
                return self._answered(send, is_harmless=is_harmless, writes=request.writes)
            except StoreNotMountedError:
                raise  # nobody mounts it within a second
            except StoreUnreachableError as error:
                failure = error
        assert failure is not None
        raise failure

    def listing(self, request: Request, found: Iterator[T]) -> Iterator[T]:  # noqa: ARG002 - same
        """Yield what a listing finds; nobody is waited for who is not there."""
        if not self._is_reached and self.capabilities.endpoint:
            yield from self._answered(lambda: list(islice(found, 1)), is_harmless=True)
        yield from found

    def put_if_absent(self, key: str, body: bytes | BinaryIO) -> Written:
        """See Store.put_if_absent."""
        return self._conditionally(
            key, body, lambda: self.inner.put_if_absent(key, body), expected=None
        )

    def put_if_match(self, key: str, body: bytes | BinaryIO, token: str) -> Written:
        """See Store.put_if_match."""
        return self._conditionally(
            key, body, lambda: self.inner.put_if_match(key, body, token), expected=token
        )

    def _conditionally(
        self,
        key: str,
        body: bytes | BinaryIO,
        write: Callable[[], Written],
        *,
        expected: str | None,
    ) -> Written:
        failure: StoreUnreachableError | PreconditionFailedError | None = None
        self._heed_silence()  # nothing was sent then
        # The first thing that anybody asks for may be a lock. If it is made after all, nobody uses
        # it, and it gets stale. Nothing that counts is written before something was read.
        is_harmless = expected is None and isinstance(body, bytes)
        for _ in self._attempts():
            try:
                return self._answered(write, is_harmless=is_harmless, writes=True)
            except StoreNotMountedError:
                raise
            except (StoreUnreachableError, PreconditionFailedError) as error:
                failure = error
            found, is_ours = self._read_back(key, body, failure)
            if found is not None and is_ours:
                assert found.token is not None
                return Written(found.etag, found.token, is_met=True)
            if (found.token if found else None) != expected:
                raise _lost(failure) from failure
            # Nobody won: the request got lost, or the server saw two at once and refused both.
        assert failure is not None
        raise failure

    def _read_back(
        self,
        key: str,
        body: bytes | BinaryIO,
        failure: StoreUnreachableError | PreconditionFailedError,
    ) -> tuple[ObjectInfo | None, bool]:
        """Return what is there now, and whether it is what we wanted to write."""
        try:
            if isinstance(body, bytes):
                found = self.get(key)
                return found.info, found.data == body
            return self._compared(key, body)
        except ObjectNotFoundError:
            return None, False
        except StoreUnreachableError as error:
            raise StoreUnreachableError(
                f"{failure.message}; whether {key} was written is unknown", hint=error.hint
            ) from failure

    def _compared(self, key: str, file: BinaryIO) -> tuple[ObjectInfo, bool]:
        info = self.head(key)
        if info.size != size_of(file):
            return info, False
        nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        try:
            return self.download(key, nowhere, sha256=sha256_of(file)), True
        except CorruptObjectError:
            # If it was replaced since it was described, the token does not match either.
            return info, False
        finally:
            os.close(nowhere)


def _lost(failure: StoreUnreachableError | PreconditionFailedError) -> PreconditionFailedError:
    if isinstance(failure, PreconditionFailedError):
        return failure
    return PreconditionFailedError(
        f"somebody else wrote the object meanwhile ({failure.message})",
        hint="Read it again, apply the change to what is there now, and retry.",
    )
