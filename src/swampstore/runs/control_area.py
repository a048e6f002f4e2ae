"""What runs on other machines, through objects of the remote that no sync carries.

    _control/runs/{namespace or _}/{run id}.json           written by the machine that runs it
    _control/runs/{namespace or _}/{run id}.cancel.json    written by who wants it to end

A run shows itself there once it lasts for some seconds, so that a short one costs no request, and
takes itself away when it ends. The remote may be out of reach: then nobody elsewhere sees the run.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from swampstore.clock import from_iso, to_iso
from swampstore.config import Config
from swampstore.errors import SwampstoreError
from swampstore.layout import ModelRef
from swampstore.stores.errors import ObjectNotFoundError, StoreError

if TYPE_CHECKING:
    from swampstore.runs.tracker import Run
    from swampstore.stores.protocol import Store

# A run that is over sooner is never seen elsewhere.
SHOWN_AFTER = 3.0
_HEARTBEAT = 30.0
_LOOK = 5.0
_STALE = timedelta(seconds=90)
LOST = "lost"
_CANCEL = ".cancel.json"


class ControlArea:
    """The runs of one namespace on one remote. Use it in a `with` block."""

    def __init__(self, store: Store, namespace: str) -> None:
        self._store = store
        self._prefix = f"_control/runs/{namespace or '_'}/"

    def show(self, run: Run, heartbeat_at: str) -> None:
        """Write that a run goes on."""
        document = run.to_json() | {"heartbeatAt": heartbeat_at, "process": run.process}
        self._store.put(self._key(run.id), json.dumps(document, indent=2).encode())

    def remove(self, run_ids: Iterable[str]) -> None:
        """Take runs away that are over; a remote that does not answer keeps them for now."""
        for run_id in run_ids:
            try:
                self._store.delete(self._key(run_id))
                self._store.delete(f"{self._prefix}{run_id}{_CANCEL}")
            except StoreError:
                return

    def cancel(self, run_id: str, reason: str, at: str) -> None:
        """Ask a run to end, on whichever machine it is."""
        document = {"reason": reason, "at": at}
        self._store.put(f"{self._prefix}{run_id}{_CANCEL}", json.dumps(document).encode())

    def cancel_reason(self, run_id: str) -> str | None:
        """Return why a run should end, None if it may go on."""
        try:
            document = json.loads(self._store.get(f"{self._prefix}{run_id}{_CANCEL}").data)
            return str(document["reason"])
        except ObjectNotFoundError:
            return None
        except (ValueError, KeyError, TypeError):
            return "cancelled"

    def runs(self, now: datetime) -> Iterator[Run]:
        """Yield the runs that are shown, those of other machines that were lost as such."""
        for info in self._store.list(self._prefix):
            if info.key.endswith(_CANCEL):
                continue
            try:
                run = _decode(self._store.get(info.key).data, now)
            except (ObjectNotFoundError, SwampstoreError, ValueError, KeyError, TypeError):
                continue  # it ended meanwhile, or makes no sense
            yield run

    def sweep(self, before: datetime) -> int:
        """Remove what machines left that were not heard of since a time; return how many."""
        old = [info.key for info in self._store.list(self._prefix) if info.last_modified < before]
        for key in old:
            self._store.delete(key)
        return len(old)

    def _key(self, run_id: str) -> str:
        return f"{self._prefix}{run_id}.json"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._store.close()


def open_control_area(config: Config) -> ControlArea:
    """Open the control area of a remote, with connections of its own: any thread may use it."""
    from swampstore.stores.config import store_config
    from swampstore.sync.opening import open_remote

    remote = config.remote
    assert remote is not None
    store, _ = open_remote(config, store_config(remote.target, remote.config))
    return ControlArea(store, config.namespace)


def _decode(data: bytes, now: datetime) -> Run:
    from swampstore.runs.tracker import RUNNING, Run

    raw: dict[str, Any] = json.loads(data)
    heartbeat_at = to_iso(from_iso(raw["heartbeatAt"]))
    is_lost = from_iso(heartbeat_at) < now - _STALE
    return Run(
        id=str(raw["id"]),
        kind=str(raw["kind"]),
        status=LOST if is_lost else RUNNING,
        started_at=to_iso(from_iso(raw["startedAt"])),
        heartbeat_at=heartbeat_at,
        machine=str(raw["machine"]),
        pid=int(raw["pid"]),
        model=ModelRef.parse(raw["model"]) if raw.get("model") else None,
        method=str(raw.get("method") or ""),
        workflow=str(raw.get("workflow") or ""),
        process=str(raw.get("process") or ""),
        initiated_by=str(raw.get("initiatedBy") or ""),
        is_here=False,
    )


class Presence:
    """One run of this machine as others see it. Belongs to the thread that accompanies the run."""

    def __init__(self, config: Config, run: Run) -> None:
        self._config = config
        self._run = run
        self._began = time.monotonic()
        self._shown_at: float | None = None
        self._looked_at = 0.0
        self._area: ControlArea | None = None

    def keep_up(self, now: str) -> str | None:
        """Show that the run goes on, if that is due; return why it should end, if it should."""
        remote, clock = self._config.remote, time.monotonic()
        if remote is None or self._config.is_offline or clock - self._began < SHOWN_AFTER:
            return None
        if clock - self._looked_at < _LOOK:
            return None
        self._looked_at = clock
        try:
            self._area = self._area or open_control_area(self._config)
            if self._shown_at is None or clock - self._shown_at >= _HEARTBEAT:
                self._area.show(self._run, now)
                self._shown_at = clock
            return self._area.cancel_reason(self._run.id)
        except SwampstoreError:
            return None  # nobody elsewhere sees it for now, and it goes on

    def end(self) -> None:
        """Take the run away."""
        if self._area is None:
            return
        with self._area:
            if self._shown_at is not None:
                self._area.remove([self._run.id])
