"""Many processes on one database, some of them killed, some paused."""

from __future__ import annotations

from pathlib import Path

from tests import stress
from tests.support.mongodb import MongoRemote


def test_nothing_acknowledged_is_lost_or_committed_without_a_lock(
    tmp_path: Path, mongodb_remote: MongoRemote
) -> None:
    datastore = {"type": "mongodb", "url": mongodb_remote.url}
    stress.run(tmp_path, datastore, stress.SMALL, sharded=False)
