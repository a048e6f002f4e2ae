"""Reports: what people read about a run, as Markdown and as JSON beside its data.

    @swampstore.report("@acme/cost")
    def cost(context):
        hours = context.read("state")["hours"]
        return f"# {hours} hours", {"hours": hours}

A definition or a workflow says in `reports` which it requires and which it skips. They run when the
method has ended, whatever it wrote; one that raises makes the run a failed one. Those of a workflow
are saved for the model that the workflow is, before its run has ended.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from swampstore.artifacts.metadata import Draft, Owner
from swampstore.artifacts.save import to_json_bytes
from swampstore.errors import SwampstoreError
from swampstore.layout import DataRef, ModelRef, check_data_name
from swampstore.redaction import Redactor
from swampstore.runs.errors import ReportNotFoundError
from swampstore.runs.outputs import Output, WrittenArtifact

if TYPE_CHECKING:
    from collections.abc import Sequence

    from swampstore.repo import Repo
    from swampstore.runs.errors import ModelTypeError
    from swampstore.runs.workflow.definition import Workflow
    from swampstore.runs.workflow.record import RunRecord

F = TypeVar("F", bound=Callable[..., Any])

METHOD, WORKFLOW = "method", "workflow"
GROUP = "swampstore.reports"
SUMMARY = "summary"
LIFETIME, KEPT = "30d", 5
_REPORT = "__swampstore_report__"
_MARKDOWN, _JSON = "text/markdown", "application/json"


@dataclass(frozen=True, slots=True)
class ReportContext:
    """What a report may look at. Secrets are references in it, as in everything that is kept.

    `model` is where its artifacts go. `output` is the record of a method, `run` that of a
    workflow as a document; the other one is None.
    """

    repo: Repo
    scope: str
    model: ModelRef
    name: str
    status: str
    owner: Owner
    method: str = ""
    inputs: Mapping[str, Any] = field(default_factory=dict)
    arguments: Mapping[str, Any] = field(default_factory=dict)
    artifacts: Sequence[WrittenArtifact] = ()
    output: Output | None = None
    run: Mapping[str, Any] | None = None

    def read(self, name: str, model: str | ModelRef | None = None) -> Any:
        """Return the latest JSON document under a data name, of another model if one is given."""
        return self.repo.latest(self.model if model is None else model, name).json()


@dataclass(frozen=True, slots=True)
class Report:
    """A function that reports."""

    name: str
    scope: str
    function: Callable[[ReportContext], Any]


@dataclass(frozen=True, slots=True)
class WrittenReport:
    """What a report has left; `error` is what it raised."""

    name: str
    scope: str
    artifacts: tuple[WrittenArtifact, ...] = ()
    error: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return its members, for the result of a run."""
        members: dict[str, Any] = {
            "name": self.name,
            "scope": self.scope,
            "dataArtifacts": [one.to_json() for one in self.artifacts],
        }
        return members | ({"error": self.error} if self.error is not None else {})


def report(name: str, *, scope: str = METHOD) -> Callable[[F], F]:
    """Make a function a report, of methods or (`scope="workflow"`) of workflows.

    It takes a `ReportContext` and returns Markdown, a document for JSON, or both in a tuple. It
    runs where the member `reports.require` of a definition, or of a workflow, names it.
    """
    if scope not in (METHOD, WORKFLOW):
        raise ValueError(f"a report cannot have the scope {scope!r}, but method or workflow")
    safe_name(name)

    def decorate(function: F) -> F:
        setattr(function, _REPORT, Report(name, scope, function))
        return function

    return decorate


def safe_name(name: str) -> str:
    """Return the data name that a report is saved under.

    >>> safe_name("@acme/cost")
    'report-acme-cost'
    """
    return check_data_name(f"report-{name.replace('@', '').replace('/', '-')}")


# Finding -------------------------------------------------------------------------------------


def reports_for(repo: Repo, settings: Mapping[str, Any], scope: str) -> list[Report]:
    """Return the reports that the member `reports` of a definition, or a workflow, requires.

    Raises ReportNotFoundError if one is nowhere: ask before anything runs.
    """
    skipped = {*_names(settings.get("skip"))}
    wanted = [name for name in _names(settings.get("require")) if name not in skipped]
    found: dict[str, Report] = {}
    failures: list[ModelTypeError] = []
    # The code of a repository is only loaded if something in it is needed.
    for one in _all(repo, scope, failures) if wanted else ():
        found.setdefault(one.name, one)
        if found.keys() >= {*wanted}:
            break
    for name in wanted:
        if name not in found:
            if failures:
                raise failures[0]
            raise ReportNotFoundError(
                f"there is no report {name!r} for a {scope}",
                hint=f"There is: {', '.join(sorted(found))}.",
            )
    return [found[name] for name in wanted]


def _names(value: Any) -> list[str]:
    names = [value] if isinstance(value, str) else value or []
    return [str(name["name"] if isinstance(name, Mapping) else name) for name in names]


def _all(repo: Repo, scope: str, failures: list[ModelTypeError]) -> Iterator[Report]:
    """Yield what is built in, the reports of the repository, and those of installed packages."""
    from importlib.metadata import entry_points

    from swampstore.runs.models import repository_modules

    yield Report(SUMMARY, scope, summary)
    for module in repository_modules(repo, failures):
        for value in vars(module).values():
            if (one := report_of(value)) and one.scope == scope:
                yield one
    for entry in entry_points(group=GROUP):
        if (one := report_of(entry.load())) and one.scope == scope:
            yield one


def report_of(value: Any) -> Report | None:
    """Return what a function says about itself, None if it is no report."""
    found = getattr(value, _REPORT, None) if inspect.isfunction(value) else None
    return found if isinstance(found, Report) else None


# Running -------------------------------------------------------------------------------------


def run_reports(
    reports: Sequence[Report], context: ReportContext, redactor: Redactor
) -> tuple[WrittenReport, ...]:
    """Run reports one after the other, and save what they say. None of them raises.

    Belongs into the session of the run, so that one push carries all of it.
    """
    return tuple(_run(one, context, redactor) for one in reports)


def failure(reports: Sequence[WrittenReport]) -> str | None:
    """Return why a run has failed because of its reports, None if it has not."""
    for one in reports:
        if one.error is not None:
            return f"the report {one.name} failed: {one.error}"
    return None


def _run(one: Report, context: ReportContext, redactor: Redactor) -> WrittenReport:
    try:
        markdown, document = _parts(one.function(context))
        written = list(_saved(one, context, redactor, markdown, document))
    except Exception as error:  # noqa: BLE001 - the report says what it was
        message = redactor.text(str(error) or type(error).__name__)
        return WrittenReport(
            one.name, one.scope, tuple(_told(one, context, redactor, message)), message
        )
    return WrittenReport(one.name, one.scope, tuple(written))


def _parts(result: Any) -> tuple[str, Any]:
    match result:
        case None:
            return "", None
        case str():
            return result, None
        case (str(markdown), document):
            return markdown, document
        case Mapping() | list():
            return "", result
    raise TypeError(f"a report returns Markdown and a document, not {type(result).__name__}")


def _told(
    one: Report, context: ReportContext, redactor: Redactor, message: str
) -> Iterator[WrittenArtifact]:
    document = {"error": True, "reportName": one.name, "scope": one.scope, "message": message}
    try:
        yield from _saved(one, context, redactor, "", document)
    except SwampstoreError:  # the run reports the first failure
        return


def _saved(
    one: Report, context: ReportContext, redactor: Redactor, markdown: str, document: Any
) -> Iterator[WrittenArtifact]:
    name = safe_name(one.name)
    if markdown.strip():
        yield _save(one, context, name, redactor.data(markdown.encode()), _MARKDOWN)
    if document is not None:
        yield _save(one, context, f"{name}-json", redactor.data(to_json_bytes(document)), _JSON)


def _save(
    one: Report, context: ReportContext, name: str, content: bytes, content_type: str
) -> WrittenArtifact:
    draft = Draft(
        content_type=content_type,
        lifetime=LIFETIME,
        garbage_collection=KEPT,
        tags={"type": "report", "reportName": one.name, "reportScope": one.scope},
        owner=context.owner,
    )
    saved = context.repo.store.save(DataRef(context.model, name), content, draft)
    return WrittenArtifact(saved.id, saved.name, saved.version, saved.tags)


# The one that is built in --------------------------------------------------------------------


def summary(context: ReportContext) -> tuple[str, dict[str, Any]]:
    """Tell how a run went: its status, how long it took, what it wrote, and its steps."""
    return _of_workflow(context) if context.run is not None else _of_method(context)


def _of_method(context: ReportContext) -> tuple[str, dict[str, Any]]:
    output = context.output
    document: dict[str, Any] = {
        "model": context.name,
        "method": context.method,
        "status": context.status,
        "startedAt": output.started_at if output else None,
        "durationMs": output.duration_ms if output else None,
        "inputs": dict(context.inputs),
        "artifacts": [{"name": one.name, "version": one.version} for one in context.artifacts],
        "error": output.error.get("message") if output and output.error else None,
    }
    lines = [f"# {context.name} {context.method}: {context.status}", ""]
    if output:
        lines += [f"Started {output.started_at}, took {output.duration_ms or 0} ms.", ""]
    if document["error"]:
        lines += [f"> {document['error']}", ""]
    lines += _table(("input", "value"), [(key, value) for key, value in context.inputs.items()])
    lines += _table(("artifact", "version"), [(one.name, one.version) for one in context.artifacts])
    return "\n".join(lines), {key: one for key, one in document.items() if one is not None}


def _of_workflow(context: ReportContext) -> tuple[str, dict[str, Any]]:
    run = context.run or {}
    steps = [
        {
            "job": str(job.get("jobName")),
            "step": str(step.get("stepName")),
            "status": str(step.get("status")),
            "artifacts": len(step.get("dataArtifacts") or ()),
        }
        for job in run.get("jobs") or ()
        for step in job.get("steps") or ()
    ]
    document = {
        "workflow": context.name,
        "runId": run.get("id"),
        "status": context.status,
        "startedAt": run.get("startedAt"),
        "steps": steps,
    }
    lines = [f"# {context.name}: {context.status}", "", f"Started {run.get('startedAt')}.", ""]
    lines += _table(
        ("job", "step", "status", "artifacts"), [tuple(step.values()) for step in steps]
    )
    return "\n".join(lines), document


def _table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    if not rows:
        return []
    marks = ["---"] * len(header)
    cells = [[_cell(cell) for cell in row] for row in rows]
    return [*(f"| {' | '.join(row)} |" for row in ([*header], marks, *cells)), ""]


def _cell(value: Any) -> str:
    text = value if isinstance(value, str) else to_json_bytes(value).decode()
    return " ".join(text.split()).replace("|", "\\|")


def write_workflow_reports(
    repo: Repo, workflow: Workflow, record: RunRecord, reports: Sequence[Report]
) -> str | None:
    """Write the reports of a run, name them in its record, and return why one failed, if so.

    Belongs into a session of the workflow. What a killed process wrote, and did not name in the
    record, is taken back.
    """
    _take_back(repo, workflow, record)
    context = ReportContext(
        repo=repo,
        scope=WORKFLOW,
        model=workflow.ref,
        name=workflow.name,
        status=record.status,
        owner=Owner(
            "workflow-step",
            workflow.id,
            workflow_id=workflow.id,
            workflow_run_id=record.id,
            workflow_name=workflow.name,
        ),
        inputs=record.inputs or {},
        run=record.to_json(),
    )
    written = run_reports(reports, context, Redactor())
    record.workflow_data_artifacts = [
        *(record.workflow_data_artifacts or ()),
        *(artifact.to_json() for one in written for artifact in one.artifacts),
    ] or None
    return failure(written)


def _take_back(repo: Repo, workflow: Workflow, record: RunRecord) -> None:
    named = {str(one.get("dataId")) for one in record.workflow_data_artifacts or ()}
    found = repo.query(
        f"modelType == {json.dumps(workflow.ref.type)} && modelId == {json.dumps(workflow.id)}"
        f" && workflowRunId == {json.dumps(record.id)} && version > 0"
        f" && ns == {json.dumps(repo.config.namespace)}"
    )
    for one in found:
        if one.id not in named:
            repo.store.delete_versions(one.ref, [one.version])
