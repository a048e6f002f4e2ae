from __future__ import annotations

from typing import Any

import pytest

from swampstore.catalog.query.fields import FIELDS
from swampstore.catalog.query.plan import Plan, matcher, plan
from swampstore.catalog.query.projection import order_by, projection
from swampstore.errors import QueryError

RECORD: dict[str, Any] = {
    "id": "3f",
    "name": "rapport-é😀",
    "version": 3,
    "size": 5,
    "isLatest": True,
    "streaming": False,
    "createdAt": "2026-01-02T03:04:05.678Z",
    "ns": "",
    "modelName": "vm",
    "tags": {"env": "prod", "a-b": "x"},
    "attributes": {"a": {"b": [10, {"c": None}]}, "ok": True, "text": "é😀", "big": 2**53},
    "content": "text",
}


def matches(predicate: str, record: dict[str, Any] = RECORD) -> bool:
    match = matcher(plan(predicate))
    assert match is not None
    return match(record)


def refusal(predicate: str) -> QueryError:
    with pytest.raises(QueryError) as caught:
        plan(predicate)
    return caught.value


# Names


def test_an_unknown_field_lists_the_fields_there_are_and_guesses() -> None:
    error = refusal('modelNmae == "vm"')
    assert all(name in error.message for name in FIELDS)
    assert "Did you mean 'modelName'?" in (error.hint or "")
    assert error.message.endswith('  modelNmae == "vm"\n  ^')


def test_every_documented_field_can_be_asked_about() -> None:
    for name in FIELDS:
        plan(f"type({name}) == string")
    assert plan('namespace == "x"') == plan('ns == "x"')


def test_an_unknown_field_is_found_wherever_it_hides() -> None:
    for predicate in (
        "tags.exists(k, q == 1)",
        "[1].map(x, x)[x] == 1",
        'tags[q] == "a"',
        "size(q) == 1",
        "true ? true : q",
        '{"a": q}.a == 1',
        "name.contains(q)",
        "!q",
    ):
        assert "Unknown field" in refusal(predicate).message, predicate
    with pytest.raises(QueryError, match="Unknown field q"):
        projection('{"a": [q]}')


def test_a_comprehension_variable_is_no_field_and_hides_one() -> None:
    assert matches('tags.exists(version, version == "env")')
    assert plan('tags.exists(version, version == "env")').implicit_latest
    assert not plan("tags.exists(k, version == 1)").implicit_latest


def test_hints_fit_the_mistake() -> None:
    assert 'tags["a-b"]' in (refusal('tags.a-b == "x"').hint or "")
    assert '{"title": ...}' in (refusal("{title: name} == {}").hint or "")
    assert "Did you mean 'startsWith'?" in (refusal('name.startswith("a")').hint or "")
    assert "Did you mean 'size'?" in (refusal("siz(name) == 1").hint or "")


# Types


@pytest.mark.parametrize(
    ("predicate", "problem", "hint"),
    [
        ('version == "3"', "version is an int", "Write version == 3."),
        ('"3" <= version', "version is an int", "Write version <= 3."),
        ("name > 3", "name is a string", 'Write name > "3".'),
        ('streaming == "yes"', "streaming is a bool", "Write streaming or !streaming."),
        ("isLatest == 1", "isLatest is a bool", "Write isLatest or !isLatest."),
        ("tags.env == 3", "tags.env is a string", 'Write tags.env == "3".'),
        ("workflowId != null", "workflowId is a string", 'workflowId != "".'),
        ("tags.env == null", "tags.env is a string", "has(tags.env)"),
        ("name == version", "name is a string", "with a string"),
        ('version in ["a"]', "version is an int", "with an int"),
        ("3 in tags", "cannot be compared with", "such as"),
        ('"a" in name', "name is a string", "contains"),
        ('createdAt > timestamp("2026-01-01T00:00:00Z")', "createdAt is", "timestamp(createdAt) >"),
        ("name", "A predicate must be true or false", 'name == "text"'),
        ("!version", "What follows ! must be true or false", "version == 3"),
        ("isLatest && name", "Each side of && must be true or false", "name =="),
        ("name ? true : false", "What stands before ?", "name =="),
        ("tags.exists(k, name)", "The condition of exists", "name =="),
        ("name.contains(3)", "takes a string, not an int", 'name.contains("text")'),
        ('version.startsWith("a")', "works on a string", "string(x)"),
        ("createdAt.getFullYear() == 1", "works on a timestamp", "timestamp(createdAt)"),
        ('name + 1 == "a"', "a string + an int", "convert"),
        ("-name == 1", "a string cannot be negated", "numbers"),
        ("tags.env.x == 1", "tags.env is a string and has no members", "attributes"),
        ("size(version) == 1", "version is an int and has no size", "characters"),
        ("tags < tags", "a map has no order", "=="),
        ("name.all(x, true)", "needs a list or a map", "tags.exists"),
        ("int(1, 2) == 1", "int() takes one argument", "int(x)"),
    ],
)
def test_types_that_never_fit_are_refused_with_the_way_to_write_it(
    predicate: str, problem: str, hint: str
) -> None:
    error = refusal(predicate)
    assert problem in error.message
    assert hint in (error.hint or "")


def test_numbers_of_different_types_compare() -> None:
    for predicate in ("version < 3.5", "version == 3u", "size in [1, 2.0, 3u]"):
        assert plan(predicate).residual is None


def test_what_only_a_row_can_tell_is_not_refused() -> None:
    for predicate in (
        "attributes.n == 1",
        'content == "a"',
        "attributes.ok",
        '"a" in attributes.l',
    ):
        assert plan(predicate).residual == predicate


# The plan


def test_without_a_predicate_all_latest_versions_are_meant() -> None:
    found = plan(None)
    assert found.where == "(c.is_latest = 1 AND c.lifecycle = 'active')"
    assert found == Plan(found.where, (), None, needs_content=False, implicit_latest=True)


@pytest.mark.parametrize(
    ("predicate", "implicit"),
    [
        ('name == "a"', True),
        ('attributes.version == 1 && tags.isLatest == "x"', True),
        ("version > 0", False),
        ("!isLatest", False),
        ("true || version == 1", False),
        ("attributes.n == version", False),
    ],
)
def test_only_latest_versions_are_meant_unless_versions_are_mentioned(
    predicate: str, implicit: bool
) -> None:
    found = plan(predicate)
    assert found.implicit_latest is implicit
    assert ("c.is_latest = 1" in found.where) is (implicit or predicate == "!isLatest")
    assert "c.lifecycle = 'active'" in found.where


def test_content_is_needed_only_if_it_is_asked_for() -> None:
    assert plan("attributes.a == 1").needs_content
    assert plan('content == "x"').needs_content
    assert not plan('tags.content == "x" && tags.exists(content, content == "a")').needs_content
    assert projection("attributes.a").needs_content
    assert not projection('{"attributes": name}').needs_content


def test_sql_gets_the_parts_it_can_answer_and_the_rest_stays() -> None:
    found = plan('name == "a" && (attributes.x > 3 && (size > 5 && tags.all(k, k != "b")))')
    assert found.residual == 'attributes.x > 3 && tags.all(k, k != "b")'
    assert set(found.params) == {"a", 5}


def test_an_alternative_is_answered_whole_or_not_at_all() -> None:
    found = plan('name == "a" || attributes.x > 3')
    assert found.residual == 'name == "a" || attributes.x > 3'
    assert found.params == ()


@pytest.mark.parametrize(
    "predicate",
    [
        'modelId == "x" && ns != "y"',
        '!(tags.env == "prod") || "env" in tags',
        'has(tags.env) ? name == "a" : streaming',
        'tags["a-b"] == name',
        'tags[name] == "x"',
        'name in ["a", modelName, 3]',
        'name.startsWith("a") && name.endsWith("b") && tags.env.contains("c")',
        "name.size() == size(modelName) + 1 && tags.size() > 2",
        "size > 10 * 1024 * 1024 && size / 2 < 5 && size % 2 == 0 && -size < 0",
        'name + "-" + modelName == "a-b"',
        "isLatest == true && streaming != false && (isLatest == streaming)",
        "true",
    ],
)
def test_sql_answers_it(predicate: str) -> None:
    assert plan(predicate).residual is None


@pytest.mark.parametrize(
    "predicate",
    [
        'name.matches("^a")',
        '"a" in ["a", tags.env]',
        "tags.env in tags",
        "name in []",
        "size % version == 1",
        "size % -1 == 0",
        "size < 9223372036854775808u",
        "double(size) / 2.0 < 1.5",
        'tags == {"a": "b"}',
        "null == null",
        'timestamp(createdAt) > timestamp("2026-01-01T00:00:00Z")',
    ],
)
def test_what_sql_cannot_say_exactly_is_left_to_each_row(predicate: str) -> None:
    assert plan(predicate).residual == predicate


# The residual


def test_nothing_left_needs_no_matcher() -> None:
    assert matcher(plan('name == "a"')) is None


@pytest.mark.parametrize(
    "predicate",
    [
        "attributes.a.b[0] == 10",
        "attributes.ok",
        'name.matches("^rap.*") && content == "text"',
        'tags.exists(k, k == "env" && tags[k] == "prod")',
        "attributes.a.b[1].c == null",
        "attributes.missing == 1 || attributes.ok",
        "!has(attributes.missing)",
        'timestamp(createdAt) > timestamp("2026-01-01T00:00:00Z")',
        "timestamp(createdAt).getFullYear() == 2026 && [version].map(v, v * 2)[0] == 6",
        'string(version) == "3" && int("3") == version',
    ],
)
def test_a_record_matches_if_the_rest_is_true(predicate: str) -> None:
    assert matches(predicate)


@pytest.mark.parametrize(
    "predicate",
    [
        "attributes.missing == 1",
        "attributes.missing != 1",
        "!(attributes.missing == 1)",
        "attributes.text",
        "attributes.text > 3",
        "attributes.a.b[7] == 1",
        "attributes.a.b[0] / 0 == 1",
        "attributes.text && attributes.ok",
        "1 / (version - 3) == 1 || attributes.a.b[0] == 11",
    ],
)
def test_a_record_on_which_the_rest_fails_or_is_not_exactly_true_does_not_match(
    predicate: str,
) -> None:
    assert not matches(predicate)


@pytest.mark.parametrize(
    ("predicate", "problem"),
    [
        ('name.matches("(")', "'(' cannot be used here"),
        ('timestamp(createdAt) < timestamp("yesterday")', "'yesterday' cannot be used here"),
        ('duration("soon") == duration("1h")', "'soon' cannot be used here"),
    ],
)
def test_what_would_fail_on_every_row_is_refused_when_planning(
    predicate: str, problem: str
) -> None:
    assert problem in refusal(predicate).message


# The CEL library strays from CEL in these places; here they are put right.


def test_the_size_of_a_text_is_its_number_of_characters() -> None:
    assert matches("attributes.text.size() == 2")
    assert matches('size("é😀") + attributes.a.b[0] == 12')
    assert matches('size(attributes.a.b) == 2 && size(attributes) == 4 && size(b"é") == 2')
    assert not matches("size(attributes.ok) == 1 || attributes.missing")


def test_booleans_convert_from_and_to_text(capfd: pytest.CaptureFixture[str]) -> None:
    assert matches('string(attributes.ok) == "true" && bool("false") == false')
    assert not matches("bool(attributes.text)")
    assert not matches("bool(version) || attributes.missing")
    assert capfd.readouterr() == ("", "")


def test_matches_may_be_called_as_a_function() -> None:
    assert matches('matches(attributes.text, "é")')


# Projections


@pytest.mark.parametrize(
    ("select", "value"),
    [
        ("name", "rapport-é😀"),
        ("namespace", ""),
        ("tags", {"env": "prod", "a-b": "x"}),
        ("tags.env", "prod"),
        ('tags["a-b"]', "x"),
        ("attributes.a.b[0]", 10),
        ('attributes["a"].b[1].c', None),
        ("[name, version, 1.5, null, true]", ["rapport-é😀", 3, 1.5, None, True]),
        ('{"v": version, "n": {"l": [size]}}', {"v": 3, "n": {"l": [5]}}),
        ("{name: 1, 2: 3}", {"rapport-é😀": 1, 2: 3}),
        ("tags.missing", None),
        ("attributes.a.b[2]", None),
        ("attributes.a.b[-1]", None),
        ("attributes.a.b.c", None),
        ("attributes.a[0]", None),
        ("attributes.text[0]", None),
        ('{"ok": 1, "not": tags.missing}', None),
        ("{attributes.a: 1}", None),
        ('b"\\xff"', "/w=="),
        ("version + 1", 4),
        ("size(name)", 10),
        ('attributes.a.b.exists(x, x == 10) ? "yes" : "no"', "yes"),
        ("version / 0", None),
        ("[1, 2].map(x, x * version)", [3, 6]),
        ("string", "string"),
        ("timestamp(createdAt)", "2026-01-02T03:04:05.678000Z"),
        ('[duration("90s"), [duration("1500ms")]].filter(x, true)', ["90s", ["1.5s"]]),
    ],
)
def test_a_projection_returns_a_value_that_json_can_hold_or_none_where_it_fails(
    select: str, value: object
) -> None:
    assert projection(select)(RECORD) == value


def test_a_map_keeps_the_order_in_which_its_keys_were_written() -> None:
    select = '{"z": name, "y": version + 1, "x": size, "w": tags.env + "!", "v": 1, "u": 2}'
    assert list(projection(select)(RECORD)) == ["z", "y", "x", "w", "v", "u"]


def test_a_projection_knows_the_fields_it_reads() -> None:
    found = projection('{"a": name, "b": tags.exists(x, x == modelName), "c": attributes.size}')
    assert found.fields == {"name", "tags", "modelName", "attributes"}
    assert projection("namespace").fields == {"ns"}


def test_a_wrong_select_is_refused() -> None:
    for select in ("nam", "name.foo()", "{title: name}", "name +", "version + name", '""".'):
        with pytest.raises(QueryError):
            projection(select)


# Orders


@pytest.mark.parametrize(
    ("order", "sql"),
    [
        ("name", "c.data_name, c.rowid"),
        ("createdAt desc, name", "c.created_at DESC, c.data_name, c.rowid"),
        ("  size DESC ,version  Asc", "c.size DESC, c.version, c.rowid"),
        ("namespace, ns", "c.namespace, c.namespace, c.rowid"),
    ],
)
def test_an_order_names_fields_and_ends_with_the_order_of_entry(order: str, sql: str) -> None:
    assert order_by(order) == sql


@pytest.mark.parametrize(
    ("order", "hint"),
    [
        ("nmae", "Did you mean 'name'?"),
        ("attributes", "Sortable fields: checksum"),
        ("tags", "Sortable fields"),
        ("tags.env", "Sortable fields"),
        ("name; drop table catalog", "name; drop"),
        ("", "Sortable fields"),
        ("name,", "Sortable fields"),
        ("name down", "name desc"),
        ("name desc size", "commas separate"),
    ],
)
def test_anything_else_is_refused_with_the_fields_one_can_sort_by(order: str, hint: str) -> None:
    with pytest.raises(QueryError) as caught:
        order_by(order)
    assert hint in f"{caught.value.message} {caught.value.hint}"
