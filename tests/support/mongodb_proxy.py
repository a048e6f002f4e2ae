"""A stand-in for a replica set, for the control flow of those who talk to one. It proves nothing.

It stands between a driver and the server of the tests, says that this is the primary of a replica
set, and plays what only a replica set has: transactions, retryable writes, elections, and the
errors that go with them. A transaction has the server for itself, and is undone from what was there
before. So every branch of a client is taken here; whether MongoDB behaves like that, and what
two transactions at once do to each other, only MongoDB can show.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

NOT_PRIMARY = (10107, "NotWritablePrimary")
STEPPED_DOWN = (11602, "InterruptedDueToReplStateChange")
WRITE_CONFLICT = (112, "WriteConflict")
NO_TRANSACTION = (251, "NoSuchTransaction")
LOGIN = (18, "AuthenticationFailed")
TRANSIENT, UNKNOWN = "TransientTransactionError", "UnknownTransactionCommitResult"
RETRYABLE = "RetryableWriteError"
SET = "rs0"
_HEAD = struct.Struct("<iiii")
_QUERY, _REPLY, _MSG = 2004, 1, 2013
_WRITES = frozenset({"insert", "update", "delete", "findAndModify"})
_HELLOS = frozenset({"hello", "ismaster", "isMaster"})
_OF_SESSIONS = frozenset(
    {"lsid", "txnNumber", "startTransaction", "autocommit", "stmtId", "stmtIds", "readConcern"}
)

Document = dict[str, Any]


@dataclass
class Fault:
    """What happens to commands of a name: not done, or done and the answer is lost.

    Without an error the connection is cut. `skip` lets so many of them through first.
    """

    command: str
    error: tuple[int, str] | None = None
    labels: tuple[str, ...] = ()
    is_done: bool = False
    is_concern: bool = False
    times: int = 1
    skip: int = 0
    where: Callable[[Document], bool] = field(default=bool)

    def strikes(self, command: Document) -> bool:
        if next(iter(command)) != self.command or not self.times or not self.where(command):
            return False
        if self.skip:
            self.skip -= 1
            return False
        self.times -= 1
        return True


class CutError(Exception):
    """The connection ends here."""


class ReplicaSet:
    """The proxy. `address` is the only member of the set; `log` counts the commands it got."""

    def __init__(self, server: str, *, wire: int = 21, is_set: bool = True) -> None:
        host, _, port = server.partition(":")
        self._server = (host, int(port))
        self._wire = wire
        self._is_set = is_set
        self._door = threading.RLock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.faults: list[Fault] = []
        self.log: Counter[str] = Counter()
        self.is_cut = False
        self._down_until = 0.0
        self._open: Transaction | None = None
        self._finished: dict[tuple[bytes, int], str] = {}
        self._answered: dict[tuple[bytes, int], Document] = {}
        self._free = threading.Condition()
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def fail(self, command: str, error: tuple[int, str] | None = None, **options: Any) -> Fault:
        """Let something go wrong with the next command of a name."""
        self.faults.append(Fault(command, error, **options))
        return self.faults[-1]

    def step_down(self, seconds: float) -> None:
        """Be no primary for a while; a transaction that is open is gone."""
        self._down_until = time.monotonic() + seconds

    @property
    def is_primary(self) -> bool:
        return time.monotonic() >= self._down_until

    def close(self) -> None:
        self._listener.close()
        for one in self._sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    # Connections ---------------------------------------------------------------------------------

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._sockets.append(client)
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        mine: list[Transaction] = []
        with client, socket.create_connection(self._server) as server:
            with contextlib.suppress(CutError, OSError):
                while True:
                    self._pass(client, Upstream(server, self._door), mine)
            for one in mine:
                with contextlib.suppress(OSError):
                    self._end(one, "aborted", Upstream(server, self._door))

    def _pass(self, client: socket.socket, server: Upstream, mine: list[Transaction]) -> None:
        head, body = _received(client)
        if self.is_cut:
            raise CutError
        if head[3] == _QUERY:
            answer = self._hello(server.legacy(head, body))
            client.sendall(_legacy_reply(head[1], answer))
            return
        command = _unpacked(body)
        self.log[next(iter(command))] += 1
        answer = self._answer(command, server, mine)
        client.sendall(_packed(head[1], answer))

    # Commands ------------------------------------------------------------------------------------

    def _answer(self, command: Document, server: Upstream, mine: list[Transaction]) -> Document:
        name = next(iter(command))
        if name in _HELLOS:
            return self._hello(server.ask(_plain(command)))
        if name in ("saslStart", "saslContinue"):
            return _error(LOGIN, ())
        fault = next((one for one in self.faults if one.strikes(command)), None)
        if fault is not None and not fault.is_done and not fault.is_concern:
            return self._struck(fault, command, server)
        if not self.is_primary and name != "endSessions":
            if self._open is not None:
                self._end(self._open, "aborted", server)
            in_transaction = command.get("autocommit") is False
            return _error(NOT_PRIMARY, (TRANSIENT,) if in_transaction else (RETRYABLE,))
        answer = self._done(name, command, server, mine)
        if fault is not None and fault.is_concern:
            assert fault.error is not None
            code, text = fault.error
            concern = {"code": code, "codeName": text, "errmsg": text, "errInfo": {}}
            return {**answer, "writeConcernError": concern, "errorLabels": list(fault.labels)}
        return answer if fault is None else self._struck(fault, command, server)

    def _struck(self, fault: Fault, command: Document, server: Upstream) -> Document:
        if fault.error is None:
            raise CutError
        if TRANSIENT in fault.labels and self._open is not None:
            self._end(self._open, "aborted", server)
        return _error(fault.error, fault.labels)

    def _done(
        self, name: str, command: Document, server: Upstream, mine: list[Transaction]
    ) -> Document:
        if command.get("autocommit") is False:
            return self._in_transaction(name, command, server, mine)
        with self._free:
            self._free.wait_for(lambda: self._open is None)
        number = command.get("txnNumber")
        if number is None:
            return server.ask(_plain(command))
        once = (bytes(command["lsid"]["id"]), number)
        if once not in self._answered:  # a repeated write is not done twice
            self._answered[once] = server.ask(_plain(command))
        return self._answered[once]

    def _in_transaction(
        self, name: str, command: Document, server: Upstream, mine: list[Transaction]
    ) -> Document:
        key = (bytes(command["lsid"]["id"]), int(command["txnNumber"]))
        if command.get("startTransaction"):
            with self._free:
                self._free.wait_for(lambda: self._open is None)
                self._open = Transaction(key)
            mine.append(self._open)
        if name == "commitTransaction":
            if self._open is not None and self._open.key == key:
                self._end(self._open, "committed", server)
            is_done = self._finished.get(key) == "committed"
            return {"ok": 1.0} if is_done else _error(NO_TRANSACTION, (TRANSIENT,))
        if self._open is None or self._open.key != key:
            return _error(NO_TRANSACTION, (TRANSIENT,))
        if name == "abortTransaction":
            self._end(self._open, "aborted", server)
            return {"ok": 1.0}
        if name in _WRITES:
            self._open.remember(command, server)
        answer = server.ask(_plain(command))
        if answer.get("writeErrors") or not answer.get("ok"):
            self._end(self._open, "aborted", server)
        return answer

    def _end(self, transaction: Transaction, state: str, server: Upstream) -> None:
        with self._free:
            if self._open is not transaction:
                return
            if state == "aborted":
                transaction.undo(server)
            self._finished[transaction.key] = state
            self._open = None
            self._free.notify_all()

    def _hello(self, answer: Document) -> Document:
        answer["maxWireVersion"] = self._wire
        answer.pop("saslSupportedMechs", None)
        if not self._is_set:
            return answer
        answer |= {
            "setName": SET,
            "setVersion": 1,
            "hosts": [self.address],
            "me": self.address,
            "ismaster": self.is_primary,
            "isWritablePrimary": self.is_primary,
            "secondary": not self.is_primary,
            "logicalSessionTimeoutMinutes": 30,
        }
        return answer | ({"primary": self.address} if self.is_primary else {})


class Transaction:
    """What was there before a transaction changed it."""

    def __init__(self, key: tuple[bytes, int]) -> None:
        self.key = key
        self._before: dict[tuple[str, str, Any], Document | None] = {}

    def remember(self, command: Document, server: Upstream) -> None:
        name, collection = next(iter(command.items()))
        members = {"insert": "documents", "update": "updates", "delete": "deletes"}
        for one in command[members[name]]:
            found = one["_id"] if name == "insert" else one["q"]["_id"]
            assert isinstance(found, str), "only documents that are named can be undone"
            spot = (command["$db"], collection, found)
            if spot not in self._before:
                self._before[spot] = server.find(*spot)

    def undo(self, server: Upstream) -> None:
        for (database, collection, name), before in self._before.items():
            if before is None:
                change: Document = {
                    "delete": collection,
                    "deletes": [{"q": {"_id": name}, "limit": 1}],
                }
            else:
                update = {"q": {"_id": name}, "u": before, "upsert": True}
                change = {"update": collection, "updates": [update]}
            answer = server.ask({**change, "$db": database})
            assert answer.get("ok"), answer


class Upstream:
    """A connection to the server, for one command at a time."""

    def __init__(self, connection: socket.socket, door: threading.RLock) -> None:
        self._connection = connection
        self._door = door

    def ask(self, command: Document) -> Document:
        with self._door:
            self._connection.sendall(_packed(0, command))
            return _unpacked(_received(self._connection)[1])

    def legacy(self, head: tuple[int, ...], body: bytes) -> Document:
        from bson import decode

        self._connection.sendall(_HEAD.pack(*head) + body)
        return dict(decode(_received(self._connection)[1][20:]))

    def find(self, database: str, collection: str, name: Any) -> Document | None:
        command = {"find": collection, "filter": {"_id": name}, "limit": 1, "$db": database}
        batch = self.ask(command)["cursor"]["firstBatch"]
        return dict(batch[0]) if batch else None


# Messages ----------------------------------------------------------------------------------------


def _received(connection: socket.socket) -> tuple[tuple[int, ...], bytes]:
    head = _HEAD.unpack(_exactly(connection, _HEAD.size))
    return head, _exactly(connection, head[0] - _HEAD.size)


def _exactly(connection: socket.socket, size: int) -> bytes:
    parts = []
    while size:
        part = connection.recv(min(size, 1 << 20))
        if not part:
            raise CutError
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _unpacked(body: bytes) -> Document:
    """Return the command or answer of a message, its sequences of documents put into it."""
    from bson import decode, decode_all

    command: Document = {}
    at = 4
    while at < len(body):
        kind, size = body[at], struct.unpack_from("<i", body, at + 1)[0]
        section = body[at + 1 : at + 1 + size]
        if kind == 0:
            command |= decode(section)
        else:
            end = section.index(b"\0", 4)
            command[section[4:end].decode()] = decode_all(section[end + 1 :])
        at += 1 + size
    return command


def _packed(answers: int, document: Mapping[str, Any]) -> bytes:
    from bson import encode

    body: bytes = struct.pack("<I", 0) + b"\0" + encode(document)
    return _HEAD.pack(_HEAD.size + len(body), 1, answers, _MSG) + body


def _legacy_reply(answers: int, document: Document) -> bytes:
    from bson import encode

    body: bytes = struct.pack("<iqii", 8, 0, 0, 1) + encode(document)
    return _HEAD.pack(_HEAD.size + len(body), 1, answers, _REPLY) + body


def _plain(command: Document) -> Document:
    """Return a command as a server alone understands it."""
    return {name: value for name, value in command.items() if name not in _OF_SESSIONS}


def _error(error: tuple[int, str], labels: tuple[str, ...]) -> Document:
    code, name = error
    found: Document = {"ok": 0.0, "errmsg": name, "code": code, "codeName": name}
    return {**found, "errorLabels": list(labels)} if labels else found


@contextlib.contextmanager
def replica_set(server: str, **options: Any) -> Iterator[ReplicaSet]:
    """Play a replica set in front of a server."""
    proxy = ReplicaSet(server, **options)
    try:
        yield proxy
    finally:
        proxy.close()
