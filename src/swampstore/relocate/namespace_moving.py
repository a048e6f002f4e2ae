"""Moving data between a namespace and the top of the same datastore.

Nothing is overwritten: what differs from a file of the same name is found before the first change,
and then nothing moves. What is the same on both sides is kept once. Directories that are not there
yet move in one step, others file by file. It can be stopped anywhere and done again; that one is
under way is noted beside the manifest, where it can be told from data that others have put there.
What moved out is noted until the setting says that the namespace is over: until then it can only go
back to where it came from, and is nobody else's.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from swampstore.artifacts.latest import wins
from swampstore.artifacts.versions import marker_at
from swampstore.config import Config
from swampstore.errors import AlreadyExistsError, MoveInterruptedError, SwampstoreError
from swampstore.files import disk_errors, read_file, replace_file, replacing, sync_filesystem
from swampstore.files.signature import signature
from swampstore.index.path_kinds import is_marker
from swampstore.layout import is_temp
from swampstore.sync.hashing import hash_file
from swampstore.sync.unmigrated import SHARED_SUBDIRS, holds_files

# Every client keeps names with this prefix out of any sync.
_UNDER_WAY = "_catalog.db-moving"
_IN, _OUT, _BACK = b"in\n", b"out\n", b"back\n"
_LOCK = ".lock"
_NO_WHOLE_MOVE = frozenset({errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR, errno.EXDEV})


class DirectoryMove(NamedTuple):
    """One directory that has something to move."""

    subdir: str
    source: str
    destination: str
    files: int
    bytes: int


@dataclass(slots=True)
class MovePlan:
    """What will move.

    `differing` are paths that cannot, `left` are links, which stay where they are. `occupied` are
    the directories at the destination that hold files which are not known to be ours.
    """

    directories: list[DirectoryMove] = field(default_factory=list)
    differing: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    occupied: list[str] = field(default_factory=list)

    @property
    def files(self) -> int:
        """How many files move."""
        return sum(one.files for one in self.directories)

    @property
    def bytes(self) -> int:
        """How large they are together."""
        return sum(one.bytes for one in self.directories)


class Moving:
    """The way of data into the namespace of a configuration, or with `reverse` out of it."""

    def __init__(self, config: Config, *, reverse: bool = False) -> None:
        inside = f"{config.base}/{config.namespace}"
        self.source, self.target = (inside, config.base) if reverse else (config.base, inside)
        self._inside = inside
        self._reverse = reverse
        self._durable = config.durable
        self._is_local: Callable[[str], bool] = lambda _: False
        self._subdirs = SHARED_SUBDIRS
        if config.base == config.local_dir:
            # What stays on this machine is here too, and has nothing to do with namespaces.
            self._is_local, self._subdirs = config.routing.is_local, config.routing.subdirs
        self._split: set[str] = set()

    # Looking -----------------------------------------------------------------------------------

    def plan(self) -> MovePlan:
        """Find out what would move; changes nothing, and reads what is on both sides."""
        plan = MovePlan()
        self._split = set()
        resuming = self._came_from_inside()
        for subdir in self._subdirs:
            if os.path.islink(f"{self.source}/{subdir}"):
                plan.left.append(subdir)
                continue
            files = size = 0
            for rel, status in self._walk(subdir, plan):
                files += 1
                size += status.st_size
                if not self._fits(rel):
                    plan.differing.append(rel)
            if not files:
                continue
            source, target = f"{self.source}/{subdir}", f"{self.target}/{subdir}"
            plan.directories.append(DirectoryMove(subdir, source, target, files, size))
            if not resuming and holds_files(self.target, subdir, self._is_local):
                plan.occupied.append(subdir)
        return plan

    def _walk(self, rel: str, plan: MovePlan) -> Iterator[tuple[str, os.stat_result]]:
        """Yield the files that move; remember the directories of those that stay."""
        for entry in _entries(f"{self.source}/{rel}"):
            child = f"{rel}/{entry.name}"
            if is_temp(entry.name):
                continue
            if entry.is_dir(follow_symlinks=False):
                yield from self._walk(child, plan)
            elif self._stays(child, entry):
                self._split.update(_parents(child))
                if entry.is_symlink() and not self._is_local(child):
                    plan.left.append(child)
            else:
                yield child, entry.stat(follow_symlinks=False)

    def _stays(self, rel: str, entry: os.DirEntry[str]) -> bool:
        # Where it is, other clients keep the catalog of the repository, whatever its namespace.
        if rel.startswith("data/_catalog.db") and rel.count("/") == 1:
            return True
        return self._is_local(rel) or (entry.is_symlink() and not is_marker(rel))

    def _fits(self, rel: str) -> bool:
        """Whether a file can move without harm to what is there."""
        target = f"{self.target}/{rel}"
        if not os.path.lexists(target):
            return _is_free(self.target, rel)
        if is_marker(rel) or rel.endswith(f"/{_LOCK}"):
            return not os.path.isdir(target) or os.path.islink(target)
        return _is_same(f"{self.source}/{rel}", target)

    # Moving ------------------------------------------------------------------------------------

    def move(self, plan: MovePlan, *, check: Callable[[], None] = lambda: None) -> None:
        """Move what was planned. `check` is called in between, and raises to end it.

        Raises MoveInterruptedError if something could not move; doing it again goes on from there.
        """
        done: list[str] = []
        if plan.directories:
            self._note_under_way()
        for one in plan.directories:
            try:
                check()
                with disk_errors(one.source):
                    self._move_dir(one.subdir)
            except SwampstoreError as error:
                raise MoveInterruptedError(
                    f"{one.subdir} could not be moved: {error.message}",
                    done,
                    one.subdir,
                    hint="Repair that and run it again; what was moved stays moved.",
                ) from error
            done.append(one.subdir)
        if self._durable and done:
            sync_filesystem(self.source if os.path.isdir(self.source) else self.target)
        if not self._reverse:
            forget_move(self._inside)

    def _move_dir(self, rel: str) -> None:
        source, target = f"{self.source}/{rel}", f"{self.target}/{rel}"
        if rel not in self._split and _move_whole(source, target):
            return
        os.makedirs(target, exist_ok=True)
        for entry in _entries(source):
            child = f"{rel}/{entry.name}"
            if entry.is_dir(follow_symlinks=False):
                self._move_dir(child)
            elif not is_temp(entry.name) and not self._stays(child, entry):
                self._move_file(child)
        with contextlib.suppress(OSError):
            os.rmdir(source)

    def _move_file(self, rel: str) -> None:
        source, target = f"{self.source}/{rel}", f"{self.target}/{rel}"
        if not os.path.lexists(target):
            _place(source, target)
        elif is_marker(rel) and wins(marker_at(source), marker_at(target)):
            # The higher one stands: its version has moved, or is about to.
            os.replace(source, target)
        elif is_marker(rel) or rel.endswith(f"/{_LOCK}") or _is_same(source, target):
            os.unlink(source)
        else:
            raise AlreadyExistsError(f"{target} appeared meanwhile", hint="Look at both files.")

    # Telling that a move is under way ----------------------------------------------------------

    @property
    def takes_back(self) -> bool:
        """Whether what is at the top came out of the namespace, which it has not left for good."""
        return not self._reverse and self._came_from_inside()

    def _came_from_inside(self) -> bool:
        return read_file(f"{self._inside}/{_UNDER_WAY}") in (_OUT, _BACK)

    def _note_under_way(self) -> None:
        note = _OUT if self._reverse else _BACK if self.takes_back else _IN
        with disk_errors(self._inside):
            os.makedirs(self._inside, exist_ok=True)
            replace_file(f"{self._inside}/{_UNDER_WAY}", note, durable=self._durable)


def forget_move(inside: str) -> None:
    """Remove the note that something is on its way into this directory of a namespace, or out."""
    with disk_errors(inside), contextlib.suppress(FileNotFoundError):
        os.unlink(f"{inside}/{_UNDER_WAY}")


def _entries(path: str) -> list[os.DirEntry[str]]:
    with disk_errors(path):
        try:
            with os.scandir(path) as found:
                return sorted(found, key=lambda entry: entry.name)
        except FileNotFoundError:
            return []


def _parents(rel: str) -> Iterator[str]:
    while "/" in rel:
        rel = rel.rpartition("/")[0]
        yield rel


def _is_free(root: str, rel: str) -> bool:
    """Whether nothing but directories is on the way to a path."""
    for above in _parents(rel):
        path = f"{root}/{above}"
        if os.path.lexists(path):
            return os.path.isdir(path) and not os.path.islink(path)
    return True


def _is_same(source: str, target: str) -> bool:
    ours, theirs = signature(source), signature(target)
    if ours is None or theirs is None or ours.size != theirs.size:
        return False
    return hash_file(source)[0] == hash_file(target)[0]


def _move_whole(source: str, target: str) -> bool:
    """Move a directory in one step; False if there is one already, or on another file system."""
    os.makedirs(os.path.dirname(target), exist_ok=True)
    try:
        os.rename(source, target)
    except FileNotFoundError:
        return not os.path.lexists(source)
    except OSError as error:
        if error.errno in _NO_WHOLE_MOVE:
            return False
        raise
    return True


def _place(source: str, target: str) -> None:
    """Move a file to where nothing is; of somebody who is faster, nothing is overwritten."""
    try:
        os.link(source, target, follow_symlinks=False)
    except FileExistsError:
        raise
    except OSError:  # another file system, or one without links
        # The copy is on its disk before the source goes from another one.
        with replacing(target, durable=not os.path.islink(source)) as temp:
            shutil.copy2(source, temp, follow_symlinks=False)
    os.unlink(source)
