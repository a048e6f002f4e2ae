"""The repository: builds the parts from the configuration and answers lookups.

Nothing else builds the parts. Reads go to the catalog; every read first lets changes that a
killed process left unfinished be healed, which costs one look at a table that is nearly always
empty.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar, overload

from swampstore import config as configuration
from swampstore.artifact import Artifact
from swampstore.artifacts.content import ContentSource, DiskContent
from swampstore.artifacts.mutation import Mutations
from swampstore.artifacts.name_locks import NameLocks
from swampstore.catalog.catalog import Catalog
from swampstore.catalog.database import Database, MemoryDatabase
from swampstore.catalog.schema import Row
from swampstore.clock import Clock, system_clock
from swampstore.config import Config
from swampstore.errors import (
    ModelNotFoundError,
    NotFoundError,
    SyncNotSupportedError,
    ValidationError,
)
from swampstore.files import Announce, Tree
from swampstore.layout import DataRef, ModelRef, check_segment

if TYPE_CHECKING:
    from swampstore.artifacts.ephemeral import EphemeralStore
    from swampstore.artifacts.metadata import Metadata
    from swampstore.artifacts.store import ArtifactStore
    from swampstore.results import Results
    from swampstore.sync.dirty import DirtyTracker
    from swampstore.sync.opening import Connection
    from swampstore.sync.service import SyncService
    from swampstore.writing import Artifacts

T = TypeVar("T")
CATALOG = "swampstore.db"
MAX_RENAME_HOPS = 5
_LISTED = 12
_REQUIRED: Any = object()


class Ephemeral(NamedTuple):
    """Where data without a tomorrow is, and its catalog."""

    store: EphemeralStore
    catalog: Catalog


class Repo:
    """An open repository. Use it in a `with` block, or call `close()`."""

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
        local = config.local_dir
        self.tree = Tree(
            config.datastore_dir,
            local,
            config.routing,
            announce=announce or (self._mark_removed if config.remote else _nobody_listens),
            announce_write=self._mark_written if config.remote and not announce else None,
            prefix=config.namespace,
            durable=config.durable,
        )
        self.catalog = Catalog(
            Database(f"{local}/{catalog}", durable=config.durable), config.namespace
        )
        locks = NameLocks(f"{local}/swampstore.locks", config.lock_timeout)
        self.mutations = Mutations(self.tree, locks, self.catalog)
        self._ephemeral: Ephemeral | None = None
        fetch = self._hydrate if config.remote else None
        self._content = DiskContent(self.tree, self.refresh, fetch)

    @cached_property
    def artifacts(self) -> Artifacts:
        """Everything that changes artifacts."""
        from swampstore.writing import Artifacts

        return Artifacts(self)

    @cached_property
    def store(self) -> ArtifactStore:
        """Artifacts by address and metadata, below the words of `artifacts`."""
        from swampstore.artifacts.store import ArtifactStore

        return ArtifactStore(self.mutations, self.clock, prune_on_write=self.config.auto_gc)

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

        google = self.config.remote is not None and self.config.remote.is_google
        return DirtyTracker(
            self.config.base,
            durable=self.config.durable,
            fingerprint_member="remoteIndexGeneration" if google else "remoteIndexETag",
        )

    def _mark_written(self, rel: str) -> None:
        self.dirty.mark_written(rel)

    def _mark_removed(self, rel: str) -> None:
        self.dirty.mark(rel)

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

    def _hydrate(self, rel: str) -> bool:
        return self.sync.hydrate(rel)

    def close(self) -> None:
        """Release the catalog and the connection; ephemeral data is gone."""
        if connection := self.__dict__.get("connection"):
            connection.close()
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
        return f"<Repo {self.config.repo_dir}>"

    # Addresses -----------------------------------------------------------------------------

    def model(self, model: str | ModelRef) -> ModelRef:
        """Return the address that `TYPE/ID`, or the name of one known model, stands for."""
        if isinstance(model, ModelRef):
            return ModelRef.of(*model)
        if "/" in model:
            ref = ModelRef.parse(model)
            # `@team/probe` may be a scoped name as well as an address.
            named = self.catalog.models_named(model) if model.startswith("@") else []
            if len(named) != 1 or self.catalog.has_model(ref):
                return ref
        return self._model_named(model)

    def ref(self, model: str | ModelRef, name: str) -> DataRef:
        """Return the address of a data name of a model."""
        return DataRef(self.model(model), check_segment("data name", name))

    def _models_named(self, name: str) -> list[ModelRef]:
        self._ready(complete=True)
        return self.catalog.models_named(name)

    def _model_named(self, name: str) -> ModelRef:
        found = self._models_named(name)
        if len(found) == 1:
            return found[0]
        if found:
            raise ValidationError(
                f"{name!r} is the name of {len(found)} models:"
                f" {_listing([str(model) for model in found])}",
                hint="Give the address, TYPE/ID, of the one you mean.",
            )
        known = self.catalog.known_model_names(_LISTED + 1)
        hint = f"Known names: {_listing(known)}." if known else "No model has data with a name yet."
        raise ModelNotFoundError(
            f"no model is named {name!r}", hint=f"{hint} Or give the address as TYPE/ID."
        )

    # Lookups -------------------------------------------------------------------------------

    @overload
    def latest(self, model: str | ModelRef, name: str) -> Artifact: ...
    @overload
    def latest(self, model: str | ModelRef, name: str, *, default: T) -> Artifact | T: ...
    def latest(self, model: str | ModelRef, name: str, *, default: Any = _REQUIRED) -> Any:
        """Return the latest version of a data name, following renames.

        Without one, return `default` if given, else raise NotFoundError saying what exists.
        """
        ref = self.ref(model, name)
        artifact = self._latest(ref)
        if artifact is None:
            if default is _REQUIRED:
                raise self._not_found(ref)
            return default
        return artifact

    def version(self, model: str | ModelRef, name: str, version: int) -> Artifact:
        """Return one version, tombstones included; raise NotFoundError saying what exists."""
        ref = self.ref(model, name)
        artifact = self._lookup(ref, lambda catalog, ref: catalog.version(ref, version))
        if artifact is None:
            raise self._not_found(ref, version)
        return artifact

    def list_versions(self, model: str | ModelRef, name: str) -> list[int]:
        """Return the versions of a data name, ascending; empty if there are none."""
        ref = self.ref(model, name)
        return self.reading(
            lambda: self._ready_for(ref), lambda: self._catalog_of(ref).version_numbers(ref)
        )

    def versions(
        self, model: str | ModelRef, name: str, *, limit: int | None = None
    ) -> list[Artifact]:
        """Return the versions of a data name, newest first."""
        ref = self.ref(model, name)
        source = self._source_of(ref)
        rows = self.reading(
            lambda: self._ready_for(ref), lambda: self._catalog_of(ref).versions(ref, limit)
        )
        return [Artifact(row, source) for row in rows]

    def list_data(self, model: str | ModelRef) -> list[Artifact]:
        """Return the latest of every live data name of a model, sorted by name."""
        ref = self.model(model)
        latest = self.reading(
            lambda: self._ready(complete=True), lambda: self.catalog.latest_of(ref)
        )
        rows = {row.data_name: row for row in reversed(latest)}
        if self._ephemeral:
            rows |= {row.data_name: row for row in self._ephemeral.catalog.latest_of(ref)}
        live = [row for row in rows.values() if not row.is_deleted]
        if not live and not self.catalog.has_model(ref):
            raise self._no_model(ref)
        return [self.artifact(row) for row in sorted(live, key=lambda row: row.data_name)]

    def find_by_tag(self, key: str, value: str) -> list[Artifact]:
        """Return the latest artifacts of the own namespace that carry a tag."""
        return self._newest_each(f"tags[{_cel(key)}] == {_cel(value)}")

    def find_by_spec(self, model: str | ModelRef, spec: str) -> list[Artifact]:
        """Return the latest artifacts that one model wrote for one of its specs."""
        ref = self.model(model)
        return self._newest_each(
            f"modelType == {_cel(ref.type)} && modelId == {_cel(ref.id)}"
            f" && specName == {_cel(spec)}"
        )

    def _newest_each(self, predicate: str) -> list[Artifact]:
        """Return one artifact per model, name and step: the one created last."""
        own = f"{predicate} && ns == {_cel(self.config.namespace)}"
        newest: dict[tuple[object, ...], Artifact] = {}
        for found in self.query(own, order="createdAt"):
            newest[found.model, found.name, found.row.step_name] = found
        return list(newest.values())

    def query(
        self,
        predicate: str | None = None,
        *,
        select: str | None = None,
        limit: int | None = None,
        order: str | None = None,
    ) -> Results[Any]:
        """Return the artifacts for which a CEL predicate holds, or `select` of each.

        Only latest versions are meant unless the predicate names `version` or `isLatest`.
        Raises QueryError for a predicate that cannot be understood.
        """
        from swampstore.querying import run_query

        return run_query(self, predicate, select=select, limit=limit, order=order)

    # Catalog -------------------------------------------------------------------------------

    def refresh(self, ref: DataRef) -> None:
        """Make what the catalog says of one name equal to what is on disk."""
        from swampstore.catalog.rebuild import refresh

        refresh(self.catalog, self.mutations, ref)

    def rebuild_catalog(self, progress: Callable[[int, int], None] | None = None) -> Any:
        """Make the whole catalog equal to what is on disk."""
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
        if complete and not self.catalog.is_populated:
            self.rebuild_catalog()

    def _ready_for(self, ref: DataRef) -> None:
        """Heal, and make sure that the rows of one name can be trusted; never walks further."""
        self.mutations.recover()
        if not self.catalog.is_populated:
            self.refresh(ref)

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
        """Return the artifact that a row of the catalog describes."""
        return Artifact(row, self._source_of(row.ref))

    def _lookup(
        self, ref: DataRef, find: Callable[[Catalog, DataRef], Row | None]
    ) -> Artifact | None:
        if held := self.holder(ref):
            row = find(held.catalog, ref)
            return Artifact(row, held.store.content) if row else None
        self.mutations.recover()
        row = find(self.catalog, ref)
        if row is None and not self.catalog.is_populated:
            self.refresh(ref)
            row = find(self.catalog, ref)
        return Artifact(row, self._content) if row else None

    def _latest(self, ref: DataRef) -> Artifact | None:
        for _ in range(MAX_RENAME_HOPS + 1):
            artifact = self._lookup(ref, Catalog.latest)
            if artifact is None or not artifact.is_deleted:
                return artifact
            if not artifact.row.renamed_to:
                return None
            ref = DataRef(ref.model, artifact.row.renamed_to)
        return None

    def just_written(self, ref: DataRef, metadata: Metadata) -> Artifact:
        """Return the artifact that a version became when it was written as the latest."""
        from swampstore.catalog.rows import row_of

        row = row_of(self.config.namespace, ref, metadata, deferred=False)
        return Artifact(row._replace(is_latest=1), self._content)

    def require_name(self, ref: DataRef) -> None:
        """Raise NotFoundError, saying what exists, unless there is a version of the name."""
        if not self.list_versions(ref.model, ref.name):
            raise self._not_found(ref)

    # What to say when something is not there -------------------------------------------------

    def _not_found(self, ref: DataRef, version: int | None = None) -> NotFoundError:
        self._ready(complete=True)
        if not self.catalog.has_model(ref.model):
            return self._no_model(ref.model)
        newest = self.catalog.versions(ref, _LISTED)
        if newest and version is not None:
            numbers = [str(row.version) for row in newest]
            return NotFoundError(
                f"{ref} has no version {version}", hint=f"Versions: {_listing(numbers)}."
            )
        if newest:
            return NotFoundError(
                f"{ref} was deleted at {newest[0].created_at}",
                hint=f"Its versions are kept: `swampstore data versions {ref}`.",
            )
        return NotFoundError(
            f"{ref.model} has no data named {ref.name!r}",
            hint=f"Names: {_listing(self.catalog.names(ref.model))}.",
        )

    def _no_model(self, model: ModelRef) -> ModelNotFoundError:
        known = [str(found) for found in self.catalog.models(_LISTED + 1, like=model.type)]
        hint = f"Models with data: {_listing(known)}." if known else "No model has data yet."
        return ModelNotFoundError(f"the model {model} has no data", hint=hint)


def _cel(text: str) -> str:
    """Write text as a literal of the query language."""
    from swampstore.catalog.query.render import render
    from swampstore.catalog.query.tree import Literal

    return render(Literal("string", text))


def _listing(names: list[str]) -> str:
    shown = ", ".join(names[:_LISTED])
    return f"{shown}, ..." if len(names) > _LISTED else shown


def _nobody_listens(rel: str) -> None:
    """The default listener: on one machine, nobody needs to know what changes."""


def open_repo(
    path: str | os.PathLike[str] | None = None,
    *,
    datastore: str | None = None,
    durable: bool | None = None,
    environ: Mapping[str, str] | None = None,
    clock: Clock = system_clock,
    announce: Announce | None = None,
) -> Repo:
    """Open the repository that `path` (default: `SWAMP_REPO_DIR`, else here) is in.

    `datastore` is a datastore to use instead of the configured one, such as
    `filesystem:/mnt/share` or `s3://bucket/prefix`. `durable=False` leaves out every fsync:
    faster, and a power failure may lose what was saved last. `announce` is called with each path
    before it changes; without it, the changes of a cache are marked to be pushed.
    """
    from dataclasses import replace

    environ = os.environ if environ is None else environ
    repo_dir = configuration.find_repo(None if path is None else os.fspath(path), environ)
    config = configuration.load(repo_dir, environ, datastore=datastore)
    if durable is not None:
        config = replace(config, durable=durable)
    return Repo(config, clock=clock, announce=announce)


def init_repo(path: str | os.PathLike[str] = ".", *, clock: Clock = system_clock) -> Repo:
    """Make a directory a repository and open it; raise AlreadyExistsError if it is one."""
    import uuid

    from swampstore.clock import to_iso

    directory = configuration.initialise(os.fspath(path), str(uuid.uuid4()), to_iso(clock()))
    return open_repo(directory, clock=clock)


def upgrade_repo(path: str | os.PathLike[str] = ".", *, clock: Clock = system_clock) -> Repo:
    """Say in a repository's marker that it has the current format, and open it.

    Everything else in the marker stays as it is, comments and keys of other clients included.
    """
    from swampstore.clock import to_iso

    directory = configuration.find_repo(os.fspath(path), os.environ)
    configuration.upgrade(directory, to_iso(clock()))
    return open_repo(directory, clock=clock)
