"""The files that define models and workflows: where they are, and reading every one of them.

They belong to the source of a repository, in `models` and `workflows` or where the settings say;
definitions that were made on the fly are in the datastore. What is in a file, others know: whoever
asks which models there are must hear of files that cannot be read as well.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from swampstore import yaml_dialect
from swampstore.errors import ConfigError, DiskError, SwampstoreError
from swampstore.files import disk_errors, read_file
from swampstore.layout import AUTO_DEFINITIONS, MARKER
from swampstore.marker import read_marker

if TYPE_CHECKING:
    from swampstore.repo import Repo

SUFFIXES = (".yaml", ".yml")


class DefinitionFile(NamedTuple):
    """One file: its members, or why there are none."""

    path: str
    document: dict[str, Any]
    error: SwampstoreError | None = None


def model_directories(repo: Repo) -> list[str]:
    """Return where definitions of models are: the source first, then those made on the fly.

    Raises ConfigError if the settings name a directory that is none.
    """
    return [source_directory(repo, "modelsDir", "models"), *repo.tree.places(AUTO_DEFINITIONS)]


def workflow_directory(repo: Repo) -> str:
    """Return where the workflows are; raise ConfigError if the settings name no directory."""
    return source_directory(repo, "workflowsDir", "workflows")


def source_directory(repo: Repo, setting: str, default: str) -> str:
    """Return a directory of the source; one that is named in the settings must be there."""
    repo_dir = repo.config.repo_dir
    chosen = read_marker(repo_dir).get(setting)
    if chosen is None:
        return os.path.join(repo_dir, default)
    path = os.path.join(repo_dir, str(chosen))
    if not isinstance(chosen, str) or not os.path.isdir(path):
        raise ConfigError(
            f"{path}: {setting} in {MARKER} names it, but it is no directory",
            hint=f"Make it, or correct {setting}.",
        )
    return path


def definition_paths(top: str) -> Iterator[str | DefinitionFile]:
    """Yield the path of every definition below a directory, which need not be there.

    Links are followed, since what they lead to may be all that defines a model. A directory that
    cannot be read comes as a file with an error.
    """
    unreadable: list[OSError] = []
    seen: set[str] = set()
    for where, directories, files in os.walk(top, onerror=unreadable.append, followlinks=True):
        real = os.path.realpath(where)
        if real in seen:
            directories.clear()
            continue
        seen.add(real)
        directories.sort()
        yield from (os.path.join(where, name) for name in sorted(files) if name.endswith(SUFFIXES))
    for error in unreadable:
        if not isinstance(error, FileNotFoundError):
            path = str(error.filename)
            reason = f"{path}: {error.strerror or error}"
            yield DefinitionFile(path, {}, DiskError(reason, hint="Check its permissions."))


def read_definition_file(path: str) -> DefinitionFile:
    """Read one file strictly; what is wrong with it is in the result."""
    try:
        with disk_errors(path):
            data = read_file(path)
        if data is None:
            raise DiskError(f"{path}: it is gone, or a link to nowhere", hint="Remove the link.")
        return DefinitionFile(path, yaml_dialect.load_mapping(data, what=path))
    except SwampstoreError as error:
        return DefinitionFile(path, {}, error)


def read_definition_files(top: str) -> Iterator[DefinitionFile]:
    """Yield every definition below a directory, in the order of their paths."""
    for found in definition_paths(top):
        yield found if isinstance(found, DefinitionFile) else read_definition_file(found)
