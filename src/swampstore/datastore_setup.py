"""Giving an open repository another datastore."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping

from swampstore.config import Config, Hydration
from swampstore.datastore_address import Address
from swampstore.errors import ConfigError
from swampstore.index.report import Progress, no_progress
from swampstore.namespaces import list_namespaces, register_namespace
from swampstore.relocate.settings import configured
from swampstore.relocate.setup import IndexKind, Setup, SetupReport
from swampstore.repo import Repo
from swampstore.repo.open import CATALOG
from swampstore.stores.errors import StoreError
from swampstore.sync.staged_cache import StagedCache

# The catalog of the new place, until the settings say that it is the place.
_STAGING = "swampstore.setup.db"


def set_up_datastore(
    repo: Repo,
    address: Address,
    *,
    namespace: str | None = None,
    hydration: Hydration | None = None,
    migrate: bool = True,
    index: IndexKind | None = None,
    timeout: float | None = None,
    progress: Progress = no_progress,
    environ: Mapping[str, str] | None = None,
) -> SetupReport:
    """Move the datastore of a repository to another address, and write that to its marker.

    `hydration` says whether pulls bring content; without it that stays as it is. `timeout` is in
    seconds, for each direction of a sync. Open the repository anew afterwards.
    Raises what `Setup.run` raises; the old settings hold then, and it can be done again.
    """
    environ = os.environ if environ is None else environ
    _refuse_newer(repo)
    config = configured(repo.config, address, environ, namespace, hydration)
    cache = StagedCache(repo.config, config) if config.remote else None
    left_behind = cache.finish() if cache else None
    new = cache.config() if cache else config
    is_elsewhere = new.datastore_dir != repo.config.datastore_dir
    catalog = _STAGING if is_elsewhere else CATALOG
    with Repo(new, clock=repo.clock, catalog=catalog) as there, contextlib.ExitStack() as stack:
        setup = Setup(
            *(repo, there, address), left_behind=left_behind, timeout=timeout, progress=progress
        )
        setup.check()
        if migrate:
            stack.enter_context(_alone(repo, there))
        # Before anything is put there: it must not be somebody else's.
        register_namespace(there)
        others = _warn_of_others(there)
        report = setup.run(migrate=migrate, index=index)
    report.warnings += others
    report.location = config.base
    if cache and (old := cache.put_in_place()):
        report.warnings.append(f"the cache that was in use until now is {old}")
    _discard_staging(config.local_dir)
    with Repo(config, clock=repo.clock) as moved:
        if migrate:
            setup.remove_moved(moved)
        moved.rebuild_catalog()
    return report


def _refuse_newer(repo: Repo) -> None:
    """Raise NewerFormatError before anything moves away from under a newer release."""
    repo.catalog.rows.read(lambda _: None)
    if repo.config.remote is not None:
        repo.dirty.peek()


@contextlib.contextmanager
def _alone(here: Repo, there: Repo) -> Iterator[None]:
    """Let nobody on other machines work on the datastore that is left.

    If it is the same place as the new one, the commits there have to do. One that cannot be
    reached is told of when its data is asked for.
    """
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(StoreError, ConfigError):
            if _is_shared(here.config) and here.locks.store.identity != _identity(there):
                # Its cache is not held: the new one may be in the same place, and is synced.
                here.locks.before_global = contextlib.nullcontext
                stack.enter_context(here.locks.everything())
        yield


def _is_shared(config: Config) -> bool:
    return config.remote is not None or config.is_shared_in_place


def _identity(repo: Repo) -> str:
    return repo.connection.store.identity if repo.config.remote else repo.locks.store.identity


def _warn_of_others(there: Repo) -> list[str]:
    """Say so if others share the datastore in namespaces, and this repository has none."""
    if there.config.remote is None or there.config.namespace:
        return []
    others = [found.namespace for found in list_namespaces(there)]
    if not others:
        return []
    return [
        f"others have namespaces there ({', '.join(others)}), and this repository has none;"
        " `swampstore datastore namespace set` gives it one"
    ]


def _discard_staging(local_dir: str) -> None:
    for name in os.listdir(local_dir):
        if name.startswith(_STAGING):
            os.unlink(f"{local_dir}/{name}")
