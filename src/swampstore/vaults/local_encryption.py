"""Vaults on this machine: one encrypted file for each secret, in a directory that never leaves it.

While the key is changed there are two, and each file can be read with one of them: the new key
lies beside the old one before the first file is encrypted with it, and the old one goes when
nothing needs it any more. A process that is killed in between loses nothing, and can do it again.
A `key_file` may be the key of other vaults, and of this one in other checkouts: what it held stays
beside it, since nobody here can tell which secrets need it.

A secret is encrypted with AES-256-GCM and a key that is derived for it anew. Its file is a JSON
object with `iv`, `data` and `salt` in base64, and `version` 2. The tag follows the ciphertext; the
key comes from the vault's key and the salt by PBKDF2.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Self

from swampstore.artifacts.name_lock import NameLocks
from swampstore.clock import to_iso
from swampstore.config import expand
from swampstore.errors import ConfigError, DiskError, MissingExtraError
from swampstore.files import disk_errors, read_file, remove_old_temps, replace_file, sync_dir
from swampstore.formats import refuse_newer
from swampstore.layout import is_always_local
from swampstore.notices import notice
from swampstore.vaults.errors import (
    SecretDamagedError,
    SecretNotFoundError,
    VaultKeyError,
    VaultUnsupportedError,
)
from swampstore.vaults.keys import PRIVATE, create_key, make_private_dir, read_key, ssh_key
from swampstore.vaults.provider import LOCAL, Details, Place, Provider
from swampstore.vaults.refresh import is_due, new_value

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_VERSION = 2
_ITERATIONS = 100_000
_KEY_BYTES = 32
_SALT_BYTES = 16
_IV_BYTES = 12
_NAMES = ("iv", "data", "salt")


def encrypt(key: bytes, text: str) -> bytes:
    """Return the file that holds a text, encrypted with a vault's key."""
    salt, iv = os.urandom(_SALT_BYTES), os.urandom(_IV_BYTES)
    data = _cipher(key, salt).encrypt(iv, text.encode(), None)
    members: dict[str, Any] = {
        name: b64encode(value).decode()
        for name, value in (("iv", iv), ("data", data), ("salt", salt))
    }
    return json.dumps({**members, "version": _VERSION}).encode()


def decrypt(key: bytes, file: bytes, what: str) -> str | None:
    """Return the text that a file holds, None if it was encrypted with another key or changed.

    Raises SecretDamagedError, naming `what`, for a file that is no encrypted secret at all.
    """
    iv, data, salt = _members(file, what)
    cipher = _cipher(key, salt)
    from cryptography.exceptions import InvalidTag

    try:
        text: str = cipher.decrypt(iv, data, None).decode()
    except InvalidTag:
        return None
    except ValueError as error:  # an IV of another length, or no UTF-8
        raise _not_encrypted(what) from error
    return text


def _members(file: bytes, what: str) -> tuple[bytes, bytes, bytes]:
    try:
        document = json.loads(file)
        version = document["version"]
        iv, data, salt = (b64decode(document[name], validate=True) for name in _NAMES)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise _not_encrypted(what) from error
    refuse_newer("secret", version, what)
    if version != _VERSION:
        raise _not_encrypted(what)
    return iv, data, salt


def _not_encrypted(what: str) -> SecretDamagedError:
    return SecretDamagedError(
        f"{what} is not an encrypted secret", hint="Restore the file, or put the secret again."
    )


def _cipher(key: bytes, salt: bytes) -> AESGCM:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError as error:
        raise MissingExtraError(
            "encrypted vaults need the package cryptography, which is not installed",
            hint="Install it: pip install 'swampstore[vaults]'",
        ) from error
    return AESGCM(hashlib.pbkdf2_hmac("sha256", key, salt, _ITERATIONS, _KEY_BYTES))


_SUFFIX = ".enc"
_ANNOTATIONS = ".annotations"
_HOOKS = ".refresh"
_PREVIOUS = re.compile(r"\.previous(?:-([1-9][0-9]{0,8}))?")
_LOOKS = 3
_DAY = 86_400.0


class LocalEncryption(Provider):
    """Encrypts secrets with the vault's own key, or with somebody's SSH key."""

    type = LOCAL
    settings = {  # noqa: RUF012
        "auto_generate": "true: the vault has a key of its own, made with the first secret",
        "key_file": "where that key is, if not beside the secrets",
        "ssh_key_path": "the SSH key, without a passphrase, that secrets are encrypted with",
    }

    def __init__(self, place: Place) -> None:
        self._place = place
        self._directory = place.secrets_dir
        self._ssh_key = self._path("ssh_key_path")
        self._key = self._path("key_file") or f"{self._directory}/.key"
        self._has_own_key = not self._ssh_key and (
            place.config.get("auto_generate") is True or "key_file" in place.config
        )
        if not self._has_own_key and not self._ssh_key:
            self._ssh_key = expand("~/.ssh/id_rsa", place.environ)
        above = os.path.dirname(self._directory)
        self._locks = NameLocks(f"{above}/.locks", place.lock_timeout)

    def _path(self, member: str) -> str | None:
        value = self._place.config.get(member)
        if value is None:
            return None
        if not isinstance(value, str) or not value:
            raise ConfigError(
                f"{member} of the vault {self._place.name} is {value!r}", hint="Write a path."
            )
        path = os.path.join(self._place.repo_dir, expand(value, self._place.environ))
        if any(_would_be_shared(path, directory) for directory in self._place.shared_dirs):
            raise ConfigError(
                f"{member} of the vault {self._place.name} is in the datastore: {path}",
                hint="Keep the key where nothing is shared from, or leave it to the vault.",
            )
        return path

    @classmethod
    def open(cls, place: Place) -> Self:
        """Return the provider of a vault."""
        return cls(place)

    # Secrets -------------------------------------------------------------------------------

    def get(self, key: str) -> str:
        """Return the value of a secret, a new one if it has a hook and is too old."""
        value = self._value(key)
        if is_due(self._hook(key), self._place.clock()):
            try:
                value = self._refreshed(key)
            except DiskError as error:
                notice("the secret %s of %s is old: %s", key, self._place.name, error.message)
        return value

    def _value(self, key: str) -> str:
        value = self._opened(self._file(key))
        if value is None:
            raise self._not_there(key)
        return value

    def _not_there(self, key: str) -> SecretNotFoundError:
        return SecretNotFoundError(
            f"the vault {self._place.name} has no secret {key!r}",
            hint=f"`swampstore vault list {self._place.name}` shows the keys that it has.",
        )

    def has(self, key: str) -> bool:
        """Whether there is a secret of this key; its file is not opened."""
        return os.path.lexists(self._file(key))

    def keys(self) -> list[str]:
        """Return the keys of all secrets, sorted."""
        return _keys_in(self._directory)

    def put(self, key: str, value: str) -> None:
        """Encrypt a value; durable when this returns. Its hook is not due before its time."""
        with self._changing():
            self._renew(key, value, self._hook(key))

    def _renew(self, key: str, value: str, hook: Mapping[str, Any] | None) -> None:
        self._seal(self._file(key), value)
        if hook is not None:
            stamped = {**hook, "lastRefreshedAt": to_iso(self._place.clock())}
            self._seal(self._file(key, _HOOKS), json.dumps(stamped, ensure_ascii=False))

    def _hook(self, key: str) -> dict[str, Any] | None:
        return self._document(_HOOKS, key)

    def delete(self, key: str) -> None:
        """Remove a secret with all that is known about it."""
        with self._changing():
            if not self.has(key):
                raise self._not_there(key)
            for where in (_ANNOTATIONS, _HOOKS, ""):  # the secret last: until then it is whole
                self._remove(self._file(key, where))

    def details(self, key: str) -> Details:
        """Return the size of a value, its annotation and its hook, which is not run."""
        return Details(
            len(self._value(key).encode()),
            self._document(_ANNOTATIONS, key),
            self._hook(key),
        )

    def annotate(self, key: str, annotation: Mapping[str, Any] | None) -> None:
        """Keep what people should know about a secret, encrypted like it."""
        self._keep(_ANNOTATIONS, key, annotation)

    def refresh_by(self, key: str, hook: Mapping[str, Any] | None) -> None:
        """Keep the command that gives a new value, encrypted like the secret."""
        self._keep(_HOOKS, key, hook)

    def _keep(self, where: str, key: str, document: Mapping[str, Any] | None) -> None:
        with self._changing():
            self._value(key)
            if document is None:
                self._remove(self._file(key, where))
            else:
                self._seal(self._file(key, where), json.dumps(document, ensure_ascii=False))

    def _refreshed(self, key: str) -> str:
        """Return the value that the hook of a secret gives, the one it has if there is none."""
        with self._changing():
            hook, old = self._hook(key), self._value(key)
            if hook is None or not is_due(hook, self._place.clock()):
                return old  # somebody was faster
            value = new_value(hook, self._place.environ)
            if value is None:
                notice("the secret %s of the vault %s is old", key, self._place.name)
                return old
            try:
                self._renew(key, value, hook)
            except (OSError, DiskError) as error:  # the old one may be worth nothing any more
                notice("the new value of the secret %s was not kept: %s", key, error)
            return value

    # The key -------------------------------------------------------------------------------

    def rotate(self) -> int:
        """Encrypt everything with a new key; return how many secrets that were.

        What an earlier run left undone is completed, with the key that it had made.
        """
        if not self._has_own_key:
            raise VaultUnsupportedError(
                f"the key of the vault {self._place.name} is an SSH key, {self._ssh_key}",
                hint="Only a key that the vault made for itself can be replaced by it.",
            )
        following = f"{self._key}.next"
        durable = self._place.durable
        with self._changing(), self._changing_key():
            old = self._writing_key()
            self._check_all()
            previous = self._place_of_previous(old)
            new = create_key(following, durable=durable)
            self._seal_all_with(new)
            # What another client encrypts with the old key meanwhile stays readable.
            replace_file(previous, old, durable=durable, mode=PRIVATE)
            os.rename(following, self._key)
            if durable:
                sync_dir(os.path.dirname(self._key))
            self._seal_all_with(new)
            if self._may_be_of_others:
                notice("%s stays: other vaults may need the key that it holds", previous)
            else:
                self._remove(previous)
            return len(self.keys())

    @property
    def _may_be_of_others(self) -> bool:
        """Whether there may be secrets elsewhere that are encrypted with the same key."""
        return "key_file" in self._place.config

    @contextlib.contextmanager
    def _changing_key(self) -> Iterator[None]:
        """Let no other vault change the key meanwhile, if it may be of others."""
        if not self._may_be_of_others:
            yield
            return
        directory, name = os.path.split(self._key)
        with disk_errors(directory):
            make_private_dir(directory)
        with NameLocks(f"{directory}/.locks", self._place.lock_timeout).hold(name):
            yield

    def _place_of_previous(self, old: bytes) -> str:
        """Return where the key is kept that is about to be replaced."""
        places = self._previous() if self._may_be_of_others else []
        same = (place for place in places if read_key(place) in (None, old))
        number = len(places)
        while (free := _previous_place(self._key, number)) in places:
            number += 1
        return next(same, free)

    def _previous(self) -> list[str]:
        """Return where keys are kept that were replaced, the last one first."""
        if not self._may_be_of_others:
            return [_previous_place(self._key, 0)]
        directory, name = os.path.split(self._key)
        numbers = [
            int(found[1] or 0)
            for one in _names_in(directory)
            if one.startswith(name) and (found := _PREVIOUS.fullmatch(one.removeprefix(name)))
        ]
        return [_previous_place(self._key, number) for number in sorted(numbers, reverse=True)]

    def _check_all(self) -> None:
        """Raise SecretDamagedError if something cannot be read, which a new key would bury."""
        for path in self._files():
            self._opened(path)

    def _seal_all_with(self, key: bytes) -> None:
        for path in self._files():
            data = read_file(path)
            if data is None or decrypt(key, data, path) is not None:
                continue
            text = self._opened(path)
            if text is None:
                continue
            sealed = encrypt(key, text)
            if decrypt(key, sealed, path) != text:
                raise SecretDamagedError(f"{path} was not encrypted well", hint="Check the memory.")
            replace_file(path, sealed, durable=self._place.durable, mode=PRIVATE)

    def _reading_keys(self) -> list[bytes]:
        """Return what files may be encrypted with, the likeliest first."""
        if self._ssh_key:
            return [ssh_key(self._ssh_key)]
        places = (self._key, f"{self._key}.next", *self._previous())
        return [key for place in places if (key := read_key(place)) is not None]

    def _writing_key(self) -> bytes:
        """Return what to encrypt with; a vault without secrets gets a key now."""
        if self._ssh_key:
            return ssh_key(self._ssh_key)
        if key := read_key(self._key):
            return key
        if next(self._files(), None) is not None or os.path.lexists(f"{self._key}.next"):
            raise self._no_key()
        make_private_dir(os.path.dirname(self._key))
        return create_key(self._key, durable=self._place.durable)

    def _no_key(self) -> VaultKeyError:
        return VaultKeyError(
            f"the key of the vault {self._place.name} is not there: {self._key}",
            hint="Restore it from where this repository came from; without it the secrets are"
            " lost. A new one would make that final.",
        )

    # Files ---------------------------------------------------------------------------------

    def _file(self, key: str, where: str = "") -> str:
        return os.path.join(self._directory, where, f"{key}{_SUFFIX}")

    def _files(self) -> Iterator[str]:
        """Yield every encrypted file."""
        for where in ("", _ANNOTATIONS, _HOOKS):
            directory = os.path.join(self._directory, where)
            yield from (f"{directory.rstrip('/')}/{key}{_SUFFIX}" for key in _keys_in(directory))

    def _opened(self, path: str) -> str | None:
        """Return the text of an encrypted file, None if there is none."""
        for _ in range(_LOOKS):  # the file and the key may be replaced between the two looks
            with disk_errors(path):
                data = read_file(path)
                if data is None:
                    return None
                keys = self._reading_keys()
            for key in keys:
                text = decrypt(key, data, path)
                if text is not None:
                    return text
            if not keys:
                raise self._no_key()
        raise SecretDamagedError(
            f"{path} was encrypted with another key, or damaged",
            hint="Restore the file or the key, or put the secret again.",
        )

    def _document(self, where: str, key: str) -> dict[str, Any] | None:
        """Return an annotation or a hook, None if there is none."""
        text = self._opened(self._file(key, where))
        try:
            document = None if text is None else json.loads(text)
        except ValueError:
            document = None
        return document if isinstance(document, dict) else None

    def _seal(self, path: str, text: str) -> None:
        data = encrypt(self._writing_key(), text)
        make_private_dir(os.path.dirname(path))
        replace_file(path, data, durable=self._place.durable, mode=PRIVATE)

    def _remove(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
            if self._place.durable:
                sync_dir(os.path.dirname(path))

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """Let nobody else of this machine change the vault meanwhile."""
        with disk_errors(self._directory):
            make_private_dir(self._directory)
        with self._locks.hold(self._place.name), disk_errors(self._directory):
            remove_old_temps(self._directory, self._place.clock().timestamp() - _DAY)
            yield


def _would_be_shared(path: str, directory: str) -> bool:
    rel = os.path.relpath(os.path.realpath(path), os.path.realpath(directory))
    return not rel.startswith("..") and not is_always_local(rel)


def _keys_in(directory: str) -> list[str]:
    names = _names_in(directory)
    return sorted(name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX))


def _names_in(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _previous_place(key: str, number: int) -> str:
    return f"{key}.previous-{number}" if number else f"{key}.previous"
