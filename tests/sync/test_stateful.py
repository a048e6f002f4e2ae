"""Three machines on one remote do whatever they like, and are killed, and lose nothing.

Every content is written once, so that it can be followed: from the disk of the machine that wrote
it, where it must stay until it is pushed, to the remote, where it must stay for ever, unless a
machine that had it removes or replaces it on purpose.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
)

from swampstore.index.errors import SyncError
from swampstore.index.partitions import Scope
from swampstore.index.path_kinds import unit_of
from swampstore.layout import METADATA, RAW, DataRef, ModelRef
from swampstore.stores.config import Limits
from swampstore.stores.errors import StoreError
from swampstore.stores.memory import MemoryBucket, MemoryStore
from swampstore.sync.push_plan import PreparedPush
from swampstore.sync.service import SyncService
from swampstore.testing.sync import Host
from tests.support.broken_store import BrokenStore, Killed
from tests.support.sync_harness import Machine, assert_sound, remote_files, remote_index

EC2, PROBE = ModelRef("aws/ec2", "i-1"), ModelRef("probe", "p")
NAMES = (DataRef(EC2, "state"), DataRef(EC2, "logs"), DataRef(PROBE, "state"))
PLAIN = ("files/notes", "outputs/aws/ec2/start/run.yaml", "audit/day", "definitions/x")
DERIVED = "definitions-evaluated/aws/ec2/web.yaml"
# One transfer at a time: what happens before a kill must not depend on threads.
ONE_BY_ONE = Limits(pull_concurrency=1, push_concurrency=1)
COUNT = 3
CONTENT = b"content "

Operation = Callable[[SyncService], object]
OPERATIONS: tuple[Operation, ...] = (
    lambda service: service.push(),
    lambda service: service.push([EC2]),
    lambda service: service.pull(),
    lambda service: service.pull([EC2]),
    lambda service: service.pull(metadata_only=True),
    lambda service: service.migrate_index(),
)


class Computer:
    """A machine that can be killed, and what is known about the contents on it."""

    def __init__(self, directory: Path, bucket: MemoryBucket, namespace: str) -> None:
        self.cache_dir = directory / "cache"
        self.namespace = namespace
        self._bucket = bucket
        self.host = Host(self)
        # Contents that this machine has and nobody else need have.
        self.unpushed: set[bytes] = set()
        # Files that the remote and this machine once both had.
        self.had: dict[str, bytes] = {}
        self.prepared: tuple[PreparedPush, set[bytes]] | None = None
        self.start()

    def start(self) -> None:
        self.store = BrokenStore(MemoryStore("shared", self._bucket))
        self.machine = Machine(self.cache_dir, self.store, self.namespace, limits=ONE_BY_ONE)
        self.prepared = None

    @property
    def service(self) -> SyncService:
        return self.machine.service

    def restart(self) -> None:
        self.machine.close()
        self.start()

    def offline(self) -> contextlib.AbstractContextManager[None]:
        return self.store.offline()

    def contents(self, scope: Scope | None = None) -> set[bytes]:
        """Return the contents of all files that are here, or of those of some models."""
        files = self.host.files().items()
        return {
            data
            for rel, data in files
            if data.startswith(CONTENT) and (scope is None or scope.covers(rel))
        }


class Writer(Host):
    """Marks as our own program does, which says when it removes nothing."""

    def __init__(self, computer: Computer) -> None:
        super().__init__(computer)
        self._tracker = computer.machine.tracker

    def mark(self, rel: str) -> None:
        self._tracker.mark_written(self.mark_of(rel))


class Machines(RuleBasedStateMachine):
    """What may happen."""

    namespace = ""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="swampstore-"))
        self.bucket = MemoryBucket()
        self.written = 0
        self.shared: set[bytes] = set()
        self.given_up: set[bytes] = set()
        self.computers = [
            Computer(self.directory / str(number), self.bucket, self.namespace)
            for number in range(COUNT)
        ]

    def teardown(self) -> None:
        try:
            self.agree()
        finally:
            for computer in self.computers:
                computer.machine.close()
            shutil.rmtree(self.directory)

    # Contents ----------------------------------------------------------------------------------

    def new_content(self, computer: Computer) -> bytes:
        """Return a content that never was; all have the same size."""
        self.written += 1
        content = b"%s%06d" % (CONTENT, self.written)
        computer.unpushed.add(content)
        return content

    def give_up(self, contents: Iterable[bytes | None]) -> None:
        """Note that somebody who had these contents wants them gone."""
        self.given_up.update(content for content in contents if content is not None)

    def mark(self, computer: Computer, rel: str) -> None:
        self.give_up_missing(computer, lambda one: f"{one}/".startswith(f"{rel}/"))
        computer.host.mark(rel)

    def give_up_missing(self, computer: Computer, is_marked: Callable[[str], bool]) -> None:
        """Note that what is missing and marked counts as deleted, a version with its content."""
        files = computer.host.files()
        objects = remote_files(self.remote, self.namespace)
        for rel, content in computer.had.items():
            if rel not in files and is_marked(rel):
                self.give_up([content])
                if rel.endswith(f"/{METADATA}"):
                    self.give_up([objects.get(rel.removesuffix(METADATA) + RAW)])

    # Working -----------------------------------------------------------------------------------

    @rule(number=st.integers(0, COUNT - 1), ref=st.sampled_from(NAMES))
    def save(self, number: int, ref: DataRef) -> None:
        computer = self.computers[number]
        Writer(computer).save(ref, self.new_content(computer))

    @rule(number=st.integers(0, COUNT - 1), ref=st.sampled_from(NAMES))
    def save_as_other_programs_do(self, number: int, ref: DataRef) -> None:
        computer = self.computers[number]
        self.mark(computer, ref.rel)
        computer.host.save(ref, self.new_content(computer))

    @rule(number=st.integers(0, COUNT - 1), rel=st.sampled_from(PLAIN))
    def write(self, number: int, rel: str) -> None:
        computer = self.computers[number]
        self.mark(computer, rel)
        self.give_up([computer.host.files().get(rel)])
        computer.host.write(rel, self.new_content(computer))

    @rule(number=st.integers(0, COUNT - 1))
    def compute(self, number: int) -> None:
        computer = self.computers[number]
        content = self.new_content(computer)
        self.give_up([content])
        computer.host.write(DERIVED, content)

    @rule(number=st.integers(0, COUNT - 1), rel=st.sampled_from(PLAIN))
    def delete(self, number: int, rel: str) -> None:
        computer = self.computers[number]
        if content := computer.host.files().get(rel):
            self.give_up([content])
            computer.host.remove(rel)
        self.mark(computer, rel)

    @rule(number=st.integers(0, COUNT - 1), ref=st.sampled_from(NAMES), which=st.integers(0, 5))
    def delete_version(self, number: int, ref: DataRef, which: int) -> None:
        computer, host = self.computers[number], self.computers[number].host
        versions = host.versions(ref)
        if not versions:
            return
        version = sorted(versions)[which % len(versions)]
        self.give_up_version(computer, ref, version)
        host.remove(ref.version_rel(version))
        self.mark(computer, ref.rel)
        if rest := host.versions(ref):
            host.put(ref.latest_rel, str(max(rest)).encode())
        else:
            host.remove(ref.rel)

    @rule(number=st.integers(0, COUNT - 1), ref=st.sampled_from(NAMES))
    def delete_name(self, number: int, ref: DataRef) -> None:
        computer, host = self.computers[number], self.computers[number].host
        for version in host.versions(ref):
            self.give_up_version(computer, ref, version)
        if host.path(ref.rel).exists():
            host.remove(ref.rel)
        self.mark(computer, ref.rel)

    def give_up_version(self, computer: Computer, ref: DataRef, version: int) -> None:
        """Note that a version is deleted, with content that is only on the remote as well."""
        self.give_up([computer.host.versions(ref)[version]])
        entry = remote_files(self.remote, self.namespace).get(ref.file_rel(version, "raw"))
        if computer.host.versions(ref)[version] is None:
            self.give_up([entry])

    @rule(number=st.integers(0, COUNT - 1), rel=st.sampled_from((*PLAIN, "data", "files")))
    def mark_for_nothing(self, number: int, rel: str) -> None:
        self.mark(self.computers[number], rel)

    @rule(number=st.integers(0, COUNT - 1))
    def mark_everything(self, number: int) -> None:
        self.computers[number].service.mark_dirty()

    # Accidents ---------------------------------------------------------------------------------

    @rule(number=st.integers(0, COUNT - 1))
    def restart(self, number: int) -> None:
        self.computers[number].restart()

    @rule(number=st.integers(0, COUNT - 1), bookkeeping=st.booleans())
    def wipe(self, number: int, bookkeeping: bool) -> None:
        computer = self.computers[number]
        covers, mark_of = computer.machine.tracker.covers, computer.host.mark_of
        marked = {rel for rel in computer.had if covers(mark_of(rel))}
        computer.host.wipe(bookkeeping=bookkeeping)
        computer.unpushed.clear()
        if bookkeeping:
            computer.had.clear()
        self.give_up_missing(computer, marked.__contains__)
        computer.restart()

    @rule(number=st.integers(0, COUNT - 1), which=st.integers(0, 1))
    def wipe_half(self, number: int, which: int) -> None:
        computer = self.computers[number]
        files = computer.host.files()
        units = sorted({unit_of(rel) for rel in files})
        for unit in units[which::2]:
            # Whoever destroys what still waits has destroyed it; the rest must be on the remote.
            if not computer.machine.tracker.covers(computer.host.mark_of(unit)):
                path = computer.host.path(unit)
                lost = {data for rel, data in files.items() if unit_of(rel) == unit}
                self.note_pushed(computer, {data for data in lost if data.startswith(CONTENT)})
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    @rule(number=st.integers(0, COUNT - 1))
    def migrate(self, number: int) -> None:
        self.computers[number].service.migrate_index()

    # Syncing -----------------------------------------------------------------------------------

    scopes = st.sampled_from([None, [EC2], [PROBE], [EC2, PROBE]])

    @rule(number=st.integers(0, COUNT - 1), models=scopes)
    def push(self, number: int, models: list[ModelRef] | None) -> None:
        computer = self.computers[number]
        sent = computer.contents(Scope(models) if models else None)
        computer.service.push(models)
        self.note_pushed(computer, sent)

    @rule(number=st.integers(0, COUNT - 1), models=scopes, lazy=st.booleans())
    def pull(self, number: int, models: list[ModelRef] | None, lazy: bool) -> None:
        computer = self.computers[number]
        computer.service.pull(models, metadata_only=lazy)
        self.note_agreed(computer)

    @rule(number=st.integers(0, COUNT - 1))
    def prepare(self, number: int) -> None:
        computer = self.computers[number]
        sent = computer.contents()
        computer.prepared = computer.service.prepare_push(), sent

    @precondition(lambda self: any(one.prepared for one in self.computers))
    @rule(number=st.integers(0, COUNT - 1))
    def commit(self, number: int) -> None:
        computer = self.computers[number]
        if computer.prepared:
            prepared, sent = computer.prepared
            computer.prepared = None
            computer.service.commit_push(prepared)
            self.note_pushed(computer, sent)

    @rule(number=st.integers(0, COUNT - 1), ref=st.sampled_from(NAMES), which=st.integers(0, 5))
    def hydrate(self, number: int, ref: DataRef, which: int) -> None:
        host = self.computers[number].host
        missing = [version for version, content in host.versions(ref).items() if content is None]
        for version in missing[which:]:
            host.service.hydrate(host.mark_of(ref.file_rel(version, "raw")))

    @rule(number=st.integers(0, COUNT - 1), left=st.sampled_from([0, 20]), tidy=st.booleans())
    def evict(self, number: int, left: int, tidy: bool) -> None:
        computer = self.computers[number]
        if tidy:  # otherwise most of what is here waits to be pushed
            self.push(number, None)
        before = computer.host.files()
        computer.service.evict(left)
        gone = before.keys() - computer.host.files().keys()
        assert all(rel.endswith(f"/{RAW}") for rel in gone)
        self.note_pushed(computer, {before[rel] for rel in gone})
        # It is as if it had never come: whatever is marked later, its absence is no deletion.
        computer.had = {rel: data for rel, data in computer.had.items() if rel not in gone}

    @rule(
        number=st.integers(0, COUNT - 1),
        operation=st.sampled_from(OPERATIONS),
        requests=st.integers(0, 25),
        is_done=st.booleans(),
        kills=st.booleans(),
    )
    def break_down(
        self,
        number: int,
        operation: Operation,
        requests: int,
        is_done: bool,
        kills: bool,
    ) -> None:
        computer = self.computers[number]
        computer.store.fail_after(requests, is_done=is_done, kills=kills)
        try:
            operation(computer.service)
        except (Killed, StoreError, SyncError):
            computer.restart()
        computer.store.mend()
        self.note_agreed(computer)

    def note_pushed(self, computer: Computer, sent: set[bytes]) -> None:
        """Note that contents of a machine are on the remote, or so it was told."""
        self.shared |= sent & computer.unpushed
        computer.unpushed -= sent
        self.note_agreed(computer)

    def note_agreed(self, computer: Computer) -> None:
        """Note what the machine and the remote may both have now."""
        computer.had |= computer.host.files()

    # What must hold ----------------------------------------------------------------------------

    @property
    def remote(self) -> MemoryStore:
        return MemoryStore("shared", self.bucket)

    @invariant()
    def nothing_that_was_pushed_is_lost(self) -> None:
        files = remote_files(self.remote, self.namespace)
        index = remote_index(self.remote, self.namespace)
        # Without any index, what there is counts.
        rels = index.entries if index.monolith or index.meta else files
        found = {files[rel] for rel in rels if rel in files}
        assert not self.shared - self.given_up - found

    @invariant()
    def nothing_that_was_not_pushed_is_lost(self) -> None:
        for computer in self.computers:
            assert not computer.unpushed - self.given_up - computer.contents()

    @invariant()
    def everything_in_the_index_is_there(self) -> None:
        files = remote_files(self.remote, self.namespace)
        assert remote_index(self.remote, self.namespace).entries.keys() <= files.keys()

    def agree(self) -> None:
        """Let everybody sync twice; then all must have the same, and it must make sense."""
        self.write(0, PLAIN[0])  # as long as there is no index, all see what they like
        for _ in range(2):
            for computer in self.computers:
                computer.service.pull(full=True)
                sent = computer.contents()
                computer.service.push()
                self.note_pushed(computer, sent)
        for computer in self.computers:
            computer.service.pull()
        files = self.computers[0].host.files()
        for computer in self.computers:
            assert computer.host.files() == files
        self.nothing_that_was_pushed_is_lost()
        assert_sound(self.remote, self.namespace)
        assert remote_index(self.remote, self.namespace).entries.keys() == files.keys()
        assert {rel: remote_files(self.remote, self.namespace)[rel] for rel in files} == files
        for ref in NAMES:
            versions = self.computers[0].host.versions(ref)
            assert self.computers[0].host.latest(ref) == max(versions, default=None)


Machines.TestCase.settings = settings(
    max_examples=40,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestMachines = Machines.TestCase
