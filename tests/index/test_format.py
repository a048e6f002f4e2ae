"""The index documents of a remote: exact bytes, what others wrote into them, and damage."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import uuid
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from swampstore.errors import NewerFormatError
from swampstore.index.errors import IndexDamagedError
from swampstore.index.fingerprints import Fingerprints, fingerprint, is_named
from swampstore.index.format import (
    Document,
    Entry,
    decode_entry,
    decode_monolith,
    decode_shard,
    encode_entry,
    encode_monolith,
    encode_shard,
    iso_ms,
    scrub,
)
from swampstore.index.meta import Meta, MetaText, decode_meta, encode_meta, recall_meta
from swampstore.layout import is_internal

REL = "data/t/ID/d/1/raw"
SHA256 = "0123456789abcdef" * 4
UPLOADED = "2026-06-01T09:59:58.120Z"
ENTRY = (
    b'{"key":"data/t/ID/d/1/raw","size":17,"lastModified":"2026-06-01T09:59:58.120Z",'
    b'"localMtime":"2026-06-01T09:59:57.003Z","sha256":"' + SHA256.encode() + b'"}'
)
MONOLITH = (
    b'{"version":1,"lastPulled":"2026-06-01T10:00:00.000Z",'
    b'"entries":{"data/t/ID/d/1/raw":' + ENTRY + b"}}"
)
SHARD = b'{"version":1,"entries":{"data/t/ID/d/1/raw":' + ENTRY + b"}}"
META_1 = b'{"version":1,"partitions":["data--t--ID","audit"]}'
META_2 = b'{"version":2,"partitions":["audit","data--t--ID"],"commitSeq":42}'
# Valid JSON that decoding and encoding again would write differently.
FOREIGN = rb'{ "n" : [1.50, 1E2, 12345678901234567890123], "s": "\u00e9\/", "s": null }'

Decode = Callable[[bytes], object]
DECODERS: list[Decode] = [decode_monolith, decode_shard, decode_meta]

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
RAWS = JSON.map(lambda value: msgspec.Raw(json.dumps(value).encode()))
KNOWN = {"version", "partitions", "commitSeq", "swampstore", "entries", "lastPulled", "write"}
EXTRAS = st.dictionaries(TEXT.filter(lambda name: name not in KNOWN), RAWS, max_size=3)
ENTRIES = st.builds(
    Entry,
    st.integers(0, 2**53 - 1),
    TEXT,
    st.none() | st.just(SHA256),
    st.none() | TEXT,
    st.none() | st.integers(1, 2**53 - 1),
)
PARTITIONS = st.lists(
    st.text(
        st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="/"),
        min_size=1,
        max_size=60,
    ),
    unique=True,
    max_size=5,
).filter(lambda names: "_meta" not in names)


def raw(text: str) -> msgspec.Raw:
    return msgspec.Raw(text.encode())


# Entries


def test_an_entry_is_read_as_every_client_writes_it() -> None:
    assert decode_entry(REL, ENTRY) == Entry(17, UPLOADED, SHA256, "2026-06-01T09:59:57.003Z")


def test_an_entry_is_written_as_every_client_writes_it() -> None:
    entry = Entry(17, UPLOADED, SHA256, "2026-06-01T09:59:57.003Z")
    assert bytes(encode_entry(REL, entry)) == ENTRY


def test_absent_members_of_an_entry_are_left_out() -> None:
    written = bytes(encode_entry("é/x", Entry(0, UPLOADED)))
    assert written.decode() == '{"key":"é/x","size":0,"lastModified":"' + UPLOADED + '"}'


def test_an_entry_without_hash_and_mtime_is_read() -> None:
    listed = raw('{"key":"a","size":3,"lastModified":"x","sha256":null}')
    assert decode_entry("a", listed) == Entry(3, "x")


def test_a_hash_in_capitals_is_the_same_hash() -> None:
    entry = decode_entry(REL, ENTRY.replace(SHA256.encode(), SHA256.upper().encode()))
    assert entry.sha256 == SHA256


@given(TEXT, ENTRIES)
def test_an_entry_survives_writing_and_reading(rel: str, entry: Entry) -> None:
    assert decode_entry(rel, encode_entry(rel, entry)) == entry


def test_members_of_others_survive_a_new_entry_byte_for_byte() -> None:
    older = msgspec.Raw(b'{"theirs": ' + FOREIGN + b' , "size":1,"sha256":"old","x":1.0}')
    written = bytes(encode_entry("a", Entry(2, UPLOADED), onto=older))
    expected = b'{"key":"a","size":2,"lastModified":"%s","theirs":%s,"x":1.0}'
    assert written == expected % (UPLOADED.encode(), FOREIGN)


@pytest.mark.parametrize("older", ["null", "[1]", "{", ""])
def test_an_entry_without_members_is_replaced(older: str) -> None:
    entry = Entry(17, UPLOADED, SHA256)
    assert encode_entry(REL, entry, onto=raw(older)) == encode_entry(REL, entry)


@given(ENTRIES, ENTRIES, EXTRAS)
def test_nothing_known_of_the_replaced_entry_survives(
    older: Entry, newer: Entry, foreign: dict[str, msgspec.Raw]
) -> None:
    members = msgspec.json.decode(encode_entry("a", older), type=dict[str, msgspec.Raw])
    replaced = msgspec.Raw(msgspec.json.encode(foreign | members))
    written = encode_entry("a", newer, onto=replaced)
    assert decode_entry("a", written) == newer
    kept = msgspec.json.decode(written, type=dict[str, msgspec.Raw])
    assert {name: kept[name] for name in foreign if name not in members} == {
        name: value for name, value in foreign.items() if name not in members
    }


@pytest.mark.parametrize(
    "entry",
    [
        "null",
        "[]",
        "17",
        "{}",
        '{"size":1}',
        '{"lastModified":"x"}',
        '{"size":-1,"lastModified":"x"}',
        '{"size":1.5,"lastModified":"x"}',
        '{"size":"1","lastModified":"x"}',
        '{"size":true,"lastModified":"x"}',
        '{"size":null,"lastModified":"x"}',
        '{"size":9007199254740992,"lastModified":"x"}',
        '{"size":' + "9" * 10_000 + ',"lastModified":"x"}',
        '{"size":1,"lastModified":5}',
        '{"size":1,"lastModified":"x","localMtime":5}',
        '{"size":1,"lastModified":"x","commitSeq":0}',
        '{"size":1,"lastModified":"x","sha256":""}',
        '{"size":1,"lastModified":"x","sha256":"' + "g" * 64 + '"}',
        '{"size":1,"lastModified":"x","sha256":"' + "a" * 65 + '"}',
        '{"size":1,"lastModified":"x","sha256":"' + "a" * 64 + '\\n"}',
        '{"size":1,"lastModified":"x","sha256":5}',
        '{"size":1,"lastModified":"x"',
        "",
    ],
)
def test_an_entry_of_the_wrong_shape_is_damage_that_names_the_path(entry: str) -> None:
    with pytest.raises(IndexDamagedError, match=REL):
        decode_entry(REL, entry.encode())


# Monolith and shards


def test_a_monolith_is_written_in_the_order_that_every_client_uses() -> None:
    document = decode_monolith(MONOLITH)
    written = encode_monolith(document, "2026-06-01T10:00:00.000Z", "w-1")
    assert written == MONOLITH[:-1] + b',"write":"w-1"}'


def test_a_shard_is_written_as_every_client_writes_it() -> None:
    assert encode_shard(decode_shard(SHARD)) == SHARD


def test_a_rewrite_replaces_the_time_and_the_mark_of_the_write_before() -> None:
    first = encode_monolith(Document({}), "then", "w-1")
    document = decode_monolith(first)
    assert document.extra == {"lastPulled": raw('"then"'), "write": raw('"w-1"')}
    written = encode_monolith(document, "now", "w-2")
    assert written == b'{"version":1,"lastPulled":"now","entries":{},"write":"w-2"}'


def test_what_others_put_into_a_document_survives_byte_for_byte() -> None:
    entries = b'{"a":%s,"b":{"key" : "b"}}' % FOREIGN
    shard = b'{"version":1,"entries":%s,"theirs":%s}' % (entries, FOREIGN)
    assert encode_shard(decode_shard(shard)) == shard
    monolith = b'{"theirs": %s, "entries" : %s , "version": 1}' % (FOREIGN, entries)
    assert encode_monolith(decode_monolith(monolith), "now", "w") == (
        b'{"version":1,"lastPulled":"now","entries":%s,"theirs":%s,"write":"w"}'
        % (entries, FOREIGN)
    )


def test_entries_keep_their_order_and_their_letters() -> None:
    shard = '{"version":1,"entries":{"z":1,"ä/\U0001f600":2,"a":3}}'.encode()
    document = decode_shard(shard)
    assert list(document.entries) == ["z", "ä/\U0001f600", "a"]
    assert encode_shard(document) == shard


@given(st.dictionaries(TEXT, RAWS), EXTRAS)
def test_documents_survive_writing_and_reading(
    entries: dict[str, msgspec.Raw], extra: dict[str, msgspec.Raw]
) -> None:
    document = Document(entries, extra)
    assert decode_shard(encode_shard(document)) == document
    monolith = decode_monolith(encode_monolith(document, "now", "w"))
    assert monolith.entries == entries
    assert monolith.extra == {"lastPulled": raw('"now"'), **extra, "write": raw('"w"')}


def test_a_monolith_without_a_version_is_read_and_a_shard_is_not() -> None:
    data = b'{"entries":{"a":1}}'
    assert decode_monolith(data).entries == {"a": raw("1")}
    with pytest.raises(IndexDamagedError, match="version"):
        decode_shard(data)


def test_the_error_of_a_damaged_document_names_it() -> None:
    with pytest.raises(IndexDamagedError, match=r"_index/data--t--m\.json") as caught:
        decode_shard(b"", "data--t--m")
    assert caught.value.hint
    with pytest.raises(IndexDamagedError, match=r"\.datastore-index\.json"):
        decode_monolith(b"")
    with pytest.raises(IndexDamagedError, match=r"_index/_meta\.json"):
        decode_meta(b"")


def test_h26_entries_of_bookkeeping_files_are_taken_out_with_the_reason() -> None:
    rels = ["data/_catalog.db", REL, "data/t/ID/.lock", "_index/audit.json"]
    entries = {rel: raw("1") for rel in rels}
    removed = scrub(entries, lambda rel: "bookkeeping" if is_internal(rel) else None)
    assert entries == {REL: raw("1")}
    assert removed == {rel: "bookkeeping" for rel in rels if rel != REL}


# Meta


def test_meta_of_other_clients_is_read() -> None:
    assert decode_meta(META_1) == Meta(1, ("data--t--ID", "audit"))
    assert decode_meta(META_2) == Meta(2, ("audit", "data--t--ID"), 42)


@pytest.mark.parametrize("name", ["", "a/b", "_meta", "a\0b", "a\nb", "x" * 2000])
def test_meta_with_a_partition_that_cannot_be_is_damaged(name: str) -> None:
    for partitions in (["audit", name], [name, "audit"], [name]):
        document = {"version": 2, "partitions": partitions, "commitSeq": 1}
        with pytest.raises(IndexDamagedError, match="is no partition"):
            decode_meta(json.dumps(document).encode())


def test_the_origin_of_a_remote_is_kept() -> None:
    meta = Meta(1, ("audit",), origin="o-1")
    assert decode_meta(encode_meta(meta, "w-1")) == meta


def test_meta_is_written_with_our_own_members_apart() -> None:
    meta = Meta(2, ("audit", "data--t--ID"), 42, {"audit": '"e1"'}, '"e2"')
    assert encode_meta(meta, "w-1") == META_2[:-1] + (
        b',"swampstore":{"monolith":"\\"e2\\"","fingerprints":"DnaD11cAAAAAAA==",'
        b'"of":"c485856e1d8dbbb9","write":"w-1"}}'
    )
    read = decode_meta(encode_meta(meta, "w-1"))
    assert read == replace(meta, shards={"audit": fingerprint('"e1"')})
    assert encode_meta(read, "w-1") == encode_meta(meta, "w-1")
    assert encode_meta(decode_meta(META_1), "w-1") == META_1[:-1] + (
        b',"swampstore":{"shards":{},"write":"w-1"}}'
    )


MD5S = st.binary(min_size=16, max_size=16).map(bytes.hex)
NAMES = tuple(f"data--aws--ec2--i-{number:013x}" for number in range(8_000))


# Models of one type, with short ids or UUIDs; the ETags of S3 and of a directory.
@pytest.mark.parametrize("suffix", ["", "-4c1e-9b1f-0123456789abcd"])
@pytest.mark.parametrize("etag_of", [lambda md5: md5, lambda md5: f"{md5[:14]}-3f2a1-12c"])
def test_meta_of_many_shards_is_little_more_than_the_list_of_their_names(
    suffix: str, etag_of: Callable[[str], str]
) -> None:
    names = tuple(f"{name}{suffix}" for name in NAMES)
    etags = {name: etag_of(hashlib.md5(name.encode()).hexdigest()) for name in names}
    data = encode_meta(Meta(2, names, 7, etags, origin=str(uuid.uuid4())), str(uuid.uuid4()))
    listed = len(json.dumps(names, separators=(",", ":")))
    assert len(data) <= 1.2 * listed
    read = decode_meta(data).shards
    assert read.keys() == etags.keys()
    assert all(is_named(read[name], etag) for name, etag in etags.items())
    assert not any(is_named(read[name], f"{etag}0") for name, etag in etags.items())


@given(st.dictionaries(st.sampled_from(NAMES[:9]), TEXT.filter(bool) | MD5S, min_size=1))
def test_one_etag_more_is_written_as_if_all_were_written_anew(changed: dict[str, str]) -> None:
    names = NAMES[:9]
    before = decode_meta(encode_meta(Meta(2, names, 7, dict.fromkeys(names, "1" * 32)), "w"))
    assert isinstance(before.shards, Fingerprints)
    told = before.shards.but(changed)
    anew = {name: fingerprint(changed.get(name, "1" * 32)) for name in names}
    assert told == anew
    assert encode_meta(replace(before, shards=told), "w") == encode_meta(
        Meta(2, names, 7, anew), "w"
    )
    assert before.shards == dict.fromkeys(names, fingerprint("1" * 32))


@pytest.mark.parametrize("etags", [["e1", None], "00112233445566778899aabbccddeeff"])
def test_whole_etags_that_the_release_before_wrote_are_understood(etags: str | list[str]) -> None:
    names = ["audit", "data--t--ID"]
    told = etags if isinstance(etags, list) else base64.b64encode(bytes.fromhex(etags * 2)).decode()
    own = {"etags": told, "of": "c485856e1d8dbbb9", "write": "w"}
    read = decode_meta(json.dumps(json.loads(META_2) | {"swampstore": own}).encode())
    expected = {"audit": "e1"} if isinstance(etags, list) else dict.fromkeys(names, etags)
    assert read.shards == expected
    again = decode_meta(encode_meta(read, "w-2")).shards
    assert again == {name: fingerprint(etag) for name, etag in expected.items()}


def test_meta_of_the_release_before_is_understood() -> None:
    document = json.loads(META_2) | {"swampstore": {"shards": {"audit": "e1"}, "write": "w"}}
    read = decode_meta(json.dumps(document).encode())
    assert read.shards == {"audit": "e1"}
    assert decode_meta(encode_meta(read, "w-2")).shards == {"audit": fingerprint("e1")}


def test_the_release_before_finds_no_etags_that_it_could_misread() -> None:
    etags = dict.fromkeys(NAMES[:2], "1" * 32)
    own = json.loads(encode_meta(Meta(2, NAMES[:2], 7, etags), "w-1"))["swampstore"]
    assert own.keys().isdisjoint({"shards", "etags"})


@pytest.mark.parametrize(
    "change",
    [
        lambda meta: meta["partitions"].reverse(),
        lambda meta: meta["partitions"].append("data--z"),
        lambda meta: meta["partitions"].__setitem__(0, "data--other"),
        lambda meta: meta["swampstore"].update(fingerprints="no base64"),
        lambda meta: meta["swampstore"].update(fingerprints="AAAA"),
        lambda meta: meta["swampstore"].update(fingerprints=[None]),
        lambda meta: meta["swampstore"].pop("of"),
    ],
)
def test_etags_of_another_list_of_partitions_tell_nothing(
    change: Callable[[dict[str, Any]], object],
) -> None:
    etags = dict.fromkeys(NAMES[:3], "1" * 32)
    document = json.loads(encode_meta(Meta(2, NAMES[:3], 7, etags), "w-1"))
    change(document)
    assert decode_meta(json.dumps(document).encode()).shards == {}


@given(
    st.sampled_from([1, 2]),
    PARTITIONS,
    st.integers(1, 2**53 - 1),
    st.lists(st.none() | TEXT.filter(bool) | MD5S, max_size=3),
    st.none() | TEXT,
    EXTRAS,
)
def test_meta_survives_writing_and_reading(
    version: int,
    partitions: list[str],
    commit_seq: int,
    etags: list[str | None],
    monolith: str | None,
    extra: dict[str, msgspec.Raw],
) -> None:
    shards = {name: etag for name, etag in zip(partitions, etags, strict=False) if etag}
    meta = Meta(
        version,
        tuple(partitions),
        commit_seq if version == 2 else None,
        shards,
        monolith,
        extra,
    )
    read = decode_meta(encode_meta(meta, "w"))
    assert set(read.partitions) == set(partitions)
    assert (version == 2) or read.partitions == meta.partitions
    assert (read.version, read.commit_seq) == (version, meta.commit_seq)
    if version == 2:
        shards = {name: fingerprint(etag) for name, etag in shards.items()}
    assert (read.shards, read.monolith, read.extra) == (shards, monolith, extra)


def test_partitions_of_version_2_are_in_the_order_of_utf_16_code_units() -> None:
    # U+1F600 starts with the code unit D83D, which is below U+FF5E; by code point it is above.
    meta = Meta(2, ("\uff5e", "b", "\U0001f600", "B", "b"), 1)
    assert decode_meta(encode_meta(meta, "w")).partitions == ("B", "b", "\U0001f600", "\uff5e")


def test_partitions_of_version_1_keep_their_order_and_are_listed_once() -> None:
    meta = Meta(1, ("b", "a", "b"))
    assert decode_meta(encode_meta(meta, "w")).partitions == ("b", "a")
    assert decode_meta(b'{"version":1,"partitions":["b","a","b"]}').partitions == ("b", "a")


# Names that would be found in the text of a list where they are not names of it, and real ones.
ODD = [",", '"', '","', "a", "aa", "b", "\\", "\u00e9", "B", "[", "data--t--ID", "data--t"]


@given(st.sets(st.sampled_from(ODD), min_size=1), st.booleans())
@example(names={"a", "b"}, knows_digest=True)
@example(names={"data--t--ID", "aa"}, knows_digest=False)
def test_what_was_understood_before_is_the_same_without_being_looked_at(
    names: set[str], knows_digest: bool
) -> None:
    etags = {name: fingerprint(f"etag of {name}") for name in names}
    data = encode_meta(Meta(2, tuple(names), 7, etags, origin="o"), "w-1")
    meta = decode_meta(data)
    text = MetaText.of(data, meta)
    assert text.data == data
    assert isinstance(meta.shards, Fingerprints)
    recalled = recall_meta(text, meta.shards.partitions.digest if knows_digest else None)
    for name in ODD:  # one by one, before the list is taken apart
        assert (name in recalled.partitions) == (name in names)
        assert recalled.shards.get(name) == etags.get(name)
    assert len(recalled.partitions) == len(recalled.shards) == len(names)
    assert isinstance(recalled.shards, Fingerprints)
    changed = {max(names): fingerprint("another")}
    after = encode_meta(replace(recalled, shards=recalled.shards.but(changed)), "w-2")
    assert after == encode_meta(replace(meta, shards=meta.shards.but(changed)), "w-2")
    assert decode_meta(after).shards == etags | changed
    assert recalled == meta


def test_a_list_that_is_asked_for_many_names_is_taken_apart_and_says_the_same() -> None:
    names = tuple(f"data--t--{number:03}" for number in range(100))
    etags = {name: fingerprint(name) for name in names}
    data = encode_meta(Meta(2, names, 7, etags), "w")
    recalled = recall_meta(MetaText.of(data, decode_meta(data)))
    assert [recalled.shards[name] for name in names] == [*etags.values()]
    assert "data--t--100" not in recalled.partitions
    assert recalled.partitions[3:5] == names[3:5]


def test_a_list_that_others_changed_is_understood_again() -> None:
    data = encode_meta(Meta(2, ("a", "b"), 7, {"a": "1", "b": "2"}), "w")
    # Whoever does not know our members keeps them, and the digest of a list that is not there.
    changed = data.replace(b'["a","b"]', b'["a","b","c"]')
    text = MetaText.of(changed, decode_meta(changed))
    for digest in (None, "0" * 16):
        recalled = recall_meta(text, digest)
        assert recalled == decode_meta(changed)
        assert recalled.shards == {}


def test_what_was_remembered_and_is_damaged_since_is_told_as_damaged() -> None:
    for text in (MetaText(""), MetaText("{", '["a"]', 1), MetaText('{"version":2}', "[", 0)):
        with pytest.raises(IndexDamagedError):
            recall_meta(text)


def test_members_of_others_in_meta_survive_byte_for_byte() -> None:
    data = META_2[:-1] + b',"lastCompacted": %s}' % FOREIGN
    meta = decode_meta(data)
    assert meta.extra == {"lastCompacted": msgspec.Raw(FOREIGN)}
    assert encode_meta(meta, "w").startswith(META_2[:-1] + b',"lastCompacted":' + FOREIGN)


@pytest.mark.parametrize("own", ["5", "null", "[]", '{"shards":[]}', '{"monolith":1,"shards":{}}'])
def test_damage_of_our_own_members_only_loses_them(own: str) -> None:
    data = META_2[:-1] + f',"swampstore":{own}}}'.encode()
    assert decode_meta(data) == decode_meta(META_2)


@pytest.mark.parametrize(
    "meta",
    [
        '{"version":0,"partitions":[]}',
        '{"version":"2","partitions":[],"commitSeq":1}',
        '{"version":true,"partitions":[]}',
        '{"partitions":[],"commitSeq":1}',
        '{"version":1}',
        '{"version":1,"partitions":null}',
        '{"version":1,"partitions":{}}',
        '{"version":1,"partitions":"audit"}',
        '{"version":1,"partitions":["audit",null]}',
        '{"version":1,"partitions":["audit",[]]}',
        '{"version":1,"partitions":[""]}',
        '{"version":1,"partitions":["_meta"]}',
        '{"version":1,"partitions":["../data/t/m"]}',
        '{"version":2,"partitions":[]}',
        '{"version":2,"partitions":[],"commitSeq":null}',
        '{"version":2,"partitions":[],"commitSeq":0}',
        '{"version":2,"partitions":[],"commitSeq":-1}',
        '{"version":2,"partitions":[],"commitSeq":1.5}',
        '{"version":2,"partitions":[],"commitSeq":"1"}',
        '{"version":2,"partitions":[],"commitSeq":' + "9" * 5000 + "}",
    ],
)
def test_meta_of_the_wrong_shape_is_damage(meta: str) -> None:
    with pytest.raises(IndexDamagedError, match=r"_meta\.json"):
        decode_meta(meta.encode())


# Garbage


@pytest.mark.parametrize("decode", DECODERS)
@pytest.mark.parametrize(
    "garbage",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"\0" * 1000, id="zeros"),
        pytest.param(b"\xff\xfe{}", id="no UTF-8"),
        pytest.param(b"\xef\xbb\xbf" + MONOLITH, id="byte order mark"),
        pytest.param("{}".encode("utf-16"), id="UTF-16"),
        pytest.param(b"<html>503 Slow Down</html>", id="HTML"),
        pytest.param(b"null", id="null"),
        pytest.param(b"[]", id="array"),
        pytest.param(b"{}", id="empty object"),
        pytest.param(b'{"version":1}', id="version only"),
        pytest.param(b'{"version":0,"entries":{}}', id="another version"),
        pytest.param(b'{"version":7.0,"entries":{}}', id="no whole version"),
        pytest.param(b'{"version":"7","entries":{}}', id="version in quotes"),
        pytest.param(b'{"version":1,"entries":[]}', id="array of entries"),
        pytest.param(b'{"version":1,"entries":null,"partitions":null}', id="null entries"),
        pytest.param(MONOLITH + b"}", id="something behind"),
        pytest.param(MONOLITH.replace(b"17", b"017"), id="number in a skipped place"),
        pytest.param(MONOLITH.replace(b"120Z", b"\xc3Z"), id="no UTF-8 in a skipped place"),
        pytest.param(b"[" * 3_000_000, id="deep array"),
        pytest.param(b'{"version":1,"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}", id="deep"),
        pytest.param(b'{"entries":' * 1_000_000, id="deep object"),
        pytest.param(b'{"version":1,"entries":{"' + b"x" * 5_000_000, id="endless"),
        pytest.param(bytes(range(256)) * 20_000, id="megabytes"),
    ],
)
def test_garbage_is_damage_and_nothing_else(decode: Decode, garbage: bytes) -> None:
    with pytest.raises(IndexDamagedError):
        decode(garbage)


@pytest.mark.parametrize("document", [MONOLITH, SHARD, META_1, META_2])
@pytest.mark.parametrize("decode", DECODERS)
def test_a_document_that_was_cut_short_is_damage(decode: Decode, document: bytes) -> None:
    for length in range(len(document)):
        with pytest.raises(IndexDamagedError):
            decode(document[:length])


def rewrite(data: bytes) -> None:
    """Read in every way, and write what could be read; check that the result is valid JSON."""
    for decode, encode in (
        (decode_monolith, lambda document: encode_monolith(document, "now", "w")),
        (decode_shard, encode_shard),
        (decode_meta, lambda meta: encode_meta(meta, "w")),
    ):
        try:
            decoded: Any = decode(data)
        except IndexDamagedError:
            continue
        json.loads(encode(decoded).decode())
        for rel, entry in getattr(decoded, "entries", {}).items():
            try:
                decode_entry(rel, entry)
            except IndexDamagedError:
                continue


@given(st.binary(max_size=40))
def test_no_bytes_raise_anything_but_damage(data: bytes) -> None:
    rewrite(data)


@given(st.dictionaries(st.sampled_from(sorted(KNOWN)), JSON | st.just(1), max_size=6))
@example({"version": 1, "entries": {"a": None}, "partitions": []})
def test_no_members_raise_anything_but_damage(members: dict[str, Any]) -> None:
    rewrite(json.dumps(members).encode())


@settings(max_examples=300)
@given(
    st.sampled_from([MONOLITH, SHARD, META_1, META_2]),
    st.lists(st.tuples(st.integers(0, 250), st.integers(0, 255)), min_size=1, max_size=3),
)
def test_flipped_bytes_are_either_damage_or_give_valid_documents(
    document: bytes, flips: list[tuple[int, int]]
) -> None:
    data = bytearray(document)
    for at, byte in flips:
        data[at % len(data)] = byte
    with contextlib.suppress(NewerFormatError):
        rewrite(bytes(data))


# Times


@pytest.mark.parametrize(
    ("mtime_ns", "text"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (1_780_308_000_123_999_999, "2026-06-01T10:00:00.123Z"),
        (1_780_308_000_999_999_999, "2026-06-01T10:00:00.999Z"),
        (-1, "1969-12-31T23:59:59.999Z"),
        (10**30, "9999-12-31T23:59:59.999Z"),
        (-(10**30), "0001-01-01T00:00:00.000Z"),
    ],
)
def test_an_mtime_is_cut_off_to_milliseconds(mtime_ns: int, text: str) -> None:
    assert iso_ms(mtime_ns) == text
