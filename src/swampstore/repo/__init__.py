"""An open repository: what programs and commands work with.

Start reading here. `open` builds all parts and connects them, `lookups` is `Repo` itself, `saving`
is `repo.artifacts`, `querying` answers `repo.query`, and `session` is working on what
others work on too: lock, pull, work, push. Everything below is imported, nothing above.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace

from swampstore import config as configuration
from swampstore import marker
from swampstore.clock import Clock, system_clock, to_iso
from swampstore.files import Announce
from swampstore.repo.lookups import Repo

__all__ = ["Repo", "init_repo", "open_repo", "upgrade_repo"]


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
    environ = marker.with_one_prefix(os.environ if environ is None else environ)
    repo_dir = marker.find_repo(None if path is None else os.fspath(path), environ)
    config = configuration.load(repo_dir, environ, datastore=datastore)
    if durable is not None:
        config = replace(config, durable=durable)
    return Repo(config, clock=clock, announce=announce)


def init_repo(path: str | os.PathLike[str] = ".", *, clock: Clock = system_clock) -> Repo:
    """Make a directory a repository and open it; raise AlreadyExistsError if it is one."""
    import json
    import uuid

    from swampstore.setting_keys import json_schema

    schema = json.dumps(json_schema(), indent=2) + "\n"
    directory = marker.initialise(os.fspath(path), str(uuid.uuid4()), to_iso(clock()), schema)
    return open_repo(directory, clock=clock)


def upgrade_repo(path: str | os.PathLike[str] = ".", *, clock: Clock = system_clock) -> Repo:
    """Say in a repository's marker that it has the current format, and open it.

    Everything else in the marker stays as it is, comments and keys of other clients included.
    """
    directory = marker.find_repo(os.fspath(path), os.environ)
    marker.upgrade(directory, to_iso(clock()))
    return open_repo(directory, clock=clock)
