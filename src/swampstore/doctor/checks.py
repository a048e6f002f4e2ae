"""All checks with their words, in the order in which they are reported."""

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
HASHES = Check(
    "content_hash",
    "every content on this disk is what was saved",
    "{} version(s) whose content on this disk is not what was saved",
    "Run `swampstore doctor --deep --repair` where the remote has the right content; it keeps the"
    " damaged file aside. Otherwise restore `raw` from a backup, or delete that version.",
)
LEFTOVERS = Check(
    "leftovers",
    "nothing was left behind by interrupted writes",
    "{} thing(s) left behind by interrupted writes",
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
NAMES = Check(
    "names",
    "every name can be shared",
    "{} data name(s) that no store takes, so nobody else ever gets them",
    "Give each another name with `swampstore data rename`, then remove what is left of the old one"
    " with `swampstore data delete`.",
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
    NAMES,
    STRANGERS,
    UNREADABLE,
)
UNFINISHED = Check(
    "unfinished_changes",
    "no change was left unfinished",
    "{} change(s) that nobody finished",
    _REPAIR,
)
DEAD_RUNS = Check(
    "dead_runs",
    "every run that says so is going on",
    "{} run(s) that say they are going on, and whose process died",
    "Run `swampstore doctor --repair` or `swampstore runs list`: their records will say so.",
    advisory=True,
)
COMPLETENESS = Check(
    "catalog_completeness",
    "the catalog knows exactly what is on disk",
    "the catalog differs from the disk in {} data name(s)",
    "Run `swampstore doctor --repair` or `swampstore catalog rebuild`.",
)
REPAIRABLE = frozenset({MARKERS, LEFTOVERS})

# Of a datastore with a remote ------------------------------------------------------------------

CACHE = Check(
    "cache",
    "the bookkeeping of the cache can be read",
    "{} file(s) of the cache's bookkeeping cannot be read; nothing is lost by that",
    "Run `swampstore doctor --repair`, or just sync: everything is compared once.",
)
CACHE_COMPLETENESS = Check(
    "cache_completeness",
    "everything that came from the remote is still in the cache",
    "{} version(s) that came from the remote are not in the cache any more",
    "Run `swampstore doctor --repair`, or `swampstore sync --pull --full`.",
)
CACHE_LEFTOVERS = Check(
    "cache_leftovers",
    "no sync or setup left anything behind",
    "{} thing(s) left behind by interrupted syncs or setups",
    "Run `swampstore doctor --repair`; finish a setup by running it again.",
)
UNPUSHED = Check(
    "unpushed",
    "everything is on the remote",
    "{} path(s) changed here and not pushed yet",
    "Run `swampstore sync --push`.",
    advisory=True,
)
CONFLICTS = Check(
    "conflict_copies",
    "no copy from a conflict is waiting",
    "{} file(s) were changed on two machines; ours are kept as copies",
    "Compare each with the file that it is a copy of, then delete it and sync.",
    advisory=True,
)
HEALTH = Check(
    "remote_health",
    "the remote answers",
    "the remote cannot be used, so nothing of it was looked at",
    "Check the network, the endpoint and the credentials.",
)
PERMISSIONS = Check(
    "remote_permissions",
    "everything that a sync needs is permitted",
    "{} permission(s) are missing",
    "Grant them.",
)
CONDITIONS = Check(
    "conditional_writes",
    "the remote honours conditions on writes",
    "the remote failed {} proof(s): machines that share it can overwrite each other's work",
    "Use a server that honours If-Match and If-None-Match on writes.",
)
LOCK_RECORDS = Check(
    "lock_records",
    "a lock that is given back leaves nothing on the remote",
    "the remote is not proven to delete on a condition, so a record stays of every lock that is"
    " given back; other clients take it for a stale lock, warn about it, and may delete a lock that"
    " is in its place by then",
    "Whoever loses a lock to that notices before it commits, and tries again. If other clients use"
    " this datastore, use a server that honours If-Match on deletions.",
    advisory=True,
)
TRANSACTIONS = Check(
    "transactions",
    "the remote changes several documents as one",
    "the remote has no transactions: a commit is several writes, and others may see some of them"
    " before the rest",
    "Nothing is lost by that. Run the server as a replica set, of one member if need be.",
    advisory=True,
)
CLOCK = Check(
    "clock",
    "the clocks of this machine and the remote agree",
    "the clocks of this machine and the remote do not agree",
    "Set the clock of this machine, best by NTP. Locks are judged by the remote's clock alone; but"
    " the times of files and versions that are saved here come from this machine.",
    advisory=True,
)
INDEX = Check(
    "remote_index",
    "the documents of the remote index fit together",
    "{} document(s) of the remote index are missing or damaged",
    "Run `swampstore doctor --repair`, which heals a sharded index. Any other is made anew from the"
    " objects by the next push that has something to say; a document that cannot be understood has"
    " to be removed before.",
)
INDEX_BEHIND = INDEX._replace(
    wrong="{} document(s) of the remote index are not those that were committed last",
    remedy="Another client wrote them, or a commit was interrupted. The next push heals it.",
    advisory=True,
)
LOCKS = Check(
    "locks",
    "nobody who is gone holds a lock",
    "{} lock(s) are held by nobody any more",
    "Run `swampstore doctor --repair`. Whoever needs such a lock takes it over, too.",
)
CONTAMINATION = Check(
    "namespace_contamination",
    "nothing of other namespaces is in this one",
    "{} file(s) of other namespaces are in this one",
    "Run `swampstore doctor --repair`.",
)
UNUSED_CONTENT = Check(
    "unused_content",
    "the database has no content that nobody needs",
    "{} content(s) in the database are named by no path and were put there over an hour ago",
    "Run `swampstore doctor --deep --repair`: it removes them.",
    advisory=True,
)
MIGRATION = Check(
    "namespace_migration",
    "no data is left outside of the namespace",
    "{} directories hold data from before the namespace was set; nothing finds it there",
    "Run `swampstore datastore namespace migrate`.",
)
OBJECTS = Check(
    "remote_objects",
    "every entry of the remote index has its object",
    "{} entries of the remote index have no object",
    "Run `swampstore sync --push --full` on machines that may still have the files. What nobody"
    " has is lost: delete those versions.",
)
UNFINISHED_UPLOADS = Check(
    "unfinished_uploads",
    "no upload to the remote was left unfinished",
    "{} upload(s) were begun over a day ago and never finished; their parts cost space",
    "Run `swampstore doctor --deep --repair`, or have the bucket abort incomplete multipart uploads"
    " after some days.",
    advisory=True,
)
ORPHANS = Check(
    "remote_orphans",
    "every object of the remote is in its index",
    "{} object(s) of the remote are in no index",
    "A push that was interrupted leaves such objects, and takes them up again: let every machine"
    " sync first. What is left then costs space and nothing else; remove it with the store's own"
    " tools.",
    advisory=True,
)
SHARED_CHECKS = (
    CACHE,
    CACHE_COMPLETENESS,
    CACHE_LEFTOVERS,
    UNPUSHED,
    CONFLICTS,
    HEALTH,
    PERMISSIONS,
    CONDITIONS,
    LOCK_RECORDS,
    TRANSACTIONS,
    CLOCK,
    INDEX,
    LOCKS,
    OBJECTS,
    ORPHANS,
    UNFINISHED_UPLOADS,
    UNUSED_CONTENT,
    MIGRATION,
    CONTAMINATION,
)
