"""The one mapping between a path of the index, its file in the cache and its remote object.

Index keys are bare (`rel`); the namespace is a directory in the cache and a prefix of the
remote keys. Nothing else joins these paths, so that no two places can disagree about them.
"""

from __future__ import annotations

from collections.abc import Sequence

from swampstore.errors import ValidationError
from swampstore.layout import (
    DATASTORE_SUBDIRS,
    MAX_SEGMENT_BYTES,
    WORKFLOW_RUNS,
    is_always_local,
    is_internal,
    is_plain,
    stays_beside_runs,
    why_no_key,
)
from swampstore.notices import shell_word
from swampstore.routing import Routing
from swampstore.stores.protocol import is_plain_key

# Why a path never crosses of which nobody needs to hear.
BOOKKEEPING = "bookkeeping stays where it is"


class Names:
    """Where the files of one namespace (empty: none) are, on both sides."""

    def __init__(self, cache_dir: str, namespace: str, routing: Routing) -> None:
        self.cache_dir = cache_dir
        self.namespace = namespace
        self._prefix = f"{namespace}/" if namespace else ""
        self._root = f"{cache_dir}/{namespace}" if namespace else cache_dir
        self.routing = routing

    @property
    def root(self) -> str:
        """The directory in the cache that relative paths start from."""
        return self._root

    def local(self, rel: str) -> str:
        """Return the file of a path; raise ValidationError if it would lie outside the cache."""
        if not is_safe(rel):
            raise ValidationError(
                f"the path {rel!r} leads out of the cache",
                hint="The remote index names a path that must not exist; remove that entry.",
            )
        return f"{self._root}/{rel}"

    def remote(self, rel: str) -> str:
        """Return the key of a path's object."""
        return f"{self._prefix}{rel}"

    def mark(self, rel: str) -> str:
        """Return what a path is called when it is marked: relative to the cache."""
        return f"{self._prefix}{rel}"

    def rel_of_mark(self, mark: str) -> str | None:
        """Return the path that a mark stands for, None if it is outside the namespace."""
        if not self._prefix:
            return mark
        return mark.removeprefix(self._prefix) if mark.startswith(self._prefix) else None

    def why_not(self, rel: str) -> str | None:
        """Return why a path must never cross between cache and remote, None if it may."""
        is_plain_name = self._is_plain(rel)
        if not is_plain_name and (reason := self.why_no_name(rel)):
            return reason
        if stays_beside_runs(rel) or (not is_plain_name and is_internal(rel)):
            return BOOKKEEPING
        first = rel.partition("/")[0]
        if is_always_local(rel):
            return f"{first} never leaves the machine"
        if first in DATASTORE_SUBDIRS and self.routing.is_local(rel):
            return "the configuration keeps it on this machine"
        return None

    def may_all_cross(self, directory: str, names: Sequence[str]) -> bool:
        """Whether `why_not` surely has nothing against any of these names in a directory.

        Told at a glance of all of them: no walk has the time to ask for each. What stays beside
        runs has names as plain as theirs, so there it has to.
        """
        first = directory.partition("/")[0]
        return (
            first in DATASTORE_SUBDIRS
            and first in self.routing.subdirs
            and first != WORKFLOW_RUNS
            and not self.routing.may_split(first)
            and self._is_plain("/".join((directory, *names)))
        )

    def _is_plain(self, rel: str) -> bool:
        """Whether a path surely can be a name on both sides, and is no bookkeeping."""
        return len(rel) <= MAX_SEGMENT_BYTES and is_plain_key(f"{self._prefix}{rel}")

    def why_no_name(self, rel: str) -> str | None:
        """Return why one of the two sides can hold nothing at a path, None if both can."""
        if self._is_plain(rel):
            return None
        if not is_safe(rel):
            return "the path leads out of the cache"
        if reason := why_no_key(self.remote(rel)):
            return f"no store takes such a name: {reason}"
        if len(rel.encode()) > MAX_SEGMENT_BYTES and _has_long_segment(rel):
            return f"no file can have a name of more than {MAX_SEGMENT_BYTES} bytes"
        return None


class NamesElsewhere(Names):
    """The same paths, while their files are in a directory that has other things in it as well."""

    def __init__(self, names: Names, root: str) -> None:
        super().__init__(names.cache_dir, names.namespace, names.routing)
        self._root = root

    def why_not(self, rel: str) -> str | None:
        """Return why a path must never cross between that directory and the remote."""
        if rel.partition("/")[0] not in self.routing.subdirs:
            return BOOKKEEPING
        return super().why_not(rel)


def ways_out(rel: str) -> str:
    """Return what to do about a path that one of the two sides cannot hold."""
    parts = rel.split("/")
    depth = 2 if rel.endswith("/latest") else 3
    if parts[0] != "data" or len(parts) < depth + 3:
        return "give it another name, or remove it"
    model, name = "/".join(parts[1:-depth]), parts[-depth]
    old = f"{shell_word(model)} {shell_word(name)}"
    return (
        f"give it another name with `swampstore data rename {old} NEW`, then remove what is left"
        f" with `swampstore data delete {old}`; or move its files away"
    )


def is_safe(rel: str) -> bool:
    """Whether a path stays below the directory that it is joined to, on any system."""
    if is_plain(rel):
        return True
    if "\0" in rel or "\\" in rel:
        return False
    return all(segment not in ("", ".", "..") for segment in rel.split("/"))


def _has_long_segment(rel: str) -> bool:
    return any(len(segment.encode()) > MAX_SEGMENT_BYTES for segment in rel.split("/"))
