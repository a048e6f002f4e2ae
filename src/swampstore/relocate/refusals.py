"""What keeps a setup from going on, in words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from swampstore.config import Config
from swampstore.errors import (
    AlreadyExistsError,
    ContentDamagedError,
    DiskError,
    SwampstoreError,
    ValidationError,
)
from swampstore.index.path_map import ways_out
from swampstore.notices import escaped
from swampstore.relocate.moving import Copied, Relocation
from swampstore.stores.errors import CorruptObjectError


def check_names(moves: Iterable[Relocation]) -> None:
    """Raise ValidationError before anything moves if the remote can hold nothing of some name."""
    nameless = [(rel, reason) for move in moves for rel, reason in move.nameless()]
    if nameless:
        rel, reason = nameless[0]
        more = f" (and {len(nameless) - 1} more)" if len(nameless) > 1 else ""
        raise ValidationError(
            f"{escaped(rel)}{more} cannot be shared: {reason}. Nothing was moved.",
            hint=f"To go on, {ways_out(rel)}; `swampstore doctor` lists all such names.",
        )


def not_there(rels: Sequence[str], config: Config) -> SwampstoreError:
    """Return the error that these files are not at the new place as they were sent."""
    if config.remote is None:
        return DiskError(
            f"in {config.datastore_dir} these are not what was copied: {_listing(rels)}",
            hint="Nothing was removed, and the old settings hold. Remove them there, check the"
            " disk, and run it again.",
        )
    return CorruptObjectError(
        f"on the new remote these are not what was sent: {_listing(rels)}",
        hint="Nothing was removed, and the old settings hold. They were sent anew: run it again,"
        " and they are looked at again. If that does not help, the remote cannot be trusted.",
    )


def _listing(rels: Sequence[str]) -> str:
    more = f" and {len(rels) - 3} more" if len(rels) > 3 else ""
    return f"{', '.join(rels[:3])}{more}"


def check_all_fit(copied: Copied, directory: str) -> None:
    """Raise AlreadyExistsError or ContentDamagedError if something could not be copied."""
    if copied.kept:
        raise AlreadyExistsError(
            f"something else is where these should go in {directory}: {_listing(copied.kept)}",
            hint="Move it away, or pass --skip-migration to leave the data where it is.",
        )
    if copied.damaged:
        raise ContentDamagedError(
            f"the content of these versions is not what was saved: {_listing(copied.damaged)}",
            hint="Restore their content from a backup, or delete them, and run this again.",
        )
