"""Where lines of the audit are kept until they are shared, and how they come to be.

A datastore that is used in place has one file a day for each copy of a repository, and every line
goes right there. In front of a remote a line goes into an open segment, a file of the local tier
that no sync sees: a `data put` must not cost a request more for its event. A push of everything
seals the open segments, which makes them files of `audit/` that never change again; any other push
only seals those that are large, or whose day is over, and takes them along.

    open:     .swamp/swampstore.audit/{place}/commands-2026-05-14-{machine}-{token}.jsonl
    sealing:  the same, with `.sealing` at the end
    sealed:   audit/commands-2026-05-14-{machine}-{token}.jsonl

The name stays the same, so that a kill in between neither loses nor doubles a line.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import uuid
import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from swampstore.clock import to_iso
from swampstore.config import Config
from swampstore.errors import SwampstoreError
from swampstore.files import (
    Tree,
    alone,
    disk_errors,
    open_shared,
    read_file,
    read_to_end,
    replace_file,
    sync_dir,
    write_all,
)
from swampstore.layout import AUDIT
from swampstore.notices import notice

if TYPE_CHECKING:
    from swampstore.sync.opening import OpenRepo

HOME = "swampstore.audit"
LARGE = 64 * 1024
_LOCK = "lock"
_MACHINE = "swampstore.machine"
_SEALING = ".sealing"
_MOVING = "moving"
_NAME = re.compile(r"(commands|vault-audit|vault-reads)-(\d{4}-\d\d-\d\d)(?:-.*)?\.jsonl")


class Lines(NamedTuple):
    """The content of one file: the series that it belongs to, and its day."""

    series: str
    day: str
    name: str
    data: bytes


# Writing -----------------------------------------------------------------------------------------


def append(repo: OpenRepo, series: str, timestamp: str, line: bytes) -> None:
    """Add a line, without its newline, durably; raise SwampstoreError or OSError if that fails."""
    _finish_move(repo.config)
    day = timestamp[:10]
    stem = f"{series}-{day}-{_machine(repo.config)}"
    with _alone(repo.config):
        if _is_in_place(repo):
            _settle(repo, everything=True)
            _append_in_place(repo.tree, f"{AUDIT}/{stem}.jsonl", line)
        else:
            home = _home(repo.config)
            os.makedirs(home, exist_ok=True)
            _append_locally(home, stem, line, durable=repo.tree.durable)
    repo.recorded += 1


def _append_in_place(tree: Tree, rel: str, line: bytes) -> None:
    path = tree.path(rel)
    with tree.changing(rel) as change:
        size = tree.size(rel)
        if size is None:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            os.close(change.create(rel))
            _sync_dir(os.path.dirname(path), durable=tree.durable)
        try:
            change.append(rel, _completing(path, line))
        except OSError:
            with contextlib.suppress(OSError):
                change.truncate(rel, size or 0)
            raise


def _append_locally(home: str, stem: str, line: bytes, *, durable: bool) -> None:
    known = [name for name in os.listdir(home) if name.startswith(stem) and _NAME.fullmatch(name)]
    path = f"{home}/{known[0] if known else f'{stem}-{uuid.uuid4().hex[:8]}.jsonl'}"
    fd = open_shared(path)
    try:
        size = os.fstat(fd).st_size
        os.lseek(fd, 0, os.SEEK_END)
        try:
            write_all(fd, _completing(path, line))
            if durable:
                os.fsync(fd)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(fd, size)
            raise
    finally:
        os.close(fd)
    if not known:
        _sync_dir(home, durable=durable)


def _completing(path: str, line: bytes) -> bytes:
    """Return the bytes to add for a line, which begin with the end of a dead writer's half line."""
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 1))
        is_torn = size > 0 and file.read(1) != b"\n"
    return b"\n" + line + b"\n" if is_torn else line + b"\n"


# Sealing -----------------------------------------------------------------------------------------


def seal(repo: OpenRepo, *, everything: bool) -> int:
    """Make segments files of the datastore that never change again; return how many.

    Those that are large or of a day that is over, or `everything`. What cannot be sealed now stays
    where it is, with a notice: nobody's push fails because of it.
    """
    _finish_move(repo.config)
    if not os.path.isdir(_home(repo.config)):
        return 0
    try:
        with _alone(repo.config):
            return _settle(repo, everything=everything)
    except (SwampstoreError, OSError) as error:
        notice("events of the audit stay on this machine for now: %s", error)
        return 0


def _settle(repo: OpenRepo, *, everything: bool) -> int:
    home, today = _home(repo.config), to_iso(repo.clock())[:10]
    sealed = 0
    for file in _names_in(home):
        name = file.removesuffix(_SEALING)
        found = _NAME.fullmatch(name)
        if found is None:
            continue
        if file == name:
            is_due = everything or found[2] != today or os.stat(f"{home}/{file}").st_size >= LARGE
            if not is_due:
                continue
            os.rename(f"{home}/{file}", f"{home}/{name}{_SEALING}")
        _share(repo.tree, f"{AUDIT}/{name}", f"{home}/{name}{_SEALING}")
        sealed += 1
    return sealed


def _share(tree: Tree, rel: str, path: str) -> None:
    """Give the datastore what a segment holds, then forget it here; both may be done again.

    A checkout that was copied has segments of the original: what is shared already is not
    replaced, and what only the copy has gets a name of its own.
    """
    data = read_file(path) or b""
    known = tree.read(rel)
    if known is not None:
        before = frozenset(known.splitlines())
        data = b"".join(
            line for line in data.splitlines(keepends=True) if line.strip() not in before
        )
        with tree.changing(rel):
            pass  # whoever wrote it may have been killed before they announced it again
        rel = f"{rel.removesuffix('.jsonl')}-{zlib.crc32(data):08x}.jsonl"
    if data:
        with tree.changing(rel) as change:
            directory = os.path.dirname(tree.path(rel))
            os.makedirs(directory, exist_ok=True)
            change.write(rel, data)
            _sync_dir(directory, durable=tree.durable)
    os.unlink(path)


def announce_move(old: Config, new: Config) -> None:
    """Say, before the settings change, where what was not shared yet is to go when they have.

    Whoever is killed before `carry_over` leaves that to the next one who writes, seals or reads.
    """
    before, after = _home(old), _home(new)
    if before != after and os.path.isdir(before):
        told = f"{os.path.basename(before)}\n{os.path.basename(after)}"
        path = f"{old.local_dir}/{HOME}/{_MOVING}"
        with disk_errors(path):
            replace_file(path, told.encode(), durable=old.durable)


def carry_over(old: Config, new: Config) -> None:
    """Let what was not shared yet go with the repository to another datastore or namespace.

    From then on its files have other names: those from before may come along, or come back.
    """
    before, after = _home(old), _home(new)
    if before == after:
        return
    with contextlib.suppress(OSError):
        os.unlink(f"{old.local_dir}/{_MACHINE}")
    try:
        announce_move(old, new)  # there may have been nothing yet when that was done before
    except SwampstoreError as error:
        notice("events of the audit stay in %s: %s", before, error)
    _finish_move(new)


def _finish_move(config: Config) -> None:
    """Move what was announced to go where these settings say, if anything was."""
    home, after = f"{config.local_dir}/{HOME}", _home(config)
    announced = f"{home}/{_MOVING}"
    if not os.path.lexists(announced):
        return
    try:
        with _alone(config):
            told = (read_file(announced) or b"").decode("utf-8", "replace")
            before, _, name = told.partition("\n")
            if name != os.path.basename(after):
                return
            os.makedirs(after, exist_ok=True)
            for file in _names_in(f"{home}/{before}"):
                sealing = f"{after}/{file.removesuffix(_SEALING)}{_SEALING}"
                os.rename(f"{home}/{before}/{file}", sealing)
            with contextlib.suppress(FileNotFoundError):
                os.rmdir(f"{home}/{before}")
            os.unlink(announced)
    except OSError as error:
        notice("events of the audit stay in %s: %s", home, error)


# Reading -----------------------------------------------------------------------------------------


def files(repo: OpenRepo, since: str = "", until: str = "~") -> Iterator[list[Lines]]:
    """Yield the files that are known here, those of one day together, the oldest day first.

    `since` and `until` are the first and the last day, as files are named.
    """
    _finish_move(repo.config)
    # Open segments come first: what is sealed meanwhile is then seen once more, under its name.
    places = [_home(repo.config), *repo.tree.places(AUDIT)]
    days: dict[str, dict[str, tuple[str, str]]] = {}
    for place in places:
        for file in _names_in(place):
            found = _NAME.fullmatch(file.removesuffix(_SEALING))
            if found is not None and since <= found[2] <= until:
                days.setdefault(found[2], {})[found[0]] = (found[1], f"{place}/{file}")
    for day in sorted(days):
        read = (
            Lines(series, day, name, _content(places, name, path))
            for name, (series, path) in sorted(days[day].items())
        )
        yield [one for one in read if one.data]


def _content(places: list[str], name: str, path: str) -> bytes:
    data = _read(path)
    if data is None:  # sealed meanwhile
        later = (_read(f"{place}/{name}") for place in places)
        data = next((one for one in later if one is not None), b"")
    return data


def _read(path: str) -> bytes | None:
    """Return what a file holds, None if it is not there; what cannot be read holds nothing."""
    try:
        # Nothing that is no file can make the opening wait.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        if stat.S_ISREG(os.fstat(fd).st_mode):
            return read_to_end(fd)
        os.close(fd)
        reason = "it is no file"
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        reason = error.strerror or str(error)
    notice("%s is left out of the audit: %s", path, reason)
    return b""


# Places ------------------------------------------------------------------------------------------


def _is_in_place(repo: OpenRepo) -> bool:
    """Whether the audit of this repository is where it belongs as soon as it is written."""
    return repo.config.remote is None or repo.tree.routing.is_local(f"{AUDIT}/x")


def _home(config: Config) -> str:
    """Return the directory of the segments that belong to one datastore and namespace."""
    place = repr(config.remote.place) if config.remote else config.base
    key = zlib.crc32(f"{place}\0{config.namespace}".encode("utf-8", "backslashreplace"))
    return f"{config.local_dir}/{HOME}/{config.namespace or '_'}-{key:08x}"


def _machine(config: Config) -> str:
    """Return a name that no other copy of the repository has, here or elsewhere."""
    path = f"{config.local_dir}/{_MACHINE}"
    if not (known := read_file(path)):
        os.makedirs(config.local_dir, exist_ok=True)
        replace_file(path, uuid.uuid4().hex[:8].encode(), durable=False)
        known = read_file(path) or b""
    host = re.sub(r"[^A-Za-z0-9-]", "-", os.uname().nodename)[:60]
    # The file may have been copied together with the rest of the directory.
    where = zlib.crc32(os.path.realpath(config.repo_dir).encode("utf-8", "backslashreplace"))
    return f"{host}-{known.decode('ascii', 'replace').strip()}-{where & 0xFFFF:04x}"


@contextlib.contextmanager
def _alone(config: Config) -> Iterator[None]:
    home = f"{config.local_dir}/{HOME}"
    os.makedirs(home, exist_ok=True)
    with alone(f"{home}/{_LOCK}"):
        yield


def _names_in(directory: str) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _sync_dir(path: str, *, durable: bool) -> None:
    if durable:
        sync_dir(path)
