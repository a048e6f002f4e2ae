"""The query language of the catalog: CEL, answered by SQL as far as SQL can.

`plan` turns a predicate into an SQL condition and a residual, `matcher` evaluates the residual on
a record, `projection` turns a select expression into a function of a record, and `order_by` turns
an ordering into SQL. All of them raise QueryError for what they cannot understand.
"""

from swampstore.catalog.query.fields import CONTENT_FIELDS, FIELDS, Field
from swampstore.catalog.query.plan import Plan, matcher, plan
from swampstore.catalog.query.projection import Projection, order_by, projection

__all__ = [
    "CONTENT_FIELDS",
    "FIELDS",
    "Field",
    "Plan",
    "Projection",
    "matcher",
    "order_by",
    "plan",
    "projection",
]
