"""Let simulated fleets run, and tell what they did and what went wrong.

    python -m tests.fleet [--steps N] [--seed SEED] [--jobs N]
    python -m tests.fleet --replay FILE     one script, with an account of every point
                          --keep DIRECTORY  and what is then in its bucket, as files
    python -m tests.fleet --replay-each     scripts whose paths are read; says what is violated
    python -m tests.fleet --rules           each rule switched off: is that noticed?

A run is a consequence of its seed and of the source. Without a seed a new one is taken.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import secrets
import sys
from collections.abc import Iterable
from pathlib import Path

from tests.fleet.bucket import BUCKETS
from tests.fleet.fleet import Script, run
from tests.fleet.many import many, many_at_once, script_of

_HASHING = "PYTHONHASHSEED"


def _replay(path: Path, kept: Path | None) -> int:
    result = run(Script.from_json(path.read_text()), trace=True)
    if kept is not None:
        for key, found in BUCKETS["fleet"].objects.items():
            file = kept / key
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(found.data)
    sys.stdout.write("\n".join([*result.trace, str(result.violation or "all is well"), ""]))
    return 1 if result.violation else 0


def _replay_each(paths: Iterable[str]) -> None:
    for path in paths:
        result = run(Script.from_json(Path(path.rstrip("\n")).read_text()))
        sys.stdout.write(f"{json.dumps(str(result.violation or ''))}\n")
        sys.stdout.flush()


def main() -> int:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--seed", default="")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--budget", type=float, default=1e9, help="seconds")
    parser.add_argument("--replay", type=Path)
    parser.add_argument("--replay-each", action="store_true")
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--show", help="write the script of a seed")
    parser.add_argument("--patience", type=float, default=60, help="seconds, to shrink one script")
    parser.add_argument("--variants", default="", help="last letters of seeds")
    parser.add_argument("--rules", action="store_true")
    chosen = parser.parse_args()
    if chosen.replay:
        return _replay(chosen.replay, chosen.keep)
    if chosen.replay_each:
        _replay_each(sys.stdin)
        return 0
    if chosen.show:
        sys.stdout.write(script_of(chosen.show).to_json())
        return 0
    if chosen.rules:
        from tests.fleet.rules import find_all

        logging.disable(logging.WARNING)
        sys.stdout.write(json.dumps(find_all()))
        return 0
    seed = chosen.seed or secrets.token_hex(4)
    sys.stdout.write(f"seed {seed}\n")
    if chosen.jobs > 1:
        figures = many_at_once(seed, chosen.steps, chosen.jobs, chosen.variants)
    else:
        figures = many(seed, 0, 1, chosen.steps, chosen.budget, chosen.variants, chosen.patience)
    sys.stdout.write(f"{figures}\n")
    return 1 if figures.violations else 0


if __name__ == "__main__":
    if os.environ.get(_HASHING) != "0":
        # Sets of text have an order of their own in every process, unless it is told otherwise.
        os.environ[_HASHING] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.fleet", *sys.argv[1:]])
    sys.exit(main())
