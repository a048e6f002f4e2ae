"""What one task does: data names and single files, each in an order in which nothing dangles.

The files of a version come over together or not at all, its metadata last. A `latest` marker
comes after all versions of its name, and only if the version that it names is there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from swampstore.clock import system_clock
from swampstore.index.path_kinds import VersionFile, is_marker, unit_of, version_file
from swampstore.index.workers import Deadline, in_parallel
from swampstore.layout import METADATA
from swampstore.pipeline.copy.objects import Body, ObjectCopier, marker_of, temporary
from swampstore.pipeline.copy.outcomes import (
    CHANGED,
    CONFLICT,
    HELD_BACK,
    Outcome,
    Refused,
    Wanted,
    is_known_conflict,
)
from swampstore.pipeline.places import Place

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
