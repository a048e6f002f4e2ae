"""What is on the disks and in the buckets, read as plainly as anybody could; nothing is changed."""

from __future__ import annotations

import contextlib
import hashlib
import json
import sqlite3
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from swampstore.index.base import BASE
from swampstore.index.partitions import META_KEY, MONOLITH_KEY
from swampstore.index.state import INDEX_VERSION, MADE_ANEW, ORIGIN
from swampstore.layout import METADATA, RAW
from tests.fleet.documents import index_of
from tests.fleet.oracle import Noted
from tests.fleet.places import Place
from tests.fleet.world import REPO_ID, Violation


class Copy(NamedTuple):
    """A version as some disk has it: where, and its files."""

    directory: Path
    metadata: bytes | None
    content: bytes | None


def copies_in(root: Path) -> list[Copy]:
    """Return every version that a directory has, wherever it is in it."""
    found = []
    for path in root.rglob(METADATA):
        raw = path.with_name(RAW)
        if path.is_file():
            content = raw.read_bytes() if raw.is_file() else None
            found.append(Copy(path.parent, path.read_bytes(), content))
    return found


def content_of(directory: Path, stored: bytes | None) -> bytes:
    """Return the content of a version on a disk.

    If it is not there: that of the remote, if that is what its metadata speaks of.
    """
    raw, metadata = directory / RAW, directory / METADATA
    if raw.is_file():
        return raw.read_bytes()
    if stored is None:
        return b""
    # Of what was appended to, metadata knows the size alone.
    speaks_of = metadata.read_bytes().splitlines()
    is_that = any(_sha256(stored).encode() in line for line in speaks_of) or (
        not any(line.startswith(b"checksum:") for line in speaks_of)
        and b"size: %d" % len(stored) in speaks_of
    )
    return stored if is_that else b""


class Base(NamedTuple):
    """What a cache knows of the remote: its origin, the hash of each path, and of what it sent.

    `namespace` is the one that it is about, None if nothing is known. `version` is that of the
    index which it has seen last, 0 if none.
    """

    namespace: str | None
    origin: str | None
    version: int
    known: Mapping[str, str | None]
    sent: Mapping[str, str]


def base_of(cache: Path) -> Base:
    """Read the base of a cache: what its machine will know, whatever becomes of its process."""
    path = cache / BASE
    nothing = Base(None, None, 0, {}, {})
    if not path.exists():
        return nothing
    how = "mode=ro" if path.with_name(f"{BASE}-wal").exists() else "immutable=1"
    with contextlib.suppress(sqlite3.Error):
        # Not by `connect`, where a machine at work would come to a point.
        db = sqlite3.Connection(f"file:{path}?{how}", uri=True)
        try:
            facts = dict(db.execute("SELECT name, value FROM facts").fetchall())
            known = dict(db.execute("SELECT rel, sha256 FROM known").fetchall())
            sent = dict(db.execute("SELECT rel, sha256 FROM uploads").fetchall())
            owner: str = db.execute("SELECT stamp FROM owner").fetchone()[0]
        finally:
            sqlite3.Connection.close(db)
        if facts.get(MADE_ANEW):
            return nothing
        version = int(facts.get(INDEX_VERSION) or 0)
        return Base(owner.rpartition("#")[2], facts.get(ORIGIN), version, known, sent)
    return nothing


def noted_in(cache: Path, place: Place) -> Noted:
    """Return what a cache knows of its versions, whatever it was stopped at."""
    base, root = base_of(cache), cache / place.prefix
    shared, sent = [], []
    for one in copies_in(root / "data"):
        rel, metadata = str((one.directory / METADATA).relative_to(root)), one.metadata or b""
        if base.known.get(rel) == _sha256(metadata):
            shared.append(metadata)
        if base.sent.get(rel) == _sha256(metadata):
            sent.append(metadata)
    return Noted(b"".join(shared), b"".join(sent))


def is_whole(objects: Mapping[str, bytes]) -> bool:
    """Whether no document of an index is missing that counts."""
    try:
        index_of(objects)
    except Violation:
        return False
    version = json.loads(objects.get(META_KEY, b"{}")).get("version")
    return version == 2 or (version == 1 and MONOLITH_KEY in objects)


def known_to_all(ids: Iterable[str], place: Place, roots: Mapping[Path, Path]) -> set[str]:
    """Return those versions that the index names, and whoever has one knows that it does.

    Whoever deletes such a version can tell everybody. All have the same files under the same
    number, and know the index by the origin that it has, and none as one of a later version: then
    it went back, and has lost what was committed since. `roots` are the directories in which
    machines have anything, each with its cache.
    """
    objects = place.objects()
    try:
        entries = index_of(objects)
    except Violation:
        return set()
    origin = _origin(objects)
    if origin is None:
        return set()
    version = json.loads(objects[META_KEY])["version"]
    disks = [(cache, copies_in(root), base_of(cache)) for root, cache in roots.items()]

    def is_known(id_: str) -> bool:
        stored = [rel for rel, data in objects.items() if _is_metadata_of(id_, rel, data)]
        if len(stored) != 1:
            return False
        files = [stored[0], _content_beside(stored[0])]
        hashes = {rel: _sha256(objects[rel]) for rel in files if rel in objects}
        if len(hashes) < 2 or any(not _is_named(entries, *one) for one in hashes.items()):
            return False
        for cache, copies, base in disks:
            there = Copy((cache / place.prefix / files[0]).parent, *map(objects.get, files))
            mine = [one for one in copies if id_.encode() in (one.metadata or b"")]
            is_noted = all(base.known.get(rel) == sha256 for rel, sha256 in hashes.items())
            is_same = base.origin == origin and base.version <= version
            if mine and not (is_same and is_noted):
                return False
            if any(not _is_copy(one, there) for one in mine):
                return False
        return True

    return {id_ for id_ in ids if is_known(id_)}


def cache_of(home: Path) -> Path:
    """Return where the cache of a remote is, for whoever has this home."""
    return home / "repos" / REPO_ID


def _is_copy(one: Copy, there: Copy) -> bool:
    """Whether a version is where it should be, with its content or without any."""
    return one in (there, there._replace(content=None))


def _is_metadata_of(id_: str, rel: str, data: bytes) -> bool:
    return rel.endswith(f"/{METADATA}") and id_.encode() in data


def _content_beside(rel: str) -> str:
    return f"{rel.rpartition('/')[0]}/{RAW}"


def _is_named(entries: Mapping[str, Mapping[str, Any]], rel: str, sha256: str) -> bool:
    """Whether the index names an object; without a hash, if it was made of what is stored."""
    return rel in entries and entries[rel].get("sha256") in {None, sha256}


def _origin(objects: Mapping[str, bytes]) -> str | None:
    own = json.loads(objects.get(META_KEY, b"{}")).get("swampstore")
    found = own.get("origin") if isinstance(own, dict) else None
    return found if isinstance(found, str) else None


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
