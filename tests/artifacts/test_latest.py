"""Which version is latest, and what a marker says: one rule, in Python and in SQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from swampstore.artifacts.latest import (
    LatestOfSteps,
    is_right,
    latest_of,
    marker_content,
    marker_problem,
    parse_marker,
    wins,
)
from swampstore.artifacts.metadata import Draft, Owner
from swampstore.artifacts.versions import StoredVersion
from swampstore.catalog.catalog import Catalog
from swampstore.catalog.database import MemoryDatabase
from swampstore.layout import LARGEST_VERSION, DataRef, ModelRef

REF = DataRef(ModelRef("aws/ec2", "i-1"), "state")
NUMBERS = st.integers(1, 9)
MARKERS = st.integers(0, 10)
STORED = st.tuples(NUMBERS, st.sampled_from(["", "scan", "report"]), st.booleans())
CHANGE = st.tuples(st.lists(STORED, max_size=3), st.sets(NUMBERS, max_size=2), MARKERS)


@given(st.integers(1, LARGEST_VERSION))
def test_what_is_written_is_read(version: int) -> None:
    assert parse_marker(marker_content(version)) == version


def test_a_marker_is_read_as_links_and_other_clients_write_it() -> None:
    assert parse_marker(b"7\n") == 7
    assert parse_marker(b" 7/ ") == 7
    assert [parse_marker(one) for one in (b"", b"0", b"-1", b"07", b"v7", b"\xff7")] == [None] * 6


@given(st.sets(NUMBERS), st.sets(NUMBERS), st.none() | MARKERS)
def test_the_latest_version_is_the_highest_committed_one_up_to_the_marker(
    versions: set[int], committed: set[int], marker: int | None
) -> None:
    asked: list[int] = []

    def is_committed(version: int) -> bool:
        asked.append(version)
        return version in committed

    found = latest_of(versions, is_committed, marker=marker)
    within = {one for one in versions if marker is None or one <= marker}
    assert found == max(within & committed, default=0)
    assert asked == sorted((one for one in within if one >= found), reverse=True)


@given(st.none() | NUMBERS, st.sets(NUMBERS))
def test_a_marker_without_a_problem_names_the_newest_version(
    marker: int | None, versions: set[int]
) -> None:
    newest = latest_of(versions)
    problem = marker_problem(marker, versions, newest)
    assert (problem is None) == is_right(marker or 0, newest)
    assert (problem == "behind") == (marker in versions and not is_right(marker, newest))
    assert is_right(marker, newest, may_be_ahead=True) == (marker is not None and marker >= newest)


def test_the_higher_marker_stands() -> None:
    assert wins(2, 1)
    assert wins(1, None)
    assert not wins(1, 1)
    assert not wins(None, 1)


def stored(versions: Mapping[int, tuple[str, bool]]) -> list[StoredVersion]:
    found = []
    for version, (step, deferred) in versions.items():
        owner = Owner(ref="i-1", step_name=step)
        metadata = Draft().metadata(REF.name, version, owner, "2026-01-01T00:00:00Z", 0, "")
        found.append(StoredVersion(metadata, deferred))
    return found


def flags(catalog: Catalog) -> dict[int, bool]:
    return {row.version: bool(row.is_latest) for row in catalog.versions(REF)}


@settings(max_examples=50)
@given(st.lists(CHANGE, max_size=6))
def test_sql_and_python_flag_the_same_versions(
    changes: Sequence[tuple[list[tuple[int, str, bool]], set[int], int]],
) -> None:
    written_through, anew = Catalog(MemoryDatabase()), Catalog(MemoryDatabase())
    there: dict[int, tuple[str, bool]] = {}
    for added, removed, marker in changes:
        there |= {version: (step, deferred) for version, step, deferred in added}
        news = {version: there[version] for version, _, _ in added}
        for version in removed - news.keys():
            there.pop(version, None)
        gone = sorted(removed - news.keys())
        written_through.store(REF, stored(news), gone, marker)
        anew.replace(REF, stored(there), marker)
        steps = LatestOfSteps(marker)
        expected = {
            version: steps.is_latest(version, step, deferred=deferred)
            for version, (step, deferred) in sorted(there.items(), reverse=True)
        }
        assert flags(written_through) == flags(anew) == expected
        newest = latest_of((one for one, (_, waits) in there.items() if not waits), marker=marker)
        found = written_through.latest(REF)
        assert (found.version if found else 0) == newest
    written_through.close()
    anew.close()
