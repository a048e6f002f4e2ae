"""What the rest of the program knows about a remote object store: this file, and nothing else.

A store maps keys (relative paths with forward slashes) to immutable bodies. It offers two ways
to change an object safely when others change it too: create it only if it is absent, and replace
it only if it is still the one that was read. Every method is synchronous, may be called from
many threads, and raises only the errors of `swampstore.stores.errors`, ValidationError for a key
that no store may hold, and DiskError for the local file of a transfer.

A body is in one piece, but not in memory: the client knows conditions only for bodies in one piece.
A mapped file is one: the system reads its pages when they are sent and forgets them afterwards. The
file must not become shorter meanwhile; content is replaced or grows, and is cut only after a writer
was killed. What is received goes into an open file, and is hashed while it comes in. See
docs/decisions/0038-large-content-goes-in-one-piece.md.

Three abilities are extra: `level`, `contents` and `excerpt` use them where a store has them, and do
without where it has not. A fourth, `CreatesMany`, is for those who can do without themselves.
"""

from __future__ import annotations

import hashlib
import io
import mmap
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from typing import BinaryIO, NamedTuple, Protocol, Self

from swampstore.errors import ValidationError
from swampstore.files import disk_errors, write_all
from swampstore.layout import MAX_KEY_BYTES, is_plain, why_no_key
from swampstore.stores.errors import CorruptObjectError


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

    `conditional_copy`: it has `copy_if_absent`. `creates_many`: see `CreatesMany`.
    `own_conditions`: our own code sees to the conditions, and no server has to be believed.
    `repeats_tokens` says that an object which is written again with the same content may have the
    token that it had. `keeps_paths`: it keeps the index itself, see `swampstore.stores.paths`.
    `endpoint` is the URL of the server that is asked, empty where there is none.
    """

    conditional_create: bool = True
    conditional_update: bool = True
    conditional_delete: bool = False
    conditional_copy: bool = False
    server_copy: bool = True
    creates_many: bool = False
    own_conditions: bool = False
    repeats_tokens: bool = False
    keeps_paths: bool = False
    endpoint: str = ""


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
        what was received stays in the file then, as far as the given size.
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

    def copy_if_absent(self, source: str, target: str, token: str) -> None:
        """Have the store itself copy the object that has this token to where there is none.

        Raises PreconditionFailedError if the source is another one or gone, or if there is
        something at the target, and UnsupportedOperationError where
        `capabilities.conditional_copy` is False.
        """

    def clock(self) -> datetime:
        """Ask the store what time it is. Good to a second; ages of objects are judged by it."""

    def close(self) -> None:
        """Give connections back. The store is not used afterwards."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *exc: object) -> None: ...


class NewObject(NamedTuple):
    """A small object that is to be created, and the SHA-256 of its content, in hex."""

    key: str
    data: bytes
    sha256: str


class CreatesMany(Protocol):
    """What a store can do whose `capabilities` say `creates_many`."""

    def create_many(
        self, objects: Iterator[NewObject], at_once: int, remaining: Callable[[], float | None]
    ) -> Iterator[tuple[NewObject, Written | None]]:
        """Create objects where there are none, in no order, and without a thread for each.

        Yields each object that was taken from `objects`. Of one that comes with None nobody knows
        whether it was created: `put_if_absent` finds out, and does it. The iteration may end
        before all objects are taken; the others are for `put_if_absent` as well. `remaining`
        returns for how many seconds to go on, None if that does not matter, and raises what is to
        be raised when they are over.
        """


class Level(NamedTuple):
    """What is directly below a prefix: the segments that keys go on with, and whole objects.

    Both are sorted. A folder may be named although nothing is left below it.
    """

    folders: Sequence[str]
    objects: Sequence[ObjectInfo]


def level(store: Store, prefix: str = "") -> Level:
    """Return what is directly below `prefix`, which is empty or ends with a slash.

    A store that can tell it without listing everything has a method of this name.
    """
    look: Callable[[str], Level] | None = getattr(store, "level", None)
    if look is not None:
        return look(prefix)
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


def contents(store: Store, prefix: str, wanted: Wanted, limit: int) -> Iterator[Handed]:
    """Yield all objects below a prefix, ordered by key; `wanted` is asked once for each.

    Content of more than `limit` bytes never comes along. What is wanted and did not come must be
    asked for: it may be gone, or not be readable. A store that can hand content out while it lists
    has a method of this name, which takes the other arguments.
    """
    hand: Callable[[str, Wanted, int], Iterator[Handed]] | None = getattr(store, "contents", None)
    if hand is not None:
        return hand(prefix, wanted, limit)
    return (Handed(info, wanted(info)) for info in store.list(prefix))


def excerpt(store: Store, key: str, start: int, length: int) -> bytes:
    """Return so many bytes of an object.

    Raises ObjectNotFoundError, and CorruptObjectError if the object ends before. A store that can
    send a part of an object has a method of this name.
    """
    read: Callable[[str, int, int], bytes] | None = getattr(store, "excerpt", None)
    found = read(key, start, length) if read else store.get(key).data[start : start + length]
    if len(found) != length:
        raise _corrupt(f"{key} in {store.identity}", "is shorter than expected")
    return found


class Limit(NamedTuple):
    """Something that a store would need for all promises, and what is not so without it."""

    name: str
    problem: str


def admitted_limits(store: Store) -> Sequence[Limit]:
    """Return what the server of a store says that it cannot promise.

    Most cannot be asked; a store that can has a method of this name, without arguments.
    """
    ask: Callable[[], Sequence[Limit]] = getattr(store, "admitted_limits", tuple)
    return ask()


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


# Smaller files are read: mapping one costs more than that.
_MAPPED_FROM = 1 << 20
CHUNK = 1 << 20


def payload(body: bytes | BinaryIO) -> bytes | memoryview:
    """Return the whole of a body, from its start."""
    if isinstance(body, bytes):
        return body
    body.flush()
    size = size_of(body)
    if size >= _MAPPED_FROM:
        try:
            fd = body.fileno()
        except io.UnsupportedOperation:
            pass
        else:
            return memoryview(mmap.mmap(fd, size, access=mmap.ACCESS_READ))
    body.seek(0)
    return body.read()


def size_of(body: bytes | BinaryIO) -> int:
    """Return how many bytes a body has."""
    return len(body) if isinstance(body, bytes) else body.seek(0, os.SEEK_END)


def sha256_of(body: bytes | BinaryIO) -> str:
    """Return the SHA-256 of a body, in hex."""
    if isinstance(body, bytes):
        return hashlib.sha256(body).hexdigest()
    digest = hashlib.sha256()
    body.seek(0)
    while chunk := body.read(CHUNK):
        digest.update(chunk)
    return digest.hexdigest()


def hash_object(store: Store, key: str) -> tuple[str, ObjectInfo]:
    """Return the SHA-256 of what an object holds, in hex, and which object that was.

    All of it is read, and a large one is not held in memory. Raises ObjectNotFoundError, DiskError.
    """
    import tempfile

    with disk_errors("a temporary file"), tempfile.TemporaryFile() as file:
        info = store.download(key, file.fileno())
        file.seek(0)
        return hashlib.file_digest(file, "sha256").hexdigest(), info


def receive(
    chunks: Iterable[bytes], fd: int, *, what: str, size: int | None, sha256: str | None
) -> None:
    """Replace the content of an open file; raise CorruptObjectError if it is not as expected."""
    digest = hashlib.sha256()
    received = 0
    _rewind(fd, what)
    for chunk in chunks:
        digest.update(chunk)
        received += len(chunk)
        if size is not None and received > size:
            _write(fd, chunk[: size - received], what)
            break
        _write(fd, chunk, what)
    if size is not None and received != size:
        got = f"more than the {size}" if received > size else f"only {received} of {size}"
        raise _corrupt(what, f"has {got} bytes expected")
    if sha256 is not None and digest.hexdigest() != sha256.lower():
        raise _corrupt(what, f"has the SHA-256 {digest.hexdigest()}, expected {sha256}")


def _rewind(fd: int, what: str) -> None:
    """Empty a file. A new one is not touched: once cut, it is written out when it is closed."""
    try:
        if os.lseek(fd, 0, os.SEEK_END) > 0:
            os.ftruncate(fd, 0)
            os.lseek(fd, 0, os.SEEK_SET)
    except OSError:
        with disk_errors(_here(what)):
            raise


def _write(fd: int, chunk: bytes, what: str) -> None:
    try:
        write_all(fd, chunk)
    except OSError:
        with disk_errors(_here(what)):
            raise


def _here(what: str) -> str:
    """Name the file that is written: it is the disk of this machine that refuses."""
    return f"the copy on this machine of {what}"


def _corrupt(what: str, wrong: str) -> CorruptObjectError:
    return CorruptObjectError(
        f"{what} {wrong}",
        hint="It was replaced meanwhile, or damaged: pull again; verify the store if it stays.",
    )
