"""A proxy in front of a real object store that counts every request and spoils some of them.

Clients are given the proxy's URL instead of the store's. Signatures cover the host that a client
believes to talk to, so that header, like all others, is passed on as it came.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import select
import socket
import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Protocol
from urllib.parse import parse_qsl, unquote, urlsplit

from tests.support import http_server
from tests.support.http_server import Answer, head, read_head

_CONDITIONS = frozenset(
    {
        *("if-match", "if-none-match", "x-amz-copy-source-if-match"),
        *("x-goog-if-generation-match", "x-goog-copy-source-if-generation-match"),
    }
)
_HOP_BY_HOP = frozenset({"connection", "keep-alive", "transfer-encoding"})
_TIMEOUT = 60.0
_ERROR_CODES = {
    500: "InternalError",
    503: "SlowDown",
    409: "ConditionalRequestConflict",
    412: "PreconditionFailed",
    403: "AccessDenied",
    404: "NoSuchKey",
}


@dataclass(slots=True)
class Request:
    """One request that came by. `status` is what the client was told, 0 if nothing (yet).

    `kind` is the method, except that a listing is LIST. `key` is below the proxy's prefix; that
    of a listing is what it lists. `sent` and `received` are bytes of bodies, as the client sees it.
    """

    kind: str
    key: str
    query: Mapping[str, str]
    conditions: Mapping[str, str]
    sent: int
    status: int = 0
    received: int = 0


class Fault(Protocol):
    """What to do instead of passing a request on and its answer back."""

    def spoil(self, forward: Callable[[], Answer], over: threading.Event) -> Answer | None:
        """Return the answer, None to reset the connection. `over` is set when the proxy ends."""


@dataclass(frozen=True)
class Status:
    """Refuse the request with a status; the store never sees it."""

    status: int

    def spoil(self, forward: Callable[[], Answer], over: threading.Event) -> Answer:
        body = f"<Error><Code>{_ERROR_CODES[self.status]}</Code></Error>"
        return Answer(HTTPStatus(self.status), body=body.encode())


@dataclass(frozen=True)
class Reset:
    """Reset the connection; the store never sees the request."""

    def spoil(self, forward: Callable[[], Answer], over: threading.Event) -> None:
        return None


@dataclass(frozen=True)
class Lost:
    """Let the store do what it was asked, and reset the connection instead of saying so."""

    def spoil(self, forward: Callable[[], Answer], over: threading.Event) -> None:
        forward()


@dataclass(frozen=True)
class Truncated:
    """Announce the whole body, send half of it, and close the connection."""

    def spoil(self, forward: Callable[[], Answer], over: threading.Event) -> Answer:
        return dataclasses.replace(forward(), cut=True)


@dataclass(frozen=True)
class Corrupt:
    """Flip a few bytes of the body, and keep its length."""

    def spoil(self, forward: Callable[[], Answer], over: threading.Event) -> Answer:
        answer = forward()
        body = bytearray(answer.body)
        for at in range(len(body) // 2, min(len(body) // 2 + 4, len(body))):
            body[at] ^= 0xFF
        return dataclasses.replace(answer, body=bytes(body))


@dataclass(frozen=True)
class Slow:
    """Wait before passing the request on."""

    seconds: float

    def spoil(self, forward: Callable[[], Answer], over: threading.Event) -> Answer:
        over.wait(self.seconds)
        return forward()


@dataclass(frozen=True)
class Meanwhile:
    """Do something else first: another client that is faster than this request."""

    action: Callable[[], object]

    def spoil(self, forward: Callable[[], Answer], over: threading.Event) -> Answer:
        self.action()
        return forward()


@dataclass(frozen=True)
class Hang:
    """Never answer; the store never sees the request."""

    def spoil(self, forward: Callable[[], Answer], over: threading.Event) -> None:
        over.wait()


@dataclass(slots=True)
class Rule:
    """Spoils matching requests: not the first `after` ones, then `times` (None: all) of them."""

    match: Callable[[Request], bool]
    fault: Fault
    times: int | None
    after: int
    fired: int = 0

    def fires(self, request: Request) -> bool:
        """Whether this request is to be spoilt; counts it if so."""
        if self.fired == self.times or not self.match(request):
            return False
        if self.after:
            self.after -= 1
            return False
        self.fired += 1
        return True


class FaultProxy(http_server.Server):
    """Passes requests on to `target_url`; `prefix` is what its keys have in front in the bucket."""

    def __init__(self, target_url: str, prefix: str = "") -> None:
        super().__init__()
        self.requests: list[Request] = []
        self._prefix = f"{prefix}/" if prefix else ""
        self._upstream = _Upstream(target_url)
        self._rules: list[Rule] = []
        self._lock = threading.Lock()

    def fail(
        self,
        match: Callable[[Request], bool],
        fault: Fault,
        times: int | None = 1,
        after: int = 0,
    ) -> Rule:
        """Spoil requests from now on; the first rule that wants a request gets it."""
        rule = Rule(match, fault, times, after)
        with self._lock:
            self._rules.append(rule)
        return rule

    def heal(self) -> None:
        """Spoil nothing any more."""
        with self._lock:
            self._rules.clear()

    def counts(self) -> dict[str, int]:
        """Return how many requests of each kind came by."""
        return dict(Counter(request.kind for request in self.requests))

    def reset(self) -> None:
        """Forget the requests so far; rules stay."""
        self.requests = []

    def answer(self, request: http_server.Request) -> Answer | None:
        record = self._record(request)
        self.requests.append(record)
        with self._lock:
            fault = next((rule.fault for rule in self._rules if rule.fires(record)), None)

        def forward() -> Answer:
            return self._upstream.ask(request)

        answer = fault.spoil(forward, self.closing) if fault else forward()
        if answer is not None:
            record.status = answer.status
            record.received = len(answer.body) // (2 if answer.cut else 1)
        return answer

    def __exit__(self, *exc: object) -> None:
        super().__exit__(*exc)
        self._upstream.close()

    def _record(self, request: http_server.Request) -> Request:
        parts = urlsplit(request.target)
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        _, _, key = unquote(parts.path).lstrip("/").partition("/")
        listing = request.method == "GET" and not key
        return Request(
            kind="LIST" if listing else request.method,
            key=(query.get("prefix", "") if listing else key).removeprefix(self._prefix),
            query=query,
            conditions={k: v for k, v in request.headers.items() if k in _CONDITIONS},
            sent=len(request.body),
        )


class _Upstream:
    """Connections to the real server, used again as long as it keeps them."""

    def __init__(self, url: str) -> None:
        host, _, port = url.partition("://")[2].partition(":")
        self._address = (host, int(port))
        self._idle: deque[_Link] = deque()
        self._closed = False

    def ask(self, request: http_server.Request) -> Answer:
        link = self._link()
        try:
            answer, reusable = link.ask(request)
        except BaseException:
            link.close()
            raise
        if reusable and not self._closed:
            self._idle.append(link)
        else:
            link.close()
        return answer

    def _link(self) -> _Link:
        with contextlib.suppress(IndexError):
            while True:
                link = self._idle.pop()
                if link.is_alive():
                    return link
                link.close()
        return _Link(socket.create_connection(self._address, timeout=_TIMEOUT))

    def close(self) -> None:
        self._closed = True
        with contextlib.suppress(IndexError):
            while True:
                self._idle.pop().close()


class _Link:
    """One connection to the real server."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connection
        self._file = connection.makefile("rb")
        self._news = select.poll()
        self._news.register(connection, select.POLLIN)

    def is_alive(self) -> bool:
        """Whether the server has not closed the connection while nobody used it."""
        return not self._news.poll(0)

    def ask(self, request: http_server.Request) -> tuple[Answer, bool]:
        """Return the answer, and whether the connection can be used again."""
        headers = {k: v for k, v in request.headers.items() if k not in _HOP_BY_HOP}
        first = f"{request.method} {request.target} HTTP/1.1"
        self._socket.sendall(head(first, headers) + request.body)
        first, headers = read_head(self._file)
        if not first:
            raise ConnectionResetError("the server closed the connection without an answer")
        status = HTTPStatus(int(first.split(" ", 2)[1]))
        body = b"" if request.method == "HEAD" else _read_body(self._file, headers)
        reusable = headers.get("connection", "").lower() != "close"
        kept = {k: v for k, v in headers.items() if k not in _HOP_BY_HOP}
        return Answer(status, kept, body), reusable

    def close(self) -> None:
        self._file.close()
        self._socket.close()


def _read_body(file: io.BufferedIOBase, headers: Mapping[str, str]) -> bytes:
    if headers.get("transfer-encoding", "") != "chunked":
        return file.read(int(headers.get("content-length", 0)))
    chunks = []
    while size := int(file.readline(), 16):
        chunks.append(file.read(size))
        file.readline()
    file.readline()
    return b"".join(chunks)
