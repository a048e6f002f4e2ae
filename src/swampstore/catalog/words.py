"""Finding the rows that mention a word: in a name, or in a tag.

The words that the latest versions have are few, compared with the versions, and in a table of
their own. So a search looks through those, and then at the rows that have one of them.
"""

from __future__ import annotations

import json
import sqlite3

from swampstore.catalog.schema import WORD_COLUMNS, Row

_TEXT = "iif(kind = 'tag', key || '=' || value, value)"
# SQLite only knows the two cases of ASCII. Whatever else a text has in it is left to Python.
_PERHAPS = (
    f"SELECT kind, key, value FROM word WHERE instr(lower({_TEXT}), ?) > 0"
    f" OR length(CAST({_TEXT} AS BLOB)) != length({_TEXT})"
)
_WITH_TAG = "SELECT row FROM tag WHERE key = ? AND value = ? LIMIT ?"
_MOST_WORDS = 1000


def rows_mentioning(db: sqlite3.Connection, word: str, most: int) -> list[int] | None:
    """Return the numbers of the latest rows that mention a word; None if more than `most` do."""
    rows: set[int] = set()
    for count, (kind, key, value) in enumerate(_words_with(db, word)):
        if count >= _MOST_WORDS:
            return None
        if kind == "tag":
            found = db.execute(_WITH_TAG, (key, value, most + 1))
        else:
            found = db.execute(_rows_where(WORD_COLUMNS[kind]), (value, most + 1))
        rows.update(row for (row,) in found)
        if len(rows) > most:
            return None
    return sorted(rows)


def _words_with(db: sqlite3.Connection, word: str) -> list[tuple[str, str, str]]:
    folded = word.casefold()
    return [
        (kind, key, value)
        for kind, key, value in db.execute(_PERHAPS, (folded,))
        if folded in (f"{key}={value}" if kind == "tag" else value).casefold()
    ]


def _rows_where(column: str) -> str:
    # The second condition is that of the index of model names.
    return (
        f"SELECT rowid FROM catalog WHERE is_latest = 1 AND {column} = ?1 AND {column} != ''"
        " LIMIT ?2"
    )


def mentions(row: Row, word: str) -> bool:
    """Whether a word, in any case, is part of a name or of a tag of a row."""
    folded = word.casefold()
    if any(folded in text.casefold() for text in (row.data_name, row.model_name, row.spec_name)):
        return True
    # Most rows are done with here: what no key and no value holds, their JSON does not hold.
    if folded.isalnum() and folded not in row.tags.casefold():
        return False
    return any(folded in f"{key}={value}".casefold() for key, value in json.loads(row.tags).items())


def forget_unused(db: sqlite3.Connection) -> None:
    """Within a transaction, forget the words that no latest row has any more."""
    db.execute(
        "DELETE FROM word WHERE kind = 'tag' AND NOT EXISTS"
        " (SELECT 1 FROM tag WHERE tag.key = word.key AND tag.value = word.value)"
    )
    for kind, column in WORD_COLUMNS.items():
        db.execute(
            f"DELETE FROM word WHERE kind = '{kind}' AND value != '' AND NOT EXISTS (SELECT 1 FROM"
            f" catalog WHERE is_latest = 1 AND {column} = word.value AND {column} != '')"
        )
