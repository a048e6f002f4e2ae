"""What a vault's secrets are encrypted with: a key of its own, or somebody's SSH key.

A key of its own appears all at once and never replaces another one, so that no secret is ever
encrypted with a key that is gone. A file that others could read, or change, is not used.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
import uuid
from base64 import b64decode

from swampstore.errors import DiskError
from swampstore.files.disk import sync_dir, temp_beside, write_all
from swampstore.vaults.errors import VaultKeyError

PRIVATE = 0o600
# Another client creates the file first, and fills it then.
_LOOKS = 20
_PAUSE = 0.005
_OPENSSH = b"openssh-key-v1\0"
_UNENCRYPTED = b"\x00\x00\x00\x04none"


def make_private_dir(directory: str) -> None:
    """Create a directory that is nobody else's business, with those above it; it may exist."""
    if not os.path.isdir(directory):
        make_private_dir(os.path.dirname(directory))
        with contextlib.suppress(FileExistsError):
            os.mkdir(directory, 0o700)


def read_key(path: str) -> bytes | None:
    """Return the key that a file holds, None if it is not there or empty.

    Raises VaultKeyError if anybody but its owner could read or change it.
    """
    text = _read_private(path)
    return text.strip() or None if text is not None else None


def create_key(path: str, *, durable: bool) -> bytes:
    """Make a new key at a path, unless there is one by now; return the one that is there."""
    for _ in range(_LOOKS):
        if not os.path.lexists(path):
            break
        if key := read_key(path):
            return key
        time.sleep(_PAUSE)
    key = f"{uuid.uuid4()}{uuid.uuid4()}".encode()
    temp = temp_beside(path)
    try:
        _write(temp, key, durable=durable)
        _appear(temp, path, durable=durable)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temp)
    if durable:
        sync_dir(os.path.dirname(path))
    found = read_key(path)
    if found is None:
        raise DiskError(f"{path}: the new key is not there", hint="Check the disk, then try again.")
    return found


def _write(path: str, key: bytes, *, durable: bool) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE)
    try:
        write_all(fd, key)
        if durable:
            os.fsync(fd)
    finally:
        os.close(fd)


def _appear(temp: str, path: str, *, durable: bool) -> None:
    """Give a finished file its name, unless a key has that."""
    try:
        os.link(temp, path)
    except FileExistsError:
        if not os.stat(path).st_size:  # of somebody who died before they wrote it
            os.rename(temp, path)
    except PermissionError:  # so say file systems without links
        with contextlib.suppress(FileExistsError), open(temp, "rb") as file:
            _write(path, file.read(), durable=durable)


def ssh_key(path: str) -> bytes:
    """Return the body of an SSH key as the key of a vault.

    Raises VaultKeyError if there is none, if others could read it, or if it has a passphrase.
    """
    text = _read_private(path)
    if text is None:
        raise VaultKeyError(
            f"there is no SSH key {path}", hint="Set `ssh_key_path` in the vault's configuration."
        )
    begin, _, body = text.partition(b"-----BEGIN ")[2].partition(b"-----")
    body = body.partition(b"-----END ")[0]
    key = _decoded(body)
    if b"PRIVATE KEY" not in begin or key is None:
        encrypted = b"ENCRYPTED" in begin or b"ENCRYPTED" in body
        raise (
            _passphrase(path)
            if encrypted
            else VaultKeyError(
                f"{path} is not a private SSH key", hint="Name the file without .pub, in PEM form."
            )
        )
    if b"ENCRYPTED" in begin or (
        key.startswith(_OPENSSH) and not key[len(_OPENSSH) :].startswith(_UNENCRYPTED)
    ):
        raise _passphrase(path)
    return key


def _decoded(body: bytes) -> bytes | None:
    try:
        return b64decode(b"".join(body.split()), validate=True) or None
    except ValueError:
        return None


def _passphrase(path: str) -> VaultKeyError:
    return VaultKeyError(
        f"the SSH key {path} has a passphrase",
        hint="Use one without, or let the vault have a key of its own: auto_generate.",
    )


def _read_private(path: str) -> bytes | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise VaultKeyError(f"the key {path} is no file", hint="Move away what is there.")
        if found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise VaultKeyError(
                f"others may read or change the key {path}"
                f" (its mode is {stat.S_IMODE(found.st_mode):04o})",
                hint=f"Run `chmod 600 {path}`. If others did read it, rotate the vault's key.",
            )
        with os.fdopen(os.dup(fd), "rb") as file:
            return file.read()
    finally:
        os.close(fd)
