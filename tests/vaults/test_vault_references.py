"""References to secrets: how they read, that only a run resolves them, and sensitive outputs."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swampstore import Repo
from swampstore.marker import update_marker
from swampstore.redaction import Redactor
from swampstore.vaults import Vault, Vaults, local_encryption
from swampstore.vaults.errors import SecretNotFoundError, VaultNotFoundError
from swampstore.vaults.events import events
from swampstore.vaults.references import Reference, Resolver, parse_reference, references_in
from swampstore.vaults.sensitive import (
    Origin,
    Sensitive,
    check_vaults,
    secret_key,
    sensitive_members,
    store_sensitive,
)
from tests.support.vault_testing import keeping_program

pytest.importorskip("cryptography", reason="the extra `vaults` is not installed")

ORIGIN = Origin("@acme/db", "m-1", "create", "user", "main")


@pytest.fixture
def vaults(repo: Repo, monkeypatch: pytest.MonkeyPatch) -> Vaults:
    monkeypatch.setattr(local_encryption, "_ITERATIONS", 10)
    vaults = Vaults(repo)
    vaults.create("local_encryption", "ops", audit_reads=True)
    return vaults


@pytest.fixture
def vault(vaults: Vaults) -> Vault:
    return vaults.open("ops")


@pytest.fixture
def resolver(vaults: Vaults, vault: Vault) -> Resolver:
    vault.put("db", "hunter2")
    vault.put("api", 'it\'s "quoted" $HOME `x`\\ é\nend')
    return Resolver(vaults)


# Reading ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "${{ vault.get('ops','db') }}",
        "${{vault.get('ops', 'db')}}",
        '${{ vault.get( "ops" , "db" ) }}',
        "${{ vault.get(ops, db) }}",
        " ${{\n  vault.get('ops', db)\n}} ",
    ],
)
def test_a_reference_may_be_written_in_several_ways(text: str) -> None:
    assert parse_reference(text) == Reference("ops", "db")
    assert references_in(text) == [Reference("ops", "db")]


@pytest.mark.parametrize(
    "text",
    [
        "vault.get('ops','db')",
        "x ${{ vault.get('ops','db') }}",
        "${{ vault.get('ops') }}",
        "${{ vault.get('ops','db','x') }}",
        "${{ vault.get('ops','db') + 'x' }}",
        "${{ vault.get('ops'db') }}",
        "${{ env.HOME }}",
        "",
    ],
)
def test_what_is_more_or_less_than_a_reference_is_none(text: str) -> None:
    assert parse_reference(text) is None


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("${{ 'Bearer ' + vault.get('a','b') + vault.get(c,d) }}", ["a.b", "c.d"]),
        ("x${{ vault.get(a,b) }}y${{ vault.get(a,b) }}z${{ vault.get(c,d) }}", ["a.b", "c.d"]),
        ("${{ 'vault.get(a,b)' }}", []),
        ("${{ my_vault.get(a,b) + x.vault.get(a,b) }}", []),
        ("vault.get(a,b)", []),
    ],
)
def test_references_are_found_within_expressions(text: str, found: list[str]) -> None:
    assert [".".join(one) for one in references_in(text)] == found


@settings(deadline=None, max_examples=30)
@given(vault=st.text(min_size=1), key=st.text(min_size=1))
def test_a_reference_reads_back_what_was_written(vault: str, key: str) -> None:
    for reference in (Reference(vault, key), Reference(vault, f"{key}}}}}}}'\\{key}")):
        assert parse_reference(str(reference)) == reference


def test_a_reference_is_written_as_other_clients_write_it() -> None:
    assert str(Reference("ops", "db")) == "${{ vault.get('ops','db') }}"


# Resolving -------------------------------------------------------------------------------------


def test_a_resolver_gives_values_and_remembers_them(resolver: Resolver, repo: Repo) -> None:
    text = resolver.text("pg://u:${{ vault.get(ops,db) }}@h/${{ inputs.name }}")
    assert text == "pg://u:hunter2@h/${{ inputs.name }}"
    assert resolver.resolved == [Reference("ops", "db")]
    assert resolver.redactor.text(text) == "pg://u:***@h/${{ inputs.name }}"
    resolver.get("ops", "db")
    reads = [event.key for event in events(repo) if event.action == "get"]
    assert reads == ["db"], "each secret is read once"


def test_documents_are_resolved_in_depth(resolver: Resolver) -> None:
    reference = "${{ vault.get('ops','db') }}"
    document = {"a": [reference, 1, None], reference: {"b": f"x{reference}"}}
    assert resolver.document(document) == {"a": ["hunter2", 1, None], reference: {"b": "xhunter2"}}


def test_a_resource_is_resolved_where_it_is_exactly_a_reference(resolver: Resolver) -> None:
    resource = {"a": "${{ vault.get('ops','db') }}", "b": ["${{ vault.get(ops,db) }}", 1]}
    assert resolver.resource(resource) == {"a": "hunter2", "b": ["${{ vault.get(ops,db) }}", 1]}
    others = ["${{ vault.get('ops', 'db') }}", "x ${{ vault.get('ops','db') }}", "${{ 'a','b' }}"]
    assert resolver.resource(others) == ["hunter2", *others[1:]]


def test_what_is_not_there_is_named(resolver: Resolver) -> None:
    with pytest.raises(SecretNotFoundError, match="nothing"):
        resolver.text("${{ vault.get(ops, nothing) }}")
    with pytest.raises(VaultNotFoundError, match="other"):
        resolver.text("${{ vault.get(other, db) }}")


@pytest.mark.parametrize(
    "command",
    [
        "printf %s ${{ vault.get(ops,api) }}",
        'printf %s "${{ vault.get(ops,api) }}"',
        "printf %s '${{ vault.get(ops,api) }}'",
        "printf '%s' \"$(printf %s x >/dev/null)${{ vault.get(ops,api) }}\"",
        'printf %s "\\\\${{ vault.get(ops,api) }}" | cut -c2-',
    ],
)
def test_a_shell_command_finds_secrets_in_variables_whatever_quotes_are_around(
    resolver: Resolver, command: str
) -> None:
    safe, variables = resolver.shell(command)
    value = resolver.get("ops", "api")
    assert value not in safe
    assert [*variables.values()] == [value]
    done = subprocess.run(["sh", "-c", safe], env=variables, capture_output=True, check=True)
    assert done.stdout.decode().startswith(value.partition("\n")[0])


def test_each_secret_of_a_shell_command_has_one_variable(resolver: Resolver) -> None:
    one, two = "${{ vault.get(ops,db) }}", "${{ vault.get(ops,api) }}"
    safe, variables = resolver.shell(f"x {one} '{two} and {one}' {{}} ${{HOME}}")
    assert safe == (
        "x \"${__SWAMP_VAULT_0}\" ''\"${__SWAMP_VAULT_1}\"' and '\"${__SWAMP_VAULT_0}\"''"
        " {} ${HOME}"
    )
    assert variables.keys() == {"__SWAMP_VAULT_0", "__SWAMP_VAULT_1"}


# Sensitive outputs -----------------------------------------------------------------------------


def test_what_a_schema_calls_sensitive_is_found() -> None:
    schema = {
        "properties": {
            "name": {"type": "string"},
            "password": {"type": "string", "sensitive": True, "vaultName": "dba"},
            "inner": {"properties": {"token": {"sensitive": True}, "plain": {}}},
            "list": {"items": {"properties": {"key": {"sensitive": True}}}},
            "free": {"additionalProperties": {"sensitive": True}},
            "either": {"anyOf": [{"type": "null"}, {"sensitive": True}]},
            "other": {"$ref": "#/$defs/secret"},
            "again": {"$ref": "#/properties/again"},
        },
        "$defs": {"secret": {"sensitive": True}},
    }
    assert sensitive_members(schema) == {
        ("password",): "dba",
        ("inner", "token"): None,
        ("list",): None,
        ("free",): None,
        ("either",): None,
        ("other",): None,
    }


def test_sensitive_members_go_to_a_vault_and_leave_references(vaults: Vaults, vault: Vault) -> None:
    redactor = Redactor()
    resource: dict[str, Any] = {
        "name": "main",
        "password": "hunter2",
        "inner": {"token": {"id": "t-1", "value": "tok-123"}, "plain": 1},
        "none": None,
        "empty": "",
    }
    members = {("password",): None, ("inner", "token"): None, ("none",): None, ("gone",): None}
    saved = store_sensitive(
        vaults, resource, Sensitive({**members, ("empty",): None}), ORIGIN, redactor
    )
    assert saved == {
        "name": "main",
        "password": "${{ vault.get('ops','acme-db-m-1-create-user-main-password') }}",
        "inner": {
            "token": "${{ vault.get('ops','acme-db-m-1-create-user-main-inner-token') }}",
            "plain": 1,
        },
        "none": None,
        "empty": "",
    }
    assert resource["password"] == "hunter2", "what was given stays as it was"
    assert vault.get("acme-db-m-1-create-user-main-password") == "hunter2"
    token = json.loads(vault.get("acme-db-m-1-create-user-main-inner-token"))
    assert token == {"id": "t-1", "value": "tok-123"}
    assert redactor.text("hunter2 and tok-123") == "*** and ***"
    assert Resolver(vaults).resource(saved)["password"] == "hunter2"


def test_a_resource_can_be_sensitive_as_a_whole(vaults: Vaults, vault: Vault) -> None:
    whole = Sensitive({}, is_whole=True)
    saved = store_sensitive(vaults, {"a": {"b": 1}, "c": "x-y-z"}, whole, ORIGIN, Redactor())
    assert saved == {
        "a": "${{ vault.get('ops','acme-db-m-1-create-user-main-a') }}",
        "c": "${{ vault.get('ops','acme-db-m-1-create-user-main-c') }}",
    }
    assert Resolver(vaults).resource(saved) == {"a": '{"b": 1}', "c": "x-y-z"}
    listed = store_sensitive(vaults, [1, 2], whole, ORIGIN, Redactor())
    assert Resolver(vaults).resource(listed) == "[1, 2]"


def test_the_vault_is_the_one_of_the_member_else_of_the_spec_else_the_default(
    vaults: Vaults, repo: Repo, repo_dir: Path
) -> None:
    for name in ("dba", "spec", "default"):
        vaults.create("local_encryption", name)
    update_marker(str(repo_dir), {"defaultVault": "default"})
    vaults = Vaults(repo)

    def used(member: str | None, spec: str | None) -> str:
        sensitive = Sensitive({("x",): member}, vault=spec)
        saved = store_sensitive(vaults, {"x": "secret"}, sensitive, ORIGIN, Redactor())
        reference = parse_reference(saved["x"])
        assert reference is not None
        return reference.vault

    assert used("dba", "spec") == "dba"
    assert used(None, "spec") == "spec"
    assert used(None, None) == "default"


def test_without_a_vault_it_is_refused_before_anything_is_run(repo: Repo) -> None:
    for sensitive in (Sensitive({("x",): None}), Sensitive({}, is_whole=True)):
        with pytest.raises(VaultNotFoundError):
            check_vaults(Vaults(repo), sensitive)
    check_vaults(Vaults(repo), Sensitive({}))
    with pytest.raises(VaultNotFoundError, match="gone"):
        check_vaults(Vaults(repo), Sensitive({("x",): "gone"}))


@pytest.mark.parametrize("kind", ["local_encryption", "command"])
def test_values_of_different_origins_never_overwrite_each_other(
    vaults: Vaults, kind: str, tmp_path: Path
) -> None:
    vaults.create(kind, "all", keeping_program(tmp_path) if kind == "command" else {})
    vault = vaults.open("all")
    origins = [
        Origin("aws/ec2", "x", "m", "s", "i"),
        Origin("aws", "ec2-x", "m", "s", "i"),
        Origin("aws", "ec2", "x-m", "s", "i"),
    ]
    assert len({secret_key(origin, ("f",)) for origin in origins}) == 1
    for round_ in ("first", "second"):
        saved = [
            store_sensitive(
                vaults, {"f": f"{round_}-{number}"}, Sensitive({("f",): "all"}), origin, Redactor()
            )
            for number, origin in enumerate(origins)
        ]
        resolved = [Resolver(vaults).resource(one)["f"] for one in saved]
        assert resolved == [f"{round_}-{number}" for number in range(3)]
    assert len(vault.keys()) == 3


def test_a_key_that_would_be_too_long_for_a_file_is_shortened(vaults: Vaults) -> None:
    origin = ORIGIN._replace(instance="é" * 200)
    saved = store_sensitive(vaults, {"f": "value"}, Sensitive({("f",): None}), origin, Redactor())
    assert Resolver(vaults).resource(saved) == {"f": "value"}


@pytest.mark.parametrize(
    ("instance", "key"),
    [("a..b", "acme-db-m-1-create-user-a.b-f"), ("a\\b@c", "acme-db-m-1-create-user-a-bc-f")],
)
def test_keys_are_made_as_other_clients_make_them(instance: str, key: str) -> None:
    assert secret_key(ORIGIN._replace(instance=instance), ("f",)) == key
