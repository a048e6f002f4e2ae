"""Machines disagree, sync only a part, or meet what never crosses."""

# ruff: noqa: D102 - the names of the tests are the sentences

from __future__ import annotations

import pytest

from swampstore.layout import DataRef, ModelRef
from swampstore.testing.sync.machine import (
    PLAIN,
    STATE,
    Fixtures,
    Host,
    NewMachine,
    Plant,
    needs,
    settle,
    share,
)

SEVERAL = 230  # more than some services remember one by one


class Disagreements(Fixtures):
    """Work of one machine never disappears because of another."""

    def test_a_pull_leaves_unpushed_work_alone(self, here: Host, there: Host) -> None:
        share(here, there, {PLAIN: b"1"})
        here.write(PLAIN, b"theirs")
        here.write("files/new.txt", b"theirs")
        here.push()
        there.write(PLAIN, b"mine!!")
        there.write("files/new.txt", b"mine")
        there.pull()
        assert there.files()[PLAIN] == b"mine!!"
        assert there.files()["files/new.txt"] == b"mine"

    @pytest.mark.parametrize("pulls_first", [True, False])
    def test_both_edits_of_a_file_survive(self, here: Host, there: Host, pulls_first: bool) -> None:
        share(here, there, {PLAIN: b"1"})
        here.write(PLAIN, b"theirs")
        here.push()
        there.write(PLAIN, b"mine!!")
        if pulls_first:
            there.pull()
        there.push()
        settle(here, there)
        assert set(here.files().values()) == {b"theirs", b"mine!!"}
        assert here.files()[PLAIN] in {b"theirs", b"mine!!"}

    def test_equal_edits_are_one(self, here: Host, there: Host) -> None:
        share(here, there, {PLAIN: b"1"})
        here.write(PLAIN, b"same")
        there.write(PLAIN, b"same")
        here.push()
        assert there.push() == 0
        settle(here, there)
        assert here.files() == {PLAIN: b"same"}

    @pytest.mark.parametrize("deletion_comes_first", [True, False])
    def test_an_edit_outlives_a_deletion(
        self, here: Host, there: Host, deletion_comes_first: bool
    ) -> None:
        share(here, there, {PLAIN: b"1"})
        here.remove(PLAIN)
        there.write(PLAIN, b"edited")
        for host in (here, there) if deletion_comes_first else (there, here):
            host.push()
        settle(here, there)
        assert here.files() == {PLAIN: b"edited"}

    @pytest.mark.parametrize("pulls_first", [True, False])
    def test_colliding_versions_both_survive(
        self, here: Host, there: Host, third: Host, pulls_first: bool
    ) -> None:
        here.save(STATE, b"shared")
        here.push()
        hosts = (here, there, third)
        for host in hosts:
            host.pull()
        for host, content in zip(hosts, (b"red", b"green", b"blue"), strict=True):
            host.save(STATE, content)
            host.save(STATE, content + b" again")
        for host in hosts:
            if pulls_first:
                host.pull()
            host.push()
        settle(*hosts)
        versions = here.versions(STATE)
        colours = [b"red", b"red again", b"green", b"green again", b"blue", b"blue again"]
        assert sorted(versions.values(), key=str) == sorted([b"shared", *colours], key=str)
        assert here.latest(STATE) == max(versions)
        for version in versions:
            text = here.path(STATE.file_rel(version, "metadata.yaml")).read_text()
            assert f"\nversion: {version}\n" in text

    # Deletions need evidence -----------------------------------------------------------------

    def test_a_cache_deletes_nothing_that_it_never_had(self, here: Host, there: Host) -> None:
        here.save(STATE, b"1")
        here.write("files/d/a", b"1")
        here.push()
        there.mark("data")
        there.mark(STATE.rel)
        there.mark("files/d")
        there.put("files/d/b", b"2")
        assert there.push() == 1
        here.pull()
        assert here.versions(STATE) == {1: b"1"}
        assert {"files/d/a", "files/d/b"} < here.files().keys()

    def test_a_mark_without_a_path_deletes_nothing(self, here: Host, there: Host) -> None:
        share(here, there, {PLAIN: b"1"})
        there.service.mark_dirty()
        there.path(PLAIN).unlink()
        there.push()
        here.pull()
        assert here.files() == {PLAIN: b"1"}

    @pytest.mark.parametrize("bookkeeping", [True, False])
    def test_a_wiped_cache_deletes_nothing_and_is_restored(
        self, here: Host, there: Host, bookkeeping: bool
    ) -> None:
        here.save(STATE, b"1")
        here.write(PLAIN, b"1")
        here.push()
        there.pull()
        there.mark(PLAIN)
        there.wipe(bookkeeping=bookkeeping)
        there.machine.restart()
        there.push()
        here.pull()
        assert here.versions(STATE) == {1: b"1"}
        there.pull()
        assert there.versions(STATE) == {1: b"1"}

    def test_a_great_many_deletions_delete_only_those(
        self, here: Host, there: Host, third: Host
    ) -> None:
        gone = {f"files/{number}": b"%d" % number for number in range(SEVERAL)}
        share(here, there, {**gone, "files/kept": b"1"})
        third.pull()
        third.write("files/of-third", b"1")
        third.push()
        for rel in gone:
            here.remove(rel)
        assert here.push() == SEVERAL
        settle(here, there, third)
        assert here.files() == {"files/kept": b"1", "files/of-third": b"1"}


EC2 = STATE.model
LOGS = DataRef(EC2, "logs")
OF_EC2 = ("outputs/aws/ec2/start/run-1.yaml", "definitions-evaluated/aws/ec2/web.yaml")
SIBLING = DataRef(ModelRef("aws/ec2", "i-2"), "state")
PROBE = DataRef(ModelRef("@acme/probe", "p"), "state")
OF_PROBE = ("outputs/@acme/probe/run/run-2.yaml", "definitions-evaluated/@acme/probe/p.yaml")


class Portions(Fixtures):
    """Less than everything is synced on request, and nothing is lost by it."""

    def test_a_scoped_pull_brings_everything_of_a_model_and_nothing_else(
        self, here: Host, there: Host
    ) -> None:
        needs(here, "scoped_sync")
        mine = _fill(here)
        here.push()
        there.service.pull([EC2])
        assert there.files() == mine
        there.pull()
        assert there.files() == here.files()

    def test_a_scoped_pull_brings_changes_and_deletions(self, here: Host, there: Host) -> None:
        needs(here, "scoped_sync")
        _fill(here)
        here.push()
        there.service.pull([EC2])
        here.save(STATE, b"newer")
        here.remove(LOGS.rel)
        here.remove(OF_EC2[0])
        here.save(SIBLING, b"newer")
        here.push()
        there.service.pull([EC2])
        assert there.versions(STATE) == here.versions(STATE)
        assert there.latest(STATE) == here.latest(STATE)
        assert there.versions(LOGS) == there.versions(SIBLING) == {}
        assert OF_EC2[0] not in there.files()
        there.pull()
        assert there.files() == here.files()

    def test_a_scoped_pull_of_an_unknown_model_hides_nothing(self, here: Host, there: Host) -> None:
        needs(here, "scoped_sync")
        here.save(PROBE, b"1")
        here.push()
        assert there.service.pull([ModelRef("no/such", "model")]).changes == 0
        here.save(PROBE, b"2")
        here.push()
        there.service.pull([ModelRef("no/such", "model")])
        there.pull()
        assert there.files() == here.files()

    def test_a_scoped_push_leaves_the_other_marks(self, here: Host, there: Host) -> None:
        needs(here, "scoped_sync")
        share(here, there, {PLAIN: b"1"})
        mine = _fill(here)
        here.remove(PLAIN)
        here.service.push([EC2])
        there.pull()
        assert there.files() == {PLAIN: b"1", **mine}
        here.machine.restart()
        here.push()
        there.pull()
        assert there.files() == here.files()

    # Content on demand -----------------------------------------------------------------------

    def test_a_pull_of_metadata_leaves_content_away(self, here: Host, there: Host) -> None:
        needs(here, "lazy_hydration")
        _fill(here)
        here.push()
        there.service.pull(metadata_only=True)
        without = {rel: data for rel, data in here.files().items() if not rel.endswith("/raw")}
        assert there.files() == without
        assert (there.push(), here.pull()) == (0, 0)

    def test_content_is_brought_on_demand(self, here: Host, there: Host) -> None:
        needs(here, "lazy_hydration")
        here.save(STATE, b"1")
        here.save(STATE, b"2")
        here.push()
        there.service.pull(metadata_only=True)
        raw = STATE.file_rel(2, "raw")
        assert there.service.hydrate(there.mark_of(raw))
        assert there.versions(STATE) == {1: None, 2: b"2"}
        assert there.service.hydrate(there.mark_of(raw))
        assert not there.service.hydrate(there.mark_of(STATE.file_rel(9, "raw")))
        there.machine.restart()
        assert there.service.hydrate(there.mark_of(STATE.file_rel(1, "raw")))
        assert there.versions(STATE) == here.versions(STATE)
        assert (there.push(), here.pull()) == (0, 0)

    @pytest.mark.parametrize("is_scoped", [True, False])
    def test_a_whole_pull_brings_the_content_that_was_left_away(
        self, here: Host, there: Host, is_scoped: bool
    ) -> None:
        needs(here, "lazy_hydration", "scoped_sync")
        here.save(STATE, b"1")
        here.save(PROBE, b"2")
        here.push()
        there.service.pull(metadata_only=True)
        there.machine.restart()
        there.service.pull([EC2] if is_scoped else None)
        assert there.versions(STATE) == {1: b"1"}
        assert there.versions(PROBE) == {1: None if is_scoped else b"2"}

    def test_content_that_was_left_away_is_not_deleted(self, here: Host, there: Host) -> None:
        needs(here, "lazy_hydration")
        here.save(STATE, b"1")
        here.push()
        there.service.pull(metadata_only=True)
        assert there.save(STATE, b"2") == 2
        there.service.mark_dirty()
        there.push()
        here.pull()
        assert here.versions(STATE) == {1: b"1", 2: b"2"}

    def test_a_version_without_its_content_can_be_deleted(self, here: Host, there: Host) -> None:
        needs(here, "lazy_hydration")
        here.save(STATE, b"1")
        here.save(STATE, b"2")
        here.push()
        there.service.pull(metadata_only=True)
        there.remove(STATE.version_rel(1))
        there.push()
        settle(here, there)
        assert here.versions(STATE) == there.versions(STATE) == {2: b"2"}


def _fill(host: Host) -> dict[str, bytes]:
    """Write files of several models, and others; return those of one model."""
    others = host.files().keys()
    for content in (b"1", b"2"):
        host.save(STATE, content)
    host.save(LOGS, b"log")
    for rel in OF_EC2:
        host.write(rel, b"of ec2")
    mine = {rel: data for rel, data in host.files().items() if rel not in others}
    host.save(SIBLING, b"sibling")
    host.save(PROBE, b"probe")
    for rel in (*OF_PROBE, "files/other.txt", "logs/other.log"):
        host.write(rel, b"of others")
    return mine


STAYS = (
    ".datastore-index.json",
    ".datastore-sync-state.json",
    ".datastore.lock",
    ".push-queue.json",
    "_index/data--x.json",
    "_control/heartbeats/1",
    ".locks/red.lock",
    "data/aws/ec2/i-1/.lock",
    "data/aws/ec2/i-1/state/_catalog.db-wal",
    "files/.0b9d3c1e-6c3c-4a0b-9a51-1d5a0d4f1a11.tmp",
    "secrets/key",
    "bundles/code.js",
)
HOSTILE = ("../outside", "files/../../outside", "/etc/outside", "files//x", "files/./x", "a\\b")


class Borders(Fixtures):
    """Only what belongs to the user and to the namespace travels."""

    def test_bookkeeping_and_secrets_stay_on_their_machine(self, here: Host, there: Host) -> None:
        here.push()
        for rel in STAYS:
            if not here.path(rel).exists():
                here.write(rel, b"{}")
        here.write(PLAIN, b"1")
        here.service.mark_dirty()
        assert here.push() == 1
        there.pull()
        assert there.files() == {PLAIN: b"1"}
        assert not there.path("secrets").exists()

    def test_links_are_not_followed(self, here: Host, there: Host) -> None:
        outside = here.machine.cache_dir.parent / "outside"
        outside.mkdir(exist_ok=True)
        (outside / "private").write_bytes(b"private")
        here.write(PLAIN, b"1")
        here.path("files/link").symlink_to(outside / "private")
        here.path("files/directory").symlink_to(outside)
        here.mark("files/link")
        here.mark("files/directory/private")
        here.service.mark_dirty()
        here.push()
        there.pull()
        assert there.files() == {PLAIN: b"1"}

    def test_hostile_names_do_not_land(self, here: Host, there: Host, plant: Plant) -> None:
        here.write(PLAIN, b"1")
        here.push()
        # Of a lock that nobody can read has to be assumed that it is held.
        harmless = [rel for rel in STAYS if not rel.endswith(".lock")]
        plant(here.machine, dict.fromkeys([*HOSTILE, *harmless], b"hostile"))
        there.pull()
        assert there.files() == {PLAIN: b"1"}
        assert b"hostile" not in _files_around(there)
        here.write(PLAIN, b"2")
        here.push()
        there.pull()
        assert there.files() == {PLAIN: b"2"}

    def test_namespaces_do_not_see_each_other(self, new_machine: NewMachine) -> None:
        hosts = {name: Host(new_machine(name)) for name in ("", "red", "blue")}
        again = {name: Host(new_machine(name)) for name in hosts}
        needs(hosts[""], "namespaced_sync")
        for name, host in hosts.items():
            host.save(STATE, name.encode())
            host.write(f"files/{name or 'none'}", b"1")
            host.push()
        for name, host in again.items():
            host.pull()
            assert host.files() == hosts[name].files()
        again["red"].remove(STATE.rel)
        again["red"].service.mark_dirty()
        again["red"].push()
        for name, host in hosts.items():
            host.pull()
            expected = {} if name == "red" else {1: name.encode()}
            assert host.versions(STATE) == expected

    def test_a_preview_tells_and_does_nothing(self, here: Host, there: Host) -> None:
        share(here, there, {PLAIN: b"1", "files/a": b"1", "files/b": b"1", "files/c": b"1"})
        there.write("files/a", b"theirs")
        there.remove("files/b")
        there.push()
        here.write(PLAIN, b"mine")
        here.remove("files/c")
        before = here.files()
        for _ in range(2):
            told = here.service.preview()
            assert list(told.push) == [PLAIN]
            assert list(told.delete_remote) == ["files/c"]
            assert list(told.pull) == ["files/a"]
            assert list(told.delete_local) == ["files/b"]
        assert here.files() == before
        assert there.pull() == 0
        settle(here, there)
        assert here.files() == {PLAIN: b"mine", "files/a": b"theirs"}


def _files_around(host: Host) -> list[bytes]:
    """Return the contents of all files in and beside the cache, bookkeeping too."""
    around = host.machine.cache_dir.parent
    return [path.read_bytes() for path in around.rglob("*") if path.is_file()]
