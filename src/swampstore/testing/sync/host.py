"""A stand-in for the program that works on a cache."""

from __future__ import annotations

import hashlib
import os
import shutil
import uuid
from pathlib import Path

from swampstore.files import replace_file
from swampstore.layout import LATEST, METADATA, RAW, DataRef, is_internal, parse_version
from swampstore.testing.sync.machine import CacheSync, SyncMachine

_METADATA = """\
id: {id}
name: {name}
version: {version}
contentType: text/plain
lifetime: infinite
garbageCollection: 10
streaming: false
tags:
  type: resource
ownerDefinition:
  ownerType: manual
  ownerRef: conformance
createdAt: '2026-01-01T00:00:00.000Z'
size: {size}
checksum: {checksum}
"""


class Host:
    """The program on one machine: it marks what it is about to change, changes it, and syncs.

    Paths are without the namespace.
    """

    def __init__(self, machine: SyncMachine) -> None:
        self.machine = machine
        self.root = machine.cache_dir / machine.namespace

    @property
    def service(self) -> CacheSync:
        """The service of the machine as it is now."""
        return self.machine.service

    def path(self, rel: str) -> Path:
        """Return where a file is."""
        return self.root / rel

    def mark_of(self, rel: str) -> str:
        """Return what a path is called in a mark."""
        return self.path(rel).relative_to(self.machine.cache_dir).as_posix()

    def mark(self, rel: str) -> None:
        """Mark a path."""
        self.service.mark_dirty(self.mark_of(rel))

    # Changing files ----------------------------------------------------------------------------

    def put(self, rel: str, content: bytes) -> None:
        """Write a file without a mark."""
        path = self.path(rel)
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(str(path), content, durable=False)

    def write(self, rel: str, content: bytes) -> None:
        """Mark a file and write it."""
        self.mark(rel)
        self.put(rel, content)

    def remove(self, rel: str) -> None:
        """Mark a file or a directory and remove it."""
        self.mark(rel)
        path = self.path(rel)
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()

    def save(self, ref: DataRef, content: bytes) -> int:
        """Write one more version of a data name; return its number."""
        self.mark(ref.rel)
        version = max(self.versions(ref), default=0) + 1
        text = _METADATA.format(
            id=uuid.uuid4(),
            name=ref.name,
            version=version,
            size=len(content),
            checksum=hashlib.sha256(content).hexdigest(),
        )
        self.put(ref.file_rel(version, RAW), content)
        self.put(ref.file_rel(version, METADATA), text.encode())
        self.put(ref.latest_rel, str(version).encode())
        return version

    def wipe(self, *, bookkeeping: bool) -> None:
        """Empty the cache, as somebody does who knows nothing of marks."""
        for child in self.root.iterdir() if self.root.exists() else ():
            if bookkeeping or not is_internal(child.name):
                shutil.rmtree(child) if child.is_dir() else child.unlink()
        if bookkeeping:
            shutil.rmtree(self.machine.cache_dir)

    # Syncing -----------------------------------------------------------------------------------

    def push(self) -> int:
        """Push; return how many files that changed on the remote."""
        return self.service.push().changes

    def pull(self) -> int:
        """Pull; return how many files that changed here."""
        return self.service.pull().changes

    # Looking -----------------------------------------------------------------------------------

    def files(self) -> dict[str, bytes]:
        """Return every file that belongs to the user, by path."""
        found = {}
        for directory, _, names in os.walk(self.root):
            for name in names:
                path = Path(directory) / name
                rel = path.relative_to(self.root).as_posix()
                if not is_internal(rel):
                    found[rel] = path.read_bytes()
        return found

    def versions(self, ref: DataRef) -> dict[int, bytes | None]:
        """Return the versions of a data name that are here, each with its content if that is."""
        place = self.path(ref.rel)
        numbers = [parse_version(child.name) for child in place.iterdir()] if place.exists() else []
        found: dict[int, bytes | None] = {}
        for number in sorted(one for one in numbers if one is not None):
            raw = self.path(ref.file_rel(number, RAW))
            found[number] = raw.read_bytes() if raw.exists() else None
        return found

    def latest(self, ref: DataRef) -> int | None:
        """Return the version that the marker of a data name says, None if there is no marker."""
        marker = self.path(f"{ref.rel}/{LATEST}")
        return parse_version(marker.read_text().strip()) if marker.exists() else None
