from __future__ import annotations

import contextlib
import datetime as dt
import math
import subprocess
import sys
from typing import Any

import pytest
import yaml as pyyaml
from hypothesis import example, given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from swampstore.errors import ValidationError, YamlError
from swampstore.yaml_dialect import dump, edit, load, load_mapping
from swampstore.yaml_dialect.full_reader import read_fully
from swampstore.yaml_dialect.reading import NotSureError, read_quickly
from swampstore.yaml_dialect.scalars import MAX_DEPTH, type_plain_scalar

METADATA = """\
id: 4a1e6c0e-8c0f-4a57-9a43-3d3e4f0b6f11
name: result
version: 3
contentType: application/json
lifetime: 30d
garbageCollection: 10
streaming: false
tags:
  type: resource
  team: platform
  specName: result
  modelName: disk-usage
ownerDefinition:
  ownerType: model-method
  ownerRef: 5d0f2b0a-6f57-4c53-9f5e-0a4f8c2f9f10
  workflowId: 9b2c0f6e-6f57-4c53-9f5e-0a4f8c2f9f10
  workflowRunId: 77aa0d3e-6f57-4c53-9f5e-0a4f8c2f9f10
  workflowName: nightly-scan
  jobName: scan
  stepName: measure
  source: step-output
createdAt: '2026-05-14T20:19:52.100Z'
size: 212
checksum: 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
lifecycle: deleted
renamedTo: usage
"""

OUTPUT_RECORD = """\
# one execution
id: 0b9b5b8e-3f0a-4c7a-8b0e-7b4cf3e0b0aa
startedAt: '2026-05-14T20:19:51.042Z'   # when the method began

artifacts:   # what it made
  dataArtifacts:
    - dataId: 4a1e6c0e
      version: 3
      tags:
        type: resource
        'on': "yes"
    - dataId: 5b1e6c0e
      version: -1
      tags: {}
  notes:
  - plain text, with a comma
  - 'it''s'
  - []
durationMs: 1268.5
error: null
logFile: .swamp/outputs/5d0f.log
"""

SETTINGS = """\
# written by hand
swampVersion: "20260814.1"   # keep quoted
initializedAt: 2026-05-01T09:00:00.000Z

# where the data lives
datastore:                   # optional
  type: filesystem           # or an extension
  path: $HOME/swamp-data
  # namespace: infra
  config: { bucket: b, prefix: p }
# collect rubbish?
autoGc: yes
tools:
- claude
unknownKey: 0x1F
# the end
"""

NOT_TEXT_FOR_SOMEBODY = [
    *("yes", "No", "ON", "off", "y", "N", "true", "False", "null", "NULL", "~", ""),
    *("1", "010", "0x1f", "0o17", "0b11", "1_000", "1e3", "1E5", "12e03", "+1", "-1", "1.", ".5"),
    *(".inf", "-.INF", ".NaN", "12:30:45", "190:20:30.15", "1,000", "2026.02", "685.230_15e+03"),
    *("2026-05-14", "2026-05-14T20:19:51.042Z", "2001-1-1 1:2:3", "=", "<<", "-", "--- x", "..."),
    *(" x", "x ", "- x", "? x", ": x", "x: y", "x:", "x #y", "#x", "@x", "`x", "%x", "&x", "*x"),
    *("!x", "|", ">", "'x", '"x', "[x", "{x}", "]", "}", ",", "x\ny", "\n", "\t", "x\ty", "\r"),
    *("\0", "\x7f", "\x85", "\u2028", "\u2029", "\ufeff", "x\ufeffy", "\ufffe", "\xa0", "\u200d"),
    *(
        "\\",
        "x\\y",
        "it's",
        "''",
        "'",
        '"',
        "\U0001fffe",
        "0x",
        "0_",
        "1__0",
        "._",
        "1e",
        "é: è",
        "日本",
    ),
]

texts = st.text(max_size=12) | st.sampled_from(NOT_TEXT_FOR_SOMEBODY)
scalars = texts | st.integers() | st.floats(allow_nan=False) | st.booleans()
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
documents = st.dictionaries(texts, values, max_size=4)


def exact(value: object) -> str:
    """Tell apart what == does not: 1, 1.0 and True; 0.0 and -0.0; the order of keys."""
    return repr(value)


class TestLoading:
    def test_the_metadata_of_an_artifact_is_read_without_the_full_parser(self) -> None:
        metadata = read_quickly(METADATA)
        assert metadata == read_fully(METADATA, what="metadata.yaml")
        assert metadata["version"] == 3
        assert metadata["streaming"] is False
        assert metadata["lifetime"] == "30d"
        assert metadata["createdAt"] == "2026-05-14T20:19:52.100Z"
        assert metadata["tags"]["modelName"] == "disk-usage"

    def test_sequences_comments_and_blank_lines_are_read_without_the_full_parser(self) -> None:
        record = read_quickly(OUTPUT_RECORD)
        assert exact(record) == exact(read_fully(OUTPUT_RECORD, what="output"))
        assert record["artifacts"] == {
            "dataArtifacts": [
                {
                    "dataId": "4a1e6c0e",
                    "version": 3,
                    "tags": {"type": "resource", "on": "yes"},
                },
                {"dataId": "5b1e6c0e", "version": -1, "tags": {}},
            ],
            "notes": ["plain text, with a comma", "it's", []],
        }
        assert record["durationMs"] == 1268.5
        assert record["error"] is None

    def test_flow_collections_and_block_scalars_are_read_too(self) -> None:
        text = """\
---
tags: { team: platform, 'on': [a, 1, true] }
run: |
  df -k /
  exit 1
folded: >-
  one
  two
quoted: "tab\\there \\u00e9 \\ud83d\\ude00"
plain: one
  two
"""
        assert load(text, what="definition") == {
            "tags": {"team": "platform", "on": ["a", 1, True]},
            "run": "df -k /\nexit 1\n",
            "folded": "one two",
            "quoted": "tab\there é 😀",
            "plain": "one two",
        }

    @pytest.mark.parametrize(
        ("text", "value"),
        [
            ("yes", "yes"),
            ("Off", "Off"),
            ("2026-05-14T20:19:51.042Z", "2026-05-14T20:19:51.042Z"),
            ("2026-05-14", "2026-05-14"),
            ("12:30:45", "12:30:45"),
            ("1_000", "1_000"),
            ("0b11", "0b11"),
            ("-0x1", "-0x1"),
            ("nan", "nan"),
            ("1.2.3", "1.2.3"),
            ("1e", "1e"),
            ("٣", "٣"),
            ("010", 10),
            ("+12", 12),
            ("0o17", 15),
            ("0x1F", 31),
            ("1e3", 1000.0),
            ("1.", 1.0),
            ("-.5", -0.5),
            ("-.INF", -math.inf),
            ("TRUE", True),
            ("False", False),
            ("Null", None),
            ("~", None),
            ("", None),
        ],
    )
    def test_only_core_schema_types_exist_in_both_readers(self, text: str, value: Any) -> None:
        assert exact(type_plain_scalar(text)) == exact(value)
        assert exact(load(f"key: {text}", what="x")) == exact({"key": value})
        assert exact(load(f"{{key: [{text}]}}", what="x")) == exact(
            {"key": [value] if text else []}
        )

    def test_merge_keys_are_ordinary_keys(self) -> None:
        assert load("<<: {a: 1}", what="x") == {"<<": {"a": 1}}

    def test_standard_tags_are_obeyed(self) -> None:
        text = "[!!str 1, ! 2, !!int 3, !!float 4, !!bool true, !!null ~, !!map {}, !!seq []]"
        assert exact(load(text, what="x")) == exact(["1", "2", 3, 4.0, True, None, {}, []])

    def test_an_alias_gives_the_anchored_value(self) -> None:
        assert load("a: &x {k: [v]}\nb: *x\n", what="x") == {"a": {"k": ["v"]}, "b": {"k": ["v"]}}

    def test_former_line_breaks_are_ordinary_characters(self) -> None:
        assert load("a: x\u2028y\nb: 'x \x85 y'\n", what="x") == {"a": "x\u2028y", "b": "x \x85 y"}

    @pytest.mark.parametrize("text", ["", "\n", "# nothing\n", "---\n", "~\n"])
    def test_an_empty_document_is_none(self, text: str) -> None:
        assert load(text, what="x") is None

    @pytest.mark.parametrize("data", [b"\xef\xbb\xbfa: 1\n", "\ufeffa: 1\n", b"a: 1\r\n", b"a: 1"])
    def test_byte_order_marks_and_line_ends_do_not_matter(self, data: bytes | str) -> None:
        assert load(data, what="x") == {"a": 1}

    def test_a_mapping_is_loaded_as_such(self) -> None:
        assert load_mapping(b"a: 1\n", what="x") == {"a": 1}

    @pytest.mark.parametrize(
        ("text", "complaint"),
        [
            ("", "nothing"),
            ("- a\n", "a list"),
            ("word", "text"),
            ("12", "a number"),
            ("true", "a boolean"),
            ("1: a\n", "the key 1"),
            ("{null: a}\n", "the key None"),
        ],
    )
    def test_what_is_no_mapping_with_text_keys_is_refused(self, text: str, complaint: str) -> None:
        with pytest.raises(YamlError, match=complaint) as caught:
            load_mapping(text, what="metadata.yaml")
        assert "metadata.yaml" in caught.value.message
        assert caught.value.hint

    def test_reading_ordinary_files_does_not_import_the_full_parser(self) -> None:
        program = (
            "import sys; from swampstore import yaml_dialect;"
            f"yaml_dialect.dump(yaml_dialect.load({METADATA!r}, what='x'));"
            "assert not any(name.startswith('ruamel') for name in sys.modules)"
        )
        subprocess.run([sys.executable, "-c", program], check=True)


ALIAS_BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]\n" for level in range(1, 15)
)


class TestHostileInput:
    @pytest.mark.parametrize(
        ("data", "line"),
        [
            ("a: 1\na: 2\n", 2),
            ("{a: 1, a: 2}\n", 1),
            ("1: a\n1.0: b\n", 2),
            ("a: 1\nb: b: c\n", 2),
            ("a: 1\n  b: 2\n", 2),
            ("a:\n\tb: 1\n", 2),
            ("a: 1\n---\nb: 2\n", 2),
            ("a: 1\n...\nb: 2\n", 3),
            ("a: 1\nb: \0\n", 2),
            ("a: 1\nb: \x07\n", 2),
            ("a: \x7f\n", 1),
            ("a: 1\nb: \ud800\n", 2),
            (b"a: 1\nb: \xe9\n", 2),
            ("a: 1\n".encode("utf-16"), 1),
            ('a: "\\ud800"\n', 1),
            ("a: " + "9" * 5000, 1),
            ("a: 1\nb: !!python/object/apply:os.system [ls]\n", 2),
            ("a: !!python/name:os.system ''\n", 1),
            ("a: !custom x\n", 1),
            ("a: !!binary aGk=\n", 1),
            ("a: !!timestamp 2026-05-14\n", 1),
            ("a: !!int x\n", 1),
            ("!!map [a]\n", 1),
            ("? [a]\n: b\n", 1),
            ("a: *nowhere\n", 1),
            ("a: &a [*a]\n", 1),
            ("k" * 2000 + ": 1\n", 1),
            ("%YAML 3.0\n---\na: 1\n", 1),
            (ALIAS_BOMB, 6),
            ("[" * 3000, 1),
            ("{a: " * 3000, 1),
            ("- " * 3000, 1),
            ("a:\n" + "- " * 3000 + "x", 2),
            ("\n".join("  " * depth + "a:" for depth in range(300)), MAX_DEPTH + 1),
        ],
    )
    def test_it_is_refused_with_file_line_and_hint(self, data: bytes | str, line: int) -> None:
        with pytest.raises(YamlError) as caught:
            load(data, what="metadata.yaml")
        assert caught.value.message.startswith(f"metadata.yaml, line {line}: ")
        assert caught.value.hint

    def test_an_escape_beyond_unicode_is_refused(self) -> None:
        with pytest.raises(YamlError, match=r"metadata\.yaml"):
            load('a: "\\UFFFFFFFF"', what="metadata.yaml")

    def test_an_alias_to_a_large_text_may_not_be_repeated_without_end(self) -> None:
        text = f"a: &a {'x' * 100_000}\nb: [{'*a, ' * 100}]\n"
        with pytest.raises(YamlError, match="aliases repeat"):
            load(text, what="x")

    def test_a_long_line_costs_time_in_proportion(self) -> None:
        text = f"a: x{' ' * 100_000}y\nb: '{chr(39) * 100_000}'\nc: {'x:' * 50_000}x\n"
        assert [len(value) for value in read_quickly(text).values()] == [100_002, 50_000, 100_001]

    @given(st.binary(max_size=60) | st.text(max_size=60))
    @settings(max_examples=100, deadline=None)
    def test_arbitrary_data_loads_or_is_refused(self, data: bytes | str) -> None:
        with contextlib.suppress(YamlError):
            load(data, what="x")


FRAGMENTS = [
    *("a", "key", "true", "null", "~", "1", "010", "1e3", "0x", "- ", "-", "---", "...", ": ", ":"),
    *(
        " ",
        "  ",
        "\n",
        "\n  ",
        "\n    ",
        "\n- ",
        "\n  - ",
        "#",
        " #",
        " # c",
        "'",
        '"',
        "''",
        "'x'",
    ),
    *("{}", "[]", "{", "]", ",", "&a ", "*a", "!t ", "|", ">", "%", "@", "? ", "\t", "\r", "\x85"),
    *("\u2028", "\ufeff", "é", "😀", "\xa0", "\\", ".inf", "-1", "+", "=", "<<: ", "$", "/", "\0"),
]
LINES = [
    *("a: 1", "b: x", "c:", "  d: 1", "  e:", "    f: x", "- x", "- a: 1", "  b: 2", "  - y"),
    *("  - k: v", "    l: w", "   odd: 1", " z: 1", "", "  ", "# c", "  # c", "g: 'q'", "a:"),
    *('h: "q" # c', "i: it''s", "j: 'it''s'", "k: a: b", "l: a #b", "m: a#b", "n: [a]", "o: {}"),
    *("q: |", "  text", "'s': 1", '"t": 2', "? u", ": v", "-", "- ", "-   x: 1", "    y: 2", "---"),
    *("a: &x 1", "b: *x", "true: 1", "1: 2", "a: -1", "a: -x", "a: - x", "a: ?x", "a : 1", "a:1"),
    *(
        "a: 'x' y",
        "a: 'x'#y",
        "\ta: 1",
        "a:\t1",
        "- - x",
        "- {}",
        "- # c",
        "a: # c",
        "é: 1",
        "b: é",
    ),
    *("c: 2026-05-14", "d: 1e3", "e: 0x1F", "f: 9f86", "h: 12e5", "  j: ~", "l: a  b ", "- a:"),
    *("a: '", 'a: "x\\ny"', "e: 0o17", "e: 0b1", "e: 1.5e3x", "'true': 1", "'': 1", "- 'k': 1"),
]


@st.composite
def damaged_documents(draw: st.DrawFn) -> str:
    text = draw(st.sampled_from([METADATA, OUTPUT_RECORD, SETTINGS]) | documents.map(dump))
    lines = text.splitlines(keepends=True)
    start = draw(st.integers(0, len(lines)))
    text = "".join(lines[start : start + 8])
    for _ in range(draw(st.integers(0, 3))):
        place = draw(st.integers(0, len(text)))
        width = draw(st.integers(0, 3))
        text = text[:place] + draw(st.sampled_from(FRAGMENTS)) + text[place + width :]
    return text


yaml_like = (
    st.lists(st.sampled_from(LINES), max_size=6).map("\n".join)
    | st.lists(st.sampled_from(FRAGMENTS), max_size=12).map("".join)
    | damaged_documents()
)


class TestQuickReader:
    @given(yaml_like)
    @settings(max_examples=600, deadline=None)
    @example("a:\n- b\nc: 1\n")
    @example("- a: 1\n  b:\n  - c\n")
    @example("a:\n  - b:\n      c: 1\n  - d\n")
    def test_it_declines_or_agrees_with_the_full_reader(self, text: str) -> None:
        try:
            quick = read_quickly(text)
        except NotSureError:
            return
        assert exact(quick) == exact(read_fully(text, what="x"))

    @pytest.mark.parametrize(
        "text",
        [
            "a: [b]\n",
            "a: b: c\n",
            "a: b\n  c\n",
            "a: &x b\n",
            "a: !!str b\n",
            "a: |\n  b\n",
            "a:\tb\n",
            "a: 1\na: 2\n",
            "1: a\n",
            "null: a\n",
            "- a\n",
            "  a: 1\n",
            "---\na: 1\n",
            'a: "\\n"\n',
            "a: b\u2028c\n",
            "a: \x07\n",
            "a: " + "9" * 5000,
            "k" * 2000 + ": 1\n",
        ],
    )
    def test_it_declines_what_it_does_not_know(self, text: str) -> None:
        with pytest.raises(NotSureError):
            read_quickly(text)

    def test_both_readers_allow_the_same_depth(self) -> None:
        def nested(depth: int) -> str:
            return (
                "".join(f"{' ' * level}a:\n" for level in range(depth - 1)) + " " * depth + "a: 1"
            )

        assert read_quickly(nested(MAX_DEPTH)) == read_fully(nested(MAX_DEPTH), what="x")
        with pytest.raises(NotSureError):
            read_quickly(nested(MAX_DEPTH + 1))
        with pytest.raises(YamlError):
            read_fully(nested(MAX_DEPTH + 1), what="x")


class TestDumping:
    def test_the_metadata_of_an_artifact_is_written_as_others_write_it(self) -> None:
        assert dump(load_mapping(METADATA, what="metadata.yaml")) == METADATA

    def test_collections_are_written_as_indented_blocks(self) -> None:
        value: dict[str, Any] = {
            "a": {"b": [1, {"c": "x", "d": {"e": True}}, [2, [3]], {}, [], None, {"f": None}]},
            "g": {},
            "h": [],
            "i": {"j": None},
            "k": None,
            "l": (1.5, math.inf, -math.inf, 1e16, 1e-7),
        }
        assert dump(value) == (
            "a:\n"
            "  b:\n"
            "    - 1\n"
            "    - c: x\n"
            "      d:\n"
            "        e: true\n"
            "    - - 2\n"
            "      - - 3\n"
            "    - {}\n"
            "    - []\n"
            "    - null\n"
            "    - {}\n"
            "g: {}\n"
            "h: []\n"
            "i: {}\n"
            "l:\n"
            "  - 1.5\n"
            "  - .inf\n"
            "  - -.inf\n"
            "  - 1.0e+16\n"
            "  - 1.0e-07\n"
        )

    def test_nothing_to_write_is_an_empty_mapping(self) -> None:
        assert dump({}) == dump({"a": None}) == "{}\n"

    @pytest.mark.parametrize(
        "text",
        [
            *("result", "application/json", "text/plain", "30d", "$HOME/x", "user:ana", "a b, c"),
            *(".swamp/outputs/x.log", "https://example.org/x", "nightly-scan", "été", "9f86d08188"),
            "5d0f2b0a-6f57-4c53-9f5e-0a4f8c2f9f10",
            "12345678-6f57-4c53-9f5e-0a4f8c2f9f10",
        ],
    )
    def test_certain_text_stands_without_quotes(self, text: str) -> None:
        assert dump({"key": text}) == f"key: {text}\n"

    @pytest.mark.parametrize("text", NOT_TEXT_FOR_SOMEBODY)
    def test_text_that_some_reader_takes_for_something_else_is_quoted(self, text: str) -> None:
        written = dump({text: [text]})
        key, _, item = written.partition("\n")
        if text not in ("é: è", "日本"):
            assert key[0] in "'\""
            assert item.strip()[2] in "'\""
        assert pyyaml.safe_load(written) == load(written, what="x") == {text: [text]}

    def test_single_quotes_are_preferred_and_escapes_used_where_needed(self) -> None:
        assert dump({"a": "it's 12:30"}) == "a: 'it''s 12:30'\n"
        assert dump({"a": 'x\ny\t"\\\x07\x85\u2028'}) == ('a: "x\\ny\\t\\"\\\\\\x07\\x85\\u2028"\n')
        assert dump({"a": "😀 x"}) == "a: '😀 x'\n"

    def test_not_a_number_survives(self) -> None:
        assert dump({"a": math.nan}) == "a: .nan\n"
        assert math.isnan(load("a: .nan\n", what="x")["a"])

    @pytest.mark.parametrize(
        "value",
        [
            {"a": "\ud800"},
            {"\udfff": "a"},
            {"a": dt.datetime.now(dt.UTC)},
            {"a": [b"bytes"]},
            {"a": {1, 2}},
            {"k" * 2000: 1},
            {"a": 10**5000},
        ],
    )
    def test_what_yaml_cannot_carry_is_refused(self, value: dict[Any, Any]) -> None:
        with pytest.raises(ValidationError) as caught:
            dump(value)
        assert caught.value.hint

    def test_the_deepest_readable_value_can_be_written_and_no_deeper_one(self) -> None:
        value: Any = 1
        for _ in range(MAX_DEPTH):
            value = {"a": value}
        assert load(dump(value), what="x") == value
        with pytest.raises(ValidationError, match="levels deep"):
            dump({"a": value})

    def test_a_value_that_holds_itself_is_refused(self) -> None:
        value: dict[str, Any] = {}
        value["self"] = [value]
        with pytest.raises(ValidationError, match="levels deep"):
            dump(value)

    @given(documents)
    @settings(max_examples=200, deadline=None)
    def test_every_document_comes_back_the_same(self, document: dict[str, Any]) -> None:
        assert exact(load(dump(document), what="x")) == exact(document)

    @given(documents)
    @settings(max_examples=150, deadline=None)
    def test_a_yaml_1_1_reader_reads_the_same(self, document: dict[str, Any]) -> None:
        assert exact(pyyaml.safe_load(dump(document))) == exact(document)

    @given(documents)
    @settings(max_examples=150, deadline=None)
    def test_another_yaml_1_2_reader_reads_the_same(self, document: dict[str, Any]) -> None:
        assert exact(YAML(typ="safe", pure=True).load(dump(document))) == exact(document)


def merged(before: Any, change: Any) -> Any:
    if not isinstance(change, dict):
        return change
    kept = before if isinstance(before, dict) else {}
    both = {**kept, **{key: merged(kept.get(key), value) for key, value in change.items()}}
    return {key: value for key, value in both.items() if change.get(key, 0) is not None}


names = st.sampled_from(["a", "b", "'quoted'", "yes", "a b"])
settings_values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(names, inner, max_size=3),
    max_leaves=6,
)
settings_documents = st.dictionaries(names, settings_values, max_size=4)
setting_changes = st.dictionaries(
    names,
    st.none()
    | settings_values
    | st.dictionaries(names, st.none() | settings_values, min_size=1, max_size=2),
    max_size=3,
)


class TestEditing:
    def test_only_the_changed_spans_change(self) -> None:
        changes = {
            "swampVersion": "20270101.1",
            "datastore": {"path": None, "namespace": "infra"},
            "autoGc": True,
            "tools": ["claude", "other"],
            "defaultVault": "ops",
        }
        assert edit(SETTINGS, changes) == (
            "# written by hand\n"
            "swampVersion: '20270101.1'   # keep quoted\n"
            "initializedAt: 2026-05-01T09:00:00.000Z\n"
            "\n"
            "# where the data lives\n"
            "datastore:                   # optional\n"
            "  type: filesystem           # or an extension\n"
            "  # namespace: infra\n"
            "  config: { bucket: b, prefix: p }\n"
            "  namespace: infra\n"
            "# collect rubbish?\n"
            "autoGc: true\n"
            "tools:\n"
            "  - claude\n"
            "  - other\n"
            "unknownKey: 0x1F\n"
            "defaultVault: ops\n"
            "# the end\n"
        )

    def test_a_flow_mapping_becomes_a_block_when_it_changes(self) -> None:
        edited = edit(SETTINGS, {"datastore": {"config": {"region": "r", "prefix": None}}})
        assert "\n  config:\n    bucket: b\n    region: r\n# collect" in edited

    def test_equal_values_keep_their_spelling(self) -> None:
        same = {"unknownKey": 31, "datastore": {"config": {"bucket": "b"}}, "tools": ["claude"]}
        assert edit(SETTINGS, {**same, "absent": None}) == SETTINGS

    def test_a_mapping_that_loses_all_its_keys_stays_a_mapping(self) -> None:
        assert edit("a:\n  b: 1  # gone\n# kept\nc: 2\n", {"a": {"b": None}}) == (
            "a: {}  # gone\n# kept\nc: 2\n"
        )
        assert edit("# kept\na: 1\n# too\nb: 2\n", {"a": None, "b": None}) == (
            "# kept\n# too\n{}\n"
        )

    @pytest.mark.parametrize("text", ["", "# a comment\n", "# a comment", "\n"])
    def test_an_empty_text_gives_a_fresh_document(self, text: str) -> None:
        edited = edit(text, {"a": {"b": 1, "c": None}, "d": None})
        assert edited.endswith("a:\n  b: 1\n")
        assert edited.startswith(text)
        assert load(edited, what="x") == {"a": {"b": 1}}

    def test_a_scalar_or_nothing_gives_way_to_a_mapping(self) -> None:
        assert edit("a: 1  # one\nb:\n", {"a": {"x": 1}, "b": {"z": 2}}) == (
            "a:\n  x: 1  # one\nb:\n  z: 2\n"
        )

    def test_a_block_scalar_is_replaced_whole(self) -> None:
        assert edit("a: |\n  x\n  y\n\n# kept\nb: 1\n", {"a": "z"}) == "a: z\n\n# kept\nb: 1\n"

    def test_rare_characters_and_anchors_elsewhere_do_no_harm(self) -> None:
        text = "a: &x 1\nb: &x 'x \u2028 y\x85'\nc: \xa0\n"
        assert edit(text, {"c": 2, "d": 3}) == "a: &x 1\nb: &x 'x \u2028 y\x85'\nc: 2\nd: 3\n"

    @pytest.mark.parametrize(
        ("text", "changes"),
        [
            ("a: &x 1\nb: *x\n", {"a": 2}),
            ("a: 1\nb: &x 1\nc: *x\n", {"c": 2}),
            ("? a\n# :\n: 1\n", {"a": 2}),
            ("b: &x {k: 1}\na: *x\n", {"c": 1}),
        ],
    )
    def test_what_cannot_be_changed_safely_is_left_alone(
        self, text: str, changes: dict[str, Any]
    ) -> None:
        with pytest.raises(YamlError, match="without damage"):
            edit(text, changes)

    @pytest.mark.parametrize("text", ["- a\n", "word\n", "1: a\n", "a: b: c\n"])
    def test_what_is_no_mapping_cannot_be_edited(self, text: str) -> None:
        with pytest.raises(YamlError, match=r"\.swamp\.yaml"):
            edit(text, {"a": 1})

    @given(settings_documents, setting_changes)
    @settings(max_examples=150, deadline=None)
    def test_the_result_is_the_merge_and_no_comment_is_lost(
        self, document: dict[str, Any], changes: dict[str, Any]
    ) -> None:
        lines = dump(document).splitlines()
        text = "".join(f"# {number}.\n{line}\n" for number, line in enumerate(lines))
        edited = edit(text, changes)
        assert exact(load(edited, what="x")) == exact(merged(document, changes))
        for number, line in enumerate(lines):
            if not line.startswith(" "):
                assert f"# {number}.\n" in edited
