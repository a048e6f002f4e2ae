"""Vaults whose secrets are environment variables, as they are given to containers and CI jobs.

The secret `db-password` of the vault `ops` is the variable `OPS_DB_PASSWORD`, unless `prefix` says
something else than `OPS_`. They can be read and nothing else.
"""

from __future__ import annotations

import re
from typing import Self

from swampstore.errors import ConfigError
from swampstore.vaults.errors import SecretNotFoundError
from swampstore.vaults.provider import Place, Provider

_PREFIX = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class EnvironmentVault(Provider):
    """Reads variables of the environment that begin with the vault's prefix."""

    type = "environment"
    settings = {"prefix": "what the names of the variables begin with"}  # noqa: RUF012

    def __init__(self, place: Place) -> None:
        prefix = place.config.get("prefix", f"{_variable(place.name)}_")
        if not isinstance(prefix, str) or not _PREFIX.fullmatch(prefix):
            raise ConfigError(
                f"the prefix of the vault {place.name} is {prefix!r}",
                hint="Use letters, digits and underscores, such as OPS_.",
            )
        self._prefix = prefix
        self._environ = place.environ

    @classmethod
    def open(cls, place: Place) -> Self:
        """Return the provider of a vault."""
        return cls(place)

    def get(self, key: str) -> str:
        """Return the value of a variable; an empty one counts as not set."""
        name = f"{self._prefix}{_variable(key)}"
        if value := self._environ.get(name):
            return value
        raise SecretNotFoundError(
            f"there is no secret {key!r}: the variable {name} is not set",
            hint=f"Set {name} for the process that needs it.",
        )

    def keys(self) -> list[str]:
        """Return what follows the prefix, in lower case."""
        return sorted(
            name.removeprefix(self._prefix).lower()
            for name, value in self._environ.items()
            if value and name.startswith(self._prefix) and name != self._prefix
        )


def _variable(key: str) -> str:
    return re.sub(r"[^A-Za-z0-9_]", "_", key).upper()
