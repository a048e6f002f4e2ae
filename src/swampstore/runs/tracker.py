"""What is running on this machine, in `.swamp/run_tracker.db`, and asking it to end.

    with Tracker(repo).running("model_method", run_id=id, model=ref, method="scan") as run:
        ...                                   # look at run.cancelled now and then
        run.finish("succeeded")

Other clients use the same table. A run shows that it lives by its heartbeat, and what is known of
its process tells whether it died: then somebody on its machine reaps it (see `reaping`). No run
fails because it could not be tracked. What runs elsewhere is in `control_area`.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from swampstore.clock import from_iso, to_iso
from swampstore.errors import DiskError, NotFoundError, SwampstoreError, ValidationError
from swampstore.files import alone
from swampstore.layout import RUN_TRACKER, ModelRef
from swampstore.locks.process import actor_name, is_dead, new_record
from swampstore.notices import notice
from swampstore.runs.tracker_file import ACTIVE, OURS, TrackerFile

if TYPE_CHECKING:
    from swampstore.repo import Repo
    from swampstore.runs.control_area import ControlArea

METHOD, WORKFLOW = "model_method", "workflow"
RUNNING, COMPLETED, FAILED, CANCELLED, SUSPENDED = (
    "running",
    "completed",
    "failed",
    "cancelled",
    "suspended",
)
# What records and people call it, and what this table does.
SUCCEEDED = "succeeded"
_STATUSES = {SUCCEEDED: COMPLETED}
HEARTBEAT = 30.0
STALE = timedelta(seconds=90)
KEPT = timedelta(days=7)
# How soon a run hears that it should end, from this machine.
_LOOK = 0.5
_PATIENCE = 5.0
DIED = "the process that ran it died"
_SHORTEST_PREFIX = 3


class Run(NamedTuple):
    """One run that is going on, or ended lately. Times are as files write them.

    `machine` is where it runs, `is_here` whether that is this machine. `status` is running,
    succeeded, failed, cancelled or suspended; `lost` is one of another machine that was not heard
    of for too long.
    """

    id: str
    kind: str
    status: str
    started_at: str
    heartbeat_at: str
    machine: str
    pid: int
    model: ModelRef | None = None
    method: str = ""
    workflow: str = ""
    namespace: str = ""
    process: str = ""
    completed_at: str | None = None
    cancel_reason: str | None = None
    initiated_by: str = ""
    is_here: bool = True

    @property
    def is_over(self) -> bool:
        """Whether nothing more will happen in it."""
        return self.status not in (RUNNING, SUSPENDED)

    @property
    def is_within_sight(self) -> bool:
        """Whether its process would be seen from here: same machine, boot and container."""
        own = new_record(1)
        return self.machine == own.hostname and (
            not self.process or _place_of(self.process) == _place_of(own.process)
        )

    @property
    def is_dead(self) -> bool:
        """Whether its process provably does not exist any more."""
        record = new_record(1)
        return is_dead(record._replace(hostname=self.machine, pid=self.pid, process=self.process))

    def to_json(self) -> dict[str, Any]:
        """Return what `runs list` shows."""
        members = {
            "id": self.id,
            "kind": self.kind,
            "status": self.status,
            "model": str(self.model) if self.model else None,
            "method": self.method or None,
            "workflow": self.workflow or None,
            "machine": self.machine,
            "isHere": self.is_here,
            "pid": self.pid,
            "startedAt": self.started_at,
            "heartbeatAt": self.heartbeat_at,
            "completedAt": self.completed_at,
            "durationMs": self.duration_ms,
            "cancelReason": self.cancel_reason,
            "initiatedBy": self.initiated_by or None,
        }
        return {name: value for name, value in members.items() if value is not None}

    @property
    def duration_ms(self) -> int | None:
        """How long it took, None as long as it goes on."""
        if self.completed_at is None:
            return None
        took = from_iso(self.completed_at) - from_iso(self.started_at)
        return round(took.total_seconds() * 1000)


class TrackedRun:
    """A run that is going on. `cancelled` is set when somebody asks it to end, for a `reason`."""

    def __init__(self, run_id: str) -> None:
        self.id = run_id
        self.cancelled = threading.Event()
        self.reason: str | None = None
        self.status: str | None = None

    def finish(self, status: str) -> None:
        """Say how it ended: succeeded, failed, cancelled or suspended."""
        self.status = _STATUSES.get(status, status)

    def cancel(self, reason: str) -> None:
        """Ask it to end."""
        self.reason = self.reason or reason
        self.cancelled.set()


class Tracker:
    """The runs of one repository."""

    def __init__(self, repo: Repo) -> None:
        self._repo = repo
        self._file = TrackerFile(f"{repo.config.local_dir}/{RUN_TRACKER}")

    # Being tracked ---------------------------------------------------------------------------

    @contextmanager
    def running(
        self,
        kind: str,
        *,
        run_id: str,
        model: ModelRef | None = None,
        method: str | None = None,
        workflow: str | None = None,
        initiated_by: str | None = None,
    ) -> Iterator[TrackedRun]:
        """Track a run for as long as the block takes; one that is suspended goes on under its id.

        A block that raises has failed, one that returns has succeeded, unless it said otherwise.
        """
        tracked = TrackedRun(run_id)
        now = to_iso(self._repo.clock())
        own = new_record(1)
        run = Run(
            run_id,
            kind,
            RUNNING,
            now,
            now,
            own.hostname,
            own.pid,
            model,
            method or "",
            workflow or "",
            self._repo.config.namespace,
            own.process,
            initiated_by=initiated_by or actor_name(),
        )
        if not self._tried(lambda: self._begin(run)):
            yield tracked
            return
        self._tried(self.reap)
        stop = threading.Event()
        thread = threading.Thread(
            target=self._accompany, args=(run, tracked, stop), name=f"run {run_id}", daemon=True
        )
        thread.start()
        try:
            yield tracked
        except BaseException as error:
            is_interrupt = not isinstance(error, Exception)
            tracked.status = tracked.status or (CANCELLED if is_interrupt else FAILED)
            raise
        finally:
            stop.set()
            thread.join(_PATIENCE)
            status = tracked.status or COMPLETED
            self._tried(lambda: self._complete(run_id, status, tracked.reason))
            self._file.close()

    def _begin(self, run: Run) -> None:
        oldest = to_iso(self._repo.clock() - KEPT)

        def work(db: sqlite3.Connection) -> None:
            ended = "status NOT IN ('running', 'suspended') AND completed_at < ?"
            db.execute(
                f"DELETE FROM {OURS} WHERE id IN (SELECT id FROM {ACTIVE} WHERE {ended})", [oldest]
            )
            db.execute(f"DELETE FROM {ACTIVE} WHERE {ended}", [oldest])
            db.execute(
                f"INSERT OR REPLACE INTO {ACTIVE} (id, run_kind, model_type, method_name,"
                " workflow_name, pid, hostname, started_at, heartbeat_at, status, initiated_by)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 'running', ?)",
                [
                    *(run.id, run.kind, run.model.type if run.model else None),
                    *(run.method or None, run.workflow or None, run.pid, run.machine),
                    *(run.started_at, run.heartbeat_at, run.initiated_by),
                ],
            )
            db.execute(
                f"INSERT OR REPLACE INTO {OURS} (id, namespace, model_id, process)"
                " VALUES (?, ?, ?, ?)",
                [run.id, run.namespace, run.model.id if run.model else None, run.process],
            )

        self._file.write(work)

    def _complete(self, run_id: str, status: str, reason: str | None) -> bool:
        """Say how a run ended, unless that was said before; return whether it was said now."""
        now = to_iso(self._repo.clock())
        ended = None if status == SUSPENDED else now
        sql = (
            f"UPDATE {ACTIVE} SET status = ?, completed_at = ?, heartbeat_at = ?,"
            " cancel_reason = coalesce(?, cancel_reason)"
            " WHERE id = ? AND status IN ('running', 'suspended')"
        )
        values = [status, ended, now, reason, run_id]
        return self._file.write(lambda db: db.execute(sql, values).rowcount) == 1

    def correct(self, run_id: str, status: str) -> None:
        """Say of a run that it ended otherwise than it said itself; that never fails."""
        sql = f"UPDATE {ACTIVE} SET status = ? WHERE id = ?"
        values = [_STATUSES.get(status, status), run_id]
        self._tried(lambda: self._file.write(lambda db: db.execute(sql, values)))
        self._file.close()

    def _tried(self, work: Any) -> bool:
        try:
            work()
        except (SwampstoreError, OSError, sqlite3.Error) as error:
            notice("the run tracker: %s", error)
            return False
        return True

    def _accompany(self, run: Run, tracked: TrackedRun, stop: threading.Event) -> None:
        """Tell that a run lives, here and to other machines, and hear whether it should end."""
        from swampstore.runs.control_area import Presence

        elsewhere = Presence(self._repo.config, run)
        beat = time.monotonic()
        try:
            while not stop.wait(_LOOK):
                is_due = time.monotonic() - beat >= HEARTBEAT
                if is_due:
                    beat = time.monotonic()
                try:
                    reason = self._look(run.id, beat=is_due)
                except (SwampstoreError, OSError, sqlite3.Error):
                    reason = None  # a run goes on without; the next look may be luckier
                reason = reason or elsewhere.keep_up(to_iso(self._repo.clock()))
                if reason is not None:
                    tracked.cancel(reason)
        finally:
            elsewhere.end()

    def _look(self, run_id: str, *, beat: bool) -> str | None:
        if beat:
            now = to_iso(self._repo.clock())
            sql = f"UPDATE {ACTIVE} SET heartbeat_at = ? WHERE id = ? AND status = 'running'"
            self._file.write(lambda db: db.execute(sql, [now, run_id]))
        sql = f"SELECT cancel_reason FROM {ACTIVE} WHERE id = ?"
        found = self._file.read(lambda db: db.execute(sql, [run_id]).fetchone())
        return found[0] if found else None

    # Looking ---------------------------------------------------------------------------------

    def list(self, *, everywhere: bool = False) -> Sequence[Run]:
        """Return the runs of this repository that go on or ended lately, the youngest first.

        `everywhere` asks the remote, if there is one, for those that go on elsewhere: a listing,
        and a request for each. Raises StoreError if it does not answer.
        """
        found = {run.id: run for run in self._rows()}
        if everywhere and (area := self._control_area()) is not None:
            with area:
                for run in area.runs(self._repo.clock()):
                    # One that waited here may have been gone on with elsewhere.
                    if run.id not in found or found[run.id].status == SUSPENDED:
                        found[run.id] = run
        return sorted(found.values(), key=lambda run: (run.started_at, run.id), reverse=True)

    def find(self, run_id: str, *, everywhere: bool = False) -> Run:
        """Return the run with this id, or whose id begins so; raise NotFoundError without one."""
        wanted = run_id.lower().replace("-", "")
        if len(wanted) < _SHORTEST_PREFIX:
            raise ValidationError(
                f"{run_id!r} is too short to tell runs apart",
                hint=f"Give at least {_SHORTEST_PREFIX} characters of the id.",
            )
        found = [
            run
            for run in self.list(everywhere=everywhere)
            if run.id.lower().replace("-", "").startswith(wanted)
        ]
        if len(found) > 1:
            raise ValidationError(
                f"{len(found)} runs have an id that begins with {run_id!r}:"
                f" {', '.join(run.id for run in found[:12])}",
                hint="Give more of the id.",
            )
        if not found:
            raise NotFoundError(f"no run {run_id!r} is known", hint="See `swampstore runs list`.")
        return found[0]

    def _rows(self) -> Sequence[Run]:
        if not os.path.exists(self._file.path):
            return []
        sql = (
            "SELECT a.id, a.run_kind, a.status, a.started_at, a.heartbeat_at, a.hostname, a.pid,"
            " a.model_type, o.model_id, a.method_name, a.workflow_name, o.namespace, o.process,"
            " a.completed_at, a.cancel_reason, a.initiated_by"
            f" FROM {ACTIVE} a LEFT JOIN {OURS} o ON o.id = a.id"
        )

        def work(db: sqlite3.Connection) -> list[tuple[Any, ...]]:
            return db.execute(sql).fetchall()

        try:
            rows = self._file.read(work)
        except DiskError:
            # To look is possible where nothing can be written: read-only, or full.
            rows = self._file.view(work) or []
        runs = [_run(row) for row in rows]
        # Of another client's runs nobody says the namespace; the table is this repository's.
        return [
            run for run, row in zip(runs, rows, strict=True) if row[11] in (None, self._namespace)
        ]

    @property
    def _namespace(self) -> str:
        return self._repo.config.namespace

    def _control_area(self) -> ControlArea | None:
        if self._repo.config.remote is None or self._repo.config.is_offline:
            return None
        from swampstore.runs.control_area import open_control_area

        return open_control_area(self._repo.config)

    # Ending ----------------------------------------------------------------------------------

    def cancel(self, run_id: str, reason: str = "") -> Run:
        """Ask a run to end, wherever it runs; return it as it was then.

        It ends by itself, as soon as it hears of it: at once on this machine, within some seconds
        elsewhere. One that waits for somebody has nobody to hear it, and is over when this returns.
        Raises NotFoundError if no such run is known, ValidationError if it is over.
        """
        run = self.find(run_id, everywhere=True)
        if run.is_over:
            raise ValidationError(
                f"the run {run.id} is over: it is {run.status}", hint="There is nothing to cancel."
            )
        told = reason or f"cancelled by {actor_name()}"
        if run.is_here:
            self._ask_to_end(run.id, told)
            if run.status == SUSPENDED and (ended := self._give_up(run.id, told)) != CANCELLED:
                raise ValidationError(
                    f"the run {run.id} is over: it is {ended}", hint="There is nothing to cancel."
                )
        elif (area := self._control_area()) is not None:
            with area:
                area.cancel(run.id, told, to_iso(self._repo.clock()))
        return run

    def _ask_to_end(self, run_id: str, reason: str) -> None:
        sql = (
            f"UPDATE {ACTIVE} SET cancel_reason = ? WHERE id = ?"
            " AND status IN ('running', 'suspended')"
        )
        self._file.write(lambda db: db.execute(sql, [reason, run_id]))

    def _give_up(self, run_id: str, reason: str) -> str:
        """End a run that waits for somebody, with the runs in it that do; return how it ended."""
        from swampstore.runs.errors import NotResumableError, RunNotFoundError
        from swampstore.runs.workflow.approval import give_up

        try:
            record = give_up(self._repo, run_id, reason)
        except RunNotFoundError:  # then nobody can go on with it either
            self._complete(run_id, CANCELLED, reason)
            return CANCELLED
        self._complete(run_id, _STATUSES.get(record.status, record.status), reason)
        waiting = [step.child for _, step in record.steps() if step.child and not step.is_over]
        for child in waiting if record.status == CANCELLED else ():
            self._ask_to_end(child, reason)
            with suppress(NotResumableError):  # one that goes on hears of it
                self._give_up(child, reason)
        return record.status

    def dead(self) -> Sequence[Run]:
        """Return the runs that say they go on, and whose process is gone.

        On this machine the process decides. A run of another machine that shares the directory
        counts as dead when it was not heard of for long enough.
        """
        before = to_iso(self._repo.clock() - STALE)
        return [
            run
            for run in self._rows()
            if run.status == RUNNING
            and (
                (run.heartbeat_at < before or run.process) and run.is_dead
                if run.is_within_sight
                else run.heartbeat_at < before
            )
        ]

    def reap(self) -> Sequence[Run]:
        """Mark the runs that died, here and in their records; return those marked by this call.

        Where nothing can be written this does nothing; a process that can write does it later.
        """
        if not self.dead() or not os.access(os.path.dirname(self._file.path), os.W_OK):
            return []
        from swampstore.runs.reaping import mark_dead

        reaped = []
        with self._reaping():
            for run in self.dead():
                mark_dead(self._repo, run)
                reason = run.cancel_reason or DIED
                status = CANCELLED if run.cancel_reason else FAILED
                if self._complete(run.id, status, reason):
                    reaped.append(run._replace(status=status, cancel_reason=reason))
        if reaped and (area := self._control_area()) is not None:
            with area:
                area.remove([run.id for run in reaped])
        return reaped

    def _reaping(self) -> AbstractContextManager[None]:
        """Let one process at a time leave records for the dead, so that each gets one."""
        return alone(f"{self._file.path}-reaping")

    def sweep(self) -> None:
        """Forget what lost machines left on the remote a week ago; never raises."""
        try:
            if (area := self._control_area()) is not None:
                with area:
                    area.sweep(self._repo.clock() - KEPT)
        except SwampstoreError as error:
            notice("what lost machines left on the remote stays: %s", error.message)

    def close(self) -> None:
        """Release the file."""
        self._file.close()


def _place_of(process: str) -> str:
    """Return what is said of where a process is, without its number and its start."""
    return process.rsplit(":", 2)[0]


def _run(row: tuple[Any, ...]) -> Run:
    model = ModelRef(row[7], row[8]) if row[7] and row[8] else None
    status = SUCCEEDED if row[2] == COMPLETED else row[2]
    return Run(
        *(row[0], row[1], status, row[3], row[4], row[5], row[6]),
        model,
        *(row[9] or "", row[10] or "", row[11] or "", row[12] or ""),
        *(row[13], row[14], row[15] or ""),
        is_here=True,
    )
