"""What is backed up together: the files of a version, or a file of its own.

A version is in a backup as a whole or not at all, and a marker never names one that is not in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from swampstore.artifacts.latest import latest_of, marker_content, marker_sha256
from swampstore.artifacts.versions import parse_metadata
from swampstore.errors import MetadataError, SwampstoreError
from swampstore.index.path_kinds import is_marker, is_metadata, version_file
from swampstore.layout import LATEST, METADATA, RAW, parse_version, ref_of
from swampstore.relocate.backup.format import FileEntry, LeftOut, Origin
from swampstore.relocate.backup.place import Uploads

# Why a version is skipped whose content is nowhere but on the machine that saved it.
KEPT_APART = "the settings keep its content on its machine"


class SourceDamagedError(SwampstoreError):
    """Something in the source cannot be backed up as it is. It is left out, the rest is not."""

    code = "source_damaged"


@dataclass(slots=True)
class Collected:
    """What a source had at one point: all of it is in the place. `skipped` never was data."""

    origin: Origin
    files: list[FileEntry] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)
    skipped: list[LeftOut] = field(default_factory=list)

    def settle(
        self, unit: str, files: list[FileEntry] | None, error: SwampstoreError | None
    ) -> list[FileEntry]:
        """Take what became of a unit: its files, or why it is left out; return its files.

        What says nothing about the source is raised.
        """
        if isinstance(error, SourceDamagedError):
            self.left_out.append(LeftOut(unit, error.message))
        elif error is not None:
            raise error
        self.files += files or []
        return files or []


def unit_rel(rel: str) -> str:
    """Return what a path is backed up with: the directory of its version, or itself."""
    found = None if is_marker(rel) else version_file(rel)
    return f"{found.name_rel}/{found.version}" if found else rel


def is_version(unit: str, rels: Iterable[str]) -> bool:
    """Whether a unit is the directory of a version, and not a file."""
    return any(rel != unit for rel in rels)


def check_version(version_rel: str, metadata: bytes, sha256: str, size: int) -> None:
    """Raise SourceDamagedError if content is not what the metadata of its version speaks of."""
    name_rel, _, number = version_rel.rpartition("/")
    try:
        found = parse_metadata(metadata, ref_of(name_rel), int(number), f"{version_rel}/{METADATA}")
    except MetadataError as error:
        raise SourceDamagedError(error.message) from None
    if found.allows(size, sha256):
        return
    if found.size is not None and found.size != size:
        raise SourceDamagedError(f"its content has {size} bytes, saved were {found.size}")
    raise SourceDamagedError("its content is damaged: it is not what was saved")


def check_complete(version_rel: str, rels: Iterable[str]) -> None:
    """Raise SourceDamagedError if a version has metadata and no content."""
    if f"{version_rel}/{RAW}" not in rels:
        raise SourceDamagedError("its content is missing")


def with_right_markers(
    files: Sequence[FileEntry], left_out: Iterable[LeftOut], uploads: Uploads
) -> list[FileEntry]:
    """Return the files with markers that name versions which are among them.

    One that named a version which was left out names the one before it; one that is missing, or
    says nothing of use, the newest. A marker has its version as content, of which only the hash is
    known: it is one of few.
    """
    missing: dict[str, set[int]] = {}
    for one in left_out:
        name_rel, _, number = one.path.rpartition("/")
        if (version := parse_version(number)) is not None:
            missing.setdefault(name_rel, set()).add(version)
    there: dict[str, set[int]] = {}
    markers: dict[str, FileEntry] = {}
    others: list[FileEntry] = []
    for file in files:
        if is_marker(file.path):
            markers[file.path.rpartition("/")[0]] = file
            continue
        others.append(file)
        found = version_file(file.path)
        if found and is_metadata(file.path):
            there.setdefault(found.name_rel, set()).add(found.version)
    right = (
        _right_marker(name_rel, markers.get(name_rel), missing.get(name_rel, set()), there, uploads)
        for name_rel in there.keys() | markers.keys()
    )
    return others + [marker for marker in right if marker]


def _right_marker(
    name_rel: str,
    marker: FileEntry | None,
    missing: set[int],
    there: Mapping[str, set[int]],
    uploads: Uploads,
) -> FileEntry | None:
    versions = there.get(name_rel)
    if not versions:
        return None
    newest = max(versions)
    if marker and marker.sha256 == marker_sha256(newest):
        return marker
    if marker and any(marker.sha256 == marker_sha256(one) for one in versions):
        return marker
    named = next((one for one in missing if marker and marker.sha256 == marker_sha256(one)), None)
    latest = latest_of(versions, marker=named) or newest
    content, sha256 = marker_content(latest), marker_sha256(latest)
    uploads.put(sha256, len(content), content)
    return FileEntry(f"{name_rel}/{LATEST}", len(content), sha256)
