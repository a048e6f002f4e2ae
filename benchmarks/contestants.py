"""Those who bring a tree of artifacts into a bucket and out of it again: peers, and ourselves."""

from __future__ import annotations

import os
import shutil
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import obstore
from obstore.store import S3Store

import sample
from peers import CONCURRENCY, Account, Peer, run_quietly
from swampstore import Repo, init_repo, open_repo
from swampstore.marker import update_marker
from swampstore.stores.wrapper import Tally

BUCKET = "bench"


class Contestant(ABC):
    """Has a tree of its own to push, and a place on the server that nobody else uses.

    `repo` is where the tree is changed, `target` the directory that pulls fill. `spent` says what
    the last push or pull asked of the server, if that is known.
    """

    repo: Repo
    target: str
    spent = ""

    def __init__(self, name: str, directory: str) -> None:
        self.name = name
        self._directory = directory
        os.mkdir(directory)

    @abstractmethod
    def start_over(self, number: int) -> None:
        """Turn to a place that holds nothing yet, and to an empty target."""

    @abstractmethod
    def push(self, *, cold: bool) -> None:
        """Bring what changed to the server; `cold` says that nothing is there."""

    @abstractmethod
    def pull(self, *, cold: bool) -> None:
        """Bring what changed on the server into the target; `cold` says that it is empty."""

    def change(self, shape: sample.Shape, model: int, content: bytes) -> None:
        """Save another version of one artifact: two files more, and a marker that changes."""
        name = sample.names(shape)[-1]
        self.repo.artifacts.save(sample.model_ref(shape, model), name, content)

    def check(self) -> None:
        """Raise AssertionError unless the target holds what the tree holds."""
        assert _contents(self.target) == _contents(self.repo.tree.path("data")), self.name

    def close(self) -> None:
        """Release what is open."""
        self.repo.close()


class Other(Contestant):
    """A peer."""

    def __init__(self, peer: Peer, directory: str, shape: sample.Shape) -> None:
        super().__init__(peer.name, directory)
        self.repo = init_repo(f"{directory}/repo")
        sample.write_files(self.repo.tree, shape, sample.small_contents())
        self._source = self.repo.tree.path("data")
        self._peer = peer
        self._place = ""

    def start_over(self, number: int) -> None:
        """Turn to a place that holds nothing yet, and to an empty target."""
        self._place = self._peer.place(f"{BUCKET}/{os.path.basename(self._directory)}/{number}")
        self.target = f"{self._directory}/target"
        shutil.rmtree(self.target, ignore_errors=True)
        os.mkdir(self.target)

    def push(self, *, cold: bool) -> None:
        """Bring what changed to the server."""
        command = self._peer.copy if cold else self._peer.sync
        self._peer.run(command(self._source, self._place))

    def pull(self, *, cold: bool) -> None:
        """Bring what changed on the server into the target."""
        command = self._peer.copy if cold else self._peer.sync
        self._peer.run(command(self._place, self.target))


class Bare(Other):
    """The client that we use, without anything of ours: it knows what to bring, and checks nothing.

    What it writes is in the page cache.
    """

    def __init__(self, directory: str, shape: sample.Shape, account: Account) -> None:
        nothing = Peer("bare obstore", _no_command, _no_command, str, {})
        super().__init__(nothing, directory, shape)
        self._account = account

    def _store(self) -> S3Store:
        return S3Store(
            BUCKET,
            prefix=self._place.removeprefix(f"{BUCKET}/"),
            endpoint=self._account.url,
            access_key_id=self._account.access_key,
            secret_access_key=self._account.secret_key,
            region="us-east-1",
            virtual_hosted_style_request=False,
            client_options={"allow_http": True},
        )

    def push(self, *, cold: bool) -> None:  # noqa: ARG002 - it is only ever cold
        """Put every file where there is none, as we do: that takes a server longer."""
        store, root = self._store(), self._source

        def put(path: str) -> None:
            with open(path, "rb") as file:
                obstore.put(store, path.removeprefix(f"{root}/"), file.read(), mode="create")

        self._each(put, (f"{at}/{name}" for at, _, names in os.walk(root) for name in names))

    def pull(self, *, cold: bool) -> None:  # noqa: ARG002 - it is only ever cold
        """Get every object into a file of its own."""
        store = self._store()
        keys = [info["path"] for page in obstore.list(store) for info in page]

        def get(key: str) -> None:
            data = obstore.get(store, key).bytes()
            path = f"{self.target}/{key}"
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as file:
                file.write(data)

        self._each(get, keys)

    @staticmethod
    def _each(work: Callable[[str], None], tasks: Iterable[str]) -> None:
        with ThreadPoolExecutor(CONCURRENCY) as pool:
            for _ in pool.map(work, tasks):
                pass


def _no_command(source: str, target: str) -> list[str]:
    raise NotImplementedError(f"from {source} to {target}")


class Machine(NamedTuple):
    """A repository with a cache of its own, and the environment of a process that uses it."""

    repo: Repo
    environ: dict[str, str]

    @classmethod
    def new(cls, directory: str, url: str) -> Machine:
        """Make a repository whose datastore is at a URL; its cache is empty."""
        init_repo(f"{directory}/repo").close()
        # The others bring content as well.
        update_marker(f"{directory}/repo", {"datastore": {"hydrationStrategy": "full"}})
        environ = {**os.environ, "SWAMP_HOME": f"{directory}/home", "SWAMP_DATASTORE": url}
        repo = open_repo(f"{directory}/repo", environ=environ)
        os.makedirs(repo.tree.base)
        return cls(repo, environ)


class Library(Contestant):
    """Ourselves, as somebody sees it who has the repository open."""

    def __init__(
        self, name: str, directory: str, shape: sample.Shape, account: Account, *, sharded: bool
    ) -> None:
        super().__init__(name, directory)
        self._account = account
        self.sharded = sharded
        self._here = self._machine("here-0", 0)
        self._there = self._machine("there-0", 0)
        sample.write_files(self._here.repo.tree, shape, sample.small_contents())

    def _machine(self, name: str, number: int) -> Machine:
        prefix = f"{os.path.basename(self._directory)}/{number}"
        url = f"s3://{BUCKET}/{prefix}?endpoint={self._account.url}&region=us-east-1"
        # As many transfers at once as the others have; a pull has so many without being told.
        url += f"&pushConcurrency={CONCURRENCY}"
        return Machine.new(f"{self._directory}/{name}", url)

    def start_over(self, number: int) -> None:
        """Turn to a place that holds nothing yet, and to an empty target."""
        here, there = self._here.repo, self._there.repo
        self._here = self._machine(f"here-{number}", number)
        self._there = self._machine(f"there-{number}", number)
        os.rename(here.tree.path("data"), self._here.repo.tree.path("data"))
        for left in (here, there):
            left.close()
            shutil.rmtree(left.tree.base)
        self.repo, self.target = self._here.repo, self._there.repo.tree.path("data")
        for machine in (self._here, self._there):
            machine.repo.sync.status()  # so that everything is imported
        if self.sharded:
            self.repo.sync.migrate_index()

    def push(self, *, cold: bool) -> None:  # noqa: ARG002 - we need no such hint
        """Bring what changed to the server."""
        counting = self._here.repo.connection.counting
        counting.reset()
        self._here.repo.sync.push()
        self.spent = spent(counting.tally())

    def pull(self, *, cold: bool) -> None:  # noqa: ARG002 - we need no such hint
        """Bring what changed on the server into the target."""
        counting = self._there.repo.connection.counting
        counting.reset()
        self._there.repo.sync.pull()
        self.spent = spent(counting.tally())

    def close(self) -> None:
        """Release what is open."""
        self._here.repo.close()
        self._there.repo.close()


class CommandLine(Library):
    """Ourselves, as a command that is started each time."""

    def push(self, *, cold: bool) -> None:  # noqa: ARG002 - we need no such hint
        """Bring what changed to the server."""
        self._run(self._here, "--push")

    def pull(self, *, cold: bool) -> None:  # noqa: ARG002 - we need no such hint
        """Bring what changed on the server into the target."""
        self._run(self._there, "--pull")

    def _run(self, machine: Machine, *options: str) -> None:
        program = f"{os.path.dirname(sys.executable)}/swampstore"
        command = [program, "sync", "--repo", machine.repo.config.repo_dir, "--json", *options]
        run_quietly(command, machine.environ)


def spent(tally: Tally) -> str:
    """Say what was asked of a store, and how much went to and fro."""
    kinds = ", ".join(f"{number:,} {kind}" for kind, number in sorted(tally.requests.items()))
    sent, received = tally.bytes_sent / 1e3, tally.bytes_received / 1e3
    return f"{kinds}; {sent:,.0f} kB sent, {received:,.0f} kB received"


def _contents(directory: str) -> dict[str, bytes]:
    """Return what is in every file, by its path below a directory."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in Path(directory).rglob("*")
        if path.is_file()
    }
