"""Taking paths off a remote although this cache never held them."""

from __future__ import annotations

from collections.abc import Mapping

from swampstore.stores.errors import ObjectNotFoundError
from swampstore.sync.errors import IndexMovedError
from swampstore.sync.partitions import partition_of
from swampstore.sync.parts import Parts
from swampstore.sync.removals import Removal, Remover, new_note
from swampstore.sync.workers import Deadline


def remove_from_remote(parts: Parts, tokens: Mapping[str, str | None], deadline: Deadline) -> None:
    """Take paths out of the index, then remove their objects. Files in the cache stay.

    An object with another token than the given one (None: that of an earlier upload of ours, if
    there is a note of one) stays, and so does its entry. One that cannot be removed now is removed
    by the next push. Raises IndexMovedError, and removes nothing, if others change the same paths
    at the same time.
    """
    if not tokens:
        return
    view = parts.index.view({partition_of(rel) for rel in tokens})
    wanted, rels = _meant(parts, tokens)
    remover = Remover(parts.store, parts.names, parts.limits.push_concurrency, deadline)
    named = [rel for rel in rels if view.raw(rel) is not None]
    rel = new_note()
    parts.base.doom([rel, *rels])
    note = remover.note(rel, wanted)
    if named or view.is_unfinished:
        try:
            committed = parts.index.commit(view, {}, named)
        except IndexMovedError:
            remover.drop(note)
            parts.base.undoom([rel, *rels])
            raise
        parts.base.apply(forgotten=rels, shards=committed.shards, facts=committed.facts)
    parts.index.check_allowed()
    removed = remover.carry_out(note)
    if removed.is_settled:
        parts.base.undoom([rel, *rels])
    for error in removed.failures:
        raise error


def _meant(parts: Parts, tokens: Mapping[str, str | None]) -> tuple[list[Removal], list[str]]:
    """Return the objects that are still those that were meant, and the paths without any other."""
    noted = parts.base.noted_uploads(tokens)
    wanted: list[Removal] = []
    rels: list[str] = []
    for rel, given in tokens.items():
        token = given or (noted[rel][1] if rel in noted else None)
        try:
            info = parts.store.head(parts.names.remote(rel))
        except ObjectNotFoundError:
            rels.append(rel)
            continue
        if not token or token == info.token:
            rels.append(rel)
            wanted.append(Removal(rel, info.size, token=info.token))
    return wanted, rels
