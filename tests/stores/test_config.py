"""Finding a store by URL or type name, and what a wrong configuration is told."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

from swampstore.errors import ConfigError
from swampstore.redaction import without_credentials
from swampstore.stores import open_store, store_config
from swampstore.stores.azure import AzureConfig
from swampstore.stores.config import BUILT_IN, GROUP, Limits
from swampstore.stores.directory import DirectoryConfig
from swampstore.stores.errors import StoreCredentialsError
from swampstore.stores.gcs import GcsConfig
from swampstore.stores.s3 import S3Config

KEYS = {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s"}


def s3(config: Mapping[str, Any], environ: Mapping[str, str] | None = None) -> S3Config:
    found = store_config("s3", config, environ=KEYS if environ is None else environ)
    assert isinstance(found, S3Config)
    return found


@pytest.mark.parametrize("name", ["s3", "@swamp/s3-datastore"])
def test_a_type_name_of_other_clients_works(name: str) -> None:
    found = store_config(name, {"bucket": "my.bucket-1", "unknown": 1}, environ=KEYS)
    assert found == s3({"bucket": "my.bucket-1"})
    assert found.limits == Limits(50, 25, 30.0)


def test_a_url_says_the_same_as_a_mapping() -> None:
    url = (
        "s3://swamp/team/a/?region=eu-west-1&endpoint=https://minio.example:9000&pullConcurrency=7"
    )
    config = {
        "bucket": "swamp",
        "prefix": "team/a",
        "region": "eu-west-1",
        "endpoint": "https://minio.example:9000/",
        "pullConcurrency": 7,
    }
    assert store_config(url, environ=KEYS) == s3(config)
    assert s3(config).identity == "s3://minio.example:9000/swamp/team/a"


def test_every_built_in_kind_is_found_by_its_url() -> None:
    assert isinstance(store_config("gs://swamp/x", environ={}), GcsConfig)
    assert isinstance(store_config("az://swamp/x?account=acc", environ={}), AzureConfig)
    assert store_config("file:///mnt/a%20b/", environ={}) == DirectoryConfig("/mnt/a b")
    assert store_config("@swamp/gcs-datastore", {"bucket": "swamp"}, environ={}) == GcsConfig(
        "swamp"
    )


def test_an_unknown_kind_is_named_with_those_that_exist() -> None:
    for target in ("ftp://host/x", "ftp"):
        with pytest.raises(ConfigError, match="'ftp'") as told:
            store_config(target, environ={})
        assert "az, file, gs, memory, mongodb, mongodb+srv, s3" in (told.value.hint or "")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("bucket", "UPPER"),
        ("bucket", "ab"),
        ("bucket", "a" * 64),
        ("bucket", "-abc"),
        ("bucket", None),
        ("bucket", 5),
        ("prefix", "a/../b"),
        ("prefix", "a//b"),
        ("region", 1),
        ("endpoint", "minio:9000"),
        ("endpoint", "ftp://minio"),
        ("endpoint", "http://[minio"),
        ("endpoint", "http://[a:b]"),
        ("endpoint", "http://minio:99999"),
        ("endpoint", "http://minio:port"),
        ("endpoint", "http://user:pw@minio"),
        ("forcePathStyle", "maybe"),
        ("pullConcurrency", 0),
        ("pullConcurrency", 1001),
        ("pullConcurrency", 1.5),
        ("pushConcurrency", True),
        ("pushConcurrency", "many"),
        ("requestTimeoutMs", 999),
        ("requestTimeoutMs", 600_001),
    ],
)
def test_a_wrong_member_is_named(field: str, value: object) -> None:
    with pytest.raises(ConfigError, match=field) as told:
        s3({"bucket": "swamp", field: value})
    assert field in (told.value.hint or "") or field == "prefix"


def test_the_bounds_themselves_are_allowed() -> None:
    config = {"bucket": "abc", "pullConcurrency": 1000, "pushConcurrency": 1}
    found = s3({**config, "requestTimeoutMs": 600_000})
    assert found.limits == Limits(1000, 1, 600.0)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("5000", 5.0), ("999", 10.0), ("600001", 10.0), ("soon", 10.0), ("", 10.0), ("-5000", 10.0)],
)
def test_the_timeout_in_the_environment_wins_if_it_is_one(text: str, seconds: float) -> None:
    environ = {**KEYS, "SWAMP_S3_REQUEST_TIMEOUT_MS": text}
    found = s3({"bucket": "swamp", "requestTimeoutMs": 10_000}, environ)
    assert found.limits.request_timeout == seconds


def test_a_google_bucket_may_not_have_a_name_of_googles() -> None:
    for bucket in ("goog-swamp", "my-google-bucket"):
        with pytest.raises(ConfigError, match="bucket"):
            store_config("gs", {"bucket": bucket}, environ={})


def test_an_azure_account_is_needed_and_may_come_from_the_environment() -> None:
    with pytest.raises(ConfigError, match="account"):
        store_config("az://swamp", environ={})
    found = store_config("az://swamp", environ={"AZURE_STORAGE_ACCOUNT_NAME": "acc"})
    assert isinstance(found, AzureConfig)
    assert found.identity == "az://acc.blob.core.windows.net/swamp"


def test_an_azure_session_is_asked_for_only_without_other_credentials(tmp_path: Path) -> None:
    (tmp_path / "az").write_text("#!/bin/sh\n")
    (tmp_path / "az").chmod(0o755)
    for extra, asked in (({}, True), ({"AZURE_STORAGE_SAS_TOKEN": "x"}, False)):
        environ = {"PATH": str(tmp_path), "AZURE_STORAGE_ACCOUNT_NAME": "acc", **extra}
        found = store_config("az://swamp", environ=environ)
        assert isinstance(found, AzureConfig)
        assert found.ask_cli is asked


@pytest.mark.parametrize(
    ("url", "variable", "value", "remedy"),
    [
        ("az://swamp?account=acc", "AZURE_STORAGE_ACCOUNT_KEY", "hidden", "az login"),
        ("az://swamp?account=acc", "AZURE_STORAGE_SAS_TOKEN", "hidden", "az login"),
        ("gs://swamp", "GOOGLE_APPLICATION_CREDENTIALS", "/no/such/file", "gcloud auth"),
    ],
)
def test_credentials_of_which_no_client_can_be_made_are_told_with_what_to_do(
    url: str, variable: str, value: str, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    found = store_config(url, environ={variable: value})
    with pytest.raises(StoreCredentialsError, match="cannot be opened with") as told:
        found.open()
    assert remedy in (told.value.hint or "")
    assert "hidden" not in told.value.message
    assert "Debug source" not in told.value.message


def test_an_endpoint_may_be_an_address() -> None:
    found = s3({"bucket": "swamp", "endpoint": "http://[::1]:9000"})
    assert found.endpoint == "http://[::1]:9000"


def test_credentials_in_a_url_are_refused_without_repeating_them() -> None:
    for url in ("s3://key:hidden@swamp/x", "s3://swamp?accessKeyId=k&secretAccessKey=hidden"):
        with pytest.raises(ConfigError, match="must not hold credentials") as told:
            store_config(url, environ=KEYS)
        assert "hidden" not in str(told.value)


@pytest.mark.parametrize(
    "parameter",
    [
        *("secret_access_key", "access_key_id", "aws_secret_access_key", "sessionToken"),
        *("SecretAccessKey", "account_key", "password", "sas_token", "sig"),
    ],
)
@pytest.mark.parametrize("place", ["s3://swamp", "gs://swamp", "az://swamp/x"])
def test_credentials_in_a_url_are_refused_in_every_spelling(place: str, parameter: str) -> None:
    for value in ("hidden", ""):
        with pytest.raises(ConfigError, match="must not hold credentials") as told:
            store_config(f"{place}?account=a&{parameter}={value}", environ=KEYS)
        assert "hidden" not in str(told.value)


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("s3://swamp?regoin=eu-central-1", "'regoin'"),
        ("s3://swamp?apiEndpoint=http://x", "'apiEndpoint'"),
        ("gs://swamp?region=x", "'region'"),
        ("s3://swamp/a#b", "`#`"),
        ("file:///tmp/a?b", "no parameters"),
        ("file:///tmp/a#b", "`#`"),
        ("s3://[swamp", "cannot be read"),
    ],
)
def test_what_a_url_says_and_no_store_reads_is_refused(url: str, named: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(named)) as told:
        store_config(url, environ=KEYS)
    assert told.value.hint


@pytest.mark.parametrize("endpoint", ["https://ana:hidden@host", "http://ana:hid/den@host:9000"])
def test_a_password_in_an_endpoint_is_refused_without_repeating_it(endpoint: str) -> None:
    attempts: list[Callable[[], object]] = [
        lambda: s3({"bucket": "swamp", "endpoint": endpoint}),
        lambda: store_config(f"s3://swamp?endpoint={endpoint}", environ=KEYS),
        lambda: s3({"bucket": "swamp"}, {**KEYS, "AWS_ENDPOINT_URL": endpoint}),
        lambda: store_config("gs", {"bucket": "swamp", "apiEndpoint": endpoint}, environ={}),
    ]
    for attempt in attempts:
        with pytest.raises(ConfigError, match="must not hold a user name or a password") as told:
            attempt()
        assert "hid" not in str(told.value) + (told.value.hint or "")


def test_a_secret_of_the_wrong_type_is_not_repeated() -> None:
    with pytest.raises(ConfigError, match="secretAccessKey") as told:
        s3({"bucket": "swamp", "accessKeyId": "k", "secretAccessKey": 271828})
    assert "271828" not in str(told.value)


def test_credentials_in_urls_are_taken_out_of_any_text() -> None:
    text = "PUT https://ana:hidden@host:9000/b/data/@swamp/x?sig=hidden&region=eu failed"
    shown = "PUT https://***@host:9000/b/data/@swamp/x?sig=***&region=eu failed"
    assert without_credentials(text) == shown


def test_secrets_are_not_shown() -> None:
    shown = repr(s3({"bucket": "swamp", "accessKeyId": "k", "secretAccessKey": "hidden"}))
    assert "hidden" not in shown


def test_keys_come_from_the_configuration_then_the_environment_then_the_profile(
    tmp_path: Path,
) -> None:
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws/credentials").write_text(
        "[work]\naws_access_key_id = from-file\naws_secret_access_key = s\n"
    )
    (tmp_path / ".aws/config").write_text("[profile work]\nregion = eu-north-1\n")
    environ = {"HOME": str(tmp_path), "AWS_PROFILE": "work"}
    own = {"accessKeyId": "own", "secretAccessKey": "s"}
    cases = [
        (s3({"bucket": "swamp"}, environ), "from-file", "eu-north-1"),
        (s3({"bucket": "swamp"}, {**environ, **KEYS}), "k", "us-east-1"),
        (s3({"bucket": "swamp", **own}, {**environ, **KEYS}), "own", "us-east-1"),
    ]
    for found, key, region in cases:
        assert found.credentials is not None
        assert (found.credentials.access_key_id, found.region) == (key, region)


def test_no_credentials_at_all_is_said_before_anything_is_sent(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path), "AWS_EC2_METADATA_DISABLED": "true"}
    with pytest.raises(StoreCredentialsError, match="no credentials") as told:
        s3({"bucket": "swamp"}, environ)
    assert "AWS_ACCESS_KEY_ID" in (told.value.hint or "")
    assert s3({"bucket": "swamp"}, {"HOME": str(tmp_path)}).credentials is None
    with pytest.raises(StoreCredentialsError, match="NO_GCE_CHECK"):
        store_config("gs://swamp", environ={"HOME": str(tmp_path), "NO_GCE_CHECK": "true"})


def test_a_profile_that_needs_the_aws_tools_says_how_to_use_them(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("[profile our team]\nsso_session = x\nregion = eu-west-1\n")
    environ = {"AWS_CONFIG_FILE": str(tmp_path / "config"), "AWS_PROFILE": "our team"}
    with pytest.raises(StoreCredentialsError, match="'our team'") as told:
        s3({"bucket": "swamp"}, {**environ, "HOME": str(tmp_path)})
    assert "aws sso login --profile 'our team'" in (told.value.hint or "")


def test_a_configuration_can_be_sent_to_another_process() -> None:
    targets = ("s3://swamp/a", "gs://swamp/a", "az://swamp?account=a", "file:///tmp", "memory://x")
    for target in targets:
        config = store_config(target, environ=KEYS)
        assert pickle.loads(pickle.dumps(config)) == config


def test_half_a_key_pair_is_refused() -> None:
    with pytest.raises(StoreCredentialsError, match="AWS_SECRET_ACCESS_KEY is not"):
        s3({"bucket": "swamp"}, {"AWS_ACCESS_KEY_ID": "k"})


def test_reading_a_configuration_does_not_load_the_client() -> None:
    program = (
        "import sys; from swampstore.stores import open_store, store_config; "
        "store_config('s3://swamp', environ={'AWS_ACCESS_KEY_ID': 'k', "
        "'AWS_SECRET_ACCESS_KEY': 's'}); open_store('memory://x', environ={}); "
        "sys.exit('obstore' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_a_store_of_somebody_else_is_found_in_the_same_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "theirs-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[swampstore.stores]\ntheirs = theirs:Config\n")
    (tmp_path / "theirs.py").write_text(
        "from swampstore.stores.memory import MemoryConfig\n"
        "class Config(MemoryConfig):\n    __slots__ = ()\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with open_store("theirs://somewhere", environ={}) as store:
        assert store.identity == "memory://somewhere"
    assert store_config("theirs", {"name": "x"}, environ={}).limits == Limits()


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_our_own_stores_are_found_without_a_search_of_what_is_installed(name: str) -> None:
    program = (
        "import sys; from swampstore.stores.config import _store_type\n"
        f"print(_store_type({name!r}).__qualname__, 'importlib.metadata' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    (declared,) = entry_points(group=GROUP, name=name)
    assert declared.value == BUILT_IN[name]
    assert done.stdout.split() == [declared.value.partition(":")[2], "False"]
