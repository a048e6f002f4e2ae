"""Taking paths off a remote although this cache never held them."""

from __future__ import annotations

from collections.abc import Collection

from swampstore.sync.partitions import partition_of
from swampstore.sync.parts import Parts
from swampstore.sync.workers import Deadline, in_parallel


def remove_from_remote(parts: Parts, rels: Collection[str], deadline: Deadline) -> None:
    """Take paths out of the index, then remove their objects. Files in the cache stay.

    An object that cannot be removed now is removed by the next push. Raises IndexMovedError, and
    removes nothing, if others change the same paths at the same time.
    """
    if not rels:
        return
    view = parts.index.view({partition_of(rel) for rel in rels})
    named = [rel for rel in rels if view.raw(rel) is not None]
    if named or view.is_unfinished:
        committed = parts.index.commit(view, {}, named)
        parts.base.doom(rels)
        parts.base.apply(forgotten=rels, shards=committed.shards, facts=committed.facts)
    parts.index.check_allowed()
    deletions = in_parallel(
        lambda rel: parts.store.delete(parts.names.remote(rel)),
        rels,
        parts.limits.push_concurrency,
        deadline,
    )
    failures = []
    for rel, _, error in deletions:
        if error is None:
            parts.base.undoom([rel])
        else:
            failures.append(error)
    if failures:
        raise failures[0]
