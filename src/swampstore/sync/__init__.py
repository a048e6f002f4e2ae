"""Keeping a local cache and a shared remote equal, at a cost proportional to what changed.

Start with `run` (in which order a sync pulls and pushes, and what it says if that fails) and
`service` (the sync of one cache, which `opening` puts together). What each operation works with is
its `context`.

What changed here: `dirty` marks paths before they change, in the `journal`, which is exact, and in
the `sidecar`, which all clients of a cache share; `scan` compares marked paths with the base.
`merge` says what follows where both sides changed, `run_progress` which of two records of a
workflow run goes on from the other, `start_over` what to do if the last sync was stopped or the
remote is another one. `lost_base` clears what a lost base leaves behind.

A push: `push` in the order of `push_plan`, which changes nothing; `conflicts` are settled so that
both sides keep their data, `complete` lets no half of a version out, `uploads` replace nothing of
others, `copies` are made by the store of what it has, `deletions` remove objects. A pull: `pull` in
the order of `pull_plan`, which asks `local_state` how files here stand to the base; `downloads`
fetch, of `begun_appends` what was there before; `install` puts files in their places, in the order
of `arrivals`. Files of both go through a `transfer`.

Content alone: `hydrate` brings it, `evict` gives it up by its `access_times`. Around all that:
`hashing` of files that may change, the `staged_cache` of a setup and the `handover` of files to it,
data that is `unmigrated`.

It may import `index`, `catalog`, `artifacts`, `locks`, `stores` and what is below them.
"""
