"""Where the simulation takes the place of the operating system, once and for the whole process.

A call is only another one in the thread of a machine: all others are passed on as they are. A
machine that was killed can change nothing any more, whatever its `finally` blocks try.
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import fcntl
import functools
import gc
import os
import random
import sqlite3
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from threading import get_ident
from types import SimpleNamespace
from typing import Any

from swampstore.layout import SIDECAR
from swampstore.stores import probe
from swampstore.stores.probe import Finding, ProbeReport
from tests.fleet.bucket import BUCKETS, FleetStore
from tests.fleet.memoised import remember_what_was_read
from tests.fleet.oracle import PEER
from tests.fleet.world import ACTORS, REPO_ID, Actor, Heart, Killed, current

_CHANGES = ("mkdir", "rename", "replace", "unlink", "remove", "rmdir", "link", "symlink")
_AFTERWARDS = ("ftruncate", "truncate", "utime")
_WRITING = os.O_WRONLY | os.O_EXCL
_REAL_START_NS = time.time_ns()
_is_installed = False
# What `current` looks up, without a call of its own where it is asked for most often.
_at_work = ACTORS.get


def install() -> None:
    """Put the seams in; they stay."""
    global _is_installed  # noqa: PLW0603 - a process has one operating system
    if _is_installed:
        return
    _is_installed = True
    _patch_disk()
    _patch_time()
    _patch_chance()
    _patch_sqlite()
    _patch_swampstore()
    _patch_cached_properties()
    remember_what_was_read(_replace)
    gc.freeze()  # what is there from now on need not be looked through after every run


# The disk --------------------------------------------------------------------------------------


def _patch_disk() -> None:
    for name in (*_CHANGES, *_AFTERWARDS):
        setattr(os, name, _changing(name, getattr(os, name)))
    _patch(os, open=_opening(os.open), write=_writing(os.write), close=_closing(os.close))
    _patch(builtins, open=_opening_files(builtins.open))
    _patch(fcntl, flock=_locking(fcntl.flock))


def _changing(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
    def change(*args: Any, **options: Any) -> Any:
        actor = _at_work(get_ident())
        if actor is not None:
            before = _sidecar(name, args)
            fault = actor.change(_told(actor, name, args))
            if fault is not None and fault.kind == "full" and name in {"mkdir", "link", "symlink"}:
                raise _full()
            if _sidecar(name, args) != before and actor.name != PEER:
                # Another program, which knows no lock of ours, was there within this very call.
                actor.world.overwritten.add(os.path.dirname(args[1]))
        return real(*args, **options)

    return change


def _sidecar(name: str, args: tuple[Any, ...]) -> tuple[int, ...]:
    """Return what tells the sidecar that is about to be replaced from any other."""
    if name not in {"rename", "replace"} or not str(args[1]).endswith(SIDECAR):
        return ()
    with contextlib.suppress(FileNotFoundError):
        status = os.stat(args[1])
        return status.st_ino, status.st_size, status.st_mtime_ns
    return ()


def _told(actor: Actor, name: str, args: tuple[Any, ...]) -> str:
    if actor.world.trace is None:
        return name
    return f"{name} {' '.join(str(one).partition(REPO_ID)[2] or str(one) for one in args)}"


def _opening(real: Callable[..., int]) -> Callable[..., int]:
    def open_(path: Any, flags: int, mode: int = 0o777, **options: Any) -> int:
        actor = _at_work(get_ident())
        if actor is not None:
            actor.alive()
            if flags & _WRITING:
                fault = actor.change(_told(actor, "open", (path,)))
                if fault is not None and fault.kind == "full" and flags & os.O_CREAT:
                    raise _full()
        return real(path, flags, mode, **options)

    return open_


def _writing(real: Callable[..., int]) -> Callable[..., int]:
    def write(fd: int, data: Any) -> int:
        actor = _at_work(get_ident())
        if actor is not None:
            fault = actor.change("write")
            if fault is not None and fault.kind == "full":
                raise _full()
            if fault is not None and fault.kind == "torn":
                real(fd, memoryview(data)[: len(data) // 2])
                actor.die()
        return real(fd, data)

    return write


def _opening_files(real: Callable[..., Any]) -> Callable[..., Any]:
    def open_(file: Any, mode: str = "r", *args: Any, **options: Any) -> Any:
        actor = current()
        if actor is not None:
            actor.alive()
            if not isinstance(file, int) and mode[:1] in "wxa":
                actor.change(_told(actor, "open", (file,)))
        return real(file, mode, *args, **options)

    return open_


def _locking(real: Callable[..., None]) -> Callable[..., None]:
    def flock(fd: Any, operation: int) -> None:
        actor = current()
        if actor is None:
            real(fd, operation)
            return
        while True:
            actor.alive()
            try:
                real(fd, operation | fcntl.LOCK_NB)
            except BlockingIOError:
                if operation & fcntl.LOCK_NB:
                    raise
                actor.wait(0.05)
            else:
                actor.locked.add(fd)
                return

    return flock


def _closing(real: Callable[[int], None]) -> Callable[[int], None]:
    def close(fd: int) -> None:
        actor = _at_work(get_ident())
        if actor is not None:
            actor.locked.discard(fd)
        real(fd)

    return close


def let_go_of_locks(actor: Actor) -> None:
    """Free the locks of a killed machine, as the operating system does."""
    for fd in list(actor.locked):
        with contextlib.suppress(OSError):
            os.close(fd)
    actor.locked.clear()


def _full() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


# Time and chance ---------------------------------------------------------------------------------


def _patch_time() -> None:
    real_sleep, real_monotonic, real_time = time.sleep, time.monotonic, time.time
    real_time_ns, real_clock_gettime = time.time_ns, time.clock_gettime

    def sleep(seconds: float) -> None:
        actor = current()
        if actor is None:
            real_sleep(seconds)
        else:
            actor.wait(seconds)

    def monotonic() -> float:
        actor = current()
        return real_monotonic() if actor is None else actor.world.now

    def clock_gettime(clock: int) -> float:
        actor = current()
        return real_clock_gettime(clock) if actor is None else actor.world.now

    def now() -> float:
        actor = current()
        return real_time() if actor is None else _clock_of(actor).timestamp()

    def now_ns() -> int:
        # Files have real times. By a clock that stands still none is ever old enough for its looks
        # to be believed, so that what is decided never depends on how fast this runs.
        return real_time_ns() if current() is None else _REAL_START_NS

    _patch(time, sleep=sleep, monotonic=monotonic, time=now)
    _patch(time, time_ns=now_ns, clock_gettime=clock_gettime)


def _clock_of(actor: Actor) -> datetime:
    return actor.world.moment(actor.skew)


def clock() -> datetime:
    """Tell the time as the machine at work believes it is."""
    actor = current()
    return datetime.now(UTC) if actor is None else _clock_of(actor)


def _patch_chance() -> None:
    real_uuid4, real_urandom = uuid.uuid4, os.urandom

    def uuid4() -> uuid.UUID:
        actor = current()
        if actor is None:
            return real_uuid4()
        return uuid.UUID(int=actor.world.chance.getrandbits(128), version=4)

    def urandom(size: int) -> bytes:
        actor = current()
        return real_urandom(size) if actor is None else actor.world.chance.randbytes(size)

    _patch(uuid, uuid4=uuid4)
    _patch(os, urandom=urandom)
    _patch(random, uniform=_uniform)


_REAL_UNIFORM = random.uniform


def _uniform(low: float, high: float) -> float:
    actor = current()
    return actor.world.chance.uniform(low, high) if actor else _REAL_UNIFORM(low, high)


# SQLite ------------------------------------------------------------------------------------------


_execute = sqlite3.Connection.execute


class Connection(sqlite3.Connection):
    """A connection of a machine. A transaction is one change; what is not committed is lost."""

    actor: Actor

    def execute(self, sql: str, *args: Any) -> sqlite3.Cursor:
        if self.actor.is_dead:
            raise Killed
        if sql[0] in "BIUD":
            if sql.startswith("BEGIN IMMEDIATE"):
                self.actor.change("transaction")
            elif not self.in_transaction and sql.startswith(("INSERT", "UPDATE", "DELETE")):
                self.actor.change(sql)
        return _execute(self, sql, *args)

    def executemany(self, sql: str, rows: Iterable[Any]) -> sqlite3.Cursor:
        self.actor.alive()
        return super().executemany(sql, rows)

    def commit(self) -> None:
        self.actor.alive()
        super().commit()

    def rollback(self) -> None:
        self.actor.alive()
        super().rollback()

    def close(self) -> None:
        self.actor.connections.discard(self)
        super().close()


def close_connections(actor: Actor) -> None:
    """Close what a killed machine has open, in its own thread; nothing is committed by that."""
    for connection in list(actor.connections):
        sqlite3.Connection.close(connection)
    actor.connections.clear()


def _patch_sqlite() -> None:
    real = sqlite3.connect

    def connect(*args: Any, **options: Any) -> Any:
        actor = current()
        if actor is None:
            return real(*args, **options)
        actor.alive()
        connection = real(*args, factory=Connection, **options)
        assert isinstance(connection, Connection)
        connection.actor = actor
        actor.connections.add(connection)
        return connection

    _patch(sqlite3, connect=connect)


# Swampstore: what else there is only one of in a process ---------------------------------------


def _patch_swampstore() -> None:
    from swampstore import clock as clocks
    from swampstore.artifacts import name_lock as mutation
    from swampstore.index import base, workers
    from swampstore.locks import lock, manager, process
    from swampstore.stores import config as store_configs
    from swampstore.stores.memory import MemoryConfig
    from swampstore.stores.retry import RetryPolicy
    from swampstore.sync import uploads

    _replace(workers.in_parallel, _one_by_one)
    _patch(lock.Beside, __init__=_begin_beside, wait=_end_beside)
    _replace(clocks.system_clock, clock)
    _replace(lock.Heartbeat, Heart)
    _patch(manager, holder_variable=lambda environ: process.HolderVariable(_environ(environ)))
    _patch(manager, release_at_exit=lambda _: None)
    _patch(lock, _ABANDONED=_Abandoned())
    _patch(
        process,
        _place=lambda: f"boot-{_name()}",
        _exists=_runs,
        _start_of=lambda pid: "1" if _runs(pid) else "",
    )
    defaults = RetryPolicy.__new__.__defaults__ or ()
    _patch(RetryPolicy.__new__, __defaults__=(*defaults[:-2], time.sleep, _uniform))
    _patch(store_configs, _store_type=lambda _: MemoryConfig)
    _patch(MemoryConfig, open=lambda config: FleetStore(BUCKETS[config.name]))
    _replace(probe.probe, _believe)
    _replace(probe.examine, _ask)
    # What is large takes another way; it need not be large for that.
    _patch(uploads, IN_MEMORY=300)
    _patch(base, LARGE=300)
    _patch(probe._Trial, copies=lambda _: None)  # it takes threads that no script knows of
    # Names share lock files; few names need few of them for that.
    _patch(mutation, STRIPES=4)
    real_getpid, real_uname = os.getpid, os.uname
    _patch(
        os,
        getpid=lambda: actor.pid if (actor := _at_work(get_ident())) else real_getpid(),
        uname=lambda: (
            SimpleNamespace(nodename=actor.host) if (actor := current()) else real_uname()
        ),
    )


def _patch_cached_properties() -> None:
    """Let a machine stop where a property is being made, and another one make one of its own.

    Up to Python 3.11 all objects of a class share the lock of a property. Here each machine has
    objects, and one thread, of its own.
    """
    make = functools.cached_property.__init__

    def make_without_lock(self: Any, *args: Any) -> None:
        make(self, *args)
        self.lock = contextlib.nullcontext()

    _patch(functools.cached_property, __init__=make_without_lock)
    for one in gc.get_objects():
        if type(one) is functools.cached_property:
            one.lock = contextlib.nullcontext()  # type: ignore[attr-defined]


def _begin_beside(beside: Any, work: Callable[[], Any]) -> None:
    """Do what is done beside something else before or after that, in the thread of the machine.

    Every other machine does it before.
    """
    beside._work, beside._results, beside._error = work, [], None
    beside._ended = threading.Event()
    actor = current()
    beside.is_to_do = actor is not None and actor.number % 2 == 1
    if not beside.is_to_do:
        beside._run()


def _end_beside(beside: Any) -> None:
    if beside.is_to_do:
        beside.is_to_do = False
        beside._run()


def _patch(owner: object, **members: object) -> None:
    for name, value in members.items():
        setattr(owner, name, value)


def _replace(old: object, new: object) -> None:
    """Put something else in its place in every module that has imported it by name."""
    for name, module in list(sys.modules.items()):
        if name.startswith("swampstore"):
            for member, value in list(vars(module).items()):
                if value is old:
                    setattr(module, member, new)


def _name() -> str:
    actor = current()
    return actor.host if actor else "scheduler"


def _runs(pid: int) -> bool:
    """Whether a process of the machine at work is there."""
    actor = current()
    if actor is None:
        return pid == os.getpid()
    return any(one.pid == pid for one in actor.world.actors if one.host == actor.host)


def _believe(store: Any, *, racers: int = 0) -> ProbeReport:
    """Spare the proofs, for which many threads meet in a store."""
    del racers
    bucket = BUCKETS.get(store.identity.removeprefix("memory://"))
    is_lax = bucket is not None and bucket.kind.is_lax
    heeds = store.capabilities.conditional_delete and not is_lax
    problem = "" if heeds else "it does not"
    finding = Finding(probe._DELETION, problem, is_required=False)
    return ProbeReport(store.identity, (finding,))


def _ask(store: Any, **_: Any) -> probe.Health:
    """Ask in the thread of the machine."""
    next(store.list(f"{probe.PREFIX}/"), None)
    return probe.Health(store.identity, 0.0)


def _environ(environ: Any) -> Any:
    actor = current()
    return environ if actor is None else actor.environ


def _one_by_one(
    work: Callable[[Any], Any], tasks: Iterable[Any], concurrency: int, deadline: Any, **_: Any
) -> Iterator[Any]:
    """Do what threads would do at once, in an order of its own for each run."""
    from swampstore.errors import SwampstoreError
    from swampstore.index.workers import Done

    for task in tasks:
        deadline.remaining()
        try:
            done = Done(task, work(task), None)
        except SwampstoreError as error:
            done = Done(task, None, error)
        yield done


class _Abandoned:
    """The holdings that a process gave up; each machine has its own."""

    def add(self, nonce: str) -> None:
        if actor := current():
            actor.abandoned.add(nonce)

    def __contains__(self, nonce: object) -> bool:
        actor = current()
        return actor is not None and nonce in actor.abandoned
