"""What the oracle expects no longer, and what it still does."""

from __future__ import annotations

import pytest

from tests.fleet.checks import check_agreement
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


def test_another_version_than_the_highest_as_the_latest_is_found() -> None:
    oracle = Oracle()
    copies = []
    for number, id_ in enumerate((ID, "0a9b1c2d-0000-4a00-8553-c521c39bc8f0"), 1):
        work, content = oracle.new_work(MODEL, NAME, 10, "m0")
        oracle.saved(id_, MODEL, NAME, work, 0)
        address = (MODEL, NAME, number, id_, work)
        is_first = number == 1
        copies.append(Found(*address, is_tombstone=False, is_latest=is_first, content=content))
    with pytest.raises(Violation, match="latest"):
        oracle.check("m0", copies)
    oracle.check("m0", [one._replace(is_latest=one.version == 2) for one in copies])


def test_whoever_sees_something_else_than_the_others_is_found() -> None:
    one = Found(MODEL, NAME, 1, ID, "w", is_tombstone=False, is_latest=True, content=b"x")
    check_agreement([("m0", [one]), ("m1", [one])])
    for other in ([], [one._replace(version=2)], [one._replace(content=b"y")]):
        with pytest.raises(Violation, match="m0 and a fresh machine differ"):
            check_agreement([("m0", [one]), ("a fresh machine", other)])
