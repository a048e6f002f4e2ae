"""Making a script that shows a violation short: whatever can be left out is left out."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from tests.fleet.fleet import Result, Script, Step, run

T = TypeVar("T")


def shrink(script: Script, kind: str, *, seconds: float = 60.0) -> Script:
    """Return a shorter script with a violation of the same kind."""
    end = time.perf_counter() + seconds

    def shows(candidate: Script) -> bool:
        violation = run(candidate).violation
        return violation is not None and violation.kind == kind

    steps = script.steps
    before = None
    while before != steps and time.perf_counter() < end:
        before = steps
        steps = _fewer(steps, lambda some: shows(script.with_steps(some)), end)
        steps = _calmer(steps, lambda some: shows(script.with_steps(some)), end)
    short = script.with_steps(steps)
    used = max((step.machine for step in steps), default=0) + 1
    for machines in range(max(2, used), script.machines):
        homes = short.homes[:machines]
        candidate = replace(short, machines=machines, skews=short.skews[:machines], homes=homes)
        if shows(candidate):
            return candidate
    return short


def _fewer(items: list[T], shows: Callable[[list[T]], bool], end: float) -> list[T]:
    """Leave out ever smaller parts of a list, for as long as it shows what it has to show."""
    size = max(1, len(items) // 2)
    while size and time.perf_counter() < end:
        at = 0
        while at < len(items):
            some = items[:at] + items[at + size :]
            if time.perf_counter() < end and shows(some):
                items = some
            else:
                at += size
        size //= 2
    return items


def _calmer(steps: list[Step], shows: Callable[[list[Step]], bool], end: float) -> list[Step]:
    """Leave out faults, overlaps, and parts of the work of a step."""
    for at in range(len(steps)):
        for simpler in _simpler(steps[at]):
            some = [*steps[:at], simpler, *steps[at + 1 :]]
            if time.perf_counter() < end and shows(some):
                steps = some
                break
    return steps


def _simpler(step: Step) -> list[Step]:
    found = []
    if step.faults:
        found.append(replace(step, faults=[]))
        if len(step.faults) > 1:
            found += [replace(step, faults=[one]) for one in step.faults]
    if step.overlaps:
        found.append(replace(step, overlaps=False))
    work = step.args.get("work") or []
    if len(work) > 1:
        found += [replace(step, args={**step.args, "work": [one]}) for one in work]
    if step.op == "session" and not step.args["all"] and not step.faults and len(work) == 1:
        inner = {name: value for name, value in work[0].items() if name != "op"}
        found.append(Step(step.machine, work[0]["op"], inner, [], step.overlaps))
    for name in ("full", "lazy", "scope", "deep", "appendable", "stream", "equal", "garble"):
        if step.args.get(name):
            rest = {key: value for key, value in step.args.items() if key != name}
            found.append(replace(step, args=rest))
    return found


def told(script: Script, result: Result) -> str:
    """Say what went wrong, and how to see it again."""
    return f"seed {script.seed}: {result.violation}\n{script.to_json()}"
