"""Signatures for requests to S3 that we make ourselves: version 4 of AWS.

They need keys. Where the client finds credentials by itself, only the client can sign.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

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
