"""What a backup is made of: objects by their hash, and manifests of the files they belong to.

A manifest is a text of JSON lines: what was backed up, then one line for each file, then how many
there are and the hash of all lines before. So one that is cut off, or that somebody changed, is
told from a whole one. docs/formats/backup.md describes every member.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple

import msgspec

from swampstore.errors import BackupDamagedError
from swampstore.files.signature import Signature
from swampstore.formats import LARGEST_NUMBER, NEWEST, refuse_newer
from swampstore.index.path_map import is_safe
from swampstore.layout import (
    DATASTORE_SUBDIRS,
    RUNS_INDEX,
    check_segment,
    is_always_local,
    is_internal,
)

KIND = "backup"
_FORMAT = "swampstore-backup"
_ID = re.compile(r"\d{8}T\d{9}Z-[0-9a-f]{8}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_NO_NAMESPACE = "_"
OBJECTS, MANIFESTS, DAMAGED = "objects/", "backups/", "damaged/"
_SUFFIX = ".jsonl"


# Keys ----------------------------------------------------------------------------------------


class BackupKey(NamedTuple):
    """Where a manifest is: of which repository and namespace, and which of their backups."""

    repo_id: str
    namespace: str
    id: str

    @property
    def key(self) -> str:
        """The key of its object."""
        return f"{home_of(self.repo_id, self.namespace)}{self.id}{_SUFFIX}"

    @classmethod
    def parse(cls, key: str) -> BackupKey | None:
        """Read a key; None if it is not that of a manifest."""
        parts = key.removeprefix(MANIFESTS).split("/")
        if key.startswith(MANIFESTS) and len(parts) == 3 and parts[2].endswith(_SUFFIX):
            found = parts[2].removesuffix(_SUFFIX)
            if _ID.fullmatch(found):
                return cls(parts[0], "" if parts[1] == _NO_NAMESPACE else parts[1], found)
        return None


def home_of(repo_id: str, namespace: str) -> str:
    """Return what the keys of all backups of a repository begin with."""
    return f"{MANIFESTS}{check_segment('repoId', repo_id)}/{namespace or _NO_NAMESPACE}/"


def object_key(sha256: str) -> str:
    """Return the key of the content that has this hash."""
    return f"{OBJECTS}{sha256[:2]}/{sha256}"


def sha256_of_key(key: str, prefix: str = OBJECTS) -> str | None:
    """Return the hash that a key is made of, None if it is another object."""
    name = key.rpartition("/")[2]
    is_ours = _SHA256.fullmatch(name) and key in (object_key(name), f"{prefix}{name}")
    return name if is_ours else None


# Files ---------------------------------------------------------------------------------------


class FileEntry(NamedTuple):
    """A file of a backup: its path in the datastore, its content, and what it looked like.

    `mtime_ns` is when it was last changed; with `ctime_ns` and `inode`, which a remote has not, the
    next backup recognises a file without reading it.
    """

    path: str
    size: int
    sha256: str
    mtime_ns: int | None = None
    ctime_ns: int | None = None
    inode: int | None = None

    @property
    def signature(self) -> Signature | None:
        """What the file looked like, if that is known."""
        if self.mtime_ns is None or self.ctime_ns is None or self.inode is None:
            return None
        return Signature(self.size, self.mtime_ns, self.ctime_ns, self.inode)


class LeftOut(msgspec.Struct, frozen=True):
    """Something that is not in a backup, though it should be: it is damaged, or kept changing."""

    path: str
    reason: str


class SecretNames(msgspec.Struct, frozen=True):
    """A vault, and the keys of its secrets. Values are in no backup."""

    vault: str
    type: str
    keys: tuple[str, ...] = ()


def belongs(path: str) -> bool:
    """Whether a path may be in a backup: shared data, no bookkeeping, and nothing secret.

    A manifest that names any other path is not one of ours.
    """
    return (
        is_safe(path)
        and path.partition("/")[0] in DATASTORE_SUBDIRS
        and "/" in path
        and not is_always_local(path)
        and not is_internal(path)
        and not path.endswith(f"/{RUNS_INDEX}")
    )


# The manifest --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Origin:
    """What a backup was made from, and at which point.

    `location` is a directory or the identity of a remote; `commit_seq` and `shards` (partition to
    ETag) are the commit that was taken from a remote, `looked_at_ns` is a time before any file of
    a directory was looked at.
    """

    location: str
    commit_seq: int | None = None
    shards: Mapping[str, str] = field(default_factory=dict)
    looked_at_ns: int = 0


@dataclass(frozen=True, slots=True)
class Manifest:
    """One backup. `settings` are those of `.swamp.yaml`, without credentials."""

    key: BackupKey
    created_at: str
    origin: Origin
    files: Sequence[FileEntry]
    settings: Mapping[str, Any] = field(default_factory=dict)
    secrets: Sequence[SecretNames] = ()
    left_out: Sequence[LeftOut] = ()
    client: str = ""

    @property
    def size(self) -> int:
        """The bytes of all files."""
        return sum(file.size for file in self.files)

    def to_json(self) -> dict[str, Any]:
        """Return one item of the document of `backup list`."""
        return {
            "id": self.key.id,
            "repoId": self.key.repo_id,
            "namespace": self.key.namespace,
            "createdAt": self.created_at,
            "source": self.origin.location,
            "files": len(self.files),
            "bytes": self.size,
            "leftOut": len(self.left_out),
        }


_Number = Annotated[int, msgspec.Meta(ge=0, le=LARGEST_NUMBER)]
# Nanoseconds do not fit into what every client can hold; nobody but us reads them.
_Nanoseconds = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class _Head(msgspec.Struct, rename="camel"):
    format: str
    version: int
    id: str
    repo_id: str
    namespace: str
    created_at: str
    source: str
    commit_seq: _Number | None = None
    shards: dict[str, str] = {}
    looked_at_ns: _Nanoseconds = 0
    settings: dict[str, Any] = {}
    secrets: list[SecretNames] = []
    left_out: list[LeftOut] = []
    client: str = ""


class _Version(msgspec.Struct):
    format: str = ""
    version: Any = None


class _Line(msgspec.Struct, array_like=True, forbid_unknown_fields=False):
    path: str
    size: _Number
    sha256: str
    mtime_ns: _Nanoseconds | None = None
    ctime_ns: _Nanoseconds | None = None
    inode: _Nanoseconds | None = None


class _Tail(msgspec.Struct):
    files: int
    bytes: int
    sha256: str


_encode = msgspec.json.Encoder().encode
_version: msgspec.json.Decoder[_Version] = msgspec.json.Decoder(_Version)
_head: msgspec.json.Decoder[_Head] = msgspec.json.Decoder(_Head)
_line: msgspec.json.Decoder[_Line] = msgspec.json.Decoder(_Line)
_tail: msgspec.json.Decoder[_Tail] = msgspec.json.Decoder(_Tail)


def encode_manifest(manifest: Manifest) -> bytes:
    """Write a manifest, its files in order."""
    key, origin = manifest.key, manifest.origin
    head = _Head(
        _FORMAT,
        NEWEST[KIND],
        key.id,
        key.repo_id,
        key.namespace,
        manifest.created_at,
        origin.location,
        origin.commit_seq,
        dict(origin.shards),
        origin.looked_at_ns,
        dict(manifest.settings),
        list(manifest.secrets),
        list(manifest.left_out),
        manifest.client,
    )
    lines = [_encode(head), *(_encode(_trimmed(file)) for file in sorted(manifest.files))]
    body = b"".join(line + b"\n" for line in lines)
    tail = _Tail(len(manifest.files), manifest.size, hashlib.sha256(body).hexdigest())
    return body + _encode(tail) + b"\n"


def _trimmed(file: FileEntry) -> tuple[Any, ...]:
    return file if file.inode is not None else file[: 3 if file.mtime_ns is None else 4]


def decode_manifest(key: BackupKey, data: bytes) -> Manifest:
    """Read a manifest; raise BackupDamagedError for one that is not whole, NewerFormatError."""
    body, _, last = data.removesuffix(b"\n").rpartition(b"\n")
    first, _, rest = body.partition(b"\n")
    try:
        found = _version.decode(first or last)
        if found.format == _FORMAT:
            refuse_newer(KIND, found.version, f"the backup {key.id}")
        tail = _tail.decode(last)
        if hashlib.sha256(body + b"\n").hexdigest() != tail.sha256:
            raise _damaged(key, "its hash is another one")
        head = _head.decode(first)
        files = [_checked(key, _line.decode(line)) for line in rest.splitlines()]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _damaged(key, str(error)) from None
    if (head.format, head.version) != (_FORMAT, NEWEST[KIND]):
        raise _damaged(key, "it is of no known format")
    if BackupKey(head.repo_id, head.namespace, head.id) != key:
        raise _damaged(key, "it is the manifest of another backup")
    if len(files) != tail.files or len({file.path for file in files}) != tail.files:
        raise _damaged(key, "the number of its files is another one, or one is there twice")
    return Manifest(
        key,
        head.created_at,
        Origin(head.source, head.commit_seq, head.shards, head.looked_at_ns),
        files,
        head.settings,
        head.secrets,
        head.left_out,
        head.client,
    )


def _checked(key: BackupKey, line: _Line) -> FileEntry:
    if not belongs(line.path):
        raise _damaged(key, f"the path {line.path[:200]!r} has no place in a backup")
    if not _SHA256.fullmatch(line.sha256):
        raise _damaged(key, f"the SHA-256 of {line.path[:200]!r} is none")
    return FileEntry(line.path, line.size, line.sha256, line.mtime_ns, line.ctime_ns, line.inode)


def _damaged(key: BackupKey, reason: str) -> BackupDamagedError:
    return BackupDamagedError(
        f"the backup {key.id} cannot be used: {reason}",
        hint="`swampstore backup list` shows the others; the content itself may well be whole.",
    )


def sizes_of(files: Iterable[FileEntry]) -> dict[str, int]:
    """Return the size of each content, by its hash."""
    return {file.sha256: file.size for file in files}
