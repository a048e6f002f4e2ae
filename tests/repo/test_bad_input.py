"""Whatever is wrong, the error is ours, names the thing and a way out, and nothing else suffers."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from swampstore import Draft, ModelRef, Repo, SwampstoreError, init_repo, open_repo
from swampstore.marker import update_marker
from swampstore.pipeline.catalog import rebuild as rebuild_catalog
from tests.support.disks import remount, small_disk_at

MODEL = "aws/ec2/i-1"
ENVIRON = {"SWAMP_LOCK_TIMEOUT_MS": "300"}
TEMP = ".4a1e6c0e-8c0f-4a57-9a43-3d3e4f0b6f11.tmp"


@contextmanager
def refused(code: str, *named: str) -> Iterator[None]:
    """Expect an error of ours with this code, a hint, and everything `named` in its text."""
    with pytest.raises(SwampstoreError) as caught:
        yield
    error = caught.value
    assert error.code == code
    assert error.hint
    for text in named:
        assert text in f"{error.message} {error.hint}"


@contextmanager
def filled_repo(directory: Path) -> Iterator[Repo]:
    """A repository with two versions of `state`, a streaming `log` and a neighbour."""
    init_repo(directory).close()
    with open_repo(directory, durable=False, environ=ENVIRON) as repo:
        repo.artifacts.save(MODEL, "state", {"n": 1})
        repo.artifacts.save(MODEL, "state", {"n": 2})
        repo.artifacts.save(MODEL, "log", b"one,", streaming=True)
        repo.artifacts.save("aws/ec2/i-2", "state", {"n": 7})
        repo.rebuild_catalog()
        yield repo


@pytest.fixture
def repo(tmp_path: Path) -> Iterator[Repo]:
    with filled_repo(tmp_path / "repo") as repo:
        yield repo


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Repo]:
    """The same for all tests that expect nothing whatever to change."""
    with filled_repo(tmp_path_factory.mktemp("shared")) as repo:
        yield repo


def files_of(repo: Repo) -> dict[str, bytes]:
    data = Path(repo.config.datastore_dir) / "data"
    return {str(path): path.read_bytes() for path in data.rglob("*") if path.is_file()}


@contextmanager
def unaffected(repo: Repo) -> Iterator[None]:
    """Expect that not a file and not a row changes, and that nothing is left to be healed."""
    before, rows = files_of(repo), list(repo.catalog.by_name())
    yield
    assert files_of(repo) == before
    assert list(repo.catalog.by_name()) == rows
    assert repo.catalog.pending() == []


def state_dir(repo: Repo) -> Path:
    return Path(repo.tree.path("data/aws/ec2/i-1/state"))


# Names and arguments --------------------------------------------------------------------------

BAD_NAMES = ["", ".", "..", "../x", "a/b", "a\\b", "a\0b", "x" * 256, "caf\udce9", TEMP, ".lock"]


@pytest.mark.parametrize("name", [*BAD_NAMES, "latest", "_catalog.db"])
def test_a_name_that_cannot_be_is_refused_for_every_kind_of_write(calm: Repo, name: str) -> None:
    shown = repr(name[:20])[1:-1]
    with unaffected(calm):
        with refused("validation_failed", "data name", shown):
            calm.artifacts.save(MODEL, name, b"x")
        with refused("validation_failed", "data name", shown), calm.artifacts.writer(MODEL, name):
            pass
        with refused("validation_failed", "data name", shown):
            calm.artifacts.rename(MODEL, "state", name)
        with refused("validation_failed", "data name", shown):
            calm.artifacts.save(MODEL, name, b"x", lifetime="ephemeral")


@pytest.mark.parametrize("name", BAD_NAMES[:-2])
def test_a_name_that_cannot_be_is_refused_for_reads_and_deletions(calm: Repo, name: str) -> None:
    with unaffected(calm):
        for call in (calm.latest, calm.versions, calm.artifacts.delete):
            with refused("validation_failed", "data name"):
                call(MODEL, name)


@pytest.mark.parametrize("model_id", BAD_NAMES)
def test_a_model_id_that_cannot_be_is_refused(calm: Repo, model_id: str) -> None:
    with unaffected(calm), refused("validation_failed", "model id"):
        calm.artifacts.save(ModelRef("aws", model_id), "state", b"x")


@pytest.mark.parametrize("model_type", ["", "::", "a\\b", "a\0", "x" * 256, "caf\udce9", "a/" * 40])
def test_a_type_that_cannot_be_is_refused(calm: Repo, model_type: str) -> None:
    with unaffected(calm), refused("validation_failed", "model"):
        calm.artifacts.save(f"{model_type}/i-1", "state", b"x")


@pytest.mark.parametrize(
    ("details", "named"),
    [
        ({"lifetime": "soon"}, "soon"),
        ({"lifetime": ""}, "lifetime"),
        ({"lifetime": 3}, "3"),
        ({"garbage_collection": 0}, "0"),
        ({"garbage_collection": -1}, "-1"),
        ({"garbage_collection": "many"}, "many"),
        ({"garbage_collection": True}, "True"),
        ({"tags": {"n": 1}}, "'n'"),
        ({"tags": {"": "x"}}, "tag"),
        ({"tags": {"k": "a\0"}}, "'k'"),
        ({"tags": {"k": "\udce9"}}, "'k'"),
        ({"content_type": "  "}, "content type"),
        ({"content_type": "text/plain\nx: y"}, "content type"),
    ],
)
def test_details_that_cannot_be_are_named(calm: Repo, details: dict[str, Any], named: str) -> None:
    with unaffected(calm), refused("validation_failed", named):
        calm.artifacts.save(MODEL, "state", b"x", **details)


def test_content_that_cannot_be_written_is_refused(calm: Repo, tmp_path: Path) -> None:
    content: Any
    for content in ({"x": object()}, [float("nan")], {"s": {1, 2}}):
        with unaffected(calm), refused("validation_failed", "JSON"):
            calm.artifacts.save(MODEL, "state", content)
    with unaffected(calm), refused("validation_failed", str(tmp_path)):
        calm.artifacts.save_file(MODEL, "state", tmp_path)
    with unaffected(calm), refused("not_found", "missing.txt"):
        calm.artifacts.save_file(MODEL, "state", tmp_path / "missing.txt")


def test_what_does_not_exist_is_answered_with_what_does(calm: Repo) -> None:
    with refused("model_not_found", "aws/ec2/i-9", "aws/ec2/i-1", "aws/ec2/i-2"):
        calm.latest("aws/ec2/i-9", "state")
    with refused("model_not_found", "'i-9'", "TYPE/ID"):
        calm.latest("i-9", "state")
    with refused("not_found", "'stat'", "log, state"):
        calm.latest(MODEL, "stat")
    with refused("not_found", "has no version 9", "2, 1"):
        calm.version(MODEL, "state", 9)
    with refused("not_found", "has no version 9", "2, 1"):
        calm.artifacts.delete(MODEL, "state", version=9)
    with refused("not_found", "'stat'", "log, state"):
        calm.artifacts.delete(MODEL, "stat")


def test_appending_to_what_does_not_exist_is_answered_with_what_does(calm: Repo) -> None:
    with unaffected(calm), refused("not_found", "'stat'", "log, state"):
        calm.artifacts.append(MODEL, "stat", b"x")


def test_appending_to_what_does_not_stream_is_refused(calm: Repo) -> None:
    with unaffected(calm), refused("not_streaming", "state", "version 2"):
        calm.artifacts.append(MODEL, "state", b"x")


# Files that are not what they should be -------------------------------------------------------


def check_the_rest(repo: Repo) -> None:
    """Everything but version 2 of `state` can be read, queried and saved as ever."""
    assert repo.version(MODEL, "state", 1).json() == {"n": 1}
    assert repo.latest("aws/ec2/i-2", "state").json() == {"n": 7}
    assert [found.name for found in repo.query('name == "log"')] == ["log"]
    assert [found.model.id for found in repo.query("attributes.n == 7")] == ["i-2"]
    repo.artifacts.append(MODEL, "log", b"two")
    repo.artifacts.save("aws/ec2/i-2", "state", {"n": 8})
    assert repo.catalog.pending() == []


def turn_into_directory(path: Path) -> None:
    path.unlink(missing_ok=True)
    (path / "something").mkdir(parents=True)


def test_a_directory_in_place_of_the_latest_marker_is_named_until_it_is_gone(repo: Repo) -> None:
    marker = state_dir(repo) / "latest"
    turn_into_directory(marker)
    assert repo.latest(MODEL, "state").json() == {"n": 2}
    for _ in range(2):
        with refused("disk_error", str(marker), "directory"):
            repo.artifacts.save(MODEL, "state", {"n": 3})
        assert repo.list_versions(MODEL, "state") == [1, 2]
        assert repo.latest(MODEL, "state").json() == {"n": 2}
    shutil.rmtree(marker)
    assert repo.artifacts.save(MODEL, "state", {"n": 3}).version == 3
    check_the_rest(repo)


@pytest.mark.parametrize("nonsense", [b"", b"two", b"\xff\xfe", b"-1", b"9" * 400])
def test_a_latest_marker_of_nonsense_counts_as_none(repo: Repo, nonsense: bytes) -> None:
    (state_dir(repo) / "latest").write_bytes(nonsense)
    repo.rebuild_catalog()
    assert repo.latest(MODEL, "state").json() == {"n": 2}
    assert repo.artifacts.save(MODEL, "state", {"n": 3}).version == 3
    assert (state_dir(repo) / "latest").read_bytes() == b"3"


def test_a_latest_marker_that_links_to_itself_counts_as_none(repo: Repo) -> None:
    marker = state_dir(repo) / "latest"
    marker.unlink()
    marker.symlink_to("latest")
    repo.rebuild_catalog()
    assert repo.latest(MODEL, "state").json() == {"n": 2}
    assert repo.artifacts.save(MODEL, "state", {"n": 3}).version == 3


GARBAGE: dict[str, Callable[[Path], object]] = {
    "a directory": turn_into_directory,
    "empty": lambda path: path.write_bytes(b""),
    "binary": lambda path: path.write_bytes(bytes(range(256))),
    "half": lambda path: path.write_bytes(path.read_bytes()[:150]),
    "a list": lambda path: path.write_text("- a\n- b\n"),
    "of another name": lambda path: path.write_text(
        path.read_text().replace("name: state", "name: other")
    ),
    "of another version": lambda path: path.write_text(
        path.read_text().replace("version: 2", "version: 5")
    ),
}


@pytest.mark.parametrize("garbage", GARBAGE)
def test_garbage_for_metadata_costs_that_version_and_nothing_else(
    repo: Repo, garbage: str, caplog: pytest.LogCaptureFixture
) -> None:
    metadata = state_dir(repo) / "2/metadata.yaml"
    GARBAGE[garbage](metadata)
    with refused("metadata_invalid", str(metadata)):
        _ = repo.version(MODEL, "state", 2).metadata
    assert repo.rebuild_catalog().versions == 3
    assert str(metadata) in caplog.text
    assert repo.list_versions(MODEL, "state") == [1]
    assert repo.latest(MODEL, "state").json() == {"n": 1}
    with refused("not_found", "version 2"):
        repo.version(MODEL, "state", 2)
    check_the_rest(repo)
    assert repo.artifacts.save(MODEL, "state", {"n": 3}).version == 3
    assert repo.latest(MODEL, "state").json() == {"n": 3}
    assert repo.artifacts.delete(MODEL, "state").versions == 3


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_version_with_damaged_metadata_can_be_deleted(repo: Repo, version: int) -> None:
    for number in (1, 2, 3):
        repo.artifacts.save(MODEL, "new", {"n": number})
    there = Path(repo.tree.path(f"data/{MODEL}/new/{version}"))
    (there / "metadata.yaml").write_text("[")
    repo.rebuild_catalog()
    assert repo.artifacts.delete(MODEL, "new", version=version).versions == 1
    assert not there.exists()
    assert repo.list_versions(MODEL, "new") == [one for one in (1, 2, 3) if one != version]
    with refused("not_found", "no version"):
        repo.artifacts.delete(MODEL, "new", version=version)


def test_a_name_of_which_all_metadata_is_damaged_can_be_deleted(repo: Repo) -> None:
    repo.artifacts.save(MODEL, "new", {"n": 1})
    (Path(repo.tree.path(f"data/{MODEL}/new")) / "1/metadata.yaml").write_text("[")
    repo.rebuild_catalog()
    assert repo.artifacts.delete(MODEL, "new").versions == 1
    with refused("not_found", "new"):
        repo.artifacts.delete(MODEL, "new")


def test_a_directory_in_place_of_the_catalog_is_named(tmp_path: Path) -> None:
    with filled_repo(tmp_path / "r"):
        pass
    for found in (tmp_path / "r/.swamp").glob("swampstore.db*"):
        found.unlink()
    (tmp_path / "r/.swamp/swampstore.db").mkdir()
    with open_repo(tmp_path / "r") as repo, refused("disk_error", "swampstore.db", "Move away"):
        repo.list_versions(MODEL, "state")


def test_a_directory_in_place_of_content_costs_that_version_and_nothing_else(repo: Repo) -> None:
    raw = state_dir(repo) / "2/raw"
    turn_into_directory(raw)
    with refused("disk_error", str(raw), "directory"):
        repo.latest(MODEL, "state").bytes()
    with refused("disk_error", str(raw), "directory"):
        repo.artifacts.rename(MODEL, "state", "status")
    check_the_rest(repo)
    assert repo.artifacts.save(MODEL, "state", {"n": 3}).version == 3


def test_missing_content_costs_that_version_and_nothing_else(repo: Repo) -> None:
    (state_dir(repo) / "2/raw").unlink()
    with refused("content_missing", "state", "version 2"):
        repo.latest(MODEL, "state").bytes()
    check_the_rest(repo)
    assert repo.query("attributes.n == 2").unhydrated == 1


@pytest.mark.parametrize("where", ["aws/ec2/i-3/state", "aws/ec2/i-3", "aws/s3"])
def test_a_file_in_place_of_a_directory_is_named_and_kept(repo: Repo, where: str) -> None:
    in_the_way = Path(repo.tree.path(f"data/{where}"))
    in_the_way.parent.mkdir(parents=True, exist_ok=True)
    in_the_way.write_text("not ours")
    model = "aws/s3/b-1" if where == "aws/s3" else "aws/ec2/i-3"
    for _ in range(2):
        with unaffected(repo), refused("disk_error", str(in_the_way), "a file where a directory"):
            repo.artifacts.save(model, "state", b"x")
    assert repo.latest(model, "state", default=None) is None
    assert in_the_way.read_text() == "not ours"
    check_the_rest(repo)


@pytest.mark.parametrize("linked", ["aws/ec2/i-3/state", "aws/ec2/i-3", "gcp"])
def test_a_link_that_leads_out_of_the_datastore_is_refused(
    repo: Repo, tmp_path: Path, linked: str
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    link = Path(repo.tree.path(f"data/{linked}"))
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(outside)
    model = "gcp/vm/v-1" if linked == "gcp" else "aws/ec2/i-3"
    for _ in range(2):
        with unaffected(repo), refused("validation_failed", str(outside)):
            repo.artifacts.save(model, "state", b"x")
        with refused("validation_failed", str(outside)), repo.artifacts.writer(model, "state"):
            pass
    assert list(outside.iterdir()) == []
    check_the_rest(repo)


def test_content_behind_a_link_that_leads_out_is_neither_read_nor_changed(
    repo: Repo, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"hush")
    for name, version in (("state", 2), ("log", 1)):
        raw = Path(repo.tree.path(f"data/{MODEL}/{name}/{version}/raw"))
        raw.unlink()
        raw.symlink_to(secret)
        with refused("validation_failed", str(secret)):
            repo.latest(MODEL, name).bytes()
    with refused("validation_failed", str(secret)):
        repo.artifacts.append(MODEL, "log", b"x")
    assert secret.read_bytes() == b"hush"
    assert repo.version(MODEL, "state", 1).json() == {"n": 1}


def test_content_that_is_read_is_asked_where_it_is_and_not_every_directory_on_the_way(
    repo: Repo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[str] = []
    look = os.lstat

    def noted(path: str) -> os.stat_result:
        looks.append(path)
        return look(path)

    monkeypatch.setattr(os, "lstat", noted)
    assert len(repo.query("attributes.n > 0")) > 0
    assert not [path for path in looks if "/data" in path]
    # A way that has links, and stays inside, is followed as ever.
    (tmp_path / "way").symlink_to(repo.config.repo_dir)
    with open_repo(tmp_path / "way") as other:
        assert other.latest(MODEL, "state").json() == repo.latest(MODEL, "state").json()


def test_a_pipe_in_the_place_of_content_keeps_nobody_waiting(repo: Repo) -> None:
    raw = Path(repo.tree.path(f"data/{MODEL}/state/2/raw"))
    raw.unlink()
    os.mkfifo(raw)
    with refused("content_damaged", "state version 2"):
        repo.latest(MODEL, "state").bytes()


# Disks that refuse ----------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    with small_disk_at(tmp_path / "disk") as disk:
        yield disk


def fill(disk: Path) -> Path:
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(1024))
        except OSError:
            return filler


def make_repo(small_disk: Path, tmp_path: Path, on_disk: str) -> Path:
    """Make a repository of which the datastore, or everything, is on the small disk."""
    directory = small_disk / "repo" if on_disk == "everything" else tmp_path / "repo"
    init_repo(directory).close()
    if on_disk == "the datastore":
        update_marker(str(directory), {"datastore": {"path": str(small_disk / "store")}})
    with open_repo(directory, durable=False, environ=ENVIRON) as repo:
        repo.artifacts.save(MODEL, "state", {"n": 1})
        repo.artifacts.save(MODEL, "log", b"one,", streaming=True)
        repo.rebuild_catalog()
    return directory


def every_write(repo: Repo) -> Iterator[Callable[[], object]]:
    content = os.urandom(64 * 1024)
    yield lambda: repo.artifacts.save(MODEL, "state", content)
    yield lambda: repo.artifacts.save(MODEL, "fresh", b"x")
    yield lambda: repo.artifacts.append(MODEL, "log", content)
    yield lambda: repo.artifacts.rename(MODEL, "state", "status")

    def stream() -> None:
        with repo.artifacts.writer(MODEL, "state") as writer:
            writer.write(content)

    yield stream

    def defer() -> None:
        with repo.artifacts.deferring() as group:
            group.save(repo.ref(MODEL, "fresh"), content, Draft())

    yield defer


@pytest.mark.parametrize("on_disk", ["the datastore", "everything"])
def test_on_a_full_disk_writes_fail_and_what_was_saved_stays(
    small_disk: Path, tmp_path: Path, on_disk: str
) -> None:
    directory = make_repo(small_disk, tmp_path, on_disk)
    with open_repo(directory, durable=False, environ=ENVIRON) as repo:
        repo.ready()
        filler = fill(small_disk)
        for write in every_write(repo):
            with unaffected(repo), refused("disk_error", "full", "space"):
                write()
            assert repo.list_versions(MODEL, "state") == [1]
            assert repo.latest(MODEL, "state").json() == {"n": 1}
            assert sorted(found.name for found in repo.query()) == ["log", "state"]
        filler.unlink()
        assert repo.rebuild_catalog()[:2] == (2, 2)
        assert repo.artifacts.save(MODEL, "state", {"n": 2}).version == 2
        repo.artifacts.append(MODEL, "log", b"two")
        assert repo.latest(MODEL, "log").bytes() == b"one,two"


@pytest.mark.parametrize("on_disk", ["the datastore", "everything"])
def test_on_a_disk_that_was_full_before_reads_work(
    small_disk: Path, tmp_path: Path, on_disk: str
) -> None:
    directory = make_repo(small_disk, tmp_path, on_disk)
    fill(small_disk)
    with open_repo(directory, durable=False, environ=ENVIRON) as repo:
        assert repo.latest(MODEL, "log").bytes() == b"one,"
        assert sorted(found.name for found in repo.query()) == ["log", "state"]
        with unaffected(repo), refused("disk_error", "full", "space"):
            repo.artifacts.save(MODEL, "state", b"x" * 8192)


@pytest.mark.parametrize("catalog", ["complete", "incomplete", "missing"])
@pytest.mark.parametrize("on_disk", ["the datastore", "everything"])
def test_on_a_read_only_disk_reads_work_and_writes_are_refused(
    small_disk: Path, tmp_path: Path, on_disk: str, catalog: str
) -> None:
    directory = make_repo(small_disk, tmp_path, on_disk)
    if catalog == "incomplete":
        with open_repo(directory, durable=False) as repo:
            repo.catalog.invalidate()
    elif catalog == "missing":
        for path in (directory / ".swamp").glob("swampstore.*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    remount(small_disk, "ro")
    with open_repo(directory, durable=False, environ=ENVIRON) as repo:
        assert repo.latest(MODEL, "state").json() == {"n": 1}
        assert repo.list_versions(MODEL, "log") == [1]
        assert [found.name for found in repo.list_data(MODEL)] == ["log", "state"]
        assert [found.name for found in repo.query("attributes.n == 1")] == ["state"]
        for write in every_write(repo):
            with unaffected(repo), refused("disk_error", str(small_disk)):
                write()
        with unaffected(repo), refused("disk_error", str(small_disk)):
            repo.artifacts.delete(MODEL, "state")
        assert repo.latest(MODEL, "log").bytes() == b"one,"
        if on_disk == "everything":
            with refused("disk_error", "catalog", "nothing was changed"):
                rebuild_catalog(repo)
    remount(small_disk, "rw")
    with open_repo(directory, durable=False, environ=ENVIRON) as repo:
        assert repo.artifacts.save(MODEL, "state", {"n": 2}).version == 2


# Very many versions ---------------------------------------------------------------------------


def test_a_save_costs_the_same_with_three_thousand_versions_before_it(
    repo: Repo, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def counted(name: str) -> Callable[..., Any]:
        original: Callable[..., Any] = getattr(os, name)

        def call(*args: Any, **options: Any) -> Any:
            calls.append(name)
            return original(*args, **options)

        return call

    for name in ("scandir", "listdir", "stat", "lstat", "open", "mkdir", "rename"):
        monkeypatch.setattr(os, name, counted(name))

    def cost_of_a_save() -> int:
        calls.clear()
        repo.artifacts.save(MODEL, "state", {"n": 3})
        assert not {"scandir", "listdir"} & set(calls)
        return len(calls)

    few = cost_of_a_save()
    template = (state_dir(repo) / "3/metadata.yaml").read_text()
    for version in range(4, 3001):
        directory = state_dir(repo) / str(version)
        directory.mkdir()
        directory.joinpath("metadata.yaml").write_text(
            template.replace("version: 3", f"version: {version}")
        )
        directory.joinpath("raw").write_bytes(b"{}")
    (state_dir(repo) / "latest").write_text("3000")
    assert repo.rebuild_catalog().versions == 3002
    assert cost_of_a_save() == few
    assert repo.latest(MODEL, "state").version == 3001
    assert len(repo.list_versions(MODEL, "state")) == 3001
