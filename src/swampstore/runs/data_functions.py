"""`data.*` in expressions: what earlier runs have left, as records with their attributes.

Content that is only on the remote is fetched: what an expression says must not depend on what this
machine happens to have. Texts in data that look like expressions are none; only the reference that
saving a secret has left stays one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from swampstore.artifacts.metadata import is_text
from swampstore.errors import ModelNotFoundError, NotFoundError, ValidationError
from swampstore.layout import ModelRef, check_segment
from swampstore.runs.definitions import Definitions
from swampstore.runs.writing import vary_value
from swampstore.vaults.references import escape_saved

if TYPE_CHECKING:
    from swampstore.artifact import Artifact
    from swampstore.repo import Repo

Record = dict[str, Any]


class DataFunctions:
    """The functions, for one repository; each answer is remembered, so make one for each run."""

    def __init__(self, repo: Repo) -> None:
        self._repo = repo
        self._definitions = Definitions(repo)
        self._answers: dict[str, Any] = {}

    def call(self, name: str, arguments: Sequence[Any]) -> Any:
        """Return what `data.NAME(ARGUMENTS)` is; raise ValidationError if it is used wrongly."""
        if name not in _FUNCTIONS:
            raise ValidationError(
                f"there is no data.{name}",
                hint=f"There are: {', '.join(f'data.{one}' for one in _FUNCTIONS)}.",
            )
        counts, usage = _FUNCTIONS[name]
        if len(arguments) not in counts:
            raise ValidationError(
                f"data.{name} does not take {len(arguments)} arguments", hint=f"Write {usage}."
            )
        key = repr((name, arguments))
        if key not in self._answers:
            try:
                self._answers[key] = getattr(self, f"_{name}")(*arguments)
            except TypeError as error:
                raise ValidationError(
                    f"data.{name} is given something of a wrong type: {error}",
                    hint=f"Write {usage}.",
                ) from error
        return self._answers[key]

    def _latest(self, model: str, name: str, vary: Sequence[Any] = ()) -> Record | None:
        try:
            found = self._repo.latest(self._model(model), _name(name, vary), default=None)
        except ModelNotFoundError:
            return None
        return self._record(found) if found else None

    def _version(self, model: str, name: str, *rest: Any) -> Record | None:
        *vary, version = rest
        try:
            found = self._repo.version(
                self._model(model), _name(name, *vary), _whole_number(version)
            )
        except NotFoundError:
            return None
        return self._record(found)

    def _listVersions(  # noqa: N802 - as it is called in expressions
        self, model: str, name: str, vary: Sequence[Any] = ()
    ) -> list[int]:
        try:
            return self._repo.list_versions(self._model(model), _name(name, vary))
        except ModelNotFoundError:
            return []

    def _findByTag(self, key: str, value: str) -> list[Record]:  # noqa: N802 - same
        return self._records(self._repo.find_by_tag(_string(key), _string(value)))

    def _findBySpec(self, model: str, spec: str) -> list[Record]:  # noqa: N802 - same
        try:
            return self._records(self._repo.find_by_spec(self._model(model), _string(spec)))
        except ModelNotFoundError:
            return []

    def _query(self, predicate: str, select: str | None = None) -> list[Any]:
        has_remote = self._repo.config.remote is not None
        found = self._repo.query(_string(predicate), select=select, hydrate=has_remote)
        return safe([*found]) if select is not None else self._records([*found])

    def _model(self, model: str) -> str | ModelRef:
        """Return the address of a defined model; others are known by their data, if at all."""
        if ":" in _string(model):
            return model
        defined = self._definitions.find(model)
        return defined.ref if defined else model

    def _records(self, artifacts: Sequence[Artifact]) -> list[Record]:
        from swampstore.repo.querying import fetch_content, read_ahead

        fetch_content(self._repo, [one.row for one in artifacts if _is_readable(one)])
        return [self._record(one) for one in read_ahead(self._repo, artifacts)]

    def _record(self, artifact: Artifact) -> Record:
        record = artifact.record()
        attributes, content = artifact.parsed() if _is_readable(artifact) else ({}, "")
        if attributes is None and _is_readable(artifact) and self._repo.config.remote is not None:
            artifact.open().close()
            attributes, content = artifact.parsed()
        record["attributes"] = safe(attributes or {})
        record["content"] = safe("" if content is None else content)
        return record


_FUNCTIONS = {
    "latest": ((2, 3), "data.latest(MODEL, NAME) or data.latest(MODEL, NAME, [VARY])"),
    "version": ((3, 4), "data.version(MODEL, NAME, VERSION)"),
    "listVersions": ((2, 3), "data.listVersions(MODEL, NAME)"),
    "findByTag": ((2,), "data.findByTag(KEY, VALUE)"),
    "findBySpec": ((2,), "data.findBySpec(MODEL, SPEC)"),
    "query": ((1, 2), "data.query(PREDICATE) or data.query(PREDICATE, SELECT)"),
}
FUNCTION_NAMES = tuple(_FUNCTIONS)


def _is_readable(artifact: Artifact) -> bool:
    return is_text(artifact.content_type) and not artifact.is_too_large_to_parse


def safe(value: Any) -> Any:
    """Return what came out of data, with nothing in it that a run would take for an expression."""
    match value:
        case str():
            return escape_saved(value)
        case Mapping():
            return {key: safe(item) for key, item in value.items()}
        case list() | tuple():
            return [safe(item) for item in value]
    return value


def _name(name: str, vary: Sequence[Any] = ()) -> str:
    if isinstance(vary, str) or not isinstance(vary, Sequence):
        raise TypeError("vary must be a list")
    parts = [one if isinstance(one, str) else vary_value(one) for one in vary]
    if not all(parts):
        raise ValidationError(f"{name} varies by an empty value", hint="Name all of its values.")
    return check_segment("data name", "-".join([_string(name), *parts]))


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} must be text")
    return value


def _whole_number(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"the version is {value!r}")
    return value
