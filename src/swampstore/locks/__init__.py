"""Who may work on what: locks that are objects of a store, as all clients of it see them.

Start with `manager`: it is what the rest of the program uses. A lock is one small JSON object under
a key that all clients agree on (`record`). It is created only if absent, refreshed while it is held
and taken over only by comparing and swapping (`lock`), so no two processes ever hold it at once, as
far as both believe in it; whoever was paused for too long finds out by `verify`. Nobody passes by a
stale lock: it is taken over or removed first, so that its holder cannot come back and find it
unchanged. `process` tells whether a holder is still there, `inspection` who holds what. All of it
knows `stores` and what is below; how long a lock lives and how long to wait for one, callers
take from `LockSettings` of `config`.
"""
