"""Which part of a store is examined."""

from __future__ import annotations

from datetime import timedelta
from typing import NamedTuple

from swampstore.pipeline.evidence.rows import Total
from swampstore.pipeline.source.objects import portion_of
from swampstore.sync.shapes import unit_of

_SHARES = 1 << 20


class Selection(NamedTuple):
    """One slice (from 1) of so many, and content of a share of it.

    `grace` is the age up to which things may belong to a push that is going on.
    """

    slice: tuple[int, int] = (1, 1)
    sample: float = 1.0
    grace: timedelta = timedelta(hours=1)

    @property
    def is_all(self) -> bool:
        """Whether everything is examined."""
        return self.slice[1] == 1 and self.sample >= 1

    def has(self, rel: str) -> bool:
        """Whether a path is examined; all data of a model is, or none."""
        number, count = self.slice
        if count == 1:
            return True
        # A data name is in its model, and anything else in its directory.
        inside = unit_of(rel).rpartition("/")[0]
        return portion_of(inside, count) == number - 1

    def part_of(self, total: Total) -> Total:
        """Return about how much of a whole store is read."""
        share = self.sample / self.slice[1]
        return Total(round(total.objects * share), round(total.bytes * share))

    def reads(self, rel: str) -> bool:
        """Whether content is read; that of all files of a version is, or of none."""
        if self.sample >= 1:
            return True
        return portion_of(rel.rpartition("/")[0], _SHARES) < self.sample * _SHARES
