"""What the tests of sync services stand on: machines, programs that work on a cache, and files."""

from __future__ import annotations

import hashlib
import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

import pytest

from swampstore.files import replace_file
from swampstore.layout import LATEST, METADATA, RAW, DataRef, ModelRef, is_internal, parse_version


class CacheSync(Protocol):
    """The service under test: it keeps one cache and its remote equal.

    What a push or a pull returns has a number, `changes`: the files that were written or removed
    on the side that it changes.
    """

    def capabilities(self) -> Any:
        """Say what it can do; tests of what it denies are skipped.

        `scoped_sync`: `models` limits a sync. `lazy_hydration`: `metadata_only` and `hydrate` work.
        `namespaced_sync`: several namespaces may share a remote. `two_phase_sync`: `prepare_push`
        and `commit_push` work.
        """

    def mark_dirty(self, path: str | None = None) -> None:
        """Hear that a path, relative to the cache, is about to change; None: anything is."""

    def push(self, models: Iterable[ModelRef] | None = None) -> Any:
        """Bring what changed here to the remote."""

    def prepare_push(self, models: Iterable[ModelRef] | None = None) -> Any:
        """Do all of a push that others cannot see."""

    def commit_push(self, prepared: Any) -> Any:
        """Make visible what was prepared."""

    def pull(self, models: Iterable[ModelRef] | None = None, *, metadata_only: bool = False) -> Any:
        """Bring what changed elsewhere here."""

    def hydrate(self, path: str) -> bool:
        """Fetch the content of one path; False if the remote has none."""

    def preview(self, models: Iterable[ModelRef] | None = None) -> Any:
        """Say what a sync would do, by path (without the namespace).

        `push` and `pull` are the files that would be sent and fetched, `delete_remote` and
        `delete_local` those that would be removed.
        """


class SyncMachine(Protocol):
    """One machine: a cache directory, and a service that syncs it with the shared remote."""

    @property
    def cache_dir(self) -> Path:
        """The cache; with a namespace, the files are in a directory of that name below it.

        The directory it is in belongs to this machine alone.
        """

    @property
    def namespace(self) -> str:
        """The namespace that it works in, empty for none."""

    @property
    def service(self) -> CacheSync:
        """The service."""

    def restart(self) -> None:
        """Go on with a new service on the same cache, as a new process would."""

    def offline(self) -> AbstractContextManager[None]:
        """Let no request reach the remote while the block runs."""


# Returns one more machine with an empty cache, all of them on one remote; its argument is the
# namespace, none if it is left out.
NewMachine = Callable[..., SyncMachine]
# Puts files into the remote, and entries of them into its index, unchecked: in the namespace of a
# machine. Keys that the store refuses get an entry only.
Plant = Callable[[SyncMachine, Mapping[str, bytes]], None]

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
        changes: int = self.service.push().changes
        return changes

    def pull(self) -> int:
        """Pull; return how many files that changed here."""
        changes: int = self.service.pull().changes
        return changes

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


STATE = DataRef(ModelRef("aws/ec2", "i-1"), "state")
PLAIN = "files/notes.txt"
EVERYWHERE = (
    PLAIN,
    "files/größe/日本語 (1) 50%.txt",
    "files/a+b&c=d#e~",
    "audit/2026/january.jsonl",
    "outputs/aws/ec2/start/run-1.yaml",
    "definitions-evaluated/single/name.yaml",
    "workflow-runs/w-1/workflow-run-r-1.yaml",
    "workflows-evaluated/w-1.yaml",
    "data/x/.locked.yaml",
)


class Fixtures:
    """The fixtures of the suite."""

    namespace = ""

    @pytest.fixture
    def new_machine(self) -> NewMachine:
        """What makes machines on one remote; override this."""
        raise NotImplementedError

    @pytest.fixture
    def plant(self) -> Plant:
        """What gets files into the remote and its index as a hostile client would; override it."""
        pytest.skip("nobody said how a hostile client gets in")

    @pytest.fixture
    def here(self, new_machine: NewMachine) -> Host:
        """One machine."""
        return Host(new_machine(self.namespace))

    @pytest.fixture
    def there(self, new_machine: NewMachine) -> Host:
        """Another machine."""
        return Host(new_machine(self.namespace))

    @pytest.fixture
    def third(self, new_machine: NewMachine) -> Host:
        """One more machine."""
        return Host(new_machine(self.namespace))


def needs(host: Host, *abilities: str) -> None:
    """Skip the test if the service says that it cannot do these."""
    for ability in abilities:
        if not getattr(host.service.capabilities(), ability):
            pytest.skip(f"the service has no {ability}")


def share(here: Host, there: Host, files: Mapping[str, bytes]) -> None:
    """Have both machines hold these files, and nothing waiting."""
    for rel, content in files.items():
        here.write(rel, content)
    here.push()
    there.pull()
    there.push()
    assert there.files() == here.files()


def settle(*hosts: Host) -> None:
    """Sync until nobody has anything left to tell, and check that all agree."""
    for _ in range(2):
        for host in hosts:
            host.pull()
            host.push()
    for host in hosts:
        host.pull()
        assert host.files() == hosts[0].files()
