"""What a command writes: shown at once, kept in a log of any size, and looked into if it is small.

Secrets are taken out before anybody sees it. The log is a file of this machine until the run ends;
then it becomes the artifact `log`, or the log file beside the record.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import threading
import time
from collections.abc import Callable
from typing import IO, TYPE_CHECKING, Any, Self

from swampstore.artifacts.content import LARGEST_PARSED
from swampstore.files import disk_errors, sync_dir, write_all
from swampstore.layout import LOCAL_DIR
from swampstore.runs.outputs import LIVE_LOGS, live_log, stem
from swampstore.runs.processes import STDERR, STDOUT

if TYPE_CHECKING:
    from swampstore.artifacts.streaming import VersionWriter
    from swampstore.layout import ModelRef
    from swampstore.redaction import Redactor
    from swampstore.repo import Repo
    from swampstore.runs.writing import Handle, Spec, Writing

_IN_MEMORY = 1 << 18
_PIECE = 1 << 20
LONGEST_TEXT = 1 << 20
_OLD = 7 * 24 * 3600.0


class RunLog:
    """The log of one run, made when the first byte comes. Several threads may write to it.

    `is_empty` says that there is nothing to be kept, or no longer.
    """

    def __init__(self, repo: Repo, run_id: str) -> None:
        self._repo = repo
        self.path = live_log(repo, run_id)
        self._fd = -1
        self._guard = threading.Lock()
        self.is_empty = True

    def write(self, data: bytes) -> None:
        """Append bytes; raise DiskError if the disk refuses."""
        if data:
            with self._guard, disk_errors(self.path):
                if self._fd < 0:
                    self._fd = self._create()
                    self.is_empty = False
                write_all(self._fd, data)

    def _create(self) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        try:
            return os.open(self.path, flags, 0o666)
        except FileNotFoundError:
            os.makedirs(os.path.dirname(self.path), exist_ok=True)
            return os.open(self.path, flags, 0o666)

    def close(self) -> None:
        """Make what was written durable, if that is wanted."""
        if self._fd >= 0:
            with disk_errors(self.path):
                if self._repo.config.durable:
                    os.fsync(self._fd)
                os.close(self._fd)
                self._fd = -1

    def to_artifact(self, writing: Writing, spec: Spec) -> Handle:
        """Make the log an artifact, without a copy where that is possible."""
        self.close()
        writer = writing.open_writer(spec, spec.name)
        try:
            if not self.is_empty:
                with disk_errors(self.path):
                    self._hand_over(writer)
            handle = writing.finalize(spec, writer)
        except BaseException:
            writer.abort()
            raise
        self.drop()
        return handle

    def _move(self, target: str) -> bool:
        try:
            os.replace(self.path, target)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            return False
        return True

    def _hand_over(self, writer: VersionWriter) -> None:
        if not self._move(writer.path):
            with open(self.path, "rb") as file, open(writer.path, "wb") as target:
                while piece := file.read(_PIECE):
                    target.write(piece)
                if self._repo.config.durable:
                    target.flush()
                    os.fsync(target.fileno())

    def to_file(self, model: ModelRef, method: str, started_at: str) -> str | None:
        """Put the log beside the record of its run; return what the record calls it."""
        self.close()
        if self.is_empty or not os.path.exists(self.path):
            return None
        tree = self._repo.tree
        rel = f"{stem(model, method, started_at)}.log"
        path = tree.path(rel)
        with disk_errors(path):
            os.makedirs(os.path.dirname(path), exist_ok=True)
        with tree.changing(rel) as change:
            if not self._move(path):
                with open(self.path, "rb") as file:
                    fd = change.create(rel)
                    try:
                        while piece := file.read(_PIECE):
                            write_all(fd, piece)
                    finally:
                        os.close(fd)
            if tree.durable:
                sync_dir(os.path.dirname(path))
        self.drop()
        return f"{LOCAL_DIR}/{rel}"

    def drop(self) -> None:
        """Remove what is left of it here, and of runs that were killed long ago."""
        self.is_empty = True
        with contextlib.suppress(OSError):
            os.unlink(self.path)
        before = time.time() - _OLD
        directory = f"{self._repo.config.local_dir}/{LIVE_LOGS}"
        with contextlib.suppress(OSError), os.scandir(directory) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    if entry.stat(follow_symlinks=False).st_mtime < before:
                        os.unlink(entry.path)


class Capture:
    """Takes what a command writes, for `run_command`; use it in a `with` block."""

    def __init__(self, log: RunLog, redactor: Redactor, show: Callable[[str, bytes], None]) -> None:
        self._log = log
        self._show = show
        self._streams = {name: redactor.stream() for name in (STDOUT, STDERR)}
        self._kept = {
            STDOUT: _Kept(LARGEST_PARSED, f"{log.path}.out"),
            STDERR: _Kept(LONGEST_TEXT, f"{log.path}.err"),
        }

    def take(self, stream: str, data: bytes) -> None:
        """Take the next bytes of `stdout` or `stderr`."""
        self._pass_on(stream, self._streams[stream].feed(data))

    def finish(self) -> None:
        """Take what waited for more."""
        for name, stream in self._streams.items():
            self._pass_on(name, stream.finish())

    def _pass_on(self, stream: str, shown: bytes) -> None:
        if shown:
            self._log.write(shown)
            self._kept[stream].write(shown)
            self._show(stream, shown)

    def document(self) -> Any:
        """Return what the command printed if that is one JSON object or list, else None."""
        kept = self._kept[STDOUT]
        first = kept.read(64).lstrip()[:1]
        if first not in (b"{", b"[") or kept.is_cut:
            return None
        try:
            found = json.loads(kept.read())
            # Python reads more than JSON is: NaN, numbers without end, halves of characters.
            json.dumps(found, allow_nan=False, ensure_ascii=False).encode()
        except (ValueError, RecursionError):
            return None
        return found

    def text(self, stream: str) -> tuple[str, bool]:
        """Return the beginning of what came from a stream, and whether there was more."""
        kept = self._kept[stream]
        text = kept.read(LONGEST_TEXT).decode("utf-8", "replace")
        return text, kept.is_cut or kept.size > LONGEST_TEXT

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        for kept in self._kept.values():
            kept.close()


class _Kept:
    """The beginning of a stream: in memory if it is small, else in a file without a name."""

    def __init__(self, limit: int, path: str) -> None:
        self._limit = limit
        self._path = path
        self._file: IO[bytes] = io.BytesIO()
        self.size = 0
        self.is_cut = False

    def write(self, data: bytes) -> None:
        room = self._limit - self.size
        self.is_cut |= len(data) > room
        if self.size <= _IN_MEMORY < self.size + len(data):
            self._go_to_disk()
        with disk_errors(self._path):
            self.size += self._file.write(data[:room])

    def _go_to_disk(self) -> None:
        with disk_errors(self._path):
            file = open(self._path, "w+b")  # noqa: SIM115 - see `close`
            os.unlink(self._path)
            file.write(self.read())
        self._file = file

    def read(self, size: int = -1) -> bytes:
        self._file.seek(0)
        data = self._file.read(size)
        self._file.seek(0, os.SEEK_END)
        return data

    def close(self) -> None:
        self._file.close()
