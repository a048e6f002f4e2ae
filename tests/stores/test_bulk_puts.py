"""Many small objects from one thread: what sound servers do, and what becomes of all else."""

from __future__ import annotations

import errno
import hashlib
import os
import socket
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any

import pytest

from swampstore.stores import store_config
from swampstore.stores.bulk_puts import Answer, BulkPuts, read_answer
from swampstore.stores.protocol import NewObject
from swampstore.stores.s3 import S3Config
from swampstore.stores.s3_signing import CreationHeads
from swampstore.stores.wrapper import CountingStore
from swampstore.testing.store import AWKWARD_KEYS
from tests.support.http_server import Answer as Reply
from tests.support.http_server import Request, Server
from tests.support.servers import S3_KEY, S3Server

TIMEOUT = 0.5
CREATED = Reply(headers={"etag": '"e"'})
UNAVAILABLE = Reply(HTTPStatus.SERVICE_UNAVAILABLE)


class Scripted(Server):
    """Answers what it is told for a path, else that all is well."""

    def __init__(self) -> None:
        super().__init__()
        self.replies: dict[str, Reply | None] = {}
        self.otherwise = CREATED
        self.requests: list[Request] = []

    def answer(self, request: Request) -> Reply | None:
        self.requests.append(request)
        reply = self.replies.get(request.target, self.otherwise)
        if reply is SILENCE:
            self.closing.wait()
        return reply


SILENCE = Reply()


@pytest.fixture
def server() -> Iterator[Scripted]:
    with Scripted() as server:
        yield server


def objects(count: int, size: int = 10) -> list[NewObject]:
    return [new(f"/{number}", b"%d" % (number % 10) * size) for number in range(count)]


def new(key: str, data: bytes) -> NewObject:
    return NewObject(key, data, hashlib.sha256(data).hexdigest())


def head(one: NewObject) -> bytes:
    return f"PUT {one.key} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(one.data)}\r\n\r\n".encode()


def no_hurry() -> None:
    return None


def create(
    server: Scripted,
    wanted: Iterable[NewObject],
    at_once: int = 4,
    remaining: Callable[[], float | None] = no_hurry,
) -> dict[str, str | None]:
    bulk = BulkPuts(server.url, TIMEOUT, head)
    return {one.key: etag for one, etag in bulk.create(iter(wanted), at_once, remaining)}


@pytest.mark.parametrize("count", [0, 1, 3, 50])
def test_all_objects_are_created_with_no_more_connections_than_allowed(
    server: Scripted, count: int
) -> None:
    wanted = objects(count)
    assert create(server, wanted) == dict.fromkeys((one.key for one in wanted), '"e"')
    assert {one.target: one.body for one in server.requests} == {
        one.key: one.data for one in wanted
    }
    assert len(server.requests) == count


def test_an_object_that_no_socket_takes_at_once_arrives_whole(server: Scripted) -> None:
    wanted = objects(6, size=12 << 20)
    assert set(create(server, wanted).values()) == {'"e"'}
    assert {len(one.body) for one in server.requests} == {12 << 20}


@pytest.mark.parametrize("status", [HTTPStatus.PRECONDITION_FAILED, HTTPStatus.CONFLICT])
def test_of_an_object_that_is_there_nothing_is_known_and_the_others_are_created(
    server: Scripted, status: HTTPStatus
) -> None:
    server.replies["/3"] = Reply(status, body=b"<Error/>")
    made = create(server, objects(40))
    assert len(made) == 40
    assert [key for key, etag in made.items() if etag is None] == ["/3"]


@pytest.mark.parametrize(
    "reply",
    [
        UNAVAILABLE,
        Reply(HTTPStatus.FORBIDDEN, body=b"<Error/>"),
        Reply(HTTPStatus.TEMPORARY_REDIRECT, headers={"location": "/"}),
        Reply(headers={"etag": '"e"', "transfer-encoding": "chunked"}),
        Reply(headers={"etag": '"e"', "content-length": "much"}),
        Reply(headers={"etag": '"e"', "content-length": "1"}, body=b"two"),
        Reply(headers={"etag": '"e"'}, body=b"cut in two", cut=True),
        None,
    ],
)
def test_after_what_no_sound_server_does_nothing_more_is_sent(
    server: Scripted, reply: Reply | None
) -> None:
    server.replies = {f"/{number}": reply for number in range(4)}
    source = iter(objects(40))
    made = create(server, source)
    assert made == dict.fromkeys(("/0", "/1", "/2", "/3"))
    assert len(list(source)) == 36
    assert len(server.requests) == 4


def test_a_connection_that_ends_after_it_was_of_use_is_replaced(server: Scripted) -> None:
    server.replies["/20"] = None
    made = create(server, objects(40), at_once=1)
    assert [key for key, etag in made.items() if etag is None] == ["/20"]
    assert len(made) == 40


def test_a_server_may_end_each_connection_after_its_answer(server: Scripted) -> None:
    server.otherwise = Reply(headers={"etag": '"e"', "connection": "close"})
    assert list(create(server, objects(20)).values()) == ['"e"'] * 20


def test_silence_ends_it_after_the_timeout(server: Scripted) -> None:
    server.otherwise = SILENCE
    source = iter(objects(10))
    assert create(server, source) == dict.fromkeys(("/0", "/1", "/2", "/3"))
    assert len(list(source)) == 6


def test_what_the_time_says_that_is_left_is_heard(server: Scripted) -> None:
    server.otherwise = SILENCE
    answers = iter([0.01])

    def remaining() -> float:
        for left in answers:
            return left
        raise TimeoutError("over")

    with pytest.raises(TimeoutError, match="over"):
        create(server, objects(10), remaining=remaining)


class OutOfFiles:
    """The module `socket` of a process that may open so many more sockets after the first one."""

    def __init__(self, left: int) -> None:
        self._left = left

    def __getattr__(self, name: str) -> Any:
        return getattr(socket, name)

    def socket(self, family: int) -> socket.socket:
        self._left -= 1
        if self._left < 0:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return socket.socket(family)


@pytest.mark.parametrize("left", [0, 1])
def test_a_process_that_may_open_no_more_files_goes_on_with_the_connections_that_it_has(
    server: Scripted, monkeypatch: pytest.MonkeyPatch, left: int
) -> None:
    monkeypatch.setattr("swampstore.stores.bulk_puts.socket", OutOfFiles(left))
    made = create(server, objects(40))
    assert [key for key, etag in made.items() if etag is None] == [f"/{left + 1}"]
    assert len(made) == 40


def test_a_connection_that_nobody_can_replace_ends_it(
    server: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swampstore.stores.bulk_puts.socket", OutOfFiles(0))
    server.otherwise = Reply(headers={"etag": '"e"', "connection": "close"})
    source = iter(objects(10))
    assert create(server, source, at_once=1) == {"/0": '"e"', "/1": None}
    assert len(list(source)) == 8


def test_nobody_at_the_other_end_is_left_to_the_client(server: Scripted) -> None:
    with Scripted() as other:
        url = other.url
    source = iter(objects(3))
    assert list(BulkPuts(url, TIMEOUT, head).create(source, 4, no_hurry)) == []
    assert len(list(source)) == 3
    assert not server.requests


def test_a_proxy_is_left_to_the_client(server: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "")
    source = iter(objects(3))
    assert create(server, source) == {}
    assert len(list(source)) == 3


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (b"", None),
        (b"HTTP/1.1 200 OK\r\n", None),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n1", None),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nETag: W/x\r\n\r\n",
            Answer(200, "W/x", is_last=False),
        ),
        (
            b"HTTP/1.1 412 No\r\ncontent-length:1\r\nConnection: Close\r\n\r\n-",
            Answer(412, "", is_last=True),
        ),
    ],
)
def test_answers_are_read_when_they_are_complete(text: bytes, answer: Answer | None) -> None:
    assert read_answer(text) == answer


@pytest.mark.parametrize(
    "text",
    [
        b"HTTP/1.0 200 OK\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"SSH-2.0\r\n\r\n",
        b"x" * (1 << 20),
    ],
)
def test_other_answers_are_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"answer|no end|literal"):
        read_answer(text)


def test_a_real_server_creates_objects_under_any_name_and_replaces_none(
    s3_server: S3Server,
) -> None:
    prefix = f"bulk puts/{uuid.uuid4().hex}"
    config = {"bucket": "swamp", "endpoint": s3_server.url, "prefix": prefix, **S3_KEY}
    store = CountingStore(store_config("s3", config, environ={}).open())
    assert store.capabilities.creates_many
    store.put("there", b"somebody else's")
    store.reset()
    wanted = [new(key, key.encode()) for key in (*AWKWARD_KEYS, "there", "empty/none")]
    wanted[-1] = new("empty/none", b"")
    made = {one.key: written for one, written in store.create_many(iter(wanted), 3, no_hurry)}
    assert made.pop("there") is None
    assert store.tally().requests == {"put": len(wanted)}
    assert store.tally().bytes_sent == sum(len(one.data) for one in wanted)
    assert store.get("there").data == b"somebody else's"
    for one in wanted:
        if one.key != "there":
            found, written = store.get(one.key), made[one.key]
            assert found.data == one.data
            assert written is not None
            assert (found.info.etag, found.info.token) == (written.etag, written.token)


@pytest.mark.parametrize(
    ("members", "environ"),
    [
        ({"endpoint": "https://127.0.0.1:9", **S3_KEY}, {}),
        (S3_KEY, {}),
        ({"endpoint": "http://127.0.0.1:9"}, {"AWS_WEB_IDENTITY_TOKEN_FILE": "/dev/null"}),
    ],
)
def test_what_the_client_alone_can_do_is_left_to_it(
    members: Mapping[str, str], environ: Mapping[str, str]
) -> None:
    config = store_config("s3", {"bucket": "swamp", **members}, environ=environ)
    assert isinstance(config, S3Config)
    assert config._bulk_puts() is None


def test_a_head_is_signed_for_its_second_and_with_the_token_of_a_session() -> None:
    config = store_config(
        "s3",
        {"bucket": "swamp", "endpoint": "http://host:1", **S3_KEY, "sessionToken": "of-a-session"},
        environ={},
    )
    assert isinstance(config, S3Config)
    times = [datetime(2026, 5, 14, 20, 19, second, tzinfo=UTC) for second in (1, 1, 1, 2)]
    clock = iter(times)
    heads = CreationHeads(config, lambda: next(clock))
    first, second, third = (heads.head(new("a b", b"x")) for _ in range(3))
    assert first == second
    assert first.startswith(b"PUT /swamp/a%20b HTTP/1.1\r\nhost:host:1\r\nif-none-match:*\r\n")
    assert b"\r\nx-amz-content-sha256:%s\r\n" % new("a b", b"x").sha256.encode() in first
    assert b"\r\nx-amz-security-token:of-a-session\r\n" in first
    assert b"x-amz-date:20260514T201901Z" in first
    assert b"x-amz-date:20260514T201902Z" in third


@pytest.mark.parametrize(
    ("members", "begins"),
    [
        ({}, b"PUT /swamp/a HTTP/1.1\r\nhost:host:1\r\n"),
        ({"prefix": "/team/a b/"}, b"PUT /swamp/team/a%20b/a HTTP/1.1\r\nhost:host:1\r\n"),
        ({"forcePathStyle": "false"}, b"PUT /a HTTP/1.1\r\nhost:swamp.host:1\r\n"),
    ],
)
def test_a_head_names_the_object_as_the_client_does(
    members: Mapping[str, str], begins: bytes
) -> None:
    config = {"bucket": "swamp", "endpoint": "http://host:1", **S3_KEY, **members}
    settings = store_config("s3", config, environ={})
    assert isinstance(settings, S3Config)
    assert CreationHeads(settings).head(new("a", b"x")).startswith(begins)
