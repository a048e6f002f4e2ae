"""Putting files into the store without ever replacing what somebody else put there.

A new path is created only if it is free, a changed one replaces only the object that the base
knows. What is found instead is compared: our own earlier upload, or the very same content, is
no obstacle; anything else is reported as occupied, and the caller settles it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import BinaryIO, NamedTuple, cast

from swampstore.clock import Clock, to_iso
from swampstore.errors import SwampstoreError
from swampstore.files import NO_FILE, disk_errors
from swampstore.files.signature import Signature, signature, signature_of
from swampstore.index.base import LARGE, Known
from swampstore.index.errors import SyncError
from swampstore.index.format import Entry, iso_ms
from swampstore.index.path_kinds import is_derived, is_marker
from swampstore.index.path_map import Names
from swampstore.index.workers import Deadline, Done, in_parallel
from swampstore.layout import METADATA, RAW
from swampstore.stores import Store, Written
from swampstore.stores.errors import ObjectNotFoundError, PreconditionFailedError
from swampstore.stores.paths import KeepsPaths, SmallFile
from swampstore.stores.protocol import CreatesMany, NewObject
from swampstore.sync.complete import check_saved
from swampstore.sync.copies import Copies
from swampstore.sync.hashing import hash_file

# Larger files are streamed, and are never in memory as a whole.
IN_MEMORY = 4 << 20
_ATTEMPTS = 3
# Fewer files are not worth connections of their own.
_MANY = 200
# Uploads that wait for a thread, and results that wait to be noted.
_AHEAD = 512
# Metadata that is kept until its content is sent, too.
_KEPT = 500
# What a database takes in one batch.
_BULK, _BULK_BYTES = 500, 14 << 20


class Upload(NamedTuple):
    """A file to be put in place of an object, or where there should be none.

    `replaces` is the content that the object may have, None if there should be no object. `noted`
    is the hash of what is there and in no index yet, and its token if it is an upload of ours.
    """

    rel: str
    replaces: Known | None
    noted: tuple[str, str] | None = None


class Uploaded(NamedTuple):
    """A file that is on the remote now, as the index and the base will know it.

    `is_met` says that an equal object was there, somebody else's or of an earlier push of ours:
    others may be about to remove it.
    """

    rel: str
    entry: Entry
    known: Known
    sent: int
    is_met: bool = False


class Occupied(NamedTuple):
    """The object has content that nobody here expected."""

    rel: str
    sha256: str
    size: int


class Vanished(NamedTuple):
    """The file was removed before it could be read."""

    rel: str


Placed = Uploaded | Occupied | Vanished

# Hears, in any thread, of each small file that was sent: its path, its bytes, and the token of the
# object. Of what was sent in pieces, or was there before, it hears nothing.
Witness = Callable[[str, bytes, str], None]


class _Body(NamedTuple):
    read_ns: int
    signature: Signature
    sha256: str
    data: bytes | None


class Uploader:
    """Puts single files into a store; safe to call from many threads."""

    def __init__(
        self,
        store: Store,
        names: Names,
        clock: Clock,
        copies: Copies | None = None,
        witness: Witness | None = None,
    ) -> None:
        self._store = store
        self._witness = witness
        self._names = names
        self._clock = clock
        self._copies = copies
        self._is_conditional = store.capabilities.conditional_update
        # By version, as it was put: it often comes before the content that it speaks of.
        self._metadata: dict[str, bytes] = {}

    def put(self, upload: Upload) -> Placed:
        """Bring one file to the remote. A file that changes meanwhile is read again."""
        path = self._names.local(upload.rel)
        for _ in range(_ATTEMPTS):
            body = _read(path)
            if body is None:
                return Vanished(upload.rel)
            self._check_saved(upload.rel, body)
            copied = self._copied(upload, body)
            placed = copied or self._place(upload, path, body)
            if isinstance(placed, Occupied):
                return placed
            if body.data is not None or signature(path) == body.signature:
                uploaded = self._uploaded(upload.rel, body, placed)
                return uploaded._replace(sent=0) if copied else uploaded
            if not placed.is_met:
                upload = _over_ours(upload, placed)
        raise SyncError(
            f"{path} keeps changing while it is uploaded",
            hint="Sync again when whatever writes it is done; it stays marked.",
        )

    @property
    def takes_many(self) -> bool:
        """Whether the store takes many small files at once."""
        return self._store.capabilities.keeps_paths

    def put_many(
        self, uploads: Sequence[Upload]
    ) -> tuple[list[Done[Upload, Placed]], list[Upload]]:
        """Bring many small files to the remote in few requests.

        Return what was done, and what has to be put one by one: it is large, keeps changing, or
        something else is there.
        """
        bodies: dict[str, _Body] = {}
        for upload in uploads:
            with contextlib.suppress(SwampstoreError):
                body = _read(self._names.local(upload.rel))
                if body is not None and body.data is not None:
                    self._check_saved(upload.rel, body)
                    bodies[upload.rel] = body
        by_rel = {one.rel: one for one in uploads}
        put = self._put_small(by_rel, bodies)
        done: list[Done[Upload, Placed]] = []
        for rel in put:
            body = bodies[rel]
            placed = self._uploaded(rel, body, Written(body.sha256, body.sha256))
            done.append(Done(by_rel[rel], placed, None))
        return done, [one for one in uploads if one.rel not in put]

    def _put_small(self, uploads: Mapping[str, Upload], bodies: Mapping[str, _Body]) -> set[str]:
        keeper = cast("KeepsPaths", self._store)
        put: set[str] = set()
        load: dict[str, SmallFile] = {}
        size = 0
        for rel, body in bodies.items():
            assert body.data is not None
            replaces = uploads[rel].replaces
            if replaces is not None and replaces.etag is None:
                continue  # what may be replaced is told by its content
            if load and size + len(body.data) > _BULK_BYTES:
                put.update(keeper.put_files(self._names.remote(""), load))
                load, size = {}, 0
            load[rel] = SmallFile(body.sha256, body.data, replaces.etag if replaces else None)
            size += len(body.data)
        if load:
            put.update(keeper.put_files(self._names.remote(""), load))
        return put

    @property
    def creates_many(self) -> bool:
        """Whether the store takes many small files from one thread."""
        return self._is_conditional and self._store.capabilities.creates_many

    def create_many(
        self, uploads: Iterable[Upload], concurrency: int, deadline: Deadline
    ) -> Iterator[Done[Upload, Placed] | Upload]:
        """Bring many small files to the remote; yield also what has to be put one by one.

        That is what is large, keeps changing, may replace something or meets something, and all of
        it once the store does not go on.
        """
        store = cast("CreatesMany", self._store)
        todo = iter(uploads)
        passed: list[Upload] = []
        sent: dict[str, tuple[Upload, _Body]] = {}

        def objects() -> Iterator[NewObject]:
            for upload in todo:
                body = self._small_body(upload)
                if body is None or body.data is None:
                    passed.append(upload)
                    continue
                key = self._names.remote(upload.rel)
                sent[key] = upload, body
                yield NewObject(key, body.data, body.sha256)

        for one, written in store.create_many(objects(), concurrency, deadline.remaining):
            upload, body = sent.pop(one.key)
            if written is None:
                # Most likely something is there: it is looked at first, and not written over.
                yield upload._replace(replaces=Known(upload.rel, -1, "", "", None, None))
            else:
                yield Done(upload, self._uploaded(upload.rel, body, written), None)
        yield from passed
        yield from todo

    def _small_body(self, upload: Upload) -> _Body | None:
        """Return what is in a small new file, None if it takes more than one look."""
        if upload.replaces is not None or upload.noted is not None:
            return None
        path = self._names.local(upload.rel)
        with contextlib.suppress(SwampstoreError):
            began = time.time_ns()
            found = _content(path, LARGE - 1)
            if found is None:
                return None
            body = _body_of(path, began, *found)
            if body is not None:
                self._check_saved(upload.rel, body)
            return body
        return None

    def _check_saved(self, rel: str, body: _Body) -> None:
        version_rel, _, name = rel.rpartition("/")
        metadata = None
        if name == METADATA and body.data is not None:
            if len(self._metadata) >= _KEPT:
                self._metadata.clear()  # of versions whose content is not sent
            self._metadata[version_rel] = body.data
        elif name == RAW:
            metadata = self._metadata.pop(version_rel, None)
        check_saved(self._names, rel, body.sha256, body.signature.size, metadata)

    def _uploaded(self, rel: str, body: _Body, placed: Written) -> Uploaded:
        if self._witness is not None and body.data is not None and not placed.is_met:
            self._witness(rel, body.data, placed.token)
        entry = Entry(
            size=body.signature.size,
            last_modified=to_iso(self._clock()),
            sha256=body.sha256,
            local_mtime=iso_ms(body.signature.mtime_ns),
        )
        known = Known(
            rel,
            entry.size,
            entry.sha256,
            entry.last_modified,
            placed.token,
            body.signature,
            body.read_ns,
        )
        return Uploaded(rel, entry, known, 0 if placed.is_met else entry.size, placed.is_met)

    def _copied(self, upload: Upload, body: _Body) -> Written | None:
        """Have the store copy content that it has elsewhere; None if it is to be sent.

        Where something may be already, what it is decides, and that takes content to compare.
        """
        if self._copies is None or upload.replaces is not None or upload.noted is not None:
            return None
        return self._copies.copy_to(upload.rel, body.sha256, body.signature.size)

    def _place(self, upload: Upload, path: str, body: _Body) -> Written | Occupied:
        """Write the object, unless it is there with this very content."""
        key = self._names.remote(upload.rel)
        sha256, token = upload.noted or ("", "")
        if token and sha256 == body.sha256 and self._is(key, token):
            # An earlier push of ours put it there, and others may have removed it since.
            return Written("", token, is_met=True)
        if body.data is not None:
            return self._place_data(upload, key, body.sha256, body.data)
        with disk_errors(path), open(path, "rb") as file:
            return self._place_data(upload, key, body.sha256, file)

    def _place_data(
        self, upload: Upload, key: str, sha256: str, data: bytes | BinaryIO
    ) -> Written | Occupied:
        if not self._is_conditional:
            # Such a store can only be used alone: there is no way to see who else writes.
            return self._store.put(key, data)
        replaces = upload.replaces
        try:
            if replaces is None:
                return self._store.put_if_absent(key, data)
            if replaces.etag is not None:
                return self._store.put_if_match(key, data, replaces.etag)
        except PreconditionFailedError:
            pass
        return self._place_over(upload, key, sha256, data)

    def _place_over(
        self, upload: Upload, key: str, sha256: str, data: bytes | BinaryIO
    ) -> Written | Occupied:
        """Write over an object that is not known by its token, if its content may be replaced."""
        for _ in range(_ATTEMPTS):
            try:
                digest, size, token = self._look(key)
            except ObjectNotFoundError:
                digest, size, token = "", 0, None
            if digest == sha256:
                return Written("", token or "", is_met=True)
            if token is not None and not _may_replace(upload, digest, size):
                return Occupied(upload.rel, digest, size)
            try:
                if token is None:
                    return self._store.put_if_absent(key, data)
                return self._store.put_if_match(key, data, token)
            except PreconditionFailedError:
                continue
        return Occupied(upload.rel, "", 0)

    def _look(self, key: str) -> tuple[str, int, str | None]:
        """Return hash, size and token of an object, without holding a large one in memory."""
        import tempfile

        with disk_errors("a temporary file"), tempfile.TemporaryFile() as file:
            info = self._store.download(key, file.fileno())
            file.seek(0)
            return hashlib.file_digest(file, "sha256").hexdigest(), info.size, info.token

    def _is(self, key: str, token: str) -> bool:
        try:
            return self._store.head(key).token == token
        except ObjectNotFoundError:
            return False


def put_all(
    uploader: Uploader, uploads: Sequence[Upload], concurrency: int, deadline: Deadline
) -> Iterator[Done[Upload, Placed]]:
    """Put files into a store, many at once; the same wherever it is done."""
    if uploader.takes_many:
        yield from _in_batches(uploader, uploads, concurrency, deadline)
        return
    left: list[Upload] = []
    if uploader.creates_many and len(uploads) >= _MANY:
        for one in uploader.create_many(uploads, concurrency, deadline):
            if isinstance(one, Upload):
                left.append(one)
            else:
                yield one
    else:
        left.extend(uploads)
    yield from in_parallel(uploader.put, left, concurrency, deadline, ahead=_AHEAD)


def _in_batches(
    uploader: Uploader, uploads: Iterable[Upload], concurrency: int, deadline: Deadline
) -> Iterator[Done[Upload, Placed]]:
    waiting = iter(uploads)
    while batch := list(islice(waiting, _BULK)):
        deadline.remaining()
        done, rest = uploader.put_many(batch) if len(batch) > 1 else ([], batch)
        yield from done
        yield from in_parallel(uploader.put, rest, concurrency, deadline)


def is_placed_by_us(upload: Upload, done: Uploaded | None) -> bool:
    """Whether an object is an upload of ours, of this push or of one before that noted it."""
    if done is None:
        return False
    return not done.is_met or (upload.noted is not None and upload.noted[1] == done.known.etag)


def _over_ours(upload: Upload, placed: Written) -> Upload:
    """Return the upload that replaces what was just written, whatever that turned out to hold."""
    ours = Known(upload.rel, -1, "", "", placed.token, None)
    return upload._replace(replaces=ours)


def _may_replace(upload: Upload, sha256: str, size: int) -> bool:
    """Whether an object with this content is the one we mean, or an earlier upload of ours.

    A marker, or what can be computed again, may always be replaced: the commit that follows fails
    if somebody else's was first.
    """
    if is_marker(upload.rel) or is_derived(upload.rel):
        return True
    if upload.noted is not None and upload.noted[0] == sha256:
        return True
    replaces = upload.replaces
    if replaces is None:
        return False
    if replaces.sha256 is not None:
        return replaces.sha256 == sha256
    return replaces.size == size


def _read(path: str) -> _Body | None:
    """Read a file once: what is hashed is what is sent. None if there is no regular file."""
    for _ in range(_ATTEMPTS):
        began = time.time_ns()
        found = _content(path, IN_MEMORY)
        if found is None:
            return None
        if found[1] is None:
            with contextlib.suppress(FileNotFoundError):
                sha256, before = hash_file(path)
                return _Body(began, before, sha256, None)
        elif body := _body_of(path, began, *found):
            return body
    raise SyncError(
        f"{path} keeps changing while it is read",
        hint="Sync again when whatever writes it is done; it stays marked.",
    )


def _body_of(path: str, began: int, before: Signature, data: bytes | None) -> _Body | None:
    """Return what was read, None if it is not all of a file that still looks as it did."""
    if data is None or len(data) != before.size or signature(path) != before:
        return None
    return _Body(began, before, hashlib.sha256(data).hexdigest(), data)


def _content(path: str, most: int) -> tuple[Signature, bytes | None] | None:
    """Return what a regular file looked like, and then its bytes, unless there are more."""
    try:
        # Without O_NONBLOCK, opening a FIFO would wait for somebody to write into it.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        if error.errno in NO_FILE:
            return None
        with disk_errors(path):
            raise
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            return None
        return signature_of(status), _bytes(fd, status.st_size, most)
    except OSError:
        with disk_errors(path):
            raise
    finally:
        os.close(fd)


def _bytes(fd: int, size: int, most: int) -> bytes | None:
    """Return what is in an open file, of one that grows a byte more than its size."""
    if size > most:
        return None
    data = os.read(fd, size + 1)
    while len(data) < size and (more := os.read(fd, size + 1 - len(data))):
        data += more
    return data
