"""What a store can do that keeps the index of a datastore itself: a database.

Elsewhere the index is a few documents among the objects. A database has a record for each path, can
tell which of them changed since a moment, and changes several as one. A store that does says so in
its `capabilities`; `swampstore.index.version3` is what uses it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple, Protocol

from swampstore.stores.errors import PreconditionFailedError
from swampstore.stores.protocol import Written


class SeenPath(NamedTuple):
    """The record that a decision was based on: two changes may have the same millisecond."""

    modified: datetime | None
    sha256: str | None


class StoredPath(NamedTuple):
    """What the database says about one path.

    `modified` is the server's time of the change, as long as nobody else's client wrote it.
    `commit_seq` is the commit that made it so, None if another client did. `problem` says what is
    wrong with a record that cannot be understood.
    """

    rel: str
    size: int
    sha256: str | None
    modified: datetime | None
    is_deleted: bool = False
    commit_seq: int | None = None
    problem: str = ""

    @property
    def seen(self) -> SeenPath:
        """What tells this record from any other of the path."""
        return SeenPath(self.modified, self.sha256)


class PathCursor(NamedTuple):
    """Up to where the changes are known: this commit of ours, and this time of the server.

    `is_shared` says that other clients, which number nothing and go by their own clocks, were seen
    to write: what changed shortly before is looked at again then.
    """

    commit_seq: int
    modified: datetime
    is_shared: bool = False


class SmallFile(NamedTuple):
    """Content that fits into a request with others; `token` is that of what it replaces, if any."""

    sha256: str
    data: bytes
    token: str | None


class PathChange(NamedTuple):
    """What a commit makes of one path: a file, or (without a hash) nothing.

    `expected` is None if there was no record, or the path was deleted.
    """

    rel: str
    sha256: str | None
    size: int
    expected: SeenPath | None


class PathsCommit(NamedTuple):
    """Changes of the index that are made as one, together with `_meta.json`.

    `token` is that of the `_meta.json` which `meta` replaces, None if there is none.
    """

    meta_key: str
    meta: bytes
    token: str | None
    commit_seq: int
    changes: Sequence[PathChange]


class PathsMovedError(PreconditionFailedError):
    """Others changed some of the very paths that a commit was about; `rels` names them.

    `lost` are those whose content is not there any more, so that it has to be uploaded again.
    """

    code = "paths_moved"

    def __init__(
        self, message: str, rels: Collection[str], lost: Collection[str] = (), *, hint: str = ""
    ) -> None:
        super().__init__(message, hint=hint)
        self.rels = frozenset(rels)
        self.lost = frozenset(lost)


class KeepsPaths(Protocol):
    """A store whose `capabilities.keeps_paths`. `prefix` is that of a namespace, or empty."""

    def put_files(self, prefix: str, files: Mapping[str, SmallFile]) -> Collection[str]:
        """Put small files of the datastore in few requests, each on its condition.

        Return the paths of those that were put: for others the condition did not hold.
        """

    def changed_paths(
        self, prefix: str, since: PathCursor | None, below: Sequence[str] = ()
    ) -> Iterator[StoredPath]:
        """Yield the paths that may have changed since then, deleted ones too; None: all.

        `below` limits it to paths that begin so.
        """

    def known_paths(
        self, prefix: str, rels: Collection[str], below: Collection[str]
    ) -> Iterator[StoredPath]:
        """Yield what there is of these paths, and of all below some directories."""

    def paths_between(self, prefix: str, start: str, end: str | None) -> Iterator[StoredPath]:
        """Yield the paths from one up to another, which is not among them (None: to the end)."""

    def commit_paths(self, prefix: str, commit: PathsCommit) -> Written:
        """Change paths and `_meta.json`, all of it if the server can, and else in a safe order.

        Return how that `_meta.json` is called.
        Raises PreconditionFailedError if `_meta.json` is another one, PathsMovedError if some path
        is not what was expected. Repeating it does no harm.
        """

    def newest_path(self, prefix: str) -> datetime | None:
        """Return the latest time of any change, None if there is no path at all."""

    def last_path_commit(self, prefix: str) -> int:
        """Return the highest number of a commit that any path has, 0 if there is none."""
