"""Reading the records of workflow runs and method outputs: what retention needs, and no more."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from typing import Any

from swampstore import yaml_dialect
from swampstore.artifacts.retention.runs import RunFacts, RunKind
from swampstore.clock import from_iso
from swampstore.errors import SwampstoreError, YamlError
from swampstore.files import Tree

Complain = Callable[[str], None]
WORKFLOW_RUNS, OUTPUTS = "workflow-runs", "outputs"

# Records embed whatever their steps returned. Beyond this size only the members that are asked
# for are read, line by line.
_WHOLE_FILE = 256 * 1024
_LONGEST_LINE = 64 * 1024
_WANTED = frozenset({b"status", b"startedAt", b"completedAt", b"logFile"})
_LOG_HOMES = (OUTPUTS, WORKFLOW_RUNS, "logs")


class RunRecords:
    """The records of one repository."""

    def __init__(self, tree: Tree, repo_dir: str, complain: Complain) -> None:
        self._tree = tree
        self._repo_dir = repo_dir
        self._complain = complain

    def unchanged_since(self, before: float) -> Iterator[RunFacts]:
        """Yield the records that nobody has written to since a time.

        Those that vanish meanwhile are left out, and so are those that cannot be understood,
        with a complaint.
        """
        for top in (WORKFLOW_RUNS, OUTPUTS):
            for place in self._tree.places(top):
                for path in _old_records(place, before):
                    rel = f"{top}{path.removeprefix(place)}"
                    if _is_record(rel) and self._tree.path(rel) == path:
                        facts = self.read(rel)
                        if facts is not None:
                            yield facts

    def read(self, rel: str) -> RunFacts | None:
        """Read one record, None if it is gone or (with a complaint) makes no sense."""
        path = self._tree.path(rel)
        try:
            size = os.lstat(path).st_size
            document = _whole(path) if size <= _WHOLE_FILE else _summary(path)
            return self._facts(rel, size, document)
        except FileNotFoundError:
            return None
        except (SwampstoreError, ValueError, OSError) as error:
            self._complain(f"kept {rel}: {error}")
            return None

    def _facts(self, rel: str, size: int, document: dict[str, Any]) -> RunFacts:
        kind: RunKind = "output" if rel.startswith(f"{OUTPUTS}/") else "workflow-run"
        completed_at = document.get("completedAt")
        log_file, log_size = self._log(rel, document.get("logFile"))
        return RunFacts(
            path=rel,
            kind=kind,
            status=_text(document, "status"),
            started_at=from_iso(_text(document, "startedAt")),
            completed_at=None if completed_at is None else from_iso(_text(document, "completedAt")),
            size=size,
            log_file=log_file,
            log_size=log_size,
        )

    def _log(self, rel: str, named: object) -> tuple[str | None, int]:
        """Return the log that a record names, and its size, if it is a log and here."""
        if not isinstance(named, str):
            return None, 0
        try:
            path = os.path.realpath(os.path.join(self._repo_dir, named))
            found = os.lstat(path)
        except (OSError, ValueError):
            return None, 0
        if log_rel(self._tree, path) is None or not stat.S_ISREG(found.st_mode):
            self._complain(f"{rel} names {named!r} as its log, which is none of ours: it stays")
            return None, 0
        return path, found.st_size


def log_rel(tree: Tree, path: str) -> str | None:
    """Return where in its tier a real path is, None if no log of a run can be there."""
    for tier in (tree.base, tree.local):
        rel = path.removeprefix(f"{os.path.realpath(tier)}/")
        if rel != path and rel.endswith(".log") and rel.partition("/")[0] in _LOG_HOMES:
            return rel
    return None


def _is_record(rel: str) -> bool:
    parts = rel.split("/")
    if parts[0] == OUTPUTS:
        return True
    return len(parts) == 3 and parts[2].startswith("workflow-run-")


def _old_records(directory: str, before: float) -> Iterator[str]:
    """Yield YAML files last changed before a time; what vanishes or is a link is left out."""
    try:
        with os.scandir(directory) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in found:
        if entry.is_dir(follow_symlinks=False):
            yield from _old_records(entry.path, before)
        elif entry.name.endswith(".yaml") and entry.is_file(follow_symlinks=False):
            try:
                is_old = entry.stat(follow_symlinks=False).st_mtime <= before
            except FileNotFoundError:
                continue
            if is_old:
                yield entry.path


def _whole(path: str) -> dict[str, Any]:
    with open(path, "rb") as file:
        return yaml_dialect.load_mapping(file.read(), what=os.path.basename(path))


def _summary(path: str) -> dict[str, Any]:
    """Read the wanted members of the top level: lines that start in the first column."""
    kept, wanted, at_start = bytearray(), False, True
    with open(path, "rb") as file:
        while line := file.readline(_LONGEST_LINE):
            if at_start and line[:1] not in b" \t\r\n":
                wanted = line.partition(b":")[0] in _WANTED
            if wanted:
                kept += line
            if len(kept) > _LONGEST_LINE:
                raise YamlError(f"{path} has a member of extraordinary length", hint="Look at it.")
            at_start = line.endswith(b"\n")
    return yaml_dialect.load_mapping(bytes(kept), what=os.path.basename(path))


def _text(document: dict[str, Any], key: str) -> str:
    value = document.get(key)
    if not isinstance(value, str):
        raise YamlError(f"{key} is missing or not text", hint="Repair or remove the record.")
    return value
