"""The checks of the files, in the order in which they are reported."""

from __future__ import annotations

from swampstore.doctor.findings import Check

_REPAIR = "Run `swampstore doctor --repair`."

MARKERS = Check(
    "latest_markers",
    "every `latest` names the newest version",
    "{} `latest` marker(s) missing, dangling or behind the newest version",
    _REPAIR,
)
METADATA = Check(
    "metadata",
    "every metadata.yaml can be read",
    "{} metadata.yaml cannot be read",
    "Restore the file from a backup, or delete that version.",
)
CONTENT = Check(
    "content",
    "every version has its content",
    "{} version(s) without their content",
    "Restore `raw` from a backup, or delete that version.",
)
SIZES = Check(
    "content_size",
    "every content has the size it should have",
    "{} version(s) whose content is not as long as their metadata says",
    "Restore `raw` from a backup, or delete that version.",
)
LEFTOVERS = Check(
    "leftovers",
    "nothing was left behind by interrupted writes",
    "{} thing(s) left behind by interrupted writes over a day ago",
    "Run `swampstore doctor --repair` or `swampstore data gc`.",
)
TIERS = Check(
    "tiers",
    "every file is in the tier it belongs to",
    "{} file(s) in the wrong tier: nothing finds them there",
    "Move them to the same path in the other tier, or change `directories` and `exclude`.",
)
LOCAL_ONLY = Check(
    "local_only",
    "nothing that must stay on this machine is in the datastore",
    "{} file(s) in the datastore that must never leave this machine",
    "Move them to the same path in .swamp, and change what they give away.",
)
LINKS = Check(
    "symlinks",
    "there is no symbolic link in the data",
    "{} symbolic link(s) in the data; they are not followed",
    "Replace each by what it leads to, or remove it.",
)
STRANGERS = Check(
    "strangers",
    "nothing is where something else belongs",
    "{} file(s) or directories where something else belongs",
    "Move them out of the data directory.",
)
UNREADABLE = Check(
    "unreadable",
    "every directory can be read",
    "{} directories cannot be read; their data was not looked at",
    "Check their owner and mode.",
)
FILE_CHECKS = (
    MARKERS,
    METADATA,
    CONTENT,
    SIZES,
    LEFTOVERS,
    TIERS,
    LOCAL_ONLY,
    LINKS,
    STRANGERS,
    UNREADABLE,
)
UNFINISHED = Check(
    "unfinished_changes",
    "no change was left unfinished",
    "{} change(s) that nobody finished",
    _REPAIR,
)
COMPLETENESS = Check(
    "catalog_completeness",
    "the catalog knows exactly what is on disk",
    "the catalog differs from the disk in {} data name(s)",
    "Run `swampstore doctor --repair` or `swampstore catalog rebuild`.",
)
REPAIRABLE = frozenset({MARKERS, LEFTOVERS})
