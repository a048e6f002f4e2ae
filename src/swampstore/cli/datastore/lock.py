"""`swampstore datastore lock status` and `release`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from swampstore.cli.command import command, pass_session
from swampstore.cli.options import complete_model, rows_options
from swampstore.cli.rendering import printable
from swampstore.cli.row_formats import Column, Listing, item, same
from swampstore.cli.session import Session
from swampstore.clock import to_iso
from swampstore.layout import ModelRef
from swampstore.locks.record import gate_key, global_key, model_key

if TYPE_CHECKING:
    from swampstore.locks.inspection import LockState
    from swampstore.locks.manager import LockManager


@command(
    examples="""
    swampstore datastore lock status
    swampstore datastore lock status --json
    """
)
@rows_options
@pass_session
def status(session: Session) -> None:
    """Show who has locked what."""
    with session.open_repo() as repo:
        found = [_document(scope, state) for scope, state in _all_locks(repo.locks)]
    listing = Listing(_COLUMNS, found, same, empty="Nothing is locked.")
    session.show_rows(listing, lambda: {"locks": found})


def _all_locks(locks: LockManager) -> list[tuple[str, LockState]]:
    """Return the locks that are there, with what each of them covers."""
    models = ((str(model), state) for model, state in locks.locked_models())
    return [*_of_everything(locks), *models]


def _of_everything(locks: LockManager) -> list[tuple[str, LockState]]:
    keys = {"gate": gate_key(locks.namespace), "global": global_key(locks.namespace)}
    found = ((scope, locks.inspect(key)) for scope, key in keys.items())
    return [(scope, state) for scope, state in found if state is not None]


def _document(scope: str, state: LockState) -> dict[str, Any]:
    document: dict[str, Any] = {"key": state.key, "scope": scope}
    if scope not in {"gate", "global"}:
        document |= {"scope": "model", "model": scope}
    record = state.record
    return document | {
        "holder": record.holder if record else None,
        "hostname": record.hostname if record else None,
        "pid": record.pid if record else None,
        "since": to_iso(record.held_since) if record else None,
        "age": round(state.age, 1),
        "stale": state.is_stale,
        "nonce": state.nonce,
    }


_COLUMNS = (
    Column("model", lambda one: one.get("model", one["scope"]), heading="lock"),
    Column("holder", lambda one: one["holder"] or "cannot be read"),
    Column("hostname", item("hostname"), rank=2, heading="host"),
    Column("pid", item("pid"), right=True, rank=1),
    Column("since", item("since"), rank=3),
    Column("age", item("age"), lambda age: f"{age:.0f} s", right=True),
    Column("stale", item("stale"), lambda stale: "yes" if stale else "no"),
)


@command(
    examples="""
    swampstore datastore lock release --force
    swampstore datastore lock release --force --model aws/ec2/i-123
    """
)
@click.option("--force", is_flag=True, help="Needed: the holder may still be at work.")
@click.option(
    "--model",
    metavar="TYPE/ID",
    shell_complete=complete_model,
    help="The lock of this model, not those of everything.",
)
@pass_session
def release(session: Session, force: bool, model: str | None) -> None:
    """Remove a lock, whoever holds it.

    Without --model, the locks of whoever works on everything are removed. A holder that is still
    at work finds out before it commits, and keeps what it did on its machine.
    """
    if not force:
        raise click.UsageError("a lock is only removed with --force: its holder may be at work")
    with session.open_repo() as repo:
        locks = repo.locks
        found = [
            _document(scope, state) | {"released": locks.force_release(state.key, state.nonce)}
            for scope, state in _chosen(locks, model)
        ]
    released = any(one["released"] for one in found)
    session.show({"released": released, "locks": found}, lambda: _release_text(found, model))


def _chosen(locks: LockManager, model: str | None) -> list[tuple[str, LockState]]:
    if model is None:
        return _of_everything(locks)
    ref = ModelRef.parse(model)
    state = locks.inspect(model_key(locks.namespace, ref))
    return [(str(ref), state)] if state else []


def _release_text(found: list[dict[str, Any]], model: str | None) -> str:
    if not found:
        return f"Nobody has locked {printable(model or 'everything')}."
    return "\n".join(map(_released_line, found))


def _released_line(one: dict[str, Any]) -> str:
    key, holder = printable(one["key"]), printable(one["holder"] or "somebody unknown")
    if not one["released"]:
        return f"{key} changed hands meanwhile and was left alone; {holder} had it."
    process = f" (host {printable(one['hostname'])}, pid {one['pid']})" if one["holder"] else ""
    return f"Removed {key}, which {holder}{process} held since {one['since'] or 'some time'}."
