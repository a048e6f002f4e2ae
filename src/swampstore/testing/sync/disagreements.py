"""Several machines change the same, or some of them lack what others have."""

# ruff: noqa: D102 - the names of the tests are the sentences

from __future__ import annotations

import pytest

from swampstore.testing.sync.ground import PLAIN, STATE, Ground, settle, share
from swampstore.testing.sync.host import Host

SEVERAL = 230  # more than some services remember one by one


class Disagreements(Ground):
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
