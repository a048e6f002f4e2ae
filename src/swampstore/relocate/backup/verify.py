"""Examining backups: whether all content that they need is there, and is what it was.

What is missing or damaged is noted in the place, and the next backup that has the same content
sends it again.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from swampstore.errors import BackupDamagedError, NewerFormatError, SwampstoreError
from swampstore.files import disk_errors
from swampstore.index.results import Progress, Step, no_progress
from swampstore.index.workers import Deadline, in_parallel
from swampstore.notices import notice
from swampstore.relocate.backup.format import BackupKey, Manifest, object_key
from swampstore.relocate.backup.place import BackupPlace, objects_of
from swampstore.stores.errors import CorruptObjectError, ObjectNotFoundError, StoreError

_CONCURRENCY = 8
_NAMED_PATHS = 3


class Problem(NamedTuple):
    """Content that is not as it should be, and some of the files that need it.

    For a manifest that cannot be used, `sha256` is empty.
    """

    sha256: str
    reason: str
    backups: tuple[str, ...]
    paths: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return one item of the document of `backup verify`."""
        return {
            "object": self.sha256 or None,
            "reason": self.reason,
            "backups": list(self.backups),
            "paths": list(self.paths),
        }


@dataclass(slots=True)
class VerifyReport:
    """What an examination found."""

    deep: bool
    backups: int = 0
    objects: int = 0
    bytes: int = 0
    problems: list[Problem] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether every backup can be restored, as far as was looked."""
        return not self.problems

    def to_json(self) -> dict[str, Any]:
        """Return the document of `backup verify`."""
        return {
            "ok": self.ok,
            "deep": self.deep,
            "backups": self.backups,
            "objects": self.objects,
            "bytes": self.bytes,
            "problems": [one.to_json() for one in self.problems],
        }


def verify_backups(
    place: BackupPlace,
    keys: Sequence[BackupKey] | None = None,
    *,
    deep: bool = False,
    progress: Progress = no_progress,
) -> VerifyReport:
    """Examine some backups, or all: that their content is there, and `deep` also that it is right.

    Without `deep` this is a listing. Raises NewerFormatError for a backup of a newer release.
    """
    report = VerifyReport(deep)
    manifests = _manifests(place, place.keys() if keys is None else keys, report)
    wanted = objects_of(manifests)
    report.objects, report.bytes = len(wanted), sum(wanted.values())
    there = place.sizes()
    wrong: dict[str, str] = {}
    for sha256, size in wanted.items():
        if sha256 not in there:
            wrong[sha256] = "it is missing"
        elif there[sha256] != size:
            wrong[sha256] = f"it has {there[sha256]} bytes, expected {size}"
    if deep:
        wrong |= _read_all(place, {one: wanted[one] for one in wanted.keys() - wrong}, progress)
    report.problems += _problems(wrong, manifests)
    _take_notes(place, wanted, wrong, deep=deep)
    return report


def _manifests(
    place: BackupPlace, keys: Sequence[BackupKey], report: VerifyReport
) -> list[Manifest]:
    found: list[Manifest] = []
    for key in keys:
        report.backups += 1
        try:
            found.append(place.read(key))
        except NewerFormatError:
            raise
        except (BackupDamagedError, ObjectNotFoundError) as error:
            report.problems.append(Problem("", error.message, (key.id,)))
    return found


def _read_all(place: BackupPlace, wanted: dict[str, int], progress: Progress) -> dict[str, str]:
    """Read content; return what is wrong with that which is not what it should be."""

    def look(task: tuple[str, int]) -> str | None:
        sha256, size = task
        with disk_errors("a temporary file"), tempfile.TemporaryFile() as file:
            try:
                place.store.download(object_key(sha256), file.fileno(), size=size)
            except ObjectNotFoundError:
                return "it is missing"
            except CorruptObjectError as error:
                return error.message
            file.seek(0)
            found = hashlib.file_digest(file, "sha256").hexdigest()
        return None if found == sha256 else f"its SHA-256 is {found}"

    wrong: dict[str, str] = {}
    files = size = 0
    total = sum(wanted.values())
    for (sha256, one), reason, error in in_parallel(
        look, sorted(wanted.items()), _CONCURRENCY, Deadline()
    ):
        if error is not None:
            raise error
        files, size = files + 1, size + one
        progress(Step("verify", files, len(wanted), size, total))
        if reason:
            wrong[sha256] = reason
    return wrong


def _problems(wrong: dict[str, str], manifests: Sequence[Manifest]) -> list[Problem]:
    paths: dict[str, list[str]] = {sha256: [] for sha256 in wrong}
    ids: dict[str, list[str]] = {sha256: [] for sha256 in wrong}
    for manifest in manifests if wrong else ():
        for file in manifest.files:
            if file.sha256 in wrong:
                if file.path not in paths[file.sha256]:
                    paths[file.sha256].append(file.path)
                if manifest.key.id not in ids[file.sha256]:
                    ids[file.sha256].append(manifest.key.id)
    return [
        Problem(one, reason, tuple(ids[one]), tuple(paths[one][:_NAMED_PATHS]))
        for one, reason in sorted(wrong.items())
    ]


def _take_notes(
    place: BackupPlace, wanted: dict[str, int], wrong: dict[str, str], *, deep: bool
) -> None:
    """Tell the next backup what to send again, as far as we may write here."""
    try:
        noted = place.known_damage()
        for sha256 in wrong.keys() - noted:
            place.note_damage(sha256)
        if deep:
            for sha256 in (noted & wanted.keys()) - wrong.keys():
                place.forget_damage(sha256)
    except (StoreError, SwampstoreError) as error:
        notice("the next backup was not told of the damage: %s", error.message)
