"""Paths are told to be harmless at a glance; a closer look never says anything else."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from swampstore.errors import ValidationError
from swampstore.index.path_map import Names, is_safe
from swampstore.layout import (
    ALWAYS_LOCAL_SUBDIRS,
    DATASTORE_SUBDIRS,
    MAX_KEY_BYTES,
    MAX_SEGMENT_BYTES,
    are_plain,
    is_internal,
    is_plain,
    is_temp,
)
from swampstore.routing import Routing
from swampstore.stores.protocol import check_key, is_plain_key

TEMP = ".4a1e6c0e-8c0f-4a57-9a43-3d3e4f0b6f11.tmp"
ROOT_FILES = {
    ".datastore-index.json",
    ".push-queue.json",
    ".datastore.lock",
    ".datastore-sync-state.json",
}
BOOKKEEPING = ("_index", "_control", ".locks")
SEGMENTS = st.one_of(
    st.sampled_from(
        [
            *("data", "a", "1", "raw", "latest", "secrets", "logs", "datastore-bundles"),
            *("", ".", "..", "...", ".a", "_a", "a.", "a_", "a..b"),
            *(".lock", ".namespace.json", "_catalog.db", "_catalog.db-wal", "_index", "_control"),
            *(".locks", TEMP, TEMP[1:], f"x{TEMP}", "x" * 255, "x" * 256, "é" * 128, "x" * 200),
            *sorted(ROOT_FILES),
        ]
    ),
    st.text(st.sampled_from("ab./\\_-\0\n\x1f\x7f~é\udcff \u2028"), max_size=6),
)
PATHS = st.lists(SEGMENTS, max_size=7).map("/".join)


def slowly_is_temp(name: str) -> bool:
    return re.fullmatch(r"\.[0-9a-f-]{36}\.tmp", name) is not None


def slowly_is_internal(rel: str) -> bool:
    segments = rel.split("/")
    return (
        rel in ROOT_FILES
        or segments[0] in BOOKKEEPING
        or (segments[0] not in DATASTORE_SUBDIRS and segments[1:2] and segments[1] in BOOKKEEPING)
        or segments[-1] in (".lock", ".namespace.json", "_catalog.db")
        or segments[-1].startswith("_catalog.db-")
        or any(map(slowly_is_temp, segments))
    )


def slowly_is_safe(rel: str) -> bool:
    return not {"\0", "\\"} & set(rel) and not {"", ".", ".."} & set(rel.split("/"))


def slowly_is_key(key: str) -> bool:
    return (
        not {"", ".", ".."} & set(key.split("/"))
        and re.search(r"[\x00-\x1f\x7f\ud800-\udfff]", key) is None
        and len(key.encode()) <= MAX_KEY_BYTES
    )


def slowly_may_cross(rel: str, namespace: str) -> bool:
    first = rel.partition("/")[0]
    return (
        slowly_is_safe(rel)
        and slowly_is_key(f"{namespace}/{rel}" if namespace else rel)
        and all(len(segment.encode()) <= MAX_SEGMENT_BYTES for segment in rel.split("/"))
        and not slowly_is_internal(rel)
        and first not in ALWAYS_LOCAL_SUBDIRS | {"datastore-bundles"}
        and first != "logs"
    )


@settings(max_examples=500)
@given(PATHS)
def test_a_closer_look_has_nothing_against_what_is_plain_at_a_glance(rel: str) -> None:
    assert is_temp(rel) == slowly_is_temp(rel)
    assert is_internal(rel) == slowly_is_internal(rel)
    assert is_safe(rel) == slowly_is_safe(rel)
    if is_plain(rel):
        assert slowly_is_safe(rel)
        assert not slowly_is_internal(rel)
    if is_plain_key(rel):
        assert slowly_is_key(rel)


@settings(max_examples=500)
@given(st.lists(PATHS, max_size=4))
def test_paths_are_plain_together_if_each_is(rels: list[str]) -> None:
    has_lines = any("\n" in rel for rel in rels)
    assert are_plain(rels) == (all(map(is_plain, rels)) and not has_lines)


@settings(max_examples=300)
@given(PATHS)
def test_a_key_is_refused_if_and_only_if_a_store_could_misunderstand_it(key: str) -> None:
    if slowly_is_key(key):
        assert check_key(key) == key
    else:
        with pytest.raises(ValidationError):
            check_key(key)


@settings(max_examples=500)
@given(PATHS, st.sampled_from(["", "infra", "n" * 1000]))
def test_a_path_crosses_if_and_only_if_every_rule_lets_it(rel: str, namespace: str) -> None:
    local = Routing(directories=[one for one in DATASTORE_SUBDIRS if one != "logs"])
    names = Names("/cache", namespace, local)
    assert (names.why_not(rel) is None) == slowly_may_cross(rel, namespace)


@settings(max_examples=500)
@given(PATHS, st.lists(PATHS, max_size=3), st.sampled_from(["", "infra", "n" * 1000]))
@example("data/aws/ec2/i-1/state/3", ["metadata.yaml", "raw"], "")
@example("data/aws", ["secrets", "x" * 250], "infra")
def test_names_cross_together_only_if_each_does(
    directory: str, inside: list[str], namespace: str
) -> None:
    local = Routing(directories=[one for one in DATASTORE_SUBDIRS if one != "logs"])
    for routing in (local, Routing(), Routing(exclude=["*.raw"])):
        names = Names("/cache", namespace, routing)
        if names.may_all_cross(directory, inside):
            assert not routing.exclude
            assert all(names.why_not(f"{directory}/{name}") is None for name in inside)


def test_plain_names_are_told_at_a_glance() -> None:
    names = Names("/cache", "", Routing())
    assert names.may_all_cross("data/aws/ec2/i-1/state/3", ["metadata.yaml", "raw"])
    assert not names.may_all_cross("data/aws/ec2/i-1/state/3", ["metadata.yaml", ".lock"])


def test_ordinary_paths_of_a_datastore_are_plain() -> None:
    for rel in ("data/aws/ec2/i-1/state/3/raw", "data/@acme/probe/m-1/plan/latest", "files/a b"):
        assert is_plain(rel)
        assert is_plain_key(rel)
