"""How files that come from the remote enter the tree, in which order, and how they leave it."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from swampstore.artifacts import claims
from swampstore.artifacts import versions as on_disk
from swampstore.artifacts.claims import Way, make_way, tidy
from swampstore.artifacts.latest import parse_marker
from swampstore.artifacts.name_lock import Mutations, Outcome
from swampstore.artifacts.recovery import repoint
from swampstore.artifacts.renumber import claim_numbers, move_versions, renumber
from swampstore.artifacts.versions import StoredVersion
from swampstore.catalog.catalog import Catalog
from swampstore.catalog.rebuild import rebuild
from swampstore.errors import CatalogError, DiskError, MetadataError, ValidationError
from swampstore.files import Reception, Tree, disk_errors, replacing, sync_filesystem
from swampstore.files.signature import Signature, signature
from swampstore.index.errors import IncompleteSyncError, SyncError
from swampstore.index.path_kinds import is_marker, unit_of, version_file
from swampstore.layout import LANDING, METADATA, RAW, DataRef, ref_of
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


__all__ = ["Arrival", "ArtifactInstaller", "InstallError", "Installed", "PlainInstaller"]

# Names whose locks, intents and rows are taken together: what arrives in one batch, mostly. The
# disk is waited for three times for each, and writers of these names wait as long.
NAMES_AT_ONCE = 256


class InstallError(IncompleteSyncError):
    """Some files cannot take their places; `installed` are those that did."""

    def __init__(self, failures: Mapping[str, str], installed: Sequence[Installed]) -> None:
        super().__init__("install", failures)
        self.installed = list(installed)


class _Report:
    """What was installed so far, and what could not."""

    def __init__(self) -> None:
        self.installed: list[Installed] = []
        self.failures: dict[str, str] = {}

    @contextlib.contextmanager
    def about(
        self, arrivals: Iterable[Arrival], installed: Sequence[Installed] = ()
    ) -> Iterator[None]:
        """Go on after a failure that concerns these arrivals, unless they are `installed`."""
        try:
            yield
        except (ValidationError, DiskError, CatalogError) as error:
            done = {one.rel for one in installed}
            self.failures |= {one.rel: error.message for one in arrivals if one.rel not in done}

    def conclude(self) -> list[Installed]:
        if self.failures:
            raise InstallError(self.failures, self.installed)
        return self.installed


class PlainInstaller:
    """The way into the tree: renames files into place, where nobody keeps a catalog."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree

    def install(self, arrivals: Sequence[Arrival]) -> list[Installed]:
        """Put files in their places, or remove them, where the local file is still `expected`.

        The others are left alone, and their staged files stay: the caller reconsiders them. So
        is every file of a version of which one is not as expected, or which somebody is writing
        here. Raises LandingError if something is in the way, or the disk refuses.
        """
        report = _Report()
        names, files = _by_name(self._tree, arrivals)
        staged = next((arrival.staged for arrival in arrivals if arrival.staged), None)
        if staged:
            # Content is durable before it can be seen: cut short, it would pass for a local edit.
            self._sync(os.path.dirname(staged))
        for start in range(0, len(names), NAMES_AT_ONCE):
            chunk = names[start : start + NAMES_AT_ONCE]
            with report.about(arrival for name in chunk for arrival in name.arrivals):
                self._land_names(chunk, report)
        self._land_files(files, report)
        return report.conclude()

    def _land_names(self, names: Sequence[NameArrivals], report: _Report) -> None:
        for name in names:
            with (
                report.about(name.arrivals, name.installed),
                self._tree.receiving(name.ref.rel) as reception,
            ):
                name.install(reception)
        self._sync(self._tree.base)
        report.installed += [installed for name in names for installed in name.installed]

    def _land_files(self, arrivals: Sequence[Arrival], report: _Report) -> None:
        installed: list[Installed] = []
        for arrival in arrivals:
            with report.about([arrival]), self._tree.receiving(arrival.rel) as reception:
                if is_expected(self._tree, arrival):
                    installed.append(take_place(reception, arrival))
        if installed:
            self._sync(self._tree.base)
        report.installed += installed

    def _sync(self, path: str) -> None:
        if self._tree.durable:
            with disk_errors(path):
                sync_filesystem(path)

    def renumber(self, name_rel: str, moves: Mapping[int, int]) -> None:
        """Give local versions of a data name new numbers: a local change, which is announced."""
        ref = ref_of(name_rel)
        with self._tree.changing(name_rel) as change:
            claim_numbers(self._tree, change, ref, moves)
            move_versions(self._tree, change, ref, moves)

    def repoint(self, name_rel: str, without: Container[int] = ()) -> None:
        """Make `latest` name the highest version that may be it: a local change, announced."""
        with self._tree.changing(name_rel) as change:
            repoint(self._tree, change, ref_of(name_rel), down=True, without=without)

    def clear(self, rel: str) -> bool:
        """Remove the version that a file is of, if it was begun by somebody who is dead."""
        ref, version = _version_of(rel)
        with self._tree.receiving(ref.rel) as reception:
            return claims.clear(self._tree, reception, ref, version)

    def refusing(self) -> NoInstaller:
        """Return what lets nothing into the tree, nor anything in it be changed."""
        return NoInstaller(self._tree)

    def keep_copy(self, source: str, target: str) -> None:
        """Copy a file to where there is none, or an equal one."""
        import shutil

        with disk_errors(target):
            os.makedirs(os.path.dirname(target), exist_ok=True)
            with replacing(target, durable=True) as temp:
                shutil.copyfile(source, temp, follow_symlinks=False)

    def recover(self) -> None:
        """Finish or undo what the dead left half done: without intents, nothing."""

    def observe(self, rels: Iterable[str]) -> None:
        """Hear of files that somebody else may have changed: a catalog must know of them."""

    def bulk_done(self) -> None:
        """Hear that everything of a sync is installed."""

    @contextlib.contextmanager
    def trying_to_hold(self, name_rels: Sequence[str]) -> Iterator[bool]:
        """Keep local writers from data names, unless one is at work; yields whether that is so."""
        del name_rels
        yield True

    def make_durable(self) -> None:
        """Make everything durable that was written to the cache before."""
        self._sync(self._tree.base)


class NoInstaller(PlainInstaller):
    """No way in: files that are pushed from where they still count must not be changed by that."""

    def install(self, arrivals: Sequence[Arrival]) -> list[Installed]:
        """Refuse."""
        del arrivals
        raise _untouched()

    def renumber(self, name_rel: str, moves: Mapping[int, int]) -> None:
        """Refuse."""
        del name_rel, moves
        raise _untouched()

    def repoint(self, name_rel: str, without: Container[int] = ()) -> None:
        """Refuse."""
        del name_rel, without
        raise _untouched()

    def keep_copy(self, source: str, target: str) -> None:
        """Refuse."""
        del source, target
        raise _untouched()

    def clear(self, rel: str) -> bool:
        """Leave what the dead began to whoever uses those files."""
        del rel
        return False


def _untouched() -> SyncError:
    return SyncError("others were first", hint="Sync once the files are in the cache.")


class ArtifactInstaller(PlainInstaller):
    """Installs data under the locks of its names, and writes the rows of the catalog through."""

    def __init__(self, mutations: Mutations, catalog: Catalog) -> None:
        super().__init__(mutations.tree)
        self._mutations = mutations
        self._catalog = catalog

    def install(self, arrivals: Sequence[Arrival]) -> list[Installed]:
        """Put files in their places, or remove them, where the local file is still `expected`."""
        if not self._catalog.is_populated and not self._tree.subdirs("data"):
            # As long as there is nothing, the catalog is complete for free; after a first pull
            # it would take a walk over everything.
            rebuild(self._catalog, self._mutations)
        return super().install(arrivals)

    def _land_names(self, names: Sequence[NameArrivals], report: _Report) -> None:
        try:
            self._land_together(names, report)
        except (ValidationError, DiskError):
            if len(names) == 1 or any(name.installed for name in names):
                raise
            # One of them is behind a symbolic link, or cannot be healed; the others can come.
            for name in names:
                with report.about(name.arrivals):
                    self._land_together([name], report)

    def _land_together(self, names: Sequence[NameArrivals], report: _Report) -> None:
        refs = [name.ref for name in names]
        with self._mutations.receiving_many(refs, "land") as receptions:
            for name, reception in zip(names, receptions, strict=True):
                with (
                    report.about(name.arrivals, name.installed),
                    disk_errors(self._tree.path(name.ref.rel)),
                ):
                    name.install(reception)
            self._sync(self._tree.base)
            self._mutations.record_all([name.outcome() for name in names])
        report.installed += [installed for name in names for installed in name.installed]

    def renumber(self, name_rel: str, moves: Mapping[int, int]) -> None:
        """Give local versions of a data name new numbers: a local change, which is announced."""
        renumber(self._mutations, ref_of(name_rel), moves)

    def clear(self, rel: str) -> bool:
        """Remove the version that a file is of, if it was begun by somebody who is dead."""
        ref, version = _version_of(rel)
        return bool(self._mutations.clear(ref, [version]))

    def recover(self) -> None:
        """Finish or undo what the dead left half done."""
        self._mutations.recover()

    def observe(self, rels: Iterable[str]) -> None:
        """Bring the rows of these files' versions up to date, where they are not."""
        if not self._catalog.is_populated:
            return
        versions: dict[str, set[int]] = {}
        for rel in rels:
            found = version_file(rel)
            if found is not None:
                versions.setdefault(found.name_rel, set()).add(found.version)
            elif is_marker(rel):
                versions.setdefault(unit_of(rel), set())
        for name_rel, numbers in versions.items():
            self._observe(ref_of(name_rel), numbers)

    def _observe(self, ref: DataRef, versions: set[int]) -> None:
        with self._mutations.holding(ref):
            now = outcome_of(self._tree, ref, versions)
            latest = self._catalog.latest(ref)
            if (latest.version if latest else 0) != now.marker or not self._catalog.agrees(
                ref, now.stored, now.removed
            ):
                self._catalog.store(ref, now.stored, now.removed, now.marker)
                self._catalog.on_change([ref.rel])

    @contextlib.contextmanager
    def trying_to_hold(self, name_rels: Sequence[str]) -> Iterator[bool]:
        """Hold the locks of data names, if all of them are free."""
        with self._mutations.trying_to_hold([ref_of(rel) for rel in name_rels]) as is_held:
            yield is_held

    def repoint(self, name_rel: str, without: Container[int] = ()) -> None:
        """Make `latest` name the highest version that may be it: a local change, announced."""
        ref = ref_of(name_rel)
        with self._mutations.changing(ref, "repoint") as change:
            marker = repoint(self._tree, change, ref, down=True, without=without)
            self._mutations.record(ref, marker=marker)


def _version_of(rel: str) -> tuple[DataRef, int]:
    found = version_file(rel)
    assert found is not None
    return ref_of(found.name_rel), found.version


def _by_name(tree: Tree, arrivals: Iterable[Arrival]) -> tuple[list[NameArrivals], list[Arrival]]:
    """Return what arrives for data names, each taken together, and all other files."""
    names: dict[str, list[Arrival]] = {}
    files = []
    for arrival in arrivals:
        unit = unit_of(arrival.rel)
        if unit == arrival.rel:
            files.append(arrival)
        else:
            names.setdefault(unit, []).append(arrival)
    return [NameArrivals(tree, ref_of(rel), arriving) for rel, arriving in names.items()], files
