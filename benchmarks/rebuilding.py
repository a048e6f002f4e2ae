"""Rebuilding the catalog from the files: time, memory, and the share of decoding metadata."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import islice, repeat
from typing import NamedTuple

import sample
from measuring import Line, Setting, say, seconds
from swampstore import init_repo
from swampstore.artifacts.metadata import decode, encode

LIMIT_SECONDS = 60
GROWTH_LIMIT_MIB = 4
_MODELS = 200
_NAMES = 100
_VERSIONS = 10
_DECODED = 20_000
_CONTENT = b'{"status": "running"}\n'
_MIB = 1 << 20


class Cost(NamedTuple):
    """What one rebuild took.

    `busy` is the processor time of it, `growth` the bytes of memory beyond what it began with.
    """

    versions: int
    seconds: float
    busy: float
    growth: int


def measure(setting: Setting) -> Iterator[Line]:
    """Rebuild a repository and one ten times as large, each in a process of its own."""
    large = sample.Shape(max(10, setting.scaled(_MODELS)), _NAMES, _VERSIONS)
    small = large._replace(models=large.models // 10)
    few = _rebuilt(f"{setting.directory}/small", small)
    many = _rebuilt(f"{setting.directory}/large", large)
    each = many.busy / many.versions * 1e6
    yield Line(
        f"catalog rebuild of {many.versions:,} versions",
        many.seconds,
        "s",
        LIMIT_SECONDS,
        f"{many.busy:.1f} s of processor time, files in the page cache",
    )
    yield Line(
        f"more memory to rebuild {many.versions:,} than {few.versions:,} versions",
        (many.growth - few.growth) / _MIB,
        "MiB",
        GROWTH_LIMIT_MIB,
        f"peak RSS grows by {few.growth / _MIB:.1f} and {many.growth / _MIB:.1f} MiB",
    )
    decoding = _decoding(large)
    yield Line(
        "decoding one metadata.yaml",
        decoding,
        "µs",
        note=f"{decoding / each:.0%} of the {each:.0f} µs that rebuilding one version takes",
    )


def _rebuilt(place: str, shape: sample.Shape) -> Cost:
    with init_repo(place) as repo:
        say(f"writing the files of {shape.artifacts * shape.versions:,} versions")
        sample.write_files(repo.tree, shape, repeat(_CONTENT))
    os.sync()  # else the rebuild would wait for what was written before it
    say("rebuilding their catalog")
    script = f"{os.path.dirname(os.path.abspath(__file__))}/rebuild_once.py"
    done = subprocess.run([sys.executable, script, place], check=True, stdout=subprocess.PIPE)
    return Cost(**json.loads(done.stdout))


def _decoding(shape: sample.Shape) -> float:
    """Return the microseconds that decoding one file takes, without reading it."""
    files = [
        encode(metadata)
        for _, versions in islice(sample.artifacts(shape), _DECODED // shape.versions)
        for metadata in versions
    ]

    def decode_all() -> None:
        for data in files:
            decode(data, "metadata.yaml")

    return min(seconds(decode_all) for _ in range(3)) / len(files) * 1e6
