"""A workflow file: its format, member by member. Unknown members are refused with near names."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from swampstore import yaml_dialect
from swampstore.errors import SwampstoreError
from swampstore.layout import ModelRef, check_segment, normalise_type
from swampstore.retention.lifetimes import normalise_lifetime, normalise_policy
from swampstore.runs.canonical import canonical_hash
from swampstore.runs.errors import WorkflowError
from swampstore.runs.workflow.conditions import Condition, read_condition
from swampstore.runs.workflow.reading import Members, checked

# Reports of a workflow, and whatever else is kept of it, belong to a model of this type.
WORKFLOW_TYPE = "workflow"
# What ids are derived from, for files that have none.
_NAMELESS = uuid.UUID("6f1c6d52-6c0f-4d0e-9b7a-2d9a6f1d3c11")
_EXPRESSION = re.compile(r"\$\{\{.*?\}\}", re.DOTALL)
_SEVERITIES = ("low", "medium", "high", "critical")
_NAME_LENGTH = 64


@dataclass(frozen=True, slots=True)
class MethodTask:
    """Run a method of a model; `model` is a name, an id or TYPE/ID."""

    model: str
    method: str
    inputs: Mapping[str, Any] = field(default_factory=dict)
    global_arguments: Mapping[str, Any] = field(default_factory=dict)
    command: tuple[str, ...] | None = None
    type = "model_method"


@dataclass(frozen=True, slots=True)
class WorkflowTask:
    """Run another workflow, as a run of its own."""

    workflow: str
    inputs: Mapping[str, Any] = field(default_factory=dict)
    type = "workflow"


@dataclass(frozen=True, slots=True)
class ApprovalTask:
    """Wait until somebody approves; `timeout` is in seconds, None: for ever."""

    prompt: str
    timeout: float | None = None
    type = "manual_approval"


@dataclass(frozen=True, slots=True)
class AssertTask:
    """Fail unless an expression is true. The record keeps `severity`."""

    expr: str
    message: str
    severity: str = "high"
    type = "assert"


Task = MethodTask | WorkflowTask | ApprovalTask | AssertTask


@dataclass(frozen=True, slots=True)
class Retry:
    """How often a step is tried, and the seconds before the second try, which then grow."""

    attempts: int = 1
    backoff: float = 1.0
    factor: float = 2.0
    longest: float = 300.0

    def pause(self, attempt: int) -> float:
        """Return how long to wait after an attempt failed; the first one has number 1."""
        try:
            return min(self.backoff * self.factor ** (attempt - 1), self.longest)
        except OverflowError:
            return self.longest


@dataclass(frozen=True, slots=True)
class ForEach:
    """One step for each item of a list or a map, which expressions see as `self.{item}`."""

    item: str
    expression: str


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a job. `depends_on` has a condition for each step that it waits for."""

    name: str
    task: Task
    depends_on: Mapping[str, Condition] = field(default_factory=dict)
    weight: int = 0
    concurrency: int | None = None
    allow_failure: bool = False
    guard: str | None = None
    for_each: ForEach | None = None
    overrides: tuple[Mapping[str, Any], ...] = ()
    retry: Retry = field(default_factory=Retry)
    timeout: float | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """Some steps, with an order between them."""

    name: str
    steps: tuple[Step, ...]
    depends_on: Mapping[str, Condition] = field(default_factory=dict)
    weight: int = 0
    concurrency: int | None = None

    def step(self, name: str) -> Step:
        """Return the step of this name; raise KeyError without one."""
        for step in self.steps:
            if step.name == name:
                return step
        raise KeyError(name)


@dataclass(frozen=True, slots=True)
class Workflow:
    """What a workflow file says. `document` is all of it, `path` where it was read."""

    id: str
    name: str
    jobs: tuple[Job, ...]
    description: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    inputs: Mapping[str, Any] | None = None
    concurrency: int | None = None
    reports: Mapping[str, Any] = field(default_factory=dict)
    document: Mapping[str, Any] = field(default_factory=dict, repr=False)
    path: str | None = None

    @property
    def ref(self) -> ModelRef:
        """The model that what is kept of this workflow belongs to."""
        return ModelRef(WORKFLOW_TYPE, self.id)

    @property
    def hash(self) -> str:
        """Tells whether two files say the same, whatever their layout and comments."""
        return canonical_hash(self.document)

    def job(self, name: str) -> Job:
        """Return the job of this name; raise KeyError without one."""
        for job in self.jobs:
            if job.name == name:
                return job
        raise KeyError(name)


def derived_id(name: str) -> str:
    """Return the id of a workflow whose file has none: the same on every machine."""
    return str(uuid.uuid5(_NAMELESS, name))


def has_expression(text: str) -> bool:
    """Whether a text has a `${{ }}` in it."""
    return bool(_EXPRESSION.search(text))


def read_workflow(data: bytes, path: str | None = None) -> Workflow:
    """Read a workflow file; raise WorkflowError naming the member that is wrong."""
    what = path or "the workflow"
    document = yaml_dialect.load_mapping(data, what=what)
    try:
        return _workflow(document, path)
    except WorkflowError as error:
        raise WorkflowError(f"{what}: {error.message}", hint=error.hint) from None


def _workflow(document: Mapping[str, Any], path: str | None) -> Workflow:
    members = Members(document, "the workflow")
    name = _workflow_name(members)
    members.get("version")
    identity = members.optional_text("id")
    jobs = tuple(_job(one, f"jobs[{number}]") for number, one in enumerate(members.items("jobs")))
    if not jobs:
        raise members.wrong("has no jobs", "Add a list `jobs` with at least one job.")
    found = Workflow(
        id=check_segment("workflow id", identity) if identity else derived_id(name),
        name=name,
        jobs=jobs,
        description=members.optional_text("description"),
        tags=members.texts("tags"),
        inputs=members.mapping("inputs") or None,
        concurrency=members.number("concurrency"),
        reports=members.mapping("reports"),
        document=document,
        path=path,
    )
    members.end()
    _check_names("jobs", [job.name for job in jobs])
    return found


def _workflow_name(members: Members) -> str:
    name = members.text("name")
    try:
        for segment in name.split("/") if name.startswith("@") else [name]:
            check_segment("workflow name", segment)
    except SwampstoreError as error:
        raise checked(error, "name") from None
    if len(name) > _NAME_LENGTH:
        raise members.wrong(f"has a name of more than {_NAME_LENGTH} characters")
    return name


def _job(value: Any, where: str) -> Job:
    members = Members(value, where)
    name = members.text("name")
    members.where = f"{where} ({name})"
    steps = tuple(
        _step(one, f"{members.where}.steps[{number}]")
        for number, one in enumerate(members.items("steps"))
    )
    if not steps:
        raise members.wrong("has no steps", "Add a list `steps` with at least one step.")
    job = Job(
        name=name,
        steps=steps,
        depends_on=_dependencies(members, "job"),
        weight=members.number("weight", 0, least=-(10**6)) or 0,
        concurrency=members.number("concurrency"),
    )
    members.get("description")
    members.end()
    _check_names(f"{members.where}.steps", [step.name for step in steps])
    return job


def _step(value: Any, where: str) -> Step:
    members = Members(value, where)
    name = members.text("name")
    members.where = f"{where} ({name})"
    step = Step(
        name=name,
        task=_task(members.required("task"), f"{members.where}.task"),
        depends_on=_dependencies(members, "step"),
        weight=members.number("weight", 0, least=-(10**6)) or 0,
        concurrency=members.number("concurrency"),
        allow_failure=members.flag("allowFailure"),
        guard=members.optional_text("guard"),
        for_each=_for_each(members),
        overrides=tuple(
            _override(one, f"{members.where}.dataOutputOverrides[{number}]")
            for number, one in enumerate(members.items("dataOutputOverrides"))
        ),
        retry=_retry(members),
        timeout=members.duration("timeout"),
    )
    members.get("description")
    members.end()
    if step.for_each is None and has_expression(name):
        raise members.wrong(
            "has an expression in its name, and no forEach", "Only steps with a forEach may."
        )
    return step


def _dependencies(members: Members, kind: str) -> dict[str, Condition]:
    found: dict[str, Condition] = {}
    for number, one in enumerate(members.items("dependsOn")):
        where = f"{members.where}.dependsOn[{number}]"
        entry = Members({kind: one} if isinstance(one, str) else one, where)
        name = entry.text(kind)
        if name in found:
            raise entry.wrong(f"names {name!r} a second time")
        found[name] = read_condition(entry.get("condition"), f"{where}.condition")
        entry.end()
    return found


def _for_each(members: Members) -> ForEach | None:
    value = members.get("forEach")
    if value is None:
        return None
    entry = Members(value, f"{members.where}.forEach")
    item, expression = entry.text("item"), entry.text("in").strip()
    entry.end()
    if not item.isidentifier():
        raise entry.wrong(f"has {item!r} as 'item', which expressions cannot name")
    if not _EXPRESSION.fullmatch(expression) or expression.count("${{") != 1:
        raise entry.wrong(
            f"has {expression!r} as 'in'", "Write one expression: in: ${{ inputs.hosts }}."
        )
    return ForEach(item, expression)


def _retry(members: Members) -> Retry:
    value = members.get("retry")
    if value is None:
        return Retry()
    entry = Members(value, f"{members.where}.retry")
    retry = Retry(
        attempts=entry.number("attempts", 1) or 1,
        backoff=entry.duration("backoff", 1.0) or 0.0,
        factor=float(entry.number("factor", 2) or 2),
        longest=entry.duration("maxBackoff", 300.0) or 0.0,
    )
    entry.end()
    return retry


def _override(value: Any, where: str) -> dict[str, Any]:
    members = Members(value, where)
    found: dict[str, Any] = {"specName": members.text("specName")}
    try:
        if (lifetime := members.get("lifetime")) is not None:
            found["lifetime"] = normalise_lifetime(lifetime)
        if (policy := members.get("garbageCollection")) is not None:
            found["garbageCollection"] = normalise_policy(policy)
    except SwampstoreError as error:
        raise checked(error, where) from None
    if vary := members.items("vary"):
        if not all(isinstance(one, str) for one in vary):
            raise members.wrong("has something else than names of inputs in 'vary'")
        found["vary"] = vary
    if tags := members.texts("tags"):
        found["tags"] = tags
    members.end()
    return found


def _task(value: Any, where: str) -> Task:
    members = Members(value, where)
    kind = members.choice("type", ("model_method", "workflow", "manual_approval", "assert"))
    task: Task
    match kind:
        case "model_method":
            task = _method_task(members)
        case "workflow":
            task = WorkflowTask(members.text("workflowIdOrName"), members.mapping("inputs"))
        case "manual_approval":
            task = ApprovalTask(members.text("prompt"), members.duration("timeout"))
        case _:
            expr = members.text("expr")
            severity = members.get("severity")
            if severity is not None and severity not in _SEVERITIES:
                raise members.wrong(
                    f"has {severity!r} as 'severity'", f"Use one of {', '.join(_SEVERITIES)}."
                )
            message = members.text("message", f"{expr} is not true")
            task = AssertTask(expr, message, severity or "high")
    members.end()
    return task


def _method_task(members: Members) -> MethodTask:
    model, kind, name = (
        members.optional_text(key) for key in ("modelIdOrName", "modelType", "modelName")
    )
    if kind and name and not model:
        try:
            model = str(ModelRef.of(normalise_type(kind), name))
        except SwampstoreError as error:
            raise checked(error, members.where) from None
    elif not model or kind or name:
        raise members.wrong(
            "does not say which model it means",
            "Give `modelIdOrName`, or `modelType` together with `modelName`.",
        )
    return MethodTask(
        model=model,
        method=members.text("methodName"),
        inputs=members.mapping("inputs"),
        global_arguments=members.mapping("globalArgs"),
        command=_command(members),
    )


def _command(members: Members) -> tuple[str, ...] | None:
    value = members.get("command")
    if value is None:
        return None
    if isinstance(value, str) and value.strip():
        return ("/bin/sh", "-c", value)
    if isinstance(value, list) and value and all(isinstance(one, str) for one in value):
        return tuple(value)
    raise members.wrong("has a 'command' that is neither a text nor a list of texts")


def _check_names(where: str, names: list[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise WorkflowError(
                f"{where}: the name {name!r} is used twice", hint="Give each a name of its own."
            )
        seen.add(name)
