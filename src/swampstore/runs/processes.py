"""Starting a command, reading what it writes, and ending it.

The command has a session of its own. What asks the run to end is forwarded to all of its processes;
who insists, or waits for too long, has them killed.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import IO, NamedTuple

from swampstore.runs.errors import CommandError

STDOUT, STDERR = "stdout", "stderr"
EXIT_NOT_FOUND = 127
EXIT_NOT_EXECUTABLE = 126
_PIECE = 1 << 16
# How soon it is noticed that somebody asks for an end.
_LOOK = 0.1
# How long a command may take to end after it was asked to.
_GRACE = 10.0
# How long output is waited for that comes from what a command left behind when it ended.
_REST = 0.2


class Interruption(threading.Event):
    """A wish that a run ends. `signal` is sent to its command, `strikes` counts how often it came.

    While `raises` is true, code of a method runs that nothing else would reach.
    """

    def __init__(self) -> None:
        super().__init__()
        self.signal: int = signal.SIGTERM
        self.strikes = 0
        self.raises = False

    def strike(self, number: int = signal.SIGTERM) -> None:
        """Ask once more."""
        self.signal = number
        self.strikes += 1
        self.set()


class Ended(NamedTuple):
    """How a command ended: the exit status as shells report it, and who ended it."""

    exit_code: int
    duration_ms: int
    was_cancelled: bool = False
    timed_out: bool = False


def run_command(
    argv: Sequence[str],
    take: Callable[[str, bytes], None],
    *,
    env: Mapping[str, str],
    cwd: str,
    cancelled: Sequence[threading.Event] = (),
    timeout: float | None = None,
) -> Ended:
    """Run a command until it ends; `take` is given what it writes, and where, as it comes.

    Standard input is ours unless that is a terminal. Raises CommandError if the command cannot be
    started; if `take` fails, the command is killed.
    """
    start = time.monotonic()
    process = _started(argv, env, cwd)
    ending = _Ending(process.pid, cancelled, None if timeout is None else start + timeout)
    try:
        _read(process, take, ending)
        while not _has_ended(process):
            ending.look()
    except BaseException:
        _signal_group(process.pid, signal.SIGKILL)
        process.wait()
        raise
    finally:
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
    status = process.returncode
    return Ended(
        exit_code=status if status >= 0 else 128 - status,
        duration_ms=round((time.monotonic() - start) * 1000),
        was_cancelled=ending.was_cancelled,
        timed_out=ending.timed_out,
    )


def _started(argv: Sequence[str], env: Mapping[str, str], cwd: str) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(  # noqa: S603 - to run what the user says is what this is for
            [*argv],
            stdin=subprocess.DEVNULL if _is_terminal(0) else None,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            env={**env},
            cwd=cwd,
            # Not just a group: what waits for a password at the terminal would stop for ever.
            start_new_session=True,
        )
    except FileNotFoundError:
        if not os.path.isdir(cwd):
            raise CommandError(
                f"the directory {cwd} does not exist",
                EXIT_NOT_FOUND,
                hint="Check the working directory.",
            ) from None
        raise CommandError(
            f"there is no command {argv[0]!r}", EXIT_NOT_FOUND, hint="Check its name and PATH."
        ) from None
    except (OSError, ValueError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or error
        raise CommandError(
            f"{argv[0]!r} cannot be run: {reason}",
            EXIT_NOT_EXECUTABLE,
            hint="Check that the file is executable.",
        ) from None


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Wait a moment for a command that has closed its output; whether it has ended."""
    try:
        process.wait(_LOOK)
    except subprocess.TimeoutExpired:
        return False
    return True


def _is_terminal(fd: int) -> bool:
    try:
        return os.isatty(fd)
    except OSError:
        return False


class _Ending:
    """Whether a command should end, and what was done about it."""

    def __init__(
        self, pid: int, cancelled: Sequence[threading.Event], deadline: float | None
    ) -> None:
        self._pid = pid
        self._cancelled = cancelled
        self._deadline = deadline
        self._kill_at: float | None = None
        self._strikes = 0
        self.was_cancelled = False
        self.timed_out = False

    def look(self) -> None:
        """Tell the command to end if it is time."""
        now = time.monotonic()
        asked = next((one for one in self._cancelled if one.is_set()), None)
        if asked is not None:
            strikes = asked.strikes if isinstance(asked, Interruption) else 1
            if not self.was_cancelled:
                number = asked.signal if isinstance(asked, Interruption) else signal.SIGTERM
                self.was_cancelled = True
                self._strikes = strikes
                self._ask(number, now)
            elif strikes > self._strikes:
                self._kill_at = now
        elif self._deadline is not None and now >= self._deadline and not self.timed_out:
            self.timed_out = True
            self._ask(signal.SIGTERM, now)
        if self._kill_at is not None and now >= self._kill_at:
            _signal_group(self._pid, signal.SIGKILL)

    def _ask(self, number: int, now: float) -> None:
        _signal_group(self._pid, number)
        self._kill_at = now + _GRACE


def _signal_group(pid: int, number: int) -> None:
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        return  # all of it has ended


def _read(
    process: subprocess.Popen[bytes], take: Callable[[str, bytes], None], ending: _Ending
) -> None:
    """Hand on what a command writes, until it and all it started have closed their ends.

    What a command leaves running in the background is not waited for.
    """
    with selectors.DefaultSelector() as selector:
        for name, pipe in ((STDOUT, process.stdout), (STDERR, process.stderr)):
            assert pipe is not None
            selector.register(pipe, selectors.EVENT_READ, name)
        silent_since: float | None = None
        while selector.get_map():
            ready = selector.select(_LOOK)
            ending.look()
            for key, _ in ready:
                pipe = key.fileobj  # type: ignore[assignment]
                if data := os.read(_number(pipe), _PIECE):
                    take(key.data, data)
                else:
                    selector.unregister(key.fileobj)
            if ready or process.poll() is None:
                silent_since = None
                continue
            silent_since = silent_since or time.monotonic()
            if time.monotonic() - silent_since > _REST:
                return


def _number(pipe: IO[bytes] | None) -> int:
    assert pipe is not None
    return pipe.fileno()
