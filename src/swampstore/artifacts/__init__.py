"""Versioned data on disk: saving, reading, renaming and deleting the versions of data names.

Start with `save` (each change is old or new, never half) and `versions` (what is on disk). What a
version says about itself is in `metadata`, which one is latest in `latest`. `streaming` writes
content piece by piece, `groups` commits several versions together, `rename` and `renumber` move
them. `name_lock` surrounds every change with a lock and an intent, `claims` and `recovery` deal
with what the dead left behind.

It may import locks, stores, files and what is below them, and the words of
`swampstore.retention.lifetimes`. `name_lock` tells the catalog of changes.
"""
