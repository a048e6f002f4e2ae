"""A shard read in one go says what is said entry by entry, or nothing."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swampstore.errors import SwampstoreError
from swampstore.index.format import Document, decode_entry, decode_shard, entry_members
from swampstore.index.partitions import partition_of
from swampstore.index.shard_glance import glance
from swampstore.layout import is_plain

REL = "data/t/u/m/name/1/raw"
SHA256 = "0123456789abcdef" * 4
SOUND: dict[str, Any] = {"size": 1, "lastModified": "x", "sha256": SHA256}
# Each is understood by some readers; the glance may say nothing of any but the first.
VALUES: dict[str, list[Any]] = {
    "size": [1, 2**53 - 1, 1.0, 1.5, -1, "1", None, True],
    "lastModified": ["x", None, 5],
    "sha256": [SHA256, SHA256.upper(), None, SHA256[:-1], f"{SHA256[:-1]} ", "ß" * 64],
    "localMtime": ["x", None, 5],
    "commitSeq": [7, None, 0, 1.0],
    "key": [REL, 5],
}
CHANGED = [SOUND | {name: value} for name, some in VALUES.items() for value in some]
ENTRIES = st.sampled_from([SOUND, None, [], *CHANGED])
RELS = st.sampled_from([REL, "data/t/u/m/name/latest", "data/t/x", "a", "", "é/ß"])
TOPS = st.fixed_dictionaries(
    {},
    optional={
        "version": st.sampled_from([1, 1, 1, 1.0, 2, None]),
        "commitSeq": st.sampled_from([3, 0, "x", None]),
        "removed": st.sampled_from([{}, {REL: SOUND}, None]),
        "frozen": st.sampled_from([True, False, None]),
        "write": st.just("é"),
    },
)


def one_by_one(data: bytes) -> tuple[Document, dict[str, Any]] | None:
    try:
        found = decode_shard(data)
        return found, {
            rel: entry_members(decode_entry(rel, raw)) for rel, raw in found.entries.items()
        }
    except SwampstoreError:
        return None


@given(TOPS, st.dictionaries(RELS, ENTRIES, max_size=4), st.booleans())
def test_a_glance_says_what_every_entry_says_or_nothing(
    top: dict[str, Any], entries: dict[str, Any], is_ascii: bool
) -> None:
    text = json.dumps({"version": 1, "entries": entries} | top, ensure_ascii=is_ascii)
    check(text.encode(), entries)


def check(data: bytes, rels: Iterable[str]) -> None:
    found, expected = glance(data), one_by_one(data)
    if found is None:
        return
    assert expected is not None
    document, members = expected
    assert list(found.entries.items()) == list(members.items())
    assert found.written == document.commit_seq
    assert found.tells_removed or not document.removed
    assert not document.is_frozen
    assert found.bytes == sum(one.size for one in members.values())
    assert found.highest == max([0, *(one.commit_seq or 0 for one in members.values())])
    for home in {*map(partition_of, rels), "data--t--u--m"}:
        if found.is_in_place(home):
            assert all(partition_of(rel) == home and is_plain(rel) for rel in rels)


def members(names: dict[str, list[str]]) -> st.SearchStrategy[str]:
    """Objects as text: members may be there twice, in escapes, or with room around them."""
    pairs = st.sampled_from([(name, value) for name, some in names.items() for value in some])
    written = st.tuples(pairs, st.sampled_from(["%s:%s", " %s\n:\t%s "])).map(
        lambda it: it[1] % it[0]
    )
    return st.lists(written, max_size=6).map(lambda some: "{" + ",".join(some) + "}")


def escaped(text: str) -> str:
    return '"' + "".join(f"\\u{ord(char):04x}" for char in text) + '"'


NUMBERS = ["0", "7", "-0", "1.0", "1e3", "1E400", "9007199254740993", "1" * 400, "01", "true"]
TEXTS = ['"x"', r'"\ud800"', r'"\q"', '"\x01"', r'"\u0000"', "null", "[[{}]]"]
HASHES = [f'"{SHA256}"', escaped(SHA256), f'"{SHA256[:-1]}\\n"', f'" {SHA256[:-2]} "', '""']
TEXT_ENTRIES = st.just(json.dumps(SOUND)) | members(
    {
        '"size"': NUMBERS,
        escaped("size"): ["5"],
        '"lastModified"': TEXTS,
        '"sha256"': HASHES,
        '"commitSeq"': NUMBERS,
        '"other"': TEXTS,
    }
)


@given(st.data())
def test_a_glance_says_of_any_text_what_every_entry_says_or_nothing(data: st.DataObject) -> None:
    keys = [json.dumps(REL), escaped(REL), '"a\\n"', '"/"', r'"\ud800"', '"é"']
    some = data.draw(st.lists(st.tuples(st.sampled_from(keys), TEXT_ENTRIES), max_size=4))
    entries = "{" + ",".join(f"{key}:{entry}" for key, entry in some) + "}"
    tops = {
        '"version"': ["1", "1.0", "2"],
        '"entries"': [entries, "{}", "[]"],
        '"commitSeq"': NUMBERS,
        '"removed"': ["{}", entries],
        '"frozen"': ["false", "true"],
        '"other"': TEXTS,
    }
    rest = data.draw(members(tops))[1:-1]
    sound = f'"version":1,"entries":{entries}'
    parts = data.draw(st.permutations([sound, rest] if rest else [sound]))
    text = "{" + ",".join(parts) + "}" + data.draw(st.sampled_from(["", "\n", "x"]))
    found = one_by_one(text.encode())
    check(text.encode(), found[1] if found else ())


@pytest.mark.parametrize("entry", CHANGED)
def test_a_glance_says_of_one_odd_entry_what_a_closer_look_says(entry: dict[str, Any]) -> None:
    entries = {REL: SOUND, f"{REL}2": entry}
    check(json.dumps({"version": 1, "entries": entries}).encode(), entries)


def test_a_shard_as_clients_write_it_is_seen_at_a_glance() -> None:
    entries = {REL: {"key": REL, **SOUND, "size": 5, "commitSeq": 3}, f"{REL}2": SOUND}
    data = json.dumps({"version": 1, "entries": entries, "commitSeq": 4, "x": [1]}).encode()
    found = glance(data)
    assert found is not None
    assert (len(found.entries), found.bytes, found.highest, found.written) == (2, 6, 3, 4)
    assert found.is_in_place("data--t--u--m")
    assert not found.is_in_place("data--t--u")
    assert not found.tells_removed


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b'{"version":1}',
        b'{"version":1,"entries":{"\xff":{"size":1,"lastModified":"x"}}}',
        b'{"version":1,"entries":{},"x":"\xff"}',
        b'{"version":1,"entries":{},"x":' + b"[" * 100_000,
        b'{"version":2,"entries":{}}',
    ],
)
def test_nothing_is_said_at_a_glance_of_what_is_no_shard(data: bytes) -> None:
    assert glance(data) is None
