"""Copies of other namespaces inside our own: found everywhere, removed only if nothing is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from swampstore.doctor import contamination
from swampstore.doctor.contamination import (
    Contamination,
    find_contamination,
    repair_contamination,
)
from swampstore.relocate.namespace import set_namespace
from tests.support.members import MODEL, Member, Place, bucket_in_a_directory, shared_directory

RAW = f"data/{MODEL}/state/1/raw"


def _namespaced(place: Place, name: str, slug: str) -> Member:
    member = place.member(name)
    with member.open() as repo:
        set_namespace(repo, slug)
    member.save(f"of {name}")
    member.push()
    return member


@pytest.fixture
def bob(place: Place) -> Member:
    return _namespaced(place, "bob", "web")


@pytest.fixture
def ana(place: Place, bob: Member) -> Member:
    """A repository whose namespace holds a copy of bob's, in its index and on its disk too."""
    ana = _namespaced(place, "ana", "infra")
    contaminate(ana, bob)
    return ana


def contaminate(ana: Member, bob: Member, **changes: bytes) -> None:
    """Do what an early client did; without a manifest, the copies pass for data."""
    for path in (bob.base / "web/data").rglob("*"):
        if path.is_file():
            copy = ana.base / "infra/web" / path.relative_to(bob.base / "web")
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(changes.get(path.name, path.read_bytes()))
    if ana.place.is_remote:
        with ana.open() as repo:
            repo.dirty.mark()
    ana.push()


def found(member: Member) -> list[tuple[str, str, int]]:
    with member.open() as repo:
        return [(one.place, one.namespace, one.files) for one in find_contamination(repo)]


def index_of(place: Place) -> bytes:
    files = place.files()
    return b"".join(data for key, data in files.items() if key.startswith(("infra/_i", "infra/.d")))


def places(place: Place) -> list[str]:
    return ["remote", "cache"] if place.is_remote else ["directory"]


def test_copies_are_found_wherever_they_are(place: Place, ana: Member, bob: Member) -> None:
    assert found(ana) == [(where, "web", 3) for where in places(place)]
    assert found(bob) == []


def test_copies_that_are_the_same_are_removed(place: Place, ana: Member, bob: Member) -> None:
    theirs = {key: data for key, data in place.files().items() if key.startswith("web/")}
    with ana.open() as repo:
        repaired = repair_contamination(repo)
    assert [(one.finding.place, one.removed, one.differing) for one in repaired] == [
        (where, 3, []) for where in places(place)
    ]
    assert found(ana) == []
    assert not (ana.base / "infra/web").exists()
    assert not place.keys(below="infra/web")
    assert {key: data for key, data in place.files().items() if key.startswith("web/")} == theirs
    assert b"web/data" not in index_of(place)
    ana.push()
    ana.pull()
    assert found(ana) == []
    assert ana.read() == ["of ana"]
    assert bob.read() == ["of bob"]


def test_a_copy_that_differs_stays_and_is_reported(place: Place, bob: Member) -> None:
    ana = _namespaced(place, "ana", "infra")
    contaminate(ana, bob, raw=b"of nobody else")
    with ana.open() as repo:
        repaired = repair_contamination(repo)
    assert [(one.removed, one.differing) for one in repaired] == [
        (2, [f"infra/web/{RAW}"]) for _ in places(place)
    ]
    assert place.files()[f"infra/web/{RAW}"] == b"of nobody else"
    assert found(ana) == [(where, "web", 1) for where in places(place)]
    if place.is_remote:
        assert RAW.encode() in index_of(place)


def test_a_copy_without_an_original_stays(place: Place, ana: Member, bob: Member) -> None:
    with bob.open() as repo:
        repo.artifacts.delete(MODEL, "state")
    bob.push()
    with ana.open() as repo:
        repaired = repair_contamination(repo)
    assert all(one.removed == 0 and len(one.differing) == 3 for one in repaired)
    assert place.files()[f"infra/web/{RAW}"] == b"of bob"


def test_a_sharded_index_stays_sharded(tmp_path: Path) -> None:
    place = bucket_in_a_directory(tmp_path)
    bob = _namespaced(place, "bob", "web")
    ana = _namespaced(place, "ana", "infra")
    with ana.open() as repo:
        repo.sync.migrate_index()
    contaminate(ana, bob)
    assert b"web/data" in index_of(place)
    with ana.open() as repo:
        before = repo.sync.status()
        repair_contamination(repo)
        after = repo.sync.status()
    assert (before.index_version, after.index_version) == (2, 2)
    assert after.commit_seq is not None
    assert before.commit_seq is not None
    assert after.commit_seq > before.commit_seq
    shards = [data for key, data in place.files().items() if key.startswith("infra/_index/")]
    assert not any(b"web/data" in data for data in shards)


def test_bookkeeping_goes_with_the_last_of_the_data(tmp_path: Path) -> None:
    place = shared_directory(tmp_path)
    bob, ana = _namespaced(place, "bob", "web"), _namespaced(place, "ana", "infra")
    contaminate(ana, bob)
    inside = ana.base / "infra/web"
    (inside / ".namespace.json").write_text("an old one")
    (inside / "_index").mkdir()
    (inside / "_index/_meta.json").write_text("an old one")
    (inside / RAW).write_text("changed")
    with ana.open() as repo:
        [repaired] = repair_contamination(repo)
    assert repaired.removed == 2
    assert (inside / "_index/_meta.json").exists()
    (inside / RAW).unlink()
    with ana.open() as repo:
        [repaired] = repair_contamination(repo)
    assert repaired.removed == 2
    assert not [path for path in inside.rglob("*") if path.is_file()]


def test_a_copy_that_brought_its_manifest_is_found_though_its_namespace_is_gone(
    tmp_path: Path,
) -> None:
    ana = _namespaced(shared_directory(tmp_path), "ana", "infra")
    (ana.base / "infra/gone").mkdir()
    (ana.base / "infra/gone/.namespace.json").write_text("{}")
    assert found(ana) == [("directory", "gone", 1)]


def test_directories_that_are_no_namespaces_are_no_copies(tmp_path: Path) -> None:
    ana = _namespaced(shared_directory(tmp_path), "ana", "infra")
    for name in ("notes", "outputs", "Web"):
        (ana.base / "infra" / name).mkdir()
        (ana.base / "infra" / name / "x").write_text("x")
    assert found(ana) == []


def test_without_a_namespace_there_is_nothing_to_find(tmp_path: Path) -> None:
    place = bucket_in_a_directory(tmp_path)
    _namespaced(place, "bob", "web")
    carl = place.member("carl")
    carl.save("x")
    carl.push()
    with carl.open() as repo:
        assert find_contamination(repo) == []
        assert repair_contamination(repo) == []


def test_looking_is_cheap_if_all_is_well(tmp_path: Path) -> None:
    place = bucket_in_a_directory(tmp_path)
    ana = _namespaced(place, "ana", "infra")
    with ana.open() as repo:
        repo.connection.counting.reset()
        assert find_contamination(repo) == []
        assert repo.connection.counting.tally().requests == {"list": 1}


def test_a_repair_that_was_stopped_is_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = bucket_in_a_directory(tmp_path)
    bob, ana = _namespaced(place, "bob", "web"), _namespaced(place, "ana", "infra")
    contaminate(ana, bob)

    def stop(root: str, rel: str) -> None:
        raise KeyboardInterrupt(f"{root}/{rel}")

    with monkeypatch.context() as patch, ana.open() as repo:
        patch.setattr(contamination, "_remove_file", stop)
        with pytest.raises(KeyboardInterrupt):
            repair_contamination(repo)
    with ana.open() as repo:
        assert find_contamination(repo) == [Contamination("cache", "web", 3, _size(bob))]
        repair_contamination(repo)
        assert find_contamination(repo) == []


def _size(bob: Member) -> int:
    files = [path for path in (bob.base / "web/data").rglob("*") if path.is_file()]
    return sum(path.stat().st_size for path in files)
