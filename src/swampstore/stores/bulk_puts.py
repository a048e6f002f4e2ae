"""Many small objects created by one thread, which waits for all of its connections together.

The client has a thread wait for each request. Where a server is near, waking these threads one
after the other costs more than all else that is done about a small object; here there is only one.

Nothing is known here but success: the server says in plain HTTP/1.1 that it has created an object.
Whatever else happens, the object is handed back as one of which nobody knows; and after what no
sound server does, nothing more is sent. The caller puts such an object with the client, on the same
condition: that tells what is wrong, or meets the object if it was created after all. See
docs/decisions/0067-one-thread-sends-what-is-small.md.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator
from itertools import islice
from selectors import EVENT_READ, EVENT_WRITE, DefaultSelector
from typing import NamedTuple
from urllib.parse import urlsplit

from swampstore.stores.protocol import NewObject
from swampstore.stores.signed_requests import proxy_for

# Returns what is sent before the content of an object.
Head = Callable[[NewObject], bytes]

_CREATED = 200
# What sound servers say: done, or somebody else was faster, or is at it as well.
_EXPECTED = frozenset({_CREATED, 409, 412})
_LONGEST_CONNECT = 5.0
_PIECE = 64 << 10
_HTTP = b"HTTP/1.1 "


class Answer(NamedTuple):
    """What a server said; `is_last` says that it takes nothing more on this connection."""

    status: int
    etag: str
    is_last: bool


def read_answer(received: bytes) -> Answer | None:
    """Return an answer, None if more of it is to come; raise ValueError if it is no plain one."""
    head, end, body = received.partition(b"\r\n\r\n")
    if not end:
        if len(head) > _PIECE:
            raise ValueError("this head has no end")
        return None
    first, *lines = head.split(b"\r\n")
    headers: dict[bytes, bytes] = {}
    for line in lines:
        name, _, value = line.partition(b":")
        headers[name.lower()] = value.strip()
    if not first.startswith(_HTTP) or b"transfer-encoding" in headers:
        raise ValueError("this is not a plain answer")
    missing = int(headers.get(b"content-length", b"")) - len(body)
    if missing < 0:
        raise ValueError("this is more than an answer")
    if missing > 0:
        return None
    return Answer(
        status=int(first.removeprefix(_HTTP)[:3]),
        etag=headers.get(b"etag", b"").decode("ascii"),
        is_last=headers.get(b"connection", b"").lower() == b"close",
    )


class BulkPuts:
    """Creates objects on a server that is reached by plain HTTP. May be used from many threads.

    `timeout` is for how many seconds the server may say nothing at all.
    """

    def __init__(self, url: str, timeout: float, head: Head) -> None:
        self._url = urlsplit(url)
        self._timeout = timeout
        self._head = head

    def create(
        self, objects: Iterator[NewObject], at_once: int, remaining: Callable[[], float | None]
    ) -> Iterator[tuple[NewObject, str | None]]:
        """Create objects, and yield each with its ETag, or with None if nobody knows.

        Ends before all objects are taken if something is wrong with the server, or if there is a
        proxy before it. `remaining` returns how many seconds are left, and raises if none are.
        """
        try:
            first = self._connected()
        except OSError:
            return
        with contextlib.closing(_Exchange(first, self._head)) as exchange:
            for one in islice(objects, at_once):
                if not exchange.begin(one):
                    yield one, None
                    break
            while exchange.lines:
                left = remaining()
                ready = exchange.wait(self._timeout if left is None else min(left, self._timeout))
                if not ready:
                    remaining()
                    yield from ((line.object, None) for line in exchange.lines)
                    return
                for line in ready:
                    one, answer = line.object, exchange.go_on(line)
                    if answer is None:
                        continue
                    # The server has something to do while the caller looks at what is done.
                    following = next(objects, None) if exchange.is_sound else None
                    has_begun = following is not None and exchange.begin(following, line)
                    if not has_begun:
                        exchange.end(line)
                    yield one, answer.etag if answer.status == _CREATED else None
                    if following is not None and not has_begun:
                        yield following, None

    def _connected(self) -> socket.socket:
        if proxy_for(self._url) is not None:
            raise ConnectionError("a proxy is for the client")
        address = self._url.hostname or "", self._url.port or 80
        return socket.create_connection(address, min(self._timeout, _LONGEST_CONNECT))


class _Line:
    """A connection and the request that it is used for."""

    __slots__ = ("answers", "object", "received", "socket", "unsent")

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(0)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = connection
        self.object = NewObject("", b"", "")
        self.unsent = self.received = b""
        self.answers = 0

    def send(self) -> None:
        """Send what the connection takes of a request."""
        sent = self.socket.send(self.unsent)
        self.unsent = self.unsent[sent:]

    def receive(self) -> Answer | None:
        """Return the answer if all of it is there; raise OSError or ValueError if none will be."""
        piece = self.socket.recv(_PIECE)
        if not piece:
            raise ConnectionError("the server has ended the connection")
        self.received += piece
        return read_answer(self.received)


class _Exchange:
    """Requests to one server that are on their way; `is_sound` says whether to make more."""

    def __init__(self, first: socket.socket, head: Head) -> None:
        self.lines: set[_Line] = set()
        self.is_sound = True
        self._first: socket.socket | None = first
        # Where that one has found somebody, the others do as well.
        self._family, self._address = first.family, first.getpeername()
        self._head = head
        self._selector = DefaultSelector()

    def begin(self, one: NewObject, line: _Line | None = None) -> bool:
        """Send an object on a connection; if that fails, `go_on` tells.

        False if there is no connection, because this process may not open any more files.
        """
        if line is None or line not in self.lines:
            try:
                line = self._opened()
            except OSError:
                return False
        line.object, line.received = one, b""
        line.unsent = self._head(one) + one.data
        with contextlib.suppress(OSError):
            line.send()
        if line.unsent:
            self._selector.modify(line.socket, EVENT_WRITE, line)
        return True

    def _opened(self) -> _Line:
        connection, self._first = self._first or socket.socket(self._family), None
        line = _Line(connection)
        with contextlib.suppress(OSError):  # above all that it is not connected yet
            connection.connect(self._address)
        self._selector.register(connection, EVENT_READ, line)
        self.lines.add(line)
        return line

    def wait(self, seconds: float) -> list[_Line]:
        """Return the connections on which something can be done; none after so many seconds."""
        return [key.data for key, _ in self._selector.select(seconds)]

    def go_on(self, line: _Line) -> Answer | None:
        """Send more, or return the answer once it is there."""
        try:
            if line.unsent:
                line.send()
                if not line.unsent:
                    self._selector.modify(line.socket, EVENT_READ, line)
                return None
            answer = line.receive()
        except (OSError, ValueError) as error:
            if isinstance(error, BlockingIOError):
                return None
            # Servers do end connections that were of use.
            self.is_sound = self.is_sound and line.answers > 0
            self.end(line)
            return Answer(0, "", is_last=True)
        if answer is not None:
            line.answers += 1
            self.is_sound = self.is_sound and answer.status in _EXPECTED
            if answer.is_last:
                self.end(line)
        return answer

    def end(self, line: _Line) -> None:
        """Close a connection, if it is not yet."""
        if line in self.lines:
            self.lines.remove(line)
            self._selector.unregister(line.socket)
            line.socket.close()

    def close(self) -> None:
        """Close all connections, whatever is on its way."""
        for line in tuple(self.lines):
            self.end(line)
        if self._first is not None:
            self._first.close()
        self._selector.close()
