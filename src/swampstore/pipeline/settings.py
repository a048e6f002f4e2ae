"""How bulk work is run, as `.swamp.yaml` and the environment say; the environment wins.

- `engine` or `SWAMPSTORE_ENGINE`: `auto`, `local` or `spark`;
- `spark.master` or `SWAMPSTORE_SPARK_MASTER`: `local[*]` if not set;
- `spark.remote` or `SPARK_REMOTE`: a Spark Connect server, in place of a master;
- `spark.conf`, a mapping, and `SWAMPSTORE_SPARK_CONF`, a JSON object: whatever Spark knows.

Also whether anybody is there at the URL of a master or of a server.
"""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from swampstore.config import Config
from swampstore.errors import ConfigError
from swampstore.layout import MARKER
from swampstore.pipeline.errors import SparkStartError

Engine = Literal["auto", "local", "spark"]
_ENGINES: tuple[Engine, ...] = ("auto", "local", "spark")
_CONNECT = "sc://"
_MASTER = "the URL of a master, such as local[4] or spark://host:7077"
_REMOTE = "the URL of a Spark Connect server, such as sc://host:15002"


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """Where Spark is, and what it is told; nothing set means `local[*]` on this machine.

    `master` and `remote` are never both set. `engine` says whether work that threads can do as
    well goes to Spark.
    """

    master: str | None = None
    remote: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict, repr=False)  # may hold credentials
    engine: Engine = "auto"

    def at(self, url: str) -> SparkSettings:
        """Return the same with another master, or with a Spark Connect server (`sc://...`)."""
        if url.startswith(_CONNECT):
            return replace(self, master=None, remote=url)
        return replace(self, master=url, remote=None)


def settings_of(
    config: Config | None = None, environ: Mapping[str, str] = os.environ
) -> SparkSettings:
    """Return what the environment says, and for the rest what a repository's marker says.

    Raises ConfigError naming the variable or the member that cannot be used.
    """
    members = config.bulk if config else {}
    spark = members.get("spark")
    if spark is None:
        spark = {}
    if not isinstance(spark, dict):
        raise _wrong("spark", spark, "a mapping")
    master, remote = _place(spark, environ)
    conf = _conf("spark.conf", spark.get("conf")) | _conf_of_environment(environ)
    return SparkSettings(master, remote, conf, _engine(members.get("engine"), environ))


def _place(spark: Mapping[str, Any], environ: Mapping[str, str]) -> tuple[str | None, str | None]:
    """Return the master and the remote; our own variable beats the one that Spark has."""
    if master := environ.get("SWAMPSTORE_SPARK_MASTER"):
        return _master("SWAMPSTORE_SPARK_MASTER", master), None
    if remote := environ.get("SPARK_REMOTE"):
        return None, _remote("SPARK_REMOTE", remote)
    master = _master("spark.master", spark.get("master"))
    remote = _remote("spark.remote", spark.get("remote"))
    if master and remote:
        raise ConfigError(
            "spark.master and spark.remote contradict each other",
            hint=f"Remove one of them from {MARKER}.",
        )
    return master, remote


def _master(name: str, value: object) -> str | None:
    if value is None or (isinstance(value, str) and value and not value.startswith(_CONNECT)):
        return value
    raise _wrong(name, value, _MASTER)


def _remote(name: str, value: object) -> str | None:
    if value is None or (isinstance(value, str) and value.startswith(_CONNECT)):
        return value
    raise _wrong(name, value, _REMOTE)


def _engine(in_file: object, environ: Mapping[str, str]) -> Engine:
    variable = environ.get("SWAMPSTORE_ENGINE")
    chosen = variable or in_file
    if chosen is None:
        return "auto"
    for known in _ENGINES:
        if chosen == known:
            return known
    name = "SWAMPSTORE_ENGINE" if variable else "engine"
    raise _wrong(name, chosen, "auto, local or spark")


def _conf_of_environment(environ: Mapping[str, str]) -> dict[str, str]:
    text = environ.get("SWAMPSTORE_SPARK_CONF")
    if not text:
        return {}
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    return _conf("SWAMPSTORE_SPARK_CONF", value)


def _conf(name: str, value: object) -> dict[str, str]:
    if value is None:
        return {}
    # What it holds is not shown: it may be a credential.
    if not isinstance(value, dict):
        raise ConfigError(
            f"{name} is no mapping of settings to values",
            hint='Write for example {"spark.driver.memory": "4g"}.',
        )
    return {key: _text(f"{name}: {key}", setting) for key, setting in value.items()}


def _text(name: str, value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    raise ConfigError(
        f"{name} is neither a text, a number, true nor false",
        hint="Write the setting's whole name with its dots, and one value.",
    )


def _wrong(name: str, value: object, expected: str) -> ConfigError:
    is_variable = name.isupper()
    return ConfigError(
        f"{name}{'' if is_variable else f' in {MARKER}'} is {value!r}, expected {expected}",
        hint=f"Set {name} to something else, or not at all." if is_variable else f"Edit {MARKER}.",
    )


_LOCAL = re.compile(r"local(?:\[(\d+|\*)(?:,\s*\d+)?\])?")
_KNOWN = re.compile(r"local\b.*|yarn|(?:spark|k8s)://.+")
_NETWORKED = re.compile(r"(?:spark|sc)://([^/;]+)")
_CONNECT_PORT = 15002
_PATIENCE = 10.0


def is_local(master: str) -> bool:
    """Whether tasks run in the driver's own processes."""
    return _LOCAL.fullmatch(master) is not None


def local_cores(master: str) -> int:
    """Return how many tasks run here at once, 0 if they run somewhere else.

    >>> local_cores("local[4]")
    4
    """
    match = _LOCAL.fullmatch(master)
    if not match:
        return 0
    if match[1] == "*":
        return os.cpu_count() or 1
    return int(match[1] or 1)


def check_master(master: str) -> None:
    """Raise SparkStartError for what Spark cannot make sense of, or for one that is not there."""
    if not _KNOWN.fullmatch(master):
        raise SparkStartError(
            f"{master!r} is no master of Spark",
            hint="Write for example local[4], spark://host:7077, yarn, or sc://host for a server.",
        )
    check_reachable(master)


def check_reachable(url: str) -> None:
    """Raise SparkStartError if nobody listens where a URL points; Spark would try for minutes."""
    match = _NETWORKED.match(url)
    if not match:
        return
    reasons = []
    for address in match[1].split(","):
        host, _, port = address.partition(":")
        try:
            number = int(port or _CONNECT_PORT)
            socket.create_connection((host, number), timeout=_PATIENCE).close()
        except (OSError, ValueError, OverflowError) as error:
            reasons.append(f"{address}: {error}")
        else:
            return
    raise SparkStartError(
        f"{url} cannot be reached ({'; '.join(reasons)})",
        hint="Start the cluster, or correct spark.master or spark.remote.",
    )
