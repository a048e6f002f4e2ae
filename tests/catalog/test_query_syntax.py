from __future__ import annotations

import inspect
import sys
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from swampstore.catalog.query.syntax import MAX_DEPTH, MAX_LENGTH, parse
from swampstore.catalog.query.tree import (
    Binary,
    Call,
    Comprehension,
    Conditional,
    Expr,
    Ident,
    Index,
    ListOf,
    Literal,
    Logical,
    MapOf,
    Member,
    MethodCall,
    Node,
    Unary,
    render,
)
from swampstore.errors import QueryError


def shape(node: Any) -> Any:
    """Return an expression as nested tuples with class names and without positions."""
    if isinstance(node, Node):
        members = [getattr(node, name) for name in node.__match_args__ if name != "at"]
        return (type(node).__name__, *map(shape, members))
    if isinstance(node, tuple):
        return tuple(shape(part) for part in node)
    return (type(node).__name__, repr(node))


@pytest.mark.parametrize(
    ("source", "grouped"),
    [
        ("1 + 2 * 3", "1 + (2 * 3)"),
        ("1 - 2 - 3", "(1 - 2) - 3"),
        ("1 + 2 == 3", "(1 + 2) == 3"),
        ('version in [1] && name == "a"', '(version in [1]) && (name == "a")'),
        ("a || b && c", "a || (b && c)"),
        ("!a && b", "(!a) && b"),
        ("-a + b", "(-a) + b"),
        ("!a.b", "!(a.b)"),
        ("-a.b[0]", "-((a.b)[0])"),
        ("a ? b : c ? d : e", "a ? b : (c ? d : e)"),
        ("a || b ? c : d", "(a || b) ? c : d"),
        ("1 < 2 == true", "(1 < 2) == true"),
        ("a == !b", "a == (!b)"),
    ],
)
def test_operators_bind_as_in_cel(source: str, grouped: str) -> None:
    assert shape(parse(source)) == shape(parse(grouped))
    assert render(parse(grouped)) == source


def test_parentheses_that_matter_survive_rendering() -> None:
    for source in (
        "(1 + 2) * 3",
        "1 - (2 - 3)",
        "(a || b) && c",
        "!(a && b)",
        "(a ? b : c) ? d : e",
    ):
        assert render(parse(source)) == source
    assert render(parse("a ? (b ? c : d) : e")) == "a ? (b ? c : d) : e"


@pytest.mark.parametrize(
    ("source", "kind", "value"),
    [
        ("12", "int", 12),
        ("-9223372036854775808", "int", -(2**63)),
        ("0x1F", "int", 31),
        ("7u", "uint", 7),
        ("18446744073709551615U", "uint", 2**64 - 1),
        ("1.5e3", "double", 1500.0),
        (".5", "double", 0.5),
        ("-2e-1", "double", -0.2),
        ("true", "bool", True),
        ("null", "null", None),
        ("'it\\'s'", "string", "it's"),
        ('"a\\u00e9\\U0001F600\\x41\\101\\n"', "string", "aé😀AA\n"),
        (r"r'\d'", "string", r"\d"),
        ("'''two\nlines '' \\''''", "string", "two\nlines '' '"),
        ('"""a"b"""', "string", 'a"b'),
        ("R'''\\'''", "string", "\\"),
        ('b"\\xff\\377é"', "bytes", b"\xff\xff\xc3\xa9"),
        ("br'\\n'", "bytes", b"\\n"),
    ],
)
def test_literals_have_the_type_and_value_they_have_in_cel(
    source: str, kind: str, value: object
) -> None:
    expr = parse(source)
    assert isinstance(expr, Literal)
    assert (expr.kind, expr.value, type(expr.value)) == (kind, value, type(value))


def test_comments_and_line_breaks_are_blank() -> None:
    assert render(parse('name // what\n  == "a" // end')) == 'name == "a"'


def test_one_meaning_has_one_spelling() -> None:
    assert shape(parse("name.size()")) == shape(parse("size(name)"))
    assert shape(parse('contains(name, "a")')) == shape(parse('name.contains("a")'))
    assert shape(parse("a && b && c")) == shape(Logical("&&", (Ident("a"), Ident("b"), Ident("c"))))


def test_the_reserved_word_namespace_is_read_as_ns() -> None:
    assert shape(parse('namespace == "x"')) == shape(parse('ns == "x"'))


def test_a_reserved_word_may_name_a_member() -> None:
    assert shape(parse("tags.package")) == shape(Member(Ident("tags"), "package"))


def test_a_comprehension_binds_its_variable() -> None:
    expr = parse("tags.exists(k, k == 'a')")
    assert isinstance(expr, Comprehension)
    assert (expr.macro, expr.variable) == ("exists", "k")


@pytest.mark.parametrize(
    ("source", "at", "hint"),
    [
        ('name = "a"', 6, "=="),
        ("name == 'a", 9, "Close it with '"),
        ("name and size", 6, "&&"),
        ("a & b", 3, "&&"),
        ("tags.in", 6, '["in"]'),
        ("tags.`a-b`", 6, 'tags["a-b"]'),
        ("tags.?a", 5, "has("),
        ("(1 + 2", 7, ")"),
        ("[1, 2", 6, "]"),
        ("1 +", 4, "a field, a value"),
        ("", 1, "a field, a value"),
        ("1 2", 3, "an operator"),
        ("5kb", 2, "quotes"),
        ('"\\q"', 2, "backslash"),
        ('"\\ud800"', 2, "backslash"),
        ("b'\\u0041'", 3, "backslash"),
        ("9223372036854775808", 1, "smaller"),
        ("18446744073709551616u", 1, "smaller"),
        ("1e999", 1, "smaller"),
        ("for == 1", 1, "quotes"),
        ("Type{a: 1}", 5, "operator"),
        ("has(name)", 1, "has(tags.env)"),
        ('has(tags["a"])', 1, '"a-b" in tags'),
        ("[1].exists(1, true)", 12, "variable"),
        ("[1].exists(x, true, false)", 5, ".exists(x, ...)"),
        ("a ? b ? 1 : 2 : 3", 7, ":"),
    ],
)
def test_a_syntax_error_points_at_its_place_and_says_what_to_write(
    source: str, at: int, hint: str
) -> None:
    with pytest.raises(QueryError) as caught:
        parse(source)
    message, shown, caret = caught.value.message.splitlines()
    assert message.endswith(f"at position {at}:")
    assert shown == f"  {source}"
    assert caret == " " * (at + 1) + "^"
    assert hint in (caught.value.hint or "")


def test_an_error_shows_the_line_it_is_in_and_not_all_of_a_long_one() -> None:
    source = "true &&\n" + "a" * 500 + " = " + "b" * 500
    with pytest.raises(QueryError) as caught:
        parse(source)
    _, shown, caret = caught.value.message.splitlines()
    assert len(shown) < 110
    assert shown[caret.index("^")] == "="


@pytest.mark.parametrize(
    "source",
    [
        "(" * 5000 + "1" + ")" * 5000,
        "[" * 5000,
        "!" * 5000 + "true",
        "-" * 5000 + "x",
        "+".join(["1"] * 5000),
        "tags" + ".a" * 5000,
        "a" + "[0]" * 5000,
        "true?1:" * 2000 + "1",
        "size(" * 2000,
        "{1:" * 2000,
        "9" * 20_000,
        "a" * (MAX_LENGTH + 1),
        "'\udcff'",
    ],
    ids=range(13),
)
def test_hostile_input_is_a_query_error(source: str) -> None:
    with pytest.raises(QueryError):
        parse(source)


def test_the_deepest_accepted_query_leaves_most_of_the_stack_unused() -> None:
    flat = "1 + 2 * (" * (MAX_DEPTH - 1) + "1" + ")" * (MAX_DEPTH - 1)
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack()) + 500)
    try:
        with pytest.raises(QueryError, match="nests deeper"):
            parse(flat)
        parse(flat.replace("1 + 2 * ", ""))
    finally:
        sys.setrecursionlimit(limit)


def test_long_chains_of_and_and_or_are_no_depth() -> None:
    expr = parse(" || ".join(["true"] * 3000))
    assert isinstance(expr, Logical)
    assert len(expr.operands) == 3000


NAMES = st.sampled_from(["name", "tags", "x", "_a1"])
LITERALS: st.SearchStrategy[Expr] = st.one_of(
    st.integers(-(2**63), 2**63 - 1).map(lambda value: Literal("int", value)),
    st.integers(0, 2**64 - 1).map(lambda value: Literal("uint", value)),
    st.floats(allow_nan=False, allow_infinity=False).map(lambda value: Literal("double", value)),
    st.text(st.characters(exclude_categories=["Cs"])).map(lambda value: Literal("string", value)),
    st.binary(max_size=8).map(lambda value: Literal("bytes", value)),
    st.booleans().map(lambda value: Literal("bool", value)),
    st.just(Literal("null", None)),
)


def composites(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    several = st.lists(inner, max_size=3).map(tuple)
    return st.one_of(
        st.builds(Member, inner, NAMES),
        st.builds(Index, inner, inner),
        st.builds(Call, st.just("f"), several),
        st.builds(MethodCall, inner, st.just("m"), several),
        st.builds(
            Comprehension,
            inner,
            st.sampled_from(["exists", "map"]),
            NAMES,
            inner.map(lambda x: (x,)),
        ),
        st.builds(ListOf, several),
        st.builds(MapOf, st.lists(st.tuples(inner, inner), max_size=2).map(tuple)),
        st.builds(Unary, st.sampled_from("!-"), inner),
        st.builds(Binary, st.sampled_from(["==", "<=", "in", "+", "-", "*", "%"]), inner, inner),
        st.builds(
            Logical,
            st.sampled_from(["&&", "||"]),
            st.lists(inner, min_size=2, max_size=3).map(tuple),
        ),
        st.builds(Conditional, inner, inner, inner),
    )


@settings(deadline=None, max_examples=150)
@given(st.recursive(st.one_of(NAMES.map(Ident), LITERALS), composites, max_leaves=12))
@example(Unary("-", Member(Literal("int", 0), "name")))
@example(Unary("-", Literal("int", -1)))
def test_what_is_rendered_parses_to_the_same_tree(expr: Expr) -> None:
    assert shape(parse(render(expr))) == shape(expr)


@settings(deadline=None, max_examples=150)
@given(st.text(st.sampled_from("ab.[](){}!-+*/%<>=&|?:,'\"\\rbu0x1e \n\U0001f600"), max_size=30))
def test_any_text_parses_or_is_a_query_error(source: str) -> None:
    try:
        expr = parse(source)
    except QueryError:
        return
    assert shape(parse(render(expr))) == shape(expr)
