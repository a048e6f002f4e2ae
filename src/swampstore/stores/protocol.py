"""What the rest of the program knows about a remote object store: this file, and nothing else.

A store maps keys (relative paths with forward slashes) to immutable bodies. It offers two ways
to change an object safely when others change it too: create it only if it is absent, and replace
it only if it is still the one that was read. Every method is synchronous, may be called from
many threads, and raises only the errors of `swampstore.stores.errors`, ValidationError for a key
that no store may hold, and DiskError for the local file of a transfer.

Two abilities are extra: `level` and `contents` use them where a store has them, and do without
where it has not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import BinaryIO, NamedTuple, Protocol, Self, runtime_checkable

from swampstore.errors import ValidationError
from swampstore.layout import MAX_KEY_BYTES, is_plain, why_no_key


class ObjectInfo(NamedTuple):
    """What a store tells about an object without its content.

    `etag` serves to notice changes: get, head, list and the writes all report the same one for
    the same object, and `get_if_changed` takes it. `token` serves as condition of writes; it is
    None where a listing does not tell it. On S3 and Azure both are the ETag. On S3 the ETag of
    equal content is equal, so whoever relies on `token` to see *every* write must put something
    unique (a sequence number, a nonce) into the content.
    """

    key: str
    size: int
    etag: str
    token: str | None
    last_modified: datetime


class Fetched(NamedTuple):
    """An object with its content."""

    info: ObjectInfo
    data: bytes


class Written(NamedTuple):
    """How the object just written is called; see ObjectInfo.

    `is_met` says that an object with this very content was there: perhaps our own, written by a
    request whose answer was lost, perhaps somebody else's.
    """

    etag: str
    token: str
    is_met: bool = False


class Capabilities(NamedTuple):
    """What a store claims to be able to do; `swampstore.stores.probe` proves it.

    `own_conditions`: our own code sees to the conditions, and no server has to be believed.
    `repeats_tokens` says that an object which is written again with the same content may have the
    token that it had.
    """

    conditional_create: bool = True
    conditional_update: bool = True
    conditional_delete: bool = False
    server_copy: bool = True
    own_conditions: bool = False
    repeats_tokens: bool = False


class Store(Protocol):
    """One bucket (or a directory, or a container) below one prefix."""

    @property
    def identity(self) -> str:
        """Endpoint, bucket and prefix as one string: equal for equal places, stable for ever."""

    @property
    def capabilities(self) -> Capabilities:
        """What this store claims to be able to do."""

    def get(self, key: str) -> Fetched:
        """Return a small object; raise ObjectNotFoundError if there is none."""

    def get_if_changed(self, key: str, etag: str) -> Fetched | None:
        """Return an object, or None (without transferring it) if its etag is still this one."""

    def download(
        self, key: str, fd: int, *, size: int | None = None, sha256: str | None = None
    ) -> ObjectInfo:
        """Stream an object into an open file, replacing what the file holds.

        Raises CorruptObjectError if the content has another size or SHA-256 (in hex) than given;
        what was received stays in the file then.
        """

    def head(self, key: str) -> ObjectInfo:
        """Describe an object; raise ObjectNotFoundError if there is none."""

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yield the objects whose key starts with `prefix`, page by page, in no promised order.

        The prefix is a plain string. One that does not end at a segment's end (`data/ab`) may
        cost a listing of everything in its parent (`data/`). Keys are what others have put there:
        check one before it becomes a path. A key with empty, `.` or `..` segments ends the
        listing with a StoreError that names it.
        """

    def put(self, key: str, body: bytes | BinaryIO) -> Written:
        """Write an object, replacing what is there. A file is read from its start."""

    def put_if_absent(self, key: str, body: bytes | BinaryIO) -> Written:
        """Create an object; raise PreconditionFailedError if there is one already.

        The condition holds at every size, and a file is never in memory as a whole. Raises
        UnsupportedOperationError for a body that is too large for a write on a condition.
        """

    def put_if_match(self, key: str, body: bytes | BinaryIO, token: str) -> Written:
        """Replace the object that has this token. It goes for bodies what `put_if_absent` says.

        Raises PreconditionFailedError if the object is another one or gone.
        """

    def delete(self, key: str) -> None:
        """Remove an object; it may be gone already."""

    def delete_if_match(self, key: str, token: str) -> None:
        """Remove the object that has this token; it may be gone already.

        Raises PreconditionFailedError if there is another one in its place, and
        UnsupportedOperationError where `capabilities.conditional_delete` is False. On S3 an
        object that somebody replaced by one of the same content has the same token: it is
        deleted.
        """

    def copy(self, source: str, target: str) -> None:
        """Copy an object inside the store, replacing the target."""

    def clock(self) -> datetime:
        """Ask the store what time it is. Good to a second; ages of objects are judged by it."""

    def close(self) -> None:
        """Give connections back. The store is not used afterwards."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *exc: object) -> None: ...


class Level(NamedTuple):
    """What is directly below a prefix: the segments that keys go on with, and whole objects.

    Both are sorted. A folder may be named although nothing is left below it.
    """

    folders: Sequence[str]
    objects: Sequence[ObjectInfo]


@runtime_checkable
class ListsFolders(Protocol):
    """A store that can tell what is directly below a prefix without listing everything."""

    def level(self, prefix: str = "") -> Level:
        """See `level`."""


def level(store: Store, prefix: str = "") -> Level:
    """Return what is directly below `prefix`, which is empty or ends with a slash."""
    if isinstance(store, ListsFolders):
        return store.level(prefix)
    found: set[str] = set()
    objects: list[ObjectInfo] = []
    for info in store.list(prefix):
        first, slash, _ = info.key.removeprefix(prefix).partition("/")
        if slash:
            found.add(first)
        else:
            objects.append(info)
    return Level(sorted(found), sorted(objects))


def folders(store: Store, prefix: str = "") -> Sequence[str]:
    """Return the segments that keys go on with, and a slash, behind `prefix`; sorted."""
    return level(store, prefix).folders


class Handed(NamedTuple):
    """An object of a listing. `data` is its content if it was wanted and was easily had."""

    info: ObjectInfo
    is_wanted: bool
    data: bytes | None = None


Wanted = Callable[[ObjectInfo], bool]


@runtime_checkable
class ListsContent(Protocol):
    """A store that hands content out while it lists objects."""

    def contents(self, prefix: str, wanted: Wanted, limit: int) -> Iterator[Handed]:
        """See `contents`."""


def contents(store: Store, prefix: str, wanted: Wanted, limit: int) -> Iterator[Handed]:
    """Yield all objects below a prefix, ordered by key; `wanted` is asked once for each.

    Content of more than `limit` bytes never comes along. What is wanted and did not come must be
    asked for: it may be gone, or not be readable.
    """
    if isinstance(store, ListsContent):
        yield from store.contents(prefix, wanted, limit)
        return
    for info in store.list(prefix):
        yield Handed(info, wanted(info))


def is_plain_key(key: str) -> bool:
    """Whether `check_key` surely has nothing against a key, told at a glance."""
    return (
        len(key) <= MAX_KEY_BYTES  # of ASCII, characters are bytes
        and key.isascii()
        and key.isprintable()
        and is_plain(key)
    )


def check_key(key: str) -> str:
    """Return the key; raise ValidationError if it could mean something else than a plain path."""
    if is_plain_key(key):
        return key
    if not key:
        raise ValidationError("an object key is empty", hint="Give a path such as data/a/1/raw.")
    if key[0] == "/" or any(part in {"", ".", ".."} for part in key.split("/")):
        raise ValidationError(
            f"the object key {key!r} has an empty, '.' or '..' segment",
            hint="Keys are relative paths with single forward slashes.",
        )
    if reason := why_no_key(key):
        raise ValidationError(
            f"{key[:80]!r} cannot be an object key: {reason}",
            hint="Use a shorter type, model id or data name, without control characters.",
        )
    return key


def trim_prefix(prefix: str) -> str:
    """Return a configured prefix without slashes around it, checked like a key."""
    trimmed = prefix.strip("/")
    return check_key(trimmed) if trimmed else ""


def parent_of(prefix: str) -> str:
    """Return the whole segments of a listing prefix: `data/ab` is below `data`.

    Raises ValidationError if they are no key; the segment that is only begun may be anything.
    """
    parent, slash, _ = prefix.rpartition("/")
    return check_key(parent) if slash else ""
