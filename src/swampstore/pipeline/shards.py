"""Cutting the files of a transfer into waves, and a wave into tasks, shard by shard."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Generic, Protocol, TypeVar

from swampstore.pipeline.planning import bins
from swampstore.sync.partitions import partition_of
from swampstore.sync.report import Progress, Step

# What is settled together: whoever is stopped repeats no more than that.
_WAVE_FILES = 20_000
_WAVE_BYTES = 4 << 30
# What a file costs besides its bytes, in bytes that could have been moved meanwhile.
_FILE_WEIGHT = 256 << 10


class OfPath(Protocol):
    """Something to be done about one path."""

    @property
    def rel(self) -> str:
        """The path."""


T = TypeVar("T", bound=OfPath)


class Cargo(Generic[T]):
    """The files of one transfer; `size` says how many bytes each of them has."""

    def __init__(self, phase: str, files: Sequence[T], size: Callable[[T], int]) -> None:
        self._phase = phase
        self._files = sorted(files, key=lambda one: partition_of(one.rel))
        self._size = size
        self._bytes = sum(map(size, files))
        self._gone_files = self._gone_bytes = 0

    def waves(self, tasks: int) -> Iterator[list[list[T]]]:
        """Yield waves, each cut into about so many tasks of about the same weight."""
        for wave in self._waves():
            pieces = self._pieces(wave, max(1, self._weight(wave) // tasks))
            packed = bins(pieces, self._weight, tasks)
            yield [[file for piece in task for file in piece] for task in packed]

    def telling(self, wave: Sequence[Sequence[T]], tell: Progress) -> Progress:
        """Return what understands how many tasks of a wave are done, and tells it in files."""
        before_files, before_bytes = self._gone_files, self._gone_bytes
        files = sum(map(len, wave))
        size = sum(self._size(file) for task in wave for file in task)
        self._gone_files += files
        self._gone_bytes += size

        def told(step: Step) -> None:
            share = step.files / max(1, step.total_files)
            done = before_files + int(share * files)
            done_bytes = before_bytes + int(share * size)
            tell(Step(self._phase, done, len(self._files), done_bytes, self._bytes))

        return told

    def _weight(self, files: Sequence[T]) -> int:
        return sum(self._size(file) + _FILE_WEIGHT for file in files)

    def _waves(self) -> Iterator[list[T]]:
        wave: list[T] = []
        size = 0
        for file in self._files:
            wave.append(file)
            size += self._size(file)
            if len(wave) >= _WAVE_FILES or size >= _WAVE_BYTES:
                yield wave
                wave, size = [], 0
        if wave:
            yield wave

    def _pieces(self, wave: Sequence[T], most: int) -> Iterator[list[T]]:
        """Yield the shards of a wave; one that is more than a task's share is several pieces."""
        for _, shard in groupby(wave, key=lambda one: partition_of(one.rel)):
            piece: list[T] = []
            weight = 0
            for file in shard:
                piece.append(file)
                weight += self._size(file) + _FILE_WEIGHT
                if weight >= most:
                    yield piece
                    piece, weight = [], 0
            if piece:
                yield piece
