"""MongoDB: configuration, and how a store is opened."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import parse_qsl, quote, unquote, urlencode

from swampstore.errors import ConfigError
from swampstore.redaction import is_secret
from swampstore.stores.config import Fields, Limits, split_url
from swampstore.stores.errors import StoreCredentialsError

if TYPE_CHECKING:
    from swampstore.stores.mongodb_store import MongoStore

_DATABASE, _TENANT, _HOME, _PASSWORD = "swamp", "default", "default", "MONGO_PASSWORD"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
_SCHEMES = ("mongodb", "mongodb+srv")
# What a URL may say, beside what MongoDB's own URLs have.
PARAMETERS = ("tenantId", "collections", "passwordEnv")
_LIMITS = ("requestTimeoutMs", "pullConcurrency", "pushConcurrency")
_BESIDE = ("namespace", "hydrationStrategy", "syncTimeoutMs")
# What the driver may be told. Concerns and preferences are not for a configuration to weaken.
_DRIVER = (
    *("replicaSet", "authSource", "authMechanism", "tls", "ssl", "tlsCAFile", "directConnection"),
    *("tlsCertificateKeyFile", "tlsAllowInvalidCertificates", "loadBalanced", "compressors"),
    *("appName", "srvServiceName", "srvMaxHosts", "zlibCompressionLevel"),
)
_FIXED = {
    "w": "majority",
    "readpreference": "primary",
    "readconcernlevel": "majority",
    "retrywrites": "true",
    "retryreads": "true",
}


@dataclass(frozen=True, slots=True)
class MongoConfig:
    """`mongodb://user@host:27017/database?tenantId=t`, or the same as members of a mapping.

    `uri` has neither a password nor our own parameters. `home` is what the collections of keys
    without a namespace are called after: other clients' own `namespace`.
    """

    uri: str
    database: str = _DATABASE
    tenant: str = _TENANT
    home: str = _HOME
    password: str = field(default="", repr=False)
    limits: Limits = field(default_factory=Limits)

    @classmethod
    def from_url(cls, url: str, environ: Mapping[str, str]) -> Self:
        """Read a `mongodb://` URL."""
        parts = split_url(url)
        members = dict(parse_qsl(parts.query, keep_blank_values=True))
        known = {*PARAMETERS, *_LIMITS, *_BESIDE}
        config: dict[str, Any] = {name: members.pop(name) for name in known & members.keys()}
        for name in _BESIDE:
            config.pop(name, None)  # said beside the store, and read there
        config["namespace"] = config.pop("collections", None)
        config["database"] = unquote(parts.path).strip("/") or None
        query = f"?{urlencode(members)}" if members else ""
        return cls.from_mapping(
            {**config, "uri": f"{parts.scheme}://{parts.netloc}/{query}"}, environ
        )

    @classmethod
    def from_mapping(cls, config: Mapping[str, Any], environ: Mapping[str, str]) -> Self:
        """Read the `config` of a datastore; raise ConfigError naming what is wrong."""
        fields = Fields(config)
        uri, database = _checked_uri(fields.required_text("uri"))
        variable = fields.text("passwordEnv", _PASSWORD)
        name = _NAME, "up to 63 letters, digits, '_' and '-'"
        defaults = {"database": database or _DATABASE, "tenantId": _TENANT, "namespace": _HOME}
        given = Fields({**defaults, **{k: v for k, v in config.items() if v not in (None, "")}})
        return cls(
            uri,
            given.matching("database", *name),
            given.matching("tenantId", *name),
            given.matching("namespace", *name),
            environ.get(variable, ""),
            fields.limits(environ, "SWAMP_MONGODB_REQUEST_TIMEOUT_MS"),
        )

    @property
    def identity(self) -> str:
        """The place this configuration points at."""
        parts = split_url(self.uri)
        hosts = ",".join(sorted(parts.netloc.rpartition("@")[2].lower().split(",")))
        return f"{parts.scheme}://{hosts}/{self.database}/{self.tenant}/{self.home}"

    def open(self) -> MongoStore:
        """Return the store; nothing is sent yet."""
        from swampstore.stores.mongodb_client import Connection
        from swampstore.stores.mongodb_store import MongoStore

        milliseconds = int(self.limits.request_timeout * 1000)
        options: dict[str, Any] = {
            "w": "majority",
            "readConcernLevel": "majority",
            "readPreference": "primary",
            "retryWrites": True,
            "retryReads": True,
            "serverSelectionTimeoutMS": min(milliseconds, 10_000),
            "connectTimeoutMS": min(milliseconds, 10_000),
            "socketTimeoutMS": milliseconds,
            "maxPoolSize": max(self.limits.pull_concurrency, self.limits.push_concurrency) + 8,
            "appname": "swampstore",
        }
        connection = Connection(self._with_password(), options, self.database, self.identity)
        return MongoStore(connection, self.tenant, self.home)

    def _with_password(self) -> str:
        scheme, _, rest = self.uri.partition("://")
        user, at, hosts = rest.rpartition("@")
        if at and not self.password and "authmechanism" not in rest.lower():
            raise StoreCredentialsError(
                f"the password of {unquote(user)} for {self.identity} is not set",
                hint=f"Set {_PASSWORD}, or the variable that passwordEnv names, in the environment"
                " or in the file .env of the repository.",
            )
        if not at or not self.password:
            return self.uri
        return f"{scheme}://{user}:{quote(self.password, safe='')}@{hosts}"


def password_variable(target: str, config: Mapping[str, Any]) -> str:
    """Return the variable that has the password, of a URL or of a type with its members."""
    told: Any = config.get("passwordEnv")
    if "://" in target:
        told = dict(parse_qsl(split_url(target).query)).get("passwordEnv")
    return told if isinstance(told, str) and told else _PASSWORD


def password_in(path: str, variable: str) -> str | None:
    """Return what a file of lines such as NAME=value says about a variable, if anything."""
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read().splitlines()
    except (OSError, UnicodeDecodeError):
        return None
    for line in lines:
        name, equals, value = line.strip().removeprefix("export ").partition("=")
        if equals and name.strip() == variable:
            value = value.strip()
            is_quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
            return value[1:-1] if is_quoted else value
    return None


def _checked_uri(uri: str) -> tuple[str, str]:
    """Return an address without its database, and that; raise ConfigError naming what is wrong."""
    parts = split_url(uri)
    if parts.scheme not in _SCHEMES or not parts.netloc.rpartition("@")[2]:
        raise ConfigError(
            "the store's uri is no address of MongoDB",
            hint="Write mongodb://user@host:27017/database, without a password.",
        )
    user = parts.netloc.rpartition("@")[0]
    members = dict(parse_qsl(parts.query, keep_blank_values=True))
    if ":" in user or any(is_secret(name) for name in members):
        raise ConfigError(
            "a store URL must not hold credentials",
            hint=f"Leave the password out: it is read from {_PASSWORD}, or from the variable that"
            " passwordEnv names.",
        )
    _check_members(members)
    kept = {name: value for name, value in members.items() if name.lower() not in _FIXED}
    query = f"?{urlencode(kept)}" if kept else ""
    return f"{parts.scheme}://{parts.netloc}/{query}", unquote(parts.path).strip("/")


def _check_members(members: Mapping[str, str]) -> None:
    known = {name.lower() for name in _DRIVER}
    for name, value in members.items():
        fixed = _FIXED.get(name.lower())
        if fixed is not None and value.lower() != fixed:
            raise ConfigError(
                f"the store's uri sets {name} to {value!r}; sync relies on {fixed!r}",
                hint=f"Leave {name} out of the URL. Data that only some members of a replica set"
                " have, or that a secondary does not have yet, would be taken for missing.",
            )
        if fixed is None and name.lower() not in known:
            raise ConfigError(
                f"a URL of this kind of store has no parameter {name!r}",
                hint=f"There are {', '.join(sorted({*PARAMETERS, *_LIMITS, *_BESIDE, *_DRIVER}))}.",
            )
