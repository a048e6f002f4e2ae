"""The store that backups are in: which there are, what of their content is there, putting more.

Objects and manifests are only ever created. An object is called by the hash of what is in it, so it
does not matter who was first, and nothing that an interrupted backup uploaded has to be sent again.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping
from typing import BinaryIO
from urllib.parse import quote

from swampstore.datastore_address import is_url
from swampstore.errors import NotFoundError
from swampstore.relocate.backup.format import (
    DAMAGED,
    MANIFESTS,
    OBJECTS,
    BackupKey,
    Manifest,
    decode_manifest,
    encode_manifest,
    home_of,
    object_key,
    sha256_of_key,
    sizes_of,
)
from swampstore.stores import Store
from swampstore.stores.config import store_config
from swampstore.stores.errors import ObjectNotFoundError, PreconditionFailedError
from swampstore.stores.retry import RetryingStore
from swampstore.stores.wrapper import CountingStore

# Smaller content is sent without asking whether it is there: that costs no more than the question.
_ASKED_FROM = 256 * 1024
# So many contents that were there already, and a listing costs less than meeting them one by one.
_MET_BEFORE_LISTING = 16


class BackupPlace:
    """One place for backups. `counting` has seen every request, repetitions included."""

    def __init__(self, store: Store) -> None:
        self.counting = CountingStore(store)
        self.store: Store = RetryingStore(self.counting)

    @property
    def identity(self) -> str:
        """Where it is."""
        return self.store.identity

    def close(self) -> None:
        """Give connections back."""
        self.store.close()

    def keys(self, prefix: str = MANIFESTS) -> list[BackupKey]:
        """Return which backups there are, the oldest first."""
        found = (BackupKey.parse(info.key) for info in self.store.list(prefix))
        return sorted((key for key in found if key), key=lambda key: (key.id, key))

    def keys_of(self, repo_id: str, namespace: str) -> list[BackupKey]:
        """Return the backups of one repository, the oldest first."""
        return self.keys(home_of(repo_id, namespace))

    def read(self, key: BackupKey) -> Manifest:
        """Return a backup; raise BackupDamagedError, NewerFormatError, ObjectNotFoundError."""
        return decode_manifest(key, self.store.get(key.key).data)

    def find(self, wanted: str | None) -> BackupKey:
        """Return the backup whose id begins like this; without one, the latest.

        Raises NotFoundError, which says what there is, if it is none or could be several.
        """
        known = self.keys()
        chosen = known if wanted is None else [key for key in known if key.id.startswith(wanted)]
        homes = {(key.repo_id, key.namespace) for key in chosen}
        if chosen and (len(chosen) == 1 or (wanted is None and len(homes) == 1)):
            return chosen[-1]
        listed = ", ".join(key.id for key in (chosen or known)[-12:])
        if not known:
            raise NotFoundError(
                f"there is no backup in {self.identity}",
                hint="Make one with `swampstore backup create`, or check the place.",
            )
        if chosen:
            raise NotFoundError(
                f"{len(chosen)} backups may be meant, of {len(homes)} repositories"
                if wanted is None
                else f"{len(chosen)} backups begin with {wanted!r}",
                hint=f"Say which one with --backup: {listed}.",
            )
        raise NotFoundError(f"there is no backup {wanted!r}", hint=f"There are: {listed}.")

    def commit(self, manifest: Manifest) -> None:
        """Write a manifest, which makes a backup count."""
        data = encode_manifest(manifest)
        if self.store.capabilities.conditional_create:
            self.store.put_if_absent(manifest.key.key, data)
        else:
            self.store.put(manifest.key.key, data)

    # Damage ------------------------------------------------------------------------------------

    def known_damage(self) -> set[str]:
        """Return the contents that somebody found damaged or missing, and noted."""
        found = (sha256_of_key(info.key, DAMAGED) for info in self.store.list(DAMAGED))
        return {sha256 for sha256 in found if sha256}

    def note_damage(self, sha256: str) -> None:
        """Have the next backup send some content again."""
        self.store.put(f"{DAMAGED}{sha256}", b"")

    def forget_damage(self, sha256: str) -> None:
        """Take the note about some content away: it is whole again."""
        self.store.delete(f"{DAMAGED}{sha256}")

    def sizes(self) -> dict[str, int]:
        """Return the size of all content that is there, by its hash. Lists everything."""
        return {
            sha256: info.size
            for info in self.store.list(OBJECTS)
            if (sha256 := sha256_of_key(info.key))
        }


class Uploads:
    """Putting content into a place, once each; from many threads.

    What the `previous` backup of the same repository has is there, unless somebody noted that it is
    not. Everything else is found out on the way, with as few requests as possible.
    """

    def __init__(self, place: BackupPlace, previous: Manifest | None) -> None:
        self._place = place
        self._store = place.store
        self._lock = threading.Lock()
        self.damaged = place.known_damage()
        self._there: dict[str, int] = sizes_of(previous.files if previous else ())
        for sha256 in self.damaged:
            self._there.pop(sha256, None)
        self._sending: dict[str, threading.Event] = {}
        self._is_listed = False
        self._met = 0
        self.objects = 0
        self.bytes = 0
        if previous is None:
            self._list()

    def _list(self) -> None:
        listed = self._place.sizes()
        self._is_listed = True
        self._there |= {one: size for one, size in listed.items() if one not in self.damaged}

    def has(self, sha256: str, size: int) -> bool:
        """Whether some content is there, whole as far as its size tells; may ask the store."""
        with self._lock:
            if self._there.get(sha256) == size:
                return True
            if self._is_listed or sha256 in self.damaged or size < _ASKED_FROM:
                return False
        try:
            is_there = self._store.head(object_key(sha256)).size == size
        except ObjectNotFoundError:
            return False
        if is_there:
            self._note_met(sha256, size)
        return is_there

    def _note_met(self, sha256: str, size: int) -> None:
        with self._lock:
            self._there[sha256] = size
            self._met += 1
            if self._met >= _MET_BEFORE_LISTING and not self._is_listed:
                self._list()

    def put(self, sha256: str, size: int, body: bytes | BinaryIO) -> None:
        """Send content that has this hash, unless it is there or somebody else sends it."""
        while not self.has(sha256, size):
            ours = threading.Event()
            with self._lock:
                sending = self._sending.setdefault(sha256, ours)
            if sending is not ours:
                sending.wait()
                continue
            try:
                self._send(sha256, size, body)
            finally:
                with self._lock:
                    del self._sending[sha256]
                ours.set()
            return

    def _send(self, sha256: str, size: int, body: bytes | BinaryIO) -> None:
        key = object_key(sha256)
        if sha256 in self.damaged:
            self._store.put(key, body)
            self._place.forget_damage(sha256)
            with self._lock:
                self.damaged.discard(sha256)
        elif not self._created(key, size, body):
            self._note_met(sha256, size)
            return
        with self._lock:
            self._there[sha256] = size
            self.objects += 1
            self.bytes += size

    def _created(self, key: str, size: int, body: bytes | BinaryIO) -> bool:
        """Create an object; False if it was there, whole. One of another size is replaced."""
        if self._store.capabilities.conditional_create:
            try:
                return not self._store.put_if_absent(key, body).is_met
            except PreconditionFailedError:
                if self._store.head(key).size == size:
                    return False
        self._store.put(key, body)
        return True


def open_place(where: str, *, environ: Mapping[str, str] | None = None) -> BackupPlace:
    """Open the place that a directory, or the URL of a store, names.

    Raises StoreNotMountedError if it is not there: a disk that is not mounted must not go unseen.
    """
    url = where if is_url(where) else f"file://{_quoted(os.path.abspath(where))}"
    return BackupPlace(store_config(url, environ=environ).open())


def _quoted(path: str) -> str:
    return quote(path)


def objects_of(manifests: Iterable[Manifest]) -> dict[str, int]:
    """Return the content that some backups need, by hash, with its size."""
    return {sha256: size for one in manifests for sha256, size in sizes_of(one.files).items()}
