"""Giving a vault another type: its secrets are copied there, and it has that type from then on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from swampstore.errors import AlreadyExistsError, ValidationError
from swampstore.vaults.errors import SecretNotFoundError, VaultProviderError, VaultUnsupportedError

if TYPE_CHECKING:
    from swampstore.vaults import Vaults
    from swampstore.vaults.provider import Provider
    from swampstore.vaults.vault import Vault


class Migration(NamedTuple):
    """What was, or would be, copied. What the new type cannot keep stays with the old one."""

    vault: str
    old_type: str
    new_type: str
    copied: tuple[str, ...]
    same: tuple[str, ...]
    without_annotation: tuple[str, ...]
    without_hook: tuple[str, ...]
    dry_run: bool

    def to_json(self) -> dict[str, Any]:
        """Return what it did as a document."""
        return {
            "vault": self.vault,
            "fromType": self.old_type,
            "toType": self.new_type,
            "copied": list(self.copied),
            "alreadyThere": list(self.same),
            "annotationsLeftBehind": list(self.without_annotation),
            "refreshLeftBehind": list(self.without_hook),
            "dryRun": self.dry_run,
        }


def migrate(
    vaults: Vaults,
    name: str,
    to_type: str,
    config: Mapping[str, Any] | None = None,
    *,
    overwrite: bool = False,
    dry_run: bool = False,
) -> Migration:
    """Copy every secret of a vault to another type, and make it the type of the vault.

    Raises AlreadyExistsError, before anything is copied, if the new place has another value for
    one of them; `overwrite` replaces it.
    """
    with vaults.changing():
        old = vaults.open(name)
        if to_type == old.config.type:
            raise ValidationError(
                f"the vault {name} is of type {to_type} already", hint="Name another type."
            )
        settings = vaults.checked_settings(to_type, dict(config or {}))
        new_config = vaults.replaced(old.config, to_type, settings)
        new = vaults.vault(new_config)
        plan = _plan(old, new.provider, to_type, overwrite, dry_run)
        if dry_run:
            return plan
        plan = _copied(plan, old.provider, new.provider)
        vaults.files.exchange(old.config, new_config)
    new.record("migrate")
    return plan


def _plan(old: Vault, target: Provider, to_type: str, overwrite: bool, dry_run: bool) -> Migration:
    copied, same, differing = [], [], []
    for key in old.provider.keys():  # noqa: SIM118 - no mapping
        there = _value_or_none(target, key)
        if there is None:
            copied.append(key)
        elif there == old.provider.get(key):
            same.append(key)
        else:
            differing.append(key)
    if differing and not overwrite:
        raise AlreadyExistsError(
            f"{to_type} has other values for secrets of the vault {old.name}:"
            f" {', '.join(differing[:5])}{', ...' if len(differing) > 5 else ''}",
            hint="Remove them there, or pass --overwrite to replace them. Nothing was copied.",
        )
    moving = tuple(copied + differing)
    return Migration(old.name, old.config.type, to_type, moving, tuple(same), (), (), dry_run)


def _copied(plan: Migration, source: Provider, target: Provider) -> Migration:
    """Copy what is planned, and look whether it is there; return the plan with what was left."""
    for key in plan.copied:
        value = source.get(key)
        target.put(key, value)
        if _value_or_none(target, key) != value:
            raise VaultProviderError(
                f"the secret {key!r} of the vault {plan.vault} was not kept as it is",
                hint=f"The vault is of type {plan.old_type} as before. Check the new one.",
            )
    left: dict[str, list[str]] = {"annotation": [], "hook": []}
    for key in (*plan.copied, *plan.same):
        details = source.details(key)
        try:
            if details.annotation is not None:
                target.annotate(key, details.annotation)
        except VaultUnsupportedError:
            left["annotation"].append(key)
        try:
            if details.refresh is not None:
                target.refresh_by(key, details.refresh)
        except VaultUnsupportedError:
            left["hook"].append(key)
    return plan._replace(
        without_annotation=tuple(left["annotation"]), without_hook=tuple(left["hook"])
    )


def _value_or_none(provider: Provider, key: str) -> str | None:
    try:
        return provider.get(key)
    except SecretNotFoundError:
        return None
