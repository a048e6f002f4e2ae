"""Giving versions new numbers, when another machine has used theirs for something else.

A version moves with everything it holds; its metadata, rewritten last, says that it has arrived.
So the files alone tell how far each move came, and a move can be carried out again from there.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from swampstore.artifacts import versions as on_disk
from swampstore.artifacts.metadata import Metadata, decode, encode
from swampstore.artifacts.name_lock import Mutations
from swampstore.artifacts.publish import point_latest
from swampstore.artifacts.versions import StoredVersion
from swampstore.errors import MetadataError, ValidationError
from swampstore.files import Change, Tree
from swampstore.layout import METADATA, DataRef


def renumber(mutations: Mutations, ref: DataRef, moves: Mapping[int, int]) -> None:
    """Give versions of a name the higher numbers that `moves` says; `latest` follows.

    Raises ValidationError, and changes nothing, unless all of them are finished versions and
    their new numbers are free, or become free by another move. After a kill it is finished.
    """
    if not moves:
        return
    tree = mutations.tree
    with mutations.changing(ref, "claim") as change:
        claim_numbers(tree, change, ref, moves)
        ids = {old: found.id for old in moves if (found := on_disk.read_metadata(tree, ref, old))}
        mutations.decide(ref, "renumber", moves=sorted(moves.items()), ids=ids)
        marker = move_versions(tree, change, ref, moves)
        stored = [
            StoredVersion(metadata, on_disk.is_deferred(tree, ref, new))
            for new in sorted(moves.values())
            if (metadata := on_disk.read_metadata(tree, ref, new))
        ]
        mutations.record(ref, stored=stored, removed=sorted(moves), marker=marker)


def claim_numbers(tree: Tree, change: Change, ref: DataRef, moves: Mapping[int, int]) -> None:
    """Check that versions may move, and keep their new numbers from everybody else."""
    for old, new in moves.items():
        if new <= old:
            raise ValidationError(
                f"version {old} of {ref} cannot become version {new}",
                hint="Versions only move to higher numbers.",
            )
        if on_disk.read_metadata(tree, ref, old) is None:
            raise ValidationError(
                f"version {old} of {ref} is not finished, or not there",
                hint="Wait for its writer; only finished versions can move.",
            )
    if len(set(moves.values())) < len(moves):
        raise ValidationError(
            f"two versions of {ref} cannot get the same number", hint="Give each its own."
        )
    claimed: list[int] = []
    for new in sorted(set(moves.values()) - set(moves)):
        if not change.claim_dir(ref.version_rel(new)):
            for one in claimed:
                change.discard_claim(ref.version_rel(one))
            raise ValidationError(
                f"version {new} of {ref} is taken", hint="Choose numbers above all others."
            )
        claimed.append(new)


def move_versions(tree: Tree, change: Change, ref: DataRef, moves: Mapping[int, int]) -> int:
    """Move claimed versions, the highest first, and repoint `latest`; return the marker."""
    for old in sorted(moves, reverse=True):
        _move(tree, change, ref, old, moves[old])
    change.sync_dir(ref.rel)
    top = on_disk.top_committed(tree, ref)
    return point_latest(change, ref, top) if top else on_disk.effective_marker(tree, ref)


def _move(tree: Tree, change: Change, ref: DataRef, old: int, new: int) -> None:
    change.move_dir(ref.version_rel(old), ref.version_rel(new))
    _write_number(tree, change, ref, new)


def _write_number(tree: Tree, change: Change, ref: DataRef, new: int) -> None:
    rel = ref.file_rel(new, METADATA)
    metadata = decode(tree.read(rel) or b"", tree.path(rel))
    change.write(rel, encode(replace(metadata, version=new)))
    change.sync_dir(ref.version_rel(new))


def finish_moves(
    tree: Tree,
    change: Change,
    ref: DataRef,
    moves: Iterable[tuple[int, int]],
    ids: Mapping[str, str] | None,
) -> None:
    """Carry out what is left of moves that were interrupted anywhere.

    A version stays where it is if a program without our locks took its new number meanwhile. So
    does what is not the version that was meant, by its id: others on this cache may have settled
    the clash themselves, and received in its place what it was to make room for. Without `ids`,
    as earlier releases wrote it down, that cannot be told.
    """

    def is_meant(found: Metadata, old: int) -> bool:
        return found.version == old and (ids is None or found.id == ids.get(str(old)))

    for old, new in sorted(moves, reverse=True):
        there, here = (_found_in(tree, ref, one) for one in (new, old))
        if there is not None:
            if is_meant(there, old):
                with _unless_taken():  # one tier may be left
                    change.move_dir(ref.version_rel(old), ref.version_rel(new))
                _write_number(tree, change, ref, new)
        elif here is not None and is_meant(here, old):
            with _unless_taken():
                _move(tree, change, ref, old, new)


def _found_in(tree: Tree, ref: DataRef, version: int) -> Metadata | None:
    """Return the metadata in a version's directory, whatever its number, None without any."""
    rel = ref.file_rel(version, METADATA)
    data = tree.read(rel)
    try:
        return decode(data, tree.path(rel)) if data else None
    except MetadataError:
        return None


@contextlib.contextmanager
def _unless_taken() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
