"""What the dead left behind: a change that stopped half-way is finished or undone, claims go.

Each operation orders its steps so that the files alone tell how far it came. Afterwards the
catalog rows of the name are made equal to the files.
"""

from __future__ import annotations

import os
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from swampstore.artifacts import claims
from swampstore.artifacts import versions as on_disk
from swampstore.artifacts.claims import tidy_name
from swampstore.artifacts.latest import is_right
from swampstore.artifacts.publish import point_latest
from swampstore.artifacts.renumber import finish_moves
from swampstore.files import Change, Tree, remove_old_temps
from swampstore.layout import (
    DEFERRED,
    LATEST,
    METADATA,
    RAW,
    DataRef,
    is_temp,
    parse_version,
    ref_of,
)

if TYPE_CHECKING:
    from swampstore.artifacts.name_lock import Ledger
    from swampstore.artifacts.save import ArtifactStore

# What may leave a name without versions because somebody wanted that. Whoever deletes some versions
# has said which ones, and means no others; so does a rename that takes its copy back.
_DELETING = frozenset({"delete", "repoint"})


def recover(
    tree: Tree, rows: Ledger, path: str, details: Mapping[str, Any], *, is_dead: bool
) -> None:
    """Bring one announced path to the state before or after its change. Its lock is held.

    `is_dead` tells that whoever changed it was killed, and has not tidied up anything.
    """
    ref = ref_of(path)
    if details["op"] == "land":
        marker = _tidy_landing(tree, ref)
    else:
        marker = _finish_or_undo(tree, ref, details, is_dead=is_dead)
    rows.replace(ref, on_disk.stored_versions(tree, ref), marker)


def _tidy_landing(tree: Tree, ref: DataRef) -> int:
    """Keep what arrived from the remote before the kill; the next pull brings the rest.

    `latest` stays as it is, although it may name a version that has not arrived yet. Whatever we
    wrote there would be a change of our own, made without the versions that are still to come.
    Announced, it would be pushed over the right marker of the remote; unannounced, it would
    wait for a full push to do the same. As it is, the marker is either the one from before or
    the remote's, and the rows show the newest version up to it.
    """
    with tree.receiving(ref.rel) as reception:
        for version in on_disk.version_numbers(tree, ref):
            claims.finish_landing(tree, reception, ref, version)
        tidy_name(tree, reception, ref)
    return on_disk.effective_marker(tree, ref)


def _finish_or_undo(tree: Tree, ref: DataRef, details: Mapping[str, Any], *, is_dead: bool) -> int:
    with tree.changing(ref.rel) as change:
        match details["op"]:
            case "append":
                _cut_torn_append(tree, change, ref, details.get("versions", {}).get(ref.rel))
            case "delete":
                # Where data of others is in its directory, a name cannot go in one step.
                for version in details.get("numbers", ()):
                    change.remove_tree(ref.version_rel(version))
            case "commit":
                _finish_commit(change, ref, details["versions"][ref.rel])
            case "rename":
                _undo_half_rename(tree, change, ref, details)
            case "renumber":
                finish_moves(tree, change, ref, details["moves"], details.get("ids"))
        if is_dead:
            _clear_claims(tree, change, ref)
        op = details["op"]
        return repoint(tree, change, ref, down=op == "rename", may_delete=op in _DELETING)


def _clear_claims(tree: Tree, change: Change, ref: DataRef) -> None:
    """Remove what the dead claimed; an empty directory may be all that they came to."""
    for version in on_disk.version_numbers(tree, ref):
        if not claims.clear(tree, change, ref, version):
            change.remove_empty_dir(ref.version_rel(version))


def _cut_torn_append(tree: Tree, change: Change, ref: DataRef, meant: Sequence[int] | None) -> None:
    """Drop appended bytes that the metadata does not know of yet.

    Another program may have saved the next version since. What older releases intended tells no
    version: they meant the latest one.
    """
    for version in meant or [on_disk.effective_marker(tree, ref)]:
        metadata = on_disk.read_metadata(tree, ref, version) if version else None
        if metadata is None or not metadata.streaming or metadata.size is None:
            continue
        raw = ref.file_rel(version, RAW)
        size = tree.size(raw)
        if size is not None and size > metadata.size:
            change.truncate(raw, metadata.size)


def _finish_commit(change: Change, ref: DataRef, versions: Sequence[int]) -> None:
    for version in versions:
        change.remove(ref.file_rel(version, DEFERRED))
        claims.settle(change, ref, version)


def _undo_half_rename(tree: Tree, change: Change, ref: DataRef, details: Mapping[str, Any]) -> None:
    """Without the tombstone under the old name, the copy under the new one must go."""
    old = ref_of(details["old"])
    if ref == old or _is_renamed(tree, old, details["new_name"]):
        return
    for stored in on_disk.stored_versions(tree, ref):
        if stored.metadata.id == details["copy_id"]:
            change.remove_tree(ref.version_rel(stored.metadata.version))


def _is_renamed(tree: Tree, old: DataRef, new_name: str) -> bool:
    newest = next(on_disk.stored_versions(tree, old), None)
    return newest is not None and newest.metadata.renamed_to == new_name


def repoint(
    tree: Tree,
    change: Change,
    ref: DataRef,
    *,
    down: bool,
    without: Container[int] = (),
    may_delete: bool = True,
) -> int:
    """Point `latest` at the newest committed version; a name with nothing left goes.

    Unless versions were taken back, a marker above them all is not ours to move `down`: it came
    from the remote, ahead of its version. If whoever was here last did not mean to delete anything,
    (`may_delete`), versions that are gone were removed by hand, and others keep theirs.
    """
    top = on_disk.top_committed(tree, ref, without)
    marker = on_disk.read_marker(tree, ref)
    if top and not is_right(marker, top, may_be_ahead=not down):
        return point_latest(change, ref, top)
    if not top and not on_disk.own_numbers(tree, ref):
        _remove_empty(change, ref, may_delete=may_delete)
        # Another program, without our locks, may have saved something right now.
        return repoint(tree, change, ref, down=True) if on_disk.top_committed(tree, ref) else 0
    return marker or top


def _remove_empty(change: Change, ref: DataRef, *, may_delete: bool) -> None:
    """Remove a name without versions, and nothing that comes into it at this moment.

    Of versions, whoever removes them has announced which; here only the marker goes.
    """
    if may_delete:
        change.announce_removal(ref.latest_rel)
    change.drop(ref.rel, LATEST)
    change.remove_empty_dirs()


def remove_versions(tree: Tree, change: Change, ref: DataRef, versions: Iterable[int]) -> None:
    """Remove a whole name that has these versions.

    What another program, without our locks, saves into it meanwhile stays.
    """
    change.announce_removal(ref.rel)
    for version in versions:
        change.discard_claim(ref.version_rel(version))
    repoint(tree, change, ref, down=True)


# All over the datastore --------------------------------------------------------------------------


class Leftover(NamedTuple):
    """A version directory that was claimed, or written for a later commit, and then abandoned."""

    ref: DataRef
    version: int
    deferred: bool


class Swept(NamedTuple):
    """What a sweep removed, or would remove."""

    leftovers: tuple[Leftover, ...]
    temps: int


def sweep(
    store: ArtifactStore, older_than: float = claims.DEFAULT_AGE, *, dry_run: bool = False
) -> Swept:
    """Remove claims never finalised, deferrals never committed and temporary files.

    What is surely the dead's goes at once. Where that cannot be told, only what nothing has
    touched for `older_than` seconds goes. What is left of a version that others have as a whole is
    no claim, and stays. Walks the whole tree.
    """
    before = store.clock().timestamp() - older_than
    leftovers, temps = [], 0
    for directory, parts, files in _directories(store):
        if not dry_run:
            temps += remove_old_temps(directory, before)
        if METADATA in files and DEFERRED not in files:
            continue  # as nearly every one: a version that is committed
        found = leftover_at(store.tree, parts, before)
        if found is None:
            continue
        leftovers.append(found)
        if not dry_run:
            store.mutations.clear(found.ref, [found.version], before)
    return Swept(tuple(dict.fromkeys(leftovers)), temps)


def _directories(store: ArtifactStore) -> Iterator[tuple[str, tuple[str, ...], set[str]]]:
    """Yield every directory below `data/` with its place there and the names of its files."""
    for place in store.tree.places("data"):
        stack: list[tuple[str, tuple[str, ...]]] = [(place, ())]
        while stack:
            directory, parts = stack.pop()
            files = set()
            try:
                with os.scandir(directory) as entries:
                    for entry in entries:
                        if not entry.is_dir(follow_symlinks=False):
                            files.add(entry.name)
                        elif not is_temp(entry.name):
                            stack.append((entry.path, (*parts, entry.name)))
            except (FileNotFoundError, PermissionError):
                pass
            yield directory, parts, files


def leftover_at(tree: Tree, parts: tuple[str, ...], before: float) -> Leftover | None:
    """Return what was abandoned in a directory, whose place below `data/` is `parts`, if it was."""
    version = parse_version(parts[-1]) if len(parts) >= 4 else None
    if version is None:
        return None
    ref = ref_of("/".join(("data", *parts[:-1])))
    with claims.abandoned(tree, ref, version, before) as is_dead:
        deferred = on_disk.is_deferred(tree, ref, version)
        return Leftover(ref, version, deferred) if is_dead else None
