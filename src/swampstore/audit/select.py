"""Choosing events with the query language: `select_events(events(repo), 'exitCode != 0')`."""

from __future__ import annotations

from collections.abc import Iterable

from swampstore.audit.events import Event
from swampstore.catalog.query.plan import fields
from swampstore.catalog.records import matching, values_of

# What a predicate may ask of an event; what an event does not say is empty, or 0.
EVENT_FIELDS = fields(
    timestamp=("timestamp", "string"),
    kind=("kind", "string"),
    command=("command", "string"),
    actor=("actor", "string"),
    model=("model", "string"),
    method=("method", "string"),
    workflow=("workflow", "string"),
    status=("status", "string"),
    exitCode=("exit_code", "int"),
    error=("error", "string"),
    outputId=("output_id", "string"),
    runId=("run_id", "string"),
    vaultName=("vault_name", "string"),
    secretKey=("secret_key", "string"),
    cwd=("cwd", "string"),
)


def select_events(found: Iterable[Event], predicate: str | None) -> list[Event]:
    """Return the events for which a predicate holds, in their order; raise QueryError.

    Nothing of `found` is read if the predicate is wrong. Its `model` is the first of an event.
    """
    if predicate is None:
        return list(found)
    matching([], predicate, EVENT_FIELDS)
    events = list(found)
    records = [
        values_of({**one.to_json(), "model": next(iter(one.models), "")}, EVENT_FIELDS)
        for one in events
    ]
    return [events[place] for place in matching(records, predicate, EVENT_FIELDS)]
