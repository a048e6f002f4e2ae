#!/usr/bin/env python3
"""Check the models of the lock protocol with spin, and check that they can fail.

A model holds if spin has tried every state and found no violated assertion and no deadlock. A
variant drops one rule of the protocol; there spin must find what goes wrong without the rule. Exit
status 1: something was not as expected. Exit status 2: spin or gcc is missing.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
MEMORY_MB = 3500
SLOTS = 24  # of the hash table, as a power of two
MAX_DEPTH = 100_000

HOLDS = "holds"
# What a violation is called here, and how spin's message about it reads.
LOST = "a lost lock commits"
SUCCESSOR = "a successor's lock is deleted"
LIVE = "a live lock is lost"
MISSING = "an acknowledged version is missing"
TWICE = "two versions have one number"
OVERLAP = "sessions and structural work overlap"
DEADLOCK = "deadlock"
ENDLESS = "somebody never finishes"
_MESSAGES = {
    LOST: r"assertion violated .*owner",
    LIVE: r"assertion violated .*hits_live",
    SUCCESSOR: r"assertion violated .*holder",
    MISSING: r"assertion violated .*acknowledged",
    TWICE: r"assertion violated .*object",
    OVERLAP: r"assertion violated .*began_after",
    DEADLOCK: r"invalid end state \(",
    ENDLESS: r"acceptance cycle \(",
}


class ToolMissingError(Exception):
    """The models cannot be checked here."""


class CheckError(Exception):
    """A tool failed where it should not."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A model, the rules it is built without, and what spin must find out about it."""

    model: str
    flags: tuple[str, ...] = ()
    expected: str = HOLDS

    @property
    def name(self) -> str:
        """The flags, as in the table."""
        return " ".join(self.flags) or "-"

    @property
    def is_about_liveness(self) -> bool:
        """Whether spin looks for runs without an end, not only for bad states."""
        return "LIVENESS" in self.flags


@dataclass(frozen=True, slots=True)
class Outcome:
    """What spin says about a variant."""

    result: str
    states: int
    depth: int
    seconds: float


VARIANTS = (
    Variant("commit"),
    Variant("commit", ("FORCED",)),
    Variant("commit", ("TIMELY", "LIVENESS")),
    Variant("commit", ("NO_FENCE",), LOST),
    Variant("commit", ("FENCE_ONLY_IF_THERE",), LOST),
    Variant("commit", ("NO_VERIFY",), LOST),
    Variant("commit", ("VERIFY_BEFORE_READ",), LOST),
    Variant("commit", ("BELIEVE_OLD_PROOF",), LOST),
    Variant("commit", ("FORGET_STEAL",), LOST),
    Variant("commit", ("DELETE_UNFENCED",), LOST),
    Variant("commit", ("RELEASE_UNSURE",), LOST),
    Variant("commit", ("FORCED", "FORCE_BY_DELETE"), LOST),
    Variant("commit", ("STEAL_BY_DELETE",), LOST),
    Variant("commit", ("DELETE_WITHOUT_CAS",), SUCCESSOR),
    Variant("commit", ("REFRESH_THEN_DELETE",), SUCCESSOR),
    Variant("commit", ("BLIND_COMMIT",), MISSING),
    Variant("commit", ("OVERWRITE_UPLOAD",), TWICE),
    Variant("commit", ("BESIDE",)),
    Variant("commit", ("BESIDE", "COMMIT_WHILE_UPLOADING"), TWICE),
    Variant("commit", ("BESIDE", "OVERWRITE_UPLOAD"), TWICE),
    Variant("commit", ("BESIDE", "NO_FENCE"), LOST),
    Variant("commit", ("BESIDE", "NO_VERIFY"), LOST),
    Variant("commit", ("FOREIGN",)),
    Variant("commit", ("FOREIGN", "PUNCTUAL")),
    Variant("commit", ("FOREIGN", "PUNCTUAL", "LEAVE_FREE"), LIVE),
    Variant("commit", ("FOREIGN", "DELETE_WITHOUT_CAS"), SUCCESSOR),
    Variant("commit", ("FOREIGN", "NO_VERIFY"), LOST),
    Variant("commit", ("FOREIGN", "VERIFY_BEFORE_READ"), LOST),
    Variant("commit", ("FOREIGN", "BLIND_COMMIT"), MISSING),
    Variant("structural"),
    Variant("structural", ("SLOW_SESSIONS",)),
    Variant("structural", ("TIMELY", "LIVENESS")),
    Variant("structural", ("TIMELY", "LIVENESS", "ENDLESS_SESSIONS")),
    Variant("structural", ("NO_SECOND_LOOK",), OVERLAP),
    Variant("structural", ("NO_SECOND_LOOK", "VERIFY_GATE")),
    Variant("structural", ("IGNORE_STALE_GLOBAL",), OVERLAP),
    Variant("structural", ("IGNORE_STALE_SESSION",), OVERLAP),
    Variant("structural", ("COMMIT_UNFENCED",), OVERLAP),
    Variant("structural", ("REGISTER_FIRST",), OVERLAP),
    Variant("structural", ("TIMELY", "DRAIN_UNDER_GLOBAL"), DEADLOCK),
    Variant("structural", ("TIMELY", "LIVENESS", "ENDLESS_SESSIONS", "NO_GATE"), ENDLESS),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Check every variant, or those of one model, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", metavar="TEXT", help="variants whose model and flags contain it")
    only = parser.parse_args(arguments).only or ""
    spin, gcc = find_spin(), find_gcc()
    as_expected = True
    _print_row("model", "variant", "states", "depth", "seconds", "result")
    for variant in VARIANTS:
        if only not in f"{variant.model} {variant.name}":
            continue
        outcome = check(variant, spin, gcc)
        told = outcome.result
        if outcome.result != variant.expected:
            as_expected = False
            told += f"   <-- expected: {variant.expected}"
        numbers = f"{outcome.states:,}", f"{outcome.depth:,}", f"{outcome.seconds:.1f}"
        _print_row(variant.model, variant.name, *numbers, told)
    return 0 if as_expected else 1


def _print_row(
    model: str, variant: str, states: str, depth: str, seconds: str, result: str
) -> None:
    row = f"{model:11}{variant:42}{states:>12}{depth:>9}{seconds:>9}  {result}"
    sys.stdout.write(row.rstrip() + "\n")
    sys.stdout.flush()


# Running spin ------------------------------------------------------------------------------------


def check(variant: Variant, spin: str, gcc: str) -> Outcome:
    """Let spin try every state of a variant, or as many as it takes to find a violation."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="swampstore-model-") as directory:
        for source in HERE.glob("*.pml"):
            shutil.copy(source, directory)
        flags = [f"-D{flag}" for flag in variant.flags]
        _run([spin, *flags, "-a", f"{variant.model}.pml"], directory)
        # A violation is found so soon that the time to optimise would be lost.
        speed = "-O2" if variant.expected == HOLDS else "-O0"
        kind = "-DNFAIR=3" if variant.is_about_liveness else "-DSAFETY"
        _run([gcc, speed, "-w", kind, f"-DMEMLIM={MEMORY_MB}", "-o", "pan", "pan.c"], directory)
        search = ["-a", "-f"] if variant.is_about_liveness else []
        said = _run(["./pan", *search, "-n", f"-m{MAX_DEPTH}", f"-w{SLOTS}"], directory)
    return outcome_of(said, time.monotonic() - began)


def _run(command: list[str], directory: str) -> str:
    done = subprocess.run(  # noqa: S603 - spin, gcc and what they made
        command, cwd=directory, capture_output=True, encoding="utf-8", check=False
    )
    said = done.stdout + done.stderr
    if done.returncode != 0:
        raise CheckError(f"{' '.join(command)} failed:\n{said}")
    return said


def outcome_of(said: str, seconds: float) -> Outcome:
    """Return what a search says; it proves something only if it was complete."""
    states = re.search(r"^ *([\d.e+]+) states, stored", said, re.MULTILINE)
    reached = re.search(r"depth reached (\d+), errors: (\d+)", said)
    if states is None or reached is None:
        raise CheckError(f"spin ended without a result:\n{said}")
    result = HOLDS
    if reached[2] != "0":
        result = next((name for name, text in _MESSAGES.items() if re.search(text, said)), said)
    elif "Search not completed" in said or "max search depth too small" in said:
        result = "not every state was tried"
    return Outcome(result, int(float(states[1])), int(reached[1]), seconds)


# Finding the tools -------------------------------------------------------------------------------


def find_gcc() -> str:
    """Return a C compiler: what spin writes is a C program."""
    found = shutil.which("gcc") or shutil.which("cc")
    if found is None:
        raise ToolMissingError("gcc is missing; spin needs a C compiler. Install the package gcc.")
    return found


def find_spin() -> str:
    """Return spin; if it is not installed, unpack the system's package of it into a cache."""
    return installed_spin() or _fetch_spin()


def installed_spin() -> str | None:
    """Return the spin on PATH, or the one in the cache, if there is one."""
    return shutil.which("spin") or shutil.which(str(_cache() / "spin"))


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "swampstore-model"


def _fetch_spin() -> str:
    cached = _cache() / "spin"
    cached.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cached.parent) as directory:
        try:
            _run(["apt-get", "download", "spin"], directory)
            package = next(Path(directory).glob("spin_*.deb"))
            _run(["dpkg", "-x", package.name, "."], directory)
        except (OSError, CheckError) as error:
            raise ToolMissingError(
                f"spin is missing and cannot be fetched; install it or put it on PATH. {error}"
            ) from error
        os.replace(Path(directory) / "usr/bin/spin", cached)
    return str(cached)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ToolMissingError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(2)
    except CheckError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(1)
