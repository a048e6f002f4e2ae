"""Every change of a datastore is announced before it happens, and goes through one package.

Run as a program, this file records what the operations below really do to the files: an audit
hook, which cannot be removed again, sees every call that changes a file system.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import swampstore
from swampstore import Draft, Owner, Repo, init_repo, open_repo
from swampstore.artifacts.renumber import renumber
from swampstore.doctor import examine
from swampstore.layout import is_temp
from swampstore.marker import update_marker
from swampstore.retention import gc, prune, run_gc

MODEL = "aws/ec2/i-1"
NAMESPACE = "infra"
STATE = f"{NAMESPACE}/data/{MODEL}/state"
OWNER = Owner(ref="i-1")

# What the operations do ---------------------------------------------------------------------


def seed(repo: Repo) -> None:
    for number in range(3):
        repo.artifacts.save(MODEL, "state", {"n": number})
    repo.artifacts.save(MODEL, "log", b"one", streaming=True)
    repo.artifacts.save(MODEL, "old", b"x", lifetime="1h")
    repo.artifacts.save("aws/ec2/gone", "state", b"x")


def stream(repo: Repo) -> None:
    with repo.artifacts.writer(MODEL, "state") as writer:
        writer.write(b"part")


def abandon(repo: Repo) -> None:
    with suppress(KeyError), repo.artifacts.writer(MODEL, "fresh") as writer:
        writer.write(b"part")
        raise KeyError


def commit(repo: Repo) -> None:
    with repo.artifacts.deferring() as group:
        group.save(repo.ref(MODEL, "state"), b"{}", Draft(owner=OWNER))
        group.save(repo.ref(MODEL, "fresh"), b"{}", Draft(owner=OWNER))
        group.open_writer(repo.ref(MODEL, "log"), Draft(owner=OWNER)).finalize()


def roll_back(repo: Repo) -> None:
    group = repo.artifacts.deferring()
    group.save(repo.ref(MODEL, "state"), b"{}", Draft(owner=OWNER))
    group.open_writer(repo.ref(MODEL, "fresh"), Draft(owner=OWNER))
    group.rollback()


def let_time_pass(repo: Repo) -> None:
    later = repo.clock() + timedelta(days=3)
    repo.clock = lambda: later


def record_a_run(repo: Repo) -> None:
    record = Path(repo.tree.path("workflow-runs/w/workflow-run-r.yaml"))
    record.parent.mkdir(parents=True)
    record.write_text(
        "id: r\nworkflowId: w\nworkflowName: n\nstatus: succeeded\n"
        "startedAt: '2020-01-01T00:00:00.000Z'\ncompletedAt: '2020-01-01T00:00:00.000Z'\njobs: []\n"
    )
    os.utime(record, (0, 0))


def define_one_model(repo: Repo) -> None:
    definition = Path(repo.config.repo_dir, "models/aws/ec2/i.yaml")
    definition.parent.mkdir(parents=True)
    definition.write_text("type: aws/ec2\nid: i-1\nname: i\nversion: 1\n")


def lose_the_marker(repo: Repo) -> None:
    Path(repo.tree.path(f"data/{MODEL}/state/latest")).write_text("99")


def die_half_way(repo: Repo) -> None:
    path = f"data/{MODEL}/state"
    repo.catalog.intend({path: '{"op": "save"}'})
    Path(repo.tree.path(f"{path}/latest")).write_text("1")


PREPARATIONS: dict[str, Callable[[Repo], None]] = {
    "collect garbage": let_time_pass,
    "collect runs": record_a_run,
    "prune": define_one_model,
    "heal": die_half_way,
    "repair": lose_the_marker,
}
OPERATIONS: dict[str, Callable[[Repo], Any]] = {
    "save": lambda repo: repo.artifacts.save(MODEL, "state", {"n": 3}),
    "save under a new name": lambda repo: repo.artifacts.save("gcp/vm/v-1", "state", b"x"),
    "save a file": lambda repo: repo.artifacts.save_file(MODEL, "state", __file__),
    "stream": stream,
    "give a stream up": abandon,
    "append": lambda repo: repo.artifacts.append(MODEL, "log", b"two"),
    "delete the latest version": lambda repo: repo.artifacts.delete(MODEL, "state", version=3),
    "delete versions": lambda repo: repo.store.delete_versions(repo.ref(MODEL, "state"), [1, 2]),
    "delete a name": lambda repo: repo.artifacts.delete(MODEL, "state"),
    "rename": lambda repo: repo.artifacts.rename(MODEL, "state", "status"),
    "mark deleted": lambda repo: repo.artifacts.mark_deleted(MODEL, "state", method="destroy"),
    "renumber": lambda repo: renumber(repo.mutations, repo.ref(MODEL, "state"), {2: 3, 3: 4}),
    "commit": commit,
    "roll back": roll_back,
    "collect garbage": gc,
    "collect runs": run_gc,
    "prune": prune,
    "heal": Repo.ready,
    "repair": lambda repo: examine(repo, repair=True),
}

# What is recorded of them -------------------------------------------------------------------

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
# Where the paths, and the directories that they are relative to, are among an event's arguments.
PATHS_OF: dict[str, list[tuple[int, int | None]]] = {
    "open": [(0, None)],
    "os.rename": [(0, 2), (1, 3)],
    "os.link": [(1, 3)],
    "os.symlink": [(1, 2)],
    "os.remove": [(0, 1)],
    "os.mkdir": [(0, 2)],
    "os.rmdir": [(0, 1)],
    "os.truncate": [(0, None)],
    "os.chmod": [(0, 2)],
    "os.utime": [(0, 3)],
}


class Touch(NamedTuple):
    """One call that changes a path, or an announcement (then the event is `announce`)."""

    event: str
    rel: str


class Recorder:
    """Listens to announcements and to the interpreter, and notes what concerns one datastore."""

    def __init__(self) -> None:
        self.base = ""
        self.touches: list[Touch] = []

    def announce(self, rel: str) -> None:
        self.touches.append(Touch("announce", rel))

    def watch(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and not arguments[2] & WRITING:
            return
        for path, directory in PATHS_OF.get(event, ()):
            within = arguments[directory] if directory is not None else -1
            found = os.path.join(_name_of(within) if within >= 0 else "", _name_of(arguments[path]))
            if found.startswith(f"{self.base}/"):
                self.touches.append(Touch(event, os.path.relpath(found, self.base)))


def _name_of(path: Any) -> str:
    return os.readlink(f"/proc/self/fd/{path}") if isinstance(path, int) else os.fsdecode(path)


def record(directory: Path) -> Iterator[tuple[str, list[Touch]]]:
    """Yield what each operation does to the datastore of a fresh repository."""
    recorder = Recorder()
    environ = {"SWAMP_NAMESPACE": NAMESPACE}
    sys.addaudithook(recorder.watch)
    for name, operation in OPERATIONS.items():
        recorder.base = str(directory / name / "shared")
        init_repo(directory / name).close()
        update_marker(str(directory / name), {"datastore": {"path": "shared"}})
        with open_repo(
            directory / name, durable=False, environ=environ, announce=recorder.announce
        ) as repo:
            seed(repo)
            PREPARATIONS.get(name, Repo.ready)(repo)
            recorder.touches.clear()
            operation(repo)
            yield name, list(recorder.touches)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Touch]]:
    directory = tmp_path_factory.mktemp("announcing")
    done = subprocess.run(
        [sys.executable, __file__, directory], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, list[list[str]]] = json.loads(done.stdout)
    return {name: [Touch(*touch) for touch in touches] for name, touches in found.items()}


def is_below(rel: str, announced: str) -> bool:
    return rel == announced or rel.startswith(f"{announced}/")


def is_covered(touch: Touch, announced: list[str]) -> bool:
    """The rule: a path may be touched if it, or a directory it is in, was announced before.

    Besides, the directories on the way to an announced path may be created, and temporary names,
    which are never anybody's payload, may be touched with all that is below them.
    """
    if any(is_below(touch.rel, path) for path in announced):
        return True
    if touch.event == "os.mkdir" and any(is_below(path, touch.rel) for path in announced):
        return True
    return any(is_temp(part) for part in touch.rel.split("/"))


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_path_is_announced_before_it_is_touched(
    name: str, recorded: dict[str, list[Touch]]
) -> None:
    announced: list[str] = []
    for touch in recorded[name]:
        if touch.event == "announce":
            announced.append(touch.rel)
        else:
            assert is_covered(touch, announced), f"{touch} after {announced}"
    assert {touch.event for touch in recorded[name]} > {"announce"}, "nothing was touched"


@pytest.mark.parametrize(
    ("name", "announced"),
    [
        ("save", [STATE]),
        ("append", [STATE.replace("state", "log")]),
        ("delete the latest version", [STATE]),
        ("delete a name", [STATE]),
        ("rename", [STATE, STATE.replace("state", "status")]),
        ("mark deleted", [STATE]),
        ("renumber", [STATE]),
        ("collect runs", [f"{NAMESPACE}/workflow-runs/w/workflow-run-r.yaml"]),
    ],
)
def test_what_is_announced_is_the_data_name_or_the_file_with_its_namespace(
    name: str, announced: list[str], recorded: dict[str, list[Touch]]
) -> None:
    assert [touch.rel for touch in recorded[name] if touch.event == "announce"] == announced


def test_h33_finalising_a_streamed_version_announces_the_whole_data_name(repo_dir: Path) -> None:
    announced: list[str] = []
    with open_repo(repo_dir, durable=False, announce=announced.append) as repo:
        name = f"data/{MODEL}/state"
        marker = Path(repo.tree.path(f"{name}/latest"))
        with repo.artifacts.writer(MODEL, "state") as writer:
            assert announced == [name]
            announced.clear()  # as if everything announced so far had been sent away
            writer.write(b"part")
            assert not marker.exists()
        assert announced == [name]
        assert marker.read_bytes() == b"1"


def test_an_announcement_that_fails_keeps_the_change_from_happening(repo_dir: Path) -> None:
    def refuse(rel: str) -> None:
        raise RuntimeError(rel)

    with open_repo(repo_dir, durable=False) as repo:
        repo.artifacts.save(MODEL, "state", b"kept")
    with open_repo(repo_dir, durable=False, announce=refuse) as repo:
        with pytest.raises(RuntimeError, match=f"data/{MODEL}/state"):
            repo.artifacts.delete(MODEL, "state")
        assert Path(repo.tree.path(f"data/{MODEL}/state/1/raw")).read_bytes() == b"kept"


# Who may change files at all ----------------------------------------------------------------

CHANGES = frozenset(
    {
        "rename",
        "renames",
        "replace",
        "unlink",
        "remove",
        "removedirs",
        "mkdir",
        "makedirs",
        "rmdir",
        "truncate",
        "ftruncate",
        "link",
        "symlink",
        "mkfifo",
        "mknod",
        "chmod",
        "chown",
        "utime",
    }
)
PATH_METHODS = frozenset(
    {
        "write_text",
        "write_bytes",
        "touch",
        "unlink",
        "rmdir",
        "symlink_to",
        "hardlink_to",
        "mkdir",
        "chmod",
    }
)
READ_FLAGS = frozenset({"O_RDONLY", "O_CLOEXEC", "O_DIRECTORY", "O_NOFOLLOW", "O_NONBLOCK"})
# Everything else changes files by way of `files`.
ALLOWED: dict[str, dict[str, str]] = {
    "audit/segments.py": {
        "os.ftruncate": "a line in the local tier that could not be written whole",
        "os.makedirs": "the directories of segments; what is shared is announced",
        "os.rename": "an open segment of the local tier, on its way to being sealed",
        "os.rmdir": "a directory of segments that went elsewhere",
        "os.unlink": "a segment of the local tier that the datastore has",
    },
    "marker.py": {
        "replacing": "the marker",
        "open": "the marker, and git's list of what to ignore",
        "os.makedirs": "the local directory of a new repository",
        "shutil.copymode": "the marker",
    },
    "cli/data/put.py": {"tempfile.SpooledTemporaryFile": "a file without a name, for what comes"},
    "repo/fsspec_files.py": {
        "tempfile.SpooledTemporaryFile": "a file without a name, for what is saved on close"
    },
    "catalog/keeping_up.py": {"os.open": "its own log, which no client transfers"},
    "artifacts/rename.py": {"open": "the descriptor that a Change gave out"},
    "catalog/export.py": {
        "replacing": "the export, which it marks",
        "open": "the export, which it marks",
        "os.makedirs": "the datastore's directory",
    },
    "catalog/database.py": {"os.makedirs": "the catalog's directory, in the local tier"},
    "cli/data/get.py": {
        "open": "the file that --output names",
        "replacing": "the same",
    },
    "cli/init.py": {
        "open": "the completion script, where the shell looks for it",
        "os.makedirs": "the directory that it is in",
        "replacing": "the completion script",
    },
    "cli/errors.py": {"os.open": "/dev/null"},
    "files/sqlite_file.py": {"os.replace": "a file of SQLite that cannot be used, and its log"},
    "doctor/contamination.py": {
        "os.rmdir": "directories of copies that belong to another namespace",
        "os.unlink": "copies that belong to another namespace, and are there as well",
    },
    "namespaces/manifests.py": {"os.makedirs": "the directory of a manifest"},
    "relocate/namespace.py": {
        "os.rmdir": "what a finished move leaves behind",
        "os.unlink": "copies of the index, catalogs, and what a finished move leaves behind",
    },
    "relocate/namespace_moving.py": {
        "replacing": "moving files into a namespace; everything is marked afterwards",
        "os.link": "moving files into a namespace; everything is marked afterwards",
        "os.makedirs": "the same",
        "os.rename": "the same",
        "os.replace": "the same",
        "os.rmdir": "the same",
        "os.unlink": "the same",
        "shutil.copy2": "the same",
    },
    "bundles/__init__.py": {
        "open": "bundles, which never leave their machine",
        "os.makedirs": "the same",
        "os.rename": "the same",
        "os.unlink": "the same",
        "os.utime": "the same",
    },
    "vaults/config.py": {
        "os.makedirs": "the directory of vaults, beside the marker of the repository",
        "os.unlink": "the file of a vault in it",
    },
    "vaults/keys.py": {
        "os.link": "keys, in a directory of secrets, which never leave their machine",
        "os.mkdir": "the same",
        "os.open": "the same",
        "os.rename": "the same",
        "os.unlink": "the same",
    },
    "vaults/local_encryption.py": {
        "os.rename": "secrets, which never leave their machine",
        "os.unlink": "the same",
    },
    "runs/summaries.py": {
        "tempfile.TemporaryDirectory": "an index for a repository that cannot be written to",
    },
    "runs/capture.py": {
        "open": "the log of a run in the local tier, until the run is over",
        "os.makedirs": "the same, and the directory of outputs; its files are announced",
        "os.open": "the same",
        "os.replace": "the log, into a version or an output that is announced",
        "os.unlink": "logs in the local tier that nobody needs any more",
    },
    "runs/context.py": {
        "open": "content without secrets, in a version that is announced",
        "replacing": "the same",
    },
    "runs/workflow/events.py": {
        "open": "the log of a run in the local tier",
        "os.makedirs": "the directory of such logs",
    },
    "runs/workflow/resume.py": {
        "os.makedirs": "the local directory of files that show that a run goes on",
        "os.unlink": "such a file",
    },
    "runs/outputs.py": {"os.makedirs": "the directory of outputs; its files are announced"},
    "repo/open.py": {"os.makedirs": "the datastore's directory, for its locks"},
    "retention/runs.py": {"os.unlink": "a log in the local tier, which is nobody else's"},
    "relocate/backup/local_source.py": {
        "os.open": "a file to be read; its flags have a name",
        "tempfile.TemporaryFile": "a file without a name, on its way to a backup",
    },
    "relocate/backup/remote_source.py": {
        "tempfile.TemporaryDirectory": "a base of no duration, to read a damaged index with",
        "tempfile.TemporaryFile": "a file without a name, on its way to a backup",
    },
    "relocate/backup/restore.py": {
        "os.makedirs": "directories of a repository that is being made",
        "os.open": "a file of a repository that is being made",
        "os.unlink": "the note that it is being made",
        "os.utime": "a file of a repository that is being made",
        "replacing": "a file of a repository that is being made",
    },
    "relocate/backup/verify.py": {
        "tempfile.TemporaryFile": "a file without a name, for content that is compared",
    },
    "relocate/setup.py": {"os.unlink": "the catalog of the datastore that was left"},
    "index/base_file.py": {"os.makedirs": "the cache's directory"},
    "sync/install.py": {
        "replacing": "the copy of our content, which who asks for it marks",
        "os.makedirs": "the same",
        "shutil.copyfile": "the same",
    },
    "sync/handover.py": {
        "os.link": "the directories of a repository that become a part of the cache: all is marked",
        "os.makedirs": "the same",
        "os.rename": "the same",
        "os.rmdir": "the same",
        "os.unlink": "the same, and what announces it",
    },
    "relocate/own_directory.py": {
        "os.makedirs": "the cache's directory",
        "os.mkdir": "an empty directory that is renamed to see whether that can be done",
        "os.rename": "the same",
        "os.rmdir": "the same",
    },
    "relocate/destinations.py": {
        "os.makedirs": "the new place",
    },
    "sync/evict.py": {"os.rename": "content that goes, whose absence is noted before"},
    "namespaces/other.py": {
        "tempfile.TemporaryFile": "content of others, which is never kept",
        "tempfile.gettempdir": "the name of its directory",
    },
    "namespaces/others.py": {
        "tempfile.TemporaryFile": "the published export, to be read",
        "tempfile.gettempdir": "the name of its directory",
    },
    "namespaces/catalog_pull.py": {
        "tempfile.TemporaryFile": "exports of others, which are never kept",
        "tempfile.gettempdir": "the name of its directory",
    },
    "sync/dirty.py": {"os.makedirs": "the cache's directory"},
    "doctor/cache.py": {"tempfile.TemporaryFile": "content that is only hashed"},
    "pipeline/quarantine.py": {"tempfile.TemporaryFile": "content that is only hashed"},
    "pipeline/verify/repair.py": {"tempfile.TemporaryFile": "content that is only hashed"},
    "pipeline/verify/sources.py": {
        "shutil.copyfileobj": "content on its way to the store",
        "tempfile.TemporaryFile": "the same",
        "tempfile.gettempdir": "the name of its directory",
    },
    "sync/begun_appends.py": {"open": "files in the staging directory"},
    "sync/downloads.py": {
        "os.makedirs": "the staging directory",
        "os.mkdir": "a directory in it for each thread",
        "os.open": "files in it",
        "os.rename": "files of the dead into it",
        "os.unlink": "files in it",
        "shutil.rmtree": "the staging directory",
    },
    "sync/journal.py": {"os.open": "the journal of marks", "os.ftruncate": "the same"},
    "relocate/moving.py": {
        "replacing": "the moved files: that move is a setup, which pushes them all",
        "os.link": "the same",
        "os.makedirs": "the same",
        "os.rename": "the same",
        "os.utime": "the same",
        "shutil.copyfile": "the same",
        "shutil.rmtree": "the same",
    },
    "relocate/earlier.py": {
        "os.makedirs": "a cache that nobody works in: what a stopped setup has left there",
        "os.rename": "the same",
        "os.unlink": "the same: a marker of what is set aside, which the next pull brings again",
    },
    "relocate/removing.py": {
        "os.rmdir": "what a setup has moved",
        "os.unlink": "the same",
    },
    "index/local_copy.py": {
        "os.makedirs": "the cache's directory",
        "os.replace": "the copy of the remote's index",
        "os.unlink": "the same",
    },
    "sync/opening.py": {"os.makedirs": "the cache's directory"},
    "sync/hashing.py": {"os.open": "only to read, with flags that keep links and pipes out"},
    "sync/staged_cache.py": {
        "os.rename": "a whole cache, which takes the place of another",
        "shutil.rmtree": "a cache that a setup has begun, and nobody needs",
    },
    "sync/uploads.py": {"tempfile.TemporaryFile": "content that is only hashed"},
    "pipeline/copy/tasks.py": {
        "open": "/dev/null",
        "tempfile.TemporaryFile": "content on its way",
    },
    "pipeline/export/__init__.py": {
        "os.makedirs": "the directory that a table is exported to",
        "tempfile.TemporaryDirectory": "rows on their way",
    },
    "pipeline/export/rows.py": {"os.mkdir": "rows on their way", "open": "the same"},
    "pipeline/export/change_log.py": {
        "os.makedirs": "a directory of the user's, for what exports did",
        "replacing": "the same",
    },
    "pipeline/spool.py": {
        "tempfile.TemporaryFile": "findings while a job runs",
        "tempfile.gettempdir": "named if its disk is full",
    },
    "pipeline/index_writer.py": {"tempfile.TemporaryDirectory": "a base that lasts for one edit"},
    "pipeline/schemas.py": {
        "open": "the findings that --findings keeps",
        "replacing": "the same",
        "os.makedirs": "the directory they are in",
        "os.mkdir": "the findings themselves",
        "os.rename": "the same",
        "shutil.copyfile": "those of earlier runs, to go on with",
        "shutil.rmtree": "the same",
    },
    "pipeline/spark/jvm.py": {
        "open": "the settings of Spark, in a temporary directory",
        "os.makedirs": "the user's cache directory",
        "os.open": "archives of classes in it",
        "os.unlink": "the same",
        "os.utime": "the same",
        "tempfile.TemporaryDirectory": "the settings of Spark",
    },
    "pipeline/spark/java.py": {
        "open": "the wrapper around a Java runtime, in the user's cache directory",
        "os.chmod": "the same",
        "os.makedirs": "the same",
        "os.mkdir": "the same",
        "os.rename": "the same",
        "shutil.rmtree": "the same",
        "shutil.which": "looking for Java",
        "tempfile.mkdtemp": "the same",
    },
    "pipeline/evidence/reading.py": {
        "os.makedirs": "the directory of a verification that goes on, in the local tier",
        "shutil.rmtree": "the same",
    },
    "pipeline/spark/session.py": {
        "tempfile.mkdtemp": "the package for executors, in a temporary directory",
    },
    "pipeline/source/scan.py": {
        "open": "what was asked of a frame of Spark, in a temporary file",
        "os.open": "the same",
        "os.unlink": "the same, of frames that nobody used for long",
        "tempfile.gettempdir": "the same",
    },
    "pipeline/source/records.py": {"tempfile.TemporaryFile": "a long record while it is read"},
    "pipeline/source/commits.py": {
        "os.makedirs": "the directory where a stream remembers what it has delivered",
        "os.unlink": "snapshots that it needs no more",
    },
    "pipeline/source/writer.py": {
        "open": "what tasks staged, brought to the driver",
        "tempfile.TemporaryDirectory": "the same, and the throw-away cache of a Spark job",
    },
}


def opens_for_writing(call: ast.Call) -> bool:
    """Whether a call of the builtin `open` might write: its mode is no constant, or says so."""
    modes = [*call.args[1:2], *(word.value for word in call.keywords if word.arg == "mode")]
    return any(
        not isinstance(mode, ast.Constant) or bool(set("wax+") & set(str(mode.value)))
        for mode in modes
    )


def change_made_by(node: ast.AST) -> str | None:
    """Return the name of a call that changes files, None if a node is none."""
    if isinstance(node, ast.ImportFrom) and node.module in ("os", "shutil", "tempfile"):
        return f"from {node.module} import"
    if not isinstance(node, ast.Call):
        return None
    name = ast.unparse(node.func)
    module, _, function = name.rpartition(".")
    if name == "os.open":
        flags = {found.attr for found in ast.walk(node.args[1]) if isinstance(found, ast.Attribute)}
        changes = not flags or not flags <= READ_FLAGS
    elif module == "os":
        changes = function in CHANGES
    elif name == "open":
        changes = opens_for_writing(node)
    elif name == "replacing":
        changes = True
    else:
        # `Change` has methods of these names, and is the very thing to use.
        changes = module in ("shutil", "tempfile") or (
            function in PATH_METHODS and not module.endswith("change")
        )
    return name if changes else None


def test_only_one_package_changes_files_of_a_datastore() -> None:
    package = Path(swampstore.__file__).parent
    found: dict[str, set[str]] = {}
    for path in package.rglob("*.py"):
        name = path.relative_to(package).as_posix()
        if name.startswith(("stores/", "testing/")):  # they know remotes, and no datastore
            continue
        changes = map(change_made_by, ast.walk(ast.parse(path.read_text())))
        if made := {change for change in changes if change}:
            found[name] = made
    assert {"os.rename", "os.unlink", "os.open"} <= found.pop("files/disk.py")
    assert {"os.rename", "os.unlink", "os.mkdir", "os.open"} <= found.pop("files/change.py")
    assert {"os.rename", "os.unlink", "os.mkdir", "os.open"} <= found.pop("files/reception.py")
    assert found.pop("files/tree.py") == {"os.rename"}
    assert {"os.link", "os.rename", "os.open"} <= found.pop("files/hold.py")
    assert found == {name: set(reasons) for name, reasons in ALLOWED.items()}


@pytest.mark.parametrize(
    "code",
    [
        "open(p, 'w')",
        "open(p, mode)",
        "open(p, mode='r+b')",
        "os.open(p, flags)",
        "os.open(p, os.O_RDONLY | os.O_CREAT)",
        "os.unlink(p)",
        "shutil.rmtree(p)",
        "Path(p).write_text(t)",
        "replacing(p, durable=True)",
        "from os import unlink",
    ],
)
def test_a_change_that_is_not_allowed_would_be_noticed(code: str) -> None:
    assert any(change_made_by(node) for node in ast.walk(ast.parse(code)))


@pytest.mark.parametrize(
    "code",
    ["open(p)", "open(p, 'rb')", "os.open(p, os.O_RDONLY | os.O_CLOEXEC)", "t.replace('a', 'b')"],
)
def test_reading_is_no_change(code: str) -> None:
    assert not any(change_made_by(node) for node in ast.walk(ast.parse(code)))


if __name__ == "__main__":
    json.dump(dict(record(Path(sys.argv[1]))), sys.stdout)
