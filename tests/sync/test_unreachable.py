"""A remote that cannot be reached is noticed soon, and once in a command."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from swampstore import init_repo, open_repo
from swampstore.marker import update_marker
from swampstore.stores import retry
from swampstore.stores.protocol import Store
from swampstore.stores.retry import RetryingStore
from swampstore.stores.wrapper import CountingStore, Request
from tests.stores.test_retry import black_hole
from tests.support.servers import S3_KEY

MODEL = "aws/ec2/i-1"
SOON = 1.5


@contextlib.contextmanager
def refusing() -> Iterator[str]:
    """Yield the URL of a server that is not there."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


@contextlib.contextmanager
def nameless() -> Iterator[str]:
    """Yield the URL of a server whose name nobody knows."""
    yield "http://nobody.invalid:9000"


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The keys of all requests that were really made, each time that they were."""
    made: list[str] = []

    class Noting(CountingStore):
        def around(self, request: Request, send: Callable[[], Any]) -> Any:
            made.append(request.key)
            return super().around(request, send)

    def opened(inner: Store) -> Store:
        return RetryingStore(Noting(inner))

    monkeypatch.setattr(retry, "RetryingStore", opened)
    return made


@pytest.mark.parametrize(
    ("nowhere", "most"),
    [(refusing, 3), (nameless, 3), (black_hole, 1)],
    ids=["refusing", "nameless", "silent"],
)
def test_a_remote_that_cannot_be_reached_is_asked_for_one_thing_and_work_goes_on(
    tmp_path: Path,
    attempts: list[str],
    nowhere: Callable[[], contextlib.AbstractContextManager[str]],
    most: int,
) -> None:
    place = str(tmp_path / "a")
    init_repo(place).close()
    with nowhere() as url:
        config = {"bucket": "swamp", "endpoint": url, **S3_KEY}
        update_marker(place, {"datastore": {"type": "@swamp/s3-datastore", "config": config}})
        with open_repo(place, environ={"SWAMP_HOME": f"{place}-home"}, durable=False) as repo:
            began, worked = time.monotonic(), time.process_time()
            with repo.session([MODEL]):
                repo.artifacts.save(MODEL, "state", b"1")
            waited = time.monotonic() - began
            busy = time.process_time() - worked
            latest = repo.latest(MODEL, "state")
        assert latest.version == 1
    assert len(set(attempts)) <= 1
    assert len(attempts) <= most
    # What others do on the same machine is not what is looked at here.
    assert waited - busy < 2 * SOON
