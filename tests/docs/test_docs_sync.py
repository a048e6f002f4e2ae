"""The page about the formats of sync names every member, table and file that the code has."""

from __future__ import annotations

import re

import pytest

from swampstore import layout
from swampstore.index import base, meta
from swampstore.index import format as index_format
from swampstore.index.decoding import WRITE
from swampstore.sync import dirty, journal, sidecar
from tests.support.markdown_pages import ROOT, Page, table_rows

FORMATS = Page(ROOT / "docs/formats/sync.md")
_COLUMN = re.compile(r"(\w+) (?:TEXT|INTEGER)")


def _named(title: str, *, first_row: str = "") -> set[str]:
    """Return what the first columns of a section's tables name; `first_row` begins the table."""
    text = FORMATS.section(title)
    text = text[text.index(first_row) :]
    return {name for row in table_rows(text) for name in re.findall(r"`([^`]+)`", row[0])}


def test_every_member_of_the_sidecar_is_described() -> None:
    fingerprint = {"remoteIndexETag"}
    ours = {sidecar._OVERFLOW, sidecar._WRITTEN, sidecar._CHAIN}
    assert _named("The sidecar") == {"version", *fingerprint, *sidecar._ORDER, *ours}


@pytest.mark.parametrize(
    ("title", "members"),
    [
        ("An entry", index_format._ENTRY_MEMBERS),
        (
            ".datastore-index.json: the monolith",
            index_format._MONOLITH_MEMBERS | {index_format._ORIGIN},
        ),
        (
            "_index/{partition}.json: a shard",
            index_format._SHARD_MEMBERS | {WRITE, index_format.COMMIT_SEQ, index_format._REMOVED},
        ),
        (
            "_index/_meta.json",
            meta._META_MEMBERS | {*meta._OwnMembers.__struct_fields__, WRITE},
        ),
    ],
)
def test_every_member_of_an_index_document_is_described(
    title: str, members: frozenset[str]
) -> None:
    assert _named(title) - {"swampstore"} == members - {"swampstore"}


def test_every_table_of_the_base_is_described() -> None:
    tables = {found[1] for text in base.SCHEMA if (found := re.match(r"CREATE TABLE (\w+)", text))}
    assert tables | {"owner"} <= _named("The base")


def test_every_column_of_what_is_known_is_described() -> None:
    known = next(text for text in base.SCHEMA if text.startswith("CREATE TABLE known"))
    described = _named("The base", first_row="| column of `known`")
    assert described - {"known"} == set(_COLUMN.findall(known))


def test_every_file_that_sync_keeps_in_a_cache_is_described() -> None:
    described = _named("In the cache")
    assert {dirty.LOCK, journal.JOURNAL, layout.SIDECAR} <= described


def test_everything_that_never_crosses_is_named() -> None:
    described = _named("What stays local")
    wanted = {
        *layout.NEVER_SHARED,
        *layout._INTERNAL_ROOT_FILES,
        *layout._INTERNAL_ROOT_DIRS,
        layout.DEFERRED,
    }
    assert wanted <= described
    for name in described:
        if not set(name) & set("{*"):
            is_local = layout.is_internal(name) or name in layout.NEVER_SHARED
            assert is_local or name in ("directories", "exclude"), name
