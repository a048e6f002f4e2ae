"""What a run writes: under which names, with which tags and owner, and without any secret in it.

Several threads of one method may write at the same time; they take turns.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NamedTuple

from swampstore.artifacts.ephemeral import EPHEMERAL
from swampstore.artifacts.metadata import DEFAULT_LIFETIME, DEFAULT_POLICY, Draft, Metadata, Owner
from swampstore.errors import ValidationError
from swampstore.layout import DataRef, ModelRef, check_data_name
from swampstore.runs.outputs import WrittenArtifact

if TYPE_CHECKING:
    from swampstore.artifacts.groups import Deferral
    from swampstore.artifacts.streaming import VersionWriter
    from swampstore.redaction import Redactor
    from swampstore.repo import Repo

RESOURCE, FILE = "resource", "file"
JSON = "application/json"
_LONGEST_VALUE = 64
_UNSAFE = re.compile(r"\.\.|/|\\")


class Spec(NamedTuple):
    """Something that a method may write. `kind` is `resource` (JSON) or `file` (any bytes)."""

    name: str
    kind: str = RESOURCE
    content_type: str = JSON
    schema: Mapping[str, Any] | None = None
    lifetime: str = DEFAULT_LIFETIME
    garbage_collection: int | str = DEFAULT_POLICY
    streaming: bool = False
    tags: Mapping[str, str] = {}
    # All of it goes to a vault, not just what the schema calls sensitive.
    is_sensitive: bool = False
    vault: str | None = None


class Handle(NamedTuple):
    """A version that a method wrote."""

    name: str
    spec_name: str
    kind: str
    data_id: str
    version: int
    size: int
    tags: Mapping[str, str]
    metadata: Metadata
    attributes: Any = None

    def to_json(self) -> dict[str, Any]:
        """Return its members by the names that other clients use."""
        members = {
            "name": self.name,
            "specName": self.spec_name,
            "kind": self.kind,
            "dataId": self.data_id,
            "version": self.version,
            "size": self.size,
            "tags": dict(self.tags),
            "attributes": self.attributes,
        }
        return {key: value for key, value in members.items() if value is not None}


class WorkflowStep(NamedTuple):
    """The step of a workflow that runs a method. `tags` are those of the workflow."""

    workflow_id: str
    workflow_run_id: str
    workflow_name: str
    job_name: str
    step_name: str
    tags: Mapping[str, str] = {}
    initiated_by: str = ""

    def all_tags(self) -> dict[str, str]:
        """Return the tags that everything written in this step gets."""
        tags = {
            **self.tags,
            "source": "step-output",
            "workflow": self.workflow_name,
            "workflowId": self.workflow_id,
            "workflowRunId": self.workflow_run_id,
            "job": self.job_name,
            "step": self.step_name,
            "initiatedBy": self.initiated_by,
        }
        return {key: value for key, value in tags.items() if value}


class Origin(NamedTuple):
    """For whom a run writes, and what was said about it beforehand.

    `resources` are what the definition says of single specs, `overrides` what the step says.
    """

    model: ModelRef
    model_name: str = ""
    tags: Mapping[str, str] = {}
    resources: Mapping[str, Any] = {}
    step: WorkflowStep | None = None
    runtime_tags: Mapping[str, str] = {}
    overrides: Sequence[Mapping[str, Any]] = ()
    inputs: Mapping[str, Any] = {}

    def override(self, spec: str) -> Mapping[str, Any]:
        """Return what the step says about a spec."""
        for one in self.overrides:
            if one.get("specName") == spec:
                return one
        return {}

    def owner(self) -> Owner:
        """Return the owner of everything that is written."""
        step = self.step
        if step is None:
            return Owner("model-method", self.model.id)
        return Owner(
            "model-method",
            self.model.id,
            workflow_id=step.workflow_id,
            workflow_run_id=step.workflow_run_id,
            workflow_name=step.workflow_name,
            job_name=step.job_name,
            step_name=step.step_name,
            source="step-output",
        )

    def instance_name(self, spec: str, name: str) -> str:
        """Return the data name of an instance, with what it varies by behind it."""
        wanted = self.override(spec).get("vary") or ()
        if isinstance(wanted, str):
            wanted = (wanted,)
        return check_data_name("-".join([name, *(self._varied(key, spec) for key in wanted)]))

    def _varied(self, key: str, spec: str) -> str:
        if self.inputs.get(key) is None:
            raise ValidationError(
                f"{spec!r} varies by the input {key!r}, which is not given",
                hint=f"Inputs: {', '.join(sorted(self.inputs)) or 'none'}.",
            )
        return vary_value(self.inputs[key])

    def draft(self, spec: Spec, said: Mapping[str, Any]) -> Draft:
        """Return the draft of an instance; `said` is what the write itself says."""
        definition, step = self.resources.get(spec.name) or {}, self.override(spec.name)

        def chosen(*names: str) -> Any:
            for source in (step, said, definition):
                for name in names:
                    if source.get(name) is not None:
                        return source[name]
            return None

        own = {"specName": spec.name, "modelName": self.model_name}
        tags = {
            "type": spec.kind,
            **self.tags,
            **spec.tags,
            **(said.get("tags") or {}),
            **{key: value for key, value in own.items() if value},
            **(self.step.all_tags() if self.step else {}),
            **self.runtime_tags,
            **(step.get("tags") or {}),
        }
        return Draft(
            content_type=str(said.get("content_type") or spec.content_type),
            lifetime=str(chosen("lifetime") or spec.lifetime),
            garbage_collection=chosen("garbage_collection", "garbageCollection")
            or spec.garbage_collection,
            streaming=spec.streaming,
            tags={key: str(value) for key, value in tags.items()},
            owner=self.owner(),
        )


def vary_value(value: Any) -> str:
    """Return how a value appears in the name of an instance."""
    if isinstance(value, Mapping):
        named = next((value[key] for key in ("key", "name", "id") if value.get(key)), None)
        value = named if isinstance(named, str | int) else _as_json(value)
    elif value is None or isinstance(value, bool | list | tuple):
        value = _as_json(value)
    return _UNSAFE.sub("--", str(value))


def _as_json(value: Any) -> str:
    import json

    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text if isinstance(value, bool) else text[:_LONGEST_VALUE]


class Writing:
    """Everything that one run writes. With a `group` it becomes visible at the end, or never.

    `lock` is that of a run around this one, in the same session. Older versions stay until
    `prune`: what a run wrote that did not come to its end may be taken back.
    """

    def __init__(
        self,
        repo: Repo,
        origin: Origin,
        redactor: Redactor,
        lock: AbstractContextManager[bool] | None = None,
    ) -> None:
        self._repo = repo
        self.origin = origin
        self._redactor = redactor
        self.group: Deferral | None = None
        self.lock = threading.RLock() if lock is None else lock
        self.handles: list[Handle] = []

    @property
    def written(self) -> tuple[WrittenArtifact, ...]:
        """What was written so far, in its order."""
        return tuple(
            WrittenArtifact(one.data_id, one.name, one.version, one.tags) for one in self.handles
        )

    def forget(self) -> None:
        """Forget all that was written: the group took it back."""
        self.handles = []

    def save(
        self,
        spec: Spec,
        name: str,
        content: bytes,
        said: Mapping[str, Any] | None = None,
        attributes: Any = None,
    ) -> Handle:
        """Save small content as an instance of a spec, secrets taken out of it."""
        content = self._redactor.data(content)
        draft = self.origin.draft(spec, said or {})
        ref = self.ref(spec, name)
        with self.lock:
            return self._noted(spec, self._save(ref, content, draft), attributes)

    def ref(self, spec: Spec, name: str) -> DataRef:
        """Return the address of an instance of a spec."""
        return DataRef(self.origin.model, self.origin.instance_name(spec.name, name))

    def _save(self, ref: DataRef, content: bytes, draft: Draft) -> Metadata:
        self._repo.check_session(ref.model)
        if draft.lifetime == EPHEMERAL:
            return self._repo.start_ephemeral().store.save(ref, content, draft)
        if self.group:
            return self.group.save(ref, content, draft)
        return self._repo.store.save(ref, content, draft, prunes=False)

    def open_writer(
        self, spec: Spec, name: str, said: Mapping[str, Any] | None = None
    ) -> VersionWriter:
        """Claim the next version of an instance; the caller takes secrets out of what it writes."""
        draft = self.origin.draft(spec, said or {})
        ref = self.ref(spec, name)
        with self.lock:
            self._repo.check_session(ref.model)
            if self.group:
                return self.group.open_writer(ref, draft)
            return self._repo.store.open_writer(ref, draft, prunes=False)

    def finalize(self, spec: Spec, writer: VersionWriter) -> Handle:
        """Make what a writer wrote visible."""
        with self.lock:
            return self._noted(spec, writer.finalize(), None)

    def _noted(self, spec: Spec, metadata: Metadata, attributes: Any) -> Handle:
        handle = Handle(
            name=metadata.name,
            spec_name=spec.name,
            kind=spec.kind,
            data_id=metadata.id,
            version=metadata.version,
            size=metadata.size or 0,
            tags=metadata.tags,
            metadata=metadata,
            attributes=attributes,
        )
        self.handles.append(handle)
        return handle

    def prune(self) -> None:
        """Remove what is beyond the policies of what was written, if saves do that."""
        written = {one.name: one.metadata for one in self.handles}
        for name, metadata in written.items():
            if metadata.lifetime != EPHEMERAL:
                self._repo.store.prune_after(DataRef(self.origin.model, name), metadata)

    def newest(self, name: str) -> Handle | None:
        """Return what this run wrote last under a data name."""
        return next(self._newest(name), None)

    def _newest(self, name: str) -> Iterator[Handle]:
        return (one for one in reversed(self.handles) if one.name == name)
