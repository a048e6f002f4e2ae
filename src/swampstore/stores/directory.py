"""A bucket that is a directory, on this machine or on a mount that several machines share.

Each object is a plain file under its key, so other tools can read it. Writers hold an operating
system lock (one of 64 files, chosen by the key; network file systems carry it between machines)
from the check of a condition to the rename, so a condition holds at the moment of the write.
Readers need no lock: a rename shows them the old file or the new one, whole. An object that must
not be there yet is made by a hard link instead, which never replaces a file: that condition holds
also against programs that know nothing of our locks.

The token of an object is its modification time, inode and size. A hash of the content would have
to read every file for a listing, and could not tell "replaced and put back" from "never
touched". Time, inode and size change with every replacement, also one made by another tool. But
clocks tick coarsely (4 ms on Linux) and inodes are used again, so each write gives its file a
time later than that of the file it replaces, with random digits below the millisecond: a write
id in the one place that every file system has for it. All users of a store must open it at the
same directory, because the lock files are there.

A writer that is killed leaves its temporary file beside the object. Whoever lists that part of
the store later removes it, once nothing was written to it for an hour by the file system's clock.

A share that is not mounted is a directory that is missing, or one that holds nothing. Both count
as out of reach, the second one for whoever knows that there was something.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, BinaryIO, NamedTuple, Self

from swampstore.errors import ConfigError, DiskError, SwampstoreError, ValidationError
from swampstore.files import disk_errors
from swampstore.layout import is_temp
from swampstore.notices import shell_word
from swampstore.redaction import without_credentials
from swampstore.stores import directory_tree as tree
from swampstore.stores.config import Fields, Limits, StoreConfig, split_url
from swampstore.stores.errors import (
    ObjectNotFoundError,
    StoreError,
    StoreNotMountedError,
    StorePermissionError,
    StoreUnreachableError,
    UnsupportedOperationError,
    changed,
    exists,
    not_found,
)
from swampstore.stores.protocol import (
    Capabilities,
    Fetched,
    Handed,
    Level,
    ObjectInfo,
    Store,
    Wanted,
    Written,
    check_key,
    parent_of,
    receive,
)

LOCKS = ".swampstore-locks"
_STRIPES = 64
_TRANSIENT = frozenset(
    {
        *(errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.EHOSTUNREACH),
        *(errno.ENOTCONN, errno.ENETUNREACH, errno.ECONNREFUSED, errno.ENODEV),
    }
)
_NO_LOCKS = frozenset({errno.ENOLCK, errno.EOPNOTSUPP})
_DENIED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
# No writer pauses that long between two pieces of an object.
_ABANDONED_AFTER = timedelta(hours=1)
_HINT = "Mount it, or create it."


class DirectoryConfig(NamedTuple):
    """`file:///mnt/share/bucket`: a directory that exists."""

    path: str
    limits: Limits = Limits()

    @classmethod
    def from_url(cls, url: str, environ: Mapping[str, str]) -> Self:
        """Read a `file://` URL."""
        parts = split_url(url)
        if parts.netloc not in {"", "localhost"}:
            raise ConfigError(
                f"the store {without_credentials(url)} names the host {parts.hostname!r}",
                hint="Write three slashes before a path on this machine: file:///mnt/share.",
            )
        if "?" in url:
            raise ConfigError(
                "a file:// URL has no parameters", hint="In a path, write a question mark as %3F."
            )
        from urllib.parse import unquote

        return cls.from_mapping({"path": unquote(parts.path)}, environ)

    @classmethod
    def from_mapping(cls, config: Mapping[str, Any], environ: Mapping[str, str]) -> Self:
        """Read `{path: ...}`."""
        fields = Fields(config)
        path = fields.required_text("path")
        if not os.path.isabs(path):
            raise ConfigError(
                f"the store's path is {path!r}, expected an absolute path", hint="Write it in full."
            )
        return cls(
            os.path.normpath(path), fields.limits(environ, "SWAMP_DIRECTORY_REQUEST_TIMEOUT_MS")
        )

    def open(self) -> Store:
        """Return the store; raise StoreNotMountedError if the directory is not there."""
        store = DirectoryStore(self.path)
        store.reach()
        return store


class DirectoryStore:
    """A directory as a store. It is never created: a mount that is missing must not go unseen.

    It is opened by the first request, or by `reach`.
    """

    capabilities = Capabilities(conditional_delete=True, conditional_copy=True, own_conditions=True)

    def __init__(
        self,
        path: str,
        *,
        durable: bool = True,
        is_known: Callable[[], bool] = lambda: False,
    ) -> None:
        self.identity = f"file://{os.path.realpath(path)}"
        self._path = path
        self._durable = durable
        self._is_known = is_known
        self._fd: int | None = None
        self._opening = threading.Lock()

    def reach(self) -> None:
        """Raise StoreNotMountedError if there is no directory, or not the one that was known."""
        self._root  # noqa: B018 - opening it is what is asked for

    @property
    def _root(self) -> int:
        """A descriptor of the directory."""
        with self._opening:
            if self._fd is None:
                self._fd = self._opened()
            elif self._fd >= 0 and os.fstat(self._fd).st_nlink == 0:
                raise StoreNotMountedError(f"{self._path} was removed", hint=_HINT)
            return self._fd

    def _opened(self) -> int:
        try:
            fd = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            raise StoreNotMountedError(f"{self._path} is not a directory", hint=_HINT) from None
        except OSError as error:
            if error.errno not in _TRANSIENT:
                raise
            raise StoreNotMountedError(f"{self._path}: {error.strerror}", hint=_HINT) from error
        # Once more: somebody may have been writing there for the first time, and be known by now.
        if tree.is_bare(fd, LOCKS) and self._is_known() and tree.is_bare(fd, LOCKS):
            os.close(fd)
            raise StoreNotMountedError(
                f"{self._path} holds nothing any more, so nothing seems to be mounted there",
                hint="Mount it. If it was emptied on purpose:"
                f" mkdir {shell_word(f'{self._path}/{LOCKS}')}",
            )
        return fd

    def get(self, key: str) -> Fetched:
        """See Store.get."""
        with self._reading(key) as fd:
            return Fetched(_info(key, os.fstat(fd)), b"".join(tree.chunks(fd)))

    def get_if_changed(self, key: str, etag: str) -> Fetched | None:
        """See Store.get_if_changed."""
        with self._reading(key) as fd:
            info = _info(key, os.fstat(fd))
            return None if info.etag == etag else Fetched(info, b"".join(tree.chunks(fd)))

    def download(
        self, key: str, fd: int, *, size: int | None = None, sha256: str | None = None
    ) -> ObjectInfo:
        """See Store.download."""
        with self._reading(key) as source:
            info = _info(key, os.fstat(source))
            what = f"{key} in {self.identity}"
            receive(tree.chunks(source), fd, what=what, size=size, sha256=sha256)
            return info

    def excerpt(self, key: str, start: int, length: int) -> bytes:
        """See swampstore.stores.protocol."""
        with self._reading(key) as fd:
            return os.pread(fd, length, start)

    def head(self, key: str) -> ObjectInfo:
        """See Store.head."""
        # Opening, unlike asking for the status, makes a network file system look again.
        with self._reading(key) as fd:
            return _info(key, os.fstat(fd))

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """See Store.list."""
        parent = parent_of(prefix)
        temps: list[str] = []
        with self._errors(prefix):
            for found in tree.walk(self._root, parent, prefix, LOCKS, temps):
                yield _info(found.path, found.status)
        if temps:
            self._sweep(temps)

    def contents(self, prefix: str, wanted: Wanted, limit: int) -> Iterator[Handed]:
        """See swampstore.stores.protocol."""
        is_wanted = False

        def opens() -> bool:
            return is_wanted  # who wanted a file mostly wants the next one

        with self._errors(prefix):
            for found in tree.walk(self._root, parent_of(prefix), prefix, LOCKS, [], opens):
                try:
                    info = _info(found.path, found.status)
                    is_wanted = wanted(info)
                    if is_wanted and info.size <= limit:
                        handed = _handed(info, found)
                    else:
                        handed = Handed(info, is_wanted)
                finally:
                    if found.content != -1:
                        os.close(found.content)
                yield handed

    def level(self, prefix: str = "") -> Level:
        """See swampstore.stores.protocol."""
        with self._errors(prefix):
            inner, files = tree.children(self._root, parent_of(prefix))
        return Level(
            [name for name in inner if prefix or name != LOCKS],
            [_info(found.path, found.status) for found in files],
        )

    def _sweep(self, temps: Iterable[str]) -> None:
        """Remove what killed writers left behind, as far as this user may."""
        with contextlib.suppress(StoreError, DiskError):
            moment = self.clock() - _ABANDONED_AFTER
            for path in temps:
                tree.remove_if_older(self._root, path, moment.timestamp())

    def put(self, key: str, body: bytes | BinaryIO) -> Written:
        """See Store.put."""
        return self._write(key, body, lambda _: None)

    def put_if_absent(self, key: str, body: bytes | BinaryIO) -> Written:
        """See Store.put_if_absent."""
        return self._create(key, body)

    def _create(self, key: str, body: tree.Body) -> Written:
        def check(token: str | None) -> None:
            if token is not None:
                raise exists(key, self.identity)

        def publish(directory: int, temp: str, name: str) -> None:
            try:
                tree.name_new_file(directory, temp, name)
            except FileExistsError:
                raise exists(key, self.identity) from None

        return self._write(key, body, check, publish)

    def put_if_match(self, key: str, body: bytes | BinaryIO, token: str) -> Written:
        """See Store.put_if_match."""

        def check(found: str | None) -> None:
            if found != token:
                raise changed(key, self.identity)

        return self._write(key, body, check)

    def _write(
        self,
        key: str,
        body: tree.Body,
        check: Callable[[str | None], None],
        publish: Callable[[int, str, str], None] = tree.replace_file,
    ) -> Written:
        with self._errors(_writable(key)):
            directory, fd, temp = tree.new_file(self._root, key, durable=self._durable)
            try:
                tree.fill(fd, body)
                self._sync(fd)
                with self._locked(key):
                    name = os.path.basename(key)
                    check(self._token(key))
                    token = tree.make_unique(fd, directory, name)
                    publish(directory, temp, name)
                self._sync(directory)
                return Written(token, token)
            except BaseException:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(temp, dir_fd=directory)
                tree.remove_empty_parents(self._root, key)
                raise
            finally:
                os.close(fd)
                os.close(directory)

    def delete(self, key: str) -> None:
        """See Store.delete."""
        self._delete(key, None)

    def delete_if_match(self, key: str, token: str) -> None:
        """See Store.delete_if_match."""
        self._delete(key, token)

    def _delete(self, key: str, token: str | None) -> None:
        with self._errors(_writable(key)), self._locked(key):
            found = self._token(key)
            if found is None:
                return
            if token is not None and found != token:
                raise changed(key, self.identity)
            with tree.parent(self._root, key) as (directory, name):
                os.unlink(name, dir_fd=directory)
                self._sync(directory)
        tree.remove_empty_parents(self._root, key)

    def copy(self, source: str, target: str) -> None:
        """See Store.copy."""
        check_key(target)
        with self._reading(source) as fd, os.fdopen(os.dup(fd), "rb") as file:
            self.put(target, file)

    def copy_if_absent(self, source: str, target: str, token: str) -> None:
        """See Store.copy_if_absent. What was opened stays what it is: files are replaced."""
        try:
            with self._reading(source) as fd:
                if tree.token_of(os.fstat(fd)) != token:
                    raise changed(source, self.identity)
                self._create(target, fd)
        except ObjectNotFoundError:
            raise changed(source, self.identity) from None

    def clock(self) -> datetime:
        """See Store.clock. The file system dates a new file: on a mount, with the server's time."""
        with self._errors("clock"):
            directory, fd, temp = tree.new_file(self._root, "clock")
            try:
                os.unlink(temp, dir_fd=directory)
                return _time(os.fstat(fd))
            finally:
                os.close(fd)
                os.close(directory)

    def close(self) -> None:
        """See Store.close."""
        with self._opening:
            if self._fd is not None and self._fd >= 0:
                os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @contextlib.contextmanager
    def _reading(self, key: str) -> Iterator[int]:
        with self._errors(check_key(key)):
            try:
                fd = tree.open_file(self._root, key)
            except FileNotFoundError:
                raise not_found(key, self.identity) from None
            try:
                yield fd
            finally:
                os.close(fd)

    @contextlib.contextmanager
    def _locked(self, key: str) -> Iterator[None]:
        stripe = f"{LOCKS}/{zlib.crc32(key.encode()) % _STRIPES:02}"
        with contextlib.suppress(FileExistsError):
            os.mkdir(LOCKS, dir_fd=self._root)
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(stripe, flags, 0o666, dir_fd=self._root)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def _token(self, key: str) -> str | None:
        try:
            fd = tree.open_file(self._root, key)
        except FileNotFoundError:
            return None
        try:
            return tree.token_of(os.fstat(fd))
        finally:
            os.close(fd)

    def _sync(self, fd: int) -> None:
        if self._durable:
            os.fsync(fd)

    @contextlib.contextmanager
    def _errors(self, key: str) -> Iterator[None]:
        with disk_errors(f"{self.identity}/{key}"):
            try:
                yield
            except SwampstoreError:
                raise
            except OSError as error:
                if error.errno in _DENIED:
                    raise StorePermissionError(
                        f"{self.identity}/{key}: {error.strerror}",
                        hint="Check the owner and mode of the directory, and how it is mounted.",
                    ) from error
                if error.errno in _NO_LOCKS:
                    raise UnsupportedOperationError(
                        f"{self.identity} has no file locks: {error.strerror}",
                        hint="Mount it with locking; without locks it cannot be shared safely.",
                    ) from error
                if error.errno in _TRANSIENT:
                    raise StoreUnreachableError(
                        f"{self.identity}/{key}: {error.strerror}",
                        hint="Check the mount, then try again; nothing was lost.",
                    ) from error
                raise


def open_later(settings: StoreConfig, is_known: Callable[[], bool]) -> Store:
    """Return the store of a repository, which works on while nobody answers.

    That a share is not mounted is told by each request. `is_known` says whether the repository has
    seen data there.
    """
    if isinstance(settings, DirectoryConfig):
        return DirectoryStore(settings.path, is_known=is_known)
    return settings.open()


def _writable(key: str) -> str:
    """Return a checked key that is none of the names this store keeps for itself."""
    if check_key(key).partition("/")[0] == LOCKS or is_temp(os.path.basename(key)):
        raise ValidationError(
            f"the key {key!r} is kept for the store's own files", hint="Rename it."
        )
    return key


def _handed(info: ObjectInfo, found: tree.WalkedFile) -> Handed:
    """Return an object of a walk with its content, if that can be read."""
    if found.content != -1:
        data = tree.read_all(found.content, info.size)
        return Handed(info, is_wanted=True, data=data)
    try:
        fd, status = tree.open_in(found.directory, found.path.rpartition("/")[2])
    except OSError:
        return Handed(info, is_wanted=True)
    try:
        # What is read is what the ETag says, whatever was put there since.
        if tree.token_of(status) != info.token:
            info = _info(found.path, status)
        return Handed(info, is_wanted=True, data=tree.read_all(fd, status.st_size))
    finally:
        os.close(fd)


def _time(status: os.stat_result) -> datetime:
    return datetime.fromtimestamp(status.st_mtime_ns / 1e9, UTC)


def _info(key: str, status: os.stat_result) -> ObjectInfo:
    token = tree.token_of(status)
    return ObjectInfo(key, status.st_size, token, token, _time(status))
