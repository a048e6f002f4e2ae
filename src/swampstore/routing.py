"""Which files are in the datastore and which on this machine only, as the settings say.

Here are the patterns of `exclude`. What never leaves a machine, whatever is set, says `layout`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from swampstore.layout import DATASTORE_SUBDIRS, is_always_local, stays_beside_runs

_BRACKETS = r"\[([!^]?)(.[^]]*)\]"


def _bracket_regex(negation: str, members: str) -> str:
    """Translate `[a-z_]` or `[!a-z_]`, neither of which ever stands for a slash."""
    body = "".join(
        f"{re.escape(low)}-{re.escape(high or low)}"
        for low, high in re.findall(r"(.)(?:-(.))?", members, re.DOTALL)
        if low <= (high or low)
    )
    if not body:
        return "[^/]" if negation else "(?!)"
    return f"(?!/)[{'^' if negation else ''}{body}]"


def _pattern_regex(pattern: str) -> str:
    """Translate one exclude pattern, anchored to the whole relative path."""
    out: list[str] = []
    at = 0
    while at < len(pattern):
        if pattern.startswith("**/", at):
            out.append("(?:[^/]+/)*")
            at += 3
        elif pattern.startswith("**", at):
            out.append(".*")
            at += 2
        elif pattern[at] == "*":
            out.append("[^/]*")
            at += 1
        elif pattern[at] == "?":
            out.append("[^/]")
            at += 1
        elif found := re.match(_BRACKETS, pattern[at:], re.DOTALL):
            out.append(_bracket_regex(found[1], found[2]))
            at += found.end()
        else:
            out.append(re.escape(pattern[at]))
            at += 1
    return "".join(out)


class Routing:
    """Which tier a file belongs to: the datastore, or this machine only.

    `directories` are the subdirs that live in the datastore (None: all of them); always-local
    subdirs stay local whatever is asked. `exclude` holds gitignore-like patterns over the whole
    relative path, later ones win, `!` re-includes; a pattern that names a directory covers
    everything below it.
    """

    def __init__(
        self, directories: Iterable[str] | None = None, exclude: Sequence[str] = ()
    ) -> None:
        chosen = DATASTORE_SUBDIRS if directories is None else tuple(directories)
        self.subdirs = tuple(name for name in chosen if not is_always_local(name))
        self.exclude = tuple(exclude)
        self._rules = [
            (
                re.compile(_pattern_regex(text.removeprefix("!").strip("/")), re.DOTALL),
                text.startswith("!"),
            )
            for pattern in exclude
            if (text := pattern.strip()) and not text.startswith("#")
        ]

    def is_local(self, rel: str) -> bool:
        """Whether the file or directory at `rel` stays on this machine."""
        if rel.partition("/")[0] not in self.subdirs or stays_beside_runs(rel):
            return True
        return bool(self._rules) and self._is_excluded(rel)

    def may_split(self, rel: str) -> bool:
        """Whether files below the directory `rel` may live in both tiers."""
        return bool(self._rules) and rel.partition("/")[0] in self.subdirs

    def _is_excluded(self, rel: str) -> bool:
        parts = rel.split("/")
        paths = ["/".join(parts[:count]) for count in range(1, len(parts) + 1)]
        excluded = False
        for rule, includes in self._rules:
            if any(rule.fullmatch(path) for path in paths):
                excluded = not includes
        return excluded


def keeps_apart(routing: Routing | None, rel: str) -> bool:
    """Whether settings keep a file on its machine; without any (None) nobody knows of such."""
    return routing is not None and routing.is_local(rel)
