"""Definition files: what they say, how one is found, its hash, and what is kept once evaluated."""

from __future__ import annotations

import hashlib
import json
import textwrap
import uuid
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swampstore import Repo, open_repo, yaml_dialect
from swampstore.errors import ConfigError, ModelNotFoundError, ValidationError
from swampstore.layout import ModelRef
from swampstore.marker import update_marker
from swampstore.retention.data_prune import read_definitions
from swampstore.runs.canonical import canonical_json
from swampstore.runs.definitions import (
    Definition,
    Definitions,
    adhoc,
    decode,
)
from swampstore.runs.errors import DefinitionError, NoEvaluatedDefinitionError

ID = "5d0f2b0a-6f57-4c53-9f5e-0a4f8c2f9f10"
OTHER = "5d0f2b0a-6f57-4c53-9f5e-0a4f8c2f9f11"
DISK_USAGE = f"""\
type: Command::Shell
typeVersion: 2026.02.09.1
id: {ID}
name: disk-usage
version: 1
tags: {{ team: platform }}
globalArguments: {{ host: "${{{{ inputs.host }}}}" }}
methods:
  execute:
    arguments: {{ run: "df -k /" }}
    retries: 2
inputs:
  type: object
  properties: {{ host: {{ type: string }} }}
  required: [host]
checks: {{ require: [quota], skip: [] }}
reports: {{ require: ["@acme/cost"] }}
resources:
  result: {{ lifetime: 30d, garbageCollection: 20, vaultName: ops }}
owner: ana
"""


def define(repo: Repo, text: str, path: str = "models/command/shell/disk-usage.yaml") -> Path:
    file = Path(repo.config.repo_dir, path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(textwrap.dedent(text))
    return file


def simple(name: str, model_id: str | None = None, model_type: str = "command/shell") -> str:
    return f"type: {model_type}\nid: {model_id or uuid.uuid4()}\nname: {name}\n"


def test_a_definition_says_what_its_file_says(repo: Repo) -> None:
    path = define(repo, DISK_USAGE)
    found = Definitions(repo).require("disk-usage")
    assert found.ref == ModelRef("command/shell", ID)
    assert (found.name, found.version, found.type_version) == ("disk-usage", 1, "2026.02.09.1")
    assert found.tags == {"team": "platform"}
    assert found.global_arguments == {"host": "${{ inputs.host }}"}
    assert found.methods == {"execute": {"run": "df -k /"}}
    assert found.inputs is not None
    assert found.inputs["required"] == ["host"]
    assert found.resources["result"]["lifetime"] == "30d"
    assert found.path == str(path)


def test_members_that_nobody_knows_survive(repo: Repo) -> None:
    define(repo, DISK_USAGE)
    document = Definitions(repo).require("disk-usage").to_document()
    assert document["owner"] == "ana"
    assert document["methods"]["execute"] == {"arguments": {"run": "df -k /"}, "retries": 2}
    written = yaml_dialect.load_mapping(DISK_USAGE, what="")
    assert document == written | {"type": "command/shell"}


@pytest.mark.parametrize("model", ["disk-usage", ID, f"command/shell/{ID}", f"Command::Shell/{ID}"])
def test_a_definition_is_found_by_name_id_and_address(repo: Repo, model: str) -> None:
    define(repo, DISK_USAGE, "models/command/shell/some-other-file.yml")
    define(repo, simple("other"), "models/other.yaml")
    found = Definitions(repo).find(model)
    assert found is not None
    assert found.id == ID


def test_a_name_near_to_the_one_asked_for_is_offered(repo: Repo) -> None:
    define(repo, DISK_USAGE)
    assert Definitions(repo).find("disc-usage") is None
    with pytest.raises(ModelNotFoundError) as error:
        Definitions(repo).require("disc-usage")
    assert error.value.hint == "Did you mean 'disk-usage'?"


def test_a_name_of_two_models_is_an_error_that_lists_them(repo: Repo) -> None:
    define(repo, simple("web"), "models/command/shell/web.yaml")
    define(repo, simple("web", model_type="aws/ec2"), "models/aws/ec2/web.yaml")
    with pytest.raises(ValidationError, match=r"2 models: aws/ec2/.*, command/shell/"):
        Definitions(repo).find("web")


def test_a_broken_file_disables_only_itself(repo: Repo) -> None:
    define(repo, DISK_USAGE)
    bad = define(repo, "type: [", "models/command/shell/bad.yaml")
    known, broken = Definitions(repo).all()
    assert [one.name for one in known] == ["disk-usage"]
    assert [one.path for one in broken] == [str(bad)]
    assert Definitions(repo).require("disk-usage").id == ID
    with pytest.raises(ValueError, match=r"bad\.yaml"):
        Definitions(repo).require("bad")


@pytest.mark.parametrize(
    ("change", "member"),
    [
        ({"id": None}, "id is missing"),
        ({"id": 7}, "id is 7 and must be text"),
        ({"id": "a/b"}, "id is wrong"),
        ({"type": ""}, "type is '' and must be text"),
        ({"name": "../x"}, "name is wrong"),
        ({"name": "a/b"}, "name is wrong"),
        ({"version": 0}, "version is 0"),
        ({"version": True}, "version is True"),
        ({"tags": {"a": 1}}, "tags.a is 1"),
        ({"methods": []}, "methods must be a mapping"),
        ({"methods": {"run": "x"}}, "methods.run must be a mapping"),
        ({"methods": {"run": {"arguments": [1]}}}, "methods.run.arguments must be a mapping"),
        ({"globalArguments": "x"}, "globalArguments must be a mapping"),
        ({"inputs": "x"}, "inputs must be a mapping"),
    ],
)
def test_an_error_names_the_file_and_the_member(change: dict[str, Any], member: str) -> None:
    document: dict[str, Any] = {"type": "command/shell", "id": ID, "name": "web"}
    with pytest.raises(DefinitionError) as error:
        decode(document | change, "models/web.yaml")
    assert error.value.message.startswith("models/web.yaml: ")
    assert member in error.value.message
    assert error.value.hint


def test_two_definitions_with_one_id_do_not_share_their_data(repo: Repo) -> None:
    define(repo, simple("first", ID), "models/a.yaml")
    define(repo, simple("second", ID), "models/second.yaml")
    with pytest.raises(DefinitionError, match=r"its id is that of .*a\.yaml"):
        Definitions(repo).find("second")
    first = Definitions(repo).find("first")
    assert first is not None
    assert len(Definitions(repo).all()[1]) == 1


def test_the_file_that_is_called_by_the_name_counts_before_the_one_by_the_id(repo: Repo) -> None:
    define(repo, simple("web", ID) + "version: 1\n", f"models/command/shell/{ID}.yaml")
    define(repo, simple("web", ID) + "version: 2\n", "models/command/shell/web.yaml")
    assert Definitions(repo).require("web").version == 2
    assert Definitions(repo).all()[1] == []


def test_definitions_are_where_the_settings_say(repo: Repo) -> None:
    update_marker(repo.config.repo_dir, {"modelsDir": "automation"})
    with pytest.raises(ConfigError, match="automation: modelsDir"):
        Definitions(repo).find("web")
    define(repo, simple("web"), "automation/deep/er/web.yaml")
    assert Definitions(repo).require("web").name == "web"


def test_a_definition_made_on_the_fly_is_found_and_counts_for_pruning(repo: Repo) -> None:
    made = adhoc(ModelRef("host", "web-1"), "web")
    definitions = Definitions(repo)
    assert definitions.find("web") is None
    definitions.save_auto(made)
    found = definitions.require("web")
    assert found == made
    assert Path(found.path or "").parts[-3:] == ("auto-definitions", "host", "web.yaml")
    assert read_definitions(repo).is_live("host", "web-1")


def test_the_source_counts_before_what_was_made_on_the_fly(repo: Repo) -> None:
    Definitions(repo).save_auto(adhoc(ModelRef("host", "web-1"), "web"))
    define(repo, simple("web", ID), "models/command/shell/web.yaml")
    assert Definitions(repo).require("web").id == ID
    assert [one.id for one in Definitions(repo).all()[0]] == [ID]


# Evaluated definitions -----------------------------------------------------------------------


def test_an_evaluated_definition_is_kept_for_later(repo: Repo) -> None:
    define(repo, DISK_USAGE)
    definitions = Definitions(repo)
    with pytest.raises(NoEvaluatedDefinitionError) as error:
        definitions.load_evaluated("disk-usage")
    assert error.value.code == "no_evaluated_definition"
    definition = definitions.require("disk-usage")
    definitions.save_evaluated(definition)
    path = Path(repo.config.base, "definitions-evaluated/command/shell/disk-usage.yaml")
    assert yaml_dialect.load_mapping(path.read_bytes(), what="")["name"] == "disk-usage"
    assert definitions.load_evaluated("disk-usage") == definition
    assert Definitions(repo).load_evaluated(ID) == definition


def test_an_unsafe_name_is_filed_by_its_id(repo: Repo) -> None:
    odd = Definition("command/shell", ID, "Odd Name")
    definitions = Definitions(repo)
    definitions.save_evaluated(odd)
    assert Path(repo.config.base, f"definitions-evaluated/command/shell/{ID}.yaml").exists()
    assert definitions.load_evaluated("Odd Name") == odd


def test_one_form_of_the_file_replaces_the_other(repo: Repo) -> None:
    place = Path(repo.config.base, "definitions-evaluated/command/shell")
    definitions = Definitions(repo)
    definitions.save_evaluated(Definition("command/shell", ID, "Odd Name"))
    definitions.save_evaluated(Definition("command/shell", ID, "web"))
    assert [one.name for one in place.iterdir()] == ["web.yaml"]
    assert definitions.load_evaluated(ID).name == "web"


def test_what_is_kept_is_announced_before_it_changes_and_only_if_it_does(repo_dir: Path) -> None:
    told: list[str] = []
    with open_repo(repo_dir, announce=told.append) as repo:
        definition = Definition("command/shell", ID, "web")
        Definitions(repo).save_evaluated(definition)
        assert told == ["definitions-evaluated/command/shell/web.yaml"]
        Definitions(repo).save_evaluated(definition)
        assert len(told) == 1


# The hash ------------------------------------------------------------------------------------

_json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


def test_the_hash_is_that_of_canonical_json_without_the_type() -> None:
    definition = Definition("command/shell", ID, "web", tags={"b": "é", "a": "1"})
    spelled = (
        f'{{"globalArguments":{{}},"id":"{ID}","methods":{{}},"name":"web",'
        '"tags":{"a":"1","b":"é"},"version":1}'
    )
    assert definition.hash == hashlib.sha256(spelled.encode()).hexdigest()


def test_another_type_version_is_the_same_definition_and_an_argument_is_not() -> None:
    document = yaml_dialect.load_mapping(DISK_USAGE, what="")
    first = decode(document, "a.yaml")
    assert decode(document | {"typeVersion": "2027.01.01.1"}, "b.yaml").hash == first.hash
    assert decode(document | {"owner": "bob"}, "a.yaml").hash != first.hash
    assert decode(document | {"globalArguments": {}}, "a.yaml").hash != first.hash


@settings(max_examples=25)
@given(st.dictionaries(st.text(), _json, max_size=5), st.randoms())
def test_the_order_of_keys_does_not_matter(document: dict[str, Any], random: Any) -> None:
    def shuffled(value: Any) -> Any:
        if isinstance(value, dict):
            keys = [*value]
            random.shuffle(keys)
            return {key: shuffled(value[key]) for key in keys}
        return [shuffled(one) for one in value] if isinstance(value, list) else value

    text = canonical_json(document)
    assert canonical_json(shuffled(document)) == text
    assert canonical_json(json.loads(text)) == text


@settings(max_examples=25)
@given(st.dictionaries(st.text(), _json, max_size=5))
def test_canonical_json_is_json(document: dict[str, Any]) -> None:
    def numbers(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: numbers(one) for key, one in value.items()}
        if isinstance(value, list):
            return [numbers(one) for one in value]
        if isinstance(value, float):
            return float(value) if abs(value) != float("inf") else None
        return value

    assert json.loads(canonical_json(document)) == numbers(document)


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (1.0, "1"),
        (-0.5, "-0.5"),
        (1e21, "1e+21"),
        (1e20, "100000000000000000000"),
        (1e-7, "1e-7"),
        (1.5e-6, "0.0000015"),
        (123e-20, "1.23e-18"),
        (float("inf"), "null"),
        (2**60, str(2**60)),
    ],
)
def test_numbers_are_spelled_as_javascript_does(number: float, text: str) -> None:
    assert canonical_json(number) == text


_names = st.from_regex(r"\A[a-z][a-z0-9_-]{0,10}\Z")
_documents = st.fixed_dictionaries(
    {
        "type": st.from_regex(r"\A@?[a-z]{1,6}(/[a-z]{1,6}){0,2}\Z"),
        "id": st.uuids(version=4).map(str),
        "name": _names,
        "version": st.integers(1, 99),
        "tags": st.dictionaries(_names, st.text(), max_size=3),
        "globalArguments": st.dictionaries(_names, _json, max_size=3),
        "methods": st.dictionaries(
            _names, st.fixed_dictionaries({"arguments": st.dictionaries(_names, _json)}), max_size=2
        ),
    }
)


@settings(max_examples=25)
@given(_documents)
def test_what_was_read_is_written_again(document: dict[str, Any]) -> None:
    definition = decode(document, "x.yaml")
    assert definition.to_document() == document
    again = decode(definition.to_document(), "y.yaml")
    assert again == definition
    assert again.hash == definition.hash
