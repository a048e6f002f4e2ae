"""Keys of `.swamp.yaml`: a misspelled one is told, those of other clients are left alone."""

from __future__ import annotations

import json
import re
from pathlib import Path

import fastjsonschema
import pytest

from swampstore import init_repo, open_repo, yaml_dialect
from swampstore.datastore_address import Address
from swampstore.errors import ConfigError
from swampstore.relocate.settings import configured, write_settings
from swampstore.setting_keys import OF_OTHERS, SETTINGS, check_settings, json_schema
from tests.support.markdown_pages import ROOT, Page, table_rows


@pytest.mark.parametrize(
    ("document", "key", "meant"),
    [
        ({"autoGC": True}, "autoGC", "autoGc"),
        ({"datastores": {}}, "datastores", "datastore"),
        ({"datastore": {"hydrationStratgy": "full"}}, "hydrationStratgy", "hydrationStrategy"),
        ({"datastore": {"cache": {"maxbyte": 1}}}, "datastore.cache.maxbyte", "maxBytes"),
        ({"spark": {"masters": "local"}}, "spark.masters", "spark.master"),
        ({"bundles": {"maxSize": 1}}, "bundles.maxSize", "maxBytes"),
        ({"bucket": "b"}, "bucket", "bundles"),
    ],
)
def test_a_misspelled_key_is_an_error_with_the_right_one(
    document: dict[str, object], key: str, meant: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(key)) as caught:
        check_settings(document)
    assert meant in (caught.value.hint or "")


def test_keys_of_other_clients_and_of_people_are_left_alone(tmp_path: Path) -> None:
    init_repo(tmp_path).close()
    more = "".join(f"{name}: 1\n" for name in sorted(OF_OTHERS)) + "x-team: platform\n"
    marker = tmp_path / ".swamp.yaml"
    marker.write_text(marker.read_text() + more)
    open_repo(tmp_path).close()
    check_settings({"datastore": {"type": "s3", "bucket": "b", "forcePathStyle": True}})
    check_settings({"datastore": {"config": {"anything": 1}}, "spark": {"conf": {"spark.x": 1}}})


def test_a_wrong_type_is_an_error() -> None:
    with pytest.raises(ConfigError, match="modelsDir"):
        check_settings({"modelsDir": 3})


def test_init_tells_editors_about_the_keys(tmp_path: Path) -> None:
    init_repo(tmp_path).close()
    text = (tmp_path / ".swamp.yaml").read_text()
    found = re.match(r"# yaml-language-server: \$schema=(.+)\n", text)
    assert found
    schema = json.loads((tmp_path / found[1]).read_text())
    assert schema == json_schema()
    check = fastjsonschema.compile(schema | {"$schema": "http://json-schema.org/draft-07/schema#"})
    check(yaml_dialect.load_mapping(text.encode(), what="marker"))
    check({"datastore": {"cache": {"maxBytes": "20GB"}}, "tools": ["claude"], "x-mine": 1})
    for wrong in ({"autoGC": True}, {"autoGc": "yes"}, {"datastore": {"hydrationStrategy": "no"}}):
        with pytest.raises(fastjsonschema.JsonSchemaException):
            check(wrong)


def test_the_table_of_the_reference_has_every_key() -> None:
    section = Page(ROOT / "docs/reference/configuration.md").section(".swamp.yaml")
    documented = {name for row in table_rows(section) for name in re.findall(r"`(.+?)`", row[0])}
    inner = {path.rpartition(".")[0] for path in SETTINGS}
    assert documented == SETTINGS.keys() - (inner - {""})


def test_where_a_bucket_is_stays_known_without_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9000")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush")
    monkeypatch.delenv("AWS_REGION", raising=False)
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    monkeypatch.setenv("SWAMP_HOME", str(tmp_path / "home"))
    with init_repo(tmp_path / "repo") as repo:
        address = Address.parse("s3://b/p", "test")
        write_settings(configured(repo.config, address, {"HOME": str(tmp_path)}), address)
    text = (tmp_path / "repo/.swamp.yaml").read_text()
    assert "endpoint: http://127.0.0.1:9000" in text
    assert "hush" not in text
