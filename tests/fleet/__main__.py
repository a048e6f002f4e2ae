"""Let simulated fleets run, and tell what they did and what went wrong.

    python -m tests.fleet [--steps N] [--seed SEED] [--jobs N]
    python -m tests.fleet --replay FILE     one script, with an account of every point
    python -m tests.fleet --rules           each rule switched off: is that noticed?

A run is a consequence of its seed and of the source. Without a seed a new one is taken.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import multiprocessing
import os
import secrets
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.fleet.fleet import Result, Script, run
from tests.fleet.generate import generate
from tests.fleet.shrink import shrink, told

_HASHING = "PYTHONHASHSEED"


@dataclass
class Figures:
    """What many runs amount to."""

    runs: int = 0
    steps: int = 0
    kills: int = 0
    damages: int = 0
    rests: int = 0
    seconds: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    endings: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)

    def add(self, result: Result) -> None:
        self.runs += 1
        self.steps += result.steps
        self.kills += result.kills
        self.damages += result.damages
        self.rests += result.rests
        self.faults += result.faults
        for ending, number in result.endings.items():
            self.endings[ending.rpartition(" ")[2]] += number

    def merge(self, other: Figures) -> None:
        for name in ("runs", "steps", "kills", "damages", "rests"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.faults += other.faults
        self.endings += other.endings
        self.violations += other.violations

    def __str__(self) -> str:
        faults = ", ".join(f"{number} {kind}" for kind, number in sorted(self.faults.items()))
        endings = ", ".join(f"{number} {kind}" for kind, number in sorted(self.endings.items()))
        rate = self.steps / self.seconds if self.seconds else 0.0
        return (
            f"{self.steps} steps in {self.runs} runs ({endings}); {self.rests} rests checked;\n"
            f"{self.kills} kills; {sum(self.faults.values())} faults ({faults});"
            f" {self.damages} damages;\n"
            f"{len(self.violations)} violations; {self.seconds:.0f} s, {rate:.0f} steps a second"
        )


def many(seed: str, first: int, every: int, steps: int, budget: float = 1e9) -> Figures:
    """Run script after script until there were so many steps, or the time is over."""
    logging.disable(logging.WARNING)
    figures, began = Figures(), time.perf_counter()
    for number in itertools.count(first, every):
        if figures.steps >= steps or time.perf_counter() - began > budget:
            break
        script = generate(f"{seed}-{number}")
        result = run(script)
        figures.add(result)
        if result.violation is not None:
            short = shrink(script, result.violation.kind)
            figures.violations.append(told(short, run(short)))
            sys.stdout.write(f"{figures.violations[-1]}\n")
            sys.stdout.flush()
    figures.seconds = time.perf_counter() - began
    return figures


def _in_parallel(seed: str, steps: int, jobs: int) -> Figures:
    began = time.perf_counter()
    context = multiprocessing.get_context("spawn")
    with context.Pool(jobs) as pool:
        parts = pool.starmap(many, [(seed, at, jobs, steps // jobs) for at in range(jobs)])
    figures = Figures()
    for part in parts:
        figures.merge(part)
    figures.seconds = time.perf_counter() - began
    return figures


def _replay(path: Path) -> int:
    result = run(Script.from_json(path.read_text()), trace=True)
    sys.stdout.write("\n".join([*result.trace, str(result.violation or "all is well"), ""]))
    return 1 if result.violation else 0


def main() -> int:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--seed", default="")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--budget", type=float, default=1e9, help="seconds")
    parser.add_argument("--replay", type=Path)
    parser.add_argument("--show", help="write the script of a seed")
    parser.add_argument("--rules", action="store_true")
    chosen = parser.parse_args()
    if chosen.replay:
        return _replay(chosen.replay)
    if chosen.show:
        sys.stdout.write(generate(chosen.show).to_json())
        return 0
    if chosen.rules:
        from tests.fleet.rules import find_all

        logging.disable(logging.WARNING)
        sys.stdout.write(json.dumps(find_all()))
        return 0
    seed = chosen.seed or secrets.token_hex(4)
    sys.stdout.write(f"seed {seed}\n")
    if chosen.jobs > 1:
        figures = _in_parallel(seed, chosen.steps, chosen.jobs)
    else:
        figures = many(seed, 0, 1, chosen.steps, chosen.budget)
    sys.stdout.write(f"{figures}\n")
    return 1 if figures.violations else 0


if __name__ == "__main__":
    if os.environ.get(_HASHING) != "0":
        # Sets of text have an order of their own in every process, unless it is told otherwise.
        os.environ[_HASHING] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.fleet", *sys.argv[1:]])
    sys.exit(main())
