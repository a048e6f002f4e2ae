"""One vault, in the words of its users: every operation is checked, done, and written down."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from swampstore.clock import Clock, to_iso
from swampstore.errors import ValidationError
from swampstore.vaults.config import VaultConfig, check_secret_key
from swampstore.vaults.provider import Details, Provider
from swampstore.vaults.refresh import new_hook


class Vault:
    """The secrets of one vault.

    `record` is called with each action and the key it concerns. What changes the vault is done
    within `changing`, during which nobody gives it another type.
    """

    def __init__(
        self,
        config: VaultConfig,
        provider: Provider,
        *,
        record: Callable[[str, str], None],
        changing: Callable[[], AbstractContextManager[None]],
        clock: Clock,
    ) -> None:
        self.config = config
        self.provider = provider
        self._record = record
        self._changing = changing
        self._clock = clock

    @property
    def name(self) -> str:
        """What it is called."""
        return self.config.name

    def get(self, key: str) -> str:
        """Return the value of a secret; raise SecretNotFoundError if there is none.

        That is only written down if the vault says so.
        """
        value = self.provider.get(check_secret_key(key))
        if self.config.audit_reads:
            self._record("get", key)
        return value

    def has(self, key: str) -> bool:
        """Whether there is a secret of this key; that is no read of its value."""
        return self.provider.has(check_secret_key(key))

    def keys(self) -> list[str]:
        """Return the keys of all secrets, sorted."""
        return self.provider.keys()

    def put(self, key: str, value: str) -> None:
        """Keep a value, in place of the one that there may be."""
        checked = check_secret_key(key), _checked_value(key, value)
        with self._changing():
            self.provider.put(*checked)
        self._record("put", key)

    def delete(self, key: str) -> None:
        """Forget a secret and all that is known about it."""
        with self._changing():
            self.provider.delete(check_secret_key(key))
        self._record("delete", key)

    def details(self, key: str) -> Details:
        """Return what is known of a secret without its value."""
        return self.provider.details(check_secret_key(key))

    def annotate(
        self,
        key: str,
        *,
        url: str | None = None,
        notes: str | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> Mapping[str, Any]:
        """Change what people should know about a secret; return all of it.

        What is None stays as it is; an empty text takes the member, or the label, away.
        """
        with self._changing():
            old = self.details(key).annotation or {}
            annotation = _annotation(old, {"url": url, "notes": notes}, labels or {})
            annotation["updatedAt"] = to_iso(self._clock())
            self.provider.annotate(check_secret_key(key), annotation)
        self._record("annotate", key)
        return annotation

    def refresh_by(self, key: str, command: str, ttl: str) -> None:
        """Have a command give a new value when the one that is kept is older than `ttl`."""
        hook = new_hook(command, ttl, self._clock())
        with self._changing():
            self.provider.refresh_by(check_secret_key(key), hook)
        self._record("annotate", key)

    def record(self, action: str) -> None:
        """Write down that something was done with the whole vault."""
        self._record(action, "")

    def rotate(self) -> int:
        """Encrypt every secret with a new key; return how many there are."""
        with self._changing():
            count = self.provider.rotate()
        self.record("rotate")
        return count


def _annotation(
    old: Mapping[str, Any], texts: Mapping[str, str | None], labels: Mapping[str, str]
) -> dict[str, Any]:
    """Return an annotation with changes: None changes nothing, an empty text removes."""
    kept = old.get("labels")
    merged = {**(kept if isinstance(kept, dict) else {}), **labels}
    given = {name: text for name, text in texts.items() if text is not None}
    new = {**old, **given, "labels": {name: text for name, text in merged.items() if text}}
    return {name: value for name, value in new.items() if value not in ("", {})}


def _checked_value(key: str, value: str) -> str:
    if not value:
        raise ValidationError(
            f"the value of the secret {key!r} is empty", hint="Check where it should come from."
        )
    if "\0" in value:
        raise ValidationError(
            f"the value of the secret {key!r} holds a NUL, which no environment variable can",
            hint="Encode it first, in base64 say.",
        )
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValidationError(
            f"the value of the secret {key!r} is not UTF-8 text",
            hint="Encode it first, in base64 say.",
        ) from None
    return value
