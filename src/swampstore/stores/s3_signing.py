"""Signatures for requests to S3 that we make ourselves: version 4 of AWS, in a URL or in headers.

They need keys. Where the client finds credentials by itself, only the client can sign.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

from swampstore.stores.protocol import NewObject

if TYPE_CHECKING:
    from swampstore.stores.s3 import AwsCredentials, S3Config

_SIGNED_FOR = "300"
_ALGORITHM = "AWS4-HMAC-SHA256"


class _Moment:
    """What all signatures of one second have in common."""

    def __init__(self, keys: AwsCredentials, region: str, now: datetime) -> None:
        day = f"{now:%Y%m%d}"
        self.second = now.replace(microsecond=0)
        self.time = f"{now:%Y%m%dT%H%M%SZ}"
        self.scope = f"{day}/{region}/s3/aws4_request"
        self.credential = f"{keys.access_key_id}/{self.scope}"
        self._secret = f"AWS4{keys.secret_access_key}".encode()
        for step in self.scope.split("/"):
            self._secret = hmac.digest(self._secret, step.encode(), "sha256")

    def signature(self, request: str) -> str:
        """Return the signature of a request in its canonical form."""
        digest = hashlib.sha256(request.encode()).hexdigest()
        text = f"{_ALGORITHM}\n{self.time}\n{self.scope}\n{digest}"
        return hmac.digest(self._secret, text.encode(), "sha256").hex()


def _path(above: str, key: str) -> str:
    return quote(f"{above}/{key}".rstrip("/") or "/", safe="/~")


def signed_url(
    config: S3Config, method: str, key: str, query: Mapping[str, str], now: datetime
) -> str:
    """Return a URL that allows one request about a bucket or an object, for some minutes."""
    keys = config.credentials
    assert keys is not None
    moment = _Moment(keys, config.region, now)
    parts = urlsplit(config.bucket_url)
    path = _path(parts.path, key)
    members = {
        **query,
        "X-Amz-Algorithm": _ALGORITHM,
        "X-Amz-Credential": moment.credential,
        "X-Amz-Date": moment.time,
        "X-Amz-Expires": _SIGNED_FOR,
        "X-Amz-SignedHeaders": "host",
        **({"X-Amz-Security-Token": keys.session_token} if keys.session_token else {}),
    }
    encoded = "&".join(
        f"{quote(name, safe='~')}={quote(value, safe='~')}"
        for name, value in sorted(members.items())
    )
    request = f"{method}\n{path}\n{encoded}\nhost:{parts.netloc}\n\nhost\nUNSIGNED-PAYLOAD"
    signature = moment.signature(request)
    return f"{parts.scheme}://{parts.netloc}{path}?{encoded}&X-Amz-Signature={signature}"


class CreationHeads:
    """Writes what comes before the content in requests that create an object where there is none.

    The condition is signed, and so is the hash of the content, which S3 compares with what comes.
    """

    def __init__(
        self, config: S3Config, clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        assert config.credentials is not None
        self._keys = config.credentials
        self._region = config.region
        self._clock = clock
        parts = urlsplit(config.bucket_url)
        self._host = parts.netloc
        self._above = f"{parts.path}/{config.prefix}" if config.prefix else parts.path
        self._moment = _Moment(self._keys, self._region, clock())

    def head(self, one: NewObject) -> bytes:
        """Return the head of a request."""
        now = self._clock()
        if now.replace(microsecond=0) != self._moment.second:
            self._moment = _Moment(self._keys, self._region, now)
        moment, path = self._moment, _path(self._above, one.key)
        signed = {
            "host": self._host,
            "if-none-match": "*",
            "x-amz-content-sha256": one.sha256,
            "x-amz-date": moment.time,
        }
        if self._keys.session_token:
            signed["x-amz-security-token"] = self._keys.session_token
        names = ";".join(signed)
        lines = "\n".join(f"{name}:{value}" for name, value in signed.items())
        signature = moment.signature(f"PUT\n{path}\n\n{lines}\n\n{names}\n{one.sha256}")
        headers = lines.replace("\n", "\r\n")
        return (
            f"PUT {path} HTTP/1.1\r\n{headers}\r\ncontent-length:{len(one.data)}\r\n"
            f"authorization:{_ALGORITHM} Credential={moment.credential},"
            f"SignedHeaders={names},Signature={signature}\r\n\r\n"
        ).encode()
