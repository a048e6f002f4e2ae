"""What a report tells, as plain data: totals, the heads of its tables, growth.

The members of each row are columns of the table it comes from; `Summary.to_json` is the document
that the command prints.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import date, datetime
from typing import Any, NamedTuple

from swampstore.clock import to_iso

TOP = 10
# How many namespaces and types have a colour of their own, the largest first.
COLOURED = 6
# How many days back runs are counted.
RUN_DAYS = 30
# What the parts of the keys are, by the list of a summary.
KEYS = {
    "namespaces": ("store", "namespace"),
    "types": ("type_normalized",),
    "content_types": ("content_type",),
    "owners": ("owner_type", "owner_ref"),
    "workflows": ("workflow_name",),
    "lifecycles": ("lifecycle",),
    "rules": ("rule",),
    "freed": ("rule", "store", "namespace", "type_normalized"),
}


class Source(NamedTuple):
    """A namespace of a store that was read."""

    store: str
    namespace: str


class Totals(NamedTuple):
    """Everything in numbers; bytes are those of content, as its metadata states them."""

    namespaces: int = 0
    types: int = 0
    models: int = 0
    names: int = 0
    versions: int = 0
    bytes: int = 0
    latest_bytes: int = 0
    deleted_names: int = 0
    deleted_bytes: int = 0
    duplicate_contents: int = 0
    duplicate_versions: int = 0
    duplicate_bytes: int = 0
    freed_names: int = 0
    freed_versions: int = 0
    freed_bytes: int = 0
    undated_versions: int = 0
    future_versions: int = 0


NOTHING = Totals()


class Usage(NamedTuple):
    """How much is stored under one key: a type, a namespace of a store, an owner and so on.

    What would be freed has no `latest_bytes`.
    """

    key: tuple[str, ...]
    names: int
    versions: int
    bytes: int
    latest_bytes: int | None = None

    @property
    def name(self) -> str:
        """The first part of the key."""
        return self.key[0]


class ModelUsage(NamedTuple):
    """What a model uses."""

    store: str
    namespace: str
    type_normalized: str
    model_id: str
    model_name: str
    names: int
    versions: int
    bytes: int
    latest_bytes: int


class NameUsage(NamedTuple):
    """What a data name uses; `lifecycle` is that of its latest version."""

    store: str
    namespace: str
    type_normalized: str
    model_id: str
    model_name: str
    data_name: str
    lifecycle: str
    versions: int
    bytes: int
    latest_bytes: int


class StoredVersion(NamedTuple):
    """One version."""

    store: str
    namespace: str
    type_normalized: str
    model_id: str
    model_name: str
    data_name: str
    version: int
    content_type: str
    size: int
    created_at: datetime | None


class Copy(NamedTuple):
    """One place where some content is."""

    store: str
    namespace: str
    type_normalized: str
    model_id: str
    model_name: str
    data_name: str
    version: int


class Duplicate(NamedTuple):
    """Content that is there more than once; `examples` are the first few places."""

    checksum: str
    copies: int
    names: int
    bytes: int
    wasted_bytes: int
    examples: tuple[Copy, ...]


class Addition(NamedTuple):
    """What was written to a namespace on a day and still exists.

    `source` is None for all namespaces but the largest, `day` None if the day is unknown.
    """

    source: Source | None
    day: date | None
    versions: int
    bytes: int


class RunDay(NamedTuple):
    """The runs that began on a day, in UTC."""

    day: date
    runs: int
    failed: int


class MethodRuns(NamedTuple):
    """The runs of one method of the models of a type; durations are in milliseconds."""

    store: str
    namespace: str
    type_normalized: str
    method_name: str
    runs: int
    failed: int
    mean_ms: int
    longest_ms: int


@dataclass(frozen=True, slots=True)
class Summary:
    """What the page shows. Lists are heads, the largest first; `totals` count everything."""

    generated_at: datetime
    sources: Sequence[Source]
    totals: Totals = NOTHING
    additions: Sequence[Addition] = ()
    namespaces: Sequence[Usage] = ()
    types: Sequence[Usage] = ()
    models: Sequence[ModelUsage] = ()
    names: Sequence[NameUsage] = ()
    content_types: Sequence[Usage] = ()
    owners: Sequence[Usage] = ()
    workflows: Sequence[Usage] = ()
    lifecycles: Sequence[Usage] = ()
    largest: Sequence[StoredVersion] = ()
    oldest: Sequence[StoredVersion] = ()
    duplicates: Sequence[Duplicate] = ()
    rules: Sequence[Usage] = ()
    freed: Sequence[Usage] = ()
    run_days: Sequence[RunDay] = ()
    methods: Sequence[MethodRuns] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the totals and the top ten of everything."""
        lists = [one.name for one in fields(self)][4:]
        return {
            "generatedAt": to_iso(self.generated_at),
            "sources": [_json(source) for source in self.sources],
            "totals": _json(self.totals),
            **{
                _camel(name): [_json(row, KEYS.get(name)) for row in getattr(self, name)[:TOP]]
                for name in lists
            },
        }


def _json(value: Any, key: Sequence[str] | None = None) -> Any:
    match value:
        case Usage():
            numbers = {name: one for name, one in value._asdict().items() if one is not None}
            members = dict(zip(key or (), numbers.pop("key"), strict=True)) | numbers
            return {_camel(name): one for name, one in members.items()}
        case tuple() if hasattr(value, "_asdict"):
            return {_camel(name): _json(member) for name, member in value._asdict().items()}
        case tuple():
            return [_json(member) for member in value]
        case datetime():
            return to_iso(value)
        case date():
            return value.isoformat()
    return value


def _camel(name: str) -> str:
    if name == "type_normalized":
        return "type"
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)
