"""How the end of a method run becomes its output record: what is said, by whom, without secrets."""

from __future__ import annotations

import os
import re
import time
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from swampstore.clock import to_iso
from swampstore.errors import SwampstoreError
from swampstore.files import read_file
from swampstore.runs import shell
from swampstore.runs.context import Calls, told
from swampstore.runs.outputs import Output, Outputs, Provenance, WrittenArtifact

if TYPE_CHECKING:
    from swampstore.redaction import Redactor
    from swampstore.repo import Repo
    from swampstore.runs.method_plan import Target
    from swampstore.runs.method_request import MethodRequest


class MethodRecord:
    """Makes and saves the record of one run, whose id it gives."""

    def __init__(
        self,
        repo: Repo,
        request: MethodRequest,
        target: Target,
        redactor: Redactor,
        parent: Calls | None,
    ) -> None:
        self._repo = repo
        self._request = request
        self._target = target
        self._redactor = redactor
        self._parent = parent
        self.id = str(uuid.uuid4())
        # Empty until the run begins.
        self.started_at = ""
        self._start = 0.0

    def begin(self) -> None:
        """Note when the run begins."""
        self.started_at, self._start = to_iso(self._repo.clock()), time.monotonic()

    def output(
        self,
        status: str,
        exit_code: int,
        artifacts: tuple[WrittenArtifact, ...],
        error: Mapping[str, str] | None = None,
    ) -> Output:
        """Return the record of a run that ends now."""
        request, target = self._request, self._target
        extra: dict[str, Any] = {
            "command": [*map(shell.readable, request.command)] if request.command else None,
            "inputs": dict(request.inputs) or None,
            "exitCode": exit_code if request.command is not None else None,
            "host": os.uname().nodename,
            "gitCommit": _git_commit(self._repo.config.repo_dir),
        }
        return Output(
            id=self.id,
            model=target.model,
            model_name=target.definition.name,
            method=target.method,
            status=status,
            started_at=self.started_at,
            completed_at=to_iso(self._repo.clock()),
            duration_ms=round((time.monotonic() - self._start) * 1000),
            provenance=self._provenance(),
            artifacts=artifacts,
            error=error,
            pid=os.getpid(),
            extra={key: value for key, value in extra.items() if value is not None},
        )

    def _provenance(self) -> Provenance:
        definition, step = self._target.definition, self._request.step
        provenance = Provenance(
            definition_hash=definition.hash,
            model_version=self._target.version or definition.type_version or "",
            triggered_by="model" if self._parent else "manual",
            parent_output_id=self._parent.output_id if self._parent else "",
        )
        if step is None:
            return provenance
        return provenance._replace(
            triggered_by="workflow",
            workflow_id=step.workflow_id,
            workflow_run_id=step.workflow_run_id,
            step_name=step.step_name,
            initiated_by=step.initiated_by,
            extra={"jobName": step.job_name},
        )

    def error(self, error: BaseException, reason: str | None = None) -> dict[str, str]:
        """Return what the record says of an error; where it happened, if it is none of ours."""
        text = told(error)
        if reason:
            text = f"{text}: {reason}"
        message = {"message": self._redactor.text(shell.readable(text))}
        if isinstance(error, SwampstoreError | KeyboardInterrupt | SystemExit):
            return message
        import traceback

        stack = shell.readable("".join(traceback.format_exception(error)))
        return {**message, "stack": self._redactor.text(stack)}

    def save(self, output: Output) -> Output:
        """Save the record without secrets, and return it with its place."""
        redactor = self._redactor
        if not redactor.is_empty:
            output = output._replace(
                error=redactor.document(output.error) if output.error else None,
                extra=redactor.document(output.extra),
            )
        return Outputs(self._repo).save(output)


# The commit of git -----------------------------------------------------------------------------


_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_DEEPEST_REF = 5


def _git_commit(directory: str) -> str | None:
    """Return the commit that is checked out, None if there is none or it cannot be found out."""
    try:
        git = _git_dir(os.path.realpath(directory))
        return None if git is None else _resolved(git, _common(git), "HEAD")
    except (OSError, UnicodeDecodeError, ValueError):
        return None


def _git_dir(directory: str) -> str | None:
    while True:
        path = f"{directory}/.git"
        if os.path.isdir(path):
            return path
        if (told := _read(path)) is not None:  # a worktree or a submodule
            return os.path.join(directory, told.removeprefix("gitdir:").strip())
        above = os.path.dirname(directory)
        if above == directory:
            return None
        directory = above


def _common(git: str) -> str:
    """Return the directory that all worktrees share."""
    return os.path.join(git, (_read(f"{git}/commondir") or ".").strip())


def _resolved(git: str, common: str, name: str) -> str | None:
    for _ in range(_DEEPEST_REF):
        text = (_read(f"{git}/{name}") or _read(f"{common}/{name}") or "").strip()
        if not text:
            return _packed(common, name)
        if not text.startswith("ref:"):
            return text if _COMMIT.fullmatch(text) else None
        name = text.removeprefix("ref:").strip()
        if ".." in name:
            return None
    return None


def _packed(common: str, name: str) -> str | None:
    for line in (_read(f"{common}/packed-refs") or "").splitlines():
        commit, _, found = line.partition(" ")
        if found == name and _COMMIT.fullmatch(commit):
            return commit
    return None


def _read(path: str) -> str | None:
    try:
        data = read_file(path)
    except IsADirectoryError:
        return None
    return None if data is None else data.decode()
