"""What can go wrong with a remote store. Each error names the store or key, and a way out."""

from __future__ import annotations

from swampstore.errors import NotFoundError, SwampstoreError


class StoreError(SwampstoreError):
    """Root of the errors that come from a remote store."""

    code = "store_failed"


class StoreUnreachableError(StoreError, ConnectionError):
    """No answer, or one that says to try again: network, timeout, overload. Transient."""

    code = "store_unreachable"

    def __str__(self) -> str:
        return self.message


class StoreCredentialsError(StoreError):
    """The credentials are missing, expired or not accepted."""

    code = "store_credentials"


class StorePermissionError(StoreError, PermissionError):
    """The credentials are fine, but do not allow this."""

    code = "store_permission"

    def __str__(self) -> str:
        return self.message


class StoreMissingError(StoreError, NotFoundError):
    """The bucket or container itself does not exist."""

    code = "store_missing"


class StoreNotMountedError(StoreUnreachableError):
    """The directory is not there, or empty: a share that is not mounted just now."""

    code = "store_not_mounted"


class ObjectNotFoundError(StoreError, NotFoundError):
    """The store holds no object under that key."""

    code = "object_not_found"


class PreconditionFailedError(StoreError):
    """Somebody else has created, changed or removed the object in the meantime."""

    code = "precondition_failed"


class CorruptObjectError(StoreError, ValueError):
    """The content is not what it was announced to be: another size or another hash."""

    code = "object_corrupt"


class UnsupportedOperationError(StoreError):
    """This kind of store cannot do that."""

    code = "store_unsupported"


class UntrustworthyStoreError(StoreError):
    """The store accepts conditional writes and ignores their conditions."""

    code = "store_untrustworthy"


def not_found(key: str, identity: str) -> ObjectNotFoundError:
    """Return the error for a key that holds nothing."""
    return ObjectNotFoundError(
        f"{key} is not in {identity}",
        hint="Check the key; `list` shows what is there. Another client may have removed it.",
    )


def changed(key: str, identity: str) -> PreconditionFailedError:
    """Return the error for an object that is not the expected one any more."""
    return PreconditionFailedError(
        f"{key} in {identity} was changed by somebody else",
        hint="Read it again, apply the change to what is there now, and retry.",
    )


def exists(key: str, identity: str) -> PreconditionFailedError:
    """Return the error for an object that should not have been there."""
    return PreconditionFailedError(
        f"{key} is in {identity} already", hint="Read it: somebody else was first."
    )
