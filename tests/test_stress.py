"""Many processes, kills and pauses; `make stress` does the same for longer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests import stress
from tests.support.servers import S3Server


@pytest.mark.parametrize("sharded", [False, True], ids=["v1", "v2"])
def test_on_s3_nothing_acknowledged_is_lost_or_committed_without_a_lock(
    tmp_path: Path, s3_server: S3Server, sharded: bool
) -> None:
    stress.run(tmp_path, stress.s3_datastore(s3_server, "swamp"), stress.SMALL, sharded=sharded)


@pytest.mark.parametrize("sharded", [False, True], ids=["v1", "v2"])
def test_in_a_directory_bucket_nothing_acknowledged_is_lost_or_committed_without_a_lock(
    tmp_path: Path, sharded: bool
) -> None:
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    datastore = {"type": "file", "url": f"file://{bucket}"}
    stress.run(tmp_path, datastore, stress.SMALL, sharded=sharded)


def test_on_a_shared_directory_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    datastore: dict[str, Any] = {"type": "filesystem", "path": str(tmp_path / "mount")}
    stress.run(tmp_path, datastore, stress.SMALL, sharded=False)
