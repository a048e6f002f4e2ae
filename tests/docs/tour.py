"""The tour: every command of the README and of the how-tos, and all that it prints.

It is taken in terminals of 80 and of 100 columns. What commands print there is kept below
`tests/docs/screens/` as text, so that a change of looks is seen as a change of a file. What differs
from run to run (times, ids, ages, how long something took) does not count.

`make tour` takes the tour and tells what looks different now; with `WRITE=1` it keeps what it saw.
"""

from __future__ import annotations

import argparse
import difflib
import re
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.docs import picture
from tests.support.examples import COLUMNS, PageRun, settled
from tests.support.markdown_pages import ROOT, Page, Step, all_pages

WIDTHS = (80, COLUMNS)
_KEPT = ROOT / "tests/docs/screens"
_VARIES = (
    # What took longer than usual showed progress, which the next line overwrote.
    (re.compile(r"[^\n]*\n\x1b\[K"), ""),
    (re.compile(r"\b[0-9a-f]{64}\b"), "<hash>"),
    (re.compile(r"/tmp/d\w*…\S*"), "<home, cut short>"),
    (re.compile(r"\b\d{8}T\d{9}Z(-[0-9a-f]*)?(…|\b)"), "<backup>"),
    (re.compile(r"\b[0-9a-f]{8}-[0-9a-f-]*…"), "<id>"),
    (re.compile(r"\b((?=[0-9a-f]*[a-f])(?=[a-f]*\d)[0-9a-f]{8}|\d{8})\b(?!-)"), "<short id>"),
    (re.compile(r"\b\d{4}(-\d\d){2}T(\d\d-){3}\d{3}Z\b"), "<time>"),
    (re.compile(r"(?<=\"seconds\": )\d+(\.\d+)?"), "<duration>"),
    (re.compile(r"\b\d+(\.\d+)? (s|ms)\b"), "<duration>"),
    (re.compile(r"\b\d+(\.\d+)? [KMGT]?B(/s)?\b"), "<size>"),
    (re.compile(r"\b\d+ requests? \([^)]*\)"), "<requests>"),
)


def pages(known: Iterable[Page]) -> list[Page]:
    """Return the pages with commands that a reader is led through."""
    shown = [page for page in known if str(page) == "README.md" or "how-to" in str(page)]
    return [page for page in shown if any(block.language == "console" for block in page.blocks)]


def kept_at(page: Page, columns: int) -> Path:
    """Return the file that has what commands of a page print."""
    return _KEPT / str(columns) / f"{page.path.stem.lower()}.txt"


def text_of(transcript: Iterable[Step]) -> str:
    """Return commands and what they printed, as on the screen."""
    lines: list[str] = []
    for step in transcript:
        lines += [f"$ {step.command}".replace("\n", "\n> "), *step.output]
    return "".join(f"{line}\n" for line in lines)


def _without_chance(text: str) -> list[str]:
    """Return the lines of a text without what differs from run to run."""
    for varies, word in _VARIES:
        text = varies.sub(word, text)
    return [settled(line) for line in text.splitlines()]


def too_wide(transcript: Iterable[Step], columns: int) -> list[str]:
    """Return the rows of tables that a terminal would break.

    It may break a sentence, and what is a single word; a broken row cannot be read.
    """
    rows = (row for step in transcript for row in _rows(step.output))
    return [row for row in rows if len(row) > columns]


def _rows(output: list[str]) -> Iterator[str]:
    """Yield what has three cells or more, that begin where cells of a neighbour begin."""
    cells = [{found.start() for found in re.finditer(r"(?<=  )\S", line)} for line in output]
    for number, line in enumerate(output):
        neighbours = cells[max(0, number - 1) : number] + cells[number + 1 : number + 2]
        if any(len(cells[number] & other) > 1 for other in neighbours):
            yield line


@contextmanager
def short_home() -> Iterator[Path]:
    """Yield a directory whose path is short, and always as long: it is part of what is printed."""
    directory = Path(tempfile.mkdtemp(prefix="d", dir="/tmp"))
    try:
        yield directory
    finally:
        shutil.rmtree(directory)


def taken(page: Page, columns: int) -> list[Step]:
    """Return the commands of a page with what they print in a terminal."""
    with short_home() as home:
        run = PageRun(page, home, columns)
        run.run()
    return run.transcript


def difference(page: Page, columns: int, transcript: Iterable[Step]) -> str:
    """Return what looks different from what is kept, line by line; empty if nothing does."""
    kept = kept_at(page, columns)
    before = kept.read_text("utf-8") if kept.exists() else ""
    return "\n".join(
        difflib.unified_diff(
            _without_chance(before),
            _without_chance(text_of(transcript)),
            f"{page}, {columns} columns, kept",
            f"{page}, {columns} columns, now",
            lineterm="",
        )
    )


def main() -> int:
    """Take the tour at every width."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="keep what is seen")
    parser.add_argument("pages", nargs="*", help="only these, by a part of their paths")
    options = parser.parse_args()
    has_changed = False
    for page in pages(all_pages()):
        if options.pages and not any(part in str(page) for part in options.pages):
            continue
        for columns in WIDTHS:
            transcript = taken(page, columns)
            changed = difference(page, columns, transcript)
            sys.stdout.write(f"{changed}\n" if changed else f"{page}, {columns} columns: as kept\n")
            has_changed = has_changed or bool(changed)
            if options.write and changed:
                kept = kept_at(page, columns)
                kept.parent.mkdir(parents=True, exist_ok=True)
                kept.write_text(text_of(transcript), "utf-8")
    if options.write:
        picture.PICTURE.write_text(picture.drawn(), "utf-8")
    return 1 if has_changed and not options.write else 0


if __name__ == "__main__":
    sys.exit(main())
