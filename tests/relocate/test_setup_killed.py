"""A setup that moves file by file, killed, and done again after somebody went on working.

Then the remote has each version once, in their order, whatever numbers the first setup gave them.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from swampstore import init_repo
from swampstore.artifacts import renumber
from swampstore.index.path_kinds import CONFLICTS
from swampstore.relocate.moving import Relocation
from swampstore.sync.push import Push
from tests.support.forked import in_child
from tests.support.killing_setup import MODEL, OF_BOTH, World
from tests.support.machines import contents

OUTPUT = "outputs/aws/run.yaml"
# Where a setup is killed: before, while and after its copies get other numbers.
MOMENTS: dict[str, tuple[object, str]] = {
    "copied": (Push, "prepare"),
    "claimed": (renumber, "move_versions"),
    "half renumbered": (renumber, "_write_number"),
    "renumbered": (Push, "_upload"),
    "uploaded": (Push, "commit"),
}
at_each_moment = pytest.mark.parametrize("moment", MOMENTS)
before_and_after = pytest.mark.parametrize("moment", ["copied", "renumbered"])


@pytest.fixture(params=["repository", "remote"])
def world(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """Somebody who moves from there to a bucket in which others have a version of that number."""
    monkeypatch.setenv("SWAMPSTORE_FSYNC", "off")
    made = World(tmp_path, request.param)
    made.make()
    return made


def killed(world: World, where: tuple[object, str], call: int = 1) -> None:
    """Have a setup killed when it comes to a function for the n-th time."""
    real: Callable[..., Any] = getattr(*where)
    calls = 0

    def die(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments, **options)

    def work() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(*where, die)
            world.set_up("ana")

    assert in_child(work), "it was not killed"


def save(world: World, name: str, *texts: str) -> None:
    with world.open(name) as repo:
        for text in texts:
            repo.artifacts.save(MODEL, "state", text)
        if name == "bob":
            repo.sync.push()


def check_everywhere(world: World, *expected: str, name: str = "state") -> None:
    """Assert that both see the same, and that it stays like that."""
    for machine in ("ana", "bob", "ana"):
        with world.open(machine) as repo:
            repo.sync.pull(full=True)
            repo.sync.push(full=True)
            assert contents(repo, MODEL, name) == list(expected)
            assert repo.latest(MODEL, name).text() == expected[-1]
            ids = [one.metadata.id for one in repo.versions(MODEL, name)]
            assert len(set(ids)) == len(ids)


@at_each_moment
def test_what_is_saved_after_a_kill_comes_along_with_what_got_other_numbers(
    world: World, moment: str
) -> None:
    killed(world, MOMENTS[moment])
    save(world, "ana", "meanwhile")
    world.set_up("ana")
    check_everywhere(world, *OF_BOTH, "meanwhile")


@pytest.mark.parametrize("moment", ["renumbered", "uploaded"])
def test_what_is_saved_after_a_kill_comes_after_what_got_far_higher_numbers(
    world: World, moment: str
) -> None:
    more = [f"of bob {number}" for number in range(4)]
    save(world, "bob", *more)
    killed(world, MOMENTS[moment])
    save(world, "ana", "meanwhile")
    world.set_up("ana")
    check_everywhere(world, "of bob", *more, "one", "two", "meanwhile")


@pytest.mark.parametrize(
    "again",
    [
        pytest.param((Push, "_upload", 1), id="before it is shared"),
        pytest.param((Push, "commit", 1), id="being shared"),
        pytest.param((Relocation, "_copy_whole", 1), id="making room"),
        pytest.param((Push, "commit", 2), id="at the end"),
    ],
)
def test_a_second_kill_changes_nothing_about_that(
    world: World, again: tuple[object, str, int]
) -> None:
    killed(world, MOMENTS["renumbered"])
    save(world, "ana", "meanwhile")
    killed(world, again[:2], again[2])
    save(world, "ana", "at last")
    world.set_up("ana")
    check_everywhere(world, *OF_BOTH, "meanwhile", "at last")


@pytest.mark.parametrize("may_link", [True, False])
@before_and_after
def test_what_is_appended_after_a_kill_comes_to_the_version_with_another_number(
    world: World, moment: str, may_link: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not may_link:
        monkeypatch.setattr(os, "link", _other_disk)
    for name in ("bob", "ana"):
        with world.open(name) as repo:
            repo.artifacts.save(MODEL, "log", f"of {name}\n", streaming=True)
            if name == "bob":
                repo.sync.push()
    killed(world, MOMENTS[moment])
    with world.open("ana") as repo:
        repo.artifacts.append(MODEL, "log", "and more\n")
    world.set_up("ana")
    check_everywhere(world, "of bob\n", "of ana\nand more\n", name="log")
    with world.open("ana") as repo:
        assert repo.latest(MODEL, "log").metadata.size == len("of ana\nand more\n")
    check_everywhere(world, *OF_BOTH)


_link = os.link


def _other_disk(source: str, target: str, **options: bool) -> None:
    """Link as if a repository were on a file system of its own."""
    if "/.swamp/data" in source:
        raise OSError(errno.EXDEV, "Invalid cross-device link", source)
    _link(source, target, **options)


@before_and_after
def test_a_number_that_is_used_again_after_a_kill_is_in_nobodys_way(
    world: World, moment: str, request: pytest.FixtureRequest
) -> None:
    killed(world, MOMENTS[moment])
    with world.open("ana") as repo:
        repo.artifacts.delete(MODEL, "state", version=2)
    save(world, "ana", "meanwhile")
    world.set_up("ana")
    # In a cache that is made in its place, nothing tells a copy from work of others.
    is_beside = "remote" in request.node.callspec.id
    check_everywhere(world, *(["of bob", "one"] if is_beside else OF_BOTH), "meanwhile")


@before_and_after
@pytest.mark.parametrize("then", ["changed", "deleted"])
def test_another_file_that_is_changed_or_deleted_after_a_kill_stops_nothing(
    world: World, moment: str, then: str, request: pytest.FixtureRequest
) -> None:
    with world.open("ana") as repo:
        output = Path(repo.config.datastore_dir, OUTPUT)
    output.parent.mkdir(parents=True)
    output.write_text("status: running\n")
    killed(world, MOMENTS[moment])
    output.unlink()
    if then == "changed":
        output.write_text("status: ok\n")
    world.set_up("ana")
    with world.open("ana") as repo:
        root = Path(repo.config.datastore_dir)
        aside = [path for path in root.parent.glob("*.left/**/*") if path.is_file()]
        left = {path.read_text() for path in aside}
    there = (root / OUTPUT).read_text() if (root / OUTPUT).exists() else None
    copies = [path.read_text() for path in (root / CONFLICTS).rglob("run.yaml.*")]
    wanted = "status: ok\n" if then == "changed" else None
    if "remote" in request.node.callspec.id:
        assert (there, copies, left) == (wanted, [], {"status: running\n"})
    else:
        # Somebody else might have written it in that cache: both are kept.
        assert (there, copies, left) == ("status: running\n", [wanted] if wanted else [], set())
    check_everywhere(world, *OF_BOTH)


def test_versions_that_somebody_wrote_to_the_old_place_come_along_to_the_next_remote(
    world: World, tmp_path: Path
) -> None:
    world.set_up("ana")
    save(world, "ana", "after")
    with init_repo(tmp_path / "late") as late:
        for number in range(5):
            late.artifacts.save(MODEL, "state", f"late {number}")
    state = f".swamp/data/{MODEL}/state"
    for version in ("3", "4", "5"):
        shutil.copytree(tmp_path / "late" / state / version, tmp_path / "ana" / state / version)
    (tmp_path / "third-bucket").mkdir()
    world.set_up("ana", "third-bucket")
    expected = [*OF_BOTH, "after", "late 2", "late 3", "late 4"]
    with world.open("ana") as repo:
        assert contents(repo, MODEL, "state") == expected
    assert not list((tmp_path / "ana/.swamp").rglob("raw"))
