"""Which process holds a lock: how it is named, whether it is gone, and whose child we are.

A pid alone says little: machines and containers number their processes independently, and
numbers are used again. Where the system tells more (`/proc`), a record says which boot of which
kernel, which pid namespace and which start time the pid belongs to.
"""

from __future__ import annotations

import os
import pwd
import threading
import uuid
from collections.abc import MutableMapping

from swampstore.clock import from_iso, system_clock, to_iso
from swampstore.files.hold import boot_id
from swampstore.formats import whole_number
from swampstore.locks.record import LockRecord

VARIABLE = "SWAMP_LOCK_HOLDER_PID"
_LARGEST_PID = 2**31 - 1


def new_record(ttl: float, purpose: str = "") -> LockRecord:
    """Return a record of this process, with a nonce of its own."""
    now = from_iso(to_iso(system_clock()))  # as precise as it is written
    return LockRecord(
        holder=actor_name(),
        hostname=os.uname().nodename,
        pid=os.getpid(),
        acquired_at=now,
        ttl_ms=max(1, round(ttl * 1000)),
        nonce=str(uuid.uuid4()),
        since=now,
        process=_identity(),
        purpose=purpose,
    )


def actor_name() -> str:
    """Return who this process works for, and where: USER@HOST."""
    user = os.environ.get("USER") or os.environ.get("USERNAME") or _account()
    return f"{user}@{os.uname().nodename}"


def _account() -> str:
    """Return who the system says this is: cron and services come without a USER."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return "unknown"


def is_dead(record: LockRecord) -> bool:
    """Whether the process that wrote a record provably does not exist any more.

    Of another client's record only the hostname and the pid are known; with another hostname
    than ours nothing is proved.
    """
    if not 0 < record.pid <= _LARGEST_PID:
        return False
    if not record.process:
        return record.hostname == os.uname().nodename and not _exists(record.pid)
    place, _, start = record.process.rpartition(":")
    if place != f"{_place()}:{record.pid}":
        return False
    # Who may not look into /proc/{pid} can still ask whether there is such a process.
    return not _exists(record.pid) or _start_of(record.pid) not in {start, ""}


def is_of(record: LockRecord | None, pid: int | None) -> bool:
    """Whether a record was written by the process with this pid on this machine."""
    if record is None or pid is None or record.pid != pid:
        return False
    if record.process:
        return record.process.startswith(f"{_place()}:{pid}:") and not is_dead(record)
    return record.hostname == os.uname().nodename and not is_dead(record)


def _identity() -> str:
    place, start = _place(), _start_of(os.getpid())
    return f"{place}:{os.getpid()}:{start}" if place and start else ""


def _place() -> str:
    """Return what tells the pids that we see from those of other machines and containers."""
    try:
        space = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return ""
    return f"{boot}:{space}" if (boot := boot_id()) else ""


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _start_of(pid: int) -> str:
    """Return when a process started, in ticks since boot; empty if that is not told."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            # The name of the program stands in brackets and may hold anything.
            return file.read().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


class HolderVariable:
    """The environment variable by which a process tells its children that it holds locks.

    A child need not wait for the locks of the process that started it and waits for it. Several
    managers of a process share one variable, so it is counted.
    """

    def __init__(self, environ: MutableMapping[str, str]) -> None:
        self._environ = environ
        self._mutex = threading.Lock()
        self._pid = os.getpid()
        self._count = 0
        self._inherited: str | None = None

    def parent(self) -> int | None:
        """Return the pid of the process inside whose locks we work, None if there is none."""
        with self._mutex:
            self._forget_before_fork()
            text = self._inherited if self._count else self._environ.get(VARIABLE)
        pid = whole_number(text or "")
        return None if pid == os.getpid() else pid

    def raise_flag(self) -> None:
        """Tell children that this process holds locks."""
        with self._mutex:
            self._forget_before_fork()
            if self._count == 0:
                self._inherited = self._environ.get(VARIABLE)
                self._environ[VARIABLE] = str(os.getpid())
            self._count += 1

    def lower_flag(self) -> None:
        """Put back what was there, if no other manager holds anything."""
        with self._mutex:
            self._forget_before_fork()
            if self._count == 0:
                return
            self._count -= 1
            if self._count:
                return
            if self._inherited is None:
                self._environ.pop(VARIABLE, None)
            else:
                self._environ[VARIABLE] = self._inherited

    def _forget_before_fork(self) -> None:
        """In the child of a fork, what was set before it was set by the parent."""
        if self._pid != os.getpid():
            self._pid, self._count = os.getpid(), 0


_OF_THIS_PROCESS = HolderVariable(os.environ)


def holder_variable(environ: MutableMapping[str, str]) -> HolderVariable:
    """Return the variable of an environment; that of the process is shared by all its users."""
    return _OF_THIS_PROCESS if environ is os.environ else HolderVariable(environ)
