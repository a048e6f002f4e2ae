"""Finding out what can be done about damage: what belongs together, and where copies are."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from swampstore.layout import LATEST
from swampstore.pipeline.places import Place
from swampstore.pipeline.verify import kinds
from swampstore.pipeline.verify.applying import Applying, Copy, Source
from swampstore.pipeline.verify.examination import Examined, is_of
from swampstore.pipeline.verify.mending import (
    Action,
    File,
    Wanted,
    mend_file,
    mend_name,
    wanted_content,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

    from swampstore.pipeline.editing import Editor

_UNITS = 5_000  # that are mended with one commit


@dataclass
class Mended:
    """What was done, or would be: how often, and what is lost."""

    done: Counter[str] = field(default_factory=Counter)
    lost: list[tuple[str, str]] = field(default_factory=list)

    def note(self, actions: Iterable[Action]) -> None:
        """Count actions."""
        for action in actions:
            self.done[action.do] += 1
            if action.do == "lost":
                self.lost.append((action.rel, action.value))


class Repair:
    """Mends the files of one place; without an editor it only says what would be done."""

    def __init__(self, place: Place, seen: Examined, editor: Editor | None) -> None:
        self._place = place
        self._seen = seen
        self._editor = editor
        self._cache = _cache_of(place)
        self.mended = Mended()

    def run(self) -> Mended:
        """Mend all that was found, some thousand data names at a time."""
        for batch in _batched(self._units(), _UNITS):
            names, others = _sorted(batch)
            files = [one for name in names.values() for one in name.versions.values()]
            source = self._source(wanted_content(files, others))
            actions = [
                action
                for name, found in names.items()
                for action in mend_name(name, found.versions, found.latest, source.has)
            ]
            actions += [action for file in others for action in mend_file(file, source.has)]
            if self._editor is not None:
                known = {file.rel: file for unit in batch for file in unit.files}
                Applying(self._editor, known, source).run(actions)
            self.mended.note(actions)
        return self.mended

    def _units(self) -> Iterator[Unit]:
        """Yield all that belongs together with something that is damaged."""
        from pyspark.sql import functions as f

        passing = [kinds.IN_FLIGHT, kinds.BEHIND_LATEST, *kinds.OF_DOCUMENTS]
        facts = self._seen.facts.where(is_of(self._place))
        unit = f.coalesce("name", "rel").alias("unit")
        damaged = self._seen.of(self._place).where(~f.col("kind").isin(*passing))
        # A marker that is missing has no facts; its name has.
        of_marker = f.regexp_extract("rel", rf"^(data/.+)/{LATEST}$", 1)
        found = damaged.select(
            f.when(of_marker != "", of_marker).otherwise(f.col("rel")).alias("rel")
        )
        by_path = facts.join(found, ["rel"], "left_semi").select(unit)
        units = by_path.union(found.select(f.col("rel").alias("unit"))).distinct()
        rows = facts.withColumn("unit", f.coalesce("name", "rel"))
        rows = rows.join(f.broadcast(units), ["unit"], "left_semi").sort("unit", "rel")
        for name, group in groupby(rows.toLocalIterator(), key=lambda row: row["unit"]):
            yield Unit(name, [(row["version"], row["file"], _file(row)) for row in group])

    def _source(self, wanted: Iterable[Wanted]) -> Source:
        """Find copies of content: other objects of the store, and files of the cache."""
        needed = {*wanted}
        return Source(
            self._copies({one.sha256 for one in needed}),
            {one: path for one in needed if (path := self._cached(one))},
        )

    def _copies(self, hashes: set[str]) -> dict[str, Copy]:
        from pyspark.sql import functions as f

        if not hashes:
            return {}
        facts = self._seen.facts
        rows = [(one,) for one in sorted(hashes)]
        chosen = f.broadcast(facts.sparkSession.createDataFrame(rows, "sha256 string"))
        found: DataFrame = (
            facts.where(f.col("store") == self._place.identity)
            .withColumn("sha256", f.col("content.sha256"))
            .join(chosen, ["sha256"])
            .groupBy("sha256")
            .agg(f.min(f.struct("key", "etag", "there")).alias("copy"))
        )
        return {row["sha256"]: Copy(*row["copy"]) for row in found.collect()}

    def _cached(self, wanted: Wanted) -> str | None:
        if self._cache is None:
            return None
        path = self._place.names(self._cache).local(wanted.rel)
        with contextlib.suppress(OSError), open(path, "rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() == wanted.sha256:
                return path
        return None


class Unit(NamedTuple):
    """A data name with all its files, or a single other file."""

    name: str
    rows: list[tuple[int | None, str | None, File]]

    @property
    def files(self) -> list[File]:
        """Its files."""
        return [file for _, _, file in self.rows]


class _Name(NamedTuple):
    versions: dict[int, dict[str, File]]
    latest: File | None


def _sorted(units: Iterable[Unit]) -> tuple[dict[str, _Name], list[File]]:
    """Tell data names from other files."""
    names: dict[str, _Name] = {}
    others: list[File] = []
    for unit in units:
        versions: dict[int, dict[str, File]] = {}
        latest = None
        for version, kind, file in unit.rows:
            if kind == LATEST:
                latest = file
            elif version is not None and kind is not None:
                versions.setdefault(version, {})[kind] = file
            else:
                others.append(file)
        if versions or latest:
            names[unit.name] = _Name(versions, latest)
    return names, others


def _file(row: Row) -> File:
    entry, content = row["entry"], row["content"]
    said: dict[str, Any] = content.asDict() if content else {}
    return File(
        row["rel"],
        row["kind"],
        is_named=entry is not None,
        size=entry["size"] if entry else None,
        sha256=entry["sha256"] if entry else None,
        there=row["there"],
        etag=row["etag"],
        hash=said.get("sha256"),
        marker=said.get("marker"),
        checksum=said.get("checksum"),
        claimed_size=said.get("claimed_size"),
        described=(said.get("described_name"), said.get("described_version")),
        error=said.get("error"),
    )


def _batched(units: Iterator[Unit], size: int) -> Iterator[list[Unit]]:
    from itertools import islice

    while batch := list(islice(units, size)):
        yield batch


def _cache_of(place: Place) -> str | None:
    """Return the cache of the repository that the place was found through."""
    from swampstore import config as configuration

    if not os.path.isdir(place.target):
        return None
    config = configuration.load(place.target, os.environ)
    return config.base if config.remote else None
