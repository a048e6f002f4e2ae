"""What a record has to ask about: its fields, their types and their columns.

Artifacts are asked about unless somebody says otherwise, with `asking_about`: records of runs have
fields of their own, and the language is the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

from swampstore.catalog.query.tree import (
    Comprehension,
    Expr,
    Ident,
    Kind,
    MapOf,
    children,
    complaint,
)
from swampstore.notices import did_you_mean, sentences


class Field(NamedTuple):
    """A field of a record; without a column it is read from the content of the artifact."""

    name: str
    column: str | None
    kind: Kind | None


def _strings(**columns: str) -> list[Field]:
    return [Field(name, column, "string") for name, column in columns.items()]


FIELDS = {
    field.name: field
    for field in (
        *_strings(
            id="id",
            name="data_name",
            ns="namespace",
            createdAt="created_at",
            modelName="model_name",
            modelId="model_id",
            modelType="type_normalized",
            specName="spec_name",
            dataType="data_type",
            contentType="content_type",
            lifetime="lifetime",
            ownerType="owner_type",
            ownerRef="owner_ref",
            checksum="checksum",
            workflowId="workflow_id",
            workflowRunId="workflow_run_id",
            workflowName="workflow_name",
            jobName="job_name",
            stepName="step_name",
            source="source",
        ),
        Field("version", "version", "int"),
        Field("size", "size", "int"),
        Field("isLatest", "is_latest", "bool"),
        Field("streaming", "streaming", "bool"),
        Field("tags", "tags", "map"),
        Field("attributes", None, "map"),
        Field("content", None, None),
    )
}

CONTENT_FIELDS = frozenset(name for name, field in FIELDS.items() if field.column is None)
_asked: ContextVar[Mapping[str, Field]] = ContextVar("fields", default=FIELDS)
TYPE_NAMES = frozenset(
    {"bool", "bytes", "double", "int", "list", "map", "null_type", "string", "type", "uint"}
)
_NO_NAMES: frozenset[str] = frozenset()


def known_fields() -> Mapping[str, Field]:
    """Return the fields that are asked about: of artifacts, or those of `asking_about`."""
    return _asked.get()


@contextmanager
def asking_about(fields: Mapping[str, Field]) -> Iterator[None]:
    """Let predicates be about other records than artifacts while the block runs."""
    token = _asked.set(fields)
    try:
        yield
    finally:
        _asked.reset(token)


def field_list(names: Iterable[str] | None = None) -> str:
    """Return field names as people read them: sorted, with commas."""
    return ", ".join(sorted(known_fields() if names is None else names, key=str.lower))


def roots(expr: Expr) -> frozenset[str]:
    """Return the fields `expr` mentions; variables of comprehensions are none of them."""
    return frozenset(ident.name for ident in free_names(expr)) & known_fields().keys()


def ensure_known(expr: Expr, source: str) -> None:
    """Raise QueryError for a name that is no field, with the fields there are."""
    for ident in free_names(expr):
        if ident.name not in known_fields() and ident.name not in TYPE_NAMES:
            raise _unknown(ident, source, is_key=_is_key(ident, expr))


def free_names(expr: Expr) -> list[Ident]:
    """Return the names `expr` mentions, variables of comprehensions left out."""
    return _free(expr, _NO_NAMES)


def _free(expr: Expr, bound: frozenset[str]) -> list[Ident]:
    if isinstance(expr, Ident):
        return [] if expr.name in bound else [expr]
    if isinstance(expr, Comprehension):
        inside = bound | {expr.variable}
        body = [ident for part in expr.body for ident in _free(part, inside)]
        return _free(expr.target, bound) + body
    return [ident for child in children(expr) for ident in _free(child, bound)]


def _is_key(ident: Ident, expr: Expr) -> bool:
    if isinstance(expr, MapOf) and any(key is ident for key, _ in expr.entries):
        return True
    return any(_is_key(ident, child) for child in children(expr))


def _unknown(ident: Ident, source: str, *, is_key: bool) -> Exception:
    if is_key:
        advice = f'The keys of a map are written in quotes: {{"{ident.name}": ...}}.'
    elif source[: ident.at].rstrip().endswith("-"):
        advice = 'A name with a dash is written in brackets: tags["a-b"].'
    else:
        advice = sentences(
            did_you_mean(ident.name, known_fields(), 1), "Text is written in quotes."
        )
    problem = f"Unknown field {ident.name} (available: {field_list()})"
    return complaint(problem, source, ident.at, hint=advice)
