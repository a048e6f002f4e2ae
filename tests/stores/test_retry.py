"""Trying again: what is repeated, what is not, and how a lost answer is told from a lost race."""

from __future__ import annotations

import contextlib
import io
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import pytest

from swampstore.stores import retry
from swampstore.stores.errors import (
    ObjectNotFoundError,
    PreconditionFailedError,
    StoreCredentialsError,
    StoreError,
    StoreUnreachableError,
)
from swampstore.stores.memory import MemoryStore
from swampstore.stores.protocol import Fetched, Written
from swampstore.stores.retry import RetryingStore, RetryPolicy
from tests.support.locking import eventually

UNREACHABLE = StoreUnreachableError("no answer", hint="Try again.")


class Flaky(MemoryStore):
    """Fails as told: before the operation is done, or after it (the answer is lost)."""

    def __init__(self) -> None:
        super().__init__("flaky")
        self.before: list[StoreError | None] = []
        self.after: list[StoreError | None] = []
        self.meanwhile: Callable[[], object] = lambda: None
        self.reads_fail = False
        self.writes = 0

    def _failing(self, write: Callable[[], Written]) -> Written:
        self.writes += 1
        if self.before and (error := self.before.pop(0)):
            self.meanwhile()
            raise error
        written = write()
        if self.after and (error := self.after.pop(0)):
            self.meanwhile()
            raise error
        return written

    def get(self, key: str) -> Fetched:
        if self.reads_fail:
            raise UNREACHABLE
        return super().get(key)

    def put(self, key: str, body: bytes | BinaryIO) -> Written:
        return self._failing(lambda: super(Flaky, self).put(key, body))

    def put_if_absent(self, key: str, body: bytes | BinaryIO) -> Written:
        return self._failing(lambda: super(Flaky, self).put_if_absent(key, body))

    def put_if_match(self, key: str, body: bytes | BinaryIO, token: str) -> Written:
        return self._failing(lambda: super(Flaky, self).put_if_match(key, body, token))

    def delete_if_match(self, key: str, token: str) -> None:
        def delete() -> Written:
            super(Flaky, self).delete_if_match(key, token)
            return Written("", "")

        self._failing(delete)


@pytest.fixture
def flaky() -> Flaky:
    return Flaky()


@pytest.fixture
def pauses() -> list[float]:
    return []


@pytest.fixture
def store(flaky: Flaky, pauses: list[float]) -> RetryingStore:
    policy = RetryPolicy(sleep=pauses.append, uniform=max)
    store = RetryingStore(flaky, policy)
    store.delete("nothing")  # somebody answers
    return store


def test_where_nobody_ever_answered_it_is_found_out_soon_and_once(
    flaky: Flaky, pauses: list[float]
) -> None:
    store = RetryingStore(flaky, RetryPolicy(sleep=pauses.append, uniform=max))
    flaky.before = [UNREACHABLE] * 5
    for _ in range(2):
        with pytest.raises(StoreUnreachableError):
            store.put("a", b"x")
    assert len(flaky.before) == 1
    assert sum(pauses) <= 0.85  # whole commands have 1.5 seconds
    # Once somebody has answered, it is worth the usual patience.
    flaky.before = []
    store.put("a", b"x")
    flaky.before = [UNREACHABLE, UNREACHABLE]
    store.put("a", b"y")
    assert pauses[-2:] == [0.5 * 1.25, 1.5 * 1.25]


def test_a_put_is_repeated_with_growing_pauses(
    store: RetryingStore, flaky: Flaky, pauses: list[float]
) -> None:
    flaky.before = [UNREACHABLE, UNREACHABLE]
    store.put("a", b"x")
    assert flaky.get("a").data == b"x"
    assert pauses == [0.5 * 1.25, 1.5 * 1.25]


def test_the_last_failure_is_reported(store: RetryingStore, flaky: Flaky) -> None:
    flaky.before = [UNREACHABLE] * 3
    with pytest.raises(StoreUnreachableError, match="no answer"):
        store.put("a", b"x")
    assert flaky.writes == 3


def test_a_file_is_sent_whole_again(store: RetryingStore, flaky: Flaky) -> None:
    flaky.after = [UNREACHABLE]
    store.put("a", io.BytesIO(b"whole"))
    assert flaky.get("a").data == b"whole"
    assert flaky.writes == 2


@pytest.mark.parametrize("error", [StoreCredentialsError("no"), ObjectNotFoundError("no")])
def test_what_will_not_get_better_is_not_repeated(
    store: RetryingStore, flaky: Flaky, pauses: list[float], error: StoreError
) -> None:
    flaky.before = [error]
    with pytest.raises(type(error)):
        store.put("a", b"x")
    assert (flaky.writes, pauses) == (1, [])


def test_a_create_whose_answer_was_lost_is_recognised(store: RetryingStore, flaky: Flaky) -> None:
    flaky.after = [UNREACHABLE]
    written = store.put_if_absent("a", b"mine")
    assert flaky.writes == 1
    assert written.token == flaky.head("a").token


def test_an_update_whose_answer_was_lost_is_recognised(store: RetryingStore, flaky: Flaky) -> None:
    token = flaky.put("a", b"before").token
    flaky.after = [UNREACHABLE]
    written = store.put_if_match("a", b"mine", token)
    assert flaky.writes == 2
    assert written.token == flaky.head("a").token


def test_a_conditional_write_that_never_arrived_is_repeated(
    store: RetryingStore, flaky: Flaky
) -> None:
    flaky.before = [UNREACHABLE]
    token = store.put_if_absent("a", b"one").token
    flaky.before = [UNREACHABLE]
    store.put_if_match("a", b"two", token)
    assert flaky.get("a").data == b"two"


def test_a_conflict_that_nobody_won_is_repeated(store: RetryingStore, flaky: Flaky) -> None:
    conflict = PreconditionFailedError("409")
    flaky.before = [conflict]
    token = store.put_if_absent("a", b"one").token
    flaky.before = [conflict]
    store.put_if_match("a", b"two", token)
    assert flaky.get("a").data == b"two"


def test_a_conflict_without_end_is_reported_as_one(store: RetryingStore, flaky: Flaky) -> None:
    flaky.before = [PreconditionFailedError("409")] * 3
    with pytest.raises(PreconditionFailedError, match="409"):
        store.put_if_absent("a", b"one")
    assert flaky.writes == 3


def test_a_lost_race_is_reported_after_one_attempt(
    store: RetryingStore, flaky: Flaky, pauses: list[float]
) -> None:
    flaky.put("a", b"theirs")
    flaky.writes = 0
    with pytest.raises(PreconditionFailedError, match="already"):
        store.put_if_absent("a", b"mine")
    assert (flaky.writes, pauses) == (1, [])


def test_somebody_who_writes_while_we_wait_for_an_answer_has_won(
    store: RetryingStore, flaky: Flaky
) -> None:
    token = flaky.put("a", b"before").token
    flaky.meanwhile = lambda: MemoryStore.put(flaky, "a", b"theirs")
    flaky.before = [UNREACHABLE]
    with pytest.raises(PreconditionFailedError, match="no answer"):
        store.put_if_match("a", b"mine", token)
    assert flaky.get("a").data == b"theirs"


def test_an_object_that_vanishes_while_we_wait_is_not_brought_back(
    store: RetryingStore, flaky: Flaky
) -> None:
    token = flaky.put("a", b"before").token
    flaky.meanwhile = lambda: flaky.delete("a")
    flaky.before = [UNREACHABLE]
    with pytest.raises(PreconditionFailedError):
        store.put_if_match("a", b"mine", token)
    assert list(flaky.list()) == []


def test_an_outcome_that_cannot_be_read_back_is_called_unknown(
    store: RetryingStore, flaky: Flaky
) -> None:
    flaky.after = [UNREACHABLE]
    flaky.reads_fail = True
    with pytest.raises(StoreUnreachableError, match="whether a was written is unknown"):
        store.put_if_absent("a", b"mine")


@pytest.mark.parametrize("is_done", [False, True])
def test_a_conditional_deletion_whose_answer_was_lost_is_repeated(
    store: RetryingStore, flaky: Flaky, is_done: bool
) -> None:
    token = store.put("a", b"one").token
    (flaky.after if is_done else flaky.before).append(UNREACHABLE)
    store.delete_if_match("a", token)
    with pytest.raises(ObjectNotFoundError):
        store.get("a")


def test_a_repeated_conditional_deletion_spares_the_successor(
    store: RetryingStore, flaky: Flaky
) -> None:
    token = store.put("a", b"one").token
    flaky.after.append(UNREACHABLE)
    flaky.meanwhile = lambda: MemoryStore.put_if_absent(flaky, "a", b"two")
    with pytest.raises(PreconditionFailedError):
        store.delete_if_match("a", token)
    assert store.get("a").data == b"two"


@pytest.mark.parametrize("is_done", [False, True])
def test_a_file_whose_answer_was_lost_is_compared_by_its_hash(
    store: RetryingStore, flaky: Flaky, tmp_path: Path, is_done: bool
) -> None:
    (tmp_path / "body").write_bytes(b"content")
    (flaky.after if is_done else flaky.before).append(UNREACHABLE)
    with (tmp_path / "body").open("rb") as file:
        written = store.put_if_absent("a", file)
    assert written.is_met is is_done
    assert store.get("a").data == b"content"
    assert store.get("a").info.token == written.token


@pytest.mark.parametrize("other", [b"longer than ours", b"CONTENT"])
def test_a_file_of_somebody_else_is_no_success(
    store: RetryingStore, flaky: Flaky, other: bytes
) -> None:
    flaky.before.append(UNREACHABLE)
    flaky.meanwhile = lambda: MemoryStore.put(flaky, "a", other)
    with pytest.raises(PreconditionFailedError):
        store.put_if_absent("a", io.BytesIO(b"content"))
    assert store.get("a").data == other


# Where packets vanish -----------------------------------------------------------------------------


@contextlib.contextmanager
def black_hole() -> Iterator[str]:
    """Yield the URL of a server to which no connection is ever made, and that refuses none."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.socket())
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        for _ in range(4):  # as many as wait to be accepted, and one more
            waiting = stack.enter_context(socket.socket())
            waiting.settimeout(0)
            waiting.connect_ex(server.getsockname())
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


class Silent(MemoryStore):
    """Answers no earlier than told."""

    def __init__(self, endpoint: str) -> None:
        super().__init__("silent")
        self.capabilities = self.capabilities._replace(endpoint=endpoint)
        self.asked: list[str] = []
        self.is_slow_to_write = False
        self.answer = threading.Event()
        self.gives_up_after = 60.0

    def get(self, key: str) -> Fetched:
        self.asked.append(key)
        if not self.answer.wait(self.gives_up_after):
            raise UNREACHABLE
        return super().get(key)

    def put_if_absent(self, key: str, body: bytes | BinaryIO) -> Written:
        self.asked.append(key)
        self.answer.wait(60 if self.is_slow_to_write else 0)
        return super().put_if_absent(key, body)


def test_a_lock_that_nobody_answers_is_not_known_to_be_made_and_nothing_else_is_asked() -> None:
    with black_hole() as endpoint:
        silent = Silent(endpoint)
        silent.is_slow_to_write = True
        store = RetryingStore(silent)
        with pytest.raises(StoreUnreachableError, match="whether lock was written is unknown"):
            store.put_if_absent("lock", b"x")
        with pytest.raises(StoreUnreachableError):
            store.get("a")
        assert silent.asked == ["lock"]
        silent.answer.set()


def test_a_store_that_takes_no_connection_is_given_up_before_its_client_does_and_once() -> None:
    with black_hole() as endpoint:
        silent = Silent(endpoint)
        store = RetryingStore(silent)
        for _ in range(3):
            with pytest.raises(StoreUnreachableError, match="takes no connection"):
                store.get("a")
        with pytest.raises(StoreUnreachableError, match="takes no connection"):
            store.put_if_absent("b", b"x")
        assert silent.asked == ["a"]
        silent.answer.set()


def test_a_server_that_takes_connections_and_says_nothing_is_waited_for_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(retry, "_DOUBT", 0.01)
    monkeypatch.setattr(retry, "_CONNECT", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        silent = Silent(f"http://127.0.0.1:{server.getsockname()[1]}")
        silent.gives_up_after = 0.2
        store = RetryingStore(silent)
        for ask in (store.get, store.get, store.head):
            with pytest.raises(StoreUnreachableError, match="no answer"):
                ask("a")
        assert silent.asked == ["a"]


def test_what_nobody_answered_is_asked_for_again_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(retry, "_SILENT_FOR", 0.0)
    monkeypatch.setattr(retry, "_CONNECT", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        silent = Silent(f"http://127.0.0.1:{server.getsockname()[1]}")
        silent.gives_up_after = 0.5
        store = RetryingStore(silent)
        with pytest.raises(StoreUnreachableError):
            store.get("a")
        silent.put("a", b"x")
        silent.answer.set()
        assert store.get("a").data == b"x"


def test_a_store_that_takes_connections_and_its_time_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(retry, "_DOUBT", 0.01)
    with socket.create_server(("127.0.0.1", 0)) as server:
        silent = Silent(f"http://127.0.0.1:{server.getsockname()[1]}")
        silent.put("a", b"x")
        threading.Timer(0.2, silent.answer.set).start()
        assert RetryingStore(silent).get("a").data == b"x"


@pytest.mark.parametrize("is_sent", [True, False])
def test_whoever_is_interrupted_while_the_first_request_begins_waits_for_it_or_it_is_not_made(
    monkeypatch: pytest.MonkeyPatch, is_sent: bool
) -> None:
    start = threading.Thread.start
    begun: list[threading.Thread] = []
    silent = Silent("http://127.0.0.1:1")
    silent.is_slow_to_write = True

    def interrupted(thread: threading.Thread) -> None:
        if thread.name != "first request":
            start(thread)
            return
        begun.append(thread)
        if is_sent:
            start(thread)
            eventually(lambda: silent.asked == ["lock"])
            threading.Timer(0.2, silent.answer.set).start()
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        RetryingStore(silent).put_if_absent("lock", b"x")
    assert [info.key for info in silent.list("")] == ["lock"] * is_sent
    if not is_sent:
        silent.answer.set()
        start(begun[0])
    begun[0].join()
    assert silent.asked == ["lock"] * is_sent


def test_who_has_answered_once_is_never_doubted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "_DOUBT", 0.01)
    with black_hole() as endpoint:
        silent = Silent(endpoint)
        store = RetryingStore(silent)
        store.put_if_absent("a", b"x")
        threading.Timer(0.2, silent.answer.set).start()
        assert store.get("a").data == b"x"
