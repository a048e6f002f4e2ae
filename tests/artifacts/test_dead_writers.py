"""The dead hold nothing up: what a killed writer began is gone for whoever comes next."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from swampstore import Draft, Owner, Repo, open_repo
from swampstore.artifacts.groups import Deferral, Receipt
from swampstore.artifacts.metadata import encode
from swampstore.errors import NotFoundError
from swampstore.layout import CLAIM
from tests.support.forked import in_child
from tests.support.machines import Machine

MODEL = "aws/ec2/i-1"
DRAFT = Draft(content_type="application/json", owner=Owner(ref="i-1"))


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def stream(repo: Repo) -> None:
    """Write a version, and never come to its end."""
    repo.store.open_writer(repo.ref(MODEL, "state"), DRAFT).write(b"never")


def save(repo: Repo) -> None:
    repo.artifacts.save(MODEL, "state", {"n": "mine"})


def group(repo: Repo) -> Deferral:
    """Save two names together, and never commit them."""
    deferral = repo.artifacts.deferring()
    deferral.save(repo.ref(MODEL, "state"), b'{"n": "never"}', DRAFT)
    deferral.save(repo.ref(MODEL, "fresh"), b'{"n": "never"}', DRAFT)
    return deferral


def committed_group(repo: Repo) -> None:
    with repo.artifacts.deferring() as deferral:
        deferral.save(repo.ref(MODEL, "state"), b'{"n": "mine"}', DRAFT)
        deferral.save(repo.ref(MODEL, "fresh"), b'{"n": "mine"}', DRAFT)


def killed(directory: Path, work: Callable[[Repo], object]) -> None:
    def begin() -> None:
        work(open_repo(directory))
        die()

    assert in_child(begin)


def half_an_append(repo: Repo) -> None:
    """Be killed between two pieces of what is appended."""

    def pieces() -> Iterator[bytes]:
        yield b"half"
        die()

    repo.store.append(repo.ref(MODEL, "log"), pieces())


def save_as_others_do(repo: Repo, name: str, version: int) -> None:
    """Save the next version as another program does, which knows nothing of intents."""
    ref = repo.ref(MODEL, name)
    draft = Draft(streaming=True).checked()
    content = b"theirs"
    checksum = hashlib.sha256(content).hexdigest()
    at = "2026-06-01T10:00:00.000Z"
    metadata = draft.metadata(name, version, Owner(), at, len(content), checksum)
    directory = Path(repo.tree.path(ref.version_rel(version)))
    directory.mkdir()
    (directory / "metadata.yaml").write_bytes(encode(metadata))
    (directory / "raw").write_bytes(content)
    (directory.parent / "latest").write_text(str(version))


class TestOneRepository:
    @pytest.mark.parametrize("is_overtaken", [False, True])
    def test_half_an_append_goes_also_where_another_program_saved_since(
        self, repo: Repo, *, is_overtaken: bool
    ) -> None:
        repo.artifacts.save(MODEL, "log", b"one", streaming=True)
        killed(Path(repo.config.repo_dir), half_an_append)
        if is_overtaken:
            save_as_others_do(repo, "log", 2)
        with open_repo(repo.config.repo_dir) as again:
            again.rebuild_catalog()
            assert again.version(MODEL, "log", 1).bytes() == b"one"
            assert len(again.versions(MODEL, "log")) == 1 + is_overtaken

    def test_a_number_that_the_dead_claimed_is_free(self, repo: Repo) -> None:
        save(repo)
        killed(Path(repo.config.repo_dir), stream)
        assert repo.artifacts.save(MODEL, "state", {"n": 2}).version == 2
        assert repo.latest(MODEL, "state").json() == {"n": 2}

    def test_a_number_that_the_living_claimed_is_not(self, repo: Repo) -> None:
        with repo.artifacts.writer(MODEL, "state", DRAFT) as writer:
            writer.write(b"slow")
            assert repo.artifacts.save(MODEL, "state", {"n": 2}).version == 2
        assert repo.version(MODEL, "state", 1).bytes() == b"slow"

    def test_a_group_whose_process_is_dead_never_was(self, repo: Repo) -> None:
        save(repo)
        killed(Path(repo.config.repo_dir), group)
        assert {one.name for one in repo.query("version > 0")} == {"state"}
        with pytest.raises(NotFoundError):
            repo.version(MODEL, "state", 2)
        assert repo.list_versions(MODEL, "fresh") == []
        assert not os.path.lexists(repo.tree.path(f"data/{MODEL}/state/2"))

    def test_a_group_can_be_read_and_adopted_while_its_process_lives(self, repo: Repo) -> None:
        begun = group(repo)
        assert repo.version(MODEL, "state", 1).json() == {"n": "never"}
        later = repo.artifacts.deferring()
        later.adopt(begun.receipts)
        del begun
        later.commit()
        assert repo.latest(MODEL, "fresh").version == 1

    def test_a_group_of_the_dead_cannot_be_adopted(self, repo: Repo) -> None:
        killed(Path(repo.config.repo_dir), group)
        ref = repo.ref(MODEL, "state")
        repo.store.save(ref, b"x", DRAFT)
        with pytest.raises(NotFoundError, match="does not wait"):
            repo.artifacts.deferring().adopt([Receipt(ref, 1)])

    def test_a_large_group_needs_one_open_file(self, repo: Repo) -> None:
        before = len(os.listdir("/proc/self/fd"))
        with repo.artifacts.deferring() as many:
            for number in range(20):
                many.save(repo.ref(MODEL, f"n{number}"), b"x", DRAFT)
            assert len(os.listdir("/proc/self/fd")) < before + 10
        assert len(repo.query()) == 20

    def test_another_machines_lock_proves_nothing(self, repo: Repo) -> None:
        """On a directory that machines share, a lock may be free here and held there."""
        killed(Path(repo.config.repo_dir), stream)
        claim = Path(repo.tree.path(f"data/{MODEL}/state/1/{CLAIM}"))
        claim.write_text("another-system")
        assert repo.artifacts.save(MODEL, "state", b"x").version == 2
        assert claim.exists()

    def test_a_claim_without_an_owner_is_dead_after_a_day(self, repo: Repo) -> None:
        claim = Path(repo.tree.path(f"data/{MODEL}/state/1"))
        claim.mkdir(parents=True)
        (claim / "raw").write_bytes(b"theirs")
        assert repo.artifacts.save(MODEL, "state", b"x").version == 2
        repo.artifacts.delete(MODEL, "state", version=2)
        for path in (claim / "raw", claim):
            os.utime(path, (1, 1))
        assert repo.artifacts.save(MODEL, "state", b"x").version == 1


COMMANDS: dict[str, tuple[str, ...]] = {
    "sync": ("sync",),
    "full sync": ("sync", "--full"),
    "doctor": ("doctor", "--repair"),
    "gc": ("data", "gc", "--yes"),
    "get": ("data", "get", MODEL, "state"),
    "put": ("data", "put", MODEL, "state", "--json-value", '{"n": "next"}'),
}
PRIMITIVES = ("mkdir", "open", "rename", "link", "unlink", "rmdir", "write", "ftruncate")


class Pair:
    """Two machines with version 1 of a name, as often as wanted."""

    def __init__(self, ana: Machine, bob: Machine, bucket: Path, *, sharded: bool) -> None:
        self.ana, self.bob = ana, bob
        self._bucket = bucket
        self.do(ana, "data", "put", MODEL, "state", "--json-value", '{"n": 1}')
        if sharded:
            self.do(ana, "datastore", "migrate-index")
        self.do(bob, "sync")
        self._places = (ana.home, ana.repo_dir, bob.home, bob.repo_dir, bucket)
        for number, place in enumerate(self._places):
            shutil.copytree(place, self._kept(number))

    def _kept(self, number: int) -> Path:
        return self._bucket.parent / f"kept-{number}"

    def restore(self) -> None:
        for number, place in enumerate(self._places):
            shutil.rmtree(place)
            shutil.copytree(self._kept(number), place)

    @staticmethod
    def do(machine: Machine, *args: str) -> str:
        done = machine(*args)
        assert done.status == 0, (args, done.err)
        return done.out

    def save_here(self, work: Callable[[Repo], object]) -> None:
        self.do(self.ana, "datastore", "status")  # the environment is that of the last command
        killed(self.ana.repo_dir, work)

    def settled(self) -> object:
        """Sync both, until what one has is what the other has; return what the latest holds."""
        self.do(self.ana, "sync")
        self.do(self.bob, "sync")
        seen = [machine.get(MODEL, "state") for machine in (self.ana, self.bob)]
        marker = (self.ana.cache / "data" / MODEL / "state/latest").read_bytes()
        assert marker == (self._bucket / "data" / MODEL / "state/latest").read_bytes()
        assert seen[0] == seen[1]
        return json.loads(seen[0])["n"]


@pytest.fixture(params=["monolith", "sharded"])
def pair(request: pytest.FixtureRequest, ana: Machine, bob: Machine, bucket: Path) -> Pair:
    return Pair(ana, bob, bucket, sharded=request.param == "sharded")


def hand_made(repo: Repo) -> None:
    """Leave what another program leaves when it is killed."""
    claim = Path(repo.tree.path(f"data/{MODEL}/state/2"))
    claim.mkdir()
    (claim / "raw").write_bytes(b"never")


def empty(repo: Repo) -> None:
    """Leave what is left of whoever is killed right after the first step of a save."""
    Path(repo.tree.path(f"data/{MODEL}/state/2")).mkdir()


class TestTwoMachines:
    @pytest.mark.parametrize("begun", [stream, group])
    def test_what_the_dead_began_holds_nobody_up(
        self, pair: Pair, begun: Callable[[Repo], object]
    ) -> None:
        for first in COMMANDS.values():
            pair.restore()
            pair.do(pair.bob, "data", "put", MODEL, "state", "--json-value", '{"n": "bob"}')
            pair.save_here(begun)
            pair.do(pair.ana, *first)
            assert pair.settled() == ("next" if "put" in first else "bob")
            assert b"never" not in (pair.ana.cache / f"data/{MODEL}/state/2/raw").read_bytes()
            assert not list((pair.ana.cache / "data").rglob("_catalog.db-*"))

    @pytest.mark.parametrize("begun", [stream, group])
    def test_a_deletion_stays_though_somebody_died_while_writing_in_its_place(
        self, pair: Pair, begun: Callable[[Repo], object]
    ) -> None:
        for first in (("sync",), ("sync", "--full"), ("push",)):
            pair.restore()
            with pair.ana.open() as repo:
                repo.artifacts.delete(MODEL, "state")
            pair.save_here(begun)
            pair.do(pair.ana, *first)
            pair.do(pair.bob, "sync")
            pair.do(pair.ana, "sync")
            for machine in (pair.ana, pair.bob):
                with machine.open() as repo:
                    assert repo.versions(MODEL, "state") == []

    def test_a_deletion_stays_though_somebody_writes_in_its_place_for_long(
        self, pair: Pair
    ) -> None:
        with pair.ana.open() as repo:
            repo.artifacts.delete(MODEL, "state")
            with repo.artifacts.deferring() as deferral:
                deferral.save(repo.ref(MODEL, "state"), b"slow", DRAFT)
                pair.do(pair.ana, "sync")
        pair.do(pair.ana, "sync")
        pair.do(pair.bob, "sync")
        for machine in (pair.ana, pair.bob):
            with machine.open() as repo:
                assert [one.bytes() for one in repo.versions(MODEL, "state")] == [b"slow"]

    @pytest.mark.parametrize("begun", [hand_made, empty], ids=["content", "an empty directory"])
    def test_what_another_program_is_writing_is_stepped_around(
        self, pair: Pair, begun: Callable[[Repo], object]
    ) -> None:
        for first in COMMANDS.values():
            pair.restore()
            pair.do(pair.bob, "data", "put", MODEL, "state", "--json-value", '{"n": "bob"}')
            pair.save_here(begun)
            pair.do(pair.ana, *first)
            pair.do(pair.ana, "sync")
            pair.do(pair.bob, "sync")
            wanted = "next" if "put" in first else "bob"
            assert json.loads(pair.bob.get(MODEL, "state"))["n"] == wanted
            assert pair.ana("data", "get", MODEL, "state", "--version", "2").status != 0

    @pytest.mark.parametrize(
        ("begun", "pair", "step"),
        [(save, "monolith", 3), (committed_group, "sharded", 7)],
        indirect=["pair"],
    )
    def test_a_kill_before_a_change_of_the_disk_leaves_the_old_state_or_the_new_one(
        self, pair: Pair, begun: Callable[[Repo], object], step: int
    ) -> None:
        """It holds for every step; all of them take a minute."""
        firsts = list(COMMANDS.values())
        outcomes = []
        for number in itertools.count(1, step):
            pair.restore()
            pair.do(pair.ana, "datastore", "status")
            if not in_child(lambda: dying(pair.ana.repo_dir, begun, number)):  # noqa: B023
                break
            pair.do(pair.ana, *firsts[number % 5])
            outcomes.append(pair.settled())
        assert outcomes == sorted(outcomes, key=str)
        assert set(outcomes) == {1, "mine"}


def dying(directory: Path, work: Callable[[Repo], object], number: int) -> None:
    """Do something, and be killed before the n-th call that may change the disk."""
    left = number

    def counted(name: str) -> Callable[..., object]:
        call = getattr(os, name)

        def primitive(*args: object, **options: object) -> object:
            nonlocal left
            left -= 1
            if not left:
                die()
            return call(*args, **options)

        return primitive

    with open_repo(directory, durable=False) as repo:
        for name in PRIMITIVES:
            setattr(os, name, counted(name))
        work(repo)
        os._exit(0)
