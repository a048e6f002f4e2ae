"""Publishing the own catalog from a repository: what is due, and what others have published."""

from __future__ import annotations

import contextlib
import tempfile
from typing import TYPE_CHECKING, BinaryIO, cast

from swampstore.catalog.export import EXPORT, Published, refresh_export
from swampstore.errors import SwampstoreError, ValidationError
from swampstore.files import disk_errors
from swampstore.index.base import Base
from swampstore.index.state import META_ETAG, Agreements
from swampstore.notices import notice
from swampstore.stores.errors import ObjectNotFoundError
from swampstore.stores.protocol import Store
from swampstore.sync.waiting import AttentiveStore

if TYPE_CHECKING:
    from swampstore.sync.opening import Connection, OpenRepo


def export_catalog(repo: OpenRepo, *, force: bool) -> bool:
    """Write the export of a repository's namespace, marked to be pushed; see `Repo`."""
    if not repo.config.namespace:
        if force:
            raise ValidationError(
                "the repository has no namespace, so nobody else could read its catalog",
                hint="Choose one: `swampstore datastore namespace set NAME`.",
            )
        return False
    try:
        return _export(repo, force=force)
    except SwampstoreError as error:
        if force:
            raise
        notice("the catalog was not published for other namespaces: %s", error.message)
        return False


def _export(repo: OpenRepo, *, force: bool) -> bool:
    repo.ready(complete=True)
    config, is_remote = repo.config, repo.config.remote is not None
    return refresh_export(
        repo.catalog,
        config.datastore_dir,
        mark=repo.dirty.mark_written if is_remote else _nobody_waits,
        now=repo.clock(),
        force=force,
        durable=config.durable,
        published=(lambda: _published(repo.connection)) if is_remote else (lambda: None),
    )


def _nobody_waits(path: str) -> None:
    """What is used in place is not pushed."""
    del path


def _published(connection: Connection) -> Published | None:
    """Return the export on the remote, None if there is none or the cache knows better."""
    if _is_whole(connection.base):
        return None
    store = AttentiveStore(connection.store)
    key = connection.names.remote(EXPORT)
    try:
        info = store.head(key)
    except ObjectNotFoundError:
        return None
    return Published(info.size, info.last_modified, lambda: _fetched(store, key))


def _is_whole(base: Base) -> bool:
    """Whether the cache has everything that the remote had when it was last looked at.

    One that only some models were pulled into does not know of the others.
    """
    agreed = Agreements(base).of(None)
    return agreed is not None and agreed.meta == base.fact(META_ETAG)


def _fetched(store: Store, key: str) -> BinaryIO:
    with disk_errors(tempfile.gettempdir()), contextlib.ExitStack() as undo:
        file = undo.enter_context(tempfile.TemporaryFile())
        store.download(key, file.fileno())
        file.seek(0)
        undo.pop_all()
        return cast("BinaryIO", file)
