"""The output record of a method run: what was run, by whom, how it ended, and what it wrote.

`outputs/{type}/{method}/{model id}-{start}.yaml`, one file for each run, written once it has ended.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from swampstore import yaml_dialect
from swampstore.clock import from_iso, to_iso
from swampstore.errors import NotFoundError, SwampstoreError, ValidationError, YamlError
from swampstore.files import disk_errors, sync_dir
from swampstore.layout import LOCAL_DIR, OUTPUTS, ModelRef, is_temp
from swampstore.notices import notice
from swampstore.repo.models import OUTPUT_FILE

if TYPE_CHECKING:
    from swampstore.artifact import Artifact
    from swampstore.repo import Repo

# Where the log of a run is while the run goes on; it never leaves the machine.
LIVE_LOGS = "live-logs"
STATUSES = ("pending", "running", "succeeded", "failed", "cancelled")
LOG_SPEC = "log"
_SHORTEST_PREFIX = 3
_WORKFLOW = (
    ("workflow_id", "workflowId"),
    ("workflow_run_id", "workflowRunId"),
    ("step_name", "stepName"),
    ("parent_output_id", "parentOutputId"),
    ("caller_extension", "callerExtension"),
    ("initiated_by", "initiatedBy"),
    ("bundle_fingerprint", "bundleFingerprint"),
)
_PROVENANCE = frozenset(
    {"definitionHash", "modelVersion", "triggeredBy", *(key for _, key in _WORKFLOW)}
)
_KNOWN = frozenset(
    {
        "id",
        "definitionId",
        "methodName",
        "status",
        "startedAt",
        "retryCount",
        "provenance",
        "artifacts",
        "completedAt",
        "durationMs",
        "error",
        "logFile",
        "pid",
        "modelName",
    }
)


class Provenance(NamedTuple):
    """Where a run comes from. `triggered_by` is manual, workflow or model."""

    definition_hash: str = ""
    model_version: str = ""
    triggered_by: str = "manual"
    workflow_id: str = ""
    workflow_run_id: str = ""
    step_name: str = ""
    parent_output_id: str = ""
    caller_extension: str = ""
    initiated_by: str = ""
    bundle_fingerprint: str = ""
    extra: Mapping[str, Any] = {}

    def to_json(self) -> dict[str, Any]:
        """Return its members as the record has them."""
        members = {
            "definitionHash": self.definition_hash,
            "modelVersion": self.model_version or None,
            "triggeredBy": self.triggered_by,
        }
        members |= {key: getattr(self, name) or None for name, key in _WORKFLOW}
        return {key: value for key, value in members.items() if value is not None} | dict(
            self.extra
        )


class WrittenArtifact(NamedTuple):
    """One version that a run wrote."""

    data_id: str
    name: str
    version: int
    tags: Mapping[str, str] = {}

    def to_json(self) -> dict[str, Any]:
        """Return its members as the record has them."""
        return {
            "dataId": self.data_id,
            "name": self.name,
            "version": self.version,
            "tags": dict(self.tags),
        }


class Output(NamedTuple):
    """One run of one method. Members of the record that we do not know are kept in `extra`."""

    id: str
    model: ModelRef
    method: str
    status: str
    started_at: str
    model_name: str = ""
    completed_at: str | None = None
    duration_ms: int | None = None
    retry_count: int = 0
    provenance: Provenance = Provenance()
    artifacts: tuple[WrittenArtifact, ...] = ()
    error: Mapping[str, str] | None = None
    log_file: str | None = None
    pid: int | None = None
    extra: Mapping[str, Any] = {}
    # Where the record is; None if it was not saved yet.
    rel: str | None = None

    @property
    def is_over(self) -> bool:
        """Whether nothing more will happen in this run."""
        return self.status not in ("pending", "running")

    @property
    def command(self) -> list[str] | None:
        """The command that was run, None if it was no command."""
        found = self.extra.get("command")
        return found if isinstance(found, list) else None

    @property
    def log_artifact(self) -> WrittenArtifact | None:
        """The artifact that holds the output of its command, None if there is none."""
        for artifact in self.artifacts:
            if artifact.tags.get("specName") == LOG_SPEC and artifact.tags.get("type") == "file":
                return artifact
        return None

    def to_json(self) -> dict[str, Any]:
        """Return the members of the record in their order."""
        members: dict[str, Any] = {
            "id": self.id,
            "definitionId": self.model.id,
            "modelName": self.model_name or None,
            "methodName": self.method,
            "status": self.status,
            "startedAt": self.started_at,
            "retryCount": self.retry_count,
            "provenance": self.provenance.to_json(),
            "artifacts": {"dataArtifacts": [one.to_json() for one in self.artifacts]},
            "completedAt": self.completed_at,
            "durationMs": self.duration_ms,
            "error": dict(self.error) if self.error else None,
            "logFile": self.log_file,
            "pid": self.pid,
        }
        known = {key: value for key, value in members.items() if value is not None}
        return {**known, **{key: value for key, value in self.extra.items() if key not in known}}


def encode(output: Output) -> bytes:
    """Return the bytes of a record."""
    return yaml_dialect.dump(output.to_json()).encode()


def decode(data: bytes, rel: str) -> Output:
    """Read the record at a path; raise YamlError naming what is wrong with it."""
    raw = yaml_dialect.load_mapping(data, what=rel)
    parts = rel.split("/")
    if len(parts) < 4:
        raise YamlError(f"{rel} is not where an output is", hint="Move it away.")
    provenance, artifacts = raw.get("provenance") or {}, raw.get("artifacts") or {}
    written = artifacts.get("dataArtifacts") or [] if isinstance(artifacts, dict) else []
    error = raw.get("error")
    duration, pid, retries = (raw.get(key) for key in ("durationMs", "pid", "retryCount"))
    if not isinstance(provenance, dict) or not isinstance(written, list):
        raise _wrong(rel, "provenance or artifacts")
    return Output(
        id=_text(raw, "id", rel),
        model=ModelRef("/".join(parts[1:-2]), _text(raw, "definitionId", rel)),
        method=_text(raw, "methodName", rel),
        status=_text(raw, "status", rel),
        started_at=to_iso(_moment(raw, "startedAt", rel)),
        model_name=str(raw.get("modelName") or ""),
        completed_at=to_iso(_moment(raw, "completedAt", rel)) if raw.get("completedAt") else None,
        duration_ms=duration if isinstance(duration, int) else None,
        retry_count=retries if isinstance(retries, int) else 0,
        provenance=_provenance(provenance),
        artifacts=tuple(_written(one, rel) for one in written),
        error={key: str(value) for key, value in error.items()}
        if isinstance(error, dict)
        else None,
        log_file=str(raw["logFile"]) if raw.get("logFile") else None,
        pid=pid if isinstance(pid, int) else None,
        extra={key: value for key, value in raw.items() if key not in _KNOWN},
        rel=rel,
    )


def _provenance(raw: Mapping[str, Any]) -> Provenance:
    return Provenance(
        definition_hash=str(raw.get("definitionHash") or ""),
        model_version=str(raw.get("modelVersion") or ""),
        triggered_by=str(raw.get("triggeredBy") or "manual"),
        extra={key: value for key, value in raw.items() if key not in _PROVENANCE},
        **{name: str(raw.get(key) or "") for name, key in _WORKFLOW},
    )


def _written(raw: Any, rel: str) -> WrittenArtifact:
    if not isinstance(raw, dict):
        raise _wrong(rel, "dataArtifacts")
    version, tags = raw.get("version"), raw.get("tags") or {}
    if not isinstance(version, int) or not isinstance(tags, dict):
        raise _wrong(rel, "dataArtifacts")
    return WrittenArtifact(
        _text(raw, "dataId", rel),
        _text(raw, "name", rel),
        version,
        {str(key): str(value) for key, value in tags.items()},
    )


def _text(raw: Mapping[str, Any], key: str, rel: str) -> str:
    value = raw.get(key)
    if not isinstance(value, str) or not value:
        raise _wrong(rel, key)
    return value


def _moment(raw: Mapping[str, Any], key: str, rel: str) -> Any:
    try:
        return from_iso(_text(raw, key, rel))
    except ValueError:
        raise _wrong(rel, key) from None


def _wrong(rel: str, key: str) -> YamlError:
    return YamlError(
        f"{rel}: {key} is missing, or not what it should be", hint="Repair or remove the record."
    )


class Outputs:
    """The output records of one repository."""

    def __init__(self, repo: Repo) -> None:
        self._repo = repo
        self._tree = repo.tree

    def save(self, output: Output) -> Output:
        """Write a record and return it with its place; one that has a place stays there."""
        output = output if output.rel else output._replace(rel=self._free_place(output))
        rel = str(output.rel)
        path = self._tree.path(rel)
        with disk_errors(path):
            os.makedirs(os.path.dirname(path), exist_ok=True)
        with self._tree.changing(rel) as change:
            change.write(rel, encode(output))
            if self._tree.durable:
                sync_dir(os.path.dirname(path))
        return output

    def _free_place(self, output: Output) -> str:
        """Return a path that no other record has: it says when the run began."""
        started = from_iso(output.started_at)
        while True:
            rel = f"{stem(output.model, output.method, to_iso(started))}.yaml"
            if not os.path.lexists(self._tree.path(rel)):
                return rel
            started += timedelta(milliseconds=1)

    def read(self, rel: str) -> Output | None:
        """Read one record, None if it is gone; raise YamlError if it makes no sense."""
        data = self._tree.read(rel)
        return None if data is None else decode(data, rel)

    def find(self, output_id: str) -> Output:
        """Return the record with this id, or whose id begins so; raise NotFoundError."""
        wanted = re.sub(r"[^0-9a-z]", "", output_id.lower())
        if len(wanted) < _SHORTEST_PREFIX:
            raise ValidationError(
                f"{output_id!r} is too short to tell outputs apart",
                hint=f"Give at least {_SHORTEST_PREFIX} characters of the id.",
            )
        found = {
            output.id: output
            for output in self.all()
            if output.id.lower().replace("-", "").startswith(wanted)
        }
        if len(found) == 1:
            return next(iter(found.values()))
        if found:
            raise ValidationError(
                f"{len(found)} outputs have an id that begins with {output_id!r}:"
                f" {', '.join(sorted(found)[:12])}",
                hint="Give more of the id.",
            )
        raise NotFoundError(
            f"there is no output {output_id!r}", hint="See `swampstore output list`."
        )

    def all(
        self,
        *,
        model: ModelRef | None = None,
        method: str | None = None,
        status: str | None = None,
        since: str | None = None,
    ) -> Iterator[Output]:
        """Yield the records, those of the runs that began last first.

        Records that vanish meanwhile are left out, and so are those that make no sense, with a
        notice. `since` is a moment as files write it.
        """
        for rel in self._paths(model, method, since):
            try:
                output = self.read(rel)
            except (SwampstoreError, OSError) as error:
                notice("left out: %s", error)
                continue
            if output is None or (model and output.model != model):
                continue
            if method and output.method != method:
                continue
            if status and output.status != status:
                continue
            if since and output.started_at < since:
                continue
            yield output

    def _paths(self, model: ModelRef | None, method: str | None, since: str | None) -> list[str]:
        """Return the paths of records, the youngest by their names first."""
        top = f"{OUTPUTS}/{model.type}" if model else OUTPUTS
        if model and method:
            top = f"{top}/{method}"
        begin = _file_time(since) if since else ""
        found = [
            (OUTPUT_FILE.fullmatch(name), rel)
            for rel, name in self._files(top)
            if not model or name.startswith(f"{model.id}-")
        ]
        dated = [(at[2] if at else "", rel) for at, rel in found]
        return [
            rel for at, rel in sorted(dated, key=lambda one: one[0], reverse=True) if at >= begin
        ]

    def _files(self, top: str) -> Iterator[tuple[str, str]]:
        for place in self._tree.places(top):
            for directory, _, names in os.walk(place):
                below = directory.removeprefix(place)
                for name in names:
                    if name.endswith(".yaml") and not is_temp(name):
                        yield f"{top}{below}/{name}", name

    # Logs ----------------------------------------------------------------------------------

    def log_path(self, output: Output) -> str | None:
        """Return the file with the log of a run, fetched first if need be; None without one."""
        if output.log_file:
            rel = output.log_file.removeprefix(f"{LOCAL_DIR}/")
            for path in (
                self._tree.path(rel),
                os.path.join(self._repo.config.repo_dir, output.log_file),
            ):
                if os.path.exists(path):
                    return path
        if written := output.log_artifact:
            found = self._version_of(output, written)
            return str(found.path) if found else None  # retention has taken it
        live = live_log(self._repo, output.id)
        return live if os.path.exists(live) else None

    def _version_of(self, output: Output, written: WrittenArtifact) -> Artifact | None:
        """Return a version that a run wrote, which a sync may have given another number since."""
        try:
            named = self._repo.version(output.model, written.name, written.version)
            if named.id == written.data_id:
                return named
            versions = self._repo.versions(output.model, written.name)
        except NotFoundError:
            return None
        return next((one for one in versions if one.id == written.data_id), None)


def live_log(repo: Repo, run_id: str) -> str:
    """Return where the log of a run is for as long as the run goes on."""
    return f"{repo.config.local_dir}/{LIVE_LOGS}/{run_id}.log"


def stem(model: ModelRef, method: str, started_at: str) -> str:
    """Return the path of the record of a run, and of its log, without the ending."""
    return f"{OUTPUTS}/{model.type}/{method}/{model.id}-{_file_time(started_at)}"


def _file_time(moment: str) -> str:
    return moment.replace(":", "-").replace(".", "-")
