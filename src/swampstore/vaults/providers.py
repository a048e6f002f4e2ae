"""Providers that ask elsewhere for secrets: environment variables, and programs such as `pass`."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from typing import Any, Self

from swampstore.errors import ConfigError, ValidationError
from swampstore.vaults.errors import SecretNotFoundError, VaultProviderError
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


_KEY = "{key}"
_SECONDS = 60
_COMMANDS = {
    "get": "prints the secret {key}",
    "put": "keeps what it reads from standard input as the secret {key}",
    "delete": "forgets the secret {key}",
    "list": "prints the keys, one per line or as a JSON list",
}


class CommandVault(Provider):
    """Runs a program for everything."""

    type = "command"
    settings = {  # noqa: RUF012
        **{name: f"the command that {what}" for name, what in _COMMANDS.items()},
        "notFoundStatus": "the exit status of `get` which says that there is no such secret",
    }

    def __init__(self, place: Place) -> None:
        self._name = place.name
        self._environ = place.environ
        self._commands = {
            name: _words(place.name, name, place.config[name])
            for name in _COMMANDS
            if name in place.config
        }
        if "get" not in self._commands:
            raise ConfigError(
                f"the vault {place.name} has no command that gets a secret",
                hint="Give one, for example get='pass show ops/{key}'.",
            )
        self._not_found = place.config.get("notFoundStatus")

    @classmethod
    def open(cls, place: Place) -> Self:
        """Return the provider of a vault."""
        return cls(place)

    def get(self, key: str) -> str:
        """Return what the program prints, without the newline at its end."""
        if value := self._run("get", key).removesuffix("\n").removesuffix("\r"):
            return value
        raise self._not_there(key)

    def put(self, key: str, value: str) -> None:
        """Hand a value to the program."""
        self._run("put", key, value)

    def delete(self, key: str) -> None:
        """Let the program forget a secret."""
        self._run("delete", key)

    def keys(self) -> list[str]:
        """Return the keys that the program prints."""
        printed = self._run("list", "")
        if printed.lstrip().startswith("["):
            try:
                return sorted(str(key) for key in json.loads(printed))
            except ValueError as error:
                raise VaultProviderError(
                    f"the keys of the vault {self._name} are no JSON list",
                    hint="Check the command `list` of its configuration.",
                ) from error
        return sorted(filter(None, map(str.strip, printed.splitlines())))

    def _run(self, name: str, key: str, value: str | None = None) -> str:
        if name not in self._commands:
            raise self._cannot({"put": "save"}.get(name, name))
        if key.startswith("-"):
            raise ValidationError(
                f"the secret key {key!r} would be an option of the program",
                hint="Use a key that does not begin with '-'.",
            )
        words = [word.replace(_KEY, key) for word in self._commands[name]]
        try:
            done = subprocess.run(  # noqa: S603 - that is what the vault is configured to do
                words,
                input=None if value is None else value.encode(),
                stdin=subprocess.DEVNULL if value is None else None,
                capture_output=True,
                env=dict(self._environ),
                timeout=_SECONDS,
                check=False,
            )
            printed = done.stdout.decode()
        except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError) as error:
            # The error quotes neither its input nor its output: either may be the secret.
            raise self._failed(words[0], name, _reason(error)) from None
        if name == "get" and done.returncode == self._not_found and done.returncode != 0:
            raise self._not_there(key)
        if done.returncode != 0:
            raise self._failed(words[0], name, f"it ended with status {done.returncode}")
        return printed

    def _not_there(self, key: str) -> SecretNotFoundError:
        return SecretNotFoundError(
            f"the vault {self._name} has no secret {key!r}", hint="Check the key."
        )

    def _failed(self, program: str, name: str, reason: str) -> VaultProviderError:
        return VaultProviderError(
            f"the vault {self._name} could not {name} with {program}: {reason}",
            hint="Run the command by hand to see what it says.",
        )


def _reason(error: Exception) -> str:
    match error:
        case subprocess.TimeoutExpired():
            return f"it took more than {_SECONDS} s"
        case FileNotFoundError():
            return "there is no such program"
        case OSError():
            return error.strerror or "it could not be started"
    return "it printed no UTF-8"


def _words(vault: str, name: str, command: Any) -> list[str]:
    try:
        words = shlex.split(command) if isinstance(command, str) else command
    except ValueError:
        words = None
    if not isinstance(words, list) or not words or not all(isinstance(one, str) for one in words):
        raise ConfigError(
            f"the command `{name}` of the vault {vault} is {command!r}",
            hint="Write a command such as 'pass show ops/{key}', or the list of its words.",
        )
    if name != "list" and not any(_KEY in word for word in words):
        raise ConfigError(
            f"the command `{name}` of the vault {vault} does not name the secret",
            hint=f"Write {_KEY} where the key belongs.",
        )
    return words
