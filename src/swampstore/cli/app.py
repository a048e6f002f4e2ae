"""The commands there are: their names, where they are, and what help says about them."""

from __future__ import annotations

from typing import Any

import click

from swampstore.cli.command import Entry, Group
from swampstore.cli.errors import PROGRAM


def _print_version(context: click.Context, _option: click.Parameter, value: Any) -> None:
    from swampstore import __version__

    if value and not context.resilient_parsing:
        click.echo(f"{PROGRAM} {__version__}")
        context.exit()


_version = click.Option(
    ["--version"],
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Print the version and exit.",
)

root = Group(
    PROGRAM,
    "Versioned artifacts on local disk, with a catalog, a query language and retention.",
    {
        "init": Entry("init:init", "Make a directory a repository."),
        "ls": Entry(
            "status:ls", "List the models that have data, or the data names of one of them."
        ),
        "status": Entry(
            "status:status",
            "Show what is here, what waits to be pushed, and when it was last synced.",
        ),
        "data": Entry("app:data", "Save, read, find and delete artifacts."),
        "model": Entry("app:model", "See which models there are, and delete one."),
        "catalog": Entry("app:catalog", "Look after the index of all artifacts."),
        "run": Entry(
            "run:run",
            "Run a method of a model, or a command as one, and keep what it prints and writes.",
        ),
        "workflow": Entry("app:workflow", "Run workflows, and go on with runs that stopped."),
        "runs": Entry("app:runs", "See what runs now and ended lately, and end it."),
        "output": Entry("app:output", "See what methods were run, how they ended, and their logs."),
        "audit": Entry("app:audit", "See what was done, when and by whom."),
        "sync": Entry("sync:sync", "Bring the cache and its remote together."),
        "push": Entry("shortcuts:push", "Bring to the remote what changed here: `sync --push`."),
        "pull": Entry("shortcuts:pull", "Bring here what changed on the remote: `sync --pull`."),
        "cat": Entry("shortcuts:cat", "Print exactly the bytes of an artifact: `data get --raw`."),
        "rm": Entry("shortcuts:rm", "Delete a data name, or one version of it: `data delete`."),
        "log": Entry("shortcuts:log", "List the versions of a data name: `data versions`."),
        "vault": Entry("app:vault", "Keep secrets, and use them without showing them."),
        "bundles": Entry("app:bundles", "Look after the cache of what was built."),
        "datastore": Entry("app:datastore", "Choose where the data is, and look after it."),
        "backup": Entry("app:backup", "Keep copies of everything elsewhere, and restore them."),
        "pipeline": Entry("app:pipeline", "Work on everything at once, on Apache Spark."),
        "doctor": Entry(
            "doctor:doctor",
            "Check the repository and its remote; the exit status is 1 if something is wrong.",
        ),
        "help": Entry("shortcuts:help_", "Print the help of a command."),
        "completion": Entry(
            "init:completion", "Print the completion script of a shell, or install it."
        ),
    },
    params=[_version],
)

data = Group(
    "data",
    root.entries["data"].summary,
    {
        "put": Entry("data.put:put", "Save content as the next version of a data name."),
        "get": Entry("data.get:get", "Show a version of a data name and its content."),
        "list": Entry("data.list:list_data", "List the data names of a model."),
        "versions": Entry("data.list:versions", "List the versions of a data name, newest first."),
        "diff": Entry(
            "data.diff:diff", "Show how two versions of a data name differ, or two artifacts."
        ),
        "tail": Entry(
            "data.diff:tail", "Print the end of the latest version, and follow what is appended."
        ),
        "query": Entry("data.query:query", "Find artifacts by a predicate in CEL."),
        "search": Entry("data.query:search", "Find artifacts by a word and by filters."),
        "hydrate": Entry(
            "data.get:hydrate", "Fetch content that is only on the remote, much of it at once."
        ),
        "delete": Entry("data.delete:delete", "Delete a data name, one version, or many names."),
        "rename": Entry(
            "data.delete:rename",
            "Give a data name another name; the history stays with the old one.",
        ),
        "gc": Entry("data.gc:gc", "Delete expired data and versions beyond their policy."),
        "prune": Entry(
            "data.gc:prune", "Delete the data of models that no definition stands for any more."
        ),
    },
)

model = Group(
    "model",
    root.entries["model"].summary,
    {
        "list": Entry("model:list_", "List the models that have data or outputs."),
        "show": Entry("model:show", "Show how much the datastore holds of a model."),
        "delete": Entry(
            "model:delete",
            "Delete everything that the datastore holds of a model; what defines it in git stays.",
        ),
    },
)

catalog = Group(
    "catalog",
    root.entries["catalog"].summary,
    {
        "status": Entry("catalog:status", "Show the state of the catalog."),
        "rebuild": Entry("catalog:rebuild", "Make the catalog equal to what is on disk."),
        "compact": Entry("catalog:compact", "Give the unused space of the catalog back."),
    },
)

vault = Group(
    "vault",
    root.entries["vault"].summary,
    {
        "create": Entry("vault:create", "Make a vault."),
        "put": Entry("vault:put", "Keep a secret, which is read from standard input or asked for."),
        "get": Entry("vault:get", "Print the value of a secret."),
        "list": Entry("vault:list_", "List the vaults, or the keys of one of them."),
        "inspect": Entry("vault:inspect", "Show what is known about a secret, without its value."),
        "annotate": Entry(
            "vault:annotate", "Say what a secret is for; what is said is encrypted as well."
        ),
        "delete": Entry("vault:delete", "Forget a secret, with all that is known about it."),
        "rotate": Entry(
            "vault:rotate", "Give a vault a new key, and encrypt every secret with it."
        ),
        "migrate": Entry(
            "vault:migrate",
            "Copy the secrets of a vault to another type, which it has from then on.",
        ),
        "audit": Entry(
            "vault:audit", "Show what was done with secrets, when and by whom; the newest last."
        ),
    },
)

bundles = Group(
    "bundles",
    root.entries["bundles"].summary,
    {
        "list": Entry(
            "bundles:list_", "List the bundles of this machine, the one used last first."
        ),
        "gc": Entry(
            "bundles:gc",
            "Delete the bundles that were not used for the longest time; they can be built again.",
        ),
    },
)

datastore = Group(
    "datastore",
    root.entries["datastore"].summary,
    {
        "setup": Entry("datastore.setup:setup", "Give the repository another datastore."),
        "status": Entry("datastore.setup:status", "Show which datastore is used, and its state."),
        "evict": Entry(
            "datastore.setup:evict", "Give up content here that the remote has as well."
        ),
        "migrate-index": Entry(
            "datastore.setup:migrate_index", "Make the index of the remote the sharded one."
        ),
        "lock": Entry("app:lock", "See who has locked what, and remove locks."),
        "namespace": Entry("app:namespace", "Share a datastore with other repositories."),
        "catalog": Entry("app:datastore_catalog", "See what other namespaces hold."),
    },
)

backup = Group(
    "backup",
    root.entries["backup"].summary,
    {
        "create": Entry(
            "backup:create",
            "Back up everything that the datastore holds; the exit status is 1 if something is"
            " damaged.",
        ),
        "list": Entry("backup:list_", "List the backups in a place."),
        "verify": Entry(
            "backup:verify",
            "Check that the content of backups is there; the exit status is 1 if something is"
            " wrong.",
        ),
        "restore": Entry("backup:restore", "Make a repository from a backup, in an empty place."),
    },
)

lock = Group(
    "lock",
    datastore.entries["lock"].summary,
    {
        "status": Entry("datastore.lock:status", "Show who has locked what."),
        "release": Entry("datastore.lock:release", "Remove a lock, whoever holds it."),
    },
)

datastore_catalog = Group(
    "catalog",
    datastore.entries["catalog"].summary,
    {
        "pull": Entry(
            "datastore.namespace:pull", "Learn what other namespaces of the datastore hold."
        ),
        "export": Entry(
            "datastore.namespace:export", "Publish the catalog for other namespaces now."
        ),
    },
)

namespace = Group(
    "namespace",
    datastore.entries["namespace"].summary,
    {
        "set": Entry("datastore.namespace:set_", "Give the repository a namespace of its own."),
        "unset": Entry(
            "datastore.namespace:unset", "Let the repository work without a namespace again."
        ),
        "list": Entry(
            "datastore.namespace:list_", "List who has which namespace of the datastore."
        ),
        "migrate": Entry(
            "datastore.namespace:migrate",
            "Move the data from before the namespace was set into it.",
        ),
    },
)

workflow = Group(
    "workflow",
    root.entries["workflow"].summary,
    {
        "run": Entry(
            "workflow:run",
            "Run a workflow: its jobs and steps, in their order, as many at once as it allows.",
        ),
        "resume": Entry(
            "workflow:resume",
            "Go on with a run from the first step that did not finish;"
            " none that finished runs again.",
        ),
        "approve": Entry(
            "workflow:approve",
            "Let a step that waits for approval go on; `workflow resume` then does.",
        ),
        "reject": Entry(
            "workflow:reject",
            "Let a step that waits for approval fail; what is there for that case runs on resume.",
        ),
        "validate": Entry(
            "workflow:validate",
            "Check workflow files: what they say, the order,"
            " the models and workflows that they name.",
        ),
        "list": Entry("workflow:list_", "List the workflows of the repository."),
        "history": Entry(
            "workflow:history", "List the runs of workflows, those that began last first."
        ),
        "show": Entry(
            "workflow:show", "Show a run: its jobs and steps, and where it is or how it ended."
        ),
    },
)

runs = Group(
    "runs",
    root.entries["runs"].summary,
    {
        "list": Entry(
            "runs:list_", "List what runs now and what ended lately, the youngest first."
        ),
        "show": Entry(
            "runs:show", "Show a run that goes on or ended lately, and where its record is."
        ),
        "cancel": Entry("runs:cancel", "Ask a run to end, on whichever machine it is."),
        "gc": Entry(
            "data.gc:run_gc",
            "Delete the records and logs of workflow runs and outputs that ended long ago.",
        ),
    },
)

output = Group(
    "output",
    root.entries["output"].summary,
    {
        "list": Entry(
            "output:list_", "List the runs of methods that ended, those that began last first."
        ),
        "show": Entry(
            "output:show",
            "Show the record of one run of a method: how it ended, and what it wrote.",
        ),
        "logs": Entry(
            "output:logs",
            "Print what a run of a method has written to its log, also while it goes on.",
        ),
    },
)

audit = Group(
    "audit",
    root.entries["audit"].summary,
    {"list": Entry("audit:list_", "Show what was done, when and by whom; the newest last.")},
)

pipeline = Group(
    "pipeline",
    root.entries["pipeline"].summary,
    {
        "verify": Entry(
            "pipeline.verify:verify",
            "Hash everything and compare it with the index; the exit status is 1 if something is"
            " wrong.",
        ),
        "reindex": Entry(
            "pipeline.verify:reindex", "Make the index of a remote anew from what is stored there."
        ),
        "copy": Entry(
            "pipeline.copy:copy",
            "Copy a datastore to another store; the exit status is 1 if something stayed behind.",
        ),
        "gc": Entry(
            "pipeline.gc:gc",
            "Delete expired data and versions beyond their policy, after a grace period.",
        ),
        "report": Entry(
            "pipeline.report:report",
            "Write a page about what is stored: who uses how much, growth, duplicates, garbage.",
        ),
        "push": Entry(
            "pipeline.sync:push",
            "Compare every file of the cache, and bring to the remote what it does not have.",
        ),
        "pull": Entry(
            "pipeline.sync:pull",
            "Compare everything that the remote has with the cache, and bring here what is"
            " missing.",
        ),
        "catalog": Entry(
            "pipeline.catalog:catalog",
            "Make catalogs anew: for other engines, as snapshots, and the local one.",
        ),
    },
)
