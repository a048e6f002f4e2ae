"""The ways into the tree for what comes from the remote: with a catalog, without one, and none."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

from swampstore.artifacts import claims
from swampstore.artifacts.name_lock import Mutations
from swampstore.artifacts.recovery import repoint
from swampstore.artifacts.renumber import claim_numbers, move_versions, renumber
from swampstore.catalog.catalog import Catalog
from swampstore.catalog.rebuild import rebuild
from swampstore.errors import CatalogError, DiskError, ValidationError
from swampstore.files import Tree, disk_errors, replacing, sync_filesystem
from swampstore.index.errors import IncompleteSyncError, SyncError
from swampstore.index.path_kinds import is_marker, unit_of, version_file
from swampstore.layout import DataRef, ref_of
from swampstore.sync.arrivals import (
    Arrival,
    Installed,
    NameArrivals,
    is_expected,
    outcome_of,
    take_place,
)

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
