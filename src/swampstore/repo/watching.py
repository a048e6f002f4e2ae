"""Following what is appended to a data name: `repo.watch` and `data tail`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from swampstore.artifact import Artifact
from swampstore.errors import SwampstoreError
from swampstore.layout import ModelRef
from swampstore.notices import notice

if TYPE_CHECKING:
    from swampstore.repo import Repo

_CHUNK = 1 << 20
_SEARCHED = 1 << 16


class Piece(NamedTuple):
    """Bytes that were added to a version, and where they begin in it."""

    artifact: Artifact
    offset: int
    data: bytes


def watch(
    repo: Repo,
    model: str | ModelRef,
    name: str,
    *,
    lines: int | None,
    follow: bool,
    pause: float,
    pull_every: float | None,
    sleep: Callable[[float], object] = time.sleep,
) -> Iterator[Piece]:
    """Yield what there is, then what comes; see `Repo.watch`."""
    artifact = repo.latest(model, name)
    offset = 0 if lines is None else _start_of_last(artifact, lines)
    pulled = time.monotonic()
    while True:
        for piece in _pieces(artifact, offset):
            offset += len(piece.data)
            yield piece
        if not follow:
            return
        sleep(pause)
        if pull_every is not None and time.monotonic() - pulled >= pull_every:
            _pull(repo, artifact.model)
            pulled = time.monotonic()
        found = repo.latest(model, name)
        if found.version != artifact.version or found.name != artifact.name:
            # What was added to the old one at last is not to be missed.
            for piece in _pieces(
                repo.version(artifact.model, artifact.name, artifact.version), offset
            ):
                yield piece
            offset = 0
        artifact = found


def _pieces(artifact: Artifact, offset: int) -> Iterator[Piece]:
    """Yield what a version has from `offset` on, as far as it is committed."""
    if artifact.size <= offset:
        return
    with artifact.open() as file:
        file.seek(offset)
        while offset < artifact.size:
            data = file.read(min(_CHUNK, artifact.size - offset))
            if not data:
                return
            yield Piece(artifact, offset, data)
            offset += len(data)


def _start_of_last(artifact: Artifact, lines: int) -> int:
    """Return where the last lines of a version begin; reads no more than it takes to find that."""
    if lines == 0:
        return artifact.size
    end, wanted = artifact.size, lines
    with artifact.open() as file:
        while end > 0:
            start = max(0, end - _SEARCHED)
            file.seek(start)
            block = file.read(end - start)
            if end == artifact.size:
                block = block.removesuffix(b"\n")  # it ends the last line, and begins none
            while (place := block.rfind(b"\n")) >= 0:
                wanted -= 1
                if wanted == 0:
                    return start + place + 1
                block = block[:place]
            end = start
    return 0


def _pull(repo: Repo, model: ModelRef) -> None:
    try:
        repo.sync.pull([model], metadata_only=None)
    except SwampstoreError as error:
        notice("what others added is not here yet: %s", error.message)
