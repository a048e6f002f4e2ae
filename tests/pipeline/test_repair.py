"""Repairs that are stopped anywhere: nothing that was there is lost, and the next one ends well."""

from __future__ import annotations

import hashlib
import random
import shutil
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import pytest

from swampstore.index.changes import index_moved
from swampstore.pipeline.errors import RepairStoppedError
from swampstore.pipeline.index_writer import IndexWriter, editing
from swampstore.pipeline.places import Place, places_of
from swampstore.pipeline.verify import kinds
from swampstore.pipeline.verify.mending import Wanted
from swampstore.pipeline.verify.repair import Mended, Repair
from swampstore.pipeline.verify.sources import Sources
from swampstore.stores.config import StoreConfig
from swampstore.stores.directory import DirectoryStore
from swampstore.stores.errors import StoreUnreachableError
from swampstore.stores.protocol import Store, Written
from tests.pipeline.test_verify import Home
from tests.support.broken_store import Killed
from tests.support.damage import Bucket
from tests.support.looking import found_at, look

MUTATING = frozenset({"put", "put_if_absent", "put_if_match", "delete", "delete_if_match", "copy"})
MODEL = "t/u/m"
NAMES = ["one", "two", "three"]


@dataclass
class Fuse:
    """How many requests that change something a machine has left; None: any number."""

    left: int | None = None
    is_dead: bool = False
    error: Callable[[], BaseException] = Killed
    lock: threading.Lock = field(default_factory=threading.Lock)

    def burn(self) -> None:
        with self.lock:
            if self.left == 0:
                self.is_dead = True
            elif self.left is not None:
                self.left -= 1


class FusedStore:
    """A store of a machine that dies with a fuse."""

    def __init__(self, inner: Store, fuse: Fuse) -> None:
        self._inner = inner
        self._fuse = fuse

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)

        def request(*args: Any, **members: Any) -> Any:
            if name in MUTATING and "lock" not in args[0]:
                self._fuse.burn()
            if self._fuse.is_dead:
                raise self._fuse.error()
            return found(*args, **members)

        return request if callable(found) and name != "close" else found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._inner.close()


@dataclass(frozen=True)
class FusedConfig:
    inner: StoreConfig
    path: str
    fuse: Fuse

    @property
    def limits(self) -> Any:
        return self.inner.limits

    def open(self) -> Any:
        return FusedStore(DirectoryStore(self.path, durable=False), self.fuse)


class Site:
    """A bucket that can be damaged and repaired again and again."""

    def __init__(self, root: Path, target: str | None = None) -> None:
        self.bucket = Bucket(root)
        self.fuse = Fuse()
        (place,) = places_of(f"file://{root}")
        config: Any = FusedConfig(place.config, str(root), self.fuse)
        self.place: Place = replace(place, config=config, target=target or place.target)

    def repair(self, *, gives_up: bool = True) -> Mended:
        seen = look(self.place)
        with editing(self.place) as writer:
            return Repair(self.place, seen.damaged(), seen.having, writer, gives_up=gives_up).run()

    def revive(self) -> None:
        """Start the machine again; its locks have become stale meanwhile."""
        self.fuse.left, self.fuse.is_dead = None, False
        for path in self.bucket.root.rglob("*"):
            if path.is_file() and (path.name.endswith(".lock") or "locks" in path.parts):
                path.unlink()

    def hashes(self) -> dict[str, str]:
        """Return the hash of every file that is data."""
        return {
            path: hashlib.sha256(data).hexdigest() for path, data in self.bucket.payload().items()
        }

    def contents(self) -> set[str]:
        """Return the hashes of all that is stored, quarantine included."""
        control = self.bucket.root / "_control/quarantine"
        kept = [path.read_bytes() for path in control.rglob("*") if path.is_file()]
        return {hashlib.sha256(one).hexdigest() for one in kept} | {*self.hashes().values()}


def wrong_at(place: Place) -> set[tuple[str, str]]:
    """Return what is wrong but for documents of the index: those are made anew by Spark."""
    return {(kind, one) for kind, one in found_at(place) if kind not in kinds.OF_DOCUMENTS}


@pytest.fixture(scope="module", params=[1, 2], ids=["version 1", "version 2"])
def filled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("filled")
    home = Home(directory / "ana", directory / "bucket")
    with home.open() as repo:
        for name in NAMES:
            for number in (1, 2, 3):
                repo.artifacts.save(MODEL, name, f"{name} {number} and some more".encode())
        repo.artifacts.save(MODEL, "twin", b"one 1 and some more")
        repo.sync.push()
        if request.param == 2:
            repo.sync.migrate_index()
    return directory / "bucket"


@pytest.fixture
def site(filled: Path, tmp_path: Path) -> Site:
    shutil.copytree(filled, tmp_path / "bucket")
    return Site(tmp_path / "bucket")


def rel(name: str, version: int, file: str = "raw") -> str:
    return f"data/{MODEL}/{name}/{version}/{file}"


def rotate(bucket: Bucket, rels: Collection[str]) -> None:
    """Have every path hold what the next one held."""
    contents = [bucket.get(one) for one in rels]
    for one, data in zip(rels, contents[1:] + contents[:1], strict=True):
        bucket.put(one, data)


ROTATED = {
    "content of two versions": [rel("one", 1), rel("one", 2)],
    "content of three versions": [rel("one", 1), rel("one", 2), rel("one", 3)],
    "content of several names": [rel("one", 1), rel("two", 2), rel("three", 3)],
    "metadata of two versions": [
        rel("one", 1, "metadata.yaml"),
        rel("one", 2, "metadata.yaml"),
    ],
}


@pytest.mark.parametrize("what", ROTATED)
def test_what_changed_places_goes_back_to_its_own(site: Site, what: str) -> None:
    before = site.bucket.payload()
    rotate(site.bucket, ROTATED[what])
    mended = site.repair()
    assert site.bucket.payload() == before
    assert wrong_at(site.place) == set()
    assert not mended.lost
    assert not mended.left
    assert mended.done == {"restore": len(ROTATED[what])}


def test_content_is_taken_from_an_object_whose_entry_is_put_right_at_once(site: Site) -> None:
    before = site.bucket.payload()
    right = rel("one", 1)
    site.bucket.edit(right, lambda entries: entries[right].update(size=7))
    site.bucket.put(rel("twin", 1), b"damaged")
    mended = site.repair()
    assert mended.done == {"adopt": 1, "restore": 1}
    assert site.bucket.payload() == before
    assert wrong_at(site.place) == set()


def test_versions_that_changed_places_as_a_whole_with_their_entries_go_back(site: Site) -> None:
    before = site.bucket.payload()
    rels = [rel("one", 1, "metadata.yaml"), rel("one", 2, "metadata.yaml")]
    contents = [site.bucket.get(one) for one in rels]
    for one, data in zip(rels, contents[::-1], strict=True):
        site.bucket.commit(one, data)
    assert not site.repair().lost
    assert site.bucket.payload() == before
    assert wrong_at(site.place) == set()


def test_a_repair_that_is_killed_anywhere_loses_nothing_and_the_next_one_finishes(
    filled: Path, tmp_path: Path
) -> None:
    kills = 0
    is_over = False
    while not is_over:
        root = tmp_path / f"killed-{kills}"
        shutil.copytree(filled, root)
        site = Site(root)
        before = site.bucket.payload()
        rotate(site.bucket, ROTATED["content of two versions"])
        # One more that cannot be restored, so that something leaves as well.
        damaged = rel("three", 2)
        site.bucket.put(damaged, b"nobody has what was here")
        there = site.contents()
        site.fuse.left = kills
        try:
            site.repair()
            is_over = True
        except Killed:
            kills += 1
        site.revive()
        assert there <= site.contents(), kills
        mended = site.repair()
        assert not mended.left, kills
        assert wrong_at(site.place) == set()
        assert there <= site.contents(), kills
        gone = {rel("three", 2), rel("three", 2, "metadata.yaml")}
        assert site.bucket.payload() == {
            path: data for path, data in before.items() if path not in gone
        }
    assert kills > 8


@pytest.mark.parametrize("damage", ["removed", "damaged"])
def test_what_a_repair_takes_for_lost_comes_back_from_a_cache_that_has_it(
    site: Site, tmp_path: Path, damage: str
) -> None:
    home = Home(tmp_path / "bob", site.bucket.root)
    with home.open() as repo:
        repo.sync.pull()
    content = site.bucket.get(rel("three", 2))
    if damage == "removed":
        (site.bucket.root / rel("three", 2)).unlink()
    else:
        site.bucket.put(rel("three", 2), b"nobody has what was here")
    assert site.repair().lost
    with home.open() as repo:
        repo.sync.pull()
        repo.sync.push()
        assert content in [one.bytes() for one in repo.versions(MODEL, "three")]
    assert content in site.bucket.payload().values()
    assert wrong_at(site.place) == set()


def test_a_repair_that_fails_says_how_far_it_came_and_where_copies_are(site: Site) -> None:
    before = site.bucket.payload()
    rotate(site.bucket, ROTATED["content of several names"])
    site.fuse.error = lambda: StoreUnreachableError("the network is down", hint="Wait.")
    site.fuse.left = 4  # three copies and one file
    with pytest.raises(RepairStoppedError) as stopped:
        site.repair()
    assert "the network is down" in stopped.value.message
    assert "begun to write" in stopped.value.message
    assert "(data/t/u/m/" in stopped.value.message
    assert "3 copies in _control/quarantine/" in stopped.value.message
    _, _, waiting = stopped.value.message.partition("Not restored yet: ")
    assert waiting == f"{', '.join(sorted(ROTATED['content of several names']))}."
    site.revive()
    assert not site.repair().lost
    assert site.bucket.payload() == before


def test_an_index_that_does_not_take_the_commit_costs_nothing(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = site.bucket.payload()
    rotate(site.bucket, ROTATED["content of two versions"])
    there = site.contents()

    def refuse(*_: object, **__: object) -> None:
        raise index_moved("others keep committing", ())

    with monkeypatch.context() as patch:
        patch.setattr("swampstore.pipeline.index_writer.IndexWriter.commit", refuse)
        with pytest.raises(RepairStoppedError, match="others keep committing"):
            site.repair()
    assert there <= site.contents()
    assert not site.repair().lost
    assert site.bucket.payload() == before
    assert wrong_at(site.place) == set()


def test_what_an_earlier_repair_set_aside_is_found_and_a_damaged_copy_is_not_believed(
    site: Site,
) -> None:
    lost = rel("one", 2)
    data = site.bucket.get(lost)
    quarantine = "_control/quarantine/20260101T000000Z-abcdef"
    site.bucket.put(f"{quarantine}/{lost}", data[:-1] + b"?")
    site.bucket.put(lost, b"damaged")
    there = site.contents()
    assert not site.repair(gives_up=False).done
    site.bucket.put(f"{quarantine}/anywhere/else", data)
    assert site.repair().done == {"restore": 1}
    assert site.bucket.get(lost) == data
    assert there <= site.contents()


def test_who_looks_at_a_part_of_a_store_gives_nothing_up(site: Site) -> None:
    site.bucket.put(rel("one", 2), b"damaged")
    before = site.bucket.payload()
    mended = site.repair(gives_up=False)
    assert not mended.done
    assert not mended.lost
    assert site.bucket.payload() == before
    assert site.repair().lost


def test_what_somebody_writes_during_a_repair_stays_with_its_whole_name(
    site: Site,
) -> None:
    rotate(site.bucket, [rel("one", 1), rel("one", 2), rel("two", 1), rel("two", 2)])
    seen = look(site.place)
    theirs = rel("one", 1)
    site.bucket.put(theirs, b"theirs")
    with editing(site.place) as writer:
        mended = Repair(site.place, seen.damaged(), seen.having, writer, gives_up=True).run()
    assert mended.left.keys() == {theirs}
    assert site.bucket.get(theirs) == b"theirs"
    assert site.bucket.get(rel("two", 1)).startswith(b"two 1")
    assert site.bucket.get(rel("one", 2)).startswith(b"two 1")


def test_an_object_that_somebody_writes_just_before_the_repair_does_is_not_replaced(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    rotate(site.bucket, ROTATED["content of two versions"])
    theirs = rel("one", 1)
    fetch = Sources.fetch

    def slow(self: Sources, wanted: Wanted, *args: Any) -> bool:
        if wanted.rel == theirs:
            site.bucket.put(theirs, b"theirs")
        return fetch(self, wanted, *args)

    monkeypatch.setattr(Sources, "fetch", slow)
    assert site.repair().left.keys() == {theirs}
    assert site.bucket.get(theirs) == b"theirs"


def test_an_object_that_somebody_writes_just_before_the_repair_removes_it_stays(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = rel("two", 1)
    site.bucket.put(theirs, b"damaged")
    check = IndexWriter.check

    def slow(self: IndexWriter) -> None:
        site.bucket.put(theirs, b"theirs")
        check(self)

    monkeypatch.setattr(IndexWriter, "check", slow)
    mended = site.repair()
    assert mended.left.keys() == {theirs}
    assert [one for one, _ in mended.lost] == [f"data/{MODEL}/two/1"]
    assert site.bucket.get(theirs) == b"theirs"


def test_a_store_that_does_not_keep_what_it_is_given_stops_the_repair(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    rotate(site.bucket, ROTATED["content of two versions"])
    before = site.contents()
    put = DirectoryStore.put_if_match

    def forgetful(self: DirectoryStore, key: str, body: Any, token: str) -> Written:
        is_data = key.endswith("/raw")
        return put(self, key, b"something else" if is_data else body, token)

    monkeypatch.setattr(DirectoryStore, "put_if_match", forgetful)
    with pytest.raises(RepairStoppedError, match="is not what was just written there"):
        site.repair()
    assert before <= site.contents()


def test_nothing_is_touched_of_which_the_copy_in_quarantine_is_another_one(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    rotate(site.bucket, ROTATED["content of two versions"])
    site.bucket.put(rel("three", 2), b"nobody has what was here, and this would leave")
    before = site.bucket.payload()

    def forgetful(self: DirectoryStore, source: str, target: str) -> None:
        self.put(target, self.get(source).data[:-1])

    monkeypatch.setattr(DirectoryStore, "copy", forgetful)
    mended = site.repair()
    assert site.bucket.payload() == before
    assert mended.done == {}
    assert mended.left


def test_what_is_left_of_a_deletion_stays_deleted_and_a_repair_removes_it(site: Site) -> None:
    gone = [rel("two", 3), rel("two", 3, "metadata.yaml")]
    named = rel("two", 2)  # the commit of its deletion did not happen
    with site.place.open() as store:
        objects = [
            {"rel": info.key, "size": info.size, "token": info.token}
            for info in map(store.head, [*gone, named])
        ]
    site.bucket.put_document("_control/removals/1.json", {"version": 1, "objects": objects})
    site.bucket.commit(f"data/{MODEL}/two/latest", b"2")
    for one in gone:
        site.bucket.edit(one, lambda entries, one=one: entries.pop(one))  # type: ignore[misc]
    assert wrong_at(site.place) == {(kinds.UNREMOVED, one) for one in gone}
    before = site.bucket.payload()
    rotate(site.bucket, ROTATED["content of two versions"])

    assert site.repair().done == {"restore": 2, "remove": 2}
    assert site.bucket.payload() == {
        path: data for path, data in before.items() if path not in gone
    }
    assert wrong_at(site.place) == set()
    assert not list((site.bucket.root / "_control").glob("removals/*"))


# Damage at random ------------------------------------------------------------------------------


def _swap(bucket: Bucket, chance: random.Random) -> None:
    files = [one for one in bucket.payload() if not one.endswith("latest")]
    rotate(bucket, chance.sample(files, chance.choice([2, 2, 3, 4])))


def _copy_over(bucket: Bucket, chance: random.Random) -> None:
    one, other = chance.sample(sorted(bucket.payload()), 2)
    bucket.put(one, bucket.get(other))


def _flip(bucket: Bucket, chance: random.Random) -> None:
    one = chance.choice(sorted(bucket.payload()))
    bucket.put(one, b"?" + bucket.get(one)[1:])


def _lose(bucket: Bucket, chance: random.Random) -> None:
    bucket.remove(chance.choice(sorted(bucket.payload())))


def _wrong_entry(bucket: Bucket, chance: random.Random) -> None:
    one = chance.choice(sorted(bucket.payload()))
    wrong: dict[str, object] = chance.choice(
        [{"size": 7}, {"sha256": "0" * 64}, {"size": 99, "sha256": "f" * 64}]
    )

    def change(entries: dict[str, Any]) -> None:
        if one in entries:
            entries[one] |= wrong

    bucket.edit(one, change)


def _in_quarantine(bucket: Bucket, chance: random.Random) -> None:
    one = chance.choice(sorted(bucket.payload()))
    data = bucket.get(one)
    is_damaged = chance.random() < 0.3
    run = f"_control/quarantine/20260101T000000Z-{chance.randrange(16**6):06x}"
    bucket.put(f"{run}/{one}", b"!" + data if is_damaged else data)
    bucket.put(one, b"damaged after it was set aside")


ANY_DAMAGE = [_swap, _swap, _copy_over, _flip, _lose, _wrong_entry, _in_quarantine]


@pytest.mark.parametrize("seed", range(6))
def test_whatever_was_there_before_a_repair_is_there_after_it(site: Site, seed: int) -> None:
    chance = random.Random(seed)
    right = site.hashes()
    damages = chance.choices(ANY_DAMAGE, k=chance.randrange(1, 7))
    for damage in damages:
        damage(site.bucket, chance)
    there = site.contents()
    if chance.random() < 0.5:
        site.fuse.left = chance.randrange(20)
    try:
        site.repair()
    except Killed:
        site.revive()
        assert there <= site.contents()
        site.repair()
    assert there <= site.contents()
    assert wrong_at(site.place) == set()
    after = site.hashes()
    for path in after.keys() & right.keys():
        assert path.endswith("latest") or after[path] == right[path], path
    if _wrong_entry not in damages:
        for name in NAMES:
            for version in (1, 2, 3):
                files = [rel(name, version), rel(name, version, "metadata.yaml")]
                if there.issuperset(right[path] for path in files):
                    assert after.keys() >= {*files}
