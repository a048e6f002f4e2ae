"""What is wrong with a path, and with the files of a data name: rules without any I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from swampstore.artifacts.latest import MarkerProblem, latest_of, marker_problem
from swampstore.index.path_kinds import is_surely_ours
from swampstore.index.rules import fault_of_object
from swampstore.layout import LATEST, METADATA, RAW
from swampstore.pipeline.evidence.rows import Path, TrustRules, believed, why_forbidden
from swampstore.pipeline.source.objects import Content
from swampstore.pipeline.verify import kinds

_UNREAD = Content()


class File(msgspec.Struct, frozen=True, gc=False):
    """One path.

    `size` and `sha256` are what the entry says, `there` and `hash` what the object is; all are
    None where there is nothing that could say it. `kind` is what is wrong with the two, `problem`
    why the entry cannot be understood, `error` why the content cannot. `strays` are the shards
    that should not have an entry, among them the only one if it `is_misplaced`. An entry that
    `is_assumed` was made up from the listing: no index names the path.
    """

    rel: str
    kind: str | None = None
    is_named: bool = True
    size: int | None = None
    sha256: str | None = None
    problem: str | None = None
    there: int | None = None
    etag: str | None = None
    is_young: bool = False
    is_read: bool = False
    hash: str | None = None
    marker: int | None = None
    checksum: str | None = None
    claimed_size: int | None = None
    described: tuple[str | None, int | None] = (None, None)
    error: str | None = None
    strays: tuple[str, ...] = ()
    is_misplaced: bool = False
    is_assumed: bool = False

    @property
    def is_untouchable(self) -> bool:
        """Whether somebody may be about to commit it, or nobody could read it."""
        is_unread = self.there is not None and self.hash is None
        return is_unread or self.kind in (kinds.IN_FLIGHT, kinds.UNREADABLE)

    @property
    def is_like_its_entry(self) -> bool:
        """Whether the index says what the object is, so that nothing need be written."""
        return self.is_named and self.size == self.there and self.sha256 in (None, self.hash)


class Name(NamedTuple):
    """The files of a data name: `raw` and `metadata.yaml` of each version, `latest`, and others."""

    versions: dict[int, dict[str, File]]
    latest: File | None
    others: list[File]


def sorted_out(name: str, files: Iterable[File]) -> Name:
    """Tell the files of a data name apart; all files are below it, or one file is all there is."""
    versions: dict[int, dict[str, File]] = {}
    latest: File | None = None
    others: list[File] = []
    for file in files:
        first, _, last = file.rel[len(name) + 1 :].partition("/")
        if first == LATEST and not last:
            latest = file
        elif last in (RAW, METADATA):
            versions.setdefault(int(first), {})[last] = file
        else:
            others.append(file)
    return Name(versions, latest, others)


def file_of(path: Path, trust: TrustRules) -> File | None:
    """Return what the evidence makes of a path, None if that is only bookkeeping."""
    entry, seen = believed(path, trust), path.seen
    if entry is None and (seen is None or seen.internal):
        return None
    content = path.content
    said = content or _UNREAD
    file = File(
        path.rel,
        is_named=entry is not None,
        size=entry.claim.size if entry else None,
        sha256=entry.claim.sha256 if entry else None,
        problem=entry.claim.problem if entry else None,
        there=seen.size if seen else None,
        etag=seen.etag if seen else None,
        is_young=seen is not None and seen.last_modified > trust.since,
        is_read=content is not None,
        hash=said.sha256,
        marker=said.marker,
        checksum=said.checksum,
        claimed_size=said.claimed_size,
        described=(said.described_name, said.described_version),
        error=said.error,
        strays=entry.strays if entry else (),
        is_misplaced=entry is not None and entry.is_misplaced,
        is_assumed=entry is not None and entry.is_assumed,
    )
    is_leftover = entry is None and trust.removes(path) and not file.is_young
    kind = kinds.UNREMOVED if is_leftover else _kind(file)
    return file if kind is None else replace(file, kind=kind)


def _kind(file: File) -> str | None:
    """Return what is wrong with an entry and its object, None if nothing is."""
    if file.is_named and file.problem is not None:
        return kinds.UNDECODABLE_ENTRY
    kind = fault_of_object(
        is_named=file.is_named, is_there=file.there is not None, is_young=file.is_young
    )
    if kind == kinds.ORPHAN and not is_surely_ours(file.rel):
        return kinds.STRANGER
    if kind is not None or file.there is None:
        return kind
    # However young the object is: the index knows what it should be.
    return _kind_of_object(file, file.there)


def _kind_of_object(file: File, there: int) -> str | None:
    if file.size is not None and there != file.size:
        if file.hash is not None and file.hash == file.sha256:
            return kinds.WRONG_ENTRY
        return kinds.TRUNCATED if there < file.size else kinds.WRONG_SIZE
    if file.is_read and file.hash is None:
        return kinds.UNREADABLE
    return kinds.CORRUPT if differ(file.hash, file.sha256) else None


def differ(one: object, other: object) -> bool:
    """Whether two things that are both known differ."""
    return one is not None and other is not None and one != other


def detail_of(file: File) -> str:
    """Return what there is to say about what is wrong with an entry and its object."""
    if file.kind == kinds.UNDECODABLE_ENTRY:
        return file.problem or ""
    if file.kind == kinds.UNREADABLE:
        return file.error or ""
    if file.kind == kinds.WRONG_ENTRY:
        return f"the entry says {file.size} bytes, the object has {file.there} and is right"
    if differ(file.there, file.size):
        return f"it has {file.there} bytes, not {file.size}"
    if differ(file.hash, file.sha256):
        return f"its SHA-256 is {file.hash}, not {file.sha256}"
    return ""


_ABOUT_CONTENT = frozenset({kinds.CHECKSUM_MISMATCH, kinds.SIZE_MISMATCH, kinds.MISSING_METADATA})
# What a version looks like while it is being written.
_HALF = frozenset({kinds.MISSING_METADATA, kinds.MISSING_CONTENT})
_MARKER_KINDS: dict[MarkerProblem, str] = {
    "missing": kinds.MISSING_LATEST,
    "dangling": kinds.DANGLING_LATEST,
    "behind": kinds.BEHIND_LATEST,
}


class Problem(NamedTuple):
    """A finding about one place, without the place. `is_there`: the path is that of an object."""

    kind: str
    rel: str
    detail: str = ""
    is_there: bool = True


def examined(
    unit: str, paths: Iterable[Path], trust: TrustRules
) -> tuple[list[File], list[Problem]]:
    """Return the files of a data name, or a single other file, and all that is wrong with them."""
    files: list[File] = []
    found: list[Problem] = []
    for path in paths:
        found += of_forbidden(path, trust)
        file = file_of(path, trust)
        if file is not None:
            files.append(file)
    is_name = any(file.rel != unit for file in files)
    if is_name:
        files = _in_context(unit, files)
    for file in files:
        if file.kind is not None or file.strays:
            found += of_file(file)
    if is_name:
        found += (one for one in of_name(unit, files) if not _is_kept_apart(one, trust))
    return files, found


def _is_kept_apart(found: Problem, trust: TrustRules) -> bool:
    """Whether content is missing because it stays on its machine: it is not lost."""
    raw = f"{found.rel.rpartition('/')[0]}/{RAW}"
    return found.kind == kinds.MISSING_CONTENT and trust.keeps_apart(raw)


def _in_context(name: str, files: list[File]) -> list[File]:
    """Return the files of a data name, with what the others say about what is wrong with each."""
    versions, latest, _ = sorted_out(name, files)
    told: dict[str, str] = {}
    for version, parts in versions.items():
        raw = parts.get(RAW)
        is_of_other_size = raw is not None and raw.kind in (kinds.TRUNCATED, kinds.WRONG_SIZE)
        if raw and is_of_other_size and _vouches(name, version, parts.get(METADATA), raw):
            told[raw.rel] = kinds.WRONG_ENTRY
    if latest is not None and latest.kind and _is_of_push(latest, versions):
        told[latest.rel] = kinds.IN_FLIGHT
    return [replace(file, kind=told.get(file.rel, file.kind)) for file in files] if told else files


def _vouches(name: str, version: int, metadata: File | None, raw: File) -> bool:
    """Whether the metadata of a version is what was committed, and says what the content is."""
    if metadata is None or metadata.kind is not None or raw.hash is None:
        return False
    is_same = metadata.checksum == raw.hash and metadata.claimed_size in (None, raw.there)
    return is_same and _kind_of_version(name, version, metadata, raw) is None


def _is_of_push(latest: File, versions: Mapping[int, Mapping[str, File]]) -> bool:
    """Whether a marker names a version that is being pushed; it is replaced before the commit."""
    files = versions.get(latest.marker or 0, {}).values()
    return latest.is_young and any(file.kind == kinds.IN_FLIGHT for file in files)


def of_forbidden(path: Path, trust: TrustRules) -> list[Problem]:
    """Return what is wrong with entries that no index may have."""
    why = why_forbidden(path.rel)
    if why is None:
        return []
    problem = Problem(kinds.FORBIDDEN_ENTRY, path.rel, why, is_there=False)
    return [problem for _ in trust.truth(path.claims)]


def of_file(file: File) -> Iterator[Problem]:
    """Yield what is wrong with an entry and its object, and with the place of the entry."""
    is_there = file.there is not None
    if file.kind is not None:
        yield Problem(file.kind, file.rel, detail_of(file), is_there)
    if file.strays:
        kind = kinds.MISPLACED_ENTRY if file.is_misplaced else kinds.DUPLICATE_ENTRY
        detail = f"there is an entry in {', '.join(file.strays)}"
        yield Problem(kind, file.rel, detail, is_there)


def of_name(name: str, files: Iterable[File]) -> Iterator[Problem]:
    """Yield what is wrong with versions whose files are what the index says, and with `latest`."""
    versions, latest, _ = sorted_out(name, files)
    for version, parts in versions.items():
        yield from _of_version(name, version, parts)
    named = {
        version: parts
        for version, parts in versions.items()
        if any(file.is_named for file in parts.values())
    }
    yield from _of_marker(name, named, latest)


def _of_version(name: str, version: int, parts: Mapping[str, File]) -> Iterator[Problem]:
    if any(file.kind is not None for file in parts.values()):
        return
    metadata, raw = parts.get(METADATA), parts.get(RAW)
    kind = _kind_of_version(name, version, metadata, raw)
    if kind is None:
        return
    # What is to be said about content is said about content.
    about = raw if kind in _ABOUT_CONTENT or metadata is None else metadata
    assert about is not None
    if kind in _HALF and any(file.is_young and file.is_assumed for file in parts.values()):
        kind = kinds.IN_FLIGHT
    yield Problem(kind, about.rel, _detail_of_version(kind, metadata), about.there is not None)


def _kind_of_version(
    name: str, version: int, metadata: File | None, raw: File | None
) -> str | None:
    if metadata is None:
        return kinds.MISSING_METADATA
    if metadata.error is not None:
        return kinds.UNDECODABLE_METADATA
    described, number = metadata.described
    if differ(described, name.rpartition("/")[2]) or differ(number, version):
        return kinds.FOREIGN_METADATA
    return _kind_of_content(metadata, raw)


def _kind_of_content(metadata: File, raw: File | None) -> str | None:
    if raw is None:
        return kinds.MISSING_CONTENT
    if differ(metadata.claimed_size, raw.there):
        return kinds.SIZE_MISMATCH
    return kinds.CHECKSUM_MISMATCH if differ(metadata.checksum, raw.hash) else None


def _detail_of_version(kind: str, metadata: File | None) -> str:
    if metadata is None:
        return ""
    details = {
        kinds.UNDECODABLE_METADATA: metadata.error or "",
        kinds.FOREIGN_METADATA: "it describes {} version {}".format(*metadata.described),
        kinds.SIZE_MISMATCH: f"its metadata says {metadata.claimed_size} bytes",
        kinds.CHECKSUM_MISMATCH: f"its metadata says {metadata.checksum}",
    }
    return details.get(kind, "")


def _of_marker(
    name: str, versions: Mapping[int, Mapping[str, File]], latest: File | None
) -> Iterator[Problem]:
    """Yield what is wrong with a marker that is what the index says, or that is not there.

    One that nobody names yet is told of already, as an object.
    """
    if latest is not None and latest.kind is not None:
        return
    newest = latest_of(versions, lambda one: _is_described(versions[one]))
    kind = _kind_of_marker(versions, newest, latest)
    if kind is None:
        return
    growing = versions[max(versions)].values() if versions else ()
    is_young = (latest is not None and latest.is_young) or any(file.is_young for file in growing)
    if is_young and kind != kinds.BEHIND_LATEST:
        kind = kinds.IN_FLIGHT
    is_there = latest is not None and latest.there is not None
    yield Problem(kind, f"{name}/{LATEST}", _detail_of_marker(versions, newest, latest), is_there)


def _is_described(parts: Mapping[str, File]) -> bool:
    return METADATA in parts and parts[METADATA].is_named


def _kind_of_marker(versions: Mapping[int, object], newest: int, latest: File | None) -> str | None:
    if latest is not None and not latest.is_read:
        return None if versions else kinds.DANGLING_LATEST
    # A marker that is there and names nothing is as good as one that names what is not there.
    marker = None if latest is None else latest.marker or 0
    problem = marker_problem(marker, versions.keys(), newest)
    return None if problem is None else _MARKER_KINDS[problem]


def _detail_of_marker(versions: Mapping[int, object], newest: int, latest: File | None) -> str:
    if latest is None:
        return f"{newest} is the newest version"
    if not versions:
        return "there is no version at all"
    if latest.marker is None:
        return "it names no version"
    return f"it names version {latest.marker}"
