"""What evidence about a few paths means: the rules of verify and reindex, without Spark."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swampstore.index.format import decode_entry
from swampstore.index.partitions import partition_of
from swampstore.index.removals import Note, Notes, Removal
from swampstore.index.versions import version_of
from swampstore.pipeline.evidence.rows import (
    Claim,
    Item,
    Seen,
    Total,
    TrustRules,
    believed,
    rows_in,
    rows_of,
)
from swampstore.pipeline.evidence.rows import Path as Evidence
from swampstore.pipeline.places import Place, places_of
from swampstore.pipeline.reindex.planned import Plan, Planned
from swampstore.pipeline.source.objects import Content
from swampstore.pipeline.source.objects import content_of as content_of_path
from swampstore.pipeline.verify import kinds
from swampstore.pipeline.verify.examination import Selection, stale_in
from swampstore.pipeline.verify.rules import examined
from swampstore.routing import Routing
from tests.support.staging import metadata_of

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
OLD = NOW - timedelta(days=1)
SHARDED = TrustRules(
    version_of(2),
    is_assumed=False,
    damaged=frozenset(),
    shards=None,
    since=NOW - timedelta(hours=1),
)
MONOLITHIC = SHARDED._replace(version=version_of(1))
LOOK = 7
NAME = "data/t/u/m/n"
DIGEST = hashlib.sha256(b"content").hexdigest()


def evidence(rel: str, *bodies: Claim | Seen) -> Evidence:
    path = Evidence(rel)
    for body in bodies:
        path.add(body, LOOK)
    return path


def claim(rel: str, size: int, sha256: str | None, **members: object) -> Claim:
    made = Claim(partition_of(rel), size, sha256)
    return msgspec.structs.replace(made, **members)


def seen(size: int, content: Content | None, *, at: datetime = OLD) -> Seen:
    return Seen(LOOK, size, "etag", at, content=content)


def content_of(rel: str, **members: object) -> Content:
    content = {
        "raw": Content(DIGEST, 7),
        "metadata.yaml": Content(
            "m", 9, checksum=DIGEST, claimed_size=7, described_name="n", described_version=1
        ),
        "latest": Content("l", 1, marker=1),
    }[rel.rpartition("/")[2]]
    return content._replace(**members)  # type: ignore[arg-type]


class Store:
    """A data name of one version that is whole, and what tests do to it."""

    def __init__(self) -> None:
        self.paths: dict[str, Evidence] = {}
        for rel in ("1/raw", "1/metadata.yaml", "latest"):
            self.put(rel)

    def put(self, rel: str, *, at: datetime = OLD, **members: object) -> None:
        """Have an object with an entry that is right."""
        path = f"{NAME}/{rel}"
        content = content_of(path, **members)
        assert content.bytes is not None
        there = seen(content.bytes, content, at=at)
        self.paths[rel] = evidence(path, claim(path, content.bytes, content.sha256), there)

    def found(self, trust: TrustRules = SHARDED) -> set[tuple[str, str]]:
        _, found = examined(NAME, self.paths.values(), trust)
        return {(one.kind, one.rel.removeprefix(f"{NAME}/")) for one in found}


def test_nothing_is_wrong_with_a_name_that_is_whole() -> None:
    assert Store().found() == set()


def _lose(store: Store, rel: str) -> None:
    del store.paths[rel]


def _forget_object(store: Store, rel: str) -> None:
    store.paths[rel].seen = None


def _forget_entry(store: Store, rel: str) -> None:
    store.paths[rel].claims.clear()


DAMAGE: dict[str, tuple[Callable[[Store], None], str, str]] = {
    "a missing object": (lambda s: _forget_object(s, "1/raw"), kinds.MISSING_OBJECT, "1/raw"),
    "an orphan": (lambda s: _forget_entry(s, "1/raw"), kinds.ORPHAN, "1/raw"),
    "missing content": (lambda s: _lose(s, "1/raw"), kinds.MISSING_CONTENT, "1/metadata.yaml"),
    "missing metadata": (lambda s: _lose(s, "1/metadata.yaml"), kinds.MISSING_METADATA, "1/raw"),
    "a missing marker": (lambda s: _lose(s, "latest"), kinds.MISSING_LATEST, "latest"),
    "a dangling marker": (
        lambda s: s.put("latest", marker=5),
        kinds.DANGLING_LATEST,
        "latest",
    ),
    "a marker without a number": (
        lambda s: s.put("latest", marker=None),
        kinds.DANGLING_LATEST,
        "latest",
    ),
    "metadata that nobody understands": (
        lambda s: s.put("1/metadata.yaml", error="no YAML"),
        kinds.UNDECODABLE_METADATA,
        "1/metadata.yaml",
    ),
    "metadata of another version": (
        lambda s: s.put("1/metadata.yaml", described_version=2),
        kinds.FOREIGN_METADATA,
        "1/metadata.yaml",
    ),
    "content of another size": (
        lambda s: s.put("1/metadata.yaml", claimed_size=8),
        kinds.SIZE_MISMATCH,
        "1/raw",
    ),
    "content of another hash": (
        lambda s: s.put("1/metadata.yaml", checksum="other"),
        kinds.CHECKSUM_MISMATCH,
        "1/raw",
    ),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_one_thing_that_is_wrong_is_found_once(what: str) -> None:
    happen, kind, rel = DAMAGE[what]
    store = Store()
    happen(store)
    found = store.found()
    if what == "missing metadata":
        found -= {(kinds.DANGLING_LATEST, "latest")}
    assert found == {(kind, rel)}


@pytest.mark.parametrize("kind", [kinds.CORRUPT, kinds.TRUNCATED, kinds.WRONG_SIZE])
def test_content_that_is_not_what_the_index_says_is_named(kind: str) -> None:
    content = {
        kinds.CORRUPT: Content("other", 7),
        kinds.TRUNCATED: Content("other", 6),
        kinds.WRONG_SIZE: Content("other", 8),
    }[kind]
    store = Store()
    rel = f"{NAME}/1/raw"
    for at in (OLD, NOW):
        there = seen(content.bytes or 0, content, at=at)
        store.paths["1/raw"] = evidence(rel, claim(rel, 7, DIGEST), there)
        assert store.found() == {(kind, "1/raw")}


@pytest.mark.parametrize("rel", ["1/raw", "1/metadata.yaml", "latest"])
@pytest.mark.parametrize("size", [0, 1000])
def test_an_entry_with_a_wrong_size_and_the_right_hash_is_the_one_that_is_wrong(
    rel: str, size: int
) -> None:
    store = Store()
    path = f"{NAME}/{rel}"
    for at in (OLD, NOW):
        store.put(rel, at=at)
        store.paths[rel].claims[:] = [claim(path, size, content_of(path).sha256)]
        assert store.found() == {(kinds.WRONG_ENTRY, rel)}


@pytest.mark.parametrize("digest", [None, "other"])
def test_an_entry_is_wrong_if_the_metadata_has_the_size_and_hash_of_the_content(
    digest: str | None,
) -> None:
    store = Store()
    path = f"{NAME}/1/raw"
    store.paths["1/raw"].claims[:] = [claim(path, 8, digest)]
    assert store.found() == {(kinds.WRONG_ENTRY, "1/raw")}
    store.put("1/metadata.yaml", checksum="something else")
    assert store.found() == {(kinds.TRUNCATED, "1/raw")}


def test_young_content_that_is_not_what_its_metadata_says_is_no_push_that_is_going_on() -> None:
    store = Store()
    store.put("1/raw", at=NOW, sha256="other")
    assert store.found() == {(kinds.CHECKSUM_MISMATCH, "1/raw")}


def test_half_a_version_is_only_in_flight_if_no_index_names_it() -> None:
    store = Store()
    store.put("1/metadata.yaml", at=NOW)
    _lose(store, "1/raw")
    assert store.found() == {(kinds.MISSING_CONTENT, "1/metadata.yaml")}
    _forget_entry(store, "1/metadata.yaml")
    in_place = SHARDED._replace(is_assumed=True)
    assert store.found(in_place) == {(kinds.IN_FLIGHT, "1/metadata.yaml")}


def test_a_young_marker_is_only_in_flight_with_a_version_that_no_index_names_yet() -> None:
    store = Store()
    named = claim(f"{NAME}/latest", 1, "the hash of another marker")
    for version in (1, 2):
        store.put("latest", at=NOW, marker=version)
        store.paths["latest"].claims[:] = [named]
        assert store.found() == {(kinds.CORRUPT, "latest")}
    store.put("2/metadata.yaml", at=NOW, described_version=2)
    _forget_entry(store, "2/metadata.yaml")
    assert store.found() == {(kinds.IN_FLIGHT, "latest"), (kinds.IN_FLIGHT, "2/metadata.yaml")}


def test_an_object_that_cannot_be_read_and_an_entry_nobody_understands_are_told_apart() -> None:
    store = Store()
    rel = f"{NAME}/1/raw"
    store.paths["1/raw"] = evidence(rel, claim(rel, 7, DIGEST), seen(7, Content(error="no")))
    assert store.found() == {(kinds.UNREADABLE, "1/raw")}
    store.paths["1/raw"] = evidence(rel, Claim(partition_of(rel), problem="?"), seen(7, None))
    assert store.found() == {(kinds.UNDECODABLE_ENTRY, "1/raw")}


def test_an_entry_in_a_wrong_shard_is_misplaced_and_one_too_many_a_duplicate() -> None:
    store = Store()
    rel = f"{NAME}/1/raw"
    stray = claim(rel, 7, DIGEST, partition="audit")
    store.paths["1/raw"].claims.append(stray)
    assert store.found() == {(kinds.DUPLICATE_ENTRY, "1/raw")}
    store.paths["1/raw"].claims[:] = [stray]
    assert store.found() == {(kinds.MISPLACED_ENTRY, "1/raw")}


def test_an_entry_that_leads_out_of_the_cache_is_never_believed() -> None:
    path = evidence("../outside", claim("../outside", 1, None))
    _, found = examined("../outside", [path], SHARDED)
    assert [one.kind for one in found] == [kinds.FORBIDDEN_ENTRY]
    assert believed(path, SHARDED) is None


def test_what_is_young_is_in_flight_and_not_damaged() -> None:
    store = Store()
    store.put("2/raw", at=NOW)
    _forget_entry(store, "2/raw")
    store.put("latest", at=NOW, marker=2)
    assert store.found() == {(kinds.IN_FLIGHT, "2/raw"), (kinds.IN_FLIGHT, "latest")}


def test_a_lost_shard_is_not_an_orphan_for_each_of_its_files() -> None:
    store = Store()
    _forget_entry(store, "1/raw")
    damaged = frozenset({partition_of(f"{NAME}/1/raw")})
    assert store.found(SHARDED._replace(damaged=damaged)) == set()
    assert store.found(SHARDED._replace(shards=frozenset({"audit"}))) == set()
    assert store.found(SHARDED._replace(is_assumed=True)) == set()


def test_content_of_an_earlier_look_counts_only_for_the_same_etag() -> None:
    rel = f"{NAME}/1/raw"
    before = msgspec.structs.replace(seen(7, Content("x", 7)), look=LOOK - 1)
    now = seen(7, None)
    assert evidence(rel, before, now).content == Content("x", 7)
    assert evidence(rel, before, msgspec.structs.replace(now, etag="new")).content is None
    assert evidence(rel, before).seen is None


bodies = st.one_of(
    st.builds(
        Claim,
        st.none() | st.text(),
        st.none() | st.integers(0, 2**53),
        st.none() | st.text(),
        st.none() | st.text(),
        st.none() | st.integers(0, 2**53),
        st.none() | st.text(),
        st.none() | st.binary(),
    ),
    st.builds(
        Seen,
        st.integers(0, 2**53),
        st.integers(0, 2**53),
        st.text(),
        st.datetimes(timezones=st.just(UTC)),
        st.booleans(),
        st.none() | st.builds(Content, st.text(), *[st.none() | st.integers(0, 2**63 - 1)] * 2),
    ),
)


@settings(deadline=None)  # the first time, Arrow is loaded
@given(st.lists(st.tuples(st.text(min_size=1), bodies)))
def test_evidence_survives_its_way_between_tasks(items: list[Item]) -> None:
    found = list(rows_of(3, items))
    assert len({unit for _, unit, _ in found}) == len(found)
    assert {place for place, _, _ in found} <= {3}
    assert sorted(_sent(items), key=repr) == sorted(items, key=repr)


def _sent(items: Iterable[Item]) -> list[Item]:
    columns = zip(*rows_of(0, items), strict=True)
    arrays = [pa.array(column) for column in columns]
    if not arrays:
        return []
    batch = pa.RecordBatch.from_arrays(arrays, ["place", "unit", "body"])
    return [item for _, _, found in rows_in([batch]) for item in found]


@pytest.mark.parametrize("member", ["version: 1", "size: 7"])
def test_metadata_with_an_absurd_number_is_damaged_and_ends_nothing(member: str) -> None:
    data = metadata_of("n", 1, b"content")
    assert member.encode() in data
    absurd = data.replace(member.encode(), f"{member.split(maxsplit=1)[0]} {'9' * 30}".encode())
    found = content_of_path(f"{NAME}/1/metadata.yaml", absurd)
    assert found.error
    assert _sent([("x", seen(1, found))]) == [("x", seen(1, found))]


def test_totals_add_up() -> None:
    both = Total(1, 10, 1, NOW) + Total(2, 20, 0, OLD)
    assert both == Total(3, 30, 1, OLD)
    assert sum([], Total()) == Total()


# Documents ---------------------------------------------------------------------------------------


def test_a_shard_of_version_1_is_stale_where_it_differs_from_the_monolith() -> None:
    rel = f"{NAME}/1/raw"
    home = partition_of(rel)
    monolith = Claim(None, 7, DIGEST)
    same, other = claim(rel, 7, DIGEST), claim(rel, 7, "x")
    assert list(stale_in(evidence(rel, monolith, same))) == []
    assert list(stale_in(evidence(rel, monolith, other))) == [home]
    assert list(stale_in(evidence(rel, monolith))) == [home]
    assert list(stale_in(evidence(rel, same))) == [home]
    assert sorted(
        stale_in(evidence(rel, monolith, same, claim(rel, 7, DIGEST, partition="a")))
    ) == ["a"]
    # Other clients leave such a path out of all shards.
    assert list(stale_in(evidence("data/x", Claim(None, 1)))) == []


# Slices and samples ------------------------------------------------------------------------------

rels = st.sampled_from(
    [
        f"data/t/u/m{model}/n{name}/{rest}"
        for model in range(4)
        for name in range(3)
        for rest in ("1/raw", "1/metadata.yaml", "2/raw", "latest")
    ]
    + ["audit/2026.jsonl", "logs/a", "files/x/y"]
)


@given(rels, st.integers(1, 6))
def test_every_path_is_in_one_slice_and_all_data_of_a_model_in_the_same(
    rel: str, count: int
) -> None:
    slices = [number for number in range(1, count + 1) if Selection((number, count)).has(rel)]
    assert len(slices) == 1
    if rel.startswith("data/"):
        model = "/".join(rel.split("/")[:4])
        assert Selection((slices[0], count)).has(f"{model}/another/9/raw")


@given(rels, st.floats(0.01, 1))
def test_of_a_version_all_files_are_in_a_sample_or_none(rel: str, share: float) -> None:
    selection = Selection(sample=share)
    if rel.endswith("/raw"):
        assert selection.reads(rel) == selection.reads(rel.replace("raw", "metadata.yaml"))


# What an index made anew says --------------------------------------------------------------------


@pytest.fixture
def place(tmp_path: Path) -> Place:
    (tmp_path / f"bucket/{NAME}/1").mkdir(parents=True)
    (tmp_path / f"bucket/{NAME}/1/raw").write_bytes(b"content")
    (found,) = places_of(f"file://{tmp_path / 'bucket'}")
    return found


RAW = f"{NAME}/1/raw"
ENTRY = b'{"key":"data/t/u/m/n/1/raw","size":7,"lastModified":"2026-01-01T00:00:00.000Z","mark":1}'


def plan(place: Place, trust: TrustRules = SHARDED, **members: bool) -> Plan:
    made = Plan(place, LOOK, trust, frozenset({"hidden"}), 42, adopts=True, rehash=False)
    return replace(made, **members)  # type: ignore[arg-type]


def planned(plan: Plan, paths: Iterable[Evidence]) -> Planned:
    with plan.place.open() as store:
        (one,) = plan.planned(store, paths)
    return one


def test_an_entry_that_can_be_understood_stays_byte_for_byte(place: Place) -> None:
    path = evidence(RAW, claim(RAW, 7, DIGEST, raw=ENTRY), seen(7, None))
    assert planned(plan(place), [path]) == Planned(RAW, "kept", ENTRY)
    assert planned(plan(place, rehash=True), [path]) == Planned(RAW, "kept", ENTRY)


def test_an_entry_that_contradicts_its_object_stays_and_is_counted(place: Place) -> None:
    wrong = claim(RAW, 7, "other", raw=ENTRY)
    path = evidence(RAW, wrong, seen(7, None))
    assert planned(plan(place, rehash=True), [path]) == Planned(RAW, "contradicted", ENTRY)
    assert planned(plan(place), [evidence(RAW, wrong)]) == Planned(RAW, "contradicted", ENTRY)


def test_an_entry_without_a_hash_gets_one_and_keeps_what_others_wrote(place: Place) -> None:
    path = evidence(RAW, claim(RAW, 7, None, raw=ENTRY), seen(7, None))
    one = planned(plan(place), [path])
    assert one.fate == "hashed"
    assert one.entry is not None
    assert msgspec.json.decode(one.entry)["mark"] == 1
    entry = decode_entry(RAW, msgspec.Raw(one.entry))
    assert (entry.sha256, entry.commit_seq) == (DIGEST, 42)


def test_an_object_that_nobody_names_is_adopted_when_it_is_old(place: Place) -> None:
    assert planned(plan(place), [evidence(RAW, seen(7, None))]).fate == "adopted"
    assert planned(plan(place), [evidence(RAW, seen(7, None, at=NOW))]).fate == "waiting"
    keeps_out = plan(place, adopts=False)
    assert planned(keeps_out, [evidence(RAW, seen(7, None))]) == Planned(RAW, "waiting")


@pytest.mark.parametrize("is_lost", [False, True])
def test_what_is_left_of_a_deletion_is_not_adopted(place: Place, is_lost: bool) -> None:
    note = Note("_control/removals/1.json", (Removal(RAW, 7, DIGEST),), NOW)
    trust = SHARDED._replace(notes=Notes.of([note]), is_assumed=is_lost)
    there = evidence(RAW, seen(7, Content(DIGEST, 7)))
    assert planned(plan(place, trust), [there]) == Planned(RAW, "leaving")
    unread = evidence(RAW, seen(7, None))
    assert planned(plan(place, trust), [unread]) == Planned(RAW, "leaving")
    _, found = examined(NAME, [there], trust)
    assert [one.kind for one in found] == [kinds.UNREMOVED]
    another = evidence(RAW, seen(7, Content("other", 7)))
    assert planned(plan(place, trust), [another]).fate != "leaving"


def test_an_entry_of_a_lost_document_is_taken_from_one_that_is_proven_right(place: Place) -> None:
    lost = MONOLITHIC._replace(is_assumed=True)
    shard = claim(RAW, 7, DIGEST, raw=ENTRY)
    assert planned(plan(place, lost), [evidence(RAW, shard, seen(7, None))]) == Planned(
        RAW, "kept", ENTRY
    )
    wrong = claim(RAW, 7, "other", raw=ENTRY)
    assert planned(plan(place, lost), [evidence(RAW, wrong, seen(7, None))]).fate == "made"


def test_what_has_neither_an_object_nor_a_meaning_is_dropped(place: Place) -> None:
    hidden = claim(RAW, 7, DIGEST, raw=ENTRY, partition="hidden")
    assert planned(plan(place), [evidence(RAW, hidden)]) == Planned(RAW, "dropped")
    senseless = claim(RAW, 7, None, problem="?", raw=b"1")
    assert planned(plan(place), [evidence(RAW, senseless)]) == Planned(RAW, "dropped")


def test_an_object_that_vanishes_before_it_is_hashed_gets_no_entry(place: Place) -> None:
    gone = f"{NAME}/2/raw"
    assert planned(plan(place), [evidence(gone, seen(7, None))]) == Planned(gone, "dropped")


def test_content_that_the_settings_keep_on_its_machine_is_not_missing() -> None:
    store = Store()
    _lose(store, "1/raw")
    kept = SHARDED._replace(routing=Routing(exclude=["data/**/n/*/raw"]))
    others = SHARDED._replace(routing=Routing(exclude=["data/**/other/*/raw"]))
    assert store.found(kept) == set()
    assert store.found(others) == {(kinds.MISSING_CONTENT, "1/metadata.yaml")}
