"""What `.swamp.yaml` and the environment say about bulk work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from swampstore.config import Config, load
from swampstore.errors import ConfigError
from swampstore.marker import update_marker
from swampstore.pipeline.errors import SparkStartError
from swampstore.pipeline.settings import (
    SparkSettings,
    check_master,
    check_reachable,
    is_local,
    local_cores,
    settings_of,
)
from swampstore.pipeline.spark.jvm import heap_size


def config_of(repo_dir: Path, members: dict[str, Any]) -> Config:
    update_marker(str(repo_dir), members)
    return load(str(repo_dir), {})


def test_nothing_set_means_nothing_chosen(repo_dir: Path) -> None:
    assert settings_of(load(str(repo_dir), {}), {}) == SparkSettings()
    assert settings_of(None, {}) == SparkSettings(None, None, {}, "auto")


def test_the_marker_is_read(repo_dir: Path) -> None:
    conf = {"spark.driver.memory": "4g", "spark.task.cpus": 2, "spark.speculation": True}
    members = {"engine": "spark", "spark": {"master": "spark://host:7077", "conf": conf}}
    found = settings_of(config_of(repo_dir, members), {})
    texts = {"spark.driver.memory": "4g", "spark.task.cpus": "2", "spark.speculation": "true"}
    assert found == SparkSettings("spark://host:7077", None, texts, "spark")


def test_the_environment_beats_the_marker(repo_dir: Path) -> None:
    spark = {"remote": "sc://host", "conf": {"spark.a": "file", "spark.b": "file"}}
    config = config_of(repo_dir, {"engine": "spark", "spark": spark})
    environ = {
        "SWAMPSTORE_ENGINE": "local",
        "SWAMPSTORE_SPARK_MASTER": "local[3]",
        "SWAMPSTORE_SPARK_CONF": '{"spark.b": 1}',
    }
    conf = {"spark.a": "file", "spark.b": "1"}
    assert settings_of(config, environ) == SparkSettings("local[3]", None, conf, "local")


def test_a_remote_in_the_environment_beats_a_master_in_the_marker(repo_dir: Path) -> None:
    config = config_of(repo_dir, {"spark": {"master": "local[2]"}})
    assert settings_of(config, {"SPARK_REMOTE": "sc://h:1"}) == SparkSettings(None, "sc://h:1")


@pytest.mark.parametrize(
    ("members", "named"),
    [
        ({"engine": "threads"}, "engine"),
        ({"engine": 3}, "engine"),
        ({"spark": "local[2]"}, "spark"),
        ({"spark": {"master": 2}}, "spark.master"),
        ({"spark": {"master": "sc://host"}}, "spark.master"),
        ({"spark": {"remote": "host:15002"}}, "spark.remote"),
        ({"spark": {"master": "local", "remote": "sc://host"}}, "spark.master and spark.remote"),
        ({"spark": {"conf": ["a"]}}, "spark.conf"),
        ({"spark": {"conf": {"spark.a": ["b"]}}}, "spark.conf: spark.a"),
    ],
)
def test_a_wrong_member_is_named(repo_dir: Path, members: dict[str, Any], named: str) -> None:
    config = config_of(repo_dir, members)  # other commands do not mind
    with pytest.raises(ConfigError) as caught:
        settings_of(config, {})
    assert caught.value.message.startswith(named)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SWAMPSTORE_ENGINE", "threads"),
        ("SWAMPSTORE_SPARK_MASTER", "sc://host"),
        ("SPARK_REMOTE", "http://host"),
        ("SWAMPSTORE_SPARK_CONF", "spark.a=b"),
        ("SWAMPSTORE_SPARK_CONF", '["spark.a"]'),
        ("SWAMPSTORE_SPARK_CONF", '{"spark.a": {}}'),
    ],
)
def test_a_wrong_variable_is_named(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"^{name}"):
        settings_of(None, {name: value})


def test_settings_do_not_show_credentials() -> None:
    secret = SparkSettings(conf={"spark.hadoop.fs.s3a.secret.key": "hush"})
    assert "hush" not in repr(secret)
    with pytest.raises(ConfigError) as caught:
        settings_of(None, {"SWAMPSTORE_SPARK_CONF": '{"spark.hadoop.secret": "hush"'})
    assert "hush" not in str(caught.value)


def test_a_place_given_by_hand_replaces_the_one_that_was_set() -> None:
    settings = SparkSettings(master="local", conf={"spark.a": "b"})
    assert settings.at("sc://host") == SparkSettings(None, "sc://host", {"spark.a": "b"})
    assert settings.at("sc://host").at("local[2]") == SparkSettings("local[2]", None, settings.conf)


@pytest.mark.parametrize(
    ("master", "cores"),
    [
        ("local", 1),
        ("local[3]", 3),
        ("local[4,2]", 4),
        ("spark://h:1", 0),
        ("local-cluster[1,1,1]", 0),
    ],
)
def test_the_cores_of_a_local_master_are_told_by_its_name(master: str, cores: int) -> None:
    assert local_cores(master) == cores
    assert is_local(master) == bool(cores)


def test_all_cores_are_at_least_one() -> None:
    assert local_cores("local[*]") >= 1


@pytest.mark.parametrize("url", ["spark://127.0.0.1:1,127.0.0.1:2", "sc://127.0.0.1:1/;token=x"])
def test_a_place_where_nobody_listens_is_an_error_at_once(url: str) -> None:
    with pytest.raises(SparkStartError, match=r"cannot be reached \(127\.0\.0\.1:1: "):
        check_reachable(url)


@pytest.mark.parametrize("master", ["local", "local[2]", "local-cluster[1,1,512]", "yarn"])
def test_only_addresses_of_the_network_are_tried(master: str) -> None:
    check_master(master)


@pytest.mark.parametrize("master", ["nonsense", "", "host:7077", "mesos://host", "locally"])
def test_what_spark_cannot_understand_is_no_master(master: str) -> None:
    with pytest.raises(SparkStartError, match="is no master of Spark"):
        check_master(master)


@pytest.mark.parametrize(
    ("limit", "heap"),
    [("1073741824\n", "1024m"), (str(12 << 30), "3072m"), ("max\n", None)],
)
def test_a_heap_is_a_quarter_of_what_the_container_may_use(
    tmp_path: Path, limit: str, heap: str | None
) -> None:
    (tmp_path / "limit").write_text(limit)
    found = heap_size(str(tmp_path / "limit"))
    assert found == (heap or heap_size("/nonexistent"))
    assert 1024 <= int(found.removesuffix("m")) <= 8192
