"""Audit: what was done in a repository, when, where and by whom; never the values of anything.

Each machine appends to segments of its own, which do not change once they were shared. This room
may import `repo` and what is below it. Vaults and runs write events too, so it lies below them.
"""
