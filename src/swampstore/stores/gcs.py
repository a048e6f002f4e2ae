"""Google Cloud Storage: configuration and how the client is made."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from swampstore.errors import ConfigError
from swampstore.stores.cloud import Bucket, Remedies
from swampstore.stores.config import Fields, Limits, mapping_from_url
from swampstore.stores.errors import StoreCredentialsError
from swampstore.stores.protocol import Store

if TYPE_CHECKING:
    from obstore.store import ClientConfig as ClientOptions
    from obstore.store import GCSConfig as ClientSettings
    from obstore.store import GCSStore, RetryConfig

_BUCKET = re.compile(r"[a-z0-9][a-z0-9._\-]{1,61}[a-z0-9]")
_ENDPOINT = "https://storage.googleapis.com"
# What a URL may say beside what all buckets know.
PARAMETERS = ("apiEndpoint",)
_REMEDIES = Remedies(
    sign_in="Run `gcloud auth application-default login`, or point "
    "GOOGLE_APPLICATION_CREDENTIALS at a service account's key.",
    permissions="the role Storage Object Admin on the bucket",
)


@dataclass(frozen=True, slots=True)
class GcsConfig:
    """`gs://bucket/prefix`, or the same members as a mapping.

    `api_endpoint` is for emulators and switches authentication off.
    """

    bucket: str
    prefix: str = ""
    api_endpoint: str = ""
    limits: Limits = field(default_factory=Limits)

    @classmethod
    def from_url(cls, url: str, environ: Mapping[str, str]) -> Self:
        """Read a `gs://` URL."""
        return cls.from_mapping(mapping_from_url(url, PARAMETERS), environ)

    @classmethod
    def from_mapping(cls, config: Mapping[str, Any], environ: Mapping[str, str]) -> Self:
        """Read the `config` of a datastore; raise ConfigError naming what is wrong."""
        fields = Fields(config)
        bucket = fields.matching("bucket", _BUCKET, "3 to 63 of a-z, 0-9, '.', '_' and '-'")
        if bucket.startswith("goog") or "google" in bucket:
            raise ConfigError(
                f"the store's bucket is {bucket!r}, a name that Google keeps for itself",
                hint="Correct bucket in the datastore's configuration or URL.",
            )
        endpoint = fields.url("apiEndpoint")
        if not endpoint:
            _check_machine_may_be_asked(environ)
        limits = fields.limits(environ, "SWAMP_GCS_REQUEST_TIMEOUT_MS")
        return cls(bucket, fields.prefix(), endpoint, limits)

    @property
    def identity(self) -> str:
        """The place this configuration points at."""
        host = (self.api_endpoint or _ENDPOINT).partition("://")[2]
        return "/".join(filter(None, (f"gs://{host}", self.bucket, self.prefix)))

    def open(self) -> Store:
        """Return the store; nothing is sent yet."""
        from swampstore.stores.obstore_store import open_bucket

        bucket = Bucket(
            self.identity,
            condition="version",
            clock_url=self.api_endpoint or _ENDPOINT,
            timeout=self.limits.request_timeout,
            remedies=_REMEDIES,
            # Only some credentials of Google sign, and they would have to sign the condition.
            signs=False,
            largest=5 << 40,
        )
        return open_bucket(self._client, bucket, self._copier)

    def _copier(self, token: str, retries: RetryConfig, extra: ClientOptions) -> GCSStore:
        # That there is nothing at the target is a condition of the client's own.
        headers = {"x-goog-copy-source-if-generation-match": token}
        return self._client(retries, {**extra, "default_headers": headers})

    def _client(self, retries: RetryConfig, extra: ClientOptions) -> GCSStore:
        from obstore.store import GCSStore

        from swampstore.stores.obstore_store import client_options

        settings: ClientSettings = {}
        if self.api_endpoint:
            # Its `skip_signature` still asks the metadata server for a token before it writes.
            nobody = {"client_email": "", "private_key": "", "private_key_id": ""}
            settings["service_account_key"] = json.dumps(
                {"gcs_base_url": self.api_endpoint, "disable_oauth": True, **nobody}
            )
        return GCSStore(
            self.bucket,
            prefix=self.prefix or None,
            config=settings,
            client_options=client_options(self.limits, self.api_endpoint, extra),
            retry_config=retries,
        )


def _check_machine_may_be_asked(environ: Mapping[str, str]) -> None:
    """Refuse early where no credentials are set and the machine must not be asked for some."""
    home = environ.get("HOME", "")
    if (
        environ.get("NO_GCE_CHECK", "").lower() == "true"
        and not any(name.startswith("GOOGLE_") for name in environ)
        and not os.path.isfile(f"{home}/.config/gcloud/application_default_credentials.json")
    ):
        raise StoreCredentialsError(
            "no credentials for Google Cloud Storage, and NO_GCE_CHECK forbids to ask the machine",
            hint=_REMEDIES.sign_in,
        )
