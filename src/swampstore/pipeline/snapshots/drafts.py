"""Cutting what a refresh has to make into shares of about the same size.

A bucket of a snapshot is written by one task, and one model can have most of its rows. Their
metadata is then read by several tasks, which leave drafts; the one that writes the bucket puts
these together as columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from swampstore.pipeline.planning import bins
from swampstore.pipeline.snapshots.buckets import Draft, Drafted, Remade, Work

# Less of the index is not worth a draft: about a thousand versions.
_WORTH_A_DRAFT = 1 << 20
# Into so many parts a share of a shard is cut, so that shares come out even.
_FINE = 8
# What it takes to write a row that is known already, in bytes of the index to be read.
_A_KNOWN_ROW = 2


class _Part(NamedTuple):
    partition: str
    number: int
    of: int
    weight: int


def made(
    works: Sequence[Work],
    sizes: Callable[[], Mapping[str, int]],
    tasks: int,
    run: Callable[[Sequence[tuple[Work | Draft, ...]]], list[Remade | Drafted]],
) -> tuple[list[Remade], list[str]]:
    """Make buckets anew, by about so many tasks; return them, and files that nobody needs now.

    `run` does what tasks do, each one item. `sizes` tells those of the documents of shards.
    """
    if tasks == 1:
        return remade_of(run([tuple(works)] if works else [])), []
    first, waiting = shares(works, sizes(), tasks)
    found = run(first)
    drafted = [one for one in found if isinstance(one, Drafted)]
    whole = [
        work._replace(drafts=[one for one in drafted if one.draft.number == work.number])
        for work in waiting
    ]
    found += run([(work,) for work in whole]) if whole else []
    return remade_of(found), [one.file for one in drafted if one.file is not None]


def remade_of(made: Iterable[Remade | Drafted]) -> list[Remade]:
    """Return the buckets among what tasks made."""
    return [one for one in made if isinstance(one, Remade)]


def shares(
    works: Sequence[Work], sizes: Mapping[str, int], tasks: int
) -> tuple[list[tuple[Work | Draft, ...]], list[Work]]:
    """Return what tasks do at first, and the works that wait for drafts.

    `sizes` are those of the documents of shards.
    """

    def size_of(partition: str) -> int:
        return max(1, sizes.get(partition, 0))

    def weight_of(work: Work) -> int:
        known = work.old.count if work.old else 0
        return sum(map(size_of, work.changed)) + _A_KNOWN_ROW * known

    most = max(_WORTH_A_DRAFT, sum(map(weight_of, works)) // max(1, tasks))
    weights: dict[int, int] = {}
    items: list[Work | Draft] = []
    waiting: list[Work] = []

    def add(item: Work | Draft, weight: int) -> None:
        weights[id(item)] = weight
        items.append(item)

    for work in works:
        if sum(map(size_of, work.changed)) <= most:
            add(work, weight_of(work))
            continue
        waiting.append(work)
        for draft, weight in _drafts(work, size_of, most):
            add(draft, weight)
    return [tuple(one) for one in bins(items, lambda item: weights[id(item)], tasks)], waiting


def _drafts(work: Work, size_of: Callable[[str], int], most: int) -> Iterator[tuple[Draft, int]]:
    """Yield drafts for a work with about the same weights, and these; none is above `most`."""
    parts = [
        _Part(one, number, count, size_of(one) // count)
        for one in work.changed
        for count in [max(1, size_of(one) * _FINE // most)]
        for number in range(count)
    ]
    count = -(-sum(part.weight for part in parts) // most)
    for some in bins(parts, lambda part: part.weight, count):
        numbers: dict[str, set[int]] = {}
        for part in some:
            numbers.setdefault(part.partition, set()).add(part.number)
        counts = {part.partition: part.of for part in some}
        chosen = {one: (frozenset(found), counts[one]) for one, found in numbers.items()}
        yield Draft(work.number, work.old, chosen), sum(part.weight for part in some)


def packed(works: Sequence[Work], tasks: int) -> list[tuple[Work, ...]]:
    """Pack buckets into tasks, by what there is to be read and to be written."""

    def weight(work: Work) -> int:
        rows = work.old.count if work.old else 0
        return 100 * len(work.changed) + rows // 100

    return [tuple(one) for one in bins(works, weight, tasks)]
