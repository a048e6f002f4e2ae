"""The table of the files of a cache, or of a directory that is used in place."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from swampstore.pipeline import schemas
from swampstore.pipeline.places import Place
from swampstore.pipeline.planning import Piece, listed, pieces
from swampstore.pipeline.source.scan import Whole
from swampstore.stores.protocol import Store

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Files(Whole):
    """One row per file that takes part in a sync; the hash only if it is asked for."""

    hashed: bool = False
    schema = schemas.FILES

    def plan(self, place: Place, store: Store, tasks: int) -> Iterable[Piece]:
        """Cut the directory into pieces; a bucket somewhere else has no files."""
        return pieces(place, store, tasks) if place.root else []

    def rows(self, place: Place, piece: Piece, store: Store) -> Iterator[tuple[Any, ...]]:
        """Walk one piece; files that vanish meanwhile have no row."""
        assert place.root is not None
        root = f"{place.root}/{place.namespace}" if place.namespace else place.root
        for one in listed(piece, store):
            if one.internal:
                continue
            path = f"{root}/{one.rel}"
            try:
                status = os.lstat(path)
                sha256 = _hash(path) if self.hashed else None
            except FileNotFoundError:
                continue
            mtime = _EPOCH + timedelta(microseconds=status.st_mtime_ns // 1000)
            yield (
                *(place.identity, place.namespace, place.root, one.rel),
                *(status.st_size, mtime, sha256),
            )


def _hash(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
