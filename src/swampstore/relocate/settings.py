"""The settings that a repository gets with another datastore, and how they are written down."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from swampstore.config import (
    Config,
    Hydration,
    cache_dir,
    filesystem_base,
    learn_password,
    remote_settings,
)
from swampstore.datastore_address import FILESYSTEM, Address, is_url, scheme_of, without_secrets
from swampstore.layout import check_namespace
from swampstore.marker import read_marker, update_marker
from swampstore.stores import gcs, s3
from swampstore.stores.config import mapping_from_url

# What other clients call the stores that they know, so that they understand the setting, too.
_SHARED_NAMES = {"s3": "@swamp/s3-datastore", "gs": "@swamp/gcs-datastore"}
_NUMBERS = ("pullConcurrency", "pushConcurrency", "requestTimeoutMs")
_PLACE_SETTINGS = (
    *("type", "url", "path", "config"),
    *("bucket", "prefix", "region", "endpoint", "forcePathStyle"),
)
_BESIDE_CONFIG = ("hydrationStrategy", "syncTimeoutMs", "namespace")


def configured(
    config: Config,
    address: Address,
    environ: Mapping[str, str],
    namespace: str | None = None,
    hydration: Hydration | None = None,
) -> Config:
    """Return the settings that a repository has when its datastore is at another address.

    Nothing is written. The namespace, and whether pulls bring content, stay as they are unless
    something else is given.
    """
    chosen = namespace or address.members.get("namespace") or config.namespace
    checked = check_namespace(str(chosen)) if chosen else ""
    section = read_marker(config.repo_dir).get("datastore") or {}
    if not address.is_remote:
        base = filesystem_base(config.repo_dir, address.path, environ)
        return replace(config, base=base, remote=None, namespace=checked)
    if hydration is not None:
        address = replace(address, members={**address.members, "hydrationStrategy": hydration})
    remote = remote_settings(address, section, environ)
    learn_password(config.repo_dir, remote)
    base = cache_dir(config.repo_id, environ)
    return replace(config, base=base, remote=remote, namespace=checked)


def write_settings(config: Config, address: Address) -> list[str]:
    """Write to the marker where the datastore is from now on; return what could not be written.

    `config` is what `configured` made of the address.
    """
    section = read_marker(config.repo_dir).get("datastore") or {}
    settings = written_settings(address)
    if settings.get("type") == _SHARED_NAMES["s3"]:
        # Whoever has the repository and another environment is to find the same bucket.
        settings["config"] = s3.from_environment(os.environ) | settings["config"]
    changes: dict[str, Any] = dict.fromkeys(_PLACE_SETTINGS) | settings
    if "config" in settings and isinstance(section.get("config"), dict):
        changes["config"] = dict.fromkeys(section["config"]) | settings["config"]
    changes["namespace"] = config.namespace or None
    changes["hydrationStrategy"] = config.remote.hydration if config.remote else None
    update_marker(config.repo_dir, {"datastore": changes})
    dropped = sorted(set(address.members) - set(without_secrets(address.members)))
    if not dropped:
        return []
    names = ", ".join(dropped)
    return [f"credentials are not written to files: give {names} through the environment"]


def written_settings(address: Address) -> dict[str, Any]:
    """Return what the marker says about an address, without credentials.

    The stores that other clients know are written the way they read them.
    """
    if not address.is_remote:
        return {"type": FILESYSTEM} | ({"path": address.path} if address.path else {})
    kind, members = scheme_of(address.target), dict(address.members)
    if is_url(address.target):
        if kind not in _SHARED_NAMES:
            return {"type": kind, "url": address.target}
        members = _members_of_url(address.target)
    beside = {name: members.pop(name) for name in _BESIDE_CONFIG if name in members}
    beside.pop("namespace", None)
    return {"type": _SHARED_NAMES.get(kind, kind), "config": without_secrets(members)} | beside


def _members_of_url(url: str) -> dict[str, Any]:
    """Return the members in a URL with the types that configurations give them."""
    parameters = (*s3.PARAMETERS, *gcs.PARAMETERS)
    members: dict[str, Any] = {
        name: value for name, value in mapping_from_url(url, parameters).items() if value
    }
    if "prefix" in members:
        members["prefix"] = members["prefix"].strip("/")
    for name in _NUMBERS:
        if members.get(name, "").isdigit():
            members[name] = int(members[name])
    if "forcePathStyle" in members:
        members["forcePathStyle"] = members["forcePathStyle"].lower() in ("true", "1", "yes")
    return {name: value for name, value in members.items() if value != ""}
