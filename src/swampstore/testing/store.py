"""The conformance suite of stores."""

# ruff: noqa: D102 - the names of the tests are the sentences

from __future__ import annotations

import hashlib
import io
import os
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from swampstore.errors import ValidationError
from swampstore.stores.errors import (
    CorruptObjectError,
    ObjectNotFoundError,
    PreconditionFailedError,
    UnsupportedOperationError,
)
from swampstore.stores.probe import (
    PREFIX,
    probe,
    proves_conditional_copy,
    proves_conditional_delete,
)
from swampstore.stores.protocol import ObjectInfo, Store, Written, contents, excerpt, folders, level

RACERS = 16
AWKWARD_KEYS = (
    "data/@swamp/aws/ec2/i-0/a b/1/raw",
    "data/50%/100%25/x",
    "data/a+b&c=d?e#f",
    "data/größe/日本語/x",
    "data/~user/.hidden/[x]{y}",
    "data/it's/$HOME/(1)!*",
    "data/colon:semi;comma,",
)
BAD_KEYS = ("", "/a", "a/", "a//b", "../a", "a/../b", "a/.", "./a", "a\nb", "a\0b", "x" * 1025)


class StoreConformance:
    """What every store must do, as tests to inherit.

    Say how your store is made, in a file that pytest collects::

        import pytest
        from swampstore.testing import StoreConformance

        class TestMyStore(StoreConformance):
            @pytest.fixture
            def store(self):
                with MyStore(...) as store:
                    yield store

    The store need not be empty and is not emptied: each test works below a prefix of its own. Set
    `clock_tolerance` if your test server's clock is known to be off. A store whose `capabilities`
    deny something must raise UnsupportedOperationError when asked for it.
    """

    clock_tolerance = timedelta(seconds=5)

    @pytest.fixture
    def store(self) -> Iterator[Store]:
        """The store under test; override this."""
        raise NotImplementedError

    @pytest.fixture
    def under(self) -> str:
        """A prefix that nobody else uses."""
        return f"conformance/{uuid.uuid4().hex}"

    # Reading and writing

    def test_what_was_put_is_what_is_got(self, store: Store, under: str) -> None:
        content = bytes(range(256)) * 3
        written = store.put(f"{under}/a", content)
        found = store.get(f"{under}/a")
        assert found.data == content
        assert found.info.key == f"{under}/a"
        assert found.info.size == len(content)
        assert (found.info.etag, found.info.token) == (written.etag, written.token)
        assert written.token

    def test_an_empty_object_is_an_object(self, store: Store, under: str) -> None:
        store.put(f"{under}/empty", b"")
        assert store.get(f"{under}/empty").data == b""
        assert store.head(f"{under}/empty").size == 0

    def test_a_put_replaces(self, store: Store, under: str) -> None:
        first = store.put(f"{under}/a", b"one, longer")
        second = store.put(f"{under}/a", b"two")
        assert store.get(f"{under}/a").data == b"two"
        assert first.etag != second.etag

    def test_a_file_is_put_from_its_start(self, store: Store, under: str) -> None:
        content = os.urandom(6 << 20)
        file = io.BytesIO(content)
        file.seek(17)
        store.put(f"{under}/big", file)
        assert store.get(f"{under}/big").data == content

    def test_a_real_file_is_put(self, store: Store, under: str, tmp_path: Path) -> None:
        (tmp_path / "body").write_bytes(b"from a file")
        with (tmp_path / "body").open("rb") as file:
            store.put(f"{under}/file", file)
        assert store.get(f"{under}/file").data == b"from a file"

    def test_head_tells_the_same_as_get(self, store: Store, under: str) -> None:
        store.put(f"{under}/a", b"abc")
        assert store.head(f"{under}/a") == store.get(f"{under}/a").info

    def test_a_missing_object_is_reported_by_name(self, store: Store, under: str) -> None:
        readers: list[Callable[[str], object]] = [
            store.get,
            store.head,
            lambda key: store.get_if_changed(key, '"etag"'),
            lambda key: store.copy(key, f"{under}/copy"),
        ]
        for read in readers:
            with pytest.raises(ObjectNotFoundError, match="missing") as told:
                read(f"{under}/missing")
            assert told.value.hint

    def test_an_unchanged_object_is_not_sent_again(self, store: Store, under: str) -> None:
        key = f"{under}/a"
        written = store.put(key, b"one")
        assert store.get_if_changed(key, written.etag) is None
        store.put(key, b"two")
        found = store.get_if_changed(key, written.etag)
        assert found is not None
        assert found.data == b"two"

    @pytest.mark.parametrize("key", AWKWARD_KEYS)
    def test_awkward_keys_survive(self, store: Store, under: str, key: str) -> None:
        store.put(f"{under}/{key}", key.encode())
        assert store.get(f"{under}/{key}").data == key.encode()
        assert [info.key for info in store.list(f"{under}/data/")] == [f"{under}/{key}"]
        store.copy(f"{under}/{key}", f"{under}/copy of {key}")
        assert store.get(f"{under}/copy of {key}").data == key.encode()
        store.delete(f"{under}/{key}")
        assert list(store.list(f"{under}/data/")) == []

    def test_dangerous_keys_are_refused_everywhere(self, store: Store) -> None:
        attempts: list[Callable[[str], object]] = [
            store.get,
            store.head,
            store.delete,
            lambda key: store.get_if_changed(key, '"etag"'),
            lambda key: store.put(key, b"x"),
            lambda key: store.put_if_absent(key, b"x"),
            lambda key: store.put_if_match(key, b"x", '"token"'),
            lambda key: store.copy("a", key),
        ]
        for attempt in attempts:
            for key in BAD_KEYS:
                with pytest.raises(ValidationError):
                    attempt(key)

    # Downloads

    @pytest.mark.parametrize("length", [0, 5, 1 << 20, (3 << 20) + 5])
    def test_a_download_replaces_the_content_of_the_file(
        self, store: Store, under: str, tmp_path: Path, length: int
    ) -> None:
        content = os.urandom(length)
        store.put(f"{under}/a", content)
        with (tmp_path / "file").open("wb+") as file:
            file.write(b"x" * (4 << 20))
            file.flush()
            digest = hashlib.sha256(content).hexdigest()
            info = store.download(f"{under}/a", file.fileno(), size=len(content), sha256=digest)
        assert (tmp_path / "file").read_bytes() == content
        assert info == store.head(f"{under}/a")

    def test_a_download_of_other_content_is_refused(
        self, store: Store, under: str, tmp_path: Path
    ) -> None:
        store.put(f"{under}/a", b"abc")
        with (tmp_path / "file").open("wb") as file:
            for size, received in ((2, b"ab"), (4, b"abc")):
                with pytest.raises(CorruptObjectError, match="bytes"):
                    store.download(f"{under}/a", file.fileno(), size=size)
                assert (tmp_path / "file").read_bytes() == received
            with pytest.raises(CorruptObjectError, match="SHA-256"):
                store.download(f"{under}/a", file.fileno(), sha256="0" * 64)
            with pytest.raises(ObjectNotFoundError):
                store.download(f"{under}/missing", file.fileno())

    # Listing

    def test_a_listing_tells_what_head_tells(self, store: Store, under: str) -> None:
        store.put(f"{under}/a", b"abc")
        [listed] = store.list(f"{under}/")
        head = store.head(f"{under}/a")
        assert (listed.key, listed.size, listed.etag) == (head.key, head.size, head.etag)
        assert listed.token in {head.token, None}
        assert abs(listed.last_modified - head.last_modified) < timedelta(seconds=2)

    def test_a_prefix_is_a_plain_string(self, store: Store, under: str) -> None:
        keys = {f"{under}/{name}" for name in ("ab/c", "ab-d", "abc/d", "b/ab", "a/b")}
        for key in keys:
            store.put(key, b"x")
        for prefix in ("", "a", "ab", "ab/", "abc", "abc/d", "abc/d/", "b/", "zz"):
            expected = {key for key in keys if key.startswith(f"{under}/{prefix}")}
            found = [info.key for info in store.list(f"{under}/{prefix}")]
            assert sorted(found) == sorted(expected), prefix

    def test_folders_are_what_is_directly_below(self, store: Store, under: str) -> None:
        for key in ("a/x", "a/b/c/d", "a b/50%", "größe/x", "plain"):
            store.put(f"{under}/{key}", b"")
        assert list(folders(store, f"{under}/")) == ["a", "a b", "größe"]
        assert list(folders(store, f"{under}/a/")) == ["b"]
        assert list(folders(store, f"{under}/nothing/")) == []

    def test_objects_directly_below_a_prefix_come_with_its_folders(
        self, store: Store, under: str
    ) -> None:
        for key in ("a/x", "a/b/c", "b", "c d"):
            store.put(f"{under}/{key}", b"12")
        found = level(store, f"{under}/")
        assert list(found.folders) == ["a"]
        assert [(info.key, info.size) for info in found.objects] == [
            (f"{under}/b", 2),
            (f"{under}/c d", 2),
        ]

    def test_content_that_comes_with_a_listing_is_what_is_stored(
        self, store: Store, under: str
    ) -> None:
        data = {f"{under}/{key}": key.encode() * 3 for key in ("a/x", "a/b/c", "b", "long key")}
        for key, content in data.items():
            store.put(key, content)
        asked: list[str] = []

        def wanted(info: ObjectInfo) -> bool:
            asked.append(info.key)
            return not info.key.endswith("/b")

        found = list(contents(store, f"{under}/", wanted, 10))
        assert sorted(asked) == sorted(one.info.key for one in found) == sorted(data)
        for one in found:
            assert one.is_wanted == (not one.info.key.endswith("/b"))
            may_come = one.is_wanted and one.info.size <= 10
            assert one.data in ((None, data[one.info.key]) if may_come else (None,))
            assert one.info.etag == store.head(one.info.key).etag

    def test_a_part_of_an_object_is_what_is_there(self, store: Store, under: str) -> None:
        store.put(f"{under}/a", b"0123456789")
        for start, length in ((0, 10), (0, 1), (3, 4), (9, 1)):
            assert excerpt(store, f"{under}/a", start, length) == b"0123456789"[start:][:length]
        with pytest.raises(ObjectNotFoundError):
            excerpt(store, f"{under}/b", 0, 1)
        for start in (8, 20):
            with pytest.raises(CorruptObjectError):
                excerpt(store, f"{under}/a", start, 5)

    def test_a_prefix_that_leads_elsewhere_is_refused(self, store: Store) -> None:
        for prefix in ("/", "/a", "../a", "a/../b", "a//b", "./a"):
            with pytest.raises(ValidationError):
                list(store.list(prefix))

    def test_a_listing_of_many_pages_is_complete(self, store: Store, under: str) -> None:
        keys = [f"{under}/{number % 7}/{number:04}" for number in range(1100)]
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(lambda key: store.put(key, b"x"), keys))
        assert sorted(info.key for info in store.list(f"{under}/")) == sorted(keys)

    # Conditions

    def test_only_the_first_create_succeeds(self, store: Store, under: str) -> None:
        key = f"{under}/a"
        first = store.put_if_absent(key, b"one")
        with pytest.raises(PreconditionFailedError, match=key):
            store.put_if_absent(key, b"two")
        found = store.get(key)
        assert (found.data, found.info.token) == (b"one", first.token)

    def test_an_update_needs_the_current_token(self, store: Store, under: str) -> None:
        key = f"{under}/a"
        first = store.put(key, b"one")
        second = store.put_if_match(key, b"two", first.token)
        with pytest.raises(PreconditionFailedError, match=key):
            store.put_if_match(key, b"three", first.token)
        assert store.get(key).data == b"two"
        assert store.put_if_match(key, b"four", second.token).token != second.token

    def test_an_update_of_what_is_gone_is_refused(self, store: Store, under: str) -> None:
        key = f"{under}/a"
        token = store.put(key, b"one").token
        store.delete(key)
        with pytest.raises(PreconditionFailedError):
            store.put_if_match(key, b"two", token)
        with pytest.raises(ObjectNotFoundError):
            store.get(key)

    def test_the_token_that_was_read_is_good_for_an_update(self, store: Store, under: str) -> None:
        key = f"{under}/a"
        store.put(key, b"one")
        token = store.get(key).info.token
        assert token is not None
        store.put_if_match(key, b"two", token)
        token = store.head(key).token
        assert token is not None
        store.put_if_match(key, b"three", token)

    def test_of_many_creates_at_once_one_wins(self, store: Store, under: str) -> None:
        key = f"{under}/a"
        winners = _race(lambda data: store.put_if_absent(key, data))
        assert winners == [store.get(key).data]

    def test_a_file_of_any_size_is_put_on_a_condition(
        self, store: Store, under: str, tmp_path: Path
    ) -> None:
        key = f"{under}/file"
        contents = [os.urandom(length) for length in (0, 5, (6 << 20) + 1)]
        for content in contents:
            (tmp_path / "body").write_bytes(content)
            with (tmp_path / "body").open("rb") as file:
                file.seek(3)
                first = store.put_if_absent(key, file)
                assert store.get(key).data == content
                with pytest.raises(PreconditionFailedError):
                    store.put_if_absent(key, io.BytesIO(b"another"))
                second = store.put_if_match(key, io.BytesIO(b"another"), first.token)
                with pytest.raises(PreconditionFailedError):
                    store.put_if_match(key, file, first.token)
                store.put_if_match(key, file, second.token)
            assert store.get(key).data == content
            store.delete(key)

    def test_of_many_large_files_at_once_one_wins(self, store: Store, under: str) -> None:
        size = 5 << 20
        bodies = [io.BytesIO(bytes([number]) * size) for number in range(4)]

        def create(body: io.BytesIO) -> bytes | None:
            try:
                store.put_if_absent(f"{under}/large", body)
            except PreconditionFailedError:
                return None
            return body.getvalue()

        with ThreadPoolExecutor(len(bodies)) as pool:
            winners = [content for content in pool.map(create, bodies) if content is not None]
        assert winners == [store.get(f"{under}/large").data]

    def test_of_many_updates_at_once_one_wins(self, store: Store, under: str) -> None:
        key = f"{under}/a"
        token = store.put(key, b"before").token
        winners = _race(lambda data: store.put_if_match(key, data, token))
        assert winners == [store.get(key).data]

    # Deleting and copying

    def test_deleting_what_is_gone_is_fine(self, store: Store, under: str) -> None:
        store.put(f"{under}/a", b"x")
        store.delete(f"{under}/a")
        store.delete(f"{under}/a")
        store.delete(f"{under}/never/was")
        with pytest.raises(ObjectNotFoundError):
            store.get(f"{under}/a")

    def test_a_conditional_deletion_needs_the_current_token(self, store: Store, under: str) -> None:
        key = f"{under}/a"
        first = store.put(key, b"one")
        second = store.put(key, b"two")
        if not store.capabilities.conditional_delete:
            with pytest.raises(UnsupportedOperationError):
                store.delete_if_match(key, second.token)
            return
        with pytest.raises(PreconditionFailedError):
            store.delete_if_match(key, first.token)
        assert store.get(key).data == b"two"
        store.delete_if_match(key, second.token)
        store.delete_if_match(key, second.token)
        with pytest.raises(ObjectNotFoundError):
            store.get(key)

    def test_a_copy_has_the_content_and_replaces(self, store: Store, under: str) -> None:
        store.put(f"{under}/from", b"abc")
        store.put(f"{under}/to", b"old")
        store.copy(f"{under}/from", f"{under}/to")
        assert store.get(f"{under}/to").data == b"abc"
        assert store.get(f"{under}/from").data == b"abc"

    def test_a_conditional_copy_needs_the_current_source_and_a_free_target(
        self, store: Store, under: str
    ) -> None:
        source, target = f"{under}/from", f"{under}/to"
        first = store.put(source, b"one")
        second = store.put(source, b"two")
        if not store.capabilities.conditional_copy:
            with pytest.raises(UnsupportedOperationError):
                store.copy_if_absent(source, target, second.token)
            return
        for wrong, token in ((source, first.token), (f"{under}/none", second.token)):
            with pytest.raises(PreconditionFailedError):
                store.copy_if_absent(wrong, target, token)
        with pytest.raises(ObjectNotFoundError):
            store.head(target)
        store.copy_if_absent(source, target, second.token)
        assert store.get(target).data == b"two"
        store.put(source, b"three")
        with pytest.raises(PreconditionFailedError):
            store.copy_if_absent(source, target, store.head(source).token or "")
        assert store.get(target).data == b"two"

    # The store itself

    def test_the_clock_and_the_dates_of_objects_agree(self, store: Store, under: str) -> None:
        store.put(f"{under}/a", b"x")
        modified = store.head(f"{under}/a").last_modified
        assert modified.tzinfo is not None
        assert abs(store.clock() - modified) < self.clock_tolerance
        assert abs(store.clock() - datetime.now(UTC)) < self.clock_tolerance

    def test_the_identity_says_where_it_is(self, store: Store) -> None:
        assert "://" in store.identity

    def test_the_probe_finds_nothing_and_leaves_nothing(self, store: Store) -> None:
        report = probe(store, racers=8)
        report.check()
        assert report.ok
        assert all(finding.ok for finding in report.findings)
        assert proves_conditional_delete(store) == store.capabilities.conditional_delete
        assert proves_conditional_copy(store) == store.capabilities.conditional_copy
        assert list(store.list(f"{PREFIX}/")) == []


def _race(write: Callable[[bytes], Written]) -> list[bytes]:
    """Write from many threads at once; return what the winners wrote."""

    def run(number: int) -> bytes | None:
        data = f"racer {number}".encode()
        try:
            write(data)
        except PreconditionFailedError:
            return None
        return data

    with ThreadPoolExecutor(RACERS) as pool:
        return [data for data in pool.map(run, range(RACERS)) if data is not None]
