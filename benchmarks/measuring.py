"""What a benchmark reports, and the few ways it measures."""

from __future__ import annotations

import compileall
import contextlib
import os
import resource
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, ParamSpec

import swampstore

P = ParamSpec("P")


class Line(NamedTuple):
    """One measurement; with a `limit` it is a promise, kept if the value is not above it."""

    what: str
    value: float
    unit: str
    limit: float | None = None
    note: str = ""

    @property
    def is_kept(self) -> bool | None:
        """Whether the promise is kept; None if nothing was promised."""
        return None if self.limit is None else self.value <= self.limit


class Setting(NamedTuple):
    """Where a benchmark may put its files, and by how much it cuts its counts down."""

    directory: str
    divisor: int = 1

    def scaled(self, count: int) -> int:
        """Return a count cut down for a quick run."""
        return max(1, count // self.divisor)


Benchmark = Callable[[Setting], Iterator[Line]]


def say(text: str) -> None:
    """Tell on standard error what takes so long."""
    print(f"  {text}", file=sys.stderr, flush=True)


def seconds(work: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> float:
    """Return how long one call takes."""
    start = time.perf_counter()
    work(*args, **kwargs)
    return time.perf_counter() - start


def processor_seconds(work: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> float:
    """Return how long one call keeps processors busy, in this process."""
    start = time.process_time()
    work(*args, **kwargs)
    return time.process_time() - start


def compile_package() -> None:
    """Write the package's bytecode, as installing does.

    Where PYTHONDONTWRITEBYTECODE is set, every start would compile the package again.
    """
    compileall.compile_dir(os.path.dirname(swampstore.__file__), quiet=1)


def median_ms(times: Sequence[float]) -> float:
    """Return the median of times in seconds as milliseconds."""
    return statistics.median(times) * 1000


def percentile_ms(times: Sequence[float], percent: int) -> float:
    """Return a percentile of times in seconds as milliseconds."""
    return statistics.quantiles(times, n=100, method="inclusive")[percent - 1] * 1000


def peak_rss() -> int:
    """Return the most memory this program has ever had, in bytes."""
    try:
        with open("/proc/self/status") as file:
            # The other way counts what the parent had before this program was started.
            (peak,) = (line for line in file if line.startswith("VmHWM:"))
            return int(peak.split()[1]) * 1024
    except (FileNotFoundError, ValueError):
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def family(pid: int) -> Iterator[int]:
    """Yield a process and all below it."""
    yield pid
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children") as file:
                for child in file.read().split():
                    yield from family(int(child))
    except OSError:
        return  # it has ended


class ProcessorTime:
    """Looks every second how long this process and all below it have kept processors busy.

    Those that have ended count as they were seen last: some are waited for by nobody.
    """

    def __init__(self) -> None:
        self._seen: dict[int, int] = {}
        threading.Thread(target=self._watch, daemon=True).start()

    def seconds(self) -> float:
        """Return the processor time so far."""
        self._look()
        return sum(self._seen.values()) / os.sysconf("SC_CLK_TCK")

    def _watch(self) -> None:
        while True:
            time.sleep(1)
            self._look()

    def _look(self) -> None:
        for pid in family(os.getpid()):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/stat") as file:
                ticks = sum(map(int, file.read().rpartition(")")[2].split()[11:13]))
                self._seen[pid] = max(ticks, self._seen.get(pid, 0))


def forget_peak() -> None:
    """Let `peak_rss` begin anew with what is held now, where the system can do that."""
    with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w") as file:
        file.write("5")
