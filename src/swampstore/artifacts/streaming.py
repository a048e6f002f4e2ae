"""Writing one version piece by piece, so that content of any size passes through little memory."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from types import TracebackType
from typing import BinaryIO, Self

from swampstore.artifacts.metadata import Draft, Metadata, Owner
from swampstore.artifacts.name_lock import Mutations
from swampstore.artifacts.publish import claim_version, current, owner_for, publish
from swampstore.artifacts.versions import StoredVersion
from swampstore.clock import Clock, to_iso
from swampstore.errors import NotFoundError, SwampstoreError, WriterClosedError
from swampstore.files import Hold, disk_errors
from swampstore.layout import RAW, DataRef
from swampstore.notices import notice

_CHUNK = 1 << 20


class VersionWriter:
    """A claimed version whose content is being written; use it in a `with` block.

    Bytes are hashed as they pass. A program that must write the file itself gets its `path`;
    then the digest is computed from the file when the version is finalised.
    """

    def __init__(
        self, mutations: Mutations, clock: Clock, ref: DataRef, draft: Draft, group: Hold | None
    ) -> None:
        self._mutations = mutations
        self._tree = mutations.tree
        self._clock = clock
        self._draft = draft
        self._deferred = group is not None
        self._hold = Hold() if group is None else group
        self._digest = hashlib.sha256()
        self._size = 0
        self._fd = -1
        self._written_outside = False
        self.ref = ref
        self.version = 0
        self.on_published: Callable[[DataRef, Metadata], None] | None = None

    @classmethod
    def claim(
        cls, mutations: Mutations, clock: Clock, ref: DataRef, draft: Draft, group: Hold | None
    ) -> VersionWriter:
        """Claim the next version of a name for writing, alone or as part of a group."""
        writer = cls(mutations, clock, ref, draft, group)
        tree = mutations.tree
        try:
            with mutations.changing(ref, "claim") as change:
                marker, newest = current(tree, ref)
                owner_for(ref, newest, draft.owner)
                draft.following(newest)  # before anything is written in vain
                writer.version = claim_version(tree, change, ref, marker, writer._hold)
                writer._fd = change.create(ref.file_rel(writer.version, RAW))
                mutations.ledger.settle([ref.rel])
        except BaseException:
            writer._let_go()
            raise
        return writer

    @property
    def path(self) -> str:
        """The file to write, for programs that write it themselves."""
        self._written_outside = True
        return self._tree.path(self.ref.file_rel(self.version, RAW))

    def write(self, data: bytes) -> int:
        """Write the next bytes."""
        self._check_open()
        with disk_errors(str(self.ref)):
            view = memoryview(data)
            while view:
                view = view[os.write(self._fd, view) :]
        self._digest.update(data)
        self._size += len(data)
        return len(data)

    def copy_from(self, source: BinaryIO) -> None:
        """Write everything that `source` still holds."""
        while chunk := source.read(_CHUNK):
            self.write(chunk)

    def finalize(self) -> Metadata:
        """Make the version visible and return its metadata."""
        self._check_open()
        with disk_errors(str(self.ref)):
            if self._tree.durable:
                os.fsync(self._fd)
            self._close()
            if self._written_outside:
                self._hash_file()
        try:
            return self._publish()
        finally:
            self._let_go()

    def abort(self) -> None:
        """Give the claim up; nothing was ever visible."""
        if self._fd >= 0:
            self._close()
            try:
                self._discard()
            finally:
                self._let_go()

    def _publish(self) -> Metadata:
        ref = self.ref
        with self._mutations.changing(ref, "save") as change:
            try:
                self._check_still_there()
                marker, newest = current(self._tree, ref)
                owner = owner_for(ref, newest, self._draft.owner)
                self._draft = self._draft.following(newest)
                metadata = self._metadata(owner)
                marker = publish(self._tree, change, ref, metadata, marker, deferred=self._deferred)
            except BaseException:
                change.discard_claim(ref.version_rel(self.version))
                raise
            stored = StoredVersion(metadata, self._deferred)
            self._mutations.record(ref, stored=[stored], marker=marker)
        if self.on_published:
            self.on_published(ref, metadata)
        return metadata

    def _metadata(self, owner: Owner) -> Metadata:
        now, checksum = to_iso(self._clock()), self._digest.hexdigest()
        return self._draft.metadata(self.ref.name, self.version, owner, now, self._size, checksum)

    def _check_still_there(self) -> None:
        if self._tree.size(self.ref.file_rel(self.version, RAW)) is None:
            raise NotFoundError(
                f"{self.ref} version {self.version} was removed while it was being written",
                hint="Somebody deleted the data; save it again.",
            )

    def _hash_file(self) -> None:
        self._digest, self._size = hashlib.sha256(), 0
        with open(self.path, "rb") as file:
            while chunk := file.read(_CHUNK):
                self._digest.update(chunk)
                self._size += len(chunk)

    def _discard(self) -> None:
        try:
            with self._mutations.changing(self.ref, "claim") as change:
                change.discard_claim(self.ref.version_rel(self.version))
                self._mutations.ledger.settle([self.ref.rel])
        except SwampstoreError as error:
            # What led here matters more; whoever meets the claim of nobody removes it.
            notice("the claim of %s stays for now: %s", self.ref, error.message)

    def _check_open(self) -> None:
        if self._fd < 0:
            raise WriterClosedError(
                f"{self.ref} version {self.version} is not being written any more",
                hint="Open a new writer for the next version.",
            )

    def _let_go(self) -> None:
        """Give up the hold, unless the group still needs it."""
        if not self._deferred:
            self._hold.release()

    def _close(self) -> None:
        os.close(self._fd)
        self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self.abort()
        elif self._fd >= 0:
            self.finalize()
