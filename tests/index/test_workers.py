"""Many pieces of work at once: what waits, what runs, what is told."""

from __future__ import annotations

import itertools
import threading

import pytest

from swampstore.errors import SwampstoreError
from swampstore.index.workers import Deadline, in_parallel


def taken(tasks: itertools.count[int]) -> int:
    """Return how many tasks were taken from a sequence without an end."""
    return next(tasks)


@pytest.mark.parametrize(("ahead", "most"), [(0, 6), (10, 16)])
def test_a_long_sequence_is_taken_from_as_far_as_something_may_wait(ahead: int, most: int) -> None:
    tasks = itertools.count()
    results = in_parallel(lambda task: task, tasks, 3, Deadline(), ahead=ahead)
    next(results)
    assert taken(tasks) == most


def test_work_goes_on_while_somebody_takes_his_time_with_a_result() -> None:
    done: list[int] = []
    all_done = threading.Event()

    def work(task: int) -> int:
        done.append(task)
        if len(done) == 30:
            all_done.set()
        return task

    results = in_parallel(work, range(30), 2, Deadline(), ahead=26)
    first = next(results)
    assert all_done.wait(10)
    rest = [one.result for one in results]
    assert sorted([first.result or 0, *(one or 0 for one in rest)]) == list(range(30))


def test_results_that_come_together_are_each_told_once() -> None:
    def work(task: int) -> int:
        if task % 100 == 7:
            raise SwampstoreError(f"{task} fails", hint="Nothing helps.")
        return task

    results = list(in_parallel(work, iter(range(2000)), 4, Deadline(), ahead=64))
    assert sorted(one.task for one in results) == list(range(2000))
    assert {one.task for one in results if one.error} == set(range(7, 2000, 100))
    assert all(one.result == one.task for one in results if not one.error)


def test_what_nobody_expected_is_raised_while_results_come_together() -> None:
    results = in_parallel(lambda task: 1 // (task - 300), range(2000), 4, Deadline(), ahead=64)
    with pytest.raises(ZeroDivisionError):
        list(results)
