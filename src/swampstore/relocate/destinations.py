"""Where a datastore can move to: a directory that is used in place, or the cache of a remote."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from swampstore.errors import ValidationError
from swampstore.files import disk_errors, try_writing
from swampstore.files.signature import signature
from swampstore.index.base import Base, Known
from swampstore.index.partitions import partition_of
from swampstore.index.path_kinds import conflict_copy
from swampstore.index.path_map import Names
from swampstore.index.workers import Deadline, in_parallel
from swampstore.layout import METADATA, is_temp
from swampstore.repo import Repo
from swampstore.stores import Store
from swampstore.stores.errors import ObjectNotFoundError
from swampstore.stores.protocol import hash_object
from swampstore.sync.hashing import hash_file

# As many as a push has at once by default: what is sent in a moment is read back in a moment.
_CONCURRENCY = 25
_IN_MEMORY = 1 << 20
_DIRECTORY = "file://"


class Moved(NamedTuple):
    """A file, its path at the destination, and its content as SHA-256.

    Metadata of a version that got another number has another content there: None.
    """

    rel: str
    there: str
    sha256: str | None


class _Object(NamedTuple):
    """What an object holds; empty texts if there is none."""

    sha256: str
    token: str


class Place:
    """A directory that is used as it is."""

    def __init__(self, names: Names) -> None:
        self.names = names

    @property
    def directory(self) -> str | None:
        """The directory on this machine that files end up in."""
        return self.names.root

    def may_update(self, rel: str) -> bool:
        """Whether a newer state of the same thing may take the place of a file: never."""
        del rel
        return False

    def release(self, rel: str) -> bool:
        """Give up what is at and below a path, if it is safe elsewhere: nothing may go."""
        return not os.path.lexists(self.names.local(rel))

    def has(self, rel: str, sha256: str) -> bool:
        """Whether the file is there and holds this."""
        try:
            return hash_file(self.names.local(rel))[0] == sha256
        except FileNotFoundError:
            return False

    def has_version(self, version_rel: str) -> bool:
        """Whether the version is there."""
        return signature(self.names.local(f"{version_rel}/{METADATA}")) is not None

    def wrong(self, files: Iterable[Moved], deadline: Deadline) -> Iterator[str | None]:
        """Read everything back; yield for each file its path if it is not there, else None."""
        for file in files:
            deadline.remaining()
            is_there = signature(self.names.local(file.there)) is not None
            if file.sha256 is not None:
                is_there = self.has(file.there, file.sha256)
            yield None if is_there else file.rel


class Cache:
    """The cache of a remote. Only what the remote's index names counts as being there.

    `released` counts the paths that were given up: the remote still has them.
    """

    def __init__(self, names: Names, base: Base, store: Store) -> None:
        self.names = names
        self.released = 0
        self._base = base
        self._store = store

    @property
    def directory(self) -> str | None:
        """Where a remote that is a directory has its objects."""
        root = self._store.identity.removeprefix(_DIRECTORY)
        return None if root == self._store.identity else f"{root}/{self.names.remote('')}"

    def may_update(self, rel: str) -> bool:
        """Whether the file is as the remote has it; if that changes, the next push notices."""
        known, now = self._base.get(rel), signature(self.names.local(rel))
        return known is not None and now is not None and known.held == now

    def release(self, rel: str) -> bool:
        """Forget what the remote has as well, so that the next push settles it with ours."""
        known = {one.rel: one for one in self._base.below(rel)}
        for file in self._files(rel):
            held = known[file].held if file in known else None
            if held is None or held != signature(self.names.local(file)):
                return False
        if known:
            self._base.apply(forgotten=known)
            self._base.drop_shards({partition_of(one) for one in known})
            self.released += len(known)
        return True

    def _files(self, rel: str) -> Iterator[str]:
        path = self.names.local(rel)
        if not os.path.isdir(path):
            if os.path.lexists(path):
                yield rel
            return
        with disk_errors(path):
            names = os.listdir(path)
        for name in names:
            if not is_temp(name):
                yield from self._files(f"{rel}/{name}")

    def has(self, rel: str, sha256: str) -> bool:
        """Whether the index names this content, under its path or as the copy of a conflict."""
        return self._known(rel, sha256) is not None

    def _known(self, rel: str, sha256: str | None) -> Known | None:
        if sha256 is None:
            return self._base.get(rel)
        known = self._base.get_many([rel, conflict_copy(rel, sha256)])
        return next((one for one in known.values() if one.sha256 == sha256), None)

    def has_version(self, version_rel: str) -> bool:
        """Whether the index names the version."""
        return self._base.get(f"{version_rel}/{METADATA}") is not None

    def wrong(self, files: Iterable[Moved], deadline: Deadline) -> Iterator[str | None]:
        """Fetch every object; the next full push sends anew what is not as the index says."""
        known = ((file.rel, self._known(file.there, file.sha256)) for file in files)
        looks = in_parallel(lambda task: self._look(task[1]), known, _CONCURRENCY, deadline)
        for (rel, meant), found, error in looks:
            if error is not None:
                raise error
            if meant is None or found is None:
                yield rel
            elif found.sha256 == meant.sha256:
                yield None
            else:
                self._distrust(meant, found)
                yield rel

    def _look(self, known: Known | None) -> _Object | None:
        """Read an object, without holding a large one in memory."""
        if known is None:
            return None
        key = self.names.remote(known.rel)
        try:
            if known.size <= _IN_MEMORY:
                small = self._store.get(key)
                return _Object(hashlib.sha256(small.data).hexdigest(), small.info.token or "")
            sha256, info = hash_object(self._store, key)
        except ObjectNotFoundError:
            return _Object("", "")
        return _Object(sha256, info.token or "")

    def _distrust(self, known: Known, found: _Object) -> None:
        """Forget that an object is there, and note that what is in its place may be replaced."""
        self._base.apply(forgotten=[known.rel])
        self._base.note_uploads({known.rel: (found.sha256, found.token)})


# Where files go: a directory, or a cache with what is behind it.
Destination = Place | Cache


def destination_of(repo: Repo) -> Destination:
    """Return where the data of a repository with its new settings goes."""
    config = repo.config
    if config.remote is None:
        return Place(Names(config.base, config.namespace, config.routing))
    connection = repo.connection
    return Cache(connection.names, connection.base, connection.store)


def is_below(path: str, directory: str) -> bool:
    """Whether a path is a directory, or in it."""
    return path == directory or path.startswith(f"{directory}/")


def check_apart(source: str, target: str | None, subdirs: Sequence[str]) -> None:
    """Make sure that what is removed here is not what is there, by another name."""
    if target is None:
        return
    ours, theirs = os.path.realpath(source), os.path.realpath(target)
    if theirs == ours or any(is_below(theirs, f"{ours}/{name}") for name in subdirs):
        raise ValidationError(
            f"{target} is where the data is already, in {source}",
            hint="Choose a directory of its own.",
        )


def check_writable(base: str) -> None:
    """Raise DiskError unless files can be made in a directory, which is made if need be."""
    with disk_errors(base):
        os.makedirs(base, exist_ok=True)
        try_writing(base)
