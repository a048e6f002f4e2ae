"""An open datastore: the parts, built from the configuration, and what connects them.

An open repository has its parts from here: the tree, the catalog, changes, locks, content, and from
`sync.opening` the remote. Jobs that work on a store without a repository open its index with
`pipeline.editing`. Every read first lets changes that a killed process left unfinished
be healed, which costs one look at a table that is nearly always empty.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

from swampstore.artifact import Artifact
from swampstore.artifacts.content import ContentSource, DiskContent, There
from swampstore.artifacts.name_lock import Mutations, locks_of
from swampstore.catalog.catalog import Catalog
from swampstore.catalog.database import Database, MemoryDatabase
from swampstore.catalog.foreign import FOREIGN_CATALOG
from swampstore.catalog.schema import Row
from swampstore.clock import Clock, system_clock
from swampstore.config import Config
from swampstore.errors import SwampstoreError, SyncNotSupportedError
from swampstore.files import Announce, Tree, disk_errors, read_file
from swampstore.files.signature import Signature, signature_of
from swampstore.layout import EXCHANGE, METADATA, SIDECAR, SIDECAR_CHAIN, DataRef
from swampstore.notices import notice

if TYPE_CHECKING:
    from swampstore.artifacts.ephemeral import EphemeralStore
    from swampstore.artifacts.save import ArtifactStore
    from swampstore.catalog.keeping_up import KeepingUp
    from swampstore.locks.manager import LockManager
    from swampstore.namespaces.others import Others
    from swampstore.repo.session import Session
    from swampstore.sync.access_times import Uses
    from swampstore.sync.dirty import DirtyTracker
    from swampstore.sync.opening import Connection
    from swampstore.sync.service import SyncService

T = TypeVar("T")
CATALOG = "swampstore.db"


class Ephemeral(NamedTuple):
    """Where data without a tomorrow is, and its catalog."""

    store: EphemeralStore
    catalog: Catalog


class SidecarLook:
    """What another program on the same cache is changing, as far as it tells in the sidecar.

    Costs a look at one file, unless that was changed, and loads nothing of sync, unless another
    program has written it.
    """

    def __init__(self, cache_dir: str, fingerprint_member: str) -> None:
        self._path = f"{cache_dir}/{SIDECAR}"
        self._member = fingerprint_member
        self._seen: Signature | None = None
        self._marks: tuple[str, ...] = ()

    def foreign_marks(self) -> tuple[str, ...]:
        """Return the paths; "*" stands for everything."""
        try:
            found = signature_of(os.stat(self._path))
            if found != self._seen:
                self._marks = self._read(read_file(self._path) or b"")
                self._seen = found
        except OSError:
            return ()
        return self._marks

    def _read(self, data: bytes) -> tuple[str, ...]:
        if SIDECAR_CHAIN.encode() in data:
            return ()
        from swampstore.sync.sidecar import decode

        return decode(data, self._member).foreign_marks


class OpenDatastore:
    """The parts of a datastore. Use it in a `with` block, or call `close()`."""

    def __init__(
        self,
        config: Config,
        *,
        clock: Clock = system_clock,
        announce: Announce | None = None,
        catalog: str = CATALOG,
    ) -> None:
        self.config = config
        self.clock = clock
        if config.remote and self._is_exchange_due():
            from swampstore.sync.staged_cache import finish_exchange

            finish_exchange(config)
        local = config.local_dir
        self.tree = Tree(
            config.datastore_dir,
            local,
            config.routing,
            announce=announce or (self._mark_removed if config.remote else self._check_session),
            announce_write=self._mark_written if config.remote and not announce else None,
            prefix=config.namespace,
            durable=config.durable,
            was_whole=self._was_whole,
        )
        self.catalog = Catalog(
            Database(f"{local}/{catalog}", durable=config.durable), config.namespace
        )
        locks = locks_of(
            config.base, local, config.locks.timeout, is_cache=config.remote is not None
        )
        self.mutations = Mutations(self.tree, locks, self.catalog)
        # How many events of the audit were written by way of this object, and whether its user
        # writes one for all that is done with it, so that sessions need not.
        self.recorded = 0
        self.is_audited = False
        self._ephemeral: Ephemeral | None = None
        self._session: Session | None = None
        fetch = self._hydrate if config.remote else None
        on_use = self._note_use if config.remote and config.remote.cache_limit else None
        self._content = DiskContent(self.tree, self.refresh, fetch, on_use, self.known_there)
        self._keeping_up = self._keep_up(f"{local}/{catalog}")

    @cached_property
    def store(self) -> ArtifactStore:
        """Artifacts by address and metadata, below the words of `artifacts`."""
        from swampstore.artifacts.save import ArtifactStore

        return ArtifactStore(
            self.mutations,
            self.clock,
            prune_on_write=self.config.auto_gc,
            key_prefix=self.config.key_prefix,
        )

    def _is_exchange_due(self) -> bool:
        """Whether a setup may have been stopped between the settings and the cache they mean."""
        return not os.path.lexists(self.config.base) or os.path.lexists(
            f"{self.config.local_dir}/{EXCHANGE}"
        )

    def _was_whole(self, version_rel: str) -> bool:
        if self.config.remote is None:
            return False
        from swampstore.index.base_view import was_whole

        return was_whole(self.config.base, version_rel)

    def known_there(self, rel: str) -> There | None:
        """Return what the remote has of a path, as far as that is known here; asks nobody."""
        if self.config.remote is None:
            return None
        from swampstore.index.base_view import known_content

        return known_content(self.config.base, rel)

    @property
    def ephemeral(self) -> Ephemeral | None:
        """Data that ends with this object, None as long as there is none."""
        return self._ephemeral

    def start_ephemeral(self) -> Ephemeral:
        """Return the place for ephemeral data, made on first use."""
        if self._ephemeral is None:
            from swampstore.artifacts.ephemeral import EphemeralStore

            catalog = Catalog(MemoryDatabase(), self.config.namespace)
            store = EphemeralStore(catalog, self.clock, self.config.ephemeral_budget)
            self._ephemeral = Ephemeral(store, catalog)
        return self._ephemeral

    # The remote ----------------------------------------------------------------------------

    @cached_property
    def dirty(self) -> DirtyTracker:
        """Which paths of the cache wait to be pushed. Every change is marked here beforehand."""
        from swampstore.sync.dirty import DirtyTracker

        return DirtyTracker(
            self.config.base,
            durable=self.config.durable,
            fingerprint_member=self._fingerprint_member,
            on_foreign=self._hear_of_foreign_marks,
        )

    @property
    def _fingerprint_member(self) -> str:
        google = self.config.remote is not None and self.config.remote.is_google
        return "remoteIndexGeneration" if google else "remoteIndexETag"

    def _mark_written(self, rel: str) -> None:
        self._check_session(rel)
        self.dirty.mark_written(rel)

    def _mark_removed(self, rel: str) -> None:
        self._check_session(rel)
        self.dirty.mark(rel)

    def _check_session(self, rel: str) -> None:
        """Let nothing change below a mount, or after somebody took over locks of the session."""
        del rel
        self.require_mounted()
        if self._session is not None:
            self._session.check()

    @cached_property
    def connection(self) -> Connection:
        """The remote, opened on first use; raise SyncNotSupportedError if there is none."""
        if self.config.remote is None:
            raise SyncNotSupportedError(
                f"the datastore {self.config.base} is used in place, there is nothing to sync",
                hint="Set a remote up: `swampstore datastore setup s3://bucket/prefix`.",
            )
        from swampstore.sync.opening import connect

        return connect(self)

    @property
    def sync(self) -> SyncService:
        """Keeps the cache and its remote equal; raise SyncNotSupportedError without a remote."""
        return self.connection.service

    def require_mounted(self) -> None:
        """Raise StoreNotMountedError if a directory that is used in place seems not to be mounted.

        That is one that is not there or holds nothing, though the catalog knows data of it.
        """
        config = self.config
        if not config.is_shared_in_place or os.path.lexists(f"{config.datastore_dir}/data"):
            return
        if not (os.path.lexists(config.base) or self._misses_data()):
            return  # the first save makes it
        from swampstore.stores.directory import DirectoryStore

        with DirectoryStore(config.base, is_known=self._misses_data) as store:
            store.reach()

    def _misses_data(self) -> bool:
        """Whether the catalog knows data that is not in the repository's own directory."""
        local = self.config.local_dir
        places = {local, f"{local}/{self.config.namespace}"}
        return any(
            not any(os.path.lexists(f"{place}/{ref.file_rel(top, METADATA)}") for place in places)
            for ref, top in self.catalog.known_names()
        )

    @cached_property
    def locks(self) -> LockManager:
        """The locks of the datastore that other processes and machines respect too."""
        if self.config.remote is not None:
            return self.connection.locks
        from swampstore.locks.manager import LockManager
        from swampstore.stores.directory import DirectoryStore

        base = self.config.base
        self.require_mounted()
        with disk_errors(base):
            os.makedirs(base, exist_ok=True)
        return LockManager(
            DirectoryStore(base, durable=False),
            self.config.namespace,
            timeout=self.config.locks.timeout,
            ttl=self.config.locks.ttl,
            walk=True,
        )

    @property
    def knows_others(self) -> bool:
        """Whether the catalog of any other namespace was ever pulled."""
        return os.path.lexists(f"{self.config.local_dir}/{FOREIGN_CATALOG}")

    @cached_property
    def others(self) -> Others:
        """The other namespaces of the datastore, as far as their catalogs were pulled."""
        from swampstore.namespaces.others import open_others

        return open_others(self)

    def export_catalog(self, *, force: bool = False) -> bool:
        """Publish the own catalog for other namespaces, if that is due; say whether it was.

        With `force` it is always due, and what goes wrong is raised instead of noted.
        """
        if not force and not self.config.namespace:
            return False  # as in most repositories, which need none of that

        from swampstore.namespaces.others import export_catalog

        return export_catalog(self, force=force)

    def seal_audit(self, *, everything: bool) -> None:
        """Let a push take events of the audit along: those that are due, or all of them."""
        from swampstore.audit.segments import seal

        seal(self, everything=everything)

    def _hydrate(self, rel: str) -> bool:
        from swampstore.stores.errors import StoreError
        from swampstore.sync.hydrate import out_of_reach

        try:
            return self.sync.hydrate(rel)
        except StoreError as error:
            raise out_of_reach(rel, error) from error

    @cached_property
    def _uses(self) -> Uses:
        from swampstore.sync.access_times import Uses

        return Uses(self.config.base)

    def _note_use(self, rel: str) -> None:
        """Remember for the cache, without opening the remote, that content is being read."""
        namespace = self.config.namespace
        self._uses.note([f"{namespace}/{rel}" if namespace else rel])

    def close(self) -> None:
        """Release the catalog and the connection; ephemeral data is gone."""
        if connection := self.__dict__.get("connection"):
            connection.close()
        elif locks := self.__dict__.get("locks"):
            locks.store.close()
        if uses := self.__dict__.get("_uses"):
            uses.close()
        if others := self.__dict__.get("others"):
            others.close()
        self.catalog.close()
        if self._ephemeral:
            self._ephemeral.catalog.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Repo {self.config.repo_dir}, {self.config.datastore_type} at {self.config.base}>"

    def _repr_html_(self) -> str:
        from swampstore.artifact import html_table

        known = self.catalog.counts()
        rows: list[tuple[str, object]] = [
            ("repository", self.config.repo_dir),
            ("datastore", f"{self.config.datastore_type} at {self.config.base}"),
            ("namespace", self.config.namespace or "none"),
            ("artifacts", known["latest"]),
            ("versions", known["versions"]),
        ]
        return html_table(["what", "is"], rows)

    def _keep_up(self, catalog: str) -> KeepingUp | None:
        """Return what keeps the catalog up with others on the same cache, None without one."""
        if self.config.remote is None:
            return None
        from swampstore.catalog.keeping_up import KeepingUp

        return KeepingUp(
            self.catalog,
            self.tree,
            place=catalog,
            cache_dir=self.config.base,
            refresh=self.refresh,
            foreign_marks=SidecarLook(self.config.base, self._fingerprint_member).foreign_marks,
        )

    def _hear_of_foreign_marks(self, marks: Iterable[str]) -> None:
        if self._keeping_up:
            self._keeping_up.note_foreign(marks)

    # Catalog -------------------------------------------------------------------------------

    def refresh(self, ref: DataRef) -> None:
        """Make what the catalog says of one name equal to what is on disk."""
        self.require_mounted()
        from swampstore.catalog.rebuild import refresh

        refresh(self.catalog, self.mutations, ref)

    def rebuild_catalog(self, progress: Callable[[int, int], None] | None = None) -> Any:
        """Make the whole catalog equal to what is on disk."""
        self.require_mounted()
        from swampstore.catalog.rebuild import rebuild

        return rebuild(self.catalog, self.mutations, progress)

    def reading(self, prepare: Callable[[], None], read: Callable[[], T]) -> T:
        """Return what `read` finds after `prepare`; again if the catalog was healed meanwhile."""
        while True:
            prepare()
            generation = self.catalog.rows.generation
            found = read()
            if generation == self.catalog.rows.generation:
                return found

    def ready(self, *, complete: bool = False) -> None:
        """Heal what needs healing; with `complete`, also fill a catalog that is not full yet."""
        self._ready(complete=complete)

    def _ready(self, *, complete: bool = False) -> None:
        self.mutations.recover()
        if self._keeping_up:
            self._keeping_up.catch_up_with_all()
        if complete and not self.catalog.is_populated:
            self.rebuild_catalog()

    def _ready_for(self, ref: DataRef) -> None:
        """Heal, and make sure that the rows of one name can be trusted; never walks further."""
        self.mutations.recover()
        if self._keeping_up:
            self._keeping_up.catch_up()
        if not self.catalog.is_populated or (
            self._keeping_up and self._keeping_up.are_versions_outdated(ref)
        ):
            self.refresh(ref)
        self._clear_dead(ref, self.catalog.deferred_versions(ref))

    def _clear_dead(self, ref: DataRef, versions: Sequence[int]) -> bool:
        """Undo versions whose group died before its commit; whether there were any."""
        if not versions:
            return False
        try:
            return bool(self.mutations.clear(ref, versions))
        except SwampstoreError as error:
            notice("%s", error.message)
            return True

    def holder(self, ref: DataRef) -> Ephemeral | None:
        """Return the place for ephemeral data if it holds this name."""
        found = self._ephemeral
        return found if found and found.store.holds(ref) else None

    def _catalog_of(self, ref: DataRef) -> Catalog:
        held = self.holder(ref)
        return held.catalog if held else self.catalog

    def _source_of(self, ref: DataRef) -> ContentSource:
        held = self.holder(ref)
        return held.store.content if held else self._content

    def artifact(self, row: Row) -> Artifact:
        """Return the artifact that a row of a catalog describes."""
        if row.namespace != self.config.namespace and self.knows_others:
            return Artifact(row, self.others.content(row.namespace))
        return Artifact(row, self._source_of(row.ref) if self._ephemeral else self._content)
