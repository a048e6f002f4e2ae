"""What a plan kept only because it could not tell whether it may go."""

from __future__ import annotations


class Doubts:
    """Cases grouped by cause: a million names with one problem are one warning, not a million."""

    def __init__(self, thing: str) -> None:
        self._thing = thing
        self._cases: dict[str, tuple[int, str]] = {}

    def add(self, cause: str, example: str, count: int = 1) -> None:
        """Count more things that were kept because of `cause`; one of them is the example."""
        before, first = self._cases.get(cause, (0, example))
        self._cases[cause] = (before + count, min(first, example))

    def warnings(self) -> tuple[str, ...]:
        """Return one sentence per cause, the same whatever the order in which the cases came."""
        return tuple(
            f"kept {count} {self._thing}{'' if count == 1 else 's'}: {cause} ({example}"
            f"{'' if count == 1 else ' and others'})"
            for cause, (count, example) in sorted(self._cases.items())
        )
