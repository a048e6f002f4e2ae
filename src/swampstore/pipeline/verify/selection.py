"""What of some places is verified, and whether that makes sense."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from swampstore.errors import ValidationError
from swampstore.pipeline.places import Place
from swampstore.pipeline.verify.examination import Selection


def checked(
    places: Sequence[Place],
    shard: tuple[int, int] | None,
    sample: float | None,
    grace: timedelta,
    *,
    repair: bool,
) -> Selection:
    """Return what is verified; raise ValidationError if that cannot be, or be repaired by."""
    selection = Selection(_slice(shard), 1.0 if sample is None else sample, grace)
    _check(places, selection, repair=repair)
    return selection


def _slice(shard: tuple[int, int] | None) -> tuple[int, int]:
    number, count = shard or (1, 1)
    if not 1 <= number <= count:
        raise ValidationError(
            f"{number}/{count} is no slice", hint="Write k/n with k from 1 to n, such as 2/7."
        )
    return number, count


def _check(places: Sequence[Place], selection: Selection, *, repair: bool) -> None:
    if not 0 < selection.sample <= 1:
        raise ValidationError(
            f"{selection.sample:g} is no share of the content", hint="Use 0.1 for a tenth of it."
        )
    if not repair:
        return
    if selection.sample < 1:
        raise ValidationError(
            "a sample shows too little to repair by", hint="Leave --sample out with --repair."
        )
    for place in places:
        if not place.indexed:
            raise ValidationError(
                f"{place} is used in place and has no index that could be repaired",
                hint="Use `swampstore doctor --repair`.",
            )
