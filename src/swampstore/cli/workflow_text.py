"""How a workflow run looks: a live tree on a terminal, a line per event elsewhere, JSON lines."""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Self

import click

from swampstore.cli.progress import can_move
from swampstore.cli.rendering import printable, seconds_text
from swampstore.cli.row_formats import terminal_width
from swampstore.clock import from_iso
from swampstore.runs.workflow import events
from swampstore.runs.workflow.events import Event, WorkflowListener

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

    from swampstore.runs.workflow.definition import Workflow
    from swampstore.runs.workflow.record import RunRecord

_SIGNS = {
    "succeeded": "✓",
    "failed": "✗",
    "running": "●",
    "skipped": "↷",
    "waiting_approval": "?",
    "pending": "○",
}
_PLAIN = {"✓": "+", "✗": "x", "●": "*", "↷": "-", "○": "."}
_COLOURS = {"succeeded": "green", "failed": "red", "running": "cyan", "waiting_approval": "yellow"}
# So many lines a job may have in the live tree; the others are counted.
_MOST_LINES = 12
_WIDE = 100_000


def sign_of(status: str) -> str:
    """Return the sign of a status, in characters that the terminal knows."""
    sign = _SIGNS.get(status, " ")
    encoding = (sys.stdout.encoding or "ascii") if sys.stdout is not None else "ascii"
    try:
        sign.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return _PLAIN.get(sign, sign)
    return sign


def time_between(start: str | None, end: str | None) -> str:
    """Write how long something took; nothing if it did not end."""
    if not start or not end:
        return ""
    return seconds_text((from_iso(end) - from_iso(start)).total_seconds())


def run_text(record: RunRecord) -> str:
    """Return a run as a tree of its jobs and steps; on a terminal no line is wider than it."""
    took = time_between(record.started_at, record.completed_at)
    lines = [f"{record.workflow_name} {record.id} {record.status}{f' in {took}' if took else ''}"]
    for job in record.jobs:
        lines.append(_line(1, job.status, job.name, time_between(job.started_at, job.completed_at)))
        lines += [
            _line(
                2,
                step.status,
                step.name,
                time_between(step.started_at, step.completed_at),
                _remark(step),
            )
            for step in job.steps
        ]
    return "\n".join(map(_cut, lines))


def _line(depth: int, status: str, name: str, took: str, remark: str = "") -> str:
    told = "" if status in ("succeeded", "pending") else f" {status}"
    parts = [f"{'  ' * depth}{sign_of(status)} {printable(name)}{told}", took, remark]
    return "  ".join(part for part in parts if part)


def _remark(step: Any) -> str:
    if step.status == "waiting_approval":
        return printable(step.approval_prompt or "")
    if step.status == "failed":
        allowed = "allowed, " if step.allowed_failure else ""
        return printable(f"{allowed}{step.error or ''}")
    return printable(step.reason or "") if step.status == "skipped" else ""


def _cut(line: str) -> str:
    """Cut a line that a terminal would wrap."""
    columns = terminal_width()
    if columns is None:
        return line
    width = max(columns - 1, 20)
    return line if len(line) <= width else f"{line[: width - 3]}..."


def plan_text(document: dict[str, Any]) -> str:
    """Return a plan as text: jobs by level, and in them steps by level."""
    lines = [f"{document['workflowName']} would run:"]
    for job in document["jobs"]:
        after = _after(job["dependsOn"])
        lines.append(f"  {job['level']}. {printable(job['jobName'])}{after}")
        for step in job["steps"]:
            what = step.get("model") or step.get("workflow") or ""
            what = f"{what} {step['method']}" if step.get("method") else what
            lines.append(
                f"     {step['level']}. {printable(step['stepName'])}: {step['type']}"
                f" {printable(what)}".rstrip()
                + _after(step["dependsOn"])
            )
            lines += _details(step)
    lines += [f"problem: {printable(problem)}" for problem in document["problems"]]
    return "\n".join(lines)


def _after(depends_on: dict[str, str]) -> str:
    told = [
        name if condition == "succeeded" else f"{name} ({condition})"
        for name, condition in depends_on.items()
    ]
    return f", after {', '.join(map(printable, told))}" if told else ""


def _details(step: dict[str, Any]) -> list[str]:
    pad = " " * 11
    lines = []
    if "expansions" in step:
        names = step["expansions"]
        shown = ", ".join(map(printable, names[:8])) + (", ..." if len(names) > 8 else "")
        lines.append(f"{pad}{len(names)} step(s): {shown}" if names else f"{pad}no items")
    elif "forEach" in step:
        lines.append(f"{pad}one for each of {printable(step['forEach'])}, known when it begins")
    if "guard" in step:
        lines.append(f"{pad}unless {printable(step['guard'])}")
    return lines


# While it goes on --------------------------------------------------------------------------


@contextlib.contextmanager
def listening(
    workflow: Workflow, *, as_json: bool, show_output: bool
) -> Iterator[WorkflowListener]:
    """Yield what tells, on standard error, how a run goes on."""
    if as_json:
        yield JsonLines(show_output=show_output)
    elif can_move() and not show_output:
        with LiveTree(workflow) as tree:
            yield tree
    else:
        yield Lines(show_output=show_output)


class JsonLines(WorkflowListener):
    """One JSON object per line for each event, and if wanted for each piece of output."""

    def __init__(self, *, show_output: bool) -> None:
        self._show_output = show_output
        self._lock = threading.Lock()

    def event(self, event: Event) -> None:
        """Write an event."""
        self._write(event.to_json())

    def out(self, event: Event, stream: str, data: bytes) -> None:
        """Write what a step wrote."""
        if self._show_output:
            members = {"event": "output", "runId": event.run, "job": event.job, "step": event.step}
            self._write({**members, "stream": stream, "text": data.decode(errors="replace")})

    def _write(self, document: dict[str, Any]) -> None:
        with self._lock:
            click.echo(json.dumps(document, ensure_ascii=False, default=str), err=True)


class Lines(WorkflowListener):
    """One line for each event, and if wanted for each line of output."""

    def __init__(self, *, show_output: bool) -> None:
        self._show_output = show_output
        self._lock = threading.Lock()
        self._rest: dict[str, bytes] = {}

    def event(self, event: Event) -> None:
        """Write an event."""
        with self._lock:
            if rest := self._rest.pop(event.place, b""):
                self._line(event, rest)
            click.echo(printable(str(event)), err=True)

    def out(self, event: Event, stream: str, data: bytes) -> None:
        """Write the lines that a step has finished."""
        del stream
        if not self._show_output:
            return
        with self._lock:
            *lines, self._rest[event.place] = (self._rest.get(event.place, b"") + data).split(b"\n")
            for line in lines:
                self._line(event, line)

    @staticmethod
    def _line(event: Event, line: bytes) -> None:
        click.echo(printable(f"{event.place} | {line.decode(errors='replace')}"), err=True)


class _Node:
    """A job or a step in the live tree."""

    def __init__(self, status: str = "pending") -> None:
        self.status = status
        self.began: float | None = None
        self.took: float | None = None
        self.remark = ""

    def line(self, depth: int, name: str) -> Any:
        from rich.text import Text

        seconds = self.took
        if seconds is None and self.began is not None:
            seconds = time.monotonic() - self.began
        told = "" if self.status in ("succeeded", "pending") else f" {self.status}"
        text = Text(no_wrap=True, overflow="ellipsis")
        text.append(
            f"{'  ' * depth}{sign_of(self.status)} ", style=_COLOURS.get(self.status, "dim")
        )
        text.append(f"{printable(name)}{told}")
        if seconds is not None:
            text.append(f"  {seconds_text(seconds)}", style="dim")
        if self.remark:
            text.append(f"  {printable(self.remark)}", style="dim")
        return text


class LiveTree(WorkflowListener):
    """The jobs and steps on a terminal, redrawn as they change; gone when the run ends."""

    def __init__(self, workflow: Workflow) -> None:
        self._name = workflow.name
        self._lock = threading.Lock()
        self._jobs = {job.name: _Node() for job in workflow.jobs}
        self._steps: dict[str, dict[str, _Node]] = {
            job.name: {step.name: _Node() for step in job.steps if step.for_each is None}
            for job in workflow.jobs
        }
        self._live: Live | None = None

    def __enter__(self) -> Self:
        from rich.console import Console
        from rich.live import Live

        console = Console(file=sys.stderr, highlight=False, emoji=False)
        self._live = Live(
            get_renderable=self._drawn,
            console=console,
            transient=True,
            refresh_per_second=8,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._live.stop()

    def event(self, event: Event) -> None:
        """Change what an event is about."""
        if event.workflow != self._name or not event.job:
            return
        with self._lock:
            node = self._node(event)
            match event.kind:
                case events.STEP_STARTED | events.JOB_STARTED:
                    node.status, node.began = "running", time.monotonic()
                case events.STEP_ENDED | events.JOB_ENDED | events.STEP_WAITS:
                    node.status = event.status
                    if node.began is not None:
                        node.took = time.monotonic() - node.began
                    details = event.details
                    node.remark = str(details.get("error") or details.get("prompt") or "")
                case events.ATTEMPT_FAILED:
                    node.remark = f"attempt {event.details.get('attempt')} failed"

    def out(self, event: Event, stream: str, data: bytes) -> None:
        """Show the last line that a step wrote beside it."""
        del stream
        if lines := data.decode(errors="replace").split("\n"):
            told = [line.strip() for line in lines if line.strip()]
            if told and event.workflow == self._name:
                with self._lock:
                    self._node(event).remark = told[-1]

    def _node(self, event: Event) -> _Node:
        if not event.step:
            return self._jobs.setdefault(event.job, _Node())
        return self._steps.setdefault(event.job, {}).setdefault(event.step, _Node())

    def _drawn(self) -> RenderableType:
        from rich.console import Group
        from rich.text import Text

        with self._lock:
            lines: list[RenderableType] = [Text(self._name, no_wrap=True, overflow="ellipsis")]
            for name, job in self._jobs.items():
                lines.append(job.line(1, name))
                lines += self._step_lines(self._steps.get(name, {}))
            return Group(*lines)

    @staticmethod
    def _step_lines(steps: dict[str, _Node]) -> list[RenderableType]:
        from rich.text import Text

        if len(steps) <= _MOST_LINES:
            return [node.line(2, name) for name, node in steps.items()]
        telling = ("running", "failed", "waiting_approval")
        shown = [(name, node) for name, node in steps.items() if node.status in telling]
        lines: list[RenderableType] = [node.line(2, name) for name, node in shown[:_MOST_LINES]]
        counts: dict[str, int] = {}
        for node in steps.values():
            counts[node.status] = counts.get(node.status, 0) + 1
        told = ", ".join(f"{count} {status}" for status, count in counts.items())
        return [*lines, Text(f"    {told}", no_wrap=True, overflow="ellipsis")]
