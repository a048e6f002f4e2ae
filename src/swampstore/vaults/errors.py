"""What can go wrong with vaults. No message holds the value of a secret."""

from __future__ import annotations

from swampstore.errors import NotFoundError, SwampstoreError


class VaultError(SwampstoreError):
    """The root of all of them."""

    code = "vault_failed"


class VaultNotFoundError(NotFoundError):
    """No vault has that name."""

    code = "vault_not_found"


class SecretNotFoundError(NotFoundError):
    """The vault has no secret of that key."""

    code = "secret_not_found"


class VaultKeyError(VaultError, PermissionError):
    """What secrets are encrypted with is missing, open to others, or cannot be used."""

    code = "vault_key_unusable"


class SecretDamagedError(VaultError, ValueError):
    """A secret is there, and the key of its vault does not open it."""

    code = "secret_damaged"


class VaultUnsupportedError(VaultError, ValueError):
    """A vault of this type cannot do that."""

    code = "vault_unsupported"


class VaultProviderError(VaultError, RuntimeError):
    """The program that keeps the secrets of a vault failed."""

    code = "vault_provider_failed"
