"""The command line `swampstore`: parse, call the library, render.

The files mirror the command tree: `swampstore data list` is in `data/list.py`. Start with `app`,
the table of all commands; `command` is what commands are made of, `options` what many of them
take, `session` what they are given, `rendering`, `listing` and `progress` how results look, and
`errors` turns what went wrong into messages and exit statuses. A command's module is imported when
it is run. It may import everything; nothing imports it.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Sequence


class _Leaving:
    """Ends a process that has loaded Arrow or its like before their threads are torn down.

    Their pools live as long as the process. A thread that is still at work when the memory of its
    library goes aborts the process, after all was done and told. So what Python does at the
    end is done, and the rest is left to the system. It has to be made before anything else wants to
    be called at the end: the first is called last.
    """

    def __init__(self) -> None:
        self.status: int | None = None
        atexit.register(self.leave)

    def leave(self) -> None:
        """Flush what was printed, and end."""
        if self.status is not None and not _WITH_THREADS.isdisjoint(sys.modules):
            for stream in (sys.stdout, sys.stderr):
                if stream is not None:
                    stream.flush()
            os._exit(self.status)


_WITH_THREADS = frozenset({"pyarrow", "deltalake"})


def main(args: Sequence[str] | None = None) -> int:
    """Run the command that `args` (default: those of the process) name; return the exit status."""
    leaving = _Leaving() if args is None else None
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
