"""What arrives from the remote, and the order in which the files of a data name enter the tree."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from swampstore.artifacts import claims
from swampstore.artifacts import versions as on_disk
from swampstore.artifacts.claims import Way, make_way, tidy
from swampstore.artifacts.latest import parse_marker
from swampstore.artifacts.name_lock import Outcome
from swampstore.artifacts.versions import StoredVersion
from swampstore.errors import MetadataError, ValidationError
from swampstore.files import Reception, Tree
from swampstore.files.signature import Signature, signature
from swampstore.layout import LANDING, METADATA, RAW, DataRef
from swampstore.notices import notice


class Arrival(NamedTuple):
    """What the remote has at a path, or that it has nothing there any more.

    `staged` is a finished temporary file on the file system of the tree, None to remove the local
    file. `expected` is the local file that the decision was based on, None if there was none.
    `data` is what the staged file holds, if that is at hand.
    """

    rel: str
    staged: str | None
    expected: Signature | None
    data: bytes | None = None


class Installed(NamedTuple):
    """A path that is now as the remote has it; `signature` is None if the file was removed.

    `name_rel` is the data name that it is of, if it is of one. `is_right` says of a marker that it
    surely names the latest version, and that nothing else was here before.
    """

    rel: str
    signature: Signature | None
    name_rel: str = ""
    is_right: bool = False


def is_expected(tree: Tree, arrival: Arrival, *, over_link: bool = False) -> bool:
    """Whether the local file is still what the decision was based on.

    Raises ValidationError if something that is no regular file is in the way.
    """
    path = tree.shared_path(arrival.rel)
    if arrival.expected is not None:
        return signature(path) == arrival.expected
    try:
        mode = os.lstat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return True
    if stat.S_ISREG(mode):
        return False
    if over_link and stat.S_ISLNK(mode):
        return True
    raise ValidationError(
        f"{path} is in the way: it is no regular file",
        hint="Move it away; the remote has a file of that name.",
    )


def take_place(reception: Reception, arrival: Arrival, name_rel: str = "") -> Installed:
    """Put a file that is expected in its place, or remove it."""
    if arrival.staged is None:
        reception.remove(arrival.rel)
        return Installed(arrival.rel, None, name_rel)
    path = reception.adopt(arrival.rel, arrival.staged)
    return Installed(arrival.rel, signature(path), name_rel)


class NameArrivals:
    """What arrives for one data name. Its lock is held while this is installed.

    The files of one version are installed together, or none of them does: content first, then the
    metadata that makes it a version, then the marker; what goes, goes in the opposite order.
    """

    def __init__(self, tree: Tree, ref: DataRef, arrivals: Sequence[Arrival]) -> None:
        self.ref = ref
        self.arrivals = arrivals
        self.installed: list[Installed] = []
        self._tree = tree
        self._rel = ref.rel
        self._marker: Arrival | None = None
        self._versions: dict[int, list[Arrival]] = {}
        self._described: set[int] = set()
        # What the metadata of versions says that were not here at all, and what the marker says.
        self._read: dict[int, bytes] = {}
        self._marked: int | None = None
        below = len(self._rel) + 1
        for arrival in arrivals:
            version, _, file = arrival.rel[below:].partition("/")
            if file:
                self._versions.setdefault(int(version), []).append(arrival)
            else:
                self._marker = arrival
            if file == METADATA:
                self._described.add(int(version))

    def install(self, reception: Reception) -> None:
        """Let in what is expected, noting each file in `installed`."""
        # In a directory that was not there before there is nothing to look for.
        is_new = self._may_be_new() and reception.claim_dir(self._rel)
        ready = {
            version: arrivals
            for version, arrivals in sorted(self._versions.items())
            if is_new or self._is_ready(reception, version, arrivals)
        }
        is_complete = len(ready) == len(self._versions)
        for version, arrivals in ready.items():
            if staged := [arrival for arrival in arrivals if arrival.staged]:
                is_complete &= self._store(reception, version, staged)
        # The marker of a version that has to wait would name nothing, and a repair would move it.
        if (
            is_complete
            and self._marker
            and (is_new or is_expected(self._tree, self._marker, over_link=True))
        ):
            self._take_marker(reception, self._marker, is_new=is_new)
        for version, arrivals in ready.items():
            if gone := [arrival for arrival in arrivals if not arrival.staged]:
                self._remove(reception, version, gone)
        if any(one.signature is None for one in self.installed):
            reception.remove_empty_dir(self._rel)

    def _take_marker(self, reception: Reception, marker: Arrival, *, is_new: bool) -> None:
        self._take(reception, marker)
        if marker.staged is None or marker.data is None:
            return
        self._marked = parse_marker(marker.data)
        if is_new and self._marked == max(self._versions, default=0) and self._marked:
            top = {arrival.rel for arrival in self._versions[self._marked]}
            is_whole = {self.ref.file_rel(self._marked, file) for file in (RAW, METADATA)} <= top
            self.installed[-1] = self.installed[-1]._replace(is_right=is_whole)

    def _may_be_new(self) -> bool:
        """Whether nothing was here of all that arrives, and none of it is to be removed."""
        return all(one.staged is not None and one.expected is None for one in self.arrivals)

    def _is_ready(self, reception: Reception, version: int, arrivals: Sequence[Arrival]) -> bool:
        """Whether every file of a version is as expected; without its directory, there is none.

        What the dead began is nothing.
        """
        is_there = os.path.lexists(self._tree.shared_path(self.ref.version_rel(version)))
        if not is_there or claims.clear(self._tree, reception, self.ref, version):
            return all(arrival.expected is None for arrival in arrivals)
        return all(is_expected(self._tree, arrival) for arrival in arrivals)

    def _take(self, reception: Reception, arrival: Arrival) -> None:
        self.installed.append(take_place(reception, arrival, self._rel))

    def _store(self, reception: Reception, version: int, arrivals: Sequence[Arrival]) -> bool:
        """Let the files of a version in; False if somebody here is writing that version."""
        content = [arrival for arrival in arrivals if not _is_metadata(arrival)]
        metadata = next((arrival for arrival in arrivals if _is_metadata(arrival)), None)
        try:
            way = make_way(self._tree, reception, self.ref, version)
            if way is Way.TAKEN:
                return False
            if way is Way.FRESH and content:
                metadata = self._mark(reception, version, metadata)
            for arrival in content:
                self._take(reception, arrival)
            if metadata:
                self._take(reception, metadata)
                if way is Way.FRESH and metadata.data is not None:
                    self._read[version] = metadata.data
        except BaseException:
            tidy(self._tree, reception, self.ref, version)
            raise
        if metadata and way is Way.OPEN:
            tidy(self._tree, reception, self.ref, version)
        return True

    def _mark(self, reception: Reception, version: int, metadata: Arrival | None) -> Arrival | None:
        """Mark a directory as no claim; the metadata itself does, if it waits for its content."""
        mark = self.ref.file_rel(version, LANDING)
        if metadata is None or metadata.staged is None:
            reception.mark(mark)
            return None
        return metadata._replace(staged=reception.adopt(mark, metadata.staged))

    def _remove(self, reception: Reception, version: int, arrivals: Sequence[Arrival]) -> None:
        if any(map(_is_metadata, arrivals)):
            # In a directory that stays for their sake, another version would find no place.
            reception.remove_temps(self.ref.version_rel(version))
        if len(arrivals) > 1:
            # Else what is left by somebody who is killed in between would pass for a claim.
            reception.mark(self.ref.file_rel(version, LANDING))
        for arrival in sorted(arrivals, key=_is_metadata, reverse=True):
            self._take(reception, arrival)
        tidy(self._tree, reception, self.ref, version)

    def outcome(self) -> Outcome:
        """Return what the catalog must know: what is at hand, else as the files are now."""
        if self._tree.routing.may_split(self._rel):
            return outcome_of(self._tree, self.ref, self._described)  # the other tier has a say
        return outcome_of(self._tree, self.ref, self._described, self._read, self._marked)


def outcome_of(
    tree: Tree,
    ref: DataRef,
    versions: Iterable[int],
    at_hand: Mapping[int, bytes] = MappingProxyType({}),
    marker: int | None = None,
) -> Outcome:
    """Return what the catalog must know of some versions, read from the files as they are now.

    What is `at_hand` is the metadata of versions of which nothing was here before, and `marker`
    what the marker says, if that is known: these files are not read.
    """
    stored, removed = [], []
    for version in sorted(versions):
        data = at_hand.get(version)
        try:
            if data is None:
                metadata = on_disk.read_metadata(tree, ref, version)
            else:
                path = tree.path(ref.file_rel(version, METADATA))
                metadata = on_disk.parse_metadata(data, ref, version, path)
        except MetadataError as error:
            notice("%s", error.message)
            metadata = None
        if metadata is None:
            removed.append(version)
        else:
            is_deferred = data is None and on_disk.is_deferred(tree, ref, version)
            stored.append(StoredVersion(metadata, is_deferred))
    return Outcome(
        ref, on_disk.effective_marker(tree, ref) if marker is None else marker, stored, removed
    )


def _is_metadata(arrival: Arrival) -> bool:
    return arrival.rel.endswith(f"/{METADATA}")
