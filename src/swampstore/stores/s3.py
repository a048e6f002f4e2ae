"""S3 and everything that speaks its protocol.

Its configuration, where credentials come from, how the client is made, and uploads in parts that
nobody finished.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from html import unescape
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from swampstore.clock import from_iso
from swampstore.stores.cloud import Bucket, Remedies
from swampstore.stores.config import Fields, Limits, StoreConfig, mapping_from_url
from swampstore.stores.errors import StoreCredentialsError, StoreError, StoreUnreachableError
from swampstore.stores.protocol import Store
from swampstore.stores.s3_signing import CreationHeads, signed_url

if TYPE_CHECKING:
    from obstore.store import ClientConfig as ClientOptions
    from obstore.store import RetryConfig, S3Credential, S3CredentialProvider, S3Store
    from obstore.store import S3Config as ClientSettings

    from swampstore.stores.bulk_puts import BulkPuts

_BUCKET = re.compile(r"[a-z0-9][a-z0-9.\-]{1,61}[a-z0-9]")
_DEFAULT_REGION = "us-east-1"
_CLIENT_FINDS = (
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
_NEEDS_TOOLS = frozenset({"credential_process", "role_arn", "source_profile"})
_UPLOAD = re.compile(r"<Upload>(.*?)</Upload>", re.DOTALL)
_LONGEST_TEXT = 500
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
        return open_bucket(self._client, bucket, self._copier, bulk_puts=self._bulk_puts())

    def _bulk_puts(self) -> BulkPuts | None:
        """Return how many small objects are created at once, None where only the client can.

        That is so where it encrypts what it sends, or finds credentials by itself.
        """
        if not self.endpoint.startswith("http://") or self.credentials is None:
            return None
        from swampstore.stores.bulk_puts import BulkPuts

        heads = CreationHeads(self)
        return BulkPuts(self.bucket_url, self.limits.request_timeout, heads.head)

    def _copier(self, token: str, retries: RetryConfig, extra: ClientOptions) -> S3Store:
        # The client signs what is in its settings, as S3 wants it of headers of its own.
        condition = f'header: x-amz-copy-source-if-match: "{token}"'
        headers = {"If-None-Match": "*"}
        return self._client(retries, {**extra, "default_headers": headers}, condition)

    def _client(
        self, retries: RetryConfig, extra: ClientOptions, copy_if_not_exists: str = ""
    ) -> S3Store:
        from obstore.store import S3Store

        from swampstore.stores.obstore_store import client_options

        settings: ClientSettings = {
            "region": self.region,
            "virtual_hosted_style_request": not self.path_style,
            "disable_bulk_delete": True,
            "disable_tagging": True,
        }
        if copy_if_not_exists:
            settings["copy_if_not_exists"] = copy_if_not_exists
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


def from_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return what the environment says about where a bucket is, which is no secret."""
    region = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or ""
    endpoint = _endpoint_from(environ)
    found = {"endpoint": endpoint, "region": region}
    return {name: value for name, value in found.items() if value and "@" not in value}


def _endpoint_from(environ: Mapping[str, str]) -> str:
    named = {
        "endpoint": environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL") or None
    }
    return Fields(named).url("endpoint")


# Where credentials come from, in the order that AWS tools look for them. The client itself knows
# web identities, containers and instances; what it does not know are the files of `~/.aws`. To look
# for an instance's credentials costs a request to a link-local address, so it is not done where
# AWS_EC2_METADATA_DISABLED says so; that decision concerns one client and never touches the
# environment of the process.


@dataclass(frozen=True, slots=True)
class AwsCredentials:
    """A key pair, with the token of the session if there is one."""

    access_key_id: str
    secret_access_key: str = field(repr=False)
    session_token: str = field(default="", repr=False)


def find_credentials(
    fields: Fields, environ: Mapping[str, str]
) -> tuple[AwsCredentials | None, str]:
    """Return the credentials and the region, from the configuration, environment or profile.

    None means that the client finds them by itself. Raises StoreCredentialsError if there is no
    place left to look.
    """
    region = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or ""
    if fields.text("accessKeyId"):
        return _pair(fields.text, "accessKeyId", "secretAccessKey", "sessionToken"), region
    if environ.get("AWS_ACCESS_KEY_ID"):
        names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
        return _pair(lambda name: environ.get(name, ""), *names), region
    profile = _profile(environ)
    region = region or profile.get("region", "")
    if profile.get("aws_access_key_id"):
        names = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
        return _pair(lambda name: profile.get(name, ""), *names), region
    _check_profile_is_plain(profile, environ)
    if not any(environ.get(name) for name in _CLIENT_FINDS):
        _check_instance_may_be_asked(environ)
    return None, region


def _pair(read: Callable[[str], str], key: str, secret: str, token: str) -> AwsCredentials:
    if not read(secret):
        raise StoreCredentialsError(
            f"{key} is set, {secret} is not", hint=f"Set {secret}, or remove {key}."
        )
    return AwsCredentials(read(key), read(secret), read(token))


def _check_profile_is_plain(profile: Mapping[str, str], environ: Mapping[str, str]) -> None:
    """Refuse a profile that needs the AWS tools, rather than look for credentials elsewhere."""
    if any(member.startswith("sso_") or member in _NEEDS_TOOLS for member in profile):
        name = environ.get("AWS_PROFILE") or "default"
        raise StoreCredentialsError(
            f"the AWS profile {name!r} holds no keys, only where the AWS tools get them",
            hint=f"Run `aws sso login --profile '{name}'` if it is a single sign-on, then "
            f"`eval $(aws configure export-credentials --profile '{name}' --format env)`.",
        )


def _check_instance_may_be_asked(environ: Mapping[str, str]) -> None:
    if environ.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true":
        raise StoreCredentialsError(
            "no credentials for S3: none in the environment, none in the AWS profile, and "
            "AWS_EC2_METADATA_DISABLED forbids to ask the machine for some",
            hint="Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or run `aws configure`; for a "
            "single sign-on session, `eval $(aws configure export-credentials --format env)`.",
        )


def _profile(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the members of the chosen profile in both of the AWS files."""
    import configparser

    name = environ.get("AWS_PROFILE") or "default"
    home = f"{environ.get('HOME', '')}/.aws"
    credentials = environ.get("AWS_SHARED_CREDENTIALS_FILE") or f"{home}/credentials"
    config = environ.get("AWS_CONFIG_FILE") or f"{home}/config"
    sections = ((config, name if name == "default" else f"profile {name}"), (credentials, name))
    members: dict[str, str] = {}
    for path, section in sections:
        parser = configparser.RawConfigParser()
        try:
            if os.path.isfile(path):
                parser.read(path, encoding="utf-8")
        except (configparser.Error, UnicodeDecodeError) as error:
            raise StoreCredentialsError(
                f"{path} cannot be read: {error}", hint="Repair it."
            ) from error
        if parser.has_section(section):
            members.update(parser.items(section))
    return members


# Uploads in parts that nobody finished stay in a bucket, and no listing shows them. Nothing is
# written in parts here that fits into one request, but other programs do, and earlier releases did.
# The client can neither list nor abort such uploads, so those requests are signed here. That needs
# keys; where the client finds credentials by itself, nothing can be told.


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
        text = self.ask("GET", "", {"uploads": "", "prefix": prefix})
        return [_read(one, prefix) for one in _UPLOAD.findall(text)]

    def abort(self, one: Unfinished) -> None:
        """Remove what has arrived of an upload. Raises StoreError."""
        prefix = f"{self._config.prefix}/" if self._config.prefix else ""
        self.ask("DELETE", prefix + one.key, {"uploadId": one.upload})

    def ask(self, method: str, key: str, query: Mapping[str, str]) -> str:
        """Return what the bucket answers to a signed request; raise StoreError."""
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


def keeps_versions(config: StoreConfig) -> bool | None:
    """Whether a bucket keeps what is overwritten or deleted; None if it does not tell."""
    uploads = unfinished_uploads(config)
    if uploads is None:
        return None
    try:
        return "<Status>Enabled</Status>" in uploads.ask("GET", "", {"versioning": ""})
    except StoreError:  # the credentials may be allowed less than that
        return None


def _read(text: str, prefix: str) -> Unfinished:
    def member(name: str) -> str:
        found = re.search(f"<{name}>(.*?)</{name}>", text, re.DOTALL)
        return unescape(found[1]) if found else ""

    begun = from_iso(member("Initiated"))
    return Unfinished(member("Key").removeprefix(prefix), member("UploadId"), begun)
