"""The command line `swampstore`: parse, call the library, render.

`app` holds the table of all commands, `command` what commands are made of, `session` what they
are given, `arguments` what many of them take, `rendering` how text output looks. A command's
module is imported when the command is run.
"""

from __future__ import annotations

from collections.abc import Sequence


def main(args: Sequence[str] | None = None) -> int:
    """Run the command that `args` (default: those of the process) name; return the exit status."""
    from swampstore.cli.app import root
    from swampstore.cli.running import run

    return run(root, args)
