"""Bundles: a cache of what was built, addressed by its content, that never leaves its machine.

Whatever is in here can be made again, so it is bounded: what was not used for the longest time goes
first. A bundle is never changed, and one that was damaged is not given to anybody. Other clients
keep bundles of their own in the directory `bundles`; those are left alone. This file is all of the
room; it may import `repo` and what is below it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from swampstore.config import parse_size
from swampstore.datastore_address import wrong_setting
from swampstore.errors import NotFoundError, ValidationError
from swampstore.files import disk_errors, remove_old_temps
from swampstore.files.disk import temp_beside
from swampstore.marker import read_marker

if TYPE_CHECKING:
    from swampstore.repo import Repo

DEFAULT_LIMIT = 1 << 30
_HOME = "bundles/swampstore"
_DIGEST = re.compile(r"[0-9a-f]{64}")
_CHUNK = 1 << 20
_DAY = 86_400.0


class Bundle(NamedTuple):
    """One bundle: the SHA-256 of its content, its size, and when it was last used, in seconds."""

    digest: str
    size: int
    used_at: float
    path: str


class Collected(NamedTuple):
    """What a collection removed, or would remove, and what is left."""

    removed: tuple[Bundle, ...]
    kept: int
    kept_size: int
    limit: int
    dry_run: bool

    @property
    def size(self) -> int:
        """How many bytes of content go."""
        return sum(bundle.size for bundle in self.removed)

    def to_json(self) -> dict[str, Any]:
        """Return what it did as a document."""
        return {
            "removed": [bundle.digest for bundle in self.removed],
            "removedBytes": self.size,
            "kept": self.kept,
            "keptBytes": self.kept_size,
            "maxBytes": self.limit,
            "dryRun": self.dry_run,
        }


class Bundles:
    """The cache of a repository. `limit` is how many bytes may stay (default: as configured)."""

    def __init__(self, repo: Repo, limit: int | None = None) -> None:
        self._directory = repo.tree.path(_HOME)
        self._clock = repo.clock
        self.limit = _configured(repo.config.repo_dir) if limit is None else limit

    def put(self, content: bytes | BinaryIO) -> str:
        """Keep some content and return its digest; room is made for it.

        Raises ValidationError for more than the cache may hold.
        """
        with disk_errors(self._directory):
            os.makedirs(self._directory, exist_ok=True)
            temp = temp_beside(f"{self._directory}/bundle")
            try:
                digest = self._write(temp, content)
                path = self._path(digest)
                os.makedirs(os.path.dirname(path), exist_ok=True)
                os.rename(temp, path)
            finally:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(temp)
        if sum(bundle.size for bundle in self._found()) > self.limit:
            self.gc(keep=digest)
        return digest

    def _write(self, temp: str, content: bytes | BinaryIO) -> str:
        hashing, size = hashlib.sha256(), 0
        with open(temp, "xb") as file:
            for piece in _pieces(content):
                hashing.update(piece)
                size += file.write(piece)
                if size > self.limit:
                    raise ValidationError(
                        f"the bundle is larger than the whole cache may be, {self.limit} bytes",
                        hint="Raise `bundles.maxBytes` in .swamp.yaml.",
                    )
        now = self._clock().timestamp()
        os.utime(temp, (now, now))
        return hashing.hexdigest()

    def open(self, digest: str) -> BinaryIO:
        """Return the content of a bundle, which counts as a use of it.

        Raises NotFoundError if it is not here; that a damaged one was, nobody needs to know.
        """
        path = self._path(digest)
        try:
            file = open(path, "rb")  # noqa: SIM115 - the caller closes it
        except (FileNotFoundError, NotADirectoryError):
            raise _not_found(digest) from None
        if hashlib.file_digest(file, "sha256").hexdigest() != digest:
            file.close()
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            raise _not_found(digest)
        file.seek(0)
        now = self._clock().timestamp()
        with contextlib.suppress(OSError):  # on a read-only disk nothing is ever removed
            os.utime(path, (now, now))
        return file

    def read(self, digest: str) -> bytes:
        """Return the content of a bundle as a whole."""
        with self.open(digest) as file:
            return file.read()

    def all(self) -> list[Bundle]:
        """Return all bundles, the one used last first."""
        return sorted(self._found(), key=lambda bundle: (-bundle.used_at, bundle.digest))

    def gc(
        self, limit: int | None = None, *, keep: str | None = None, dry_run: bool = False
    ) -> Collected:
        """Remove what was not used for the longest time until `limit` bytes are left.

        The default is the limit of the cache. The bundle `keep` stays whatever its age.
        """
        limit = self.limit if limit is None else limit
        bundles = sorted(self.all(), key=lambda bundle: bundle.digest != keep)
        removed: list[Bundle] = []
        kept = size = 0
        for bundle in bundles:
            if removed or (size + bundle.size > limit and bundle.digest != keep):
                removed.append(bundle)
            else:
                kept, size = kept + 1, size + bundle.size
        if not dry_run:
            self._remove(removed)
        return Collected(tuple(removed), kept, size, limit, dry_run)

    def _remove(self, bundles: list[Bundle]) -> None:
        with disk_errors(self._directory):
            for bundle in bundles:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(bundle.path)
            remove_old_temps(self._directory, self._clock().timestamp() - _DAY)

    def _path(self, digest: str) -> str:
        if not _DIGEST.fullmatch(digest):
            raise ValidationError(
                f"{digest!r} is not the digest of a bundle",
                hint="It is the SHA-256 of the content, 64 digits of 0-9 and a-f.",
            )
        return f"{self._directory}/{digest[:2]}/{digest}"

    def _found(self) -> Iterator[Bundle]:
        for directory, _, names in os.walk(self._directory):
            for name in filter(_DIGEST.fullmatch, names):
                path = f"{directory}/{name}"
                with contextlib.suppress(FileNotFoundError):
                    found = os.stat(path)
                    yield Bundle(name, found.st_size, found.st_mtime, path)


def _pieces(content: bytes | BinaryIO) -> Iterator[bytes]:
    if isinstance(content, bytes):
        yield content
        return
    while piece := content.read(_CHUNK):
        yield piece


def _not_found(digest: str) -> NotFoundError:
    return NotFoundError(f"there is no bundle {digest}", hint="Build it again.")


def _configured(repo_dir: str) -> int:
    cache = read_marker(repo_dir).get("bundles")
    if cache is None:
        return DEFAULT_LIMIT
    if not isinstance(cache, dict):
        raise wrong_setting("bundles", cache, "a mapping")
    value = cache.get("maxBytes", DEFAULT_LIMIT)
    limit = parse_size(value) if isinstance(value, str) else value
    if type(limit) is int and limit > 0:
        return limit
    raise wrong_setting(
        "bundles.maxBytes", value, "a positive number of bytes, or one with a unit such as 20GB"
    )
