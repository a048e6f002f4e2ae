"""Commands as methods: `run TYPE/ID METHOD -- command ...`, and the built-in type `command/shell`.

What a command writes is shown while it comes, and becomes the artifact `log`, whatever its size.
Its result is the JSON that it prints, else what is known about how it went. Secrets reach it in
environment variables: arguments can be seen by everybody on the machine.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from swampstore.clock import to_iso
from swampstore.errors import ValidationError
from swampstore.runs.capture import Capture
from swampstore.runs.context import MethodContext
from swampstore.runs.errors import CommandError, CommandTimeoutError, RunCancelledError
from swampstore.runs.processes import STDERR, STDOUT, Ended, run_command
from swampstore.runs.writing import FILE, Spec

SHELL_TYPE = "command/shell"
SHELL_METHOD = "execute"
SHELL_VERSION = "2026.02.09.1"
RESULT = Spec("result")
LOG = Spec("log", FILE, "text/plain", streaming=True)
SPECS = {"result": RESULT, "log": LOG}
SHELL_ARGUMENTS: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "run": {"type": "string"},
        "workingDir": {"type": "string"},
        "timeout": {"type": "number", "exclusiveMinimum": 0},
        "env": {"type": "object"},
        "ignoreExitCode": {"type": "boolean"},
    },
    "required": ["run"],
    "additionalProperties": False,
}
_SHELLS = frozenset({"sh", "bash", "dash", "ksh", "zsh"})
_NAME = re.compile(r"[^A-Za-z0-9]+")


def run_argv(context: MethodContext, argv: Sequence[str]) -> None:
    """Run the command of `run TYPE/ID METHOD -- command ...`."""
    argv, variables = _without_secrets(context, [*argv])
    env = {**_environment(context), **variables}
    with Capture(context.state.log, context.state.redactor, context.state.show) as capture:
        ended = _run(context, capture, argv, env, os.getcwd(), context.state.timeout)
        document = capture.document()
        if document is None:
            document = _account(context, ended, capture, _shown(argv))
        _keep(context, document, has_failed=_has_failed(ended))
    _judge(ended, _shown(argv), context.state.timeout)


def run_shell(context: MethodContext, arguments: Mapping[str, Any]) -> None:
    """Run the method `execute` of `command/shell`; vault references are still references."""
    text = str(arguments["run"])
    command, variables = text, dict[str, str]()
    if "vault.get" in text:
        command, variables = context.state.resolver().shell(text)
    own = arguments.get("env") or {}
    if "vault.get" in str(own):
        own = context.state.resolver().document(own)
    env = {**_environment(context), **{key: _text(value) for key, value in own.items()}}
    cwd = os.path.join(context.state.repo.config.repo_dir, str(arguments.get("workingDir") or ""))
    timeout = arguments.get("timeout")
    seconds = context.state.timeout if timeout is None else float(timeout) / 1000
    with Capture(context.state.log, context.state.redactor, context.state.show) as capture:
        ended = _run(context, capture, ["/bin/sh", "-c", command], env | variables, cwd, seconds)
        account = _account(context, ended, capture, text)
        if arguments.get("ignoreExitCode") and not (ended.was_cancelled or ended.timed_out):
            ended = ended._replace(exit_code=0)
        _keep(context, account, has_failed=_has_failed(ended))
    _judge(ended, text, seconds)


def _run(
    context: MethodContext,
    capture: Capture,
    argv: Sequence[str],
    env: Mapping[str, str],
    cwd: str,
    timeout: float | None,
) -> Ended:
    ended = run_command(
        argv, capture.take, env=env, cwd=cwd, cancelled=context.state.cancelled, timeout=timeout
    )
    capture.finish()
    return ended


def _without_secrets(context: MethodContext, argv: list[str]) -> tuple[list[str], dict[str, str]]:
    """Let a shell find the secrets of its command in variables; refuse them anywhere else."""
    at = [number for number, one in enumerate(argv) if "${{" in one and "vault.get" in one]
    if not at:
        return argv, {}
    if at == [2] and argv[1] == "-c" and os.path.basename(argv[0]) in _SHELLS:
        command, variables = context.state.resolver().shell(argv[2])
        return [*argv[:2], command, *argv[3:]], variables
    raise ValidationError(
        "a secret would be an argument, which everybody on this machine can see",
        hint="Pass it as an input, which the command finds in $SWAMPSTORE_INPUT_NAME:"
        " --input \"name=${{ vault.get('vault','key') }}\". Or use `sh -c '...'`.",
    )


def _environment(context: MethodContext) -> dict[str, str]:
    """Return the environment of a command: ours, who runs it, and its inputs."""
    inputs = dict(context.inputs)
    if inputs and "vault.get" in str(inputs):
        inputs = context.state.resolver().document(inputs)
    told = {
        f"SWAMPSTORE_INPUT_{_NAME.sub('_', name).upper()}": _text(value)
        for name, value in inputs.items()
    }
    return {
        **os.environ,
        "SWAMP_REPO_DIR": context.state.repo.config.repo_dir,
        "SWAMPSTORE_RUN_ID": context.run_id,
        "SWAMPSTORE_MODEL": str(context.model),
        "SWAMPSTORE_METHOD": context.method,
        **told,
    }


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _shown(argv: Sequence[str]) -> str:
    import shlex

    return readable(shlex.join(argv))


def readable(text: str) -> str:
    """Return a text that can be saved: escapes stand for what is no UTF-8 in it."""
    return text.encode("utf-8", "backslashreplace").decode()


def _account(
    context: MethodContext, ended: Ended, capture: Capture, command: str
) -> dict[str, Any]:
    """Return what is known about how a command went."""
    document: dict[str, Any] = {
        "exitCode": ended.exit_code,
        "executedAt": to_iso(context.state.repo.clock()),
        "command": command,
        "durationMs": ended.duration_ms,
    }
    for stream in (STDOUT, STDERR):
        text, is_cut = capture.text(stream)
        document[stream] = text
        if is_cut:
            document[f"{stream}Truncated"] = True
    return document


def _keep(context: MethodContext, document: Any, *, has_failed: bool) -> None:
    """Save the result and the log; a log that would be taken back goes with the record instead."""
    context.write_resource(RESULT.name, RESULT.name, document)
    if not (has_failed and context.state.writing.group):
        context.state.log.to_artifact(context.state.writing, LOG)


def _has_failed(ended: Ended) -> bool:
    return bool(ended.exit_code or ended.was_cancelled or ended.timed_out)


def _judge(ended: Ended, command: str, timeout: float | None) -> None:
    """Raise what a command that did not go well stands for."""
    if ended.was_cancelled:
        raise RunCancelledError("the run was cancelled, and its command was told")
    if ended.timed_out:
        raise CommandTimeoutError(
            f"the command took longer than {timeout:g} seconds: {command}",
            ended.exit_code,
            hint="Give it more time, or find out what it waits for.",
        )
    if ended.exit_code:
        raise CommandError(
            f"the command ended with exit status {ended.exit_code}: {command}", ended.exit_code
        )
