"""The order that follows from what waits for what: levels, limits, expansions. Pure rules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from swampstore.notices import did_you_mean
from swampstore.runs.errors import WorkflowError
from swampstore.runs.workflow.conditions import Condition
from swampstore.runs.workflow.definition import Job, Step, Workflow, has_expression
from swampstore.runs.writing import vary_value

# How many steps run at once where nobody says it.
DEFAULT_CONCURRENCY = 10
MOST_NESTED = 10
MOST_EXPANSIONS = 10_000
_LONGEST_SUFFIX = 64

Member = TypeVar("Member", Job, Step)


def levels(members: Sequence[Member], what: str) -> list[list[Member]]:
    """Return members in the order of their dependencies; those of one level may run at once.

    Within a level the lower weight comes first, then the name. Raises WorkflowError for a
    dependency on something unknown, and for a circle, which it names.
    """
    by_name = {member.name: member for member in members}
    for member in members:
        for name in member.depends_on:
            if name not in by_name:
                raise WorkflowError(
                    f"the {what} {member.name!r} depends on {name!r}, which does not exist",
                    hint=did_you_mean(name, by_name, 1) or f"Give the name of another {what}.",
                )
    waiting = {member.name: set(member.depends_on) for member in members}
    found: list[list[Member]] = []
    while waiting:
        ready = [name for name, rest in waiting.items() if not rest]
        if not ready:
            raise WorkflowError(
                f"these {what}s wait for each other: {' -> '.join(_circle(waiting))}",
                hint="Remove one of the dependencies.",
            )
        for name in ready:
            del waiting[name]
        for rest in waiting.values():
            rest.difference_update(ready)
        level = [by_name[name] for name in ready]
        found.append(sorted(level, key=lambda member: (member.weight, member.name)))
    return found


def _circle(waiting: Mapping[str, set[str]]) -> list[str]:
    """Return a way from something that waits back to itself."""
    way = [min(waiting)]
    while way[-1] not in way[:-1]:
        way.append(min(waiting[way[-1]]))
    return way[way.index(way[-1]) :]


def check_plan(workflow: Workflow) -> None:
    """Raise WorkflowError if there is no order in which the workflow could run."""
    levels(workflow.jobs, "job")
    for job in workflow.jobs:
        try:
            levels(job.steps, "step")
        except WorkflowError as error:
            raise WorkflowError(f"job {job.name!r}: {error.message}", hint=error.hint) from None


def limit_of(level: Iterable[Step], job: Job, workflow: Workflow, most: int | None = None) -> int:
    """Return how many steps of a level may run at once.

    The smallest of its steps counts, else what the job says, else the workflow, and never more
    than `most`, which the environment may set.
    """
    of_steps = [step.concurrency for step in level if step.concurrency is not None]
    chosen = min(of_steps) if of_steps else job.concurrency or workflow.concurrency
    return min(chosen or DEFAULT_CONCURRENCY, most or chosen or DEFAULT_CONCURRENCY)


# Expansions --------------------------------------------------------------------------------


class Item(NamedTuple):
    """One item of a forEach: what its step is called after, and what expressions see."""

    suffix: str
    value: Any


def items_of(value: Any, where: str) -> list[Item]:
    """Return the items of what a forEach expression gave; raise WorkflowError if it has none.

    An item of a map is seen as `{key, value}`. Items of a list that are alike in name are told
    apart by their place.
    """
    if isinstance(value, Mapping):
        found = [Item(suffix_of(key), {"key": key, "value": one}) for key, one in value.items()]
    elif isinstance(value, list | tuple):
        found = [Item(suffix_of(one), one) for one in value]
    else:
        raise WorkflowError(
            f"{where}: the forEach gave {type(value).__name__} {value!r:.60}",
            hint="It has to give a list or a map.",
        )
    if len(found) > MOST_EXPANSIONS:
        raise WorkflowError(
            f"{where}: the forEach gave {len(found)} items",
            hint=f"One step may have at most {MOST_EXPANSIONS}; give a method a list instead.",
        )
    return list(_distinct(found))


def _distinct(found: Iterable[Item]) -> Iterator[Item]:
    seen: set[str] = set()
    for number, item in enumerate(found):
        suffix = item.suffix
        while suffix in seen:
            suffix = f"{suffix}-{number}"
        seen.add(suffix)
        yield Item(suffix, item.value)


def suffix_of(value: Any) -> str:
    """Return what a value is called in names: as dimensions of data names are (`vary`)."""
    return vary_value(value)[:_LONGEST_SUFFIX]


def expanded_name(template: str, evaluated: str, item: Item) -> str:
    """Return the name of an expansion, given the template's name and what it evaluates to."""
    return evaluated if has_expression(template) else f"{template}-{item.suffix}"


# Failures ----------------------------------------------------------------------------------


def may_go_on_after_failure(
    depends_on: Mapping[str, Condition],
    statuses: Mapping[str, Iterable[str]],
    reacting: Iterable[str],
) -> bool:
    """Whether a step, whose conditions hold, runs although a step of its job has failed.

    It does if it waits for one that did not succeed, or for one that runs for that reason: then it
    is there for this case. The others would go on with a job that has failed.
    """
    handlers = set(reacting)
    return any(
        name in handlers or any(status != "succeeded" for status in statuses[name])
        for name in depends_on
    )


def dependents(job: Job, step: str) -> set[str]:
    """Return a step with all that wait for it, directly or not."""
    found = {step}
    for level in levels(job.steps, "step"):
        found |= {one.name for one in level if found & set(one.depends_on)}
    return found


def dependent_jobs(workflow: Workflow, job: str) -> set[str]:
    """Return the jobs that wait for a job, directly or not; not itself."""
    found = {job}
    for level in levels(workflow.jobs, "job"):
        found |= {one.name for one in level if found & set(one.depends_on)}
    return found - {job}
