"""A store in memory: the simplest thing that keeps the promise, for tests and for comparison."""

from __future__ import annotations

import hashlib
import itertools
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, BinaryIO, Self

from swampstore.stores.config import Fields, Limits
from swampstore.stores.errors import changed, exists, not_found
from swampstore.stores.protocol import (
    Capabilities,
    Fetched,
    ObjectInfo,
    Written,
    check_key,
    parent_of,
    payload,
    receive,
)


class MemoryBucket:
    """The objects that stores of one name share."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.objects: dict[str, Fetched] = {}
        self.generations = itertools.count(1)


# `memory://name` means the same objects wherever in this process it is opened.
_BUCKETS: dict[str, MemoryBucket] = {}


@dataclass(frozen=True, slots=True)
class MemoryConfig:
    """`memory://name`: gone when the process ends."""

    name: str
    limits: Limits = field(default_factory=Limits)

    @classmethod
    def from_url(cls, url: str, environ: Mapping[str, str]) -> Self:
        """Read `memory://name`."""
        return cls.from_mapping({"name": url.partition("://")[2]}, environ)

    @classmethod
    def from_mapping(cls, config: Mapping[str, Any], environ: Mapping[str, str]) -> Self:
        """Read `{name: ...}`."""
        fields = Fields(config)
        return cls(
            fields.required_text("name"), fields.limits(environ, "SWAMP_MEMORY_REQUEST_TIMEOUT_MS")
        )

    def open(self) -> MemoryStore:
        """Return a store that shares its objects with others of the same name."""
        return MemoryStore(self.name, _BUCKETS.setdefault(self.name, MemoryBucket()))


class MemoryStore:
    """A dictionary with a lock. Its token counts writes, so it changes with every one of them."""

    capabilities = Capabilities(conditional_delete=True, conditional_copy=True, own_conditions=True)

    def __init__(self, name: str = "", bucket: MemoryBucket | None = None) -> None:
        self.identity = f"memory://{name}"
        self._bucket = bucket or MemoryBucket()

    def get(self, key: str) -> Fetched:
        """See Store.get."""
        found = self._bucket.objects.get(check_key(key))
        if found is None:
            raise not_found(key, self.identity)
        return found

    def get_if_changed(self, key: str, etag: str) -> Fetched | None:
        """See Store.get_if_changed."""
        found = self.get(key)
        return None if found.info.etag == etag else found

    def download(
        self, key: str, fd: int, *, size: int | None = None, sha256: str | None = None
    ) -> ObjectInfo:
        """See Store.download."""
        found = self.get(key)
        receive([found.data], fd, what=f"{key} in {self.identity}", size=size, sha256=sha256)
        return found.info

    def head(self, key: str) -> ObjectInfo:
        """See Store.head."""
        return self.get(key).info

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """See Store.list."""
        parent_of(prefix)
        with self._bucket.lock:
            found = [one.info for one in self._bucket.objects.values()]
        yield from sorted(info for info in found if info.key.startswith(prefix))

    def put(self, key: str, body: bytes | BinaryIO) -> Written:
        """See Store.put."""
        data = bytes(payload(body))
        with self._bucket.lock:
            return self._write(key, data)

    def put_if_absent(self, key: str, body: bytes | BinaryIO) -> Written:
        """See Store.put_if_absent."""
        data = bytes(payload(body))
        with self._bucket.lock:
            if key in self._bucket.objects:
                raise exists(key, self.identity)
            return self._write(key, data)

    def put_if_match(self, key: str, body: bytes | BinaryIO, token: str) -> Written:
        """See Store.put_if_match."""
        data = bytes(payload(body))
        with self._bucket.lock:
            found = self._bucket.objects.get(check_key(key))
            if found is None or found.info.token != token:
                raise changed(key, self.identity)
            return self._write(key, data)

    def _write(self, key: str, data: bytes) -> Written:
        etag = hashlib.sha256(data).hexdigest()
        token = str(next(self._bucket.generations))
        info = ObjectInfo(check_key(key), len(data), etag, token, self.clock())
        self._bucket.objects[key] = Fetched(info, data)
        return Written(etag, token)

    def delete(self, key: str) -> None:
        """See Store.delete."""
        with self._bucket.lock:
            self._bucket.objects.pop(check_key(key), None)

    def delete_if_match(self, key: str, token: str) -> None:
        """See Store.delete_if_match."""
        with self._bucket.lock:
            found = self._bucket.objects.get(check_key(key))
            if found is not None and found.info.token != token:
                raise changed(key, self.identity)
            self._bucket.objects.pop(key, None)

    def copy(self, source: str, target: str) -> None:
        """See Store.copy."""
        check_key(target)
        self.put(target, self.get(source).data)

    def copy_if_absent(self, source: str, target: str, token: str) -> None:
        """See Store.copy_if_absent."""
        with self._bucket.lock:
            found = self._bucket.objects.get(check_key(source))
            if found is None or found.info.token != token:
                raise changed(source, self.identity)
            if target in self._bucket.objects:
                raise exists(target, self.identity)
            self._write(target, found.data)

    def clock(self) -> datetime:
        """See Store.clock."""
        return datetime.now(UTC)

    def close(self) -> None:
        """See Store.close."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
