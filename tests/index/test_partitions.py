"""Which slice of the remote index a path belongs to, and which slices a model can be in."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from swampstore.errors import ValidationError
from swampstore.index.partitions import (
    META_KEY,
    MONOLITH_KEY,
    ROOT,
    Homes,
    Scope,
    are_all_of,
    maybe_in,
    partition_of,
    shard_key,
    wire_partition,
)
from swampstore.layout import DATASTORE_SUBDIRS, ModelRef

# Few letters, so that names are prefixes of each other and look like joined ones.
NAMES = st.text(st.sampled_from("ab-_."), min_size=1, max_size=5)
FIRST = st.sampled_from([*DATASTORE_SUBDIRS, "_index", "_meta", ".locks", "x", ""])
PATHS = st.builds(
    lambda first, rest: "/".join([first, *rest]),
    FIRST,
    st.lists(st.one_of(NAMES, st.text(max_size=4)), max_size=9),
)
TYPES = st.lists(NAMES, min_size=1, max_size=6).map("/".join)
MODELS = st.builds(ModelRef, TYPES, NAMES)

EC2 = ModelRef("aws/ec2", "i-1")


@pytest.mark.parametrize(
    ("rel", "partition"),
    [
        ("data/t1/m1/d1/1/raw", "data--t1--m1"),
        ("data/t1/m1/d1/latest", "data--t1--m1--d1"),
        ("data/command/shell/ID/name/1/raw", "data--command--shell--ID"),
        ("data/command/shell/ID/name/latest", "data--command--shell"),
        ("data/aws/ec2/vpc/ID/st/1/metadata.yaml", "data--aws--ec2--vpc--ID"),
        ("data/aws/ec2/vpc/ID/st/latest", "data--aws--ec2--vpc"),
        ("outputs/command/shell/execute/x.yaml", "outputs--command--shell--execute"),
        ("outputs/aws/ec2/vpc/create/x.yaml", "outputs--aws--ec2"),
        ("definitions-evaluated/t/n.yaml", None),
        ("definitions-evaluated/command/shell/n.yaml", "definitions-evaluated--command--shell"),
        ("definitions-evaluated/a/b/c/d/n.yaml", "definitions-evaluated--a--b"),
        ("data/a--b/c/d/1/raw", "data--a--b--c"),
        ("data/a/b/c/d/1/raw", "data--a--b--c"),
        (".locks/ns.lock", None),
        ("secrets/a", None),
        ("data/a/b", None),
        ("workflow-runs/x.yaml", None),
        ("workflow-runs/w-1/workflow-run-7.yaml", "workflow-runs--w-1"),
        ("workflow-runs/w-1/deeper/x.yaml", "workflow-runs--w-1"),
        ("workflows-evaluated/w.yaml", "workflows-evaluated"),
        ("auto-definitions/a/b/c.yaml", "auto-definitions"),
        ("audit/2026-06-01.jsonl", "audit"),
        ("telemetry/a", "telemetry"),
        ("logs/a", "logs"),
        ("files/a/b/c/d/e/f", "files"),
        (".catalog-export.json", "_root"),
        ("audit", "_root"),
        ("", None),
    ],
)
def test_a_path_is_in_the_partition_that_every_client_expects(
    rel: str, partition: str | None
) -> None:
    assert wire_partition(rel) == partition
    assert partition_of(rel) == (partition or ROOT)


def test_h25_a_definition_of_a_type_of_one_segment_goes_to_the_root_partition() -> None:
    assert wire_partition("definitions-evaluated/t/n.yaml") is None
    assert partition_of("definitions-evaluated/t/n.yaml") == "_root"


@given(PATHS)
@example("workflows-evaluated/w.yaml")
@example(".catalog-export.json")
def test_h24_every_path_has_one_partition_that_can_be_one_object(rel: str) -> None:
    partition = partition_of(rel)
    assert partition
    assert "/" not in partition
    assert partition == (wire_partition(rel) or ROOT)


@given(st.one_of(PATHS, st.text()))
@example("_meta")
@example("_meta/x")
@example("data/_meta/x/y")
def test_no_path_has_its_entry_in_the_object_that_lists_the_partitions(rel: str) -> None:
    assert shard_key(partition_of(rel)) not in {META_KEY, MONOLITH_KEY}


def test_the_index_objects_have_the_names_that_every_client_expects() -> None:
    assert shard_key("data--t--m") == "_index/data--t--m.json"
    assert META_KEY == "_index/_meta.json"
    assert MONOLITH_KEY == ".datastore-index.json"


def covered_by(model: ModelRef) -> st.SearchStrategy[str]:
    homes = [model.rel, f"outputs/{model.type}", f"definitions-evaluated/{model.type}"]
    return st.builds(
        lambda home, rest: "/".join([home, *rest]),
        st.sampled_from(homes),
        st.lists(NAMES, min_size=1, max_size=6),
    )


@given(st.data(), st.lists(MODELS, min_size=1, max_size=3))
def test_h3_a_scope_reads_the_partition_of_every_path_that_it_covers(
    data: st.DataObject, models: list[ModelRef]
) -> None:
    scope = Scope(models)
    rel = data.draw(covered_by(data.draw(st.sampled_from(models))))
    assert scope.covers(rel)
    assert scope.partitions({partition_of(rel)}) == [partition_of(rel)]


@pytest.mark.parametrize(
    "rel",
    [
        "data/aws/ec2/i-1/state/3/raw",
        "data/aws/ec2/i-1/state/3/metadata.yaml",
        "data/aws/ec2/i-1/state/latest",
        "outputs/aws/ec2/create/x.yaml",
        "definitions-evaluated/aws/ec2/web.yaml",
    ],
)
def test_h3_markers_outputs_and_definitions_are_found_beside_the_versions(rel: str) -> None:
    assert Scope([EC2]).covers(rel)
    assert partition_of(rel) in Scope([EC2]).partitions(["audit", partition_of(rel)])


def test_a_scope_reads_only_the_partitions_that_can_hold_something_of_its_models() -> None:
    wanted = [
        "_root",
        "data--aws--ec2",
        "data--aws--ec2--i-1",
        "data--aws--ec2--i-1--state",
        "definitions-evaluated--aws--ec2",
        "definitions-evaluated--aws--ec2--deeper",
        "outputs--aws--ec2",
        "outputs--aws--ec2--create",
    ]
    others = [
        "audit",
        "data--aws",
        "data--aws--ec2--i-10",
        "data--aws--ec2--i-2",
        "data--aws--ec2x--i-1",
        "data--gcp--vm--i-1",
        "definitions-evaluated--aws",
        "outputs--aws",
        "outputs--aws--ec2x",
        "workflow-runs--i-1",
    ]
    assert Scope([EC2]).partitions([*reversed(wanted), *others, *wanted]) == wanted


def test_a_deep_type_has_entries_up_to_two_levels_above_its_own_partition() -> None:
    scope = Scope([ModelRef("a/b/c/d", "m")])
    known = ["outputs--a", "outputs--a--b", "outputs--a--b--c", "outputs--a--b--c--d"]
    assert scope.partitions(known) == known[1:]
    known = ["data--a--b", "data--a--b--c", "data--a--b--c--d", "data--a--b--c--d--m"]
    assert scope.partitions(known) == known[1:]


@pytest.mark.parametrize(
    "rel",
    [
        "data/aws/ec2/i-10/state/3/raw",
        "data/aws/ec2/i-1",
        "data/aws/ec2x/i-1/state/3/raw",
        "outputs/aws/ec2x/create/x.yaml",
        "outputs/aws",
        "definitions-evaluated/aws/x.yaml",
        "workflow-runs/aws/ec2/i-1/x",
        "x/data/aws/ec2/i-1/state/3/raw",
        "",
    ],
)
def test_a_scope_leaves_out_what_only_looks_alike(rel: str) -> None:
    assert not Scope([EC2]).covers(rel)


@given(st.lists(MODELS, min_size=1))
def test_a_scope_is_the_set_of_its_models(models: list[ModelRef]) -> None:
    once, again = Scope(models), Scope([*reversed(models), models[0]])
    assert once == again
    assert hash(once) == hash(again)
    assert once.key == again.key
    assert once.models == tuple(sorted(set(models)))


@given(st.sets(MODELS, min_size=1), st.sets(MODELS, min_size=1))
def test_other_models_are_another_scope_with_another_key(
    some: set[ModelRef], others: set[ModelRef]
) -> None:
    assert (Scope(some) == Scope(others)) is (some == others)
    assert (Scope(some).key == Scope(others).key) is (some == others)


def test_the_key_of_a_scope_is_the_same_in_every_process() -> None:
    expected = "562c00db004a6b3adcc4f8365355debc7504ada66264e4c6706d4d5aebc28974"
    assert Scope([EC2]).key == expected


def test_a_scope_without_models_is_refused() -> None:
    with pytest.raises(ValidationError, match="without models"):
        Scope([])


@given(st.lists(PATHS, unique=True), st.data())
def test_no_path_of_a_partition_is_overlooked_at_a_glance(
    rels: list[str], data: st.DataObject
) -> None:
    known = sorted({partition_of(rel) for rel in rels})
    chosen = data.draw(st.lists(st.sampled_from(known), unique=True)) if known else []
    wanted = {rel for rel in rels if partition_of(rel) in chosen}
    assert wanted <= set(maybe_in(chosen, rels)) <= set(rels)


@given(st.lists(PATHS, unique=True, max_size=3))
def test_paths_are_all_of_a_partition_at_a_glance_only_if_each_is(rels: list[str]) -> None:
    for home in {*map(partition_of, rels), "data--t--m"}:
        if are_all_of(home, rels):
            assert {*map(partition_of, rels)} <= {home}
    versions = [f"data/t/u/m/n/{number}/raw" for number in (1, 2)]
    assert are_all_of("data--t--u--m", versions)
    assert not are_all_of("data--t--u--m", [*versions, "data/t/u/x/n/1/raw"])


def test_the_homes_of_paths_in_any_order_are_their_partitions() -> None:
    rels = [
        *("a", "data/x", "data/t/m/n", "data/t/m/n/latest", "data/t/m/n/1/raw"),
        *("data/t/m/n/1/metadata.yaml", "data/t/u/m/n/2/raw", "workflow-runs/x", "audit/y.jsonl"),
        *("workflow-runs/w/x", "files/a/b", "outputs/t/scan/x.yaml", "elsewhere/x", "b"),
    ]
    homes = Homes()
    for some in (rels, rels[::-1], rels[::3]):
        assert [homes.of(rel) for rel in some] == [*map(partition_of, some)]
