"""A glance at metadata says what reading all of it says, or nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swampstore.artifacts.metadata import Metadata, Owner, decode, encode
from swampstore.artifacts.metadata_glance import Glance, glance
from swampstore.errors import SwampstoreError

_USUAL = Metadata(
    id="6b013404-e733-a6fb-f515-395b4f4615de",
    name="health-001",
    version=3,
    content_type="application/json",
    lifetime="30d",
    garbage_collection=10,
    streaming=False,
    tags={"type": "resource", "env": "prod", "modelName": "service 12"},
    owner=Owner(
        "workflow-step", "0000000e", workflow_run_id="81af1551-73f2-3d75-2d68-c6662bca4b85"
    ),
    created_at="2024-08-15T13:40:16.408Z",
    size=990,
    checksum="9681bf80df307557850cac12caa95ef3b84a11b7de59a3a9f3834553a7a38a54",
)


def _read(data: bytes) -> Glance | None:
    try:
        found = decode(data, "it")
    except SwampstoreError:
        return None
    return Glance(found.name, found.version, found.streaming, found.size, found.checksum)


def test_metadata_as_clients_write_it_is_understood_at_a_glance() -> None:
    for one in (_USUAL, replace(_USUAL, streaming=True, garbage_collection="7d", size=None)):
        assert glance(encode(one)) == _read(encode(one)) is not None


_TRICKY = [
    *("true", "Null", "~", "1e5", "12", "0x1f", "0o7", "1_0", "a:b", "é", "yes", "'", '"'),
    *(".inf", "0123", "2024-01-01", "[", "{}", "&a", "*a", "type", "a: b", "a #b", "- a"),
]
_texts = st.text(max_size=12) | st.sampled_from([*_TRICKY, "a ", " a"])


@given(_texts, _texts, _texts, _texts, _texts)
def test_whatever_texts_are_saved_a_glance_agrees_with_the_reader(
    name: str, content_type: str, tag: str, value: str, ref: str
) -> None:
    tags = {"type": "resource", tag: value}
    one = replace(
        _USUAL, name=name, content_type=content_type, tags=tags, owner=Owner("manual", ref)
    )
    try:
        data = encode(one)
    except (SwampstoreError, UnicodeEncodeError):
        return
    seen = glance(data)
    assert seen is None or seen == _read(data)


_LINES = encode(_USUAL).splitlines(keepends=True)
_VALUES = [b"", b"true", b"12", b"1e5", b"a: b", b"x #y", b"'a", b"-1", b"a:", b" ", b"'12'", b"~"]


def _changed(line: bytes, how: int, value: bytes) -> bytes:
    """Return a line with another value, twice, or not where it belongs."""
    other = line.partition(b":")[0] + b": " + value + b"\n"
    return [other, line + line, line + other, b"  " + line, line.lstrip(), line.upper(), b""][how]


@given(
    st.lists(
        st.tuples(
            st.integers(0, len(_LINES) - 1),
            st.integers(0, 6),
            st.sampled_from(_VALUES) | st.binary(max_size=6),
        ),
        min_size=1,
        max_size=3,
    )
)
def test_whatever_is_done_to_a_file_a_glance_agrees_with_the_reader(
    changes: list[tuple[int, int, bytes]],
) -> None:
    lines = list(_LINES)
    for at, how, value in changes:
        lines[at] = _changed(lines[at], how, value)
    text = b"".join(lines)
    seen = glance(text)
    assert seen is None or seen == _read(text)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"  env: prod\n", b"  env: prod\n  env: dev\n"),
        (b"  type: resource\n", b""),
        (b"  ownerType: workflow-step\n", b""),
        (b"lifetime: 30d\n", b"lifetime: 30x\n"),
        (b"  env: prod\n", b"  env: true\n"),
        (b"  env: prod\n", b"  env: 12\n"),
        (b"  env: prod\n", b"  true: prod\n"),
        (
            b"checksum: 9681bf80df307557850cac12caa95ef3b84a11b7de59a3a9f3834553a7a38a54\n",
            b"checksum: " + b"1" * 64 + b"\n",
        ),
    ],
)
def test_what_needs_a_closer_look_is_left_to_the_reader(old: bytes, new: bytes) -> None:
    data = encode(_USUAL)
    assert old in data
    assert glance(data.replace(old, new)) is None
