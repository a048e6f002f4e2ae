"""Repositories with namespaces in one place never touch what is not theirs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest

from swampstore import init_repo, open_repo
from swampstore.marker import update_marker
from swampstore.relocate.namespace import migrate, set_namespace, unset_namespace
from swampstore.stores.memory import MemoryStore
from tests.support.members import MODEL, Member, Place, bucket_in_a_directory, files_in

REQUESTS = {"get", "head", "list", "put", "put_if_absent", "put_if_match", "delete", "copy"}


@contextmanager
def only_touching(place: Place, *prefixes: str) -> Iterator[None]:
    """Assert that nothing but keys with these prefixes is created, changed or removed."""
    before = place.files()
    yield
    after = place.files()
    touched = {key for key in {*before, *after} if before.get(key) != after.get(key)}
    assert {key for key in touched if not key.startswith(prefixes)} == set()
    assert touched


@pytest.fixture
def ana(place: Place) -> Member:
    return _namespaced(place, "ana", "infra")


@pytest.fixture
def bob(place: Place, ana: Member) -> Member:
    """Somebody who comes second."""
    del ana
    return _namespaced(place, "bob", "web")


def _namespaced(place: Place, name: str, slug: str) -> Member:
    member = place.member(name)
    with member.open() as repo:
        set_namespace(repo, slug)
    return member


def _sync(member: Member) -> None:
    member.push()
    member.pull()


def test_saving_syncing_and_deleting_stays_in_the_own_namespace(
    place: Place, ana: Member, bob: Member
) -> None:
    ana.save("of ana")
    _sync(ana)
    with only_touching(place, "web/", ".locks/web"):
        bob.save("of bob", "two")
        _sync(bob)
        with bob.open() as repo:
            repo.artifacts.delete(MODEL, "state", version=1)
            repo.artifacts.rename(MODEL, "state", "status")
        _sync(bob)
    _sync(ana)
    assert ana.read() == ["of ana"]
    assert bob.read("status") == ["two"]


def test_the_same_names_do_not_collide(place: Place, ana: Member, bob: Member) -> None:
    for member, texts in ((ana, ["1", "2"]), (bob, ["3"])):
        member.save(*texts)
        _sync(member)
    assert ana.read() == ["1", "2"]
    assert bob.read() == ["3"]
    own = {key.partition("/")[2] for key in place.keys(below="web/")}
    other = {key.partition("/")[2] for key in place.keys(below="infra/")}
    assert own <= other


def test_an_index_names_only_what_is_in_its_namespace(tmp_path: Path) -> None:
    place = bucket_in_a_directory(tmp_path)
    ana, bob = _namespaced(place, "ana", "infra"), _namespaced(place, "bob", "web")
    for member, name in ((ana, "first"), (bob, "second")):
        member.save("x", name=name)
        _sync(member)
    indexes = {key: data for key, data in place.files().items() if key.endswith("index.json")}
    assert indexes.keys() == {"infra/.datastore-index.json", "web/.datastore-index.json"}
    assert b"second" not in indexes["infra/.datastore-index.json"]
    assert b"first" not in indexes["web/.datastore-index.json"]
    assert b"infra/" not in indexes["infra/.datastore-index.json"]


def test_a_catalog_knows_only_the_own_namespace(ana: Member, bob: Member) -> None:
    ana.save("x", name="first")
    bob.save("x", name="second")
    for member in (ana, bob):
        _sync(member)
        with member.open() as repo:
            repo.rebuild_catalog()
    with bob.open() as repo:
        assert [found.name for found in repo.query()] == ["second"]


def test_everybody_can_lock_everything_at_once(ana: Member, bob: Member) -> None:
    with (
        ana.open() as first,
        bob.open() as second,
        first.locks.everything(),
        second.locks.everything(),
    ):
        assert not set(first.locks.held) & set(second.locks.held)


def test_a_lock_of_a_model_is_no_obstacle_for_others(ana: Member, bob: Member) -> None:
    with (
        ana.open() as first,
        bob.open() as second,
        first.session([MODEL]),
        second.session([MODEL]),
    ):
        second.artifacts.save(MODEL, "state", "x")


def test_migrating_the_index_leaves_those_of_others_alone(tmp_path: Path) -> None:
    place = bucket_in_a_directory(tmp_path)
    ana, bob = _namespaced(place, "ana", "infra"), _namespaced(place, "bob", "web")
    for member in (ana, bob):
        member.save("x")
        _sync(member)
    with only_touching(place, "web/", ".locks/web"), bob.open() as repo:
        repo.sync.migrate_index()


def test_somebody_without_a_namespace_does_not_take_those_of_others_for_data(
    place: Place, ana: Member
) -> None:
    ana.save("of ana")
    _sync(ana)
    carl = place.member("carl")
    carl.save("of carl")
    _sync(carl)
    assert carl.read() == ["of carl"]
    with carl.open() as repo:
        repo.rebuild_catalog()
        assert len(list(repo.query())) == 1
    with only_touching(place, "data/", ".datastore", "_index/", "_control/", "outputs/"):
        carl.save("two")
        _sync(carl)
    assert ana.read() == ["of ana"]


def test_moving_into_a_namespace_touches_no_other(tmp_path: Path) -> None:
    place = bucket_in_a_directory(tmp_path)
    bob = _namespaced(place, "bob", "web")
    bob.save("of bob")
    _sync(bob)
    ana = place.member("ana")
    ana.save("of ana")
    _sync(ana)
    with only_touching(place, "infra/", ".locks/infra", "_control/", ".datastore.lock"):
        with ana.open() as repo:
            set_namespace(repo, "infra")
        with ana.open() as repo:
            migrate(repo)
        _sync(ana)
    assert (ana.read(), bob.read()) == (["of ana"], ["of bob"])


# Without a namespace ---------------------------------------------------------------------------


def test_without_a_namespace_every_path_is_that_of_a_repository_that_never_had_one(
    tmp_path: Path,
) -> None:
    paths = []
    for name in ("never", "formerly"):
        place = bucket_in_a_directory(_directory(tmp_path / name))
        member = place.member("ana")
        if name == "formerly":
            with member.open() as repo:
                set_namespace(repo, "infra")
            with member.open() as repo:
                unset_namespace(repo)
        member.save("one", "two")
        _sync(member)
        cache = {key for key in files_in(member.base) if "_catalog.db" not in key}
        paths.append((place.keys(), cache))
    assert paths[0] == paths[1]


def test_in_a_repository_without_a_namespace_files_are_where_they_always_were(
    tmp_path: Path,
) -> None:
    init_repo(tmp_path / "repo").close()
    with open_repo(tmp_path / "repo", durable=False, environ={}) as repo:
        set_namespace(repo, "infra")
    with open_repo(tmp_path / "repo", durable=False, environ={}) as repo:
        unset_namespace(repo)
    update_marker(str(tmp_path / "repo"), {"datastore": {"namespace": None}})
    with open_repo(tmp_path / "repo", durable=False, environ={}) as repo:
        repo.artifacts.save(MODEL, "state", "x")
    assert (tmp_path / "repo/.swamp/data" / MODEL / "state/1/raw").read_text() == "x"


def _directory(path: Path) -> Path:
    path.mkdir()
    return path


class NotingStore(MemoryStore):
    """A store that remembers which keys it was asked for."""

    asked: ClassVar[set[str]] = set()

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name not in REQUESTS:
            return found

        def noted(key: str = "", *args: Any) -> Any:
            self.asked.add(key)
            return found(key, *args)

        return noted


def test_a_sync_does_not_even_look_at_other_namespaces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swampstore.stores.memory.MemoryStore", NotingStore)
    place = Place(tmp_path, {"type": "memory", "url": f"memory://{tmp_path.name}"}, dict)
    bob = _namespaced(place, "bob", "web")
    ana = _namespaced(place, "ana", "infra")
    bob.save("x")
    _sync(bob)
    NotingStore.asked.clear()
    ana.save("y")
    _sync(ana)
    assert f"infra/data/{MODEL}/state/1/raw" in NotingStore.asked
    strange = {key for key in NotingStore.asked if not key.startswith(("infra/", ".locks/infra"))}
    assert strange == set()
