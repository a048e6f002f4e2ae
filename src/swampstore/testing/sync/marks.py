"""Marks: what a service is told of changes before they happen."""

# ruff: noqa: D102 - the names of the tests are the sentences

from __future__ import annotations

import pytest

from swampstore.testing.sync.ground import EVERYWHERE, PLAIN, Ground, share
from swampstore.testing.sync.host import Host


class Marks(Ground):
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
