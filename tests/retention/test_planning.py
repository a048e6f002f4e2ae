"""Retention decides what goes from facts alone; nothing here touches a disk or a clock."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swampstore import retention
from swampstore.errors import ValidationError
from swampstore.retention.data_prune import CONTROL_PLANE_TYPES, DataTotals, ModelFacts, plan_prune
from swampstore.retention.lifetimes import normalise_lifetime, normalise_policy, parse_duration
from swampstore.retention.rules import (
    ExpiryReason,
    GcPlan,
    NameFacts,
    Removal,
    VersionFacts,
    plan_gc,
)
from swampstore.retention.runs import RunFacts, RunKind, plan_run_gc

NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)


def days_ago(days: float) -> datetime:
    return NOW - timedelta(days=days)


def versions(*ages_in_days: float) -> tuple[VersionFacts, ...]:
    """Versions 1, 2, ... of those ages; version n has a size of 10 to the n."""
    return tuple(
        VersionFacts(number, days_ago(age), 10**number)
        for number, age in enumerate(ages_in_days, start=1)
    )


def name_facts(
    history: Sequence[VersionFacts],
    *,
    name: str = "result",
    lifetime: str = "infinite",
    policy: int | str = 1000,
    deleted: bool = False,
    run: tuple[str | None, str | None] = (None, None),
    latest: int | None = None,
) -> NameFacts:
    highest = max((version.version for version in history), default=0)
    marked = highest if latest is None else latest
    return NameFacts("aws/vpc", "m1", name, lifetime, policy, deleted, *run, history, marked)


def every_run_exists(_workflow: str, _run: str) -> bool:
    return True


def no_run_exists(_workflow: str, _run: str) -> bool:
    return False


def no_run_is_readable(_workflow: str, _run: str) -> bool:
    raise PermissionError("the disk says no")


gc_now = partial(plan_gc, now=NOW, run_exists=every_run_exists)


def removed_numbers(plan: GcPlan) -> list[int]:
    return [version.version for removal in plan.removals for version in removal.versions]


# --- durations, lifetimes, policies -------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "length"),
    [
        ("90m", timedelta(minutes=90)),
        ("12h", timedelta(hours=12)),
        ("30d", timedelta(days=30)),
        ("2w", timedelta(days=14)),
        ("2mo", timedelta(days=60)),
        ("1y", timedelta(days=365)),
        ("007d", timedelta(days=7)),
        ("0h", timedelta(0)),
    ],
)
def test_a_duration_is_a_number_and_a_unit(text: str, length: timedelta) -> None:
    assert parse_duration(text) == length


NOT_DURATIONS = ["", "d", "mo", "5", "5s", "1d12h", "-1d", "+1d", "1.5d", "1 d", " 1d", "1d\n"]
NOT_DURATIONS += ["1D", "1_0d", "٣d", "²d", "1mom", "1o", "infinite"]


@pytest.mark.parametrize("text", NOT_DURATIONS)
def test_anything_else_is_refused_with_a_hint(text: str) -> None:
    with pytest.raises(ValidationError) as caught:
        parse_duration(text)
    assert caught.value.hint is not None
    assert repr(text) in caught.value.message


@pytest.mark.parametrize("digits", [20, 400, 5000])
@pytest.mark.parametrize("unit", ["m", "h", "d", "w", "mo", "y"])
def test_a_duration_beyond_all_calendars_is_refused_briefly(digits: int, unit: str) -> None:
    with pytest.raises(ValidationError) as caught:
        parse_duration("9" * digits + unit)
    assert len(caught.value.message) < 100


@pytest.mark.parametrize("text", ["ephemeral", "infinite", "job", "workflow", "30d", "6mo"])
def test_a_valid_lifetime_is_stored_as_it_was_given(text: str) -> None:
    assert normalise_lifetime(text) == text


@pytest.mark.parametrize("text", ["0h", "00d", "0mo", "000y"])
def test_a_lifetime_of_zero_length_means_workflow(text: str) -> None:
    assert normalise_lifetime(text) == "workflow"


@pytest.mark.parametrize("value", ["", "forever", "Infinite", "9" * 40 + "y", 30, None, True, []])
def test_another_lifetime_is_refused_with_a_hint(value: object) -> None:
    with pytest.raises(ValidationError, match="lifetime") as caught:
        normalise_lifetime(value)
    assert "infinite" in (caught.value.hint or "")


@pytest.mark.parametrize("value", [1, 10, 2**53 - 1, "7d", "1mo"])
def test_a_policy_is_a_positive_count_or_a_positive_duration(value: int | str) -> None:
    assert normalise_policy(value) == value


@pytest.mark.parametrize(
    "value",
    [0, -1, 2**53, True, False, 1.0, None, [], {}, "0d", "00mo", "10", "infinite", "9" * 40 + "d"],
)
def test_another_policy_is_refused_with_a_hint(value: object) -> None:
    with pytest.raises(ValidationError, match="garbageCollection") as caught:
        normalise_policy(value)
    assert caught.value.hint is not None


def test_refusals_do_not_wear_off() -> None:
    for _ in range(2):
        with pytest.raises(ValidationError):
            normalise_lifetime("soon")


# --- expiry -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lifetime", "age", "reason"),
    [
        ("30d", 31, "duration-expired"),
        ("30d", 30, None),  # exactly at the limit is not past it
        ("30d", 29, None),
        ("30d", -400, None),  # written by a clock that ran ahead
        ("1m", 1, "duration-expired"),
        ("2739726y", 9000, None),
        ("infinite", 9000, None),
        ("ephemeral", 9000, None),
    ],
)
def test_a_duration_counts_from_the_latest_version(
    lifetime: str, age: float, reason: str | None
) -> None:
    plan = gc_now([name_facts(versions(500, age), lifetime=lifetime)])
    assert [removal.reason for removal in plan.removals] == ([reason] if reason else [])


def test_expiry_takes_every_version_even_the_only_one() -> None:
    one, three = versions(40), versions(90, 60, 40)
    plan = gc_now(
        [name_facts(one, name="a", lifetime="30d"), name_facts(three, name="b", lifetime="30d")]
    )
    assert [removal.versions for removal in plan.removals] == [one, three]
    assert all(removal.whole_name for removal in plan.removals)


def test_the_marked_version_decides_even_if_a_higher_one_is_older() -> None:
    young_mark = name_facts(versions(5, 50), lifetime="30d", latest=1)
    old_mark = name_facts(versions(50, 5), lifetime="30d", latest=1)
    assert gc_now([young_mark]).removals == ()
    assert gc_now([old_mark]).version_count == 2


@pytest.mark.parametrize(
    ("lifetime", "reason"),
    [("workflow", "workflow-deleted"), ("job", "job-deleted"), ("0h", "workflow-deleted")],
)
def test_data_of_a_run_goes_when_the_run_is_gone(lifetime: str, reason: ExpiryReason) -> None:
    asked = []

    def run_exists(workflow: str, run: str) -> bool:
        asked.append((workflow, run))
        return run == "r1"

    facts = [
        name_facts(versions(1), name=run, lifetime=lifetime, run=("w1", run))
        for run in ("r1", "r2")
    ]
    plan = plan_gc(facts, NOW, run_exists)
    assert asked == [("w1", "r1"), ("w1", "r2")]
    assert plan.removals == (Removal("aws/vpc", "m1", "r2", versions(1), reason),)
    assert plan.warnings == ()


@pytest.mark.parametrize("run", [(None, None), ("w1", None), (None, "r1"), ("", "r1"), ("w1", "")])
@pytest.mark.parametrize("lifetime", ["workflow", "job"])
def test_data_that_names_no_run_is_kept_with_a_warning(
    lifetime: str, run: tuple[str | None, str | None]
) -> None:
    plan = plan_gc([name_facts(versions(900), lifetime=lifetime, run=run)], NOW, no_run_exists)
    assert plan.removals == ()
    assert "aws/vpc m1 result" in plan.warnings[0]


def test_a_run_that_cannot_be_looked_up_counts_as_there() -> None:
    facts = [name_facts(versions(900), lifetime="workflow", run=("w1", "r1"))]
    plan = plan_gc(facts, NOW, no_run_is_readable)
    assert plan.removals == ()
    assert "the disk says no" in plan.warnings[0]


def test_a_run_shared_by_many_names_is_looked_up_once() -> None:
    asked = []

    def run_exists(workflow: str, run: str) -> bool:
        asked.append((workflow, run))
        return False

    facts = [
        name_facts(versions(1), name=f"n{n}", lifetime="job", run=("w", "r")) for n in range(50)
    ]
    assert len(plan_gc(facts, NOW, run_exists).removals) == 50
    assert asked == [("w", "r")]


@pytest.mark.parametrize("lifetime", ["1d", "workflow", "job"])
def test_a_deletion_marker_never_expires(lifetime: str) -> None:
    facts = name_facts(versions(900, 800), lifetime=lifetime, deleted=True, run=("w", "r"))
    assert plan_gc([facts], NOW, no_run_exists).removals == ()


@pytest.mark.parametrize(
    ("facts", "cause"),
    [
        (name_facts(versions(900, 1), lifetime=""), "lifetime"),
        (name_facts(versions(900, 900), lifetime="1d", latest=7), "latest"),
        (name_facts(versions(900, 900), policy="0d"), "garbageCollection"),
        (name_facts(versions(900, 900), policy=0), "garbageCollection"),
    ],
)
def test_what_cannot_be_understood_is_kept_with_a_warning(facts: NameFacts, cause: str) -> None:
    plan = gc_now([facts])
    assert plan.removals == ()
    assert cause in plan.warnings[0]


def test_many_names_with_the_same_problem_are_one_warning() -> None:
    facts = [name_facts(versions(9), name=f"n{n:04}", lifetime="?") for n in range(1000)]
    (warning,) = gc_now(reversed(facts)).warnings
    assert "1000 data names" in warning
    assert "n0000" in warning


def test_warnings_do_not_depend_on_the_order_of_the_names() -> None:
    facts = [name_facts(versions(9), lifetime="?"), name_facts(versions(9, 8), policy=0)]
    assert len(gc_now(facts).warnings) == 2
    assert gc_now(facts) == gc_now(reversed(facts))


def test_a_name_without_versions_is_nothing_to_collect() -> None:
    assert gc_now([name_facts((), lifetime="1d")]) == GcPlan(())


# --- the version policy -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "ages", "latest", "removed"),
    [
        (2, (9, 8, 7, 6), 4, [1, 2]),
        (1, (9, 8), 2, [1]),
        (4, (9, 8, 7, 6), 4, []),
        (5, (9, 8, 7, 6), 4, []),
        (2**53 - 1, (9, 8), 2, []),
        (1, (9,), 1, []),
        (1, (9, 8, 7), 1, [2]),  # the marker lags behind: both it and the highest stay
        (2, (9, 8, 7, 6), 3, [1, 2]),
        (1, (9, 8, 7), 99, [1, 2]),  # the marker names a version that is not there
        ("7d", (9, 8, 6, 5), 4, [1, 2]),
        ("7d", (9, 8, 7), 3, [1, 2]),
        ("7d", (9, 7, 6), 3, [1]),  # exactly at the limit is not past it
        ("7d", (90, 80), 2, [1]),  # the highest stays however old
        ("7d", (90, 80, 70), 1, [2]),
        ("7d", (90,), 1, []),
        ("7d", (5, 90, 4), 3, [2]),
        ("7d", (-90, 90, 1), 3, [2]),  # written by a clock that ran ahead
    ],
)
def test_the_version_policy_thins_out_old_versions(
    policy: int | str, ages: tuple[float, ...], latest: int, removed: list[int]
) -> None:
    plan = gc_now([name_facts(versions(*ages), policy=policy, latest=latest)])
    assert removed_numbers(plan) == removed
    assert not any(removal.whole_name for removal in plan.removals)


def test_gaps_between_versions_count_versions_not_numbers() -> None:
    history = [VersionFacts(number, days_ago(1), 1) for number in (2, 9, 10, 400)]
    assert removed_numbers(gc_now([name_facts(history, policy=3)])) == [2]


def test_versions_listed_as_text_would_be_do_not_cost_the_newest() -> None:
    history = [VersionFacts(number, days_ago(50), 1) for number in (1, 10, 11, 2, 9)]
    assert removed_numbers(gc_now([name_facts(history, policy=2)])) == [1, 2, 9]
    assert removed_numbers(gc_now([name_facts(history, policy="7d")])) == [1, 2, 9, 10]


def test_versions_beneath_a_deletion_marker_follow_the_policy() -> None:
    facts = name_facts(versions(9, 8, 7), lifetime="1d", policy=1, deleted=True)
    plan = gc_now([facts])
    assert removed_numbers(plan) == [1, 2]
    assert plan.expired == ()


def test_an_expired_name_is_not_thinned_out_as_well() -> None:
    plan = gc_now([name_facts(versions(90, 80, 70), lifetime="30d", policy=1)])
    assert len(plan.removals) == 1
    assert plan.version_count == 3


def test_the_gc_document_has_exactly_its_members_in_order() -> None:
    plan = gc_now(
        [
            name_facts(versions(3, 2, 1), name="thinned", policy=1),
            name_facts(versions(90, 80), name="old", lifetime="30d"),
            name_facts(versions(1), name="kept", lifetime="30d"),
        ]
    )
    document = plan.to_json(dry_run=True, wal_pages_total=7, wal_pages_checkpointed=5)
    assert list(document.items()) == [
        ("dataEntriesExpired", 1),
        ("versionsDeleted", 4),
        ("bytesReclaimed", 220),
        ("dryRun", True),
        (
            "expiredEntries",
            [
                {
                    "type": "aws/vpc",
                    "modelId": "m1",
                    "dataName": "old",
                    "reason": "duration-expired",
                    "versionCount": 2,
                }
            ],
        ),
        ("walPagesTotal", 7),
        ("walPagesCheckpointed", 5),
    ]
    assert plan.to_json(dry_run=False) | {"dryRun": True} == plan.to_json(dry_run=True)


# --- properties of the plan ---------------------------------------------------------------------

ages = st.integers(-50, 400)
policies = st.one_of(st.integers(1, 8), st.sampled_from(["1d", "2w", "3mo", "1y"]))
lifetimes = st.sampled_from(["infinite", "ephemeral", "workflow", "job", "1d", "1mo", "1y", "0d"])
run_ids = st.sampled_from(["gone-1", "there-1", "error-1", None])


def some_runs_exist(_workflow: str, run: str) -> bool:
    if run.startswith("error"):
        raise OSError(run)
    return run.startswith("there")


@st.composite
def any_name(draw: st.DrawFn, lifetime: st.SearchStrategy[str] = lifetimes) -> NameFacts:
    numbers = sorted(draw(st.sets(st.integers(1, 40), max_size=12)))
    history = [VersionFacts(n, days_ago(draw(ages)), draw(st.integers(0, 2**40))) for n in numbers]
    return NameFacts(
        draw(st.sampled_from(["a/b", "c"])),
        draw(st.sampled_from(["m1", "m2"])),
        draw(st.text("xyz", min_size=1, max_size=3)),
        draw(lifetime),
        draw(policies),
        draw(st.booleans()),
        draw(st.sampled_from(["w", None])),
        draw(run_ids),
        history,
        draw(st.sampled_from(numbers)) if numbers else 0,
    )


any_names = st.lists(any_name(), max_size=5, unique_by=lambda facts: facts[:3])


def collect(names: Iterable[NameFacts]) -> GcPlan:
    return plan_gc(names, NOW, some_runs_exist)


def apply(plan: GcPlan, names: Iterable[NameFacts]) -> list[NameFacts]:
    """Return what a disk holds once the plan was carried out on it."""
    going = {removal[:3]: removal for removal in plan.removals}
    left = []
    for facts in names:
        removal = going.get(facts[:3])
        if removal is None:
            left.append(facts)
        elif not removal.whole_name:
            stays = [version for version in facts.versions if version not in removal.versions]
            left.append(facts._replace(versions=stays))
    return left


@given(any_name(lifetime=st.just("infinite")))
def test_the_policy_keeps_the_latest_and_as_many_of_the_highest_as_it_says(
    facts: NameFacts,
) -> None:
    numbers = [version.version for version in facts.versions]
    kept = set(numbers) - set(removed_numbers(collect([facts])))
    promised = facts.garbage_collection if isinstance(facts.garbage_collection, int) else 1
    assert kept >= set(numbers[-promised:])
    assert facts.latest in kept or not numbers
    if isinstance(facts.garbage_collection, int):
        assert len(kept) <= promised + 1


@given(any_name(lifetime=st.just("infinite")), st.integers(1, 400))
def test_a_policy_of_time_removes_only_what_is_older(facts: NameFacts, days: int) -> None:
    facts = facts._replace(garbage_collection=f"{days}d")
    plan = collect([facts])
    removed = {version for removal in plan.removals for version in removal.versions}
    too_old = {v for v in facts.versions if NOW - v.created_at > timedelta(days=days)}
    assert removed <= too_old
    assert len(too_old - removed) <= 2


@given(any_names)
def test_collecting_twice_finds_nothing_more(names: list[NameFacts]) -> None:
    first = collect(names)
    assert collect(apply(first, names)).removals == ()


@given(any_names, st.randoms(use_true_random=False))
def test_the_order_of_the_names_does_not_matter(names: list[NameFacts], dice: Random) -> None:
    shuffled = list(names)
    dice.shuffle(shuffled)
    assert collect(shuffled) == collect(iter(names))


@given(any_names)
def test_what_goes_and_what_stays_add_up(names: list[NameFacts]) -> None:
    plan = collect(names)
    before = [v for facts in names for v in facts.versions]
    after = [v for facts in apply(plan, names) for v in facts.versions]
    document = plan.to_json(dry_run=True)
    assert document["versionsDeleted"] == len(before) - len(after)
    assert document["bytesReclaimed"] == sum(v.size for v in before) - sum(v.size for v in after)
    assert document["dataEntriesExpired"] == len(names) - len(apply(plan, names))


@given(any_names)
def test_deletion_markers_and_lasting_data_never_leave_whole(names: list[NameFacts]) -> None:
    safe = {f[:3] for f in names if f.deleted or f.lifetime in ("infinite", "ephemeral")}
    assert not safe & {removal[:3] for removal in collect(names).expired}


# --- prune --------------------------------------------------------------------------------------


def model(
    model_type: str, model_id: str, *names: DataTotals, known: str | None = None
) -> ModelFacts:
    return ModelFacts(model_type, model_id, known, names)


def nothing_is_live(_model_type: str, _model_id: str) -> bool:
    return False


def test_data_goes_with_its_definition_and_stays_with_it() -> None:
    orphan = model("aws/vpc", "gone", DataTotals("a", 2, 30))
    owned = model("aws/vpc", "here", DataTotals("a", 2, 30))
    plan = plan_prune([owned, orphan], lambda _, model_id: model_id == "here")
    assert plan.models == (orphan,)


def test_a_workflow_is_asked_about_like_any_other_type() -> None:
    facts = [model("workflow", "w1", DataTotals("a", 1, 1)), model("workflow", "w2")]
    facts += [model("workflow", "w3", DataTotals("a", 1, 1))]
    plan = plan_prune(facts, lambda kind, model_id: (kind, model_id) == ("workflow", "w1"))
    assert [orphan.model_id for orphan in plan.models] == ["w3"]


@pytest.mark.parametrize("prefix", ["", "@"])
def test_control_plane_types_are_always_live(prefix: str) -> None:
    assert len(CONTROL_PLANE_TYPES) == 8
    facts = [model(prefix + kind, "m", DataTotals("a", 1, 1)) for kind in CONTROL_PLANE_TYPES]
    assert plan_prune(facts, nothing_is_live).models == ()


@pytest.mark.parametrize("kind", ["swamp/workers", "worker", "@acme/swamp/worker", "swamp/grant/x"])
def test_types_that_only_look_like_the_control_plane_are_pruned(kind: str) -> None:
    facts = [model(kind, "m", DataTotals("a", 1, 1))]
    assert len(plan_prune(facts, nothing_is_live).models) == 1


def test_a_definition_that_cannot_be_looked_up_counts_as_there() -> None:
    plan = plan_prune([model("aws/vpc", "m1", DataTotals("a", 1, 1))], no_run_is_readable)
    assert plan.models == ()
    assert "aws/vpc m1: the disk says no" in plan.warnings[0]


def test_the_prune_document_has_exactly_its_members_in_order() -> None:
    facts = [
        model("b", "m2", DataTotals("z", 2, 30), DataTotals("y", 1, 5)),
        model("a", "m1", DataTotals("x", 4, 7), known="web"),
    ]
    document = plan_prune(facts, nothing_is_live).to_json(
        dry_run=False, wal_pages_total=7, wal_pages_checkpointed=5
    )
    named = {"type": "a", "modelId": "m1", "modelName": "web"}
    unnamed = {"type": "b", "modelId": "m2"}
    assert list(document.items()) == [
        ("modelsReclaimed", 2),
        ("dataEntriesReclaimed", 3),
        ("versionsDeleted", 7),
        ("bytesReclaimed", 42),
        ("dryRun", False),
        (
            "reclaimedModels",
            [
                {**named, "dataNames": ["x"], "versionCount": 4, "bytesReclaimed": 7},
                {**unnamed, "dataNames": ["y", "z"], "versionCount": 3, "bytesReclaimed": 35},
            ],
        ),
        ("walPagesTotal", 7),
        ("walPagesCheckpointed", 5),
    ]


@given(st.permutations(range(6)), st.sets(st.integers(0, 5)))
def test_pruning_does_not_depend_on_order_and_spares_the_living(
    order: list[int], living: set[int]
) -> None:
    facts = [model("t", str(n), DataTotals("a", n, 10 * n)) for n in order]
    plan = plan_prune(facts, lambda _, model_id: int(model_id) in living)
    dead = sorted(set(order) - living)
    assert [int(orphan.model_id) for orphan in plan.models] == dead
    assert plan.size == 10 * sum(dead)


# --- runs and outputs ---------------------------------------------------------------------------


def run_facts(
    kind: RunKind = "workflow-run",
    *,
    path: str = "r.yaml",
    status: str = "succeeded",
    started: float = 100,
    completed: float | None = None,
    log: tuple[str, int] | None = None,
) -> RunFacts:
    ended = None if completed is None else days_ago(completed)
    return RunFacts(path, kind, status, days_ago(started), ended, 100, *(log or (None, 0)))


@pytest.mark.parametrize(
    ("facts", "goes"),
    [
        (run_facts(started=100, completed=31), True),
        (run_facts(started=100, completed=29), False),
        (run_facts(started=100, completed=30), False),  # exactly at the limit is not past it
        (run_facts(started=31), True),
        (run_facts(started=29), False),
        (run_facts(started=-5), False),
        (run_facts("output", started=31, completed=29), True),
        (run_facts("output", started=29, completed=29), False),
    ],
)
def test_a_workflow_run_ages_from_its_end_and_an_output_from_its_start(
    facts: RunFacts, goes: bool
) -> None:
    assert plan_run_gc([facts], NOW).removals == ((facts,) if goes else ())


@pytest.mark.parametrize(
    ("status", "goes"),
    [
        ("succeeded", True),
        ("failed", True),
        ("cancelled", True),
        ("pending", False),
        ("running", False),
        ("suspended", False),
        ("something-new", False),
    ],
)
@pytest.mark.parametrize("kind", ["workflow-run", "output"])
def test_only_records_of_ended_runs_go(kind: RunKind, status: str, goes: bool) -> None:
    plan = plan_run_gc([run_facts(kind, status=status)], NOW)
    assert plan.count(kind) == int(goes)


def test_the_age_limit_is_the_callers_choice() -> None:
    facts = [run_facts(started=5)]
    assert plan_run_gc(facts, NOW, parse_duration("4d")).removals == tuple(facts)
    assert plan_run_gc(facts, NOW, parse_duration("6d")).removals == ()


def test_the_run_gc_document_counts_logs_with_their_records() -> None:
    facts = [
        run_facts(path="b", log=("b.log", 7)),
        run_facts(path="a"),
        run_facts("output", path="o", log=("elsewhere.log", 50)),
        run_facts("output", path="young", started=1, log=("young.log", 999)),
    ]
    plan = plan_run_gc(facts, NOW)
    assert [(run.path, run.log_file) for run in plan.removals] == [
        ("o", "elsewhere.log"),
        ("a", None),
        ("b", "b.log"),
    ]
    assert list(plan.to_json(dry_run=True).items()) == [
        ("workflowRunsDeleted", 2),
        ("workflowRunBytesReclaimed", 207),
        ("outputsDeleted", 1),
        ("outputBytesReclaimed", 150),
        ("totalBytesReclaimed", 357),
        ("dryRun", True),
    ]


@given(st.lists(st.integers(-10, 90), max_size=10), st.integers(0, 60))
def test_run_collection_splits_records_by_age_in_any_order(started: list[int], limit: int) -> None:
    facts = [run_facts(path=str(n), started=age) for n, age in enumerate(started)]
    older_than = timedelta(days=limit)
    plan = plan_run_gc(facts, NOW, older_than)
    assert plan == plan_run_gc(reversed(facts), NOW, older_than)
    assert set(plan.removals) == {run for run in facts if run.started_at < days_ago(limit)}
    assert plan_run_gc(set(facts) - set(plan.removals), NOW, older_than).removals == ()


# --- the package --------------------------------------------------------------------------------


def test_everything_the_package_names_can_be_had_from_it() -> None:
    assert all(getattr(retention, name) is not None for name in retention.__all__)
    missing = "plan_everything"
    with pytest.raises(AttributeError, match="no attribute 'plan_everything'"):
        getattr(retention, missing)


def test_lifetimes_load_without_the_planners() -> None:
    program = (
        "import sys, swampstore.retention.lifetimes;"
        "print([name for name in sys.modules if '.retention.' in name])"
    )
    printed = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    ).stdout
    assert printed.strip() == "['swampstore.retention.lifetimes']"
