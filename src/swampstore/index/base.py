"""The base: what this cache last knew to be equal to the remote, path by path.

A SQLite file inside the cache. It can be thrown away: whatever is wrong with it (missing,
damaged, of another schema, of another remote) the answer is an empty base, which costs time at
the next sync and never data. Only a disk that refuses is an error.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from types import MappingProxyType
from typing import Any, NamedTuple

from swampstore.files.signature import Signature
from swampstore.index.base_file import BaseFile
from swampstore.index.partitions import Homes

BASE = "_catalog.db-base"
ARRIVING = "arriving"
LEAVING = "leaving"
_NONE: Mapping[Any, Any] = MappingProxyType({})
_PAGE = 1000
_PARAMETERS = 500
_NOTES = 100
_LARGEST = (1 << 63) - 1
# From one partition to the next by its index, past all the rows between them.
_PARTITIONS = (
    "WITH RECURSIVE one(partition) AS ("
    " SELECT min(partition) FROM known UNION ALL"
    " SELECT (SELECT min(partition) FROM known WHERE partition > one.partition)"
    " FROM one WHERE partition IS NOT NULL)"
    " SELECT partition FROM one WHERE partition IS NOT NULL"
)
# Content of versions that is here as well as on the remote, where it can be had again.
HELD_CONTENT = "held_inode IS NOT NULL AND sha256 IS NOT NULL AND rel GLOB 'data/*/raw'"
_ABSENT = "held_inode IS NULL"
# Content of at least this size is looked for elsewhere on the remote before it is sent.
LARGE = 1 << 20
_HELD_PAGE = 10_000  # each page is a look at every row
_AFTER_ALL_TEXT = b""  # SQLite sorts any blob behind any text

SCHEMA = (
    """CREATE TABLE known (
        rel TEXT PRIMARY KEY, size INTEGER NOT NULL, sha256 TEXT, modified TEXT NOT NULL, etag TEXT,
        held_size INTEGER, held_mtime INTEGER, held_ctime INTEGER, held_inode INTEGER,
        recorded INTEGER NOT NULL, partition TEXT NOT NULL
    ) WITHOUT ROWID""",
    "CREATE INDEX known_by_partition ON known (partition)",
    """CREATE TABLE shards (
        scope TEXT, partition TEXT, etag TEXT NOT NULL, PRIMARY KEY (scope, partition)
    ) WITHOUT ROWID""",
    "CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    """CREATE TABLE uploads (
        rel TEXT PRIMARY KEY, sha256 TEXT NOT NULL, etag TEXT NOT NULL
    ) WITHOUT ROWID""",
    "CREATE TABLE doomed (rel TEXT PRIMARY KEY) WITHOUT ROWID",
)
_COLUMNS = (
    "rel, size, sha256, modified, etag, held_size, held_mtime, held_ctime, held_inode, recorded"
)
_INSERT_KNOWN = f"INSERT OR REPLACE INTO known VALUES ({', '.join('?' * 11)})"
# A long fact is written over where it is, and only where it differs: to replace it would free all
# of its pages, and take others.
_INSERT_FACT = (
    "INSERT INTO facts VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value"
)
_RENEW = (
    "UPDATE known SET held_ctime = ?, recorded = ? WHERE rel = ?"
    " AND held_size = ? AND held_mtime = ? AND held_ctime = ? AND held_inode = ?"
)
_SETTLE_UPLOAD = "DELETE FROM uploads WHERE rel = ?"
_ANY_UPLOAD = "SELECT 1 FROM uploads LIMIT 1"
_INSERT_UPLOAD = "INSERT OR REPLACE INTO uploads VALUES (?, ?, ?)"


class Known(NamedTuple):
    """One path as cache and remote last agreed on it.

    `modified` is the index entry's `lastModified`, empty if no index that was read has named the
    path, and a push that was stopped had sent it. `etag` is the remote object's, if a transfer
    told it.
    `held` is the local file as it was when it equalled the remote, looked at no earlier than
    `recorded_ns`; None if the content never came here.
    """

    rel: str
    size: int
    sha256: str | None
    modified: str
    etag: str | None
    held: Signature | None
    recorded_ns: int = 0


class Arriving(NamedTuple):
    """A path that is about to be installed, as the base will know it, and from where it comes."""

    rel: str
    size: int
    sha256: str | None
    modified: str
    etag: str | None
    staged: str


class Base:
    """The base of one cache directory for one remote. Threads and processes may share it.

    Whatever is written in one call is kept as a whole or not at all. Iterators read page by page
    and hold nothing in between: what is changed while one runs may or may not be seen.
    """

    def __init__(self, cache_dir: str, identity: str) -> None:
        self._file = BaseFile(f"{cache_dir}/{BASE}", SCHEMA, identity)
        self._indexes: set[str] = set()

    def get(self, rel: str) -> Known | None:
        """Return what is known of a path."""
        return self.get_many((rel,)).get(rel)

    def get_many(self, rels: Iterable[str]) -> dict[str, Known]:
        """Return what is known of these paths, by path."""
        sql = f"SELECT {_COLUMNS} FROM known WHERE rel IN"
        return {row[0]: _known(row) for row in self._matching(sql, rels)}

    def below(self, prefix: str, other_than: Container[str] = ()) -> Iterator[Known]:
        """Yield what is known of a path and of everything below it; "" is the root.

        Of paths that are left out no record is made, which is most of what they would cost.
        """
        exact = self.get(prefix) if prefix else None
        if exact is not None and exact.rel not in other_than:
            yield exact
        # "0" is the character behind "/", so this is neither "a-b" nor "a0" for "a".
        bounds = (f"{prefix}/", f"{prefix}0") if prefix else ("", _AFTER_ALL_TEXT)
        yield from (
            _known(row) for row in self._pages(_COLUMNS, *bounds) if row[0] not in other_than
        )

    def is_held_below(self, prefixes: Sequence[str]) -> bool:
        """Whether the content of anything below one of these paths came here."""
        below = " OR ".join(["rel > ? AND rel < ?"] * len(prefixes))
        bounds = tuple(bound for prefix in prefixes for bound in (f"{prefix}/", f"{prefix}0"))
        sql = f"SELECT EXISTS (SELECT 1 FROM known WHERE held_inode IS NOT NULL AND ({below}))"
        return bool(prefixes and self._number(sql, bounds))

    def in_partition(self, partition: str) -> dict[str, Known]:
        """Return everything known of one partition, by path."""
        sql = f"SELECT {_COLUMNS} FROM known WHERE partition = ?"
        return {row[0]: _known(row) for row in self._rows(sql, (partition,))}

    def partitions(self) -> list[str]:
        """Return the partitions that known paths are in, sorted; costs a lookup for each."""
        return [row[0] for row in self._rows(_PARTITIONS)]

    def has_partition(self, partition: str) -> bool:
        """Whether any path of a partition is known."""
        return bool(self._rows("SELECT 1 FROM known WHERE partition = ? LIMIT 1", (partition,)))

    def rels(self) -> Iterator[str]:
        """Yield every known path, sorted."""
        return (row[0] for row in self._pages("rel", "", _AFTER_ALL_TEXT))

    def count(self) -> int:
        """Return the number of known paths."""
        return self._number("SELECT count(*) FROM known")

    def is_empty(self) -> bool:
        """Whether no path is known; does not count them."""
        return not self._rows("SELECT 1 FROM known LIMIT 1")

    def lacks_content(self) -> bool:
        """Whether the content of some path never came here; does not look at the others."""
        self._ensure_index("known_absent", f"known (rel) WHERE {_ABSENT}")
        return bool(self._rows(f"SELECT 1 FROM known WHERE {_ABSENT} LIMIT 1"))

    def with_content(self, sha256: str, other_than: str) -> Known | None:
        """Return another path whose object was seen to have this content, if it is large.

        Only such have a token: what never came here and was not sent from here has none.
        """
        # It has the few large ones alone, so that it costs the others nothing.
        self._ensure_index("known_large", f"known (sha256) WHERE size >= {LARGE}")
        sql = (
            f"SELECT {_COLUMNS} FROM known WHERE sha256 = ? AND size >= {LARGE}"
            " AND etag IS NOT NULL AND rel != ? LIMIT 1"
        )
        rows = self._rows(sql, (sha256, other_than))
        return _known(rows[0]) if rows else None

    def total_bytes(self) -> int:
        """Return the size of everything known, hydrated or not."""
        return self._number("SELECT total(size) FROM known")

    def not_held(self) -> int:
        """Return the number of paths whose content never came here."""
        return self._number(f"SELECT count(*) FROM known WHERE {_ABSENT}")

    def content_bytes(self) -> int:
        """Return the size of all content that is here and could be fetched again."""
        return self._number(f"SELECT total(size) FROM known WHERE {HELD_CONTENT}")

    def held_content(self) -> Iterator[list[Known]]:
        """Yield that content page by page, in the order in which it came."""
        sql = (
            f"SELECT {_COLUMNS} FROM known WHERE {HELD_CONTENT} AND (recorded, rel) > (?, ?)"
            f" ORDER BY recorded, rel LIMIT {_HELD_PAGE}"
        )
        page = [_known(row) for row in self._rows(sql, (-1, ""))]
        while page:
            yield page
            last = page[-1]
            page = [_known(row) for row in self._rows(sql, (last.recorded_ns, last.rel))]

    def apply(
        self,
        *,
        known: Iterable[Known] = (),
        forgotten: Iterable[str] = (),
        shards: Mapping[tuple[str, str], str] = _NONE,
        facts: Mapping[str, str | None] = _NONE,
    ) -> None:
        """Record in one transaction what was synced; the upload notes of these paths go.

        `shards` says which shard was applied, by partition and scope key ("" is everything): its
        ETag. As what else it was applied before, in any scope, is forgotten: it may become that
        again, byte by byte, and the base would not have followed. A fact that is None is removed.
        """
        homes = Homes()
        rows = [_row(one, homes.of(one.rel)) for one in known]
        gone = [(rel,) for rel in forgotten]
        settled = [row[:1] for row in rows] + gone
        etags = [(scope, partition, etag) for (partition, scope), etag in shards.items()]
        learnt = [(name, value) for name, value in facts.items() if value is not None]
        unlearnt = [(name,) for name, value in facts.items() if value is None]
        self._write_all(
            (_INSERT_KNOWN, rows),
            ("DELETE FROM known WHERE rel = ?", gone),
            (_SETTLE_UPLOAD, settled),
            ("DELETE FROM shards WHERE scope = ? AND partition = ?", self._outdated(shards)),
            ("INSERT OR REPLACE INTO shards VALUES (?, ?, ?)", etags),
            (_INSERT_FACT, learnt),
            ("DELETE FROM facts WHERE name = ?", unlearnt),
            facts=facts,
        )

    def hold(self, arrived: Mapping[Known, Known | None]) -> set[str]:
        """Record content that has come, unless something else is known of its path by now.

        Each comes with what was known of it before (None: nothing). Return the paths of the rest.
        """
        homes = Homes()

        def work(db: sqlite3.Connection) -> set[str]:
            refused = set()
            for one, before in arrived.items():
                row = db.execute(f"SELECT {_COLUMNS} FROM known WHERE rel = ?", (one.rel,))
                if _content_of(row.fetchone()) == (before and (before.size, before.sha256)):
                    db.execute(_INSERT_KNOWN, _row(one, homes.of(one.rel)))
                    db.execute(_SETTLE_UPLOAD, (one.rel,))
                else:
                    refused.add(one.rel)
            return refused

        return self._file.write(work)

    def renew(self, seen: Iterable[tuple[Known, Signature]], recorded_ns: int) -> None:
        """Remember that these files look otherwise since a link to them came or went.

        What is not known any more as it was, or differs by more than that, stays as it is.
        """
        rows = [
            (now.ctime_ns, recorded_ns, one.rel, *one.held)
            for one, now in seen
            if one.held and now._replace(ctime_ns=one.held.ctime_ns) == one.held
        ]
        self._write_all((_RENEW, rows))

    def _outdated(self, shards: Mapping[tuple[str, str], str]) -> list[tuple[str, str]]:
        """Return under which scopes and partitions other ETags than these are recorded."""
        if not shards:
            return []
        now = {(partition, etag) for (partition, _), etag in shards.items()}
        partitions = {partition for partition, _ in now}
        sql = "SELECT scope, partition, etag FROM shards"
        if len(partitions) > _PARAMETERS:
            recorded: Iterable[Any] = self._rows(sql)
        else:
            self._ensure_index("shards_by_partition", "shards (partition)")
            recorded = self._matching(f"{sql} WHERE partition IN", partitions)
        return [
            (scope, partition)
            for scope, partition, etag in recorded
            if partition in partitions and (partition, etag) not in now
        ]

    def shard_etags(
        self, scope_key: str = "", partitions: Iterable[str] | None = None
    ) -> dict[str, str]:
        """Return the ETag of each shard as it was last applied in this scope, by partition.

        All of them, or those of some partitions, for which nothing else is looked at.
        """
        sql = "SELECT partition, etag FROM shards WHERE scope = ?"
        if partitions is None:
            return dict(self._rows(sql, (scope_key,)))
        one = f"{sql} AND partition = ?"
        return dict(row for name in partitions for row in self._rows(one, (scope_key, name)))

    def drop_shards(self, partitions: Iterable[str] | None = None) -> None:
        """Forget that these shards (None: any) were applied, in every scope."""
        if partitions is None:
            self._file.write(lambda db: db.execute("DELETE FROM shards"))
        else:
            self._write_all(("DELETE FROM shards WHERE partition = ?", [(p,) for p in partitions]))

    def fact(self, name: str) -> str | None:
        """Return a small thing that was recorded with `apply`."""
        return self.facts(name)[0]

    def facts(self, *names: str) -> list[str | None]:
        """Return several of them as they are at one moment, for the price of one."""
        sql = f"SELECT name, value FROM facts WHERE name IN ({', '.join('?' * len(names))})"

        def work(db: sqlite3.Connection) -> list[str | None]:
            found = dict(db.execute(sql, names).fetchall())
            return [found.get(name) for name in names]

        return self._file.recall(names, work)

    def note_uploads(self, uploads: Mapping[str, tuple[str, str]]) -> None:
        """Note objects (path: SHA-256 and ETag) that are uploaded but in no index yet."""
        rows = [(rel, sha256, etag) for rel, (sha256, etag) in uploads.items()]

        def work(db: sqlite3.Connection) -> None:
            # Between two statements, all the threads that upload would want to go on.
            for start in range(0, len(rows), _NOTES):
                some = rows[start : start + _NOTES]
                sql = f"{_INSERT_UPLOAD}{', (?, ?, ?)' * (len(some) - 1)}"
                db.execute(sql, tuple(chain.from_iterable(some)))

        if rows:
            self._file.write(work)

    def noted_uploads(self, rels: Iterable[str]) -> dict[str, tuple[str, str]]:
        """Return the notes there are of these paths."""
        sql = "SELECT rel, sha256, etag FROM uploads WHERE rel IN"
        return {rel: (sha256, etag) for rel, sha256, etag in self._matching(sql, rels)}

    def all_noted_uploads(self) -> dict[str, str]:
        """Return the SHA-256 of all that is noted, by path."""
        return dict(self._rows("SELECT rel, sha256 FROM uploads"))

    def note_arrivals(self, arrivals: Sequence[Arriving]) -> None:
        """Note what is about to be installed, and from where, until `ARRIVING` is taken back."""
        self.apply(facts={ARRIVING: json.dumps(arrivals)})

    def noted_arrivals(self) -> dict[Known, str | None]:
        """Return what was about to be installed when somebody was stopped, and where it came from.

        That is without a local file; releases before this one did not note where it came from.
        """
        rows = json.loads(self.fact(ARRIVING) or "[]")
        return {
            Known(rel, size, sha256, modified, etag, None): next(iter(staged), None)
            for rel, size, sha256, modified, etag, *staged in rows
        }

    def note_leaving(self, rels: Sequence[str]) -> None:
        """Note what a pull is about to remove, until `LEAVING` is taken back."""
        self.apply(facts={LEAVING: json.dumps(rels)})

    def noted_leaving(self) -> list[str]:
        """Return what a pull was about to remove when it was stopped."""
        found: list[str] = json.loads(self.fact(LEAVING) or "[]")
        return found

    def add_pending_deletes(self, rels: Iterable[str]) -> None:
        """Note objects that left the index and still have to be removed from the store."""
        self._write_all(("INSERT OR IGNORE INTO doomed VALUES (?)", [(rel,) for rel in rels]))

    def pending_deletes(self) -> list[str]:
        """Return the paths of the objects that still have to be removed, sorted."""
        return [rel for (rel,) in self._rows("SELECT rel FROM doomed ORDER BY rel")]

    def drop_pending_deletes(self, rels: Iterable[str]) -> None:
        """Drop the note: the object is removed, or is needed after all."""
        self._write_all(("DELETE FROM doomed WHERE rel = ?", [(rel,) for rel in rels]))

    def clear(
        self,
        keep: Iterable[Known] = (),
        uploads: Mapping[str, tuple[str, str]] = _NONE,
        facts: Mapping[str, str | None] = _NONE,
    ) -> None:
        """Forget everything but what is to be kept, and note uploads and facts, in one step."""
        homes = Homes()
        rows = [_row(one, homes.of(one.rel)) for one in keep]
        noted = [(rel, sha256, etag) for rel, (sha256, etag) in uploads.items()]
        told = [(name, value) for name, value in facts.items() if value is not None]
        self._indexes.clear()

        def then(db: sqlite3.Connection) -> None:
            db.executemany(_INSERT_KNOWN, rows)
            db.executemany(_INSERT_UPLOAD, noted)
            db.executemany(_INSERT_FACT, told)

        self._file.clear(then)

    def close(self) -> None:
        """Release the file; using the base again opens it again."""
        self._file.close()

    def _rows(self, sql: str, parameters: tuple[Any, ...] = ()) -> list[Any]:
        return self._file.read(lambda db: db.execute(sql, parameters).fetchall())

    def _ensure_index(self, name: str, on: str) -> None:
        """Make an index that helps, unless there is one.

        Not among the tables: a base without it is no other base.
        """
        if name in self._indexes:
            return
        if not self._rows("SELECT 1 FROM sqlite_master WHERE name = ?", (name,)):
            sql = f"CREATE INDEX IF NOT EXISTS {name} ON {on}"
            self._file.write(lambda db: db.execute(sql))
        self._indexes.add(name)

    def _number(self, sql: str, parameters: tuple[Any, ...] = ()) -> int:
        return int(self._rows(sql, parameters)[0][0])

    def _matching(self, sql: str, rels: Iterable[str]) -> Iterator[Any]:
        wanted = list(rels)
        for start in range(0, len(wanted), _PARAMETERS):
            chunk = tuple(wanted[start : start + _PARAMETERS])
            yield from self._rows(f"{sql} ({', '.join('?' * len(chunk))})", chunk)

    def _pages(self, columns: str, after: str, before: str | bytes) -> Iterator[Any]:
        sql = f"SELECT {columns} FROM known WHERE rel > ? AND rel < ? ORDER BY rel LIMIT {_PAGE}"
        page = self._rows(sql, (after, before))
        while page:
            yield from page
            if len(page) < _PAGE:
                return
            page = self._rows(sql, (page[-1][0], before))

    def _write_all(
        self,
        *changes: tuple[str, Collection[tuple[Any, ...]]],
        facts: Mapping[str, str | None] = _NONE,
    ) -> None:
        wanted = [(sql, rows) for sql, rows in changes if rows]

        def work(db: sqlite3.Connection) -> None:
            for sql, rows in wanted:
                # Of a pull there are a great many, and hardly ever any note.
                if sql is _SETTLE_UPLOAD and not db.execute(_ANY_UPLOAD).fetchone():
                    continue
                # Of facts, the long ones are nearly always the same.
                is_facts = sql is _INSERT_FACT
                db.executemany(sql, self._file.unwritten(db, rows) if is_facts else rows)

        if wanted:
            self._file.write(work, recalled=facts)


def _row(one: Known, partition: str) -> tuple[Any, ...]:
    held: tuple[int | None, ...] = (None, None, None, None)
    if one.held is not None:
        held = one.held
        if max(held) > _LARGEST:  # dates far in the future are too much for SQLite's integers
            held = tuple(min(number, _LARGEST) for number in held)
    return (
        one.rel,
        min(one.size, _LARGEST),
        one.sha256,
        one.modified,
        one.etag,
        *held,
        one.recorded_ns,
        partition,
    )


def _content_of(row: tuple[Any, ...] | None) -> tuple[int, str | None] | None:
    if row is None:
        return None
    known = _known(row)
    return known.size, known.sha256


def _known(row: tuple[Any, ...]) -> Known:
    rel, size, sha256, modified, etag, held_size, mtime, ctime, inode, recorded = row
    held = None if inode is None else Signature(held_size, mtime, ctime, inode)
    return Known(rel, size, sha256, modified, etag, held, recorded)
