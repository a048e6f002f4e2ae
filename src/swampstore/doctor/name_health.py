"""Examining one data name: its marker, the metadata and content of each version."""

from __future__ import annotations

from typing import NamedTuple

from swampstore.artifacts import versions as on_disk
from swampstore.artifacts.latest import latest_of, marker_problem
from swampstore.artifacts.metadata import Metadata
from swampstore.artifacts.mutation import Mutations
from swampstore.artifacts.publish import point_latest
from swampstore.doctor import checks
from swampstore.doctor.findings import Check
from swampstore.errors import MetadataError
from swampstore.files import Tree
from swampstore.layout import RAW, DataRef


class NameHealth(NamedTuple):
    """What is on disk of one name, and what is wrong with it.

    `versions` are those that can be read, ascending; `newest` is the highest of them that is
    committed, `latest` the one that the marker means; 0 if there is none.
    """

    versions: list[int]
    newest: int
    latest: int
    problems: list[tuple[Check, str]]


def examine_name(tree: Tree, ref: DataRef, *, has_remote: bool = False) -> NameHealth:
    """Look at every version of a name; content is measured, not read.

    With a remote, content that is not here is there, and comes when somebody reads it.
    """
    readable, committed, unreadable = [], [], []
    problems: list[tuple[Check, str]] = []
    for version in on_disk.version_numbers(tree, ref):
        try:
            metadata = on_disk.read_metadata(tree, ref, version)
        except MetadataError as error:
            unreadable.append(version)
            problems.append((checks.METADATA, error.message))
            continue
        if metadata is None:
            continue
        readable.append(version)
        if not on_disk.is_deferred(tree, ref, version):
            committed.append(version)
        problems += _content_problems(tree, ref, metadata, has_remote=has_remote)
    newest = latest_of(committed)
    marker = on_disk.read_marker(tree, ref)
    complaint = _marker_complaint(marker, newest, {*committed, *unreadable})
    if complaint:
        problems.append((checks.MARKERS, f"{tree.path(ref.latest_rel)} {complaint}"))
    return NameHealth(readable, newest, latest_of(committed, marker=marker), problems)


def _content_problems(
    tree: Tree, ref: DataRef, metadata: Metadata, *, has_remote: bool
) -> list[tuple[Check, str]]:
    raw = ref.file_rel(metadata.version, RAW)
    size = tree.size(raw)
    if size is None:
        return [] if has_remote else [(checks.CONTENT, f"{tree.path(raw)} is missing")]
    # A streaming version may be growing right now.
    if metadata.streaming or metadata.size is None or metadata.size == size:
        return []
    return [(checks.SIZES, f"{tree.path(raw)} has {size} bytes, not {metadata.size}")]


def _marker_complaint(marker: int | None, newest: int, existing: set[int]) -> str:
    match marker_problem(marker, existing, newest):
        case "missing":
            return f"is missing or names no version; {newest} is the newest"
        case "dangling":
            return f"names version {marker}, which is not there"
        case "behind":
            return f"names version {marker}; {newest} is newer"
        case None:
            return ""


def repoint(mutations: Mutations, ref: DataRef) -> bool:
    """Make `latest` name the newest version that can be read; False if there is none."""
    tree = mutations.tree
    with mutations.changing(ref, "repoint") as change:
        health = examine_name(tree, ref)
        if health.newest:
            point_latest(change, ref, health.newest)
        marker = on_disk.effective_marker(tree, ref)
        mutations.ledger.replace(ref, on_disk.stored_versions(tree, ref), marker)
    return health.newest > 0
