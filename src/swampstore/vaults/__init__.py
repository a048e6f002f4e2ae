"""Vaults: where secrets are, how they are referred to, and how they stay out of everything else.

Secrets stay on their machine, in the directory `secrets` that no setting moves and no sync carries.
Start reading at `Vaults`: `vault` is one of them, `config` its file. What keeps secrets is a
`provider`: `local_encryption` needs nothing but its `keys`, the `providers` ask elsewhere.
`references` are how other files name secrets, `sensitive` is for outputs of methods that go to a
vault, `events` writes down who did what. `refresh` is for secrets that grow old, `migration` for
vaults that get another type. This room may import `repo` and what is below it; nothing below knows
of it.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from swampstore.artifacts.name_lock import NameLocks
from swampstore.clock import to_iso
from swampstore.errors import AlreadyExistsError
from swampstore.files import disk_errors
from swampstore.vaults.config import (
    INTERNAL,
    BrokenConfig,
    VaultConfig,
    VaultFiles,
    check_settings,
    check_vault_name,
)
from swampstore.vaults.errors import VaultError, VaultNotFoundError
from swampstore.vaults.events import record
from swampstore.vaults.keys import make_private_dir
from swampstore.vaults.provider import LOCAL, Place, Provider, provider_type
from swampstore.vaults.vault import Vault

if TYPE_CHECKING:
    from swampstore.repo import Repo

__all__ = ["BrokenConfig", "Place", "Provider", "Vault", "VaultConfig", "Vaults"]

SECRETS = "secrets"


class Vaults:
    """The vaults of a repository. `caller` is what the audit says about who asks."""

    def __init__(
        self, repo: Repo, *, caller: str = "python", environ: Mapping[str, str] | None = None
    ) -> None:
        self._repo = repo
        self._caller = caller
        self._environ = os.environ if environ is None else environ
        self.files = VaultFiles(repo.config.repo_dir, durable=repo.config.durable)

    def all(self) -> tuple[list[VaultConfig], list[BrokenConfig]]:
        """Return the vaults by name, and the files that should describe one and do not."""
        vaults, broken = self.files.read()
        return [*vaults.values()], broken

    def open(self, name: str) -> Vault:
        """Return a vault; raise VaultNotFoundError if there is none, ConfigError if it is wrong."""
        vaults, broken = self.files.read()
        if name not in vaults:
            raise _not_found(name, [*vaults], broken)
        return self.vault(vaults[name])

    def vault(self, config: VaultConfig) -> Vault:
        """Return the vault that a configuration describes, whether or not it has a file."""
        provider = provider_type(config.type).open(self._place(config))
        return Vault(
            config,
            provider,
            record=partial(self._record, config),
            changing=partial(self._changing, config),
            clock=self._repo.clock,
        )

    def _record(self, config: VaultConfig, action: str, key: str) -> None:
        record(self._repo, action, config.name, config.type, key, self._caller)

    def _place(self, config: VaultConfig) -> Place:
        settings = self._repo.config
        return Place(
            name=config.name,
            repo_dir=settings.repo_dir,
            secrets_dir=f"{self._repo.tree.path(SECRETS)}/{config.type}/{config.name}",
            shared_dirs=(settings.datastore_dir, settings.base, settings.local_dir),
            config=config.config,
            environ=self._environ,
            durable=settings.durable,
            lock_timeout=settings.locks.timeout,
            clock=self._repo.clock,
        )

    def default(self) -> str:
        """Return the vault for what names none: `defaultVault`, else the first one by name."""
        if self.files.default:
            return self.open(self.files.default).name
        vaults, broken = self.files.read()
        for name in vaults:
            if not name.startswith(INTERNAL):
                return name
        raise _not_found("", [], broken)

    def create(
        self,
        vault_type: str,
        name: str,
        config: Mapping[str, Any] | None = None,
        *,
        audit_reads: bool = False,
    ) -> VaultConfig:
        """Make a vault; raise AlreadyExistsError if one has that name."""
        members = self.checked_settings(vault_type, dict(config or {}))
        wanted = VaultConfig(
            id=str(uuid.uuid4()),
            name=check_vault_name(name),
            type=vault_type,
            config=members,
            created_at=to_iso(self._repo.clock()),
            audit_reads=audit_reads,
        )
        self.vault(wanted)
        with self.changing():
            vaults, _ = self.files.read()
            if name in vaults:
                raise AlreadyExistsError(
                    f"there is a vault called {name} already, of type {vaults[name].type}",
                    hint="Use that one, or choose another name.",
                )
            made = self.files.write(wanted)
        self._record(made, "create", "")
        return made

    def checked_settings(self, vault_type: str, config: dict[str, Any]) -> dict[str, Any]:
        """Return the settings of a new vault of some type; raise ConfigError if one is wrong."""
        check_settings(config, provider_type(vault_type).settings, vault_type)
        if vault_type == LOCAL and not config:
            return {"auto_generate": True}
        return config

    @contextmanager
    def _changing(self, config: VaultConfig) -> Iterator[None]:
        """Let nobody else change the vaults meanwhile; raise VaultError if this one was changed."""
        with self.changing():
            current = self.files.read()[0].get(config.name)
            if current is None or (current.id, current.type) != (config.id, config.type):
                raise VaultError(
                    f"the vault {config.name} is not what it was when this began",
                    hint="Somebody migrated or removed it. Try again.",
                )
            yield

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Let nobody else of this machine change which vaults there are meanwhile."""
        secrets = self._repo.tree.path(SECRETS)
        with disk_errors(secrets):
            make_private_dir(secrets)
        with NameLocks(f"{secrets}/.locks", self._repo.config.locks.timeout).hold("the vaults"):
            self.files.finish_migrations()
            yield

    def replaced(self, old: VaultConfig, vault_type: str, config: Mapping[str, Any]) -> VaultConfig:
        """Return what a vault would be with another type."""
        return replace(old, type=vault_type, config=config, migrated_from=old.type, path="")


def _not_found(name: str, known: list[str], broken: list[BrokenConfig]) -> VaultNotFoundError:
    hint = f"Vaults: {', '.join(known)}." if known else "Run `swampstore vault create` first."
    if broken:
        hint += f" {len(broken)} could not be read: `swampstore vault list` says why."
    message = f"there is no vault called {name!r}" if name else "there is no vault"
    return VaultNotFoundError(message, hint=hint)
