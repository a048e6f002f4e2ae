"""The command line `swampstore`: parse, call the library, render.

The files mirror the command tree: `swampstore data list` is in `data/list.py`. Start with `app`,
the table of all commands; `command` is what commands are made of, `options` what many of them
take, `session` what they are given, `rendering`, `listing` and `progress` how results look, and
`errors` turns what went wrong into messages and exit statuses. A command's module is imported when
it is run. It may import everything; nothing imports it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence


def main(args: Sequence[str] | None = None) -> int:
    """Run the command that `args` (default: those of the process) name; return the exit status."""
    from swampstore.cli.app import root
    from swampstore.cli.errors import run

    for name in [name for name in os.environ if name.startswith("SWAMPSTORE_")]:
        # The prefix of all our variables; where there was another one before, both are read.
        if value := os.environ[name]:
            os.environ[f"SWAMP_{name.removeprefix('SWAMPSTORE_')}"] = value
    return run(root, args)
