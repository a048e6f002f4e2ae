"""What was done with which secret, when, and by whom: a line each, never with a value.

The files are `audit/vault-audit-{day}-{host}.jsonl` of the datastore, so they are shared like
everything else; each machine only ever writes its own. An event that cannot be written stops
nobody: that is told as a warning.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import uuid
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from swampstore.clock import from_iso, to_iso
from swampstore.errors import SwampstoreError
from swampstore.files import read_file, replace_file
from swampstore.locks.process import new_record
from swampstore.notices import notice

if TYPE_CHECKING:
    from swampstore.files import Change
    from swampstore.repo import Repo

AUDIT = "audit"
_FILES = re.compile(r"vault-(?:audit|reads)-.*\.jsonl")
_MACHINE = "swampstore.machine"
_READ = "get"


class Event(NamedTuple):
    """One thing that was done. `key` is empty for what concerns a whole vault."""

    action: str
    timestamp: str
    vault: str
    vault_type: str
    key: str = ""
    caller: str = ""
    actor: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the members of its line."""
        members = {
            "action": self.action,
            "timestamp": self.timestamp,
            "vaultName": self.vault,
            "vaultType": self.vault_type,
            "secretKey": self.key,
            "callerContext": self.caller,
            "actor": self.actor,
        }
        return {name: value for name, value in members.items() if value}


def record(repo: Repo, action: str, vault: str, vault_type: str, key: str, caller: str) -> None:
    """Append an event to today's file of this machine; failing is worth a warning, no more."""
    now = to_iso(repo.clock())
    event = Event(action, now, vault, vault_type, key, caller, new_record(1).holder)
    line = json.dumps(event.to_json(), ensure_ascii=False, separators=(",", ":"))
    try:
        rel = f"{AUDIT}/vault-audit-{now[:10]}-{_machine(repo.config.local_dir)}.jsonl"
        os.makedirs(os.path.dirname(repo.tree.path(rel)), exist_ok=True)
        with repo.tree.changing(rel) as change:
            _append(change, rel, repo.tree.path(rel), f"{line}\n".encode())
    except (SwampstoreError, OSError) as error:
        notice("the audit of the vault %s could not be written: %s", vault, error)


def _append(change: Change, rel: str, path: str, line: bytes) -> None:
    with contextlib.suppress(FileExistsError):
        os.close(change.create(rel))
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        # Whoever was killed in the middle of a line must not take this one with it.
        file.seek(max(0, size - 1))
        is_torn = size > 0 and file.read(1) != b"\n"
    change.append(rel, b"\n" + line if is_torn else line)


def _machine(local_dir: str) -> str:
    """Return what tells this copy of the repository from every other one, here and elsewhere."""
    path = f"{local_dir}/{_MACHINE}"
    if not (known := read_file(path)):
        replace_file(path, uuid.uuid4().hex[:8].encode(), durable=False)
        known = read_file(path) or b""
    host = re.sub(r"[^A-Za-z0-9-]", "-", os.uname().nodename)[:60]
    return f"{host}-{known.decode('ascii', 'replace').strip()}"


def events(repo: Repo) -> Iterator[Event]:
    """Yield every event that is known here, the oldest first; lines that are none are left out."""
    found: list[Event] = []
    for place in repo.tree.places(AUDIT):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            for name in os.listdir(place):
                if _FILES.fullmatch(name):
                    found += _events_in(read_file(f"{place}/{name}") or b"")
    yield from sorted(found, key=lambda event: event.timestamp)


def _events_in(data: bytes) -> Iterator[Event]:
    for line in data.splitlines():
        with contextlib.suppress(ValueError, TypeError, AttributeError):
            document = json.loads(line)
            yield _event(document)


def _event(document: Mapping[str, Any]) -> Event:
    def text(name: str, default: str = "") -> str:
        value = document.get(name, default)
        if not isinstance(value, str):
            raise TypeError(name)
        return value

    timestamp = to_iso(from_iso(text("timestamp")))
    return Event(
        text("action", _READ),
        timestamp,
        text("vaultName"),
        text("vaultType"),
        text("secretKey"),
        text("callerContext"),
        text("actor"),
    )
