"""`swamp://MODEL/NAME[@VERSION]`: artifacts as files, for whatever opens files by fsspec.

    pandas.read_parquet("swamp://aws/ec2/i-1/metrics")

Only fsspec itself loads this, by the entry point `swamp`.
"""

from __future__ import annotations

import io
import sys
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, BinaryIO, ClassVar, cast

from fsspec.spec import AbstractFileSystem

from swampstore.artifact import Artifact
from swampstore.artifacts.frames import PARQUET
from swampstore.artifacts.metadata import guess_content_type
from swampstore.errors import NotFoundError, ValidationError
from swampstore.layout import check_data_name, split_address
from swampstore.notices import notice
from swampstore.repo import Repo, open_repo

_IN_MEMORY = 8 << 20
_PARQUET_BEGINS = b"PAR1"


class SwampFiles(AbstractFileSystem):  # type: ignore[misc] # fsspec has no types
    """The artifacts of a repository: each model is a directory, each data name a file.

    `repo` is an open repository or the path of one; default: `SWAMP_REPO_DIR`, else the current
    directory. `datastore` replaces the configured one. Files are read, and written as a whole: the
    next version is saved when the file is closed.
    """

    protocol: ClassVar[str] = "swamp"
    cachable: ClassVar[bool] = False  # the current directory may be another one the next time

    def __init__(
        self, repo: Repo | str | None = None, datastore: str | None = None, **options: Any
    ) -> None:
        super().__init__(**options)
        self._repo = repo
        self._datastore = datastore

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """Return what is known of a data name or a model; raise FileNotFoundError if nothing."""
        path = self._strip_protocol(path)
        with self._opened() as repo:
            try:
                return _info(path, repo.at(path))
            except (NotFoundError, ValidationError) as error:
                try:
                    repo.list_data(path)
                except (NotFoundError, ValidationError):
                    raise _absent(path, error) from error
                return {"name": path, "size": 0, "type": "directory"}

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        """Return the data names of a model, or the one file that the path is."""
        path = self._strip_protocol(path)
        with self._opened() as repo:
            try:
                found = [_info(f"{path}/{one.name}", one) for one in repo.list_data(path)]
            except (NotFoundError, ValidationError):
                found = [self.info(path)]
        return found if detail else [one["name"] for one in found]

    def created(self, path: str) -> Any:
        """Return when the version was written."""
        return self.info(path)["created"]

    modified = created

    def _open(
        self, path: str, mode: str = "rb", autocommit: bool = True, **_: Any
    ) -> BinaryIO | SavedOnClose:
        if mode == "rb":
            with self._opened() as repo:
                try:
                    return repo.at(path).open()
                except NotFoundError as error:
                    raise _absent(path, error) from error
        if mode != "wb":
            raise ValidationError(
                f"swamp://{path} cannot be opened with mode {mode!r}",
                hint="Read it with 'rb', or write a new version with 'wb'.",
            )
        model, name, version = split_address(path)
        if version is not None:
            raise ValidationError(
                f"swamp://{path} names a version, and versions do not change",
                hint=f"Write the next one: swamp://{model}/{name}",
            )
        with self._opened() as repo:
            repo.model(model)  # before anything is written in vain
            check_data_name(name)

        def save(content: BinaryIO) -> None:
            begins = content.read(len(_PARQUET_BEGINS))
            content.seek(0)
            is_parquet = begins == _PARQUET_BEGINS  # `df.to_parquet` rarely names it `.parquet`
            kind = PARQUET if is_parquet else guess_content_type(name)
            with self._opened() as repo:
                repo.save(model, name, content, content_type=kind)

        return SavedOnClose(f"swamp://{path}", save, autocommit=autocommit)

    def _opened(self) -> AbstractContextManager[Repo]:
        if isinstance(self._repo, Repo):
            return nullcontext(self._repo)
        return open_repo(self._repo, datastore=self._datastore)


class SavedOnClose(io.BufferedIOBase):
    """A file that becomes a version when it is closed, and nothing at all after an exception.

    fsspec and its users close files in `finally`, without a word about why. So an exception that is
    on its way at that moment, and was not when the file was opened, means that it is not complete.
    """

    def __init__(self, url: str, save: Callable[[BinaryIO], None], *, autocommit: bool) -> None:
        super().__init__()
        self._url = url
        self._save = save
        self._autocommit = autocommit
        self._handled = sys.exc_info()[1]
        self._spool = cast("BinaryIO", tempfile.SpooledTemporaryFile(_IN_MEMORY))  # noqa: SIM115

    def writable(self) -> bool:
        """Yes."""
        return True

    def seekable(self) -> bool:
        """No: what is written stays."""
        return False

    def tell(self) -> int:
        """Return how much was written."""
        return self._spool.tell()

    def write(self, data: Any, /) -> int:
        """Write the next bytes."""
        return self._spool.write(data)

    def close(self) -> None:
        """Save what was written, unless an exception ends the writing."""
        if self.closed:
            return
        try:
            if sys.exc_info()[1] is not self._handled:
                notice("%s was not saved, because writing it ended with an error", self._url)
                self.discard()
            elif self._autocommit:
                self.commit()
        finally:
            super().close()

    def commit(self) -> None:
        """Save what was written; fsspec calls this at the end of a transaction."""
        if not self._spool.closed:
            with self._spool as content:
                content.seek(0)
                self._save(content)

    def discard(self) -> None:
        """Forget what was written."""
        self._spool.close()

    def __del__(self) -> None:
        # Whoever never closed it has not finished it; the base class would close it now.
        self.discard()
        super().close()


def _info(path: str, found: Artifact) -> dict[str, Any]:
    return {
        "name": path,
        "size": found.size,
        "type": "file",
        "version": found.version,
        "created": found.created,
        "content_type": found.content_type,
        "checksum": found.checksum,
    }


def _absent(path: str, error: NotFoundError | ValidationError) -> FileNotFoundError:
    """Return the error that users of files expect, with all that ours says."""
    return FileNotFoundError(2, f"{error.message}. {error.hint or ''}".strip(), f"swamp://{path}")
