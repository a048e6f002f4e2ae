"""Where a datastore can move to: a directory that is used in place, or the cache of a remote."""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from swampstore.errors import SwampstoreError, ValidationError
from swampstore.files import disk_errors, try_writing
from swampstore.files.signature import Signature, is_surely_unchanged, signature
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
from swampstore.sync.hashing import hash_file, holds, sha256_and_md5

# As many as a push has at once by default: what is sent in a moment is read back in a moment.
_CONCURRENCY = 25
_IN_MEMORY = 1 << 20
_DIRECTORY = "file://"
# What the base is asked for at once.
_PAGE = 200
# What one thread compares before it takes more.
_QUICK = 100
_MD5 = re.compile("[0-9a-f]{32}")


class Moved(NamedTuple):
    """A file, its path at the destination, and its content as SHA-256.

    Metadata of a version that got another number has another content there: None. So it is if
    both are one file (`is_linked`), which is read when it is compared with its object.
    """

    rel: str
    there: str
    sha256: str | None
    is_linked: bool = False


class _Meant(NamedTuple):
    """A file, the object that should hold it, and the MD5 which the store says that this has."""

    file: Moved
    known: Known | None
    md5: str

    @property
    def is_quick(self) -> bool:
        """Whether a look at the cache may be all that it takes."""
        return bool(self.md5) and self.known is not None and self.known.size <= _IN_MEMORY


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

    def fetch(self, rel: str) -> None:
        """Bring content here that never came: what is not here, is nowhere."""

    def may_update(self, rel: str) -> bool:
        """Whether a newer state of the same thing may take the place of a file: never."""
        del rel
        return False

    def release(self, rel: str) -> bool:
        """Give up what is at and below a path, if it is safe elsewhere: nothing may go."""
        return not os.path.lexists(self.names.local(rel))

    def holds_links(self, linked: Mapping[str, Signature]) -> set[str]:
        """Return those of these files, which are links to ours, that may go here: all of them."""
        return set(linked)

    def unlinked(self, rels: Sequence[str]) -> None:
        """Hear that files here are the only links now: nobody remembers how they looked."""

    def has_all(self, contents: Mapping[str, str | None]) -> bool:
        """Whether these files are there and hold this; None: whatever they hold."""
        return all(self._has(rel, sha256) for rel, sha256 in contents.items())

    def _has(self, rel: str, sha256: str | None) -> bool:
        path = self.names.local(rel)
        if sha256 is None:
            return signature(path) is not None
        return holds(path, sha256) is True

    def wrong(self, files: Iterable[Moved], deadline: Deadline) -> Iterator[str | None]:
        """Read everything back; yield for each file its path if it is not there, else None."""
        for file in files:
            deadline.remaining()
            yield None if self._has(file.there, file.sha256) else file.rel


class Cache:
    """The cache of a remote. Only what the remote's index names counts as being there.

    `released` counts the paths that were given up: the remote still has them. `hydrate` brings
    content into the cache that never came.
    """

    def __init__(
        self, names: Names, base: Base, store: Store, hydrate: Callable[[str], object]
    ) -> None:
        self.names = names
        self.released = 0
        self._sent: set[str] = set()
        self._base = base
        self._store = store
        self._hydrate = hydrate

    @property
    def directory(self) -> str | None:
        """Where a remote that is a directory has its objects."""
        root = _root(self._store)
        return None if root is None else f"{root}/{self.names.remote('')}"

    def knows(self, version_rel: str) -> bool:
        """Whether a version came from the remote, or was pushed there."""
        return self._base.get(f"{version_rel}/{METADATA}") is not None

    def unknown(self, rels: Sequence[str]) -> list[str]:
        """Return those of these files that neither came from the remote nor were pushed there."""
        known = self._base.get_many(rels)
        return [rel for rel in rels if rel not in known]

    def fetch(self, rel: str) -> None:
        """Bring content here that never came, if the remote has it."""
        self._hydrate(rel)

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

    def holds_links(self, linked: Mapping[str, Signature]) -> set[str]:
        """Return those of these files, which are links to ours, whose content the index names.

        `linked` says how they look now.
        """
        known = self._base.get_many(linked)
        return {rel for rel, now in linked.items() if rel in known and self._is(known[rel], now)}

    def _is(self, known: Known, now: Signature) -> bool:
        """Whether a file that looks like this is what the index names."""
        if known.held and is_surely_unchanged(known.held, now, known.recorded_ns):
            return True
        try:
            return hash_file(self.names.local(known.rel)) == (known.sha256, now)
        except (SwampstoreError, FileNotFoundError):
            return False

    def unlinked(self, rels: Sequence[str]) -> None:
        """Remember how files look that are the only links now: they changed by no more than that.

        Stopped before, the next look at one of them reads it.
        """
        began = time.time_ns()
        known = self._base.get_many(rels).values()
        seen = [(one, signature(self.names.local(one.rel))) for one in known]
        self._base.renew([(one, now) for one, now in seen if now], began)

    def has_all(self, contents: Mapping[str, str | None]) -> bool:
        """Whether the index names these contents, under their paths or as copies of conflicts.

        None: whatever it says of that path.
        """
        return None not in self._known(list(contents.items()))

    def _known(self, contents: Sequence[tuple[str, str | None]]) -> list[Known | None]:
        """Return what is known of each of these contents, None if it is not on the remote."""
        found = self._base.get_many(rel for one in contents for rel in _names_of(*one))
        return [
            next(
                (
                    found[name]
                    for name in _names_of(rel, sha256)
                    if name in found and sha256 in (None, found[name].sha256)
                ),
                None,
            )
            for rel, sha256 in contents
        ]

    def wrong(self, files: Iterable[Moved], deadline: Deadline) -> Iterator[str | None]:
        """Look at every object; the next full push sends anew what is not as the index says.

        Objects whose ETag is the MD5 of what we hold were received as they are, and a listing
        tells that of a thousand at once. Others are fetched.
        """
        return self._wrong(self._meant(self._with_known(files)), deadline)

    def hear(self, rel: str, data: bytes, token: str) -> None:
        """Hear what was sent: if the token is its MD5, it need not be read again to tell that."""
        if token == hashlib.md5(data, usedforsecurity=False).hexdigest():
            self._sent.add(rel)
        else:
            self._sent.discard(rel)

    def wrong_of(self, known: Iterable[Known], deadline: Deadline) -> Iterator[str | None]:
        """Look at the objects of all that is in the index, as `wrong` does.

        What was sent, and is listed as it was received, needs no other look.
        """
        left: list[Known] = []
        listed = self._listed() if self._sent else {}
        for one in known:
            if one.rel in self._sent and one.etag is not None and listed.get(one.rel) == one.etag:
                yield None
            else:
                left.append(one)
        yield from self._wrong(self._meant((_moved(one), one) for one in left), deadline)

    def _wrong(self, meant: Iterable[_Meant], deadline: Deadline) -> Iterator[str | None]:
        looks = in_parallel(self._look_at_all, _tasks(meant), _CONCURRENCY, deadline)
        for task, found, error in looks:
            if error is not None:
                raise error
            for one, held in zip(task, found or (), strict=True):
                yield None if self._is_right(one, held) else one.file.rel

    def _is_right(self, meant: _Meant, found: _Object | None) -> bool:
        if meant.known is None or found is None:
            return False
        if found.sha256 == meant.known.sha256:
            return True
        self._distrust(meant.known, found)
        return False

    def _with_known(self, files: Iterable[Moved]) -> Iterator[tuple[Moved, Known | None]]:
        """Yield each file with what is known of the object that it should be."""
        source = iter(files)
        while page := list(islice(source, _PAGE)):
            known = self._known([(file.there, file.sha256) for file in page])
            yield from zip(page, known, strict=True)

    def _meant(self, files: Iterable[tuple[Moved, Known | None]]) -> Iterator[_Meant]:
        """Yield for each file which object it should be, and the MD5 that this has, if listed."""
        listed: dict[str, str] | None = None
        for file, one in files:
            if listed is None and one and _MD5.fullmatch(one.etag or ""):
                listed = self._listed()
            etag = listed.get(one.rel, "") if listed and one else ""
            yield _Meant(file, one, etag if _MD5.fullmatch(etag) else "")

    def _listed(self) -> dict[str, str]:
        """Return how the store calls each object of the namespace, by path."""
        root = self.names.remote("")
        return {one.key.removeprefix(root): one.etag for one in self._store.list(root)}

    def _look_at_all(self, task: list[_Meant]) -> list[_Object | None]:
        return [self._look(meant) for meant in task]

    def _look(self, meant: _Meant) -> _Object | None:
        """Say what an object holds, without holding a large one in memory.

        None if there is none, or if the file that is meant is not what the index says.
        """
        known = meant.known
        if known is None:
            return None
        if meant.md5 and (self._was_sent(known, meant.md5) or self._holds(known, meant.md5)):
            return _Object(known.sha256 or "", meant.md5)
        if meant.file.is_linked and not self._holds(known, None):
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

    def _was_sent(self, known: Known, md5: str) -> bool:
        """Whether what is known of an object is what was sent, and had this MD5."""
        return known.etag == md5 and known.rel in self._sent

    def _holds(self, known: Known, md5: str | None) -> bool:
        """Whether the cache has the content that is meant, and its MD5 is this one, if one is."""
        path = self.names.local(known.rel)
        if md5 is None:
            return holds(path, known.sha256) is True
        try:
            return sha256_and_md5(path) == (known.sha256, md5)
        except (SwampstoreError, FileNotFoundError):
            return False

    def _distrust(self, known: Known, found: _Object) -> None:
        """Forget that an object is there, and note that what is in its place may be replaced."""
        self._base.apply(forgotten=[known.rel])
        self._base.note_uploads({known.rel: (found.sha256, found.token)})


def _tasks(files: Iterable[_Meant]) -> Iterator[list[_Meant]]:
    """Yield what is looked at by one thread at a time: a request, or many quick looks."""
    quick: list[_Meant] = []
    for meant in files:
        if not meant.is_quick:
            yield [meant]
            continue
        quick.append(meant)
        if len(quick) == _QUICK:
            yield quick
            quick = []
    if quick:
        yield quick


def _moved(known: Known) -> Moved:
    return Moved(known.rel, known.rel, known.sha256)


def _names_of(rel: str, sha256: str | None) -> tuple[str, ...]:
    """Return the paths under which a content may be."""
    return (rel,) if sha256 is None else (rel, conflict_copy(rel, sha256))


# Where files go: a directory, or a cache with what is behind it.
Destination = Place | Cache


def destination_of(repo: Repo) -> Destination:
    """Return where the data of a repository with its new settings goes."""
    config = repo.config
    if config.remote is None:
        return Place(Names(config.base, config.namespace, config.routing))
    connection = repo.connection
    service = connection.service
    return Cache(connection.names, connection.base, connection.store, service.hydrate)


def is_below(path: str, directory: str) -> bool:
    """Whether a path is a directory, or in it."""
    return path == directory or path.startswith(f"{directory}/")


def check_apart(source: str, target: str | None, subdirs: Sequence[str]) -> None:
    """Make sure that what is removed here is not what is there, by another name."""
    if target is None:
        return
    ours, theirs = os.path.realpath(source), os.path.realpath(target)
    if _is_one_directory(ours, theirs) or any(
        is_below(theirs, f"{ours}/{name}") for name in subdirs
    ):
        raise ValidationError(
            f"{target} is where the data is already, in {source}",
            hint="Choose a directory of its own.",
        )


def check_no_repository(repo_dir: str, store: Store) -> None:
    """Raise ValidationError for a bucket that is the directory of the repository itself."""
    root = _root(store)
    if root is not None and _is_one_directory(os.path.realpath(repo_dir), os.path.realpath(root)):
        raise ValidationError(
            f"{root} is the repository itself, and can be no bucket for it",
            hint="Choose a directory of its own.",
        )


def _root(store: Store) -> str | None:
    """Return where a store that is a directory has its objects."""
    root = store.identity.removeprefix(_DIRECTORY)
    return None if root == store.identity else root


def _is_one_directory(ours: str, theirs: str) -> bool:
    """Whether two paths lead to one directory, which may be mounted twice."""
    try:
        return os.path.samefile(ours, theirs)
    except OSError:
        return ours == theirs


def check_writable(base: str) -> None:
    """Raise DiskError unless files can be made in a directory, which is made if need be."""
    with disk_errors(base):
        os.makedirs(base, exist_ok=True)
        try_writing(base)
