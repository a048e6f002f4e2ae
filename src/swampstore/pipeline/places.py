"""Where data is: one namespace of a store, or of a directory that is used in place.

A place travels to the executors as it is, credentials included, and is opened there through the
same stores as everywhere else.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from swampstore import config as configuration
from swampstore import marker
from swampstore.config import Config, LockSettings, lock_settings
from swampstore.datastore_address import Address, is_url
from swampstore.errors import ConfigError, NotFoundError
from swampstore.index.partitions import META_KEY, MONOLITH_KEY
from swampstore.index.path_map import Names
from swampstore.layout import DATASTORE_SUBDIRS, EVERYWHERE, check_namespace
from swampstore.namespaces.manifests import Registry
from swampstore.pipeline.metrics import Meter, MeteredStore
from swampstore.routing import Routing
from swampstore.stores.config import StoreConfig, store_config
from swampstore.stores.directory import DirectoryConfig, DirectoryStore
from swampstore.stores.protocol import Store, level
from swampstore.stores.retry import RetryingStore
from swampstore.sync.opening import open_remote

if TYPE_CHECKING:
    from swampstore.repo import Repo

# `filesystem:/path`, or a type with its members.
_TYPED = re.compile(r"(filesystem:.|[^/:]*(/[^/:]*)*:\{)")
_INDEX = META_KEY.partition("/")[0]


@dataclass(frozen=True, slots=True)
class Place:
    """One namespace (empty: none) of one store.

    `identity` names the store without credentials, `target` is what it was found by: a URL or the
    directory of a repository. Not `indexed` is a directory that is used in place: its files are
    the truth. `root` is the directory where the store is one, `locks` how patient writers are.
    `routing` says what the repository keeps on its machines; of a URL nobody knows that.
    `meter` is told what is asked of the store.
    """

    config: StoreConfig
    identity: str
    target: str
    namespace: str = ""
    indexed: bool = True
    root: str | None = None
    locks: LockSettings = field(default_factory=LockSettings)
    routing: Routing | None = field(default=None, compare=False, repr=False)
    meter: Meter | None = field(default=None, compare=False, repr=False)

    def open(self) -> Store:
        """Return the store, with retries around it; use it in a `with` block."""
        store = RetryingStore(self.config.open())
        return store if self.meter is None else MeteredStore(store, self.meter)

    def names(self, cache_dir: str = "/nonexistent") -> Names:
        """Return how paths and keys of this namespace are called."""
        return Names(cache_dir, self.namespace, Routing())

    def __str__(self) -> str:
        return f"{self.identity}#{self.namespace}" if self.namespace else self.identity


def places_of(
    target: str | os.PathLike[str] | Repo,
    namespaces: Sequence[str] | None = None,
    environ: Mapping[str, str] | None = None,
) -> list[Place]:
    """Return the places of a URL, of the repository at or above a path, or of an open one.

    `namespaces` are those that are meant, `*` all of them; None: the repository's own, of a URL
    all of them. A repository with a remote means its remote: what has been pushed. Raises
    ConfigError, RepoNotFoundError, NotFoundError for a namespace that is not there.
    """
    environ = os.environ if environ is None else environ
    config, base = _target(target, environ)
    base = replace(base, locks=config.locks if config else lock_settings(environ))
    chosen = namespaces
    if chosen is None:
        chosen = [EVERYWHERE] if config is None else [config.namespace]
    with base.open() as store:
        return [replace(base, namespace=one) for one in _chosen(store, chosen, base)]


def _target(
    target: str | os.PathLike[str] | Repo, environ: Mapping[str, str]
) -> tuple[Config | None, Place]:
    if isinstance(target, str) and (is_url(target) or _TYPED.match(target)):
        address = Address.parse(target, "the target")
        if address.path is not None:
            base = configuration.filesystem_base(os.getcwd(), address.path, environ)
            return None, _directory_place(base, target)
        settings = store_config(address.target, address.members, environ=environ)
        return None, _store_place(settings, target)
    if isinstance(target, str | os.PathLike):
        repo_dir = marker.find_repo(os.fspath(target), environ)
        config = configuration.load(repo_dir, environ)
    else:
        config = target.config
    routing = config.routing if config.is_shared else None
    return config, replace(_repository_place(config, environ), routing=routing)


def _repository_place(config: Config, environ: Mapping[str, str]) -> Place:
    if config.remote is not None:
        settings = store_config(config.remote.target, config.remote.config, environ=environ)
        store, _ = open_remote(config, settings)
        with store:
            if isinstance(store, DirectoryStore):
                store.reach()  # what is not mounted must not be taken for an empty remote
        return _store_place(settings, config.repo_dir)
    return _directory_place(config.base, config.repo_dir)


def _directory_place(base: str, target: str) -> Place:
    if not os.path.isdir(base):
        raise ConfigError(
            f"the datastore {base} is not there", hint="Save something first, or mount it."
        )
    return _store_place(DirectoryConfig(base), target, indexed=False)


def _store_place(config: StoreConfig, target: str, *, indexed: bool = True) -> Place:
    with config.open() as store:
        identity = store.identity
    return Place(config, identity, target, indexed=indexed, root=getattr(config, "path", None))


def _chosen(store: Store, chosen: Iterable[str], base: Place) -> list[str]:
    """Return the namespaces that are meant, each once; the empty one comes first."""
    wanted = set(chosen)
    if wanted == {""}:
        return [""]
    there = {manifest.namespace for manifest in Registry(store).list()}
    found = {check_namespace(one) for one in wanted - {EVERYWHERE, ""}}
    for namespace in sorted(found - there):
        if not level(store, f"{namespace}/").folders:
            raise NotFoundError(
                f"{base.identity} has no namespace {namespace!r}",
                hint=f"There are: {', '.join(sorted(there)) or 'none'}.",
            )
    found |= wanted & {""}
    if EVERYWHERE in wanted:
        found |= there
        if not there or is_used_without_namespace(store):
            found.add("")
    return sorted(found)


def is_used_without_namespace(store: Store) -> bool:
    """Whether there is data, or an index, outside of any namespace."""
    top = level(store)
    if any(info.key == MONOLITH_KEY for info in top.objects):
        return True
    return any(name in DATASTORE_SUBDIRS or name == _INDEX for name in top.folders)
