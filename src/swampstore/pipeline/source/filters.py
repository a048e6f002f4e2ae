"""Which rows a query wants, as far as Spark tells: a rule that driver and tasks can ask.

Nothing is ever left to this rule alone. Spark gets every filter back and applies it itself, so a
row too many costs time, and only a row too few would be wrong.
"""

from __future__ import annotations

import fcntl
import json
import operator
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

Operand = str | int | datetime | tuple[str | int | datetime, ...] | None
# Who asks a frame for that many different things ends up reading nearly all of it.
_MOST_ALTERNATIVES = 16
_MOMENT = "moment"
_PREFIX = "swampstore-frame-"
_FLAGS = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
_LONG = 7 * 24 * 3600.0

_TESTS: Mapping[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "in": lambda value, operands: value in operands,
    "starts with": lambda value, start: bool(value.startswith(start)),
    "ends with": lambda value, end: bool(value.endswith(end)),
    "contains": lambda value, part: part in value,
    "is there": lambda _value, _none: True,
}
_BY_FILTER = {
    "EqualTo": "=",
    "EqualNullSafe": "=",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
    "In": "in",
    "StringStartsWith": "starts with",
    "StringEndsWith": "ends with",
    "StringContains": "contains",
}


class Condition(NamedTuple):
    """What one column of a row must be like."""

    column: str
    test: str
    operand: Operand = None

    def holds(self, value: object) -> bool:
        """Whether a value passes; NULL passes nothing, as in SQL."""
        if value is None:
            return False
        try:
            return _TESTS[self.test](value, self.operand)
        except TypeError:  # what cannot be compared here is for Spark to judge
            return True


Conditions = tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Wanted:
    """Rows that fulfil all conditions of at least one of the alternatives."""

    alternatives: tuple[Conditions, ...] = ((),)

    @property
    def is_everything(self) -> bool:
        """Whether every row is wanted."""
        return () in self.alternatives

    def admits(self, known: Mapping[str, object]) -> bool:
        """Whether a row of which only some columns are known may be wanted."""
        return any(
            all(one.holds(known[one.column]) for one in conditions if one.column in known)
            for conditions in self.alternatives
        )


EVERYTHING = Wanted()


def understood(filters: Iterable[Filter]) -> Conditions:
    """Return the conditions that are among Spark's filters; others are left out."""
    found = (_condition(one) for one in filters)
    return tuple(one for one in found if one is not None)


def choices(conditions: Conditions, column: str) -> frozenset[str] | None:
    """Return the only texts that a column may be, None if it may be any."""
    found: frozenset[str] | None = None
    for one in conditions:
        if one.column != column or one.test not in ("=", "in"):
            continue
        operands = one.operand if isinstance(one.operand, tuple) else (one.operand,)
        texts = frozenset(text for text in operands if isinstance(text, str))
        found = texts if found is None else found & texts
    return found


def _condition(one: Filter) -> Condition | None:
    kind = type(one).__name__
    if kind == "Not":
        # Of the others, some let NULL pass once they are negated, which no condition does.
        inner = _condition(one.child) if type(one.child).__name__ == "EqualTo" else None
        return inner and inner._replace(test="!=")
    if len(one.attribute) != 1:
        return None
    if kind == "IsNotNull":
        return Condition(one.attribute[0], "is there")
    if kind not in _BY_FILTER:
        return None
    operand = _operand(one.value)
    return None if operand is None else Condition(one.attribute[0], _BY_FILTER[kind], operand)


def _operand(value: object) -> Operand:
    if isinstance(value, list | tuple):
        inner = [one for one in value if one is not None]
        return tuple(inner) if all(_is_simple(one) for one in inner) else None
    return value if isinstance(value, str | int | datetime) else None


def _is_simple(value: object) -> bool:
    return isinstance(value, str | int | datetime)


class Frame:
    """What was asked of one loaded frame so far.

    Spark (4.3) plans a reading for the filters that it pushed last, keeps that one reading per
    loaded frame, and uses it for every query of the frame from then on: both sides of a join of
    a frame with itself read what only one of them asked for. So every reading has to do for all
    that was asked of its frame before, also by other processes: Spark plans in new ones. It is
    noted in a file; a frame without one reads everything.
    """

    def __init__(self, frame_id: str) -> None:
        self._path = os.path.join(tempfile.gettempdir(), f"{_PREFIX}{frame_id}.jsonl")

    def begin(self) -> None:
        """Note that nothing was asked yet, and forget frames that nobody used for long."""
        with suppress(OSError):
            _sweep(os.path.dirname(self._path))
            os.close(os.open(self._path, _FLAGS | os.O_CREAT | os.O_EXCL, 0o600))

    def asked(self, conditions: Conditions) -> Wanted:
        """Return what a reading must hold now that this is asked for, too."""
        line = _encoded(conditions)
        try:
            lines = self._noted(line)
        except OSError:  # what cannot be remembered must not narrow anything
            return EVERYTHING
        if len(lines) > _MOST_ALTERNATIVES:
            return EVERYTHING
        return Wanted(tuple(_decoded(one) for one in lines))

    def _noted(self, line: str) -> list[str]:
        with open(os.open(self._path, _FLAGS), "r+", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            lines = file.read().splitlines()
            if line not in lines:
                file.write(f"{line}\n")
                lines.append(line)
        return lines


def _sweep(directory: str) -> None:
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.name.startswith(_PREFIX):
                with suppress(OSError):
                    if time.time() - entry.stat(follow_symlinks=False).st_mtime > _LONG:
                        os.unlink(entry.path)


def _encoded(conditions: Conditions) -> str:
    return json.dumps(sorted(set(conditions), key=repr), default=_moment)


def _moment(value: object) -> dict[str, str]:
    assert isinstance(value, datetime), value
    return {_MOMENT: value.isoformat()}


def _decoded(line: str) -> Conditions:
    return tuple(
        Condition(column, test, _restored(operand)) for column, test, operand in json.loads(line)
    )


def _restored(operand: Any) -> Any:
    if isinstance(operand, Sequence) and not isinstance(operand, str):
        return tuple(_restored(one) for one in operand)
    return datetime.fromisoformat(operand[_MOMENT]) if isinstance(operand, dict) else operand
