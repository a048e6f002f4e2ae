"""Any sequence of operations has the same outcome on a directory as in memory."""

from __future__ import annotations

import contextlib
import shutil
import tempfile

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from swampstore.stores import Store
from swampstore.stores.directory import DirectoryStore
from swampstore.stores.errors import ObjectNotFoundError, PreconditionFailedError
from swampstore.stores.memory import MemoryStore

# No key is a directory of another one: a file cannot be both.
KEYS = st.sampled_from(["a", "b/c", "b/d", "b/e/f", "b-g", "b.h/i"])
DATA = st.binary(max_size=4)


class TwoStores(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.root = tempfile.mkdtemp()
        self.directory = DirectoryStore(self.root, durable=False)
        self.memory = MemoryStore()
        self.tokens: dict[str, list[tuple[str, str]]] = {}

    def teardown(self) -> None:
        self.directory.close()
        shutil.rmtree(self.root)

    def _remember(self, key: str, both: list[str | None]) -> None:
        first, second = both
        assert (first is None) == (second is None)
        if first is not None and second is not None:
            self.tokens.setdefault(key, []).append((first, second))

    @property
    def _stores(self) -> list[Store]:
        return [self.directory, self.memory]

    @rule(key=KEYS, data=DATA)
    def put(self, key: str, data: bytes) -> None:
        self._remember(key, [store.put(key, data).token for store in self._stores])

    @rule(key=KEYS, data=DATA)
    def create(self, key: str, data: bytes) -> None:
        self._remember(key, [_create(store, key, data) for store in self._stores])

    @rule(key=KEYS, data=DATA, which=st.integers(0, 50))
    def update(self, key: str, data: bytes, which: int) -> None:
        known = self.tokens.get(key)
        if known:
            tokens = known[-1 - which % len(known)]
            pairs = zip(self._stores, tokens, strict=True)
            self._remember(key, [_update(store, key, data, token) for store, token in pairs])

    @rule(key=KEYS, which=st.integers(0, 50))
    def delete_on_condition(self, key: str, which: int) -> None:
        known = self.tokens.get(key)
        if known:
            for store, token in zip(self._stores, known[-1 - which % len(known)], strict=True):
                with contextlib.suppress(PreconditionFailedError):
                    store.delete_if_match(key, token)

    @rule(key=KEYS)
    def delete(self, key: str) -> None:
        for store in self._stores:
            store.delete(key)

    @rule(source=KEYS, goal=KEYS)
    def copy(self, source: str, goal: str) -> None:
        for store in self._stores:
            with contextlib.suppress(ObjectNotFoundError):
                store.copy(source, goal)

    @invariant()
    def both_hold_the_same(self) -> None:
        contents = [
            [(info.key, info.size, store.get(info.key).data) for info in store.list()]
            for store in self._stores
        ]
        assert contents[0] == contents[1]

    @rule(prefix=st.sampled_from(["b", "b/", "b-", "b/e", "b.h/i", "z"]))
    def listings_agree(self, prefix: str) -> None:
        found = [[info.key for info in store.list(prefix)] for store in self._stores]
        assert found[0] == found[1]


def _create(store: Store, key: str, data: bytes) -> str | None:
    try:
        return store.put_if_absent(key, data).token
    except PreconditionFailedError:
        return None


def _update(store: Store, key: str, data: bytes, token: str) -> str | None:
    try:
        return store.put_if_match(key, data, token).token
    except PreconditionFailedError:
        return None


TwoStores.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestTwoStores = TwoStores.TestCase
