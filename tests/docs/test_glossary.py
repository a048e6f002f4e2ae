"""One thing, one word: the glossary's words are in use, and words that were replaced stay away.

Pages name modules that exist.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from tests.support.markdown_pages import ROOT, Page, all_pages

SOURCES = {path: path.read_text() for path in sorted((ROOT / "src").rglob("*.py"))}
PROSE = "\n".join(page.text for page in all_pages() if page.path.name != "glossary.md").lower()
GLOSSARY = (ROOT / "docs" / "glossary.md").read_text()
TERMS = [line.split("|")[1].strip() for line in GLOSSARY.splitlines() if line.startswith("| ")][1:]
# Names of our own that were replaced by words of the field, and what is said instead. A word is
# looked for as the name of a class, a function, a module or an argument, not in sentences.
RETIRED = {
    "Carrier": "transport",
    "Editor": "IndexWriter",
    "Examined": "what was found, or a row",
    "Handing": "contents",
    "Landing": "install",
    "Leveled": "level",
    "Outlook": "TrustRules",
    "Parts": "SyncContext",
    "PlainLanding": "install",
    "Sight": "NameState",
    "Sighting": "a snapshot",
    "Unseen": "shared_dir_check",
    "arriving": "install",
    "carriers": "transport",
    "collecting": "gc",
    "judging": "recheck",
    "landing": "install",
    "readings": "disk_rows",
    "remembering": "base_update",
    "seeing": "shared_dir_check",
    "shapes": "path_kinds",
    "sighting": "meta_snapshot",
    "starting": "session",
    "uses": "access_times",
    "tell": "progress, for what is called with each step",
}
_NAMED = r"(?:^|\s)(?:class|def) {0}\b|\b{0}: (?:Progress|Callable)\b"


def test_the_glossary_is_in_order_and_says_each_word_once() -> None:
    assert len(TERMS) > 40
    assert sorted(set(TERMS), key=str.lower) == TERMS


@pytest.mark.parametrize("word", [word for term in TERMS for word in term.split(", ")])
def test_every_word_of_the_glossary_is_used(word: str) -> None:
    spelled = re.compile(re.escape(word.lower()).replace(r"\ ", "[ _-]"))
    assert spelled.search(PROSE) or any(spelled.search(text.lower()) for text in SOURCES.values())


@pytest.mark.parametrize("word", RETIRED)
def test_a_word_that_was_replaced_does_not_come_back(word: str) -> None:
    named = re.compile(_NAMED.format(word), re.MULTILINE)
    found = [
        str(path.relative_to(ROOT))
        for path, text in SOURCES.items()
        if path.stem == word or word in path.parent.parts or named.search(text)
    ]
    if word == "tell":  # a run tells its listeners of events, and a file where it is
        allowed = ("runs/workflow/", "repo/fsspec_files.py")
        found = [one for one in found if not any(place in one for place in allowed)]
    assert not found, f"say {RETIRED[word]}"


# Groups of entry points, and files that are called so; the rest is in the code.
_NO_MODULES = re.compile(r"swampstore\.(models|reports|machine|locks|audit|runs|[a-z.]*db\b.*)$")
_MODULE = re.compile(r"(?:`|from |import )(swampstore(?:\.[a-z_]+)+)\b")
_OLD = "CHANGELOG.md"  # it names what is gone


@pytest.mark.parametrize("page", all_pages(), ids=str)
def test_every_module_that_a_page_names_is_there(page: Page) -> None:
    named = {one for one in _MODULE.findall(page.text) if not _NO_MODULES.match(one)}
    assert page.path.name == _OLD or not [one for one in sorted(named) if not _is_there(one)]


def _is_there(name: str) -> bool:
    """Whether there is a module of this name, or a module that speaks of its last part."""
    above, _, last = name.rpartition(".")
    try:
        spec = importlib.util.find_spec(above)
    except ModuleNotFoundError:
        return False
    if spec is None:
        return False
    if spec.submodule_search_locations and importlib.util.find_spec(name):
        return True
    return last in SOURCES[Path(str(spec.origin))]
