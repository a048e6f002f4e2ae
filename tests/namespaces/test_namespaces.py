"""Namespaces of a shared datastore: who has which, and how a repository gets one."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pytest

from swampstore.datastore_address import Address
from swampstore.errors import (
    ConfigError,
    NamespaceTakenError,
    SwampstoreError,
    ValidationError,
)
from swampstore.layout import DATASTORE_SUBDIRS, MANIFEST
from swampstore.marker import read_marker, update_marker
from swampstore.namespaces import list_namespaces
from swampstore.namespaces.manifests import Manifest, Registry, check_new_namespace
from swampstore.relocate.namespace import set_namespace, unset_namespace
from swampstore.relocate.setup import set_up_datastore
from swampstore.stores.errors import PreconditionFailedError, StoreNotMountedError
from swampstore.stores.memory import MemoryStore
from swampstore.stores.protocol import ObjectInfo, Written, folders
from swampstore.stores.wrapper import CountingStore
from tests.support.members import Place, bucket_in_a_directory, shared_directory
from tests.support.remotes import Remote

NOW = "2026-05-14T20:19:51.042Z"


# What is directly below a prefix --------------------------------------------------------------


def test_folders_are_the_first_segments_below_a_prefix(remote: Remote) -> None:
    with remote.open() as store:
        for key in ("a/.namespace.json", "a/data/x/raw", "a/data/y", "a-b/c", "plain", "z/y/x"):
            store.put(key, b"")
        assert list(folders(store)) == ["a", "a-b", "z"]
        assert list(folders(store, "a/")) == ["data"]
        assert list(folders(store, "a/data/")) == ["x"]
        assert list(folders(store, "nowhere/")) == []


@pytest.mark.parametrize("kind", ["directory", "s3", "gcs"])
def test_folders_cost_one_request_however_much_is_below(
    kind: str, request: pytest.FixtureRequest
) -> None:
    remote: Remote = request.getfixturevalue(f"{kind}_remote")
    with remote.open() as inner:
        for number in range(20):
            inner.put(f"a/data/{number}", b"")
        counting = CountingStore(inner)
        assert list(folders(counting)) == ["a"]
        assert counting.tally().requests == {"list": 1}


# Manifests -----------------------------------------------------------------------------------


def test_a_manifest_is_what_other_clients_write() -> None:
    manifest = Manifest("infra", "2f6d0c1e-0000-4000-8000-000000000001", NOW)
    assert manifest.encode() == (
        b'{\n  "namespace": "infra",\n'
        b'  "repoId": "2f6d0c1e-0000-4000-8000-000000000001",\n'
        b'  "registeredAt": "2026-05-14T20:19:51.042Z"\n}\n'
    )
    assert Manifest.decode("infra", manifest.encode()) == manifest


def test_the_first_to_register_a_namespace_has_it(remote: Remote) -> None:
    with remote.open() as store:
        registry = Registry(store)
        assert registry.register("infra", "ana", NOW) == Manifest("infra", "ana", NOW)
        with pytest.raises(NamespaceTakenError, match="belongs to the repository ana since 2026"):
            registry.register("infra", "bob", NOW)
        assert registry.get("infra") == Manifest("infra", "ana", NOW)


def test_registering_again_changes_nothing(remote: Remote) -> None:
    with remote.open() as store:
        registry = Registry(store)
        registry.register("infra", "ana", NOW)
        assert registry.register("infra", "ana", "later").registered_at == NOW


def test_of_many_who_register_at_once_exactly_one_has_it(remote: Remote) -> None:
    outcomes: dict[str, bool] = {}
    start = threading.Barrier(6)

    def register(repo_id: str) -> None:
        with remote.open() as store:
            start.wait()
            try:
                Registry(store).register("infra", repo_id, NOW)
            except NamespaceTakenError:
                outcomes[repo_id] = False
            else:
                outcomes[repo_id] = True

    threads = [threading.Thread(target=register, args=(f"repo-{n}",)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    winners = [repo_id for repo_id, won in outcomes.items() if won]
    assert len(outcomes) == 6
    assert len(winners) == 1
    with remote.open() as store:
        found = Registry(store).get("infra")
    assert found is not None
    assert found.repo_id == winners[0]


def test_a_namespace_without_an_owner_can_be_had() -> None:
    with MemoryStore() as store:
        store.put(f"infra/{MANIFEST}", b'{"namespace": "infra", "repoId": ""}')
        Registry(store).register("infra", "ana", NOW)
        with pytest.raises(NamespaceTakenError):
            Registry(store).register("infra", "bob", NOW)


def test_an_owner_is_not_overwritten_where_conditions_are_ignored() -> None:
    class Careless(MemoryStore):
        def put_if_absent(self, key: str, body: bytes | BinaryIO) -> Written:
            return self.put(key, body)

    with Careless() as store:
        Registry(store).register("infra", "ana", NOW)
        with pytest.raises(NamespaceTakenError):
            Registry(store).register("infra", "bob", NOW)


def test_a_namespace_that_changed_hands_meanwhile_is_not_given_up() -> None:
    class Overtaken(MemoryStore):
        def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
            self.put(f"infra/{MANIFEST}", b'{"namespace": "infra", "repoId": "bob"}')
            return super().list(prefix)

    with Overtaken() as store:
        Registry(store).register("infra", "ana", NOW)
        assert not Registry(store).remove_unused("infra", "ana")
        found = Registry(store).get("infra")
    assert found is not None
    assert found.repo_id == "bob"


def test_registering_gives_up_if_others_keep_being_faster() -> None:
    class Contested(MemoryStore):
        def put_if_absent(self, key: str, body: bytes | BinaryIO) -> Written:
            raise PreconditionFailedError(f"{key} is there, {body!r}")

    with Contested() as store, pytest.raises(NamespaceTakenError, match="keeps changing hands"):
        Registry(store).register("infra", "ana", NOW)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b"3", b"[" * 100_000])
def test_a_damaged_manifest_is_nobodys_to_take(content: bytes) -> None:
    with MemoryStore() as store:
        store.put(f"infra/{MANIFEST}", content)
        Registry(store).register("other", "ana", NOW)
        with pytest.raises(ValidationError, match=r"infra/\.namespace\.json is not a manifest"):
            Registry(store).register("infra", "ana", NOW)
        assert [one.namespace for one in Registry(store).list()] == ["infra", "other"]
        assert Registry(store).list()[0] == Manifest("infra", "", "")


@pytest.mark.parametrize("kind", ["directory", "s3"])
def test_listing_costs_as_much_as_there_are_namespaces(
    kind: str, request: pytest.FixtureRequest
) -> None:
    remote: Remote = request.getfixturevalue(f"{kind}_remote")
    with remote.open() as inner:
        for key in ("data/a/b/c/1/raw", "outputs/x/y", ".datastore-index.json", "_index/a.json"):
            inner.put(key, b"")
        for slug in ("one", "two"):
            Registry(inner).register(slug, slug, NOW)
            for number in range(10):
                inner.put(f"{slug}/data/{number}", b"")
        counting = CountingStore(inner)
        assert [one.namespace for one in Registry(counting).list()] == ["one", "two"]
        assert counting.tally().requests == {"list": 1, "get": 2}


@pytest.mark.parametrize("slug", [*DATASTORE_SUBDIRS, "datastore-bundles", "A", "-a", "a/b", ""])
def test_a_name_that_means_something_else_cannot_be_a_namespace(slug: str) -> None:
    with pytest.raises(ValidationError):
        check_new_namespace(slug)


def test_a_repository_without_an_id_can_own_nothing(tmp_path: Path) -> None:
    ana = shared_directory(tmp_path).member("ana")
    update_marker(str(ana.repo_dir), {"repoId": None})
    with ana.open() as repo, pytest.raises(ConfigError, match="repoId"):
        set_namespace(repo, "infra")


# Setting and unsetting -------------------------------------------------------------------------


def test_a_repository_gets_a_namespace(place: Place) -> None:
    ana = place.member("ana")
    with ana.open() as repo:
        done = set_namespace(repo, "infra")
    assert done.to_json() == {
        "namespace": "infra",
        "datastorePath": str(ana.base),
        "warning": None,
        "registrationSkipped": False,
    }
    assert json.loads(place.files()[f"infra/{MANIFEST}"])["repoId"] == ana.repo_id
    assert (ana.base / "infra" / MANIFEST).read_bytes() == place.files()[f"infra/{MANIFEST}"]
    with ana.open() as repo:
        assert repo.config.namespace == "infra"
        assert [one.repo_id for one in list_namespaces(repo)] == [ana.repo_id]


def test_a_taken_namespace_is_refused_and_nothing_is_written(place: Place) -> None:
    ana, bob = place.member("ana"), place.member("bob")
    with ana.open() as repo:
        set_namespace(repo, "infra")
    before = place.keys()
    with bob.open() as repo, pytest.raises(NamespaceTakenError, match=ana.repo_id):
        set_namespace(repo, "infra")
    assert place.keys() == before
    assert "namespace" not in read_marker(str(bob.repo_dir))["datastore"]


def test_setting_a_namespace_says_where_the_data_stays(place: Place) -> None:
    ana = place.member("ana")
    ana.save("one")
    with ana.open() as repo:
        done = set_namespace(repo, "infra")
    assert done.warning is not None
    assert str(ana.base) in done.warning
    assert "namespace migrate" in done.warning
    assert ana.read() == []


def test_a_namespace_that_is_set_already_is_refused(tmp_path: Path) -> None:
    ana = shared_directory(tmp_path).member("ana")
    with ana.open() as repo:
        set_namespace(repo, "infra")
    with ana.open() as repo, pytest.raises(ValidationError, match="'infra' already"):
        set_namespace(repo, "infra")


def test_a_namespace_that_is_only_configured_can_be_registered(tmp_path: Path) -> None:
    place = shared_directory(tmp_path)
    ana = place.member("ana", namespace="infra")
    with ana.open() as repo:
        assert list_namespaces(repo) == []
        set_namespace(repo, "infra")
        assert [one.namespace for one in list_namespaces(repo)] == ["infra"]


def test_the_default_datastore_is_written_out_for_other_clients(tmp_path: Path) -> None:
    ana = shared_directory(tmp_path).member("ana")
    update_marker(str(ana.repo_dir), {"datastore": None})
    ana.save("one")
    with ana.open() as repo:
        set_namespace(repo, "infra")
    section = read_marker(str(ana.repo_dir))["datastore"]
    assert section == {"type": "filesystem", "path": ".swamp", "namespace": "infra"}
    with ana.open() as repo:
        assert repo.config.base == repo.config.local_dir
        unset_namespace(repo)
    assert ana.read() == ["one"]


def test_without_its_namespace_a_repository_is_where_it_was(place: Place) -> None:
    ana = place.member("ana")
    ana.save("one")
    with ana.open() as repo:
        set_namespace(repo, "infra")
    ana.save("two")
    with ana.open() as repo:
        assert unset_namespace(repo).to_json() == {"previousNamespace": "infra"}
    assert ana.read() == ["one"]
    # What was saved there is still registered, and found again.
    with ana.open() as repo:
        set_namespace(repo, "infra")
    assert ana.read() == ["two"]


def test_a_namespace_without_data_is_given_up(place: Place) -> None:
    ana, bob = place.member("ana"), place.member("bob")
    for member in (ana, bob):
        with member.open() as repo:
            set_namespace(repo, "infra")
        with member.open() as repo:
            unset_namespace(repo)
        assert not (member.base / "infra").exists()
    assert place.keys() == set()


def test_others_who_have_namespaces_keep_one_from_leaving(place: Place) -> None:
    ana, bob = place.member("ana"), place.member("bob")
    for member, slug in ((ana, "infra"), (bob, "web")):
        with member.open() as repo:
            set_namespace(repo, slug)
    with ana.open() as repo, pytest.raises(ValidationError, match="in use here: web"):
        unset_namespace(repo)
    with ana.open() as repo:
        assert repo.config.namespace == "infra"


def test_the_manifest_of_somebody_else_is_not_removed(tmp_path: Path) -> None:
    place = shared_directory(tmp_path)
    ana, bob = place.member("ana", namespace="infra"), place.member("bob")
    with bob.open() as repo:
        set_namespace(repo, "infra")
    with ana.open() as repo:
        unset_namespace(repo)
    assert json.loads(place.files()[f"infra/{MANIFEST}"])["repoId"] == bob.repo_id


def test_a_directory_that_is_not_mounted_has_no_list(tmp_path: Path) -> None:
    place = shared_directory(tmp_path)
    ana = place.member("ana")
    (tmp_path / "share").rmdir()
    with ana.open() as repo, pytest.raises(StoreNotMountedError):
        list_namespaces(repo)
    assert not (tmp_path / "share").exists()


def test_without_a_namespace_there_is_nothing_to_unset(tmp_path: Path) -> None:
    ana = shared_directory(tmp_path).member("ana")
    with ana.open() as repo, pytest.raises(ValidationError, match="no namespace"):
        unset_namespace(repo)


# Setting a datastore up ------------------------------------------------------------------------


def set_up(place: Place, name: str, namespace: str | None) -> list[str]:
    """Move a repository with data of its own to the bucket; return the warnings."""
    member = place.member(name)
    update_marker(str(member.repo_dir), {"datastore": None})
    member.save(f"of {name}")
    with member.open() as repo:
        address = Address(str(place.section["url"]))
        report = set_up_datastore(repo, address, namespace=namespace, environ=member.environ)
    return report.warnings


def test_setup_registers_the_namespace(tmp_path: Path) -> None:
    place = bucket_in_a_directory(tmp_path)
    set_up(place, "ana", "infra")
    ana = place.member("ana")
    assert json.loads(place.files()[f"infra/{MANIFEST}"])["repoId"] == ana.repo_id
    assert ana.read() == ["of ana"]


def test_setup_puts_nothing_into_a_namespace_of_others(tmp_path: Path) -> None:
    place = bucket_in_a_directory(tmp_path)
    set_up(place, "ana", "infra")
    before = place.files()
    with pytest.raises(SwampstoreError, match="belongs to the repository"):
        set_up(place, "bob", "infra")
    assert place.files() == before
    assert place.member("bob").read() == ["of bob"]


def test_setup_without_a_namespace_tells_of_those_of_others(tmp_path: Path) -> None:
    place = bucket_in_a_directory(tmp_path)
    assert not [one for one in set_up(place, "ana", "infra") if "namespaces" in one]
    told = [one for one in set_up(place, "bob", None) if "others have namespaces" in one]
    assert told
    assert "infra" in told[0]


def test_setup_takes_content_along_that_only_the_remote_has(tmp_path: Path) -> None:
    place = bucket_in_a_directory(tmp_path)
    writer = place.member("writer")
    writer.save("one", "two")
    writer.push()
    ana = place.member("ana", hydrationStrategy="lazy")
    ana.pull(metadata_only=True)
    with ana.open() as repo:
        address = Address(str(place.section["url"]))
        set_up_datastore(repo, address, namespace="infra", environ=ana.environ)
    contents = {data for key, data in place.files().items() if key.startswith("infra/data/")}
    assert {b"one", b"two"} <= contents
