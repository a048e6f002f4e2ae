"""Definitions: the files in `models` that say what there is to run, how to find one, its hash.

A definition is an instance of a type: its arguments, its inputs, its tags. After its expressions
were evaluated it is kept in the datastore, with references to secrets as they are, so that a later
run can use exactly what an earlier one used. A file that cannot be read disables only itself.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from swampstore import yaml_dialect
from swampstore.errors import (
    ModelNotFoundError,
    SwampstoreError,
    ValidationError,
)
from swampstore.files import read_file
from swampstore.layout import (
    AUTO_DEFINITIONS,
    EVALUATED_DEFINITIONS,
    ModelRef,
    check_model_name,
    normalise_type,
)
from swampstore.notices import did_you_mean
from swampstore.repo.definition_files import (
    DefinitionFile,
    definition_paths,
    model_directories,
    read_definition_file,
)
from swampstore.runs.canonical import canonical_hash
from swampstore.runs.errors import DefinitionError, NoEvaluatedDefinitionError

if TYPE_CHECKING:
    from swampstore.repo import Repo

_FILE_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_NEW_NAME = re.compile(rf"{_FILE_NAME.pattern}|@[a-z0-9_-]+(?:/[a-z0-9_-]+)+")
_OPTIONAL = ("inputs", "checks", "reports", "resources")
_KNOWN = frozenset(
    {"type", "typeVersion", "id", "name", "version", "tags", "globalArguments", "methods"}
    | {*_OPTIONAL}
)
_LISTED = 12


@dataclass(frozen=True, slots=True)
class Definition:
    """One model: what its file says. `methods` has the arguments of each method."""

    type: str
    id: str
    name: str
    version: int = 1
    type_version: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    global_arguments: Mapping[str, Any] = field(default_factory=dict)
    methods: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    inputs: Mapping[str, Any] | None = None
    checks: Mapping[str, Any] = field(default_factory=dict)
    reports: Mapping[str, Any] = field(default_factory=dict)
    resources: Mapping[str, Any] = field(default_factory=dict)
    # Members of the file, and of its methods, that we do not know.
    extra: Mapping[str, Any] = field(default_factory=dict)
    method_extra: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    path: str | None = field(default=None, compare=False)

    @property
    def ref(self) -> ModelRef:
        """The address of the model's data."""
        return ModelRef(self.type, self.id)

    @property
    def hash(self) -> str:
        """What provenance says: the SHA-256 of everything but the type and its version."""
        document = self.to_document()
        return canonical_hash(
            {key: value for key, value in document.items() if key not in ("type", "typeVersion")}
        )

    @property
    def where(self) -> str:
        """The file, for errors; the model's address if it has none."""
        return self.path or str(self.ref)

    def to_document(self) -> dict[str, Any]:
        """Return the members of its file; those that say nothing are left out."""
        optional = {
            "inputs": self.inputs,
            "checks": dict(self.checks) or None,
            "reports": dict(self.reports) or None,
            "resources": dict(self.resources) or None,
        }
        return {
            "type": self.type,
            **({"typeVersion": self.type_version} if self.type_version else {}),
            "id": self.id,
            "name": self.name,
            "version": self.version,
            "tags": dict(self.tags),
            "globalArguments": dict(self.global_arguments),
            "methods": {
                name: {**self.method_extra.get(name, {}), "arguments": dict(arguments)}
                for name, arguments in self.methods.items()
            },
            **{key: value for key, value in optional.items() if value is not None},
            **self.extra,
        }


class BrokenDefinition(NamedTuple):
    """A file that should define a model and does not."""

    path: str
    error: SwampstoreError


def adhoc(ref: ModelRef, name: str | None = None) -> Definition:
    """Return a definition made on the fly, for `run TYPE/ID` of what no file defines.

    Without `Definitions.save_auto`, `data prune` takes what it writes for left-over.
    """
    return Definition(type=ref.type, id=ref.id, name=name or ref.id)


def check_new_name(name: str) -> str:
    """Return `name` if a new definition may have it."""
    if not _NEW_NAME.fullmatch(name):
        raise ValidationError(
            f"{name!r} is not a name for a model",
            hint="Use at most 64 of a-z, 0-9, '-' and '_', or @collective/name.",
        )
    return name


class Definitions:
    """The definitions of one repository. What was read once is not read again: make a new one."""

    def __init__(self, repo: Repo) -> None:
        self._repo = repo
        self._read: dict[str, Definition | BrokenDefinition] = {}

    @cached_property
    def _paths(self) -> tuple[dict[str, bool], list[BrokenDefinition]]:
        """Every file that may define a model, whether it was made on the fly; and the others."""
        source, *auto = model_directories(self._repo)
        paths: dict[str, bool] = {}
        broken: list[BrokenDefinition] = []
        for directory in (source, *auto):
            for found in definition_paths(directory):
                if isinstance(found, str):
                    paths[found] = directory != source
                elif found.error:
                    broken.append(BrokenDefinition(found.path, found.error))
        return paths, broken

    def _at(self, path: str) -> Definition | BrokenDefinition:
        if path not in self._read:
            self._read[path] = _decoded_or_broken(read_definition_file(path))
        return self._read[path]

    def all(self) -> tuple[list[Definition], list[BrokenDefinition]]:
        """Return every definition by name, and the files that should be one and are not.

        A definition made on the fly is among them unless the source has one with its id or name.
        """
        paths, broken = self._paths
        broken = [*broken]
        by_id: dict[str, Definition] = {}
        names: set[str] = set()
        for path, is_auto in paths.items():
            found = self._at(path)
            if isinstance(found, BrokenDefinition):
                broken.append(found)
            elif is_auto:
                if found.name not in names:
                    by_id.setdefault(found.id, found)
            elif (same := by_id.setdefault(found.id, found)) is found:
                names.add(found.name)
            elif same.name != found.name or same.type != found.type:
                broken.append(BrokenDefinition(path, _same_id(found, same)))
            elif _is_called_by_name(found):  # and so was saved last
                by_id[found.id] = found
        return sorted(by_id.values(), key=lambda one: (one.name, one.type)), broken

    def find(self, model: str) -> Definition | None:
        """Return a definition by its name, its id or TYPE/ID; None if there is none.

        Raises ValidationError if several models have that name, and the error of a file that
        would define it and cannot be read.
        """
        if quick := self._called(model):
            return quick
        known, broken = self.all()
        named = [one for one in known if one.name == model]
        if len(named) > 1:
            raise _ambiguous(model, named)
        if named:
            return named[0]
        for one in known:
            if one.id == model or str(one.ref) == _as_address(model):
                return one
        for path, error in broken:
            if _stem(path) == model:
                raise error
        return None

    def _called(self, model: str) -> Definition | None:
        """Return the definition in the only file that is called like it, without parsing others.

        What is in a file may have another name than the file, and its id may be in another one:
        then this says nothing.
        """
        candidates = [path for path in self._paths[0] if _stem(path) == model]
        if len(candidates) != 1:
            return None
        found = self._at(candidates[0])
        if isinstance(found, BrokenDefinition) or found.name != model:
            return None
        others = (path for path in self._paths[0] if path != found.path)
        is_elsewhere = any(found.id.encode() in _bytes(path) for path in others)
        return None if is_elsewhere else found

    def require(self, model: str) -> Definition:
        """Return a definition as `find` does; raise ModelNotFoundError with names near to it."""
        if found := self.find(model):
            return found
        known, broken = self.all()
        raise ModelNotFoundError(
            f"no definition is called {model!r}",
            hint=_what_there_is(model, [one.name for one in known], len(broken)),
        )

    # In the datastore --------------------------------------------------------------------------

    def save_evaluated(self, definition: Definition) -> None:
        """Keep a definition whose expressions were evaluated; writes nothing if it is known."""
        self._save(EVALUATED_DEFINITIONS, definition)

    def save_auto(self, definition: Definition) -> None:
        """Keep a definition that was made on the fly, so that its model counts as defined."""
        self._save(AUTO_DEFINITIONS, definition)
        self.__dict__.pop("_paths", None)
        self._read.clear()

    def _save(self, subdir: str, definition: Definition) -> None:
        tree = self._repo.tree
        rel = f"{subdir}/{definition.type}/{file_name(definition)}"
        data = yaml_dialect.dump(definition.to_document()).encode()
        if tree.read(rel) != data:
            tree.replace_file(rel, data)
        other = f"{subdir}/{definition.type}/{definition.id}.yaml"
        if other != rel and tree.size(other) is not None:
            with tree.changing(other) as change:
                change.remove(other)

    def load_evaluated(self, model: str) -> Definition:
        """Return what the last run of a model was given.

        Raises NoEvaluatedDefinitionError if there was none, and what its file has wrong.
        """
        defined = self.find(model)
        for path in self._evaluated_paths(defined):
            found = _decoded_or_broken(read_definition_file(path))
            if isinstance(found, BrokenDefinition):
                if _stem(path) in (model, defined and defined.name):
                    raise found.error
            elif (found.id == defined.id) if defined else _answers_to(found, model):
                return found
        raise NoEvaluatedDefinitionError(
            f"no run of {model!r} has left an evaluated definition",
            hint="Run it once without --last-evaluated.",
        )

    def _evaluated_paths(self, defined: Definition | None) -> Iterator[str]:
        tree = self._repo.tree
        if defined:
            rel = f"{EVALUATED_DEFINITIONS}/{defined.type}/{file_name(defined)}"
            if tree.size(rel) is not None:
                yield tree.path(rel)
        for place in tree.places(EVALUATED_DEFINITIONS):
            yield from (path for path in definition_paths(place) if isinstance(path, str))


def file_name(definition: Definition) -> str:
    """Return how the file of a definition is called: by its name, by its id if that is unsafe."""
    safe = _FILE_NAME.fullmatch(definition.name)
    return f"{definition.name if safe else definition.id}.yaml"


def _bytes(path: str) -> bytes:
    try:
        return read_file(path) or b""
    except OSError:  # who looks at all files will say so
        return b""


def _is_called_by_name(definition: Definition) -> bool:
    return definition.path is not None and _stem(definition.path) == definition.name


def _stem(path: str) -> str:
    return os.path.basename(path).rpartition(".")[0]


def _as_address(model: str) -> str | None:
    try:
        return str(ModelRef.parse(model))
    except ValidationError:
        return None


def _answers_to(definition: Definition, model: str) -> bool:
    return model in (definition.name, definition.id) or str(definition.ref) == _as_address(model)


def _what_there_is(model: str, names: list[str], broken: int) -> str:
    if question := did_you_mean(model, names):
        hint = question
    elif names:
        more = ", ..." if len(names) > _LISTED else ""
        hint = f"Defined are: {', '.join(names[:_LISTED])}{more}."
    else:
        hint = "There is no definition: write models/TYPE/NAME.yaml, or give TYPE/ID."
    return f"{hint} {broken} file(s) could not be read." if broken else hint


def _ambiguous(name: str, found: list[Definition]) -> ValidationError:
    listed = ", ".join(f"{one.ref} ({one.where})" for one in found[:_LISTED])
    return ValidationError(
        f"{name!r} is the name of {len(found)} models: {listed}",
        hint="Give the id, or the address TYPE/ID, of the one you mean.",
    )


def _same_id(found: Definition, other: Definition) -> DefinitionError:
    return DefinitionError(
        f"{found.where}: its id is that of {other.where}, so both would share their data",
        hint=f"Give the new one an id of its own, {uuid.uuid4()} for example.",
    )


# What a file says ----------------------------------------------------------------------------


def _decoded_or_broken(file: DefinitionFile) -> Definition | BrokenDefinition:
    if file.error:
        return BrokenDefinition(file.path, file.error)
    try:
        return decode(file.document, file.path)
    except SwampstoreError as error:
        return BrokenDefinition(file.path, error)


def decode(document: Mapping[str, Any], path: str) -> Definition:
    """Return what the members of a file say; raise DefinitionError naming the wrong one."""
    members = _Members(document, path)
    methods = {
        name: _Members(members.mapping("methods", name), path, f"methods.{name}.")
        for name in members.mapping("methods")
    }
    definition = Definition(
        type=members.checked("type", normalise_type),
        id=members.checked("id", lambda text: ModelRef.of("any", text).id),
        name=members.checked("name", check_model_name),
        version=members.version(),
        type_version=members.type_version(),
        tags=members.tags(),
        global_arguments=members.mapping("globalArguments"),
        methods={name: one.mapping("arguments") for name, one in methods.items()},
        inputs=members.mapping("inputs") if document.get("inputs") is not None else None,
        checks=members.mapping("checks"),
        reports=members.mapping("reports"),
        resources=members.mapping("resources"),
        path=path,
    )
    return replace(
        definition,
        extra={key: value for key, value in document.items() if key not in _KNOWN},
        method_extra={
            name: rest for name, one in methods.items() if (rest := one.without("arguments"))
        },
    )


class _Members:
    """The members of a document, each of the kind that it must be."""

    def __init__(self, document: Mapping[str, Any], path: str, prefix: str = "") -> None:
        self._document = document
        self._path = path
        self._prefix = prefix

    def _wrong(self, name: str, reason: str, hint: str) -> DefinitionError:
        return DefinitionError(f"{self._path}: {self._prefix}{name} {reason}", hint=hint)

    def text(self, name: str) -> str:
        value = self._document.get(name)
        if isinstance(value, str) and value.strip():
            return value
        reason = "is missing" if value is None else f"is {value!r} and must be text"
        example = f"{uuid.uuid4()}" if name == "id" else "..."
        raise self._wrong(name, reason, f"Write `{name}: {example}`.")

    def checked(self, name: str, check: Any) -> str:
        text = self.text(name)
        try:
            return str(check(text))
        except ValidationError as error:
            raise self._wrong(name, f"is wrong: {error.message}", error.hint or "") from error

    def mapping(self, *names: str) -> dict[str, Any]:
        value: Any = self._document
        for name in names:
            value = value.get(name)
            if value is None:
                return {}
            if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
                raise self._wrong(
                    ".".join(names),
                    "must be a mapping with keys that are text",
                    "Write it as `key: value` lines, keys that are numbers in quotes.",
                )
        return dict(value)

    def version(self) -> int:
        value = self._document.get("version", 1)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
        raise self._wrong("version", f"is {value!r}", "Write a whole number from 1.")

    def type_version(self) -> str | None:
        """The version of the type; a number is of old, and says that it is unknown."""
        value = self._document.get("typeVersion")
        return None if value is None else str(value)

    def tags(self) -> dict[str, str]:
        tags = self.mapping("tags")
        for key, value in tags.items():
            if not isinstance(value, str):
                raise self._wrong(f"tags.{key}", f"is {value!r}", "Write it in quotes, as text.")
        return tags

    def without(self, name: str) -> dict[str, Any]:
        return {key: value for key, value in self._document.items() if key != name}
