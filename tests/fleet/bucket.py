"""The store that the machines share, and the network between it and each of them."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import BinaryIO, NamedTuple, TypeVar

from swampstore.stores.errors import (
    StoreError,
    StoreUnreachableError,
    UnsupportedOperationError,
)
from swampstore.stores.memory import MemoryBucket, MemoryStore
from swampstore.stores.protocol import Capabilities, Fetched, ObjectInfo, Written, check_key
from swampstore.stores.wrapper import Request, StoreWrapper
from tests.fleet.world import Actor, Fault, World, current

T = TypeVar("T")
# What a script of faults counts and calls alike.
_AS_GET_OR_LIST = {"get_if_changed": "get", "download": "get", "level": "list", "contents": "list"}


class Kind(NamedTuple):
    """What a store is like: whether tokens tell content, and whether it deletes on conditions.

    Those that do copy on conditions, too.

    `is_lax`: it takes the condition, and does not heed it.
    """

    by_content: bool
    conditional_delete: bool
    is_lax: bool = False


KINDS = {
    "s3": Kind(by_content=True, conditional_delete=True),
    "old-s3": Kind(by_content=True, conditional_delete=False),
    "lax-s3": Kind(by_content=True, conditional_delete=False, is_lax=True),
    "gcs": Kind(by_content=False, conditional_delete=True),
}


class Bucket(MemoryBucket):
    """Objects by key. What is done to them happens at once and as a whole."""

    def __init__(self, world: World, name: str, kind: str) -> None:
        super().__init__()
        self.world = world
        self.name = name
        self.kind = KINDS[kind]
        # Who hears of an object that a request has made which arrived late: somebody may have
        # removed it meanwhile.
        self.on_late: Callable[[str, bytes], None] = lambda *_: None
        # And of metadata that a machine reads.
        self.on_read: Callable[[str, int], None] = lambda *_: None

    def write(self, key: str, data: bytes) -> Written:
        etag = hashlib.md5(data).hexdigest()
        token = etag if self.kind.by_content else str(next(self.generations))
        moment = self.world.moment().replace(microsecond=0)
        self.objects[key] = Fetched(
            ObjectInfo(check_key(key), len(data), etag, token, moment), data
        )
        return Written(etag, token)

    def holding_of(self, key: str, actor: Actor | None) -> str | None:
        """Return the nonce of the lock that a machine holds at this moment, None if it does not."""
        found = self.objects.get(key)
        record = json.loads(found.data) if found else {}
        held = (record.get("hostname"), record.get("pid"))
        return record["nonce"] if actor and held == (actor.host, actor.pid) else None

    def check_lock(self, removed: Fetched, sender: Actor | None, meant: str | None) -> None:
        """Note it if a deletion has hit the lock of somebody who is at work.

        `meant` is the holding of the sender when it asked for that. However late that arrives, and
        however often, it may remove this one and no later one, not even of the same machine.
        """
        record = json.loads(removed.data)
        is_foreign = sender is not None and sender.name == "peer"
        if is_foreign or record.get("free") or record["nonce"] == meant:
            return
        age = (self.world.moment() - removed.info.last_modified).total_seconds()
        for holder in self.world.actors:
            is_holder = (holder.host, holder.pid) == (record["hostname"], record["pid"])
            if is_holder and not holder.is_idle and age < record["ttlMs"] / 1000:
                key, by = removed.info.key, sender and sender.name
                self.world.hits.append(f"{key} of {holder.name}, by {by}")


# `memory://name` means the same objects on every machine of a run.
BUCKETS: dict[str, Bucket] = {}


class BucketStore(MemoryStore):
    """A bucket as it is seen by whoever reaches it."""

    def __init__(self, bucket: Bucket) -> None:
        super().__init__(bucket.name, bucket)
        self.bucket = bucket
        self.capabilities = Capabilities(
            conditional_delete=bucket.kind.conditional_delete or bucket.kind.is_lax,
            conditional_copy=bucket.kind.conditional_delete or bucket.kind.is_lax,
            repeats_tokens=bucket.kind.by_content,
        )

    def _write(self, key: str, data: bytes) -> Written:
        return self.bucket.write(key, data)

    def delete_if_match(self, key: str, token: str) -> None:
        if not self.capabilities.conditional_delete:
            raise UnsupportedOperationError("this store deletes without conditions", hint="")
        if self.bucket.kind.is_lax:
            self.delete(key)
            return
        super().delete_if_match(key, token)

    def copy_if_absent(self, source: str, target: str, token: str) -> None:
        if self.bucket.kind.is_lax:
            self.copy(source, target)
            return
        super().copy_if_absent(source, target, token)

    def clock(self) -> datetime:
        return self.bucket.world.moment()


class FleetStore(StoreWrapper):
    """A bucket as one machine sees it, request by request."""

    def __init__(self, bucket: Bucket) -> None:
        super().__init__(BucketStore(bucket))
        self._bucket = bucket

    def around(self, request: Request, send: Callable[[], T]) -> T:
        actor = current()
        if request.kind == "delete" and request.key.endswith(".lock"):
            send = self._checked(request.key, actor, send)
        if actor is None:
            return send()
        what = f"{_AS_GET_OR_LIST.get(request.operation, request.operation)} {request.key}"
        fault = actor.request(what)
        if actor.is_offline:
            raise _unreachable()
        if request.kind == "get" and request.key.endswith("/metadata.yaml"):
            self._bucket.on_read(request.key, actor.number)
        if fault is None:
            return send()
        is_repeatable = self._may_come_twice(request)
        late = self._telling(request.key, send)
        return _befallen(actor, fault, what, send, late=late, writes=is_repeatable)

    def _telling(self, key: str, send: Callable[[], T]) -> Callable[[], T]:
        """Return a request that tells if it makes an object where there is none."""

        def send_and_tell() -> T:
            was_there = key in self._bucket.objects
            answer = send()
            if not was_there and key in self._bucket.objects:
                self._bucket.on_late(key, self._bucket.objects[key].data)
            return answer

        return send_and_tell

    def _checked(self, key: str, sender: Actor | None, remove: Callable[[], T]) -> Callable[[], T]:
        meant = self._bucket.holding_of(key, sender)

        def remove_and_check() -> T:
            found = self._bucket.objects.get(key)
            answer = remove()
            if found is not None:
                self._bucket.check_lock(found, sender, meant)
            return answer

        return remove_and_check

    def listing(self, request: Request, found: Iterator[T]) -> Iterator[T]:
        yield from self.around(request, lambda: list(found))

    def _may_come_twice(self, request: Request) -> bool:
        # Where deletions take no condition, nobody is safe from one that comes twice; locks are,
        # because they are not deleted there.
        if request.kind == "delete":
            return self._bucket.kind.conditional_delete or request.key.endswith(".lock")
        return request.writes

    # A request that arrives late has its content with it, whatever became of the file.

    def put(self, key: str, body: bytes | BinaryIO) -> Written:
        return super().put(key, _bytes(body))

    def put_if_absent(self, key: str, body: bytes | BinaryIO) -> Written:
        return super().put_if_absent(key, _bytes(body))

    def put_if_match(self, key: str, body: bytes | BinaryIO, token: str) -> Written:
        return super().put_if_match(key, _bytes(body), token)


def _bytes(body: bytes | BinaryIO) -> bytes:
    if isinstance(body, bytes | bytearray | memoryview):
        return bytes(body)
    body.seek(0)
    return body.read()


def _unreachable() -> StoreUnreachableError:
    return StoreUnreachableError("nobody answers", hint="Wait.")


def _befallen(
    actor: Actor,
    fault: Fault,
    what: str,
    do: Callable[[], T],
    *,
    late: Callable[[], T],
    writes: bool,
) -> T:
    """Make a request that something happens to; `late` is that request if it comes late."""

    def do_quietly(request: Callable[[], T] = late) -> None:
        actor.world.tell(f"arrives: {what}")
        with contextlib.suppress(StoreError):
            request()

    if fault.kind == "kill-after":
        do_quietly(do)
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
