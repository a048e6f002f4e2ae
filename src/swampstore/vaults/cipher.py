"""How one secret is encrypted: AES-256-GCM, with a key that is derived for each secret anew.

The file is a JSON object with `iv`, `data` and `salt` in base64, and `version` 2. The tag follows
the ciphertext; the key comes from the vault's key and the salt by PBKDF2.
"""

from __future__ import annotations

import hashlib
import json
import os
from base64 import b64decode, b64encode
from typing import TYPE_CHECKING, Any

from swampstore.errors import MissingExtraError
from swampstore.formats import refuse_newer
from swampstore.vaults.errors import SecretDamagedError

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
