"""The one wrapper around a store: whoever adds something to every request overrides a hook.

A single request goes through `around`, with what is known of it beforehand; what comes in pieces,
a listing, goes through `listing`. Retries, counts, deadlines and the faults that tests inject are
such hooks. What a store can do beyond the protocol (see `swampstore.stores.protocol`), a wrapper
around it can do too.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import BinaryIO, NamedTuple, Self, TypeVar, cast

from swampstore.stores.paths import (
    KeepsPaths,
    PathCursor,
    PathsCommit,
    SmallFile,
    StoredPath,
)
from swampstore.stores.protocol import (
    Capabilities,
    CreatesMany,
    Fetched,
    Handed,
    Level,
    Limit,
    NewObject,
    ObjectInfo,
    Store,
    Wanted,
    Written,
    admitted_limits,
    contents,
    excerpt,
    level,
    size_of,
)

T = TypeVar("T")


class Request(NamedTuple):
    """What is known of a request before it is made.

    `operation` is the name of the store's method, `key` the object that it is about (of a copy the
    one that is written, of a listing the prefix), `sent` how many bytes of content go with it.
    """

    operation: str
    key: str = ""
    sent: int = 0

    @property
    def kind(self) -> str:
        """What services call it: get, head, list, put, delete, copy or clock."""
        return _KINDS.get(self.operation, self.operation)

    @property
    def writes(self) -> bool:
        """Whether it may change something."""
        return self.kind in {"put", "delete", "copy"}


_KINDS = {
    "get_if_changed": "get",
    "download": "get",
    "excerpt": "get",
    "level": "list",
    "contents": "list",
    "changed_paths": "list",
    "known_paths": "list",
    "paths_between": "list",
    "admitted_limits": "head",
    "newest_path": "head",
    "last_path_commit": "head",
    "commit_paths": "put",
    "put_files": "put",
    "put_if_absent": "put",
    "put_if_match": "put",
    "delete_if_match": "delete",
    "copy_if_absent": "copy",
}


class StoreWrapper:
    """A store around a store, which stands for the same place. By itself it adds nothing."""

    def __init__(self, inner: Store) -> None:
        self.inner = inner

    def around(self, request: Request, send: Callable[[], T]) -> T:  # noqa: ARG002 - for hooks
        """Make a request and return its answer, or raise what became of it.

        A hook acts before `send`, after it, on what it raises or in its place; `send` may be called
        again.
        """
        return send()

    def listing(self, request: Request, found: Iterator[T]) -> Iterator[T]:  # noqa: ARG002 - same
        """Yield what a listing finds. It cannot be repeated: after an error it is at its end."""
        return found

    @property
    def identity(self) -> str:
        """See Store.identity."""
        return self.inner.identity

    @property
    def capabilities(self) -> Capabilities:
        """See Store.capabilities."""
        return self.inner.capabilities

    def get(self, key: str) -> Fetched:
        """See Store.get."""
        return self.around(Request("get", key), lambda: self.inner.get(key))

    def get_if_changed(self, key: str, etag: str) -> Fetched | None:
        """See Store.get_if_changed."""
        request = Request("get_if_changed", key)
        return self.around(request, lambda: self.inner.get_if_changed(key, etag))

    def download(
        self, key: str, fd: int, *, size: int | None = None, sha256: str | None = None
    ) -> ObjectInfo:
        """See Store.download."""
        request = Request("download", key)
        return self.around(request, lambda: self.inner.download(key, fd, size=size, sha256=sha256))

    def excerpt(self, key: str, start: int, length: int) -> bytes:
        """See swampstore.stores.protocol."""
        request = Request("excerpt", key)
        return self.around(request, lambda: excerpt(self.inner, key, start, length))

    def head(self, key: str) -> ObjectInfo:
        """See Store.head."""
        return self.around(Request("head", key), lambda: self.inner.head(key))

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """See Store.list."""
        return self.listing(Request("list", prefix), self.inner.list(prefix))

    def contents(self, prefix: str, wanted: Wanted, limit: int) -> Iterator[Handed]:
        """See swampstore.stores.protocol."""
        found = contents(self.inner, prefix, wanted, limit)
        return self.listing(Request("contents", prefix), found)

    def level(self, prefix: str = "") -> Level:
        """See swampstore.stores.protocol."""
        return self.around(Request("level", prefix), lambda: level(self.inner, prefix))

    def put(self, key: str, body: bytes | BinaryIO) -> Written:
        """See Store.put."""
        return self.around(Request("put", key, size_of(body)), lambda: self.inner.put(key, body))

    def put_if_absent(self, key: str, body: bytes | BinaryIO) -> Written:
        """See Store.put_if_absent."""
        request = Request("put_if_absent", key, size_of(body))
        return self.around(request, lambda: self.inner.put_if_absent(key, body))

    def create_many(
        self, objects: Iterator[NewObject], at_once: int, remaining: Callable[[], float | None]
    ) -> Iterator[tuple[NewObject, Written | None]]:
        """See CreatesMany.create_many. Hooks are not told: all that fails is asked for again."""
        return cast("CreatesMany", self.inner).create_many(objects, at_once, remaining)

    def put_if_match(self, key: str, body: bytes | BinaryIO, token: str) -> Written:
        """See Store.put_if_match."""
        request = Request("put_if_match", key, size_of(body))
        return self.around(request, lambda: self.inner.put_if_match(key, body, token))

    def delete(self, key: str) -> None:
        """See Store.delete."""
        self.around(Request("delete", key), lambda: self.inner.delete(key))

    def delete_if_match(self, key: str, token: str) -> None:
        """See Store.delete_if_match."""
        request = Request("delete_if_match", key)
        self.around(request, lambda: self.inner.delete_if_match(key, token))

    def copy(self, source: str, target: str) -> None:
        """See Store.copy."""
        self.around(Request("copy", target), lambda: self.inner.copy(source, target))

    def copy_if_absent(self, source: str, target: str, token: str) -> None:
        """See Store.copy_if_absent."""
        request = Request("copy_if_absent", target)
        self.around(request, lambda: self.inner.copy_if_absent(source, target, token))

    def admitted_limits(self) -> Sequence[Limit]:
        """See swampstore.stores.protocol."""
        return self.around(Request("admitted_limits"), lambda: admitted_limits(self.inner))

    # What `capabilities.keeps_paths` promises; nobody else is asked for it.

    def put_files(self, prefix: str, files: Mapping[str, SmallFile]) -> Collection[str]:
        """See KeepsPaths.put_files."""
        request = Request("put_files", prefix, sum(len(one.data) for one in files.values()))
        return self.around(request, lambda: self._keeper.put_files(prefix, files))

    def changed_paths(
        self, prefix: str, since: PathCursor | None, below: Sequence[str] = ()
    ) -> Iterator[StoredPath]:
        """See KeepsPaths.changed_paths."""
        found = self._keeper.changed_paths(prefix, since, below)
        return self.listing(Request("changed_paths", prefix), found)

    def known_paths(
        self, prefix: str, rels: Collection[str], below: Collection[str]
    ) -> Iterator[StoredPath]:
        """See KeepsPaths.known_paths."""
        found = self._keeper.known_paths(prefix, rels, below)
        return self.listing(Request("known_paths", prefix), found)

    def paths_between(self, prefix: str, start: str, end: str | None) -> Iterator[StoredPath]:
        """See KeepsPaths.paths_between."""
        found = self._keeper.paths_between(prefix, start, end)
        return self.listing(Request("paths_between", prefix), found)

    def commit_paths(self, prefix: str, commit: PathsCommit) -> Written:
        """See KeepsPaths.commit_paths."""
        request = Request("commit_paths", prefix)
        return self.around(request, lambda: self._keeper.commit_paths(prefix, commit))

    def newest_path(self, prefix: str) -> datetime | None:
        """See KeepsPaths.newest_path."""
        request = Request("newest_path", prefix)
        return self.around(request, lambda: self._keeper.newest_path(prefix))

    def last_path_commit(self, prefix: str) -> int:
        """See KeepsPaths.last_path_commit."""
        request = Request("last_path_commit", prefix)
        return self.around(request, lambda: self._keeper.last_path_commit(prefix))

    @property
    def _keeper(self) -> KeepsPaths:
        return cast("KeepsPaths", self.inner)

    def clock(self) -> datetime:
        """See Store.clock."""
        return self.around(Request("clock"), self.inner.clock)

    def close(self) -> None:
        """See Store.close."""
        self.inner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


# How many objects the services put on one page of a listing.
_PAGE = 1000


class Tally(NamedTuple):
    """Requests by kind, and bytes of content in both directions.

    The kinds are get, head, list, put, delete, copy and clock; those that never happened are
    missing. A request counts when it is made, however it ends, and so do the bytes it sends;
    received bytes count when they are all there. A listing counts a request for every 1,000
    objects it has begun to yield, at least one, and one more for each content that comes with it.
    """

    requests: dict[str, int]
    bytes_sent: int
    bytes_received: int


class CountingStore(StoreWrapper):
    """A store that keeps count of what is asked of it: requests and bytes are what remotes cost.

    Around a store with retries it counts operations; inside the retries it counts attempts.
    """

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self._lock = threading.Lock()
        self._requests: Counter[str] = Counter()
        self._sent = 0
        self._received = 0

    def tally(self) -> Tally:
        """Return what was counted so far."""
        with self._lock:
            return Tally(dict(self._requests), self._sent, self._received)

    def add(self, tally: Tally) -> None:
        """Count what somebody else asked of the same store."""
        with self._lock:
            self._requests.update(tally.requests)
            self._sent += tally.bytes_sent
            self._received += tally.bytes_received

    def reset(self) -> None:
        """Start again from zero."""
        with self._lock:
            self._requests.clear()
            self._sent = self._received = 0

    def around(self, request: Request, send: Callable[[], T]) -> T:
        """Count a request, and the content of its answer."""
        kind = request.kind
        self._count(kind, request.sent)
        answer = send()
        if kind == "get":
            self._count_received(answer)
        return answer

    def listing(self, request: Request, found: Iterator[T]) -> Iterator[T]:
        """Count the pages, and content that comes along as if it had been asked for."""
        self._count(request.kind)
        handed = received = 0
        try:
            for number, one in enumerate(found):
                if number and number % _PAGE == 0:
                    self._count(request.kind)
                if isinstance(one, Handed) and one.data is not None:
                    handed += 1
                    received += len(one.data)
                yield one
        finally:
            self._count_handed(handed, received)

    def create_many(
        self, objects: Iterator[NewObject], at_once: int, remaining: Callable[[], float | None]
    ) -> Iterator[tuple[NewObject, Written | None]]:
        """Count each object that is sent."""

        def counted() -> Iterator[NewObject]:
            for one in objects:
                self._count("put", len(one.data))
                yield one

        return super().create_many(counted(), at_once, remaining)

    def _count(self, kind: str, sent: int = 0) -> None:
        with self._lock:
            self._requests[kind] += 1
            self._sent += sent

    def _count_handed(self, contents: int, received: int) -> None:
        """Count what came with a listing, all at once: there is much of it."""
        if contents:
            with self._lock:
                self._requests["get"] += contents
                self._received += received

    def _count_received(self, answer: object) -> None:
        size = 0
        if isinstance(answer, Fetched):
            size = len(answer.data)
        elif isinstance(answer, ObjectInfo):  # of a download
            size = answer.size
        elif isinstance(answer, bytes):  # an excerpt
            size = len(answer)
        with self._lock:
            self._received += size
