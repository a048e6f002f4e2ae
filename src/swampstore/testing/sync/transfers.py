"""Changes travel, whatever interrupts them, and a service is told of them before they happen."""

# ruff: noqa: D102 - the names of the tests are the sentences

from __future__ import annotations

import os

import pytest

from swampstore.testing.sync.machine import EVERYWHERE, PLAIN, STATE, Fixtures, Host, needs, share


class Marks(Fixtures):
    """Whatever is marked, and nothing that is not changed, is pushed."""

    def test_a_mark_comes_before_the_file(self, here: Host, there: Host) -> None:
        here.push()
        here.mark("files/new/deep.txt")
        here.put("files/new/deep.txt", b"1")
        assert here.push() == 1
        there.pull()
        assert there.files() == {"files/new/deep.txt": b"1"}

    def test_a_marked_path_that_is_gone_is_deleted_everywhere(
        self, here: Host, there: Host
    ) -> None:
        share(here, there, {PLAIN: b"1", "files/kept.txt": b"2"})
        here.remove(PLAIN)
        assert here.push() == 1
        assert there.pull() == 1
        assert there.files() == {"files/kept.txt": b"2"}

    def test_a_mark_without_a_path_stands_for_everything(self, here: Host, there: Host) -> None:
        share(here, there, {PLAIN: b"1"})
        here.put(PLAIN, b"2")
        here.put("files/unmarked.txt", b"3")
        here.service.mark_dirty()
        here.push()
        there.pull()
        assert there.files() == {PLAIN: b"2", "files/unmarked.txt": b"3"}

    def test_a_restart_forgets_no_mark(self, here: Host, there: Host) -> None:
        share(here, there, {PLAIN: b"1", "files/gone.txt": b"1"})
        here.write(PLAIN, b"2")
        here.remove("files/gone.txt")
        here.machine.restart()
        here.push()
        there.pull()
        assert there.files() == {PLAIN: b"2"}

    def test_the_first_push_of_a_cache_looks_at_everything(self, here: Host, there: Host) -> None:
        here.put("files/older.txt", b"1")
        here.write(PLAIN, b"2")
        here.push()
        there.pull()
        assert there.files() == {"files/older.txt": b"1", PLAIN: b"2"}

    def test_marks_may_be_spelled_carelessly(self, here: Host, there: Host) -> None:
        here.push()
        for spelling in ("/{}", "./{}", "{}/", "x/../{}", "x//.././{}"):
            here.service.mark_dirty(spelling.format(here.mark_of("files")))
            here.put(PLAIN, spelling.encode())
            assert here.push() == 1, spelling
        there.pull()
        assert there.files() == here.files()

    def test_a_mark_outside_the_cache_stands_for_everything(self, here: Host, there: Host) -> None:
        here.push()
        for mark in ("", ".", "..", "../elsewhere", "files/../../elsewhere"):
            here.service.mark_dirty(mark)
            here.put(PLAIN, f"after {mark}".encode())
            assert here.push() == 1, mark
        there.pull()
        assert there.files() == here.files()

    def test_a_marked_directory_stands_for_all_below_it(self, here: Host, there: Host) -> None:
        share(here, there, {"files/d/a": b"1", "files/d/e/b": b"1", "files/d/same": b"1"})
        here.mark("files/d")
        here.put("files/d/a", b"2")
        here.put("files/d/f/new", b"2")
        here.path("files/d/e/b").unlink()
        assert here.push() == 3
        there.pull()
        assert there.files() == {"files/d/a": b"2", "files/d/f/new": b"2", "files/d/same": b"1"}

    def test_one_push_brings_everything_that_was_marked(self, here: Host, there: Host) -> None:
        here.push()
        for rel in EVERYWHERE:
            here.write(rel, rel.encode())
        assert here.push() == len(EVERYWHERE)
        there.pull()
        assert there.files() == {rel: rel.encode() for rel in EVERYWHERE}

    @pytest.mark.parametrize("bulk_comes_first", [True, False])
    def test_a_mark_without_a_path_outweighs_the_others(
        self, here: Host, there: Host, bulk_comes_first: bool
    ) -> None:
        here.push()
        marks = [None, here.mark_of(PLAIN)]
        for mark in marks if bulk_comes_first else reversed(marks):
            here.service.mark_dirty(mark)
        here.put(PLAIN, b"1")
        here.put("files/other.txt", b"2")
        here.push()
        there.pull()
        assert there.files() == {PLAIN: b"1", "files/other.txt": b"2"}

    def test_a_mark_may_be_repeated(self, here: Host, there: Host) -> None:
        here.push()
        for content in (b"1", b"2", b"3"):
            here.mark(PLAIN)
            here.mark(PLAIN)
            here.put(PLAIN, content)
        assert here.push() == 1
        here.write(PLAIN, b"4")
        assert here.push() == 1
        there.pull()
        assert there.files() == {PLAIN: b"4"}

    def test_a_mark_of_what_did_not_change_moves_nothing(self, here: Host, there: Host) -> None:
        share(here, there, {PLAIN: b"1"})
        here.write(PLAIN, b"1")
        here.mark("files/never/was")
        assert (here.push(), there.pull()) == (0, 0)


class Transfers(Fixtures):
    """What changed on one machine is on the others after a push and a pull."""

    def test_changes_travel_both_ways(self, here: Host, there: Host) -> None:
        share(here, there, {"files/a": b"old", "files/b": b"old", "files/c": b"old"})
        here.write("files/a", b"longer than before")
        here.write("files/empty", b"")
        here.remove("files/c")
        there.write("files/b", b"new")
        there.save(STATE, b"state 1")
        here.push()
        there.pull()
        there.push()
        here.pull()
        assert here.files() == there.files()
        assert here.files()["files/a"] == b"longer than before"
        assert here.files()["files/empty"] == b""
        assert here.files()["files/b"] == b"new"
        assert "files/c" not in here.files()
        assert here.versions(STATE) == {1: b"state 1"}

    def test_a_change_of_the_same_size_travels(self, here: Host, there: Host) -> None:
        here.save(STATE, b"one")
        here.push()
        there.pull()
        assert there.latest(STATE) == 1
        for content in (b"two", b"six"):
            there.save(STATE, content)
            there.push()
            here.pull()
        assert here.latest(STATE) == 3
        times = here.path(PLAIN).parent
        times.mkdir(parents=True, exist_ok=True)
        for content in (b"a", b"b"):
            here.write(PLAIN, content)
            os.utime(here.path(PLAIN), (1_700_000_000, 1_700_000_000))
            here.push()
            there.pull()
            assert there.files()[PLAIN] == content

    def test_a_large_file_travels(self, here: Host, there: Host) -> None:
        first, second = os.urandom(5 << 20), os.urandom(5 << 20)
        here.write(PLAIN, first)
        here.push()
        there.pull()
        assert there.files()[PLAIN] == first
        there.write(PLAIN, second)
        there.push()
        here.pull()
        assert here.files()[PLAIN] == second

    def test_nothing_to_do_moves_nothing(self, here: Host, there: Host) -> None:
        here.save(STATE, b"1")
        here.write(PLAIN, b"1")
        here.push()
        there.pull()
        before = {rel: there.path(rel).stat() for rel in there.files()}
        for host in (here, there):
            assert (host.pull(), host.push(), host.pull()) == (0, 0, 0)
            host.machine.restart()
            assert (host.push(), host.pull()) == (0, 0)
        assert {rel: there.path(rel).stat() for rel in before} == before

    def test_a_deleted_version_is_deleted_everywhere(self, here: Host, there: Host) -> None:
        for number in range(3):
            here.save(STATE, b"%d" % number)
        here.push()
        there.pull()
        there.remove(STATE.version_rel(1))
        there.push()
        here.pull()
        assert here.versions(STATE) == {2: b"1", 3: b"2"}
        there.remove(STATE.rel)
        there.push()
        here.pull()
        assert here.files() == {}

    def test_what_others_deleted_does_not_come_back(self, here: Host, there: Host) -> None:
        share(here, there, {PLAIN: b"1", "files/kept": b"1"})
        here.remove(PLAIN)
        here.push()
        there.service.mark_dirty()
        there.pull()
        there.push()
        here.pull()
        assert here.files() == there.files() == {"files/kept": b"1"}

    # Interruptions ---------------------------------------------------------------------------

    def test_what_is_marked_during_a_push_waits_for_the_next(self, here: Host, there: Host) -> None:
        needs(here, "two_phase_sync")
        here.push()
        here.write(PLAIN, b"1")
        prepared = here.service.prepare_push()
        here.write(PLAIN, b"2")
        here.write("files/during.txt", b"2")
        here.service.commit_push(prepared)
        here.machine.restart()
        here.push()
        there.pull()
        assert there.files() == {PLAIN: b"2", "files/during.txt": b"2"}

    def test_what_was_prepared_is_not_visible_before_the_commit(
        self, here: Host, there: Host
    ) -> None:
        needs(here, "two_phase_sync")
        share(here, there, {PLAIN: b"1", "files/gone.txt": b"1"})
        here.write("files/new.txt", b"2")
        here.remove("files/gone.txt")
        prepared = here.service.prepare_push()
        there.pull()
        assert there.files() == {PLAIN: b"1", "files/gone.txt": b"1"}
        assert here.service.commit_push(prepared).changes == 2
        there.pull()
        assert there.files() == {PLAIN: b"1", "files/new.txt": b"2"}
        assert here.push() == 0

    def test_what_was_only_prepared_is_pushed_again(self, here: Host, there: Host) -> None:
        needs(here, "two_phase_sync")
        share(here, there, {PLAIN: b"1"})
        here.write(PLAIN, b"2")
        here.save(STATE, b"1")
        here.service.prepare_push()
        here.machine.restart()
        here.push()
        there.pull()
        assert there.files()[PLAIN] == b"2"
        assert there.versions(STATE) == {1: b"1"}

    def test_two_prepared_pushes_are_both_committed(self, here: Host, there: Host) -> None:
        needs(here, "two_phase_sync")
        here.write("files/here", b"1")
        there.write("files/there", b"2")
        hers, his = here.service.prepare_push(), there.service.prepare_push()
        here.service.commit_push(hers)
        there.service.commit_push(his)
        here.pull()
        there.pull()
        assert here.files() == there.files() == {"files/here": b"1", "files/there": b"2"}

    def test_a_failed_push_keeps_its_marks(self, here: Host, there: Host) -> None:
        share(here, there, {PLAIN: b"1", "files/gone.txt": b"1"})
        here.write(PLAIN, b"2")
        here.remove("files/gone.txt")
        with here.machine.offline(), pytest.raises(Exception):  # noqa: B017, PT011 - any will do
            here.push()
        here.machine.restart()
        here.push()
        there.pull()
        assert there.files() == {PLAIN: b"2"}

    def test_a_failed_push_and_a_pull_lose_nothing(self, here: Host, there: Host) -> None:
        share(here, there, {PLAIN: b"1"})
        here.write(PLAIN, b"mine")
        here.write("files/new.txt", b"new")
        with here.machine.offline(), pytest.raises(Exception):  # noqa: B017, PT011 - any will do
            here.push()
        there.write("files/other.txt", b"other")
        there.push()
        here.pull()
        here.push()
        there.pull()
        assert there.files() == here.files()
        assert there.files() == {
            PLAIN: b"mine",
            "files/new.txt": b"new",
            "files/other.txt": b"other",
        }

    def test_a_failed_pull_is_made_up_for(self, here: Host, there: Host) -> None:
        share(here, there, {PLAIN: b"1"})
        here.write(PLAIN, b"2")
        here.push()
        with there.machine.offline(), pytest.raises(Exception):  # noqa: B017, PT011 - any will do
            there.pull()
        assert there.files() == {PLAIN: b"1"}
        there.pull()
        assert there.files() == {PLAIN: b"2"}
