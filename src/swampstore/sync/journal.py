"""The journal: our own exact record of what was marked, in the order in which it was.

Each line is a checksum and a record: a path, or an array that says "everything", that a push
began, or that something at or below a path may be removed. Without such a word absence is no
deletion: somebody may have emptied the cache. Of several marks of one path only the last one
matters, so rewriting the journal without the others never changes what it says. Whatever cannot
be read counts as "everything", and is replaced by that record at the next write; but a journal
whose first line tells a higher version than ours belongs to a newer release, and is left alone.
"""

from __future__ import annotations

import errno
import json
import os
import zlib
from collections.abc import Container, Iterable

from swampstore.files import replace_file
from swampstore.formats import refuse_newer, whole_number

JOURNAL = "_catalog.db-dirty"

Record = str | tuple[str, ...]
EVERYTHING: Record = ("everything",)
_PUSH = "push"
_REMOVAL = "removal"
_HEADER = "journal"
# So many lines that say nothing new make a rewrite worth while.
_MUCH_WASTE = 1000
# A push that so many others began after is long dead; if it is not, it settles nothing.
_MANY_PUSHES = 100


class Marks:
    """What the records of a journal amount to: the number of the last record of each kind.

    A removal is a mark of its path as well.
    """

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self.paths: dict[str, int] = {}
        self.removals: dict[str, int] = {}
        self.everything: int | None = None
        self.count = 0
        self._latest = 0
        self._pushes: dict[str, int] = {}
        for record in records:
            self.add(record)

    def add(self, record: Record) -> None:
        """Take in the next record."""
        self.count += 1
        if isinstance(record, str):
            self.paths[record] = self.count
        elif is_removal(record):
            self.paths[record[1]] = self.removals[record[1]] = self.count
        elif _is_push(record):
            self._pushes[record[1]] = self._latest = self.count
            if len(self._pushes) > _MANY_PUSHES:
                del self._pushes[next(iter(self._pushes))]
        else:
            self.everything = self.count

    def marked(self) -> list[Record]:
        """Return all that is marked."""
        return [*self.paths] if self.everything is None else [*self.paths, EVERYTHING]

    def is_fresh(self, record: Record) -> bool:
        """Whether a mark is there that no push began after."""
        if isinstance(record, str):
            number = self.paths.get(record)
        elif is_removal(record):
            number = self.removals.get(record[1])
        else:
            number = self.everything
        return (number or 0) > self._latest

    def knows(self, push: str) -> bool:
        """Whether it can still be told what was marked before a push began."""
        return push in self._pushes

    def latest_push(self) -> str | None:
        """Return the push that nothing was marked after, None if something was."""
        return next(reversed(self._pushes)) if 0 < self._latest == self.count else None

    def records(self) -> list[Record]:
        """Return the shortest list of records that says the same."""
        return [record for _, record in self._in_order()]

    @property
    def waste(self) -> int:
        """How many of the records say nothing new."""
        return self.count - len(self._in_order())

    def settled(self, push: str, paths: Container[str], *, everything: bool) -> list[Record]:
        """Return the records that are left when a push is through with some of its marks."""
        began = self._pushes[push]
        left: list[Record] = []
        for number, record in self._in_order():
            if number > began:
                keep = True
            elif _is_push(record):
                keep = bool(left)  # a push that nothing was marked before has nothing to settle
            else:
                keep = not (everything if record == EVERYTHING else path_of(record) in paths)
            if keep:
                left.append(record)
        return left

    def _in_order(self) -> list[tuple[int, Record]]:
        found: list[tuple[int, Record]] = [
            (number, path)
            for path, number in self.paths.items()
            if self.removals.get(path) != number
        ]
        found += [(number, removal(path)) for path, number in self.removals.items()]
        found += [(number, (_PUSH, push)) for push, number in self._pushes.items()]
        if self.everything is not None:
            found.append((self.everything, EVERYTHING))
        return sorted(found, key=lambda one: one[0])


def removal(path: str) -> Record:
    """Return the record that something at or below a path may be removed."""
    return (_REMOVAL, path)


def is_removal(record: Record) -> bool:
    """Whether a record says that something may be removed."""
    return isinstance(record, tuple) and len(record) == 2 and record[0] == _REMOVAL


def path_of(record: Record) -> str | None:
    """Return the path that a record marks, None if it marks none."""
    if isinstance(record, str):
        return record
    return record[1] if is_removal(record) else None


def _is_push(record: Record) -> bool:
    return isinstance(record, tuple) and len(record) == 2 and record[0] == _PUSH


def _encode(records: Iterable[Record]) -> bytes:
    lines = []
    for record in records:
        text = json.dumps(record).encode()
        lines.append(b"%08x %b\n" % (zlib.crc32(text), text))
    return b"".join(lines)


def _decode(line: bytes) -> Record | None:
    """Return the record of a line, None if it is damaged."""
    text = line[9:]
    if line[:9] != b"%08x " % zlib.crc32(text):
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if isinstance(found, list) and all(isinstance(part, str) for part in found):
        return tuple(found)
    return found if isinstance(found, str) else None


def _new_header() -> bytes:
    return _encode([(_HEADER, _random_id())])


def _random_id() -> str:
    return os.urandom(8).hex()


def _write_whole(fd: int, data: bytes) -> None:
    if os.write(fd, data) < len(data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


_HEADER_SIZE = len(_encode([(_HEADER, "0" * 16)]))


# With room for a version, which the first line of a newer journal has behind the id.
_LONGEST_HEADER = _HEADER_SIZE + 32


def _is_header(data: bytes) -> bool:
    record = _decode(data[:-1])
    return data.endswith(b"\n") and isinstance(record, tuple) and record[:1] == (_HEADER,)


def _version_of(start: bytes) -> int | None:
    """Return the version that a journal which begins like this tells, None if it tells none."""
    record = _decode(start.partition(b"\n")[0])
    if isinstance(record, tuple) and record[:1] == (_HEADER,) and len(record) > 2:
        return whole_number(record[2])
    return None


class Journal:
    """The journal file of one cache. Whoever calls a method holds the lock of the marks.

    `marks` is what it said when it was last refreshed, and what was written here since.
    """

    def __init__(self, path: str, *, durable: bool) -> None:
        self.marks = Marks()
        self.exists = False
        self._path = path
        self._durable = durable
        # The first line is different in every file, and tells them apart as no inode number can.
        self._header: bytes | None = None
        self._size = 0
        self._can_append = False
        self._is_flushed = False

    @property
    def is_damaged(self) -> bool:
        """Whether some of it could not be read when it was last refreshed."""
        return self.exists and not self._can_append

    def refresh(self) -> None:
        """Take in what other processes wrote; costs no more than what they added.

        Raises NewerFormatError.
        """
        try:
            fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            self._start_over(None)
            self.exists = False
            return
        except OSError:
            self._start_over(None)
            self.distrust()
            return
        try:
            self._catch_up(fd)
        finally:
            os.close(fd)

    def distrust(self) -> None:
        """Count what the journal says as incomplete."""
        self.marks.add(EVERYTHING)
        self._can_append = False

    def note(self, records: list[Record]) -> None:
        """Write marks down, except those that are there already and that no push began after."""
        new = [record for record in records if not self.marks.is_fresh(record)]
        if new or (records and not self._can_append):
            self._append(new)
        elif records and self._durable and not self._is_flushed:
            self._flush()  # whoever wrote them may have been killed before that

    def begin_push(self) -> str:
        """Note that a push begins, and return its name."""
        push = self.marks.latest_push()
        if push is None:
            push = _random_id()
            if self.marks.waste > _MUCH_WASTE:
                self._rewrite(self.marks.records())
            self._append([(_PUSH, push)])
        return push

    def settle(self, push: str, paths: Container[str], *, everything: bool) -> bool:
        """Drop marks that a push is through with; False if it cannot be told which they are."""
        if not self.marks.knows(push):
            return False
        left = self.marks.settled(push, paths, everything=everything)
        if len(left) < self.marks.count:
            self._rewrite(left)
        return True

    def _catch_up(self, fd: int) -> None:
        try:
            size = os.fstat(fd).st_size
            start = os.pread(fd, _LONGEST_HEADER, 0)
            refuse_newer("journal", _version_of(start), self._path)
            header = start[:_HEADER_SIZE]
            if header != self._header or size < self._size:
                self._start_over(header)
            if size > self._size:
                self._replay(os.pread(fd, size - self._size, self._size))
        except OSError:
            self._start_over(None)
            self.distrust()

    def _start_over(self, header: bytes | None) -> None:
        self.marks = Marks()
        self.exists = True
        self._size = 0
        self._header = None
        self._can_append = self._is_flushed = False
        if header is not None and _is_header(header):
            self._header = header
            self._size = _HEADER_SIZE
            self._can_append = True
        elif header is not None:
            self.distrust()

    def _replay(self, data: bytes) -> None:
        *lines, torn = data.split(b"\n")
        for record in map(_decode, lines):
            if record is None:
                self.distrust()
            else:
                self.marks.add(record)
        if torn:
            self.distrust()
        self._size += len(data)
        self._is_flushed = False

    def _append(self, records: list[Record]) -> None:
        if not self._can_append:
            self._rewrite([*self.marks.records(), *records])
            return
        data = _encode(records)
        fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        try:
            _write_whole(fd, data)
            if self._durable:
                os.fsync(fd)
        except BaseException:
            os.ftruncate(fd, self._size)
            raise
        finally:
            os.close(fd)
        for record in records:
            self.marks.add(record)
        self._size += len(data)
        self._is_flushed = True

    def _flush(self) -> None:
        fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
        self._is_flushed = True

    def _rewrite(self, records: list[Record]) -> None:
        header = _new_header()
        data = header + _encode(records)
        replace_file(self._path, data, durable=self._durable)
        self.marks = Marks(records)
        self.exists = self._can_append = self._is_flushed = True
        self._size = len(data)
        self._header = header
