"""Which models and workflows exist, read from the files that define them.

Pruning infers from what is *not* there, so a single file that cannot be read makes the whole
answer worthless: then there is none.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from swampstore import yaml_dialect
from swampstore.config import read_marker
from swampstore.errors import PruneRefusedError, SwampstoreError
from swampstore.files import read_file
from swampstore.layout import MARKER

if TYPE_CHECKING:
    from swampstore.repo import Repo

WORKFLOW = "workflow"
_LISTED = 20


class Definitions(NamedTuple):
    """The ids of every defined model, automatic ones included, and of every workflow."""

    models: frozenset[str]
    workflows: frozenset[str]

    def is_live(self, model_type: str, model_id: str) -> bool:
        """Whether data of this model has a definition. Only the id counts: types get renamed."""
        if model_type == WORKFLOW and model_id in self.workflows:
            return True
        return model_id in self.models


def read_definitions(repo: Repo) -> Definitions:
    """Read every definition; raise PruneRefusedError if one cannot be read or there is none."""
    reader = _Reader(repo.config.repo_dir)
    models = reader.ids(reader.directory("modelsDir", "models"))
    for place in repo.tree.places("auto-definitions"):
        models |= reader.ids(place)
    workflows = reader.ids(reader.directory("workflowsDir", "workflows"))
    reader.refuse_if_incomplete()
    if not models:
        raise PruneRefusedError(
            f"{repo.config.repo_dir} defines no model at all, so all of its data would go",
            hint="Data saved by hand needs no definitions: use `swampstore data delete` for what"
            " you do not want. Or check that the models directory is complete.",
        )
    return Definitions(frozenset(models), frozenset(workflows))


class _Reader:
    """Collects ids, and everything that stands in the way of collecting them all."""

    def __init__(self, repo_dir: str) -> None:
        self._repo_dir = repo_dir
        self._marker = read_marker(repo_dir)
        self._problems: list[str] = []

    def directory(self, setting: str, default: str) -> str:
        """Return a directory of definitions; one that is named in the settings must be there."""
        chosen = self._marker.get(setting)
        if chosen is None:
            return os.path.join(self._repo_dir, default)
        path = os.path.join(self._repo_dir, str(chosen))
        if not isinstance(chosen, str) or not os.path.isdir(path):
            self._problem(path, f"{setting} in {MARKER} names it, but it is no directory")
        return path

    def ids(self, directory: str) -> set[str]:
        """Return the ids of all definitions below a directory, which need not be there."""
        return {found for path in self._files(directory) if (found := self._id(path))}

    def refuse_if_incomplete(self) -> None:
        if not self._problems:
            return
        listed = "; ".join(self._problems[:_LISTED])
        more = len(self._problems) - _LISTED
        raise PruneRefusedError(
            f"{len(self._problems)} definition(s) cannot be read: {listed}"
            + (f"; and {more} more" if more > 0 else ""),
            hint="Without them nobody can tell whose data is left over. Repair or remove them.",
        )

    def _files(self, top: str) -> Iterator[str]:
        # Links are followed, since what they lead to may be all that defines a model.
        seen: set[str] = set()
        for where, directories, files in os.walk(top, onerror=self._unreadable, followlinks=True):
            real = os.path.realpath(where)
            if real in seen:
                directories.clear()
                continue
            seen.add(real)
            for name in files:
                if name.endswith((".yaml", ".yml")):
                    yield os.path.join(where, name)

    def _unreadable(self, error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            self._problem(str(error.filename), error.strerror or str(error))

    def _id(self, path: str) -> str:
        """Return a definition's id; empty, and noted as a problem, if there is none to be had."""
        try:
            data = read_file(path)
            if data is None:
                self._problem(path, "it is gone, or a link to nowhere")
                return ""
            found = yaml_dialect.load_mapping(data, what=path).get("id")
        except (SwampstoreError, OSError) as error:
            self._problem(path, str(error).removeprefix(path).lstrip(",: "))
            return ""
        if not isinstance(found, str) or not found:
            self._problem(path, "it has no id that is text")
            return ""
        return found

    def _problem(self, path: str, reason: str) -> None:
        self._problems.append(f"{os.path.relpath(path, self._repo_dir)} ({reason})")
