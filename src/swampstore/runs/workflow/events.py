"""The events of a run while it goes on: for a person, for a program, and for its log."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from swampstore.clock import to_iso

if TYPE_CHECKING:
    from swampstore.clock import Clock

RUN_STARTED, RUN_ENDED = "runStarted", "runEnded"
JOB_STARTED, JOB_ENDED = "jobStarted", "jobEnded"
STEP_STARTED, STEP_ENDED, STEP_WAITS = "stepStarted", "stepEnded", "stepWaits"
ATTEMPT_FAILED, STEP_ADOPTED, TAKEN_BACK = "attemptFailed", "stepAdopted", "takenBack"
NOT_PUSHED = "notPushed"


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened in a run; `job` and `step` are empty if it is not about one."""

    kind: str
    at: str
    run: str
    workflow: str
    job: str = ""
    step: str = ""
    status: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def place(self) -> str:
        """The job, or the job and the step, for people."""
        return f"{self.job}/{self.step}" if self.step else self.job or self.workflow

    def to_json(self) -> dict[str, Any]:
        """Return its members; those that are empty are left out."""
        members = {
            "event": self.kind,
            "at": self.at,
            "runId": self.run,
            "workflow": self.workflow,
            "job": self.job,
            "step": self.step,
            "status": self.status,
        }
        return {key: value for key, value in members.items() if value} | dict(self.details)

    def __str__(self) -> str:
        told = {
            RUN_STARTED: f"run {self.run} of {self.workflow} started",
            RUN_ENDED: f"run {self.run} of {self.workflow} {self.status}",
            JOB_STARTED: f"{self.place}: started",
            STEP_STARTED: f"{self.place}: started",
            STEP_WAITS: f"{self.place}: waits for approval: {self.details.get('prompt', '')}",
            STEP_ADOPTED: f"{self.place}: had finished before the run was interrupted",
            TAKEN_BACK: f"{self.place}: took back {self.details.get('versions', '')} version(s)"
            " of an attempt that was interrupted",
            ATTEMPT_FAILED: f"{self.place}: attempt {self.details.get('attempt')} failed, next one"
            f" in {self.details.get('pause')} s",
            NOT_PUSHED: f"{self.place}: saved here, not pushed",
        }.get(self.kind, f"{self.place}: {self.status}")
        reason = self.details.get("error") or self.details.get("reason")
        return f"{told}: {reason}" if reason else told


class WorkflowListener:
    """Hears what a run does, from several threads. This one does nothing with it."""

    def event(self, event: Event) -> None:
        """Hear that something happened."""

    def out(self, event: Event, stream: str, data: bytes) -> None:
        """Hear what the command of a step writes, without secrets; the event says which step."""


class RunLog:
    """The log of a run: a line for each event and for each line that a step wrote.

    It is a file of this machine. That it cannot be written is no reason to stop a run.
    """

    def __init__(self, path: str, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._lock = threading.Lock()
        self._rest: dict[str, bytes] = {}

    def event(self, event: Event) -> None:
        """Write a line about an event."""
        self._write(f"{event.at} {event}\n".encode(errors="backslashreplace"))

    def out(self, event: Event, data: bytes) -> None:
        """Write the lines that a step has finished; the rest waits for its end."""
        with self._lock:
            *lines, rest = (self._rest.get(event.place, b"") + data).split(b"\n")
            self._rest[event.place] = rest
        if lines:
            self._lines(event, lines)

    def end_of(self, event: Event) -> None:
        """Write what a step has left without an end of line."""
        with self._lock:
            rest = self._rest.pop(event.place, b"")
        if rest:
            self._lines(event, [rest])

    def _lines(self, event: Event, lines: list[bytes]) -> None:
        head = f"{to_iso(self._clock())} {event.place} | ".encode(errors="backslashreplace")
        self._write(b"".join(head + line + b"\n" for line in lines))

    def _write(self, data: bytes) -> None:
        try:
            os.makedirs(os.path.dirname(self._path), exist_ok=True)
            with self._lock, open(self._path, "ab") as file:
                file.write(data)
        except OSError:
            return
