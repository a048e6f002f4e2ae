"""What only a process of its own can show: start-up, imports, signals, pipes."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from swampstore import Repo, __version__, open_repo
from swampstore.marker import update_marker
from tests.support.command_line import environment, run_process

MODEL = "aws/ec2/i-1"
HEAVY = {
    *("pyspark", "pyarrow", "pandas", "polars", "numpy", "obstore", "cel", "ruamel", "rich"),
    *(
        "asyncio",
        "http",
        "email",
        "ssl",
        "socket",
        "logging",
        "multiprocessing",
        "concurrent",
        "opentelemetry",
    ),
    *("mimetypes", "hashlib", "shutil", "tempfile", "subprocess", "urllib", "msgspec", "pydantic"),
}


@pytest.fixture
def filled(repo: Repo, repo_dir: Path) -> Path:
    """A repository whose catalog is complete."""
    tags = {"modelName": "web", "env": "prod"}
    repo.artifacts.save(MODEL, "state", {"ip": "10.0.0.1"}, tags=tags)
    repo.artifacts.save(MODEL, "log", "line\n" * 200_000, tags=tags)
    repo.rebuild_catalog()
    return repo_dir


# Cost ------------------------------------------------------------------------------------------


def _imported_by(repo: Path, *args: str) -> set[str]:
    """Return the top-level modules in a process after it ran a command."""
    return {name.partition(".")[0] for name in _modules_after(repo, *args)}


def _modules_after(repo: Path, *args: str) -> set[str]:
    program = (
        "import sys; from swampstore.cli import main; status = main(sys.argv[1:])\n"
        "print(*sys.modules, file=sys.stderr)\n"
        "sys.exit(status)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *args],
        env=environment(repo),
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return set(done.stderr.decode().splitlines()[-1].split())


READING = [
    ["get", MODEL, "state"],
    ["get", "web", "state", "--json"],
    ["get", MODEL, "log", "--raw"],
    ["list", "web", "--json"],
    ["list", "web", "--format", "table"],
    ["versions", "web", "state", "--json"],
    ["search", "stat", "--tag", "env=prod", "--since", "7d", "--model", "web", "--json"],
    ["query", 'modelName == "web" && size > 1 && name.startsWith("s")', "--json"],
    ["query", 'tags.env == "prod"', "--select", "attributes.ip", "--limit", "1"],
]


@pytest.mark.parametrize("command", READING, ids=" ".join)
def test_reading_imports_nothing_heavy(filled: Path, command: list[str]) -> None:
    assert _imported_by(filled, "data", *command) & HEAVY == set()


def test_a_query_on_content_loads_what_evaluates_it_without_its_command_line(filled: Path) -> None:
    modules = _modules_after(filled, "data", "query", 'attributes.ip == "10.0.0.1"')
    assert "cel.cel" in modules
    loaded = {name.partition(".")[0] for name in modules}
    # The compiled part loads logging itself.
    assert loaded & (HEAVY | {"typer", "prompt_toolkit"}) == {"cel", "logging"}


@pytest.fixture
def remote(repo_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a remote that was never synced."""
    monkeypatch.setenv("SWAMP_HOME", str(tmp_path / "home"))
    update_marker(str(repo_dir), {"datastore": {"url": "s3://bucket/prefix"}})
    with open_repo(repo_dir, durable=False) as repo:
        repo.artifacts.save(MODEL, "state", {"ip": "10.0.0.1"}, tags={"modelName": "web"})
        repo.artifacts.save(MODEL, "log", "line", tags={"modelName": "web"})
        repo.rebuild_catalog()
    return repo_dir


@pytest.mark.parametrize("command", READING, ids=" ".join)
def test_reading_from_a_cache_loads_neither_sync_nor_stores(
    remote: Path, command: list[str]
) -> None:
    modules = _modules_after(remote, "data", *command)
    assert {name.partition(".")[0] for name in modules} & HEAVY == set()
    assert not [name for name in modules if name.startswith(("swampstore.sync", "swampstore.st"))]


def test_writing_to_a_cache_loads_only_what_marks_the_change(remote: Path) -> None:
    program = (
        "import sys; from swampstore import open_repo\n"
        f"with open_repo() as repo: repo.artifacts.save({MODEL!r}, 'state', 1)\n"
        "print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment(remote), capture_output=True, check=True
    )
    modules = set(done.stderr.decode().split())
    assert "swampstore.sync.dirty" in modules
    assert not [name for name in modules if name.startswith("swampstore.stores")]
    assert not modules & {"obstore", "msgspec", "importlib.metadata", "swampstore.sync.service"}


def test_a_local_put_loads_of_the_stores_no_more_than_a_directory_that_has_locks(
    filled: Path,
) -> None:
    modules = _modules_after(filled, "data", "put", MODEL, "state", "--json-value", "1")
    assert "swampstore.stores.directory" in modules
    rare = {"urllib.parse", "random", "secrets", "base64", "queue", "swampstore.stores.retry"}
    assert not modules & rare


_DATACLASSES_OF = """
import sys
from swampstore.cli import main
status = main(sys.argv[1:])
found = {
    f"{one.__module__}.{one.__qualname__}"
    for name, module in list(sys.modules.items()) if name.startswith("swampstore.")
    for one in vars(module).values()
    if isinstance(one, type) and "__dataclass_fields__" in vars(one)
}
print(*found, file=sys.stderr)
sys.exit(status)
"""


def test_a_put_with_a_remote_compiles_few_dataclasses(
    filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each takes a third of a millisecond to import; what a program can use stays one.
    monkeypatch.setenv("SWAMP_HOME", str(tmp_path / "home"))
    (tmp_path / "bucket").mkdir()
    monkeypatch.setenv("SWAMP_DATASTORE", f"file://{tmp_path}/bucket")
    command = ["data", "put", MODEL, "state", "--json-value", "1"]
    done = subprocess.run(
        [sys.executable, "-c", _DATACLASSES_OF, *command],
        env=environment(filled),
        capture_output=True,
        check=True,
    )
    assert set(done.stderr.decode().splitlines()[-1].split()) == {
        *(f"swampstore.artifacts.metadata.{name}" for name in ("Draft", "Metadata", "Owner")),
        *("swampstore.config.Config", "swampstore.config.RemoteSettings"),
        "swampstore.datastore_address.Address",
    }


def test_help_imports_no_part_of_the_library(repo_dir: Path) -> None:
    program = (
        "import sys; from swampstore.cli import main; main(['data', '--help'])\n"
        "print(*(name for name in sys.modules if name.startswith('swampstore')), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment(repo_dir), capture_output=True, check=True
    )
    assert set(done.stderr.decode().split()) == {
        "swampstore",
        "swampstore.errors",
        "swampstore.notices",
        "swampstore.cli",
        *(f"swampstore.cli.{name}" for name in ("app", "command", "rendering", "row_formats")),
        *(f"swampstore.cli.{name}" for name in ("errors", "session")),
    }


# The outside world -----------------------------------------------------------------------------


def test_the_version_is_told(repo_dir: Path) -> None:
    outcome = run_process("--version", repo=repo_dir)
    assert (outcome.status, outcome.out) == (0, f"swampstore {__version__}\n")


def test_the_installed_command_is_this_one(repo_dir: Path) -> None:
    script = Path(sys.executable).parent / "swampstore"
    done = subprocess.run([script, "--version"], capture_output=True, check=True)
    assert done.stdout.decode() == f"swampstore {__version__}\n"


@pytest.mark.parametrize("options", [["--raw"], [], ["--json"]])
def test_a_pipe_that_closes_early_ends_the_command_quietly(
    filled: Path, options: list[str]
) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "swampstore.cli", "data", "get", MODEL, "log", *options],
        env=environment(filled),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(10)
        process.stdout.close()
        complaints = process.stderr.read()
    assert (process.returncode, complaints) == (141, b"")


def test_a_query_whose_reader_leaves_ends_quietly(repo: Repo, repo_dir: Path) -> None:
    for number in range(700):
        repo.artifacts.save(MODEL, f"name-{number}", b"1", tags={"note": "x" * 400})
    command = f"{sys.executable} -m swampstore data query true --json | head -1"
    done = subprocess.run(
        ["/bin/sh", "-c", command], env=environment(repo_dir), capture_output=True, check=False
    )
    assert (done.stdout, done.stderr) == (b"{\n", b"")


def test_output_that_cannot_be_written_is_an_error(filled: Path) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "swampstore.cli", "data", "list", "web", "--json"],
            env=environment(filled),
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr.count(b"\n") == 5
    assert b"standard output cannot be written: No space left on device" in done.stderr


def test_closed_standard_output_is_no_reason_to_crash(filled: Path) -> None:
    done = subprocess.run(
        ["/bin/sh", "-c", f"exec {sys.executable} -m swampstore.cli data list web --json >&-"],
        env=environment(filled),
        stderr=subprocess.PIPE,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("command", ["data put web new -", "data delete web --all", "data query"])
def test_closed_standard_input_is_empty_and_no_reason_to_crash(filled: Path, command: str) -> None:
    done = subprocess.run(
        ["/bin/sh", "-c", f"exec {sys.executable} -m swampstore.cli {command} <&-"],
        env=environment(filled),
        capture_output=True,
        check=False,
    )
    assert done.returncode in (1, 2)
    assert b"defect" not in done.stderr


def test_an_interrupted_put_leaves_nothing_behind(repo: Repo, repo_dir: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "swampstore.cli", "data", "put", MODEL, "log", "-"],
        env=environment(repo_dir),
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(b"some")
        process.stdin.flush()
        content = repo_dir / ".swamp/data/aws/ec2/i-1/log/1/raw"
        deadline = time.monotonic() + 20
        while not (content.exists() and content.read_bytes()) and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        complaints = process.stderr.read()
        process.wait()
    assert (process.returncode, complaints) == (130, b"error: interrupted\n")
    assert repo.list_versions(MODEL, "log") == []


def test_a_name_in_latin_1_is_refused_without_a_crash(repo_dir: Path) -> None:
    outcome = run_process("data", "get", "a/b", b"caf\xe9", "--json", repo=repo_dir)
    assert outcome.error["code"] == "validation_failed"
    assert outcome.error["error"] == r"the data name 'caf\udce9' is not valid UTF-8"


def test_documents_are_utf8_whatever_the_locale_says(repo: Repo, repo_dir: Path) -> None:
    repo.artifacts.save(MODEL, "x", {"smile": "\U0001f600"})
    env = {"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    outcome = run_process("data", "get", MODEL, "x", "--json", repo=repo_dir, env=env)
    assert outcome.json["content"] == {"smile": "\U0001f600"}
    text = run_process("data", "get", MODEL, "x", repo=repo_dir, env=env)
    assert r"\U0001f600" in text.out


def test_a_command_leaves_nothing_open(filled: Path) -> None:
    env = {"PYTHONDEVMODE": "1"}
    outcome = run_process("data", "get", MODEL, "state", repo=filled, env=env)
    assert (outcome.status, outcome.err) == (0, "")


def test_tail_follows_what_is_appended_until_it_is_interrupted(repo: Repo, repo_dir: Path) -> None:
    repo.artifacts.save(MODEL, "grows", "one\n", streaming=True)
    command = [sys.executable, "-m", "swampstore", "data", "tail", "-f", MODEL, "grows"]
    with subprocess.Popen(
        command, env=environment(repo_dir), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"one\n"
        repo.artifacts.append(MODEL, "grows", "two\n")
        assert process.stdout.readline() == b"two\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
        assert b"Traceback" not in process.stderr.read()


_TORN_DOWN = """
import atexit, os, sys
atexit.register(os.abort)
import pyarrow
from swampstore.cli import main
sys.argv = ["swampstore", "--version"]
status = main()
atexit.register(print, "tidied up")
sys.exit(status)
"""


def test_threads_of_libraries_are_not_torn_down_after_a_command_has_done_its_work() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _TORN_DOWN], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"swampstore {__version__}\ntidied up\n"


def test_a_command_does_what_is_to_be_done_at_the_end_and_takes_nothing_apart() -> None:
    code = """
import atexit, sys
from swampstore.cli import main

class Told:
    def __del__(self):
        print("taken apart")

sys.argv = ["swampstore", "--version"]
told = Told()
status = main()
atexit.register(print, "done at the end")
sys.exit(status)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.endswith("done at the end\n")
    assert "taken apart" not in done.stdout
    assert done.stderr == ""
