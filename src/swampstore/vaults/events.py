"""What was done with which secret, when, and by whom: a line each, never with a value.

The lines are part of the audit, in files of their own: `audit/vault-audit-{day}-...jsonl`. If
an event cannot be written, the command warns and goes on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from swampstore.audit.events import READ, VAULTS, read, write
from swampstore.clock import to_iso
from swampstore.locks.process import actor_name

if TYPE_CHECKING:
    from swampstore.repo import Repo


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
    """Append an event to a file of this machine. If that fails, warn and go on."""
    now = to_iso(repo.clock())
    event = Event(action, now, vault, vault_type, key, caller, actor_name())
    write(repo, VAULTS[0], now, event.to_json())


def events(repo: Repo, since: str | None = None, until: str | None = None) -> Iterator[Event]:
    """Yield every event that is known here, the oldest first; lines that are none are left out."""
    for found in read(repo, VAULTS, since=since, until=until):
        event = _event(found.timestamp, found.members)
        if event is not None:
            yield event


def _event(timestamp: str, document: Mapping[str, Any]) -> Event | None:
    names = ("vaultName", "vaultType", "secretKey", "callerContext", "actor")
    texts = [document.get("action", READ), *(document.get(name, "") for name in names)]
    if not all(isinstance(text, str) for text in texts):
        return None
    action, *others = texts
    return Event(action, timestamp, *others)
