"""Runs: methods of models and workflows of them, and the records that they leave.

A method run is a session of its model, the artifacts it writes, and one output record; a workflow
run is many of these, in order, with a record that is written as it goes. Start reading at
`method_run`, which names the parts of a run in their order; a workflow begins in `workflow`. This
room may import `vaults`, `bundles`, `audit`, `repo` and what is below them; only `cli`, `pipeline`
and `doctor` know of it.
"""
