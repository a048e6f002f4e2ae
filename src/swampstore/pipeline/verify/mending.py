"""What can be done about damaged files: rules without any I/O.

A version is worth keeping if it is whole: its metadata can be read and is its own, and its content
is what the metadata says. What is not whole and cannot be made so goes into quarantine with
everything that belongs to the version, and leaves the index.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Literal, NamedTuple

from swampstore.layout import LATEST, METADATA, RAW
from swampstore.pipeline.verify import kinds
from swampstore.pipeline.verify.files import File

_CONTENT_DAMAGE = frozenset(
    {kinds.MISSING_OBJECT, kinds.CORRUPT, kinds.TRUNCATED, kinds.WRONG_SIZE}
)


class Wanted(NamedTuple):
    """Content that should be at a path, and its size if that is known."""

    rel: str
    sha256: str


Find = Callable[[Wanted], bool]
"""Whether a copy of some content is to be had."""


class Action(NamedTuple):
    """One thing to do.

    `restore` puts content of this hash in place, `write` the text of a marker, `adopt` makes the
    index say what is there; `quarantine` sets an object aside and takes its entry out, `forget`
    takes out an entry without object. `lost` only tells.
    """

    do: Literal["restore", "write", "adopt", "quarantine", "forget", "lost"]
    rel: str
    value: str = ""


def mend_file(file: File, find: Find) -> Iterator[Action]:
    """Yield what to do about a file that belongs to no version."""
    if file.is_untouchable:
        return
    if file.kind == kinds.ORPHAN:
        yield Action("quarantine", file.rel)
    elif file.kind in _CONTENT_DAMAGE:
        if file.sha256 and find(Wanted(file.rel, file.sha256)):
            yield Action("restore", file.rel, file.sha256)
        else:
            yield _given_up(file)
            yield Action("lost", file.rel, kinds.KINDS[file.kind].meaning)


def mend_name(
    name: str, versions: Mapping[int, Mapping[str, File]], latest: File | None, find: Find
) -> Iterator[Action]:
    """Yield what to do about a data name; `versions` has the `raw` and `metadata.yaml` of each."""
    whole: set[int] = set()
    is_waiting = latest is not None and latest.is_untouchable
    for version, files in sorted(versions.items()):
        if any(file.is_untouchable for file in files.values()):
            is_waiting = True
            continue
        actions = list(_mend_version(name, version, files, find))
        if not any(action.do in ("quarantine", "forget") for action in actions):
            whole.add(version)
        yield from actions
    if not is_waiting:
        yield from _mend_marker(name, max(whole, default=0), whole, latest)


def _mend_version(
    name: str, version: int, files: Mapping[str, File], find: Find
) -> Iterator[Action]:
    metadata, raw = files.get(METADATA), files.get(RAW)
    mended = _mended(name, version, metadata, raw, find)
    if mended is not None:
        yield from mended
        return
    for file in files.values():
        yield _given_up(file)
    if any(file.is_named for file in files.values()):
        missing = "its metadata" if metadata is None or not _is_sound(metadata) else "its content"
        yield Action("lost", f"{name}/{version}", f"{missing} is lost or damaged")


def _mended(
    name: str, version: int, metadata: File | None, raw: File | None, find: Find
) -> list[Action] | None:
    """Return what makes a version whole, None if nothing does."""
    if metadata is None:
        return None
    actions: list[Action] = []
    checksum = metadata.checksum
    if not _is_sound(metadata):
        wanted = metadata.sha256
        if not wanted or wanted == metadata.hash or not find(Wanted(metadata.rel, wanted)):
            return None
        actions.append(Action("restore", metadata.rel, wanted))
        checksum = None  # nobody has read it yet
    elif metadata.described != (name.rpartition("/")[2], version):
        return None
    elif not metadata.is_like_its_entry:
        actions.append(Action("adopt", metadata.rel))
    content = _mended_content(f"{name}/{version}/{RAW}", metadata, raw, checksum, find)
    return None if content is None else actions + content


def _is_sound(metadata: File) -> bool:
    """Whether metadata can be read, and is what was committed, if anything was."""
    is_other = metadata.kind in _CONTENT_DAMAGE
    return metadata.there is not None and metadata.error is None and not is_other


def _mended_content(
    rel: str, metadata: File, raw: File | None, checksum: str | None, find: Find
) -> list[Action] | None:
    expected = checksum or (raw.sha256 if raw else None)
    size = metadata.claimed_size if checksum else None
    if raw is not None and raw.hash is not None:
        fits_hash = raw.hash == expected if expected else raw.kind not in _CONTENT_DAMAGE
        fits_size = size is None or size == raw.there
        if fits_hash and fits_size:
            return [] if raw.is_like_its_entry else [Action("adopt", rel)]
    if expected and (raw is None or raw.hash != expected) and find(Wanted(rel, expected)):
        return [Action("restore", rel, expected)]
    return None


def _given_up(file: File) -> Action:
    return Action("forget" if file.there is None else "quarantine", file.rel)


def _mend_marker(name: str, newest: int, whole: set[int], latest: File | None) -> Iterator[Action]:
    rel = f"{name}/{LATEST}"
    if not newest:
        if latest is not None:
            yield _given_up(latest)
        return
    if latest is not None and latest.kind is None and latest.marker in whole:
        return
    if latest is not None and latest.marker == newest and latest.hash == marker_hash(newest):
        yield Action("adopt", rel)
    else:
        yield Action("write", rel, str(newest))


def marker_hash(version: int) -> str:
    """Return the hash of the marker of a version."""
    return hashlib.sha256(str(version).encode()).hexdigest()


def wanted_content(
    versions: Iterable[Mapping[str, File]], others: Iterable[File]
) -> Iterator[Wanted]:
    """Yield the content that a repair may ask for."""
    for files in versions:
        metadata = files.get(METADATA)
        for file in files.values():
            if file.sha256 and file.hash != file.sha256:
                yield Wanted(file.rel, file.sha256)
        if metadata is not None and metadata.checksum:
            raw = files.get(RAW)
            if raw is None or raw.hash != metadata.checksum:
                directory = metadata.rel.rpartition("/")[0]
                yield Wanted(f"{directory}/{RAW}", metadata.checksum)
    for file in others:
        if file.sha256 and file.hash != file.sha256:
            yield Wanted(file.rel, file.sha256)
