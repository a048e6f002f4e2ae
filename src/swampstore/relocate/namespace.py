"""Giving a repository a namespace, taking it away again, and taking the data along.

A name is registered before the settings say it, so that no two repositories ever believe to have
the same one. Data moves before the settings say that the namespace is over. Whenever it is stopped,
doing it again goes on from there.

Only this machine's side of the datastore moves. Of a remote, everything is fetched before, and
everything is marked to be pushed to its new place; the old objects stay as they are, because
nothing tells whether others use them.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from swampstore.audit.segments import announce_move, carry_over
from swampstore.clock import to_iso
from swampstore.config import Config
from swampstore.datastore_address import FILESYSTEM
from swampstore.errors import AlreadyExistsError, DifferingDataError, ValidationError
from swampstore.files import disk_errors
from swampstore.index.partitions import MONOLITH_KEY
from swampstore.index.results import Progress, no_progress
from swampstore.layout import LOCAL_DIR, MANIFEST
from swampstore.marker import read_marker, update_marker
from swampstore.namespaces.manifests import (
    CATALOG_EXPORT,
    Registry,
    check_new_namespace,
    list_namespaces,
    open_registry,
)
from swampstore.relocate.namespace_moving import MovePlan, Moving, forget_move
from swampstore.relocate.syncing import share_deletions
from swampstore.repo import Repo
from swampstore.sync.run import fetch_everything, raised_as_not_pushed
from swampstore.sync.unmigrated import unmigrated_subdirs

# The catalog of the place that the data comes from: its rows are of no use to anybody.
_STAGING = "swampstore.migrate.db"
_NAMED = 10


@dataclass(frozen=True, slots=True)
class Migration:
    """What moves, or has moved. `warnings` say what did not."""

    config: Config
    reverse: bool
    plan: MovePlan
    warnings: tuple[str, ...] = ()

    def preview_json(self) -> dict[str, Any]:
        """Return the document of a migration that is still to be confirmed."""
        moves = [
            {
                "subdir": one.subdir,
                "source": one.source,
                "destination": one.destination,
                "fileCount": one.files,
                "totalBytes": one.bytes,
            }
            for one in self.plan.directories
        ]
        return self._members({"confirm": False, "directories": moves})

    def to_json(self) -> dict[str, Any]:
        """Return the document of a migration that is done."""
        moved = [one.subdir for one in self.plan.directories]
        warnings = {"warnings": list(self.warnings)} if self.warnings else {}
        return self._members({"migratedDirectories": moved}) | warnings

    def _members(self, what: dict[str, Any]) -> dict[str, Any]:
        return {
            "namespace": self.config.namespace,
            "datastorePath": self.config.base,
            "reverse": self.reverse,
            **what,
            "totalFiles": self.plan.files,
            "totalBytes": self.plan.bytes,
            "isExtensionDatastore": self.config.remote is not None,
        }


def preview_migration(repo: Repo, *, reverse: bool = False) -> Migration:
    """Say what `migrate` would move; raise what it would raise before it moves anything."""
    moving = _moving(repo, reverse)
    _check_sole_user(repo, reverse)
    plan = moving.plan()
    _check(plan, moving, reverse)
    return Migration(repo.config, reverse, plan)


def migrate(
    repo: Repo,
    *,
    reverse: bool = False,
    timeout: float | None = None,
    progress: Progress = no_progress,
) -> Migration:
    """Move the data at the top of the datastore into the namespace, or with `reverse` back.

    `timeout` is in seconds, for what has to be fetched from a remote first. Whenever it is
    stopped, doing it again goes on from there. Raises DifferingDataError, before anything
    moves, if other data of the same name is in the way, AlreadyExistsError if what is at the top
    may be somebody else's, and MoveInterruptedError if only a part could be moved.
    """
    moving = _moving(repo, reverse)
    _check_sole_user(repo, reverse)
    is_new = not reverse and not moving.takes_back
    if is_new and repo.config.remote and unmigrated_subdirs(repo.config.base):
        _fetch_what_is_outside(repo, timeout, progress)
    with working_alone(repo):
        if reverse and repo.config.remote:
            _share_deletions(repo)
            fetch_everything(repo, timeout=timeout, progress=progress)
        repo.mutations.recover()
        plan = moving.plan()
        _check(plan, moving, reverse)
        _move(repo, moving, plan)
    return Migration(repo.config, reverse, plan, tuple(_warnings(repo.config, plan, reverse)))


@contextlib.contextmanager
def working_alone(repo: Repo) -> Iterator[None]:
    """Keep everybody else out of the namespace and, of a directory in place, out of its top."""
    if repo.config.remote is not None or not repo.config.namespace:
        with repo.locks.everything():
            yield
        return
    with _outside(repo) as other, other.locks.everything(), repo.locks.everything():
        yield


def forget(repo: Repo) -> None:
    """Drop what is remembered of where files are, on this machine: it is about to be wrong."""
    repo.catalog.clear()
    if repo.config.remote is None:
        return
    repo.dirty.mark()
    with disk_errors(repo.config.base), contextlib.suppress(FileNotFoundError):
        # Other clients on this cache believe it for a minute.
        os.unlink(f"{repo.config.base}/{MONOLITH_KEY}")


def _moving(repo: Repo, reverse: bool) -> Moving:
    if not repo.config.namespace:
        raise ValidationError(
            "the repository has no namespace",
            hint="Give it one first: `swampstore datastore namespace set NAME`.",
        )
    return Moving(repo.config, reverse=reverse)


def _check_sole_user(repo: Repo, reverse: bool) -> None:
    """Raise AlreadyExistsError if what is outside of all namespaces may be somebody else's."""
    if reverse or repo.config.remote is not None:
        return
    own = ("", repo.config.repo_id)
    others = [one.namespace for one in list_namespaces(repo) if one.repo_id not in own]
    if others and unmigrated_subdirs(repo.config.base):
        raise AlreadyExistsError(
            f"others have namespaces in {repo.config.base}, too ({_listing(others)}), so that the"
            " data outside of them may be theirs",
            hint="Ask them; what is yours can be moved by hand into"
            f" {repo.config.datastore_dir}, then run `swampstore catalog rebuild`.",
        )


def _check(plan: MovePlan, moving: Moving, reverse: bool) -> None:
    if reverse and plan.occupied:
        raise AlreadyExistsError(
            f"there is data in {moving.target} already: {_listing(plan.occupied)}",
            hint="Somebody uses the datastore without a namespace; keep yours.",
        )
    if plan.differing:
        raise DifferingDataError(
            f"other data is in {moving.target} under the same names:"
            f" {_listing(plan.differing)}; nothing was moved",
            hint=f"Compare them with those in {moving.source}, and delete or rename one of each.",
        )


def _move(repo: Repo, moving: Moving, plan: MovePlan) -> None:
    with repo.mutations.quiet():
        forget(repo)
        try:
            moving.move(plan, check=repo.locks.check)
        finally:
            repo.catalog.clear()
    if repo.config.remote is not None:
        _drop_marks_outside(repo)


def _drop_marks_outside(repo: Repo) -> None:
    """Drop the marks of what is not there any more, which nobody would ever push."""
    snapshot = repo.dirty.snapshot()
    inside = f"{repo.config.namespace}/"
    repo.dirty.settle(snapshot, [path for path in snapshot.paths if not path.startswith(inside)])


def _fetch_what_is_outside(repo: Repo, timeout: float | None, progress: Progress) -> None:
    """Bring what only the remote has here, content included: it would stay behind."""
    with _outside(repo) as other, other.locks.everything():
        fetch_everything(other, timeout=timeout, progress=progress)
    for name in os.listdir(repo.config.local_dir):
        if name.startswith(_STAGING):
            os.unlink(f"{repo.config.local_dir}/{name}")


def _outside(repo: Repo) -> Repo:
    """Open the same datastore without a namespace."""
    return Repo(replace(repo.config, namespace=""), clock=repo.clock, catalog=_STAGING)


def _warnings(config: Config, plan: MovePlan, reverse: bool) -> Iterator[str]:
    yield from (f"{rel} is a link, and stays where it is" for rel in plan.left[:_NAMED])
    if len(plan.left) > _NAMED:
        yield f"... and {len(plan.left) - _NAMED} more links stay where they are"
    if config.remote is not None and plan.directories:
        where = f"under {config.namespace}/" if reverse else "outside of the namespace"
        yield f"the objects {where} stay on the remote; `swampstore sync` pushes the moved files"
        if not reverse:
            yield (
                "other clients that use this namespace may move those objects into it, and remove"
                " them where they are: run `swampstore sync` before one of them does"
            )
    if reverse:
        yield "the namespace is still set; `swampstore datastore namespace unset` ends it"


def remove_empty_namespace(config: Config, namespace: str) -> None:
    """Remove the directory of a namespace on this machine, if no data is left in it."""
    inside = f"{config.base}/{namespace}"
    # In a cache the manifest is a copy; elsewhere it is what says whose the namespace is.
    worthless = {CATALOG_EXPORT, MANIFEST} if config.remote else {CATALOG_EXPORT}
    with disk_errors(inside), contextlib.suppress(FileNotFoundError):
        names = os.listdir(inside)
        if worthless.issuperset(names):
            for name in names:
                os.unlink(f"{inside}/{name}")
            os.rmdir(inside)


def _listing(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{', '.join(names[:_NAMED])}{more}"


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
            _share_deletions(repo)
            _switch(repo, slug)
            _give_up(repo, registry)
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
        if not move:
            _share_deletions(repo)
        _switch(repo, "")
        forget_move(f"{repo.config.base}/{namespace}")
        _give_up(repo, registry)
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


def _share_deletions(repo: Repo) -> None:
    with raised_as_not_pushed():
        share_deletions(repo)


def _give_up(repo: Repo, registry: Registry) -> None:
    """Let others have the namespace that is left, if nothing is in it, there or here.

    What was saved here and never pushed is to be had by nobody but who has the namespace.
    """
    config = repo.config
    if config.namespace and not unmigrated_subdirs(config.datastore_dir):
        registry.remove_unused(config.namespace, config.repo_id)


def _switch(repo: Repo, namespace: str) -> None:
    """Write the setting, after whatever only holds for the old one is finished or forgotten."""
    repo.mutations.recover()
    forget(repo)
    if namespace:
        # Whoever left it may have been stopped before it could: what is at the top is new to it.
        forget_move(f"{repo.config.base}/{namespace}")
    repo_dir = repo.config.repo_dir
    section = read_marker(repo_dir).get("datastore") or {}
    changes: dict[str, Any] = {"namespace": namespace or None}
    if namespace and not {"type", "url", "path"} & section.keys():
        # Other clients expect to be told where the datastore is.
        changes = {"type": FILESYSTEM, "path": LOCAL_DIR, **changes}
    there = replace(repo.config, namespace=namespace)
    announce_move(repo.config, there)
    update_marker(repo_dir, {"datastore": changes})
    carry_over(repo.config, there)


def _where_data_stays(repo: Repo, slug: str) -> str | None:
    old = repo.config.namespace
    if old == slug or not unmigrated_subdirs(repo.config.datastore_dir):
        return None
    way = "`swampstore datastore namespace migrate` takes it along"
    if old:
        way = f"to take it along, set {old!r} again, run `unset --migrate`, set {slug!r}, `migrate`"
    return f"existing data stays in {repo.config.datastore_dir}; {way}"
