"""What a step or a job waits for: when a dependency counts as fulfilled. Pure rules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from swampstore.runs.workflow.reading import Members

Word = Literal["always", "succeeded", "failed", "completed", "skipped"]
WORDS: tuple[Word, ...] = get_args(Word)
AND, OR, NOT = "and", "or", "not"
_MOST_NESTED = 20

SUCCEEDED, FAILED, SKIPPED = "succeeded", "failed", "skipped"
# A step or job in one of these will not change any more, unless somebody resumes the run.
ENDED = frozenset({SUCCEEDED, FAILED, SKIPPED})


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition: a word about how a dependency ended, or a combination of conditions."""

    type: str = SUCCEEDED
    parts: tuple[Condition, ...] = ()

    def holds(self, status: str) -> bool:
        """Whether it holds for a dependency with this status; for one not ended, none does."""
        match self.type:
            case "always":
                holds = True
            case "completed":
                holds = status != SKIPPED
            case "and":
                holds = all(part.holds(status) for part in self.parts)
            case "or":
                holds = any(part.holds(status) for part in self.parts)
            case "not":
                holds = not self.parts[0].holds(status)
            case _:
                holds = status == self.type
        return holds and status in ENDED

    def holds_for_all(self, statuses: Iterable[str]) -> bool:
        """Whether it holds for each expansion of a template; none at all counts as succeeded."""
        found = list(statuses)
        return all(map(self.holds, found)) if found else self.holds(SUCCEEDED)

    def to_json(self) -> dict[str, Any]:
        """Return the members as files have them."""
        match self.type:
            case "and" | "or":
                return {
                    "type": self.type,
                    "conditions": [part.to_json() for part in self.parts],
                }
            case "not":
                return {"type": NOT, "condition": self.parts[0].to_json()}
        return {"type": self.type}

    def __str__(self) -> str:
        match self.type:
            case "and" | "or":
                return f"({f' {self.type} '.join(map(str, self.parts))})"
            case "not":
                return f"not {self.parts[0]}"
        return self.type


def read_condition(value: Any, where: str, depth: int = 0) -> Condition:
    """Read a condition; None and a bare word are allowed. Raises WorkflowError saying where."""
    if value is None:
        return Condition()
    if isinstance(value, str):
        value = {"type": value}
    members = Members(value, where)
    if depth > _MOST_NESTED:
        raise members.wrong(f"is nested more than {_MOST_NESTED} deep")
    kind = members.choice("type", (*WORDS, AND, OR, NOT))
    parts: list[Condition] = []
    if kind in (AND, OR):
        found = members.items("conditions")
        if not found:
            raise members.wrong(f"combines no conditions with {kind!r}")
        parts = [
            read_condition(one, f"{where}.conditions[{number}]", depth + 1)
            for number, one in enumerate(found)
        ]
    elif kind == NOT:
        parts = [read_condition(members.required("condition"), f"{where}.condition", depth + 1)]
    members.end()
    return Condition(kind, tuple(parts))


def all_hold(conditions: Mapping[str, Condition], statuses: Mapping[str, Iterable[str]]) -> bool:
    """Whether every dependency fulfils its condition; `statuses` are those of its expansions."""
    return all(condition.holds_for_all(statuses[name]) for name, condition in conditions.items())
