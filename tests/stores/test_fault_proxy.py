"""A real server behind a proxy that spoils requests: what the proxy does, what clients make of it.

Each fault is met by every operation that it can hit, with the retries that the program uses.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import obstore
import pytest

from swampstore.stores import Store
from swampstore.stores.errors import (
    CorruptObjectError,
    ObjectNotFoundError,
    PreconditionFailedError,
    StorePermissionError,
    StoreUnreachableError,
)
from swampstore.stores.obstore_store import ObstoreStore
from swampstore.stores.retry import RetryingStore
from tests.support.fault_proxy import (
    Corrupt,
    Fault,
    FaultProxy,
    Hang,
    Lost,
    Meanwhile,
    Request,
    Reset,
    Slow,
    Status,
    Truncated,
)
from tests.support.remotes import ProxiedRemote

CONTENT = os.urandom(5000)
Operation = Callable[[Store], object]


@pytest.fixture
def proxy(s3_remote: ProxiedRemote) -> FaultProxy:
    return s3_remote.proxy


@pytest.fixture
def store(s3_remote: ProxiedRemote) -> Iterator[RetryingStore]:
    with s3_remote.open() as store:
        yield store


def everything(request: Request) -> bool:
    return True


def is_put(request: Request) -> bool:
    return request.kind == "PUT"


def is_get(request: Request) -> bool:
    return request.kind == "GET"


# What it sees --------------------------------------------------------------------------------


def test_every_request_is_recorded(store: RetryingStore, proxy: FaultProxy) -> None:
    token = store.put_if_absent("data/größe/a b", b"12345").token
    store.put_if_match("data/größe/a b", b"123", token)
    with pytest.raises(PreconditionFailedError):
        store.inner.put_if_absent("data/größe/a b", b"1")
    etag = store.get("data/größe/a b").info.etag
    assert store.get_if_changed("data/größe/a b", etag) is None
    store.head("data/größe/a b")
    list(store.list("data/größe/"))
    store.delete("data/größe/a b")
    with pytest.raises(ObjectNotFoundError):
        store.get("missing")
    key = "data/größe/a b"
    seen = [(one.kind, one.key, one.conditions, one.sent, one.status) for one in proxy.requests]
    assert seen == [
        ("PUT", key, {"if-none-match": "*"}, 5, 200),
        ("PUT", key, {"if-match": f'"{token}"'}, 3, 200),
        ("PUT", key, {"if-none-match": "*"}, 1, 412),
        ("GET", key, {}, 0, 200),
        ("GET", key, {"if-none-match": f'"{etag}"'}, 0, 304),
        ("HEAD", key, {}, 0, 200),
        ("LIST", "data/größe/", {}, 0, 200),
        ("DELETE", key, {}, 0, 204),
        ("GET", "missing", {}, 0, 404),
    ]
    assert [one.received for one in proxy.requests[3:6]] == [3, 0, 0]
    assert proxy.requests[6].query["list-type"] == "2"
    assert proxy.counts() == {"PUT": 3, "GET": 3, "HEAD": 1, "LIST": 1, "DELETE": 1}
    proxy.reset()
    assert proxy.counts() == {}


def test_the_parts_of_a_large_object_pass_through(store: RetryingStore, proxy: FaultProxy) -> None:
    assert isinstance(store.inner, ObstoreStore)
    client = store.inner._client
    obstore.put(client, "large", CONTENT * 4000, use_multipart=True, chunk_size=5 << 20)
    assert (
        hashlib.sha256(store.get("large").data).digest() == hashlib.sha256(CONTENT * 4000).digest()
    )
    assert proxy.counts()["POST"] == 2
    assert sum(one.sent for one in proxy.requests if one.kind == "PUT") == len(CONTENT) * 4000


def test_the_store_is_asked_for_the_time_through_the_proxy(
    store: RetryingStore, proxy: FaultProxy
) -> None:
    assert abs((store.clock() - datetime.now(UTC)).total_seconds()) < 5
    assert proxy.counts() == {"HEAD": 1}


def test_many_clients_at_once_each_get_their_own_answers(
    store: RetryingStore, proxy: FaultProxy
) -> None:
    def work(number: int) -> bool:
        store.put(f"{number}", b"%d" % number)
        return store.get(f"{number}").data == b"%d" % number

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(work, range(300)))
    assert proxy.counts() == {"PUT": 300, "GET": 300}


# Which requests are spoilt -------------------------------------------------------------------


def test_a_rule_spares_the_first_and_spoils_as_many_as_it_was_told(
    store: RetryingStore, proxy: FaultProxy
) -> None:
    rule = proxy.fail(lambda request: request.key == "a", Status(403), times=2, after=1)
    outcomes = []
    for key in ("a", "b", "a", "b", "a", "a"):
        try:
            store.put(key, b"x")
            outcomes.append("done")
        except StorePermissionError:
            outcomes.append("refused")
    assert outcomes == ["done", "done", "refused", "done", "refused", "done"]
    assert rule.fired == 2


def test_a_rule_without_end_lasts_until_it_is_lifted(
    store: RetryingStore, proxy: FaultProxy
) -> None:
    proxy.fail(everything, Status(500), times=None)
    for _ in range(3):
        with pytest.raises(StoreUnreachableError, match="500"):
            store.put("a", b"x")
    proxy.heal()
    store.put("a", b"x")
    # A store that never answered is given up once; after that each request is made one time.
    assert proxy.counts() == {"PUT": 3 + 1 + 1 + 1}


# What becomes of the operations --------------------------------------------------------------


def deleted(store: Store) -> list[str]:
    store.delete("old")
    return [one.key for one in store.list()]


def copied(store: Store) -> bytes:
    store.copy("old", "new")
    return store.get("new").data


OPERATIONS: dict[str, tuple[Operation, Operation]] = {
    "get": (lambda store: store.get("old").data, lambda _: CONTENT),
    "get if changed": (lambda store: store.get_if_changed("old", "e"), lambda s: s.get("old")),
    "head": (lambda store: store.head("old").size, lambda _: len(CONTENT)),
    "list": (lambda store: [one.key for one in store.list()], lambda _: ["old"]),
    "put": (lambda store: store.put("new", CONTENT).etag, lambda s: s.head("new").etag),
    "create": (
        lambda store: store.put_if_absent("new", CONTENT).token,
        lambda s: s.head("new").token,
    ),
    "update": (
        lambda store: store.put_if_match("old", b"new", str(store.head("old").token)).token,
        lambda s: s.head("old").token,
    ),
    "delete": (deleted, lambda _: []),
    "copy": (copied, lambda _: CONTENT),
}
HARMLESS: list[Fault] = [Status(500), Status(503), Reset(), Lost(), Slow(0.05)]


@pytest.mark.parametrize("fault", HARMLESS, ids=repr)
@pytest.mark.parametrize("name", OPERATIONS)
def test_one_fault_is_survived(
    store: RetryingStore, proxy: FaultProxy, name: str, fault: Fault
) -> None:
    store.put("old", CONTENT)
    rule = proxy.fail(everything, fault, after=1 if name == "update" else 0)
    operation, expected = OPERATIONS[name]
    outcome = operation(store)
    assert rule.fired == 1
    assert outcome == expected(store)


@pytest.mark.parametrize("name", ["create", "update"])
@pytest.mark.parametrize("status", [409, 412])
def test_a_conflict_that_nobody_won_is_survived(
    store: RetryingStore, proxy: FaultProxy, name: str, status: int
) -> None:
    store.put("old", CONTENT)
    rule = proxy.fail(lambda request: bool(request.conditions), Status(status))
    operation, expected = OPERATIONS[name]
    assert operation(store) == expected(store)
    assert rule.fired == 1


def test_a_write_whose_answer_is_lost_is_not_done_twice(
    store: RetryingStore, proxy: FaultProxy
) -> None:
    proxy.fail(is_put, Lost())
    store.put_if_absent("a", b"mine")
    assert proxy.counts() == {"PUT": 1, "GET": 1}
    assert proxy.requests[0].status == 0


def test_a_write_whose_answer_is_lost_and_that_is_overwritten_is_a_lost_race(
    s3_remote: ProxiedRemote, store: RetryingStore, proxy: FaultProxy
) -> None:
    proxy.fail(is_put, Lost())
    proxy.fail(is_get, Meanwhile(lambda: s3_remote.open().put("a", b"theirs")))
    with pytest.raises(PreconditionFailedError):
        store.put_if_absent("a", b"mine")
    assert store.get("a").data == b"theirs"


def test_somebody_faster_wins(
    s3_remote: ProxiedRemote, store: RetryingStore, proxy: FaultProxy
) -> None:
    token = store.put("a", b"before").token
    proxy.fail(is_put, Meanwhile(lambda: s3_remote.open().put("a", b"theirs")))
    with pytest.raises(PreconditionFailedError):
        store.put_if_match("a", b"mine", token)
    assert store.get("a").data == b"theirs"


@pytest.mark.parametrize(
    ("status", "error"), [(403, StorePermissionError), (404, ObjectNotFoundError)]
)
def test_a_refusal_is_not_repeated(
    store: RetryingStore, proxy: FaultProxy, status: int, error: type[Exception]
) -> None:
    store.put("a", b"x")
    proxy.reset()
    proxy.fail(is_get, Status(status))
    with pytest.raises(error):
        store.get("a")
    assert proxy.counts() == {"GET": 1}


@pytest.mark.parametrize("fault", [Truncated(), Reset()], ids=repr)
def test_a_download_that_breaks_off_starts_again(
    store: RetryingStore, proxy: FaultProxy, tmp_path: Path, fault: Fault
) -> None:
    store.put("a", CONTENT * 300)
    proxy.reset()
    proxy.fail(is_get, fault, times=2)
    with (tmp_path / "file").open("wb") as file:
        store.download("a", file.fileno(), size=len(CONTENT) * 300)
    assert (tmp_path / "file").read_bytes() == CONTENT * 300
    assert proxy.counts() == {"GET": 3}
    assert proxy.requests[2].received == len(CONTENT) * 300


def test_half_an_object_is_not_taken_for_the_whole(store: RetryingStore, proxy: FaultProxy) -> None:
    store.put("a", CONTENT)
    proxy.fail(is_get, Truncated())
    assert store.get("a").data == CONTENT
    assert [one.received for one in proxy.requests[1:]] == [len(CONTENT) // 2, len(CONTENT)]


def test_half_a_listing_is_not_taken_for_the_whole(store: RetryingStore, proxy: FaultProxy) -> None:
    for number in range(20):
        store.put(f"{number:02}", b"")
    proxy.fail(lambda request: request.kind == "LIST", Truncated())
    assert [one.key for one in store.list()] == [f"{number:02}" for number in range(20)]
    assert proxy.counts()["LIST"] == 2


def test_flipped_bytes_are_noticed_by_whoever_knows_the_hash(
    store: RetryingStore, proxy: FaultProxy, tmp_path: Path
) -> None:
    store.put("a", CONTENT)
    sha256 = hashlib.sha256(CONTENT).hexdigest()
    proxy.fail(is_get, Corrupt(), times=2)
    wrong = pytest.raises(CorruptObjectError, match="SHA-256")
    with (tmp_path / "file").open("wb") as file, wrong:
        store.download("a", file.fileno(), size=len(CONTENT), sha256=sha256)
    damaged = store.get("a").data
    assert len(damaged) == len(CONTENT)
    assert damaged != CONTENT
    assert store.get("a").data == CONTENT


def test_silence_is_given_up_on_and_the_request_repeated(
    s3_remote: ProxiedRemote, proxy: FaultProxy
) -> None:
    s3_remote.timeout = 1.0
    store = s3_remote.open()
    rule = proxy.fail(is_put, Hang())
    start = time.monotonic()
    store.put("a", b"x")
    assert time.monotonic() - start >= 1.0
    assert rule.fired == 1
    assert store.get("a").data == b"x"


def test_a_slow_answer_is_waited_for(store: RetryingStore, proxy: FaultProxy) -> None:
    proxy.fail(is_put, Slow(0.3))
    start = time.monotonic()
    store.put("a", b"x")
    assert time.monotonic() - start >= 0.3
    assert proxy.counts() == {"PUT": 1}


def test_gcs_survives_lost_answers_too(gcs_remote: ProxiedRemote) -> None:
    with gcs_remote.open() as store:
        rule = gcs_remote.proxy.fail(is_put, Lost(), times=2)
        token = store.put_if_absent("a", b"one").token
        store.put_if_match("a", b"two", token)
        assert rule.fired == 2
        assert store.get("a").data == b"two"
    conditions = [one.conditions for one in gcs_remote.proxy.requests if one.kind == "PUT"]
    assert conditions == [
        {"x-goog-if-generation-match": "0"},
        {"x-goog-if-generation-match": token},
    ]
