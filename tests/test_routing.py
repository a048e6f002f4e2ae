"""What is in the datastore and what on one machine only."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swampstore.layout import ALWAYS_LOCAL_SUBDIRS, DATASTORE_SUBDIRS
from swampstore.routing import Routing
from tests.test_layout import PATHOLOGICAL


def test_everything_but_the_always_local_subdirs_is_in_the_datastore_by_default() -> None:
    routing = Routing()
    for name in DATASTORE_SUBDIRS:
        assert routing.is_local(f"{name}/x") == (name in ALWAYS_LOCAL_SUBDIRS)
    assert routing.is_local("datastore-bundles/x")
    assert routing.is_local("pulled-extensions/x")
    assert not routing.may_split("data/a/b/c")


def test_only_the_chosen_directories_are_in_the_datastore() -> None:
    routing = Routing(["outputs"])
    assert not routing.is_local("outputs/a.yaml")
    assert routing.is_local("data/a/b/c/1/raw")
    assert routing.is_local("outputs-of-mine/a")


@given(
    st.lists(st.sampled_from(DATASTORE_SUBDIRS)),
    st.lists(st.sampled_from(["!secrets", "!secrets/**", "!**", "!bundles/x", "**"])),
    st.sampled_from(sorted(ALWAYS_LOCAL_SUBDIRS)),
)
def test_h71_no_setting_can_move_secrets_or_bundles_into_the_datastore(
    directories: list[str], exclude: list[str], subdir: str
) -> None:
    routing = Routing(directories, exclude)
    assert subdir not in routing.subdirs
    assert routing.is_local(subdir)
    assert routing.is_local(f"{subdir}/local_encryption/vault/key")
    assert not routing.may_split(subdir)


@pytest.mark.parametrize(
    ("pattern", "excluded", "kept"),
    [
        ("logs", ["logs", "logs/a", "logs/a/b"], ["logs2/a", "data/logs/a"]),
        ("logs/", ["logs/a"], ["data/logs/a"]),
        ("/logs", ["logs/a"], ["data/logs/a"]),
        ("telemetry/**", ["telemetry/a", "telemetry/a/b"], ["telemetry", "data/telemetry/a"]),
        ("data/*/raw", ["data/a/raw"], ["data/raw", "data/a/b/raw"]),
        ("data/**/raw", ["data/raw", "data/a/raw", "data/a/b/c/1/raw"], ["data/a/raw2"]),
        ("**/raw", ["data/a/raw"], ["data/a/xraw"]),
        ("data/a**z", ["data/az", "data/a/b/z"], ["data/b/z"]),
        ("data/?", ["data/a", "data/ä/raw"], ["data", "data/ab"]),
        ("data/[ab-d]x", ["data/ax", "data/cx/1"], ["data/ex", "data/x"]),
        ("data/[!a]x", ["data/bx"], ["data/ax", "data/x"]),
        ("data/[^a]x", ["data/bx"], ["data/ax"]),
        ("data/[]x]", ["data/]", "data/x"], ["data/y"]),
        ("data/[!]", ["data/!"], ["data/a"]),
        ("data/[[&&--~]", ["data/[", "data/&"], ["data/a"]),
        ("data/[z-a]", [], ["data/z", "data/m"]),
        ("data/[a", ["data/[a"], ["data/a"]),
        ("data[+-9]a", ["data5a"], ["data/a"]),
        ("data/a.b+(c)", ["data/a.b+(c)"], ["data/aXb+(c)"]),
        ("data/*.log", ["data/a.log", "data/.log"], ["data/a.log2"]),
        ("data/**", ["data/a\nb/raw"], []),
    ],
)
def test_a_pattern_is_anchored_to_the_whole_path_and_covers_what_is_below(
    pattern: str, excluded: list[str], kept: list[str]
) -> None:
    routing = Routing([*DATASTORE_SUBDIRS, "data5a", "logs2"], [pattern])
    assert [path for path in excluded if not routing.is_local(path)] == []
    assert [path for path in kept if routing.is_local(path)] == []


def test_the_last_matching_pattern_wins() -> None:
    again = Routing(exclude=["data/aws/**", "!data/aws/keep", "data/aws/keep/*/raw"])
    assert again.is_local("data/aws/x/state/1/raw")
    assert not again.is_local("data/aws/keep/latest")
    assert again.is_local("data/aws/keep/1/raw")
    assert Routing(exclude=["!data/a", "data/**"]).is_local("data/a")


def test_comments_and_blank_lines_are_no_patterns() -> None:
    routing = Routing(exclude=["# data/**", "", "  ", "!", "/"])
    assert not routing.is_local("data/a")
    assert not routing.is_local("data")


def test_routing_is_decided_for_each_file() -> None:
    routing = Routing(exclude=["data/**/raw"])
    assert routing.may_split("data/a/b/c/1")
    assert routing.is_local("data/a/b/c/1/raw")
    assert not routing.is_local("data/a/b/c/1/metadata.yaml")
    assert not routing.is_local("data/a/b/c/1")


@given(PATHOLOGICAL, st.sampled_from(["data/a/b/c/1/raw", "data/[x]/!y", "outputs/a.yaml"]))
def test_any_text_is_a_pattern_and_never_an_error(pattern: str, rel: str) -> None:
    assert Routing(exclude=[pattern]).is_local(rel) in (True, False)
