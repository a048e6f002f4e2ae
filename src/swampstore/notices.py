"""Text for people: nothing in it may act on a terminal, a log or a shell; and what is worth saying.

Notices are things worth saying that are no errors. They go to the logger `swampstore`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

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


def nearest(word: str, known: Iterable[str], count: int = 3) -> list[str]:
    """Return the known words that are spelled most like a word, the best first; often none.

    >>> nearest("Sise", ["name", "size"])
    ['size']
    """
    from difflib import get_close_matches  # which only a mistake needs

    by_folded = {one.casefold(): one for one in known}
    return [by_folded[one] for one in get_close_matches(word.casefold(), by_folded, count, 0.6)]


def did_you_mean(word: str, known: Iterable[str], count: int = 3) -> str:
    """Return a question that offers the known words which are spelled alike, or nothing.

    >>> did_you_mean("sise", ["name", "size"])
    "Did you mean 'size'?"
    """
    found = nearest(word, known, count)
    return f"Did you mean {' or '.join(map(repr, found))}?" if found else ""


def sentences(*texts: str) -> str:
    """Return the texts that are not empty, with a space between them."""
    return " ".join(text for text in texts if text)


def notice(message: str, *details: object) -> None:
    """Log a warning. The logging machinery is only loaded when there is something to say.

    Nothing in the details can act on the terminal that it ends up on.
    """
    import logging

    told = (one if isinstance(one, int | float) else escaped_lines(str(one)) for one in details)
    logging.getLogger("swampstore").warning(message, *told)
