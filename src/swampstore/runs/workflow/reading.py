"""Reading members of a document that people write: each is named, typed, and none is unknown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from swampstore.errors import SwampstoreError
from swampstore.notices import did_you_mean, nearest
from swampstore.runs.errors import WorkflowError

_SECONDS = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?", re.ASCII)
_UNITS = {"ms": 0.001, "s": 1.0, None: 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_LONGEST = 366 * 86400.0


class Members:
    """The members of one mapping, taken one by one; `end` complains about those left over.

    `where` is the way to the mapping from the top of its document, for messages.
    """

    def __init__(self, value: Any, where: str) -> None:
        if not isinstance(value, Mapping):
            raise WorkflowError(
                f"{where} is {_shown(value)}, and should be a mapping", hint="Look at its indent."
            )
        self.where = where
        self._rest: dict[str, Any] = {str(key): one for key, one in value.items()}
        self._asked: set[str] = set()

    def wrong(self, problem: str, hint: str | None = None) -> WorkflowError:
        """Return the error that something is wrong with this mapping."""
        return WorkflowError(f"{self.where} {problem}", hint=hint)

    def get(self, key: str) -> Any:
        """Take a member, None if it is not there."""
        self._asked.add(key)
        return self._rest.pop(key, None)

    def required(self, key: str) -> Any:
        """Take a member that must be there."""
        value = self.get(key)
        if value is None:
            near = nearest(key, self._rest, 1)
            hint = f"It has {near[0]!r}; is {key!r} meant?" if near else f"Add {key!r}."
            raise self.wrong(f"has no {key!r}", hint)
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """Take a text that is not empty."""
        value = self.get(key)
        if value is None and default is not None:
            return default
        if value is None:
            self.required(key)
        if not isinstance(value, str) or not value.strip():
            raise self.wrong(
                f"has {_shown(value)} as {key!r}, which should be text", _as_text(key, value)
            )
        return value

    def optional_text(self, key: str) -> str | None:
        """Take a text, None if it is not there."""
        return self.text(key, "") or None

    def flag(self, key: str) -> bool:
        """Take true or false; false if it is not there."""
        value = self.get(key)
        if value is None or isinstance(value, bool):
            return bool(value)
        raise self.wrong(f"has {_shown(value)} as {key!r}, which should be true or false")

    def number(self, key: str, default: int | None = None, *, least: int = 1) -> int | None:
        """Take a whole number."""
        value = self.get(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self.wrong(
                f"has {_shown(value)} as {key!r}, which should be a whole number, at least {least}"
            )
        return value

    def duration(self, key: str, default: float | None = None) -> float | None:
        """Take a length of time, in seconds: a number, or `90s`, `5m`, `2h`."""
        value = self.get(key)
        if value is None:
            return default
        found = _SECONDS.fullmatch(str(value)) if not isinstance(value, bool) else None
        if found is None or not 0 <= (seconds := float(found[1]) * _UNITS[found[2]]) <= _LONGEST:
            raise self.wrong(
                f"has {_shown(value)} as {key!r}, which should be a length of time",
                "Write seconds, or a number with ms, s, m, h or d: 500ms, 90s, 5m.",
            )
        return seconds

    def choice(self, key: str, allowed: Iterable[str]) -> str:
        """Take one of some words."""
        words = list(allowed)
        value = self.required(key)
        if value in words:
            return str(value)
        raise self.wrong(
            f"has {_shown(value)} as {key!r}",
            did_you_mean(str(value), words, 1) or f"Use {listed(words)}.",
        )

    def items(self, key: str) -> list[Any]:
        """Take a list, empty if it is not there."""
        value = self.get(key)
        if value is None:
            return []
        if not isinstance(value, list):
            raise self.wrong(f"has {_shown(value)} as {key!r}, which should be a list")
        return value

    def mapping(self, key: str) -> dict[str, Any]:
        """Take a mapping, empty if it is not there."""
        value = self.get(key)
        if value is None:
            return {}
        return Members(value, f"{self.where}.{key}").rest()

    def rest(self) -> dict[str, Any]:
        """Return the members that nobody has taken yet."""
        return dict(self._rest)

    def texts(self, key: str) -> dict[str, str]:
        """Take a mapping of texts; numbers and booleans become texts."""
        found = self.mapping(key)
        for name, value in found.items():
            if not isinstance(value, str | int | float):
                raise self.wrong(
                    f"has {_shown(value)} as {key}.{name}, which should be text",
                    _as_text(name, value),
                )
        return {
            name: str(value).lower() if isinstance(value, bool) else str(value)
            for name, value in found.items()
        }

    def end(self) -> None:
        """Raise WorkflowError if there are members that nobody asked for."""
        for key in self._rest:
            raise self.wrong(
                f"has {key!r}, which means nothing here",
                did_you_mean(key, self._asked, 1) or f"Known here: {listed(sorted(self._asked))}.",
            )


def listed(words: Iterable[str], most: int = 12) -> str:
    """Return words for a sentence; many are counted."""
    found = list(words)
    more = f" and {len(found) - most} more" if len(found) > most else ""
    return ", ".join(found[:most]) + more


def _as_text(key: str, value: Any) -> str:
    """Return how to write a member as text."""
    if isinstance(value, str):
        return f"Write {key}: TEXT, with something in TEXT."
    if value is None or isinstance(value, list | Mapping):
        return f"Write one text, {key}: TEXT; in quotes if it begins with {{ or [, or holds ': '."
    return f"Put it in quotes: {key}: '{value}'."


def _shown(value: Any) -> str:
    match value:
        case None:
            return "nothing"
        case list():
            return "a list"
        case Mapping():
            return "a mapping"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def checked(problem: SwampstoreError, where: str) -> WorkflowError:
    """Return an error of a part as one of the workflow, saying where it is."""
    return WorkflowError(f"{where}: {problem.message}", hint=problem.hint)
