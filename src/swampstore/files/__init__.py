"""The one place that changes files of a datastore.

A `Tree` reads freely. To change anything, code asks the tree for a `Change`, and gets it only
after the path was announced: whoever must know about changes (the sync engine's dirty
tracking) cannot be forgotten. Writes are atomic and durable, deletions vanish in one rename.
What comes from the remote is no change of ours: it enters through a `Reception`, unannounced.

Start with `tree`; `change` and `reception` are the two ways in which its files may change. `disk`
has what it takes for single files, among it the one way to replace a file in one step. `signature`
tells whether a file is still the one that was seen, `sqlite_file` heals files of SQLite that can be
made anew, `hold` locks files for as long as a process lives, `links` keeps symbolic links from
leading elsewhere. All of it knows `layout`, `formats` and `errors`, and nothing of what is in a
file.
"""

from __future__ import annotations

from swampstore.files.change import Change
from swampstore.files.disk import (
    NO_FILE,
    disk_errors,
    is_out_of_space,
    make_shared,
    make_shared_directory,
    open_shared,
    read_file,
    read_to_end,
    remove_old_temps,
    replace_file,
    replacing,
    sync_dir,
    sync_filesystem,
    temp_beside,
    temp_name,
    try_writing,
    write_all,
)
from swampstore.files.hold import Hold, alone, taking_over
from swampstore.files.reception import Reception
from swampstore.files.tree import Announce, Tree

__all__ = [
    "NO_FILE",
    "Announce",
    "Change",
    "Hold",
    "Reception",
    "Tree",
    "alone",
    "disk_errors",
    "is_out_of_space",
    "make_shared",
    "make_shared_directory",
    "open_shared",
    "read_file",
    "read_to_end",
    "remove_old_temps",
    "replace_file",
    "replacing",
    "sync_dir",
    "sync_filesystem",
    "taking_over",
    "temp_beside",
    "temp_name",
    "try_writing",
    "write_all",
]
