"""What the page says: its sections, their tables, and the columns of these.

In a text, `{names:name}` says how many names there are (1 name, 2,000 names). A number can also be
written as `bytes`, as a `count`, or as its `share` of all bytes. The numbers are those of `Totals`,
and a few that the page adds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from swampstore.pipeline.report.text import Html

# What columns are called, and how they show the member of a row that they are named after.
COLUMNS = {
    "bar": ("", ""),
    "bytes": ("Bytes", "bytes"),
    "content_type": ("Content type", ""),
    "copies": ("Copies", "count"),
    "created_at": ("Written", "age"),
    "failed": ("Failed", "count"),
    "latest_bytes": ("Latest", "bytes"),
    "longest_ms": ("Longest", "seconds"),
    "mean_ms": ("Mean", "seconds"),
    "names": ("Names", "count"),
    "runs": ("Runs", "count"),
    "share": ("Share", "share"),
    "size": ("Bytes", "bytes"),
    "version": ("Version", "count"),
    "versions": ("Versions", "count"),
    "wasted_bytes": ("Could be saved", "bytes"),
}
# Columns of tables; those in parentheses are left out on small screens.
BAR = "bar bytes (share) (versions)"
_VERSION = "(content_type) (version) size created_at"


class Section(NamedTuple):
    """What a section says first, and its tables by the list of the summary that they show.

    A table has a caption, a title of its first column, and other columns. Without any row there is
    no table, and without any table the section says `empty`, or is left out.
    """

    title: str
    lead: str
    tables: Mapping[str, tuple[str, str, str]] = {}
    empty: str = ""
    note: Html = Html()
    is_wide: bool = True


SECTIONS = {
    "growth": Section(
        "Growth",
        "{recent:bytes} of what is there today, {recent:share}, were written in the last {month}"
        " days. Versions that have been deleted since left no trace, and are not counted.",
    ),
    "runs": Section(
        "Runs",
        "{runs:run} of methods in the last {run_days} days, of which {failed:count} failed.",
        {
            "run_days": ("Runs a day", "Day", "runs failed"),
            "methods": ("Slowest methods", "Method", "runs failed mean_ms (longest_ms)"),
        },
        is_wide=False,
    ),
    "usage": Section(
        "Types and namespaces",
        "{types:type} in {namespaces:namespace}. The largest type, {largest.name}, holds"
        " {largest.bytes:share} of all bytes.",
        {
            "types": ("Bytes by type", "Type", BAR),
            "namespaces": ("Bytes by namespace", "Namespace", BAR),
        },
        is_wide=False,
    ),
    "models": Section("Models", "{about_models}"),
    "largest": Section(
        "Largest",
        "{names:name} with {versions:version} in all; {latest_bytes:bytes} are in latest versions.",
        {
            "names": ("Names with the most bytes", "Name", "bytes (share) versions (latest_bytes)"),
            "largest": ("Largest versions", "Name", _VERSION),
        },
    ),
    "oldest": Section(
        "Oldest",
        "Names that were not written to for the longest time, without those that are deleted.",
        {"oldest": ("Oldest latest versions", "Name", _VERSION)},
    ),
    "duplicates": Section(
        "Duplicates",
        "Contents with more than one copy: {duplicate_contents:count}. The copies beyond the first"
        " take {duplicate_bytes:bytes}, {duplicate_bytes:share} of all bytes.",
        {
            "duplicates": (
                *("Contents stored more than once", "Content, and where it is"),
                "copies (names) wasted_bytes",
            )
        },
        empty="No content is stored twice.",
    ),
    "gc": Section(
        "What garbage collection would free",
        "{freed_bytes:bytes}, {freed_bytes:share} of all bytes: {freed_versions:version} of"
        " {freed_names:name}.",
        {
            "rules": ("Bytes to free, by rule", "Rule", BAR),
            "freed": ("Bytes to free, by type and rule", "Type, and why", "(names) versions bytes"),
        },
        empty="Nothing: every version is within its lifetime and policy.",
        note=Html("Nothing was removed. To do it: <code>swampstore pipeline gc</code>"),
    ),
    "origins": Section(
        "Content and producers",
        "What kind of content it is, and who produced most of it.",
        {
            "content_types": ("Bytes by content type", "Content type", BAR),
            "owners": ("Bytes by owner", "Owner", BAR),
            "workflows": ("Bytes by workflow", "Workflow", BAR),
        },
        is_wide=False,
    ),
    "deleted": Section(
        "Deleted",
        "Names that end with a deletion marker: {deleted_names:count} of {names:count}. The"
        " versions beneath the markers, and the markers, still take {deleted_bytes:bytes}.",
        {"lifecycles": ("Bytes by state of the name", "State", BAR)},
        empty="No name ends with a deletion marker.",
    ),
}
TOTALS = (
    ("Stored", "{bytes:bytes}", "in {versions:version}"),
    ("In latest versions", "{latest_bytes:bytes}", "{latest_bytes:share} of all"),
    ("Names", "{names:count}", "in {models:model}"),
    ("Namespaces", "{namespaces:count}", "and {types:type}"),
    ("In duplicates", "{duplicate_bytes:bytes}", "{duplicate_bytes:share} of all"),
    ("Garbage", "{freed_bytes:bytes}", "{freed_bytes:share} of all"),
)
