"""What a job tells about single things, kept in a file once that is much."""

from __future__ import annotations

import pickle
import tempfile
import weakref
import zlib
from collections.abc import Collection, Iterable, Iterator
from typing import IO, TypeVar

from swampstore.files import disk_errors

T = TypeVar("T")
# So many are in memory at once.
_PAGE = 10_000


class Spool(Collection[T]):
    """A list of which only the end is in memory; the rest is in a file that goes with it.

    Things can be added and gone through, as often as you like. Raises DiskError. See
    docs/decisions/0065-plans-wait-on-the-disk-of-the-driver.md.
    """

    def __init__(self, items: Iterable[T] = ()) -> None:
        self._file: IO[bytes] | None = None
        self._pages: list[tuple[int, int]] = []
        self._last: list[T] = []
        for item in items:
            self.append(item)

    def append(self, item: T) -> None:
        """Add something."""
        self._last.append(item)
        if len(self._last) == _PAGE:
            with disk_errors(tempfile.gettempdir()):
                self._write(zlib.compress(pickle.dumps(self._last, pickle.HIGHEST_PROTOCOL), 1))
            self._last = []

    def _write(self, page: bytes) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115 - it goes with the spool
            weakref.finalize(self, self._file.close)
        at = self._file.seek(0, 2)
        self._file.write(page)
        self._file.flush()  # if the disk is full, now is the time to know it
        self._pages.append((at, len(page)))

    def __iter__(self) -> Iterator[T]:
        for at, length in self._pages:
            assert self._file is not None
            self._file.seek(at)
            page = zlib.decompress(self._file.read(length))
            yield from pickle.loads(page)  # noqa: S301 - we wrote it
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
