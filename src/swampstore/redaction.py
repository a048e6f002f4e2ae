"""What must not be shown: credentials in settings and URLs, and secrets wherever they appear.

A `Redactor` knows secrets by their values. It finds each of them as it is, with the escapes of
JSON and of programming languages (once, and once more), percent-encoded as in URLs, and in base64
of any alignment and in hexadecimal digits, also if these are broken into lines; and it finds what
is split over two writes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

_SECRET = re.compile(
    r".*(secret\w*|password|passphrase|token|(access|account|api|private|shared)_?key(_?id)?|sig)",
    re.IGNORECASE,
)
_USER = re.compile(r"(?<=://)[^\s/?#'\"]*@")
_PARAMETER = re.compile(r"(?<=[?&])([\w.\-]+)=([^\s&#'\"]*)")

REDACTED = "***"
# Shorter ones are in every other word; to take them out would leave nothing to read.
SHORTEST = 3
_MARK = REDACTED.encode()
_BASE64 = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_URL_SAFE = {"+": "-", "/": "_"}
_UNRESERVED = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.~")
_SHORT_ESCAPES = {"\b": r"\b", "\t": r"\t", "\n": r"\n", "\f": r"\f", "\r": r"\r"}
_KEY_LINE = re.compile(r"[A-Za-z0-9+/=_\-]{32,}")
_BREAKS = (b"\r\n", b"\n", b"\r")
# So many characters of a form are searched for; the rest is looked for where they are found.
_TOGETHER = 6
_UNDECIDED = -1
_ABSENT = -2

# One form in which a secret appears: the ways in which each of its characters may be written. None
# of them begins with another one, so that there is only one way to go on.
_Ways = tuple[bytes, ...]


class _Form(NamedTuple):
    characters: tuple[_Ways, ...]
    # Whether it may be broken into lines. The first few characters are kept together, or the end
    # of every other line would have to wait for what comes next.
    is_breakable: bool = False


def is_secret(name: str) -> bool:
    """Whether a setting or a parameter of this name holds credentials."""
    return _SECRET.fullmatch(name) is not None


def without_credentials(text: str) -> str:
    """Return a text with `***` for the users, passwords and keys in the URLs that it holds."""
    return _PARAMETER.sub(_shown, _USER.sub("***@", text))


def _shown(found: re.Match[str]) -> str:
    return f"{found[1]}=***" if is_secret(found[1]) else found[0]


class Redactor:
    """Takes every secret that it was given out of texts, bytes and documents.

    Secrets may be added at any time, also from other threads; they are taken out of whatever comes
    afterwards. Values of fewer than three characters stay.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._forms: dict[str, tuple[_Form, ...]] = {}
        self._search = _Search({})
        for secret in secrets:
            self.add(secret)

    def __repr__(self) -> str:
        return f"<Redactor of {len(self._forms)} secrets>"

    @property
    def is_empty(self) -> bool:
        """Whether it knows no secret."""
        return not self._forms

    def add(self, secret: str) -> None:
        """Take a value out from now on."""
        if len(secret) >= SHORTEST and secret not in self._forms:
            self._forms[secret] = _forms(secret)

    def _searching(self) -> _Search:
        search = self._search
        if search.size != len(self._forms):
            self._search = search = _Search(dict(self._forms))
        return search

    def data(self, data: bytes) -> bytes:
        """Return bytes with `***` for each secret in them."""
        if not self._forms:
            return data
        return self._searching().redacted(data, is_end=True)[0]

    def text(self, text: str) -> str:
        """Return a text with `***` for each secret in it."""
        return self.data(text.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass")

    def document(self, value: Any) -> Any:
        """Return what JSON can hold with `***` for each secret in its texts and keys.

        A number whose digits hold a secret becomes a text.
        """
        match value:
            case str():
                return self.text(value)
            case Mapping():
                return {self.document(key): self.document(item) for key, item in value.items()}
            case list() | tuple():
                return [self.document(item) for item in value]
            case bool() | None:
                return value
            case int() | float():
                shown = self.text(str(value))
                return value if shown == str(value) else shown
        return value

    def stream(self) -> RedactedStream:
        """Return what takes the secrets out of bytes that come piece by piece."""
        return RedactedStream(self)

    def advance(self, data: bytes) -> tuple[bytes, bytes]:
        """Return the beginning of a stream without secrets, and the rest that more may follow."""
        if not self._forms:
            return data, b""
        return self._searching().redacted(data, is_end=False)


class RedactedStream:
    """Bytes that come piece by piece. Only what may be the beginning of a secret waits for more."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._waiting = b""

    def feed(self, data: bytes) -> bytes:
        """Take the next piece; return what can be shown by now."""
        shown, self._waiting = self._redactor.advance(self._waiting + data)
        return shown

    def finish(self) -> bytes:
        """Return what is left, as nothing follows any more."""
        shown, self._waiting = self._redactor.data(self._waiting), b""
        return shown


class _Search:
    """Finds any of some forms, from left to right, the longest first."""

    def __init__(self, secrets: Mapping[str, tuple[_Form, ...]]) -> None:
        self.size = len(secrets)
        forms = {form for forms in secrets.values() for form in forms}
        self._by_first: dict[int, list[_Form]] = {}
        for form in sorted(forms, key=lambda form: (-len(form.characters), form)):
            for first in {way[0] for way in form.characters[0]}:
                self._by_first.setdefault(first, []).append(form)
        anchors = {form.characters[:_TOGETHER] for form in forms}
        self._anchors = _any_of(map(_whole, anchors))
        self._beginnings = _any_of(map(_cut_off, anchors))
        self._longest = max((_length(anchor) for anchor in anchors), default=0)

    def redacted(self, data: bytes, *, is_end: bool) -> tuple[bytes, bytes]:
        """Return the data without secrets, and the rest from where that cannot be told yet."""
        shown: list[bytes] = []
        at = kept = 0
        while (at := self._candidate(data, at, is_end)) < len(data):
            end = self._match(data, at, is_end)
            if end == _UNDECIDED:
                shown.append(data[kept:at])
                return b"".join(shown), data[at:]
            if end == _ABSENT:
                at += 1
                continue
            shown += (data[kept:at], _MARK)
            at = kept = end
        shown.append(data[kept:])
        return b"".join(shown), b""

    def _candidate(self, data: bytes, at: int, is_end: bool) -> int:
        """Return the next place where a form may begin, the end of the data if there is none."""
        found = self._anchors.search(data, at)
        place = found.start() if found else len(data)
        if not is_end:
            begun = self._beginnings.search(data, max(at, len(data) - self._longest))
            place = min(place, begun.start() if begun else place)
        return place

    def _match(self, data: bytes, at: int, is_end: bool) -> int:
        """Return where the longest form that begins here ends."""
        for form in self._by_first.get(data[at], ()):
            end = _end_of(form, data, at)
            if end >= 0 or (end == _UNDECIDED and not is_end):
                return end
        return _ABSENT


def _end_of(form: _Form, data: bytes, at: int) -> int:
    """Return where a form that begins at a place ends, unless it is not there or not all of it."""
    for number, ways in enumerate(form.characters):
        if form.is_breakable and number >= _TOGETHER:
            at += next((len(one) for one in _BREAKS if data.startswith(one, at)), 0)
        found = next((way for way in ways if data.startswith(way, at)), None)
        if found is None:
            rest = data[at : at + len(max(ways, key=len))]
            return _UNDECIDED if any(way.startswith(rest) for way in ways) else _ABSENT
        at += len(found)
    return at


def _any_of(expressions: Iterable[bytes]) -> re.Pattern[bytes]:
    return re.compile(b"|".join(sorted({*expressions})) or b"(?!)", re.DOTALL)


def _whole(anchor: tuple[_Ways, ...]) -> bytes:
    return b"".join(map(_one_of, anchor))


def _cut_off(anchor: tuple[_Ways, ...]) -> bytes:
    """Return the expression for the beginning of an anchor at the end of the data."""
    expression = b"(?!)"
    for ways in reversed(anchor):
        parts = {way[:size] for way in ways for size in range(1, len(way))}
        part = rb"|%s\Z" % _one_of(parts) if parts else b""
        expression = rb"(?:%s(?:\Z|%s)%s)" % (_one_of(ways), expression, part)
    return expression


def _one_of(ways: Iterable[bytes]) -> bytes:
    return b"(?:%s)" % b"|".join(map(re.escape, sorted(ways)))


def _length(anchor: tuple[_Ways, ...]) -> int:
    return sum(max(map(len, ways)) for ways in anchor)


def _forms(secret: str) -> tuple[_Form, ...]:
    """Return every form of a secret."""
    raw = secret.encode("utf-8", "surrogatepass")
    texts = {
        tuple(map(_plain, secret)),
        tuple(map(_escaped, secret)),
        tuple(map(_escaped_twice, secret)),
        tuple(map(_percent_encoded, raw)),
    }
    # A key of several lines is shown line by line, indented or behind the time of a log.
    texts |= {tuple(map(_plain, line)) for line in secret.split() if _KEY_LINE.fullmatch(line)}
    digits = [_base64(raw, shift) for shift in range(3)]
    # Broken into lines within its first digits, all but those is found.
    digits += [one[_TOGETHER - 1 :] for one in digits if len(one) >= 4 * _TOGETHER]
    digits += [_hex(raw), *([_hex(raw[_TOGETHER - 1 :])] if len(raw) >= 4 * _TOGETHER else [])]
    return (*(_Form(text) for text in texts), *(_Form(one, is_breakable=True) for one in digits))


def _hex(raw: bytes) -> tuple[_Ways, ...]:
    """Return bytes in hexadecimal digits; a space or a colon may be between two of them."""
    pairs = [{b"%02x" % byte, b"%02X" % byte} for byte in raw]
    later = [{before + one for before in (b"", b" ", b":") for one in pair} for pair in pairs[1:]]
    return tuple(tuple(sorted(ways)) for ways in (pairs[0], *later))


def _plain(char: str) -> _Ways:
    if char == "\n":  # terminals, and tools that think of them, end lines so
        return b"\n", b"\r\n"
    return (char.encode("utf-8", "surrogatepass"),)


def _escaped(char: str) -> _Ways:
    """Return a character as JSON, Python and their like write it in a literal."""
    units = char.encode("utf-16-be", "surrogatepass")
    pairs = [units[i : i + 2].hex() for i in range(0, len(units), 2)]
    escaped = {"".join(rf"\u{pair}" for pair in pairs), "".join(rf"\u{p.upper()}" for p in pairs)}
    code = ord(char)
    if code < 0x100:
        escaped |= {rf"\x{code:02x}", rf"\x{code:02X}"}
    if code > 0xFFFF:
        escaped |= {rf"\U{code:08x}", rf"\U{code:08X}"}
    if char == "\\":
        ways = {r"\\"}
    elif char in "\"'/":
        ways = {char, rf"\{char}", *escaped}
    elif char in "<>&+=":  # some writers of JSON think of web pages
        ways = {char, *escaped}
    elif char < " " or char == "\x7f":
        ways = {_SHORT_ESCAPES.get(char, char), char, *escaped}
    elif code < 0x80:
        ways = {char}
    else:
        ways = {char, *escaped}
    return tuple(sorted(way.encode("utf-8", "surrogatepass") for way in ways))


def _escaped_twice(char: str) -> _Ways:
    once = _escaped(char)
    twice = {way.replace(b"\\", b"\\\\").replace(b'"', b'\\"') for way in once}
    # What the first writer leaves as it is, the second one may escape.
    return tuple(sorted(twice | {*once} if char >= "\x7f" else twice))


def _percent_encoded(byte: int) -> _Ways:
    if byte in _UNRESERVED:
        return (bytes([byte]),)
    encoded = {b"%%%02X" % byte, b"%%%02x" % byte}
    if byte == ord("%"):
        return tuple(sorted(encoded))
    if byte == ord(" "):
        encoded.add(b"+")
    return tuple(sorted({bytes([byte]), *encoded}))


def _base64(raw: bytes, shift: int) -> tuple[_Ways, ...]:
    """Return the digits that bytes have part in, if so many bytes modulo 3 come before them."""
    bits = "".join(f"{byte:08b}" for byte in raw)
    padded = "." * (8 * shift % 6) + bits
    padded += "." * (-len(padded) % 6)
    return tuple(_digits(padded[i : i + 6]) for i in range(0, len(padded), 6))


def _digits(bits: str) -> _Ways:
    """Return the base64 digits that have these bits; a dot stands for either bit."""
    free = bits.count(".")
    known = bits.replace(".", "")
    numbers = range(1 << free)
    if bits.startswith("."):
        values = [int(f"{number:0{free}b}{known}", 2) for number in numbers]
    elif free:
        values = [int(f"{known}{number:0{free}b}", 2) for number in numbers]
    else:
        values = [int(known, 2)]
    digits = {_BASE64[value] for value in values}
    digits |= {_URL_SAFE[digit] for digit in digits & _URL_SAFE.keys()}
    return tuple(sorted(digit.encode() for digit in digits))
