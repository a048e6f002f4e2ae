"""A small Google Cloud Storage: the part of its XML and JSON interfaces that clients need.

Generations, their preconditions, ETags, paged listings and copies behave as Google documents
them. There is no authentication and nothing is kept.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import threading
from email.utils import formatdate
from http import HTTPStatus
from typing import NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from tests.support.http_server import Answer, Request, Server

PAGE = 1000


class Blob(NamedTuple):
    data: bytes
    generation: int
    modified: float

    @property
    def etag(self) -> str:
        return f'"{hashlib.md5(self.data).hexdigest()}"'


class GcsServer(Server):
    """Buckets are made by their first use, except those whose name starts with `missing`."""

    def __init__(self) -> None:
        super().__init__()
        self.listings = 0
        self._lock = threading.Lock()
        self._buckets: dict[str, dict[str, Blob]] = {}
        self._generations = itertools.count(1_700_000_000_000_001)
        self._uploads: dict[str, dict[int, bytes]] = {}

    def answer(self, request: Request) -> Answer:
        parts = urlsplit(request.target)
        query = {
            name: values[0]
            for name, values in parse_qs(parts.query, keep_blank_values=True).items()
        }
        segments = [unquote(segment) for segment in parts.path.lstrip("/").split("/", 1)]
        if parts.path.startswith("/storage/v1/b/"):
            return self._rewrite(parts.path)
        if not segments[0]:
            return _error(HTTPStatus.BAD_REQUEST, "InvalidURI")
        if segments[0].startswith("missing"):
            return _error(HTTPStatus.NOT_FOUND, "NoSuchBucket")
        with self._lock:
            bucket = self._buckets.setdefault(segments[0], {})
            if len(segments) == 1 or not segments[1]:
                return self._list(bucket, query)
            if "uploads" in query or "uploadId" in query:
                return self._multipart(bucket, segments[1], query, request)
            return self._object(bucket, segments[1], request)

    def _object(self, bucket: dict[str, Blob], key: str, request: Request) -> Answer:
        found = bucket.get(key)
        refusal = _precondition(found, request)
        if refusal:
            return refusal
        if request.method == "PUT":
            return self._put(bucket, key, request)
        if found is None:
            return _error(HTTPStatus.NOT_FOUND, "NoSuchKey")
        if request.method == "DELETE":
            del bucket[key]
            return Answer(HTTPStatus.NO_CONTENT)
        if request.headers.get("if-none-match") == found.etag:
            return Answer(HTTPStatus.NOT_MODIFIED, headers={"etag": found.etag})
        headers = {**_names(found), "last-modified": formatdate(found.modified, usegmt=True)}
        return _ranged(found.data, request, headers)

    def _put(self, bucket: dict[str, Blob], key: str, request: Request) -> Answer:
        data = request.body
        source = request.headers.get("x-goog-copy-source")
        if source:
            name, _, path = unquote(source).lstrip("/").partition("/")
            original = self._buckets.get(name, {}).get(path)
            if original is None:
                return _error(HTTPStatus.NOT_FOUND, "NoSuchKey")
            wanted = request.headers.get("x-goog-copy-source-if-generation-match")
            if wanted is not None and int(wanted) != original.generation:
                return _error(HTTPStatus.PRECONDITION_FAILED, "PreconditionFailed")
            data = original.data
        blob = self._store(bucket, key, data, request.time)
        return Answer(headers=_names(blob), body=b"<CopyObjectResult/>" if source else b"")

    def _store(self, bucket: dict[str, Blob], key: str, data: bytes, time: float) -> Blob:
        bucket[key] = Blob(data, next(self._generations), time)
        return bucket[key]

    def _multipart(
        self, bucket: dict[str, Blob], key: str, query: dict[str, str], request: Request
    ) -> Answer:
        if "uploads" in query:
            upload = f"upload-{next(self._generations)}"
            self._uploads[upload] = {}
            body = (
                "<InitiateMultipartUploadResult><Bucket>b</Bucket>"
                f"<Key>{escape(key)}</Key><UploadId>{upload}</UploadId>"
                "</InitiateMultipartUploadResult>"
            )
            return Answer(body=body.encode())
        parts = self._uploads.get(query["uploadId"])
        if parts is None:
            return _error(HTTPStatus.NOT_FOUND, "NoSuchUpload")
        if request.method == "PUT":
            parts[int(query["partNumber"])] = request.body
            return Answer(headers={"etag": f'"{hashlib.md5(request.body).hexdigest()}"'})
        del self._uploads[query["uploadId"]]
        if request.method == "DELETE":
            return Answer(HTTPStatus.NO_CONTENT)
        data = b"".join(parts[number] for number in sorted(parts))
        blob = self._store(bucket, key, data, request.time)
        result = "CompleteMultipartUploadResult"
        body = f"<{result}><ETag>{escape(blob.etag)}</ETag></{result}>"
        return Answer(headers=_names(blob), body=body.encode())

    def _list(self, bucket: dict[str, Blob], query: dict[str, str]) -> Answer:
        self.listings += 1
        prefix = query.get("prefix", "")
        after = max(query.get("continuation-token", ""), query.get("start-after", ""))
        names = {_up_to(key, prefix, query.get("delimiter")) for key in bucket}
        keys = sorted(name for name in names if name.startswith(prefix) and name > after)
        page = keys[: int(query.get("max-keys", PAGE))]
        more = len(page) < len(keys)
        entries = "".join(
            _entry(key, bucket[key])
            if key in bucket
            else f"<CommonPrefixes><Prefix>{escape(key)}</Prefix></CommonPrefixes>"
            for key in page
        )
        token = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if more else ""
        body = (
            f"<ListBucketResult><Prefix>{escape(prefix)}</Prefix>"
            f"<IsTruncated>{str(more).lower()}</IsTruncated>{token}{entries}</ListBucketResult>"
        )
        return Answer(body=body.encode())

    def _rewrite(self, path: str) -> Answer:
        """Copy in one call, the way the JSON interface does for what lies in one place."""
        _, _, _, _, source_bucket, _, source, _, _, bucket, _, key = path.split("/")
        with self._lock:
            original = self._buckets.get(unquote(source_bucket), {}).get(unquote(source))
            if original is None:
                body = json.dumps({"error": {"code": 404, "errors": [{"reason": "notFound"}]}})
                return Answer(HTTPStatus.NOT_FOUND, body=body.encode())
            target = self._buckets.setdefault(unquote(bucket), {})
            blob = self._store(target, unquote(key), original.data, original.modified)
        document = {"done": True, "resource": {"generation": str(blob.generation)}}
        return Answer(body=json.dumps(document).encode())


def _up_to(key: str, prefix: str, delimiter: str | None) -> str:
    """Return a key, or what comes before and with the first delimiter behind the prefix."""
    rest, found, _ = key.removeprefix(prefix).partition(delimiter or "\0")
    return f"{prefix}{rest}{found}" if found and key.startswith(prefix) else key


def _precondition(found: Blob | None, request: Request) -> Answer | None:
    expected = request.headers.get("x-goog-if-generation-match")
    if expected is not None and int(expected) != (found.generation if found else 0):
        return _error(HTTPStatus.PRECONDITION_FAILED, "PreconditionFailed")
    return None


def _ranged(data: bytes, request: Request, headers: dict[str, str]) -> Answer:
    wanted = request.headers.get("range", "")
    if not wanted:
        return Answer(headers=headers, body=data)
    start, _, end = wanted.removeprefix("bytes=").partition("-")
    low, high = int(start), min(int(end or len(data)), len(data) - 1)
    headers = {**headers, "content-range": f"bytes {low}-{high}/{len(data)}"}
    return Answer(HTTPStatus.PARTIAL_CONTENT, headers, data[low : high + 1])


def _names(blob: Blob) -> dict[str, str]:
    return {"etag": blob.etag, "x-goog-generation": str(blob.generation)}


def _entry(key: str, blob: Blob) -> str:
    from datetime import UTC, datetime

    modified = datetime.fromtimestamp(blob.modified, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return (
        f"<Contents><Key>{escape(key)}</Key><Generation>{blob.generation}</Generation>"
        f"<LastModified>{modified}</LastModified><ETag>{escape(blob.etag)}</ETag>"
        f"<Size>{len(blob.data)}</Size></Contents>"
    )


def _error(status: HTTPStatus, code: str) -> Answer:
    body = f"<?xml version='1.0' encoding='UTF-8'?><Error><Code>{code}</Code></Error>"
    return Answer(status, body=body.encode())
