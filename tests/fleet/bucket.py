"""The store that the machines share, and the network between it and each of them."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import BinaryIO, NamedTuple, Self, TypeVar

from swampstore.stores.errors import (
    StoreError,
    StoreUnreachableError,
    UnsupportedOperationError,
    changed,
    exists,
    not_found,
)
from swampstore.stores.keys import check_key
from swampstore.stores.protocol import Capabilities, Fetched, ObjectInfo, Written
from swampstore.stores.streaming import receive
from tests.fleet.world import Actor, Fault, World, current

R = TypeVar("R")


class Kind(NamedTuple):
    """What a store is like: whether tokens tell content, and whether it deletes on conditions."""

    by_content: bool
    conditional_delete: bool


KINDS = {
    "s3": Kind(by_content=True, conditional_delete=True),
    "old-s3": Kind(by_content=True, conditional_delete=False),
    "gcs": Kind(by_content=False, conditional_delete=True),
}


class Bucket:
    """Objects by key. What is done to them happens at once and as a whole."""

    def __init__(self, world: World, name: str, kind: str) -> None:
        self.world = world
        self.name = name
        self.kind = KINDS[kind]
        self.objects: dict[str, Fetched] = {}
        self._generations = itertools.count(1)

    def write(self, key: str, data: bytes) -> Written:
        etag = hashlib.md5(data).hexdigest()
        token = etag if self.kind.by_content else str(next(self._generations))
        moment = self.world.moment().replace(microsecond=0)
        self.objects[key] = Fetched(
            ObjectInfo(check_key(key), len(data), etag, token, moment), data
        )
        return Written(etag, token)

    def holding_of(self, key: str, actor: Actor | None) -> str | None:
        """Return the nonce of the lock that a machine holds at this moment, None if it does not."""
        found = self.objects.get(key)
        record = json.loads(found.data) if found else {}
        return record["nonce"] if actor and record.get("hostname") == actor.name else None

    def check_lock(self, key: str, sender: Actor | None, meant: str | None) -> None:
        """Note it if a deletion hits the lock of somebody who is at work.

        `meant` is the holding of the sender when it asked for that. However late that arrives, and
        however often, it may remove this one and no later one, not even of the same machine.
        """
        found = self.objects.get(key)
        record = json.loads(found.data) if found else {}
        is_foreign = sender is not None and sender.name == "peer"
        if found is None or is_foreign or record.get("free") or record["nonce"] == meant:
            return
        age = (self.world.moment() - found.info.last_modified).total_seconds()
        for holder in self.world.actors:
            is_holder = (holder.name, holder.pid) == (record["hostname"], record["pid"])
            if is_holder and not holder.is_idle and age < record["ttlMs"] / 1000:
                self.world.hits.append(f"{key} of {holder.name}, by {sender and sender.name}")


# `memory://name` means the same objects on every machine of a run.
BUCKETS: dict[str, Bucket] = {}


class FleetStore:
    """A bucket as one machine sees it, request by request."""

    def __init__(self, bucket: Bucket) -> None:
        self.identity = f"memory://{bucket.name}"
        self.capabilities = Capabilities(
            conditional_delete=bucket.kind.conditional_delete,
            repeats_tokens=bucket.kind.by_content,
        )
        self._bucket = bucket

    def _request(self, what: str, key: str, do: Callable[[], R], *, writes: bool = False) -> R:
        actor = current()
        if actor is None:
            return do()
        fault = actor.request(f"{what} {key}")
        if actor.is_offline:
            raise _unreachable()
        if fault is None:
            return do()
        return _befallen(actor, fault, f"{what} {key}", do, writes=writes)

    def _get(self, key: str) -> Fetched:
        found = self._bucket.objects.get(check_key(key))
        if found is None:
            raise not_found(key, self.identity)
        return found

    def get(self, key: str) -> Fetched:
        return self._request("get", key, lambda: self._get(key))

    def get_if_changed(self, key: str, etag: str) -> Fetched | None:
        found = self.get(key)
        return None if found.info.etag == etag else found

    def download(
        self, key: str, fd: int, *, size: int | None = None, sha256: str | None = None
    ) -> ObjectInfo:
        found = self.get(key)
        receive([found.data], fd, what=f"{key} in {self.identity}", size=size, sha256=sha256)
        return found.info

    def head(self, key: str) -> ObjectInfo:
        return self._request("head", key, lambda: self._get(key).info)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        def found() -> list[ObjectInfo]:
            infos = (one.info for one in self._bucket.objects.values())
            return sorted(info for info in infos if info.key.startswith(prefix))

        yield from self._request("list", prefix, found)

    def put(self, key: str, body: bytes | BinaryIO) -> Written:
        data = _bytes(body)
        return self._request("put", key, lambda: self._bucket.write(key, data), writes=True)

    def put_if_absent(self, key: str, body: bytes | BinaryIO) -> Written:
        data = _bytes(body)

        def do() -> Written:
            if key in self._bucket.objects:
                raise exists(key, self.identity)
            return self._bucket.write(key, data)

        return self._request("put_if_absent", key, do, writes=True)

    def put_if_match(self, key: str, body: bytes | BinaryIO, token: str) -> Written:
        data = _bytes(body)

        def do() -> Written:
            self._check(key, token, is_gone_fine=False)
            return self._bucket.write(key, data)

        return self._request("put_if_match", key, do, writes=True)

    def _check(self, key: str, token: str, *, is_gone_fine: bool) -> None:
        found = self._bucket.objects.get(check_key(key))
        if found is None and is_gone_fine:
            return
        if found is None or found.info.token != token:
            raise changed(key, self.identity)

    def delete(self, key: str) -> None:
        # Where deletions take no condition, nobody is safe from one that comes twice; locks are,
        # because they are not deleted there.
        comes_twice = self.capabilities.conditional_delete or key.endswith(".lock")
        self._request("delete", key, self._removal(key), writes=comes_twice)

    def _removal(self, key: str) -> Callable[[], None]:
        sender = current()
        meant = self._bucket.holding_of(key, sender) if key.endswith(".lock") else None

        def remove() -> None:
            if key.endswith(".lock"):
                self._bucket.check_lock(key, sender, meant)
            self._bucket.objects.pop(check_key(key), None)

        return remove

    def delete_if_match(self, key: str, token: str) -> None:
        if not self.capabilities.conditional_delete:
            raise UnsupportedOperationError("this store deletes without conditions", hint="")

        remove = self._removal(key)

        def do() -> None:
            self._check(key, token, is_gone_fine=True)
            remove()

        self._request("delete_if_match", key, do, writes=True)

    def copy(self, source: str, target: str) -> None:
        self._request(
            "copy", target, lambda: self._bucket.write(target, self._get(source).data), writes=True
        )

    def clock(self) -> datetime:
        return self._request("clock", "", self._bucket.world.moment)

    def close(self) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _bytes(body: bytes | BinaryIO) -> bytes:
    if isinstance(body, bytes | bytearray | memoryview):
        return bytes(body)
    body.seek(0)
    return body.read()


def _unreachable() -> StoreUnreachableError:
    return StoreUnreachableError("nobody answers", hint="Wait.")


def _befallen(actor: Actor, fault: Fault, what: str, do: Callable[[], R], *, writes: bool) -> R:
    """Make a request that something happens to."""

    def do_quietly() -> None:
        actor.world.tell(f"arrives: {what}")
        with contextlib.suppress(StoreError):
            do()

    if fault.kind == "kill-after":
        do_quietly()
    if fault.kind in {"late", "kill-late"} and writes:
        actor.world.later(fault.seconds, do_quietly)
    if fault.kind.startswith("kill"):
        actor.die()
    if fault.kind in {"stop", "slow"}:
        actor.wait(fault.seconds, beating=fault.kind == "slow")
    if fault.kind in {"fail", "late"}:
        raise _unreachable()
    result = do()
    if fault.kind == "slow-after":
        actor.wait(fault.seconds)
    if fault.kind == "twice" and writes:
        actor.world.later(fault.seconds, do_quietly)
    if fault.kind == "lost":
        raise _unreachable()
    return result
