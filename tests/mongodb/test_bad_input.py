"""Wrong settings, servers that do not do, and servers that go away: told clearly, nothing lost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from swampstore.config import load
from swampstore.errors import ConfigError
from swampstore.index.errors import IncompleteSyncError
from swampstore.stores import store_config
from swampstore.stores.errors import (
    StoreCredentialsError,
    StoreError,
    StoreUnreachableError,
)
from swampstore.stores.mongodb import MongoConfig, password_in
from swampstore.stores.probe import probe
from swampstore.stores.protocol import admitted_limits
from tests.support.command_line import run_process
from tests.support.mongodb import MongoRemote, mongodb, why_no_mongodb
from tests.support.sync_harness import Machine

NOWHERE = "mongodb://127.0.0.1:1/swamp?requestTimeoutMs=1000"


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("mongodb://user:secret@host/swamp", "credentials"),
        ("mongodb://host/swamp?readPreference=secondary", "readPreference"),
        ("mongodb://host/swamp?w=1", "sets w to '1'"),
        ("mongodb://host/swamp?tenant=x", "no parameter 'tenant'"),
        ("mongodb://host/swamp?tenantId=a.b", "tenantId"),
        ("mongodb:///swamp", "no address"),
        ("mongodb://host/swamp?retryWrites=false", "retryWrites"),
    ],
)
def test_a_url_that_will_not_do_is_refused(url: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told) as refused:
        store_config(url, environ={})
    assert "secret" not in str(refused.value)
    assert refused.value.hint


def test_a_url_and_the_configuration_of_other_clients_are_the_same_place() -> None:
    url = "mongodb://swamp@b,a/inventory?replicaSet=rs0&tenantId=infra&collections=main"
    members = {
        "uri": "mongodb://swamp@a,b/?replicaSet=rs0",
        "database": "inventory",
        "tenantId": "infra",
        "namespace": "main",
    }
    environ = {"MONGO_PASSWORD": "secret"}
    one = store_config(url, environ=environ)
    other = store_config("@swamp/mongodb-datastore", members, environ=environ)
    assert isinstance(one, MongoConfig)
    assert isinstance(other, MongoConfig)
    assert one.identity == other.identity == "mongodb://a,b/inventory/infra/main"
    assert one.password == other.password == "secret"
    assert "secret" not in repr(one) + one.identity


def test_defaults_are_those_of_other_clients() -> None:
    config = store_config("mongodb", {"uri": "mongodb://host"}, environ={})
    assert isinstance(config, MongoConfig)
    assert (config.database, config.tenant) == ("swamp", "default")


def test_a_user_without_a_password_is_told_where_to_put_it() -> None:
    config = store_config("mongodb://swamp@host/swamp", environ={})
    with pytest.raises(StoreCredentialsError, match="password of swamp") as told:
        config.open()
    assert "MONGO_PASSWORD" in (told.value.hint or "")


def test_the_password_is_in_a_file_and_the_environment_wins(
    repo_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import os

    (repo_dir / ".env").write_text("# ours\nexport DB_SECRET='in the file'\nOTHER=untouched\n")
    assert password_in(str(repo_dir / ".env"), "DB_SECRET") == "in the file"
    monkeypatch.delenv("DB_SECRET", raising=False)
    datastore = "mongodb://swamp@host/swamp?passwordEnv=DB_SECRET"
    load(str(repo_dir), os.environ, datastore=datastore)
    assert os.environ["DB_SECRET"] == "in the file"
    assert "OTHER" not in os.environ
    monkeypatch.setenv("DB_SECRET", "in the environment")
    load(str(repo_dir), os.environ, datastore=datastore)
    assert os.environ["DB_SECRET"] == "in the environment"


def test_a_server_that_is_not_there_is_told_of() -> None:
    if "pymongo" in why_no_mongodb():
        pytest.skip(why_no_mongodb())
    nobody = pytest.raises(StoreUnreachableError, match="does not answer")
    with store_config(NOWHERE, environ={}).open() as store, nobody:
        store.get("a")


def test_a_replica_set_that_is_none_is_told_of(mongodb_server: str) -> None:
    url = f"mongodb://{mongodb_server}/swamp?replicaSet=rs0&requestTimeoutMs=1000"
    nobody = pytest.raises(StoreUnreachableError)
    with store_config(url, environ={}).open() as store, nobody as told:
        store.get("a")
    assert told.value.hint


def test_a_server_alone_says_that_it_has_no_transactions(mongodb_remote: MongoRemote) -> None:
    with mongodb_remote.open() as store:
        assert [limit.name for limit in admitted_limits(store)] == ["transactions"]
        report = probe(store, racers=8)
    assert report.ok
    assert "transactions" in {one.name for one in report.findings if not one.ok}


def test_a_server_that_goes_away_in_a_push_loses_nothing(tmp_path: Path) -> None:
    if reason := why_no_mongodb():
        pytest.skip(reason)
    (tmp_path / "db").mkdir()
    with mongodb(tmp_path / "db") as address:
        ana = Machine(tmp_path / "ana", _opened(address))
        ana.write("outputs/aws/ec2/run/1.yaml", b"one")
        ana.push()
        ana.write("outputs/aws/ec2/run/2.yaml", b"two")
        prepared = ana.service.prepare_push()
    with pytest.raises(StoreError):
        ana.service.commit_push(prepared)
    ana.close()
    with mongodb(tmp_path / "db") as address:
        # The base knows a remote by its address, which is another one now.
        with Machine(tmp_path / "ana", _opened(address)) as ana:
            ana.push()
        with Machine(tmp_path / "ben", _opened(address)) as ben:
            ben.pull()
            assert ben.read("outputs/aws/ec2/run/1.yaml") == b"one"
            assert ben.read("outputs/aws/ec2/run/2.yaml") == b"two"


def _opened(address: str):  # type: ignore[no-untyped-def]  # noqa: ANN202 - a store
    return store_config(f"mongodb://{address}/swamp?requestTimeoutMs=2000", environ={}).open()


def test_a_namespace_cannot_have_the_name_of_the_stores_own_collections(
    mongodb_remote: MongoRemote,
) -> None:
    with mongodb_remote.open() as store, pytest.raises(ConfigError, match="default"):
        store.put("default/data/x", b"")


def test_a_document_over_the_limit_of_the_server_is_told_of_and_nothing_is_half_done(
    mongodb_remote: MongoRemote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Content is cut into pieces long before; here it is not."""
    with Machine(tmp_path / "ana", mongodb_remote.open()) as ana:
        ana.write("files/large", bytes(17 << 20))
        with monkeypatch.context() as patched:
            patched.setattr("swampstore.stores.mongodb_blobs.INLINE", 32 << 20)
            with pytest.raises(IncompleteSyncError, match="no document of that size"):
                ana.push()
        assert mongodb_remote.collection("paths").count_documents({}) == 0
        assert mongodb_remote.collection("blobs").count_documents({}) == 0
        ana.write("files/large", b"small")
        ana.push()
    with Machine(tmp_path / "ben", mongodb_remote.open()) as ben:
        ben.pull()
        assert ben.files() == {"files/large": b"small"}


def test_setup_and_doctor_tell_of_a_server_alone_and_setup_refuses_secondaries(
    mongodb_remote: MongoRemote, repo_dir: Path, tmp_path: Path
) -> None:
    home = {"SWAMP_HOME": str(tmp_path / "home")}
    reading = f"{mongodb_remote.url}&readPreference=secondaryPreferred"
    refused = run_process("datastore", "setup", reading, "--json", repo=repo_dir, env=home)
    assert refused.error["code"] == "config_invalid"
    assert "readPreference" in refused.error["error"]
    done = run_process("datastore", "setup", mongodb_remote.url, "--json", repo=repo_dir, env=home)
    assert any("replica set" in one for one in done.json["warnings"]), done.json
    doctor = run_process("doctor", "--json", repo=repo_dir, env=home)
    [told] = [one for one in json.loads(doctor.out)["healthFindings"] if "transactions" in str(one)]
    assert "replica set" in str(told)
