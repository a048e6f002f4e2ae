"""A path as its entry, the listing and its content show it, and what is wrong with these three."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from swampstore.layout import LATEST, METADATA, RAW
from swampstore.pipeline.evidence.rows import Outlook, Path, believed
from swampstore.pipeline.source.objects import Content
from swampstore.pipeline.verify import kinds

_UNREAD = Content()


@dataclass(frozen=True, slots=True)
class File:
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


def file_of(path: Path, outlook: Outlook) -> File | None:
    """Return what the evidence makes of a path, None if that is only bookkeeping."""
    entry, seen = believed(path, outlook), path.seen
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
        is_young=seen is not None and seen.last_modified > outlook.since,
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
    is_leftover = entry is None and outlook.removes(path) and not file.is_young
    kind = kinds.UNREMOVED if is_leftover else _kind(file)
    return file if kind is None else replace(file, kind=kind)


def _kind(file: File) -> str | None:
    """Return what is wrong with an entry and its object, None if nothing is."""
    if not file.is_named:
        return kinds.IN_FLIGHT if file.is_young else kinds.ORPHAN
    if file.problem is not None:
        return kinds.UNDECODABLE_ENTRY
    if file.there is None:
        return kinds.MISSING_OBJECT
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
