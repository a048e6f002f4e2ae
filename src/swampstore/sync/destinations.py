"""Where a datastore can move to: a directory that is used in place, or the cache of a remote."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Protocol

from swampstore.files import disk_errors
from swampstore.layout import METADATA, is_temp
from swampstore.sync.base import Base
from swampstore.sync.names import Names
from swampstore.sync.partitions import partition_of
from swampstore.sync.shapes import conflict_copy
from swampstore.sync.signature import hash_file, signature


class Destination(Protocol):
    """Where files go."""

    @property
    def names(self) -> Names:
        """Its paths, and which of them may be there at all."""

    def may_update(self, rel: str) -> bool:
        """Whether a newer state of the same thing may take the place of a file."""

    def release(self, rel: str) -> bool:
        """Give up what is at and below a path, if it is safe elsewhere; False if it is not."""

    def has(self, rel: str, sha256: str) -> bool:
        """Whether this content is where it was meant to go."""

    def has_version(self, version_rel: str) -> bool:
        """Whether a version is where it was meant to go."""


class Place:
    """A directory that is used as it is."""

    def __init__(self, names: Names) -> None:
        self.names = names

    def may_update(self, rel: str) -> bool:
        """Nothing that is there already may be replaced."""
        del rel
        return False

    def release(self, rel: str) -> bool:
        """Nothing that is there already may go."""
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


class Cache:
    """The cache of a remote. Only what the remote's index names counts as being there.

    `released` counts the paths that were given up: the remote still has them.
    """

    def __init__(self, names: Names, base: Base) -> None:
        self.names = names
        self.released = 0
        self._base = base

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
        known = self._base.get_many([rel, conflict_copy(rel, sha256)])
        return any(one.sha256 == sha256 for one in known.values())

    def has_version(self, version_rel: str) -> bool:
        """Whether the index names the version."""
        return self._base.get(f"{version_rel}/{METADATA}") is not None
