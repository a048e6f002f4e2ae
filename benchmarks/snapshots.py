"""What reading the artifact table costs, with and without a snapshot.

    .venv/bin/python benchmarks/snapshots.py [MODELS] [VERSIONS]

fills a bucket in a temporary directory, and prints rows, requests, bytes and processor seconds.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from swampstore import init_repo, open_repo
from swampstore.marker import update_marker
from swampstore.pipeline.places import Place, places_of
from swampstore.pipeline.schemas import ARTIFACTS, arrow_schema
from swampstore.pipeline.snapshots.refresh import refresh
from swampstore.pipeline.source.artifacts import Artifacts
from swampstore.stores.wrapper import CountingStore

_TASKS = 8


def main(models: int = 300, versions: int = 10) -> None:
    """Fill a bucket, and read and refresh it in turns."""
    with tempfile.TemporaryDirectory(prefix="swampstore-bench-") as directory:
        home = Path(directory)
        (home / "bucket").mkdir()
        environ = {"SWAMP_HOME": str(home / "home"), "SWAMPSTORE_FSYNC": "off"}
        init_repo(home / "repo").close()
        section = {"type": "file", "url": f"file://{home}/bucket"}
        update_marker(str(home / "repo"), {"datastore": section})
        with open_repo(home / "repo", environ=environ) as repo:
            for model in range(models):
                for version in range(versions):
                    repo.artifacts.save(f"aws/ec2/i-{model}", "state", str(version))
            repo.sync.push()
            repo.sync.migrate_index()
            [place] = places_of(repo, environ=environ)
            _read(place, "read without a snapshot", snapshot=False)
            _refresh(place, "first refresh")
            _read(place, "read")
            _refresh(place, "refresh, nothing changed")
            repo.artifacts.save("aws/ec2/i-0", "state", "one more")
            repo.sync.push()
            _read(place, "read after one save")
            _refresh(place, "refresh after one save")
            _read(place, "read")


def _read(place: Place, what: str, *, snapshot: bool = True) -> None:
    table, schema = Artifacts(snapshot=snapshot), arrow_schema(ARTIFACTS)
    began = time.process_time()
    with place.open() as opened:
        store = CountingStore(opened)
        rows = sum(
            batch.num_rows
            for piece in table.plan(place, store, _TASKS)
            for batch in table.batches(place, piece, store, schema)
        )
        tally = store.tally()
    requests = sum(tally.requests.values())
    _tell(what, rows, requests, tally.bytes_received, time.process_time() - began)


def _refresh(place: Place, what: str) -> None:
    began = time.process_time()
    [done] = refresh([place], engine="local")
    _tell(what, done.rows, sum(done.requests.values()), None, time.process_time() - began)


def _tell(what: str, rows: int, requests: int, received: int | None, seconds: float) -> None:
    size = "" if received is None else f"{received:,}"
    print(f"{what:28} {rows:9,} rows {requests:9,} requests {size:>12} B {seconds:8.2f} s")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
