"""Rows as versions to be saved: which columns there may be, and what one row of them means."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NamedTuple

from swampstore.artifacts.ephemeral import EPHEMERAL
from swampstore.artifacts.metadata import DEFAULT_LIFETIME, DEFAULT_POLICY, Draft, Owner
from swampstore.artifacts.save import to_json_bytes
from swampstore.clock import to_iso
from swampstore.errors import SwampstoreError, ValidationError
from swampstore.formats import whole_number
from swampstore.layout import DataRef, ModelRef, check_shareable

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructField, StructType

_TEXT = ("string", "varchar", "char")
_WHOLE = ("tinyint", "smallint", "int", "bigint")
_DOCUMENT = (*_TEXT, "struct", "map", "array", "variant")
_ORDERED = (*_TEXT, *_WHOLE, "float", "double", "decimal", "date", "timestamp", "timestamp_ntz")
_OWNER = {
    "owner_type": "type",
    "owner_ref": "ref",
    "workflow_id": "workflow_id",
    "workflow_run_id": "workflow_run_id",
    "workflow_name": "workflow_name",
    "job_name": "job_name",
    "step_name": "step_name",
    "source": "source",
}
_TAGS = {"model_name": "modelName", "spec_name": "specName", "data_type": "type"}
# Another name that a column may have.
_ALIASES = {"type": "type_normalized", "name": "data_name"}
_NEEDED = ("type_normalized", "model_id", "data_name")
COLUMNS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(_NEEDED, _TEXT),
    "content": ("binary", *_TEXT),
    "attributes": _DOCUMENT,
    "content_type": _TEXT,
    "tags": ("map<string,string>",),
    "lifetime": _TEXT,
    "garbage_collection": (*_TEXT, *_WHOLE),
    "streaming": ("boolean",),
    **dict.fromkeys((*_TAGS, *_OWNER), _TEXT),
    "ordering": _ORDERED,
}


class Drafted(NamedTuple):
    """One version to be saved. Those of a name are saved in the order of `ordering`."""

    ref: DataRef
    draft: Draft
    content: bytes
    ordering: Any


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of rows to be saved, by what they are for."""

    fields: Mapping[str, StructField]

    @classmethod
    def of(cls, schema: StructType) -> Columns:
        """Check the columns; raise ValidationError naming all that are missing or wrong."""
        fields: dict[str, StructField] = {}
        problems: list[str] = []
        for field in schema.fields:
            purpose = _ALIASES.get(field.name, field.name)
            if purpose not in COLUMNS:
                problems.append(f"nobody knows a column {field.name}")
            elif purpose in fields:
                problems.append(f"{fields[purpose].name} and {field.name} mean the same")
            elif not _is_one_of(field.dataType, COLUMNS[purpose]):
                kinds = ", ".join(COLUMNS[purpose])
                found = field.dataType.simpleString()
                problems.append(f"{field.name} is {found}, expected one of {kinds}")
            fields[purpose] = field
        problems += [f"the column {one} is missing" for one in _NEEDED if one not in fields]
        if "content" not in fields and "attributes" not in fields:
            problems.append("the column content, or attributes, is missing")
        if problems:
            raise ValidationError(
                f"these rows cannot be saved: {'; '.join(problems)}",
                hint=f"Select and rename columns. There are: {', '.join(COLUMNS)}.",
            )
        return cls(fields)

    def drafted(self, row: Any) -> Drafted:
        """Return the version that a row stands for; raise ValidationError naming the row."""
        values = {purpose: row[field.name] for purpose, field in self.fields.items()}
        try:
            return self._drafted({name: one for name, one in values.items() if one is not None})
        except (SwampstoreError, ValueError, RecursionError) as error:
            where = ", ".join(f"{one} {values.get(one)!r}" for one in _NEEDED)
            raise ValidationError(
                f"the row with {where} cannot be saved: {getattr(error, 'message', error)}",
                hint=getattr(error, "hint", None) or "Leave such rows out, or correct them.",
            ) from None

    def _drafted(self, values: dict[str, Any]) -> Drafted:
        for needed in _NEEDED:
            if needed not in values:
                raise ValidationError(
                    f"{needed} is NULL", hint="Leave such rows out, or fill it in."
                )
        model = ModelRef.of(values["type_normalized"], values["model_id"])
        ref = DataRef(model, values["data_name"])
        check_shareable(ref)
        content, guessed = self._content(values)
        return Drafted(ref, _draft(values, guessed), content, self._ordering(values))

    def _content(self, values: dict[str, Any]) -> tuple[bytes, str]:
        """Return the bytes to be saved, and what they are unless the row says it."""
        if ("content" in values) == ("attributes" in values):
            raise ValidationError(
                "it has both content and attributes, or none of them",
                hint="Fill in one of them in every row.",
            )
        if "attributes" in values:
            kind = self.fields["attributes"].dataType
            return _document(values["attributes"], kind), "application/json"
        content = values["content"]
        if isinstance(content, str):
            return content.encode(), "text/plain"
        return bytes(content), "application/octet-stream"

    def _ordering(self, values: dict[str, Any]) -> Any:
        value = values.get("ordering")
        if value is not None and self.fields["ordering"].dataType.typeName() == "timestamp":
            return _moment(value)
        return value


def _is_one_of(found: DataType, kinds: tuple[str, ...]) -> bool:
    return found.typeName() in kinds or found.simpleString() in kinds


def _draft(values: dict[str, Any], content_type: str) -> Draft:
    owner = {field: values[name] for name, field in _OWNER.items() if name in values}
    tags = {tag: values[name] for name, tag in _TAGS.items() if name in values}
    lifetime = values.get("lifetime", DEFAULT_LIFETIME)
    if lifetime == EPHEMERAL:
        raise ValidationError(
            "ephemeral data would end with the job", hint="Use another lifetime, such as 1h."
        )
    draft = Draft(
        content_type=values.get("content_type", content_type),
        lifetime=lifetime,
        garbage_collection=_policy(values.get("garbage_collection", DEFAULT_POLICY)),
        streaming=values.get("streaming", False),
        tags={**dict(values.get("tags", {})), **tags},
        owner=Owner(**owner) if owner else None,
    )
    return draft.checked()


def _policy(value: int | str) -> int | str:
    count = whole_number(value) if isinstance(value, str) else None
    return value if count is None else count


def _document(value: Any, kind: DataType) -> bytes:
    try:
        return to_json_bytes(json.loads(value) if isinstance(value, str) else _plain(value, kind))
    except (TypeError, ValueError) as error:
        raise ValidationError(
            f"its attributes cannot be written as JSON: {error}",
            hint="Give JSON text, a struct, a map with text keys, or a variant; no NaN, and"
            " decimals of many digits as text.",
        ) from None


def _plain(value: Any, kind: Any) -> Any:
    """Return a value of Spark's as JSON has it."""
    if value is None:
        return None
    match kind.typeName():
        case "struct":
            members = zip(kind.fields, value, strict=True)
            return {field.name: _plain(inner, field.dataType) for field, inner in members}
        case "map":
            return {str(key): _plain(inner, kind.valueType) for key, inner in value.items()}
        case "array":
            return [_plain(inner, kind.elementType) for inner in value]
        case "variant":
            return json.loads(value.toJson())
    return _scalar(value, kind.typeName())


def _scalar(value: Any, kind: str) -> Any:
    """Return a number, a time or bytes the way Spark writes them in JSON."""
    match kind:
        case "decimal":
            return _number(value)
        case "timestamp":
            return to_iso(_moment(value))
        case "timestamp_ntz" | "date":
            return value.isoformat()
        case "binary":
            return base64.b64encode(value).decode()
    return value


def _number(value: Decimal) -> int | float:
    if value == value.to_integral_value():
        return int(value)
    number = float(value)
    if Decimal(repr(number)) != value:
        raise ValueError(f"{value} has more digits than a number of JSON keeps")
    return number


def _moment(value: datetime) -> datetime:
    """Return a time with its zone; Spark hands it over in that of the machine, without saying."""
    return value.astimezone(UTC)
