"""Every error a user can meet: a stable code, a message, a hint, an exit status."""

from __future__ import annotations

from typing import Any

EXIT_ERROR = 1
EXIT_NOT_PUSHED = 74
EXIT_LOCK_TIMEOUT = 75
EXIT_INTERRUPTED = 130


class SwampstoreError(Exception):
    """Root of all errors raised on purpose.

    `code` is stable and meant for programs, the message and the `hint` are meant for people:
    the message names the thing that is wrong, the hint says what to do next.
    """

    code = "error"
    exit_status = EXIT_ERROR

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[Any, ...]:
        # Errors cross processes. Constructors take more than `args`, which pickle would give them.
        return _revived, (type(self), self.args, self.__dict__)


def _revived(
    kind: type[SwampstoreError], args: tuple[Any, ...], members: dict[str, Any]
) -> SwampstoreError:
    # Not kind.__new__: where one of two bases is MemoryError, Python finds the one it refuses.
    base: Any = kind.__base__
    error: SwampstoreError = base.__new__(kind)
    error.args = args
    error.__dict__.update(members)
    return error


class ValidationError(SwampstoreError, ValueError):
    """A name, a field or an argument does not have the form it must have."""

    code = "validation_failed"


class NotFoundError(SwampstoreError, KeyError):
    """The thing asked for does not exist."""

    code = "not_found"


class ModelNotFoundError(NotFoundError):
    """No model answers to that name or address."""

    code = "model_not_found"


class AlreadyExistsError(SwampstoreError, FileExistsError):
    """The thing to be created is there already."""

    code = "already_exists"


class RepoNotFoundError(NotFoundError):
    """Neither the directory nor one above it is a swamp repository."""

    code = "repo_not_found"


class RepoDamagedError(SwampstoreError):
    """There is a `.swamp` directory but no marker file, or something else in its place."""

    code = "repo_partially_initialised"


class ConfigError(SwampstoreError, ValueError):
    """`.swamp.yaml` or an environment variable holds something that cannot be used."""

    code = "config_invalid"


class YamlError(SwampstoreError, ValueError):
    """A file is not the YAML it should be."""

    code = "yaml_invalid"


class MetadataError(SwampstoreError, ValueError):
    """A `metadata.yaml` cannot be decoded or breaks a rule of its format."""

    code = "metadata_invalid"


class NewerFormatError(SwampstoreError, ValueError):
    """A document or file was written by a newer release, so it is left alone."""

    code = "newer_format"


class OwnershipError(SwampstoreError, PermissionError):
    """The data name belongs to another owner."""

    code = "ownership_conflict"


class NotStreamingError(SwampstoreError, ValueError):
    """Only versions that were saved as streaming may be appended to."""

    code = "not_streaming"


class VersionClaimError(SwampstoreError, RuntimeError):
    """No free version number could be claimed."""

    code = "version_claim_failed"


class LockTimeoutError(SwampstoreError, TimeoutError):
    """Somebody else held a lock for longer than we were willing to wait."""

    code = "lock_timeout"
    exit_status = EXIT_LOCK_TIMEOUT


class WriterClosedError(SwampstoreError, ValueError):
    """The version being written was finalised or aborted already."""

    code = "writer_closed"


class ContentMissingError(NotFoundError):
    """The version is known, its content is not on this disk."""

    code = "content_missing"


class ContentOutdatedError(ContentMissingError):
    """The content is not on this disk, and others have changed it since the last sync."""

    code = "content_outdated"


class ContentDamagedError(SwampstoreError):
    """The content of a version is not what was saved; `is_there` if the remote has a good copy."""

    code = "content_damaged"

    def __init__(self, message: str, *, hint: str | None = None, is_there: bool = False) -> None:
        super().__init__(message, hint=hint)
        self.is_there = is_there


class BackupDamagedError(SwampstoreError, ValueError):
    """The manifest of a backup is not whole, or says what cannot be: nothing is made from it."""

    code = "backup_damaged"


class DiskError(SwampstoreError, OSError):
    """The file system refused: full, read-only, no permission, something in the way."""

    code = "disk_error"

    def __str__(self) -> str:
        return self.message


class CatalogError(SwampstoreError, RuntimeError):
    """The catalog could neither be opened nor healed."""

    code = "catalog_failed"


class QueryError(SwampstoreError, ValueError):
    """A predicate, projection or ordering cannot be understood."""

    code = "query_failed"


class PruneRefusedError(SwampstoreError, RuntimeError):
    """Which data is left over cannot be told for sure, so none of it is removed."""

    code = "prune_refused"


class BudgetError(SwampstoreError, MemoryError):
    """Ephemeral data would exceed its memory budget."""

    code = "ephemeral_budget_exceeded"


class SyncNotSupportedError(SwampstoreError, ValueError):
    """The datastore is used in place: there is no remote to sync it with."""

    code = "sync_not_supported"


class NamespaceTakenError(AlreadyExistsError):
    """The namespace belongs to another repository."""

    code = "namespace_taken"


class DifferingDataError(AlreadyExistsError):
    """Data cannot move: other data of the same name is where it should go. Nothing was changed."""

    code = "non_identical_unmigrated_data"


class MoveInterruptedError(SwampstoreError):
    """Some directories moved to another namespace, the others could not; nothing was lost."""

    code = "migration_incomplete"

    def __init__(self, message: str, succeeded: list[str], failed: str, *, hint: str) -> None:
        super().__init__(message, hint=hint)
        self.succeeded = succeeded
        self.failed = failed


class MissingExtraError(SwampstoreError, ImportError):
    """An optional dependency is needed for this and is not installed."""

    code = "extra_not_installed"


def code_of(error: BaseException) -> str:
    """Return what logs and counters say of an error: not its message, which may quote anything."""
    return error.code if isinstance(error, SwampstoreError) else type(error).__name__
