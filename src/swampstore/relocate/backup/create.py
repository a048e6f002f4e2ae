"""Making a backup: collect, send, and write the manifest last.

It can be stopped anywhere and done again: what was sent is found there. Without its manifest there
is no backup, so nobody meets half of one.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from swampstore import __version__
from swampstore.clock import from_iso, to_iso
from swampstore.errors import (
    BackupDamagedError,
    ConfigError,
    NewerFormatError,
    ValidationError,
)
from swampstore.files import Tree
from swampstore.index.results import Progress, no_progress
from swampstore.layout import AUDIT, DATASTORE_SUBDIRS, is_always_local, stays_beside_runs
from swampstore.marker import read_marker
from swampstore.notices import notice
from swampstore.redaction import is_secret, without_credentials
from swampstore.relocate.backup.format import (
    BackupKey,
    LeftOut,
    Manifest,
    SecretNames,
    belongs,
)
from swampstore.relocate.backup.local_source import LocalSource
from swampstore.relocate.backup.place import BackupPlace, Uploads
from swampstore.relocate.backup.remote_source import RemoteSource
from swampstore.relocate.backup.units import with_right_markers
from swampstore.sync.opening import OpenRepo

_DIRECTORY = "file://"
_LATER = timedelta(milliseconds=1)
# Settings of Spark are called in many ways, and a backup is kept for long.
_LIKE_A_SECRET = re.compile(r"secret|passw|passphrase|token|credential|key", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class BackupReport:
    """A backup that was made. `objects` and `bytes_sent` were not in the place before.

    `left_out` is damaged in the source; `skipped` is what no backup holds. Of a remote, `unpushed`
    counts the paths that are changed on this machine and not there, and `kept_here` the files that
    the settings keep on this machine.
    """

    manifest: Manifest
    place: str
    objects: int
    bytes_sent: int
    skipped: tuple[LeftOut, ...] = ()
    unpushed: int = 0
    kept_here: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return the document of `backup create`."""
        manifest = self.manifest
        return {
            **manifest.to_json(),
            "place": self.place,
            "objectsSent": self.objects,
            "bytesSent": self.bytes_sent,
            "leftOut": _listed(manifest.left_out),
            "skipped": _listed(self.skipped),
            "unpushedPaths": self.unpushed,
            "keptHere": self.kept_here,
            "secrets": [
                {"vault": one.vault, "type": one.type, "keys": list(one.keys)}
                for one in manifest.secrets
            ],
        }


def _listed(found: Sequence[LeftOut]) -> list[dict[str, str]]:
    return [{"path": one.path, "reason": one.reason} for one in found]


def create_backup(
    repo: OpenRepo,
    place: BackupPlace,
    *,
    secret_names: Sequence[SecretNames] = (),
    progress: Progress = no_progress,
) -> BackupReport:
    """Back up everything that the datastore of a repository holds, as it is at one moment.

    Content that a backup in the same place has already is not sent again. What is damaged in the
    source is left out and told. Raises errors of the stores, LockTimeoutError if others do not let
    go of a shared directory, NewerFormatError if a newer release has made the backups there.
    """
    _check_apart(repo, place)
    config = repo.config
    known = place.keys_of(config.repo_id, config.namespace)
    previous = _newest(place, known)
    uploads = Uploads(place, previous)
    source = RemoteSource if config.remote else LocalSource
    collected = source(repo, previous, uploads, progress).collect()
    left_out = sorted(collected.left_out, key=lambda one: one.path)
    files = with_right_markers(collected.files, left_out, uploads)
    moment = _moment(repo.clock(), known)
    manifest = Manifest(
        BackupKey(config.repo_id, config.namespace, f"{_stamp(moment)}-{secrets.token_hex(4)}"),
        to_iso(moment),
        collected.origin,
        sorted(files),
        settings_of(config.repo_dir),
        list(secret_names),
        left_out,
        _client(),
    )
    place.commit(manifest)
    return BackupReport(
        manifest,
        place.identity,
        uploads.objects,
        uploads.bytes,
        tuple(sorted(collected.skipped, key=lambda one: one.path)),
        _unpushed(repo) if config.remote else 0,
        _kept_here(repo.tree) if config.remote else 0,
    )


def _unpushed(repo: OpenRepo) -> int:
    """Count the paths that wait to be pushed; events of the audit always do."""
    rels = (repo.connection.names.rel_of_mark(mark) for mark in repo.dirty.peek().paths)
    return sum(rel is not None and rel.partition("/")[0] != AUDIT for rel in rels)


def _kept_here(tree: Tree) -> int:
    """Count the files that would be in a backup if the settings did not keep them here."""
    tops = (f"{tree.local}/{one}" for one in DATASTORE_SUBDIRS if not is_always_local(one))
    return sum(
        belongs(rel := os.path.relpath(f"{where}/{name}", tree.local))
        and tree.routing.is_local(rel)
        and not stays_beside_runs(rel)
        for top in tops
        for where, _, names in os.walk(top)
        for name in names
    )


def _check_apart(repo: OpenRepo, place: BackupPlace) -> None:
    """Make sure that backups are not kept in what they are of, nor that in them."""
    homes = [f"{_DIRECTORY}{os.path.realpath(repo.config.base)}"]
    homes += [f"{_DIRECTORY}{os.path.realpath(repo.config.local_dir)}"]
    if repo.config.remote:
        homes.append(repo.connection.store.identity)
    there = place.identity
    for home in homes:
        if f"{there}/".startswith(f"{home}/") or home.startswith(f"{there}/objects/"):
            raise _same_place(place)


def _same_place(place: BackupPlace) -> ValidationError:
    return ValidationError(
        f"{place.identity} is in the datastore itself",
        hint="Keep backups in a directory or bucket of their own.",
    )


def _newest(place: BackupPlace, known: Sequence[BackupKey]) -> Manifest | None:
    """Return the newest backup that can be read; what it has need not be sent again."""
    for key in reversed(known):
        try:
            return place.read(key)
        except NewerFormatError:
            raise
        except BackupDamagedError as error:
            notice("%s", error.message)
    return None


def _moment(now: datetime, known: Sequence[BackupKey]) -> datetime:
    """Return the time of a new backup: later than all there are, whatever the clock says."""
    if not known:
        return now
    text = known[-1].id.partition("-")[0]
    day, time = text[:8], text[9:18]
    newest = from_iso(
        f"{day[:4]}-{day[4:6]}-{day[6:]}T{time[:2]}:{time[2:4]}:{time[4:6]}.{time[6:]}Z"
    )
    return max(now, newest + _LATER)


def _stamp(moment: datetime) -> str:
    """Write a time so that texts are in the order of times: 20260514T201951042Z."""
    return to_iso(moment).translate(str.maketrans("", "", "-:."))


def settings_of(repo_dir: str) -> dict[str, Any]:
    """Return what `.swamp.yaml` says, without credentials."""
    found = _without_secrets(read_marker(repo_dir))
    assert isinstance(found, dict)
    return found


def _without_secrets(value: Any) -> Any:
    match value:
        case Mapping():
            return {
                str(name): _without_secrets(one)
                for name, one in value.items()
                if not is_secret(str(name)) and not _LIKE_A_SECRET.search(str(name))
            }
        case list():
            return [_without_secrets(one) for one in value]
        case str():
            return without_credentials(value)
        case None | bool() | int() | float():
            return value
    raise ConfigError(f"the settings hold {value!r}", hint="Write it as text or as a number.")


def _client() -> str:
    return __version__
