"""Which snapshot shows a place as it was: by the number of a commit, or by a time."""

from __future__ import annotations

from datetime import datetime

from swampstore.clock import from_iso
from swampstore.errors import NotFoundError, ValidationError
from swampstore.formats import whole_number
from swampstore.pipeline.places import Place
from swampstore.pipeline.snapshots.manifest import Manifest, Manifests, Moment
from swampstore.stores.protocol import Store

_REFRESH = "Make snapshots with `swampstore pipeline catalog --refresh`; --keep says for how long."


def newest_snapshot(place: Place, store: Store) -> Manifest:
    """Return the newest snapshot; raise NotFoundError if there is none."""
    found = Manifests(store, place.names()).newest().manifest
    if found is None:
        raise NotFoundError(f"{place} has no snapshot", hint=_REFRESH)
    return found


def snapshot_at(place: Place, store: Store, point: str) -> Manifest:
    """Return the last snapshot of at most this commit, or this time.

    `point` is a number, or a time such as 2026-05-14T08:00Z. Raises ValidationError if it is
    neither, NotFoundError if no such snapshot is kept.
    """
    newest = newest_snapshot(place, store)
    if whole_number(point) is not None and all(one.commit_seq is None for one in newest.history):
        raise ValidationError(
            f"the index of {place} does not count its commits, so {point!r} means nothing",
            hint=f"Give a time such as {newest.created_at}, or run `swampstore datastore"
            " migrate-index` in a repository that uses it.",
        )
    fitting = [one for one in newest.history if _is_until(one, point)]
    found = None
    if fitting and fitting[-1].number == newest.number:
        found = newest
    elif fitting:
        found = Manifests(store, place.names()).read(fitting[-1].number)
    if found is None:
        first = newest.history[0]
        commit = "" if first.commit_seq is None else f", commit {first.commit_seq}"
        raise NotFoundError(
            f"no snapshot of {place} is kept that shows it at {point!r}",
            hint=f"The oldest one is of {first.created_at}{commit}. {_REFRESH}",
        )
    return found


def _is_until(moment: Moment, point: str) -> bool:
    number = whole_number(point)
    if number is not None:
        return moment.commit_seq is not None and moment.commit_seq <= number
    return from_iso(moment.created_at) <= _time(point)


def _time(point: str) -> datetime:
    try:
        return from_iso(point)
    except ValueError:
        raise ValidationError(
            f"{point!r} is neither the number of a commit nor a time",
            hint="Write for example 841, or 2026-05-14T08:00Z.",
        ) from None
