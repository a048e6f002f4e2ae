"""The documentation as tests see it: pages, their links, headings, tables and code blocks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
_FENCE = re.compile(r"^```([a-z]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^(#+) (.+)$", re.MULTILINE)


class Block(NamedTuple):
    """A fenced block; `line` is the number of its first line."""

    language: str
    text: str
    line: int


class Step(NamedTuple):
    """A command of a console block and what it prints."""

    command: str
    output: list[str]
    line: int


class Page:
    """One Markdown file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.text = path.read_text(encoding="utf-8")

    def __str__(self) -> str:
        return self.path.relative_to(ROOT).as_posix()

    @cached_property
    def blocks(self) -> list[Block]:
        return [
            Block(found[1], found[2], self.text.count("\n", 0, found.start(2)) + 1)
            for found in _FENCE.finditer(self.text)
        ]

    @cached_property
    def prose(self) -> str:
        """The text without its code blocks."""
        return _FENCE.sub("", self.text)

    @property
    def links(self) -> list[str]:
        return [found[1] for found in _LINK.finditer(self.prose)]

    @property
    def anchors(self) -> set[str]:
        """What links can point at: the headings as GitHub spells them."""
        return {_anchor(found[2]) for found in _HEADING.finditer(self.prose)}

    def section(self, title: str) -> str:
        """Return everything below a heading, up to the next one of its level or above."""
        found = re.search(rf"^(#+) {re.escape(title)}$", self.text, re.MULTILINE)
        assert found, f"{self} has no section {title!r}"
        rest = self.text[found.end() :]
        end = re.search(rf"^#{{1,{len(found[1])}}} ", _FENCE.sub(_blanked, rest), re.MULTILINE)
        return rest[: end.start()] if end else rest


def _blanked(found: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", found[0])


def _anchor(heading: str) -> str:
    kept = re.sub(r"[^\w\- ]", "", heading.lower())
    return kept.replace(" ", "-")


def table_rows(text: str) -> Iterator[list[str]]:
    """Yield the cells of every row of every table, without the headers."""
    lines = text.splitlines()
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if line.startswith("|") and not _is_ruler(line) and not _is_ruler(following):
            yield [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def _is_ruler(line: str) -> bool:
    return line.startswith("|") and set(line) <= set("|-: ")


def all_pages() -> list[Page]:
    """Return every page there is, the one at the entrance first."""
    return [Page(path) for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))]


def steps(block: Block) -> Iterator[Step]:
    """Yield the commands of a console block: `$ ` begins one, `> ` goes on with it."""
    command: list[str] = []
    output: list[str] = []
    start = block.line
    for number, line in enumerate(block.text.splitlines(), block.line):
        if line.startswith("$ "):
            if command:
                yield Step("\n".join(command), output, start)
            command, output, start = [line[2:]], [], number
        elif command and not output and line.startswith("> "):
            command.append(line[2:])
        else:
            assert command, f"line {number} is the output of nothing"
            output.append(line)
    if command:
        yield Step("\n".join(command), output, start)
