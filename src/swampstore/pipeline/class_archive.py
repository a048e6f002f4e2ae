"""What a JVM keeps for the next one: its classes, read, verified and laid out, in one file.

The second JVM of its kind writes it when it ends: where one is enough, as in a container that is
thrown away, nothing would read it, and noting all classes makes a start take twice as long. All the
later ones map it into memory. It is some 170 MB in the user's cache directory, and one that was not
used for a month is removed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Iterable
from typing import NamedTuple

from swampstore.pipeline.java import Java

_FIRST_WITH_AOT = 25  # the first Java that writes the better kind of archive in one step
_KEEP_SECONDS = 30 * 86_400
_CLAIM_SECONDS = 3600
# What comes after the JVM's end comes after ours, too. Only a complete archive gets the name. With
# Java 25 another JVM writes it, and first tells its whole class path, which nobody wants to know.
_RUN_THEN_MOVE = """new=$1 kept=$2 claim=$3; shift 3
{ "$@" 2>&1 1>&3 | grep --line-buffered -v '^Picked up JAVA_TOOL_OPTIONS' >&2; } 3>&1
mv -f "$new" "$kept" 2>/dev/null; rm -f "$claim"
"""


class ClassArchive(NamedTuple):
    """An archive that may not be there yet, of one Java and one directory of jars."""

    path: str
    java: Java

    @classmethod
    def of(cls, java: Java, jars: str, options: Iterable[str], cache: str) -> ClassArchive:
        """Return the archive for these jars; what would make it useless gives it another name."""
        about = [java.program, str(java.version), jars, str(os.stat(jars).st_mtime_ns), *options]
        name = hashlib.sha256("\0".join(about).encode()).hexdigest()[:16]
        return cls(f"{cache}/classes/{name}.archive", java)

    @property
    def reading_option(self) -> str:
        """What tells a JVM with the same class path to read it."""
        return f"-XX:{'AOTCache' if self._is_aot else 'SharedArchiveFile'}={self.path}"

    @property
    def _is_aot(self) -> bool:
        return self.java.version >= _FIRST_WITH_AOT

    def wrap(self, command: list[str]) -> list[str]:
        """Return the command of a JVM, changed so that it reads the archive, or writes it.

        It is unchanged if this is the first one, or if another JVM is about to write it: that is
        half a minute of work.
        """
        program, *rest = command
        if os.path.exists(self.path):
            os.utime(self.path)
            return [program, self.reading_option, *rest]
        self._make_room()
        new, claim = f"{self.path}.new", f"{self.path}.claim"
        if _made(f"{self.path}.wanted") or not _made(claim):
            return command
        option = "AOTCacheOutput" if self._is_aot else "ArchiveClassesAtExit"
        training = [program, f"-XX:{option}={new}", *rest]
        return ["sh", "-c", _RUN_THEN_MOVE, "sh", new, self.path, claim, *training]

    def discard(self) -> None:
        """Remove it, because a JVM did not start with it."""
        with contextlib.suppress(OSError):
            os.unlink(self.path)

    def _make_room(self) -> None:
        """Remove archives that nobody used for long, and claims of JVMs that were killed."""
        directory = os.path.dirname(self.path)
        os.makedirs(directory, exist_ok=True)
        for entry in os.scandir(directory):
            keep = _CLAIM_SECONDS if entry.name.endswith(".claim") else _KEEP_SECONDS
            with contextlib.suppress(OSError):
                if time.time() - entry.stat().st_mtime > keep:
                    os.unlink(entry.path)


def _made(path: str) -> bool:
    """Make an empty file; return whether there was none."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        return False
    return True
