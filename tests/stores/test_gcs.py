"""Google Cloud Storage against a server that keeps generations as Google does."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote

import pytest

from swampstore.stores import Store, open_store
from swampstore.stores.errors import StoreError, StoreMissingError
from swampstore.testing import StoreConformance
from tests.support.gcs_server import GcsServer


def opened(server: GcsServer, bucket: str = "swamp", prefix: str = "team") -> Store:
    config = {"bucket": bucket, "prefix": prefix, "apiEndpoint": server.url}
    return open_store("@swamp/gcs-datastore", config, environ={})


class TestGcsStore(StoreConformance):
    @pytest.fixture
    def store(self, gcs_server: GcsServer) -> Iterator[Store]:
        with opened(gcs_server) as store:
            yield store


def test_the_token_is_the_generation_and_changes_with_every_write(gcs_server: GcsServer) -> None:
    with opened(gcs_server) as store:
        first, second = store.put("a", b"same"), store.put("a", b"same")
    assert first.etag == second.etag
    assert int(second.token) > int(first.token)


def test_a_missing_bucket_is_told_from_a_missing_object(gcs_server: GcsServer) -> None:
    with opened(gcs_server, "missing-bucket") as store:
        with pytest.raises(StoreMissingError, match="missing-bucket"):
            store.get("a")
        with pytest.raises(StoreMissingError):
            list(store.list())
        with pytest.raises(StoreMissingError):
            store.put("a", b"x")


def test_a_listing_is_fetched_as_it_is_read(gcs_server: GcsServer) -> None:
    with opened(gcs_server, "paged", "") as store:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda number: store.put(f"{number:05}", b""), range(4500)))
        before = gcs_server.listings
        listing = store.list()
        next(listing)
        assert gcs_server.listings - before <= 2
        assert sum(1 for _ in listing) == 4499
        assert gcs_server.listings - before == 5


def test_an_object_is_copied_by_the_other_interface_as_well(gcs_server: GcsServer) -> None:
    path = "storage/v1/b/swamp/o/team%2Ffrom%20here/rewriteTo/b/swamp/o/team%2Fto"
    with opened(gcs_server) as store:
        store.put("from here", b"x")
        request = urllib.request.Request(f"{gcs_server.url}/{path}", method="POST")
        with urllib.request.urlopen(request, timeout=5) as answer:
            generation = json.load(answer)["resource"]["generation"]
        assert store.get("to").info.token == generation


@pytest.mark.parametrize("key", ["a//b", "../up"])
def test_an_object_that_no_path_can_name_is_reported(gcs_server: GcsServer, key: str) -> None:
    url = f"{gcs_server.url}/hostile/{quote(key, safe='')}"
    with opened(gcs_server, "hostile", "") as store:
        urllib.request.urlopen(urllib.request.Request(url, b"x", method="PUT"), timeout=5).close()
        with pytest.raises(StoreError, match=re.escape(key)) as told:
            list(store.list())
        assert type(told.value) is StoreError
        assert "rename or remove" in (told.value.hint or "")
        urllib.request.urlopen(urllib.request.Request(url, method="DELETE"), timeout=5).close()
        assert list(store.list()) == []
