"""Moving files between a namespace and the top: nothing is lost, nothing is overwritten."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swampstore.config import Config
from swampstore.errors import MoveInterruptedError
from swampstore.index.errors import UnmigratedDataError
from swampstore.index.path_kinds import is_marker
from swampstore.layout import DEFERRED
from swampstore.relocate import namespace_moving as module
from swampstore.relocate.namespace_moving import MovePlan, Moving
from swampstore.routing import Routing
from swampstore.sync.unmigrated import check_migrated

NAME = "data/aws/ec2/i-1/state"


def config(base: Path, **settings: object) -> Config:
    return Config(str(base / "repo"), "id", str(base), "infra", durable=False, **settings)  # type: ignore[arg-type]


def write(root: Path, **files: str) -> None:
    for rel, text in files.items():
        path = root / rel
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def tree(root: Path) -> dict[str, str]:
    return {
        path.relative_to(root).as_posix(): path.read_text()
        for path in root.rglob("*")
        if path.is_file() and not path.is_symlink()
    }


def run(moving: Moving) -> MovePlan:
    plan = moving.plan()
    assert not plan.differing
    moving.move(plan)
    return plan


# Whole trees ---------------------------------------------------------------------------------


def test_everything_that_is_data_moves_into_the_namespace(tmp_path: Path) -> None:
    write(tmp_path, **{f"{NAME}/1/raw": "1", f"{NAME}/latest": "1", "outputs/o": "22"})
    write(tmp_path, **{"secrets/key": "s", "bundles/b": "b", "other/x": "x", "top": "t"})
    plan = run(Moving(config(tmp_path)))
    assert [(one.subdir, one.files, one.bytes) for one in plan.directories] == [
        ("data", 2, 2),
        ("outputs", 1, 2),
    ]
    assert plan.directories[0].source == f"{tmp_path}/data"
    assert plan.directories[0].destination == f"{tmp_path}/infra/data"
    assert tree(tmp_path) == {
        f"infra/{NAME}/1/raw": "1",
        f"infra/{NAME}/latest": "1",
        "infra/outputs/o": "22",
        "secrets/key": "s",
        "bundles/b": "b",
        "other/x": "x",
        "top": "t",
    }
    assert not (tmp_path / "data").exists()


def test_moving_again_moves_nothing(tmp_path: Path) -> None:
    write(tmp_path, **{"outputs/o": "1"})
    run(Moving(config(tmp_path)))
    before = tree(tmp_path)
    assert run(Moving(config(tmp_path))).directories == []
    assert tree(tmp_path) == before


def test_a_directory_that_is_not_there_yet_moves_in_one_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, **{f"data/{n}/a/b/{n}": "x" for n in range(10)}, **{"infra/data/z": "z"})
    renamed: list[str] = []
    rename = os.rename

    def noted(source: str, target: str) -> None:
        renamed.append(source)
        rename(source, target)

    monkeypatch.setattr(os, "rename", noted)
    run(Moving(config(tmp_path)))
    # One attempt for the whole, then one for each of the ten: none for a single file.
    assert len([path for path in renamed if not path.endswith(".tmp")]) == 11


# What is there already -----------------------------------------------------------------------


def test_what_is_the_same_on_both_sides_is_kept_once(tmp_path: Path) -> None:
    write(tmp_path, **{"outputs/a": "1", "outputs/b": "2", "infra/outputs/a": "1"})
    run(Moving(config(tmp_path)))
    assert tree(tmp_path) == {"infra/outputs/a": "1", "infra/outputs/b": "2"}


@pytest.mark.parametrize("there", ["2", "11", ""])
def test_what_differs_is_found_before_anything_moves(tmp_path: Path, there: str) -> None:
    write(tmp_path, **{"audit/x": "0", "outputs/a": "1", "infra/outputs/a": there})
    before = tree(tmp_path)
    plan = Moving(config(tmp_path)).plan()
    assert plan.differing == ["outputs/a"]
    assert tree(tmp_path) == before


@pytest.mark.parametrize(
    ("here", "there"), [("outputs/a", "infra/outputs/a/b"), ("outputs/a/b", "infra/outputs/a")]
)
def test_a_file_and_a_directory_of_one_name_differ(tmp_path: Path, here: str, there: str) -> None:
    write(tmp_path, **{here: "1", there: "1"})
    assert Moving(config(tmp_path)).plan().differing == [here]


def test_of_two_markers_the_higher_one_stands(tmp_path: Path) -> None:
    for name, ours, theirs in (("low", "2", "3"), ("high", "10", "9")):
        rel = f"data/t/i/{name}/latest"
        write(tmp_path, **{rel: ours, f"infra/{rel}": theirs})
    run(Moving(config(tmp_path)))
    assert tree(tmp_path) == {
        "infra/data/t/i/low/latest": "3",
        "infra/data/t/i/high/latest": "10",
    }


def test_a_lock_that_nobody_holds_is_in_nobodys_way(tmp_path: Path) -> None:
    write(tmp_path, **{"data/t/i/.lock": "old", "infra/data/t/i/.lock": "new"})
    write(tmp_path, **{"data/t/i/state/1/raw": "1"})
    run(Moving(config(tmp_path)))
    assert tree(tmp_path)["infra/data/t/i/.lock"] == "new"
    assert not (tmp_path / "data").exists()


def test_a_file_that_appears_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    write(tmp_path, **{"audit/x": "0", "outputs/a": "ours", "infra/outputs/z": "z"})
    moving = Moving(config(tmp_path))
    plan = moving.plan()
    write(tmp_path, **{"infra/outputs/a": "theirs"})
    with pytest.raises(MoveInterruptedError, match="appeared meanwhile") as caught:
        moving.move(plan)
    assert caught.value.failed == "outputs"
    assert caught.value.succeeded == []
    assert tree(tmp_path)["outputs/a"] == "ours"
    assert tree(tmp_path)["infra/outputs/a"] == "theirs"


# What stays ----------------------------------------------------------------------------------


def test_a_marker_that_is_a_link_moves_as_it_is(tmp_path: Path) -> None:
    write(tmp_path, **{f"{NAME}/2/raw": "2"})
    (tmp_path / NAME / "latest").symlink_to("2")
    run(Moving(config(tmp_path)))
    assert (tmp_path / "infra" / NAME / "latest").readlink() == Path("2")


def test_other_links_stay_and_are_reported(tmp_path: Path) -> None:
    write(tmp_path, **{"outputs/deep/a": "1", "elsewhere": "e"})
    (tmp_path / "outputs/deep/link").symlink_to("../../elsewhere")
    plan = run(Moving(config(tmp_path)))
    assert plan.left == ["outputs/deep/link"]
    assert (tmp_path / "outputs/deep/link").read_text() == "e"
    assert tree(tmp_path / "infra") == {"outputs/deep/a": "1"}


def test_a_directory_that_is_a_link_stays_as_a_whole(tmp_path: Path) -> None:
    write(tmp_path, **{"elsewhere/a": "1"})
    (tmp_path / "outputs").symlink_to("elsewhere")
    plan = run(Moving(config(tmp_path)))
    assert plan.left == ["outputs"]
    assert (tmp_path / "outputs/a").read_text() == "1"
    assert not (tmp_path / "infra").exists()


def test_the_catalog_of_other_clients_stays_where_they_look_for_it(tmp_path: Path) -> None:
    write(tmp_path, **{"data/_catalog.db": "c", "data/_catalog.db-wal": "w"})
    write(tmp_path, **{f"{NAME}/1/raw": "1", f"{NAME}/1/{DEFERRED}": ""})
    run(Moving(config(tmp_path)))
    assert tree(tmp_path) == {
        "data/_catalog.db": "c",
        "data/_catalog.db-wal": "w",
        f"infra/{NAME}/1/raw": "1",
        f"infra/{NAME}/1/{DEFERRED}": "",
    }


def test_in_the_repository_what_belongs_to_the_machine_stays(tmp_path: Path) -> None:
    base = tmp_path / "repo/.swamp"
    write(base, **{"outputs/o": "1", "logs/a.log": "l", "data/t/i/s/1/raw": "r"})
    write(base, **{"data/t/i/s/1/metadata.yaml": "m", "files/f": "f"})
    routing = Routing(["data", "outputs", "logs"], ["*/**/raw", "logs/*.log"])
    moved = Config(f"{tmp_path}/repo", "id", str(base), "infra", routing, durable=False)
    run(Moving(moved))
    assert tree(base) == {
        "infra/outputs/o": "1",
        "logs/a.log": "l",
        "data/t/i/s/1/raw": "r",
        "infra/data/t/i/s/1/metadata.yaml": "m",
        "files/f": "f",
    }


# Going back ----------------------------------------------------------------------------------


def test_going_back_tells_of_data_that_is_at_the_top(tmp_path: Path) -> None:
    write(tmp_path, **{"infra/outputs/a": "1", "outputs/b": "2", "data/_catalog.db": "c"})
    write(tmp_path, **{"infra/data/t/i/s/1/raw": "1"})
    assert Moving(config(tmp_path), reverse=True).plan().occupied == ["outputs"]


def test_going_back_goes_on_where_it_was_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, **{"infra/outputs/a": "1", "infra/outputs/b": "2", "infra/data/x": "x"})
    (tmp_path / "infra/outputs/link").symlink_to("a")  # so that files move one by one
    moving = Moving(config(tmp_path), reverse=True)
    with monkeypatch.context() as patch:

        def fail(source: str, target: str) -> None:
            if source.endswith("/b"):
                raise OSError(5, "the disk is broken", source)
            os.rename(source, target)

        patch.setattr(module, "_place", fail)
        with pytest.raises(MoveInterruptedError) as caught:
            moving.move(moving.plan())
    assert caught.value.succeeded == ["data"]
    assert caught.value.failed == "outputs"
    assert tree(tmp_path)["outputs/a"] == "1"
    again = Moving(config(tmp_path), reverse=True)
    assert again.plan().occupied == []
    run(again)
    module.forget_move(str(tmp_path / "infra"))
    assert tree(tmp_path) == {"data/x": "x", "outputs/a": "1", "outputs/b": "2"}


def test_without_hard_links_files_are_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(*_: object, **__: object) -> None:
        raise PermissionError(1, "not here")

    monkeypatch.setattr(os, "link", no_links)
    write(tmp_path, **{"outputs/a": "1", "infra/outputs/b": "2"})
    run(Moving(config(tmp_path)))
    assert tree(tmp_path) == {"infra/outputs/a": "1", "infra/outputs/b": "2"}


# Any tree ------------------------------------------------------------------------------------

_SEGMENT = st.sampled_from(["a", "b", "1", "2", "latest"])
_PATHS = st.lists(_SEGMENT, min_size=1, max_size=5).map("/".join)
_TREES = st.dictionaries(
    st.builds("{}/{}".format, st.sampled_from(["data", "outputs", "audit"]), _PATHS),
    st.sampled_from(["1", "2", "3"]),
    max_size=8,
)


def _written(root: Path, files: dict[str, str]) -> None:
    for rel, text in files.items():
        try:
            write(root, **{rel: text})
        except OSError:  # a file is where a directory should be, or the other way round
            continue


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(_TREES, _TREES)
def test_nothing_is_ever_lost(outside: dict[str, str], inside: dict[str, str]) -> None:
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        _written(root, outside)
        _written(root / "infra", inside)
        before, there = tree(root), tree(root / "infra")
        mine = {rel: text for rel, text in before.items() if not rel.startswith("infra/")}
        moving = Moving(config(root))
        plan = moving.plan()
        assert plan.files == len(mine)
        assert tree(root) == before
        if plan.differing:
            return
        moving.move(plan)
        markers = {rel for rel in {*mine, *there} if is_marker(rel)}
        after = tree(root / "infra")
        assert tree(root) == {f"infra/{rel}": text for rel, text in after.items()}
        assert after.keys() == {*mine, *there}
        assert {rel: text for rel, text in after.items() if rel not in markers} == {
            rel: text for rel, text in (mine | there).items() if rel not in markers
        }
        for rel in markers:
            assert after[rel] == max(mine.get(rel, ""), there.get(rel, ""))


# Data that did not move yet ------------------------------------------------------------------


def test_data_outside_of_the_namespace_is_told(tmp_path: Path) -> None:
    write(tmp_path, **{"outputs/x/y": "1", "workflow-runs/r": "1"})
    with pytest.raises(UnmigratedDataError, match="workflow-runs") as caught:
        check_migrated(str(tmp_path), "infra")
    assert caught.value.code == "unmigrated_data"
    assert caught.value.hint is not None
    assert "namespace migrate" in caught.value.hint


def test_what_is_no_data_of_users_is_fine(tmp_path: Path) -> None:
    write(tmp_path, **{"infra/data/x": "1", "data/_catalog.db": "c", "data/t/i/.lock": "l"})
    write(tmp_path, **{"secrets/key": "s", "data/.12345678-1234-1234-1234-123456789012.tmp": ""})
    (tmp_path / "outputs/empty").mkdir(parents=True)
    check_migrated(str(tmp_path), "infra")
    check_migrated(str(tmp_path / "missing"), "infra")


def test_without_a_namespace_nothing_is_outside_of_it(tmp_path: Path) -> None:
    write(tmp_path, **{"outputs/x": "1"})
    check_migrated(str(tmp_path), "")
