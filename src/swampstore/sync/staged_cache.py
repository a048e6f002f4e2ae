"""The cache of a remote that is being set up, beside the cache that is still in use.

One repository has one place for its cache. What is on its way to another remote must not meet
what the cache holds of the present one: whenever a setup is stopped, the cache still is a copy of
the remote that the settings name. So the new one is made next to it, and they change places when
the settings do.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace

from swampstore.artifacts.name_lock import locks_of
from swampstore.config import Config
from swampstore.errors import AlreadyExistsError, SwampstoreError
from swampstore.files import disk_errors, open_shared, read_file
from swampstore.files.hold import try_lock
from swampstore.index.base_view import owner_of
from swampstore.layout import EXCHANGE, SIDECAR, is_internal
from swampstore.stores.config import store_config
from swampstore.stores.directory import open_later
from swampstore.sync.handover import announced, withdraw
from swampstore.sync.sidecar import decode

_LOCK = "swampstore.setup-lock"
_STAGED = ".setup"
_OLD = ".old"
_LEFT = ".left"
_NAMED = 3
_PAUSE = 0.01


def staged_caches(cache_dir: str) -> list[str]:
    """Return the caches that setups have begun to make for the place of a cache."""
    directory, name = os.path.split(cache_dir)
    return sorted(
        f"{directory}/{one}"
        for one in _names_in(directory)
        if one.startswith(f"{name}.") and one.endswith(_STAGED)
    )


@contextlib.contextmanager
def setting_up(local_dir: str) -> Iterator[bool]:
    """Let nobody else exchange the cache of this repository; say whether nobody is about to."""
    with disk_errors(local_dir):
        fd = open_shared(f"{local_dir}/{_LOCK}")
    try:
        yield try_lock(fd)
    finally:
        os.close(fd)


def finish_exchange(config: Config) -> None:
    """Put a new cache, or the files of one, in place if a setup was stopped with these settings.

    What is done with them belongs into no other cache: there, a deletion would be one of the remote
    that was left. A setup that has just written them is waited for.
    """
    deadline = time.monotonic() + config.locks.timeout
    with contextlib.suppress(SwampstoreError, OSError):
        while True:
            with setting_up(config.local_dir) as is_alone:
                if is_alone:
                    _finish(config)
                    return
            is_announced = os.path.lexists(f"{config.local_dir}/{EXCHANGE}")
            if not is_announced or time.monotonic() > deadline:
                return
            time.sleep(_PAUSE)


def _finish(config: Config) -> None:
    owner = owner_of_remote(config)
    handover = announced(config.local_dir)
    if handover is not None and handover.owner == owner:
        local = config.local_dir
        with locks_of(local, local, config.locks.timeout, is_cache=False).hold_all():
            handover.carry_out(config)
    for staged in staged_caches(config.base):
        if owner_of(staged) == owner and owner_of(config.base) != owner:
            _exchange(staged, config.base)
            break
    # If nothing was to be done, the setup was stopped before the settings were written.
    withdraw(config.local_dir)


class StagedCache:
    """Where the cache for new settings is made: beside the one in use, or right in its place.

    `here` are the settings that hold, `there` the new ones, whose store must be there.
    """

    def __init__(self, here: Config, there: Config) -> None:
        self._here = here
        self._there = there
        self._owner = owner_of_remote(there)
        digest = hashlib.sha256(self._owner.encode()).hexdigest()[:12]
        self._path = f"{there.base}.{digest}{_STAGED}"
        self._is_beside = False

    def finish(self) -> str | None:
        """Finish what a setup was stopped at, if the settings say already that it is done.

        Returns the directory of the data that was in use before, None if nothing was to be done.
        """
        if not os.path.isdir(self._path) or not self._settings_hold():
            return None
        if owner_of(self._there.base) == self._owner:
            shutil.rmtree(self._path)  # all of it is on the remote, and in the cache since
            return None
        owner = owner_of(self._there.base) or ""
        old = _exchange(self._path, self._there.base)
        namespace = owner.rpartition("#")[2]
        return f"{old}/{namespace}" if old and namespace else old

    def _settings_hold(self) -> bool:
        if self._here.remote is None:
            return False
        try:
            return owner_of_remote(self._here) == self._owner
        except SwampstoreError:
            return False

    def config(self) -> Config:
        """Return the new settings, with the place where their cache is to be made.

        Raises AlreadyExistsError if another program has work in that place that nobody has pushed.
        """
        self._is_beside = not self._can_be_made_in_place()
        if self._is_beside and self._here.base != self._there.base:
            self._check_nothing_is_left_behind()
        return replace(self._there, base=self._path) if self._is_beside else self._there

    def _check_nothing_is_left_behind(self) -> None:
        cache = self._there.base
        data = read_file(f"{cache}/{SIDECAR}")
        states = [decode(data, member) for member in ("remoteIndexETag", "remoteIndexGeneration")]
        marked = {mark for state in states for mark in state.foreign_marks}
        if marked:
            named = ", ".join(sorted(marked)[:_NAMED]) if "*" not in marked else "perhaps all of it"
            raise AlreadyExistsError(
                f"another program uses {cache}, and changed or deleted there what was never"
                f" pushed: {named}",
                hint="Push it with that program, then do this again. To give that work up, move"
                " the directory away.",
            )

    def _can_be_made_in_place(self) -> bool:
        """Whether what is in the cache is on its way to the same remote, or nothing at all.

        The cache of a remote that is in use is neither, even if it is empty: what is brought there
        would count as new for that remote. Another namespace of the same remote has a directory of
        its own there; data without one would be taken for data that was forgotten when the
        namespace was set.
        """
        cache = self._there.base
        is_in_use = self._here.remote is not None and not self._settings_hold()
        if not is_in_use and not any(not is_internal(name) for name in _names_in(cache)):
            return True
        identity, _, namespace = (owner_of(cache) or "").rpartition("#")
        ours, _, wanted = self._owner.rpartition("#")
        return identity == ours and (bool(namespace) or not wanted)

    @property
    def is_in_place(self) -> bool:
        """Whether the cache is made where it will be."""
        return not self._is_beside

    @property
    def aside(self) -> str | None:
        """Where to put what must not be in the new cache; None if others may work in that one."""
        return _free_path(f"{self._there.base}{_LEFT}") if self._is_beside else None

    def announce(self) -> None:
        """Say, before the settings are written, that the caches have to change places next."""
        if self._is_beside:
            with disk_errors(self._there.local_dir):
                os.close(open_shared(f"{self._there.local_dir}/{EXCHANGE}"))

    def put_in_place(self) -> str | None:
        """Let the new cache take its place; return where the one that was in use is now."""
        if not self._is_beside:
            return None
        moved = _exchange(self._path, self._there.base)
        withdraw(self._there.local_dir)
        return moved


def _exchange(staged: str, cache: str) -> str | None:
    """Put a cache in the place of another one; return where that is now."""
    moved = None
    with disk_errors(cache):
        if os.path.lexists(cache):
            moved = _free_path(f"{cache}{_OLD}")
            os.rename(cache, moved)
        os.rename(staged, cache)
    return moved


def owner_of_remote(config: Config) -> str:
    """Return what the base of a cache calls its remote and namespace."""
    assert config.remote is not None
    settings = store_config(config.remote.target, config.remote.config)
    with open_later(settings, lambda: False) as store:
        return f"{store.identity}#{config.namespace}"


def _names_in(directory: str) -> list[str]:
    with disk_errors(directory):
        try:
            return os.listdir(directory)
        except FileNotFoundError:
            return []


def _free_path(path: str) -> str:
    number, free = 1, path
    while os.path.lexists(free):
        number += 1
        free = f"{path}{number}"
    return free
