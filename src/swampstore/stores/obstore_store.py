"""Cloud buckets through obstore: one class, because S3, GCS and Azure differ only in details.

Each method is one request and is never repeated here; `swampstore.stores.retry` does that.
Listings are the exception: they go on where they were, and only here is known where that is.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, Self

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    NotModifiedError,
    PreconditionError,
)

from swampstore.stores.cloud import Bucket, translate, unusable
from swampstore.stores.config import Limits
from swampstore.stores.errors import (
    StoreMissingError,
    StoreUnreachableError,
    UnsupportedOperationError,
    changed,
    exists,
)
from swampstore.stores.protocol import (
    CHUNK,
    Capabilities,
    Fetched,
    Level,
    NewObject,
    ObjectInfo,
    Written,
    check_key,
    parent_of,
    payload,
    receive,
    size_of,
)
from swampstore.stores.signed_requests import SignedRequests

if TYPE_CHECKING:
    from obstore import ObjectMeta, PutResult, UpdateVersion
    from obstore.store import AzureStore, ClientConfig, GCSStore, RetryConfig, S3Store

    from swampstore.stores.bulk_puts import BulkPuts

    Client = S3Store | GCSStore | AzureStore
    MakeClient = Callable[[RetryConfig, ClientConfig], Client]
    # Makes a client that copies only the object with this token, and only to where there is none.
    MakeCopier = Callable[[str, RetryConfig, ClientConfig], Client]
    # Returns the headers of a request that does so: of the object at this URL, with this token.
    CopyHeaders = Callable[[str, str], Mapping[str, str]]

_NO_RETRIES: RetryConfig = {"max_retries": 0}
_PAGE = 1000
# Seconds to wait before a page of a listing is asked for again, the first time, the second, ...
_PAGE_PAUSES = (0.1, 0.4, 1.6)
# One request may not last longer than this, however much it transfers.
_LONGEST_REQUEST = timedelta(hours=1)
_LONGEST_CONNECT = 5.0
# A service says nothing while it copies.
_LONGEST_COPY = timedelta(minutes=5)
# The client takes the time of sending for silence: more bytes than these get more time, as much
# as a line of so many bytes a second needs.
_QUICK = 4 << 20
_SLOWEST = 128 << 10
# A signed URL is used at once; clocks may differ a little.
_SIGNED_FOR = timedelta(minutes=5)
_CLIENT_FAILURES = (BaseError, OSError, ValueError)


def client_options(limits: Limits, endpoint: str, extra: ClientConfig) -> ClientConfig:
    """Return the HTTP settings: silence for longer than the timeout is a failure."""
    return {
        "allow_http": endpoint.startswith("http://"),
        "connect_timeout": timedelta(seconds=min(limits.request_timeout, _LONGEST_CONNECT)),
        "read_timeout": timedelta(seconds=limits.request_timeout),
        "timeout": _LONGEST_REQUEST,
        **extra,
    }


def open_bucket(
    make_client: MakeClient,
    bucket: Bucket,
    make_copier: MakeCopier | None = None,
    copy_headers: CopyHeaders | None = None,
    bulk_puts: BulkPuts | None = None,
) -> ObstoreStore:
    """Return the store of a bucket; nothing is sent yet.

    It copies on conditions with `make_copier` or `copy_headers`, if it is given one of them.
    """
    return ObstoreStore(make_client, bucket, make_copier, copy_headers, bulk_puts)


class ObstoreStore:
    """A bucket, reached by a client that repeats nothing by itself."""

    def __init__(
        self,
        make_client: MakeClient,
        bucket: Bucket,
        make_copier: MakeCopier | None,
        copy_headers: CopyHeaders | None,
        bulk_puts: BulkPuts | None,
    ) -> None:
        self.identity = bucket.identity
        self.capabilities = Capabilities(
            conditional_delete=True,
            conditional_copy=bool(make_copier or copy_headers),
            creates_many=bulk_puts is not None,
            repeats_tokens=bucket.repeats_tokens,
            endpoint=bucket.clock_url,
        )
        self._make_client = make_client
        self._make_copier = make_copier
        self._copy_headers = copy_headers
        self._bulk_puts = bulk_puts
        try:
            self._client = make_client(_NO_RETRIES, {})
        except _CLIENT_FAILURES as error:
            raise unusable(error, bucket) from None  # it may quote a key
        self._bucket = bucket
        self._signed = SignedRequests(bucket.timeout)
        self._patient: dict[int, Client] = {}

    @contextlib.contextmanager
    def _errors(self, operation: str, key: str) -> Iterator[None]:
        check_key(key)
        try:
            yield
        except _CLIENT_FAILURES as error:
            raise translate(error, self._bucket, operation, key) from error

    def get(self, key: str) -> Fetched:
        """See Store.get."""
        with self._errors("get", key):
            found = obstore.get(self._client, key)
            return Fetched(self._info(found.meta), bytes(found.bytes()))

    def get_if_changed(self, key: str, etag: str) -> Fetched | None:
        """See Store.get_if_changed."""
        with self._errors("get", key):
            try:
                found = obstore.get(self._client, key, options={"if_none_match": _quoted(etag)})
            except NotModifiedError:
                return None
            return Fetched(self._info(found.meta), bytes(found.bytes()))

    def excerpt(self, key: str, start: int, length: int) -> bytes:
        """See swampstore.stores.protocol."""
        with self._errors("get", key):
            return bytes(obstore.get_range(self._client, key, start=start, length=length))

    # A sync makes `download` and `put_if_absent` for each file, so they do without `_errors`.

    def download(
        self, key: str, fd: int, *, size: int | None = None, sha256: str | None = None
    ) -> ObjectInfo:
        """See Store.download."""
        check_key(key)
        chunks: Iterable[bytes]
        try:
            found = obstore.get(self._client, key)
            info = self._info(found.meta)
            # A stream takes a while to be set up, and would bring a small object in one piece.
            chunks = [bytes(found.bytes())] if info.size <= CHUNK else self._chunks(found, key)
        except _CLIENT_FAILURES as error:
            raise translate(error, self._bucket, "get", key) from error
        receive(chunks, fd, what=f"{key} in {self.identity}", size=size, sha256=sha256)
        return info

    def _chunks(self, found: obstore.GetResult, key: str) -> Iterator[bytes]:
        with self._errors("get", key):
            for chunk in found.stream(min_chunk_size=CHUNK):
                yield bytes(chunk)

    def head(self, key: str) -> ObjectInfo:
        """See Store.head."""
        with self._errors("head", key):
            return self._info(obstore.head(self._client, key))

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """See Store.list."""
        # The client takes whole segments only, so the rest of the prefix is a filter here.
        for page in self._pages(parent_of(prefix) or None, prefix):
            for meta in page:
                if meta["path"].startswith(prefix):
                    yield self._info(meta)

    def level(self, prefix: str = "") -> Level:
        """See swampstore.stores.protocol."""
        parent = parent_of(prefix)
        try:
            found = obstore.list_with_delimiter(self._client, parent or None)
        except _CLIENT_FAILURES as error:
            raise translate(error, self._bucket, "list", prefix) from error
        return Level(
            sorted(path.rpartition("/")[2] for path in found["common_prefixes"]),
            sorted(self._info(meta) for meta in found["objects"]),
        )

    def _pages(self, parent: str | None, prefix: str) -> Iterator[Sequence[ObjectMeta]]:
        """Yield a listing page by page; after a transient failure, what follows the last one."""
        last: str | None = None
        pauses = iter(_PAGE_PAUSES)
        while True:
            try:
                for page in obstore.list(self._client, parent, offset=last, chunk_size=_PAGE):
                    yield page
                    last, pauses = page[-1]["path"], iter(_PAGE_PAUSES)
            except _CLIENT_FAILURES as error:
                failure = translate(error, self._bucket, "list", prefix)
                pause = next(pauses, None)
                if pause is None or not isinstance(failure, StoreUnreachableError):
                    raise failure from error
                time.sleep(pause)
            else:
                return

    def put(self, key: str, body: bytes | BinaryIO) -> Written:
        """See Store.put."""
        with self._errors("put", key):
            size = size_of(body)
            if size <= self._bucket.largest:
                return self._written(
                    obstore.put(self._client_for(size), key, payload(body), use_multipart=False)
                )
            # In parts: if we are killed meanwhile, they stay in the bucket, and no listing
            # shows them. So that is done only where there is no other way.
            if not isinstance(body, bytes):
                body.seek(0)
            return self._written(obstore.put(self._client, key, body, max_concurrency=4))

    def put_if_absent(self, key: str, body: bytes | BinaryIO) -> Written:
        """See Store.put_if_absent."""
        check_key(key)
        try:
            return self._put_on(key, body, "create")
        except (AlreadyExistsError, PreconditionError) as error:
            raise exists(key, self.identity) from error
        except _CLIENT_FAILURES as error:
            raise translate(error, self._bucket, "put", key) from error

    def create_many(
        self, objects: Iterator[NewObject], at_once: int, remaining: Callable[[], float | None]
    ) -> Iterator[tuple[NewObject, Written | None]]:
        """See CreatesMany.create_many."""
        assert self._bulk_puts is not None
        for one, told in self._bulk_puts.create(objects, at_once, remaining):
            etag = _unquoted(told or "")
            yield one, Written(etag, etag) if etag else None

    def put_if_match(self, key: str, body: bytes | BinaryIO, token: str) -> Written:
        """See Store.put_if_match."""
        mode: UpdateVersion = {"version": token}
        if self._bucket.condition == "e_tag":
            mode = {"e_tag": _quoted(token)}
        with self._errors("put", key):
            try:
                return self._put_on(key, body, mode)
            # A service that sees two conditional writes at once may answer "conflict" to one.
            except (PreconditionError, AlreadyExistsError, FileNotFoundError) as error:
                raise changed(key, self.identity) from error

    def _put_on(
        self, key: str, body: bytes | BinaryIO, mode: Literal["create"] | UpdateVersion
    ) -> Written:
        size = size_of(body)
        if size > self._bucket.largest:
            raise UnsupportedOperationError(
                f"{key} has {size} bytes, and {self.identity} takes at most"
                f" {self._bucket.largest} at once; in parts it could replace what others wrote",
                hint="Save the content as several artifacts.",
            )
        return self._written(obstore.put(self._client_for(size), key, payload(body), mode=mode))

    def _client_for(self, size: int) -> Client:
        """Return a client that waits for an answer as long as so many bytes may be on their way."""
        if size <= _QUICK:
            return self._client
        steps = size.bit_length()
        client = self._patient.get(steps)
        if client is None:
            patience = timedelta(seconds=self._bucket.timeout + (1 << steps) / _SLOWEST)
            longest = max(patience, _LONGEST_REQUEST)
            client = self._make_client(_NO_RETRIES, {"read_timeout": patience, "timeout": longest})
            # Two threads may both make one; the second is as good.
            self._patient[steps] = client
        return client

    def delete(self, key: str) -> None:
        """See Store.delete."""
        with self._errors("delete", key):
            try:
                obstore.delete(self._client, key)
            except FileNotFoundError as error:
                # An object may be gone already; if it is the bucket that is, nothing was removed.
                if isinstance(translate(error, self._bucket, "delete", key), StoreMissingError):
                    raise

    def delete_if_match(self, key: str, token: str) -> None:
        """See Store.delete_if_match. It costs a second request if the condition does not hold."""
        with self._errors("delete", key):
            try:
                self._delete_on(key, self._condition(token))
            except FileNotFoundError as error:
                if isinstance(translate(error, self._bucket, "delete", key), StoreMissingError):
                    raise
            except PreconditionError as error:
                # Some servers say this also about an object that is gone.
                with contextlib.suppress(FileNotFoundError):
                    obstore.head(self._client, key)
                    raise changed(key, self.identity) from error

    def _delete_on(self, key: str, headers: Mapping[str, str]) -> None:
        if self._bucket.signs:
            import ssl

            url = obstore.sign(self._client, "DELETE", key, _SIGNED_FOR)
            try:
                self._signed.send("DELETE", url, headers)
            except ssl.SSLError:
                # Python may not find the certificates that the client trusts.
                if self._bucket.signs_headers:
                    raise
            else:
                return
        client = self._make_client(_NO_RETRIES, {"default_headers": dict(headers)})
        obstore.delete(client, key)

    def _condition(self, token: str) -> Mapping[str, str]:
        if self._bucket.condition == "e_tag":
            return {"If-Match": _quoted(token)}
        return {"x-goog-if-generation-match": token}

    def copy(self, source: str, target: str) -> None:
        """See Store.copy."""
        check_key(target)
        with self._errors("copy", source):
            obstore.copy(self._client, source, target)

    def copy_if_absent(self, source: str, target: str, token: str) -> None:
        """See Store.copy_if_absent."""
        check_key(target)
        with self._errors("copy", source):
            try:
                self._copy_on(source, target, token)
            except (AlreadyExistsError, PreconditionError) as error:
                raise exists(target, self.identity) from error
            except FileNotFoundError as error:
                if isinstance(translate(error, self._bucket, "copy", source), StoreMissingError):
                    raise
                raise changed(source, self.identity) from error

    def _copy_on(self, source: str, target: str, token: str) -> None:
        if self._make_copier is not None:
            copier = self._make_copier(token, _NO_RETRIES, {"read_timeout": _LONGEST_COPY})
            obstore.copy(copier, source, target, overwrite=False)
        elif self._copy_headers is not None:
            url = obstore.sign(self._client, "PUT", target, _SIGNED_FOR)
            signed = obstore.sign(self._client, "GET", source, _SIGNED_FOR)
            self._signed.send("PUT", url, self._copy_headers(signed, _quoted(token)))
        else:
            raise UnsupportedOperationError(
                f"{self.identity} copies nothing on a condition", hint="Upload the content."
            )

    def clock(self) -> datetime:
        """See Store.clock. Whatever the service answers, it dates its answer."""
        return _http_date(self._bucket.clock_url, self._bucket.timeout)

    def close(self) -> None:
        """See Store.close. Those of the client go with the last reference to it."""
        self._signed.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _info(self, meta: ObjectMeta) -> ObjectInfo:
        etag, token = self._names(meta)
        return ObjectInfo(meta["path"], meta["size"], etag, token, meta["last_modified"])

    def _written(self, result: PutResult) -> Written:
        etag, token = self._names(result)
        return Written(etag, token or "")

    def _names(self, described: ObjectMeta | PutResult) -> tuple[str, str | None]:
        etag = _unquoted(described["e_tag"] or "")
        return etag, etag if self._bucket.condition == "e_tag" else described["version"]


def _unquoted(etag: str) -> str:
    """Return an ETag without quotes: listings of Azure leave them out, headers never do."""
    return etag[1:-1] if etag.startswith('"') else etag


def _quoted(etag: str) -> str:
    return etag if etag.startswith("W/") else f'"{etag}"'


def _http_date(url: str, timeout: float) -> datetime:
    import urllib.error
    import urllib.request
    from email.utils import parsedate_to_datetime

    headers: Any
    try:
        request = urllib.request.Request(url, method="HEAD")  # noqa: S310 - checked on config load
        with urllib.request.urlopen(request, timeout=timeout) as answer:  # noqa: S310 - same
            headers = answer.headers
    except urllib.error.HTTPError as error:
        headers = error.headers
        error.close()
    except OSError as error:
        raise StoreUnreachableError(
            f"{url} does not answer: {error}", hint="Check the network and the endpoint."
        ) from error
    try:
        return parsedate_to_datetime(headers["Date"]).astimezone(UTC)
    except (TypeError, ValueError):
        raise StoreUnreachableError(
            f"{url} answers without saying what time it is", hint="Check the endpoint."
        ) from None
