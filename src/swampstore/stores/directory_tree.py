"""Files below one directory, reached segment by segment so that no symbolic link is followed.

Everything here works on descriptors of directories. A path that was checked and then opened by
name could have been swapped for a link in between; a descriptor cannot.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator
from typing import BinaryIO, NamedTuple

from swampstore.files import NO_FILE, temp_name, write_all
from swampstore.layout import is_temp
from swampstore.stores.protocol import CHUNK

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# A pipe in place of a file must not make us wait for its writer.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW_FILE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_HARD_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})
_ATTEMPTS = 100
# File systems keep times to a nanosecond, to 10 ms or (FAT) to two seconds.
_TICKS_NS = (0, 10_000_000, 2_000_000_000)
_BELOW_A_MILLISECOND = 1_000_000
_AT_ONCE = 1 << 30
# What a new file may be filled with; a number is the descriptor of another file of the store.
Body = bytes | BinaryIO | int


class WalkedFile(NamedTuple):
    """A file of a walk: its path below the root, and what the file system says about it.

    `directory` is a descriptor of its directory; it is good until the walk goes on. Where nobody
    has opened the file, `content` is -1; else its descriptor, which whoever gets it closes.
    """

    path: str
    status: os.stat_result
    directory: int = -1
    content: int = -1


@contextlib.contextmanager
def parent(root: int, path: str) -> Iterator[tuple[int, str]]:
    """Yield the directory of a path and the name in it; raise FileNotFoundError if missing."""
    *segments, name = path.split("/")
    fd = _descend(root, segments, create=False)
    try:
        yield fd, name
    finally:
        os.close(fd)


def open_file(root: int, path: str) -> int:
    """Return a descriptor of a regular file; raise FileNotFoundError if there is none."""
    try:
        with parent(root, path) as (directory, name):
            return open_in(directory, name)[0]
    except OSError as error:
        if error.errno in NO_FILE:
            raise FileNotFoundError(errno.ENOENT, "no such file", path) from None
        raise


def open_in(directory: int, name: str) -> tuple[int, os.stat_result]:
    """Return a descriptor of a regular file in a directory, and what the file is now.

    Raises OSError if there is none.
    """
    fd = os.open(name, _FILE, dir_fd=directory)
    status = os.fstat(fd)
    if stat.S_ISREG(status.st_mode):
        return fd, status
    os.close(fd)
    raise FileNotFoundError(errno.ENOENT, "not a file", name)


def new_file(root: int, path: str, *, durable: bool = True) -> tuple[int, int, str]:
    """Create a temporary file beside `path`; return directory, file and the temporary name.

    As long as the file is there, nobody can remove its directory. `durable` makes directories
    that have to be created outlive a power cut.
    """
    for _ in range(_ATTEMPTS):
        # A deletion elsewhere may take an empty directory away before there is a file in it.
        with contextlib.suppress(FileNotFoundError):
            return _new_file(root, path.split("/")[:-1], durable=durable)
    raise FileNotFoundError(errno.ENOENT, "the directory keeps vanishing", path)


def _new_file(root: int, segments: list[str], *, durable: bool) -> tuple[int, int, str]:
    directory = _descend(root, segments, create=True, durable=durable)
    temp = temp_name()
    try:
        return directory, os.open(temp, _NEW_FILE, 0o666, dir_fd=directory), temp
    except BaseException:
        os.close(directory)
        raise


def replace_file(directory: int, temp: str, name: str) -> None:
    """Give a temporary file its name, whatever has it."""
    os.rename(temp, name, src_dir_fd=directory, dst_dir_fd=directory)


def name_new_file(directory: int, temp: str, name: str) -> None:
    """Give a temporary file its name; raise FileExistsError if a regular file has it.

    A hard link replaces nothing, whatever other programs do at the same time. Where there are
    no hard links, and in place of a link or a pipe, the file is renamed.
    """
    try:
        os.link(temp, name, src_dir_fd=directory, dst_dir_fd=directory)
    except FileExistsError:
        # A network file system may have done it, lost the answer, and tried again.
        if os.stat(temp, dir_fd=directory, follow_symlinks=False).st_nlink == 1:
            if _was_file(directory, name):
                raise
            replace_file(directory, temp, name)
            return
    except OSError as error:
        if error.errno not in _NO_HARD_LINKS:
            raise
        replace_file(directory, temp, name)
        return
    os.unlink(temp, dir_fd=directory)


def _was_file(directory: int, name: str) -> bool:
    """Whether what was in the way a moment ago is a file, or is gone by now."""
    try:
        return stat.S_ISREG(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return True


def remove_empty_parents(root: int, path: str) -> None:
    """Remove the directories above a removed file that hold nothing any more."""
    above = os.path.dirname(path)
    while above:
        try:
            with parent(root, above) as (directory, name):
                os.rmdir(name, dir_fd=directory)
        except OSError:
            return
        above = os.path.dirname(above)


def remove_if_older(root: int, path: str, moment: float) -> None:
    """Remove a file last written before a moment, if we may, and the directories it kept alive."""
    with contextlib.suppress(OSError), parent(root, path) as (directory, name):
        if os.stat(name, dir_fd=directory, follow_symlinks=False).st_mtime < moment:
            os.unlink(name, dir_fd=directory)
            remove_empty_parents(root, path)


def walk(
    root: int,
    start: str,
    prefix: str,
    hidden: str,
    temps: list[str],
    opens: Callable[[], bool] = lambda: False,
) -> Iterator[WalkedFile]:
    """Yield the regular files below `start` whose path starts with `prefix`, ordered by path.

    Links and the top-level directory `hidden` are passed over. So are temporary files, whose
    paths are added to `temps`. While `opens` says so, files are opened at once, as far as they can
    be: that also tells their status, and whoever reads them need not ask for it twice.
    """
    try:
        directory = _descend(root, start.split("/") if start else [], create=False)
    except (FileNotFoundError, NotADirectoryError):
        return
    yield from _walk(directory, f"{start}/" if start else "", prefix, hidden, temps, opens)


def children(root: int, path: str) -> tuple[list[str], list[WalkedFile]]:
    """Return the directories in a directory by name, and its regular files; both are sorted."""
    try:
        directory = _descend(root, path.split("/") if path else [], create=False)
    except (FileNotFoundError, NotADirectoryError):
        return [], []
    inner: list[str] = []
    files: list[WalkedFile] = []
    above = f"{path}/" if path else ""
    try:
        for found in sorted(_names(directory)):
            name = found.removesuffix("/")
            if is_temp(name):
                continue
            if name != found:
                inner.append(name)
                continue
            with contextlib.suppress(FileNotFoundError):
                status = os.stat(name, dir_fd=directory, follow_symlinks=False)
                files.append(WalkedFile(above + name, status))
    finally:
        os.close(directory)
    return sorted(inner), files


def _walk(
    directory: int,
    above: str,
    prefix: str,
    hidden: str,
    temps: list[str],
    opens: Callable[[], bool],
) -> Iterator[WalkedFile]:
    # Not recursive: what is found deep down would be handed up through every level.
    entered = [(directory, above, _sorted_names(directory))]
    try:
        while entered:
            directory, above, names = entered[-1]
            is_inside = above.startswith(prefix)
            for name in names:
                path = above + name
                if name[0] == "." and is_temp(name.removesuffix("/")):
                    temps.append(path.removesuffix("/"))
                    continue
                if not above and name in (hidden, f"{hidden}/"):
                    continue
                if not is_inside and not path.startswith(prefix[: len(path)]):
                    continue
                try:
                    if name[-1] == "/":
                        # A slash at the end would make a link that is there now be followed.
                        inner = os.open(name[:-1], _DIRECTORY, dir_fd=directory)
                        entered.append((inner, path, _sorted_names(inner)))
                        break
                    if is_inside or path.startswith(prefix):
                        yield _walked(path, name, directory, is_opened=opens())
                except (FileNotFoundError, NotADirectoryError):
                    continue
            else:
                os.close(entered.pop()[0])
    finally:
        for descriptor, _, _ in entered:
            os.close(descriptor)


def _walked(path: str, name: str, directory: int, *, is_opened: bool) -> WalkedFile:
    if is_opened:
        try:
            fd, status = open_in(directory, name)
        except OSError:
            pass  # it may still be there, and not be readable
        else:
            return WalkedFile(path, status, directory, fd)
    status = os.stat(name, dir_fd=directory, follow_symlinks=False)
    return WalkedFile(path, status, directory)


def _sorted_names(directory: int) -> Iterator[str]:
    """Yield what is in a directory in order; it is read when the first one is asked for."""
    yield from sorted(_names(directory))


def _names(directory: int) -> list[str]:
    """Return what is in a directory; the name of a directory ends in a slash, and sorts so."""
    with os.scandir(directory) as entries:
        return [
            entry.name if is_file else f"{entry.name}/"
            for entry in entries
            if (is_file := entry.is_file(follow_symlinks=False))
            or entry.is_dir(follow_symlinks=False)
        ]


def _descend(root: int, segments: list[str], *, create: bool, durable: bool = True) -> int:
    """Return a descriptor of the directory below `root`, which the caller closes."""
    fd = os.dup(root)
    try:
        for segment in segments:
            inner = _open_or_make(segment, fd, durable) if create else _open(segment, fd)
            os.close(fd)
            fd = inner
    except BaseException:
        os.close(fd)
        raise
    return fd


def _open(segment: str, directory: int) -> int:
    return os.open(segment, _DIRECTORY, dir_fd=directory)


def _open_or_make(segment: str, directory: int, durable: bool) -> int:
    while True:
        try:
            return _open(segment, directory)
        except FileNotFoundError:
            with contextlib.suppress(FileExistsError):
                os.mkdir(segment, dir_fd=directory)
                if durable:
                    os.fsync(directory)


def is_bare(fd: int, locks: str) -> bool:
    """Whether a directory holds nothing of a store: at most files, and what `mkfs` leaves there."""
    try:
        os.stat(locks, dir_fd=fd)
    except FileNotFoundError:
        inner, _ = children(fd, "")
        return not set(inner) - {"lost+found"}
    return False


def chunks(fd: int) -> Iterator[bytes]:
    """Yield what is left of a file, piece by piece."""
    while chunk := os.read(fd, CHUNK):
        yield chunk


def read_all(fd: int, size: int) -> bytes:
    """Return what a file holds; one that is as long as it was is read in one go."""
    data = os.read(fd, size + 1)
    return data if len(data) == size else data + b"".join(chunks(fd))


def fill(fd: int, body: Body) -> None:
    """Write a body into a new file."""
    if isinstance(body, int):
        _copy(body, fd)
        return
    if isinstance(body, bytes):
        pieces: Iterator[bytes] = iter([body])
    else:
        body.seek(0)
        pieces = iter(lambda: body.read(CHUNK), b"")
    for piece in pieces:
        write_all(fd, piece)


def _copy(source: int, fd: int) -> None:
    """Copy a file; where the file system can, its server does it or both share their blocks."""
    with contextlib.suppress(OSError):  # whatever it cannot do, reading and writing can
        while os.copy_file_range(source, fd, _AT_ONCE):
            pass
    for piece in chunks(source):  # what is left of it
        write_all(fd, piece)


def _any_below(limit: int) -> int:
    """Return any number from 0 on; `secrets` and `random` load more than a save needs."""
    return int.from_bytes(os.urandom(8), "big") % limit


def make_unique(fd: int, directory: int, name: str) -> str:
    """Give a new file a time that no file of this name had before; return its token."""
    status = os.fstat(fd)
    floor = -1
    with contextlib.suppress(FileNotFoundError):
        floor = os.stat(name, dir_fd=directory, follow_symlinks=False).st_mtime_ns
    moment = max(status.st_mtime_ns, floor + 1) + _any_below(_BELOW_A_MILLISECOND)
    for tick in _TICKS_NS:
        os.utime(fd, ns=(status.st_atime_ns, moment + tick))
        if (status := os.fstat(fd)).st_mtime_ns > floor:
            break
    return token_of(status)


def token_of(status: os.stat_result) -> str:
    """Return what tells this very write of a file from any other."""
    return f"{status.st_mtime_ns:x}-{status.st_ino:x}-{status.st_size:x}"
