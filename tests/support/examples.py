"""Running the examples of a page, and comparing what they print with what the page says.

A page has a directory of its own, called `inventory`, which is a repository unless the page makes
it one itself. Commands print to a terminal of 100 columns that cannot move its cursor, as readers
of a page see it. In the expected output `...` stands for anything: within a line, or as a line of
its own for any number of lines. Times and ids need not be the same, only be there; the number of
spaces and the length of rules in tables do not count.

What was printed is kept in `PageRun.transcript`, which `tests/docs/tour.py` compares in full.
"""

from __future__ import annotations

import contextlib
import doctest
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from swampstore import init_repo
from tests.support.markdown_pages import Block, Page, Step, steps

SHOWN_HOME = "/home/you"
REPO = "inventory"
COLUMNS = 100
_PATIENCE = 60.0
_VARIABLE = (
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z"), "<time>"),
    (re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"), "<id>"),
    (re.compile(r"\b\d{1,3}(?:s|m|h|d|mo|y)\b"), "<age>"),
    (re.compile(r"[ \t]+"), " "),
    # An age of two digits has no space before it where one of one digit has.
    (re.compile(r"^ (?=<age>)", re.MULTILINE), ""),
    (re.compile(r"([─━])[─━]+"), r"\1"),
)
_PROGRESS = re.compile(r"[a-z ]+: (\d+ %|[\d,]+( of [\d,]+)? [a-z]+)(, [^,]+)*")


class Shell:
    """One bash for all commands of a page, so that variables and `cd` last."""

    def __init__(self, home: Path, columns: int = COLUMNS) -> None:
        self._end = f"end-{uuid.uuid4()}"
        self._status = 0
        ours, theirs = _terminal(columns)
        self._screen = open(ours, encoding="utf-8", newline="")  # noqa: SIM115 - see close
        self._process = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            cwd=home / REPO,
            env=_environment(home),
            stdin=subprocess.PIPE,
            stdout=theirs,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
        )
        os.close(theirs)

    def run(self, command: str) -> tuple[str, int]:
        """Return what a command prints, on either stream, and its exit status."""
        watchdog = threading.Timer(_PATIENCE, self._process.kill)
        watchdog.start()
        try:
            send = f"{{ (exit {self._status})\n{command}\n}} </dev/null 2>&1\n"
            _pipe(self._process.stdin).write(f"{send}printf '\\n{self._end} %d\\n' $?\n")
            _pipe(self._process.stdin).flush()
            return self._answer(command)
        finally:
            watchdog.cancel()

    def _answer(self, command: str) -> tuple[str, int]:
        lines: list[str] = []
        with contextlib.suppress(OSError):  # that is how Linux says that nobody is there any more
            for line in self._screen:
                if line.startswith(self._end):
                    self._status = int(line.split()[1])
                    return "".join(lines).removesuffix("\n"), self._status
                lines.append(line)
        raise AssertionError(f"{command} ended the shell, or took too long: {''.join(lines)}")

    def close(self) -> None:
        _pipe(self._process.stdin).close()
        self._process.wait()
        self._screen.close()


def _terminal(columns: int) -> tuple[int, int]:
    """Return both ends of a terminal that shows what it is given, character by character."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    settings = termios.tcgetattr(theirs)
    settings[1] &= ~termios.OPOST
    settings[3] &= ~termios.ECHO
    termios.tcsetattr(theirs, termios.TCSANOW, settings)
    return ours, theirs


def _pipe(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream


def _environment(home: Path) -> dict[str, str]:
    # Without bytecode, each of the many commands would compile what changed since it was installed.
    dropped = ("SWAMP", "COLUMNS", "PYTHONDONTWRITEBYTECODE")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    programs = os.path.dirname(sys.executable)
    return kept | {
        "HOME": str(home),
        # What makes Spark start faster takes longer to make than all the pages take to run.
        "XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"),
        "PATH": f"{programs}:{os.environ['PATH']}",
        "LC_ALL": "C.UTF-8",
        "NO_COLOR": "1",
        "TERM": "dumb",
        "SWAMPSTORE_FSYNC": "off",
    }


class PageRun:
    """Runs the blocks of one page, in their order."""

    def __init__(self, page: Page, home: Path, columns: int = COLUMNS) -> None:
        self.transcript: list[Step] = []
        self._page = page
        self._home = home
        self._columns = columns
        self._names: dict[str, Any] = {"__name__": "__page__"}
        (home / REPO).mkdir()
        first = next(iter(self), None)
        if first and "swampstore init" not in first.text:
            init_repo(home / REPO).close()

    def __iter__(self) -> Iterator[Block]:
        return (block for block in self._page.blocks if block.language in _RUNNABLE)

    def run(self) -> None:
        """Run everything; raise AssertionError at the first example that does not hold.

        What commands print is compared with the page only if the terminal is as wide as its lines.
        """
        shell = Shell(self._home, self._columns)
        with contextlib.closing(shell), contextlib.chdir(self._home / REPO):
            for block in self:
                if block.language == "console":
                    self._run_console(shell, list(steps(block)))
                elif block.language == "python":
                    self._run_python(block)
                else:
                    self._run_session(block)

    def _run_console(self, shell: Shell, all_steps: list[Step]) -> None:
        following = [step.command for step in all_steps[1:]] + [""]
        for step, after in zip(all_steps, following, strict=True):
            printed, status = shell.run(step.command)
            shown = _left_on_screen(printed).replace(str(self._home), SHOWN_HOME)
            where = f"{self._page}:{step.line}: {step.command}"
            self.transcript.append(Step(step.command, shown.splitlines(), step.line))
            expected = "\n".join(step.output)
            is_as_shown = self._columns != COLUMNS or (
                agrees(expected, shown) or agrees(expected, _without_progress(shown))
            )
            assert is_as_shown, f"{where}\n{shown}"
            # A failure is either shown as such, or the reader is shown its status.
            failed = any(line.startswith("error: ") for line in step.output)
            assert after == "echo $?" or (status != 0) == failed, f"{where}: status {status}"

    def _run_python(self, block: Block) -> None:
        # Blank lines in front make tracebacks point at the line of the page.
        source = "\n" * (block.line - 1) + block.text
        exec(compile(source, str(self._page.path), "exec"), self._names)

    def _run_session(self, block: Block) -> None:
        parser, complaints = doctest.DocTestParser(), list[str]()
        session = parser.get_doctest(
            block.text, self._names, str(self._page), str(self._page.path), block.line - 1
        )
        runner = doctest.DocTestRunner(_Checker(self._home), verbose=False)
        runner.run(session, out=complaints.append, clear_globs=False)
        self._names.update(session.globs)
        assert not complaints, "".join(complaints)


_RUNNABLE = ("console", "python", "pycon")


class _Checker(doctest.OutputChecker):
    def __init__(self, home: Path) -> None:
        self._home = home

    def check_output(self, want: str, got: str, optionflags: int) -> bool:
        del optionflags
        return agrees(want.rstrip("\n"), got.rstrip("\n").replace(str(self._home), SHOWN_HOME))


def agrees(expected: str, printed: str) -> bool:
    """Whether a command printed what a page says, as far as pages can say it."""
    lines = [re.escape(settled(line)) for line in expected.splitlines()]
    pattern = "".join(
        r"(?:[^\n]*\n)*?" if line == r"\.\.\." else line.replace(r"\.\.\.", "[^\n]*?") + "\n"
        for line in lines
    )
    actual = "".join(f"{settled(line)}\n" for line in printed.splitlines())
    return re.fullmatch(pattern, actual) is not None


def _left_on_screen(printed: str) -> str:
    """Return what is to be read in the end: slow machines show progress, and erase it again."""
    return re.sub(r"[^\n]*\r\x1b\[K", "", printed.replace("\r\n", "\n"))


def _without_progress(shown: str) -> str:
    """Leave out what a terminal that cannot move its cursor shows of work of over a second."""
    return "".join(f"{line}\n" for line in shown.splitlines() if not _PROGRESS.fullmatch(line))


def settled(line: str) -> str:
    """Return a line without what may differ from run to run."""
    for variable, name in _VARIABLE:
        line = variable.sub(name, line)
    return line.rstrip()
