"""A lock that is alive looks alive to everybody who judges it by its document."""

from __future__ import annotations

from typing import Any

from tests.support.locking import held
from tests.support.mongodb import MongoRemote


def test_h37_a_proof_moves_the_time_by_which_others_judge_a_lock(
    mongodb_remote: MongoRemote,
) -> None:
    locks: Any = mongodb_remote.collection("locks")
    with mongodb_remote.open() as store, held(store) as lock:
        [before] = locks.find({})
        lock.verify()
        [after] = locks.find({})
    assert after["acquiredAtMs"] > before["acquiredAtMs"]
    assert after["expiresAt"] >= before["expiresAt"]
    assert after["nonce"] == before["nonce"]
