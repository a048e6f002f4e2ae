"""The site's menu has the order of docs/index.md, so that a page is listed in one place only."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

_CONTENT = Path(__file__).parent / "content"
_SECTION = re.compile(r"^## (.+)$", re.MULTILINE)
_PAGE = re.compile(r"\[([^\]]+)\]\(([^)#\s]+\.md)\)")
_AROUND = ("ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")


def on_config(config: Any) -> Any:
    """Give MkDocs the menu; it calls this when it has read its settings."""
    _, *parts = _SECTION.split((_CONTENT / "docs/index.md").read_text("utf-8"))
    sections = zip(parts[::2], parts[1::2], strict=True)
    config.nav = [
        {"Home": "README.md"},
        {"Overview": "docs/index.md"},
        {"Glossary": "docs/glossary.md"},
        *({title: _pages(text)} for title, text in sections),
        {"The project": list(_AROUND)},
    ]
    return config


def _pages(text: str) -> list[dict[str, str]]:
    found = [(title.replace("\n  ", " "), path) for title, path in _PAGE.findall(text)]
    return [{title: _below_content(path)} for title, path in found]


def _below_content(path: str) -> str:
    return path.removeprefix("../") if path.startswith("../") else f"docs/{path}"
