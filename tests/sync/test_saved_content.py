"""Content is shared only if it is what its metadata speaks of, however that is written."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swampstore.artifacts.metadata import decode, encode
from swampstore.errors import ContentDamagedError, SwampstoreError
from swampstore.index.path_map import Names
from swampstore.layout import METADATA
from swampstore.routing import Routing
from swampstore.sync import complete
from swampstore.sync.complete import check_saved
from tests.support.staging import metadata_of

VERSION = "data/test/thing/m-1/state/1"
SAVED = hashlib.sha256(b"saved").hexdigest()
OTHER = hashlib.sha256(b"other").hexdigest()


def is_let_through(metadata: bytes, sha256: str) -> bool:
    """Return whether content of a hash may be shared beside such metadata."""
    with TemporaryDirectory() as cache:
        place = Path(cache, VERSION)
        place.mkdir(parents=True)
        (place / METADATA).write_bytes(metadata)
        try:
            check_saved(Names(cache, "", Routing()), f"{VERSION}/raw", sha256, 5)
        except ContentDamagedError:
            return False
        return True


def test_content_that_is_what_was_saved_needs_no_look_at_the_rest_of_its_metadata(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    metadata = metadata_of("state", 1, b"saved")
    assert not is_let_through(metadata, OTHER)
    monkeypatch.setattr(complete, "decode", lambda *_: pytest.fail("it was decoded"))
    assert is_let_through(metadata, SAVED)


def test_a_hash_that_is_anywhere_else_in_the_metadata_proves_nothing() -> None:
    metadata = decode(metadata_of("state", 1, b"saved"), METADATA)
    told = replace(metadata, tags={**metadata.tags, "checksum": OTHER})
    assert not is_let_through(encode(told), OTHER)


# Valid YAML, written in place of `checksum: `.
ELSEWHERE = {
    "in a text in double quotes": f'note: "a\nchecksum: {OTHER}\n b"\nchecksum: ',
    "in a text in single quotes": f"note: 'a\nchecksum: {OTHER}\n b'\nchecksum: ",
    "in a mapping in braces": f"note: {{\nchecksum: {OTHER}\n}}\nchecksum: ",
    "in a text that goes on": f"checksum: {OTHER}\n  ",
}


@pytest.mark.parametrize("trick", ELSEWHERE)
def test_a_line_that_only_looks_like_the_checksum_proves_nothing(trick: str) -> None:
    metadata = metadata_of("state", 1, b"saved").replace(b"checksum: ", ELSEWHERE[trick].encode())
    assert decode(metadata, METADATA).checksum != OTHER
    assert not is_let_through(metadata, OTHER)


ROWS = metadata_of("state", 1, b"saved").decode().splitlines(keepends=True)
ODD = [
    *('"', "'", "{", "}", "[", "x: |\n", "x: >+\n  a\n", "? x\n", ": \n", "x: &a\n", "x: *a\n"),
    *("x: 'a\n", 'x: "a\n', "x: {a: b,\n", "x: [\n", " }\n", " ]\n", " b'\n", ' b"\n', "\n"),
    *('"checksum": a\n', "'checksum': a\n", "checksum: a\n", "x: !!str\n", "---\n", "...\n"),
    *("x: a\r\n", "x:\r", "  checksum: a\n", "<<: {checksum: a}\n", "# a\n", "%YAML 1.2\n---\n"),
    *("- a\n", "x: -\n", "\t", " ", "\x85", "\u2028", "\ufeff", "\0"),
]
LINES = [f"checksum: {OTHER}\n", f"checksum: {OTHER}\n  a\n", f"  checksum: {OTHER}\n"]


@given(
    st.lists(st.tuples(st.integers(0, len(ROWS)), st.sampled_from(ODD)), max_size=4),
    st.sampled_from(LINES),
    st.booleans(),
)
def test_whatever_yaml_metadata_is_no_more_is_believed_than_it_says(
    odd: list[tuple[int, str]], line: str, is_last: bool
) -> None:
    rows = ROWS[:-1] if is_last else list(ROWS)
    for at, text in sorted(odd, reverse=True):
        rows.insert(at, text)
    rows.insert(len(rows) if is_last else len(rows) // 2, line)
    metadata = "".join(rows).encode()
    try:
        told = decode(metadata, METADATA).checksum
    except SwampstoreError:
        return
    assert is_let_through(metadata, OTHER) is (told in (OTHER, None))
