"""Where a repository is, and what `.swamp.yaml` and the environment say about it.

Options beat the environment, and that beats the file. So for the datastore: the command line, then
`SWAMP_DATASTORE`, then the file, then the default `{repo}/.swamp`. The first two replace where the
data is; `namespace`, `directories` and `exclude` of the file still hold, and `SWAMP_NAMESPACE`
replaces the namespace. The datastore tier of a remote is a cache on this machine.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from swampstore.datastore_address import FILESYSTEM, Address, prefix_of, scheme_of, wrong_setting
from swampstore.errors import (
    ConfigError,
    ValidationError,
)
from swampstore.formats import LONGEST_TTL_MS, whole_number
from swampstore.layout import (
    DATASTORE_SUBDIRS,
    LOCAL_DIR,
    MARKER,
    check_namespace,
    check_segment,
)
from swampstore.marker import read_marker
from swampstore.routing import Routing
from swampstore.setting_keys import check_settings

DEFAULT_SYNC_TIMEOUT_MS = 300_000
LONGEST_SYNC_TIMEOUT_MS = 21_600_000
# Ten years: the system refuses to wait for much longer.
_LONGEST_WAIT_MS = 10 * 365 * 24 * 3600 * 1000
DEFAULT_EPHEMERAL_BUDGET = 512 * 1024 * 1024
_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_][A-Za-z0-9_]*)\}|([A-Za-z_][A-Za-z0-9_]*))")
_SIZE = re.compile(r"(\d{1,18})\s*(b|k|kb|m|mb|g|gb|t|tb)?", re.IGNORECASE | re.ASCII)
_UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_OFF = frozenset({"0", "off", "false", "no"})


Hydration = Literal["full", "lazy"]
_HYDRATIONS: tuple[Hydration, ...] = ("full", "lazy")
_OF_THE_CACHE = frozenset({"hydrationStrategy", "syncTimeoutMs"})
_GOOGLE = frozenset({"gs", "gcs", "@swamp/gcs-datastore"})
_MONGODB = frozenset({"mongodb", "mongodb+srv", "@swamp/mongodb-datastore"})


class LockSettings(NamedTuple):
    """How many seconds to wait for the locks of others, and how long a lock lives unrefreshed."""

    timeout: float = 60.0
    ttl: float = 30.0


@dataclass(frozen=True, slots=True)
class RemoteSettings:
    """What a cache is synced with: a URL, or a type with its members, which are not checked yet.

    `hydration` says whether a pull brings content too, `sync_timeout` how many seconds one
    direction of a sync may take, `cache_limit` how many bytes of content may stay here.
    """

    target: str
    config: Mapping[str, Any] = field(default_factory=dict, repr=False)  # may hold credentials
    hydration: Hydration = "lazy"
    sync_timeout: float = DEFAULT_SYNC_TIMEOUT_MS / 1000
    cache_limit: int | None = None

    @property
    def kind(self) -> str:
        """The name of the type."""
        return scheme_of(self.target)

    @property
    def place(self) -> tuple[str, Mapping[str, Any]]:
        """What it is, whatever is kept of it here."""
        settings = {name: value for name, value in self.config.items() if name not in _OF_THE_CACHE}
        return self.target, settings

    @property
    def prefix(self) -> str:
        """What comes before every key of a bucket, without slashes around it; not checked."""
        return prefix_of(self.target, self.config)

    @property
    def is_lazy(self) -> bool:
        """Whether a pull leaves content on the remote until it is read."""
        return self.hydration == "lazy"

    def deadline(self, timeout: float | None) -> float:
        """Return how many seconds one direction of a sync gets: these, or those configured."""
        return timeout or self.sync_timeout

    @property
    def is_mongodb(self) -> bool:
        """Whether it is a database, whose password may be in a file of the repository."""
        return self.kind in _MONGODB

    @property
    def is_google(self) -> bool:
        """Whether it is Google's, where other clients tell objects apart by generation."""
        return self.kind in _GOOGLE


@dataclass(frozen=True, slots=True)
class Config:
    """Everything the parts need to know, checked.

    `base` is where the datastore tier is on this machine: of a remote, its cache. `bulk` is what
    the marker says of bulk work; it is checked where that begins.
    """

    repo_dir: str
    repo_id: str
    base: str
    namespace: str = ""
    routing: Routing = field(default_factory=Routing)
    auto_gc: bool = False
    durable: bool = True
    locks: LockSettings = field(default_factory=LockSettings)
    is_offline: bool = False
    ephemeral_budget: int = DEFAULT_EPHEMERAL_BUDGET
    remote: RemoteSettings | None = None
    bulk: Mapping[str, Any] = field(default_factory=dict, repr=False)  # may hold credentials

    @property
    def datastore_type(self) -> str:
        """What kind of datastore it is: `filesystem`, or the name of a remote's type."""
        return self.remote.kind if self.remote else FILESYSTEM

    @property
    def is_shared_in_place(self) -> bool:
        """Whether it is a directory of its own, which other repositories may use as well."""
        return self.remote is None and self.base != self.local_dir

    @property
    def is_shared(self) -> bool:
        """Whether others may use it as well, from here or from elsewhere."""
        return self.remote is not None or self.is_shared_in_place

    def may_be_elsewhere(self, raw: str) -> bool:
        """Whether content that is not here may be on the remote, or on the machine it stays on."""
        return self.remote is not None or (self.is_shared and self.routing.is_local(raw))

    @property
    def local_dir(self) -> str:
        """The tier that never leaves this machine."""
        return f"{self.repo_dir}/{LOCAL_DIR}"

    @property
    def key_prefix(self) -> str:
        """What comes before every path of this repository where others find it."""
        parts = (self.remote.prefix if self.remote else "", self.namespace)
        return "".join(f"{part}/" for part in parts if part)

    @property
    def datastore_dir(self) -> str:
        """The datastore tier, namespace included."""
        return f"{self.base}/{self.namespace}" if self.namespace else self.base


def load(repo_dir: str, environ: Mapping[str, str], *, datastore: str | None = None) -> Config:
    """Read a repository's marker and the environment; raise ConfigError naming what is wrong."""
    document = read_marker(repo_dir)
    check_settings(document)
    section = document.get("datastore", {})
    if section is None:
        section = {}
    if not isinstance(section, dict):
        raise wrong_setting("datastore", section, "a mapping")
    repo_id = str(document.get("repoId") or "unknown")
    base, remote = _resolve(repo_dir, repo_id, section, environ, datastore)
    if remote is not None:
        learn_password(repo_dir, remote)
    return Config(
        repo_dir=repo_dir,
        repo_id=repo_id,
        base=base,
        namespace=_namespace(section, environ),
        routing=Routing(_directories(section), _strings(section, "exclude")),
        auto_gc=_flag(document, "autoGc", default=False),
        durable=_durable(section, environ),
        locks=lock_settings(environ),
        is_offline=environ.get("SWAMPSTORE_OFFLINE", "off").lower() not in _OFF,
        ephemeral_budget=_budget(environ),
        remote=remote,
        bulk={name: document[name] for name in ("engine", "spark") if name in document},
    )


def learn_password(repo_dir: str, remote: RemoteSettings) -> None:
    """Take the password of a database from the file `.env`, unless the environment has it.

    Other clients of such a database read it there too. Nothing else of that file is used.
    """
    if not remote.is_mongodb:
        return
    from swampstore.stores.mongodb import password_in, password_variable

    variable = password_variable(remote.target, remote.config)
    if variable not in os.environ:
        password = password_in(f"{repo_dir}/.env", variable)
        if password is not None:
            os.environ[variable] = password


def _resolve(
    repo_dir: str,
    repo_id: str,
    section: Mapping[str, Any],
    environ: Mapping[str, str],
    option: str | None,
) -> tuple[str, RemoteSettings | None]:
    source = f"datastore in {MARKER}"
    if override := option or environ.get("SWAMP_DATASTORE"):
        source = "--datastore" if option else "SWAMP_DATASTORE"
        address = Address.parse(override, source)
    else:
        address = Address.of_section(section)
    if address.is_remote:
        return cache_dir(repo_id, environ), remote_settings(address, section, environ)
    try:
        return filesystem_base(repo_dir, address.path, environ), None
    except ConfigError as error:
        raise ConfigError(f"{source}: {error.message}", hint=error.hint) from None


def filesystem_base(repo_dir: str, path: str | None, environ: Mapping[str, str]) -> str:
    """Return the directory that a configured path (None: the default) stands for."""
    if path is None:
        return f"{repo_dir}/{LOCAL_DIR}"
    return os.path.normpath(os.path.join(repo_dir, expand(path, environ)))


def cache_dir(repo_id: str, environ: Mapping[str, str]) -> str:
    """Return where a repository's copy of its remote is; others of the same id share it."""
    variable, home = "SWAMP_HOME", environ.get("SWAMP_HOME", "")
    if not home:
        variable, home = "HOME", "~/.swamp"
    try:
        name = check_segment("repoId", repo_id)
        path = os.path.normpath(expand(home, environ))
    except (ConfigError, ValidationError) as error:
        raise ConfigError(f"no place for the cache: {error.message}", hint=error.hint) from None
    if not os.path.isabs(path):
        raise ConfigError(
            f"{variable} is {environ[variable]!r}, expected an absolute path",
            hint="Write it in full.",
        )
    return f"{path}/repos/{name}"


def remote_settings(
    address: Address, section: Mapping[str, Any], environ: Mapping[str, str]
) -> RemoteSettings:
    """Return the settings of a remote; those in its members win over those of the marker."""

    def setting(name: str) -> Any:
        value = address.members.get(name)
        return section.get(name) if value is None else value

    hydration = _hydration(setting("hydrationStrategy"))
    cache_limit = _cache_limit(section.get("cache"))
    if cache_limit is not None and hydration == "full":
        raise ConfigError(
            "datastore.cache.maxBytes and datastore.hydrationStrategy full contradict each other:"
            " all content is to be here, and only some of it",
            hint=f"Remove one of them from {MARKER}.",
        )
    return RemoteSettings(
        address.target,
        address.members,
        hydration,
        _sync_timeout_ms(setting("syncTimeoutMs"), environ) / 1000,
        cache_limit,
    )


def _cache_limit(cache: object) -> int | None:
    if cache is None:
        return None
    if not isinstance(cache, dict):
        raise wrong_setting("datastore.cache", cache, "a mapping")
    value = cache.get("maxBytes")
    if value is None:
        return None
    limit = parse_size(value) if isinstance(value, str) else value
    if type(limit) is int and limit > 0:
        return limit
    expected = "a positive number of bytes, or one with a unit such as 20GB"
    raise wrong_setting("datastore.cache.maxBytes", value, expected)


def parse_size(text: str) -> int | None:
    """Return the number of bytes that a text such as 512, 256mb or 20 GB means, None if none.

    >>> parse_size("2kb")
    2048
    """
    match = _SIZE.fullmatch(text.strip())
    return int(match[1]) * _UNITS[(match[2] or "").lower()[:1]] if match else None


def _hydration(value: object) -> Hydration:
    if value is None:
        return "lazy"
    for known in _HYDRATIONS:
        if value == known:
            return known
    raise wrong_setting("datastore.hydrationStrategy", value, " or ".join(_HYDRATIONS))


def _sync_timeout_ms(value: object, environ: Mapping[str, str]) -> int:
    from_environment = _milliseconds(environ, "SWAMP_DATASTORE_SYNC_TIMEOUT_MS")
    if from_environment or value is None:
        return from_environment or DEFAULT_SYNC_TIMEOUT_MS
    if type(value) is int and 1 <= value <= LONGEST_SYNC_TIMEOUT_MS:
        return value
    expected = f"a whole number of milliseconds from 1 to {LONGEST_SYNC_TIMEOUT_MS}"
    raise wrong_setting("datastore.syncTimeoutMs", value, expected)


def expand(path: str, environ: Mapping[str, str]) -> str:
    """Replace `~`, `$VAR` and `${VAR}`; an unset variable is an error, never an empty string."""

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        if not environ.get(name):
            raise ConfigError(
                f"the path {path!r} uses ${name}, which is not set",
                hint=f"Set {name}, or write the path out.",
            )
        return environ[name]

    expanded = _VARIABLE.sub(value, path)
    if expanded == "~" or expanded.startswith("~/"):
        home = environ.get("HOME")
        if not home:
            raise ConfigError(f"the path {path!r} uses ~, but HOME is not set", hint="Set HOME.")
        expanded = home + expanded[1:]
    return expanded


def _namespace(section: Mapping[str, Any], environ: Mapping[str, str]) -> str:
    override = environ.get("SWAMP_NAMESPACE")
    namespace = override or section.get("namespace") or ""
    if not isinstance(namespace, str):
        raise wrong_setting("datastore.namespace", namespace, "a namespace")
    try:
        return check_namespace(namespace) if namespace else ""
    except ValidationError as error:
        source = "SWAMP_NAMESPACE" if override else f"datastore.namespace in {MARKER}"
        raise ConfigError(f"{source}: {error.message}", hint=error.hint) from None


def _directories(section: Mapping[str, Any]) -> list[str] | None:
    if section.get("directories") is None:
        return None
    chosen = _strings(section, "directories")
    for name in chosen:
        if name not in DATASTORE_SUBDIRS:
            raise ConfigError(
                f"datastore.directories names {name!r}, which is no datastore directory",
                hint=f"Choose from {', '.join(DATASTORE_SUBDIRS)}.",
            )
    return chosen


def _strings(section: Mapping[str, Any], key: str) -> list[str]:
    value = section.get(key)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise wrong_setting(f"datastore.{key}", value, "a list of strings")
    return value


def _flag(section: Mapping[str, Any], key: str, *, default: bool) -> bool:
    value = section.get(key, default)
    if not isinstance(value, bool):
        raise wrong_setting(key, value, "true or false")
    return value


def _durable(section: Mapping[str, Any], environ: Mapping[str, str]) -> bool:
    if setting := environ.get("SWAMPSTORE_FSYNC"):
        return setting.lower() not in _OFF
    return _flag(section, "durable", default=True)


def _budget(environ: Mapping[str, str]) -> int:
    text = environ.get("SWAMP_EPHEMERAL_BUDGET", "").strip()
    if not text:
        return DEFAULT_EPHEMERAL_BUDGET
    budget = parse_size(text)
    if budget is None:
        raise ConfigError(
            f"SWAMP_EPHEMERAL_BUDGET is {text!r}", hint="Write for example 256mb or 1g."
        )
    return budget


def lock_settings(environ: Mapping[str, str]) -> LockSettings:
    """Return what the environment says about locks, of a repository or of a store by its URL."""
    default = LockSettings()
    return LockSettings(
        timeout=_milliseconds(environ, "SWAMP_LOCK_TIMEOUT_MS") / 1000 or default.timeout,
        ttl=min(_milliseconds(environ, "SWAMPSTORE_LOCK_TTL_MS"), LONGEST_TTL_MS) / 1000
        or default.ttl,
    )


def _milliseconds(environ: Mapping[str, str], name: str) -> int:
    """Return the time that a variable holds, 0 if it holds none.

    Other clients ignore a value that is no positive number, so it must not be an error here.
    """
    return min(whole_number(environ.get(name, "")) or 0, _LONGEST_WAIT_MS)
