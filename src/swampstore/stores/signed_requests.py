"""Requests that the object-store client cannot make, sent by ourselves to URLs that it signed.

The client knows no condition for a deletion. A client with the condition among its default
headers would do, but making one takes 7 ms and a new connection for each deletion; here
connections are kept, so that a conditional deletion takes as long as a plain one. Failures are
raised in the client's words, so that they are read where all its failures are.
"""

from __future__ import annotations

import base64
import contextlib
import queue
import socket
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote, urlsplit

from obstore.exceptions import GenericError, PreconditionError

if TYPE_CHECKING:
    from http.client import HTTPConnection
    from urllib.parse import SplitResult

# More than that many at once are rare; the others are closed after use.
_IDLE = 32
_LONGEST_BODY = 4 << 20


class _Link(NamedTuple):
    """A connection, and whether it ends at a proxy that must be told the whole URL."""

    connection: HTTPConnection
    headers: Mapping[str, str]
    is_forwarding: bool


class SignedRequests:
    """Kept connections to one server. May be used from many threads."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._idle: list[_Link] = []
        self._lock = threading.Lock()
        self._is_closed = False

    def send(self, method: str, url: str, headers: Mapping[str, str]) -> bytes:
        """Send a request without a body; it may arrive twice if a kept connection breaks.

        Returns the answer's body.

        Raises FileNotFoundError (404), PreconditionError (412, or what Azure says when a condition
        on absence does not hold), GenericError (any other refusal)
        and OSError (no answer).
        """
        parts = urlsplit(url)
        status, body = self._answer(method, parts, headers)
        _check(status, f"{method} {parts.scheme}://{parts.netloc}{parts.path}", body)
        return body

    def _answer(
        self, method: str, parts: SplitResult, headers: Mapping[str, str]
    ) -> tuple[int, bytes]:
        link = self._kept()
        if link is not None:
            # Servers close what is idle for long, and that shows only when it is used.
            with contextlib.suppress(OSError):
                return self._ask(link, method, parts, headers)
        return self._ask(_connect(parts, self._timeout), method, parts, headers)

    def close(self) -> None:
        """Close the connections; those in use are closed after it."""
        self._is_closed = True
        while link := self._kept():
            link.connection.close()

    # Like the connections of the client, these go with the last reference to them.
    __del__ = close

    def _kept(self) -> _Link | None:
        with self._lock:
            return self._idle.pop() if self._idle else None

    def _ask(
        self, link: _Link, method: str, parts: SplitResult, headers: Mapping[str, str]
    ) -> tuple[int, bytes]:
        from http.client import HTTPException

        target = parts.geturl() if link.is_forwarding else f"{parts.path}?{parts.query}"
        try:
            link.connection.request(method, target, headers={**link.headers, **headers})
            answer = link.connection.getresponse()
            body = answer.read(_LONGEST_BODY)
            self._keep(link, is_usable=answer.isclosed() and not answer.will_close)
        except HTTPException as error:
            link.connection.close()
            raise OSError(f"no proper answer from {parts.netloc}: {error!r}") from error
        except BaseException:
            link.connection.close()
            raise
        return answer.status, body

    def _keep(self, link: _Link, *, is_usable: bool) -> None:
        with self._lock:
            if is_usable and not self._is_closed and len(self._idle) < _IDLE:
                self._idle.append(link)
                return
        link.connection.close()


def _check(status: int, what: str, body: bytes) -> None:
    if 200 <= status < 300:
        return
    said = body.decode(errors="replace")
    text = f"{what} - Server returned non-2xx status code: {status}: {said}"
    if status == 404:
        raise FileNotFoundError(text)
    if status == 412 or "<Code>BlobAlreadyExists</Code>" in said:
        raise PreconditionError(text)
    raise GenericError(text)


def is_silent(url: str, seconds: float) -> bool:
    """Whether nobody says anything to who wants to connect to a server; a refusal is an answer."""
    return _connected(url, seconds) is None


def takes_connections(url: str, seconds: float) -> bool:
    """Whether somebody is there, who need not answer."""
    return _connected(url, seconds) is True


def _connected(url: str, seconds: float) -> bool | None:
    """Whether a connection is taken, None if nobody says anything."""
    parts = urlsplit(url)
    asked = proxy_for(parts) or parts
    port = asked.port or (443 if asked.scheme == "https" else 80)
    told: queue.SimpleQueue[bool] = queue.SimpleQueue()

    def ask() -> None:
        is_taken = True
        try:
            socket.create_connection((asked.hostname or "", port), timeout=seconds).close()
        except TimeoutError:
            return
        except OSError:
            is_taken = False
        told.put(is_taken)

    # A name that nobody resolves takes its time as well, and cannot be told to hurry.
    threading.Thread(target=ask, name="reach", daemon=True).start()
    try:
        return told.get(timeout=seconds)
    except queue.Empty:
        return None


def proxy_for(parts: SplitResult) -> SplitResult | None:
    """Return the proxy that the environment names for a host."""
    from urllib.request import getproxies, proxy_bypass

    proxy = urlsplit(getproxies().get(parts.scheme, ""))
    return None if not proxy.hostname or proxy_bypass(parts.hostname or "") else proxy


def _connect(parts: SplitResult, timeout: float) -> _Link:
    """Return a connection, through the proxy that the environment names for this host."""
    from http.client import HTTPConnection, HTTPSConnection

    host = parts.hostname or ""
    make = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    proxy = proxy_for(parts)
    if proxy is None or proxy.hostname is None:
        return _Link(make(host, parts.port, timeout=timeout), {}, is_forwarding=False)
    link = _Link(
        make(proxy.hostname, proxy.port, timeout=timeout),
        _proxy_headers(proxy),
        is_forwarding=parts.scheme == "http",
    )
    if link.is_forwarding:
        return link
    link.connection.set_tunnel(host, parts.port, dict(link.headers))
    return link._replace(headers={})


def _proxy_headers(proxy: SplitResult) -> dict[str, str]:
    if proxy.username is None:
        return {}
    pair = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return {"Proxy-Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}
