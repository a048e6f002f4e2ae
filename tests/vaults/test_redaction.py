"""No secret is left in what passed a redactor, however it was written and wherever it was cut."""

from __future__ import annotations

import base64
import json
import random
import threading
import urllib.parse
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swampstore.redaction import REDACTED, Redactor

# A secret of nothing but asterisks is no different from what takes its place.
_CHARACTERS = st.characters(codec="utf-8", exclude_characters="*")
_TRICKY = st.sampled_from("\"'\\/%+ \n\r\t\x00\x1b&=<é€😀aA0-_")
SECRETS = st.text(st.one_of(_TRICKY, _CHARACTERS), min_size=3, max_size=40)
AROUND = st.binary(max_size=20)
_few = settings(deadline=None, max_examples=20)

TEXTS: dict[str, Callable[[str], str]] = {
    "as it is": lambda secret: secret,
    "JSON": lambda secret: json.dumps(secret)[1:-1],
    "JSON in UTF-8": lambda secret: json.dumps(secret, ensure_ascii=False)[1:-1],
    "JSON in JSON": lambda secret: json.dumps(json.dumps(secret))[3:-3],
    "JSON in JSON in UTF-8": lambda secret: json.dumps(
        json.dumps(secret, ensure_ascii=False), ensure_ascii=False
    )[3:-3],
    "JSON in UTF-8 in JSON": lambda secret: json.dumps(json.dumps(secret, ensure_ascii=False))[
        3:-3
    ],
    "JSON with escaped slashes": lambda secret: json.dumps(secret)[1:-1].replace("/", r"\/"),
    "a Python literal": lambda secret: repr(secret)[1:-1],
    "an ASCII Python literal": lambda secret: ascii(secret)[1:-1],
    "a URL": urllib.parse.quote,
    "a part of a URL": lambda secret: urllib.parse.quote(secret, safe=""),
    "a form": urllib.parse.quote_plus,
    "a URL in lower case": lambda secret: _lower(urllib.parse.quote(secret, safe="")),
    "a terminal": lambda secret: secret.replace("\n", "\r\n"),
}
BASE64: dict[str, Callable[[bytes], bytes]] = {
    "standard": base64.b64encode,
    "for URLs": base64.urlsafe_b64encode,
    "without padding": lambda data: base64.b64encode(data).rstrip(b"="),
    "in lines": base64.encodebytes,
    "in lines of a terminal": lambda data: base64.encodebytes(data).replace(b"\n", b"\r\n"),
}


def _lower(encoded: str) -> str:
    parts = encoded.split("%")
    return "%".join([parts[0], *(part[:2].lower() + part[2:] for part in parts[1:])])


@pytest.mark.parametrize("form", TEXTS)
@_few
@given(secret=SECRETS)
def test_a_secret_is_replaced_in_each_form(form: str, secret: str) -> None:
    written = TEXTS[form](secret)
    shown = Redactor([secret]).text(f"<{written}>")
    assert shown == f"<{REDACTED}>"


@pytest.mark.parametrize("form", BASE64)
@_few
@given(secret=SECRETS, before=AROUND, after=AROUND)
def test_a_secret_within_base64_is_replaced(
    form: str, secret: str, before: bytes, after: bytes
) -> None:
    encode = BASE64[form]
    encoded = encode(before + secret.encode() + after)
    shown = Redactor([secret]).data(encoded)
    left = _decoded(shown.replace(REDACTED.encode(), b"***"))
    assert REDACTED.encode() in shown
    assert secret.encode() not in left


def _decoded(encoded: bytes) -> bytes:
    """Return the bytes of what is left between the redacted parts."""
    parts = [part.translate(None, b"\r\n=-_") for part in encoded.split(b"***")]
    return b"|".join(base64.b64decode(part[: len(part) // 4 * 4]) for part in parts)


@pytest.mark.parametrize("shift", range(3))
def test_not_even_the_digits_at_the_border_of_a_secret_in_base64_tell_of_it(shift: int) -> None:
    redactor = Redactor(["hunter2"])
    shown = {
        redactor.data(base64.b64encode(b"x" * shift + b"hunter2" + follows))[:8]
        for follows in (b"", b"a", b"zz")
    }
    assert all(b"***" in one for one in shown)
    # What is left before it says as much about any other secret.
    other = Redactor(["wonder3"]).data(base64.b64encode(b"x" * shift + b"wonder3"))
    assert {one.partition(b"***")[0] for one in shown} == {other.partition(b"***")[0]}


@pytest.mark.parametrize("secret", ["hunter2", "p@ss wörd/ß", "x" * 40])
@pytest.mark.parametrize("between", ["", " ", ":"])
@pytest.mark.parametrize("is_upper", [False, True])
def test_a_secret_in_hexadecimal_digits_is_replaced(
    secret: str, between: str, is_upper: bool
) -> None:
    digits = between.join(f"{byte:02x}" for byte in secret.encode())
    digits = digits.upper() if is_upper else digits
    assert Redactor([secret]).text(f"dump: {digits}.") == "dump: ***."


def test_a_secret_in_a_dump_that_is_broken_into_lines_is_replaced() -> None:
    secret = "correct horse battery staple and some more"
    plain = "".join(f"{one:02x}" for one in b"..." + secret.encode())
    lines = "\n".join(plain[at : at + 60] for at in range(0, len(plain), 60))
    assert Redactor([secret]).text(lines) == "2e2e2e***"
    pairs = secret.encode().hex(" ", 2)
    assert Redactor([secret]).text(pairs) == "***"


def test_a_long_secret_in_lines_of_base64_leaves_next_to_nothing_wherever_lines_end() -> None:
    secret = "".join(random.Random(5).choices("abcdefgh0123456789", k=300))
    for before in range(60):
        lines = base64.encodebytes(b"." * before + secret.encode())
        left, redacted, right = Redactor([secret]).data(lines).partition(b"***")
        assert redacted
        digits = left.translate(None, b"\n")
        readable = base64.b64decode(digits[: len(digits) // 4 * 4])
        assert len(readable.lstrip(b".")) <= 4
        assert right.strip(b"\n=") == b""


@_few
@given(secrets=st.lists(SECRETS, max_size=4), data=st.data())
def test_a_stream_shows_the_same_however_it_is_cut(secrets: list[str], data: st.DataObject) -> None:
    pieces = [secret.encode() for secret in secrets]
    pieces += [base64.encodebytes(b"-" + secret.encode()) for secret in secrets]
    pieces += [secret.encode().hex(" ").encode() for secret in secrets]
    pieces += [json.dumps(secret).encode() for secret in secrets]
    pieces += [secret.encode()[:-1] for secret in secrets]
    text = b"".join(data.draw(st.lists(st.one_of(AROUND, st.sampled_from([b"", *pieces])))))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    redactor = Redactor(secrets)

    stream = redactor.stream()
    ends = [*cuts, len(text)]
    parts = [stream.feed(text[a:b]) for a, b in zip([0, *cuts], ends, strict=True)]
    assert b"".join([*parts, stream.finish()]) == redactor.data(text)


@_few
@given(secret=SECRETS, cut=st.integers(0, 200))
def test_a_secret_that_is_split_over_two_writes_is_replaced(secret: str, cut: int) -> None:
    written = f"token: {secret}\n".encode()
    stream = Redactor([secret]).stream()
    shown = stream.feed(written[:cut]) + stream.feed(written[cut:]) + stream.finish()
    assert shown == Redactor([secret]).data(written)
    assert secret.encode() not in shown


def test_what_cannot_be_a_secret_is_shown_at_once() -> None:
    stream = Redactor(["hunter2", "-----BEGIN KEY-----\nabc\n"]).stream()
    for line in (b"step 1 done\n", b"Continue? ", b"yes\n", b"100%\n"):
        assert stream.feed(line) == line
    assert stream.feed(b"hunt") == b""
    assert stream.feed(b"ing\n") == b"hunting\n"


def test_a_key_of_several_lines_is_replaced_line_by_line() -> None:
    lines = ["".join(random.Random(n).choices("abcXYZ0189+/", k=64)) for n in range(3)]
    secret = "\n".join(["-----BEGIN KEY-----", *lines, "-----END KEY-----", ""])
    shown = Redactor([secret]).text("".join(f"    {line}\n" for line in secret.splitlines()))
    assert shown == ("    -----BEGIN KEY-----\n    ***\n    ***\n    ***\n    -----END KEY-----\n")
    assert Redactor([secret]).text(f"<{secret}>") == "<***>"


def test_no_more_waits_than_a_secret_is_long() -> None:
    stream = Redactor(["aaaaaaab"]).stream()
    shown = b"".join(stream.feed(b"a" * 1000) for _ in range(10))
    assert len(shown) > 9_900


def test_the_longest_of_several_secrets_is_replaced() -> None:
    redactor = Redactor(["abc", "abcdef"])
    assert redactor.text("abcdef abc abcde") == "*** *** ***de"


def test_secrets_can_be_added_while_a_stream_goes_on() -> None:
    redactor = Redactor()
    stream = redactor.stream()
    assert stream.feed(b"one two\n") == b"one two\n"
    redactor.add("two")
    assert stream.feed(b"one two\n") == b"one ***\n"


def test_secrets_can_be_added_from_many_threads() -> None:
    redactor = Redactor()
    secrets = [f"secret-{number}-x" for number in range(40)]
    threads = [threading.Thread(target=redactor.add, args=[secret]) for secret in secrets]
    for thread in threads:
        thread.start()
        redactor.text("something")
    for thread in threads:
        thread.join()
    assert redactor.text(" ".join(secrets)) == " ".join([REDACTED] * 40)


def test_values_that_are_in_every_other_word_stay() -> None:
    assert Redactor(["", "a", "in"]).text("a main idea") == "a main idea"


def test_documents_lose_secrets_in_texts_keys_and_numbers() -> None:
    redactor = Redactor(["hunter2", "4711"])
    document = {"a": ["hunter2", 1, None, True, 2.5], "my hunter2": {"b": 147112}, "c": ("x",)}
    assert redactor.document(document) == {
        "a": ["***", 1, None, True, 2.5],
        "my ***": {"b": "1***2"},
        "c": ["x"],
    }


def test_bytes_that_are_no_text_stay_as_they_are() -> None:
    data = bytes(range(256)) * 3
    assert Redactor(["hunter2"]).data(data + b"hunter2") == data + b"***"
    assert Redactor(["hunter2"]).text("caf\udce9 hunter2") == "caf\udce9 ***"


def test_a_redactor_does_not_show_what_it_knows() -> None:
    assert "hunter2" not in repr(Redactor(["hunter2"]))
