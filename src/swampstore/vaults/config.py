"""The vaults of a repository: one file each, `vaults/{type}/{id}.yaml`, without any secret.

These files belong to the source of a repository and go to git. A file that cannot be read takes
no other vault with it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from swampstore import yaml_dialect
from swampstore.datastore_address import wrong_setting
from swampstore.errors import ConfigError, SwampstoreError, ValidationError
from swampstore.files import disk_errors, read_file, replace_file, sync_dir
from swampstore.layout import check_segment
from swampstore.marker import read_marker
from swampstore.redaction import is_secret

_NAME = re.compile(r"[a-z][a-z0-9-]*")
_LONGEST_NAME = 64
INTERNAL = "_"
# Says in the file of a migrated vault which type it had: of two files with one id, that one counts.
MIGRATED_FROM = "swampstoreMigratedFrom"
# Another client writes where the repository was; secrets are looked for where it is.
_IGNORED = frozenset({"base_dir"})


@dataclass(frozen=True, slots=True)
class VaultConfig:
    """One vault: its name, the type of what keeps its secrets, and how that is configured."""

    id: str
    name: str
    type: str
    config: Mapping[str, Any] = field(default_factory=dict)
    created_at: str = ""
    audit_reads: bool = False
    migrated_from: str | None = None
    # Where its file is, once it has one.
    path: str = field(default="", compare=False)

    def to_document(self) -> dict[str, Any]:
        """Return the members of its file."""
        return {
            "id": self.id,
            "name": self.name,
            "type": self.type,
            "config": dict(self.config),
            "createdAt": self.created_at or None,
            "auditReads": self.audit_reads or None,
            MIGRATED_FROM: self.migrated_from,
        }


@dataclass(frozen=True, slots=True)
class BrokenConfig:
    """A file that should describe a vault and does not."""

    path: str
    error: SwampstoreError


def check_vault_name(name: str) -> str:
    """Return `name` if a vault may be created with it."""
    if len(name) > _LONGEST_NAME or not _NAME.fullmatch(name):
        raise ValidationError(
            f"{name!r} is not a name for a vault",
            hint=f"Use at most {_LONGEST_NAME} of a-z, 0-9 and '-', beginning with a letter.",
        )
    return name


def check_secret_key(key: str) -> str:
    """Return `key` if a secret may have it."""
    check_segment("secret key", key)
    # The file of a secret is called like it, and a bit more.
    return check_segment("secret key", f"{key}.enc").removesuffix(".enc")


def check_settings(config: Mapping[str, Any], known: Mapping[str, str], vault_type: str) -> None:
    """Raise ConfigError for a member that a type of vault does not know, or that is a secret."""
    for name in config:
        if is_secret(name):
            raise ConfigError(
                f"{name!r} looks like a secret, and the file of a vault goes to git",
                hint="Give it to the program that needs it, as an environment variable say.",
            )
        if known and name not in known:
            raise ConfigError(
                f"a vault of type {vault_type} has no setting {name!r}",
                hint=f"Its settings are: {', '.join(known)}.",
            )


class VaultFiles:
    """The files in `vaults`, or in the directory that `vaultsDir` names instead."""

    def __init__(self, repo_dir: str, *, durable: bool) -> None:
        document = read_marker(repo_dir)
        directory = document.get("vaultsDir") or "vaults"
        default = document.get("defaultVault")
        if not isinstance(directory, str):
            raise wrong_setting("vaultsDir", directory, "a path")
        if default is not None and not isinstance(default, str):
            raise wrong_setting("defaultVault", default, "the name of a vault")
        self.directory = os.path.join(repo_dir, directory)
        self.default = default
        self._durable = durable

    def read(self) -> tuple[dict[str, VaultConfig], list[BrokenConfig]]:
        """Return the vaults by name, and the files that describe none."""
        found, broken = self._decoded()
        vaults: dict[str, VaultConfig] = {}
        for name, same in sorted(found.items()):
            left = [one for one in same if one not in _replaced(same)]
            if len(left) == 1:
                vaults[name] = left[0]
            else:
                broken += [BrokenConfig(one.path, _same_name(one)) for one in left]
        return vaults, broken

    def finish_migrations(self) -> None:
        """Remove what an interrupted migration left: the file of a vault that has another type."""
        for same in self._decoded()[0].values():
            for one in _replaced(same):
                self.remove(one)

    def _decoded(self) -> tuple[dict[str, list[VaultConfig]], list[BrokenConfig]]:
        found: dict[str, list[VaultConfig]] = {}
        broken: list[BrokenConfig] = []
        for path in self._paths():
            try:
                one = _decoded(path)
            except SwampstoreError as error:
                broken.append(BrokenConfig(path, error))
            else:
                found.setdefault(one.name, []).append(one)
        return found, broken

    def _paths(self) -> Iterator[str]:
        for directory, below, names in os.walk(self.directory):
            below.sort()
            yield from (
                f"{directory}/{name}"
                for name in sorted(names)
                if name.endswith(".yaml") and not name.startswith(".")
            )

    def write(self, vault: VaultConfig) -> VaultConfig:
        """Write the file of a vault, in one step: where it is, or where a new one belongs."""
        path = vault.path or f"{self.directory}/{vault.type}/{vault.id}.yaml"
        with disk_errors(path):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            data = yaml_dialect.dump(vault.to_document()).encode()
            replace_file(path, data, durable=self._durable)
        return replace(vault, path=path)

    def exchange(self, old: VaultConfig, new: VaultConfig) -> None:
        """Let a vault have another type: write its new file, then remove the old one."""
        if old.migrated_from is not None:
            # It may come from where it goes: of the two files, one alone may count as replaced.
            self.write(replace(old, migrated_from=None))
        self.write(new)
        self.remove(old)

    def remove(self, vault: VaultConfig) -> None:
        """Remove the file of a vault; it may be gone already."""
        with disk_errors(vault.path):
            try:
                os.unlink(vault.path)
            except FileNotFoundError:
                return
            if self._durable:
                sync_dir(os.path.dirname(vault.path))


def _replaced(same: list[VaultConfig]) -> list[VaultConfig]:
    """Return those of which another one says that it is the same vault, migrated.

    None if all are: these files go to git, and two that were migrated from each other may come
    together there. Then nobody can tell which one counts.
    """
    replaced = [
        old
        for old in same
        if any(new.id == old.id and new.migrated_from == old.type != new.type for new in same)
    ]
    return replaced if len(replaced) < len(same) else []


def _same_name(vault: VaultConfig) -> ConfigError:
    return ConfigError(
        f"several vaults are called {vault.name}", hint="Remove one of the files, or rename it."
    )


def _decoded(path: str) -> VaultConfig:
    with disk_errors(path):
        data = read_file(path)
    document = yaml_dialect.load_mapping(data or b"", what=path)
    texts = {name: document.get(name) for name in ("id", "name", "type")}
    for name, text in texts.items():
        if not isinstance(text, str) or not text:
            wrong = f"{name} is {text!r}" if text else f"{name} is missing"
            raise ConfigError(f"{path}: {wrong}", hint="Write it as text.")
    config = document.get("config") or {}
    if not isinstance(config, dict):
        raise ConfigError(f"{path}: config is {config!r}", hint="Write it as a mapping.")
    check_segment("vault name", str(texts["name"]))
    created, migrated = document.get("createdAt"), document.get(MIGRATED_FROM)
    return VaultConfig(
        id=str(texts["id"]),
        name=str(texts["name"]),
        type=str(texts["type"]),
        config={name: value for name, value in config.items() if name not in _IGNORED},
        created_at=created if isinstance(created, str) else "",
        audit_reads=document.get("auditReads") is True,
        migrated_from=migrated if isinstance(migrated, str) else None,
        path=path,
    )
