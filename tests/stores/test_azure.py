"""Azure Blob Storage against Microsoft's emulator."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from swampstore.stores import Store, open_store
from swampstore.stores.errors import StoreCredentialsError, StoreMissingError
from swampstore.testing import StoreConformance
from tests.support.remotes import BUCKET
from tests.support.servers import AZURITE_ACCOUNT, AZURITE_KEY


def opened(server: str, container: str = BUCKET, key: str = AZURITE_KEY) -> Store:
    environ = {"AZURE_STORAGE_ACCOUNT_NAME": AZURITE_ACCOUNT, "AZURE_STORAGE_ACCOUNT_KEY": key}
    return open_store(f"az://{container}/team/a?endpoint={server}", environ=environ)


class TestAzureStore(StoreConformance):
    @pytest.fixture
    def store(self, azure_server: str) -> Iterator[Store]:
        with opened(azure_server) as store:
            yield store


def test_a_missing_container_is_told_from_a_missing_object(azure_server: str) -> None:
    with opened(azure_server, "nothing-here") as store, pytest.raises(StoreMissingError):
        store.get("a")


def test_a_wrong_key_is_reported_as_such(azure_server: str) -> None:
    with (
        opened(azure_server, key="d3Jvbmc=") as store,
        pytest.raises(StoreCredentialsError, match="rejected") as told,
    ):
        store.put("a", b"x")
    assert "az login" in (told.value.hint or "")
