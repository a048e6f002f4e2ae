"""Events: what one line of the audit says, and finding those that somebody asks for.

Other clients write `commands-{day}.jsonl` (`timestamp`, `command`, `cwd`, `exitCode`, ...) and
`vault-audit-{day}.jsonl`; what we write has these members and some more. Names are recorded, values
never: neither content, nor the values of inputs and options, nor messages that may quote them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from swampstore.audit.segments import append, files
from swampstore.clock import from_iso, to_iso
from swampstore.errors import SwampstoreError
from swampstore.files import disk_errors
from swampstore.locks.process import actor_name
from swampstore.notices import notice

if TYPE_CHECKING:
    from swampstore.layout import ModelRef
    from swampstore.sync.opening import OpenRepo

COMMANDS = "commands"
VAULTS = ("vault-audit", "vault-reads")
COMMAND, VAULT = "command", "vault"
# What is written before there was a way to say what was done with a secret.
READ = "get"


class Event(NamedTuple):
    """One thing that was done. `models` are its addresses, TYPE/ID; `members` the whole line."""

    timestamp: str
    kind: str
    command: str
    actor: str
    models: tuple[str, ...] = ()
    members: Mapping[str, Any] = {}

    def to_json(self) -> dict[str, Any]:
        """Return the line, with what every event has first."""
        told = {"timestamp": self.timestamp, "kind": self.kind, "command": self.command}
        return {**told, **{name: value for name, value in self.members.items() if name not in told}}


def record(
    repo: OpenRepo,
    kind: str,
    *,
    command: str | None = None,
    model: ModelRef | None = None,
    **members: Any,
) -> None:
    """Write down that something was done. If that fails, warn and go on.

    `kind` is the first word of the command that does the same: data, run, workflow, datastore.
    `members` are further names and numbers, such as `method` or `exitCode`; those that are None
    are left out. Costs no request.
    """
    timestamp = to_iso(repo.clock())
    document = {
        "timestamp": timestamp,
        "kind": kind,
        "command": command or kind,
        "model": None if model is None else str(model),
        **members,
        "actor": actor_name(),
        "cwd": _here(),
    }
    write(repo, COMMANDS, timestamp, document)


def write(repo: OpenRepo, series: str, timestamp: str, document: Mapping[str, Any]) -> None:
    """Append a line to a series of files. If that fails, warn and go on."""
    kept = {name: value for name, value in document.items() if value is not None}
    try:
        line = json.dumps(kept, ensure_ascii=False, separators=(",", ":"), default=str)
        with disk_errors(repo.config.base):
            append(repo, series, timestamp, line.encode("utf-8", "backslashreplace"))
    except (SwampstoreError, ValueError) as error:
        notice("the audit could not be written: %s", error)


def _here() -> str | None:
    try:
        return os.getcwd()
    except OSError:
        return None


# Reading -----------------------------------------------------------------------------------------


def events(
    repo: OpenRepo,
    *,
    since: str | None = None,
    until: str | None = None,
    actor: str | None = None,
    model: str | None = None,
    kind: str | None = None,
) -> Iterator[Event]:
    """Yield the events that are known here, the oldest first; lines that are none are left out.

    `since` (inclusive) and `until` (exclusive) are times as they are written. `actor` is USER or
    USER@HOST, `model` is TYPE/ID. Files of other days are not read.
    """
    for one in read(repo, (COMMANDS, *VAULTS), since=since, until=until):
        if (
            kind in (None, one.kind)
            and (model is None or model in one.models)
            and (actor is None or one.actor == actor or one.actor.split("@")[0] == actor)
        ):
            yield one


def read(
    repo: OpenRepo,
    series: tuple[str, ...],
    *,
    since: str | None = None,
    until: str | None = None,
) -> Iterator[Event]:
    """Yield the events of some series of files, the oldest first."""
    for day in files(repo, (since or "")[:10], (until or "~")[:10]):
        found = [
            event
            for file in day
            if file.series in series
            for event in _events_in(file.data, COMMAND if file.series == COMMANDS else VAULT)
        ]
        for event in sorted(found, key=lambda event: event.timestamp):
            if (since is None or event.timestamp >= since) and (
                until is None or event.timestamp < until
            ):
                yield event


def _events_in(data: bytes, kind: str) -> Iterator[Event]:
    for line in data.splitlines():
        try:
            yield _event(json.loads(line), kind)
        except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
            continue


def _event(document: Mapping[str, Any], kind: str) -> Event:
    def text(name: str, default: str = "") -> str:
        value = document.get(name, default)
        if not isinstance(value, str):
            raise TypeError(name)
        return value

    models = document.get("models", [])
    named = [text("model")] if "model" in document else []
    command = text("command") if kind == COMMAND else f"vault {text('action', READ)}"
    return Event(
        to_iso(from_iso(text("timestamp"))),
        text("kind", kind),
        command,
        text("actor"),
        tuple(dict.fromkeys([*named, *(one for one in models if isinstance(one, str))])),
        document,
    )
