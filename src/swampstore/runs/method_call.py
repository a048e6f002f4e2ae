"""Doing what a method does: a command, the built-in shell type, or a method of a class."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from swampstore.errors import EXIT_ERROR
from swampstore.runs import method_plan, shell
from swampstore.runs.errors import CommandError, CommandTimeoutError, RunCancelledError
from swampstore.runs.processes import Interruption

if TYPE_CHECKING:
    from swampstore.runs.context import MethodContext
    from swampstore.runs.method_evaluation import Evaluation
    from swampstore.runs.method_plan import Target
    from swampstore.runs.method_request import MethodRequest


def perform(
    context: MethodContext,
    target: Target,
    request: MethodRequest,
    evaluation: Evaluation,
    cancelled: list[threading.Event],
) -> None:
    """Check what only the holder of the lock can check, then do what the method does.

    Raises whatever the method raises, and CommandError for a command that fails.
    """
    method_plan.check_deleted(context.state.repo, target)
    method_plan.check_vaults(target, lambda: evaluation.vaults)
    if request.command is not None:
        shell.run_argv(context, evaluation.command())
    elif target.code is None:
        shell.run_shell(context, evaluation.given.arguments)
    else:
        _call(context, target, request, evaluation, cancelled)


def _call(
    context: MethodContext,
    target: Target,
    request: MethodRequest,
    evaluation: Evaluation,
    cancelled: list[threading.Event],
) -> None:
    """Call the method of a class."""
    from swampstore.runs.method_log import printing_to_log

    assert target.code is not None
    assert target.declared is not None
    arguments = evaluation.with_secrets(evaluation.given.arguments)
    instance = target.code.cls()
    with _deadline(cancelled, request.timeout), printing_to_log(context.state):
        if not request.skip_checks:
            method_plan.run_checks(context, target, instance)
        with _reachable(cancelled):
            getattr(instance, target.declared.attribute)(context, **arguments)


@contextlib.contextmanager
def _reachable(cancelled: Sequence[threading.Event]) -> Iterator[None]:
    """Let an interruption raise KeyboardInterrupt in code that nothing else would reach."""
    interruptions = [one for one in cancelled if isinstance(one, Interruption)]
    for one in interruptions:
        one.raises = True
        if one.is_set():
            raise RunCancelledError("the run was cancelled before it began")
    try:
        yield
    finally:
        for one in interruptions:
            one.raises = False


@contextlib.contextmanager
def _deadline(cancelled: list[threading.Event], timeout: float | None) -> Iterator[None]:
    """Ask a method to end when its time is over; whether it does is up to it."""
    if timeout is None:
        yield
        return
    over = threading.Event()
    timer = threading.Timer(timeout, over.set)
    timer.daemon = True
    cancelled.append(over)
    timer.start()
    try:
        yield
    except Exception as error:
        if over.is_set():
            raise CommandTimeoutError(
                f"the method took longer than {timeout:g} seconds", EXIT_ERROR
            ) from error
        raise
    finally:
        timer.cancel()
        cancelled.remove(over)


def exit_code_of(error: BaseException) -> int:
    """Return the exit status that an exception of a method stands for; never 0."""
    match error:
        case CommandError():
            return error.exit_code or EXIT_ERROR
        case SystemExit(code=int(code)):
            return code or EXIT_ERROR
    return EXIT_ERROR
