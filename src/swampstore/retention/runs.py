"""`runs gc`: the records of runs that ended long ago go, with their logs."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from swampstore import yaml_dialect
from swampstore.clock import from_iso
from swampstore.errors import SwampstoreError, YamlError
from swampstore.files import Tree, disk_errors
from swampstore.layout import LOCAL_DIR, OUTPUTS, WORKFLOW_RUNS, output_of, workflow_run_of
from swampstore.retention.apply import require_datastore

if TYPE_CHECKING:
    from swampstore.repo import Repo

RunKind = Literal["workflow-run", "output"]

DEFAULT_RUN_RETENTION = timedelta(days=30)

# A suspended run waits for somebody's approval; it is not over, however old it is.
TERMINAL_STATUSES = frozenset({"succeeded", "failed", "cancelled"})


class RunFacts(NamedTuple):
    """One run record: where it is, how and when the run ended, and the log that belongs to it.

    Times are timezone-aware, sizes are bytes; `log_size` is 0 where there is no log.
    """

    path: str
    kind: RunKind
    status: str
    started_at: datetime
    completed_at: datetime | None
    size: int
    log_file: str | None
    log_size: int

    @property
    def dated_at(self) -> datetime:
        """The time its age counts from: the end of a workflow run, the start of an output."""
        if self.kind == "output":
            return self.started_at
        return self.completed_at or self.started_at


@dataclass(frozen=True, slots=True)
class RunGcPlan:
    """The records that go, each with its log, ordered by kind and path.

    A preview and the real run both report from it. Someone who carries out only a part of it
    reports the part: `RunGcPlan(removals=done)`.
    """

    removals: tuple[RunFacts, ...]

    def count(self, kind: RunKind) -> int:
        """Return how many records of one kind go."""
        return sum(run.kind == kind for run in self.removals)

    def size(self, kind: RunKind) -> int:
        """Return the bytes of the records of one kind, their logs included."""
        return sum(run.size + run.log_size for run in self.removals if run.kind == kind)

    def to_json(self, *, dry_run: bool) -> dict[str, object]:
        """Return the result document of `runs gc`."""
        run_bytes, output_bytes = self.size("workflow-run"), self.size("output")
        return {
            "workflowRunsDeleted": self.count("workflow-run"),
            "workflowRunBytesReclaimed": run_bytes,
            "outputsDeleted": self.count("output"),
            "outputBytesReclaimed": output_bytes,
            "totalBytesReclaimed": run_bytes + output_bytes,
            "dryRun": dry_run,
        }


def plan_run_gc(
    runs: Iterable[RunFacts], now: datetime, older_than: timedelta = DEFAULT_RUN_RETENTION
) -> RunGcPlan:
    """Decide which records go at the time `now`: those of ended runs older than `older_than`.

    `runs` is read once and not kept; memory follows what is removed.
    """
    removals = [
        run for run in runs if run.status in TERMINAL_STATUSES and now - run.dated_at > older_than
    ]
    removals.sort(key=lambda run: (run.kind, run.path))
    return RunGcPlan(tuple(removals))


# Records on disk ---------------------------------------------------------------------------------

Complain = Callable[[str], None]

# Records embed whatever their steps returned. Beyond this size only the members that are asked
# for are read, line by line.
_WHOLE_FILE = 256 * 1024
_LONGEST_LINE = 64 * 1024
_WANTED = frozenset({b"status", b"startedAt", b"completedAt", b"logFile"})
_LOG_HOMES = (OUTPUTS, WORKFLOW_RUNS, "logs")


class RunRecords:
    """The records of one repository."""

    def __init__(self, tree: Tree, repo_dir: str, complain: Complain) -> None:
        self._tree = tree
        self._repo_dir = repo_dir
        self._complain = complain

    def unchanged_since(self, before: float) -> Iterator[RunFacts]:
        """Yield the records that nobody has written to since a time.

        Those that vanish meanwhile are left out, and so are those that cannot be understood,
        with a complaint.
        """
        for top in (WORKFLOW_RUNS, OUTPUTS):
            for place in self._tree.places(top):
                for path in _old_records(place, before):
                    rel = f"{top}{path.removeprefix(place)}"
                    if (output_of(rel) or workflow_run_of(rel)) and self._tree.path(rel) == path:
                        facts = self.read(rel)
                        if facts is not None:
                            yield facts

    def read(self, rel: str) -> RunFacts | None:
        """Read one record, None if it is gone or (with a complaint) makes no sense."""
        path = self._tree.path(rel)
        try:
            size = os.lstat(path).st_size
            document = members_of(path, size, _WANTED)
            return self._facts(rel, size, document)
        except FileNotFoundError:
            return None
        except (SwampstoreError, ValueError, OSError) as error:
            self._complain(f"kept {rel}: {error}")
            return None

    def _facts(self, rel: str, size: int, document: dict[str, Any]) -> RunFacts:
        kind: RunKind = "output" if rel.startswith(f"{OUTPUTS}/") else "workflow-run"
        completed_at = document.get("completedAt")
        log_file, log_size = self._log(rel, document.get("logFile"))
        return RunFacts(
            path=rel,
            kind=kind,
            status=_text(document, "status"),
            started_at=from_iso(_text(document, "startedAt")),
            completed_at=None if completed_at is None else from_iso(_text(document, "completedAt")),
            size=size,
            log_file=log_file,
            log_size=log_size,
        )

    def _log(self, rel: str, named: object) -> tuple[str | None, int]:
        """Return the log that a record names, and its size, if it is a log and here."""
        if not isinstance(named, str):
            return None, 0
        try:
            path = os.path.realpath(os.path.join(self._repo_dir, named))
            if named.startswith(f"{LOCAL_DIR}/") and not os.path.lexists(path):
                # Records say so wherever the datastore is.
                path = os.path.realpath(self._tree.path(named.removeprefix(f"{LOCAL_DIR}/")))
            found = os.lstat(path)
        except (OSError, ValueError):
            return None, 0
        if log_rel(self._tree, path) is None or not stat.S_ISREG(found.st_mode):
            self._complain(f"{rel} names {named!r} as its log, which is none of ours: it stays")
            return None, 0
        return path, found.st_size


def log_rel(tree: Tree, path: str) -> str | None:
    """Return where in its tier a real path is, None if no log of a run can be there."""
    for tier in (tree.base, tree.local):
        rel = path.removeprefix(f"{os.path.realpath(tier)}/")
        if rel != path and rel.endswith(".log") and rel.partition("/")[0] in _LOG_HOMES:
            return rel
    return None


def _old_records(directory: str, before: float) -> Iterator[str]:
    """Yield YAML files last changed before a time; what vanishes or is a link is left out."""
    try:
        with os.scandir(directory) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in found:
        if entry.is_dir(follow_symlinks=False):
            yield from _old_records(entry.path, before)
        elif entry.name.endswith(".yaml") and entry.is_file(follow_symlinks=False):
            try:
                is_old = entry.stat(follow_symlinks=False).st_mtime <= before
            except FileNotFoundError:
                continue
            if is_old:
                yield entry.path


def members_of(path: str, size: int, wanted: frozenset[bytes]) -> dict[str, Any]:
    """Return the members of a record, of a large one only those that are wanted.

    Raises YamlError if it makes no sense, FileNotFoundError if it is gone.
    """
    if size > _WHOLE_FILE:
        return _summary(path, wanted)
    with open(path, "rb") as file:
        return yaml_dialect.load_mapping(file.read(), what=os.path.basename(path))


def _summary(path: str, members: frozenset[bytes]) -> dict[str, Any]:
    """Read the wanted members of the top level: lines that start in the first column."""
    kept, wanted, at_start = bytearray(), False, True
    with open(path, "rb") as file:
        while line := file.readline(_LONGEST_LINE):
            if at_start and line[:1] not in b" \t\r\n":
                wanted = line.partition(b":")[0] in members
            if wanted:
                kept += line
            if len(kept) > _LONGEST_LINE:
                raise YamlError(f"{path} has a member of extraordinary length", hint="Look at it.")
            at_start = line.endswith(b"\n")
    return yaml_dialect.load_mapping(bytes(kept), what=os.path.basename(path))


def _text(document: dict[str, Any], key: str) -> str:
    value = document.get(key)
    if not isinstance(value, str):
        raise YamlError(f"{key} is missing or not text", hint="Repair or remove the record.")
    return value


# Collecting --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RunGcReport:
    """What went, or would go, and everything that was kept in doubt or failed."""

    plan: RunGcPlan
    dry_run: bool
    warnings: tuple[str, ...] = ()

    def to_json(self) -> dict[str, object]:
        """Return the result document; `warnings` is a member only if there are any."""
        document = self.plan.to_json(dry_run=self.dry_run)
        return document | ({"warnings": list(self.warnings)} if self.warnings else {})


class RunGc:
    """One collection of run records: planned at once, carried out when asked for."""

    def __init__(self, repo: Repo, older_than: timedelta = DEFAULT_RUN_RETENTION) -> None:
        require_datastore(repo.config)
        self._tree = repo.tree
        self._warnings: list[str] = []
        self._records = RunRecords(repo.tree, repo.config.repo_dir, self._warnings.append)
        now = repo.clock()
        before = now.timestamp() - older_than.total_seconds()
        self.plan = plan_run_gc(self._records.unchanged_since(before), now, older_than)

    def preview(self) -> RunGcReport:
        """Return what `run` would do; change nothing."""
        return RunGcReport(self.plan, dry_run=True, warnings=self._distinct_warnings())

    def run(self) -> RunGcReport:
        """Remove what was planned."""
        done = tuple(record for record in self.plan.removals if self._remove(record))
        return RunGcReport(RunGcPlan(done), dry_run=False, warnings=self._distinct_warnings())

    def _distinct_warnings(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self._warnings))

    def _remove(self, record: RunFacts) -> bool:
        # A failed run can be resumed; then its record says something else by now.
        if self._records.read(record.path) != record:
            self._warnings.append(f"{record.path} stays: it has changed, or somebody removed it")
            return False
        try:
            # The log goes first: without its record nobody would find it again.
            if record.log_file is not None:
                remove_log(self._tree, record.log_file)
            with self._tree.changing(record.path) as change:
                change.remove(record.path)
        except SwampstoreError as error:
            self._warnings.append(f"{record.path} stays: {error.message}")
            return False
        return True


def remove_log(tree: Tree, path: str) -> None:
    """Remove a log that a record names; it may be gone already."""
    rel = log_rel(tree, path)
    if rel is not None and os.path.realpath(tree.path(rel)) == path:
        with tree.changing(rel) as change:
            change.remove(rel)
        return
    # It is in the tier that never leaves this machine, so nobody needs to be told.
    with disk_errors(path), contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def run_gc(
    repo: Repo, *, older_than: timedelta = DEFAULT_RUN_RETENTION, dry_run: bool = False
) -> RunGcReport:
    """Remove records of ended runs older than `older_than`, or tell what would go.

    A record that cannot be understood or removed stays and is named in the warnings. Raises
    DiskError if the datastore is not there.
    """
    collection = RunGc(repo, older_than)
    return collection.preview() if dry_run else collection.run()
