"""The two ends of a copy: what is read, where it goes, and whether it may."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from swampstore.clock import system_clock, to_iso
from swampstore.errors import ValidationError
from swampstore.index.errors import IndexDamagedError
from swampstore.layout import DATASTORE_SUBDIRS, Routing
from swampstore.namespaces.manifests import CATALOG_EXPORT, Registry, check_new_namespace
from swampstore.pipeline.places import Place, places_of
from swampstore.pipeline.source.index import documents
from swampstore.stores.probe import probe
from swampstore.stores.protocol import Store, folders

if TYPE_CHECKING:
    from swampstore.config import Config

_UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Ends:
    """One namespace (or none) of a source, and the one of the target that it is copied to.

    `owner` is the repository that the data belongs to, empty if that cannot be told.
    """

    source: Place
    target: Place
    owner: str = ""


def ends_of(
    sources: Sequence[Place], target: str, into: str | None, owner: str | None
) -> list[Ends]:
    """Return what goes where; `into` is a namespace of the target, empty for none.

    Raises ValidationError if that makes no sense: a copy onto itself, several into one.
    """
    [base] = places_of(target, [""])
    if not base.indexed:
        raise ValidationError(
            f"{target} is used in place, so nothing can be copied to it",
            hint="Name a bucket, or a directory as file:///path.",
        )
    if into is not None and len(sources) > 1:
        several = ", ".join(repr(source.namespace) for source in sources)
        raise ValidationError(
            f"the namespaces {several} cannot all be copied into {into!r}",
            hint="Copy one at a time, with --namespace, or leave out --into.",
        )
    return [_ends(source, base, into, owner) for source in sources]


def _ends(source: Place, base: Place, into: str | None, owner: str | None) -> Ends:
    namespace = source.namespace if into is None else into
    target = replace(base, namespace=check_new_namespace(namespace) if namespace else "")
    if (source.identity, source.namespace) == (target.identity, target.namespace):
        raise ValidationError(
            f"{source} cannot be copied onto itself", hint="Name another store or another --into."
        )
    return Ends(source, target, owner or _owner_of(source))


def _owner_of(source: Place) -> str:
    """Return the id of the repository that the data of a place belongs to, if anything tells."""
    if source.namespace:
        with source.open() as store:
            manifest = Registry(store).get(source.namespace)
        if manifest is not None and manifest.repo_id:
            return manifest.repo_id
    if not os.path.isdir(source.target):
        return ""
    repo_id = _config_of(source).repo_id
    return "" if repo_id == _UNKNOWN else repo_id


def _config_of(source: Place) -> Config:
    from swampstore.config import load
    from swampstore.marker import find_repo

    return load(find_repo(source.target, os.environ), os.environ)


# Before something is written -------------------------------------------------------------------


def check_source(source: Place) -> None:
    """Raise IndexDamagedError if there is data, and no index that tells what belongs to it."""
    if not source.indexed:
        return
    with source.open() as store:
        if documents(source, store):
            return
        found = set(folders(store, source.names().remote("")))
    if found.intersection(DATASTORE_SUBDIRS):
        raise IndexDamagedError(
            f"{source} holds data, and no index that tells of it",
            hint="Make one first: `swampstore pipeline reindex` with that store.",
        )


def check_namespace(ends: Ends, store: Store) -> bool:
    """Whether the target's namespace is there already, or none is needed.

    Raises NamespaceTakenError if it is another repository's.
    """
    slug = ends.target.namespace
    if not slug:
        return True
    if not ends.owner:
        raise ValidationError(
            f"nothing tells which repository {ends.source} belongs to, and thus whose the"
            f" namespace {slug!r} will be",
            hint="Give the `repoId` of its .swamp.yaml: --owner REPO_ID.",
        )
    registry = Registry(store)
    registry.check_free(slug, ends.owner)
    return registry.get(slug) is not None


def claim_namespace(ends: Ends, store: Store) -> None:
    """Make the target's namespace that of the repository which the data belongs to."""
    if ends.target.namespace:
        Registry(store).register(ends.target.namespace, ends.owner, to_iso(system_clock()))


def check_new_target(target: Place, store: Store) -> None:
    """Have a store without an index prove that it honours conditions on writes."""
    if not documents(target, store):
        probe(store).check()


# What may go -----------------------------------------------------------------------------------


class Border:
    """Which paths may go from one end to the other."""

    def __init__(self, ends: Ends) -> None:
        self._names = (ends.source.names(), ends.target.names())
        self._is_local = _routing_of(ends.source).is_local
        self._is_renamed = ends.source.namespace != ends.target.namespace
        self._namespaces = _namespaces_of(ends.source) | _namespaces_of(ends.target)

    def why_not(self, rel: str) -> str | None:
        """Return why a path must not go over, None if it may."""
        for names in self._names:
            if reason := names.why_not(rel):
                return reason
        top = rel.partition("/")[0]
        if top in self._namespaces:
            return f"it belongs to the namespace {top!r}"
        if top in DATASTORE_SUBDIRS and self._is_local(rel):
            return "the configuration keeps it on its machine"
        if rel == CATALOG_EXPORT and self._is_renamed:
            return "it tells of another namespace; the next push there writes a new one"
        return None


def _routing_of(source: Place) -> Routing:
    """Return what of a directory that is used in place is not shared; a store has only shared."""
    return Routing() if source.indexed else _config_of(source).routing


def _namespaces_of(place: Place) -> set[str]:
    with place.open() as store:
        return {manifest.namespace for manifest in Registry(store).list()}
