"""SQL and the CEL library must give the same answer to the same predicate.

Where the library strays from CEL, the grammar below keeps away from it:

- `size()` of a text counts bytes, so it is asked of plain ASCII fields only;
- the negation of the smallest integer wraps around, so only fields are negated;
- an integer beyond 2**53 is rounded when it is compared with a double, so doubles are small.
"""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import cel
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from swampstore.catalog.query.fields import FIELDS
from swampstore.catalog.query.plan import Plan, matcher, plan
from swampstore.catalog.query.projection import order_by
from swampstore.catalog.query.tree import (
    Binary,
    Call,
    Conditional,
    Expr,
    Ident,
    Index,
    Kind,
    ListOf,
    Literal,
    Logical,
    Member,
    MethodCall,
    Unary,
    render,
)

Record = dict[str, Any]

COLUMNS = {name: field.column for name, field in FIELDS.items() if field.column}
NUMERIC = {name for name in COLUMNS if FIELDS[name].kind in ("int", "bool")}
ASCII_FIELDS = ("modelType", "contentType")
SETTINGS = settings(deadline=None, max_examples=100)


def database(records: Sequence[Record]) -> sqlite3.Connection:
    db = sqlite3.connect(":memory:")
    columns = ", ".join(
        f"{column} {'INTEGER' if name in NUMERIC else 'TEXT'} NOT NULL"
        for name, column in COLUMNS.items()
    )
    db.execute(f"CREATE TABLE catalog (lifecycle TEXT NOT NULL, {columns}, deferred DEFAULT 0)")
    db.execute(
        "CREATE TABLE tag (key TEXT, value TEXT, row INTEGER, PRIMARY KEY (key, value, row))"
        " WITHOUT ROWID"
    )
    for record in records:
        values = [
            json.dumps(value) if name == "tags" else value for name, value in columns_of(record)
        ]
        marks = ", ".join("?" * (len(values) + 1))
        row = db.execute(f"INSERT INTO catalog VALUES ({marks}, 0)", ("active", *values)).lastrowid
        if record["isLatest"]:
            tags = record["tags"].items()
            db.executemany("INSERT INTO tag VALUES (?, ?, ?)", [(*tag, row) for tag in tags])
    return db


def columns_of(record: Record) -> list[tuple[str, Any]]:
    return [(name, record[name]) for name in COLUMNS]


def select(db: sqlite3.Connection, found: Plan) -> list[int]:
    rows = db.execute(
        f"SELECT c.rowid - 1 FROM catalog c WHERE {found.where} ORDER BY 1", found.params
    )
    return [row for (row,) in rows]


def answer(predicate: str, records: Sequence[Record]) -> list[int]:
    """Return the positions of the records that the plan of a predicate finds."""
    found = plan(predicate)
    with closing(database(records)) as db:
        candidates = select(db, found)
    match = matcher(found)
    return [row for row in candidates if match is None or match(records[row])]


def library_answer(predicate: str, records: Sequence[Record]) -> list[int]:
    """Return the positions of the records for which the library says true."""
    implicit_latest = plan(predicate).implicit_latest
    program = cel.compile(predicate)

    def holds(record: Record) -> bool:
        try:
            return program.execute(record) is True
        except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError):
            return False

    return [
        position
        for position, record in enumerate(records)
        if (record["isLatest"] or not implicit_latest) and holds(record)
    ]


# Rows: few different values, so that predicates meet them, and awkward ones

ALPHABET = "ab%_'\"\\\n\x00\x7fé\ud7ff\ue000\uffff😀\U0010ffff"
TEXTS = st.text(st.sampled_from(ALPHABET), max_size=3)
TAG_TEXTS = st.text(st.sampled_from(ALPHABET.replace("\x00", "")), max_size=2)
TAG_KEYS = st.sampled_from(["env", "a", "a-b", 'q"', "$", "", "é", "\\u0061", "b.c", "in"])
NUMBERS = st.one_of(st.integers(-3, 4), st.sampled_from([2**31, 2**62, 2**63 - 1, -(2**63) + 1]))


def _values(name: str) -> st.SearchStrategy[Any]:
    if name == "tags":
        return st.dictionaries(TAG_KEYS, TAG_TEXTS, max_size=4)
    if name in ASCII_FIELDS:
        return st.sampled_from(["", "a", "ab", "a/b", "text/plain"])
    return {"int": NUMBERS.filter(lambda n: n >= 0), "bool": st.booleans()}.get(
        str(FIELDS[name].kind), TEXTS
    )


ATTRIBUTES = st.dictionaries(
    st.sampled_from(["x", "y"]),
    st.one_of(TEXTS, NUMBERS, st.booleans(), st.none(), st.lists(NUMBERS, max_size=2)),
)
ASKED = ("name", "modelName", "ns", "source")
RECORDS = st.lists(
    st.fixed_dictionaries(
        {
            name: _values(name)
            if name in (*ASKED, *ASCII_FIELDS) or name in NUMERIC or name == "tags"
            else st.just("")
            for name in COLUMNS
        }
        | {"attributes": ATTRIBUTES}
    ),
    min_size=1,
    max_size=6,
)

# Expressions that SQL can answer, by type


def _literals(kind: Kind, values: st.SearchStrategy[Any]) -> st.SearchStrategy[Expr]:
    return values.map(lambda value: Literal(kind, value))


def _binary(
    operators: str, left: st.SearchStrategy[Expr], right: st.SearchStrategy[Expr]
) -> st.SearchStrategy[Expr]:
    return st.builds(Binary, st.sampled_from(operators.split()), left, right)


TAGS = Ident("tags")
INT_LITERALS = _literals("int", NUMBERS)
TEXT_LITERALS = _literals("string", st.one_of(TEXTS, TAG_KEYS))
TAG = st.one_of(
    st.sampled_from(["env", "a"]).map(lambda key: Member(TAGS, key)),
    _literals("string", TAG_KEYS).map(lambda key: Index(TAGS, key)),
)
STRINGS: st.SearchStrategy[Expr] = st.recursive(
    st.one_of(TEXT_LITERALS, st.sampled_from(ASKED).map(Ident), TAG),
    lambda inner: st.one_of(
        st.builds(Binary, st.just("+"), inner, inner), inner.map(lambda key: Index(TAGS, key))
    ),
    max_leaves=3,
)
INTS: st.SearchStrategy[Expr] = st.recursive(
    st.one_of(
        INT_LITERALS,
        st.sampled_from([Ident("version"), Ident("size"), Call("size", (TAGS,))]),
        st.sampled_from(ASCII_FIELDS).map(lambda name: Call("size", (Ident(name),))),
    ),
    lambda inner: st.one_of(
        _binary("+ - * /", inner, inner),
        st.builds(Binary, st.just("%"), inner, _literals("int", st.integers(0, 3))),
        st.sampled_from(["version", "size"]).map(lambda name: Unary("-", Ident(name))),
    ),
    max_leaves=4,
)
DOUBLES = _literals("double", st.sampled_from([-0.5, 0.0, 1.0, 1.5, 3.0]))
UINTS = _literals("uint", st.integers(0, 4))
SOLID_STRINGS = st.one_of(TEXT_LITERALS, st.sampled_from(ASKED).map(Ident))
LISTS = st.lists(st.one_of(SOLID_STRINGS, INT_LITERALS), max_size=3)


def _method(target: Expr, method: str, argument: Expr) -> Expr:
    return MethodCall(target, method, (argument,))


def _listed(item: Expr, first: Expr, others: list[Expr]) -> Expr:
    return Binary("in", item, ListOf((first, *others)))


ANSWERABLE_TESTS: st.SearchStrategy[Expr] = st.one_of(
    _binary("== != < <= > >=", STRINGS, STRINGS),
    _binary("== != < <= > >=", INTS, st.one_of(INTS, UINTS)),
    _binary("== != < <= > >=", st.sampled_from(["version", "size"]).map(Ident), DOUBLES),
    st.builds(_method, STRINGS, st.sampled_from(["startsWith", "contains"]), STRINGS),
    st.builds(_method, STRINGS, st.just("endsWith"), TEXT_LITERALS),
    st.builds(_listed, STRINGS, SOLID_STRINGS, LISTS),
    st.builds(_listed, INTS, INT_LITERALS, LISTS),
    st.builds(Binary, st.just("in"), SOLID_STRINGS, st.just(TAGS)),
    st.sampled_from(["env", "a"]).map(lambda key: Call("has", (Member(TAGS, key),))),
    st.sampled_from([Ident("streaming"), Ident("isLatest"), Literal("bool", value=True)]),
)


def _logic(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    several = st.lists(inner, min_size=2, max_size=3).map(tuple)
    return st.one_of(
        st.builds(Logical, st.sampled_from(["&&", "||"]), several),
        inner.map(lambda operand: Unary("!", operand)),
        st.builds(Conditional, inner, inner, inner),
        _binary("== != <", inner, inner),
    )


ANSWERABLE = st.recursive(ANSWERABLE_TESTS, _logic, max_leaves=5)

# Tests that stay for each row

ATTRIBUTE = st.sampled_from(["x", "y", "z"]).map(lambda name: Member(Ident("attributes"), name))
LEFT_OVER_TESTS: st.SearchStrategy[Expr] = st.one_of(
    _binary("== != <", ATTRIBUTE, st.one_of(STRINGS, INTS)),
    ATTRIBUTE,
    st.builds(_method, STRINGS, st.just("matches"), st.just(Literal("string", "^a|é$"))),
    st.builds(Binary, st.just("in"), TAG, st.just(TAGS)),
    st.builds(_listed, STRINGS, TAG, LISTS),
    st.builds(Binary, st.just("in"), STRINGS, st.just(ListOf(()))),
    st.builds(Binary, st.just("=="), st.builds(Binary, st.just("%"), INTS, INTS), INT_LITERALS),
)
MIXED = st.recursive(st.one_of(ANSWERABLE_TESTS, LEFT_OVER_TESTS), _logic, max_leaves=5)


def _row(**values: Any) -> Record:
    blank: Record = dict.fromkeys(COLUMNS, "")
    zero = {"version": 1, "size": 0, "isLatest": True, "streaming": False, "tags": {}}
    return blank | zero | {"attributes": {}} | values


@SETTINGS
@given(ANSWERABLE, RECORDS)
@example(Unary("!", Binary("==", Member(TAGS, "env"), Literal("string", "a"))), [_row()])
def test_sql_says_what_the_library_says(predicate: Expr, records: list[Record]) -> None:
    source = render(predicate)
    assert plan(source).residual is None
    assert answer(source, records) == library_answer(source, records)


@SETTINGS
@given(MIXED, RECORDS)
def test_sql_and_a_residual_together_say_what_the_library_says(
    predicate: Expr, records: list[Record]
) -> None:
    source = render(predicate)
    assert answer(source, records) == library_answer(source, records)


AWKWARD = [
    _row(),
    _row(name="a", tags={"env": "prod", "a": "xa"}, size=7, streaming=True),
    _row(name="xa", tags={"env": ""}, size=2**63 - 1, version=2, isLatest=False),
    _row(name="env", modelName="a", tags={"env": "env", 'q"': "a"}, size=3),
]


@pytest.mark.parametrize(
    "predicate",
    [
        'tags.env == "prod" ? false : true',
        'tags.env == "prod" ? true : tags.a == "b"',
        'tags.a.startsWith("a")',
        'tags.a.startsWith("x") || !tags.env.startsWith("e")',
        "name.startsWith(modelName)",
        '(modelName + name).startsWith("a")',
        '!name.endsWith("a")',
        'tags.env.endsWith("")',
        '"prod" == tags.env',
        '"a" == tags[\'q"\']',
        'tags[name] == "env"',
        "name in tags && !(modelName in tags)",
        'tags.env in ["prod", "env"]',
        '!(tags.env in ["prod"])',
        '(tags.env < "f") == streaming',
        "isLatest == false || version != 1",
        "(-size - 2) % -1 == 0",
        "(size + 1) % 2 == 0",
        "size * version / 2 > 0",
        "size / -2 == -3 && size % 4 == 3",
        '(tags.a == "xa") != false',
    ],
)
def test_awkward_rows_get_the_answer_of_the_library(predicate: str) -> None:
    assert answer(predicate, AWKWARD) == library_answer(predicate, AWKWARD)


# Answers that need no library to be known


@SETTINGS
@given(st.text(st.sampled_from(ALPHABET + "u0")))
@example("\\u0000\x00\\\\")
def test_sql_counts_the_characters_of_a_text(text: str) -> None:
    assert answer(f"name.size() == {len(text)}", [_row(name=text)]) == [0]
    assert answer(f'size(name + "é") == {len(text) + 1}', [_row(name=text)]) == [0]


@SETTINGS
@given(TEXTS, st.lists(TEXTS, min_size=1, max_size=8))
@example("\ud7ff", ["\ud7ff", "\ud7ffa", "\ue000", "\ud7fe"])
@example("a\U0010ffff", ["a\U0010ffff", "a\U0010ffffa", "a", "b"])
@example("\U0010ffff", ["\U0010ffff", "\U0010ffff😀", "\uffff"])
@example("a\x00", ["a", "a\x00", "a\x00b", "a\x01"])
def test_sql_finds_the_texts_with_a_beginning_and_an_end(part: str, names: list[str]) -> None:
    records = [_row(name=name) for name in names]
    literal = render(Literal("string", part))
    starting = [row for row, name in enumerate(names) if name.startswith(part)]
    ending = [row for row, name in enumerate(names) if name.endswith(part)]
    assert answer(f"name.startsWith({literal})", records) == starting
    assert answer(f"name.endsWith({literal})", records) == ending


def test_integers_compare_exactly_with_doubles() -> None:
    records = [_row(size=2**53), _row(size=2**53 + 1)]
    assert answer("size == 9007199254740992.0", records) == [0]
    assert answer("size > 9007199254740992.0", records) == [1]


def test_overflow_and_division_by_zero_match_nothing() -> None:
    records = [_row(size=2**63 - 1, version=1), _row(size=1, version=1)]
    assert answer("size + version > 0", records) == [1]
    assert answer("!(size + version > 0)", records) == []
    assert answer("size / (version - 1) == 0 || true", records) == [0, 1]
    assert answer("size / (version - 1) == 0", records) == []
    assert answer("-size - 2 < 0 && version == 1", records) == [1]


def test_long_queries_stay_within_the_limits_of_sqlite() -> None:
    records = [_row(name="a"), _row(name="b")]
    alternatives = " || ".join(['name == "a"'] * 1200)
    assert answer(alternatives, records) == [0]
    assert answer(alternatives.replace("||", "&&"), records) == [0]
    assert answer(f"size in [{'1,' * 16_000}0]", records) == [0, 1]
    assert answer(alternatives + "|| attributes.x", records) == [0]


def test_rows_that_are_not_active_are_never_found() -> None:
    with closing(database([_row(), _row()])) as db:
        db.execute("UPDATE catalog SET lifecycle = 'deleted' WHERE rowid = 1")
        assert select(db, plan(None)) == [1]
        assert select(db, plan("version > 0 || true")) == [1]


def test_tags_of_older_versions_are_found_when_they_are_asked_for() -> None:
    records = [_row(tags={"env": "prod"}, isLatest=False), _row(tags={"env": "prod"}, version=2)]
    assert answer('tags.env == "prod"', records) == [1]
    assert answer('tags.env == "prod" && version > 0', records) == [0, 1]


def test_an_order_is_accepted_by_sqlite() -> None:
    records = [_row(name="b", size=1), _row(name="a", size=1), _row(name="c", size=2)]
    with closing(database(records)) as db:
        order = order_by("size desc, name")
        rows = db.execute(f"SELECT c.data_name FROM catalog c ORDER BY {order}")
        assert [name for (name,) in rows] == ["c", "a", "b"]


@pytest.mark.parametrize(
    ("predicate", "access"),
    [
        ('modelName == "x"', "USING INDEX latest_model_name (model_name=?)"),
        ('"x" == modelName && size > 3', "USING INDEX latest_model_name (model_name=?)"),
        ('isLatest == true && modelName == "x"', "USING INDEX latest_model_name (model_name=?)"),
        ('name.startsWith("a")', "USING INDEX latest_name (data_name>? AND data_name<?)"),
        ('name in ["a", "b"]', "USING INDEX latest_name (data_name=?)"),
        ("size > 10 * 1024", "USING INDEX latest_size (size>?)"),
        ('workflowRunId == "r" && version > 0', "USING INDEX runs (workflow_run_id=?)"),
    ],
)
def test_sqlite_answers_with_an_index(predicate: str, access: str) -> None:
    found = plan(predicate)
    with closing(database([])) as db:
        for index in (
            "latest_model_name ON catalog (model_name) WHERE is_latest = 1",
            "latest_name ON catalog (data_name) WHERE is_latest = 1",
            "latest_size ON catalog (size) WHERE is_latest = 1",
            "runs ON catalog (workflow_run_id) WHERE workflow_run_id != ''",
        ):
            db.execute(f"CREATE INDEX {index}")
        steps = db.execute(
            f"EXPLAIN QUERY PLAN SELECT c.id FROM catalog c WHERE {found.where}", found.params
        )
        assert any(access in step for *_, step in steps)


def test_the_cel_library_is_imported_only_for_what_sql_cannot_answer() -> None:
    script = """
import sys
from swampstore.catalog.query.plan import matcher, plan
from swampstore.catalog.query.projection import order_by, projection
found = plan('name.startsWith("a") && !(tags.env in ["a"]) || size(name) > 3 * version')
assert matcher(found) is None
order_by("createdAt desc")
show = projection('{"a": [name, tags.env, attributes.a[0].b], "b": 1}')
show({"name": "n", "tags": {}, "attributes": {}})
assert "cel.cel" not in sys.modules
plan('name.matches("a")')
assert "cel.cel" in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True)
