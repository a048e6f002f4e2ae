"""Giving the files of a repository to the cache of its remote, directory by directory.

A setup announces it before it writes the settings that name the remote, when everything is known to
be there. Whoever finds the announcement, and those settings, does the rest: so the files are in the
cache before anybody looks for them there. Nothing that is in the cache is replaced.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator

import msgspec

from swampstore.catalog.keeping_up import EVERYTHING, ChangeLog
from swampstore.config import Config
from swampstore.files import disk_errors, read_file, replace_file, sync_filesystem
from swampstore.index.base import Base
from swampstore.index.partitions import partition_of
from swampstore.layout import (
    EXCHANGE,
    WORKFLOW_RUNS,
    check_namespace,
    parse_version,
    stays_beside_runs,
)

# Something is there; or the disk is another one, although it looked as if it were not.
_IN_THE_WAY = frozenset({errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR, errno.EISDIR})
_NOT_IN_ONE_STEP = _IN_THE_WAY | {errno.EXDEV, errno.EBUSY}


class Handover(msgspec.Struct, frozen=True):
    """Which directories of a repository become a part of the cache of a remote.

    `owner` is what the base of that cache calls the remote and the namespace. They are in the local
    directory of the repository, or in that of the `namespace` which it had before. `catalog` is
    the file whose rows hold before and after.
    """

    owner: str
    namespace: str
    subdirs: tuple[str, ...]
    catalog: str

    def announce(self, config: Config) -> None:
        """Say durably what is about to be done."""
        path = f"{config.local_dir}/{EXCHANGE}"
        with disk_errors(path):
            replace_file(path, msgspec.json.encode(self), durable=config.durable)

    def carry_out(self, config: Config) -> list[str]:
        """Move everything that can be; return the paths of what stays. Can be done again.

        `config` are the settings that name the remote. Other catalogs of the cache hear of it.
        """
        source, root = config.local_dir, config.datastore_dir
        if self.namespace:
            source = f"{source}/{check_namespace(self.namespace)}"
        left: list[str] = []
        with disk_errors(root):
            os.makedirs(root, exist_ok=True)
            # Whoever wrote the announcement, nothing else is moved.
            for name in set(self.subdirs).intersection(config.routing.subdirs):
                if _are_directories(f"{source}/{name}"):
                    left += _move(source, root, name)
                    # Whoever still works there is not to miss the directory.
                    os.makedirs(f"{source}/{name}", exist_ok=True)
            if config.durable:
                sync_filesystem(root)  # of directories that were merged, each has changed
        if left:
            self._forget(config, left)
        ChangeLog(config.base).note(f"{config.local_dir}/{self.catalog}", [EVERYTHING])
        return left

    def _forget(self, config: Config, rels: list[str]) -> None:
        """Let what is there instead be new, and no change of what the remote has from us."""
        base = Base(config.base, self.owner)
        try:
            known = [one.rel for rel in rels for one in base.below(rel)]
            base.apply(forgotten=known)
            base.drop_shards({partition_of(rel) for rel in known})
        finally:
            base.close()


def announced(local_dir: str) -> Handover | None:
    """Return what was announced last and not withdrawn, None if it is something else."""
    try:
        return msgspec.json.decode(read_file(f"{local_dir}/{EXCHANGE}") or b"", type=Handover)
    except msgspec.MsgspecError:
        return None


def withdraw(local_dir: str) -> None:
    """Take back what was announced."""
    path = f"{local_dir}/{EXCHANGE}"
    with disk_errors(path), contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def _move(source: str, target: str, rel: str) -> Iterator[str]:
    """Move a file, or a directory with what is in it; yield the paths of what stays.

    Where both have a directory, everything moves that has nothing in its place. But versions are
    whole: half of one must not meet half of another. Runs move one by one, since not everything
    beside them does.
    """
    if stays_beside_runs(rel):
        return
    ours, theirs = f"{source}/{rel}", f"{target}/{rel}"
    is_of_runs = WORKFLOW_RUNS in (rel, os.path.dirname(rel)) and _are_directories(ours)
    if is_of_runs:
        with contextlib.suppress(FileExistsError):
            os.makedirs(theirs)
    elif (reason := _move_at_once(ours, theirs)) is None:
        return
    elif reason not in _IN_THE_WAY:
        yield rel
        return
    if not _are_directories(ours, theirs):
        yield rel
        return
    names = os.listdir(ours)
    is_flat = not any(os.path.isdir(f"{ours}/{name}") for name in names)
    is_version = names and is_flat and parse_version(os.path.basename(rel)) is not None
    if is_version and not is_of_runs:  # a workflow may have a number for an id
        yield rel
        return
    for name in names:
        yield from _move(source, target, f"{rel}/{name}")
    with contextlib.suppress(OSError):
        os.rmdir(ours)


def _move_at_once(ours: str, theirs: str) -> int | None:
    """Move a file or a directory, if it is there; return why that cannot be."""
    try:
        if stat.S_ISDIR(os.lstat(ours).st_mode):
            os.rename(ours, theirs)
        else:
            os.link(ours, theirs, follow_symlinks=False)  # unlike a rename, it replaces nothing
            os.unlink(ours)
    except FileNotFoundError:
        pass
    except OSError as error:
        if error.errno not in _NOT_IN_ONE_STEP:
            raise
        return error.errno
    return None


def _are_directories(*paths: str) -> bool:
    return all(os.path.isdir(path) and not os.path.islink(path) for path in paths)
