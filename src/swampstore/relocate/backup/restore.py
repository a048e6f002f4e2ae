"""Making a repository from a backup, in a directory where nothing is.

The settings file comes last: until then no command takes the directory for a repository. Every file
is compared with its hash before it gets its name, so a restore that was stopped goes on where it
was.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from swampstore import yaml_dialect
from swampstore.config import filesystem_base
from swampstore.datastore_address import FILESYSTEM
from swampstore.errors import AlreadyExistsError, ConfigError, ValidationError
from swampstore.files import Tree, disk_errors, read_file, replace_file, replacing, sync_filesystem
from swampstore.files.signature import signature
from swampstore.formats import refuse_later
from swampstore.index.results import Progress, Step, no_progress
from swampstore.index.workers import Deadline, in_parallel
from swampstore.layout import (
    DATASTORE_SUBDIRS,
    LOCAL_DIR,
    MARKER,
    check_namespace,
    is_temp,
)
from swampstore.marker import FORMAT_VERSION
from swampstore.relocate.backup.format import (
    BackupKey,
    FileEntry,
    Manifest,
    SecretNames,
    object_key,
)
from swampstore.relocate.backup.place import BackupPlace
from swampstore.routing import Routing
from swampstore.sync.hashing import hash_file

_CONCURRENCY = 8
# Says which backup a directory is being filled from.
_UNDER_WAY = "restoring.json"
# What of the settings of a datastore holds wherever it is.
_KEPT_SETTINGS = ("namespace", "directories", "exclude", "durable")


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """A repository that was made. `secrets` have to be put again: no backup holds them."""

    directory: str
    manifest: Manifest
    written: int
    bytes_written: int

    @property
    def secrets(self) -> tuple[SecretNames, ...]:
        """The vaults whose secrets were on the machine that was backed up."""
        return tuple(self.manifest.secrets)

    def to_json(self) -> dict[str, Any]:
        """Return the document of `backup restore`."""
        return {
            **self.manifest.to_json(),
            "repoDir": self.directory,
            "filesWritten": self.written,
            "bytesWritten": self.bytes_written,
            "leftOut": [{"path": one.path, "reason": one.reason} for one in self.manifest.left_out],
            "secretsToPut": [
                {"vault": one.vault, "type": one.type, "keys": list(one.keys)}
                for one in self.secrets
            ],
        }


def restore_backup(
    place: BackupPlace,
    key: BackupKey,
    directory: str,
    *,
    datastore: str | None = None,
    durable: bool = True,
    environ: Mapping[str, str] | None = None,
    progress: Progress = no_progress,
) -> RestoreReport:
    """Make a repository in an empty directory from a backup.

    Its data is in the repository itself, or in the directory `datastore`, which must be empty too.
    Raises AlreadyExistsError if something else is there, CorruptObjectError or ObjectNotFoundError
    naming content that is not as it was: then what was restored so far stays, and no settings are
    written.
    """
    manifest = place.read(key)
    directory = os.path.abspath(directory)
    environ = os.environ if environ is None else environ
    restoring = _Restoring(place, manifest, directory, datastore, environ)
    with disk_errors(directory):
        written = size = 0
        if not restoring.is_finished():
            restoring.begin()
            written, size = restoring.write_files(progress)
            restoring.write_settings(durable=durable)
        restoring.end()
    return RestoreReport(directory, manifest, written, size)


class _Restoring:
    def __init__(
        self,
        place: BackupPlace,
        manifest: Manifest,
        directory: str,
        datastore: str | None,
        environ: Mapping[str, str],
    ) -> None:
        self._place = place
        self._manifest = manifest
        self._directory = directory
        self._local = f"{directory}/{LOCAL_DIR}"
        self._state = f"{self._local}/{_UNDER_WAY}"
        self._base = self._local
        if datastore is not None:
            self._base = filesystem_base(directory, datastore, environ)
        self._settings = self._new_settings(datastore)
        section = self._settings.get("datastore", {})
        namespace = section.get("namespace") or ""
        self._tree = Tree.only_read(
            f"{self._base}/{namespace}" if namespace else self._base,
            self._local,
            Routing(section.get("directories"), section.get("exclude") or ()),
        )

    def _new_settings(self, datastore: str | None) -> dict[str, Any]:
        """Return the settings of the new repository: those of the old one, in another place."""
        manifest = self._manifest
        settings = dict(manifest.settings)
        refuse_later(settings.get("swampVersion"), FORMAT_VERSION, f"the backup {manifest.key.id}")
        old = settings.pop("datastore", None) or {}
        if not isinstance(old, dict):
            raise _wrong_settings(manifest.key, "datastore")
        section = {name: old[name] for name in _KEPT_SETTINGS if name in old}
        section.pop("namespace", None)
        if manifest.key.namespace:
            section["namespace"] = check_namespace(manifest.key.namespace)
        for name in ("directories", "exclude"):
            texts = section.get(name)
            is_list = isinstance(texts, list) and all(isinstance(one, str) for one in texts)
            if texts is not None and not is_list:
                raise _wrong_settings(manifest.key, f"datastore.{name}")
        if not set(section.get("directories") or ()) <= set(DATASTORE_SUBDIRS):
            raise _wrong_settings(manifest.key, "datastore.directories")
        if datastore is not None:
            section |= {"type": FILESYSTEM, "path": datastore}
        settings = {"swampVersion": FORMAT_VERSION, **settings, "repoId": manifest.key.repo_id}
        return settings | ({"datastore": section} if section else {})

    # The directory -------------------------------------------------------------------------------

    def is_finished(self) -> bool:
        """Whether nothing but the end is missing: somebody may work in it already."""
        return self._is_mine() and os.path.lexists(f"{self._directory}/{MARKER}")

    def _is_mine(self) -> bool:
        return read_file(self._state) == self._mine()

    def _mine(self) -> bytes:
        return json.dumps({"backup": self._manifest.key.id, "datastore": self._base}).encode()

    def begin(self) -> None:
        """Take an empty directory, or go on with one that was begun from the same backup."""
        if self._is_mine():
            return
        for path in dict.fromkeys((self._directory, self._base)):
            if path != self._local and self._is_used(path):
                raise AlreadyExistsError(
                    f"{path} is not empty",
                    hint="Restore into a directory of its own, then take from it what you need."
                    if read_file(self._state) is None
                    else "Another backup is being restored into it: finish that, or remove it.",
                )
        os.makedirs(self._local, exist_ok=True)
        replace_file(self._state, self._mine(), durable=True)

    def _is_used(self, path: str) -> bool:
        """Whether there is more than what a restore leaves that was killed as it began."""
        found = os.listdir(path) if os.path.isdir(path) else []
        is_begun = found == [LOCAL_DIR] and path == self._directory and os.path.isdir(self._local)
        return (
            any(not is_temp(name) for name in os.listdir(self._local)) if is_begun else bool(found)
        )

    def write_settings(self, *, durable: bool) -> None:
        """Make it a repository."""
        os.makedirs(f"{self._local}/data", exist_ok=True)
        if durable:
            for path in dict.fromkeys((self._local, self._base)):
                if os.path.isdir(path):
                    sync_filesystem(path)
        text = yaml_dialect.dump(self._settings)
        replace_file(f"{self._directory}/{MARKER}", text.encode(), durable=durable)

    def end(self) -> None:
        """Let nobody go on with it."""
        os.unlink(self._state)

    # Its files -----------------------------------------------------------------------------------

    def write_files(self, progress: Progress) -> tuple[int, int]:
        """Write what is not there yet; return how many files that were, and their bytes."""
        files = self._manifest.files
        total = self._manifest.size
        done = written = size = size_done = 0
        for file, is_new, error in in_parallel(self._write, files, _CONCURRENCY, Deadline()):
            if error is not None:
                raise error
            done, size_done = done + 1, size_done + file.size
            if is_new:
                written, size = written + 1, size + file.size
            progress(Step("restore", done, len(files), size_done, total))
        return written, size

    def _write(self, file: FileEntry) -> bool:
        """Write one file; False if it is there already."""
        path = self._tree.check_inside(file.path)
        with disk_errors(path):
            found = signature(path)
            if found and found.size == file.size and hash_file(path)[0] == file.sha256:
                return False
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with replacing(path, durable=False) as temp:
                fd = os.open(temp, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
                try:
                    key = object_key(file.sha256)
                    self._place.store.download(key, fd, size=file.size, sha256=file.sha256)
                finally:
                    os.close(fd)
                if file.mtime_ns is not None:
                    os.utime(temp, ns=(file.mtime_ns, file.mtime_ns))
        return True


def _wrong_settings(key: BackupKey, name: str) -> ConfigError:
    return ConfigError(
        f"the settings in the backup {key.id} cannot be used: {name}",
        hint="Restore another backup, or into another release of swampstore.",
    )


def check_target(datastore: str | None) -> str | None:
    """Return the directory that `--datastore` names; raise ValidationError if it names none."""
    if datastore is None:
        return None
    kind, _, path = datastore.partition(":")
    if kind != FILESYSTEM or not path or path.startswith("//"):
        raise ValidationError(
            f"a backup cannot be restored into {datastore} at once",
            hint="Restore it into a directory, then run `swampstore datastore setup` there.",
        )
    return path
