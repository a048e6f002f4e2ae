"""Sensitive outputs: what a method writes and nobody should read goes to a vault.

What is saved has the reference in its place. The value is in the vault before that, so there is
never a reference to nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from swampstore.vaults.config import check_secret_key
from swampstore.vaults.errors import (
    SecretNotFoundError,
    VaultProviderError,
    VaultUnsupportedError,
)
from swampstore.vaults.references import Reference, parse_reference

if TYPE_CHECKING:
    from swampstore.redaction import Redactor
    from swampstore.vaults import Vaults
    from swampstore.vaults.vault import Vault

Path = tuple[str, ...]
_ORIGIN = "origin"
_DEEPEST = 32


class Origin(NamedTuple):
    """Where a value comes from, by which its secret is found again."""

    model_type: str
    model_id: str
    method: str
    spec: str
    instance: str


class Sensitive(NamedTuple):
    """What of a resource is sensitive: members, each with a vault of its own or None; or each one.

    `vault` is for those that name none: what a definition says wins over what its author said, and
    the caller has decided between the two.
    """

    members: Mapping[Path, str | None]
    is_whole: bool = False
    vault: str | None = None


def sensitive_members(schema: Mapping[str, Any]) -> dict[Path, str | None]:
    """Return the members that a JSON Schema calls `sensitive`, with the `vaultName` they ask for.

    Where it cannot be said member by member, in lists and free-form objects, all of the outer
    value is sensitive.
    """
    return dict(_members(schema, schema, (), 0))


def _members(
    schema: Any, root: Mapping[str, Any], path: Path, depth: int
) -> Iterator[tuple[Path, str | None]]:
    if not isinstance(schema, Mapping) or depth > _DEEPEST:
        return
    if schema.get("sensitive") is True:
        vault = schema.get("vaultName")
        yield path, vault if isinstance(vault, str) else None
        return
    for inner in _alternatives(schema, root):
        yield from _members(inner, root, path, depth + 1)
    properties = schema.get("properties")
    if isinstance(properties, Mapping):
        for name, inner in properties.items():
            yield from _members(inner, root, (*path, name), depth + 1)
    unnamed = [schema.get("items"), schema.get("additionalProperties")]
    for several in (schema.get("prefixItems"), schema.get("patternProperties")):
        unnamed += several.values() if isinstance(several, Mapping) else several or []
    for inner in unnamed:
        for _, vault in _members(inner, root, path, depth + 1):
            yield path, vault


def _alternatives(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Iterator[Any]:
    for name in ("allOf", "anyOf", "oneOf"):
        yield from schema.get(name) or []
    pointer = schema.get("$ref")
    if isinstance(pointer, str) and pointer.startswith("#/"):
        target: Any = root
        for part in pointer[2:].split("/"):
            target = target.get(part) if isinstance(target, Mapping) else None
        yield target


def choose_vault(vaults: Vaults, *wishes: str | None) -> str:
    """Return the vault for a value: the first wish, else `defaultVault`, else the first vault.

    Raises VaultNotFoundError if there is none. Ask before a method is run, not after it.
    """
    wish = next(filter(None, wishes), None)
    return vaults.open(wish).name if wish else vaults.default()


def check_vaults(vaults: Vaults, sensitive: Sensitive) -> None:
    """Raise VaultNotFoundError if something sensitive would have no vault to go to."""
    for wish in {*sensitive.members.values()} | ({None} if sensitive.is_whole else set()):
        choose_vault(vaults, wish, sensitive.vault)


def secret_key(origin: Origin, path: Path) -> str:
    """Return the key under which the value of a member is kept."""
    text = "/".join([*origin, *(path or ("value",))]).replace("@", "")
    text = text.replace("/", "-").replace("\\", "-")
    while ".." in text:
        text = text.replace("..", ".")
    return text


def store_sensitive(
    vaults: Vaults, resource: Any, sensitive: Sensitive, origin: Origin, redactor: Redactor
) -> Any:
    """Put what is sensitive of a resource in vaults; return the resource with references instead.

    Texts are kept as they are, everything else as JSON; null stays null. Each value is known to the
    redactor before it is kept.
    """
    opened: dict[str, Vault] = {}

    def kept(path: Path, value: Any, wish: str | None) -> Any:
        if value is None:
            return None
        name = choose_vault(vaults, wish, sensitive.vault)
        vault = opened.setdefault(name, vaults.open(name))
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        redactor.add(text)
        if isinstance(value, Mapping | list):
            for part in _texts(value):
                redactor.add(part)
        if not text:
            return text
        key = _own_key(vault, origin, path)
        vault.put(key, text)
        _note_origin(vault, key, origin, path)
        return str(Reference(name, key))

    members = sensitive.members
    if sensitive.is_whole:
        if not isinstance(resource, Mapping):
            return kept((), resource, None)
        members = {(name,): members.get((name,)) for name in resource}
    for path, wish in members.items():
        resource = _replaced(resource, path, lambda value, p=path, w=wish: kept(p, value, w))
    return resource


def note_sensitive(schema: Mapping[str, Any], values: Any, redactor: Redactor) -> None:
    """Let a redactor know the values that a JSON Schema calls sensitive."""
    for path in sensitive_members(schema):
        found = values
        for part in path:
            found = found.get(part) if isinstance(found, Mapping) else None
        for text in _texts(found if isinstance(found, str | Mapping | list) else str(found or "")):
            if parse_reference(text) is None:
                redactor.add(text)


def _texts(value: Any) -> Iterator[str]:
    match value:
        case str():
            yield value
        case Mapping():
            for item in value.values():
                yield from _texts(item)
        case list():
            for item in value:
                yield from _texts(item)


def _replaced(value: Any, path: Path, change: Any) -> Any:
    """Return a copy of a value with the member at a path changed, if it has one."""
    if not path:
        return change(value)
    if not isinstance(value, Mapping) or path[0] not in value:
        return value
    return {**value, path[0]: _replaced(value[path[0]], path[1:], change)}


def _own_key(vault: Vault, origin: Origin, path: Path) -> str:
    """Return the key of a value, which no value of another origin has.

    `a/b` and `a-b` are written alike in keys, and must not overwrite each other.
    """
    key, source = secret_key(origin, path), _source(origin, path)
    digest = hashlib.sha256(source.encode()).hexdigest()[:12]
    if len(key.encode()) > 200:
        key = f"{key.encode()[:180].decode('utf-8', 'ignore')}-{digest}"
    check_secret_key(key)
    # What keeps no annotations cannot tell whose a key is.
    known = _known_origin(vault, key) if vault.provider.keeps_annotations else ""
    return key if known in (None, source) else f"{key}-{digest}"


def _source(origin: Origin, path: Path) -> str:
    return json.dumps([*origin, *path], ensure_ascii=False)


def _known_origin(vault: Vault, key: str) -> str | None:
    try:
        annotation = vault.details(key).annotation
    except (SecretNotFoundError, VaultProviderError):
        return None
    labels = (annotation or {}).get("labels")
    return labels.get(_ORIGIN) if isinstance(labels, Mapping) else None


def _note_origin(vault: Vault, key: str, origin: Origin, path: Path) -> None:
    try:
        if _known_origin(vault, key) is None:
            vault.annotate(key, labels={_ORIGIN: _source(origin, path)})
    except VaultUnsupportedError:
        return  # what keeps it elsewhere keeps no annotations
