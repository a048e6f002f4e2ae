"""Azure Blob Storage: configuration and how the client is made."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from swampstore.stores.cloud import Bucket, Remedies
from swampstore.stores.config import Fields, Limits, mapping_from_url
from swampstore.stores.protocol import Store

if TYPE_CHECKING:
    from obstore.store import AzureConfig as ClientSettings
    from obstore.store import AzureStore, RetryConfig
    from obstore.store import ClientConfig as ClientOptions

_CONTAINER = re.compile(r"[a-z0-9](-?[a-z0-9]){2,62}")
# What a URL may say beside what all buckets know.
PARAMETERS = ("account", "endpoint")
# Which version of its protocol Azure is asked to speak.
_VERSION = "2021-12-02"
_REMEDIES = Remedies(
    sign_in="Run `az login`, or set AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN.",
    permissions="the role Storage Blob Data Contributor on the container",
)


@dataclass(frozen=True, slots=True)
class AzureConfig:
    """`az://container/prefix?account=...`, or the same members as a mapping.

    The account is named here or in AZURE_STORAGE_ACCOUNT_NAME; keys and tokens come from the
    environment variables of the Azure tools, else from the session of `az login`.
    """

    container: str
    account: str
    prefix: str = ""
    endpoint: str = ""
    limits: Limits = field(default_factory=Limits)
    account_key: str = field(default="", repr=False)
    ask_cli: bool = False

    @classmethod
    def from_url(cls, url: str, environ: Mapping[str, str]) -> Self:
        """Read an `az://` URL."""
        return cls.from_mapping(mapping_from_url(url, PARAMETERS), environ)

    @classmethod
    def from_mapping(cls, config: Mapping[str, Any], environ: Mapping[str, str]) -> Self:
        """Read the `config` of a datastore; raise ConfigError naming what is wrong."""
        named = {"account": environ.get("AZURE_STORAGE_ACCOUNT_NAME")}
        fields = Fields({**named, **config})
        return cls(
            container=fields.matching("bucket", _CONTAINER, "3 to 63 of a-z, 0-9 and '-'"),
            account=fields.required_text("account"),
            prefix=fields.prefix(),
            endpoint=fields.url("endpoint"),
            limits=fields.limits(environ, "SWAMP_AZURE_REQUEST_TIMEOUT_MS"),
            account_key=fields.text("accountKey") or _key_from(environ),
            ask_cli=_should_ask_cli(environ),
        )

    @property
    def identity(self) -> str:
        """The place this configuration points at."""
        host = self._url().partition("://")[2]
        return "/".join(filter(None, (f"az://{host}", self.container, self.prefix)))

    def _url(self) -> str:
        return self.endpoint or f"https://{self.account}.blob.core.windows.net"

    def open(self) -> Store:
        """Return the store; nothing is sent yet."""
        from swampstore.stores.obstore_store import open_bucket

        bucket = Bucket(
            self.identity,
            condition="e_tag",
            clock_url=self._url(),
            timeout=self.limits.request_timeout,
            remedies=_REMEDIES,
            # With a token it could not; but a token, unlike a key, does not sign headers.
            signs=bool(self.account_key),
            signs_headers=bool(self.account_key),
            largest=5000 << 20,
        )
        # With a token instead of a key, nothing can be signed.
        return open_bucket(
            self._client, bucket, copy_headers=_copy_headers if self.account_key else None
        )

    def _client(self, retries: RetryConfig, extra: ClientOptions) -> AzureStore:
        from obstore.store import AzureStore

        from swampstore.stores.obstore_store import client_options

        settings: ClientSettings = {"account_name": self.account, "disable_tagging": True}
        if self.account_key:
            settings["account_key"] = self.account_key
        elif self.ask_cli:
            settings["use_azure_cli"] = True
        if self.endpoint:
            settings["endpoint"] = self.endpoint
        return AzureStore(
            self.container,
            prefix=self.prefix or None,
            config=settings,
            client_options=client_options(self.limits, self.endpoint, extra),
            retry_config=retries,
        )


def _copy_headers(url: str, token: str) -> dict[str, str]:
    """Return the headers of a copy that is done when it is answered; up to 256 MiB can be."""
    return {
        "x-ms-version": _VERSION,
        "x-ms-requires-sync": "true",
        "x-ms-copy-source": url,
        "x-ms-source-if-match": token,
        "If-None-Match": "*",
    }


def _key_from(environ: Mapping[str, str]) -> str:
    """Return the key that the client would find by itself."""
    return (
        environ.get("AZURE_STORAGE_ACCOUNT_KEY")
        or environ.get("AZURE_STORAGE_ACCESS_KEY")
        or environ.get("AZURE_STORAGE_MASTER_KEY")
        or ""
    )


def _should_ask_cli(environ: Mapping[str, str]) -> bool:
    """Whether `az login` is the only way in: the tool is there, and no variable says otherwise."""
    others = {name for name in environ if name.startswith(("AZURE_", "MSI_", "IDENTITY_"))}
    return others <= {"AZURE_STORAGE_ACCOUNT_NAME"} and bool(
        shutil.which("az", path=environ.get("PATH", ""))
    )
