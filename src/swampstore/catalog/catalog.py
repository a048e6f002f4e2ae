"""The catalog: one row per artifact version, written through by every change.

Which versions are latest follows from the rows and the name's marker, by `artifacts.latest`: in
Python where all rows of a name are at hand, in SQL where only some are.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from swampstore.artifacts.latest import LATEST_OF_STEP_SQL
from swampstore.artifacts.name_lock import Ledger
from swampstore.catalog.database import Rows
from swampstore.catalog.schema import INSERT, Row, flagged, sql_limit
from swampstore.catalog.statements import (
    COUNT_UP_TO,
    DEFERRED_NUMBERS,
    LATEST_BY_ADDRESS,
    LATEST_OF_MODEL,
    MODEL_EXISTS,
    MODEL_TOTALS,
    MODELS_BY_NAME,
    NAME_EXISTS,
    NAMES_OF_MODEL,
    NAMES_PAGE,
    NUMBERS_FROM,
    OF_NAME,
    PENDING,
    ROWS_OF_NAME,
    VERSION_BY_ADDRESS,
    VERSION_NUMBERS,
    VERSIONS_BY_ADDRESS,
    VERSIONS_PAGE,
)
from swampstore.clock import to_iso
from swampstore.layout import LARGEST_VERSION, DataRef, ModelRef

if TYPE_CHECKING:
    from datetime import datetime

    from swampstore.artifacts.name_lock import Outcome
    from swampstore.artifacts.versions import StoredVersion

T = TypeVar("T")
_PAGE = 1000
_POPULATED = "populated"
_CHANGES = "changes"
_EXPORTED = "exported"
_UNTOLD = "untold"
_SEEN = "seen"
_COUNT_CHANGE = (
    "INSERT INTO catalog_meta VALUES (?, '1') ON CONFLICT (key) DO UPDATE SET value = value + 1"
)


class ModelTotals(NamedTuple):
    """One model that has data: how much there is of it, and when a version was last created.

    `name` is empty where no tag tells it.
    """

    model: ModelRef
    name: str
    data_names: int
    versions: int
    size: int
    last_change: str


class Catalog(Ledger):
    """Rows of one repository's artifacts. Point lookups cost one indexed read each."""

    def __init__(self, rows: Rows, namespace: str = "") -> None:
        self.rows = rows
        self.namespace = namespace
        # Hears the paths of names before and after they change, for others who describe them.
        self.on_change: Callable[[Iterable[str]], None] = lambda _: None

    def close(self) -> None:
        """Release the file."""
        self.rows.close()

    # What is being changed -----------------------------------------------------------------

    def intend(self, actions: Mapping[str, str]) -> None:
        """Remember durably what is about to be done to which path, before anything is."""
        sql = "INSERT OR REPLACE INTO intent VALUES (?, ?)"
        self.rows.write(lambda db: db.executemany(sql, list(actions.items())), flush=True)
        self.on_change(actions)

    def pending(self) -> list[tuple[str, str]]:
        """Return (path, action) of every change that was announced and not finished."""
        return self.rows.read(lambda db: db.execute(PENDING).fetchall())

    def settle(self, paths: Sequence[str]) -> None:
        """Drop the intents of these paths."""
        sql = "DELETE FROM intent WHERE path = ?"
        self.rows.write(lambda db: db.executemany(sql, [(path,) for path in paths]))

    def record(self, outcomes: Sequence[Outcome]) -> None:
        """Write what changed through, all at once, and drop the intents of those names."""

        def work(db: sqlite3.Connection) -> None:
            new = self._new_names(db, [outcome.ref for outcome in outcomes])
            rows: list[Row] = []
            known = []
            for outcome in outcomes:
                if outcome.ref in new:
                    new.remove(outcome.ref)
                    rows += self._rows_of_new(outcome.ref, outcome.stored, outcome.marker)
                else:
                    known.append(outcome)
            db.executemany(INSERT, rows)
            for ref, marker, stored, removed in known:
                self.store_within(db, ref, stored, removed, marker)
            finished = [(outcome.ref.rel,) for outcome in outcomes]
            db.executemany("DELETE FROM intent WHERE path = ?", finished)

        self.change(work)
        self.on_change([outcome.ref.rel for outcome in outcomes])

    def replace(self, ref: DataRef, stored: Iterable[StoredVersion], marker: int) -> None:
        """Make the rows of a name exactly those of `stored` and drop its intent."""
        versions = list(stored)

        def work(db: sqlite3.Connection) -> None:
            self.replace_within(db, ref, versions, marker)
            db.execute("DELETE FROM intent WHERE path = ?", (ref.rel,))

        self.change(work)
        self.on_change([ref.rel])

    def store(
        self, ref: DataRef, stored: Sequence[StoredVersion], removed: Sequence[int], marker: int
    ) -> None:
        """Store some versions of a name and drop others, whatever is being done to it."""
        self.change(lambda db: self.store_within(db, ref, stored, removed, marker))

    def change(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work`, which changes rows, in one transaction, and count it as a change."""

        def counted(db: sqlite3.Connection) -> T:
            result = work(db)
            if self.namespace:  # nobody else wants to know
                db.execute(_COUNT_CHANGE, (_CHANGES,))
            return result

        return self.rows.write(counted)

    # Rows ----------------------------------------------------------------------------------

    def replace_within(
        self, db: sqlite3.Connection, ref: DataRef, stored: Iterable[StoredVersion], marker: int
    ) -> int:
        """Within a transaction, make a name's rows those of `stored`; return their number."""
        return self.replace_rows_within(
            db, ref, [self._row(ref, version) for version in stored], marker
        )

    def replace_rows_within(
        self, db: sqlite3.Connection, ref: DataRef, rows: Sequence[Row], marker: int
    ) -> int:
        """Within a transaction, make these the rows of a name; return their number.

        Rows that are the same already, newest first, stay as they are: reading is cheaper.
        """
        key = self._key(ref)
        wanted = flagged(rows, marker)
        known = db.execute(ROWS_OF_NAME, key).fetchall()
        if known != wanted:
            if known:
                db.execute(f"DELETE FROM catalog WHERE {OF_NAME}", key)
            db.executemany(INSERT, wanted)
        return len(wanted)

    def _row(self, ref: DataRef, version: StoredVersion) -> Row:
        from swampstore.catalog.disk_rows import row_of

        return row_of(self.namespace, ref, version.metadata, deferred=version.deferred)

    def _key(self, ref: DataRef) -> tuple[str, str, str, str]:
        return (self.namespace, ref.model.type, ref.model.id, ref.name)

    def _new_names(self, db: sqlite3.Connection, refs: Sequence[DataRef]) -> set[DataRef]:
        """Return those of these names that have no rows; of a new model none is looked for."""
        new_models = {
            model
            for model in {ref.model for ref in refs}
            if not db.execute(MODEL_EXISTS, (self.namespace, *model)).fetchone()
        }
        return {ref for ref in refs if ref.model in new_models or self._is_new(db, ref)}

    def _is_new(self, db: sqlite3.Connection, ref: DataRef) -> bool:
        return not db.execute(NAME_EXISTS, self._key(ref)).fetchone()

    def _rows_of_new(self, ref: DataRef, stored: Sequence[StoredVersion], marker: int) -> list[Row]:
        """Return all rows of a name that has none yet: so none changes others."""
        return flagged([self._row(ref, version) for version in stored], marker)

    def store_within(
        self,
        db: sqlite3.Connection,
        ref: DataRef,
        stored: Sequence[StoredVersion],
        removed: Sequence[int],
        marker: int,
    ) -> None:
        """Within a transaction, store some versions of a name and drop others."""
        if self._is_new(db, ref):
            db.executemany(INSERT, self._rows_of_new(ref, stored, marker))
            return
        key = self._key(ref)
        rows = [self._row(ref, version) for version in stored]
        steps = {row.step_name for row in rows}
        for version in (*removed, *(row.version for row in rows)):
            found = db.execute(
                f"DELETE FROM catalog WHERE {OF_NAME} AND version = ? RETURNING step_name",
                (*key, version),
            ).fetchall()
            steps.update(step for (step,) in found)
        db.executemany(INSERT, rows)
        steps.update(self._steps_in_question(db, key, marker))
        for step in steps:
            self._settle(db, key, step, marker)

    @staticmethod
    def _steps_in_question(
        db: sqlite3.Connection, key: tuple[str, ...], marker: int
    ) -> Iterator[str]:
        """Yield the steps of versions that a marker, moved either way, may cover or uncover."""
        found = db.execute(
            f"SELECT DISTINCT step_name FROM catalog WHERE {OF_NAME} AND version > min(?, ifnull("
            f"(SELECT version FROM catalog WHERE {OF_NAME} AND is_latest = 1"
            " ORDER BY version DESC LIMIT 1), 0))",
            (*key, marker, *key),
        )
        return (step for (step,) in found.fetchall())

    @staticmethod
    def _settle(db: sqlite3.Connection, key: tuple[str, ...], step: str, marker: int) -> None:
        """Flag the newest committed version of one step, no newer than the marker, as latest."""
        top = db.execute(
            f"SELECT version FROM catalog WHERE {OF_NAME} AND {LATEST_OF_STEP_SQL}",
            (*key, marker, step),
        ).fetchone()
        version = top[0] if top else 0
        db.execute(
            f"UPDATE OR FAIL catalog SET is_latest = 0 WHERE {OF_NAME}"
            " AND is_latest = 1 AND step_name = ? AND version != ?",
            (*key, step, version),
        )
        db.execute(
            f"UPDATE OR FAIL catalog SET is_latest = 1 WHERE {OF_NAME}"
            " AND version = ? AND is_latest = 0",
            (*key, version),
        )

    # Lookups -------------------------------------------------------------------------------

    def latest(self, ref: DataRef) -> Row | None:
        """Return the row that the name's marker points at; tombstones included."""
        key = (ref.model.type, ref.model.id, ref.name, self.namespace)
        return self._one(LATEST_BY_ADDRESS, key)

    def version(self, ref: DataRef, version: int) -> Row | None:
        """Return one version's row."""
        if not 0 < version <= LARGEST_VERSION:
            return None
        return self._one(VERSION_BY_ADDRESS, (*self._key(ref), version))

    def versions(self, ref: DataRef, limit: int | None = None) -> list[Row]:
        """Return a name's rows, newest first."""
        return self._all(VERSIONS_BY_ADDRESS, (*self._key(ref), sql_limit(limit)))

    def version_numbers(self, ref: DataRef) -> list[int]:
        """Return a name's versions, ascending."""
        key = self._key(ref)
        return self.rows.read(lambda db: [found for (found,) in db.execute(VERSION_NUMBERS, key)])

    def numbers_from(self, ref: DataRef) -> tuple[dict[str, list[tuple[int, bool]]], str | None]:
        """Return versions, ascending, and whether they are flagged as the latest, of some names.

        They are those of a model from this name on, in order, and before the other name that is
        returned: None if there are no more.
        """
        found: dict[str, list[tuple[int, bool]]] = {}
        key = (*self._key(ref), _PAGE)
        rows = self.rows.read(lambda db: db.execute(NUMBERS_FROM, key).fetchall())
        for name, version, is_latest in rows:
            found.setdefault(name, []).append((version, bool(is_latest)))
        if len(rows) < _PAGE:
            return found, None
        # The last one may go on, and is whole only in a page of its own.
        last, _ = found.popitem()
        return found, last

    def deferred_versions(self, ref: DataRef) -> list[int]:
        """Return a name's versions that wait for the commit of their group."""
        key = self._key(ref)
        return self.rows.read(lambda db: [found for (found,) in db.execute(DEFERRED_NUMBERS, key)])

    def names(self, model: ModelRef) -> list[str]:
        """Return the data names of a model, sorted."""
        key = (model.type, model.id, self.namespace)
        return self.rows.read(lambda db: [name for (name,) in db.execute(NAMES_OF_MODEL, key)])

    def latest_of(self, model: ModelRef) -> list[Row]:
        """Return the latest rows of a model, sorted by name, tombstones included."""
        return self._all(LATEST_OF_MODEL, (model.type, model.id, self.namespace))

    def models_named(self, model_name: str) -> list[ModelRef]:
        """Return the models that carry this name in their tags."""
        key = (model_name, self.namespace)
        return self.rows.read(
            lambda db: [ModelRef(*found) for found in db.execute(MODELS_BY_NAME, key)]
        )

    def known_model_names(self, limit: int) -> list[str]:
        """Return the first names that models carry in their tags, sorted."""
        sql = (
            "SELECT DISTINCT model_name FROM catalog WHERE is_latest = 1 AND model_name != ''"
            " AND namespace = ? ORDER BY model_name LIMIT ?"
        )
        key = (self.namespace, limit)
        return self.rows.read(lambda db: [name for (name,) in db.execute(sql, key)])

    def model_of_name(self, name: str) -> ModelRef | None:
        """Return a model that has data of this name, None if there is none."""
        sql = (
            "SELECT type_normalized, model_id FROM catalog WHERE is_latest = 1"
            " AND data_name = ? AND namespace = ? LIMIT 1"
        )
        key = (name, self.namespace)
        found = self.rows.read(lambda db: db.execute(sql, key).fetchone())
        return ModelRef(*found) if found else None

    def models(self, limit: int, like: str = "") -> list[ModelRef]:
        """Return the first models that have data, those of type `like` before all others."""
        sql = (
            "SELECT DISTINCT type_normalized, model_id FROM catalog WHERE is_latest = 1"
            " AND namespace = ? ORDER BY type_normalized != ?, type_normalized, model_id LIMIT ?"
        )
        key = (self.namespace, like, limit)
        return self.rows.read(lambda db: [ModelRef(*found) for found in db.execute(sql, key)])

    def model_totals(self) -> list[ModelTotals]:
        """Return every model that has data, sorted; reads all rows once."""
        found = self.rows.read(lambda db: db.execute(MODEL_TOTALS, (self.namespace,)).fetchall())
        return [ModelTotals(ModelRef(one[0], one[1]), *one[2:]) for one in found]

    def has_model(self, model: ModelRef) -> bool:
        """Whether any version of any data of this model is known."""
        key = (self.namespace, model.type, model.id)
        return self.rows.read(lambda db: db.execute(MODEL_EXISTS, key).fetchone()) is not None

    def known_names(self) -> Iterator[tuple[DataRef, int]]:
        """Yield every data name with its highest version, a page at a time."""
        last: tuple[str, ...] = ("", "", "")
        while page := self._page_of_names(last):
            for found in page:
                yield DataRef(ModelRef(found[0], found[1]), found[2]), found[3]
            last = page[-1][:3]

    def _page_of_names(self, last: tuple[str, ...]) -> list[tuple[str, str, str, int]]:
        return self.rows.read(
            lambda db: db.execute(NAMES_PAGE, (self.namespace, *last, _PAGE)).fetchall()
        )

    def by_name(self) -> Iterator[list[Row]]:
        """Yield the rows of one data name after the other, ascending, reading a page at a time."""
        for _, rows in groupby(self._every_row(), key=lambda row: row[:4]):
            yield list(rows)

    def _every_row(self) -> Iterator[Row]:
        last: tuple[object, ...] = ("", "", "", 0)
        while page := self._all(VERSIONS_PAGE, (self.namespace, *last, _PAGE)):
            yield from page
            last = page[-1][1:5]

    def _one(self, sql: str, key: tuple[object, ...]) -> Row | None:
        found = self.rows.read(lambda db: db.execute(sql, key).fetchone())
        return None if found is None else Row._make(found)

    def _all(self, sql: str, key: tuple[object, ...]) -> list[Row]:
        return self.rows.read(lambda db: [Row._make(found) for found in db.execute(sql, key)])

    # State ---------------------------------------------------------------------------------

    @property
    def is_populated(self) -> bool:
        """Whether a full rebuild has finished since the file was created or invalidated."""
        return self._meta(_POPULATED) is not None

    def check_writable(self) -> None:
        """Raise DiskError if what is written would not outlast this process."""
        self.rows.write(lambda _: None, flush=True)

    def mark_populated(self) -> None:
        """Say that the rows are complete."""
        self._set_meta(_POPULATED, "true")

    @property
    def changes(self) -> int:
        """How often rows of a namespace were changed; never counted without a namespace."""
        return int(self._meta(_CHANGES) or 0)

    @property
    def last_export(self) -> tuple[int, str] | None:
        """What `changes` was at the last export, and when that was."""
        changes, _, moment = (self._meta(_EXPORTED) or "").partition(" ")
        return (int(changes), moment) if moment else None

    def note_export(self, changes: int, moment: datetime) -> None:
        """Remember that the rows were exported as they were after so many changes."""
        self._set_meta(_EXPORTED, f"{changes} {to_iso(moment)}")

    @property
    def untold(self) -> tuple[frozenset[str], bool]:
        """What `note_untold` was told last."""
        rels, is_told = json.loads(self._meta(_UNTOLD) or "[[], false]")
        return frozenset(rels), is_told

    def note_untold(self, rels: Collection[str], *, is_told: bool) -> None:
        """Remember the paths that changed here and are in no export that arrived.

        `is_told` says that the one which is there now tells of them.
        """
        self._set_meta(_UNTOLD, json.dumps([sorted(rels), is_told]))

    @property
    def seen_elsewhere(self) -> str:
        """How far what others changed was read, as `note_seen_elsewhere` was told."""
        return self._meta(_SEEN) or ""

    def note_seen_elsewhere(self, seen: str) -> None:
        """Remember how far what others changed was read."""
        self._set_meta(_SEEN, seen)

    def agrees(self, ref: DataRef, stored: Sequence[StoredVersion], removed: Sequence[int]) -> bool:
        """Whether the rows say this of some versions, whichever of them is the latest."""
        if any(self.version(ref, version) for version in removed):
            return False
        rows = [(self._row(ref, one), self.version(ref, one.metadata.version)) for one in stored]
        return all(known and known._replace(is_latest=0) == row for row, known in rows)

    def has_at_most(self, count: int) -> bool:
        """Whether the namespace has no more rows than that; counts no further."""
        key = (self.namespace, count + 1)
        (found,) = self.rows.read(lambda db: db.execute(COUNT_UP_TO, key).fetchone())
        return bool(found <= count)

    def _meta(self, key: str) -> str | None:
        sql = "SELECT value FROM catalog_meta WHERE key = ?"
        found = self.rows.read(lambda db: db.execute(sql, (key,)).fetchone())
        return None if found is None else str(found[0])

    def _set_meta(self, key: str, value: str) -> None:
        sql = "INSERT OR REPLACE INTO catalog_meta VALUES (?, ?)"
        self.rows.write(lambda db: db.execute(sql, (key, value)))

    def invalidate(self) -> None:
        """Say that the rows may be incomplete; the next query rebuilds them."""
        sql = "DELETE FROM catalog_meta WHERE key = ?"
        self.rows.write(lambda db: db.execute(sql, (_POPULATED,)))

    def clear(self) -> None:
        """Forget every row; whoever asks next has them read from the files again."""

        def work(db: sqlite3.Connection) -> None:
            db.execute("DELETE FROM catalog_meta WHERE key = ?", (_POPULATED,))
            db.execute("DELETE FROM catalog")
            db.execute("DELETE FROM word")

        self.change(work)

    def forget_unused_words(self) -> None:
        """Forget what could be searched for and has no latest version any more."""
        from swampstore.catalog.words import forget_unused

        self.rows.write(forget_unused)

    def counts(self) -> dict[str, int]:
        """Return how many rows, latest rows and unfinished changes there are."""
        sql = (
            "SELECT (SELECT count(*) FROM catalog),"
            " (SELECT count(*) FROM catalog WHERE is_latest = 1), (SELECT count(*) FROM intent)"
        )
        versions, latest, pending = self.rows.read(lambda db: db.execute(sql).fetchone())
        return {"versions": versions, "latest": latest, "pending": pending}
