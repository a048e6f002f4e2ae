"""The small language of retention: durations, lifetimes and version policies.

Every save and every file of a catalog rebuild passes through here, so answers are remembered:
a repository uses a handful of distinct texts.
"""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from datetime import timedelta
from functools import lru_cache
from typing import TypeVar

from swampstore.errors import ValidationError
from swampstore.formats import LARGEST_NUMBER, whole_number

T = TypeVar("T")
_UNITS = {
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
    "w": timedelta(weeks=1),
    "mo": timedelta(days=30),
    "y": timedelta(days=365),
}
_LIFETIME_WORDS = frozenset({"ephemeral", "infinite", "job", "workflow"})
_DURATION = (
    "one whole number and one unit: m (minutes), h, d, w, mo (30 days) or y (365 days), "
    "for example 90m or 2w."
)
_DURATION_HINT = f"Write {_DURATION}"
_LIFETIME_HINT = f"Use ephemeral, infinite, job, workflow or a duration; write {_DURATION}"
_POLICY_HINT = (
    "Use the number of versions to keep (1 or more) or how long to keep them; "
    f"for the latter write {_DURATION}"
)


def parse_duration(text: str) -> timedelta:
    """Return the length of `30d`, `12h`, `90m` (minutes), `2w`, `6mo` or `1y`; zero is allowed.

    Raises `ValidationError` for any other form and for lengths no calendar can hold.
    """
    return _parse_duration(text)


def normalise_lifetime(value: object) -> str:
    """Return the lifetime to store: one of the four words or a duration longer than zero.

    A duration of zero means "no longer than the run that made it" and becomes `workflow`.
    Raises `ValidationError` for anything else; `value` may be whatever a file held.
    """
    if not isinstance(value, str):
        raise _not_a_lifetime(value)
    return _normalise_lifetime(value)


def normalise_policy(value: object) -> int | str:
    """Return a `garbageCollection` policy: a positive count or a duration longer than zero.

    Raises `ValidationError` for anything else; `value` may be whatever a file held.
    """
    if isinstance(value, str):
        return _normalise_policy_duration(value)
    if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= LARGEST_NUMBER:
        return value
    raise _not_a_policy(value)


def beyond_count(ascending: Sequence[T], keep: int) -> Sequence[T]:
    """Return the versions that a policy of `keep` versions does without: all but the highest."""
    return ascending[:-keep]


@lru_cache(maxsize=256)
def _parse_duration(text: str) -> timedelta:
    unit = "mo" if text.endswith("mo") else text[-1:]
    number = whole_number(text[: len(text) - len(unit)])
    if unit not in _UNITS or number is None:
        raise ValidationError(f"{reprlib.repr(text)} is not a duration", hint=_DURATION_HINT)
    try:
        return number * _UNITS[unit]
    except OverflowError:
        raise ValidationError(
            f"the duration {reprlib.repr(text)} is too long",
            hint="Use a shorter one, or the lifetime infinite to keep data for good.",
        ) from None


@lru_cache(maxsize=256)
def _normalise_lifetime(text: str) -> str:
    if text in _LIFETIME_WORDS:
        return text
    try:
        length = _parse_duration(text)
    except ValidationError as cause:
        raise _not_a_lifetime(text) from cause
    return text if length else "workflow"


@lru_cache(maxsize=256)
def _normalise_policy_duration(text: str) -> str:
    try:
        length = _parse_duration(text)
    except ValidationError as cause:
        raise _not_a_policy(text) from cause
    if not length:
        raise _not_a_policy(text)
    return text


def _not_a_lifetime(value: object) -> ValidationError:
    return ValidationError(f"{reprlib.repr(value)} is not a lifetime", hint=_LIFETIME_HINT)


def _not_a_policy(value: object) -> ValidationError:
    return ValidationError(
        f"{reprlib.repr(value)} is not a garbageCollection policy", hint=_POLICY_HINT
    )
