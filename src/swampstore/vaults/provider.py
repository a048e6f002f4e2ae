"""What keeps the secrets of a vault. A kind of vault is a `Provider`, found by its type name.

Those of other packages are entry points of the group `swampstore.vaults`: the name is the type, and
it points at a subclass of `Provider`. None of them can take the place of a built-in one.
"""

# ruff: noqa: ARG002 - what subclasses do with the arguments is their business

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, NamedTuple, Self

from swampstore.clock import Clock, system_clock
from swampstore.config import LockSettings
from swampstore.errors import ConfigError
from swampstore.vaults.errors import SecretNotFoundError, VaultUnsupportedError

GROUP = "swampstore.vaults"
LOCAL = "local_encryption"
_BUILT_IN = {
    LOCAL: "local_encryption:LocalEncryption",
    "environment": "providers:EnvironmentVault",
    "command": "providers:CommandVault",
}


@dataclass(frozen=True, slots=True)
class Place:
    """Where a vault is: `name` and `config` are its own, the rest is of the repository.

    `secrets_dir` is the directory on this machine for what the vault keeps; it is made on use.
    What is in `shared_dirs` others may get to see, unless it is always local.
    """

    name: str
    repo_dir: str
    secrets_dir: str
    shared_dirs: tuple[str, ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)
    durable: bool = True
    lock_timeout: float = LockSettings().timeout
    clock: Clock = system_clock


class Details(NamedTuple):
    """What is known of a secret without its value."""

    size: int
    annotation: Mapping[str, Any] | None = None
    refresh: Mapping[str, Any] | None = None


class Provider:
    """Keeps the secrets of one vault. What a subclass leaves out, its vaults cannot do.

    Keys were checked when they arrive here. Raises SecretNotFoundError for a key that it has not,
    and never an error with the value of a secret in it.
    """

    type = ""
    # The members of its configuration, with what each is for.
    settings: Mapping[str, str] = {}

    @classmethod
    def open(cls, place: Place) -> Self:
        """Return the provider of a vault; raise ConfigError if its configuration is wrong."""
        raise NotImplementedError

    def get(self, key: str) -> str:
        """Return the value of a secret."""
        raise self._cannot("read")

    def has(self, key: str) -> bool:
        """Whether there is a secret of this key."""
        try:
            self.get(key)
        except SecretNotFoundError:
            return False
        return True

    def keys(self) -> list[str]:
        """Return the keys of all secrets, sorted."""
        raise self._cannot("list")

    def put(self, key: str, value: str) -> None:
        """Keep a value in place of the one that there may be; durable when this returns."""
        raise self._cannot("save")

    def delete(self, key: str) -> None:
        """Forget a secret."""
        raise self._cannot("delete")

    def details(self, key: str) -> Details:
        """Return what is known about a secret, without its value."""
        return Details(len(self.get(key).encode()))

    def annotate(self, key: str, annotation: Mapping[str, Any] | None) -> None:
        """Keep what people should know about a secret; None forgets that."""
        raise self._cannot("annotate")

    @property
    def keeps_annotations(self) -> bool:
        """Whether people can be told something about a secret."""
        return type(self).annotate is not Provider.annotate

    def refresh_by(self, key: str, hook: Mapping[str, Any] | None) -> None:
        """Keep how to get a new value when the one that is kept is too old; None forgets that."""
        raise self._cannot("refresh")

    def rotate(self) -> int:
        """Encrypt everything with a new key; return how many secrets that were."""
        raise self._cannot("encrypt")

    def _cannot(self, verb: str) -> VaultUnsupportedError:
        return VaultUnsupportedError(
            f"a vault of type {self.type} cannot {verb} secrets",
            hint="Do it where the secrets come from, or use a vault of another type.",
        )


def provider_type(name: str) -> type[Provider]:
    """Return the provider that a type name stands for; raise ConfigError if there is none."""
    if place := _BUILT_IN.get(name):
        module, _, attribute = place.partition(":")
        built_in: type[Provider] = getattr(import_module(f"swampstore.vaults.{module}"), attribute)
        return built_in
    from importlib.metadata import entry_points

    found = entry_points(group=GROUP)
    for entry in found:
        if entry.name == name:
            provider: type[Provider] = entry.load()
            return provider
    known = ", ".join(sorted({*_BUILT_IN, *(entry.name for entry in found)}))
    raise ConfigError(
        f"there is no type of vault called {name!r}",
        hint=f"Installed are: {known}. Install the package that brings {name!r}.",
    )
