"""What the oracle expects no longer, and what it still does."""

from __future__ import annotations

import pytest

from tests.fleet.oracle import Found, Oracle
from tests.fleet.world import Violation

MODEL, NAME, ID = "t/m/a", "x", "85d33e1e-e299-4a00-8553-c521c39bc8f0"


def test_only_what_no_copy_has_that_is_left_went_with_one_that_was_collected() -> None:
    oracle = Oracle()
    work, content = oracle.new_work(MODEL, NAME, 10, "m0")
    oracle.saved(ID, MODEL, NAME, work, 0)
    pieces = [oracle.piece(work) for _ in range(3)]
    for by, piece in enumerate(pieces):
        oracle.appending(ID, by)
        oracle.appended(ID, piece, by)

    def check(*left: bytes) -> None:
        copies = [
            Found(
                *(MODEL, NAME, number, ID, work),
                is_tombstone=False,
                is_latest=number == len(left),
                content=content + piece,
            )
            for number, piece in enumerate(left, 1)
        ]
        oracle.check("m0", copies)

    first, second, third = pieces
    check(first, second, third)
    with pytest.raises(Violation, match="lacks"):
        check(second, third)
    oracle.collected({ID: {first, second}}, {ID: {second, third}})
    check(second, third)
    with pytest.raises(Violation, match="lacks"):
        check(third)
    with pytest.raises(Violation, match="does not have"):
        check()
