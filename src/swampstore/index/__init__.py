"""The index on the remote, and what this cache knows of it (its base).

Noticing changes, reading them, committing ours, healing what was lost. `remote_index` is where to
start reading: it is all that `sync` sees. `version1`, `version2` and `version3` (of databases,
which keep paths) say what the versions of it mean, `versions` chooses; nobody else compares their
numbers. `rules` says what can be wrong with an index. It may import `artifacts`, `stores` and
`files`, and knows nothing of `sync`.
"""
