"""The order of results: fields of the record, each ascending or descending."""

from __future__ import annotations

from swampstore.catalog.query.fields import FIELDS, field_list, suggestion
from swampstore.errors import QueryError

_SORTABLE = {
    name: field.column
    for name, field in FIELDS.items()
    if field.column is not None and field.kind != "map"
} | {"namespace": FIELDS["ns"].column}
_DIRECTIONS = {"asc": "", "desc": " DESC"}


def order_by(order: str) -> str:
    """Return what follows ORDER BY for an order such as `createdAt desc, name`.

    Rows that are equal in it come in the order in which they entered the catalog. Raises
    QueryError for what cannot be sorted by.
    """
    keys = [_key(part, order) for part in order.split(",")]
    return ", ".join([*keys, "c.rowid"])


def _key(part: str, order: str) -> str:
    words = part.split()
    field = words[0] if words else ""
    direction = " ".join(words[1:]).lower() or "asc"
    column = _SORTABLE.get(field)
    if column is None:
        problem = f"cannot sort by {field}" if field else "a field is missing"
        raise QueryError(
            f"In the order {order!r} {problem}",
            hint=f"{suggestion(field, _SORTABLE)}Sortable fields: {field_list(_SORTABLE)}.",
        )
    if direction not in _DIRECTIONS:
        raise QueryError(
            f"In the order {order!r}, {direction!r} is no direction",
            hint=f"Write {field} asc or {field} desc; commas separate fields.",
        )
    return f"c.{column}{_DIRECTIONS[direction]}"
