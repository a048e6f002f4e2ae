"""The file `.swamp.yaml`, which makes a directory a repository: finding, making and changing it.

What its members mean is said in `config`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import Any

from swampstore.errors import (
    AlreadyExistsError,
    ConfigError,
    RepoDamagedError,
    RepoNotFoundError,
    ValidationError,
    YamlError,
)
from swampstore.files import disk_errors, read_file, replacing
from swampstore.formats import refuse_later
from swampstore.layout import LOCAL_DIR, MARKER

# The calendar version of the formats that we read and write; other clients show it.
_PREFIX = "SWAMPSTORE_"
SCHEMA_FILE = "swampstore.schema.json"
_FOR_EDITORS = f"# yaml-language-server: $schema={LOCAL_DIR}/{SCHEMA_FILE}\n"
FORMAT_VERSION = "20260814.1"


def with_one_prefix(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment with `SWAMP_X` as `SWAMPSTORE_X` says, where that is set.

    All our variables may be written with the second prefix; some had the first one before.
    """
    ours = {
        f"SWAMP_{name.removeprefix(_PREFIX)}": value
        for name, value in environ.items()
        if name.startswith(_PREFIX) and value
    }
    return {**environ, **ours}


def find_repo(start: str | None, environ: Mapping[str, str]) -> str:
    """Return the repository that `start` (default: `SWAMP_REPO_DIR`, else here) is in.

    An explicit directory may be anywhere inside the repository. Raises RepoNotFoundError, or
    RepoDamagedError for a `.swamp` without its marker, or something else in the marker's place.
    """
    origin = os.path.abspath(start or environ.get("SWAMP_REPO_DIR") or os.getcwd())
    if not os.path.isdir(origin):
        raise RepoNotFoundError(f"{origin} is not a directory", hint="Check the path.")
    for directory in _upwards(origin):
        if os.path.isfile(f"{directory}/{MARKER}"):
            return directory
        _check_not_in_the_way(f"{directory}/{MARKER}")
        if os.path.isdir(f"{directory}/{LOCAL_DIR}/data"):
            raise RepoDamagedError(
                f"{directory} has a {LOCAL_DIR} directory but no {MARKER}",
                hint=f"Run `swampstore init {directory}` to finish; the data there is kept.",
            )
    raise RepoNotFoundError(
        f"{origin} is not in a swamp repository (no {MARKER} here or above)",
        hint="Run `swampstore init` to make one, or point --repo at one.",
    )


def _check_not_in_the_way(path: str) -> None:
    """Raise RepoDamagedError for a directory, say, or a link to nowhere in place of the marker."""
    if os.path.lexists(path) and not os.path.isfile(path):
        what = "a directory" if os.path.isdir(path) else "no file that can be read"
        raise RepoDamagedError(
            f"{path} is {what}, where the settings of a repository belong",
            hint="Move it away, then put the file back, or run `swampstore init` to make one.",
        )


def _upwards(directory: str) -> Iterator[str]:
    """Yield a directory and every one above it."""
    while True:
        yield directory
        above = os.path.dirname(directory)
        if above == directory:
            return
        directory = above


def read_marker(repo_dir: str) -> dict[str, Any]:
    """Return the members of `.swamp.yaml`."""
    from swampstore import yaml_dialect

    path = f"{repo_dir}/{MARKER}"
    with disk_errors(path):
        data = read_file(path)
    if data is None:
        raise RepoNotFoundError(f"{path} does not exist", hint="Run `swampstore init`.")
    with _yaml_errors(path):
        return yaml_dialect.load_mapping(data, what=path) if data.strip() else {}


@contextlib.contextmanager
def _yaml_errors(path: str) -> Iterator[None]:
    try:
        yield
    except YamlError as error:
        raise ConfigError(error.message, hint=f"Repair {path} by hand.") from error


def initialise(directory: str, repo_id: str, now_iso: str, schema: str = "") -> str:
    """Make `directory` a repository and return it; raise AlreadyExistsError if it is one.

    Raises ValidationError for a directory in which swampstore keeps data already, RepoDamagedError
    where something else than a file is in the place of the marker. With a `schema`
    editors are told by it which keys the marker may have.
    """
    from swampstore import yaml_dialect

    repo_dir = os.path.abspath(directory)
    path = f"{repo_dir}/{MARKER}"
    if LOCAL_DIR in repo_dir.split("/"):
        raise ValidationError(
            f"{repo_dir} is part of a {LOCAL_DIR} directory, where the data of repositories is",
            hint="Choose a directory of your own.",
        )
    _check_not_in_the_way(path)
    if os.path.lexists(path):
        raise AlreadyExistsError(
            f"{repo_dir} is a swamp repository already", hint=f"Edit {path} to change its settings."
        )
    document = {"swampVersion": FORMAT_VERSION, "initializedAt": now_iso, "repoId": repo_id}
    with disk_errors(repo_dir):
        os.makedirs(f"{repo_dir}/{LOCAL_DIR}/data", exist_ok=True)
        _ignore_in_git(repo_dir)
        if schema:
            _replace_file(f"{repo_dir}/{LOCAL_DIR}/{SCHEMA_FILE}", schema)
        # The marker comes last: without it the repository is not there yet.
        _replace_file(path, f"{_FOR_EDITORS if schema else ''}{yaml_dialect.dump(document)}")
    return repo_dir


def upgrade(repo_dir: str, now_iso: str) -> None:
    """Say in `.swamp.yaml` that the repository is of our format version, since `now_iso`.

    Raises NewerFormatError if it is of a later one already.
    """
    found = read_marker(repo_dir).get("swampVersion")
    refuse_later(found, FORMAT_VERSION, f"{repo_dir}/{MARKER}")
    update_marker(repo_dir, {"swampVersion": FORMAT_VERSION, "upgradedAt": now_iso})


def update_marker(repo_dir: str, changes: Mapping[str, Any]) -> None:
    """Set keys of `.swamp.yaml`, in one step and durably; None removes a key.

    Nested mappings are merged. Comments, order and keys that we do not know stay. Raises
    ConfigError for a file that cannot be read, or not be changed without damage.
    """
    from swampstore import yaml_dialect

    read_marker(repo_dir)
    # A marker that is a link, into a dotfiles directory say, stays one.
    path = os.path.realpath(f"{repo_dir}/{MARKER}")
    with disk_errors(path), _yaml_errors(path):
        text = (read_file(path) or b"").decode()
        edited = yaml_dialect.edit(text, changes, what=path)
        if edited != text:
            _replace_file(path, edited)


def _replace_file(path: str, text: str) -> None:
    """Write a file in one step, durably; it keeps the permissions that it had."""
    import shutil

    with replacing(path, durable=True) as temp:
        with open(temp, "x", encoding="utf-8", newline="") as file:
            file.write(text)
        with contextlib.suppress(FileNotFoundError):
            shutil.copymode(path, temp)


def _ignore_in_git(repo_dir: str) -> None:
    """Keep what runs produce out of version control, where there is version control."""
    if not any(os.path.lexists(f"{directory}/.git") for directory in _upwards(repo_dir)):
        return
    path = f"{repo_dir}/.gitignore"
    text = (read_file(path) or b"").decode("utf-8", "replace")
    if any(line.strip().strip("/") == LOCAL_DIR for line in text.splitlines()):
        return
    with open(path, "a", encoding="utf-8") as file:
        file.write(f"{LOCAL_DIR}/\n" if not text or text.endswith("\n") else f"\n{LOCAL_DIR}/\n")
