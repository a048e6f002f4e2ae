"""The files of a datastore, and the two ways in which they may change."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Iterable, Iterator

from swampstore.files.change import Change
from swampstore.files.disk import (
    disk_errors,
    read_file,
    remove_all,
    remove_version_files,
    sync_dir,
    sync_files_in,
    sync_filesystem,
    temp_beside,
)
from swampstore.files.links import check_no_link, check_no_way_out, place_of
from swampstore.files.reception import Reception
from swampstore.layout import is_temp
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
