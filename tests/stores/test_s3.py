"""S3 against a real server, and what a user is told when it goes wrong."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from swampstore.doctor import remote as remote_checks
from swampstore.stores import Store, open_store, store_config
from swampstore.stores.errors import StoreCredentialsError, StoreMissingError
from swampstore.stores.s3 import S3Config, unfinished_uploads
from swampstore.stores.s3_signing import signed_url
from swampstore.testing import StoreConformance
from tests.support.servers import S3_KEY, S3Server

ENVIRON = {"AWS_EC2_METADATA_DISABLED": "true"}


def opened(server: S3Server, **members: str) -> Store:
    config = {"bucket": "swamp", "endpoint": server.url, **S3_KEY, **members}
    return open_store("@swamp/s3-datastore", config, environ=ENVIRON)


class TestS3Store(StoreConformance):
    @pytest.fixture
    def store(self, s3_server: S3Server) -> Iterator[Store]:
        with opened(s3_server, prefix="team/a") as store:
            yield store


def test_h63_a_prefix_keeps_stores_apart_and_its_slashes_do_not_matter(s3_server: S3Server) -> None:
    name = uuid.uuid4().hex
    opened(s3_server, prefix=f"/{name}/").put("a", b"x")
    assert opened(s3_server, prefix=name).get("a").data == b"x"
    assert opened(s3_server).get(f"{name}/a").data == b"x"
    assert [info.key for info in opened(s3_server, prefix=name).list()] == ["a"]
    assert list(opened(s3_server, prefix=f"{name}b").list()) == []


def test_equal_places_have_equal_identities(s3_server: S3Server) -> None:
    assert opened(s3_server, prefix="a/").identity == opened(s3_server, prefix="a").identity
    assert opened(s3_server, prefix="a").identity != opened(s3_server, prefix="b").identity
    assert opened(s3_server).identity == f"s3://{s3_server.url.removeprefix('http://')}/swamp"


def test_a_url_opens_the_same_store(s3_server: S3Server) -> None:
    environ = {
        **ENVIRON,
        "AWS_ACCESS_KEY_ID": S3_KEY["accessKeyId"],
        "AWS_SECRET_ACCESS_KEY": S3_KEY["secretAccessKey"],
    }
    url = f"s3://swamp/by-url?region=eu-central-1&endpoint={s3_server.url}"
    with open_store(url, environ=environ) as store:
        store.put("a", b"x")
    assert opened(s3_server).get("by-url/a").data == b"x"


def test_h67_wrong_credentials_are_told_from_a_missing_object(s3_server: S3Server) -> None:
    wrong_key = opened(s3_server, accessKeyId="nobody")
    wrong_secret = opened(s3_server, secretAccessKey="wrong")
    for store in (wrong_key, wrong_secret):
        with pytest.raises(StoreCredentialsError, match="rejected") as told:
            store.get("a")
        assert "aws sso login" in (told.value.hint or "")
        assert "wrong" not in str(told.value)


def test_a_missing_bucket_is_told_from_a_missing_object(s3_server: S3Server) -> None:
    store = opened(s3_server, bucket="no-such-bucket")
    with pytest.raises(StoreMissingError, match="no-such-bucket") as told:
        store.get("a")
    assert "create it" in (told.value.hint or "")


def anonymous_memory() -> int:
    """Return how many bytes of this process are in memory and in no file."""
    [line] = [
        line
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith("RssAnon")
    ]
    return int(line.split()[1]) << 10


def test_a_large_file_is_put_on_a_condition_without_being_held_in_memory(
    s3_server: S3Server, tmp_path: Path
) -> None:
    size = 32 << 20
    path = tmp_path / "large"
    path.touch()
    os.truncate(path, size)
    store = opened(s3_server, prefix=uuid.uuid4().hex)
    peak, over = 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not over.wait(0.002):
            peak = max(peak, anonymous_memory())

    watching = threading.Thread(target=watch)
    before = anonymous_memory()
    watching.start()
    try:
        with path.open("rb") as file:
            token = store.put_if_absent("large", file).token
            store.put_if_match("large", file, token)
            # The answer to the first one might have been lost, so it is read back and compared.
            assert store.put_if_absent("large", file).is_met
    finally:
        over.set()
        watching.join()
    assert store.head("large").size == size
    assert peak - before < size // 2


def test_uploads_that_were_never_finished_are_found_and_aborted(s3_server: S3Server) -> None:
    prefix = f"unfinished-{uuid.uuid4().hex}"
    config = {"bucket": "swamp", "endpoint": s3_server.url, "prefix": prefix, **S3_KEY}
    settings = store_config("s3", config, environ=ENVIRON)
    assert isinstance(settings, S3Config)
    begun = [f"{prefix}/data/a b/1/raw", f"{prefix}/data/größe & more/raw", "another/place"]
    for key in begun:
        url = signed_url(settings, "POST", key, {"uploads": ""}, datetime.now(UTC))
        request = urllib.request.Request(url, b"", method="POST")
        urllib.request.urlopen(request, timeout=10).close()
    uploads = unfinished_uploads(settings)
    assert uploads is not None
    now = datetime.now(UTC)
    assert {one.key for one in uploads.list()} == {"data/a b/1/raw", "data/größe & more/raw"}
    assert all(abs(one.begun - now) < timedelta(minutes=1) for one in uploads.list())
    assert list(settings.open().list()) == []

    young = remote_checks.unfinished_uploads(uploads, now, repair=True)
    assert (young.warning, len(uploads.list())) == (False, 2)
    tomorrow = now + timedelta(days=1, minutes=1)
    told = remote_checks.unfinished_uploads(uploads, tomorrow, repair=False)
    assert (told.passed, told.warning, len(told.details)) == (True, True, 2)
    repaired = remote_checks.unfinished_uploads(uploads, tomorrow, repair=True)
    assert (repaired.repaired, uploads.list()) == (True, [])


_PUSHER = """
import json, sys
from swampstore.stores import open_store
with open(sys.argv[2], "rb") as body, open_store("s3", json.loads(sys.argv[1])) as store:
    store.put_if_absent("data/t/m/n/1/raw", body)
"""


def test_a_push_that_is_killed_in_the_middle_of_large_content_leaves_nothing_to_pay_for(
    s3_server: S3Server, tmp_path: Path
) -> None:
    large = tmp_path / "large"
    large.write_bytes(os.urandom(24 << 20))
    prefix = f"killed-{uuid.uuid4().hex}"
    config = {"bucket": "swamp", "endpoint": s3_server.url, "prefix": prefix, **S3_KEY}
    with stalling_after(8 << 20, s3_server.url) as (url, is_stalled):
        arguments = [json.dumps(config | {"endpoint": url}), str(large)]
        environ = {**os.environ, **ENVIRON}
        pusher = subprocess.Popen([sys.executable, "-c", _PUSHER, *arguments], env=environ)
        assert is_stalled.wait(60)
        pusher.send_signal(signal.SIGKILL)
        pusher.wait()
    settings = store_config("s3", config, environ=ENVIRON)
    uploads = unfinished_uploads(settings)
    assert uploads is not None
    assert uploads.list() == []
    with settings.open() as store:
        assert list(store.list()) == []
        with large.open("rb") as body:
            store.put_if_absent("data/t/m/n/1/raw", body)
        assert store.head("data/t/m/n/1/raw").size == 24 << 20


@contextlib.contextmanager
def stalling_after(limit: int, url: str) -> Iterator[tuple[str, threading.Event]]:
    """Pass connections on to a server until so many bytes were sent to it; then let all wait."""
    host, _, port = url.removeprefix("http://").partition(":")
    is_stalled, left = threading.Event(), [limit]

    def forward(source: socket.socket, target: socket.socket, *, counts: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                left[0] -= len(data) if counts else 0
                if left[0] <= 0:
                    is_stalled.set()
                    return
                target.sendall(data)

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                near, far = listener.accept()[0], socket.create_connection((host, int(port)))
                ends.extend((near, far))
                for pair, counts in (((near, far), True), ((far, near), False)):
                    kwargs = {"counts": counts}
                    threading.Thread(target=forward, args=pair, kwargs=kwargs, daemon=True).start()

    ends: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}", is_stalled
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            for end in ends:
                end.close()


def test_where_unfinished_uploads_cannot_be_told_nothing_is_told(tmp_path: Path) -> None:
    assert unfinished_uploads(store_config("memory://x", environ={})) is None
    asked_by_the_client = store_config("s3://swamp", environ={"HOME": str(tmp_path)})
    assert unfinished_uploads(asked_by_the_client) is None
