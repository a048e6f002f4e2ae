"""The right to change files at and below one path, which was announced before."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from swampstore.files.disk import replacing, sync_dir, write_all
from swampstore.files.hold import Hold
from swampstore.layout import is_internal

if TYPE_CHECKING:
    from swampstore.files.tree import Tree


class Change:
    """The right to change files at and below one announced path."""

    def __init__(self, tree: Tree, rel: str, *, durable: bool) -> None:
        self._tree = tree
        self._rel = rel
        self._durable = durable
        # What was announced as about to be removed.
        self._removed: list[str] = []
        self._is_told = False

    def announce_again(self) -> None:
        """Announce once more what has changed by now, and what of it was removed.

        A push that came in between has seen the old state, and settled the marks. Whoever drops
        what would tell of the change does this first. Nothing is told twice.
        """
        if not self._is_told:
            self._tree.announce_again(self._rel, self._removed)
            self._is_told = True

    def _path(self, rel: str) -> str:
        self._is_told = False
        if rel != self._rel and not rel.startswith(f"{self._rel}/"):
            raise AssertionError(f"{rel} was not announced, only {self._rel} was")
        return self._tree.path(rel)

    def _existing(self, rel: str) -> str:
        """Return the path of a file that is to be changed in place, which no link may lead to."""
        self._path(rel)
        return self._tree.check_inside(rel)

    def sync_dir(self, rel: str) -> None:
        """Make the entries of a directory durable, in every tier that has it."""
        self._path(rel)
        for place in self._tree.places(rel):
            with contextlib.suppress(FileNotFoundError):
                self._sync_dir(place)

    def _sync_dir(self, path: str) -> None:
        if self._durable:
            sync_dir(path)

    def _sync_file(self, fd: int) -> None:
        if self._durable:
            os.fsync(fd)

    def make_dir(self, rel: str) -> None:
        """Create a directory with its parents, durably; it may exist."""
        self._make_dirs(self._path(rel))

    def _make_dirs(self, path: str) -> None:
        try:
            os.mkdir(path)
        except FileExistsError:
            if not os.path.isdir(path):
                raise NotADirectoryError(errno.ENOTDIR, "", path) from None
            return
        except FileNotFoundError:
            self._make_dirs(os.path.dirname(path))
            with contextlib.suppress(FileExistsError):
                os.mkdir(path)
        self._sync_dir(os.path.dirname(path))

    def claim_dir(self, rel: str) -> bool:
        """Create one directory whose parent exists; False if somebody has it already."""
        path = self._path(rel)
        try:
            os.mkdir(path)
        except FileExistsError:
            return False
        except FileNotFoundError:
            if not self._tree.routing.may_split(self._rel):
                raise
            # An exclude pattern sends it to the other tier than its parent.
            self._make_dirs(os.path.dirname(path))
            return self.claim_dir(rel)
        return True

    def write(self, rel: str, data: bytes) -> None:
        """Replace a file in one step: readers see the old bytes or the new ones.

        The new name is durable after `sync_dir` of the directory.
        """
        path = self._path(rel)
        with replacing(path, durable=False) as temp:
            fd = self._create(temp)
            try:
                write_all(fd, data)
                self._sync_file(fd)
            finally:
                os.close(fd)

    def write_below(self, rel: str, data: bytes) -> None:
        """Replace a file as `write` does, make the directories it is in, and make it durable."""
        parent = os.path.dirname(self._path(rel))
        self._make_dirs(parent)
        self.write(rel, data)
        self._sync_dir(parent)

    def claim_dir_held(self, rel: str, file: str, hold: Hold) -> bool:
        """Create a directory like `claim_dir`, with a file in it that is held from then on."""
        path = self._path(rel)
        if self._tree.routing.may_split(self._rel):
            self._make_dirs(os.path.dirname(path))
        hold.prepare(os.path.dirname(path))
        if not self.claim_dir(rel):
            return False
        try:
            hold.place(f"{path}/{file}")
        except OSError:
            self.remove_empty_dir(rel)  # without an owner it would be in the way for a day
            raise
        return True

    def remove_empty_dir(self, rel: str) -> None:
        """Remove a directory if nothing is in it."""
        with contextlib.suppress(OSError):
            os.rmdir(self._path(rel))

    def drop(self, rel: str, file: str) -> None:
        """Remove a file of a directory that means nothing any more, there or not."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            os.unlink(f"{self._path(rel)}/{file}")

    def create(self, rel: str) -> int:
        """Create a new file and return its descriptor, which the caller writes and closes."""
        return self._create(self._path(rel))

    def _create(self, path: str) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            return os.open(path, flags, 0o666)
        except FileNotFoundError:
            if not self._tree.routing.may_split(self._rel):
                raise
        # An exclude pattern sends this file to the other tier than its directory.
        self._make_dirs(os.path.dirname(path))
        return os.open(path, flags, 0o666)

    def write_new(self, rel: str, data: bytes) -> None:
        """Write a file that nobody looks at before something else makes it visible."""
        fd = self.create(rel)
        try:
            write_all(fd, data)
            self._sync_file(fd)
        finally:
            os.close(fd)

    def append(self, rel: str, data: bytes) -> int:
        """Add bytes to the end of an existing file; return its new size."""
        fd = os.open(self._existing(rel), os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        try:
            write_all(fd, data)
            self._sync_file(fd)
            return os.fstat(fd).st_size
        finally:
            os.close(fd)

    def truncate(self, rel: str, size: int) -> None:
        """Cut a file to `size` bytes."""
        fd = os.open(self._existing(rel), os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.ftruncate(fd, size)
            self._sync_file(fd)
        finally:
            os.close(fd)

    def remove(self, rel: str) -> None:
        """Remove a file or a symbolic link; it may be gone already."""
        path = self._path(rel)
        if not is_internal(rel):
            self.announce_removal(rel)
        try:
            os.unlink(path)
        except FileNotFoundError:
            return
        self._sync_dir(os.path.dirname(path))

    def announce_removal(self, rel: str) -> None:
        """Say before it goes that whatever is missing there counts as deleted."""
        self._path(rel)
        self._removed.append(rel)
        self._tree.announce_removal(rel)

    def remove_tree(self, rel: str, look: Callable[[str], object] = lambda _: None) -> None:
        """Remove a directory and all below it: gone in one rename, then cleaned up.

        Whatever is missing there counts as deleted. `look` sees what went, where it is by then.
        """
        self.announce_removal(rel)
        self._tree.drop_dir(self._rel, rel, look)

    def move_dir(self, old: str, new: str) -> None:
        """Rename a directory in every tier that has it; there, `new` is absent or empty."""
        source, target = (rel.removeprefix(self._rel) for rel in (old, new))
        for place in self._tree.places(self._rel):
            with contextlib.suppress(FileNotFoundError):
                os.rename(f"{place}{source}", f"{place}{target}")

    def discard_claim(self, rel: str) -> None:
        """Remove a claimed directory, and the announced one if nothing else is in it.

        That is no removal which others should hear of: they never had it.
        """
        self._path(rel)
        self._tree.drop_dir(self._rel, rel)
        self.remove_empty_dirs()

    def remove_empty_dirs(self) -> None:
        """Remove the announced directory, in every tier in which nothing is in it."""
        for place in self._tree.places(self._rel):
            with contextlib.suppress(OSError):
                os.rmdir(place)
