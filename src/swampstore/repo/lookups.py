"""The repository: what it is asked, in the words of its users.

Reads go to the catalog. The parts are built in `open`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from threading import RLock
from typing import TYPE_CHECKING, Any, TypeVar, overload

from swampstore.artifact import Artifact, ArtifactList
from swampstore.catalog.catalog import Catalog
from swampstore.catalog.schema import Row
from swampstore.errors import (
    ModelNotFoundError,
    NotFoundError,
    ValidationError,
)
from swampstore.layout import EVERYWHERE, DataRef, ModelRef, check_segment, split_namespace
from swampstore.notices import did_you_mean, sentences
from swampstore.repo.open import OpenDatastore

if TYPE_CHECKING:
    from swampstore.artifacts.metadata import Metadata
    from swampstore.artifacts.rename import Renamed
    from swampstore.artifacts.save import Deleted
    from swampstore.index.results import Progress
    from swampstore.namespaces.catalog_pull import PulledCatalogs
    from swampstore.namespaces.other import ForeignNamespace
    from swampstore.repo.differences import Difference
    from swampstore.repo.querying import Results
    from swampstore.repo.saving import Artifacts, Content
    from swampstore.repo.session import Session
    from swampstore.repo.watching import Piece
    from swampstore.sync.hydrate import Hydrated

T = TypeVar("T")
_ALIKE = 1000
_LISTED = 12
_REQUIRED: Any = object()
# What connects the parts with each other: public for them, and nothing for who explores with Tab.
_PARTS = frozenset(
    [
        *("artifact", "catalog", "check_session", "connection", "dirty", "ephemeral", "holder"),
        *("is_audited", "just_written", "known_there", "knows_others", "locks", "mutations"),
        *("others", "reading", "ready", "recorded", "require_mounted", "require_name"),
        *("seal_audit", "start_ephemeral", "store", "tree"),
    ]
)


class Repo(OpenDatastore):
    """An open repository. Use it in a `with` block, or call `close()`."""

    @cached_property
    def artifacts(self) -> Artifacts:
        """Everything that changes artifacts."""
        from swampstore.repo.saving import Artifacts

        return Artifacts(self)

    def __dir__(self) -> list[str]:
        return sorted(set(super().__dir__()) - _PARTS)

    # Changes, each in a session of its own ----------------------------------------------------

    def save(self, model: str | ModelRef, name: str, content: Content, **details: Any) -> Artifact:
        """Save content as the next version of a data name, in a session on its model; return it.

        Takes what `artifacts.save` takes, and raises what `session` raises. To save much, open
        one session around it: this is part of it then.
        """
        if details.get("lifetime") == "ephemeral":
            return self.artifacts.save(model, name, content, **details)
        with self._alone, self.session([model]):
            return self.artifacts.save(model, name, content, **details)

    def delete(self, model: str | ModelRef, name: str, *, version: int | None = None) -> Deleted:
        """Delete one version, or the name with all of them, in a session on its model."""
        with self._alone, self.session([model]):
            return self.artifacts.delete(model, name, version=version)

    def rename(self, model: str | ModelRef, old: str, new: str) -> Renamed:
        """Give the latest content another name, in a session on its model; the old one forwards."""
        with self._alone, self.session([model]):
            return self.artifacts.rename(model, old, new)

    @cached_property
    def _alone(self) -> RLock:
        """Held by the one thread that is in a session of its own making: they do not mix."""
        return RLock()

    # Working with others ----------------------------------------------------------------------

    @contextmanager
    def session(
        self,
        models: Iterable[str | ModelRef] | None = None,
        *,
        timeout: float | None = None,
        progress: Progress | None = None,
    ) -> Iterator[Session]:
        """Lock some models, or everything, for a block of work on a shared datastore.

        The block starts from what others have pushed, and what it changed is pushed at its end.
        After an exception what was saved stays here, and goes with the next push. `timeout` is in
        seconds, for each direction. A session within a session is part of it. Raises
        LockTimeoutError if others hold a lock for too long, LockLostError if one was taken over,
        NotPushedError if the end could not be pushed: the data is safe here in every case.
        """
        from swampstore.repo.session import open_session, record_session

        chosen = None if models is None else [self.model(model) for model in models]
        if self._session is not None:
            self._session.check_covers(chosen)
            yield self._session
            return
        recorded, failure = self.recorded, None
        try:
            with open_session(self, chosen, timeout=timeout, progress=progress) as session:
                self._session = session
                try:
                    yield session
                finally:
                    self._session = None
        except BaseException as error:
            failure = error
            raise
        finally:
            if not self.is_audited and self.recorded == recorded:
                record_session(self, chosen, failure)

    def check_session(self, model: ModelRef) -> None:
        """Raise ValidationError if a session is going on that a model is not part of."""
        if self._session is not None:
            self._session.check_covers([model])

    # Addresses -----------------------------------------------------------------------------

    def model(self, model: str | ModelRef) -> ModelRef:
        """Return the address that `TYPE/ID`, or the name of one known own model, stands for."""
        if isinstance(model, ModelRef):
            return ModelRef.of(*model)
        namespace, model = split_namespace(model)
        if namespace not in ("", self.config.namespace):
            raise ValidationError(
                f"{namespace}:{model} is a model of another namespace, which can only be read",
                hint="Save and delete in the repository that has that namespace.",
            )
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
        swapped = self.catalog.model_of_name(name)
        hint = sentences(
            f"It is the name of data of {swapped}; the model comes first." if swapped else "",
            did_you_mean(name, self.catalog.known_model_names(_ALIKE)),
            f"Known names: {_listing(known)}." if known else "No model has data with a name yet.",
            "Or give the address as TYPE/ID.",
        )
        raise ModelNotFoundError(f"no model is named {name!r}", hint=hint)

    # Other namespaces ------------------------------------------------------------------------

    def pull_catalogs(self, namespaces: Iterable[str] | None = None) -> PulledCatalogs:
        """Make what is known of other namespaces (default: all) equal to what they published.

        From then on queries find their artifacts, and lookups take `NAMESPACE:MODEL`.
        """
        return self.others.pull(namespaces, clock=self.clock)

    def locate(self, model: str | ModelRef, name: str | None = None) -> tuple[str, ModelRef]:
        """Return the namespace that a model, having data of this name, is in, and its address."""
        other, model = self._place(model, name)
        if other:
            return other.name, other.model(model)
        return self.config.namespace, self.model(model)

    def _place(
        self, model: str | ModelRef, name: str | None = None
    ) -> tuple[ForeignNamespace | None, Any]:
        """Return the other namespace that a model is in, if any, and what it is called there."""
        if isinstance(model, ModelRef) or ":" not in model:
            return None, model
        namespace, rest = split_namespace(model)
        if namespace == EVERYWHERE:
            other = self.others.find(rest, name, self._has)
            return other, rest if other else f":{rest}"
        if namespace in ("", self.config.namespace):
            return None, model
        return self.others.namespace(namespace), rest

    def _has(self, model: str, name: str | None) -> bool:
        """Whether a model is our own, or if a name is given, has such data."""
        self._ready(complete=True)
        try:
            ref = self.model(f":{model}")
        except ModelNotFoundError:
            return False
        return bool(self.list_versions(ref, name)) if name else self.catalog.has_model(ref)

    # Lookups -------------------------------------------------------------------------------

    @overload
    def latest(self, model: str | ModelRef, name: str) -> Artifact: ...
    @overload
    def latest(self, model: str | ModelRef, name: str, *, default: T) -> Artifact | T: ...
    def latest(self, model: str | ModelRef, name: str, *, default: Any = _REQUIRED) -> Any:
        """Return the latest version of a data name, following renames.

        Without one, return `default` if given, else raise NotFoundError saying what exists.
        """
        other, model = self._place(model, name)
        artifact = other.latest(model, name) if other else self._latest(self.ref(model, name))
        if artifact is not None:
            return artifact
        if default is not _REQUIRED:
            return default
        raise other.not_found(model, name) if other else self._not_found(self.ref(model, name))

    def version(self, model: str | ModelRef, name: str, version: int) -> Artifact:
        """Return one version, tombstones included; raise NotFoundError saying what exists."""
        other, model = self._place(model, name)
        if other:
            if found := other.version(model, name, version):
                return found
            raise other.not_found(model, name, version)
        ref = self.ref(model, name)
        artifact = self._lookup(ref, lambda catalog, ref: catalog.version(ref, version), version)
        if artifact is None:
            raise self._not_found(ref, version)
        return artifact

    def list_versions(self, model: str | ModelRef, name: str) -> list[int]:
        """Return the versions of a data name, ascending; empty if there are none."""
        other, model = self._place(model, name)
        if other:
            return other.list_versions(model, name)
        ref = self.ref(model, name)
        return self.reading(
            lambda: self._ready_for(ref), lambda: self._catalog_of(ref).version_numbers(ref)
        )

    def versions(
        self, model: str | ModelRef, name: str, *, limit: int | None = None
    ) -> list[Artifact]:
        """Return the versions of a data name, newest first."""
        other, model = self._place(model, name)
        if other:
            return other.versions(model, name, limit)
        ref = self.ref(model, name)
        source = self._source_of(ref)
        rows = self.reading(
            lambda: self._ready_for(ref), lambda: self._catalog_of(ref).versions(ref, limit)
        )
        return ArtifactList(Artifact(row, source) for row in rows)

    def list_data(self, model: str | ModelRef) -> list[Artifact]:
        """Return the latest of every live data name of a model, sorted by name."""
        other, model = self._place(model)
        if other:
            return other.list_data(model)
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
        ordered = sorted(live, key=lambda row: row.data_name)
        return ArtifactList(self.artifact(row) for row in ordered)

    def find_by_tag(self, key: str, value: str) -> list[Artifact]:
        """Return the latest artifacts of the own namespace that carry a tag."""
        from swampstore.repo.querying import cel_text, newest_each

        predicate = f"tags[{cel_text(key)}] == {cel_text(value)}"
        return newest_each(self, predicate, self.config.namespace)

    def find_by_spec(self, model: str | ModelRef, spec: str) -> list[Artifact]:
        """Return the latest artifacts that one model wrote for one of its specs."""
        from swampstore.repo.querying import cel_text, model_is, newest_each

        namespace, ref = self.locate(model)
        return newest_each(self, f"{model_is(ref)} && specName == {cel_text(spec)}", namespace)

    def query(
        self,
        predicate: str | None = None,
        *,
        select: str | None = None,
        limit: int | None = None,
        order: str | None = None,
        hydrate: bool = False,
    ) -> Results[Any]:
        """Return the artifacts for which a CEL predicate holds, or `select` of each.

        Only latest versions are meant unless the predicate names `version` or `isLatest`. What
        reads content does not hold of content that is not on this machine; `unhydrated` of the
        results counts it, and `hydrate` fetches it first. Raises QueryError for a predicate that
        cannot be understood.
        """
        from swampstore.repo.querying import run_query

        return run_query(self, predicate, select=select, limit=limit, order=order, hydrate=hydrate)

    def at(self, address: str) -> Artifact:
        """Return the artifact at `MODEL/NAME`, or `MODEL/NAME@VERSION`."""
        from swampstore.layout import split_address

        model, name, version = split_address(address)
        return self.latest(model, name) if version is None else self.version(model, name, version)

    def diff(self, before: Artifact | str, after: Artifact | str) -> Difference:
        """Return how two versions differ; each is an artifact or an address as `at` takes it.

        JSON is compared by members, text by lines, Parquet by schema and rows (with the extra
        `arrow`), anything else by size. Content that is only on the remote is fetched.
        """
        from swampstore.repo.differences import compare

        return compare(*(self.at(one) if isinstance(one, str) else one for one in (before, after)))

    def watch(
        self,
        model: str | ModelRef,
        name: str,
        *,
        lines: int | None = None,
        follow: bool = True,
        pause: float = 0.5,
        pull_every: float | None = None,
    ) -> Iterator[Piece]:
        """Yield the bytes of the latest version, and whatever is appended to it from then on.

        With `lines` it begins with the last so many. When a newer version is saved, that one is
        gone on with. Without `follow` it ends where the version ends now. Looks every `pause`
        seconds at what is here; with `pull_every`, others' changes are pulled so often.
        """
        from swampstore.repo.watching import watch

        return watch(
            self, model, name, lines=lines, follow=follow, pause=pause, pull_every=pull_every
        )

    def hydrate(
        self,
        predicate: str | None = None,
        *,
        model: str | ModelRef | None = None,
        all_versions: bool = False,
        dry_run: bool = False,
        deadline: float | None = None,
        progress: Progress | None = None,
    ) -> Hydrated:
        """Fetch the content of all artifacts for which a predicate holds, many at once.

        Latest versions are meant, or `all_versions`, of everything or of one model. What is here
        already costs nothing; stopped, it goes on where it was. `deadline` is in seconds. Raises
        QueryError for a predicate that reads content, ValidationError if it is more than the
        cache may hold, and what `sync.hydrate_many` raises.
        """
        from swampstore.repo.querying import hydrate_found

        return hydrate_found(
            self,
            predicate,
            None if model is None else self.model(model),
            all_versions=all_versions,
            dry_run=dry_run,
            deadline=deadline,
            progress=progress,
        )

    def _lookup(
        self,
        ref: DataRef,
        find: Callable[[Catalog, DataRef], Row | None],
        version: int | None = None,
    ) -> Artifact | None:
        if held := self.holder(ref):
            row = find(held.catalog, ref)
            return Artifact(row, held.store.content) if row else None
        self.mutations.recover()
        if self._keeping_up:
            self._keeping_up.catch_up()
        row = find(self.catalog, ref)
        if self._is_outdated(ref, version, row):
            self.refresh(ref)
            row = find(self.catalog, ref)
        if row is not None and row.deferred and self._clear_dead(ref, [row.version]):
            return None
        return Artifact(row, self._content) if row else None

    def _is_outdated(self, ref: DataRef, version: int | None, row: Row | None) -> bool:
        if row is None and not self.catalog.is_populated:
            return True
        if self._keeping_up is None:
            return False
        if version is None:
            return self._keeping_up.is_outdated(ref, row)
        return self._keeping_up.is_version_outdated(ref, version, row)

    def _latest(self, ref: DataRef) -> Artifact | None:
        artifact = self._lookup(ref, Catalog.latest)
        if artifact is None or not artifact.is_deleted:
            return artifact
        from swampstore.artifacts.rename import MAX_HOPS

        for _ in range(MAX_HOPS):
            if not artifact.row.renamed_to:
                return None
            artifact = self._lookup(DataRef(ref.model, artifact.row.renamed_to), Catalog.latest)
            if artifact is None or not artifact.is_deleted:
                return artifact
        return None

    def just_written(self, ref: DataRef, metadata: Metadata) -> Artifact:
        """Return the artifact that a version became when it was written as the latest."""
        from swampstore.catalog.disk_rows import row_of

        row = row_of(self.config.namespace, ref, metadata, deferred=False)
        return Artifact(row._replace(is_latest=1), self._content)

    def require_name(self, model: str | ModelRef, name: str) -> list[int]:
        """Return the versions of a data name; raise NotFoundError, saying what exists, if none."""
        if versions := self.list_versions(model, name):
            return versions
        other, model = self._place(model, name)
        raise other.not_found(model, name) if other else self._not_found(self.ref(model, name))

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
        names = self.catalog.names(ref.model)
        return NotFoundError(
            f"{ref.model} has no data named {ref.name!r}",
            hint=sentences(did_you_mean(ref.name, names), f"Names: {_listing(names)}."),
        )

    def _no_model(self, model: ModelRef) -> ModelNotFoundError:
        known = [str(found) for found in self.catalog.models(_LISTED + 1, like=model.type)]
        listed = f"Models with data: {_listing(known)}." if known else "No model has data yet."
        hint = sentences(did_you_mean(str(model), known), listed)
        return ModelNotFoundError(f"the model {model} has no data", hint=hint)


def _listing(names: list[str]) -> str:
    shown = ", ".join(names[:_LISTED])
    return f"{shown}, ..." if len(names) > _LISTED else shown
