"""Which version of a data name is latest, and what its `latest` marker says.

Every place that reads a marker, chooses a latest version or judges a marker asks here. Nothing
here touches a file: who asks has read what is needed, from disk, from a store or from rows.

- The latest version is the highest one that is committed and not above the marker; without a
  marker, the highest one that is committed (docs/decisions/0006-latest-follows-one-rule.md).
- A marker is right if it names the highest committed version
  (docs/decisions/0020-readers-repair-latest.md).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Literal

from swampstore.layout import parse_version

# `LatestOfSteps` as SQL: what follows the name in a WHERE, for a marker and the name of a step.
LATEST_OF_STEP_SQL = "version <= ? AND step_name = ? AND deferred = 0 ORDER BY version DESC LIMIT 1"

MarkerProblem = Literal["missing", "dangling", "behind"]


# The marker ------------------------------------------------------------------------------------


def parse_marker(data: bytes) -> int | None:
    """Return the version that the content of a marker names, None if it is nonsense.

    What a symbolic link of old clients points at is content of a marker, too.
    """
    return parse_version(data.decode("ascii", "replace").strip().removesuffix("/"))


def marker_content(version: int) -> bytes:
    """Return the content of a marker that names a version."""
    return b"%d" % version


def marker_sha256(version: int) -> str:
    """Return the SHA-256, in hex, of a marker that names a version."""
    import hashlib  # who only reads data needs no hashes

    return hashlib.sha256(marker_content(version)).hexdigest()


def is_right(marker: int | None, newest: int, *, may_be_ahead: bool = False) -> bool:
    """Whether a marker names the newest committed version.

    It `may_be_ahead` where versions are still to arrive: a pull can bring the marker first.
    """
    return marker == newest or (may_be_ahead and marker is not None and marker > newest)


def marker_problem(
    marker: int | None, versions: Collection[int], newest: int
) -> MarkerProblem | None:
    """Return what is wrong with a marker, None if nothing is.

    `versions` are those that it may name, `newest` is the one that it should. A marker above the
    newest one is right if that version is there, though perhaps damaged.
    """
    if marker is None:
        return "missing" if newest else None
    if marker not in versions:
        return "dangling"
    return "behind" if marker < newest else None


def wins(marker: int | None, other: int | None) -> bool:
    """Whether a marker replaces another one of the same name: the higher one stands."""
    return (marker or 0) > (other or 0)


# The latest version ----------------------------------------------------------------------------


def _any_version(_version: int) -> bool:
    return True


def latest_of(
    versions: Iterable[int],
    is_committed: Callable[[int], bool] = _any_version,
    *,
    marker: int | None = None,
) -> int:
    """Return the highest version that is committed and not above the marker, 0 without any.

    `is_committed` is asked about the highest ones first, and no more often than it takes.
    """
    for version in sorted(versions, reverse=True):
        if (marker is None or version <= marker) and is_committed(version):
            return version
    return 0


class LatestOfSteps:
    """Tells which versions of a name are the latest ones of the step that wrote them.

    A query finds what each step of a workflow wrote last. Versions are shown to it from the
    highest one down.
    """

    def __init__(self, marker: int) -> None:
        self._marker = marker
        self._steps: set[str] = set()

    def counts(self, version: int, *, deferred: bool) -> bool:
        """Whether a version can be a latest one at all."""
        return version <= self._marker and not deferred

    def knows(self, step: str) -> bool:
        """Whether the latest version of a step was shown already."""
        return step in self._steps

    def is_latest(self, version: int, step: str, *, deferred: bool) -> bool:
        """Whether the next version is the latest one of its step."""
        if not self.counts(version, deferred=deferred) or step in self._steps:
            return False
        self._steps.add(step)
        return True
