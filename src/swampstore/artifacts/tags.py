"""Which tags a new version gets, and what a data name becomes when a step varies it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from swampstore.artifacts.metadata import Owner
from swampstore.errors import ValidationError

_UNSAFE = re.compile(r"\.\.|[/\\]")
_NAMING_KEYS = ("key", "name", "id")
_MAX_VARIED = 64


@dataclass(frozen=True, slots=True)
class WorkflowStep:
    """The step of a workflow run that writes something."""

    workflow_name: str
    workflow_id: str
    workflow_run_id: str
    job: str
    step: str
    tags: Mapping[str, str] = field(default_factory=dict)
    initiated_by: str = ""

    def layer(self) -> dict[str, str]:
        """Return the workflow's own tags and those that say which step wrote the data."""
        layer = {
            **self.tags,
            "source": "step-output",
            "workflow": self.workflow_name,
            "workflowId": self.workflow_id,
            "workflowRunId": self.workflow_run_id,
            "job": self.job,
            "step": self.step,
        }
        return layer | ({"initiatedBy": self.initiated_by} if self.initiated_by else {})

    def owner(self, owner: Owner) -> Owner:
        """Return `owner` with the run that this step belongs to."""
        return Owner(
            type=owner.type,
            ref=owner.ref,
            workflow_id=self.workflow_id,
            workflow_run_id=self.workflow_run_id,
            workflow_name=self.workflow_name,
            job_name=self.job,
            step_name=self.step,
            source="step-output",
        )


def layer_tags(
    kind: str,
    *,
    definition: Mapping[str, str] | None = None,
    spec: Mapping[str, str] | None = None,
    write: Mapping[str, str] | None = None,
    spec_name: str = "",
    model_name: str = "",
    step: WorkflowStep | None = None,
    runtime: Mapping[str, str] | None = None,
    step_overrides: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Merge every source of tags; a later layer wins over an earlier one.

    `kind` is `resource`, `file` or `report` and becomes the mandatory tag `type`.
    """
    automatic = {"specName": spec_name, "modelName": model_name}
    layers = (
        {"type": kind},
        definition,
        spec,
        write,
        {key: value for key, value in automatic.items() if value},
        step.layer() if step else None,
        runtime,
        step_overrides,
    )
    return {key: value for layer in layers if layer for key, value in layer.items()}


def varied_name(name: str, keys: Sequence[str], inputs: Mapping[str, Any]) -> str:
    """Return the name of the instance that a step writes when it varies by some of its inputs."""
    missing = [key for key in keys if key not in inputs]
    if missing:
        raise ValidationError(
            f"{name!r} varies by {missing[0]!r}, which is no input of the step",
            hint=f"Inputs: {', '.join(inputs) or 'none'}.",
        )
    return "-".join([name, *(_vary_value(inputs[key]) for key in keys)])


def _vary_value(value: Any) -> str:
    if isinstance(value, Mapping):
        named = next((value[key] for key in _NAMING_KEYS if key in value), None)
        text = json.dumps(value, separators=(",", ":")) if named is None else str(named)
        value = text[:_MAX_VARIED] if named is None else text
    elif isinstance(value, bool) or value is None:
        value = json.dumps(value)
    elif isinstance(value, list | tuple):
        value = json.dumps(value, separators=(",", ":"))[:_MAX_VARIED]
    return _UNSAFE.sub("--", str(value))


def instance_name(name: str, values: Sequence[str]) -> str:
    """Return the name under which a reader finds an instance; the values must be plain."""
    for value in values:
        if not value or _UNSAFE.search(value):
            raise ValidationError(
                f"{value!r} cannot be part of a data name", hint="Give non-empty plain values."
            )
    return "-".join([name, *values])
