"""Path rules: types, names, addresses, what is bookkeeping, and which tier a file belongs to."""

from __future__ import annotations

import os
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swampstore.errors import ValidationError
from swampstore.layout import (
    DEFERRED,
    DataRef,
    ModelRef,
    check_data_name,
    check_namespace,
    check_segment,
    is_internal,
    is_temp,
    normalise_type,
    output_of,
    parse_version,
    workflow_run_of,
    workflow_run_rel,
)

TEMP = ".4a1e6c0e-8c0f-4a57-9a43-3d3e4f0b6f11.tmp"
# Letters that mean something in paths and patterns turn up far more often than chance would have.
PATHOLOGICAL = st.text(st.sampled_from("aB1/.:\\ \t\n\0~*?[]!-_@\u0130\u03a3\udcff"), max_size=12)


def is_safe_segment(segment: str) -> bool:
    """Whether a name stays inside the directory that it is joined to."""
    return (
        segment not in ("", ".", "..")
        and not set("/\\\0") & set(segment)
        and os.path.normpath(f"/base/{segment}") == f"/base/{segment}"
    )


@pytest.mark.parametrize(
    ("raw", "normalised"),
    [
        ("AWS::EC2::VPC", "aws/ec2/vpc"),
        ("docker run", "docker/run"),
        ("Microsoft.Resources/resourceGroup", "microsoft/resources/resourcegroup"),
        ("@acme/Net.Probe", "@acme/net/probe"),
        ("  command/shell\n", "command/shell"),
        ("a \t\n b", "a/b"),
        ("/a//b/", "a/b"),
        ("a..b", "a/b"),
        ("../../etc", "etc"),
        ("a:b", "a:b"),
        ("a:::b", "a/:b"),
        ("ÄRA", "ära"),
    ],
)
def test_every_spelling_of_a_type_has_one_normal_form(raw: str, normalised: str) -> None:
    assert normalise_type(raw) == normalised


@pytest.mark.parametrize("raw", ["", " ", "/", "::", "...", " . / :: "])
def test_a_type_of_nothing_but_separators_is_refused(raw: str) -> None:
    with pytest.raises(ValidationError, match=r"model type .* is empty"):
        normalise_type(raw)


@pytest.mark.parametrize("raw", ["a\\b", "a\0b", "x" * 256, "caf\udce9"])
def test_a_type_that_cannot_be_a_path_is_refused(raw: str) -> None:
    with pytest.raises(ValidationError, match="model type"):
        normalise_type(raw)


def test_a_type_may_not_be_deeper_or_longer_than_the_walk_and_the_file_system_can_follow() -> None:
    assert normalise_type("a/" * 32) == "a/" * 31 + "a"
    for raw in ("a/" * 33, "/".join(["x" * 250] * 5)):
        with pytest.raises(ValidationError, match=r"model type .* is too long") as caught:
            normalise_type(raw)
        assert "32 segments" in (caught.value.hint or "")


@given(PATHOLOGICAL)
def test_normalising_again_changes_nothing_and_never_leaves_the_data_directory(raw: str) -> None:
    try:
        normalised = normalise_type(raw)
    except ValidationError:
        return
    assert normalise_type(normalised) == normalised
    assert all(is_safe_segment(segment) for segment in normalised.split("/"))


@given(PATHOLOGICAL)
def test_a_segment_that_passes_the_check_is_one_safe_name(value: str) -> None:
    try:
        check_segment("thing", value)
    except ValidationError:
        return
    assert is_safe_segment(value)
    assert value.encode()


def test_an_address_is_split_at_the_last_slash() -> None:
    assert ModelRef.parse("aws/ec2/i-1") == ModelRef("aws/ec2", "i-1")
    assert ModelRef.parse("@acme/Net.Probe/p") == ModelRef("@acme/net/probe", "p")
    assert ModelRef.parse("AWS::EC2/i.1") == ModelRef("aws/ec2", "i.1")
    assert str(ModelRef.parse("AWS::EC2/i-1")) == "aws/ec2/i-1"


@pytest.mark.parametrize("text", ["", "i-1", "/i-1", "aws/", "/"])
def test_an_address_needs_both_a_type_and_an_id(text: str) -> None:
    with pytest.raises(ValidationError, match="is not a model address") as caught:
        ModelRef.parse(text)
    assert "TYPE/ID" in (caught.value.hint or "")


def test_the_files_of_an_artifact_lie_below_its_type_and_id() -> None:
    ref = DataRef(ModelRef.of("AWS::EC2", "i-1"), "state")
    assert ref.model.rel == "data/aws/ec2/i-1"
    assert ref.rel == "data/aws/ec2/i-1/state"
    assert ref.latest_rel == "data/aws/ec2/i-1/state/latest"
    assert ref.version_rel(3) == "data/aws/ec2/i-1/state/3"
    assert ref.file_rel(3, "raw") == "data/aws/ec2/i-1/state/3/raw"


@pytest.mark.parametrize(
    "name", ["state", "207333", "1", "a b", "größe", "x" * 255, ".hidden", "_index", ".locks", "-"]
)
def test_these_are_data_names(name: str) -> None:
    assert check_data_name(name) == name


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "a..b", "a/b", "/", "a\\b", "a\0", "x" * 256, "ä" * 128, "caf\udce9"],
)
def test_these_are_neither_data_names_nor_model_ids(name: str) -> None:
    with pytest.raises(ValidationError, match="data name"):
        check_data_name(name)
    with pytest.raises(ValidationError, match="model id"):
        ModelRef.of("aws", name)


@pytest.mark.parametrize("name", ["latest", "Latest", "LATEST"])
def test_the_name_of_the_marker_is_reserved_in_any_case(name: str) -> None:
    with pytest.raises(ValidationError, match="reserved"):
        check_data_name(name)


@pytest.mark.parametrize(
    "name", [TEMP, ".lock", ".namespace.json", "_catalog.db", "_catalog.db-wal", DEFERRED]
)
def test_a_name_that_would_be_taken_for_bookkeeping_is_reserved(name: str) -> None:
    with pytest.raises(ValidationError, match=r"data name .* reserved"):
        check_data_name(name)
    with pytest.raises(ValidationError, match=r"model id .* reserved"):
        ModelRef.of("aws", name)


@pytest.mark.parametrize("slug", ["a", "0", "infra", "team-a", "a--b", "x" * 64])
def test_these_are_namespaces(slug: str) -> None:
    assert check_namespace(slug) == slug


@pytest.mark.parametrize("slug", ["", "-a", "a-", "A", "a_b", "a.b", "a/b", "x" * 65, "a\n", "ä"])
def test_these_are_not_namespaces(slug: str) -> None:
    with pytest.raises(ValidationError, match="is not a namespace"):
        check_namespace(slug)


@pytest.mark.parametrize(
    ("name", "version"),
    [("1", 1), ("30", 30), ("0", None), ("01", None), ("-1", None), ("1.0", None), ("", None)],
)
def test_only_positive_decimal_numbers_are_versions(name: str, version: int | None) -> None:
    assert parse_version(name) == version


def test_digits_of_other_scripts_are_no_version() -> None:
    assert parse_version("٣") is None


@pytest.mark.parametrize(
    "rel",
    [
        ".datastore-index.json",
        ".push-queue.json",
        ".datastore.lock",
        ".datastore-sync-state.json",
        "_index",
        "_index/_meta.json",
        "_control/x/y",
        ".locks/infra.lock",
        ".lock",
        "data/aws/i-1/.lock",
        ".namespace.json",
        "data/x/.namespace.json",
        "team/_control/locks/gate.lock",
        "team/_index/_meta.json",
        "data/_catalog.db",
        "_catalog.db-wal",
        "data/a/b/c/1/_catalog.db-shm",
        f"data/a/b/c/1/{DEFERRED}",
    ],
)
def test_bookkeeping_never_leaves_the_machine(rel: str) -> None:
    assert is_internal(rel)


@pytest.mark.parametrize(
    "rel",
    [
        "data/x/.locked.yaml",
        "data/x/lock",
        "namespace.json",
        "_indexes/x",
        "data/_index/x",
        "data/.locks/x",
        "data/x/_control",
        "data/x/.datastore.lock",
        "data/x/_catalog.database",
        ".catalog-export.json",
        "data/aws/i-1/state/latest",
        "data/aws/i-1/.lock/1/raw",
        "data/x/notes.tmp",
        "data/x/.abc.tmp",
    ],
)
def test_what_only_resembles_bookkeeping_is_payload(rel: str) -> None:
    assert not is_internal(rel)


@given(st.uuids(), st.lists(st.sampled_from(["data", "a", "1"]), max_size=4))
def test_h61_temporary_files_are_never_payload(temp: uuid.UUID, parents: list[str]) -> None:
    name = f".{temp}.tmp"
    assert is_temp(name)
    assert is_internal("/".join([*parents, name]))
    assert is_internal("/".join([*parents, name, "1", "raw"]))


def test_the_path_of_a_workflow_run_tells_its_ids() -> None:
    rel = workflow_run_rel("w-1", "r.1")
    assert workflow_run_of(rel) == ("w-1", "r.1")


@pytest.mark.parametrize(
    "rel",
    [
        "workflow-runs/w/workflow-run-r.log",
        "workflow-runs/w/.runs-index.json",
        "workflow-runs/w/deep/workflow-run-r.yaml",
        "workflow-runs/workflow-run-r.yaml",
        "outputs/w/workflow-run-r.yaml",
    ],
)
def test_what_is_beside_the_records_of_workflow_runs_is_none(rel: str) -> None:
    assert workflow_run_of(rel) is None


@pytest.mark.parametrize("rel", ["outputs/scan/i-1.yaml", "outputs/aws/scan/i-1.log", "outputs"])
def test_what_has_no_type_or_is_no_yaml_is_no_output(rel: str) -> None:
    assert output_of(rel) is None
