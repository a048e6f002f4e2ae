"""Which commit of git a directory is at, read from its files: to start git would take longer."""

from __future__ import annotations

import os
import re

from swampstore.files import read_file

_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_DEEPEST_REF = 5


def git_commit(directory: str) -> str | None:
    """Return the commit that is checked out, None if there is none or it cannot be found out."""
    try:
        git = _git_dir(os.path.realpath(directory))
        return None if git is None else _resolved(git, _common(git), "HEAD")
    except (OSError, UnicodeDecodeError, ValueError):
        return None


def _git_dir(directory: str) -> str | None:
    while True:
        path = f"{directory}/.git"
        if os.path.isdir(path):
            return path
        if (told := _read(path)) is not None:  # a worktree or a submodule
            return os.path.join(directory, told.removeprefix("gitdir:").strip())
        above = os.path.dirname(directory)
        if above == directory:
            return None
        directory = above


def _common(git: str) -> str:
    """Return the directory that all worktrees share."""
    return os.path.join(git, (_read(f"{git}/commondir") or ".").strip())


def _resolved(git: str, common: str, name: str) -> str | None:
    for _ in range(_DEEPEST_REF):
        text = (_read(f"{git}/{name}") or _read(f"{common}/{name}") or "").strip()
        if not text:
            return _packed(common, name)
        if not text.startswith("ref:"):
            return text if _COMMIT.fullmatch(text) else None
        name = text.removeprefix("ref:").strip()
        if ".." in name:
            return None
    return None


def _packed(common: str, name: str) -> str | None:
    for line in (_read(f"{common}/packed-refs") or "").splitlines():
        commit, _, found = line.partition(" ")
        if found == name and _COMMIT.fullmatch(commit):
            return commit
    return None


def _read(path: str) -> str | None:
    try:
        data = read_file(path)
    except IsADirectoryError:
        return None
    return None if data is None else data.decode()
