"""Giving a repository a namespace, and taking it away again.

A name is registered before the settings say it, so that no two repositories ever believe to have
the same one. Data moves before the settings say that the namespace is over. Whenever it is stopped,
doing it again goes on from there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from swampstore.clock import to_iso
from swampstore.config import read_marker, update_marker
from swampstore.datastore_address import FILESYSTEM
from swampstore.errors import ValidationError
from swampstore.index.report import Progress, no_progress
from swampstore.layout import LOCAL_DIR
from swampstore.namespaces.manifests import Registry, check_new_namespace, open_registry
from swampstore.namespaces.migrating import (
    Migration,
    forget,
    migrate,
    remove_empty_namespace,
    working_alone,
)
from swampstore.repo import Repo
from swampstore.sync.unmigrated import unmigrated_subdirs


@dataclass(frozen=True, slots=True)
class NamespaceSet:
    """A namespace that a repository has now. `warning` says where its data still is."""

    namespace: str
    datastore_path: str
    warning: str | None

    def to_json(self) -> dict[str, Any]:
        """Return the result document of `datastore namespace set`."""
        return {
            "namespace": self.namespace,
            "datastorePath": self.datastore_path,
            "warning": self.warning,
            "registrationSkipped": False,
        }


@dataclass(frozen=True, slots=True)
class NamespaceUnset:
    """A namespace that a repository had; `migration` is None if its data stayed where it was."""

    previous: str
    migration: Migration | None

    def to_json(self) -> dict[str, Any]:
        """Return the result document of `datastore namespace unset`."""
        return {"previousNamespace": self.previous}


def set_namespace(repo: Repo, slug: str) -> NamespaceSet:
    """Register a namespace and write it to the settings. Open the repository anew afterwards.

    Data that is there already stays where it is. Raises ValidationError for a name that cannot be
    one or is set already, and NamespaceTakenError, naming the owner, if another repository has it.
    """
    check_new_namespace(slug)
    config = repo.config
    with working_alone(repo), open_registry(repo) as registry:
        known = registry.get(slug) if slug == config.namespace else None
        if known is not None and known.repo_id == config.repo_id:
            raise ValidationError(
                f"the namespace is {slug!r} already",
                hint="`swampstore datastore namespace migrate` moves data into it.",
            )
        registry.register(slug, config.repo_id, to_iso(repo.clock()))
        if slug != config.namespace:
            _switch(repo, slug)
    return NamespaceSet(slug, config.base, _where_data_stays(repo, slug))


def unset_namespace(
    repo: Repo,
    *,
    move: bool = False,
    timeout: float | None = None,
    progress: Progress = no_progress,
) -> NamespaceUnset:
    """Work without a namespace from now on; with `move`, the data comes along.

    Open the repository anew afterwards. Raises ValidationError if there is none, or while other
    repositories have theirs in the same datastore, and what `migrate` raises.
    """
    namespace = check_may_unset(repo)
    migration = None
    if move:
        migration = migrate(repo, reverse=True, timeout=timeout, progress=progress)
    with working_alone(repo), open_registry(repo) as registry:
        _switch(repo, "")
        registry.remove_unused(namespace, repo.config.repo_id)
    remove_empty_namespace(repo.config, namespace)
    return NamespaceUnset(namespace, migration)


def check_may_unset(repo: Repo) -> str:
    """Return the namespace; raise ValidationError if there is none, or others have theirs."""
    namespace = repo.config.namespace
    if not namespace:
        raise ValidationError("the repository has no namespace", hint="There is nothing to do.")
    with open_registry(repo) as registry:
        others = _others(registry, namespace)
    if others:
        raise ValidationError(
            f"other namespaces are in use here: {', '.join(others)}",
            hint="Without a namespace your data would get in their way; keep yours.",
        )
    return namespace


def _others(registry: Registry, namespace: str) -> list[str]:
    return [one.namespace for one in registry.list() if one.namespace != namespace]


def _switch(repo: Repo, namespace: str) -> None:
    """Write the setting, after whatever only holds for the old one is finished or forgotten."""
    repo.mutations.recover()
    forget(repo)
    repo_dir = repo.config.repo_dir
    section = read_marker(repo_dir).get("datastore") or {}
    changes: dict[str, Any] = {"namespace": namespace or None}
    if namespace and not {"type", "url", "path"} & section.keys():
        # Other clients expect to be told where the datastore is.
        changes = {"type": FILESYSTEM, "path": LOCAL_DIR, **changes}
    update_marker(repo_dir, {"datastore": changes})


def _where_data_stays(repo: Repo, slug: str) -> str | None:
    old = repo.config.namespace
    if old == slug or not unmigrated_subdirs(repo.config.datastore_dir):
        return None
    way = "`swampstore datastore namespace migrate` takes it along"
    if old:
        way = f"to take it along, set {old!r} again, run `unset --migrate`, set {slug!r}, `migrate`"
    return f"existing data stays in {repo.config.datastore_dir}; {way}"
