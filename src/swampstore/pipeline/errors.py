"""What can go wrong with bulk work, besides what can go wrong with the data itself."""

from __future__ import annotations

from swampstore.errors import MissingExtraError, SwampstoreError


class SparkMissingError(MissingExtraError):
    """Bulk work on Spark was asked for, and PySpark is not installed."""

    code = "spark_not_installed"


class JavaMissingError(SwampstoreError, FileNotFoundError):
    """Spark needs a Java runtime, and there is none."""

    code = "java_not_found"

    def __str__(self) -> str:
        return self.message


class JavaTooOldError(SwampstoreError, RuntimeError):
    """There is a Java runtime, but Spark needs a newer one."""

    code = "java_too_old"


class SparkStartError(SwampstoreError, RuntimeError):
    """Spark could not be started, or the cluster could not be reached."""

    code = "spark_not_started"


class SparkJobError(SwampstoreError):
    """A task or a job of Spark failed for good."""

    code = "spark_job_failed"


class FilesNotSeenError(SwampstoreError, FileNotFoundError):
    """A task of Spark runs where the files that it should read or write cannot be seen."""

    code = "files_not_seen"

    def __str__(self) -> str:
        return self.message


class NotFollowableError(SwampstoreError, ValueError):
    """A stream was asked of a datastore that does not count its commits."""

    code = "not_followable"


class StreamPositionError(SwampstoreError, RuntimeError):
    """A stream cannot tell what it has delivered already, and what is new."""

    code = "stream_position_lost"


class NotSavedError(SwampstoreError, RuntimeError):
    """The rows of a Spark job could not be saved, and so none of them was."""

    code = "rows_not_saved"


class RepairStoppedError(SwampstoreError):
    """A repair could not go on. All that was there is at its place, or in quarantine."""

    code = "repair_stopped"


class SnapshotBusyError(SwampstoreError, RuntimeError):
    """Others commit snapshots of a place faster than this process can."""

    code = "snapshot_busy"


class MonolithTooLargeError(SwampstoreError, ValueError):
    """Bulk work was asked for on an index that is one document, and a very long one."""

    code = "monolith_too_large"


class ExportFailedError(SwampstoreError, RuntimeError):
    """An exported table could not be written, and is what it was."""

    code = "export_failed"
