"""The rules that keep data safe, switched off one at a time: the simulation has to notice."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from tests.fleet.fleet import run
from tests.fleet.generate import generate
from tests.fleet.seams import install


class Rule(NamedTuple):
    """A rule: what is put in the place of what, and the seed that notices it first."""

    patches: Callable[[], list[tuple[object, str, object]]]
    seed: str


@contextlib.contextmanager
def without(rule: Rule) -> Iterator[None]:
    """Switch a rule off."""
    patches = rule.patches()
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in patches]
    try:
        for owner, name, value in patches:
            setattr(owner, name, value)
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)


RULES: dict[str, Rule] = {}


def find_all() -> dict[str, Any]:
    """Return, for each rule, what was noticed without it, and whether all is well with it."""
    install()
    found = {}
    for name, rule in RULES.items():
        script = generate(rule.seed)
        is_well = run(script).violation is None
        with without(rule):
            violation = run(script).violation
        found[name] = {"with": is_well, "without": str(violation) if violation else None}
    return found
