"""Workflows: jobs and steps in an order, and runs of them that can be stopped and gone on with.

Start reading at `definition`, the format of the files, and `plan`, the order that follows from it.
`runner` carries a plan out; what has happened is in the `record`, written as it goes; `steps` does
one step and `resume` finds out what an attempt that was killed has left behind.
"""
