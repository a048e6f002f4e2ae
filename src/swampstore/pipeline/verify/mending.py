"""What can be done about damaged files: rules without any I/O.

A version is worth keeping if it is whole: its metadata can be read and is its own, and its content
is what the metadata says. What is not whole and cannot be made so goes into quarantine with
everything that belongs to the version, and leaves the index.

Content is known by its hash, wherever it is: what is at a wrong path is as good as any copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Literal, NamedTuple

from swampstore.artifacts.latest import latest_of, marker_content, marker_sha256
from swampstore.layout import LATEST, METADATA, RAW
from swampstore.pipeline.source.objects import Content
from swampstore.pipeline.verify import kinds
from swampstore.pipeline.verify.rules import File
from swampstore.routing import Routing, keeps_apart

Versions = Mapping[int, Mapping[str, File]]
"""The `raw` and `metadata.yaml` of each version of a data name."""
_OTHER_CONTENT = frozenset({kinds.CORRUPT, kinds.TRUNCATED, kinds.WRONG_SIZE})
_CONTENT_DAMAGE = _OTHER_CONTENT | {kinds.MISSING_OBJECT}


class Wanted(NamedTuple):
    """Content that should be at a path."""

    rel: str
    sha256: str


Find = Callable[[Wanted], Content | None]
"""Return what some content holds, None if it is not to be had. Metadata is described."""


class Action(NamedTuple):
    """One thing to do.

    `restore` puts content of this hash in place, `write` the text of a marker, `adopt` makes the
    index say what is there; `quarantine` sets an object aside and takes its entry out, `forget`
    takes out an entry without object. `lost` only tells.
    """

    do: Literal["restore", "write", "adopt", "quarantine", "forget", "lost"]
    rel: str
    value: str = ""


class Mender:
    """Says what to do about damage, as far as content can be found.

    Unless it `gives_up`, what cannot be made whole stays as it is: whoever looked at a part of a
    store does not know what the rest of it has. A version whose content the settings keep on its
    machine is whole without it; they are the `routing`, as far as that is known.
    """

    def __init__(
        self, find: Find, *, gives_up: bool = True, routing: Routing | None = None
    ) -> None:
        self._find = find
        self._gives_up = gives_up
        self._routing = routing

    def mend_file(self, file: File) -> Iterator[Action]:
        """Yield what to do about a file that belongs to no version."""
        if file.is_untouchable:
            return
        if file.kind == kinds.WRONG_ENTRY:
            yield Action("adopt", file.rel)
        elif file.kind == kinds.ORPHAN:
            yield Action("quarantine", file.rel)
        elif file.kind in _CONTENT_DAMAGE:
            if file.sha256 and self._find(Wanted(file.rel, file.sha256)):
                yield Action("restore", file.rel, file.sha256)
            elif self._may_go([file]):
                yield _given_up(file)
                yield Action("lost", file.rel, kinds.KINDS[file.kind].meaning)

    def mend_name(self, name: str, versions: Versions, latest: File | None) -> Iterator[Action]:
        """Yield what to do about a data name."""
        whole: set[int] = set()
        is_waiting = latest is not None and latest.is_untouchable
        misplaced = _misplaced(name, versions)
        for version, files in sorted(versions.items()):
            if any(file.is_untouchable for file in files.values()):
                is_waiting = True
                continue
            mended = self._mended(name, version, files, misplaced.get(version, ()))
            if mended is not None:
                whole.add(version)
                yield from mended
            elif self._may_go(files.values()):
                yield from _given_up_version(f"{name}/{version}", files)
            else:
                is_waiting = True
        if not is_waiting:
            yield from _mend_marker(name, latest_of(whole), whole, latest)

    def _may_go(self, files: Iterable[File]) -> bool:
        """Whether files may be given up: no push can be about to commit what they are now."""
        return self._gives_up and not any(
            file.is_young and file.kind in _OTHER_CONTENT for file in files
        )

    def _mended(
        self, name: str, version: int, files: Mapping[str, File], elsewhere: Iterable[File]
    ) -> list[Action] | None:
        """Return what makes a version whole, None if nothing does."""
        metadata, raw = files.get(METADATA), files.get(RAW)
        identity = name.rpartition("/")[2], version
        rel = f"{name}/{version}/{RAW}"
        if metadata is not None and _is_sound(metadata) and metadata.described == identity:
            known = Content(checksum=metadata.checksum, claimed_size=metadata.claimed_size)
            content = self._mended_content(rel, raw, known)
            adopted = [] if metadata.is_like_its_entry else [Action("adopt", metadata.rel)]
            return None if content is None else adopted + content
        for wanted in _wanted_metadata(name, version, metadata, elsewhere):
            found = self._find(wanted)
            if found is None or (found.described_name, found.described_version) != identity:
                continue
            content = self._mended_content(rel, raw, found)
            if content is not None:
                return [Action("restore", *wanted), *content]
        return None

    def _mended_content(self, rel: str, raw: File | None, metadata: Content) -> list[Action] | None:
        if (raw is None or raw.there is None) and keeps_apart(self._routing, rel):
            return [] if raw is None else [_given_up(raw)]
        checksum = metadata.checksum
        expected = checksum or (raw.sha256 if raw else None)
        size = metadata.claimed_size if checksum else None
        if raw is not None and raw.hash is not None:
            fits_hash = raw.hash == expected if expected else raw.kind not in _CONTENT_DAMAGE
            fits_size = size is None or size == raw.there
            if fits_hash and fits_size:
                return [] if raw.is_like_its_entry else [Action("adopt", rel)]
        if expected and (raw is None or raw.hash != expected) and self._find(Wanted(rel, expected)):
            return [Action("restore", rel, expected)]
        return None


def _is_sound(metadata: File) -> bool:
    """Whether metadata can be read, and is what was committed, if anything was."""
    is_other = metadata.kind in _CONTENT_DAMAGE
    return metadata.there is not None and metadata.error is None and not is_other


def _misplaced(name: str, versions: Versions) -> dict[int, list[File]]:
    """Return metadata that describes another version of the name, by that version."""
    found: dict[int, list[File]] = {}
    for version, files in versions.items():
        metadata = files.get(METADATA)
        if metadata is not None and metadata.hash and metadata.checksum:
            described, number = metadata.described
            if described == name.rpartition("/")[2] and number is not None and number != version:
                found.setdefault(number, []).append(metadata)
    return found


def _wanted_metadata(
    name: str, version: int, metadata: File | None, elsewhere: Iterable[File]
) -> Iterator[Wanted]:
    """Yield what the metadata of a version may be: what was committed, or what describes it."""
    rel = f"{name}/{version}/{METADATA}"
    if metadata is not None and metadata.sha256 and metadata.sha256 != metadata.hash:
        yield Wanted(rel, metadata.sha256)
    for file in elsewhere:
        if file.hash:
            yield Wanted(rel, file.hash)


def _given_up(file: File) -> Action:
    return Action("forget" if file.there is None else "quarantine", file.rel)


def _given_up_version(version_rel: str, files: Mapping[str, File]) -> Iterator[Action]:
    for file in files.values():
        yield _given_up(file)
    if any(file.is_named for file in files.values()):
        metadata = files.get(METADATA)
        missing = "its metadata" if metadata is None or not _is_sound(metadata) else "its content"
        yield Action("lost", version_rel, f"{missing} is lost or damaged")


def _mend_marker(name: str, newest: int, whole: set[int], latest: File | None) -> Iterator[Action]:
    rel = f"{name}/{LATEST}"
    if not newest:
        if latest is not None:
            yield _given_up(latest)
        return
    if latest is not None and latest.marker in whole:
        if latest.kind is None:
            return
        if latest.kind == kinds.WRONG_ENTRY:
            yield Action("adopt", rel)
            return
    if latest is not None and latest.marker == newest and latest.hash == marker_sha256(newest):
        yield Action("adopt", rel)
    else:
        yield Action("write", rel, marker_content(newest).decode())


def wanted_by_file(file: File) -> Iterator[Wanted]:
    """Yield the content that the entry of a file asks for, if something else is there."""
    if file.sha256 and file.hash != file.sha256:
        yield Wanted(file.rel, file.sha256)


def wanted_by_name(name: str, versions: Versions) -> Iterator[Wanted]:
    """Yield the content that mending a data name may ask for."""
    for version, files in versions.items():
        for file in files.values():
            yield from wanted_by_file(file)
        yield from _wanted_content(name, version, files.get(METADATA), files.get(RAW))
    for version, elsewhere in _misplaced(name, versions).items():
        for metadata in elsewhere:
            yield from _wanted_metadata(name, version, None, [metadata])
            yield from _wanted_content(name, version, metadata, versions.get(version, {}).get(RAW))


def _wanted_content(
    name: str, version: int, metadata: File | None, raw: File | None
) -> Iterator[Wanted]:
    checksum = metadata.checksum if metadata else None
    if checksum and (raw is None or raw.hash != checksum):
        yield Wanted(f"{name}/{version}/{RAW}", checksum)
