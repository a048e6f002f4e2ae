"""Inputs: typed by their schema, checked before anything runs, and errors that name the field."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swampstore.runs.errors import InputError, InputSchemaError
from swampstore.runs.inputs import check_inputs, parse_pairs

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "host": {"type": "string"},
        "count": {"type": "integer", "default": 3, "minimum": 1},
        "ratio": {"type": "number"},
        "force": {"type": "boolean"},
        "hosts": {"type": "array", "items": {"type": "string"}},
        "ports": {"type": "array", "items": {"type": "integer"}},
        "limits": {
            "type": "object",
            "properties": {"cpu": {"type": "integer"}},
            "required": ["cpu"],
        },
        "level": {"enum": ["low", 3]},
        "maybe": {"type": ["integer", "null", "string"]},
        "either": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
    },
    "required": ["host"],
}


@pytest.mark.parametrize(
    ("pairs", "values"),
    [
        (["host=a=b"], {"host": "a=b"}),
        (["host=7"], {"host": "7"}),
        (["host="], {"host": ""}),
        (["count=7", "ratio=0.5", "force=true"], {"count": 7, "ratio": 0.5, "force": True}),
        (["count=7.0", "ratio=2"], {"count": 7, "ratio": 2}),
        (["hosts=a"], {"hosts": ["a"]}),
        (["hosts=a", "hosts=b,c"], {"hosts": ["a", "b,c"]}),
        (['hosts=["a", "b"]', "hosts=c"], {"hosts": ["a", "b", "c"]}),
        (["ports=80", "ports=443"], {"ports": [80, 443]}),
        (['limits={"cpu": 4}'], {"limits": {"cpu": 4}}),
        (["limits.cpu=4"], {"limits": {"cpu": 4}}),
        (["level=low"], {"level": "low"}),
        (["level=3"], {"level": 3}),
        (["maybe=7"], {"maybe": 7}),
        (["maybe=null"], {"maybe": None}),
        (["maybe=x"], {"maybe": "x"}),
        (["either=7"], {"either": 7}),
        (["either=x"], {"either": "x"}),
        (["unknown=7", "a.b=c"], {"unknown": "7", "a.b": "c"}),
        (['host:={"x": [1]}'], {"host": {"x": [1]}}),
        (["host=@@home"], {"host": "@home"}),
    ],
)
def test_values_have_the_type_that_the_schema_gives_them(
    pairs: list[str], values: dict[str, Any]
) -> None:
    assert parse_pairs(pairs, SCHEMA) == values


def test_without_a_schema_values_are_text() -> None:
    assert parse_pairs(["n=1", "x:=2"], None) == {"n": "1", "x": 2}


def test_a_value_comes_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "hosts.json").write_text('["a", "b"]')
    assert parse_pairs([f"hosts=@{tmp_path}/hosts.json"], SCHEMA) == {"hosts": ["a", "b"]}
    with pytest.raises(InputError, match="host cannot be read from"):
        parse_pairs([f"host=@{tmp_path}/missing"], SCHEMA)


@pytest.mark.parametrize(
    ("pair", "words"),
    [
        ("count=many", "count is 'many' and must be a whole number"),
        ("count=1.5", "count is '1.5'"),
        ("force=yes", "force is 'yes' and must be true or false"),
        ("limits=4", "limits is '4' and must be an object"),
        ("count=true", "count is 'true'"),
        ("host:={", "host is not JSON"),
        ("host", "'host' is not an input"),
        ("=x", "'=x' is not an input"),
    ],
)
def test_a_value_that_cannot_have_its_type_is_refused(pair: str, words: str) -> None:
    with pytest.raises(InputError) as error:
        parse_pairs([pair], SCHEMA)
    assert words in error.value.message
    assert error.value.hint


def test_a_value_that_is_no_list_is_not_given_twice() -> None:
    with pytest.raises(InputError, match="host is there twice"):
        parse_pairs(["host=a", "host=b"], SCHEMA)


# Against the schema --------------------------------------------------------------------------


def test_defaults_are_filled_in_and_what_was_given_stays() -> None:
    given_values = {"host": "a"}
    assert check_inputs(SCHEMA, given_values, "m.yaml") == {"host": "a", "count": 3}
    assert given_values == {"host": "a"}
    assert check_inputs(SCHEMA, {"host": "a", "count": 5}, "m.yaml")["count"] == 5


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "m.yaml: the input host is missing"),
        ({"host": 7}, "m.yaml: the input host must be string"),
        ({"host": "a", "limits": {}}, "m.yaml: the input limits.cpu is missing"),
        ({"host": "a", "limits": {"cpu": "x"}}, "m.yaml: the input limits.cpu must be integer"),
        ({"host": "a", "hosts": ["a", 1]}, "m.yaml: the input hosts.1 must be string"),
        ({"host": "a", "hots": "b"}, "m.yaml: there is no input 'hots'"),
        ({"host": "a", "count": 0}, "m.yaml: the input count must be bigger than or equal to 1"),
    ],
)
def test_an_error_names_the_file_and_the_field(values: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        check_inputs(SCHEMA, values, "m.yaml")
    assert error.value.message == message
    assert error.value.hint


def test_an_unknown_input_is_refused_with_the_name_that_was_meant() -> None:
    with pytest.raises(InputError) as error:
        check_inputs(SCHEMA, {"host": "a", "cuont": 1}, "m.yaml")
    assert error.value.hint == "Did you mean 'count'?"
    with pytest.raises(InputError):
        check_inputs({"type": "object"}, {"a": 1}, "m.yaml")
    assert check_inputs({"additionalProperties": True}, {"a": 1}, "m.yaml") == {"a": 1}
    assert check_inputs(None, {"a": 1}, "m.yaml") == {"a": 1}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "nonsense"},
        {"properties": [1]},
        {"properties": {"a": {"type": "string", "pattern": "("}}},
        {"properties": {"a": {"$ref": "http://192.0.2.1/schema"}}},
        {"properties": {"a": {"$ref": "file:///etc/passwd"}}},
        {"properties": {"a": {"$ref": "#/definitions/none"}}},
    ],
)
def test_a_schema_that_cannot_be_used_is_an_error_of_its_own(schema: dict[str, Any]) -> None:
    with pytest.raises(InputSchemaError, match=r"m\.yaml"):
        check_inputs(schema, {"a": "x"}, "m.yaml")


_values = st.one_of(
    st.tuples(st.just({"type": "integer"}), st.integers()),
    st.tuples(st.just({"type": "boolean"}), st.booleans()),
    st.tuples(st.just({"type": "number"}), st.floats(allow_nan=False, allow_infinity=False)),
    st.tuples(st.just({"type": "string"}), st.text().filter(lambda text: text[:1] != "@")),
    st.tuples(st.just({"type": "array"}), st.lists(st.integers())),
    st.tuples(st.just({"type": "object"}), st.dictionaries(st.text(), st.text())),
)


@settings(max_examples=50)
@given(_values)
def test_a_value_written_as_json_is_read_as_what_it_was(pair: tuple[dict[str, Any], Any]) -> None:
    import json

    schema, value = pair
    text = value if isinstance(value, str) else json.dumps(value)
    parsed = parse_pairs([f"x={text}"], {"properties": {"x": schema}})
    assert parsed == {"x": value}
    assert check_inputs({"properties": {"x": schema}}, parsed, "m") == parsed
