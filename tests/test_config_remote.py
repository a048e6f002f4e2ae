"""Datastores that are remotes: how they are written down, and where their caches are."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from swampstore import config as configuration
from swampstore import open_repo
from swampstore.config import Config, RemoteSettings
from swampstore.datastore_address import without_secrets
from swampstore.errors import ConfigError, SyncNotSupportedError

HOME = {"HOME": "/home/ana"}


def load(repo_dir: Path, environ: Mapping[str, str] | None = None, **options: Any) -> Config:
    return configuration.load(str(repo_dir), HOME | dict(environ or {}), **options)


def loaded(repo_dir: Path, section: str, environ: Mapping[str, str] | None = None) -> Config:
    (repo_dir / ".swamp.yaml").write_text(f"repoId: r\ndatastore: {section}\n")
    return load(repo_dir, environ)


def remote_of(config: Config) -> RemoteSettings:
    assert config.remote is not None
    return config.remote


# How a remote is written ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("section", "target", "members"),
    [
        ("{url: 's3://bucket/prefix'}", "s3://bucket/prefix", {}),
        ("{type: 's3://bucket/prefix'}", "s3://bucket/prefix", {}),
        ("{type: file, url: 'file:///mnt/bucket'}", "file:///mnt/bucket", {}),
        (
            "{type: '@swamp/s3-datastore', config: {bucket: b, pullConcurrency: 3}}",
            "@swamp/s3-datastore",
            {"bucket": "b", "pullConcurrency": 3},
        ),
        ("{type: gs, config: {bucket: b}}", "gs", {"bucket": "b"}),
        ("{type: az, config: {}}", "az", {}),
        ("{type: file, config: {path: /mnt/bucket}}", "file", {"path": "/mnt/bucket"}),
        ("{type: mongo}", "mongo", {}),
        (
            "{type: s3, bucket: b, region: r, forcePathStyle: true, namespace: n}",
            "s3",
            {"bucket": "b", "region": "r", "forcePathStyle": True},
        ),
        ("{type: s3, config: {bucket: b}}", "s3", {"bucket": "b"}),
    ],
)
def test_a_remote_is_written_as_url_or_as_type_with_members(
    repo_dir: Path, section: str, target: str, members: dict[str, Any]
) -> None:
    remote = remote_of(loaded(repo_dir, section))
    assert (remote.target, remote.config) == (target, members)


@pytest.mark.parametrize(
    ("text", "target", "members"),
    [
        ("s3://bucket/prefix?region=r", "s3://bucket/prefix?region=r", {}),
        ('@swamp/gcs-datastore:{"bucket": "b"}', "@swamp/gcs-datastore", {"bucket": "b"}),
        ("s3:bucket/a/b", "s3", {"bucket": "bucket", "prefix": "a/b"}),
        ("s3:bucket", "s3", {"bucket": "bucket", "prefix": ""}),
        ("FILE:///mnt/bucket", "FILE:///mnt/bucket", {}),
    ],
)
def test_the_environment_and_the_option_may_name_a_remote(
    repo_dir: Path, text: str, target: str, members: dict[str, Any]
) -> None:
    by_variable = remote_of(load(repo_dir, {"SWAMP_DATASTORE": text}))
    by_option = remote_of(load(repo_dir, datastore=text))
    assert by_variable == by_option
    assert (by_option.target, by_option.config) == (target, members)


def test_the_environment_can_lead_away_from_a_remote(repo_dir: Path) -> None:
    config = loaded(repo_dir, "{url: 's3://b'}", {"SWAMP_DATASTORE": "filesystem:/mnt/share"})
    assert config.remote is None
    assert config.base == "/mnt/share"


@pytest.mark.parametrize(
    ("section", "complaint"),
    [
        ("{url: bucket}", "datastore.url in .swamp.yaml is 'bucket', expected a URL"),
        ("{url: 3}", "datastore.url"),
        ("{url: 's3://'}", "datastore.url"),
        ("{type: gs, url: 's3://b'}", "datastore.type in .swamp.yaml is 'gs', but datastore.url"),
        ("{type: filesystem, url: 's3://b'}", "datastore.type"),
        ("{url: 's3://b', config: {region: r}}", "datastore.config"),
        ("{url: 'filesystem:///mnt'}", "filesystem has no URL"),
        ("{type: s3, config: [b]}", "datastore.config in .swamp.yaml is ['b'], expected a mapping"),
        ("{type: 'a b'}", "datastore.type in .swamp.yaml: 'a b' is not the name"),
        ("{type: ''}", "datastore.type"),
        ("{type: filesytem, path: /mnt/share}", "but the type is 'filesytem'"),
        ("{type: s3, hydrationStrategy: eager}", "datastore.hydrationStrategy"),
        ("{type: s3, cache: 20GB}", "datastore.cache "),
        ("{type: s3, cache: {maxBytes: 0}}", "datastore.cache.maxBytes"),
        ("{type: s3, cache: {maxBytes: -1}}", "datastore.cache.maxBytes"),
        ("{type: s3, cache: {maxBytes: true}}", "datastore.cache.maxBytes"),
        ("{type: s3, cache: {maxBytes: 1.5}}", "datastore.cache.maxBytes"),
        ("{type: s3, cache: {maxBytes: much}}", "datastore.cache.maxBytes"),
        ("{type: s3, cache: {maxBytes: 1}, hydrationStrategy: full}", "datastore.cache.maxBytes"),
        ("{type: s3, syncTimeoutMs: 0}", "datastore.syncTimeoutMs"),
        ("{type: s3, syncTimeoutMs: true}", "datastore.syncTimeoutMs"),
        ("{type: s3, syncTimeoutMs: '5s'}", "datastore.syncTimeoutMs"),
        ("{type: s3, config: {syncTimeoutMs: 21600001}}", "datastore.syncTimeoutMs"),
    ],
)
def test_a_member_that_cannot_be_used_is_named(
    repo_dir: Path, section: str, complaint: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        loaded(repo_dir, section)
    assert complaint in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(
    "text",
    [
        *("s3:", "s3", "@swamp/s3-datastore", "/mnt/share", "filesystem", "filesystem://x"),
        *('s3:{"bucket": "b"', "s3:{'bucket': 1}", 'a b:{"bucket": "b"}', "://x", "{}"),
        *("filesystem:", "file:///mnt/sh\nare", "s3://bucket/a\tb", "s3://bucket/\x1b[2J"),
    ],
)
def test_a_variable_that_names_no_datastore_is_named(repo_dir: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="SWAMP_DATASTORE: ") as caught:
        load(repo_dir, {"SWAMP_DATASTORE": text})
    assert caught.value.hint


def test_what_may_be_a_secret_is_not_repeated_in_messages(repo_dir: Path) -> None:
    for text in ('s3:{"secretAccessKey": "hush"', '[{"secretAccessKey": "hush"}]'):
        with pytest.raises(ConfigError) as caught:
            load(repo_dir, {"SWAMP_DATASTORE": text})
        assert "hush" not in f"{caught.value.message} {caught.value.hint}"
    config = load(repo_dir, {"SWAMP_DATASTORE": 's3:{"secretAccessKey": "hush"}'})
    assert "hush" not in repr(config)


def test_secrets_are_told_from_other_members_by_their_names() -> None:
    secrets = ("accessKeyId", "secretAccessKey", "sessionToken", "accountKey", "sas_token")
    others = ("bucket", "prefix", "passwordEnv", "tokenFile", "keyPrefix", "pullConcurrency")
    members = dict.fromkeys((*secrets, "password", "apiKey", *others), 1)
    assert set(without_secrets(members)) == set(others)


# Where the cache is -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environ", "cache"),
    [
        ({}, "/home/ana/.swamp/repos/r"),
        ({"SWAMP_HOME": ""}, "/home/ana/.swamp/repos/r"),
        ({"SWAMP_HOME": "/srv/swamp/"}, "/srv/swamp/repos/r"),
        ({"SWAMP_HOME": "~/elsewhere"}, "/home/ana/elsewhere/repos/r"),
    ],
)
def test_the_cache_of_a_remote_is_in_the_home_of_the_user(
    repo_dir: Path, environ: dict[str, str], cache: str
) -> None:
    config = loaded(repo_dir, "{url: 's3://b', namespace: infra}", environ)
    assert config.base == cache
    assert config.datastore_dir == f"{cache}/infra"
    assert config.local_dir == f"{repo_dir}/.swamp"


def test_a_repository_without_an_id_has_a_cache_too(repo_dir: Path) -> None:
    (repo_dir / ".swamp.yaml").write_text("datastore: {url: 's3://b'}\n")
    assert load(repo_dir).base == "/home/ana/.swamp/repos/unknown"


def test_a_cache_without_a_place_is_an_error_that_says_why(repo_dir: Path) -> None:
    marker = repo_dir / ".swamp.yaml"
    marker.write_text("repoId: r\ndatastore: {url: 's3://b'}\n")
    with pytest.raises(ConfigError, match="SWAMP_HOME is 'relative'"):
        load(repo_dir, {"SWAMP_HOME": "relative"})
    with pytest.raises(ConfigError, match="HOME is not set"):
        load(repo_dir, {"HOME": ""})
    marker.write_text("repoId: ../../etc\ndatastore: {url: 's3://b'}\n")
    with pytest.raises(ConfigError, match="repoId"):
        load(repo_dir)


# Settings of the sync ---------------------------------------------------------------------------


def test_settings_of_the_sync_have_defaults(repo_dir: Path) -> None:
    remote = remote_of(loaded(repo_dir, "{url: 's3://b'}"))
    assert (remote.hydration, remote.sync_timeout) == ("lazy", 300)
    assert remote.cache_limit is None


def test_the_environment_beats_members_of_the_remote_beat_the_marker(repo_dir: Path) -> None:
    environ = {"SWAMP_DATASTORE_SYNC_TIMEOUT_MS": "7000"}
    assert remote_of(loaded(repo_dir, "{url: 's3://b'}", environ)).sync_timeout == 7
    section = "{type: s3, bucket: b, syncTimeoutMs: 6500, hydrationStrategy: full}"
    assert remote_of(loaded(repo_dir, section, environ)).sync_timeout == 7
    environ.clear()
    remote = remote_of(loaded(repo_dir, section, environ))
    assert (remote.hydration, remote.sync_timeout) == ("full", 6.5)
    environ["SWAMP_DATASTORE"] = 's3:{"bucket": "b", "syncTimeoutMs": 5000}'
    remote = remote_of(loaded(repo_dir, section, environ))
    assert (remote.hydration, remote.sync_timeout) == ("full", 5)


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("1000", 1000),
        ("'1000'", 1000),
        ("20GB", 20 << 30),
        ("'512 mb'", 512 << 20),
        ("1t", 1 << 40),
    ],
)
def test_the_cache_of_a_remote_can_have_a_limit(repo_dir: Path, text: str, limit: int) -> None:
    section = f"{{url: 's3://b', cache: {{maxBytes: {text}}}}}"
    assert remote_of(loaded(repo_dir, section)).cache_limit == limit


@pytest.mark.parametrize("text", ["", "0", "-1", "soon", "1.5", "²"])
def test_a_sync_timeout_that_is_no_number_is_ignored_like_other_clients_do(
    repo_dir: Path, text: str
) -> None:
    environ = {"SWAMP_DATASTORE_SYNC_TIMEOUT_MS": text}
    assert remote_of(loaded(repo_dir, "{url: 's3://b'}", environ)).sync_timeout == 300


def test_a_sync_takes_no_longer_than_the_system_can_wait(repo_dir: Path) -> None:
    environ = {"SWAMP_DATASTORE_SYNC_TIMEOUT_MS": "9" * 20}
    found = remote_of(loaded(repo_dir, "{url: 's3://b'}", environ))
    assert 3600 < found.sync_timeout < threading.TIMEOUT_MAX


@pytest.mark.parametrize(
    ("target", "kind", "is_google"),
    [
        ("gs://b", "gs", True),
        ("GS://b", "gs", True),
        ("gcs", "gcs", True),
        ("@swamp/gcs-datastore", "@swamp/gcs-datastore", True),
        ("s3://gs", "s3", False),
        ("@swamp/s3-datastore", "@swamp/s3-datastore", False),
    ],
)
def test_the_kind_of_a_remote_is_its_scheme_or_its_type(
    target: str, kind: str, is_google: bool
) -> None:
    remote = RemoteSettings(target)
    assert (remote.kind, remote.is_google) == (kind, is_google)


# Repositories -----------------------------------------------------------------------------------


def test_a_datastore_that_is_used_in_place_cannot_be_synced(repo_dir: Path) -> None:
    with open_repo(repo_dir) as repo, pytest.raises(SyncNotSupportedError) as caught:
        _ = repo.sync
    assert caught.value.code == "sync_not_supported"
    assert "swampstore datastore setup" in (caught.value.hint or "")
