"""Who has which namespace of a datastore: one small manifest in each, readable by every client.

A namespace is a directory at the top of a datastore, and `{namespace}/.namespace.json` says whose
it is. A manifest is only ever created where there is none, so of two repositories that want the
same name one gets it, and the other is told who was first. Listing looks at the top of the
datastore only: its cost follows the number of namespaces, not the number of files.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from swampstore.clock import to_iso
from swampstore.errors import (
    ConfigError,
    NamespaceTakenError,
    NewerFormatError,
    ValidationError,
)
from swampstore.files import disk_errors, replace_file
from swampstore.formats import refuse_newer
from swampstore.index.workers import Deadline, in_parallel
from swampstore.layout import DATASTORE_SUBDIRS, MANIFEST, MARKER, check_namespace
from swampstore.stores import Store
from swampstore.stores.errors import ObjectNotFoundError, PreconditionFailedError
from swampstore.stores.protocol import folders
from swampstore.sync.opening import OpenRepo

CATALOG_EXPORT = ".catalog-export.json"
# In the default layout these lie beside the namespaces.
RESERVED = frozenset({*DATASTORE_SUBDIRS, "datastore-bundles", "pulled-extensions"})
_CONTROL = "_control"
_UNKNOWN = "unknown"
_ATTEMPTS = 8
_CONCURRENCY = 8


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a manifest says; `repo_id` is empty if it does not tell whose the namespace is."""

    namespace: str
    repo_id: str
    registered_at: str

    @classmethod
    def decode(cls, namespace: str, data: bytes) -> Manifest:
        """Read a manifest; raise ValidationError if it is none, and NewerFormatError."""
        try:
            members = json.loads(data)
            refuse_newer("manifest", members.get("version"), f"{namespace}/{MANIFEST}")
            owner, since = members.get("repoId") or "", members.get("registeredAt") or ""
            return cls(namespace, _text(owner), _text(since))
        except NewerFormatError:
            raise
        except (ValueError, TypeError, AttributeError, RecursionError):
            raise ValidationError(
                f"{namespace}/{MANIFEST} is not a manifest",
                hint="Find out whose the namespace is, and repair or remove that file by hand.",
            ) from None

    def to_json(self) -> dict[str, Any]:
        """Return its members, as other clients write them."""
        return {
            "namespace": self.namespace,
            "repoId": self.repo_id,
            "registeredAt": self.registered_at,
        }

    def encode(self) -> bytes:
        """Return the content of the file."""
        return f"{json.dumps(self.to_json(), indent=2)}\n".encode()


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    value.encode()  # it is shown, and written again
    return value


def check_new_namespace(slug: str) -> str:
    """Return `slug` if a namespace may be called so; raise ValidationError otherwise."""
    if check_namespace(slug) in RESERVED:
        raise ValidationError(
            f"{slug!r} cannot be a namespace: it is the name of a directory of the datastore",
            hint="Choose another name, for example that of the team or of the repository.",
        )
    return slug


class Registry:
    """The manifests of one datastore. `cache_dir` is where a remote's datastore is on this machine.

    `get` and `list` read; the others write.
    """

    def __init__(self, store: Store, cache_dir: str | None = None) -> None:
        self._store = store
        self._cache_dir = cache_dir

    def get(self, slug: str) -> Manifest | None:
        """Return the manifest of a namespace, None if nobody has it."""
        found = self._fetch(slug)
        return found[0] if found else None

    def _fetch(self, slug: str) -> tuple[Manifest, str] | None:
        try:
            info, data = self._store.get(_key(slug))
        except ObjectNotFoundError:
            return None
        return Manifest.decode(slug, data), info.token or ""

    def list(self) -> list[Manifest]:
        """Return every manifest, sorted by namespace; one that is damaged names no owner."""
        asked = in_parallel(self._look, self._candidates(), _CONCURRENCY, Deadline())
        found = []
        for _, manifest, error in asked:
            if error is not None:
                raise error
            found += [manifest] if manifest else []
        return sorted(found, key=lambda one: one.namespace)

    def _look(self, slug: str) -> Manifest | None:
        try:
            return self.get(slug)
        except (ValidationError, NewerFormatError):
            return Manifest(slug, "", "")

    def _candidates(self) -> Iterator[str]:
        for name in folders(self._store):
            with contextlib.suppress(ValidationError):
                yield check_new_namespace(name)

    def check_free(self, slug: str, repo_id: str) -> None:
        """Raise NamespaceTakenError if another repository has the namespace."""
        manifest = self.get(slug)
        if manifest is not None and manifest.repo_id not in ("", repo_id):
            raise _taken(manifest)

    def register(self, slug: str, repo_id: str, now_iso: str) -> Manifest:
        """Make a namespace a repository's own; one that is its own already stays as it is.

        Raises NamespaceTakenError, naming the owner, if another repository has it.
        """
        wanted = Manifest(check_new_namespace(slug), _checked_id(repo_id), now_iso)
        for _ in range(_ATTEMPTS):
            # Read first: there are services that ignore the condition of a write.
            found = self._fetch(slug)
            if found and found[0].repo_id not in ("", repo_id):
                raise _taken(found[0])
            if found and found[0].repo_id:
                return self._kept(found[0])
            with contextlib.suppress(PreconditionFailedError):
                if found:
                    self._store.put_if_match(_key(slug), wanted.encode(), found[1])
                else:
                    self._store.put_if_absent(_key(slug), wanted.encode())
                return self._kept(wanted)
        raise NamespaceTakenError(
            f"the namespace {slug!r} keeps changing hands", hint="Try again in a moment."
        )

    def _kept(self, manifest: Manifest) -> Manifest:
        """Put a copy into the cache, where other clients on it expect one."""
        if self._cache_dir is not None:
            path = f"{self._cache_dir}/{manifest.namespace}/{MANIFEST}"
            with disk_errors(path):
                os.makedirs(os.path.dirname(path), exist_ok=True)
                replace_file(path, manifest.encode(), durable=False)
        return manifest

    def remove_unused(self, slug: str, repo_id: str) -> bool:
        """Give a namespace up if it is this repository's and nothing is in it; False if not."""
        found = self._fetch(slug)
        if found is None or found[0].repo_id not in ("", repo_id) or self._is_used(slug):
            return False
        if not self._store.capabilities.conditional_delete:
            self._store.delete(_key(slug))
            return True
        try:
            # Another repository may have got it meanwhile.
            self._store.delete_if_match(_key(slug), found[1])
        except PreconditionFailedError:
            return False
        return True

    def _is_used(self, slug: str) -> bool:
        tops = (f"{slug}/{name}/" for name in folders(self._store, f"{slug}/") if name != _CONTROL)
        return any(next(iter(self._store.list(top)), None) is not None for top in tops)


@contextlib.contextmanager
def open_registry(repo: OpenRepo) -> Iterator[Registry]:
    """Give access to the manifests of a repository's datastore.

    Raises StoreNotMountedError for a directory that is not there.
    """
    if repo.config.remote is not None:
        yield Registry(repo.connection.store, repo.config.base)
        return
    from swampstore.stores.directory import DirectoryStore

    with DirectoryStore(repo.config.base, durable=repo.config.durable) as store:
        yield Registry(store)


def register_namespace(repo: OpenRepo) -> Manifest | None:
    """Register the namespace that a repository is configured with; None if it has none.

    Raises NamespaceTakenError, naming the owner, if another repository has it.
    """
    if not repo.config.namespace:
        return None
    if repo.config.remote is None:
        with disk_errors(repo.config.base):
            os.makedirs(repo.config.base, exist_ok=True)
    with open_registry(repo) as registry:
        return registry.register(repo.config.namespace, repo.config.repo_id, to_iso(repo.clock()))


def list_namespaces(repo: OpenRepo) -> list[Manifest]:
    """Return who has which namespace of a repository's datastore, sorted by namespace."""
    with open_registry(repo) as registry:
        return registry.list()


def _key(slug: str) -> str:
    return f"{slug}/{MANIFEST}"


def _checked_id(repo_id: str) -> str:
    if repo_id in ("", _UNKNOWN):
        raise ConfigError(
            f"{MARKER} has no repoId, so no namespace can be this repository's own",
            hint=f"Add `repoId:` with a UUID to {MARKER}.",
        )
    return repo_id


def _taken(manifest: Manifest) -> NamespaceTakenError:
    since = f" since {manifest.registered_at}" if manifest.registered_at else ""
    return NamespaceTakenError(
        f"the namespace {manifest.namespace!r} belongs to the repository {manifest.repo_id}{since}",
        hint="Choose another name; `swampstore datastore namespace list` shows all that are taken.",
    )
