"""Text of others on its way to a terminal, a log or a shell: nothing in it may act there."""

from __future__ import annotations

import re

_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))} | {
    ord("\n"): "\\n",
    ord("\r"): "\\r",
    ord("\t"): "\\t",
}


_PARTS = re.compile(r"([\n\t])")


def escaped(value: object) -> str:
    r"""Write a value so that none of its characters can move a cursor, colour text or end a line.

    >>> escaped("a\x1b[31m")
    'a\\x1b[31m'
    """
    return str(value).translate(_CONTROLS)


def escaped_lines(text: str) -> str:
    """Do the same to a text of several lines; tabs in it stay, too."""
    return "".join(part if part in "\n\t" else escaped(part) for part in _PARTS.split(text))


def shell_word(text: str) -> str:
    r"""Write a text as one word of a command that somebody can paste.

    >>> shell_word("a b"), shell_word("a\nb")
    ("'a b'", "$'a\\nb'")
    """
    import shlex

    if text.isprintable():
        return shlex.quote(text)
    return "$'" + escaped(text.replace("\\", "\\\\").replace("'", "\\'")) + "'"
