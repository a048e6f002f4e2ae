"""Uploads in parts that nobody finished: they stay in a bucket of S3, and no listing shows them.

Nothing is written in parts here that fits into one request, but other programs do, and earlier
releases did. The client can neither list nor abort such uploads, so those requests are signed
here. That needs keys; where the client finds credentials by itself, nothing can be told.
"""

from __future__ import annotations

import hashlib
import hmac
import html
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import NamedTuple
from urllib.parse import quote, urlsplit

from swampstore.stores.errors import StoreError, StoreUnreachableError
from swampstore.stores.registry import StoreConfig
from swampstore.stores.s3 import S3Config

_UPLOAD = re.compile(r"<Upload>(.*?)</Upload>", re.DOTALL)
_SIGNED_FOR = "300"
_LONGEST_TEXT = 500


class Unfinished(NamedTuple):
    """An upload that was begun and neither finished nor aborted."""

    key: str
    upload: str
    begun: datetime


class UnfinishedUploads:
    """The unfinished uploads of one place."""

    def __init__(self, config: S3Config) -> None:
        self._config = config

    def list(self) -> list[Unfinished]:
        """Return the uploads below the prefix, 1,000 at most. Raises StoreError."""
        prefix = f"{self._config.prefix}/" if self._config.prefix else ""
        text = self._ask("GET", "", {"uploads": "", "prefix": prefix})
        return [_read(one, prefix) for one in _UPLOAD.findall(text)]

    def abort(self, one: Unfinished) -> None:
        """Remove what has arrived of an upload. Raises StoreError."""
        prefix = f"{self._config.prefix}/" if self._config.prefix else ""
        self._ask("DELETE", prefix + one.key, {"uploadId": one.upload})

    def _ask(self, method: str, key: str, query: Mapping[str, str]) -> str:
        from obstore.exceptions import BaseError

        from swampstore.stores.signed_requests import SignedRequests

        url = signed_url(self._config, method, key, query, datetime.now(UTC))
        requests = SignedRequests(self._config.limits.request_timeout)
        try:
            return requests.send(method, url, {}).decode(errors="replace")
        except FileNotFoundError:
            return ""  # somebody was faster
        except BaseError as error:
            raise StoreError(
                f"{self._config.identity} refused to tell about unfinished uploads:"
                f" {' '.join(str(error).split())[:_LONGEST_TEXT]}",
                hint="The credentials need s3:ListBucketMultipartUploads and"
                " s3:AbortMultipartUpload.",
            ) from error
        except OSError as error:
            raise StoreUnreachableError(
                f"{self._config.identity} did not answer: {error}", hint="Try again."
            ) from error
        finally:
            requests.close()


def unfinished_uploads(config: StoreConfig) -> UnfinishedUploads | None:
    """Return the unfinished uploads of a place, None where they cannot be told."""
    if isinstance(config, S3Config) and config.credentials is not None:
        return UnfinishedUploads(config)
    return None


def _read(text: str, prefix: str) -> Unfinished:
    def member(name: str) -> str:
        found = re.search(f"<{name}>(.*?)</{name}>", text, re.DOTALL)
        return html.unescape(found[1]) if found else ""

    begun = datetime.fromisoformat(member("Initiated"))
    return Unfinished(member("Key").removeprefix(prefix), member("UploadId"), begun)


def signed_url(
    config: S3Config, method: str, key: str, query: Mapping[str, str], now: datetime
) -> str:
    """Return a URL that allows one request about a bucket or an object, for some minutes."""
    keys = config.credentials
    assert keys is not None
    day, time = f"{now:%Y%m%d}", f"{now:%Y%m%dT%H%M%SZ}"
    scope = f"{day}/{config.region}/s3/aws4_request"
    parts = urlsplit(config.bucket_url)
    path = quote(f"{parts.path}/{key}".rstrip("/") or "/", safe="/~")
    members = {
        **query,
        "X-Amz-Algorithm": "AWS4-HMAC-SHA256",
        "X-Amz-Credential": f"{keys.access_key_id}/{scope}",
        "X-Amz-Date": time,
        "X-Amz-Expires": _SIGNED_FOR,
        "X-Amz-SignedHeaders": "host",
        **({"X-Amz-Security-Token": keys.session_token} if keys.session_token else {}),
    }
    encoded = "&".join(
        f"{quote(name, safe='~')}={quote(value, safe='~')}"
        for name, value in sorted(members.items())
    )
    request = f"{method}\n{path}\n{encoded}\nhost:{parts.netloc}\n\nhost\nUNSIGNED-PAYLOAD"
    digest = hashlib.sha256(request.encode()).hexdigest()
    secret = f"AWS4{keys.secret_access_key}".encode()
    for step in (day, config.region, "s3", "aws4_request"):
        secret = hmac.digest(secret, step.encode(), "sha256")
    text = f"AWS4-HMAC-SHA256\n{time}\n{scope}\n{digest}"
    signature = hmac.digest(secret, text.encode(), "sha256").hex()
    return f"{parts.scheme}://{parts.netloc}{path}?{encoded}&X-Amz-Signature={signature}"
