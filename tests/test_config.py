"""Finding a repository, what `.swamp.yaml` and the environment say, and the two tiers of files."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from swampstore import Repo, init_repo, marker, open_repo
from swampstore import config as configuration
from swampstore.artifacts.recovery import sweep
from swampstore.config import Config
from swampstore.errors import (
    AlreadyExistsError,
    ConfigError,
    DiskError,
    RepoDamagedError,
    RepoNotFoundError,
)
from swampstore.locks.process import new_record
from swampstore.locks.record import decode
from swampstore.marker import update_marker, upgrade, with_one_prefix
from swampstore.stores import store_config
from swampstore.yaml_dialect import load_mapping
from tests.conftest import FakeClock

MODEL = "aws/ec2/i-1"
NOW = "2026-05-14T20:19:51.042Z"


def write_marker(repo_dir: Path, text: str) -> None:
    (repo_dir / ".swamp.yaml").write_text(text)


def load(repo_dir: Path, environ: Mapping[str, str] | None = None, **options: Any) -> Config:
    return configuration.load(str(repo_dir), environ or {}, **options)


def loaded(repo_dir: Path, datastore: str, environ: Mapping[str, str] | None = None) -> Config:
    write_marker(repo_dir, f"repoId: r\ndatastore: {datastore}\n")
    return load(repo_dir, environ)


# Finding a repository -------------------------------------------------------------------------


def test_a_repository_is_found_from_anywhere_below_it(repo_dir: Path) -> None:
    below = repo_dir / "models/aws"
    below.mkdir(parents=True)
    assert marker.find_repo(str(below), {}) == str(repo_dir)
    assert marker.find_repo(None, {"SWAMP_REPO_DIR": str(below)}) == str(repo_dir)


def test_an_explicit_directory_counts_more_than_the_environment(
    repo_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    init_repo(tmp_path / "other").close()
    environ = {"SWAMP_REPO_DIR": str(tmp_path / "other")}
    assert marker.find_repo(str(repo_dir), environ) == str(repo_dir)
    monkeypatch.chdir(repo_dir)
    assert marker.find_repo(None, {}) == str(repo_dir)
    assert marker.find_repo(None, environ) == str(tmp_path / "other")


def test_no_repository_anywhere_above_is_an_error_that_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(RepoNotFoundError, match="is not in a swamp repository") as caught:
        marker.find_repo(str(tmp_path), {})
    assert caught.value.code == "repo_not_found"
    assert "swampstore init" in (caught.value.hint or "")


def test_a_mistyped_directory_does_not_fall_back_to_the_repository_above(repo_dir: Path) -> None:
    with pytest.raises(RepoNotFoundError, match="typo is not a directory"):
        marker.find_repo(str(repo_dir / "typo"), {})


def test_data_without_a_marker_is_a_repository_that_was_only_partially_initialised(
    repo_dir: Path, tmp_path: Path
) -> None:
    for directory in (tmp_path / "half", repo_dir / "half"):
        (directory / ".swamp/data").mkdir(parents=True)
        with pytest.raises(RepoDamagedError, match=str(directory)) as caught:
            open_repo(directory)
        assert caught.value.code == "repo_partially_initialised"
        assert f"swampstore init {directory}" in (caught.value.hint or "")


def test_initialising_again_finishes_what_was_only_partially_initialised(repo_dir: Path) -> None:
    with open_repo(repo_dir, durable=False) as repo:
        repo.artifacts.save(MODEL, "state", b"kept")
    (repo_dir / ".swamp.yaml").unlink()
    with init_repo(repo_dir) as repo:
        assert repo.latest(MODEL, "state").bytes() == b"kept"


@pytest.mark.parametrize("call", [init_repo, open_repo])
@pytest.mark.parametrize("kind", ["directory", "link to nowhere"])
def test_what_is_no_file_in_place_of_the_marker_is_named(
    tmp_path: Path, call: Callable[[Path], object], kind: str
) -> None:
    path = tmp_path / ".swamp.yaml"
    if kind == "directory":
        path.mkdir()
    else:
        path.symlink_to("nowhere")
    with pytest.raises(RepoDamagedError, match=re.escape(str(path))) as caught:
        call(tmp_path)
    assert "Move it away" in (caught.value.hint or "")
    assert not (tmp_path / ".swamp").exists()


def test_the_home_of_other_clients_is_no_damaged_repository(tmp_path: Path) -> None:
    (tmp_path / ".swamp/repos").mkdir(parents=True)
    with pytest.raises(RepoNotFoundError):
        marker.find_repo(str(tmp_path), {})


# Making a repository --------------------------------------------------------------------------


def test_a_fresh_marker_says_who_and_since_when(tmp_path: Path, clock: FakeClock) -> None:
    with init_repo(tmp_path / "deep/repo", clock=clock) as repo:
        written = load_mapping((tmp_path / "deep/repo/.swamp.yaml").read_bytes(), what="it")
        assert written == {
            "swampVersion": marker.FORMAT_VERSION,
            "initializedAt": NOW,
            "repoId": repo.config.repo_id,
        }
    assert sorted(entry.name for entry in (tmp_path / "deep/repo").iterdir()) == [
        ".swamp",
        ".swamp.yaml",
    ]


def test_a_repository_cannot_be_initialised_twice(repo_dir: Path) -> None:
    before = (repo_dir / ".swamp.yaml").read_bytes()
    with pytest.raises(AlreadyExistsError, match="is a swamp repository already"):
        init_repo(repo_dir)
    assert (repo_dir / ".swamp.yaml").read_bytes() == before


def test_a_file_where_the_local_directory_belongs_is_named(tmp_path: Path) -> None:
    (tmp_path / ".swamp").write_text("mine")
    with pytest.raises(DiskError, match=r"\.swamp") as caught:
        init_repo(tmp_path)
    assert "Move it away" in (caught.value.hint or "")
    assert not (tmp_path / ".swamp.yaml").exists()
    assert (tmp_path / ".swamp").read_text() == "mine"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, ".swamp/\n"),
        ("", ".swamp/\n"),
        ("*.pyc\n", "*.pyc\n.swamp/\n"),
        ("*.pyc", "*.pyc\n.swamp/\n"),
        ("*.pyc\r\n.swamp\r\n", "*.pyc\r\n.swamp\r\n"),
        ("/.swamp/\n", "/.swamp/\n"),
    ],
)
def test_git_ignores_the_local_directory(tmp_path: Path, before: str | None, after: str) -> None:
    (tmp_path / ".git").mkdir()
    if before is not None:
        (tmp_path / ".gitignore").write_bytes(before.encode())
    init_repo(tmp_path).close()
    assert (tmp_path / ".gitignore").read_bytes() == after.encode()


def test_a_worktree_and_a_directory_below_one_are_git_repositories_too(tmp_path: Path) -> None:
    (tmp_path / ".git").write_text("gitdir: elsewhere\n")
    init_repo(tmp_path / "below").close()
    assert (tmp_path / "below/.gitignore").read_text() == ".swamp/\n"


# Where the data is ----------------------------------------------------------------------------


def test_the_datastore_is_in_the_repository_by_default(repo_dir: Path) -> None:
    for text in ("repoId: r\n", "", "datastore:\n", "datastore:\n  type: filesystem\n"):
        write_marker(repo_dir, text)
        config = load(repo_dir)
        assert config.base == config.local_dir == config.datastore_dir == f"{repo_dir}/.swamp"
    assert load(repo_dir).repo_id == "unknown"


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("/mnt/share", "/mnt/share"),
        ("/mnt/./share/../other/", "/mnt/other"),
        ("../shared", "{parent}/shared"),
        ("data store", "{repo}/data store"),
        ("~/swamp", "/home/ana/swamp"),
        ("~", "/home/ana"),
        ("~other", "{repo}/~other"),
        ("$HOME/swamp", "/home/ana/swamp"),
        ("${HOME}swamp", "/home/anaswamp"),
        ("$ROOT/$HOME", "/srv/home/ana"),
        ("/mnt/a$", "/mnt/a$"),
    ],
)
def test_a_path_is_expanded_and_relative_to_the_repository(
    repo_dir: Path, written: str, meant: str
) -> None:
    environ = {"HOME": "/home/ana", "ROOT": "/srv"}
    config = loaded(repo_dir, f"{{type: filesystem, path: '{written}'}}", environ)
    assert config.base == meant.format(repo=repo_dir, parent=repo_dir.parent)


@pytest.mark.parametrize("written", ["$NOWHERE/x", "${NOWHERE}", "$EMPTY/x", "~/x"])
def test_a_variable_that_is_not_set_is_an_error_and_never_nothing(
    repo_dir: Path, written: str
) -> None:
    name = {"$": "NOWHERE", "~": "HOME"}[written[0]] if "EMPTY" not in written else "EMPTY"
    with pytest.raises(ConfigError, match=name) as caught:
        loaded(repo_dir, f"{{type: filesystem, path: '{written}'}}", {"EMPTY": ""})
    assert written in caught.value.message
    with pytest.raises(ConfigError, match=f"SWAMP_DATASTORE: .*{name}"):
        load(repo_dir, {"SWAMP_DATASTORE": f"filesystem:{written}"})


def test_the_option_beats_the_environment_beats_the_file_beats_the_default(repo_dir: Path) -> None:
    write_marker(repo_dir, "datastore: {type: filesystem, path: /from/file}\n")
    environ = {"SWAMP_DATASTORE": "filesystem:/from/environment"}
    option = "filesystem:/from/option"
    assert load(repo_dir, environ, datastore=option).base == "/from/option"
    assert load(repo_dir, environ).base == "/from/environment"
    assert load(repo_dir, {"SWAMP_DATASTORE": ""}).base == "/from/file"


@pytest.mark.parametrize("prefix", ["SWAMP_", "SWAMPSTORE_"])
def test_whatever_a_file_says_the_environment_says_with_either_prefix(
    repo_dir: Path, prefix: str
) -> None:
    section = (
        "{url: 's3://file/x?requestTimeoutMs=3000', namespace: file, syncTimeoutMs: 1000,"
        " durable: true}"
    )

    def said(**variables: str) -> list[object]:
        environ = {f"{prefix}{name}": value for name, value in variables.items()}
        environ |= {"SWAMPSTORE_FSYNC": "off"} if variables else {}
        environ["HOME"] = str(repo_dir)
        write_marker(repo_dir, f"repoId: r\ndatastore: {section}\n")
        with open_repo(repo_dir, environ=environ) as repo:
            config = repo.config
        remote = config.remote
        assert remote is not None
        store = store_config(remote.target, remote.config, environ=with_one_prefix(environ))
        return [
            *(remote.target, config.namespace, remote.sync_timeout, config.durable),
            store.limits.request_timeout,
        ]

    assert said() == ["s3://file/x?requestTimeoutMs=3000", "file", 1.0, True, 3.0]
    assert said(
        DATASTORE="s3://environment/x?requestTimeoutMs=3000",
        NAMESPACE="environment",
        DATASTORE_SYNC_TIMEOUT_MS="2000",
        S3_REQUEST_TIMEOUT_MS="4000",
    ) == ["s3://environment/x?requestTimeoutMs=3000", "environment", 2.0, False, 4.0]


def test_another_place_for_the_data_keeps_namespace_directories_and_exclude(repo_dir: Path) -> None:
    section = "{path: /from/file, namespace: infra, directories: [data], exclude: [data/x]}"
    config = loaded(repo_dir, section, {"SWAMP_DATASTORE": "filesystem:/other"})
    assert config.datastore_dir == "/other/infra"
    assert config.routing.subdirs == ("data",)
    assert config.routing.is_local("data/x/1")
    assert loaded(repo_dir, section, {"SWAMP_NAMESPACE": "mine"}).namespace == "mine"


@pytest.mark.parametrize(
    ("section", "complaint"),
    [
        ("[data]", "datastore in .swamp.yaml is ['data'], expected a mapping"),
        ("''", "expected a mapping"),
        ("{type: 3}", "datastore.type in .swamp.yaml is 3, expected the name of a type"),
        ("{path: [a]}", "datastore.path"),
        ("{namespace: Infra}", "datastore.namespace in .swamp.yaml: 'Infra' is not a namespace"),
        ("{namespace: 7}", "datastore.namespace"),
        ("{directories: [data, dta]}", "'dta', which is no datastore directory"),
        ("{directories: data}", "datastore.directories"),
        ("{exclude: logs}", "datastore.exclude"),
        ("{exclude: [1]}", "datastore.exclude"),
        ("{durable: 'off'}", "durable"),
    ],
)
def test_a_setting_that_cannot_be_used_is_named(
    repo_dir: Path, section: str, complaint: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        loaded(repo_dir, section)
    assert complaint in caught.value.message
    assert caught.value.code == "config_invalid"
    assert caught.value.hint


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("SWAMP_DATASTORE", "filesystem:"),
        ("SWAMP_DATASTORE", "/mnt/share"),
        ("SWAMP_NAMESPACE", "../up"),
        ("SWAMP_EPHEMERAL_BUDGET", "much"),
    ],
)
def test_a_variable_that_cannot_be_used_is_named(repo_dir: Path, variable: str, value: str) -> None:
    with pytest.raises(ConfigError, match=variable) as caught:
        load(repo_dir, {variable: value})
    assert caught.value.hint


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (b"repoId: r\ndatastore: [unclosed\n", "line 3"),
        (b"repoId: r\n\tdatastore: x\n", "line 2"),
        (b"a: 1\nb\nc: 2\n", "line"),
        (b"- a\n- b\n", "a list where a mapping belongs"),
        (b"just text\n", "text where a mapping belongs"),
        (b"repoId: r\nname: caf\xe9\n", "line 2"),
        (b"repoId: r\nrepoId: s\n", "line 2"),
    ],
)
def test_a_marker_that_is_not_yaml_is_an_error_with_file_and_line(
    repo_dir: Path, text: bytes, place: str
) -> None:
    (repo_dir / ".swamp.yaml").write_bytes(text)
    with pytest.raises(ConfigError) as caught:
        open_repo(repo_dir)
    assert f"{repo_dir}/.swamp.yaml" in caught.value.message
    assert place in caught.value.message
    assert f"{repo_dir}/.swamp.yaml" in (caught.value.hint or "")


def test_waiting_for_the_disk_can_be_switched_off(repo_dir: Path) -> None:
    assert load(repo_dir).durable
    assert not load(repo_dir, {"SWAMPSTORE_FSYNC": "off"}).durable
    assert loaded(repo_dir, "{durable: true}").durable
    assert not loaded(repo_dir, "{durable: false}").durable
    assert not load(repo_dir, {"SWAMPSTORE_FSYNC": ""}).durable
    assert load(repo_dir, {"SWAMPSTORE_FSYNC": "on"}).durable
    with open_repo(repo_dir, environ={}) as repo:
        assert not repo.tree.durable


def test_a_lock_timeout_that_is_no_number_is_ignored_like_other_clients_do(repo_dir: Path) -> None:
    assert load(repo_dir, {"SWAMP_LOCK_TIMEOUT_MS": "1500"}).locks.timeout == 1.5
    for nonsense in ("", "soon", "-1", "0", "1.5", "²"):
        assert load(repo_dir, {"SWAMP_LOCK_TIMEOUT_MS": nonsense}).locks.timeout == 60


@pytest.mark.parametrize("digits", [20, 400, 5000])
def test_a_lock_is_waited_for_no_longer_than_the_system_can(repo_dir: Path, digits: int) -> None:
    locks = load(repo_dir, {"SWAMP_LOCK_TIMEOUT_MS": "9" * digits}).locks
    assert 3600 < locks.timeout < threading.TIMEOUT_MAX


@pytest.mark.parametrize("text", ["86400000", "86400001", "9" * 20, "9" * 5000])
def test_a_lock_never_says_that_it_lives_for_longer_than_others_believe(
    repo_dir: Path, text: str
) -> None:
    locks = load(repo_dir, {"SWAMPSTORE_LOCK_TTL_MS": text}).locks
    assert locks.ttl == 24 * 3600
    written = new_record(locks.ttl).encode()
    assert decode(written) is not None


@pytest.mark.parametrize(
    ("text", "size"), [("7", 7), ("2k", 2048), ("1 MB", 1 << 20), ("", 1 << 29)]
)
def test_the_ephemeral_budget_takes_units(repo_dir: Path, text: str, size: int) -> None:
    assert load(repo_dir, {"SWAMP_EPHEMERAL_BUDGET": text}).ephemeral_budget == size


# Changing the marker --------------------------------------------------------------------------

HANDWRITTEN = """\
# ours, ask ana before touching
swampVersion: "20250101.1"   # old
repoId: 2d3a0d0e-0000-4000-8000-000000000001
tool: claude
datastore:
  type: filesystem
  path: ../shared   # the big disk
x-future: {nested: [1, yes]}
"""


def test_an_upgrade_changes_its_two_keys_and_not_a_byte_else(repo_dir: Path) -> None:
    write_marker(repo_dir, HANDWRITTEN)
    upgrade(str(repo_dir), NOW)
    expected = HANDWRITTEN.replace('"20250101.1"', f"'{marker.FORMAT_VERSION}'")
    expected += f"upgradedAt: '{NOW}'\n"
    assert (repo_dir / ".swamp.yaml").read_text() == expected
    assert load(repo_dir).base == str(repo_dir.parent / "shared")


def test_changes_are_merged_into_nested_settings(repo_dir: Path) -> None:
    write_marker(repo_dir, HANDWRITTEN)
    update_marker(str(repo_dir), {"datastore": {"namespace": "infra", "path": None}})
    merged = marker.read_marker(str(repo_dir))
    assert merged["datastore"] == {"type": "filesystem", "namespace": "infra"}
    assert merged["tool"] == "claude"
    assert merged["x-future"] == {"nested": [1, "yes"]}


def test_a_marker_keeps_its_permissions_and_stays_a_link(repo_dir: Path, tmp_path: Path) -> None:
    target = tmp_path / "dotfiles.yaml"
    (repo_dir / ".swamp.yaml").rename(target)
    target.chmod(0o640)
    (repo_dir / ".swamp.yaml").symlink_to(target)
    update_marker(str(repo_dir), {"autoGc": True})
    assert (repo_dir / ".swamp.yaml").is_symlink()
    assert target.stat().st_mode & 0o777 == 0o640
    assert load(repo_dir).auto_gc


def test_a_marker_that_cannot_be_read_is_not_changed(repo_dir: Path) -> None:
    write_marker(repo_dir, "- a\n")
    with pytest.raises(ConfigError):
        upgrade(str(repo_dir), NOW)
    assert (repo_dir / ".swamp.yaml").read_text() == "- a\n"


def test_a_change_that_fails_half_way_leaves_the_old_marker_and_nothing_else(
    repo_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (repo_dir / ".swamp.yaml").read_bytes()

    def full_disk(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(DiskError, match="the disk is full"):
        upgrade(str(repo_dir), NOW)
    assert (repo_dir / ".swamp.yaml").read_bytes() == before
    assert sorted(os.listdir(repo_dir)) == [".swamp", ".swamp.yaml"]


# Two tiers ------------------------------------------------------------------------------------

EXCLUDES = ["data/**/raw", "data/aws/**", "**/*.yaml", "data/**/latest", "data/**/[13]", "data"]


def files_below(directory: Path) -> set[str]:
    return {
        str(path.relative_to(directory))
        for path in (directory / "data").rglob("*")
        if path.is_file()
    }


@pytest.fixture(params=EXCLUDES)
def split_repo(request: pytest.FixtureRequest, repo_dir: Path, tmp_path: Path) -> Iterator[Repo]:
    """A repository whose datastore is elsewhere, without what a pattern excludes."""
    update_marker(
        str(repo_dir),
        {"datastore": {"path": str(tmp_path / "shared"), "exclude": [request.param]}},
    )
    with open_repo(repo_dir, environ={}, durable=False) as repo:
        yield repo


def tiers(repo: Repo) -> tuple[set[str], set[str]]:
    return files_below(Path(repo.config.base)), files_below(Path(repo.config.local_dir))


def test_excluded_files_are_in_the_local_tier_and_all_others_are_not(split_repo: Repo) -> None:
    repo = split_repo
    for number in range(3):
        repo.artifacts.save(MODEL, "state", {"n": number})
    shared, local = tiers(repo)
    assert {rel for rel in shared if repo.config.routing.is_local(rel)} == set()
    assert {rel for rel in local if not repo.config.routing.is_local(rel)} == set()
    assert len(shared | local) == 7
    assert local


def test_files_in_both_tiers_are_durable(split_repo: Repo, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: set[str] = set()
    monkeypatch.setattr(os, "fsync", lambda fd: synced.add(os.readlink(f"/proc/self/fd/{fd}")))
    split_repo.tree.durable = True
    split_repo.artifacts.save(MODEL, "state", b"x")
    roots = (split_repo.config.base, split_repo.config.local_dir)
    for root, rels in zip(roots, tiers(split_repo), strict=True):
        assert {os.path.dirname(f"{root}/{rel}") for rel in rels} <= synced
        assert {f"{root}/{rel}" for rel in rels if rel.endswith("raw")} <= synced


def test_data_in_two_tiers_is_read_like_any_other(split_repo: Repo) -> None:
    repo = split_repo
    repo.artifacts.save(MODEL, "state", {"n": 1})
    repo.artifacts.save(MODEL, "state", {"n": 2})
    repo.artifacts.save(MODEL, "log", b"one,", streaming=True)
    repo.artifacts.append(MODEL, "log", b"two")
    with repo.artifacts.writer(MODEL, "state") as writer:
        writer.write(b"{}")
    for _ in range(2):
        assert repo.latest(MODEL, "state").version == 3
        assert repo.version(MODEL, "state", 1).json() == {"n": 1}
        assert repo.latest(MODEL, "log").bytes() == b"one,two"
        assert [found.name for found in repo.list_data(MODEL)] == ["log", "state"]
        assert [found.version for found in repo.query("attributes.n == 2 && version > 0")] == [2]
        assert repo.rebuild_catalog()[:3] == (2, 4, 0)


def test_data_in_two_tiers_is_deleted_from_both(split_repo: Repo) -> None:
    repo = split_repo
    for number in range(3):
        repo.artifacts.save(MODEL, "state", {"n": number})
    repo.artifacts.delete(MODEL, "state", version=3)
    assert repo.latest(MODEL, "state").json() == {"n": 1}
    repo.artifacts.rename(MODEL, "state", "status")
    assert repo.latest(MODEL, "state").name == "status"
    repo.artifacts.delete(MODEL, "state")
    repo.artifacts.delete(MODEL, "status")
    assert tiers(repo) == (set(), set())
    assert repo.rebuild_catalog()[:2] == (0, 0)


def test_a_sweep_does_not_take_half_of_a_version_in_two_tiers_for_abandoned(
    split_repo: Repo,
) -> None:
    repo = split_repo
    repo.artifacts.save(MODEL, "state", b"kept")
    swept = sweep(repo.store, older_than=-10)
    assert swept.leftovers == ()
    assert repo.latest(MODEL, "state").bytes() == b"kept"


def test_secrets_are_never_in_the_datastore_tier(repo_dir: Path, tmp_path: Path) -> None:
    section = "{path: ../shared, namespace: infra, directories: [data, secrets], exclude: ['!**']}"
    write_marker(repo_dir, f"datastore: {section}\n")
    with open_repo(repo_dir, environ={}) as repo:
        assert repo.tree.path("data/x") == f"{tmp_path}/shared/infra/data/x"
        assert repo.tree.path("secrets/x") == f"{repo_dir}/.swamp/secrets/x"
        with repo.tree.changing("secrets/vault") as change:
            change.make_dir("secrets/vault")
            change.write("secrets/vault/key", b"hush")
    assert (repo_dir / ".swamp/secrets/vault/key").read_bytes() == b"hush"
    assert not (tmp_path / "shared/infra/secrets").exists()
