"""The record of a workflow run: where the run is, written as it goes.

`workflow-runs/{workflow id}/workflow-run-{run id}.yaml`. Members that we do not know survive. Those
that `RunRecord` and `StepRecord` call our own are ignored by other clients.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from swampstore import yaml_dialect
from swampstore.errors import SwampstoreError, ValidationError, YamlError
from swampstore.layout import (
    LOCAL_DIR,
    WORKFLOW_RUN_REL,
    WORKFLOW_RUNS,
    workflow_run_of,
    workflow_run_rel,
)
from swampstore.notices import notice
from swampstore.runs.errors import RunNotFoundError
from swampstore.runs.workflow.conditions import ENDED, FAILED, SUCCEEDED

if TYPE_CHECKING:
    from swampstore.repo import Repo

PENDING, RUNNING, WAITING = "pending", "running", "waiting_approval"
SUSPENDED, CANCELLED = "suspended", "cancelled"
INTERRUPT_REASON, CANCEL_REASON = "interrupt_reason", "cancel_reason"
_SHORTEST_PREFIX = 3
_STEP = (
    ("status", "status"),
    ("started_at", "startedAt"),
    ("completed_at", "completedAt"),
    ("output", "output"),
    ("data_artifacts", "dataArtifacts"),
    ("error", "error"),
    ("allowed_failure", "allowedFailure"),
    ("approval_decision", "approvalDecision"),
    ("approval_prompt", "approvalPrompt"),
    ("assert_result", "assertResult"),
    ("template", "template"),
    ("item", "item"),
    ("attempt", "attempt"),
    ("outputs", "outputs"),
    ("reason", "reason"),
    ("model", "model"),
    ("child", "childRunId"),
    ("is_reaction", "isReaction"),
)
_RUN = (
    ("tags", "tags"),
    ("pid", "pid"),
    ("log_file", "logFile"),
    ("workflow_data_artifacts", "workflowDataArtifacts"),
    ("inputs", "inputs"),
    ("resume_inputs", "resumeInputs"),
    ("host", "host"),
    ("workflow_hash", "workflowHash"),
    ("parent", "parent"),
)
_DERIVED = ("failedStep", "failureReason", "stepProgress")


@dataclass(slots=True)
class StepRecord:
    """What has become of one step.

    Of our own: `template` and `item` of an expansion, `attempt` (how often it was tried),
    `outputs` (ids of the output records that are accounted for), `reason` (why it was skipped or
    stopped), `model` (its address, from the moment it began), `child` (the run of a nested
    workflow), `is_reaction` (it ran because another one failed).
    """

    name: str
    status: str = PENDING
    started_at: str | None = None
    completed_at: str | None = None
    output: dict[str, Any] | None = None
    data_artifacts: list[Any] | None = None
    error: str | None = None
    allowed_failure: bool | None = None
    approval_decision: dict[str, Any] | None = None
    approval_prompt: str | None = None
    assert_result: dict[str, Any] | None = None
    template: str | None = None
    item: Any = None
    attempt: int | None = None
    outputs: list[str] | None = None
    reason: str | None = None
    model: str | None = None
    child: str | None = None
    is_reaction: bool | None = None
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def is_over(self) -> bool:
        """Whether it ended, in any way."""
        return self.status in ENDED

    @property
    def has_failed(self) -> bool:
        """Whether it failed, and was not allowed to."""
        return self.status == FAILED and not self.allowed_failure

    def start_over(self) -> None:
        """Forget how it went; what its attempts have left is still known by their outputs."""
        fresh = StepRecord(
            self.name,
            template=self.template,
            item=self.item,
            outputs=self.outputs,
            model=self.model,
            child=self.child,
            extra=self.extra,
        )
        for name in self.__dataclass_fields__:
            setattr(self, name, getattr(fresh, name))

    def to_json(self) -> dict[str, Any]:
        """Return its members in their order."""
        members = {key: getattr(self, name) for name, key in _STEP}
        return {"stepName": self.name, **_present(members), **self.extra}


@dataclass(slots=True)
class JobRecord:
    """What has become of one job."""

    name: str
    steps: list[StepRecord]
    status: str = PENDING
    started_at: str | None = None
    completed_at: str | None = None
    # Templates whose forEach was evaluated, as those may have no expansions at all.
    expanded: list[str] | None = None
    extra: dict[str, Any] = field(default_factory=dict)

    def step(self, name: str) -> StepRecord:
        """Return the step of this name; raise KeyError without one."""
        for step in self.steps:
            if step.name == name:
                return step
        raise KeyError(name)

    def of_template(self, template: str) -> list[StepRecord]:
        """Return the step of this name, or the expansions of a template of this name."""
        return [step for step in self.steps if (step.template or step.name) == template]

    def to_json(self) -> dict[str, Any]:
        """Return its members in their order."""
        members = {
            "jobName": self.name,
            "status": self.status,
            "startedAt": self.started_at,
            "completedAt": self.completed_at,
            "steps": [step.to_json() for step in self.steps],
            "expanded": self.expanded or None,
        }
        return {**_present(members), **self.extra}


@dataclass(slots=True)
class RunRecord:
    """One run of a workflow. Times are as files write them.

    Of our own: `host`, `workflow_hash`, and `parent`, the run and step that this one is part of.
    `seen` is no member, but what the file held when the record was read or written last.
    """

    id: str
    workflow_id: str
    workflow_name: str
    started_at: str
    jobs: list[JobRecord]
    status: str = PENDING
    completed_at: str | None = None
    tags: dict[str, str] | None = None
    pid: int | None = None
    log_file: str | None = None
    workflow_data_artifacts: list[Any] | None = None
    inputs: dict[str, Any] | None = None
    resume_inputs: list[str] | None = None
    host: str | None = None
    workflow_hash: str | None = None
    parent: dict[str, Any] | None = None
    extra: dict[str, Any] = field(default_factory=dict)
    seen: bytes | None = field(default=None, repr=False, compare=False)

    @property
    def rel(self) -> str:
        """Where it is in the datastore."""
        return WORKFLOW_RUN_REL.format(self.workflow_id, self.id)

    @property
    def is_over(self) -> bool:
        """Whether it ended, in any way."""
        return self.status in (SUCCEEDED, FAILED, CANCELLED)

    def job(self, name: str) -> JobRecord:
        """Return the job of this name; raise KeyError without one."""
        for job in self.jobs:
            if job.name == name:
                return job
        raise KeyError(name)

    def steps(self) -> Iterator[tuple[JobRecord, StepRecord]]:
        """Yield each step with its job."""
        for job in self.jobs:
            for step in job.steps:
                yield job, step

    @property
    def failed_step(self) -> StepRecord | None:
        """The first step that failed and was not allowed to."""
        return next((step for _, step in self.steps() if step.has_failed), None)

    @property
    def progress(self) -> dict[str, int]:
        """How many steps ended, and how many there are."""
        steps = [step for _, step in self.steps()]
        return {"completed": sum(step.is_over for step in steps), "total": len(steps)}

    def to_json(self) -> dict[str, Any]:
        """Return its members in their order, the derived ones last."""
        failed = self.failed_step
        members: dict[str, Any] = {
            "id": self.id,
            "workflowId": self.workflow_id,
            "workflowName": self.workflow_name,
            "status": self.status,
            "startedAt": self.started_at,
            "completedAt": self.completed_at,
            "jobs": [job.to_json() for job in self.jobs],
        }
        members |= {key: getattr(self, name) or None for name, key in _RUN}
        members |= {
            "failedStep": failed.name if failed else None,
            "failureReason": failed.error if failed else None,
            "stepProgress": self.progress,
        }
        return {**_present(members), **self.extra}


def _present(members: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in members.items() if value is not None}


def encode(record: RunRecord) -> bytes:
    """Return the bytes of a record."""
    return yaml_dialect.dump(record.to_json()).encode()


def decode(data: bytes, what: str) -> RunRecord:
    """Read a record; raise YamlError naming what is wrong with it."""
    raw = yaml_dialect.load_mapping(data, what=what)
    jobs = [_job(one, what) for one in _list(raw, "jobs", what)]
    of_run = dict(_RUN)
    known = {"id", "workflowId", "workflowName", "status", "startedAt", "completedAt", "jobs"}
    return RunRecord(
        id=_text(raw, "id", what),
        workflow_id=_text(raw, "workflowId", what),
        workflow_name=_text(raw, "workflowName", what),
        status=_text(raw, "status", what),
        started_at=_text(raw, "startedAt", what),
        completed_at=raw.get("completedAt"),
        jobs=jobs,
        extra=_others(raw, {*known, *of_run.values(), *_DERIVED}),
        **{name: raw.get(key) for name, key in _RUN},
    )


def _job(raw: Any, what: str) -> JobRecord:
    if not isinstance(raw, dict):
        raise _wrong(what, "jobs")
    known = {"jobName", "status", "startedAt", "completedAt", "steps", "expanded"}
    return JobRecord(
        name=_text(raw, "jobName", what),
        status=_text(raw, "status", what),
        started_at=raw.get("startedAt"),
        completed_at=raw.get("completedAt"),
        steps=[_step(one, what) for one in _list(raw, "steps", what)],
        expanded=raw.get("expanded"),
        extra=_others(raw, known),
    )


def _step(raw: Any, what: str) -> StepRecord:
    if not isinstance(raw, dict):
        raise _wrong(what, "steps")
    _text(raw, "status", what)
    members: dict[str, Any] = {name: raw.get(key) for name, key in _STEP}
    known = {"stepName", *(key for _, key in _STEP)}
    return StepRecord(name=_text(raw, "stepName", what), **members, extra=_others(raw, known))


def _others(raw: Mapping[str, Any], known: set[str]) -> dict[str, Any]:
    return {key: value for key, value in raw.items() if key not in known}


def _text(raw: Mapping[str, Any], key: str, what: str) -> str:
    value = raw.get(key)
    if not isinstance(value, str) or not value:
        raise _wrong(what, key)
    return value


def _list(raw: Mapping[str, Any], key: str, what: str) -> list[Any]:
    value = raw.get(key) or []
    if not isinstance(value, list):
        raise _wrong(what, key)
    return value


def _wrong(what: str, key: str) -> YamlError:
    return YamlError(
        f"{what}: {key} is missing, or not what it should be", hint="Repair or remove the record."
    )


class RunRecords:
    """The records of one repository."""

    def __init__(self, repo: Repo) -> None:
        self._tree = repo.tree

    def save(self, record: RunRecord) -> None:
        """Replace the record in one step, durably; the next push takes it along."""
        self.write(record, encode(record))

    def write(self, record: RunRecord, data: bytes) -> None:
        """Replace a record by these bytes, in one step, durably."""
        self._tree.replace_file(record.rel, data)
        record.seen = data

    def read(self, rel: str) -> RunRecord | None:
        """Read one record, None if it is gone; raise YamlError if it makes no sense."""
        data = self._tree.read(rel)
        if data is None:
            return None
        record = decode(data, rel)
        record.seen = data
        return record

    def is_as_seen(self, record: RunRecord) -> bool:
        """Whether nobody has changed the file of a record since it was read or written here."""
        return self._tree.read(record.rel) == record.seen

    def of(self, workflow_id: str, run_id: str) -> RunRecord | None:
        """Return the record of a run, None if there is none."""
        return self.read(workflow_run_rel(workflow_id, run_id))

    def all(self, workflow_id: str | None = None) -> Iterator[RunRecord]:
        """Yield the records, those of the runs that began last first.

        What vanishes meanwhile is left out, and so is what makes no sense, with a notice.
        """
        found: list[RunRecord] = []
        for rel in self._paths(workflow_id):
            try:
                record = self.read(rel)
            except (SwampstoreError, OSError) as error:
                notice("left out: %s", error)
                continue
            if record is not None:
                found.append(record)
        found.sort(key=lambda record: (record.started_at, record.id), reverse=True)
        yield from found

    def find(self, run_id: str) -> RunRecord:
        """Return the record of the run whose id is or begins with this; raise RunNotFoundError."""
        wanted = re.sub(r"[^0-9a-z]", "", run_id.lower())
        if len(wanted) < _SHORTEST_PREFIX:
            raise ValidationError(
                f"{run_id!r} is too short to tell runs apart",
                hint=f"Give at least {_SHORTEST_PREFIX} characters of the id.",
            )
        found = [rel for rel in self._paths() if _id_of(rel).startswith(wanted)]
        if len(found) > 1:
            raise ValidationError(
                f"{len(found)} workflow runs have an id that begins with {run_id!r}",
                hint="Give more of the id; `swampstore workflow history` shows it.",
            )
        record = self.read(found[0]) if found else None
        if record is None:
            raise RunNotFoundError(
                f"there is no workflow run {run_id!r}",
                hint="See `swampstore workflow history`; `swampstore sync --pull` brings those of"
                " other machines.",
            )
        return record

    def _paths(self, workflow_id: str | None = None) -> list[str]:
        names = [workflow_id] if workflow_id else self._tree.subdirs(WORKFLOW_RUNS)
        found: set[str] = set()
        for name in names:
            for place in self._tree.places(f"{WORKFLOW_RUNS}/{name}"):
                try:
                    files = os.listdir(place)
                except (FileNotFoundError, NotADirectoryError):
                    continue
                rels = (f"{WORKFLOW_RUNS}/{name}/{file}" for file in files)
                found.update(rel for rel in rels if workflow_run_of(rel))
        return sorted(found)


def _id_of(rel: str) -> str:
    _, run_id = workflow_run_of(rel) or ("", "")
    return run_id.lower().replace("-", "")


class LiveRecord:
    """The record of a run that is going on here, which several threads write to.

    Each `change` is on disk when its block ends. Threads that change it at the same time share one
    write, so that many steps at once cost no more than a few.
    """

    def __init__(self, records: RunRecords, record: RunRecord) -> None:
        self.record = record
        self._records = records
        self._changing = threading.RLock()
        self._saving = threading.Lock()
        self._changes = self._saved = 0

    def __enter__(self) -> RunRecord:
        self._changing.acquire()
        return self.record

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._changes += 1
        wanted = self._changes
        self._changing.release()
        if kind is None:
            self._save(wanted)

    def _save(self, wanted: int) -> None:
        with self._saving:
            if self._saved >= wanted:
                return
            with self._changing:
                seen, data = self._changes, encode(self.record)
            self._records.write(self.record, data)
            self._saved = seen


def log_file(record: RunRecord) -> str:
    """Return where the log of a run is, relative to its repository; it stays on its machine."""
    return f"{LOCAL_DIR}/{record.rel.removesuffix('.yaml')}.log"
