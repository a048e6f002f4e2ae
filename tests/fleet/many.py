"""Many runs, on one processor or on several, and what they amount to."""

from __future__ import annotations

import itertools
import logging
import multiprocessing
import sys
import time
from collections import Counter
from dataclasses import dataclass, field

from tests.fleet.fleet import Result, Script, run
from tests.fleet.generate import generate, generate_calm, generate_narrow
from tests.fleet.more import VARIANTS
from tests.fleet.shrink import shrink, told

# The last letters of seeds whose scripts are about one theme, and of those without any fault.
NARROW, CALM = "n", "c"


@dataclass
class Figures:
    """What many runs amount to."""

    runs: int = 0
    steps: int = 0
    kills: int = 0
    damages: int = 0
    rests: int = 0
    seconds: float = 0.0
    # Of the processor, for the runs alone: neither for shrinking nor while others were at work.
    processor: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    endings: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)

    def add(self, result: Result) -> None:
        self.runs += 1
        self.steps += result.steps
        self.kills += result.kills
        self.damages += result.damages
        self.rests += result.rests
        self.processor += result.processor
        self.faults += result.faults
        for ending, number in result.endings.items():
            self.endings[ending.rpartition(" ")[2]] += number

    def merge(self, other: Figures) -> None:
        for name in ("runs", "steps", "kills", "damages", "rests", "processor"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.faults += other.faults
        self.endings += other.endings
        self.violations += other.violations

    def __str__(self) -> str:
        faults = ", ".join(f"{number} {kind}" for kind, number in sorted(self.faults.items()))
        endings = ", ".join(f"{number} {kind}" for kind, number in sorted(self.endings.items()))
        rate = self.steps / self.processor if self.processor else 0.0
        return (
            f"{self.steps} steps in {self.runs} runs ({endings}); {self.rests} rests checked;\n"
            f"{self.kills} kills; {sum(self.faults.values())} faults ({faults});"
            f" {self.damages} damages;\n"
            f"{len(self.violations)} violations; {self.seconds:.0f} s,"
            f" {rate:.0f} steps a second of processor time"
        )


def script_of(seed: str) -> Script:
    """Return the script of a seed; its last letter may say what else happens in it."""
    if seed.endswith(NARROW):
        return generate_narrow(seed)
    if seed.endswith(CALM):
        return generate_calm(seed)
    variant = VARIANTS.get(seed[-1:])
    return variant(generate(seed)) if variant else generate(seed)


def many(
    seed: str,
    first: int,
    every: int,
    steps: int,
    budget: float = 1e9,
    variants: str = "",
    patience: float = 60.0,
) -> Figures:
    """Run script after script until there were so many steps, or the time is over.

    `variants` are last letters of seeds, which take turns; a space is for none.
    """
    logging.disable(logging.WARNING)
    figures, began = Figures(), time.perf_counter()
    for number in itertools.count(first, every):
        if figures.steps >= steps or time.perf_counter() - began > budget:
            break
        variant = variants[number % len(variants)].strip() if variants else ""
        script = script_of(f"{seed}-{number}{variant}")
        result = run(script)
        figures.add(result)
        if result.violation is not None:
            short = shrink(script, result.violation.kind, seconds=patience)
            figures.violations.append(told(short, run(short)))
            sys.stdout.write(f"{figures.violations[-1]}\n")
            sys.stdout.flush()
    figures.seconds = time.perf_counter() - began
    return figures


def many_at_once(seed: str, steps: int, jobs: int, variants: str = "") -> Figures:
    began = time.perf_counter()
    context = multiprocessing.get_context("spawn")
    with context.Pool(jobs) as pool:
        parts = pool.starmap(
            many, [(seed, at, jobs, steps // jobs, 1e9, variants) for at in range(jobs)]
        )
    figures = Figures()
    for part in parts:
        figures.merge(part)
    figures.seconds = time.perf_counter() - began
    return figures
