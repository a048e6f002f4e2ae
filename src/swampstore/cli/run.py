"""`swampstore run`: a method of a model, or any command as one; its output is shown as it comes."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from swampstore.cli.command import Command, pass_session
from swampstore.cli.options import Seconds, model_argument, tag_option
from swampstore.cli.session import Session
from swampstore.runs.method_request import MethodRequest, RunListener
from swampstore.runs.method_run import run_method

if TYPE_CHECKING:
    from swampstore.runs.method_request import MethodResult
    from swampstore.runs.processes import Interruption

_GC = "gc"
_WITH_VALUE = ("--repo", "--datastore")


class _Run(Command):
    """Also answers `run gc`, which is called `runs gc` today."""

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        at = _first_operand(args)
        rest = args[at + 1 :]
        if args[at : at + 1] == [_GC] and (not rest or rest[0].startswith("-")):
            from swampstore.cli.data.gc import run_gc

            return run_gc.make_context(f"{info_name} {_GC}", args[:at] + rest, parent, **extra)
        return super().make_context(info_name, args, parent, **extra)


def _first_operand(args: list[str]) -> int:
    """Return where the first argument is that is no global option."""
    at = 0
    while at < len(args) and args[at].startswith("-"):
        at += 2 if args[at] in _WITH_VALUE else 1
    return at


@click.command(
    cls=_Run,
    examples="""
    swampstore run aws/ec2/i-1 scan -- ./scan.sh i-1
    swampstore run demo/host/web df --tag env=prod -- df -k /
    swampstore run disk-usage execute --input host=web-1
    swampstore run aws/ec2/i-1 scan --input region=eu-west-1 --json
    swampstore run gc --older-than 2w
    """,
)
@model_argument
@click.argument("method", help="The method; with a command, any name for what it does.")
@click.argument(
    "command",
    nargs=-1,
    type=click.UNPROCESSED,
    help="The command to run as this method, behind `--`.",
)
@click.option(
    "--input",
    "inputs",
    multiple=True,
    metavar="KEY=VALUE",
    help="An input; may be repeated. KEY:=JSON takes JSON, KEY=@FILE what a file holds.",
)
@tag_option
@click.option(
    "--timeout",
    type=Seconds(),
    metavar="S",
    help="End it after so many seconds.",
)
@click.option("--skip-checks", is_flag=True, help="Leave the checks of the model out.")
@click.option(
    "--last-evaluated",
    is_flag=True,
    help="Run what the last run was given, expressions evaluated as they were then.",
)
@click.option(
    "--rollback-on-failure", is_flag=True, help="Take back what it wrote if it does not succeed."
)
@pass_session
def run(  # noqa: PLR0913 - one for each option
    session: Session,
    *,
    model: str,
    method: str,
    command: tuple[str, ...],
    inputs: tuple[str, ...],
    tags: tuple[tuple[str, str], ...],
    timeout: float | None,
    skip_checks: bool,
    last_evaluated: bool,
    rollback_on_failure: bool,
) -> None:
    """Run a method of a model, or a command as one, and keep what it prints and writes.

    Standard output and standard error of a command are passed through, and so is its exit status;
    with --json its output goes to standard error. An interruption reaches the command, a second
    one kills it.
    """
    request = MethodRequest(
        model,
        method,
        tags=dict(tags),
        command=command or None,
        timeout=timeout,
        skip_checks=skip_checks,
        last_evaluated=last_evaluated,
        rollback_on_failure=rollback_on_failure,
    )
    with heard() as interruption, session.open_repo() as repo:
        request = _with_inputs(repo, request, inputs)
        shown = _Terminal(as_json=session.json)
        result = run_method(repo, request, listener=shown, cancelled=interruption)
    _tell(session, result)


def _with_inputs(repo: Any, request: MethodRequest, pairs: tuple[str, ...]) -> MethodRequest:
    """Return the request with inputs of the types that the model wants."""
    if not pairs:
        return request
    from swampstore.runs.inputs import parse_pairs
    from swampstore.runs.method_plan import find_target

    schema = find_target(repo, request).input_schema
    return request._replace(inputs=parse_pairs(pairs, schema))


def _tell(session: Session, result: MethodResult) -> None:
    """Tell how it went: on standard error, because standard output is the command's."""
    output = result.output
    error = (output.error or {}).get("message")
    if session.json:
        session.show(result.to_json(), str)
    else:
        written = ", ".join(f"{one.name} v{one.version}" for one in result.artifacts)
        seconds = (output.duration_ms or 0) / 1000
        session.note(
            f"{output.model} {output.method} {result.status} in {seconds:.1f} s"
            f" (output {output.id[:8]}){f': {written}' if written else ''}"
        )
        if error:
            session.note(f"error: {error}")
            if result.hint:
                session.note(f"hint: {result.hint}")
    if result.status == "succeeded":
        session.unpushed = result.not_pushed
        return
    if result.not_pushed:
        session.note(f"not pushed: {result.not_pushed.message}")
    raise click.exceptions.Exit(result.exit_code)


class _Terminal(RunListener):
    """Passes on what a method prints. Somebody who stops reading does not stop the method."""

    def __init__(self, *, as_json: bool) -> None:
        error = _raw(sys.stderr)
        self._to: dict[str, Any] = {
            "stdout": error if as_json else _raw(sys.stdout),
            "stderr": error,
        }

    def out(self, stream: str, data: bytes) -> None:
        """Show bytes as they are."""
        target = self._to[stream]
        if target is None:
            return
        try:
            target.write(data)
            target.flush()
        except OSError:
            self._to[stream] = None


def _raw(stream: Any) -> Any:
    if stream is None:
        return None
    stream.flush()
    return getattr(stream, "buffer", None)


@contextlib.contextmanager
def heard() -> Iterator[Interruption]:
    """Turn signals into a wish that the run ends; who insists ends the process."""
    from swampstore.runs.processes import Interruption

    interruption = Interruption()
    if threading.current_thread() is not threading.main_thread():
        yield interruption
        return

    def hear(number: int, frame: FrameType | None) -> None:
        del frame
        interruption.strike(number)
        if interruption.raises or interruption.strikes > 2:
            raise KeyboardInterrupt

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, hear) for number in numbers}
    try:
        yield interruption
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
