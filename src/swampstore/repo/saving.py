"""`repo.artifacts`: saving and changing artifacts in the words of the command line."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO

from swampstore.artifacts.ephemeral import EPHEMERAL
from swampstore.artifacts.frames import encoded
from swampstore.artifacts.metadata import (
    DEFAULT_LIFETIME,
    DEFAULT_POLICY,
    Draft,
    Metadata,
    Owner,
    guess_content_type,
)
from swampstore.artifacts.save import Deleted, to_json_bytes
from swampstore.artifacts.versions import own_numbers, read_metadata
from swampstore.errors import MetadataError, NotFoundError, ValidationError
from swampstore.layout import DataRef, ModelRef, check_data_name, split_namespace
from swampstore.telemetry import traced

if TYPE_CHECKING:
    from collections.abc import Iterator

    from swampstore.artifact import Artifact
    from swampstore.artifacts.groups import Deferral
    from swampstore.artifacts.rename import Renamed
    from swampstore.artifacts.streaming import VersionWriter
    from swampstore.repo import Repo

Content = (
    bytes
    | bytearray
    | memoryview
    | str
    | Mapping[str, Any]
    | list[Any]
    | BinaryIO
    | os.PathLike[str]
)
JSON = "application/json"
# How much of a file is appended at a time.
_PIECE = 8 << 20


class Artifacts:
    """Everything that changes artifacts of one repository."""

    def __init__(self, repo: Repo) -> None:
        self._repo = repo

    @traced("save")
    def save(  # noqa: PLR0913 - each is a word of what is saved
        self,
        model: str | ModelRef,
        name: str,
        content: Content,
        *,
        content_type: str | None = None,
        tags: Mapping[str, str | None] | None = None,
        lifetime: str = DEFAULT_LIFETIME,
        garbage_collection: int | str = DEFAULT_POLICY,
        streaming: bool = False,
        owner: Owner | None = None,
        inherit: bool = True,
    ) -> Artifact:
        """Save content as the next version of a data name and return it.

        Bytes are saved as they are, text as UTF-8, mappings and lists as JSON; an open file, or
        the one at a `Path`, is streamed, whatever its size. Frames of pandas, polars and pyarrow
        become Parquet, arrays of numpy npy. The content type is guessed from that
        unless given. Without an owner, whoever owns the name goes on owning it; a model addressed
        by its name keeps that name. The model's name and the tags of the version before stay, but
        for those that say which run wrote it: `tags` changes some of them, and removes those that
        are None in it; without `inherit` none is kept. Lifetime `ephemeral` keeps the
        data in memory only.
        """
        if isinstance(content, os.PathLike):
            return self.save_file(
                model,
                name,
                content,
                content_type=content_type,
                tags=tags,
                lifetime=lifetime,
                garbage_collection=garbage_collection,
                streaming=streaming,
                owner=owner,
                inherit=inherit,
            )
        ref = self._new(model, name)
        if isinstance(model, str) and "/" not in model:
            # Whoever says the model's name means to find the data under it again.
            tags = {"modelName": split_namespace(model)[1], **(tags or {})}
        stream, data, guessed = _content(content)
        draft = Draft(
            content_type=content_type or guessed,
            lifetime=lifetime,
            garbage_collection=garbage_collection,
            streaming=streaming,
            tags={key: value for key, value in (tags or {}).items() if value is not None},
            owner=owner,
            inherits=inherit,
            without=frozenset(key for key, value in (tags or {}).items() if value is None),
        )
        if lifetime == EPHEMERAL:
            data = stream.read() if stream is not None else data
            return self._at(ref, self._repo.start_ephemeral().store.save(ref, data, draft))
        if stream is None:
            return self._repo.just_written(ref, self._repo.store.save(ref, data, draft))
        with self._repo.store.open_writer(ref, draft) as writer:
            writer.copy_from(stream)
            return self._at(ref, writer.finalize())

    def save_file(
        self, model: str | ModelRef, name: str, path: str | os.PathLike[str], **details: Any
    ) -> Artifact:
        """Save a file's content; its name suggests the content type. Takes what `save` takes."""
        details["content_type"] = details.get("content_type") or guess_content_type(os.fspath(path))
        try:
            with open(path, "rb") as file:
                return self.save(model, name, file, **details)
        except IsADirectoryError as error:
            raise ValidationError(
                f"{os.fspath(path)} is a directory", hint="Save one file at a time, or an archive."
            ) from error
        except FileNotFoundError as error:
            if error.filename != os.fspath(path):
                raise
            raise NotFoundError(
                f"the file {os.fspath(path)} does not exist", hint="Check the path."
            ) from error

    @contextmanager
    def writer(
        self, model: str | ModelRef, name: str, draft: Draft | None = None
    ) -> Iterator[VersionWriter]:
        """Claim the next version and yield a writer for it; it is visible when the block ends."""
        ref = self._new(model, name)
        with self._repo.store.open_writer(ref, draft or Draft(inherits=True)) as writer:
            yield writer

    def append(self, model: str | ModelRef, name: str, data: bytes | str | BinaryIO) -> Artifact:
        """Add to the latest version, which must have been saved with `streaming`.

        What a file holds is added as a whole, or not at all; nobody else can save meanwhile.
        """
        ref = self._ref(model, name)
        pieces = _pieces(data)
        if held := self._repo.holder(ref):
            return self._at(ref, held.store.append(ref, b"".join(pieces)))
        self._bring(self._repo.latest(ref.model, name))
        return self._repo.just_written(ref, self._repo.store.append(ref, pieces))

    def deferring(self, *, prunes: bool = True) -> Deferral:
        """Return a group of versions that become latest together, for a `with` block.

        Who may have to take them back afterwards lets the commit prune nothing.
        """
        from swampstore.artifacts.groups import Deferral

        return Deferral(self._repo.store, prunes=prunes)

    def delete(self, model: str | ModelRef, name: str, *, version: int | None = None) -> Deleted:
        """Delete one version, or the name with all of them; raise NotFoundError without any."""
        ref = self._ref(model, name)
        if held := self._repo.holder(ref):
            return Deleted(held.store.delete(ref), 0)
        if version is not None:
            if not self._is_damaged(ref, version):
                self._repo.version(ref.model, name, version)
            return self._repo.store.delete_versions(ref, [version])
        try:
            self._repo.require_name(ref.model, name)
        except NotFoundError:
            if not any(self._is_damaged(ref, one) for one in own_numbers(self._repo.tree, ref)):
                raise
        return self._repo.store.delete(ref)

    def _is_damaged(self, ref: DataRef, version: int) -> bool:
        """Whether there is metadata of a version that nobody can read: no catalog knows of it."""
        try:
            read_metadata(self._repo.tree, ref, version)
        except MetadataError:
            return True
        return False

    def rename(self, model: str | ModelRef, old: str, new: str) -> Renamed:
        """Give the latest content another name; the old one forwards to it."""
        from swampstore.artifacts.rename import rename

        ref = self._ref(model, old)
        self._bring(self._repo.latest(ref.model, old))
        return rename(self._repo.store, ref, new)

    def mark_deleted(self, model: str | ModelRef, name: str, *, method: str) -> Artifact:
        """Save a tombstone: the thing that the data describes was deleted by `method`."""
        ref = self._ref(model, name)
        if latest := self._repo.latest(ref.model, name, default=None):
            self._bring(latest)
        return self._repo.just_written(ref, self._repo.store.mark_deleted(ref, method))

    def _bring(self, artifact: Artifact) -> None:
        """Fetch content that something new is going to be made from, if it is on the remote."""
        if self._repo.config.remote is not None:
            artifact.open().close()

    def _new(self, model: str | ModelRef, name: str) -> DataRef:
        ref = DataRef(self._repo.model(model), check_data_name(name))
        self._repo.check_session(ref.model)
        return ref

    def _ref(self, model: str | ModelRef, name: str) -> DataRef:
        ref = self._repo.ref(model, name)
        self._repo.check_session(ref.model)
        return ref

    def _at(self, ref: DataRef, metadata: Metadata) -> Artifact:
        return self._repo.version(ref.model, ref.name, metadata.version)


def _content(content: Any) -> tuple[BinaryIO | None, bytes, str]:
    """Return (stream, bytes, guessed content type); one of the first two holds the content."""
    if isinstance(content, bytes | bytearray | memoryview):
        return None, bytes(content), "application/octet-stream"
    if isinstance(content, str):
        return None, content.encode(), "text/plain"
    if isinstance(content, io.TextIOBase):
        raise ValidationError("the file is open as text", hint="Open it in binary mode, 'rb'.")
    if not isinstance(content, Mapping | list) and hasattr(content, "read"):
        return content, b"", guess_content_type(str(getattr(content, "name", "")))
    if table := encoded(content):
        return None, *table
    try:
        return None, to_json_bytes(content), JSON
    except (TypeError, ValueError) as error:
        raise ValidationError(
            f"the content cannot be written as JSON: {error}",
            hint="Pass bytes, text, a Path, an open file, or dicts, lists, numbers and strings.",
        ) from error


def _pieces(data: bytes | str | BinaryIO) -> Iterator[bytes]:
    """Yield content that is to be appended, that of a file in pieces."""
    if isinstance(data, str):
        yield data.encode()
    elif isinstance(data, bytes | bytearray | memoryview):
        yield bytes(data)
    else:
        while piece := data.read(_PIECE):
            yield piece
