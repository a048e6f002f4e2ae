"""Workflow files, their order, their conditions, and the record: the pure parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swampstore import init_repo, yaml_dialect
from swampstore.errors import ValidationError
from swampstore.runs.errors import RunNotFoundError, WorkflowError
from swampstore.runs.workflow.conditions import WORDS, Condition, read_condition
from swampstore.runs.workflow.definition import (
    ApprovalTask,
    AssertTask,
    Job,
    MethodTask,
    Retry,
    Step,
    Workflow,
    WorkflowTask,
    read_workflow,
)
from swampstore.runs.workflow.plan import (
    check_plan,
    dependents,
    expanded_name,
    items_of,
    levels,
    limit_of,
    may_go_on_after_failure,
)
from swampstore.runs.workflow.record import (
    JobRecord,
    LiveRecord,
    RunRecord,
    RunRecords,
    StepRecord,
    decode,
    encode,
)

NIGHTLY = """
id: 9b2c0d3e-0000-4000-8000-000000000001
name: nightly-scan
inputs: { type: object, properties: { nodes: { type: array } } }
tags: { env: prod }
concurrency: 4
jobs:
  - name: scan
    concurrency: 2
    steps:
      - name: measure-${{ self.node }}
        task:
          type: model_method
          modelIdOrName: disk-usage
          methodName: execute
          inputs: { host: "${{ self.node }}" }
        forEach: { item: node, in: "${{ inputs.nodes }}" }
        dataOutputOverrides: [ { specName: result, vary: [host], lifetime: 7d } ]
        retry: { attempts: 3, backoff: 500ms }
        timeout: 5m
  - name: verify
    dependsOn: [ { job: scan, condition: { type: succeeded } } ]
    steps:
      - name: have-data
        task: { type: assert, expr: 'size(data.findBySpec("disk-usage", "result")) > 0' }
      - name: go
        dependsOn:
          - step: have-data
            condition: { type: or, conditions: [failed, { type: not, condition: skipped }] }
        task: { type: manual_approval, prompt: "Go on?" }
      - name: tell
        dependsOn: [ go ]
        task: { type: workflow, workflowIdOrName: send-mail }
"""


def workflow_with(step: str) -> bytes:
    return f"name: w\njobs:\n  - name: j\n    steps:\n      - {step}\n".encode()


def task(**members: Any) -> MethodTask:
    return MethodTask("m", "execute", **members)


def test_a_workflow_of_the_specification_is_read_member_by_member() -> None:
    workflow = read_workflow(NIGHTLY.encode())
    check_plan(workflow)
    measure = workflow.job("scan").steps[0]
    assert measure.for_each is not None
    assert (measure.for_each.item, measure.timeout) == ("node", 300.0)
    assert measure.retry == Retry(attempts=3, backoff=0.5)
    assert measure.overrides == ({"specName": "result", "lifetime": "7d", "vary": ["host"]},)
    have, go, tell = workflow.job("verify").steps
    assert isinstance(have.task, AssertTask)
    assert isinstance(go.task, ApprovalTask)
    assert isinstance(tell.task, WorkflowTask)
    assert tell.depends_on == {"go": Condition("succeeded")}


@pytest.mark.parametrize(
    ("step", "problem", "hint"),
    [
        ("{name: a, taks: {}}", "'task'", "taks"),
        ("{name: a, task: {type: modelmethod}}", "modelmethod", "model_method"),
        (
            "{name: a, task: {type: assert, expr: 'true'}, dependOn: []}",
            "dependOn",
            "Did you mean 'dependsOn'?",
        ),
        ("{name: a, task: {type: assert, exp: 'true'}}", "'expr'", "'exp'"),
        ("{name: a, task: {type: model_method, methodName: x}}", "which model", "modelIdOrName"),
        ("{name: 5, task: {type: assert, expr: x}}", "should be text", "quotes: name: '5'"),
        ("{name: a, task: {type: assert, expr: [x]}}", "should be text", "one text, expr: TEXT"),
        ("{name: a, task: {type: assert, expr: ' '}}", "should be text", "Write expr: TEXT"),
        (
            "{name: a, task: {type: assert, expr: x},"
            " dataOutputOverrides: [{specName: s, tags: {env: [x]}}]}",
            "should be text",
            "env: TEXT",
        ),
        ("{name: a, task: {type: assert, expr: x}, retry: {attempts: 0}}", "attempts", None),
        ("{name: a, task: {type: assert, expr: x}, timeout: soon}", "length of time", "90s"),
        ("{name: 'a-${{ self.x }}', task: {type: assert, expr: x}}", "no forEach", None),
        (
            "{name: a, task: {type: assert, expr: x}, forEach: {item: i, in: 'a b'}}",
            "'in'",
            "one expression",
        ),
        (
            "{name: a, task: {type: assert, expr: x}, dependsOn: [{step: a, condition: faild}]}",
            "faild",
            "'failed'",
        ),
        ("{name: a, task: {type: assert, expr: x}, allowFailure: maybe}", "true or false", None),
    ],
)
def test_what_is_wrong_in_a_file_is_named_with_what_may_be_meant(
    step: str, problem: str, hint: str | None
) -> None:
    with pytest.raises(WorkflowError) as caught:
        read_workflow(workflow_with(step))
    assert problem in caught.value.message
    assert hint is None or hint in (caught.value.hint or "")


def test_a_file_without_an_id_has_the_same_id_everywhere() -> None:
    data = workflow_with("{name: a, task: {type: assert, expr: x}}")
    assert read_workflow(data).id == read_workflow(data).id
    assert read_workflow(data).id != read_workflow(data.replace(b"name: w", b"name: v")).id


# Conditions --------------------------------------------------------------------------------

STATUSES = st.sampled_from(["succeeded", "failed", "skipped"])
CONDITIONS = st.recursive(
    st.sampled_from(WORDS).map(Condition),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: Condition("and", tuple(parts))),
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: Condition("or", tuple(parts))),
        inner.map(lambda part: Condition("not", (part,))),
    ),
    max_leaves=6,
)


@given(CONDITIONS)
def test_a_condition_survives_being_written_and_read(condition: Condition) -> None:
    assert read_condition(condition.to_json(), "here") == condition


@given(CONDITIONS, STATUSES)
def test_combinations_of_conditions_are_those_of_logic(condition: Condition, status: str) -> None:
    assert Condition("not", (condition,)).holds(status) is not condition.holds(status)
    assert Condition("and", (condition, condition)).holds(status) is condition.holds(status)
    assert Condition("or", (condition, Condition("always"))).holds(status)


@given(CONDITIONS, st.sampled_from(["pending", "running", "waiting_approval"]))
def test_nothing_holds_of_what_has_not_ended(condition: Condition, status: str) -> None:
    assert not condition.holds(status)


@pytest.mark.parametrize(
    ("word", "succeeded", "failed", "skipped"),
    [
        ("always", True, True, True),
        ("succeeded", True, False, False),
        ("failed", False, True, False),
        ("completed", True, True, False),
        ("skipped", False, False, True),
    ],
)
def test_each_word_means_what_it_says(
    word: str, succeeded: bool, failed: bool, skipped: bool
) -> None:
    condition = Condition(word)
    assert condition.holds("succeeded") is succeeded
    assert condition.holds("failed") is failed
    assert condition.holds("skipped") is skipped


def test_a_condition_on_a_template_holds_for_every_expansion_and_for_none_at_all() -> None:
    assert Condition("succeeded").holds_for_all(["succeeded", "succeeded"])
    assert not Condition("succeeded").holds_for_all(["succeeded", "failed"])
    assert Condition("succeeded").holds_for_all([])
    assert not Condition("failed").holds_for_all([])


# The plan ----------------------------------------------------------------------------------


def steps_of(edges: dict[str, list[str]], weights: dict[str, int] | None = None) -> list[Step]:
    return [
        Step(
            name,
            task(),
            {other: Condition() for other in others},
            weight=(weights or {}).get(name, 0),
        )
        for name, others in edges.items()
    ]


@given(
    st.integers(1, 12).flatmap(
        lambda count: st.tuples(
            st.just(count),
            st.sets(
                st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)).filter(
                    lambda pair: pair[0] < pair[1]
                )
            ),
        )
    )
)
def test_every_step_comes_once_and_as_soon_as_all_it_waits_for_are_done(
    graph: tuple[int, set[tuple[int, int]]],
) -> None:
    count, pairs = graph
    edges = {
        f"s{number}": [f"s{before}" for before, after in pairs if after == number]
        for number in range(count)
    }
    found = levels(steps_of(edges), "step")
    level_of = {step.name: number for number, level in enumerate(found) for step in level}
    assert sum(map(len, found)) == count
    for name, before in edges.items():
        assert level_of[name] == max((level_of[one] + 1 for one in before), default=0)


def test_within_a_level_the_lower_weight_comes_first_then_the_name() -> None:
    found = levels(steps_of({"b": [], "a": [], "z": []}, {"z": -1}), "step")
    assert [step.name for step in found[0]] == ["z", "a", "b"]


def test_steps_that_wait_for_each_other_are_named() -> None:
    with pytest.raises(WorkflowError, match=r"a -> b -> a|b -> a -> b"):
        levels(steps_of({"a": ["b"], "b": ["a"], "c": []}), "step")


def test_a_dependency_on_nothing_is_refused_with_a_near_name() -> None:
    with pytest.raises(WorkflowError) as caught:
        levels(steps_of({"measure": [], "tell": ["mesure"]}), "step")
    assert "measure" in (caught.value.hint or "")


def test_the_limit_of_a_level_is_that_of_its_steps_then_the_job_then_the_workflow() -> None:
    step, narrow = Step("a", task()), Step("b", task(), concurrency=2)
    job, wide = Job("j", (step, narrow)), Job("j", (step,), concurrency=5)
    workflow = Workflow("i", "w", (job,), concurrency=7)
    assert limit_of([step, narrow], wide, workflow) == 2
    assert limit_of([step], wide, workflow) == 5
    assert limit_of([step], job, workflow) == 7
    assert limit_of([step], job, workflow, 3) == 3
    assert limit_of([step], job, Workflow("i", "w", (job,)), 100) == 10


@given(st.lists(st.one_of(st.text(max_size=5), st.integers(), st.booleans()), max_size=12))
def test_expansions_have_names_of_their_own(values: list[Any]) -> None:
    found = items_of(values, "here")
    assert [item.value for item in found] == values
    names = [expanded_name("step", "step", item) for item in found]
    assert len(set(names)) == len(values)


def test_items_of_a_map_have_a_key_and_a_value() -> None:
    found = items_of({"a/b": 1, "c": {"x": 2}}, "here")
    assert [item.suffix for item in found] == ["a--b", "c"]
    assert found[0].value == {"key": "a/b", "value": 1}
    with pytest.raises(WorkflowError, match="forEach"):
        items_of("text", "here")


def test_after_a_failure_only_steps_go_on_that_are_there_for_it() -> None:
    waits = {"a": Condition("failed")}
    assert may_go_on_after_failure(waits, {"a": ["failed"]}, [])
    assert not may_go_on_after_failure({"b": Condition()}, {"b": ["succeeded"]}, [])
    assert may_go_on_after_failure({"b": Condition()}, {"b": ["succeeded"]}, ["b"])
    assert not may_go_on_after_failure({}, {}, [])


def test_the_dependents_of_a_step_are_found_across_levels() -> None:
    job = Job("j", tuple(steps_of({"a": [], "b": ["a"], "c": ["b"], "d": []})))
    assert dependents(job, "a") == {"a", "b", "c"}


@given(st.integers(1, 5000))
def test_pauses_grow_and_have_an_end(attempt: int) -> None:
    retry = Retry(attempts=5000, backoff=0.5)
    assert retry.pause(attempt) <= retry.pause(attempt + 1) <= retry.longest


# The record --------------------------------------------------------------------------------

TEXTS = st.text(min_size=1, max_size=8)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(10**6), 10**6), st.text(max_size=8)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=6,
)


@given(
    st.lists(TEXTS, max_size=4, unique=True),
    st.dictionaries(TEXTS.map(lambda key: f"x{key}"), VALUES.filter(lambda one: one is not None)),
)
def test_members_that_we_do_not_know_survive(names: list[str], extra: dict[str, Any]) -> None:
    steps = [StepRecord(name, item={"a": 1}, extra=dict(extra)) for name in names]
    record = RunRecord(
        *("77aa", "9b2c", "nightly", "2026-05-14T20:19:51.042Z"),
        [JobRecord("scan", steps, extra=dict(extra))],
        "running",
        extra=dict(extra),
    )
    assert encode(decode(encode(record), "it")) == encode(record)


def test_what_follows_from_the_steps_is_told_at_the_top() -> None:
    steps = [
        StepRecord("a", "failed", error="boom", allowed_failure=True),
        StepRecord("b", "failed", error="bang"),
        StepRecord("c"),
    ]
    record = RunRecord("i", "w", "n", "2026-05-14T20:19:51.042Z", [JobRecord("j", steps)])
    document = record.to_json()
    assert document["failedStep"] == "b"
    assert document["failureReason"] == "bang"
    assert document["stepProgress"] == {"completed": 2, "total": 3}
    assert "inputs" not in document


def test_a_run_is_found_by_the_beginning_of_its_id(tmp_path: Path) -> None:
    with init_repo(tmp_path) as repo:
        records = RunRecords(repo)
        for number in ("77aa0d3e-1", "77ab0d3e-1"):
            records.save(RunRecord(number, "w", "n", "2026-05-14T20:19:51.042Z", []))
        assert records.find("77AA").id == "77aa0d3e-1"
        with pytest.raises(ValidationError, match="2 workflow runs"):
            records.find("77a")
        with pytest.raises(RunNotFoundError):
            records.find("88a")
        (tmp_path / ".swamp/workflow-runs/w/workflow-run-broken.yaml").write_text("[")
        assert len(list(records.all())) == 2


def test_a_change_is_on_disk_when_its_block_ends(tmp_path: Path) -> None:
    with init_repo(tmp_path) as repo:
        records = RunRecords(repo)
        live = LiveRecord(records, RunRecord("77aa", "w", "n", "2026-05-14T20:19:51.042Z", []))
        with live as record:
            record.status = "running"
        found = records.of("w", "77aa")
        assert found is not None
        assert found.status == "running"
        text = (tmp_path / ".swamp" / live.record.rel).read_text()
        assert yaml_dialect.load(text.encode(), what="it")["stepProgress"] == {
            "completed": 0,
            "total": 0,
        }
