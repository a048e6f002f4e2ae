"""The tables of what happened: method outputs, workflow runs, and audit events.

Others write these files, of any version and in any state. So every record, and every line of an
audit file, has a row: columns hold what has the type it should have, `problem` says what has not.
"""

from __future__ import annotations

import io
import json
import tempfile
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, BinaryIO

from swampstore import yaml_dialect
from swampstore.clock import from_iso
from swampstore.errors import SwampstoreError, YamlError
from swampstore.layout import AUDIT, OUTPUTS, WORKFLOW_RUNS, output_of, workflow_run_of
from swampstore.pipeline import schemas
from swampstore.pipeline.places import Place
from swampstore.pipeline.planning import each
from swampstore.pipeline.schemas import variant_of_value
from swampstore.pipeline.source.scan import Whole
from swampstore.pipeline.source.slices import File, Slice, files_of, loads, slices
from swampstore.stores.errors import ObjectNotFoundError
from swampstore.stores.protocol import Store

# Spark holds no larger document; nobody reads a larger record in a query.
LONGEST_RECORD = 16 << 20
_LARGEST = 2**63 - 1
_KINDS = (("commands-", "command"), ("vault-audit-", "vault"), ("vault-reads-", "vault"))


class Members:
    """The members of a record, each as the type it should have; `problems` collects the others."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = document
        self.problems: list[str] = []

    def text(self, key: str, *, required: bool = False) -> str | None:
        """Return a text; with `required` its absence is a problem."""
        value = self._document.get(key)
        if value is None and not required:
            return None
        if isinstance(value, str) and _is_unicode(value):
            return value
        self._complain(key, value, "text")
        return None

    def moment(self, key: str, *, required: bool = False) -> datetime | None:
        """Return a time."""
        text = self.text(key, required=required)
        try:
            return None if text is None else from_iso(text).astimezone(UTC)
        except (ValueError, OverflowError):
            self._complain(key, text, "a time")
            return None

    def number(self, key: str) -> int | None:
        """Return a whole number."""
        value = self._document.get(key)
        if value is None or (type(value) is int and abs(value) <= _LARGEST):
            return value
        self._complain(key, value, "a whole number")
        return None

    def texts(self, key: str) -> list[tuple[str, str]] | None:
        """Return a mapping of texts, as Arrow takes it."""
        value = self._document.get(key)
        if value is None:
            return None
        if isinstance(value, dict) and all(_is_pair_of_texts(pair) for pair in value.items()):
            return list(value.items())
        self._complain(key, value, "a mapping of texts")
        return None

    def list_of_texts(self, key: str) -> list[str]:
        """Return a list of texts; empty if there is none."""
        value = self._document.get(key)
        if value is None:
            return []
        if isinstance(value, list) and all(isinstance(one, str) for one in value):
            return [one for one in value if _is_unicode(one)]
        self._complain(key, value, "a list of texts")
        return []

    def inner(self, key: str) -> Members:
        """Return the members of a member; its problems are problems of the record."""
        value = self._document.get(key)
        if value is not None and not isinstance(value, dict):
            self._complain(key, value, "a mapping")
        members = Members(value if isinstance(value, dict) else {})
        members.problems = self.problems
        return members

    @property
    def problem(self) -> str | None:
        """What is wrong with the record, if anything is."""
        return "; ".join(self.problems) or None

    def _complain(self, key: str, value: object, expected: str) -> None:
        found = "is missing" if value is None else f"is not {expected}"
        self.problems.append(f"{key} {found}")


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_pair_of_texts(pair: tuple[object, object]) -> bool:
    return all(isinstance(one, str) and _is_unicode(one) for one in pair)


@dataclass(frozen=True)
class _Records(Whole[Slice]):
    """Files below one directory."""

    top = ""

    def plan(self, place: Place, store: Store, tasks: int) -> Iterable[Slice]:
        """Choose the shards, or the directories, that such files are in."""
        return slices(
            place,
            store,
            tasks,
            below=[f"{self.top}/"],
            may_hold=lambda partition: partition.partition("--")[0] == self.top,
        )

    def rows(self, place: Place, piece: Slice, store: Store) -> Iterator[tuple[Any, ...]]:
        """Read the files of a slice; those that vanish meanwhile have no row."""
        files = (one for group in files_of(place, piece, store, self.is_record) for one in group)
        names = place.names()
        for load in loads(files, lambda one: one.size):
            opened = each(place, lambda one: _opened(store, names.remote(one.rel), one.size), load)
            for file, content in opened:
                if content is None:
                    continue
                with content:
                    for columns in self.columns(file, content):
                        yield (place.identity, place.namespace, *columns)

    @abstractmethod
    def is_record(self, rel: str) -> bool:
        """Whether a file is a record of this kind, by its path."""

    @abstractmethod
    def columns(self, file: File, content: BinaryIO) -> Iterator[tuple[Any, ...]]:
        """Yield the columns behind store and namespace."""


def _opened(store: Store, key: str, size: int) -> BinaryIO | None:
    try:
        if size <= LONGEST_RECORD:
            return io.BytesIO(store.get(key).data)
        file = tempfile.TemporaryFile()  # noqa: SIM115 - whoever reads it closes it
        store.download(key, file.fileno())
    except ObjectNotFoundError:
        return None
    file.seek(0)
    return file


@dataclass(frozen=True)
class _Documents(_Records):
    """Records that are YAML documents, one per file."""

    def columns(self, file: File, content: BinaryIO) -> Iterator[tuple[Any, ...]]:
        """Yield the one row of a record."""
        try:
            document = _document(file, content)
        except SwampstoreError as error:
            own = self.own_columns(file.rel, Members({}))
            yield (file.rel, *own, file.size, None, error.message)
            return
        members = Members(document)
        own = self.own_columns(file.rel, members)
        yield (file.rel, *own, file.size, variant_of_value(document), members.problem)

    @abstractmethod
    def own_columns(self, rel: str, members: Members) -> tuple[Any, ...]:
        """Return what this kind of record tells."""


def _document(file: File, content: BinaryIO) -> dict[str, Any]:
    if file.size > LONGEST_RECORD:
        raise YamlError(
            f"it is {file.size} bytes long, too long to be read", hint="Look at the file itself."
        )
    return yaml_dialect.load_mapping(content.read(), what=file.rel)


class Outputs(_Documents):
    """One row per output of a method: `outputs/TYPE/METHOD/DEFINITION-TIME.yaml`."""

    top = OUTPUTS
    schema = schemas.OUTPUTS

    def is_record(self, rel: str) -> bool:
        """Whether a path is where outputs are kept."""
        return output_of(rel) is not None

    def own_columns(self, rel: str, members: Members) -> tuple[Any, ...]:
        """Return what an output tells."""
        model_type, method = output_of(rel) or ("", "")
        origin = members.inner("provenance")
        return (
            members.text("id", required=True),
            model_type,
            members.text("methodName") or method,
            members.text("definitionId"),
            members.text("status", required=True),
            members.moment("startedAt", required=True),
            members.moment("completedAt"),
            members.number("durationMs"),
            members.number("retryCount"),
            origin.text("triggeredBy"),
            origin.text("workflowId"),
            origin.text("workflowRunId"),
            origin.text("stepName"),
            members.inner("error").text("message"),
            members.text("logFile"),
        )


class WorkflowRuns(_Documents):
    """One row per run of a workflow: `workflow-runs/WORKFLOW/workflow-run-ID.yaml`."""

    top = WORKFLOW_RUNS
    schema = schemas.WORKFLOW_RUNS

    def is_record(self, rel: str) -> bool:
        """Whether a path is where runs are kept."""
        return workflow_run_of(rel) is not None

    def own_columns(self, rel: str, members: Members) -> tuple[Any, ...]:
        """Return what a run tells."""
        return (
            members.text("id", required=True),
            members.text("workflowId") or rel.split("/")[1],
            members.text("workflowName"),
            members.text("status", required=True),
            members.moment("startedAt", required=True),
            members.moment("completedAt"),
            members.text("failedStep"),
            members.text("failureReason"),
            members.text("initiatedBy"),
            members.text("triggerSource"),
            members.texts("tags"),
            members.text("logFile"),
        )


class Audit(_Records):
    """One row per event: a line of a file `audit/*.jsonl`."""

    top = AUDIT
    schema = schemas.AUDIT

    def is_record(self, rel: str) -> bool:
        """Whether a path is a file of lines."""
        return rel.startswith(f"{AUDIT}/") and rel.endswith(".jsonl")

    def columns(self, file: File, content: BinaryIO) -> Iterator[tuple[Any, ...]]:
        """Yield one row per line that is not blank."""
        name = file.rel.rpartition("/")[2]
        kind = next((kind for start, kind in _KINDS if name.startswith(start)), None)
        for number, line in _lines(content):
            yield (file.rel, number, *_event(kind, line))


def _lines(content: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield the lines with their numbers; of an endless one only the start."""
    number = 0
    is_start = True
    while line := content.readline(LONGEST_RECORD):
        number += is_start
        if is_start and line.strip():
            yield number, line
        is_start = line.endswith(b"\n")


def _event(kind: str | None, line: bytes) -> tuple[Any, ...]:
    try:
        document = json.loads(line)
    except (ValueError, RecursionError) as error:
        return (kind, *(None,) * 13, f"the line is not JSON: {error}")
    if not isinstance(document, dict):
        return (kind, *(None,) * 13, "the line is not a JSON object")
    members = Members(document)
    action = members.text("action")
    if action is None and kind == "vault" and "action" not in document:
        action = "get"  # all that was recorded before events had an action
    named = [members.text("model"), *members.list_of_texts("models")]
    return (
        members.text("kind") or kind,
        members.moment("timestamp", required=True),
        members.text("command"),
        members.text("cwd"),
        members.text("sessionId"),
        members.number("exitCode"),
        members.text("error"),
        action,
        members.text("vaultName"),
        members.text("vaultType"),
        members.text("secretKey"),
        members.text("actor"),
        list(dict.fromkeys(one for one in named if one is not None)),
        variant_of_value(document),
        members.problem,
    )
