"""Symbolic links in a datastore: none leads out of it, and nothing arrives through one."""

from __future__ import annotations

import os
import stat

from swampstore.errors import ValidationError


def place_of(fd: int) -> str:
    """Return the path of an open file without any link in it; empty where nobody tells."""
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return ""


def check_no_way_out(path: str, root: str) -> None:
    """Raise ValidationError if a symbolic link leads from below `root` to somewhere else."""
    if not _may_lead_out(root, path.removeprefix(f"{root}/")):
        return
    real, real_root = os.path.realpath(path), os.path.realpath(root)
    if not real.startswith(f"{real_root}/"):
        raise ValidationError(
            f"{path} leads outside the datastore, to {real}",
            hint="Remove the symbolic link; the datastore never follows one out.",
        )


def _may_lead_out(root: str, below: str) -> bool:
    """Whether there is a link on the way from `root` to what is `below` it, or a way up."""
    parts = below.split("/")
    if ".." in parts:
        return True
    path = root
    for part in parts:
        path = f"{path}/{part}"
        try:
            found = os.lstat(path)
        except OSError:
            return False
        if stat.S_ISLNK(found.st_mode):
            return True
    return False


def check_no_link(path: str, below: str, known: set[str]) -> None:
    """Raise ValidationError if a directory on the way from `path` to `below` is a link.

    Directories that are found to be none are added to `known`, and not looked at again.
    """
    above, slash, last = below.rpartition("/")
    if slash and f"{path}/{above}" in known:
        path, below = f"{path}/{above}", last
    for part in below.split("/"):
        path = f"{path}/{part}"
        if path in known:
            continue
        try:
            found = os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            return
        if stat.S_ISLNK(found.st_mode):
            raise ValidationError(
                f"{path} is a symbolic link",
                hint="Remove it; what comes from the remote never goes through one.",
            )
        known.add(path)
