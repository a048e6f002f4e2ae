"""Single files: read, replaced in one step, made durable, and what it means if the disk refuses."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator

from swampstore.errors import DiskError, SwampstoreError
from swampstore.layout import LATEST, METADATA, is_temp

# What opening is answered with where there is nothing, a link, a socket, or a path through a file.
NO_FILE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO})
_PIECE = 1 << 14
_MOVE_IT = "Move it away; `swampstore doctor` lists what does not belong."
_REASONS = {
    errno.ENOSPC: ("the disk is full", "Free some space and try again; nothing was lost."),
    errno.EDQUOT: ("the disk quota is used up", "Free some space and try again."),
    errno.EROFS: ("the file system is read-only", "Mount it writable, or use another datastore."),
    errno.EACCES: ("permission denied", "Check the owner and mode of the datastore's directories."),
    errno.EPERM: ("permission denied", "Check the owner and mode of the datastore's directories."),
    errno.ENOTDIR: ("there is a file where a directory belongs", _MOVE_IT),
    errno.EISDIR: ("there is a directory where a file belongs", _MOVE_IT),
    errno.EEXIST: ("something else is in the way", _MOVE_IT),
    errno.ENAMETOOLONG: ("the path is too long", "Use a shorter type, model id or data name."),
}


@contextlib.contextmanager
def disk_errors(path: str) -> Iterator[None]:
    """Turn what the operating system says into a DiskError that names the path and a way out."""
    try:
        yield
    except SwampstoreError:
        raise
    except OSError as error:
        reason, hint = _REASONS.get(
            error.errno or 0, (error.strerror or str(error), "Check the disk, then try again.")
        )
        raise DiskError(f"{_culprit(error) or path}: {reason}", hint=hint) from error


def is_out_of_space(error: BaseException) -> bool:
    """Whether an error says that a disk has no room left, for this file or any other."""
    cause = error.__cause__ if isinstance(error, DiskError) else None
    return isinstance(cause, OSError) and cause.errno in {errno.ENOSPC, errno.EDQUOT}


def _culprit(error: OSError) -> str | None:
    """Return the path that an error is about, None if all it names is a temporary file."""
    for name in (error.filename, error.filename2):
        if isinstance(name, str) and not is_temp(os.path.basename(name)):
            return name
    return None


def read_file(path: str) -> bytes | None:
    """Return a file's bytes, None if it is not there. Small files only."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return read_to_end(fd)


def read_to_end(fd: int) -> bytes:
    """Return all that an open file has, and close it."""
    try:
        part = os.read(fd, _PIECE)
        if len(part) < _PIECE:  # a short read of a file is its end
            return part
        parts = [part]
        while len(part) == _PIECE:
            part = os.read(fd, _PIECE)
            parts.append(part)
        return b"".join(parts)
    finally:
        os.close(fd)


def open_shared(path: str) -> int:
    """Open a file for reading and writing, and make it if it is not there; return its descriptor.

    Whoever else may write the directory, as the group of its owner, may write the file.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    _follow_directory(fd, os.path.dirname(path))
    return fd


def make_shared(path: str) -> None:
    """Make a file, unless there is something, that others may write as `open_shared` says.

    What is there is not opened: to close it would free every lock that SQLite has on it in this
    process.
    """
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
    _follow_directory(path, os.path.dirname(path))


def make_shared_directory(path: str) -> None:
    """Make a directory, unless there is one, in which others may write as `open_shared` says."""
    os.makedirs(path, exist_ok=True)
    _follow_directory(path, os.path.dirname(path), stat.S_IRWXG)


def _follow_directory(
    file: int | str, directory: str, granted: int = stat.S_IRGRP | stat.S_IWGRP
) -> None:
    found = os.stat(file)
    may_grant = not found.st_mode & stat.S_IWGRP and found.st_uid == os.geteuid()
    if may_grant and os.stat(directory).st_mode & stat.S_IWGRP:
        with contextlib.suppress(OSError):  # some file systems know no modes
            os.chmod(file, stat.S_IMODE(found.st_mode) | granted)


def sync_dir(path: str) -> None:
    """Make the entries of a directory durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_filesystem(path: str) -> None:
    """Make everything durable on the file system of `path`, for less than many files one by one."""
    import ctypes

    syncfs = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
    if syncfs is None:  # only Linux has it
        os.sync()
        return
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if syncfs(fd) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), path)
    finally:
        os.close(fd)


def write_all(fd: int, data: bytes) -> None:
    """Write all of the data, in as many pieces as the system takes it."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def temp_name() -> str:
    """Return a new name that every client knows to be temporary."""
    import uuid

    return f".{uuid.uuid4()}.tmp"


def temp_beside(path: str) -> str:
    """Return a temporary name in the same directory."""
    return f"{os.path.dirname(path)}/{temp_name()}"


@contextlib.contextmanager
def replacing(path: str, *, durable: bool) -> Iterator[str]:
    """Yield where to make a file that takes the place of `path` when the block is left.

    That is one step: readers see the old bytes or the new ones. After an error nothing is left of
    the new ones. `durable` waits until not even a power failure brings the old ones back.
    """
    temp = temp_beside(path)
    try:
        yield temp
        if durable:
            _sync_file(temp)
        os.rename(temp, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temp)
        raise
    if durable:
        sync_dir(os.path.dirname(path))


def sync_files_in(path: str) -> None:
    """Make the content of the files in a directory durable, if it is there."""
    with (
        contextlib.suppress(FileNotFoundError, NotADirectoryError),
        os.scandir(path) as entries,
    ):
        for entry in entries:
            if entry.is_file(follow_symlinks=False):
                _sync_file(entry.path)


def _sync_file(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def replace_file(
    path: str,
    data: bytes,
    *,
    durable: bool,
    mode: int = 0o666,
    check: Callable[[], object] = lambda: None,
) -> None:
    """Replace the content of a file, see `replacing`. Its `mode` is cut by the umask.

    `check` is called at the last moment, and raises to prevent it.
    """
    with replacing(path, durable=durable) as temp:
        fd = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        try:
            write_all(fd, data)
        finally:
            os.close(fd)
        check()


def try_writing(directory: str) -> None:
    """Raise OSError unless files can be made in a directory."""
    trial = temp_beside(f"{directory}/")
    fd = os.open(trial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        write_all(fd, b"trial")
    finally:
        os.close(fd)
        os.unlink(trial)


def remove_version_files(directory: str) -> None:
    """Remove the files of a version, its metadata first; data of another model within it stays.

    The directory of a version may be that of a data name as well, whose `latest` it then holds.
    """
    names = set(os.listdir(directory)) - {LATEST}
    for name in sorted(names, key=lambda name: (name != METADATA, name)):
        if not os.path.isdir(f"{directory}/{name}"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{directory}/{name}")


def remove_all(path: str) -> None:
    """Remove what is out of sight already; what stays is swept up later."""
    import shutil

    shutil.rmtree(path, ignore_errors=True)


def remove_old_temps(directory: str, before: float) -> int:
    """Remove what interrupted writes left in `directory` before a time; return how many."""
    removed = 0
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(directory) as found:
        for entry in found:
            if not is_temp(entry.name) or entry.stat(follow_symlinks=False).st_mtime > before:
                continue
            if entry.is_dir(follow_symlinks=False):
                remove_all(entry.path)
            else:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(entry.path)
            removed += 1
    return removed
