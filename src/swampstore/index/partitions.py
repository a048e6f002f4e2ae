"""Which slice ("shard") of the remote index the entry of a path stands in. Pure rules.

Every client derives the slice from the path alone, so this derivation is part of the wire format.
It does not follow models: the versions of a model, its `latest` markers and its outputs are in
different slices. `Scope` knows all of those that one model can be in.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from itertools import chain, product

from swampstore.errors import ValidationError
from swampstore.layout import (
    AUDIT,
    AUTO_DEFINITIONS,
    EVALUATED_DEFINITIONS,
    EVALUATED_WORKFLOWS,
    OUTPUTS,
    WORKFLOW_RUNS,
    ModelRef,
)

ROOT = "_root"
SHARDS = "_index/"
_META = "_meta.json"
_JSON = ".json"
META_KEY = f"{SHARDS}{_META}"
MONOLITH_KEY = ".datastore-index.json"
ORIGINS_KEY = "_control/origins.json"

_BY_DEPTH = frozenset({"data", OUTPUTS, EVALUATED_DEFINITIONS})
_WHOLE = frozenset({EVALUATED_WORKFLOWS, AUTO_DEFINITIONS, AUDIT, "telemetry", "logs", "files"})
_JOINT = "--"
_MANY = 256
_WORKFLOW_TYPE = "workflow"


def shard_key(partition: str) -> str:
    """Return the object that holds the entries of a partition."""
    return f"{SHARDS}{partition}{_JSON}"


def partition_in(rel: str) -> str | None:
    """Return the partition that a document is the shard of, None for all other objects."""
    name = rel.removeprefix(SHARDS)
    if name in (rel, _META) or "/" in name or not name.endswith(_JSON):
        return None
    return name.removesuffix(_JSON)


def wire_partition(rel: str) -> str | None:
    """Return the partition all clients agree on; None for paths that they leave out of shards.

    >>> wire_partition("data/aws/ec2/i-1/state/3/raw")
    'data--aws--ec2--i-1'
    >>> wire_partition("data/aws/ec2/i-1/state/latest")
    'data--aws--ec2'
    """
    segments = rel.split("/")
    first, count = segments[0], len(segments)
    if count == 1:
        return ROOT if rel else None
    if first in _BY_DEPTH:
        if count < 4:
            return None
        return _JOINT.join(segments[:-1] if count < 6 else segments[:-3])
    if first == WORKFLOW_RUNS:
        return f"{first}{_JOINT}{segments[1]}" if count > 2 else None
    return first if first in _WHOLE else None


def partition_of(rel: str) -> str:
    """Return the partition that we put the entry of a path in.

    Paths without a partition of their own go to `_root`: clients that read shards merge them all
    by full path, so everybody finds them there.
    """
    return wire_partition(rel) or ROOT


def are_all_of(partition: str, rels: Iterable[str]) -> bool:
    """Whether a partition is that of each of many paths, told at a glance; if not, it may be.

    It depends on no more of a long path than is left without the last three segments.
    """
    return all(
        head.count("/") > 1 and partition_of(f"{head}/-/-/-") == partition
        for head in {rel.rsplit("/", 3)[0] for rel in rels}
    )


class Homes:
    """Tells the partition of one path after the other; all paths of a folder have the same."""

    __slots__ = ("_folder", "_home")

    def __init__(self) -> None:
        self._folder: str | None = None
        self._home = ROOT

    def of(self, rel: str) -> str:
        """Return the partition of a path, sooner if the last one was of the same folder."""
        folder = rel[: rel.rfind("/") + 1]
        if folder != self._folder:
            self._folder, self._home = folder, partition_of(rel)
        return self._home


def maybe_in(partitions: Iterable[str], rels: Iterable[str]) -> Iterable[str]:
    """Return at least those paths whose partition is one of these, told at a glance.

    A partition joins the first segments of its paths. Only the one for all other paths does not.
    """
    joined = tuple(partitions)
    if ROOT in joined:
        return rels
    prefixes = _path_prefixes(joined)
    if prefixes is None:
        return (rel for rel in rels if rel.replace("/", _JOINT).startswith(joined))
    # Without a replacement for each path: version 1 has all of them looked at by every commit.
    return [rel for rel in rels if rel.startswith(prefixes)]


def _path_prefixes(partitions: Collection[str]) -> tuple[str, ...] | None:
    """Return what paths of these partitions can begin with, None if that is a great deal.

    Each joint may be a slash, or be in a name; with one hyphen more nobody knows where it is.
    """
    count = sum(2 ** one.count(_JOINT) for one in partitions)
    if count > _MANY or any(f"{_JOINT}-" in one for one in partitions):
        return None
    variants = sorted(
        "".join(chain.from_iterable(zip(names, (*joints, ""), strict=True)))
        for names in (one.split(_JOINT) for one in partitions)
        for joints in product(("/", _JOINT), repeat=len(names) - 1)
    )
    shortest: list[str] = []
    for one in variants:  # sorted, so those that begin with another one follow it
        if not shortest or not one.startswith(shortest[-1]):
            shortest.append(one)
    return tuple(shortest)


class Scope:
    """The part of a datastore that belongs to some models: their data, outputs and definitions.

    Outputs and evaluated definitions are filed by type alone, so a scope covers those of the whole
    type. `models` are sorted and unique; `key` identifies the same set of models across processes
    and has the same length for any number of them. Raises ValidationError if there is no model.
    """

    __slots__ = ("_exact", "_inner", "_prefixes", "key", "models")

    def __init__(self, models: Iterable[ModelRef]) -> None:
        self.models = tuple(sorted(set(models)))
        if not self.models:
            raise ValidationError("a scope without models", hint="Name at least one model.")
        # No part of an address holds a NUL.
        self.key = hashlib.sha256("\0".join(map(str, self.models)).encode()).hexdigest()
        directories = sorted({home for model in self.models for home in _homes(model)})
        self._prefixes = tuple(f"{directory}/" for directory in directories)
        split = [directory.split("/") for directory in directories]
        # A partition leaves out up to three segments of a path, the file's name among them, so it
        # may be up to two segments shorter than the directory. It joins three at the least, but
        # for the runs of a workflow.
        self._exact = frozenset(
            _JOINT.join(segments[:count])
            for segments in split
            for count in range(min(max(3, len(segments) - 2), len(segments)), len(segments) + 1)
        ) | {ROOT}
        self._inner = tuple(_JOINT.join([*segments, ""]) for segments in split)

    @property
    def prefixes(self) -> tuple[str, ...]:
        """What all paths that belong to the models begin with, one of them each."""
        return self._prefixes

    def covers(self, rel: str) -> bool:
        """Whether a path belongs to the models."""
        return rel.startswith(self._prefixes)

    def meets(self, rel: str) -> bool:
        """Whether something at, below or above a path belongs to the models."""
        below = f"{rel}/"
        return self.covers(below) or any(model.rel.startswith(below) for model in self.models)

    def partitions(self, known: Iterable[str]) -> list[str]:
        """Return those partitions that can hold covered paths, sorted.

        They hold other paths too, for which `covers` is the filter.
        """
        return sorted(
            partition
            for partition in set(known)
            if partition in self._exact or partition.startswith(self._inner)
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Scope) and self.models == other.models

    def __hash__(self) -> int:
        return hash(self.models)

    def __repr__(self) -> str:
        return f"Scope({', '.join(map(str, self.models))})"


def _homes(model: ModelRef) -> tuple[str, ...]:
    """Return the directories of a model; those of a workflow are its runs as well."""
    homes = (model.rel, f"{OUTPUTS}/{model.type}", f"{EVALUATED_DEFINITIONS}/{model.type}")
    return (*homes, f"{WORKFLOW_RUNS}/{model.id}") if model.type == _WORKFLOW_TYPE else homes
