"""Saving small artifacts: against the bare file operations, and as a repository grows."""

from __future__ import annotations

import os
import random
import statistics
from collections.abc import Callable, Iterator

from measuring import (
    Line,
    Setting,
    median_ms,
    percentile_ms,
    processor_seconds,
    say,
    seconds,
)
from swampstore import Draft, Metadata, ModelRef, Owner, Repo, init_repo, open_repo
from swampstore.artifacts.metadata import encode
from swampstore.layout import METADATA, RAW

SIZE = 1024
PAIRS = 600
ARTIFACTS = 100_000
VERSIONS = 10_000
BATCH = 5_000
RATIO_TO_BARE = 2.0
RATIO_OF_A_GROUP = 3.0
RATIO_LAST_TO_FIRST = 1.5
_BLOCKS = 20
_MODELS = 100
_TAGS = {"type": "resource", "modelName": "web-server", "specName": "state", "env": "prod"}


def measure(setting: Setting) -> Iterator[Line]:
    """Measure the price of a save, then whether it stays the same."""
    yield from _against_bare(setting)
    yield from _in_a_group(setting)
    yield from _new_names(setting)
    yield from _new_versions(setting)


def _content() -> bytes:
    return random.Random(1).randbytes(SIZE)


# Against the bare file operations ----------------------------------------------------------


def _against_bare(setting: Setting) -> Iterator[Line]:
    pairs = max(50, setting.scaled(PAIRS))
    say(f"saving {pairs:,} artifacts and as many bare files, in turns, twice")
    bare = BareFiles(f"{setting.directory}/bare")
    with init_repo(f"{setting.directory}/paired") as repo:
        yield _compared(repo, bare, "a new name", [(f"state-{n}", 1) for n in range(pairs)])
        again = [("state-0", 2 + n) for n in range(pairs)]
        yield _compared(repo, bare, "another version", again)


def _compared(repo: Repo, bare: BareFiles, what: str, saves: list[tuple[str, int]]) -> Line:
    """Time both in turns, either first as often as the other."""
    content = _content()
    model = ModelRef("aws/ec2/instance", "i-0123456789abcdef0")
    ours, theirs = [], []
    for number, (name, version) in enumerate(saves):
        if number % 2:
            theirs.append(seconds(bare.save, name, version, content))
        ours.append(seconds(repo.artifacts.save, model, name, content, tags=_TAGS))
        if not number % 2:
            theirs.append(seconds(bare.save, name, version, content))
    return Line(
        f"durable save of 1 KiB, {what}, to bare files",
        statistics.median(ours) / statistics.median(theirs),
        "x",
        RATIO_TO_BARE,
        f"medians {median_ms(ours):.2f} and {median_ms(theirs):.2f} ms,"
        f" means {statistics.mean(ours) * 1000:.2f} and {statistics.mean(theirs) * 1000:.2f}",
    )


def _in_a_group(setting: Setting) -> Iterator[Line]:
    """Save many artifacts that become latest together, beside the same files written one by one."""
    count = max(100, setting.scaled(BATCH))
    say(f"saving {count:,} artifacts in a group, and as many bare files")
    content, metadata = _content(), _metadata_like_that_of_a_save()

    def bare() -> None:
        for number in range(count):
            directory = f"{setting.directory}/bare-group/{number}"
            os.makedirs(f"{directory}/1")
            _write(f"{directory}/1/{RAW}", content)
            _write(f"{directory}/1/{METADATA}", metadata)
            _write(f"{directory}/latest", b"1")

    def group() -> None:
        model = ModelRef("aws/ec2/instance", "i-0123456789abcdef0")
        with repo.artifacts.deferring() as deferral:
            for number in range(count):
                deferral.save(repo.ref(model, f"state-{number}"), content, Draft(tags=_TAGS))

    with init_repo(f"{setting.directory}/grouped") as repo:
        theirs, ours = seconds(bare), seconds(group)
    yield Line(
        f"{count:,} durable saves of 1 KiB in a group, to bare files with one fsync each",
        ours / theirs,
        "x",
        RATIO_OF_A_GROUP,
        f"{ours:.2f} and {theirs:.2f} s",
    )


class BareFiles:
    """The file operations of a save and nothing else: no locks, catalog, YAML or objects."""

    def __init__(self, model_dir: str) -> None:
        os.mkdir(model_dir)
        self._model_dir = model_dir
        self._metadata = _metadata_like_that_of_a_save()

    def save(self, name: str, version: int, content: bytes) -> None:
        """Write the files of a version as durably as a save does."""
        name_dir = f"{self._model_dir}/{name}"
        if version == 1:
            os.mkdir(name_dir)
            _sync_dir(self._model_dir)
        version_dir = f"{name_dir}/{version}"
        os.mkdir(version_dir)
        _write(f"{version_dir}/{RAW}", content)
        _replace(f"{version_dir}/{METADATA}", self._metadata)
        _sync_dir(version_dir)
        _sync_dir(name_dir)
        _replace(f"{name_dir}/latest", b"%d" % version)
        _sync_dir(name_dir)


def _metadata_like_that_of_a_save() -> bytes:
    return encode(
        Metadata(
            id="0f8fad5b-d9cb-469f-a165-70867728950e",
            name="state",
            version=1,
            content_type="application/octet-stream",
            lifetime="infinite",
            garbage_collection=10,
            streaming=False,
            tags=_TAGS,
            owner=Owner("manual", "i-0123456789abcdef0"),
            created_at="2026-05-14T08:00:00.000Z",
            size=SIZE,
            checksum="0" * 64,
        )
    )


def _write(path: str, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    os.write(fd, data)
    os.fsync(fd)
    os.close(fd)


def _replace(path: str, data: bytes) -> None:
    temp = f"{path}.tmp"
    _write(temp, data)
    os.rename(temp, path)


def _sync_dir(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    os.fsync(fd)
    os.close(fd)


# As a repository grows ---------------------------------------------------------------------


def _new_names(setting: Setting) -> Iterator[Line]:
    place = f"{setting.directory}/growing"
    count, pairs = setting.scaled(ARTIFACTS), max(50, setting.scaled(PAIRS))
    content = _content()
    models = [ModelRef("aws/ec2/instance", f"i-{number:05}") for number in range(_MODELS)]

    def save(repo: Repo, number: int) -> None:
        name = f"state-{number // _MODELS}"
        repo.artifacts.save(models[number % _MODELS], name, content, tags=_TAGS)

    init_repo(place).close()
    say(f"saving {count:,} artifacts without fsyncs")
    yield _grown(place, count, "artifacts", save)
    bare = BareFiles(f"{setting.directory}/bare-afterwards")
    with open_repo(place) as repo:
        saves = [(f"state-{number}", 1) for number in range(pairs)]
        yield _compared(repo, bare, f"a new name after {count:,}", saves)


def _new_versions(setting: Setting) -> Iterator[Line]:
    place = f"{setting.directory}/deepening"
    count = max(1000, setting.scaled(VERSIONS))
    init_repo(place).close()
    say(f"saving {count:,} versions of one name without fsyncs")
    content = _content()
    model = ModelRef("aws/ec2/instance", "i-0")

    def save(repo: Repo, _number: int) -> None:
        repo.artifacts.save(model, "state", content, tags=_TAGS)

    yield _grown(place, count, "versions of one name", save)


def _grown(place: str, count: int, what: str, save: Callable[[Repo, int], None]) -> Line:
    """Save so many and compare the last block with the first, by what a processor does."""
    with open_repo(place, durable=False) as repo:
        times = [processor_seconds(save, repo, n) for n in range(count)]
    size = count // _BLOCKS
    blocks = [times[start : start + size] for start in range(0, count, size)]
    medians = [median_ms(block) for block in blocks]
    first, last = blocks[0], blocks[-1]
    return Line(
        f"save among {count:,} {what}: last block to first",
        medians[-1] / medians[0],
        "x",
        RATIO_LAST_TO_FIRST,
        f"p50 {medians[0]:.3f}, {medians[_BLOCKS // 2]:.3f}, {medians[-1]:.3f} ms,"
        f" p99 {percentile_ms(first, 99):.2f} and {percentile_ms(last, 99):.2f}",
    )
