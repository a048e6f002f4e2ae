"""A server that misbehaves: what becomes of requests, and what a user is told."""

from __future__ import annotations

import dataclasses
import io
import os
import re
import ssl
import threading
import time
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import BinaryIO
from urllib.parse import parse_qs, urlsplit

import pytest

from swampstore.errors import SwampstoreError
from swampstore.stores import Store, obstore_store, store_config
from swampstore.stores.errors import (
    PreconditionFailedError,
    StoreCredentialsError,
    StoreError,
    StoreMissingError,
    StorePermissionError,
    StoreUnreachableError,
    UnsupportedOperationError,
    UntrustworthyStoreError,
)
from swampstore.stores.memory import MemoryStore
from swampstore.stores.probe import examine, probe, proves_conditional_delete
from swampstore.stores.protocol import Written
from swampstore.stores.retry import RetryingStore, RetryPolicy
from swampstore.stores.signed_requests import SignedRequests
from tests.support.gcs_server import GcsServer
from tests.support.http_server import Answer, Request, Server

SHORT_PAUSES = tuple(0.01 for _ in obstore_store._PAGE_PAUSES)


class Scripted(Server):
    """Answers every request alike, and remembers what was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.reply: Answer | None = Answer(headers={"etag": '"e"'})
        self.replies: Iterator[Answer | None] = iter(())
        self.delay = 0.0
        self.requests: list[Request] = []

    def answer(self, request: Request) -> Answer | None:
        self.requests.append(request)
        time.sleep(self.delay)
        return next(self.replies, self.reply)

    def refuse(self, status: HTTPStatus, code: str) -> None:
        self.reply = Answer(status, body=f"<Error><Code>{code}</Code></Error>".encode())


@pytest.fixture
def server() -> Iterator[Scripted]:
    with Scripted() as server:
        yield server


@pytest.fixture
def s3(server: Scripted) -> Store:
    """The bare store: one request for each operation."""
    config = {
        "bucket": "swamp",
        "endpoint": server.url,
        "accessKeyId": "k",
        "secretAccessKey": "the-secret",
        "requestTimeoutMs": 1000,
    }
    return store_config("s3", config, environ={}).open()


@pytest.mark.parametrize("status", [500, 502, 503, 504, 429, 408])
def test_answers_that_say_try_again_are_transient(server: Scripted, s3: Store, status: int) -> None:
    server.refuse(HTTPStatus(status), "SlowDown")
    with pytest.raises(StoreUnreachableError, match=str(status)):
        s3.get("a")
    with pytest.raises(StoreUnreachableError):
        s3.put("a", b"x")
    assert [request.method for request in server.requests] == ["GET", "PUT"]


def test_h50_a_connection_that_is_cut_is_transient_and_not_repeated(
    server: Scripted, s3: Store
) -> None:
    server.reply = None
    with pytest.raises(StoreUnreachableError):
        s3.put_if_absent("a", b"x")
    assert len(server.requests) == 1


def test_silence_is_transient_after_the_timeout(server: Scripted, s3: Store) -> None:
    server.delay = 3.0
    start = time.monotonic()
    with pytest.raises(StoreUnreachableError):
        s3.get("a")
    assert time.monotonic() - start < 15


@pytest.mark.slow
def test_a_large_body_gets_the_time_that_it_takes_to_send(server: Scripted, s3: Store) -> None:
    server.delay = 1.5
    with pytest.raises(StoreUnreachableError):
        s3.put_if_absent("a", b"x")
    s3.put_if_absent("a", io.BytesIO(bytes(5 << 20)))


def test_nothing_is_written_in_parts_that_a_killed_process_would_leave(
    server: Scripted, s3: Store
) -> None:
    body = io.BytesIO(bytes(11 << 20))
    s3.put("a", body)
    s3.put("a", body.getvalue())
    s3.put_if_absent("a", body)
    s3.put_if_match("a", body, "e")
    assert [(one.method, one.target) for one in server.requests] == [("PUT", "/swamp/a")] * 4


def test_what_is_too_large_for_one_request_is_refused_before_anything_is_sent(
    server: Scripted, s3: Store, tmp_path: Path
) -> None:
    with (tmp_path / "huge").open("wb+") as file:
        file.truncate((5 << 30) + 1)
        with pytest.raises(UnsupportedOperationError, match="5368709121"):
            s3.put_if_absent("a", file)
    assert server.requests == []


def test_half_a_body_is_never_taken_for_the_whole(
    server: Scripted, s3: Store, tmp_path: Path
) -> None:
    headers = {"etag": '"e"', "last-modified": "Thu, 14 May 2026 20:19:51 GMT"}
    whole = Answer(headers=headers, body=os.urandom(3 << 20))
    server.reply = dataclasses.replace(whole, cut=True)
    with pytest.raises(StoreUnreachableError):
        s3.get("a")
    with (tmp_path / "file").open("wb") as file:
        with pytest.raises(StoreUnreachableError):
            s3.download("a", file.fileno())
        server.replies = iter([server.reply, whole])
        RetryingStore(s3, RetryPolicy(first_delay=0)).download("a", file.fileno())
    assert (tmp_path / "file").read_bytes() == whole.body


def test_a_deletion_is_one_plain_request(server: Scripted, s3: Store) -> None:
    server.reply = Answer(HTTPStatus.NO_CONTENT)
    s3.delete("data/a")
    assert [(one.method, one.target) for one in server.requests] == [("DELETE", "/swamp/data/a")]


def test_a_conditional_deletion_is_one_request_that_carries_the_condition(
    server: Scripted, s3: Store
) -> None:
    server.reply = Answer(HTTPStatus.NO_CONTENT)
    s3.delete_if_match("data/a b", "etag")
    s3.delete_if_match("data/a b", "etag")
    assert [
        (one.method, urlsplit(one.target).path, one.headers["if-match"]) for one in server.requests
    ] == [("DELETE", "/swamp/data/a%20b", '"etag"')] * 2


def test_a_conditional_deletion_survives_a_connection_that_was_closed_while_idle(
    server: Scripted, s3: Store
) -> None:
    gone = Answer(HTTPStatus.NO_CONTENT)
    server.reply = gone
    s3.delete_if_match("a", "etag")
    server.reply, server.replies = None, iter([None, gone])
    s3.delete_if_match("a", "etag")
    with pytest.raises(StoreUnreachableError):
        s3.delete_if_match("a", "etag")


def test_a_conditional_deletion_does_not_depend_on_the_certificates_of_python(
    server: Scripted, s3: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def distrusting(*_: object) -> bytes:
        raise ssl.SSLCertVerificationError("unable to get local issuer certificate")

    monkeypatch.setattr(SignedRequests, "send", distrusting)
    server.reply = Answer(HTTPStatus.NO_CONTENT)
    s3.delete_if_match("a", "etag")
    [request] = server.requests
    assert (request.target, request.headers["if-match"]) == ("/swamp/a", '"etag"')


def test_a_conditional_deletion_goes_through_the_proxy_that_everything_goes_through(
    server: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", server.url.replace("//", "//ana:secret@"))
    server.reply = Answer(HTTPStatus.NO_CONTENT)
    config = {"bucket": "swamp", "endpoint": "http://store.example", "accessKeyId": "k"}
    store = store_config("s3", {**config, "secretAccessKey": "s"}, environ={}).open()
    store.delete("a")
    store.delete_if_match("a", "etag")
    plain, conditional = server.requests
    assert plain.target == "http://store.example/swamp/a"
    assert conditional.target.startswith("http://store.example/swamp/a?")
    sent = conditional.headers["proxy-authorization"]
    assert sent == plain.headers["proxy-authorization"]


@pytest.mark.parametrize(
    ("status", "code", "told"),
    [
        (403, "AccessDenied", StorePermissionError),
        (403, "SignatureDoesNotMatch", StoreCredentialsError),
        (404, "NoSuchBucket", StoreMissingError),
        (409, "ConditionalRequestConflict", StoreUnreachableError),
        (503, "SlowDown", StoreUnreachableError),
    ],
)
def test_a_refused_conditional_deletion_is_told_without_its_signature(
    server: Scripted, s3: Store, status: int, code: str, told: type[StoreError]
) -> None:
    server.refuse(HTTPStatus(status), code)
    with pytest.raises(told, match=code) as error:
        s3.delete_if_match("a", "etag")
    assert "Signature=" not in str(error.value)


def test_nobody_listening_is_transient() -> None:
    config = {"bucket": "swamp", "endpoint": "http://127.0.0.1:1", "accessKeyId": "k"}
    store = store_config("s3", {**config, "secretAccessKey": "s"}, environ={}).open()
    with pytest.raises(StoreUnreachableError, match="swamp") as told:
        store.head("a")
    assert "network" in (told.value.hint or "")
    with pytest.raises(StoreUnreachableError):
        store.clock()


@pytest.mark.parametrize(
    ("status", "code", "error", "hint"),
    [
        (403, "AccessDenied", StorePermissionError, "s3:ListBucket"),
        (403, "InvalidAccessKeyId", StoreCredentialsError, "aws sso login"),
        (403, "SignatureDoesNotMatch", StoreCredentialsError, "AWS_ACCESS_KEY_ID"),
        (400, "ExpiredToken", StoreCredentialsError, "aws sso login"),
        (401, "Unauthorized", StoreCredentialsError, "aws sso login"),
        (400, "InvalidRequest", StoreError, "region"),
    ],
)
def test_h67_a_refusal_names_its_cause_and_a_remedy(
    server: Scripted, s3: Store, status: int, code: str, error: type[StoreError], hint: str
) -> None:
    server.refuse(HTTPStatus(status), code)
    with pytest.raises(error) as told:
        s3.get("data/a")
    assert type(told.value) is error
    assert code in str(told.value) or str(status) in str(told.value)
    assert hint in (told.value.hint or "")
    assert "the-secret" not in str(told.value)
    with pytest.raises(error):
        list(s3.list("data/"))


def test_a_redirect_to_another_region_is_not_worth_another_try(server: Scripted, s3: Store) -> None:
    server.refuse(HTTPStatus.MOVED_PERMANENTLY, "PermanentRedirect")
    with pytest.raises(StoreError, match="region") as told:
        s3.get("a")
    assert not isinstance(told.value, StoreUnreachableError)


def test_the_environment_of_the_process_does_not_mix_with_what_was_configured(
    server: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of-another-session")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "of-another-key")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1")
    config = {"bucket": "swamp", "endpoint": server.url, "accessKeyId": "own"}
    store = store_config("s3", {**config, "secretAccessKey": "s"}, environ={}).open()
    store.put("a", b"x")
    [request] = server.requests
    assert "x-amz-security-token" not in request.headers
    assert "Credential=own/" in request.headers["authorization"]


@pytest.mark.parametrize("status", [409, 412])
def test_conflicts_of_conditional_writes_are_failed_preconditions(
    server: Scripted, s3: Store, status: int
) -> None:
    server.refuse(HTTPStatus(status), "ConditionalRequestConflict")
    with pytest.raises(PreconditionFailedError):
        s3.put_if_absent("a", b"x")
    with pytest.raises(PreconditionFailedError):
        s3.put_if_match("a", b"x", "token")
    sent = [request.headers for request in server.requests]
    assert sent[0]["if-none-match"] == "*"
    assert sent[1]["if-match"] == '"token"'


def test_a_conflict_of_a_plain_put_is_transient(server: Scripted, s3: Store) -> None:
    server.refuse(HTTPStatus.CONFLICT, "OperationAborted")
    with pytest.raises(StoreUnreachableError):
        s3.put("a", b"x")


def test_a_failed_page_of_a_listing_is_asked_for_again(server: Scripted, s3: Store) -> None:
    pages = iter([Answer(HTTPStatus.SERVICE_UNAVAILABLE), Answer(body=b"<ListBucketResult/>")])
    server.replies = pages
    assert list(s3.list()) == []
    assert len(server.requests) == 2


def page(*keys: str, more: str = "") -> Answer:
    """A page of a listing, the last one if nothing tells where there is more."""
    entries = "".join(
        f"<Contents><Key>{key}</Key><Size>1</Size><ETag>e</ETag>"
        "<LastModified>2026-05-14T20:19:51Z</LastModified></Contents>"
        for key in keys
    )
    told = f"<IsTruncated>true</IsTruncated><NextContinuationToken>{more}</NextContinuationToken>"
    body = f"<ListBucketResult>{entries}{told if more else ''}</ListBucketResult>"
    return Answer(body=body.encode())


def test_a_listing_that_breaks_off_goes_on_where_it_was(
    server: Scripted, s3: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(obstore_store, "_PAGE", 2)
    monkeypatch.setattr(obstore_store, "_PAGE_PAUSES", SHORT_PAUSES)
    broken = dataclasses.replace(page("data/e"), cut=True)
    server.replies = iter(
        [
            *(page("data/a", "data/b", more="1"), broken, broken, broken),
            *(page("data/c", "data/d", more="2"), broken, page("data/e")),
        ]
    )
    assert [info.key for info in s3.list("data/")] == [f"data/{name}" for name in "abcde"]
    starts = [parse_qs(urlsplit(one.target).query) for one in server.requests]
    assert [start.get("start-after") for start in starts] == [
        *(None, None, ["data/b"], ["data/b"], ["data/b"]),
        *(["data/b"], ["data/d"]),
    ]


def test_a_listing_that_always_breaks_off_is_given_up(
    server: Scripted, s3: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(obstore_store, "_PAGE_PAUSES", SHORT_PAUSES)
    server.reply = dataclasses.replace(page("data/a"), cut=True)
    with pytest.raises(StoreUnreachableError, match="list data/"):
        list(s3.list("data/"))
    assert len(server.requests) == 1 + len(SHORT_PAUSES)


def test_every_error_has_a_hint(server: Scripted, s3: Store) -> None:
    for status in (301, 400, 401, 403, 404, 405, 409, 412, 416, 429, 500, 503):
        server.refuse(HTTPStatus(status), "Whatever")
        with pytest.raises(SwampstoreError) as told:
            s3.put("a", b"x")
        assert told.value.hint, status


class NoConditions(GcsServer):
    """A server that accepts conditional writes and ignores their conditions."""

    def answer(self, request: Request) -> Answer:
        plain = {k: v for k, v in request.headers.items() if not k.startswith("x-goog-if")}
        return super().answer(request._replace(headers=plain))


def test_a_server_that_ignores_conditions_is_refused() -> None:
    with NoConditions() as server:
        config = {"bucket": "swamp", "apiEndpoint": server.url}
        store = store_config("gs", config, environ={}).open()
        report = probe(store)
        wrong = {finding.name: finding.problem for finding in report.findings if not finding.ok}
        assert set(wrong) == {
            "conditional create",
            "conditional update",
            "refusal of a stale update",
            "refusal of a stale deletion",
        }
        assert re.search("^32 of 32 writers .* ignores conditions", wrong["conditional create"])
        with pytest.raises(UntrustworthyStoreError, match="cannot be shared safely"):
            report.check()
        assert list(store.list()) == []


def test_a_store_that_lets_two_writers_win_is_refused() -> None:
    class Twice(MemoryStore):
        def put_if_absent(self, key: str, body: bytes | BinaryIO) -> Written:
            return (
                self.put(key, body)
                if isinstance(body, bytes) and body.startswith(b"racer 3")
                else super().put_if_absent(key, body)
            )

    report = probe(Twice())
    assert [one.name for one in report.findings if not one.ok] == ["conditional create"]


class Meeting(MemoryStore):
    """A store that answers the first writes when all of them are there; it notes what races."""

    def __init__(self, writers: int) -> None:
        super().__init__("meeting")
        self._writers = writers
        self._lock = threading.Lock()
        self._all_there = threading.Barrier(writers, timeout=20)
        self.puts: list[str] = []
        self.raced: list[str] = []

    def put(self, key: str, body: bytes | BinaryIO) -> Written:
        with self._lock:
            self.puts.append(key)
            is_one_of_the_first = len(self.puts) <= self._writers
        if is_one_of_the_first:
            self._all_there.wait()
        return super().put(key, body)

    def put_if_absent(self, key: str, body: bytes | BinaryIO) -> Written:
        self.raced.append(key)
        return super().put_if_absent(key, body)

    def put_if_match(self, key: str, body: bytes | BinaryIO, token: str) -> Written:
        self.raced.append(key)
        return super().put_if_match(key, body, token)


def test_what_needs_no_race_is_tried_at_once_and_each_race_by_itself() -> None:
    store = Meeting(writers=5)
    report = probe(store, racers=8)
    assert report.ok
    assert len(set(store.puts[:5])) == 5
    races = [key.rpartition("/")[2] for key in store.raced[-16:]]
    assert races == ["created"] * 8 + ["updated-0"] * 8


class Dawdling(MemoryStore):
    """A store that has some who lose a race wait for their answer, or lets them win late."""

    def __init__(self, *, lets_win: bool = False) -> None:
        super().__init__("dawdling")
        self.go_on = threading.Event()
        self._lets_win = lets_win
        self.late = threading.Semaphore(0)

    def put_if_absent(self, key: str, body: bytes | BinaryIO) -> Written:
        try:
            return super().put_if_absent(key, body)
        except PreconditionFailedError:
            if not isinstance(body, bytes) or int(body.split()[1]) % 4:
                raise
        self.go_on.wait(20)
        if not self._lets_win:
            raise PreconditionFailedError(key)
        return super().put(key, body)

    def delete(self, key: str) -> None:
        super().delete(key)
        if self.go_on.is_set():
            self.late.release()


def test_the_last_losers_of_a_race_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swampstore.stores.probe._PATIENCE", 0.1)
    store = Dawdling()
    assert probe(store, racers=8).ok
    assert not store.go_on.is_set()
    store.go_on.set()


def test_who_wins_a_race_after_it_is_over_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swampstore.stores.probe._PATIENCE", 0.1)
    store = Dawdling(lets_win=True)
    assert probe(store, racers=8).ok
    store.go_on.set()
    assert store.late.acquire(timeout=20)
    assert list(store.list()) == []


class DeletesAnyway(MemoryStore):
    """A store that ignores the condition of a deletion."""

    def delete_if_match(self, key: str, token: str) -> None:
        self.delete(key)


def test_a_store_that_deletes_whatever_the_condition_is_fit_for_sharing_and_found_out() -> None:
    report = probe(DeletesAnyway("deletes-anyway"))
    report.check()
    assert [one.name for one in report.findings if not one.ok] == ["refusal of a stale deletion"]


def test_a_conditional_deletion_is_proven_or_not() -> None:
    honest, careless = MemoryStore("honest"), DeletesAnyway("careless")
    assert proves_conditional_delete(honest)
    assert not proves_conditional_delete(careless)
    assert list(honest.list()) == list(careless.list()) == []


def test_the_probe_of_a_store_out_of_reach_is_a_report(server: Scripted, s3: Store) -> None:
    server.refuse(HTTPStatus.FORBIDDEN, "AccessDenied")
    report = probe(s3, racers=2)
    assert not report.ok
    assert all("AccessDenied" in finding.problem for finding in report.findings[:2])


def test_a_store_that_answers_is_healthy() -> None:
    health = examine(MemoryStore())
    assert health.healthy
    health.check()


def test_a_store_that_refuses_is_unhealthy_with_the_reason(server: Scripted, s3: Store) -> None:
    server.refuse(HTTPStatus.FORBIDDEN, "AccessDenied")
    health = examine(s3)
    assert not health.healthy
    with pytest.raises(StorePermissionError, match="AccessDenied"):
        health.check()


def test_h68_a_silent_store_is_not_waited_for(server: Scripted, s3: Store) -> None:
    server.delay = 2.0
    health = examine(s3, timeout=0.2)
    assert health.latency < 1.0
    with pytest.raises(StoreUnreachableError, match=r"within 0\.2 s"):
        health.check()
