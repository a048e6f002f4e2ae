"""The other namespaces of a datastore: which are known, where a model is, what we tell them."""

from __future__ import annotations

import contextlib
import hashlib
import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, BinaryIO, cast

from swampstore.artifacts.metadata import is_text
from swampstore.catalog.export import EXPORT, Published, refresh_export
from swampstore.catalog.foreign import FOREIGN_CATALOG, ForeignCatalogs
from swampstore.catalog.schema import Row
from swampstore.clock import Clock
from swampstore.config import Config
from swampstore.datastore_address import without_secrets
from swampstore.errors import NotFoundError, SwampstoreError, ValidationError
from swampstore.files import disk_errors
from swampstore.index.base import Base
from swampstore.index.state import META_ETAG, Agreements
from swampstore.index.workers import AttentiveStore
from swampstore.layout import ModelRef, check_namespace
from swampstore.namespaces.other import (
    ContentMemory,
    ForeignContent,
    ForeignNamespace,
    ForeignStore,
    wanted_of,
)
from swampstore.notices import notice
from swampstore.stores.errors import ObjectNotFoundError
from swampstore.stores.protocol import Store

if TYPE_CHECKING:
    from swampstore.catalog.select import LoadContent, Query
    from swampstore.namespaces.catalog_pull import PulledCatalogs
    from swampstore.sync.opening import OpenRepo


def export_catalog(repo: OpenRepo, *, force: bool) -> bool:
    """Write the export of a repository's namespace, marked to be pushed; see `Repo`."""
    if not repo.config.namespace:
        raise ValidationError(
            "the repository has no namespace, so nobody else could read its catalog",
            hint="Choose one: `swampstore datastore namespace set NAME`.",
        )
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
        published=(lambda: _published(repo)) if is_remote else (lambda: None),
        is_unpushed=lambda: is_remote and _is_unpushed(repo),
        waiting=(lambda: _waiting(repo)) if is_remote else tuple,
    )


def _nobody_waits(path: str) -> None:
    """What is used in place is not pushed."""
    del path


def _is_unpushed(repo: OpenRepo) -> bool:
    return repo.dirty.covers(f"{repo.config.namespace}/{EXPORT}", by_name=True)


def _waiting(repo: OpenRepo) -> frozenset[str]:
    """Return the paths of the namespace that are marked by name."""
    rels = map(repo.connection.names.rel_of_mark, repo.dirty.peek().paths)
    return frozenset(rel for rel in rels if rel and rel.startswith("data/"))


def _published(repo: OpenRepo) -> Published | None:
    """Return the export on the remote, None if there is none or the cache knows better."""
    connection = repo.connection
    if _is_whole(connection.base):
        return None
    store = AttentiveStore(connection.store)
    key = connection.names.remote(EXPORT)
    try:
        info = store.head(key)
    except ObjectNotFoundError:
        return None

    def waits(model: ModelRef) -> bool:
        return repo.dirty.covers(connection.names.mark(model.rel), by_name=True)

    def may_wait(model: ModelRef) -> bool:
        return repo.dirty.covers(connection.names.mark(model.rel))

    return Published(info.size, info.last_modified, lambda: _fetched(store, key), waits, may_wait)


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


_PAGE = 256


def open_others(repo: OpenRepo) -> Others:
    """Return the other namespaces of a repository's datastore; nothing is opened yet."""
    config = repo.config
    catalogs = ForeignCatalogs(
        f"{config.local_dir}/{FOREIGN_CATALOG}", _origin(config), durable=config.durable
    )
    return Others(catalogs, config, lambda: _open_store(repo))


def _origin(config: Config) -> str:
    """Return what tells the datastore from every other one, and gives no secret away."""
    if config.remote is None:
        return f"filesystem:{config.base}"
    members = json.dumps(without_secrets(config.remote.config), sort_keys=True, default=str)
    return f"{config.remote.target}#{hashlib.sha256(members.encode()).hexdigest()[:16]}"


def _open_store(repo: OpenRepo) -> Store:
    if repo.config.remote is not None:
        from swampstore.index.workers import AttentiveStore

        return AttentiveStore(repo.connection.store)
    from swampstore.stores.directory import DirectoryStore

    return DirectoryStore(repo.config.base)


class Others:
    """The other namespaces whose catalogs were pulled."""

    def __init__(
        self, catalogs: ForeignCatalogs, config: Config, open_store: Callable[[], Store]
    ) -> None:
        self._catalogs = catalogs
        self._config = config
        self._memory = ContentMemory()
        self._store = ForeignStore(open_store, self._memory)

    @property
    def store(self) -> Store:
        """The datastore; the first segment of every key is a namespace."""
        return self._store.store

    def names(self) -> list[str]:
        """Return the namespaces that are known, sorted."""
        return list(self._catalogs.namespaces())

    def pull(self, namespaces: Iterable[str] | None, *, clock: Clock) -> PulledCatalogs:
        """Pull the catalogs of these namespaces, None: of all others."""
        from swampstore.namespaces.catalog_pull import CatalogPull

        base = None if self._config.remote else self._config.base
        own = self._config.namespace
        pull = CatalogPull(self._catalogs, self.store, own, clock=clock, base=base)
        return pull.run(namespaces)

    def namespace(self, name: str) -> ForeignNamespace:
        """Return one of them; raise NotFoundError if it was never pulled."""
        if check_namespace(name) not in (known := self.names()):
            pulled = f"Pulled so far: {', '.join(known)}. " if known else ""
            raise NotFoundError(
                f"the catalog of the namespace {name} was not pulled",
                hint=f"{pulled}Run `swampstore datastore catalog pull --namespaces {name}`. (An own"
                " model with a colon in its name is written `:a:b`.)",
            )
        return self._namespace(name)

    def _namespace(self, name: str) -> ForeignNamespace:
        return ForeignNamespace(self._catalogs.catalog(name), self.content(name))

    def find(
        self, model: str, name: str | None, own_has: Callable[[str, str | None], bool]
    ) -> ForeignNamespace | None:
        """Return the only namespace that has a model (and such data of it), None for the own one.

        Raises ValidationError if several have it. If none does, the own one is to say so.
        """
        every = [self._namespace(one) for one in self.names()]
        for wanted in (name, None):
            found = [one for one in every if one.has(model, wanted)]
            is_ours = own_has(model, wanted)
            if len(found) + is_ours > 1:
                names = [*([self._config.namespace or "the own one"] if is_ours else [])]
                names += [one.name for one in found]
                raise ValidationError(
                    f"{model} is in several namespaces: {', '.join(names)}",
                    hint=f"Name one: {found[0].name}:{model}.",
                )
            if found or is_ours:
                return found[0] if found else None
        return None

    def content(self, namespace: str) -> ForeignContent:
        """Return where the content of a namespace is read."""
        return ForeignContent(self._catalogs.catalog(namespace), self._store)

    def answer(self, query: Query, load: LoadContent) -> list[Row]:
        """Return the rows of other namespaces that a query asks for."""
        if not self.names():
            return []
        if not query.needs_content:
            return query.run(self._catalogs.rows, load)
        found: list[Row] = []
        for page in self._fetched(query.candidates(self._catalogs.rows)):
            found += query.judge(page, load)
            if query.limit is not None and len(found) >= query.limit:
                break
        return found[: query.limit]

    def fetching(
        self, rows: Sequence[Row], is_read: Callable[[str], bool] = is_text
    ) -> Iterator[Row]:
        """Yield rows of any namespace; contents of others are fetched ahead, many at once.

        Only those of which `is_read` says, by their type, that somebody reads them.
        """
        for page in self._fetched(rows, is_read):
            yield from page

    def _fetched(
        self, rows: Sequence[Row], is_read: Callable[[str], bool] = is_text
    ) -> Iterator[list[Row]]:
        own = self._config.namespace
        for page in _pages(rows, self._memory.budget):
            foreign = [row for row in page if row.namespace != own and is_read(row.content_type)]
            self._store.prefetch(map(wanted_of, foreign))
            yield page

    def close(self) -> None:
        """Release the rows and the store."""
        self._catalogs.close()
        self._store.close()


def _pages(rows: Iterable[Row], budget: int) -> Iterator[list[Row]]:
    """Yield rows in pages whose contents all fit into the memory, unless a single one does not."""
    page: list[Row] = []
    size = 0
    for row in rows:
        if page and (len(page) == _PAGE or size + row.size > budget):
            yield page
            page, size = [], 0
        page.append(row)
        size += row.size
    if page:
        yield page
