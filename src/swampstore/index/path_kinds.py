"""What a path is: a file of a version, a `latest` marker, something derived, or a plain file."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from swampstore.index.partitions import META_KEY, MONOLITH_KEY, SHARDS
from swampstore.layout import (
    AUDIT,
    AUTO_DEFINITIONS,
    DATASTORE_SUBDIRS,
    EVALUATED_DEFINITIONS,
    EVALUATED_WORKFLOWS,
    LATEST,
    MANIFEST,
    MAX_SEGMENT_BYTES,
    METADATA,
    RAW,
    WORKFLOW_RUNS,
    is_internal,
    is_version,
    parse_version,
)

# What any machine can compute again from its own definitions: nothing is lost if one replaces it.
_DERIVED = (f"{EVALUATED_DEFINITIONS}/", f"{EVALUATED_WORKFLOWS}/")
_CATALOG_EXPORT = ".catalog-export.json"
# Small, and of no model: the line about a step is to arrive with what the step has written, and so
# is the definition of a model that has no file in git.
_WITH_ANY_PUSH = tuple(
    f"{top}/" for top in (AUDIT, AUTO_DEFINITIONS, WORKFLOW_RUNS, EVALUATED_WORKFLOWS)
)
_OF_DATASTORE = (f"/{MONOLITH_KEY}", f"/{META_KEY}")
_METADATA = f"/{METADATA}"
_LATEST = f"/{LATEST}"
# So many slashes at least are in the path of a file of a version: data/TYPE/ID/NAME/VERSION/FILE.
_IN_VERSION = 5
CONFLICTS = "files/conflicts"
# Leaves enough of what stores take (1024 bytes) for a namespace and a prefix.
_LONGEST_COPY = 800


class VersionFile(NamedTuple):
    """A file of one version of a data name."""

    name_rel: str
    version: int


def version_file(rel: str) -> VersionFile | None:
    """Return which version a file belongs to, None if it is no file of a version.

    No version has a `latest`: that is the marker of a data name which is a number.
    """
    if not rel.startswith("data/") or rel.count("/") < _IN_VERSION or rel.endswith(_LATEST):
        return None
    name_rel, _, last = rel.rpartition("/")[0].rpartition("/")
    version = parse_version(last)
    return None if version is None else VersionFile(name_rel, version)


def is_metadata(rel: str) -> bool:
    """Whether a path is the metadata of a version."""
    return rel.endswith(_METADATA) and version_file(rel) is not None


def metadata_beside(rel: str) -> str:
    """Return where the metadata is that speaks of a file of a version."""
    return f"{rel.rpartition('/')[0]}/{METADATA}"


def parted_from_metadata(rels: Collection[str]) -> list[str]:
    """Return the files of versions among these whose metadata is not among them.

    Metadata tells whose content it is: it has an id of its own, while content may happen to be
    equal to that of another version. So what befalls content, and not the metadata beside it, was
    not meant for the version that is there.
    """
    return [
        rel
        for rel in rels
        if version_file(rel) and not is_metadata(rel) and metadata_beside(rel) not in rels
    ]


def is_marker(rel: str) -> bool:
    """Whether a path is the marker of a data name's latest version."""
    return rel.startswith("data/") and rel.endswith(_LATEST) and rel.count("/") >= 4


def shows_namespace(rel: str) -> bool:
    """Whether a path shows that the directory at its top is that of a namespace.

    A manifest is in such a directory, or a document of an index. Directories of our own data are
    none, whatever somebody has put there.
    """
    top, _, rest = rel.partition("/")
    is_mark = rest in (MANIFEST, MONOLITH_KEY) or rest.startswith(SHARDS)
    return is_mark and top not in DATASTORE_SUBDIRS


def other_datastores(rels: Iterable[str]) -> set[str]:
    """Return the directories that paths show to be namespaces, or datastores of their own.

    Each ends with a slash. A bucket may hold another datastore anywhere, except where our own data
    is: its objects are not ours, though they are below our root.
    """
    found: set[str] = set()
    for rel in rels:
        top = rel.partition("/")[0]
        if shows_namespace(rel):
            found.add(f"{top}/")
        elif rel.endswith(_OF_DATASTORE) and top not in DATASTORE_SUBDIRS and not is_internal(rel):
            found.add(rel.removesuffix(MONOLITH_KEY).removesuffix(META_KEY))
    return found


def is_surely_ours(rel: str) -> bool:
    """Whether a path of a remote is surely one of a datastore, also where no index says so.

    In a bucket without a prefix, programs that know nothing of datastores may have anything else at
    the top. Of that only an index tells whether it is ours.
    """
    return rel.partition("/")[0] in DATASTORE_SUBDIRS or is_derived(rel)


def is_lazy(rel: str) -> bool:
    """Whether a path is content that may stay on the remote until somebody reads it."""
    if rel.startswith("data/"):
        return rel.endswith(f"/{RAW}") and rel.count("/") >= 2
    return rel == _CATALOG_EXPORT  # written anew here, and read by other namespaces only


def goes_with_any_push(rel: str) -> bool:
    """Whether a path is pushed along, whatever models a push is limited to."""
    return rel == _CATALOG_EXPORT or rel.startswith(_WITH_ANY_PUSH)


def is_derived(rel: str) -> bool:
    """Whether a path holds what can be computed again, so that the last writer may win."""
    return rel.startswith(_DERIVED) or rel == _CATALOG_EXPORT


def unit_of(rel: str) -> str:
    """Return what becomes visible together with a path: its data name, or the file alone."""
    if not rel.startswith("data/"):
        return rel
    above = rel.rpartition("/")[0]
    if rel.count("/") >= _IN_VERSION and not rel.endswith(_LATEST):
        name_rel, _, last = above.rpartition("/")
        if is_version(last):
            return name_rel
    return above if is_marker(rel) else rel


def conflict_copy(rel: str, sha256: str) -> str:
    """Return where our own content of a path is kept when the remote's takes its place."""
    copy = f"{CONFLICTS}/{rel}.{sha256[:12]}"
    is_long = len(copy.encode()) > _LONGEST_COPY
    if is_long or len(copy.rpartition("/")[2].encode()) > MAX_SEGMENT_BYTES:
        return f"{CONFLICTS}/{sha256}"
    return copy


def is_copy_of_derived(rel: str) -> bool:
    """Whether a path is a copy, kept in a conflict, of something that is computed again anyway."""
    copied = rel.removeprefix(f"{CONFLICTS}/").rpartition(".")[0]
    return rel.startswith(f"{CONFLICTS}/") and is_derived(copied)
