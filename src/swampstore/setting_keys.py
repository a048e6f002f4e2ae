"""Which keys `.swamp.yaml` has: ours, and those of other clients, which are known and kept.

A key that nobody knows is a mistake, most often of spelling, and is refused: a setting that does
not work is worse than an error. The JSON Schema for editors is made from the same table. What
values mean is said where they are read; here only types are checked that nobody checks there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from swampstore.datastore_address import FLAT_S3_MEMBERS, wrong_setting
from swampstore.errors import ConfigError
from swampstore.layout import MARKER
from swampstore.notices import did_you_mean, sentences

_OWN = "x-"  # keys that begin so are anybody's own


class Setting(NamedTuple):
    """One key: its type in JSON, what it means, and whether its type is checked here."""

    type: str | tuple[str, ...]
    meaning: str
    is_checked: bool = False
    choices: tuple[str, ...] = ()


_SIZE = ("integer", "string")
SETTINGS: dict[str, Setting] = {
    "swampVersion": Setting(("string", "number"), "The version of the formats."),
    "initializedAt": Setting("string", "When the repository was made."),
    "upgradedAt": Setting("string", "When its formats were brought up to date."),
    "repoId": Setting("string", "The id of the repository."),
    "autoGc": Setting("boolean", "Drop versions beyond a numeric policy with each save."),
    "modelsDir": Setting("string", "Where model definitions are.", is_checked=True),
    "workflowsDir": Setting("string", "Where workflow definitions are.", is_checked=True),
    "vaultsDir": Setting("string", "Where vaults are described.", is_checked=True),
    "defaultVault": Setting(
        "string", "The vault for sensitive outputs that name none.", is_checked=True
    ),
    "bundles": Setting("object", "The cache of built things."),
    "bundles.maxBytes": Setting(_SIZE, "How much it may keep, such as 2GB."),
    "datastore": Setting("object", "Where the data is."),
    "datastore.type": Setting("string", "filesystem, or the type of a remote."),
    "datastore.path": Setting("string", "The datastore of type filesystem."),
    "datastore.url": Setting("string", "A remote, such as s3://bucket/prefix."),
    "datastore.config": Setting("object", "The members that belong to a type."),
    "datastore.hydrationStrategy": Setting(
        "string", "Whether a pull brings content.", choices=("lazy", "full")
    ),
    "datastore.cache": Setting("object", "What is kept of a remote on this machine."),
    "datastore.cache.maxBytes": Setting(_SIZE, "How much content may stay, such as 20GB."),
    "datastore.syncTimeoutMs": Setting("integer", "How long each direction of a sync may take."),
    "datastore.namespace": Setting("string", "One more directory level."),
    "datastore.directories": Setting("array", "The directories that go to the datastore."),
    "datastore.exclude": Setting("array", "Patterns of files that stay local."),
    "datastore.durable": Setting("boolean", "Whether what is written is flushed to disk."),
    "engine": Setting(
        "string", "Who does bulk work that threads can do.", choices=("auto", "local", "spark")
    ),
    "spark": Setting("object", "Where Spark is, and its settings."),
    "spark.master": Setting("string", "Where tasks run, such as local[4]."),
    "spark.remote": Setting("string", "A Spark Connect server, such as sc://host."),
    "spark.conf": Setting("object", "Settings of Spark by their whole names."),
}
# What other clients keep in the same file. We read none of it.
OF_OTHERS = frozenset(
    {
        *("driversDir", "datastoresDir", "reportsDir", "tools", "tool", "gitignoreManaged"),
        *("logLevel", "telemetryEndpoint", "telemetryDisabled", "telemetryKeepFlushed"),
        *("trustedCollectives", "trustMemberCollectives", "garbageCollection", "managedConfig"),
        *("defaultDriver", "defaultDriverConfig"),
    }
)
# Mappings whose keys are somebody else's: the store's, or Spark's.
_OPEN = frozenset({"datastore.config", "spark.conf"})


def check_settings(document: Mapping[str, Any]) -> None:
    """Raise ConfigError for a key that nobody knows, or a value of the wrong type."""
    for path, value, known in _members(document):
        if path not in SETTINGS:
            raise _unknown(path, known)
        setting = SETTINGS[path]
        if setting.is_checked and value is not None and not isinstance(value, str):
            raise wrong_setting(path, value, "a text")


def _members(document: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any, list[str]]]:
    """Yield each key with its path and what may stand beside it, those of others left out."""
    known = [path for path in SETTINGS if path.rpartition(".")[0] == above]
    for key, value in document.items():
        path = f"{above}.{key}" if above else str(key)
        if (not above and key in OF_OTHERS) or str(key).startswith(_OWN):
            continue
        if above == "datastore" and document.get("type") == "s3" and key in FLAT_S3_MEMBERS:
            continue  # an old way to write the members of this type
        yield path, value, known
        if isinstance(value, dict) and path in SETTINGS and path not in _OPEN:
            yield from _members(value, path)


def _unknown(path: str, known: list[str]) -> ConfigError:
    names = ", ".join(name.rpartition(".")[2] for name in known)
    return ConfigError(
        f"{MARKER} has the key {path}, which is unknown",
        hint=sentences(
            did_you_mean(path, known, 1),
            f"Known here: {names}. Keys of your own begin with {_OWN}.",
        ),
    )


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of `.swamp.yaml`."""
    schema: dict[str, Any] = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": MARKER,
        **_object(""),
    }
    schema["properties"] |= {name: {} for name in sorted(OF_OTHERS)}
    return schema


def _object(above: str) -> dict[str, Any]:
    found = [path for path in SETTINGS if path.rpartition(".")[0] == above]
    # The members of a type may stand beside it.
    is_open = above in _OPEN or above == "datastore"
    members: dict[str, Any] = {"type": "object"}
    if found:
        members["properties"] = {path.rpartition(".")[2]: _property(path) for path in found}
    if not is_open:
        members["patternProperties"] = {f"^{_OWN}": {}}
        members["additionalProperties"] = False
    return members


def _property(path: str) -> dict[str, Any]:
    setting = SETTINGS[path]
    kind = list(setting.type) if isinstance(setting.type, tuple) else setting.type
    shape: dict[str, Any] = _object(path) if kind == "object" else {"type": kind}
    if kind == "array":
        shape["items"] = {"type": "string"}
    if setting.choices:
        shape["enum"] = list(setting.choices)
    return {**shape, "description": setting.meaning}
