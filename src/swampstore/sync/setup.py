"""Giving a repository another datastore, and taking its data along.

Copy, push, pull, then the setting, and only then the removal of what was copied: whenever it is
stopped, the data is where the configuration says, and doing it again goes on from there.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from swampstore.config import (
    Config,
    cache_dir,
    filesystem_base,
    read_marker,
    remote_settings,
    update_marker,
)
from swampstore.datastore_address import FILESYSTEM, Address, is_url, scheme_of, without_secrets
from swampstore.errors import AlreadyExistsError
from swampstore.files import disk_errors
from swampstore.layout import check_namespace
from swampstore.stores.config_fields import mapping_from_url
from swampstore.stores.health import examine
from swampstore.stores.probe import probe
from swampstore.sync.destinations import Cache, Destination, Place
from swampstore.sync.names import Names
from swampstore.sync.opening import OpenRepo
from swampstore.sync.relocation import Copied, Relocation
from swampstore.sync.report import Conflict, Progress, Step, no_progress

IndexKind = Literal["v1", "sharded"]
# What other clients call the stores that they know, so that they understand the setting, too.
_SHARED_NAMES = {"s3": "@swamp/s3-datastore", "gs": "@swamp/gcs-datastore"}
_NUMBERS = ("pullConcurrency", "pushConcurrency", "requestTimeoutMs")
_PLACE_SETTINGS = (
    *("type", "url", "path", "config"),
    *("bucket", "prefix", "region", "endpoint", "forcePathStyle"),
)
_BESIDE_CONFIG = ("hydrationStrategy", "syncTimeoutMs", "namespace")
_NAMED = 20


@dataclass(slots=True)
class SetupReport:
    """What a setup did. `location` is where the data is on this machine."""

    type: str
    location: str
    namespace: str
    files_copied: int = 0
    bytes_copied: int = 0
    files_pushed: int = 0
    files_pulled: int = 0
    files_removed: int = 0
    directories: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return the result document of `datastore setup`."""
        return {
            "type": self.type,
            "location": self.location,
            "namespace": self.namespace,
            "filesCopied": self.files_copied,
            "bytesCopied": self.bytes_copied,
            "filesPushed": self.files_pushed,
            "filesPulled": self.files_pulled,
            "filesRemoved": self.files_removed,
            "directoriesMigrated": self.directories,
            "warnings": self.warnings,
        }


def configured(
    config: Config, address: Address, environ: Mapping[str, str], namespace: str | None = None
) -> Config:
    """Return the settings that a repository has when its datastore is at another address.

    Nothing is written. The namespace stays as it is unless another one is given.
    """
    chosen = namespace or address.members.get("namespace") or config.namespace
    checked = check_namespace(str(chosen)) if chosen else ""
    section = read_marker(config.repo_dir).get("datastore") or {}
    if not address.is_remote:
        base = filesystem_base(config.repo_dir, address.path, environ)
        return replace(config, base=base, remote=None, namespace=checked)
    remote = remote_settings(address, section, environ)
    base = cache_dir(config.repo_id, environ)
    return replace(config, base=base, remote=remote, namespace=checked)


class Setup:
    """One move of a repository's datastore: `here` has the old settings, `there` the new ones.

    As long as the old settings hold, their catalog must not hear of the new place: `there` has
    one of its own, which is the same whenever the setup is run again.
    """

    def __init__(
        self,
        here: OpenRepo,
        there: OpenRepo,
        address: Address,
        *,
        timeout: float | None = None,
        progress: Progress = no_progress,
    ) -> None:
        self._here = here
        self._there = there
        self._address = address
        self._timeout = timeout
        self._tell = progress
        config = there.config
        self._report = SetupReport(config.datastore_type, config.base, config.namespace)

    def run(self, *, migrate: bool = True, index: IndexKind | None = None) -> SetupReport:
        """Do it all; `migrate=False` leaves the data where it is.

        Raises UntrustworthyStoreError and other errors of the store, and AlreadyExistsError if
        other data is in the way; the old settings hold then.
        """
        self._there.mutations.recover()
        destination = self._prepare()
        moves = self._moves(destination) if migrate else {}
        if migrate:
            self._bring_everything_here()
            self._copy(moves, destination)
        if isinstance(destination, Cache):
            self._sync(destination, migrate=migrate, index=index)
        # From here on, rows are read from where the settings say, whenever we are stopped.
        self._here.catalog.clear()
        self._write_marker()
        self._remove(moves)
        return self._report

    # Before anything moves ---------------------------------------------------------------------

    def _prepare(self) -> Destination:
        """Make sure that the destination can be relied on."""
        config = self._there.config
        if config.remote is None:
            _check_writable(config.base)
            return Place(Names(config.base, config.namespace, config.routing))
        connection = self._there.connection
        examine(connection.store).check()
        probe(connection.store).check()
        return Cache(connection.names, connection.base)

    def _moves(self, destination: Destination) -> dict[str, Relocation]:
        """Return what has to be moved, by the directory that it is in."""
        here = self._here.config
        found = [here.datastore_dir]
        if here.remote:
            # A setup that was stopped before its end may have left some behind.
            local = replace(here, base=here.local_dir)
            found.append(local.datastore_dir)
        there = self._there.config
        return {
            path: Relocation(path, destination, there.routing.subdirs)
            for path in found
            if path != there.datastore_dir
        }

    def _bring_everything_here(self) -> None:
        """Before a remote is left, everything of it must be in its cache."""
        here = self._here.config
        if here.remote and here.remote != self._there.config.remote:
            connection = self._here.connection
            self._begin("pull")
            pulled = connection.service.pull(deadline=self._deadline(here), progress=self._tell)
            self._report.files_pulled += pulled.files
            # The new remote has its base in the same place.
            connection.base.close()

    def _deadline(self, config: Config) -> float:
        assert config.remote is not None
        return self._timeout or config.remote.sync_timeout

    def _begin(self, phase: str) -> None:
        self._tell(Step(phase, 0, 0, 0, 0))

    # Moving --------------------------------------------------------------------------------------

    def _copy(self, moves: Mapping[str, Relocation], destination: Destination) -> None:
        if isinstance(destination, Cache):
            self._there.dirty.mark()
            if moves and os.path.isdir(self._there.config.datastore_dir):
                # What an earlier setup left in the cache: compare it with the remote first.
                self._pull(full=True)
        self._begin("copy")
        for move in moves.values():
            copied = move.copy(self._tell, durable=self._there.config.durable)
            _check_all_fit(copied)
            self._report.files_copied += copied.files
            self._report.bytes_copied += copied.bytes
            self._report.directories += copied.directories
            self._warn("never finished, and stays where it is", copied.unfinished)
            self._warn("a link, and stays where it is", copied.links)

    def _sync(self, cache: Cache, *, migrate: bool, index: IndexKind | None) -> None:
        service, config = self._there.connection.service, self._there.config
        if migrate:
            self._begin("push")
            pushed = service.push(full=True, deadline=self._deadline(config), progress=self._tell)
            self._report.files_pushed = pushed.files
            self._warn_about(pushed.conflicts)
        if index == "sharded":
            service.migrate_index()
        self._pull(full=cache.released > 0)
        if index == "v1" and service.status().index_version == 2:
            self._report.warnings.append("the index of the remote is the sharded one, and stays so")

    def _pull(self, *, full: bool = False) -> None:
        config = self._there.config
        assert config.remote is not None
        self._begin("pull")
        pulled = self._there.connection.service.pull(
            metadata_only=config.remote.hydration == "lazy",
            full=full,
            deadline=self._deadline(config),
            progress=self._tell,
        )
        self._report.files_pulled += pulled.files

    # Afterwards ----------------------------------------------------------------------------------

    def _write_marker(self) -> None:
        repo_dir = self._there.config.repo_dir
        section = read_marker(repo_dir).get("datastore") or {}
        settings = written_settings(self._address)
        dropped = set(self._address.members) - set(without_secrets(self._address.members))
        if dropped:
            self._report.warnings.append(
                f"credentials are not written to files: give {', '.join(sorted(dropped))} through"
                " the environment"
            )
        changes: dict[str, Any] = dict.fromkeys(_PLACE_SETTINGS) | settings
        if "config" in settings and isinstance(section.get("config"), dict):
            changes["config"] = dict.fromkeys(section["config"]) | settings["config"]
        changes["namespace"] = self._there.config.namespace or None
        update_marker(repo_dir, {"datastore": changes})

    def _remove(self, moves: Mapping[str, Relocation]) -> None:
        local = self._here.config.local_dir
        for source, move in moves.items():
            if source != local and not source.startswith(f"{local}/"):
                # Others may use it: a directory that is shared, a cache of the same repository.
                self._report.warnings.append(f"{source} was copied and is left as it is")
                continue
            removed = move.remove_safe()
            self._report.files_removed += removed.files
            self._warn("not on the new datastore, and stays where it is", removed.left)

    def _warn(self, what: str, rels: Sequence[str]) -> None:
        self._report.warnings += [f"{rel}: {what}" for rel in rels[:_NAMED]]
        if len(rels) > _NAMED:
            self._report.warnings.append(f"... and {len(rels) - _NAMED} more: {what}")

    def _warn_about(self, conflicts: Sequence[Conflict]) -> None:
        self._report.warnings += [f"{one.rel}: {one.outcome}" for one in conflicts[:_NAMED]]
        if len(conflicts) > _NAMED:
            self._report.warnings.append(f"... and {len(conflicts) - _NAMED} more conflicts")


def written_settings(address: Address) -> dict[str, Any]:
    """Return what the marker says about an address, without credentials.

    The stores that other clients know are written the way they read them.
    """
    if not address.is_remote:
        return {"type": FILESYSTEM} | ({"path": address.path} if address.path else {})
    kind, members = scheme_of(address.target), dict(address.members)
    if is_url(address.target):
        if kind not in _SHARED_NAMES:
            return {"type": kind, "url": address.target}
        members = _members_of_url(address.target)
    beside = {name: members.pop(name) for name in _BESIDE_CONFIG if name in members}
    beside.pop("namespace", None)
    return {"type": _SHARED_NAMES.get(kind, kind), "config": without_secrets(members)} | beside


def _members_of_url(url: str) -> dict[str, Any]:
    """Return the members in a URL with the types that configurations give them."""
    members: dict[str, Any] = {
        name: value for name, value in mapping_from_url(url).items() if value
    }
    if "prefix" in members:
        members["prefix"] = members["prefix"].strip("/")
    for name in _NUMBERS:
        if members.get(name, "").isdigit():
            members[name] = int(members[name])
    if "forcePathStyle" in members:
        members["forcePathStyle"] = members["forcePathStyle"].lower() in ("true", "1", "yes")
    return {name: value for name, value in members.items() if value != ""}


def _check_writable(base: str) -> None:
    with disk_errors(base):
        os.makedirs(base, exist_ok=True)
        trial = f"{base}/.{uuid.uuid4()}.tmp"
        with open(trial, "xb"):
            os.unlink(trial)


def _check_all_fit(copied: Copied) -> None:
    if copied.kept:
        named = ", ".join(copied.kept[:3])
        more = f" and {len(copied.kept) - 3} more" if len(copied.kept) > 3 else ""
        raise AlreadyExistsError(
            f"something else is where these should go: {named}{more}",
            hint="Move it away, or pass --skip-migration to leave the data where it is.",
        )
