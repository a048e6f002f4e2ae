"""What a job tells about single things, kept in a file once that is much."""

from __future__ import annotations

import pickle
import tempfile
import weakref
from collections.abc import Collection, Iterable, Iterator
from typing import IO, TypeVar

T = TypeVar("T")
# So many are in memory at once.
_PAGE = 10_000


class Spool(Collection[T]):
    """A list of which only the end is in memory; the rest is in a file that goes with it.

    Things can be added and gone through, as often as you like.
    """

    def __init__(self, items: Iterable[T] = ()) -> None:
        self._file: IO[bytes] | None = None
        self._pages: list[int] = []
        self._last: list[T] = []
        for item in items:
            self.append(item)

    def append(self, item: T) -> None:
        """Add something."""
        self._last.append(item)
        if len(self._last) == _PAGE:
            if self._file is None:
                self._file = tempfile.TemporaryFile()  # noqa: SIM115 - it goes with the spool
                weakref.finalize(self, self._file.close)
            self._pages.append(self._file.seek(0, 2))
            pickle.dump(self._last, self._file, pickle.HIGHEST_PROTOCOL)
            self._last = []

    def __iter__(self) -> Iterator[T]:
        for at in self._pages:
            assert self._file is not None
            self._file.seek(at)
            yield from pickle.load(self._file)  # noqa: S301 - we wrote it
        yield from self._last

    def __len__(self) -> int:
        return len(self._pages) * _PAGE + len(self._last)

    def __contains__(self, item: object) -> bool:
        return any(one == item for one in self)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Collection) or len(other) != len(self):
            return False
        return all(ours == theirs for ours, theirs in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]  # it grows

    def __repr__(self) -> str:
        return f"Spool of {len(self)}"
