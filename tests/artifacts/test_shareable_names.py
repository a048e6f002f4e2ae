"""Whatever is saved can be shared, and what never may be shared is not, however it is spelled."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swampstore import Repo
from swampstore.artifacts.metadata import Draft
from swampstore.errors import ValidationError
from swampstore.index.path_map import Names
from swampstore.layout import (
    MAX_KEY_BYTES,
    DataRef,
    ModelRef,
    check_shareable,
    is_always_local,
)
from swampstore.marker import update_marker
from swampstore.notices import notice, shell_word
from swampstore.routing import Routing
from swampstore.stores.protocol import check_key
from tests.support.machines import Machine
from tests.support.remotes import Remote
from tests.support.sync_harness import Machine as Cache
from tests.support.sync_harness import remote_files

MODEL = "aws/ec2/i-1"
BAD = "bad\nna\x1bme"


@given(st.text(), st.text(), st.text())
def test_a_name_that_may_be_saved_can_be_an_object_of_every_store(
    kind: str, model_id: str, name: str
) -> None:
    try:
        ref = DataRef(ModelRef.of(kind or "t", model_id or "i"), name or "n")
        check_shareable(ref)
    except ValidationError:
        return
    for file in ("raw", "metadata.yaml"):
        check_key(ref.file_rel(10**17, file))
    assert Names("/nowhere", "", Routing()).why_no_name(ref.file_rel(1, "raw")) is None


@pytest.mark.parametrize("name", ["a\nb", "a\tb", "\x1b[31m", "a\x7f", "\x01"])
def test_a_name_with_a_control_character_is_refused_before_anything_is_written(
    name: str, repo: Repo
) -> None:
    kinds = [] if name[1:2].isspace() else [(f"x{name}/i", "n")]  # there it separates segments
    for model, data_name in ((MODEL, name), (f"aws/ec2/{name}", "state"), *kinds):
        with pytest.raises(ValidationError, match="control character"):
            repo.artifacts.save(model, data_name, "x")
    with pytest.raises(ValidationError, match="control character"):
        repo.store.open_writer(DataRef(ModelRef.parse(MODEL), name), Draft())
    repo.artifacts.save(MODEL, "good", "x")
    with pytest.raises(ValidationError, match="control character"):
        repo.artifacts.rename(MODEL, "good", name)
    assert [path.name for path in Path(repo.config.datastore_dir, "data").iterdir()] == ["aws"]


def test_the_whole_key_counts_with_prefix_and_namespace() -> None:
    ref = DataRef(ModelRef.of("/".join(["t" * 200] * 4), "i"), "n")
    room = MAX_KEY_BYTES - len(ref.file_rel(10**17, "metadata.yaml"))
    check_shareable(ref, "p" * room)
    with pytest.raises(ValidationError, match="1024 bytes"):
        check_shareable(ref, "p" * (room + 1))


def test_the_prefix_of_a_bucket_counts_when_something_is_saved(ana: Machine) -> None:
    section = {"type": "s3", "url": f"s3://bucket/{'p' * 900}", "namespace": "n" * 60}
    update_marker(str(ana.repo_dir), {"datastore": section})
    with ana.open() as repo, pytest.raises(ValidationError, match="1024 bytes"):
        repo.artifacts.save("type/id", "n" * 50, "x")


# What is on disk against the rule ---------------------------------------------------------------


def plant(machine: Machine, directory: Path) -> None:
    """Put a name on disk as an earlier release did, which let it pass."""
    shutil.copytree(directory / "aws/ec2/i-1/good", directory / f"aws/ec2/i-1/{BAD}")
    path = directory / f"aws/ec2/i-1/{BAD}/1/metadata.yaml"
    path.write_text(path.read_text().replace("name: good", 'name: "bad\\nna\\x1bme"'))
    assert machine("catalog", "rebuild").status == 0


def test_sync_tells_of_a_name_that_cannot_be_shared_until_it_is_renamed(
    ana: Machine, bucket: Path
) -> None:
    assert ana("data", "put", MODEL, "good", "--json-value", "1").status == 0
    plant(ana, ana.cache / "data")
    for command in (("sync", "--full"), ("sync",), ("sync", "--push")):
        done = ana(*command)
        assert done.status == 74, done
        assert "control character" in done.err
        assert f"swampstore data rename {MODEL} {shell_word(BAD)} NEW" in done.err
        assert b"\x1b" not in done.stderr
    doctor = ana("doctor")
    assert doctor.status == 1
    assert "bad\\nna\\x1bme" in doctor.out
    ana("data", "rename", MODEL, BAD, "better")
    assert ana("data", "delete", MODEL, BAD, "--force").status == 0
    assert ana("sync").status == 0
    assert ana("doctor").status == 0
    assert ana.get(MODEL, "better") == "1"
    assert (bucket / "data/aws/ec2/i-1/better/1/raw").exists()


def test_other_names_are_pushed_beside_one_that_cannot_be(ana: Machine, bucket: Path) -> None:
    assert ana("data", "put", MODEL, "good", "--json-value", "1").status == 0
    plant(ana, ana.cache / "data")
    ana.put("aws/ec2/i-2", "other", "x")
    assert ana("sync", "--full").status == 74
    assert (bucket / "data/aws/ec2/i-2/other/1/raw").exists()


def test_setup_refuses_to_leave_a_name_behind(ana: Machine, bucket: Path) -> None:
    update_marker(str(ana.repo_dir), {"datastore": None})
    assert ana("data", "put", MODEL, "good", "--json-value", "1").status == 0
    plant(ana, ana.repo_dir / ".swamp/data")
    done = ana("datastore", "setup", f"file://{bucket}")
    assert done.status == 1
    assert "data rename" in done.err
    assert ana.get(MODEL, "good") == "1"
    assert not (bucket / "data").exists()
    ana("data", "rename", MODEL, BAD, "better")
    ana("data", "delete", MODEL, BAD, "--force")
    assert ana("datastore", "setup", f"file://{bucket}").status == 0
    assert (bucket / "data/aws/ec2/i-1/better/1/raw").exists()


# What never leaves the machine ------------------------------------------------------------------

SPELLINGS = [
    "secrets",
    "Secrets",
    "SECRETS",
    "secrets.",
    "secrets ",
    "secrets. .",
    "\uff53ecrets",
    "\u017fecrets",
    "sec\u200brets",
    "Vault-Bundles",
    "datastore-bundles",
    "Datastore-Bundles",
    "ns/secrets",
    "ns/Secrets.",
]


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_no_spelling_of_an_always_local_directory_crosses(
    spelling: str, tmp_path: Path, memory_remote: Remote
) -> None:
    rel = f"{spelling}/key"
    assert is_always_local(rel)
    assert Routing([spelling]).subdirs == ()
    with Cache(tmp_path / "a", memory_remote.open()) as here:
        here.write(rel, b"secret")
        here.write("files/plain", b"x")
        here.push(full=True)
        assert [*remote_files(here.store)] == ["files/plain"]


def test_data_may_be_called_like_a_directory_that_stays() -> None:
    for rel in ("data/secrets/id/n/1/raw", "files/secrets/x", "outputs/bundles/x.yaml"):
        assert not is_always_local(rel)


def test_secrets_that_others_put_into_a_bucket_do_not_come_from_it(
    tmp_path: Path, memory_remote: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        Cache(tmp_path / "a", memory_remote.open()) as there,
        Cache(tmp_path / "b", memory_remote.open()) as here,
    ):
        there.write("Secrets/key", b"planted")
        there.write("files/plain", b"x")
        with monkeypatch.context() as other_client:
            other_client.setattr("swampstore.index.path_map.is_always_local", lambda _: False)
            there.push()
        assert "Secrets/key" in remote_files(there.store)
        pulled = here.pull()
        assert [one.rel for one in pulled.skipped] == ["Secrets/key"]
        assert [*here.files()] == ["files/plain"]


# Terminals --------------------------------------------------------------------------------------


def test_no_text_of_others_reaches_a_terminal_raw(ana: Machine) -> None:
    ugly = "\x1b]0;owned\x07\x1b[31mred\x9b2J"
    with ana.open() as repo:
        repo.artifacts.save(MODEL, "state", ugly, content_type="text/plain", tags={"x": ugly})
    for select in ("tags.x", "tags", "[tags.x]", '{"a": tags.x}', "content"):
        done = ana("data", "query", "true", "--select", select)
        assert done.status == 0, done
        assert b"\x1b" not in done.stdout, select
        assert b"\x07" not in done.stdout, select
        assert b"\xc2\x9b" not in done.stdout, select
        assert "red" in done.out
    assert "\x1b[31m" in ana.get(MODEL, "state")


def test_a_name_of_before_the_rule_reaches_no_terminal_raw(ana: Machine) -> None:
    assert ana("data", "put", MODEL, "good", "--json-value", "1").status == 0
    plant(ana, ana.cache / "data")
    for command in (
        ("data", "query", "true", "--select", "name"),
        ("data", "query", "true", "--select", '{"n": [name]}'),
        ("data", "query", "true"),
        ("data", "search", "bad"),
        ("data", "list", MODEL),
        ("data", "get", MODEL, BAD),
        ("doctor",),
    ):
        done = ana(*command)
        assert b"\x1b" not in done.stdout + done.stderr, command
        assert "bad" in done.out, command


def test_no_notice_acts_on_a_terminal(caplog: pytest.LogCaptureFixture) -> None:
    notice("%s: %s", "a\x1b[31m", ValidationError("\x1b"))
    assert "\x1b" not in caplog.text
    assert "a\\x1b[31m" in caplog.text
