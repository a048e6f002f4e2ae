"""How evenly the tasks of a Spark session shared its work, and how much memory its JVM took."""

from __future__ import annotations

from typing import Any, NamedTuple


class Stage(NamedTuple):
    """A stage: its tasks, the seconds of all of them together, and those of the longest."""

    tasks: int
    seconds: float
    longest: float

    @property
    def spread(self) -> float:
        """How much longer the longest task took than it would have if all took the same."""
        return self.longest * self.tasks / self.seconds if self.seconds else 1.0


def stages(spark: Any) -> list[Stage]:
    """Return the stages of a classic session so far, the longest first."""
    context = spark.sparkContext
    store = context._jsc.sc().statusStore()  # noqa: SLF001 - PySpark has no public way
    java = context._gateway  # noqa: SLF001 - PySpark has no public way
    none = java.jvm.java.util.ArrayList()
    whole = java.new_array(java.jvm.double, 1)
    whole[0] = 1.0
    plain = (False, False, java.new_array(java.jvm.double, 0), none)  # without details
    listed = store.stageList(none, *plain)
    found = []
    for number in range(listed.size()):
        one = listed.apply(number)
        summary = store.taskSummary(one.stageId(), one.attemptId(), whole)
        if summary.isDefined():
            longest = summary.get().executorRunTime().apply(0)
            found.append(
                Stage(one.numCompleteTasks(), one.executorRunTime() / 1000, longest / 1000)
            )
    return sorted(found, key=lambda one: -one.seconds)


def unevenness(found: list[Stage]) -> float:
    """Return the spread of the stages, by how long they took."""
    whole = sum(one.seconds for one in found)
    return sum(one.spread * one.seconds for one in found) / whole if whole else 1.0


def jvm_peak(spark: Any) -> int:
    """Return the most memory that the JVM of a classic session ever had, in bytes."""
    java = spark.sparkContext._jvm  # noqa: SLF001 - PySpark has no public way
    pid = java.java.lang.ProcessHandle.current().pid()
    with open(f"/proc/{pid}/status") as file:
        (peak,) = (line for line in file if line.startswith("VmHWM:"))
    return int(peak.split()[1]) * 1024
