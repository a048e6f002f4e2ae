"""The picture of a terminal in the README, drawn from what the tour has kept.

`make tour WRITE=1` draws it anew. Nothing in it is made up: each command and its output stand in
`tests/docs/screens/`.
"""

from __future__ import annotations

import io

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from tests.support.markdown_pages import ROOT

PICTURE = ROOT / "docs/terminal.svg"
_SCREEN = ROOT / "tests/docs/screens/80/readme.txt"
_SHOWN = (
    "swampstore data put web-server state",
    "swampstore data query 'tags.env",
    "swampstore data rename",
    "swampstore data gc --dry-run",
    "swampstore run web-server login",
)
# Rich's own frame asks another host for a font.
_FRAME = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
    <style>
    .{unique_id}-matrix {{
        font-family: Menlo, Consolas, "DejaVu Sans Mono", monospace;
        font-size: {char_height}px;
        line-height: {line_height}px;
    }}
    {styles}
    </style>
    <defs>
    <clipPath id="{unique_id}-clip-terminal">
      <rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
    </clipPath>
    {lines}
    </defs>
    {chrome}
    <g transform="translate({terminal_x}, {terminal_y})"
       clip-path="url(#{unique_id}-clip-terminal)">
    {backgrounds}
    <g class="{unique_id}-matrix">
    {matrix}
    </g>
    </g>
</svg>
"""


def drawn() -> str:
    """Return the picture as SVG."""
    console = Console(record=True, width=80, file=io.StringIO(), force_terminal=True)
    for command in _commands():
        for number, line in enumerate(command.splitlines()):
            is_typed = number == 0 or line.startswith("> ")
            console.print(Text(line, style="bold green" if is_typed else ""))
    return console.export_svg(
        title="swampstore", theme=MONOKAI, unique_id="terminal", code_format=_FRAME
    )


def _commands() -> list[str]:
    """Return the chosen commands with what they print, in the order of the page."""
    screen = _SCREEN.read_text("utf-8")
    every = [f"$ {part}".rstrip() for part in screen.removeprefix("$ ").split("\n$ ")]
    return [one for one in every if one.removeprefix("$ ").startswith(_SHOWN)]
