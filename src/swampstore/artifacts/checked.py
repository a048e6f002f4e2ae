"""Content that is compared with its hash while it is read."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from swampstore.errors import ContentDamagedError, MetadataError
from swampstore.files import Tree
from swampstore.layout import RAW, DataRef

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_CHUNK = 1 << 20
_SMALL = 1 << 20
# Is told hash and size of all that was read, and says whether anything vouches for it; raises
# ContentDamagedError if something else should have been there.
Judge = Callable[[str, int], bool]


def _sha256(size: int) -> Any:
    """Return a new hash. Up to some size, loading the fast one would take longer than it saves."""
    if size <= _SMALL:
        import importlib

        try:
            name = "_sha2" if sys.version_info >= (3, 12) else "_sha256"
            return importlib.import_module(name).sha256()
        except ImportError:  # not every Python has it
            pass
    import hashlib

    return hashlib.sha256()


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
    from swampstore.artifacts.versions import read_metadata

    try:
        metadata = read_metadata(tree, ref, version)
    except MetadataError:
        return False
    if metadata is None or (metadata.streaming and metadata.size != size):
        return False  # it is gone, or is being appended to
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
