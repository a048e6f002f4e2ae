"""The files of a datastore, and the two ways in which they may change."""

from __future__ import annotations

import contextlib
import errno
import math
import os
from collections.abc import Callable, Collection, Iterable, Iterator

from swampstore.files.disk import (
    disk_errors,
    read_file,
    remove_all,
    remove_old_temps,
    remove_version_files,
    replacing,
    sync_dir,
    sync_files_in,
    sync_filesystem,
    temp_beside,
    write_all,
)
from swampstore.files.hold import Hold
from swampstore.files.links import check_no_link, check_no_way_out, place_of
from swampstore.layout import is_internal, is_temp
from swampstore.routing import Routing

Announce = Callable[[str], None]
# From so many directories on, waiting for the whole file system is cheaper than for each of them.
_MANY = 32


class Tree:
    """The files of one datastore, spread over its tiers by the routing rules.

    `base` is the datastore tier (namespace included), `local` the tier that never leaves the
    machine; they are the same directory in the default layout. `announce` is told every path,
    `prefix` (the namespace) in front, before it changes. With `announce_write`, that one is told
    instead, and `announce` only what is removed. `durable=False` leaves out every fsync.
    `was_whole` tells of the directory of a version without metadata that it was finished once, and
    damaged since.
    """

    def __init__(
        self,
        base: str,
        local: str,
        routing: Routing,
        *,
        announce: Announce,
        announce_write: Announce | None = None,
        prefix: str = "",
        durable: bool = True,
        was_whole: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self.base = base
        self.local = local
        self.routing = routing
        self.durable = durable
        self.was_whole = was_whole
        self._announce_write = announce_write or announce
        self._announce_removal = announce if announce_write else None
        self._prefix = f"{prefix}/" if prefix else ""

    @classmethod
    def only_read(cls, base: str, local: str | None = None, routing: Routing | None = None) -> Tree:
        """Return a tree that nothing may change; whatever tries to is a defect."""

        def refuse(rel: str) -> None:
            raise AssertionError(f"{base}/{rel} is only to be read")

        return cls(base, local or base, routing or Routing(), announce=refuse)

    def path(self, rel: str) -> str:
        """Return where the file or directory at `rel` is, or would be."""
        return f"{self.local if self.routing.is_local(rel) else self.base}/{rel}"

    def places(self, rel: str) -> tuple[str, ...]:
        """Return every directory that may hold children of the directory `rel`."""
        if self.base != self.local and self.routing.may_split(rel):
            return (f"{self.base}/{rel}", f"{self.local}/{rel}")
        return (self.path(rel),)

    def read(self, rel: str) -> bytes | None:
        """Return the bytes of a small file, None if it is not there."""
        return read_file(self.path(rel))

    def size(self, rel: str) -> int | None:
        """Return a file's size, None if it is not there."""
        try:
            return os.stat(self.path(rel)).st_size
        except (FileNotFoundError, NotADirectoryError):
            return None

    def subdirs(self, rel: str) -> list[str]:
        """Return the names of the real directories in `rel`, unordered; links are not followed."""
        names: set[str] = set()
        for place in self.places(rel):
            try:
                with os.scandir(place) as entries:
                    names.update(
                        entry.name for entry in entries if entry.is_dir(follow_symlinks=False)
                    )
            except (FileNotFoundError, NotADirectoryError):
                continue
        return [name for name in names if not is_temp(name)]

    def check_inside(self, rel: str) -> str:
        """Return the path of `rel`; raise ValidationError if a symlink leads out of its tier."""
        path = self.path(rel)
        check_no_way_out(path, path.removesuffix(f"/{rel}"))
        return path

    def open_inside(self, rel: str) -> int:
        """Open a file for reading as `check_inside` allows it; raise OSError if it is not there.

        What was opened is asked where it is, which costs a sixth of a look at each directory on
        the way. Only where that cannot be told, or is another place, is the way looked at.
        """
        path = self.path(rel)
        try:
            # Nothing that is no file can make the opening wait.
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            self.check_inside(rel)
            raise
        try:
            if place_of(fd) != path:
                self.check_inside(rel)
        except BaseException:
            os.close(fd)
            raise
        return fd

    @contextlib.contextmanager
    def changing(self, rel: str, *, durable: bool = True) -> Iterator[Change]:
        """Announce that `rel` (or something below it) is about to change, then allow it.

        Without `durable` nothing waits for the disk: whoever changes it calls `make_durable`.
        """
        self._announce_write(f"{self._prefix}{rel}")
        for place in self.places(rel):
            check_no_way_out(place, place.removesuffix(f"/{rel}"))
        change = Change(self, rel, durable=durable and self.durable)
        try:
            with disk_errors(self.path(rel)):
                yield change
        finally:
            change.announce_again()

    def announce_again(self, rel: str, removed: Iterable[str]) -> None:
        """Announce what has changed at `rel`, and what of it was removed, for the second time."""
        if self._announce_removal:
            self._announce_write(f"{self._prefix}{rel}")
            for one in removed:
                self.announce_removal(one)

    def make_durable(self, rels: Collection[str]) -> None:
        """Make directories durable, with the files in them and the way to them."""
        if not self.durable:
            return
        directories = {place for rel in rels for place in self.places(rel)}
        with disk_errors(self.base):
            if len(directories) >= _MANY:
                for root in {self.base, self.local}:
                    sync_filesystem(root)
                return
            above: set[str] = set()
            for directory in directories:
                sync_files_in(directory)
                path = directory
                while path not in {*above, self.base, self.local}:
                    above.add(path)
                    path = os.path.dirname(path)
            for path in sorted(above, reverse=True):
                with contextlib.suppress(FileNotFoundError):
                    sync_dir(path)

    def replace_file(self, rel: str, data: bytes) -> None:
        """Write a whole small file, announced, in one step, and durably; its directory is made."""
        with self.changing(rel) as change:
            change.write_below(rel, data)

    def drop_dir(
        self, above: str, rel: str, look: Callable[[str], object] = lambda _: None
    ) -> None:
        """Let a directory below `above` vanish in one rename, then clean up; announces nothing.

        Anything but a directory in its place is not ours, and stays, and so does data of another
        model within it. `look` sees what is out of sight by then, and changes no more.
        """
        is_shared = rel != above and bool(self.subdirs(rel))
        for place in self.places(above):
            path = f"{place}{rel.removeprefix(above)}"
            if not os.path.isdir(path):
                continue
            if is_shared:
                remove_version_files(path)
                continue
            aside = temp_beside(path)
            try:
                os.rename(path, aside)
            except (FileNotFoundError, NotADirectoryError):
                continue
            if self.durable:
                sync_dir(os.path.dirname(path))
            look(aside)
            remove_all(aside)

    def announce_removal(self, rel: str) -> None:
        """Announce that something announced is about to be removed, not just written."""
        if self._announce_removal:
            self._announce_removal(f"{self._prefix}{rel}")

    def shared_path(self, rel: str) -> str:
        """Return where a file that comes from the remote belongs: always the datastore tier."""
        return f"{self.base}/{rel}"

    def check_receivable(self, *rels: str) -> None:
        """Raise ValidationError if one of these, or a directory it is in, is a symbolic link."""
        known: set[str] = set()
        for rel in rels:
            check_no_link(self.base, rel, known)

    @contextlib.contextmanager
    def receiving(self, rel: str) -> Iterator[Reception]:
        """Let what comes from the remote in below `rel`; announced, it would be sent back there."""
        self.check_receivable(rel)
        with disk_errors(self.shared_path(rel)):
            yield Reception(self, rel)


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


class Reception:
    """The right to let what comes from the remote in: no link followed, nothing durable yet."""

    def __init__(self, tree: Tree, rel: str) -> None:
        self._tree = tree
        self._rel = rel
        self._known: set[str] = set()

    def _path(self, rel: str) -> str:
        if rel != self._rel and not rel.startswith(f"{self._rel}/"):
            raise AssertionError(f"{rel} may not be received, only {self._rel} may")
        path = self._tree.shared_path(rel)
        if path.rpartition("/")[0] not in self._known and (
            between := rel[len(self._rel) + 1 :].rpartition("/")[0]
        ):
            check_no_link(self._tree.shared_path(self._rel), between, self._known)
        return path

    def adopt(self, rel: str, staged: str) -> str:
        """Put a finished file of the same file system in its place, in one step; return where."""
        path = self._path(rel)
        try:
            os.rename(staged, path)
        except FileNotFoundError:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            os.rename(staged, path)
        return path

    def claim_dir(self, rel: str) -> bool:
        """Create a directory with its parents; False if it is there already."""
        path = self._path(rel)
        try:
            os.mkdir(path)
        except FileExistsError:
            check_no_link(os.path.dirname(path), os.path.basename(path), self._known)
            return False
        except FileNotFoundError:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            return self.claim_dir(rel)
        self._known.add(path)
        return True

    def mark(self, rel: str) -> None:
        """Create an empty file; it may exist."""
        os.close(os.open(self._path(rel), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666))

    def remove(self, rel: str) -> None:
        """Remove a file; it may be gone already."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path(rel))

    def remove_temps(self, rel: str) -> None:
        """Remove what interrupted writes left in a directory; nobody writes there now."""
        remove_old_temps(self._path(rel), math.inf)

    def discard_claim(self, rel: str) -> None:
        """Remove a claimed directory whose owner is dead, in every tier."""
        self._path(rel)
        self._tree.drop_dir(self._rel, rel)

    def remove_empty_dir(self, rel: str) -> None:
        """Remove a directory if nothing is in it."""
        with contextlib.suppress(OSError):
            os.rmdir(self._path(rel))
