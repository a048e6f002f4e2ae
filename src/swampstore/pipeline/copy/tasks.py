"""What one task of a copy does: data names and files, object by object, so that nothing dangles."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from io import BufferedRandom
from typing import NamedTuple, TypeVar

from swampstore.artifacts.latest import parse_marker, wins
from swampstore.clock import Clock, system_clock, to_iso
from swampstore.errors import DiskError
from swampstore.files import disk_errors
from swampstore.index.format import Entry
from swampstore.index.path_kinds import VersionFile, is_marker, unit_of, version_file
from swampstore.index.workers import Deadline, in_parallel
from swampstore.layout import METADATA
from swampstore.pipeline.copy.outcomes import (
    CHANGED,
    CONFLICT,
    CORRUPT,
    HELD_BACK,
    MISSING,
    NOT_KEPT,
    Left,
    Outcome,
    Placed,
    Refused,
    Wanted,
    entry_there,
    is_known_conflict,
    may_replace,
    sealed,
)
from swampstore.pipeline.places import Place
from swampstore.stores.errors import (
    CorruptObjectError,
    ObjectNotFoundError,
    PreconditionFailedError,
)
from swampstore.stores.protocol import ObjectInfo, Store

# How often others may get in between while an object is replaced.
_ATTEMPTS = 3
_LONGEST_MARKER = 64


class Body(NamedTuple):
    """Content on its way: what the source has, in a temporary file."""

    file: BufferedRandom
    size: int
    sha256: str

    def read(self) -> bytes:
        """Return all of it."""
        return _content(self.file)


class _Found(NamedTuple):
    """What the target holds where the object should go."""

    info: ObjectInfo
    sha256: str
    marker: int


class ObjectCopier:
    """Copies single objects between two places; safe to call from many threads."""

    def __init__(
        self, source: Place, source_store: Store, target: Place, target_store: Store, clock: Clock
    ) -> None:
        self._source = source
        self._source_store = source_store
        self._source_names = source.names()
        self._target_store = target_store
        self._target_names = target.names()
        self._clock = clock
        # Some stores tell times in whole seconds.
        self._began = target_store.clock() + timedelta(seconds=1)

    # The source --------------------------------------------------------------------------------

    def fetch(self, wanted: Wanted, file: BufferedRandom) -> Body | Refused:
        """Bring one object into a file; one that is not what was announced is refused."""
        key = self._source_names.remote(wanted.rel)
        try:
            info = self._source_store.download(
                key,
                file.fileno(),
                size=wanted.size if wanted.etag is None else None,
                sha256=wanted.sha256,
            )
        except ObjectNotFoundError:
            return Refused(wanted, MISSING, "there is no such object any more")
        except CorruptObjectError as error:
            return Refused(wanted, CORRUPT, error.message)
        if wanted.etag is None and wanted.sha256 is not None:
            return Body(file, wanted.size, wanted.sha256)
        if wanted.etag not in (None, info.etag):
            return Refused(wanted, CHANGED, "it was written after it was listed")
        sha256, size = _digest(file)
        return Body(file, size, sha256)

    def is_as_listed(self, wanted: Wanted) -> bool:
        """Whether an object that no index tells of is still the one that was listed."""
        if wanted.etag is None:
            return True
        try:
            found = self._source_store.head(self._source_names.remote(wanted.rel))
        except ObjectNotFoundError:
            return False
        return found.etag == wanted.etag

    # The target --------------------------------------------------------------------------------

    def place(self, wanted: Wanted, body: Body) -> Outcome:
        """Put what was fetched in its place; what is in the way of that is told, not touched."""
        there = entry_there(wanted)
        if there is not None and (there.sha256, there.size) == (body.sha256, body.size):
            return Left(wanted)
        return self._place(wanted, body)

    def _place(self, wanted: Wanted, body: Body) -> Outcome:
        key = self._target_names.remote(wanted.rel)
        for _ in range(_ATTEMPTS):
            try:
                if self._may_just_create(wanted):
                    self._target_store.put_if_absent(key, body.file)
                    return self._checked(wanted, body, key)
            except PreconditionFailedError:
                pass
            found = self._look(key)
            if found is not None and found.sha256 == body.sha256:
                return self._placed(wanted, body, found.info)
            if found is not None and not self._makes_room(wanted, body, found):
                return self._refused(wanted, found)
            try:
                self._write(key, body, found)
            except PreconditionFailedError:
                continue
            return self._checked(wanted, body, key)
        return Refused(wanted, CONFLICT, "others keep writing it at the target")

    def _may_just_create(self, wanted: Wanted) -> bool:
        """Whether a single request can tell that nothing is there, and put it there."""
        able = self._target_store.capabilities
        return wanted.there is None and able.conditional_create

    def _makes_room(self, wanted: Wanted, body: Body, found: _Found) -> bool:
        if is_marker(wanted.rel):
            return wins(marker_of(body), found.marker)
        return may_replace(wanted, found.sha256, self._source)

    def _refused(self, wanted: Wanted, found: _Found) -> Outcome:
        if is_marker(wanted.rel):
            return Left(wanted)
        return Refused(wanted, CONFLICT, f"the target has other content: SHA-256 {found.sha256}")

    def _write(self, key: str, body: Body, found: _Found | None) -> None:
        """Write the object, on a condition if the store knows any."""
        able = self._target_store.capabilities
        if found is None and able.conditional_create:
            self._target_store.put_if_absent(key, body.file)
        elif found and found.info.token and able.conditional_update:
            self._target_store.put_if_match(key, body.file, found.info.token)
        else:
            self._target_store.put(key, body.file)

    def _look(self, key: str) -> _Found | None:
        with temporary() as file:
            try:
                info = self._target_store.download(key, file.fileno())
            except ObjectNotFoundError:
                return None
            sha256, size = _digest(file)
            return _Found(info, sha256, marker_of(Body(file, size, sha256)))

    def _checked(self, wanted: Wanted, body: Body, key: str) -> Outcome:
        """Read back what was written: a store that says yes has not proven anything."""
        with open(os.devnull, "wb") as nowhere:
            try:
                info = self._target_store.download(
                    key, nowhere.fileno(), size=body.size, sha256=body.sha256
                )
            except (CorruptObjectError, ObjectNotFoundError) as error:
                return Refused(wanted, NOT_KEPT, f"what was written is not there: {error.message}")
        return self._placed(wanted, body, info)

    def _placed(self, wanted: Wanted, body: Body, info: ObjectInfo) -> Placed:
        # Without an index there is no time of upload, so it is that of this copy.
        uploaded = wanted.last_modified if wanted.raw is not None else to_iso(self._clock())
        entry = Entry(
            size=body.size,
            last_modified=uploaded,
            sha256=body.sha256,
            local_mtime=wanted.local_mtime,
            like=sealed(wanted, body.sha256, self._source),
        )
        return Placed(wanted, entry, info.etag, is_met=info.last_modified < self._began)


def temporary() -> BufferedRandom:
    """Return a new temporary file, which is gone when it is closed; raise DiskError."""
    try:
        return tempfile.TemporaryFile()
    except OSError as error:
        raise DiskError(
            f"no temporary file can be made: {error.strerror}",
            hint="Make room in the temporary directory, or set TMPDIR to another one.",
        ) from error


def _digest(file: BufferedRandom) -> tuple[str, int]:
    with disk_errors("a temporary file"):
        file.seek(0)
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        return sha256, file.tell()


def _content(file: BufferedRandom) -> bytes:
    with disk_errors("a temporary file"):
        file.seek(0)
        return file.read()


def marker_of(body: Body) -> int:
    """Return the version that the content of a marker names, 0 if it names none."""
    if body.size > _LONGEST_MARKER:
        return 0
    return parse_marker(body.read()) or 0


_T = TypeVar("_T")
# Two directories answer at once: more threads would only wait for the interpreter.
_LOCAL_CONCURRENCY = 2
# A request takes about as long as so many bytes.
_REQUEST = 64 << 10


class Unit(NamedTuple):
    """What becomes visible together: a data name with what is wanted of it, or one file.

    `versions` are those of the name that the target's index tells of, if a marker is wanted.
    """

    name: str
    wanted: tuple[Wanted, ...]
    versions: frozenset[int] = frozenset()

    @property
    def has_marker(self) -> bool:
        """Whether the marker of the name is wanted."""
        return any(is_marker(one.rel) for one in self.wanted)

    @property
    def weight(self) -> int:
        """How long it takes, compared with others."""
        return sum(one.size + _REQUEST for one in self.wanted)


def units_of(wanted: Iterable[Wanted]) -> list[Unit]:
    """Return what is wanted, unit by unit."""
    units: dict[str, list[Wanted]] = {}
    for one in wanted:
        units.setdefault(unit_of(one.rel), []).append(one)
    return [Unit(name, tuple(found)) for name, found in sorted(units.items())]


def stages_of(units: Iterable[Unit]) -> list[list[Unit]]:
    """Return first what is new to the target, then what replaces something there.

    Between the replacement of an object and the commit that tells of it, readers find something
    else than the index says; that time is kept short.
    """
    fresh: list[Wanted] = []
    replacing: list[Wanted] = []
    for unit in units:
        known = {_group(one) for one in unit.wanted if one.there is not None}
        for one in unit.wanted:
            (replacing if _group(one) in known else fresh).append(one)
    return [units_of(stage) for stage in (fresh, replacing) if stage]


def _group(wanted: Wanted) -> VersionFile | str:
    """Return what comes over together with an object."""
    return version_file(wanted.rel) or wanted.rel


@dataclass(frozen=True, slots=True)
class CopyTask:
    """Some units, on their way from one place to another."""

    source: Place
    target: Place
    units: tuple[Unit, ...]

    @property
    def concurrency(self) -> int:
        """How many objects are on their way at once."""
        if self.source.root is not None and self.target.root is not None:
            return _LOCAL_CONCURRENCY
        return self.target.config.limits.push_concurrency


def copy_units(task: CopyTask) -> Iterator[Outcome]:
    """Copy some units; yield what became of every object. Runs in a task, and may run twice."""
    with ExitStack() as stack:
        source = stack.enter_context(task.source.open())
        target = stack.enter_context(task.target.open())
        copier = ObjectCopier(task.source, source, task.target, target, system_clock)
        yield from _Copy(task, copier).run()


class _Copy:
    def __init__(self, task: CopyTask, copier: ObjectCopier) -> None:
        self._task = task
        self._copier = copier
        self._whole: set[VersionFile] = set()
        self._broken: set[VersionFile] = set()

    def run(self) -> Iterator[Outcome]:
        groups, markers = _grouped(self._task.units)
        yield from self._each(groups, self._together)
        yield from self._each(markers, lambda one: [self._marker(*one)])

    def _each(self, tasks: Iterable[_T], work: Callable[[_T], list[Outcome]]) -> Iterator[Outcome]:
        for _, outcomes, error in in_parallel(work, tasks, self._task.concurrency, Deadline()):
            if error is not None:
                raise error
            yield from outcomes or ()

    def _together(self, files: list[Wanted]) -> list[Outcome]:
        """Copy the files of a version, or a file of none; all of them or none."""
        outcomes = self._conflicts(files) or self._copied(files)
        failed = [one for one in outcomes if isinstance(one, Refused)]
        version = version_file(files[0].rel)
        if version is not None:
            (self._broken if failed else self._whole).add(version)
        if not failed:
            return outcomes
        reason = f"{failed[0].wanted.rel} could not be copied: {failed[0].kind}"
        told = {one.wanted for one in failed}
        held = [Refused(one, HELD_BACK, reason) for one in files if one not in told]
        return [*failed, *held]

    def _conflicts(self, files: list[Wanted]) -> list[Outcome]:
        """Return what the indexes alone show to be in conflict: then nothing has to be read."""
        return [
            Refused(one, CONFLICT, "the target's index tells of other content")
            for one in files
            if is_known_conflict(one, self._task.source)
        ]

    def _copied(self, files: list[Wanted]) -> list[Outcome]:
        """Fetch all files before the first is placed, and place the metadata last."""
        outcomes: list[Outcome] = []
        with ExitStack() as stack:
            bodies: list[tuple[Wanted, Body]] = []
            for wanted in sorted(files, key=_metadata_last):
                body = self._copier.fetch(wanted, stack.enter_context(temporary()))
                if isinstance(body, Refused):
                    return [body]
                bodies.append((wanted, body))
            for wanted in files:
                # What has no index may have been written to between one file and the next.
                if not self._copier.is_as_listed(wanted):
                    return [Refused(wanted, CHANGED, "it was written while it was read")]
            for wanted, body in bodies:
                outcomes.append(self._copier.place(wanted, body))
                if isinstance(outcomes[-1], Refused):
                    break
        return outcomes

    def _marker(self, unit: Unit, wanted: Wanted) -> Outcome:
        with temporary() as file:
            body = self._copier.fetch(wanted, file)
            if isinstance(body, Refused):
                return body
            if reason := self._why_not_latest(unit, marker_of(body)):
                return Refused(wanted, HELD_BACK, reason)
            return self._copier.place(wanted, body)

    def _why_not_latest(self, unit: Unit, number: int) -> str | None:
        """Return why no marker may name a version, None if that version is at the target."""
        version = VersionFile(unit.name, number)
        if version in self._whole:
            return None
        if not number:
            return "it names no version"
        if version in self._broken or number not in unit.versions:
            return f"it names version {number}, which is not at the target"
        return None


def _grouped(units: Iterable[Unit]) -> tuple[list[list[Wanted]], list[tuple[Unit, Wanted]]]:
    """Return the files of each version, single files each on their own, and the markers."""
    versions: dict[VersionFile, list[Wanted]] = {}
    single: list[list[Wanted]] = []
    markers: list[tuple[Unit, Wanted]] = []
    pairs = ((unit, one) for unit in units for one in unit.wanted)
    for unit, one in pairs:
        if version := version_file(one.rel):
            versions.setdefault(version, []).append(one)
        elif is_marker(one.rel):
            markers.append((unit, one))
        else:
            single.append([one])
    return [*versions.values(), *single], markers


def _metadata_last(wanted: Wanted) -> tuple[bool, str]:
    return wanted.rel.endswith(f"/{METADATA}"), wanted.rel
