"""Giving an open repository another datastore."""

from __future__ import annotations

import os
from collections.abc import Mapping

from swampstore.datastore_address import Address
from swampstore.repo import CATALOG, Repo
from swampstore.sync.report import Progress, no_progress
from swampstore.sync.setup import IndexKind, Setup, SetupReport, configured

# The catalog of the new place, until the settings say that it is the place.
_STAGING = "swampstore.setup.db"


def set_up_datastore(
    repo: Repo,
    address: Address,
    *,
    namespace: str | None = None,
    migrate: bool = True,
    index: IndexKind | None = None,
    timeout: float | None = None,
    progress: Progress = no_progress,
    environ: Mapping[str, str] | None = None,
) -> SetupReport:
    """Move the datastore of a repository to another address, and write that to its marker.

    `timeout` is in seconds, for each direction of a sync. Open the repository anew afterwards.
    Raises what `Setup.run` raises; the old settings hold then, and it can be done again.
    """
    environ = os.environ if environ is None else environ
    config = configured(repo.config, address, environ, namespace)
    is_elsewhere = config.datastore_dir != repo.config.datastore_dir
    catalog = _STAGING if is_elsewhere else CATALOG
    with Repo(config, clock=repo.clock, catalog=catalog) as there:
        move = Setup(repo, there, address, timeout=timeout, progress=progress)
        report = move.run(migrate=migrate, index=index)
    _discard_staging(config.local_dir)
    with Repo(config, clock=repo.clock) as moved:
        moved.rebuild_catalog()
    return report


def _discard_staging(local_dir: str) -> None:
    for name in os.listdir(local_dir):
        if name.startswith(_STAGING):
            os.unlink(f"{local_dir}/{name}")
