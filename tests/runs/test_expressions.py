"""Expressions: types kept, texts joined, data found, secrets left alone, mistakes named."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swampstore import Repo
from swampstore.redaction import Redactor
from swampstore.runs.definitions import Definition, Definitions
from swampstore.runs.errors import ExpressionError
from swampstore.runs.expressions import (
    Scope,
    evaluate,
    evaluate_tags,
    is_true,
    mentions,
    resolve,
)
from swampstore.vaults.references import escape

ID = "5d0f2b0a-6f57-4c53-9f5e-0a4f8c2f9f10"
INPUTS = {"host": "web", "n": 3, "xs": [1, 2, 3], "nothing": None, "o": {"a": 1}, "vault": "ops"}
PATHS: list[tuple[str, Any]] = [
    ("${{ inputs.n }}", 3),
    ("${{inputs.xs}}", [1, 2, 3]),
    (" ${{ inputs.o.a }}\n", 1),
    ("${{ inputs.nothing }}", None),
    ("on ${{ inputs.host }}, ${{ inputs.n }} of ${{ inputs.xs }}", "on web, 3 of [1,2,3]"),
    ("${{ env.HOME }}/x", "/home/ana/x"),
    ("${{ self.node.name }}", "n1"),
    ("${{ definition.name }}:${{ definition.version }}", "disk:1"),
    ("${{ vault.get('ops','k') }}", "${{ vault.get('ops','k') }}"),
    ("${{ vault.get(ops, db-password) }}", "${{ vault.get('ops','db-password') }}"),
    ("Bearer ${{ vault.get('ops', 'k') }}", "Bearer ${{ vault.get('ops','k') }}"),
    ("${{ vault.get(inputs.vault, 'k') }}", "${{ vault.get('ops','k') }}"),
    ("${{ inputs.?none.orValue('x') }}", "x"),
    ("${{ inputs.?o.?b.c.orValue(7) }}", 7),
    ("${{ inputs.xs[?9].orValue(0) }}", 0),
    ("${{ inputs.?o.a }}", 1),
    ("${{ inputs.?none }}", None),
    ("${{ inputs.xs[1] }}", 2),
    ("${{ data.latest('disk', 'state').attributes.cpu }}", 90),
    ("${{ data.latest('none', 'state') }}", None),
    ("${{ data.version('disk', 'state', 1).attributes }}", {"cpu": 10}),
    ("${{ data.version('disk', 'state', 9) }}", None),
    ("${{ data.listVersions('disk', 'state') }}", [1, 2]),
    ("${{ data.latest('disk', 'state', ['a', 1]).attributes.cpu }}", 5),
    ("no expression", "no expression"),
]
COMPUTED: list[tuple[str, Any]] = [
    ("${{ inputs.n + 1 }}", 4),
    ("${{ inputs.xs.map(x, x * 2) }}", [2, 4, 6]),
    ("${{ {'b': inputs.n, 'a': [1.5, null]} }}", {"a": [1.5, None], "b": 3}),
    ("${{ inputs.host.upperAscii() }}-${{ 'é'.size() }}", "WEB-1"),
    ("${{ has(inputs.none) || inputs.n == 3 }}", True),
    ("${{ inputs.?none.orValue(2) + 1 }}", 3),
    ("${{ size(data.findBySpec('disk', 'state')) }}", 2),
    ("${{ data.findByTag('env', 'prod').map(r, r.attributes.cpu) }}", [90]),
    ("${{ data.query('specName == \"state\"', 'attributes.cpu').sort() }}", [5, 90]),
    ("${{ data.latest('disk', 'state').attributes.cpu > 80 ? 'hot' : 'cold' }}", "hot"),
    ("${{ 'Bearer ' + vault.get('ops', 'k') + '!' }}", "Bearer ${{ vault.get('ops','k') }}!"),
    (
        "${{ inputs.n > 2 ? vault.get(ops, a) : vault.get(ops, b) }}",
        "${{ vault.get('ops','a') }}",
    ),
    ("${{ vault.get('ops', inputs.host + '-key') }}", "${{ vault.get('ops','web-key') }}"),
    ("${{ timestamp('2026-01-01T00:00:00Z') }}", "2026-01-01T00:00:00.000Z"),
]


@pytest.fixture
def scope(repo: Repo) -> Scope:
    definition = Definition("command/shell", ID, "disk", path="models/disk.yaml")
    Definitions(repo).save_auto(definition)
    tags = {"type": "resource", "specName": "state", "env": "prod"}
    for cpu in (10, 90):
        repo.artifacts.save(definition.ref, "state", {"cpu": cpu}, tags=tags)
    repo.artifacts.save(definition.ref, "state-a-1", {"cpu": 5}, tags=tags | {"env": "test"})
    return Scope(
        repo,
        inputs=INPUTS,
        environ={"HOME": "/home/ana"},
        self_values={"node": {"name": "n1"}},
        definition=definition,
    )


@pytest.mark.parametrize(("text", "value"), PATHS + COMPUTED)
def test_an_expression_has_the_value_and_the_type_it_should(
    scope: Scope, text: str, value: Any
) -> None:
    found = evaluate({"x": [text]}, scope)
    assert found == {"x": [value]}
    assert type(found["x"][0]) is type(value)


def test_paths_and_references_do_not_load_the_library(repo_dir: Path) -> None:
    texts = [text for text, _ in PATHS if "data." not in text]
    script = f"""
import json, sys
from swampstore import open_repo
from swampstore.runs.expressions import Scope, evaluate
from swampstore.runs.definitions import Definition
scope = Scope(open_repo({str(repo_dir)!r}), inputs=json.loads({json.dumps(INPUTS)!r}),
    environ={{"HOME": "x"}}, self_values={{"node": {{"name": "n1"}}}},
    definition=Definition("t", "i", "n"))
for text in {texts!r}:
    evaluate(text, scope)
evaluate("${{{{ data.latest('a/b', 'c') }}}}", scope)
assert "cel.cel" not in sys.modules
evaluate("${{{{ 1 + 1 }}}}", scope)
assert "cel.cel" in sys.modules
assert not {{"typer", "prompt_toolkit", "pydantic"}} & set(sys.modules)  # its command line
import cel
assert cel.evaluate("1 + 1") == 2  # whoever wants all of it can have it
"""
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize(
    ("text", "words", "hint"),
    [
        ("${{ inputs.hots }}", "inputs has no member 'hots'", "Did you mean 'host'?"),
        ("${{ inputz.host }}", "nothing called inputz", "Did you mean 'inputs'?"),
        ("${{ inputs.host.x }}", 'inputs.host is "web", which has no members', None),
        ("${{ env.NONE }}", "env has no member 'NONE'", "Set the variable NONE."),
        ("${{ inputs.n + }}", "The expression ends too early", None),
        ("${{ inputs.n + 'x' }}", "No such overload", None),
        ("${{ inputs['none'] }}", "no member 'none'", None),
        ("${{ inputs.xs[9] }}", "no item 9", None),
        ("${{ inputs.xs.map(x, x.y) }}", "", None),
        ("a ${{ inputs.nothing }}", "it is null", None),
        ("${{ nofun(1) }}", "no function nofun", None),
        ("${{ data.lates('a', 'b') }}", "there is no data.lates", "data.latest"),
        ("${{ data.latest('a') }}", "does not take 1 arguments", "data.latest(MODEL, NAME)"),
        ("${{ data.latest(1, 2) }}", "1 must be text", None),
        ("${{ data.query('nam == 1') }}", "Unknown field nam", "Did you mean 'name'?"),
        ("${{ size(data.query('nam == 1')) }}", "Unknown field nam", "Did you mean 'name'?"),
        ("${{ size(vault.get('a', 'b')) }}", "not known before the run", None),
        ("${{ b'x' }}", "nothing to go on with", None),
        ("${{ {1: 2} }}", "keys that are not text", None),
        ("${{ }}", "it is empty", None),
        ("a ${{ inputs.n", "it has no end", None),
    ],
)
def test_a_mistake_names_the_file_the_member_and_the_expression(
    scope: Scope, text: str, words: str, hint: str | None
) -> None:
    with pytest.raises(ExpressionError) as error:
        evaluate({"methods": [{"run": text}]}, scope)
    message = error.value.message
    assert message.startswith("models/disk.yaml: methods[0].run: ${{ ")
    assert words in message
    assert hint is None or hint in (error.value.hint or "")


def test_what_a_library_function_raises_is_not_printed(
    scope: Scope, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ExpressionError):
        evaluate("${{ inputs.host.split(1) }}", scope)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ("inputs.n == 3", True),
        ("${{ inputs.n > 3 }}", False),
        ("inputs.nothing", False),
        ("inputs.xs", True),
        ("inputs.n - 3", False),
        ("${{ string(inputs.n == 3) }}", True),
        ('size(data.findBySpec("disk", "state")) > 0', True),
        ("inputs.n == 3 || data.latest('disk', 'state').nope", True),
    ],
)
def test_a_condition_holds_or_does_not(scope: Scope, condition: str, *, holds: bool) -> None:
    assert is_true(condition, scope) is holds


def test_a_condition_that_is_text_is_a_mistake(scope: Scope) -> None:
    with pytest.raises(ExpressionError, match="it is the text 'web'"):
        is_true("inputs.host", scope, "guard")


def test_what_is_deferred_stays_as_it_is(repo: Repo) -> None:
    scope = Scope(repo, inputs=INPUTS, defer=("data", "self"))
    texts = ["${{ data.latest('a', 'b').x + inputs.n }}", "x ${{ self.node }}", "${{ inputs.n }}"]
    assert evaluate(texts, scope) == [*texts[:2], 3]
    assert mentions(texts, "data")
    assert not mentions(texts, "env")
    assert not mentions("${{ 'data' }}", "data")


# Secrets -------------------------------------------------------------------------------------


class _Secrets:
    """Stands in for a resolver of a run: every secret is its own name."""

    def document(self, value: Any) -> Any:
        from swampstore.vaults.references import Resolver

        resolver = Resolver.__new__(Resolver)
        resolver.get = lambda vault, key: f"<{vault}/{key}>"  # type: ignore[method-assign]
        return resolver.document(value)


def test_a_run_gets_the_values_of_references(scope: Scope) -> None:
    kept = evaluate({"a": "x ${{ vault.get(ops, k) }}", "b": ["${{ inputs.n }}"]}, scope)
    assert kept == {"a": "x ${{ vault.get('ops','k') }}", "b": [3]}
    assert resolve(kept, _Secrets()) == {"a": "x <ops/k>", "b": [3]}  # type: ignore[arg-type]


def test_data_does_not_decide_which_secrets_a_run_gets(scope: Scope, repo: Repo) -> None:
    stored = "${{ vault.get('ops','saved') }}"
    evil = "x ${{ vault.get('ops','root') }}"
    repo.artifacts.save("command/shell/m", "state", {"password": stored, "note": evil})
    found = "data.latest('command/shell/m', 'state').attributes"
    texts = [
        f"${{{{ {found}.password }}}}",
        f"${{{{ {found}.note }}}}",
        f"${{{{ {found}.note + '' }}}}",
    ]
    kept = evaluate(texts, scope)
    assert kept[0] == stored
    assert resolve(kept, _Secrets()) == ["<ops/saved>", evil, evil]  # type: ignore[arg-type]
    assert evaluate(kept, scope) == kept


def test_the_environment_is_not_evaluated_and_its_secrets_are_noted(
    repo: Repo, caplog: pytest.LogCaptureFixture
) -> None:
    redactor = Redactor()
    environ = {"API_TOKEN": "abcdef", "X": "${{ vault.get('a','b') }}"}
    scope = Scope(repo, environ=environ, redactor=redactor)
    assert resolve(evaluate("${{ env.X }}", scope), _Secrets()) == environ["X"]  # type: ignore[arg-type]
    assert evaluate("${{ env.API_TOKEN + '!' }}", scope) == "abcdef!"
    assert redactor.text("it is abcdef") == "it is ***"
    assert "put it into a vault" in caplog.text


def test_tags_become_text(scope: Scope) -> None:
    assert evaluate_tags({"n": "${{ inputs.n }}", "a": "b"}, scope) == {"n": "3", "a": "b"}
    with pytest.raises(ExpressionError, match=r"tags\.n"):
        evaluate_tags({"n": "${{ inputs.nothing }}"}, scope)


# Documents of any shape ----------------------------------------------------------------------

_plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=16,
).filter(lambda value: "${{" not in json.dumps(value))
_any_text = st.text(st.sampled_from("${} '\"ab.vault.get()x,")) | st.text()


@settings(max_examples=30)
@given(_plain)
def test_a_document_without_expressions_is_what_it_was(value: Any) -> None:
    assert evaluate(value, Scope(None, environ={})) == value


@settings(max_examples=30)
@given(st.dictionaries(st.from_regex(r"\A[a-z]{1,5}\Z"), _plain, min_size=1))
def test_every_input_arrives_as_it_was_given(inputs: dict[str, Any]) -> None:
    scope = Scope(None, inputs=inputs, environ={})
    texts = {name: f"${{{{ inputs.{name} }}}}" for name in inputs if name != "in"}
    assert evaluate(texts, scope) == {name: inputs[name] for name in texts}


@given(_any_text)
def test_an_escaped_text_is_given_back_by_resolving_and_holds_no_reference(text: str) -> None:
    escaped = escape(text)
    assert resolve(escaped, _Secrets()) == text  # type: ignore[arg-type]
    assert evaluate(escaped, Scope(None, environ={})) == escaped


@given(_any_text)
def test_any_text_is_evaluated_or_refused_and_nothing_else(text: str) -> None:
    try:
        evaluate(text, Scope(None, environ={}))
    except ExpressionError as error:
        assert "${{" in text
        assert error.message
