"""Workflows: jobs and steps in an order, and runs of them that can be stopped and resumed.

Start reading at `definition`, the format of the files, and `plan`, the order that follows from it.
`runner` carries a plan out, from beginning to end: `jobs` decides what runs next and does one step,
`attempts` makes the attempts of a method and cleans up after killed ones. What has happened is in
the `record`, written as it goes; `resume` finds out where a stopped run has to go on.
"""
