"""Moving the files of a datastore: nothing is lost, nothing goes twice, nothing foreign goes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from swampstore import Repo
from swampstore.files.signature import signature
from swampstore.index.base import Base, Known
from swampstore.index.path_kinds import conflict_copy
from swampstore.index.path_map import Names
from swampstore.index.results import Step, no_progress
from swampstore.relocate.destinations import Cache, Place
from swampstore.relocate.moving import Copied, Relocation
from swampstore.relocate.pairs import Pairs
from swampstore.routing import Routing
from swampstore.stores.memory import MemoryStore
from swampstore.sync.hashing import hash_file

MODEL = "aws/ec2/i-1"
STATE = "data/aws/ec2/i-1/state"


def nothing_comes(rel: str) -> None:
    """Fetch no content: behind these caches there is nobody."""


@pytest.fixture
def source(repo: Repo) -> Path:
    for number in (1, 2):
        repo.artifacts.save(MODEL, "state", {"n": number})
    root = Path(repo.config.base)
    (root / "outputs/aws").mkdir(parents=True)
    (root / "outputs/aws/run.yaml").write_text("status: ok\n")
    return root


@pytest.fixture
def cache_dir(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def base(cache_dir: Path) -> Iterator[Base]:
    cache_dir.mkdir()
    base = Base(str(cache_dir), "remote")
    yield base
    base.close()


@pytest.fixture
def cache(cache_dir: Path, base: Base) -> Cache:
    return Cache(Names(str(cache_dir), "", Routing()), base, MemoryStore("remote"), nothing_comes)


def move(source: Path, destination: Cache | Place) -> Relocation:
    return Relocation(str(source), destination, Routing().subdirs)


def copy(source: Path, destination: Cache | Place) -> Copied:
    return move(source, destination).copy(no_progress, durable=False)


def files(directory: Path) -> dict[str, bytes]:
    """Return the payload below a directory."""
    found = {
        path.relative_to(directory).as_posix(): path
        for path in directory.rglob("*")
        if path.is_file()
    }
    ours = ("swampstore.", "_catalog.db")
    return {rel: path.read_bytes() for rel, path in found.items() if not rel.startswith(ours)}


def pushed(base: Base, cache_dir: Path) -> None:
    """Pretend that everything in the cache is on the remote now."""
    known = []
    for rel in files(cache_dir):
        path = f"{cache_dir}/{rel}"
        sha256, held = hash_file(path)
        known.append(Known(rel, held.size, sha256, "2026-01-01T00:00:00.000Z", None, held))
    base.apply(known=known)


# Copying ----------------------------------------------------------------------------------------


def test_everything_is_copied_with_its_time(source: Path, cache: Cache, cache_dir: Path) -> None:
    told: list[Step] = []
    copied = move(source, cache).copy(told.append, durable=False)
    assert files(cache_dir) == files(source)
    assert copied.files == len(files(source)) == 6
    assert copied.bytes == sum(map(len, files(source).values()))
    assert copied.directories == ["data", "outputs"]
    assert (copied.kept, copied.unfinished, copied.links) == ([], [], [])
    raw = f"{STATE}/1/raw"
    assert (cache_dir / raw).stat().st_mtime_ns == (source / raw).stat().st_mtime_ns
    assert [step.files for step in told] == sorted(step.files for step in told)


def test_what_was_copied_before_is_skipped(source: Path, cache: Cache, cache_dir: Path) -> None:
    copy(source, cache)
    os.utime(cache_dir / f"{STATE}/1/raw")  # another time, the same content
    copied = copy(source, cache)
    assert (copied.files, copied.directories) == (0, [])


def test_a_copy_that_was_interrupted_goes_on(
    source: Path, cache: Cache, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = shutil.copyfile, 0

    def failing(source: str, target: str, *, follow_symlinks: bool) -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt
        real(source, target, follow_symlinks=follow_symlinks)

    monkeypatch.setattr(shutil, "copyfile", failing)
    with pytest.raises(KeyboardInterrupt):
        copy(source, cache)
    assert len(files(cache_dir)) == 2  # nothing half-done is left
    copy(source, cache)
    assert files(cache_dir) == files(source)


def test_what_must_stay_local_is_not_copied(source: Path, base: Base, cache_dir: Path) -> None:
    for rel in ("secrets/key", "bundles/x", "data/aws/_catalog.db", "logs/debug.log", ".lock"):
        (source / rel).parent.mkdir(exist_ok=True)
        (source / rel).write_text("mine")
    routing = Routing(exclude=["logs/**"])
    destination = Cache(
        Names(str(cache_dir), "", routing), base, MemoryStore("remote"), nothing_comes
    )
    Relocation(str(source), destination, routing.subdirs).copy(no_progress, durable=False)
    assert set(map(os.path.dirname, files(cache_dir))) == {f"{STATE}/1", f"{STATE}/2", STATE} | {
        "outputs/aws"
    }


def test_unfinished_versions_and_links_stay_where_they_are(
    source: Path, cache: Cache, cache_dir: Path
) -> None:
    (source / f"{STATE}/3").mkdir()
    (source / f"{STATE}/3/raw").write_text("being written")
    shutil.copytree(source / f"{STATE}/2", source / f"{STATE}/4")
    (source / f"{STATE}/4/_catalog.db-deferred").write_text("")
    (source / "outputs/link").symlink_to("/etc/hostname")
    copied = copy(source, cache)
    assert copied.unfinished == [f"{STATE}/3", f"{STATE}/4"]
    assert copied.links == ["outputs/link"]
    assert sorted(os.listdir(cache_dir / STATE)) == ["1", "2", "latest"]


def test_a_marker_that_is_a_link_becomes_a_file(
    source: Path, cache: Cache, cache_dir: Path
) -> None:
    (source / f"{STATE}/latest").unlink()
    (source / f"{STATE}/latest").symlink_to("2/")
    copy(source, cache)
    assert (cache_dir / f"{STATE}/latest").read_bytes() == b"2"


def test_a_directory_that_cannot_be_read_stops_the_copy(
    source: Path, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.scandir

    def scandir(path: str | int) -> object:
        if str(path).endswith("state/1"):
            raise PermissionError(13, "Permission denied", path)
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(OSError, match="permission denied"):
        copy(source, cache)


# Linking ----------------------------------------------------------------------------------------


def linking(source: Path, destination: Cache | Place) -> Relocation:
    return Relocation(str(source), destination, Routing().subdirs, may_link=True)


def test_files_that_are_given_up_are_linked_and_markers_are_not(
    source: Path, cache: Cache, cache_dir: Path
) -> None:
    copied = linking(source, cache).copy(no_progress)
    assert (files(cache_dir), copied.files) == (files(source), 6)
    linked = {rel for rel in files(source) if (cache_dir / rel).samefile(source / rel)}
    assert set(files(source)) - linked == {f"{STATE}/latest"}


def test_a_file_that_somebody_has_another_link_to_is_copied(
    source: Path, cache: Cache, cache_dir: Path, tmp_path: Path
) -> None:
    raw = f"{STATE}/2/raw"
    os.link(source / raw, tmp_path / "backup")
    linking(source, cache).copy(no_progress, durable=False)
    assert not (cache_dir / raw).samefile(source / raw)
    assert (cache_dir / f"{STATE}/1/raw").samefile(source / f"{STATE}/1/raw")


def test_linked_files_go_when_the_remote_has_them_and_are_known_as_they_look_then(
    source: Path, cache: Cache, cache_dir: Path, base: Base
) -> None:
    move = linking(source, cache)
    move.copy(no_progress, durable=False)
    assert move.remove_safe() == (0, sorted(files(source)))
    pushed(base, cache_dir)
    with (source / f"{STATE}/2/raw").open("a") as raw:
        raw.write(", and more")
    removed = move.remove_safe()
    assert set(removed.left) == {f"{STATE}/2/raw", f"{STATE}/2/metadata.yaml", f"{STATE}/latest"}
    for rel in (f"{STATE}/1/raw", f"{STATE}/1/metadata.yaml", "outputs/aws/run.yaml"):
        known = base.get(rel)
        assert known is not None
        assert known.held == signature(str(cache_dir / rel))


def test_a_directory_that_is_seen_twice_is_no_copy_of_itself(source: Path, tmp_path: Path) -> None:
    (tmp_path / "again").symlink_to(source)  # as if it were mounted there
    twice = Pairs(str(source), Place(Names(str(tmp_path / "again"), "", Routing())))
    looks = [twice.look(directory) for directory in twice.walk("data")]
    assert any(look.rels for look in looks)
    assert not any(look.linked for look in looks)


# What is there already --------------------------------------------------------------------------


def test_a_file_of_others_that_is_not_on_the_remote_yet_is_not_replaced(
    source: Path, cache: Cache, cache_dir: Path
) -> None:
    (cache_dir / "outputs/aws").mkdir(parents=True)
    (cache_dir / "outputs/aws/run.yaml").write_text("status: other\n")
    assert copy(source, cache).kept == ["outputs/aws/run.yaml"]
    assert (cache_dir / "outputs/aws/run.yaml").read_text() == "status: other\n"


def test_a_file_that_grew_since_it_was_copied_is_copied_again(
    source: Path, cache: Cache, cache_dir: Path
) -> None:
    (source / "audit").mkdir()
    (source / "audit/commands.jsonl").write_text("one\n")
    copy(source, cache)
    with (source / "audit/commands.jsonl").open("a") as file:
        file.write("two\n")
    assert copy(source, cache).kept == []
    assert (cache_dir / "audit/commands.jsonl").read_text() == "one\ntwo\n"


def test_a_file_of_others_that_the_remote_has_is_left_to_the_next_push_to_settle(
    source: Path, cache: Cache, cache_dir: Path, base: Base
) -> None:
    (cache_dir / "outputs/aws").mkdir(parents=True)
    (cache_dir / "outputs/aws/run.yaml").write_text("status: other\n")
    pushed(base, cache_dir)
    assert copy(source, cache).kept == []
    assert (cache_dir / "outputs/aws/run.yaml").read_text() == "status: ok\n"
    assert base.get("outputs/aws/run.yaml") is None  # so it is new, and theirs is not replaced
    assert cache.released == 1


def test_a_version_of_others_with_our_number_is_left_to_the_next_push_to_settle(
    source: Path, cache: Cache, cache_dir: Path, base: Base
) -> None:
    copy(source, cache)
    theirs = cache_dir / f"{STATE}/2/metadata.yaml"
    theirs.write_text(theirs.read_text().replace("id: ", "id: x"))
    pushed(base, cache_dir)
    (cache_dir / f"{STATE}/2/raw").unlink()  # lazily pulled: it never came here
    known = base.get(f"{STATE}/2/raw")
    assert known is not None
    base.apply(known=[Known(known.rel, 5, "00" * 32, known.modified, None, None)])
    assert copy(source, cache).kept == []
    assert files(cache_dir) == files(source)
    assert [known.rel for known in base.below(f"{STATE}/2")] == []
    assert base.get(f"{STATE}/1/raw") is not None


def others_were_first(cache_dir: Path) -> Path:
    """Give our second version the number 7, because others have that; return where theirs is."""
    theirs, ours = cache_dir / f"{STATE}/2", cache_dir / f"{STATE}/7"
    theirs.rename(ours)
    shutil.copytree(ours, theirs)
    text = (theirs / "metadata.yaml").read_text()
    (theirs / "metadata.yaml").write_text(text.replace("id: ", "id: x"))
    return theirs


def test_a_version_that_got_another_number_is_not_copied_again(
    source: Path, cache: Cache, cache_dir: Path, base: Base
) -> None:
    copy(source, cache)
    theirs = others_were_first(cache_dir)
    pushed(base, cache_dir)
    before = files(cache_dir)
    assert (copy(source, cache).files, files(cache_dir)) == (0, before)
    shutil.rmtree(theirs)  # nor if nobody has its old number
    assert copy(source, cache).files == 0


_TWO = '{\n  "n": 2\n}'


def test_a_version_that_grew_since_it_was_copied_is_updated(
    source: Path, cache: Cache, cache_dir: Path, base: Base
) -> None:
    copy(source, cache)
    pushed(base, cache_dir)
    with (source / f"{STATE}/2/raw").open("a") as raw:
        raw.write(", and more")
    assert copy(source, cache).files == 1
    assert (cache_dir / f"{STATE}/2/raw").read_text() == _TWO + ", and more"
    assert base.get(f"{STATE}/2/raw") is not None


def test_a_version_that_grew_at_its_destination_stays_as_it_is_there(
    source: Path, cache: Cache, cache_dir: Path, base: Base
) -> None:
    copy(source, cache)
    with (cache_dir / f"{STATE}/2/raw").open("a") as raw:
        raw.write(", and more")
    pushed(base, cache_dir)
    before = files(cache_dir)
    assert (copy(source, cache).files, files(cache_dir)) == (0, before)
    moved = {one.rel: one.sha256 for one in move(source, cache).moved()}
    assert moved[f"{STATE}/2/raw"] is None  # it holds ours, and more
    assert moved[f"{STATE}/1/raw"] is not None
    assert move(source, cache).remove_safe().left == []


def test_a_version_that_grew_on_both_sides_is_left_to_the_next_push(
    source: Path, cache: Cache, cache_dir: Path, base: Base
) -> None:
    copy(source, cache)
    with (cache_dir / f"{STATE}/2/raw").open("a") as raw:
        raw.write(", and theirs")
    pushed(base, cache_dir)
    with (source / f"{STATE}/2/raw").open("a") as raw:
        raw.write(", and ours")
    assert copy(source, cache).kept == []
    assert (cache_dir / f"{STATE}/2/raw").read_text() == _TWO + ", and ours"
    assert base.get(f"{STATE}/2/raw") is None  # so a push takes neither for an update of the other


def test_a_version_that_grew_here_and_has_another_number_there_gets_its_end(
    source: Path, cache: Cache, cache_dir: Path, base: Base
) -> None:
    copy(source, cache)
    others_were_first(cache_dir)
    pushed(base, cache_dir)
    with (source / f"{STATE}/2/raw").open("a") as raw:
        raw.write(", and more")
    assert copy(source, cache).files == 2
    assert (cache_dir / f"{STATE}/7/raw").read_text() == _TWO + ", and more"
    assert "version: 7\n" in (cache_dir / f"{STATE}/7/metadata.yaml").read_text()
    assert (cache_dir / f"{STATE}/2/raw").read_text() == _TWO
    assert base.get(f"{STATE}/7/raw") is not None  # so a push takes it for an update


def test_a_version_whose_place_was_taken_by_one_of_ours_comes_back_from_the_remote(
    source: Path, cache: Cache, cache_dir: Path, base: Base
) -> None:
    copy(source, cache)
    shutil.rmtree(cache_dir / f"{STATE}/1")  # others have our second version there
    os.rename(cache_dir / f"{STATE}/2", cache_dir / f"{STATE}/1")
    pushed(base, cache_dir)
    copy(source, cache)
    ours = (source / f"{STATE}/1/metadata.yaml").read_text()
    assert (cache_dir / f"{STATE}/1/metadata.yaml").read_text() == ours
    assert not (cache_dir / f"{STATE}/2").exists()


def test_a_version_that_grew_on_both_sides_and_has_another_number_there_is_copied(
    source: Path, cache: Cache, cache_dir: Path, base: Base
) -> None:
    copy(source, cache)
    others_were_first(cache_dir)
    (cache_dir / f"{STATE}/7/raw").write_text(_TWO + ", and theirs")
    pushed(base, cache_dir)
    with (source / f"{STATE}/2/raw").open("a") as raw:
        raw.write(", and ours")
    assert copy(source, cache).kept == []
    assert (cache_dir / f"{STATE}/7/raw").read_text() == _TWO + ", and theirs"
    assert (cache_dir / f"{STATE}/2/raw").read_text() == _TWO + ", and ours"


def test_of_versions_of_one_id_the_one_that_goes_on_ours_is_meant(
    source: Path, cache: Cache, cache_dir: Path, base: Base
) -> None:
    copy(source, cache)
    shutil.copytree(cache_dir / f"{STATE}/2", cache_dir / f"{STATE}/10")
    (cache_dir / f"{STATE}/2/raw").write_text(_TWO + ", and theirs")
    pushed(base, cache_dir)
    with (source / f"{STATE}/2/raw").open("a") as raw:
        raw.write(", and ours")
    (cache_dir / f"{STATE}/10/raw").write_text(_TWO + ", and ours")
    pushed(base, cache_dir)
    there = {one.rel: one.there for one in move(source, cache).moved()}
    assert there[f"{STATE}/2/raw"] == f"{STATE}/10/raw"
    assert copy(source, cache).files == 0


@pytest.mark.parametrize(("ours", "theirs", "expected"), [(2, 1, 2), (2, 3, 3), (2, 2, 2)])
def test_of_two_markers_the_higher_one_stays(
    source: Path, cache: Cache, cache_dir: Path, ours: int, theirs: int, expected: int
) -> None:
    copy(source, cache)
    (source / f"{STATE}/latest").write_text(str(ours))
    (cache_dir / f"{STATE}/latest").write_text(str(theirs))
    assert copy(source, cache).kept == []
    assert (cache_dir / f"{STATE}/latest").read_text() == str(expected)


def test_nothing_in_a_directory_that_is_used_in_place_is_replaced(
    source: Path, tmp_path: Path
) -> None:
    place = Place(Names(str(tmp_path / "share"), "infra", Routing()))
    assert copy(source, place).kept == []
    assert files(tmp_path / "share/infra") == files(source)
    assert copy(source, place).files == 0
    (tmp_path / f"share/infra/{STATE}/1/raw").write_text("other")
    assert copy(source, place).kept == [f"{STATE}/1"]
    assert (tmp_path / f"share/infra/{STATE}/1/raw").read_text() == "other"


# Removing ---------------------------------------------------------------------------------------


def test_nothing_is_removed_before_the_remote_has_it(source: Path, cache: Cache) -> None:
    before = files(source)
    copy(source, cache)
    removed = move(source, cache).remove_safe()
    assert (removed.files, sorted(removed.left)) == (0, sorted(before))
    assert files(source) == before


def test_what_the_remote_has_is_removed_with_its_directories(
    source: Path, cache: Cache, cache_dir: Path, base: Base
) -> None:
    (source / "secrets").mkdir()
    (source / "secrets/key").write_text("mine")
    copy(source, cache)
    pushed(base, cache_dir)
    removed = move(source, cache).remove_safe()
    assert (removed.files, removed.left) == (6, [])
    assert set(files(source)) == {"secrets/key"}
    assert os.listdir(source / "data") == os.listdir(source / "outputs") == []


def test_what_changed_since_it_was_copied_is_not_removed(
    source: Path, cache: Cache, cache_dir: Path, base: Base
) -> None:
    copy(source, cache)
    pushed(base, cache_dir)
    (source / f"{STATE}/2/raw").write_text("changed")
    (source / "outputs/aws/run.yaml").write_text("status: failed\n")
    removed = move(source, cache).remove_safe()
    expected = {f"{STATE}/2/raw", f"{STATE}/2/metadata.yaml", f"{STATE}/latest"}
    assert set(removed.left) == set(files(source)) == {*expected, "outputs/aws/run.yaml"}


def test_a_version_that_has_another_number_now_is_removed(
    source: Path, cache: Cache, cache_dir: Path, base: Base
) -> None:
    copy(source, cache)
    (cache_dir / f"{STATE}/2").rename(cache_dir / f"{STATE}/7")
    metadata = cache_dir / f"{STATE}/7/metadata.yaml"
    metadata.write_text(metadata.read_text().replace("version: 2", "version: 7"))
    pushed(base, cache_dir)
    assert move(source, cache).remove_safe().left == []


def test_a_file_whose_content_is_kept_as_a_conflict_is_removed(
    source: Path, cache: Cache, cache_dir: Path, base: Base
) -> None:
    rel = "outputs/aws/run.yaml"
    sha256, _ = hash_file(str(source / rel))
    copy(source, cache)
    moved = cache_dir / conflict_copy(rel, sha256)
    moved.parent.mkdir(parents=True)
    (cache_dir / rel).rename(moved)
    (cache_dir / rel).write_text("status: other\n")
    pushed(base, cache_dir)
    assert move(source, cache).remove_safe().left == []


def test_files_that_stay_local_are_not_removed(source: Path, cache_dir: Path, base: Base) -> None:
    routing = Routing(exclude=["data/**/raw"])
    cache = Cache(Names(str(cache_dir), "", routing), base, MemoryStore("remote"), nothing_comes)
    relocation = Relocation(str(source), cache, routing.subdirs)
    relocation.copy(no_progress, durable=False)
    pushed(base, cache_dir)
    assert relocation.remove_safe().left == []
    assert set(files(source)) == {f"{STATE}/1/raw", f"{STATE}/2/raw"}


def test_after_a_move_to_a_directory_the_files_there_are_what_counts(
    source: Path, tmp_path: Path
) -> None:
    place = Place(Names(str(tmp_path / "share"), "", Routing()))
    copy(source, place)
    (tmp_path / f"share/{STATE}/1/raw").unlink()
    assert set(move(source, place).remove_safe().left) == {
        *(f"{STATE}/1/{name}" for name in ("raw", "metadata.yaml")),
        f"{STATE}/latest",
    }
    assert signature(str(source / "outputs/aws/run.yaml")) is None
