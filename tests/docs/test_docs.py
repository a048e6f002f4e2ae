"""The documentation is true: examples run, nothing is missing, every link leads somewhere."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator

import click
import pytest

import swampstore
from swampstore import doctor, retention
from swampstore.artifacts import metadata
from swampstore.artifacts.groups import Deferral
from swampstore.artifacts.streaming import VersionWriter
from swampstore.catalog.query.check import FUNCTIONS, TEXT_METHODS, TIME_METHODS
from swampstore.catalog.query.fields import FIELDS
from swampstore.catalog.query.syntax import MACROS
from swampstore.catalog.schema import DDL, Row
from swampstore.cli.app import root
from swampstore.cli.command import GlobalOption, Group
from swampstore.cli.options import RowOption
from swampstore.cli.session import ConfirmationError
from swampstore.doctor.checks import (
    COMPLETENESS,
    DEAD_RUNS,
    FILE_CHECKS,
    HASHES,
    SHARED_CHECKS,
    UNFINISHED,
)
from swampstore.errors import SwampstoreError
from swampstore.index import errors as sync_errors
from swampstore.layout import ALWAYS_LOCAL_SUBDIRS, DATASTORE_SUBDIRS
from swampstore.locks import record as lock_errors
from swampstore.pipeline import catalog as pipeline_catalog
from swampstore.pipeline import copy as pipeline_copying
from swampstore.pipeline import errors as pipeline_errors
from swampstore.pipeline import export as pipeline_export
from swampstore.pipeline import gc as pipeline_gc
from swampstore.pipeline import reindex as pipeline_reindex
from swampstore.pipeline import report as pipeline_report
from swampstore.pipeline import syncing as pipeline_syncing
from swampstore.pipeline import verify as pipeline_verify
from swampstore.relocate import backup
from swampstore.relocate import namespace as relocate_namespace
from swampstore.relocate import setup as relocate_setup
from swampstore.repo import models as repo_models
from swampstore.repo.saving import Artifacts
from swampstore.runs import errors as run_errors
from swampstore.stores import errors as store_errors
from swampstore.sync.service import SyncService
from swampstore.vaults import errors as vault_errors
from tests.docs import picture, tour
from tests.support.examples import COLUMNS, agrees
from tests.support.markdown_pages import ROOT, Page, Step, all_pages, table_rows

DOCS = ROOT / "docs"
SOURCES = ROOT / "src/swampstore"
NOT_IN_USE_YET = {"testing"}  # no command and no function of the API leads there
PAGES = all_pages()
_WITH_CODE = [
    page
    for page in PAGES
    if any(block.language in ("console", "python", "pycon") for block in page.blocks)
]
_TOUR = tour.pages(PAGES)


def page(name: str) -> Page:
    return Page(DOCS / name)


# Examples ----------------------------------------------------------------------------------


def _needs_its_extras(page: Page) -> None:
    if "vault create local_encryption" in page.text:
        pytest.importorskip("cryptography", reason="the extra `vaults` is not installed")


def _looks_as_kept(page: Page, columns: int, transcript: list[Step]) -> None:
    changed = tour.difference(page, columns, transcript)
    assert not changed, f"{changed}\n`make tour WRITE=1` keeps what is meant"
    assert not tour.too_wide(transcript, columns)


@pytest.mark.parametrize("page", _WITH_CODE, ids=str)
def test_the_examples_of_a_page_run_and_print_what_it_says(page: Page) -> None:
    _needs_its_extras(page)
    transcript = tour.taken(page, COLUMNS)
    if page in _TOUR:
        _looks_as_kept(page, COLUMNS, transcript)


@pytest.mark.parametrize("page", _TOUR, ids=str)
def test_the_tour_looks_as_kept_in_a_terminal_of_80_columns_and_no_row_is_broken(
    page: Page,
) -> None:
    _needs_its_extras(page)
    _looks_as_kept(page, 80, tour.taken(page, 80))


def test_a_row_that_a_terminal_would_break_is_found_and_a_sentence_may_be_broken() -> None:
    rows = ["model           name   size", f"aws/ec2/i-0abc  state  {'9' * 60}"]
    said = Step("ls", [*rows, "A sentence of any length. " * 9], 1)
    assert tour.too_wide([said], 80) == [rows[1]]
    assert not tour.too_wide([said], 100)


def test_the_tour_keeps_nothing_of_pages_that_are_gone() -> None:
    kept = {tour.kept_at(page, columns) for page in _TOUR for columns in tour.WIDTHS}
    assert kept == {*(ROOT / "tests/docs/screens").rglob("*.txt")}


def test_there_are_pages_with_examples() -> None:
    assert len(_WITH_CODE) > 20


@pytest.mark.parametrize(
    ("expected", "printed"),
    [
        ("saved a ... b", "saved a 12 b"),
        ("first\n...\nlast", "first\n1\n2\nlast"),
        ("first\n...\nlast", "first\nlast"),
        ("at 2026-01-01T00:00:00.000Z", "at 2031-12-31T23:59:59.999Z"),
        ("│ a   │\n└━━┘", "│ a │\n└━━━━━━┘"),
    ],
)
def test_an_example_may_leave_open_what_varies(expected: str, printed: str) -> None:
    assert agrees(expected, printed)


@pytest.mark.parametrize(
    ("expected", "printed"),
    [
        ("", "something"),
        ("saved 1", "saved 2"),
        ("a ... b", "a\nb"),
        ("first\nlast", "first\n1\nlast"),
        ("at 2026-01-01T00:00:00.000Z", "at noon"),
    ],
)
def test_an_example_that_prints_something_else_is_wrong(expected: str, printed: str) -> None:
    assert not agrees(expected, printed)


def test_the_picture_of_the_readme_shows_what_the_tour_has_kept() -> None:
    assert picture.PICTURE.read_text("utf-8") == picture.drawn()


def test_the_api_reference_has_every_public_name() -> None:
    named = re.findall(r"^::: swampstore\.(\w+)$", page("reference/api.md").text, re.MULTILINE)
    assert sorted(named) == sorted({*swampstore.__all__} - {"__version__"})


# Links -------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", [*PAGES, Page(ROOT / "CHANGELOG.md")], ids=str)
def test_every_link_of_a_page_leads_somewhere(page: Page) -> None:
    for link in page.links:
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.path.parent / path).resolve() if path else page.path
        assert target.exists(), f"{page} links to {link}"
        if anchor:
            assert anchor in Page(target).anchors, f"{page} links to {link}"


def test_every_page_can_be_reached_from_the_index() -> None:
    start = (DOCS / "index.md").resolve()
    reached, ahead = {start}, [start]
    while ahead:
        here = Page(ahead.pop())
        targets = {
            (here.path.parent / link.partition("#")[0]).resolve()
            for link in here.links
            if "://" not in link and not link.startswith("#")
        }
        fresh = {path for path in targets if path.suffix == ".md" and path.exists()} - reached
        reached |= fresh
        ahead += fresh
    assert {found.path for found in PAGES} <= reached


@pytest.mark.parametrize("page", [page for page in PAGES if "decisions" in str(page)], ids=str)
def test_a_decision_tells_problem_decision_alternatives_and_consequences(page: Page) -> None:
    titles = re.findall(r"^## (.+)$", page.prose, re.MULTILINE)
    assert titles == ["Problem", "Decision", "Alternatives", "Consequences"]
    number = int(page.path.name[:4])
    assert page.text.startswith(f"# {number}. ")


# Commands ----------------------------------------------------------------------------------


def _commands(group: Group = root, path: str = "swampstore") -> Iterator[tuple[str, click.Command]]:
    for name in group.entries:
        found = group.get_command(click.Context(group), name)
        assert found is not None
        if isinstance(found, Group):
            yield from _commands(found, f"{path} {name}")
        else:
            yield f"{path} {name}", found


COMMANDS = dict(_commands())


def _options_in(text: str) -> set[str]:
    """Return the options in the first column of the tables."""
    cells = [row[0] for row in table_rows(text)]
    return {found for cell in cells for found in re.findall(r"(?<![\w-])--?[a-z][a-z-]*", cell)}


@pytest.mark.parametrize("path", COMMANDS)
def test_the_reference_has_exactly_the_options_of_a_command(path: str) -> None:
    section = page("reference/commands.md").section(path)
    shared = (GlobalOption, RowOption)  # which have tables of their own
    own = [param for param in COMMANDS[path].params if not isinstance(param, shared)]
    options = [param for param in own if isinstance(param, click.Option)]
    assert _options_in(section) == {name for option in options for name in option.opts}


@pytest.mark.parametrize("path", COMMANDS)
def test_the_reference_has_the_arguments_of_a_command(path: str) -> None:
    usage = page("reference/commands.md").section(path).split("```")[1]
    command = COMMANDS[path]
    context = click.Context(command)
    wanted = [
        param.make_metavar(context) for param in command.params if isinstance(param, click.Argument)
    ]
    assert usage.split("\n")[1] == " ".join([path, *wanted])


def test_the_reference_has_the_global_options() -> None:
    documented = _options_in(page("reference/commands.md").section("Everywhere"))
    everywhere = {name for param in root.params for name in param.opts}
    assert documented == everywhere | {"-h", "--help"}


def test_the_reference_describes_no_other_command() -> None:
    titles = re.findall(r"^## (swampstore .+)$", page("reference/commands.md").prose, re.MULTILINE)
    assert titles == list(COMMANDS)


def test_every_command_has_an_example_of_its_json_document() -> None:
    names = ("json.md", "json-pipeline.md", "json-vaults.md", "json-backup.md", "json-runs.md")
    pages = [page(f"reference/{name}") for name in (*names, "json-workflows.md")]
    examples = "\n".join(block.text for found in pages for block in found.blocks)
    # The documents of familiar words are those of the commands that they stand for.
    familiar = {f"swampstore {word}" for word in ("push", "pull", "cat", "rm", "log", "help")}
    for path in COMMANDS.keys() - familiar:
        assert re.search(rf"^\$ {path}\b.*--json", examples, re.MULTILINE), path


# Errors and settings -----------------------------------------------------------------------


def _errors(kind: type[SwampstoreError] = SwampstoreError) -> Iterator[type[SwampstoreError]]:
    yield kind
    for below in kind.__subclasses__():
        yield from _errors(below)


def _builtin_of(kind: type[SwampstoreError]) -> str:
    """Return the most special built-in error that an error is."""
    return next(base.__name__ for base in kind.__mro__ if base.__module__ == "builtins")


def test_the_table_of_errors_is_that_of_the_library() -> None:
    rows = table_rows(page("reference/errors.md").section("Codes"))
    documented = {tuple(cell.strip("`") for cell in row[:4]) for row in rows if len(row) == 5}
    assert documented == {
        (kind.code, kind.__name__, _builtin_of(kind), str(kind.exit_status))
        for kind in _library_errors()
    }


def test_the_codes_of_the_command_line_are_documented() -> None:
    rows = table_rows(page("reference/errors.md").section("Codes"))
    documented = {row[0].strip("`") for row in rows if len(row) == 3}
    told = re.findall(r'Failure\(\w+, "(\w+)"', (SOURCES / "cli/errors.py").read_text())
    told += re.findall(r'^ +"(\w+_error)",$', (SOURCES / "cli/errors.py").read_text(), re.MULTILINE)
    assert documented == {*told, ConfirmationError.code} - {kind.code for kind in _library_errors()}


def _library_errors() -> set[type[SwampstoreError]]:
    modules = {SwampstoreError.__module__, store_errors.__name__, sync_errors.__name__}
    modules |= {lock_errors.__name__, pipeline_errors.__name__, vault_errors.__name__}
    modules |= {run_errors.__name__}
    return {kind for kind in _errors() if kind.__module__ in modules}


def _variables_in(tree: ast.AST) -> Iterator[str]:
    """Yield the texts that look like the name of a variable of ours, or are looked up as one."""
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)) if re.fullmatch(
                r"_?SWAMP(STORE)?_[A-Z0-9_]+|MONGO_PASSWORD", text
            ):
                yield text
            case ast.Call(
                ast.Attribute(ast.Name("environ") | ast.Attribute(attr="environ"), "get")
            ):
                if isinstance(node.args[0], ast.Constant):
                    yield str(node.args[0].value)


def test_the_environment_variables_of_the_reference_are_those_of_the_code() -> None:
    section = page("reference/configuration.md").section("Environment")
    documented = {row[0].strip("`") for row in table_rows(section)}
    used = {
        name
        for path in SOURCES.rglob("*.py")
        if path.relative_to(SOURCES).parts[0] not in NOT_IN_USE_YET
        for name in _variables_in(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert documented == used


def test_the_settings_of_the_reference_are_those_of_the_code() -> None:
    section = page("reference/configuration.md").section(".swamp.yaml")
    documented = {name for row in table_rows(section) for name in re.findall(r"`(.+?)`", row[0])}
    places = ["config.py", "marker.py", "datastore_address.py", "retention/data_prune.py"]
    places += ["pipeline/settings.py", "vaults/config.py", "bundles/__init__.py"]
    code = "".join((SOURCES / place).read_text() for place in places)
    for name in documented:
        assert f'"{name.rpartition(".")[2]}"' in code, name
    read = set(re.findall(r'(?:section(?:\.get\(|, )|\bsetting\()"(\w+)"', code))
    outer = {name.rpartition(".")[0] for name in documented}
    assert {f"datastore.{name}" for name in read} <= documented | outer


# The Python API ----------------------------------------------------------------------------


def _signature(name: str, function: object, *, drop: int) -> str:
    """Return a call as the reference writes it: no types, and `...` for unprintable defaults."""
    assert callable(function)
    parts: list[str] = []
    for parameter in list(inspect.signature(function).parameters.values())[drop:]:
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in parts:
            parts.append("*")
        text = f"**{parameter.name}" if parameter.kind is parameter.VAR_KEYWORD else parameter.name
        if parameter.default is not parameter.empty:
            plain = isinstance(parameter.default, str | int | None)
            shown = repr(parameter.default).replace("'", '"') if plain else "..."
            text += f"={shown}"
        parts.append(text)
    return f"{name}({', '.join(parts)})"


CLASSES: dict[str, type] = {
    "Repo": swampstore.Repo,
    "repo.artifacts": Artifacts,
    "repo.sync": SyncService,
    "Artifact": swampstore.Artifact,
    "Results": swampstore.Results,
    "VersionWriter": VersionWriter,
    "Deferral": Deferral,
}
_BUILT_BY_US = {"claim"}  # a way to construct that is not for callers


@pytest.mark.parametrize("title", CLASSES)
def test_the_reference_has_every_member_of_a_class(title: str) -> None:
    section = page("reference/python.md").section(title)
    spans = re.findall(r"`([^`]+)`", section)
    named = {re.split(r"\W", span)[0] for span in spans}
    members = {name for name in vars(CLASSES[title]) if not name.startswith("_")}
    assert members - _BUILT_BY_US <= named


@pytest.mark.parametrize("title", CLASSES)
def test_the_reference_has_the_signature_of_every_method(title: str) -> None:
    calls = {row[0].strip("`") for row in table_rows(page("reference/python.md").section(title))}
    for call in calls:
        if "(" in call:
            name = call.partition("(")[0]
            assert call == _signature(name, getattr(CLASSES[title], name), drop=1)


def test_the_reference_has_the_signature_of_every_function() -> None:
    text = page("reference/python.md").text
    assert f"`{_signature('open_repo', swampstore.open_repo, drop=0)}`" in text
    assert f"`{_signature('init_repo', swampstore.init_repo, drop=0)}`" in text
    for module, names in (
        (retention, ("gc", "prune", "run_gc", "auto_gc_model", "delete_model")),
        (repo_models, ("list_models",)),
        (backup, ("open_place", "create_backup", "verify_backups", "restore_backup")),
        (doctor, ("examine",)),
        (relocate_setup, ("set_up_datastore",)),
        (relocate_namespace, ("set_namespace", "unset_namespace", "preview_migration", "migrate")),
        (pipeline_verify, ("verify",)),
        (pipeline_reindex, ("reindex",)),
        (pipeline_copying, ("copy",)),
        (pipeline_gc, ("gc",)),
        (pipeline_report, ("report",)),
        (pipeline_syncing, ("push",)),
        (pipeline_catalog, ("rebuild",)),
        (pipeline_export, ("export",)),
    ):
        for name in names:
            call = _signature(f"{module.__name__}.{name}", getattr(module, name), drop=0)
            assert f"`{call}`" in text


def test_the_reference_has_every_public_name() -> None:
    text = page("reference/python.md").text
    for name in swampstore.__all__:
        if not name.startswith("__"):
            assert re.search(rf"\b{name}\b", text), name


# Formats and concepts ----------------------------------------------------------------------


def _quoted(text: str) -> set[str]:
    return set(re.findall(r"`([^`]+)`", text))


def test_every_member_of_the_metadata_is_described() -> None:
    described = {
        name for row in table_rows(page("formats/metadata.md").text) for name in _quoted(row[0])
    }
    assert described == metadata._KNOWN | metadata._KNOWN_OWNER


def test_every_table_and_column_of_the_catalog_is_described() -> None:
    text = page("formats/catalog.md").text
    columns = {
        name
        for row in table_rows(page("formats/catalog.md").section("catalog: one row per version"))
        for name in _quoted(row[0])
    }
    assert columns == set(Row._fields)
    for statement in DDL:
        if found := re.match(r"CREATE TABLE (\w+)", statement):
            assert re.search(rf"^## {found[1]}\b", text, re.MULTILINE), found[1]


def test_every_directory_of_a_datastore_has_its_tier() -> None:
    rows = list(table_rows(page("concepts/repository.md").section("What goes where")))
    tiers = {name: row[1] for row in rows for name in _quoted(row[0])}
    assert tiers == {
        name: "always local" if name in ALWAYS_LOCAL_SUBDIRS else "datastore"
        for name in DATASTORE_SUBDIRS
    }


def test_every_field_of_a_query_is_described() -> None:
    rows = table_rows(page("concepts/queries.md").section("Fields"))
    assert {name for row in rows for name in _quoted(row[0])} == set(FIELDS)


def test_every_function_of_a_query_is_named() -> None:
    named = _quoted(page("concepts/queries.md").section("Operators and functions"))
    assert {*FUNCTIONS, *TEXT_METHODS, *TIME_METHODS, *MACROS} <= named


def test_every_check_of_the_doctor_is_explained() -> None:
    rows = table_rows(page("how-to/heal.md").section("What is checked"))
    explained = [row[0].strip("`") for row in rows]
    first = ["configuration", "datastore", "catalog", UNFINISHED.name, DEAD_RUNS.name]
    last = [COMPLETENESS.name, *(check.name for check in SHARED_CHECKS)]
    files = [check.name for check in FILE_CHECKS]
    files.insert(files.index("content_size"), HASHES.name)
    assert explained == [*first, *files, *last]
