"""The facts about a machine without which its numbers mean nothing."""

from __future__ import annotations

import os
import platform
import sqlite3


def facts(directory: str) -> dict[str, str]:
    """Return what the measurements depend on; `directory` is where their files are."""
    return {
        "cores": f"{os.cpu_count()} ({_processor()})",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "sqlite": sqlite3.sqlite_version,
        "filesystem": f"{_file_system(directory)} ({directory})",
        "kernel": f"{platform.system()} {platform.release()}",
        "load": " ".join(f"{load:.2f}" for load in os.getloadavg()),
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            named = [line for line in file if line.startswith("model name")]
    except FileNotFoundError:
        named = []
    return named[0].partition(":")[2].strip() if named else platform.machine()


def _file_system(directory: str) -> str:
    """Return the type of the file system that a directory is on."""
    path = os.path.realpath(directory)
    try:
        with open("/proc/self/mounts") as file:
            mounts = [line.split()[1:3] for line in file]
    except FileNotFoundError:
        return "unknown"
    holding = [
        (len(point), kind) for point, kind in mounts if os.path.commonpath([point, path]) == point
    ]
    return max(holding)[1] if holding else "unknown"
