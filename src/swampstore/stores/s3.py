"""S3 and everything that speaks its protocol: configuration and how the client is made."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from swampstore.stores.aws_credentials import AwsCredentials, find_credentials
from swampstore.stores.cloud import Bucket, Remedies
from swampstore.stores.config_fields import Fields, Limits, mapping_from_url
from swampstore.stores.protocol import Store

if TYPE_CHECKING:
    from obstore.store import ClientConfig as ClientOptions
    from obstore.store import RetryConfig, S3Credential, S3CredentialProvider, S3Store
    from obstore.store import S3Config as ClientSettings

_BUCKET = re.compile(r"[a-z0-9][a-z0-9.\-]{1,61}[a-z0-9]")
_DEFAULT_REGION = "us-east-1"
# What a URL may say beside what all buckets know.
PARAMETERS = ("region", "endpoint", "forcePathStyle")
_REMEDIES = Remedies(
    sign_in="Sign in (`aws sso login`, with --profile if AWS_PROFILE is set) or set "
    "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.",
    permissions="s3:ListBucket on the bucket, and s3:GetObject, s3:PutObject and "
    "s3:DeleteObject on its objects",
)


@dataclass(frozen=True, slots=True)
class S3Config:
    """`s3://bucket/prefix?region=...&endpoint=...`, or the same members as a mapping."""

    bucket: str
    prefix: str = ""
    region: str = _DEFAULT_REGION
    endpoint: str = ""
    path_style: bool = False
    limits: Limits = field(default_factory=Limits)
    credentials: AwsCredentials | None = field(default=None, repr=False)

    @classmethod
    def from_url(cls, url: str, environ: Mapping[str, str]) -> Self:
        """Read an `s3://` URL."""
        return cls.from_mapping(mapping_from_url(url, PARAMETERS), environ)

    @classmethod
    def from_mapping(cls, config: Mapping[str, Any], environ: Mapping[str, str]) -> Self:
        """Read the `config` of a datastore; raise ConfigError naming what is wrong."""
        fields = Fields(config)
        endpoint = fields.url("endpoint") or _endpoint_from(environ)
        bucket = fields.matching("bucket", _BUCKET, "3 to 63 of a-z, 0-9, '.' and '-'")
        credentials, region = find_credentials(fields, environ)
        return cls(
            bucket=bucket,
            prefix=fields.prefix(),
            region=fields.text("region") or region or _DEFAULT_REGION,
            endpoint=endpoint,
            # Servers of one's own rarely have a host name per bucket.
            path_style=fields.flag("forcePathStyle", default=bool(endpoint)),
            limits=fields.limits(environ, "SWAMP_S3_REQUEST_TIMEOUT_MS"),
            credentials=credentials,
        )

    @property
    def identity(self) -> str:
        """The place this configuration points at."""
        host = self.endpoint.partition("://")[2] or "amazonaws.com"
        return "/".join(filter(None, (f"s3://{host}", self.bucket, self.prefix)))

    @property
    def bucket_url(self) -> str:
        """Where the bucket answers."""
        if self.endpoint:
            return f"{self.endpoint}/{self.bucket}" if self.path_style else self._bucket_endpoint()
        if self.path_style:
            return f"https://s3.{self.region}.amazonaws.com/{self.bucket}"
        return f"https://{self.bucket}.s3.{self.region}.amazonaws.com"

    def open(self) -> Store:
        """Return the store; nothing is sent yet."""
        from swampstore.stores.obstore_store import open_bucket

        bucket = Bucket(
            self.identity,
            condition="e_tag",
            clock_url=self.endpoint or f"https://s3.{self.region}.amazonaws.com",
            timeout=self.limits.request_timeout,
            remedies=_REMEDIES,
            signs=True,
            largest=5 << 30,
            repeats_tokens=True,
        )
        return open_bucket(self._client, bucket)

    def _client(self, retries: RetryConfig, extra: ClientOptions) -> S3Store:
        from obstore.store import S3Store

        from swampstore.stores.obstore_store import client_options

        settings: ClientSettings = {
            "region": self.region,
            "virtual_hosted_style_request": not self.path_style,
            "disable_bulk_delete": True,
            "disable_tagging": True,
        }
        if self.endpoint:
            # Under its plain name the client would prefer AWS_ENDPOINT_URL_S3.
            settings["aws_endpoint_url_s3"] = self._bucket_endpoint()
        return S3Store(
            self.bucket,
            prefix=self.prefix or None,
            config=settings,
            client_options=client_options(self.limits, self.endpoint, extra),
            retry_config=retries,
            credential_provider=self._provider(),
        )

    def _provider(self) -> S3CredentialProvider | None:
        """Hand over the keys as a whole: the client would add a session token that it finds."""
        credentials = self.credentials
        if credentials is None:
            return None
        pair: S3Credential = {
            "access_key_id": credentials.access_key_id,
            "secret_access_key": credentials.secret_access_key,
            "token": credentials.session_token or None,
            "expires_at": None,
        }
        return lambda: pair

    def _bucket_endpoint(self) -> str:
        if self.path_style:
            return self.endpoint
        # The client expects the bucket in the host name already.
        scheme, _, host = self.endpoint.partition("://")
        return f"{scheme}://{self.bucket}.{host}"


def _endpoint_from(environ: Mapping[str, str]) -> str:
    named = {
        "endpoint": environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL") or None
    }
    return Fields(named).url("endpoint")
