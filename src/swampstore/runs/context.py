"""What a method receives: everything that it may read and write, and nothing else of the run.

A method may fan out: its threads write through one context, which lets one after the other change
the datastore, under the one lock of the model and with one push at the end.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, Self

from swampstore.artifacts.save import to_json_bytes
from swampstore.errors import NotFoundError, SwampstoreError, ValidationError
from swampstore.files import disk_errors, replacing
from swampstore.layout import ModelRef
from swampstore.runs.errors import (
    InputError,
    InputSchemaError,
    NestedRunError,
    RunCancelledError,
    UndeclaredSpecError,
)
from swampstore.runs.writing import FILE, RESOURCE, Handle, Spec, Writing

if TYPE_CHECKING:
    import logging

    from swampstore.artifact import Artifact
    from swampstore.artifacts.streaming import VersionWriter
    from swampstore.redaction import Redactor
    from swampstore.repo import Repo
    from swampstore.runs.capture import RunLog
    from swampstore.runs.method_request import MethodResult
    from swampstore.vaults import Vaults
    from swampstore.vaults.references import Resolver

DEEPEST = 10
MOST_CALLS = 100


@dataclass(slots=True)
class Calls:
    """The methods that are running inside each other, and how many there were in all."""

    chain: tuple[tuple[ModelRef, str], ...]
    output_id: str
    count: list[int]
    # Of the run that this one is inside of, if both are of one model and in one session.
    lock: AbstractContextManager[bool] | None = None

    def check(self, model: ModelRef, method: str) -> None:
        """Raise NestedRunError if a method may not be run inside of this one."""
        if (model, method) in self.chain:
            way = " -> ".join(f"{one} {name}" for one, name in (*self.chain, (model, method)))
            raise NestedRunError(
                f"{model} {method} would run inside of itself: {way}",
                hint="Let one of them do without the other.",
            )
        if len(self.chain) >= DEEPEST:
            raise NestedRunError(
                f"methods run each other more than {DEEPEST} deep",
                hint="Use a workflow instead.",
            )
        if self.count[0] >= MOST_CALLS:
            raise NestedRunError(
                f"one run may run at most {MOST_CALLS} methods of other models",
                hint="Use a workflow instead.",
            )
        self.count[0] += 1


class RunState(NamedTuple):
    """What belongs to one run, and is shared by its parts."""

    repo: Repo
    run_id: str
    model: ModelRef
    method: str
    writing: Writing
    log: RunLog
    redactor: Redactor
    show: Callable[[str, bytes], None]
    cancelled: Sequence[threading.Event]
    specs: Mapping[str, Spec]
    vaults: Callable[[], Vaults]
    resolver: Callable[[], Resolver]
    run_nested: Callable[..., MethodResult]
    timeout: float | None = None


class MethodContext:
    """What a method works with."""

    def __init__(
        self,
        state: RunState,
        definition: Any,
        inputs: Mapping[str, Any],
        global_args: Mapping[str, Any],
    ) -> None:
        self._state = state
        self._repo = state.repo
        self.definition = definition
        self.inputs = inputs
        self.global_args = global_args

    @property
    def state(self) -> RunState:
        """The parts of the run, for what is built in."""
        return self._state

    @property
    def model(self) -> ModelRef:
        """The address of the model."""
        return self._state.model

    @property
    def method(self) -> str:
        """The method that is being run."""
        return self._state.method

    @property
    def run_id(self) -> str:
        """The id of the run, which its record has as well."""
        return self._state.run_id

    @property
    def cancelled(self) -> bool:
        """Whether somebody asked the run to end. A method that takes long should look."""
        return any(one.is_set() for one in self._state.cancelled)

    def check_cancelled(self) -> None:
        """Raise RunCancelledError if somebody asked the run to end."""
        if self.cancelled:
            raise RunCancelledError("the run was cancelled")

    # Writing -------------------------------------------------------------------------------

    def write_resource(
        self, spec: str, name: str, value: Mapping[str, Any] | list[Any], **overrides: Any
    ) -> Handle:
        """Save a JSON document as the next version of `name`, which is an instance of a spec.

        It is saved at once. `overrides` are `tags`, `lifetime` and `garbage_collection`. Raises
        UndeclaredSpecError if the class declares no such resource.
        """
        declared = self._spec(spec, RESOURCE)
        self._warn_if_wrong(declared, value)
        value = self._without_sensitive(declared, name, value)
        if not self._state.redactor.is_empty:
            value = self._state.redactor.document(value)
        try:
            content = to_json_bytes(value)
        except (TypeError, ValueError) as error:
            raise ValidationError(
                f"{spec} {name} cannot be written as JSON: {error}",
                hint="Use plain dicts, lists, numbers and strings.",
            ) from error
        return self._state.writing.save(declared, name, content, _checked(overrides), value)

    def file_writer(self, spec: str, name: str, **overrides: Any) -> FileWriter:
        """Return a writer for the next version of a file, for a `with` block.

        `overrides` are those of `write_resource`, and `content_type`. Several can be open at a
        time, in several threads.
        """
        declared = self._spec(spec, FILE)
        return FileWriter(self._state, declared, name, _checked(overrides))

    def delete_resource(self, name: str) -> None:
        """Say that what a resource describes is gone: its next version is a deletion marker."""
        with self._state.writing.lock:
            self._repo.artifacts.mark_deleted(self.model, name, method=self.method)

    def _spec(self, name: str, kind: str) -> Spec:
        found = self._state.specs.get(name)
        if found is not None and found.kind == kind:
            return found
        known = sorted(one.name for one in self._state.specs.values() if one.kind == kind)
        raise UndeclaredSpecError(
            f"{self.model.type} declares no {kind} {name!r}",
            hint=f"It declares: {', '.join(known) or 'none'}.",
        )

    def _warn_if_wrong(self, spec: Spec, value: Any) -> None:
        if spec.schema is None:
            return
        from swampstore.runs.inputs import check_inputs

        try:
            if isinstance(value, Mapping):
                open_schema = {"additionalProperties": True, **spec.schema}
                check_inputs(open_schema, value, spec.name)
        except (InputError, InputSchemaError) as error:
            self.logger.warning("%s is not as it is declared: %s", spec.name, error.message)

    def _without_sensitive(self, spec: Spec, name: str, value: Any) -> Any:
        if not spec.is_sensitive and not (spec.schema and "sensitive" in str(spec.schema)):
            return value
        from swampstore.vaults import sensitive

        found = sensitive_of(spec, self._state.writing.origin.resources)
        state = self._state
        instance = state.writing.origin.instance_name(spec.name, name)
        origin = sensitive.Origin(self.model.type, self.model.id, self.method, spec.name, instance)
        with state.writing.lock:
            return sensitive.store_sensitive(state.vaults(), value, found, origin, state.redactor)

    # Reading -------------------------------------------------------------------------------

    def read_resource(self, name: str, version: int | None = None) -> Any:
        """Return a document of this model, None if there is none; references become values."""
        return self.read_model_data(self.model, name, version)

    def read_model_data(self, model: str | ModelRef, name: str, version: int | None = None) -> Any:
        """Return a document of any model, None if there is none; references become values."""
        with self._state.writing.lock:
            found = self._find(model, name, version)
            value = None if found is None else found.json()
        if value is None or b"vault.get" not in to_json_bytes(value):
            return value
        return self._state.resolver().resource(value)

    def _find(self, model: str | ModelRef, name: str, version: int | None) -> Artifact | None:
        own = self._state.writing.newest(name) if model == self.model and not version else None
        if own is not None:
            version = own.version  # which nobody else sees yet if it may be taken back
        if version is None:
            return self._repo.latest(model, name, default=None)
        try:
            return self._repo.version(model, name, version)
        except NotFoundError:
            return None

    def query(self, predicate: str | None = None, **details: Any) -> list[Any]:
        """Return what `repo.query` finds."""
        with self._state.writing.lock:
            return [*self._repo.query(predicate, **details)]

    def secret(self, vault: str, key: str) -> str:
        """Return the value of a secret, which nothing that this run leaves behind will show."""
        with self._state.writing.lock:
            return self._state.resolver().get(vault, key)

    # Other models ----------------------------------------------------------------------------

    def run_model(
        self,
        model: str,
        method: str,
        inputs: Mapping[str, Any] | None = None,
        *,
        check: bool = True,
        **details: Any,
    ) -> MethodResult:
        """Run a method of another model, or another one of this, and return how it ended.

        Raises NestedRunError if it fails, unless `check` is off; if it would run inside of itself,
        more than 10 deep, or as the 101st. `details` are members of `MethodRequest`.
        """
        result = self._state.run_nested(model, method, inputs or {}, **details)
        if check and result.status != "succeeded":
            error = result.output.error or {}
            raise NestedRunError(
                f"{model} {method} {result.status}: {error.get('message', '')}",
                hint=f"See `swampstore output show {result.output.id}`.",
            )
        return result

    # Telling ---------------------------------------------------------------------------------

    @cached_property
    def logger(self) -> logging.Logger:
        """Writes to the log of the run, and to the terminal; secrets are taken out."""
        from swampstore.runs.method_log import run_logger

        return run_logger(self._state)


def sensitive_of(spec: Spec, resources: Mapping[str, Any]) -> Any:
    """Return what of a spec is sensitive, the vault of the definition before that of the class."""
    from swampstore.vaults.sensitive import Sensitive, sensitive_members

    members = sensitive_members(spec.schema) if spec.schema else {}
    said = resources.get(spec.name)
    wish = said.get("vaultName") if isinstance(said, Mapping) else None
    return Sensitive(members, spec.is_sensitive, wish or spec.vault)


_OVERRIDES = frozenset({"tags", "lifetime", "garbage_collection", "content_type"})


def _checked(overrides: Mapping[str, Any]) -> Mapping[str, Any]:
    if unknown := sorted({*overrides} - _OVERRIDES):
        raise ValidationError(
            f"{', '.join(unknown)} cannot be said of what is written",
            hint=f"Use {', '.join(sorted(_OVERRIDES))}.",
        )
    return overrides


class FileWriter:
    """Writes one version of a file; use it in a `with` block. Secrets are taken out on the way."""

    def __init__(self, state: RunState, spec: Spec, name: str, said: Mapping[str, Any]) -> None:
        self._state = state
        self._spec = spec
        self._writer: VersionWriter = state.writing.open_writer(spec, name, said)
        self._stream = state.redactor.stream()
        self._is_outside = False
        self.handle: Handle | None = None

    @property
    def path(self) -> str:
        """The file, for programs that write it themselves. They write all of it."""
        self._is_outside = True
        return self._writer.path

    def write(self, data: bytes) -> int:
        """Write the next bytes."""
        self._writer.write(self._stream.feed(data))
        return len(data)

    def write_text(self, text: str) -> int:
        """Write text as UTF-8."""
        return self.write(text.encode())

    def write_line(self, text: str) -> int:
        """Write text and the end of a line."""
        return self.write(f"{text}\n".encode())

    def copy_from(self, source: BinaryIO) -> None:
        """Write everything that `source` still holds."""
        while piece := source.read(1 << 20):
            self.write(piece)

    def finalize(self) -> Handle:
        """Make the version visible; leaving the block does the same."""
        if self.handle is None:
            if self._is_outside and not self._state.redactor.is_empty:
                self._clean_outside()
            elif not self._is_outside:
                self._writer.write(self._stream.finish())
            self.handle = self._state.writing.finalize(self._spec, self._writer)
        return self.handle

    def _clean_outside(self) -> None:
        """Take the secrets out of what somebody else wrote."""
        path = self._writer.path
        stream, durable = self._state.redactor.stream(), self._state.repo.config.durable
        with (
            disk_errors(path),
            open(path, "rb") as source,
            replacing(path, durable=durable) as cleaned,
            open(cleaned, "wb") as target,
        ):
            while piece := source.read(1 << 20):
                target.write(stream.feed(piece))
            target.write(stream.finish())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.finalize()
            return
        if self.handle is None:
            with self._state.writing.lock:
                self._writer.abort()


def told(error: BaseException) -> str:
    """Return the message of an error, with its class if that is not one of ours."""
    if isinstance(error, SwampstoreError):
        return error.message
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
