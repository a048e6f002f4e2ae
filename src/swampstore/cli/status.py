"""`swampstore ls` and `swampstore status`: what is here, and how it stands to its remote."""

from __future__ import annotations

import os
import sqlite3
from typing import TYPE_CHECKING, Any

import click

from swampstore.cli.command import command, pass_session
from swampstore.cli.model import MODEL_COLUMNS, MODEL_MEMBERS
from swampstore.cli.options import complete_model, rows_options
from swampstore.cli.rendering import age_text, counted, fields, named_lines, size_text
from swampstore.cli.row_formats import Listing, same
from swampstore.cli.session import Session
from swampstore.redaction import without_credentials

if TYPE_CHECKING:
    from swampstore.repo import Repo


@command(
    examples="""
    swampstore ls
    swampstore ls web-server
    swampstore ls aws/ec2/i-123 --fields name,size --format csv
    """
)
@click.argument(
    "model", required=False, shell_complete=complete_model, help="TYPE/ID, or the name of a model."
)
@rows_options
@pass_session
def ls(session: Session, model: str | None) -> None:
    """List the models that have data, or the data names of one of them."""
    if model is not None:
        from swampstore.cli.data.list import list_data

        assert list_data.callback is not None
        click.get_current_context().invoke(list_data, model=model, data_type=None)
        return
    with session.open_repo() as repo:
        totals = repo.reading(lambda: repo.ready(complete=True), repo.catalog.model_totals)
    items = [
        {
            "modelType": one.model.type,
            "modelId": one.model.id,
            "modelName": one.name,
            "dataNames": one.data_names,
            "versions": one.versions,
            "bytes": one.size,
            "lastChange": one.last_change or None,
        }
        for one in totals
    ]
    names = sum(one.data_names for one in totals)
    listing = Listing(
        MODEL_COLUMNS,
        items,
        same,
        lambda: f"{counted(len(items), 'model')}, {counted(names, 'data name')}",
        "Nothing is saved yet. Begin with: swampstore data put TYPE/ID NAME FILE",
        MODEL_MEMBERS[:-1],
    )
    session.show_rows(listing, lambda: {"models": items, "total": len(items)})


@command(
    examples="""
    swampstore status
    swampstore status --remote
    swampstore status --json
    """
)
@click.option(
    "--remote",
    is_flag=True,
    help="Also ask the remote: locks, what others pushed, whether the bucket keeps versions.",
)
@pass_session
def status(session: Session, remote: bool) -> None:
    """Show what is here, what waits to be pushed, and when it was last synced."""
    with session.open_repo() as repo:
        document = _here(repo)
        if repo.config.remote is not None:
            document |= _waiting(repo)
            if remote:
                document["remote"] = _there(repo)
        elif remote:
            document["remote"] = {"answers": None}
    session.show(document, lambda: _text(document))


def _here(repo: Repo) -> dict[str, Any]:
    config = repo.config
    totals = repo.reading(lambda: repo.ready(complete=True), repo.catalog.model_totals)
    remote = config.remote
    return {
        "repository": config.repo_dir,
        "repoId": config.repo_id,
        "datastore": config.datastore_type,
        "location": without_credentials(remote.target) if remote else config.base,
        "cacheDir": config.base if remote else None,
        "namespace": config.namespace or None,
        "models": len(totals),
        "dataNames": sum(one.data_names for one in totals),
        "versions": sum(one.versions for one in totals),
        "bytes": sum(one.size for one in totals),
        "lastChange": max((one.last_change for one in totals), default="") or None,
        "catalogBytes": _size_of(f"{config.local_dir}/swampstore.db"),
    }


def _size_of(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _waiting(repo: Repo) -> dict[str, Any]:
    """Return what this machine knows about the remote; nobody is asked."""
    from swampstore.index.base_view import BaseView
    from swampstore.index.path_kinds import CONFLICTS

    marked = repo.dirty.peek()
    document: dict[str, Any] = {
        "waiting": sorted(marked.paths),
        "waitsForFullWalk": marked.bulk,
        "lastSync": repo.dirty.state().last_verified_at or None,
        "notHydrated": None,
        "conflicts": _files_below(repo, CONFLICTS),
        "maxBytes": repo.config.remote.cache_limit if repo.config.remote else None,
    }
    try:
        view = BaseView(repo.config.base)
    except sqlite3.Error:
        return document
    try:
        document |= view.summary()
    except sqlite3.Error:
        pass
    finally:
        view.close()
    return document


def _files_below(repo: Repo, rel: str) -> list[str]:
    """Return the files of a directory that is hardly ever there."""
    found = []
    for place in repo.tree.places(rel):
        for directory, _, names in os.walk(place):
            found += [f"{rel}{directory.removeprefix(place)}/{name}" for name in names]
    return sorted(found)


def _there(repo: Repo) -> dict[str, Any]:
    """Ask the remote: who has locked what, what a pull would bring, whether it keeps versions."""
    from swampstore.stores.config import store_config
    from swampstore.stores.errors import StoreError
    from swampstore.stores.s3 import keeps_versions
    from swampstore.sync.run import SyncRun

    target = repo.config.remote
    assert target is not None
    try:
        locks = [
            {
                "model": str(model),
                "holder": state.record.holder if state.record else None,
                "stale": state.is_stale,
            }
            for model, state in repo.locks.locked_models()
        ]
        preview = SyncRun(repo, None).preview()
        return {
            "answers": True,
            "locks": locks,
            "toPull": len(preview.pull) + len(preview.delete_local),
            "toPullBytes": preview.pull_bytes,
            "keepsVersions": keeps_versions(store_config(target.target, target.config)),
        }
    except StoreError as error:
        return {"answers": False, "error": error.message, "hint": error.hint}


_KEEPS = {
    True: "the bucket keeps what is overwritten or deleted",
    False: "the bucket does not keep what is overwritten or deleted",
    None: "the bucket does not tell whether it keeps what is overwritten or deleted",
}


def _text(document: dict[str, Any]) -> str:
    names, versions = document["dataNames"], document["versions"]
    is_remote = document["cacheDir"] is not None
    changed = document["lastChange"]
    shown: dict[str, object] = {
        "repository": document["repository"],
        "datastore": f"{document['datastore']}, {document['location']}",
        "cache": document["cacheDir"],
        "namespace": document["namespace"],
        "data": f"{counted(document['models'], 'model')}, {counted(names, 'data name')},"
        f" {counted(versions, 'version')}, {size_text(document['bytes'])}",
        "last change": f"{age_text(changed)} ago" if changed else "never",
    }
    if is_remote:
        synced = document["lastSync"]
        shown["last sync"] = f"{age_text(synced)} ago" if synced else "never"
        if document.get("contentBytes") is not None:
            limit = document["maxBytes"]
            bound = f" of at most {size_text(limit)}" if limit else ""
            shown["content here"] = f"{size_text(document['contentBytes'])}{bound}"
            if document["notHydrated"]:
                shown["not here"] = f"{counted(document['notHydrated'], 'file')}, fetched when read"
    lines = [fields(shown)]
    if is_remote:
        lines += _waiting_lines(document)
    if "remote" in document:
        lines += _remote_lines(document["remote"])
    return "\n".join(lines)


def _waiting_lines(document: dict[str, Any]) -> list[str]:
    lines = named_lines("kept after a conflict", document["conflicts"])
    if document["waitsForFullWalk"]:
        lines.append("Everything is compared by the next push: `swampstore push`.")
    elif document["waiting"]:
        lines += named_lines("waiting", document["waiting"])
        many = counted(len(document["waiting"]), "path")
        lines.append(f"{many} waiting to be pushed: `swampstore push`.")
    else:
        lines.append("Nothing waits to be pushed.")
    return lines


def _remote_lines(remote: dict[str, Any]) -> list[str]:
    if remote["answers"] is None:
        return ["There is no remote: the datastore is used in place."]
    if not remote["answers"]:
        hint = f" {remote['hint']}" if remote["hint"] else ""
        return [f"The remote does not answer: {remote['error']}.{hint}"]
    lines = [
        f"locked: {one['model']} by {one['holder'] or 'somebody unknown'}"
        f"{', who gave no sign of life' if one['stale'] else ''}"
        for one in remote["locks"]
    ]
    lines = lines or ["Nobody has locked anything."]
    if remote["toPull"]:
        size = size_text(remote["toPullBytes"])
        lines.append(
            f"Others pushed {counted(remote['toPull'], 'file')}, {size}: `swampstore pull`."
        )
    else:
        lines.append("Others pushed nothing that is not here.")
    return [*lines, f"Versions: {_KEEPS[remote['keepsVersions']]}."]
