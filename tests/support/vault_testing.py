"""What tests of secrets share: a program that keeps them, and being killed before a write."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.forked import in_child

_PROGRAM = """\
case $2 in
list) ls "$1" ;;
get) [ -f "$1/$3" ] || exit 3; cat "$1/$3"; echo ;;
put) cat > "$1/$3" ;;
delete) rm "$1/$3" ;;
esac
"""
_CHANGES = ("open", "write", "rename", "link", "unlink", "mkdir", "fsync", "ftruncate")


def keeping_program(directory: Path) -> dict[str, object]:
    """Return the settings of a vault whose secrets a little program keeps in `directory`/kept."""
    (directory / "store.sh").write_text(_PROGRAM)
    (directory / "kept").mkdir()
    command = f"sh {directory}/store.sh {directory}/kept"
    settings: dict[str, object] = {
        name: f"{command} {name} {{key}}" for name in ("get", "put", "delete")
    }
    return {**settings, "list": [*command.split(), "list"], "notFoundStatus": 3}


def killed_before_change(number: int, work: Callable[[], object]) -> bool:
    """Do something in a child that dies before its n-th change of a file; whether it did."""
    count = 0

    def counted(change: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            nonlocal count
            only_reads = change is real_open and not args[1] & os.O_CREAT
            count += not only_reads
            if count == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return change(*args, **options)

        return call

    real_open = os.open

    def dying() -> None:
        for name in _CHANGES:
            setattr(os, name, counted(getattr(os, name)))
        work()

    return in_child(dying)
