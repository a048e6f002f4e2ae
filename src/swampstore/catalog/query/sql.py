"""CEL to SQL, where SQL gives the very same answer.

In CEL an operation can fail: a tag is missing, a number overflows. `false && error` is false,
`true || error` is true, everything else that touches an error is an error, and a predicate that
ends in one does not match. That is SQL's three-valued logic with NULL in the place of the error,
so each translation below is NULL exactly where CEL fails, and nothing else is ever NULL.
"""

from __future__ import annotations

from typing import NamedTuple

from swampstore.catalog.query.fields import known_fields
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
)

SqlValue = str | int | float | bytes

_NUMBERS = frozenset({"int", "uint", "double"})
_SCALARS = _NUMBERS | {"bool", "string"}
_COMPARISONS = {"==": "=", "!=": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_MAX_INT = (1 << 63) - 1
_LAST_CHARACTER = "\U0010ffff"


class Sql(NamedTuple):
    """An SQL expression over the catalog row `c`, with its parameters in order.

    `nullable` says whether it can be NULL, which stands for an error.
    """

    text: str
    params: tuple[SqlValue, ...]
    kind: Kind
    nullable: bool = False


class _UnanswerableError(Exception):
    """SQL cannot say this exactly."""


def translate(expr: Expr) -> Sql | None:
    """Return an SQL condition that is true, false or NULL as `expr` is true, false or an error.

    None if SQL cannot answer it exactly. `expr` has been checked: its names and types fit.
    """
    try:
        return _of_kind("bool", expr)
    except _UnanswerableError:
        return None


def joined(operator: str, parts: list[str]) -> str:
    """Join conditions with AND or OR as a balanced tree: SQLite limits the depth of one."""
    if len(parts) == 1:
        return parts[0]
    middle = len(parts) // 2
    return f"({joined(operator, parts[:middle])} {operator} {joined(operator, parts[middle:])})"


def _sql(expr: Expr) -> Sql:  # noqa: PLR0911, PLR0912 - one line per construct of the language
    match expr:
        case Literal():
            return _literal(expr)
        case Ident(name):
            return _field(name)
        case Member(Ident("tags"), key):
            return _tag(_parameter(key, "string"))
        case Index(Ident("tags"), key):
            return _tag(_of_kind("string", key))
        case Unary("!", operand):
            return _derived("NOT {}", "bool", _of_kind("bool", operand))
        case Unary("-", operand):
            return _checked("- {}", _of_kind("int", operand))
        case Logical(operator, operands):
            return _logical(operator, [_of_kind("bool", operand) for operand in operands])
        case Binary("in", left, right):
            return _membership(_sql(left), right)
        case Binary(operator, left, right) if operator in _COMPARISONS:
            return _comparison(operator, left, right)
        case Binary(operator, left, right):
            return _arithmetic(operator, left, right)
        case Conditional(test, then, otherwise):
            return _choice(_of_kind("bool", test), _sql(then), _sql(otherwise))
        case Call("size", (operand,)):
            return _size(operand)
        case Call("has", (Member(Ident("tags"), key),)):
            return _has_tag(_parameter(key, "string"))
        case MethodCall(target, method, (argument,)):
            return _text_test(method, _of_kind("string", target), argument)
    raise _UnanswerableError


def _of_kind(kind: Kind, expr: Expr) -> Sql:
    sql = _sql(expr)
    if sql.kind != kind:
        raise _UnanswerableError
    return sql


def _parameter(value: SqlValue, kind: Kind) -> Sql:
    return Sql("?", (value,), kind)


def _derived(template: str, kind: Kind, *parts: Sql, nullable: bool = False) -> Sql:
    """Return `template` with one part in each pair of braces; an error in a part is its error."""
    return Sql(
        "(" + template.format(*(part.text for part in parts)) + ")",
        tuple(value for part in parts for value in part.params),
        kind,
        nullable or any(part.nullable for part in parts),
    )


def _literal(expr: Literal) -> Sql:
    match expr.value:
        case bool():
            return Sql("1" if expr.value else "0", (), "bool")
        case int() if expr.value > _MAX_INT:
            raise _UnanswerableError
        case int() | float() | str():
            return _parameter(expr.value, expr.kind)
        case _:
            raise _UnanswerableError


def _field(name: str) -> Sql:
    field = known_fields().get(name)
    if field is None or field.kind not in _SCALARS or field.column is None:
        raise _UnanswerableError
    if field.kind == "bool":
        # Spelled like the condition of the partial indexes, so that they can be used.
        return Sql(f"(c.{field.column} = 1)", (), "bool")
    return Sql(f"c.{field.column}", (), field.kind)


def _tag(key: Sql) -> Sql:
    # A JSON path costs nearly the same, and cannot name a key with a quote or an escape in it.
    return _derived(
        "SELECT value FROM json_each(c.tags) WHERE key = {}", "string", key, nullable=True
    )


def _is_tags(expr: Expr) -> bool:
    return isinstance(expr, Ident) and expr.name == "tags"


def _has_tag(key: Sql) -> Sql:
    if key.nullable or key.kind != "string":
        raise _UnanswerableError  # EXISTS is false, not NULL, for a key that is an error
    return _derived("EXISTS (SELECT 1 FROM json_each(c.tags) WHERE key = {})", "bool", key)


def _logical(operator: str, operands: list[Sql]) -> Sql:
    template = joined("OR" if operator == "||" else "AND", ["{}"] * len(operands))
    return _derived(template, "bool", *operands)


def _comparison(operator: str, left: Expr, right: Expr) -> Sql:
    for side, other in ((left, right), (right, left)):
        if isinstance(side, Literal) and side.kind == "bool" and operator in ("==", "!="):
            holds = side.value is (operator == "==")
            return _sql(other if holds else Unary("!", other))
    return _compared(_COMPARISONS[operator], _sql(left), _sql(right))


def _compared(operator: str, left: Sql, right: Sql) -> Sql:
    if not _comparable(left, right):
        raise _UnanswerableError
    return _derived(f"{{}} {operator} {{}}", "bool", left, right)


def _comparable(left: Sql, right: Sql) -> bool:
    return left.kind == right.kind or (left.kind in _NUMBERS and right.kind in _NUMBERS)


def _membership(item: Sql, collection: Expr) -> Sql:
    if _is_tags(collection):
        return _has_tag(item)
    if not isinstance(collection, ListOf):
        raise _UnanswerableError
    elements = [_sql(element) for element in collection.items]
    candidates = [element for element in elements if _comparable(item, element)]
    # An error in a list is an error of the whole, which IN would overlook once a match is found;
    # and IN () is false even for an error.
    if not candidates or any(element.nullable for element in elements):
        raise _UnanswerableError
    template = "{} IN (" + ", ".join(["{}"] * len(candidates)) + ")"
    return _derived(template, "bool", item, *candidates)


def _arithmetic(operator: str, left: Expr, right: Expr) -> Sql:
    sides = _sql(left), _sql(right)
    kinds = {side.kind for side in sides}
    if operator == "+" and kinds == {"string"}:
        return _derived("{} || {}", "string", *sides)
    if kinds != {"int"}:
        raise _UnanswerableError
    # CEL calls the smallest integer % -1 an overflow, SQLite says 0.
    if operator == "%" and not (isinstance(right, Literal) and right.value != -1):
        raise _UnanswerableError
    return _checked(f"{{}} {operator} {{}}", *sides)


def _checked(template: str, *operands: Sql) -> Sql:
    """Return integer arithmetic that is NULL on overflow, where SQLite turns to floating point."""
    template = (
        "SELECT CASE typeof(result) WHEN 'integer' THEN result END"
        f" FROM (SELECT {template} AS result)"
    )
    return _derived(template, "int", *operands, nullable=True)


def _choice(test: Sql, then: Sql, otherwise: Sql) -> Sql:
    if then.kind != otherwise.kind:
        raise _UnanswerableError
    return _derived("CASE {} WHEN 1 THEN {} WHEN 0 THEN {} END", then.kind, test, then, otherwise)


def _size(operand: Expr) -> Sql:
    if _is_tags(operand):
        return Sql("(SELECT count(*) FROM json_each(c.tags))", (), "int")
    # length() stops at a NUL character; a detour over JSON replaces those, and backslashes so
    # that none is mistaken for the start of an escape.
    length_with_nul = (
        r"length(json_extract(replace(replace(json_quote(v), '\\', '_'), '\u0000', '_'), '$'))"
    )
    template = (
        f"SELECT CASE instr(v, char(0)) WHEN 0 THEN length(v) ELSE {length_with_nul} END"
        " FROM (SELECT {} AS v)"
    )
    return _derived(template, "int", _of_kind("string", operand))


def _text_test(method: str, text: Sql, argument: Expr) -> Sql:
    part = _of_kind("string", argument)
    constant = argument.value if isinstance(argument, Literal) else None
    if method == "contains":
        return _derived("instr({}, {}) > 0", "bool", text, part)
    if method == "startsWith":
        if isinstance(constant, str) and not text.params:
            return _starts_with(text, constant)
        return _derived("instr({}, {}) = 1", "bool", text, part)
    if method == "endsWith" and isinstance(constant, str):
        return _ends_with(text, constant)
    raise _UnanswerableError


def _starts_with(column: Sql, prefix: str) -> Sql:
    """Return the test for a prefix as a range, which an index can answer."""
    lower = _derived("{} >= {}", "bool", column, _parameter(prefix, "string"))
    stem = prefix.rstrip(_LAST_CHARACTER)
    if not stem:
        return lower
    # The code points of surrogates stand for no character and cannot be stored.
    following = "\ue000" if stem[-1] == "\ud7ff" else chr(ord(stem[-1]) + 1)
    upper = _derived("{} < {}", "bool", column, _parameter(stem[:-1] + following, "string"))
    return _logical("&&", [lower, upper])


def _ends_with(text: Sql, suffix: str) -> Sql:
    # Bytes rather than characters, because substr() stops at a NUL character; and both ends one
    # byte longer, because it turns an empty value to NULL.
    ending = f"{suffix}.".encode()
    template = f"substr(CAST({{}} || '.' AS BLOB), -{len(ending)}) = {{}}"
    return _derived(template, "bool", text, _parameter(ending, "bytes"))
