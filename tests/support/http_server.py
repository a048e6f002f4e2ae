"""An HTTP server in a thread, on a free port of this machine, that answers as a test wants.

It speaks as much HTTP/1.1 as clients of object stores need, and it does so quickly: tests send
thousands of requests, and the library's own server would take most of their time.
"""

from __future__ import annotations

import contextlib
import io
import socket
import socketserver
import struct
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from http import HTTPStatus
from typing import NamedTuple, Self

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
_WITHOUT_BODY = frozenset({HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED})


class Request(NamedTuple):
    """What a client asked. Names of headers are in lower case."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes
    time: float


@dataclass(frozen=True, slots=True)
class Answer:
    """What to say. `cut` breaks the connection in the middle of the body.

    A `content-length` among the headers is believed, so that the answer to a HEAD can have one.
    """

    status: HTTPStatus = HTTPStatus.OK
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    cut: bool = False


class Server:
    """Subclasses say what to answer; None resets the connection without an answer."""

    def __init__(self) -> None:
        self._tcp = _Tcp(("127.0.0.1", 0), _Connection)
        self._tcp.owner = self
        self.url = f"http://127.0.0.1:{self._tcp.server_address[1]}"
        self.closing = threading.Event()

    def answer(self, request: Request) -> Answer | None:
        """Answer one request; called from many threads, one for each connection."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        threading.Thread(target=self._tcp.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.closing.set()
        self._tcp.shutdown()
        self._tcp.server_close()


def read_head(file: io.BufferedIOBase) -> tuple[str, dict[str, str]]:
    """Read the first line and the headers of a message; the line is empty at the stream's end."""
    first = file.readline().rstrip().decode("latin-1")
    headers = {}
    while line := file.readline().rstrip():
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.lower()] = value.strip()
    return first, headers


def head(first: str, headers: Mapping[str, str]) -> bytes:
    """Return the first line and the headers of a message as they are sent."""
    lines = [first, *(f"{name}: {value}" for name, value in headers.items()), "\r\n"]
    return "\r\n".join(lines).encode("latin-1")


class _Tcp(socketserver.ThreadingTCPServer):
    daemon_threads = True
    request_queue_size = 128
    owner: Server

    def __init__(self, address: tuple[str, int], handler: type[_Connection]) -> None:
        super().__init__(address, handler)
        self.open: set[socket.socket] = set()

    def server_close(self) -> None:
        super().server_close()
        for connection in list(self.open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: object, client_address: object) -> None:
        """Let the thread die of it, which pytest reports; printing it would not fail a test."""
        raise  # noqa: PLE0704 - called while the exception is handled


class _Connection(socketserver.StreamRequestHandler):
    disable_nagle_algorithm = True
    server: _Tcp
    request: socket.socket

    def handle(self) -> None:
        self.server.open.add(self.request)
        try:
            # A client that goes away in the middle is none of our business.
            with contextlib.suppress(ConnectionError):
                while self._answer_one():
                    pass
        finally:
            self.server.open.discard(self.request)

    def _answer_one(self) -> bool:
        """Answer the next request; return whether there may be another one."""
        first, headers = read_head(self.rfile)
        if not first:
            return False
        method, target, _ = first.split(" ")
        body = self.rfile.read(int(headers.get("content-length", 0)))
        answer = self.server.owner.answer(Request(method, target, headers, body, time.time()))
        if answer is None:
            self.request.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            return False
        # One packet: the second half would wait for the first one's acknowledgement.
        self.request.sendall(_encoded(answer, with_body=method != "HEAD"))
        return not answer.cut and headers.get("connection", "").lower() != "close"


def _encoded(answer: Answer, *, with_body: bool) -> bytes:
    headers = {"date": formatdate(usegmt=True), **answer.headers}
    if answer.status not in _WITHOUT_BODY:
        headers.setdefault("content-length", str(len(answer.body)))
    first = f"HTTP/1.1 {answer.status.value} {answer.status.phrase}"
    body = answer.body[: len(answer.body) // 2] if answer.cut else answer.body
    return head(first, headers) + (body if with_body else b"")
