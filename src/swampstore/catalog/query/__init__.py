"""The query language of the catalog: CEL, answered by SQL as far as SQL can.

Start with `plan`: `plan.plan` turns a predicate into an SQL condition and a residual,
`plan.matcher` evaluates the residual on a record, `projection.projection` turns a select expression
into a function of a record, and `projection.order_by` turns an ordering into SQL. All of them raise
QueryError for what they cannot understand. `fields` has what a query can ask for; `syntax` makes a
`tree` of its text.
"""
