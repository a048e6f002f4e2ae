"""What is looked at before a method begins: its checks, its vaults, and whether there is anything.

A method that only reads or lists has no checks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from swampstore.runs.context import MethodContext, sensitive_of, told
from swampstore.runs.errors import CheckFailedError, ResourceDeletedError
from swampstore.runs.method_plan import READ, UPDATE, Target, is_mutating
from swampstore.runs.writing import RESOURCE

if TYPE_CHECKING:
    from swampstore.artifact import Artifact
    from swampstore.repo import Repo
    from swampstore.runs.models import Check
    from swampstore.vaults import Vaults


def run_checks(context: MethodContext, target: Target, instance: Any) -> None:
    """Run the checks of a model class; raise CheckFailedError saying which one failed, and why."""
    if not is_mutating(target.kind):
        return
    for check in _wanted(target):
        try:
            answer = getattr(instance, check.attribute)(context)
        except Exception as error:
            raise _failed(target, check, told(error)) from error
        if answer is False or isinstance(answer, str):
            raise _failed(target, check, answer or "")


def _failed(target: Target, check: Check, why: str) -> CheckFailedError:
    return CheckFailedError(
        f"the check {check.name} of {target.model} failed{': ' if why else ''}{why}",
        hint="Repair that, or pass --skip-checks.",
    )


def _wanted(target: Target) -> Iterator[Check]:
    """Yield the checks for a method: those its class declares, as the definition says."""
    assert target.code is not None
    declared, said = target.code.checks, target.definition.checks
    required, skipped = ({*(said.get(key) or ())} for key in ("require", "skip"))
    if unknown := sorted(required - {*declared}):
        raise CheckFailedError(
            f"{target.definition.name} requires the check {unknown[0]}, which {target.model.type}"
            " does not have",
            hint=f"It has: {', '.join(sorted(declared)) or 'none'}.",
        )
    for name, check in sorted(declared.items()):
        is_meant = not check.methods or target.method in check.methods
        is_on = name in required or (not check.optional and name not in skipped)
        if is_meant and is_on:
            yield check


def check_vaults(target: Target, vaults: Callable[[], Vaults]) -> None:
    """Raise VaultNotFoundError if something that a method may write has no vault to go to."""
    for spec in target.specs.values():
        if spec.is_sensitive or (spec.schema and "sensitive" in str(spec.schema)):
            from swampstore.vaults import sensitive

            found = sensitive_of(spec, target.definition.resources)
            sensitive.check_vaults(vaults(), found)


def check_deleted(repo: Repo, target: Target) -> None:
    """Raise ResourceDeletedError if a method wants what was deleted, all of it."""
    if target.kind not in (READ, UPDATE):
        return
    found = [*_resources(repo, target)]
    if found and all(one.is_deleted for one in found):
        raise ResourceDeletedError(
            f"everything of {target.model} was deleted, the last at {found[-1].row.created_at}",
            hint="Create it again first.",
        )


def live_resources(repo: Repo, target: Target) -> list[str]:
    """Return the names of the resources of a model that were not deleted."""
    return [one.name for one in _resources(repo, target) if not one.is_deleted]


def _resources(repo: Repo, target: Target) -> Iterator[Artifact]:
    """Yield the newest version, deletion markers included, of every declared resource."""
    specs = {spec.name for spec in target.specs.values() if spec.kind == RESOURCE}
    repo.ready()
    names = {*repo.catalog.names(target.model), *repo.tree.subdirs(target.model.rel)}
    for name in sorted(names):
        for newest in repo.versions(target.model, name, limit=1):
            tags = newest.tags
            if tags.get("type") == RESOURCE and tags.get("specName") in specs:
                yield newest
