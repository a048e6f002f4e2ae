"""What a target lacks, found out in this process where the indexes are small."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, Self

from swampstore.index.path_kinds import unit_of
from swampstore.pipeline.copy.comparison import Content, Totals, Trouble, is_same
from swampstore.pipeline.copy.outcomes import Wanted
from swampstore.pipeline.places import Place
from swampstore.pipeline.source.index import Index


class _Told(NamedTuple):
    document: str
    partition: str | None
    rel: str | None
    size: int | None
    last_modified: str
    sha256: str | None
    local_mtime: str | None
    commit_seq: int | None
    raw: bytes | None
    problem: str | None

    @property
    def content(self) -> Content:
        return Content(self.size, self.sha256, self.last_modified)


@dataclass(frozen=True)
class ComparisonHere:
    """An indexed source beside a target; see `Comparison`."""

    objects: int
    bytes: int
    missing: list[Wanted]
    _troubles: list[Trouble]

    @classmethod
    def of(cls, source: Place, target: Place | None) -> Self:
        """Compare two places; without a target, the source with nothing."""
        told, broken = _told(source, "source")
        ours = {rel: one for rel, one in told.items() if one.problem is None}
        theirs, unusable = _told(target, "target") if target else ({}, [])
        missing = [
            _wanted(one, theirs.get(rel))
            for rel, one in ours.items()
            if not is_same(one.content, theirs[rel].content if rel in theirs else None)
        ]
        size = sum(one.size or 0 for one in ours.values())
        return cls(len(ours), size, missing, [*broken, *unusable])

    def totals(self) -> Totals:
        """Count."""
        size = sum(one.size for one in self.missing)
        return Totals(self.objects, self.bytes, len(self.missing), size, len(self._troubles))

    def troubles(self) -> list[Trouble]:
        """Return what the indexes say that cannot be understood."""
        return self._troubles

    def wanted(self, totals: Totals) -> list[Wanted]:
        """Return what the target lacks, ordered by unit."""
        del totals
        return sorted(self.missing, key=lambda one: (unit_of(one.rel), one.rel))

    def close(self) -> None:
        """Do nothing: it goes with its last user."""


def _told(place: Place, side: str) -> tuple[dict[str, _Told], list[Trouble]]:
    """Return the entries of a place, also damaged ones, and what cannot be understood."""
    with place.open() as store:
        table = Index()
        pieces = table.plan(place, store, 1)
        rows = [_Told(*row[2:]) for one in pieces for row in table.rows(place, one, store)]
    broken = [
        Trouble(side, one.document, one.rel, one.problem) for one in rows if one.problem is not None
    ]
    return _by_path(rows), broken


def _by_path(rows: Iterable[_Told]) -> dict[str, _Told]:
    return {one.rel: one for one in rows if one.rel is not None}


def _wanted(one: _Told, there: _Told | None) -> Wanted:
    assert one.rel is not None
    assert one.size is not None
    return Wanted(
        *(one.rel, one.size, one.sha256, one.last_modified, one.local_mtime),
        raw=one.raw,
        etag=None,
        there=there.raw if there else None,
    )
