"""Reading the content of a version, wherever it is kept, and comparing it with its hash."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, Protocol

from swampstore.artifacts import versions as on_disk
from swampstore.artifacts.metadata import is_json, is_text
from swampstore.artifacts.versions import read_metadata
from swampstore.errors import ContentDamagedError, ContentMissingError, MetadataError
from swampstore.files import Tree, disk_errors, read_to_end
from swampstore.layout import METADATA, RAW, DataRef

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

    from swampstore.artifacts.metadata import Metadata

_CHUNK = 1 << 20
_SMALL = 1 << 20
# How often content is fetched: in a small cache, what others read may take its place at once.
_FETCHES = 3
# Is told hash and size of all that was read, and says whether anything vouches for it; raises
# ContentDamagedError if something else should have been there.
Judge = Callable[[str, int], bool]


@cache
def _small_sha256() -> Callable[[], Any]:
    """Return what makes the hash that needs nothing loaded; not every Python has it."""
    import importlib

    try:
        name = "_sha2" if sys.version_info >= (3, 12) else "_sha256"
        found: Callable[[], Any] = importlib.import_module(name).sha256
    except ImportError:
        from hashlib import sha256

        found = sha256
    return found


def _sha256(size: int) -> Any:
    """Return a new hash. Up to some size, loading the fast one would take longer than it saves."""
    if size <= _SMALL:
        return _small_sha256()()
    import hashlib

    return hashlib.sha256()


def hash_beginning(fd: int, size: int | None) -> str:
    """Return the SHA-256 (hex) of the next bytes of an open file, or of all it has if it has fewer.

    What has been appended to keeps its beginning. Without a size it is all of it.
    """
    left = sys.maxsize if size is None else size
    digest = _sha256(left)
    while left > 0 and (piece := os.read(fd, min(left, _CHUNK))):
        digest.update(piece)
        left -= len(piece)
    return str(digest.hexdigest())


class _Hashed(io.FileIO):
    """Hashes what is read in order, and has it judged at the end."""

    def __init__(self, fd: int, judge: Judge) -> None:
        super().__init__(fd, "rb")
        self.verified: bool | None = None
        self._digest = _sha256(os.fstat(fd).st_size)
        self._judge = judge
        self._at = self._hashed = 0

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        count = super().readinto(buffer) or 0
        self._note(memoryview(buffer).cast("B")[:count])
        return count

    def readall(self) -> bytes:
        pieces = []
        while piece := super().read(_CHUNK):
            self._note(piece)
            pieces.append(piece)
        self._note(b"")
        return b"".join(pieces)

    def seek(self, offset: int, whence: int = 0, /) -> int:
        self._at = super().seek(offset, whence)
        return self._at

    def _note(self, piece: bytes | memoryview) -> None:
        if self._at == self._hashed:
            if piece:
                self._digest.update(piece)
                self._hashed += len(piece)
            elif self.verified is None:
                self.verified = self._judge(self._digest.hexdigest(), self._hashed)
        self._at += len(piece)


class CheckedFile(io.BufferedReader):
    """An open file. Whoever reads it to its end, from its beginning, knows that it is whole.

    `verified` tells then whether there was a hash to compare with; it is None before.
    """

    def __init__(self, fd: int, judge: Judge) -> None:
        self._hashed = _Hashed(fd, judge)
        super().__init__(self._hashed)

    @property
    def verified(self) -> bool | None:
        """Whether what was read is what was saved; None as long as the end was not reached."""
        return self._hashed.verified


class There(NamedTuple):
    """What the remote has of a path, as far as is known here; the hash may be empty."""

    sha256: str
    size: int


LookThere = Callable[[str], There | None]


def vouch(tree: Tree, ref: DataRef, version: int, digest: str, size: int, there: LookThere) -> bool:
    """Whether anything vouches for content of this hash: the metadata, or else the remote.

    Raises ContentDamagedError, which says where a good copy is, if it should be another one.
    """
    try:
        metadata = read_metadata(tree, ref, version)
    except MetadataError:
        return False
    if metadata is None or metadata.may_be_appended_to(size):
        return False
    known = there(ref.file_rel(version, RAW))
    wanted = metadata.checksum or ""
    if not wanted and known is not None and known.size == metadata.size:
        wanted = known.sha256
    if wanted and wanted != digest:
        raise damaged(tree, ref, version, is_there=known is not None and known.sha256 == wanted)
    return bool(wanted)


def damaged(tree: Tree, ref: DataRef, version: int, *, is_there: bool) -> ContentDamagedError:
    """Return what to tell of content that is not what was saved, and the way to a good copy."""
    path = tree.path(ref.file_rel(version, RAW))
    if is_there:
        hint = (
            "The remote has the right content: run `swampstore doctor --deep --repair`, which keeps"
            " this file aside and fetches the other."
        )
    else:
        hint = f"No good copy is known. Restore {path} from a backup, or delete that version."
    return ContentDamagedError(
        f"the content of {ref} version {version} is damaged: it is not what was saved",
        hint=hint,
        is_there=is_there,
    )


# What is larger is no document that somebody asks about, and would take several times the memory.
LARGEST_PARSED = 64 << 20


class ContentSource(Protocol):
    """Where the bytes and the metadata of versions come from."""

    def open(self, ref: DataRef, version: int, checksum: str = "") -> BinaryIO:
        """Open a version's bytes; raise ContentMissingError if they are not here.

        `checksum` is the hash that they should have, as far as is known.
        """

    def read(self, ref: DataRef, version: int, checksum: str = "") -> bytes | None:
        """Return a version's bytes, None if they are not here."""

    def path(self, ref: DataRef, version: int) -> str:
        """Return the file that holds a version's bytes."""

    def metadata(self, ref: DataRef, version: int) -> Metadata:
        """Return the whole metadata of a version."""


class DiskContent:
    """Content as files. `on_gone` hears of versions that turn out not to exist any more.

    `fetch` brings a file that is only on the remote, and says whether it did; what is opened is
    fetched first, what is only looked at (by a query, say) is not. `on_use` hears of what is
    opened, `there` tells what the remote has.
    """

    def __init__(
        self,
        tree: Tree,
        on_gone: Callable[[DataRef], None],
        fetch: Callable[[str], bool] | None = None,
        on_use: Callable[[str], None] | None = None,
        there: LookThere = lambda _: None,
    ) -> None:
        self._tree = tree
        self._on_gone = on_gone
        self._fetch = fetch
        self._on_use = on_use
        self._there = there

    def open(self, ref: DataRef, version: int, checksum: str = "") -> BinaryIO:
        """Open a version's file, which is compared with its hash while it is read."""
        rel = ref.file_rel(version, RAW)
        file = self._open(ref, version, checksum)
        for _ in range(_FETCHES):
            if file is not None or not self._fetch or not self._fetch(rel):
                break
            file = self._open(ref, version, checksum)
        if file is None:
            raise self._missing(ref, version)
        if self._on_use:
            self._on_use(rel)
        return file

    def read(self, ref: DataRef, version: int, checksum: str = "") -> bytes | None:
        """Return what a version's file holds; raise ContentDamagedError if that was not saved."""
        rel = ref.file_rel(version, RAW)
        try:
            data = read_to_end(self._tree.open_inside(rel))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError:
            with disk_errors(self._tree.path(rel)):
                raise
        digest = _sha256(len(data))
        digest.update(data)
        self._judge(ref, version, checksum, digest.hexdigest(), len(data))
        return data

    def _judge(self, ref: DataRef, version: int, checksum: str, digest: str, size: int) -> bool:
        return digest == checksum or vouch(self._tree, ref, version, digest, size, self._there)

    def _open(self, ref: DataRef, version: int, checksum: str) -> BinaryIO | None:
        rel = ref.file_rel(version, RAW)
        with disk_errors(self._tree.path(rel)):
            try:
                fd = self._tree.open_inside(rel)
            except (FileNotFoundError, NotADirectoryError):
                return None
            return CheckedFile(fd, partial(self._judge, ref, version, checksum))

    def path(self, ref: DataRef, version: int) -> str:
        """Return a version's file, fetched if it is only on the remote; it may be missing."""
        rel = ref.file_rel(version, RAW)
        if self._fetch and self._tree.size(rel) is None:
            self._fetch(rel)
        if self._on_use:
            self._on_use(rel)
        return self._tree.path(rel)

    def metadata(self, ref: DataRef, version: int) -> Metadata:
        """Read a version's `metadata.yaml`."""
        metadata = on_disk.read_metadata(self._tree, ref, version)
        if metadata is None:
            raise self._missing(ref, version)
        return metadata

    def _missing(self, ref: DataRef, version: int) -> ContentMissingError:
        if self._tree.size(ref.file_rel(version, METADATA)) is None:
            self._on_gone(ref)
        if self._fetch:
            return ContentMissingError(
                f"{ref} version {version} is neither on this disk nor on the remote",
                hint="Another machine may have deleted it: run `swampstore sync --full`.",
            )
        return ContentMissingError(
            f"{ref} version {version} is not on this disk",
            hint="It was removed outside of swampstore; restore it from a backup.",
        )


class MemoryContent:
    """Content of data that lives no longer than the process."""

    def __init__(self) -> None:
        self.stored: dict[tuple[DataRef, int], tuple[Metadata, bytes]] = {}

    def open(self, ref: DataRef, version: int, checksum: str = "") -> BinaryIO:
        """Open a version's bytes."""
        del checksum
        return io.BytesIO(self._get(ref, version)[1])

    def read(self, ref: DataRef, version: int, checksum: str = "") -> bytes:
        """Return a version's bytes."""
        del checksum
        return self._get(ref, version)[1]

    def path(self, ref: DataRef, version: int) -> str:
        """Ephemeral data has no file: always raises."""
        raise ContentMissingError(
            f"{ref} version {version} is ephemeral and has no file",
            hint="Use .bytes() or .open(), or save it with another lifetime.",
        )

    def metadata(self, ref: DataRef, version: int) -> Metadata:
        """Return a version's metadata."""
        return self._get(ref, version)[0]

    def _get(self, ref: DataRef, version: int) -> tuple[Metadata, bytes]:
        try:
            return self.stored[ref, version]
        except KeyError:
            raise ContentMissingError(
                f"{ref} version {version} was ephemeral and is gone",
                hint="Ephemeral data ends with the process that saved it.",
            ) from None


def parse_content(content_type: str, data: bytes) -> tuple[Any, Any]:
    """Return (attributes, content) of bytes as queries see them.

    JSON is parsed, other text decoded, anything else is the empty string; attributes are the
    JSON object, or empty if there is none.
    """
    if is_json(content_type):
        try:
            value = json.loads(data)
        except (ValueError, RecursionError):
            return {}, data.decode("utf-8", "replace")
        return (value if isinstance(value, dict) else {}), value
    if is_text(content_type):
        return {}, data.decode("utf-8", "replace")
    return {}, ""
