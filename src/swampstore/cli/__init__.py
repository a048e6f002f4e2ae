"""The command line `swampstore`: parse, call the library, render.

The files mirror the command tree: `swampstore data list` is in `data/list.py`. Start with `app`,
the table of all commands; `command` is what commands are made of, `options` what many of them
take, `session` what they are given, `rendering`, `listing` and `progress` how results look, and
`errors` turns what went wrong into messages and exit statuses. A command's module is imported when
it is run. It may import everything; nothing imports it.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Sequence

# Objects that are made before Python looks for those that nobody needs any more. It would look all
# the time while modules are imported, and find none.
_COLLECT_AFTER = 50_000


class _Leaving:
    """Ends a process when all was done and told, and leaves the rest to the system.

    To take every module apart would take as long as many a command. And whoever has loaded Arrow or
    its like has pools of threads that live as long as the process: one that is still at work when
    the memory of its library goes aborts it. What Python does at the end is done; so this has to
    be made before anything else wants to be called at the end: the first is called last.
    """

    def __init__(self) -> None:
        self.status: int | None = None
        atexit.register(self.leave)

    def leave(self) -> None:
        """Flush what was printed, and end. Where that fails, Python tells so in its own way."""
        if self.status is None:
            return
        try:
            for stream in (sys.stdout, sys.stderr):
                if stream is not None:
                    stream.flush()
        except (OSError, ValueError):
            return
        os._exit(self.status)


def main(args: Sequence[str] | None = None) -> int:
    """Run the command that `args` (default: those of the process) name; return the exit status."""
    leaving = _Leaving() if args is None else None
    if leaving is not None:
        gc.set_threshold(_COLLECT_AFTER)
    if sys.stdin is None:
        # Closed by whoever started us; nothing is read from there, and no file gets its number.
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115 - until the process ends
    from swampstore.cli.app import root
    from swampstore.cli.errors import run

    for name in [name for name in os.environ if name.startswith("SWAMPSTORE_")]:
        # The prefix of all our variables; where there was another one before, both are read.
        if value := os.environ[name]:
            os.environ[f"SWAMP_{name.removeprefix('SWAMPSTORE_')}"] = value
    status = run(root, args)
    if leaving is not None:
        leaving.status = status
    return status
