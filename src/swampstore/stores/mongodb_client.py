"""The connection to a MongoDB deployment: what it must promise, and what its errors mean."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from swampstore.clock import with_zone
from swampstore.errors import ConfigError
from swampstore.redaction import without_credentials
from swampstore.stores.errors import (
    StoreCredentialsError,
    StoreError,
    StorePermissionError,
    StoreUnreachableError,
)

if TYPE_CHECKING:
    from pymongo.client_session import ClientSession

# How MongoDB numbers what it refuses.
_UNAUTHORIZED, _NO_LOGIN, _NO_SUCH_USER = 13, 18, 11
_NO_SUCH_COMMAND = 59
_TOO_LARGE = (10334, 17280)
TRANSIENT = "TransientTransactionError"
# With one of these a server says that the same may work a moment later.
_LABELS = ("RetryableWriteError", TRANSIENT, "UnknownTransactionCommitResult")
PAGE = 1000
# Clocks drift apart by less than a lock can notice in so many seconds.
_ASK_AGAIN = 60.0
_INSTALL = 'Install what it needs: pip install "swampstore[mongodb]".'
_SIGN_IN = (
    "Set the password in the environment variable that passwordEnv names (MONGO_PASSWORD unless"
    " configured), or in the file .env of the repository, and check user name and authSource."
)


class Deployment(NamedTuple):
    """What a server says that it is part of.

    `replica_set` is empty for a server alone. Such a one has no transactions, and what it has
    acknowledged may be rolled back by nobody, but may be lost with it.
    """

    replica_set: str
    is_sharded: bool
    is_primary: bool
    largest_document: int

    @property
    def has_transactions(self) -> bool:
        """Whether several documents can be changed as one."""
        return bool(self.replica_set) or self.is_sharded


class Connection:
    """A client of one database. Threads share it; a process that was forked makes its own."""

    def __init__(self, uri: str, options: dict[str, Any], database: str, identity: str) -> None:
        self.identity = identity
        self._uri = uri
        self._options = options
        self._database = database
        self._lock = threading.Lock()
        self._client: Any = None
        self._deployment: Deployment | None = None
        self._is_direct = "directconnection=true" in uri.lower()
        self._offset: tuple[float, datetime] | None = None

    @property
    def client(self) -> Any:
        """The client; nothing is sent before it is used."""
        with self._lock:
            if self._client is None:
                self._client = _open_client(self._uri, self._options)
            return self._client

    @property
    def database(self) -> Any:
        """The database, with every promise that sync relies on asked for explicitly."""
        from pymongo import ReadPreference, WriteConcern
        from pymongo.read_concern import ReadConcern

        if self._is_direct and not self.deployment().is_primary:
            # To one member that was chosen by hand drivers read, whatever it is.
            self._deployment = None
            raise StoreUnreachableError(
                f"{self.identity} is a secondary, which may not have yet what others committed",
                hint="Leave directConnection out of the URL, or name the primary.",
            )
        return self.client.get_database(
            self._database,
            write_concern=WriteConcern("majority"),
            read_concern=ReadConcern("majority"),
            read_preference=ReadPreference.PRIMARY,
        )

    def deployment(self) -> Deployment:
        """Ask, once, what the server is part of."""
        if self._deployment is None:
            self._deployment = self._ask_deployment()
        return self._deployment

    def _hello(self) -> dict[str, Any]:
        from pymongo.errors import OperationFailure

        with self.errors():
            try:
                found: dict[str, Any] = self.client.admin.command("hello")
            except OperationFailure as error:
                if error.code != _NO_SUCH_COMMAND:
                    raise
                found = self.client.admin.command("isMaster")  # as it was called before 4.4.2
        return found

    def _ask_deployment(self) -> Deployment:
        hello = self._hello()
        return Deployment(
            replica_set=str(hello.get("setName", "")),
            is_sharded=hello.get("msg") == "isdbgrid",
            is_primary=bool(hello.get("isWritablePrimary", hello.get("ismaster", False))),
            largest_document=int(hello.get("maxBsonObjectSize", 16 << 20)),
        )

    def clock(self) -> datetime:
        """Ask the server what time it is."""
        now: datetime = self._hello()["localTime"]
        found = with_zone(now)
        self._offset = (_ticks(), found)
        return found

    def now(self) -> datetime:
        """Return what time it is on the server, as it told within the last minute."""
        if self._offset is not None:
            ticks, then = self._offset
            passed = _ticks() - ticks
            if 0 <= passed < _ASK_AGAIN:
                return then + timedelta(seconds=passed)
        return self.clock()

    def pages(
        self,
        collection: str,
        condition: dict[str, Any],
        projection: dict[str, Any] | None = None,
        size: int = PAGE,
    ) -> Iterator[list[dict[str, Any]]]:
        """Yield documents page by page, sorted, each page for one request.

        No cursor is kept on the server: whoever reads slowly, or not to the end, holds up nobody,
        and a primary that steps down in between does not end it.
        """
        chosen = condition
        while True:
            with self.errors():
                found = self.database[collection].find(chosen, projection).sort("_id", 1)
                page = list(found.limit(size).batch_size(size))
            if page:
                yield page
            if len(page) < size:
                return
            further = {"_id": {"$gt": page[-1]["_id"]}}
            chosen = {"$and": [condition, further]} if condition else further

    @contextlib.contextmanager
    def errors(self, session: ClientSession | None = None) -> Iterator[None]:
        """Raise what the driver raises as an error of the store.

        Within a transaction it is left alone: the driver tells by its own errors what to repeat.
        Whoever began the transaction asks for errors of the store around it.
        """
        if session is not None:
            yield
            return
        from pymongo import errors

        try:
            yield
        except (errors.ConnectionFailure, errors.WTimeoutError, errors.ExecutionTimeout) as error:
            raise self._unreachable(error) from None
        except errors.OperationFailure as error:
            raise self._refused(error) from None
        except errors.DocumentTooLarge as error:
            raise StoreError(
                f"{self.identity} takes no document of that size: {error}",
                hint="A name or a note became too long for MongoDB. Content itself is cut into"
                " pieces, however large it is.",
            ) from None
        except errors.PyMongoError as error:
            raise StoreError(
                f"{self.identity}: {_text(error)}", hint="Check the server's log."
            ) from None

    def _unreachable(self, error: Exception) -> StoreUnreachableError:
        text = _text(error)
        hint = "Check the network, the hosts and that a primary is elected."
        if "replica set" in text.lower() or "setName" in text:
            hint = (
                "The hosts are not members of the replica set that replicaSet names, or none of"
                " them is its primary now."
            )
        return StoreUnreachableError(f"{self.identity} does not answer: {text}", hint=hint)

    def _refused(self, error: Any) -> StoreError:
        text = _text(error)
        if error.code in (_NO_LOGIN, _NO_SUCH_USER):
            return StoreCredentialsError(
                f"{self.identity} does not accept the credentials: {text}", hint=_SIGN_IN
            )
        if error.code == _UNAUTHORIZED:
            return StorePermissionError(
                f"{self.identity} does not allow this: {text}",
                hint="The user needs the role readWrite on the database.",
            )
        if any(error.has_error_label(label) for label in _LABELS):
            return self._unreachable(error)
        if error.code in _TOO_LARGE:
            return StoreError(
                f"{self.identity} takes no document of that size: {text}",
                hint="A name or a note became too long for MongoDB.",
            )
        return StoreError(f"{self.identity}: {text}", hint="Check the server's log.")

    def close(self) -> None:
        """Give the connections back."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    def __del__(self) -> None:
        # Stores that nobody closes are no reason for the driver to warn whoever runs a program.
        self.close()


def whole(number: object) -> int | None:
    """Return a number of a document, None if it is no whole one.

    Each driver chooses for itself what it keeps a number as: 32 bits, 64, or floating point.
    """
    if isinstance(number, bool) or not isinstance(number, int | float):
        return None
    is_whole = math.isfinite(number) and number == int(number)
    return int(number) if is_whole else None


def _ticks() -> float:
    """Return a clock that only goes forward and does not stop while the machine sleeps."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


def _open_client(uri: str, options: dict[str, Any]) -> Any:
    try:
        from pymongo import MongoClient, errors
    except ImportError:
        raise ConfigError("MongoDB needs the package pymongo", hint=_INSTALL) from None
    try:
        return MongoClient(uri, tz_aware=True, connect=False, **options)
    except (errors.PyMongoError, ValueError) as error:
        raise ConfigError(
            f"the address of MongoDB cannot be used: {_text(error)}",
            hint="Correct the hosts and the options of the URL.",
        ) from None


def _text(error: Exception) -> str:
    """Return what an error says, without the page of details that follows it."""
    text = str(error).partition(", full error:")[0].partition(", Timeout:")[0]
    return without_credentials(text.partition(" (configured timeouts:")[0])[:500]
