"""Fixtures: empty remotes of every kind, which as many machines as a test wants can open.

`remote` is each kind in turn; `memory_remote`, `directory_remote`, `s3_remote` and `gcs_remote`
are one of them. The last two are reached through a proxy that counts and spoils requests.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import pytest

from swampstore.stores import Store, retry, store_config
from swampstore.stores.directory import DirectoryStore
from swampstore.stores.memory import MemoryBucket, MemoryStore
from swampstore.stores.retry import RetryingStore, RetryPolicy
from tests.support.fault_proxy import FaultProxy
from tests.support.gcs_server import GcsServer
from tests.support.servers import (
    AZURITE_ACCOUNT,
    AZURITE_KEY,
    S3_KEY,
    S3Server,
    azurite,
    make_container,
    seaweedfs,
    why_no_azurite,
)

BUCKET = "swamp"


class Remote:
    """A place that starts empty; every call of `open` gives another client of it."""

    def __init__(self, connect: Callable[[], Store]) -> None:
        self._connect = connect

    def open(self) -> RetryingStore:
        return RetryingStore(self._connect())


class ProxiedRemote(Remote):
    """A place behind a proxy: `proxy.requests` has seen it all, `proxy.fail` breaks things.

    `config` is what a datastore of that kind is configured with to get there. `timeout` is how
    many seconds a client that is opened from now on waits for a silent server; less than one is
    not accepted.
    """

    def __init__(self, kind: str, config: Mapping[str, str], proxy: FaultProxy) -> None:
        def connect() -> Store:
            timeout = {"requestTimeoutMs": int(self.timeout * 1000)}
            return store_config(kind, {**config, **timeout}, environ={}).open()

        super().__init__(connect)
        self.config = config
        self.proxy = proxy
        self.timeout = 10.0


@pytest.fixture(autouse=True)
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make stores try again as often as ever, without much time in between."""
    monkeypatch.setattr(retry, "RetryPolicy", partial(RetryPolicy, first_delay=0.01))


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A real S3 server with one bucket; each worker process of the tests has its own."""
    with seaweedfs(tmp_path_factory.mktemp("seaweedfs")) as server:
        server.make_bucket(BUCKET)
        yield server


@pytest.fixture(scope="session")
def gcs_server() -> Iterator[GcsServer]:
    with GcsServer() as server:
        yield server


@pytest.fixture(scope="session")
def azure_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The account of an Azure emulator with one container, where one can be run."""
    if reason := why_no_azurite():
        pytest.skip(reason)
    with azurite(tmp_path_factory.mktemp("azurite")) as url:
        make_container(url, BUCKET)
        yield url


@pytest.fixture
def memory_remote() -> Remote:
    bucket = MemoryBucket()
    return Remote(lambda: MemoryStore("remote", bucket))


class FreeingStore(MemoryStore):
    """A store that cannot delete on a condition, so that a free record replaces a lock."""

    capabilities = MemoryStore.capabilities._replace(conditional_delete=False)


@pytest.fixture
def freeing_remote() -> Remote:
    bucket = MemoryBucket()
    return Remote(lambda: FreeingStore("remote", bucket))


@pytest.fixture
def directory_remote(tmp_path: Path) -> Remote:
    path = tmp_path / "remote"
    path.mkdir()
    return Remote(lambda: DirectoryStore(str(path), durable=False))


@pytest.fixture
def s3_remote(s3_server: S3Server) -> Iterator[ProxiedRemote]:
    prefix = uuid.uuid4().hex
    with FaultProxy(s3_server.url, prefix) as proxy:
        config = {"bucket": BUCKET, "prefix": prefix, "endpoint": proxy.url, **S3_KEY}
        yield ProxiedRemote("s3", config, proxy)


@pytest.fixture
def gcs_remote(gcs_server: GcsServer) -> Iterator[ProxiedRemote]:
    prefix = uuid.uuid4().hex
    with FaultProxy(gcs_server.url, prefix) as proxy:
        config = {"bucket": BUCKET, "prefix": prefix, "apiEndpoint": proxy.url}
        yield ProxiedRemote("gs", config, proxy)


@pytest.fixture
def azure_remote(azure_server: str) -> Remote:
    account = {"account": AZURITE_ACCOUNT, "accountKey": AZURITE_KEY, "endpoint": azure_server}
    config = {"bucket": BUCKET, "prefix": uuid.uuid4().hex, **account}
    return Remote(lambda: store_config("az", config, environ={}).open())


@pytest.fixture(params=["memory", "directory", "s3", "gcs"])
def remote(request: pytest.FixtureRequest) -> Remote:
    remote: Remote = request.getfixturevalue(f"{request.param}_remote")
    return remote
