"""A tenant of a MongoDB database keeps the promises of every store."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from swampstore.stores import Store
from swampstore.stores.probe import PREFIX, probe
from swampstore.testing import StoreConformance
from tests.support.mongodb import MongoRemote


class TestObjects(StoreConformance):
    """What is no file of the datastore."""

    @pytest.fixture
    def store(self, mongodb_remote: MongoRemote) -> Iterator[Store]:
        with mongodb_remote.open() as store:
            yield store

    def test_the_probe_finds_nothing_and_leaves_nothing(self, store: Store) -> None:
        """A server that is no replica set has no transactions, and lacks nothing else."""
        report = probe(store, racers=8)
        report.check()
        assert {finding.name for finding in report.findings if not finding.ok} <= {"transactions"}
        assert list(store.list(f"{PREFIX}/")) == []


class TestFiles(TestObjects):
    """Files that are uploaded, and that no index names yet."""

    @pytest.fixture
    def under(self) -> str:
        return f"data/{uuid.uuid4().hex}"

    def test_a_download_replaces_the_content_of_the_file(  # type: ignore[override]
        self, store: Store, under: str, tmp_path: Path
    ) -> None:
        """Content is asked for by its hash, for one request: nobody tells how old the file is."""
        store.put(f"{under}/a", b"content")
        with (tmp_path / "file").open("wb+") as file:
            file.write(b"more than that, before")
            file.flush()
            digest = hashlib.sha256(b"content").hexdigest()
            info = store.download(f"{under}/a", file.fileno(), size=7, sha256=digest)
        assert (tmp_path / "file").read_bytes() == b"content"
        assert info[:4] == store.head(f"{under}/a")[:4]


class TestFilesOfANamespace(TestFiles):
    @pytest.fixture
    def under(self) -> str:
        return f"team/files/{uuid.uuid4().hex}"
